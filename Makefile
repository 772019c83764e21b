# `make demo` to see it, `make check` before a commit, `make test` for all tests. They share $(VENV).
# FILE is what to test: make test FILE=tests/evaluate
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN = $(VENV)/bin
DEMO ?= demo
TYPES = build/types
ROOMS = render datasets evaluate baselines
FILE ?=
PYTEST = $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal --durations=10

# Without it the checkout's own folders (datasets, evaluate) would shadow other people's packages.
export PYTHONSAFEPATH = 1
# Set, as in many containers, it would have every process compile what it imports: pip does not.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo check test lint format docs bench clean

demo: $(VENV)/ready
	$(BIN)/3dident doctor
	$(BIN)/3dident render --n 60 --out $(DEMO)/train
	$(BIN)/3dident verify $(DEMO)/train
	$(BIN)/3dident preview $(DEMO)/train --out $(DEMO)/preview.png
	$(BIN)/3dident traverse --resolution 96 --out $(DEMO)/traversal.png
	$(BIN)/3dident compare-engines --n 8 --out $(DEMO)/engines.png
	$(BIN)/3dident render --engine direct --quality draft --resolution 32 --n 4000 --out $(DEMO)/small
	$(BIN)/3dident render --engine direct --quality draft --resolution 32 --n 1000 --split test --out $(DEMO)/small-test
	$(BIN)/3dident pairs $(DEMO)/small --conditional normal --sigma 0.3 --out $(DEMO)/pairs.png
	$(BIN)/3dident train demo --data $(DEMO)/small --test $(DEMO)/small-test --out $(DEMO)/run
	$(BIN)/3dident evaluate reference:encoder=$(DEMO)/run/encoder.pt --data $(DEMO)/small-test --out $(DEMO)/scores
	@echo
	@echo "Look at $(DEMO)/preview.png (the images), $(DEMO)/traversal.png (what each factor does),"
	@echo "$(DEMO)/engines.png (both engines, and their difference times 16) and $(DEMO)/pairs.png"
	@echo "(what matching to 4,000 images does to a conditional); open $(DEMO)/scores/report.html"
	@echo "in a browser: what an encoder that was trained by contrast for 250 steps, without ever"
	@echo "seeing a label, has recovered of each factor. $(DEMO)/run/metrics.csv tells how it got there."
	@echo "To move the factors yourself: $(BIN)/3dident explore $(DEMO)/small --encoder $(DEMO)/run"
	@echo "The dataset is $(DEMO)/train; $(BIN)/3dident info $(DEMO)/train describes it."

# No test that starts Blender, a training, a cluster or a browser: tests/helpers/fast.py.
check: $(VENV)/ready lint
	$(PYTEST) --fast $(FILE)

test: $(VENV)/ready lint
	$(PYTEST) $(FILE)

# mypy reads the package as it is installed: render/ is threedident.render only there.
lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf $(TYPES)
	mkdir -p $(TYPES)/threedident
	ln -s $(CURDIR)/threedident/* $(foreach room,$(ROOMS),$(CURDIR)/$(room)) $(TYPES)/threedident
	MYPYPATH=$(TYPES) MYPY_NUM_WORKERS=auto $(BIN)/mypy -p threedident

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site is build/site: open build/site/index.html"

bench: $(VENV)/ready
	$(BIN)/python benchmarks/run.py $(BENCH)

# pip would compile 21,000 modules, for a minute; Python does it for those that are imported.
# The pip that comes with Python 3.11 is slower than today's.
$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "Python 3.11 is needed (bpy has no other wheels): make PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv --upgrade-deps $(VENV)
	PYTHONWARNINGS='ignore:Editable installation' $(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[all,docs,dev]'
	@$(BIN)/python -c 'import bpy' 2> /dev/null || { \
		packages=$$($(BIN)/python -c 'from threedident.render.blender import DEBIAN_PACKAGES as p; print(p)'); \
		if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
			apt-get update -qq && apt-get install -qq -y --no-install-recommends $$packages > /dev/null; \
		else echo "Blender needs system libraries; on Debian or Ubuntu: sudo apt-get install $$packages"; exit 2; fi; }
	touch $@

clean:
	rm -rf $(VENV) build $(DEMO) *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
