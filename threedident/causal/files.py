"""Models by name and from TOML files.

A file may name a built-in model as its `base`, and then states what differs. It may have sisters in
`[variants.NAME]`, tables of what differs again: model `FILE-NAME`, or with several of them
`FILE-FIRST-SECOND`, in the order of the file.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from threedident.causal.model import CausalModel
from threedident.causal.parsing import parse_model
from threedident.errors import UsageError
from threedident.plain_data import Misfit, explaining, read_toml, table
from threedident.presets.files import complete_preset

LARGEST_MODEL = 30_000  # bytes: dotted keys of that size take 1 GB to parse

#: Tables whose entries are stated anew one by one: at these places, `*` being any name. Any other
#: table, such as a mechanism, is stated anew as a whole.
_JOINED = (
    ("scene",),
    ("scene", "ranges"),
    ("scene", "fixed"),
    ("variables",),
    ("variables", "*"),
    ("environments",),
    ("environments", "*"),
    ("views",),
    ("views", "*"),
    ("interventions",),
)
_VARIANTS = "variants"


def model_names() -> list[str]:
    """The names of the built-in models, sorted, with their sisters of one variant."""
    names = []
    for name in _file_names():
        names.append(name)
        names += [f"{name}-{variant}" for variant in _read_built_in(name)[_VARIANTS]]
    return sorted(names)


def load_model(name: str | Path) -> CausalModel:
    """Load a built-in model by its name, or a user's from a .toml file.

    Args:
        name: the name, or the file.

    Raises:
        UsageError: the name is unknown, or the file is missing or does not fit.
    """
    own = str(name).endswith(".toml")
    source = f"model file {name}" if own else f"model {name}"
    if own:
        folder = Path(name).parent
        fields = _complete(read_toml(Path(name), source, LARGEST_MODEL), source)
        data = {"name": Path(name).stem, **fields}
        data.pop(_VARIANTS)
    else:
        folder = _folder()
        data = {**_built_in(str(name)), "name": str(name)}
    with explaining(source):
        scene = table(data.get("scene", {}), "scene")
    data["scene"] = complete_preset({"base": "3dident", **scene}, folder, f"{source}: [scene]")
    for field in ("description", "best_r2", "name"):
        data["scene"].pop(field, None)
    return parse_model(data, source)


def _folder() -> Path:
    return Path(__file__).parent / "models"


def _file_names() -> list[str]:
    """The models that have a file of their own; files that begin with _ are only bases."""
    folder = resources.files("threedident.causal") / "models"
    names = (p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))
    return sorted(name for name in names if not name.startswith("_"))


def _built_in(name: str) -> dict[str, Any]:
    """The fields of a built-in model, or of a sister of one; its description says which.

    Raises:
        UsageError: there is none of that name.
    """
    for file in _file_names():
        if name != file and not name.startswith(f"{file}-"):
            continue
        data = _read_built_in(file)
        variants = data.pop(_VARIANTS)
        for count in range(len(variants) + 1):
            for chosen in itertools.combinations(variants, count):
                if name == "-".join((file, *chosen)):
                    for variant in chosen:
                        data = _with_variant(data, variants[variant])
                    return data
    close = difflib.get_close_matches(name, model_names(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise UsageError(
        f"unknown model {name!r:.80}: {hint}Expected the path of a .toml file, or one of the names "
        "that `3dident model` lists"
    )


def _with_variant(data: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, Any]:
    about = f"{data.get('description', '')} {variant.get('description', '')}".strip()
    return {**joined(data, variant), "description": about}


def _read_built_in(name: str) -> dict[str, Any]:
    path = _folder() / f"{name}.toml"
    return _complete(read_toml(path, f"model {name}", LARGEST_MODEL), f"model {name}")


def _complete(data: dict[str, Any], source: str) -> dict[str, Any]:
    """Add the fields of a model's base to its own; not checked yet, but for `variants`.

    Raises:
        UsageError: the base is no built-in model, or the variants do not fit.
    """
    if "base" in data:
        base = data.pop("base")
        bases = {path.stem for path in _folder().glob("*.toml")}
        if not isinstance(base, str):
            raise UsageError(
                f"{source}: base must be the name of a built-in model, found {base!r:.80}"
            )
        fields = _read_built_in(base) if base in bases else _built_in(base)
        for field in ("name", "description"):
            fields.pop(field, None)
        data = joined(fields, data)
    with explaining(source):
        variants = table(data.get(_VARIANTS, {}), _VARIANTS, "variants")
        for name, variant in variants.items():
            table(variant, f"{_VARIANTS}.{name:.60}")
            if not name or not name.replace("-", "").isalnum():
                raise Misfit(f"{_VARIANTS}: a name is made of letters, digits and -: {name!r:.60}")
    return {**data, _VARIANTS: variants}


def joined(base: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a model and of its base, not checked.

    Args:
        base: the fields of the base.
        data: the model's own, which count where both state one.
    """
    return _joined(base, data, ())


def _joined(base: Any, data: Any, place: tuple[str, ...]) -> Any:
    both = isinstance(base, Mapping) and isinstance(data, Mapping)
    inside = place
    if place[:1] == (_VARIANTS,):  # a variant's tables are those of a model
        inside = place[2:]
    whole = inside and not any(
        len(pattern) == len(inside)
        and all(part in ("*", name) for part, name in zip(pattern, inside, strict=True))
        for pattern in _JOINED
    )
    if not both or whole:
        return data
    merged = dict(base)
    for name, value in data.items():
        merged[name] = _joined(base[name], value, (*place, name)) if name in base else value
    return merged
