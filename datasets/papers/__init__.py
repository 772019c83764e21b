"""The papers' other datasets: grids, sprites and sequences, without torch.

One dataset a file, its writer of small files beside its reader; `sprites` draws such images.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

from threedident.datasets.formats.source import ImageSource
from threedident.errors import DatasetError, UsageError

#: What the names of images begin with that are drawn when they are asked for.
DRAWN = "drawn:"


@dataclasses.dataclass(frozen=True)
class _Form:
    """A form: where it is read.

    Attributes:
        words: what it is, in words.
        module: its module in this package, with `find(root)` and `open(root, split)`.
        endings: the ends of its paths, in small letters; empty where a folder can have any name.
        name: the name of its images after `DRAWN`, of a form that is drawn; empty for a file's.
    """

    words: str
    module: str
    endings: tuple[str, ...] = ()
    name: str = ""


_FORMS = {
    "drawn-blobs": _Form("drawn sequences of a moving blob", "blobs", name="blobs"),
    "kitti-masks": _Form("the sequences of KITTI Masks", "kitti_masks"),
    "drawn-sprites": _Form("drawn images like those of dSprites", "sprites", name="sprites"),
    "drawn-natural-sprites": _Form(
        "drawn images like those of Natural Sprites", "natural_sprites", name="natural-sprites"
    ),
    "dsprites": _Form("a file of dSprites", "dsprites", (".npz", ".h5", ".hdf5")),
    "natural-sprites": _Form(
        "a table of Natural Sprites", "natural_sprites", (".csv", ".csv:discrete")
    ),
    "packed-images": _Form(
        "a packed file of images, made by `3dident pack`", "packed", (".h5", ".hdf5")
    ),
    "shapes3d": _Form("the file of Shapes3D", "shapes3d", (".h5", ".hdf5")),
    "mpi3d": _Form("a file of MPI3D", "mpi3d", (".npz",)),
    "cars3d": _Form("the archive or the folder of Cars3D", "cars3d"),
    "smallnorb": _Form("the folder of SmallNORB", "smallnorb"),
    "mnist": _Form("a folder of IDX files, as MNIST's", "digits"),
    "cifar10": _Form("the binary version of CIFAR-10", "cifar10"),
    "image-folder": _Form("a folder of images by class", "image_folder"),
    "sklearn-digits": _Form("scikit-learn's digits", "sklearn_digits", ("sklearn:digits",)),
}
#: The forms, and what each is in words.
FORMS: dict[str, str] = {form: about.words for form, about in _FORMS.items()}


def is_drawn(root: str | Path) -> bool:
    """Whether a dataset's path is no file's, but a name: drawn:sprites, or sklearn:digits."""
    return str(root).startswith((DRAWN, "sklearn:"))


def find_form(root: Path) -> str | None:
    """Find out which of `FORMS` a dataset is in; None where it is in none of them.

    Args:
        root: the path, or the name of images that are drawn, such as drawn:sprites.

    Raises:
        DatasetError: it is a name of drawn images that there are not.
    """
    text = str(root)
    if text.startswith(DRAWN):
        name = text.removeprefix(DRAWN).partition(":")[0]
        names = {about.name: form for form, about in _FORMS.items() if about.name}
        if name not in names:
            known = ", ".join(f"{DRAWN}{each}" for each in names)
            raise DatasetError(f"there are no drawn images {text!r:.100}: expected one of {known}")
        return names[name]
    for form, about in _FORMS.items():
        fits = not about.name and (not about.endings or text.lower().endswith(about.endings))
        if fits and _module(form).find(root):
            return form
    return None


def open_source(root: Path, form: str, split: str | None = None) -> ImageSource:
    """Open one of the papers' other datasets.

    Args:
        root: the path, or the name of images that are drawn.
        form: one of `FORMS`, as `find_form` gives it.
        split: train or test, of a form that has both.

    Raises:
        UsageError: a split is named, and the form has none.
        DatasetError: it is damaged.
    """
    return _module(form).open(root, split)


def refuse_split(root: Path, split: str | None) -> None:
    """Refuse the name of a split.

    Raises:
        UsageError: there is one.
    """
    if split is not None:
        raise UsageError(f"{root} has no splits to choose from")


def _module(form: str) -> Any:
    return importlib.import_module(f"threedident.datasets.papers.{_FORMS[form].module}")
