"""The published layouts of 3DIdent's family, a module each: its reader and its writer.

| member | module | what is at hand beside images and latents |
| --- | --- | --- |
| Causal3DIdent | `causal3dident` | the class of each image |
| Multimodal3DIdent | `multimodal3dident` | classes, captions |
| 3DIdentBox | `identbox` | pairs |
| Temporal Causal3DIdent | `temporal` | frames, intervention targets; triplets |

The numbers of the classes stand for other shapes in each layout: here they have names.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from threedident.columns import Column as Column
from threedident.datasets.formats.family import (
    causal3dident,
    identbox,
    multimodal3dident,
    temporal,
)
from threedident.datasets.formats.family.layout import FamilySource as FamilySource
from threedident.datasets.formats.family.layout import ModelSource as ModelSource
from threedident.errors import DatasetError, UsageError

#: The layouts, by the name of the form.
LAYOUTS: dict[str, ModuleType] = {
    module.FORM: module for module in (causal3dident, multimodal3dident, identbox, temporal)
}
_SOURCES = {
    causal3dident.FORM: causal3dident.Causal3DIdentSource,
    multimodal3dident.FORM: multimodal3dident.MultimodalSource,
    identbox.FORM: identbox.IdentBoxSource,
    temporal.FORM: temporal.TemporalSource,
}
#: How people call them.
TITLES = {
    causal3dident.FORM: "Causal3DIdent",
    multimodal3dident.FORM: "Multimodal3DIdent",
    identbox.FORM: "3DIdentBox",
    temporal.FORM: "Temporal Causal3DIdent",
}
WRITERS = {
    causal3dident.FORM: causal3dident.write_causal3dident,
    multimodal3dident.FORM: multimodal3dident.write_multimodal3dident,
    identbox.FORM: identbox.write_3didentbox,
    temporal.FORM: temporal.write_temporal,
}


def find_family(root: Path) -> str | None:
    """The form of a folder or file in a layout of the family; None where it is in none."""
    if root.is_file():
        return temporal.FORM if root.suffix.lower() == ".npz" else None
    for form, module in LAYOUTS.items():
        if module.is_layout(root) or (form != temporal.FORM and splits_in(root, form)):
            return form
    return None


def splits_in(root: Path, form: str) -> dict[str, Path]:
    """The splits that a folder holds, by name; none where it is itself one.

    Args:
        root: the folder.
        form: the layout.
    """
    module = LAYOUTS[form]
    if form == temporal.FORM:
        places = {name: root / file for name, file in module.SPLITS.items()}
        return {name: path for name, path in places.items() if path.is_file()}
    if module.is_layout(root):
        return {}
    places = {name: root / folder for name, folder in module.SPLITS.items()}
    return {name: path for name, path in places.items() if module.is_layout(path)}


def open_family(root: Path, form: str, split: str | None = None) -> FamilySource:
    """Open a dataset in a layout of the family.

    Args:
        root: the folder of one split, that of several, or an .npz file.
        form: the layout.
        split: the split, train, val or test, of a folder of several.

    Raises:
        UsageError: there is no such split, or there are several and none is named.
        DatasetError: it is incomplete or damaged.
        MissingExtraError: never; captions are read as they are.
    """
    name = "val" if split == "validation" else split
    splits = {} if root.is_file() else splits_in(root, form)
    if not splits:
        if name is not None:
            raise UsageError(f"{root} is itself a split: leave out --split")
        return _SOURCES[form](root)
    if name is None and len(splits) > 1:
        raise UsageError(
            f"{root} holds the splits {', '.join(splits)}: choose one with --split, or give "
            f"{next(iter(splits.values()))}"
        )
    name = name or next(iter(splits))
    if name not in splits:
        raise UsageError(f"{root} has no split {name}: it holds {', '.join(splits)}")
    if not splits[name].exists():
        raise DatasetError(f"{splits[name]} is gone")
    return _SOURCES[form](splits[name])
