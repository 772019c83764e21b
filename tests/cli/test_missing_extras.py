"""What is not installed is named, with the command that installs it; the rest works."""

from __future__ import annotations

from helpers.commands import python, without


def test_a_missing_extra_is_one_line_of_advice(tmp_path):
    from threedident.errors import MissingExtraError

    done = without("bpy", "from threedident.render.blender import import_bpy\nimport_bpy()")
    assert f"{MissingExtraError.__name__}: rendering needs bpy" in done.stderr
    assert "pip install '.[render]' in the checkout" in done.stderr
    (tmp_path / "a.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    words = ["render", "--out", str(tmp_path / "d"), "--shape", str(tmp_path / "a.obj")]
    done = without("trimesh", f"from threedident.cli import main\nmain({words!r})")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "reading a mesh file needs trimesh" in done.stderr


def test_the_direct_engine_without_warp():
    done = without("warp", "from threedident.render.direct import render")
    assert "the direct engine needs warp-lang (NVIDIA Warp)" in done.stderr
    assert "pip install '.[direct]' in the checkout" in done.stderr


def test_reading_works_without_the_render_extra(small_dataset):
    done = without(
        "bpy",
        f"from threedident.cli import main\nmain(['verify', {str(small_dataset)!r}])",
    )
    assert done.returncode == 0, done.stderr
    assert "all is well" in done.stdout


def test_a_missing_system_library_is_named():
    done = python(
        "import sys, importlib.abc, importlib.machinery\n"
        "class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        return importlib.machinery.ModuleSpec(name, self) if name == 'bpy' else None\n"
        "    def create_module(self, spec):\n"
        "        raise ImportError('libXi.so.6: cannot open shared object file')\n"
        "    def exec_module(self, module): pass\n"
        "sys.meta_path.insert(0, Broken())\n"
        "from threedident.render.blender import import_bpy\nimport_bpy()"
    )
    assert "libXi.so.6" in done.stderr
    assert "apt-get install libx11-6 libxrender1" in done.stderr


def test_the_page_without_its_server():
    for name in ("uvicorn", "starlette", "warp"):
        done = without(name, "from threedident.cli import main\nmain(['explore', '--no-browser'])")
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "the page needs" in done.stderr
        assert "pip install '.[explore]' in the checkout" in done.stderr


def test_the_page_opens_without_the_train_extra():
    done = python(
        "import sys, threedident.explore.app\n"
        "heavy = {'bpy', 'faiss', 'scipy', 'sklearn', 'torch', 'warp'} & set(sys.modules)\n"
        "sys.exit(f'loads {heavy}' if heavy else 0)"
    )
    assert done.returncode == 0, done.stderr
