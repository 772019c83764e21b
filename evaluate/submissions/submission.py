"""`Submission`: a file or name handed in; its kind, whether it may be run, and its hash."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import re
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from threedident import system
from threedident.errors import UsageError
from threedident.evaluate.submissions.embeddings import SUFFIXES
from threedident.evaluate.submissions.onnx_check import check_external

#: Kinds that run their author's code.
TRUSTED = ("python", "torch")
REFERENCE = "reference:"
REFERENCES = ("identity", "random", "pca", "supervised", "encoder")
_TRAINED = ("supervised", "encoder")  # by this toolkit, and read from a checkpoint
_ENCODER_FILE = "encoder.pt"  # of a run
_ENCODER_FORMAT = b"3dident-encoder"  # stands at the beginning of such a file's description

_EXPORTED, _SCRIPTED, _ONNX = ".pt2", (".pt", ".ts", ".pth"), ".onnx"
_FACTORY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Submission:
    """An encoder, or the codes that one has recovered.

    Attributes:
        kind: embeddings, onnx, python, torch or reference.
        name: the file's name without its folder, or the reference.
        path: the file; None where there is none.
        checkpoint: the file that a Python factory or a reference gets.
        options: the options of a reference, as text.
    """

    kind: str
    name: str
    path: Path | None = None
    checkpoint: Path | None = None
    options: str = ""

    @property
    def label(self) -> str:
        """The name, and of a reference with a checkpoint also that file's path as it was given."""
        if self.kind == "reference" and self.checkpoint is not None:
            return f"{self.name}={self.checkpoint}"
        return self.name


def identify(
    reference: str | Path, *, trust: bool = False, checkpoint: Path | None = None
) -> Submission:
    """Tell what a path or name on the command line means. Nothing is loaded.

    Args:
        reference: a file, the folder of a run, `package.module:factory`, or `reference:NAME`.
        trust: whether code of its author may be run.
        checkpoint: the file that a Python factory gets.

    Raises:
        UsageError: it is nothing that can be scored, or it would run code and is not trusted.
    """
    if not isinstance(reference, str | Path):
        raise UsageError(
            f"expected a submission's path or name, found {type(reference).__name__}: compute its "
            "codes and hand them to score_codes(codes, data), or export it to ONNX (`torch.onnx"
            ".export`) and give that file's path"
        )
    text = str(reference)
    submission = _identify(text, checkpoint)
    if checkpoint is not None and submission.kind != "python":
        raise UsageError(
            f"--checkpoint is for a Python factory (package.module:factory); {text} is another "
            "kind of submission"
        )
    for path in (submission.path, submission.checkpoint):
        if path is not None and not path.is_file():
            raise UsageError(f"there is no file {path}")
    if submission.kind == "torch" and submission.path is not None:
        _refuse_checkpoint(submission.path)
    if submission.kind in TRUSTED and not trust:
        raise UsageError(
            f"{submission.name} can run any code of its author when it is loaded, with your "
            "rights: its process has limits of time and memory, which are no wall against ill "
            "will. Add --trust if you know who made it; ONNX and embeddings need no trust"
        )
    return submission


def _identify(text: str, checkpoint: Path | None) -> Submission:
    path = Path(text)
    if text.startswith(REFERENCE):
        return _reference(text)
    own = _of_training(path) if text else None
    if own is not None:
        return Submission("reference", f"{REFERENCE}encoder", checkpoint=own)
    if path.suffix in SUFFIXES:
        return Submission("embeddings", path.name, path)
    if path.suffix == _ONNX:
        return Submission("onnx", path.name, path)
    if path.suffix in (_EXPORTED, *_SCRIPTED):
        return Submission("torch", path.name, path)
    if _FACTORY.fullmatch(text):
        return Submission("python", text, checkpoint=checkpoint)
    raise UsageError(
        f"cannot tell what {text!r} is: expected embeddings ({', '.join(SUFFIXES)}), an encoder "
        f"({_ONNX}, {_EXPORTED}, {', '.join(_SCRIPTED)}), the folder of a run of `3dident train`, "
        f"package.module:factory, or {REFERENCE}NAME with NAME one of {', '.join(REFERENCES)}"
    )


def _reference(text: str) -> Submission:
    name, _, options = text.removeprefix(REFERENCE).partition("=")
    if name not in REFERENCES:
        raise UsageError(
            f"unknown reference encoder {name!r}: expected one of "
            + ", ".join(REFERENCE + each for each in REFERENCES)
        )
    if name in _TRAINED:
        if not options:
            raise UsageError(f"which checkpoint? {REFERENCE}{name}=CHECKPOINT")
        file = Path(options)
        if file.is_dir():  # of a run
            file = file / _ENCODER_FILE
        return Submission("reference", REFERENCE + name, checkpoint=file)
    return Submission("reference", text, options=options)


def _of_training(path: Path) -> Path | None:
    """Return the encoder of a run's folder, or a file that is one; None for other submissions."""
    if path.is_dir():
        if not (path / _ENCODER_FILE).is_file():
            raise UsageError(
                f"{path} is a folder without {_ENCODER_FILE}: expected the folder of a finished "
                "run of `3dident train`, or a file"
            )
        return path / _ENCODER_FILE
    own = path.suffix in _SCRIPTED and not _is_scripted(path) and _is_own_encoder(path)
    return path if own else None


def is_submission(path: Path) -> bool:
    """Whether `identify` takes a file, trusted or not: by its suffix, and no mere checkpoint."""
    if path.suffix in _SCRIPTED:
        return path.is_file() and _is_scripted(path)
    return path.suffix in (*SUFFIXES, _ONNX, _EXPORTED)


def _refuse_checkpoint(path: Path) -> None:
    if path.suffix != _EXPORTED and not _is_scripted(path):
        raise UsageError(
            f"{path.name} is no TorchScript file, nor an encoder of this toolkit, but may be a "
            f"checkpoint. Of a run of `3dident train`, {_ENCODER_FILE} is scored; of a model of "
            "your own, export an ONNX file (`torch.onnx.export`), or a file of `torch.jit.save`"
        )


def _is_own_encoder(path: Path) -> bool:
    """Whether a file says that `save_encoder` has written it; nothing is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [e for e in archive.infolist() if e.filename.endswith("/data.pkl")]
            if len(entries) != 1 or entries[0].compress_type != zipfile.ZIP_STORED:
                return False
            with archive.open(entries[0]) as description:
                return _ENCODER_FORMAT in description.read(256)
    except (OSError, ValueError, NotImplementedError, RuntimeError, zipfile.BadZipFile):
        return False


def _is_scripted(path: Path) -> bool:
    """Tell torch.jit.save from torch.save by the names inside, before anything is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False
    return any(name.split("/", 1)[-1].startswith("code/") for name in names)


def digest(submission: Submission, external: Iterable[str] = ()) -> str | None:
    """Compute SHA-256 of a submission: of its file, or of several files' names and digests.

    Args:
        submission: the submission. Of a Python factory, its module's file and its checkpoint
            count.
        external: names of files beside it that belong to it.

    Raises:
        UsageError: a file is missing, outside of its folder or behind a link.
    """
    files: dict[str, Path] = {}
    if submission.kind == "python":
        module = submission.name.split(":")[0]
        files[module] = find_module(module)
    if submission.path is not None:
        files[""] = submission.path
        external = tuple(external)
        check_external(submission.path, external)
        files.update({name: submission.path.parent / name for name in external})
    if submission.checkpoint is not None:
        files["checkpoint"] = submission.checkpoint
    digests = {name: file_digest(path) for name, path in sorted(files.items())}
    if len(digests) <= 1:
        return next(iter(digests.values()), None)
    listing = "".join(f"{value}  {name}\n" for name, value in digests.items())
    return hashlib.sha256(listing.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Compute SHA-256 of a file.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return system.file_digest(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def find_module(name: str) -> Path:
    """Find the source file of a module, without running it or the packages around it.

    Raises:
        UsageError: there is none.
    """
    first, *rest = name.split(".")
    # As in the process that runs it, the current folder counts.
    spec = importlib.machinery.PathFinder.find_spec(first, [str(Path.cwd()), *sys.path])
    spec = spec or importlib.util.find_spec(first)
    for part in rest:
        places = spec.submodule_search_locations if spec else None
        spec = importlib.machinery.PathFinder.find_spec(part, places) if places else None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise UsageError(
            f"there is no module {name} with a file of its own: is its package installed, or its "
            "folder the current one?"
        )
    return Path(spec.origin)
