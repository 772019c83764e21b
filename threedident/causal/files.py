"""Models by name and from TOML files."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from threedident.causal.model import CausalModel
from threedident.causal.parsing import parse_model
from threedident.errors import UsageError
from threedident.plain_data import explaining, read_toml, table
from threedident.presets.files import complete_preset

LARGEST_MODEL = 100_000  # bytes


def model_names() -> list[str]:
    """The names of the built-in models, sorted."""
    folder = resources.files("threedident.causal") / "models"
    names = (p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))
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
    if not own and name not in model_names():
        raise UsageError(
            f"unknown model {str(name)!r:.80}: expected one of {', '.join(model_names())}, or the "
            "path of a .toml file"
        )
    path = Path(name) if own else Path(__file__).parent / "models" / f"{name}.toml"
    data = read_toml(path, source, LARGEST_MODEL)
    data.setdefault("name", path.stem)
    with explaining(source):
        scene = table(data.get("scene", {}), "scene")
    data["scene"] = complete_preset({"base": "3dident", **scene}, path.parent, f"{source}: [scene]")
    for field in ("description", "best_r2", "name"):
        data["scene"].pop(field, None)
    return parse_model(data, source)
