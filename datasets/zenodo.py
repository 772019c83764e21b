"""Download what is published on Zenodo, 3DIdent and others, check it, and unpack it.

Every step can be interrupted, and the next run goes on from there. A partial file lies in
`.NAME.part`. An archive is unpacked in `.FOLDER.unpacking`, which is renamed when it is whole.
Names from the server never begin with a dot, so none of them meets ours.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import stat
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from threedident.datasets import papers
from threedident.datasets.formats import png_folder as published
from threedident.errors import DatasetError, UsageError
from threedident.progress import Progress
from threedident.storage.atomic_files import (
    check_space,
    explaining_write_errors,
    read_json,
    write_json,
)
from threedident.system import file_digest
from threedident.version import toolkit_version

if TYPE_CHECKING:
    import requests

RECORD = 4502485
#: The numbers of the records, by the name that `3dident download` takes.
RECORDS = {"3dident": RECORD, "kitti-masks": 3931823, "natural-sprites": 3948069}
#: Where the datasets are published that have no record.
ELSEWHERE = {
    "dsprites": "its file, dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz, lies in DeepMind's "
    "repository dsprites-dataset on GitHub",
    "shapes3d": "DeepMind's repository 3d-shapes on GitHub links to its file, 3dshapes.h5",
    "cars3d": "its archive, nips2015-analogy-data.tar.gz, is on the page of its author, Scott Reed",
    "smallnorb": "its six files are on Yann LeCun's page at New York University: NORB, small",
    "mpi3d": "the repository disentanglement_dataset of rr-learning on GitHub links to its files, "
    "mpi3d_toy.npz and others; where a link is dead, its issues name new ones",
    "mnist": "torchvision.datasets.MNIST(FOLDER, download=True) fetches it, and FashionMNIST its "
    "relative, which also is Debian's package dataset-fashion-mnist",
}
API = "https://zenodo.org/api"

_ARCHIVE = re.compile(r"(.+?)\.(zip|tar|tgz|tbz2|txz|tar\.(gz|bz2|xz))", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[^./\\:\x00-\x1f\x7f][^/\\:\x00-\x1f\x7f]{0,99}")
_DIGITS = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}
_MARK = ".3dident-download.json"  # in an unpacked folder: the checksum of its archive
_CHUNK = 1 << 16
_TIMEOUTS = (30.0, 60.0)  # s, to connect and between two pieces of an answer
_ATTEMPTS = 5  # in a row that get no further
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 300.0  # s, doubled with each attempt; s a server may ask for
_BUSY = (429, 500, 502, 503, 504)
_AGAIN = "Run the same command again: it goes on where this one stopped"

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file of a record.

    Attributes:
        name: the file's name, without a folder.
        size: the size in bytes.
        checksum: the algorithm and the hexadecimal digest, as md5:0123.
        url: the address of its content.
    """

    name: str
    size: int
    checksum: str
    url: str

    @property
    def folder(self) -> str | None:
        """The folder that an archive is unpacked into; None if the file is no archive."""
        match = _ARCHIVE.fullmatch(self.name)
        return match[1] if match else None


class _LaterError(Exception):
    """A failure that may pass: after `wait` seconds, where the server says so."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


def find_record(name: str) -> int:
    """The number of a dataset's record.

    Args:
        name: one of `RECORDS`.

    Raises:
        UsageError: the dataset is not on Zenodo, or not known.
    """
    if name in RECORDS:
        return RECORDS[name]
    if name in ELSEWHERE:
        raise UsageError(
            f"{name} is not on Zenodo: {ELSEWHERE[name]}. Fetch it there; `3dident info FILE` then "
            "opens it"
        )
    raise UsageError(
        f"unknown dataset {name!r:.100}: expected one of {', '.join(RECORDS)}. Not on Zenodo, but "
        f"read once fetched: {', '.join(ELSEWHERE)}"
    )


def open_session() -> requests.Session:
    """Open connections to a server; close them, or use them as a context manager."""
    import requests

    session = requests.Session()
    session.headers["User-Agent"] = f"threedident/{toolkit_version()}"
    return session


def list_record(session: requests.Session, record: int, api: str = API) -> list[RemoteFile]:
    """List the files of a record, with every field checked.

    Args:
        session: the connection, from `open_session`.
        record: the number of the record.
        api: the address of the server's interface.

    Raises:
        UsageError: `api` is no http address.
        DatasetError: there is no such record, no answer, or one that does not fit.
    """
    if urlsplit(api).scheme not in ("http", "https") or not urlsplit(api).netloc:
        raise UsageError(f"--api expects an address as {API}, found {api!r}")
    url = f"{api.rstrip('/')}/records/{record}"

    def fetch_record() -> Any:
        with _get(session, url, {}, "Is --record the record's number?") as response:
            size = len(response.content)
            try:
                return response.json()
            except ValueError:
                kind = response.headers.get("Content-Type", "no type")
                raise DatasetError(
                    f"{url}: expected a record as JSON, found {size} bytes of {kind}. Is --api "
                    "right, and no login page in between?"
                ) from None

    description = _persist(url, fetch_record)
    entries = description.get("files") if isinstance(description, dict) else None
    if isinstance(entries, dict):  # Invenio's own form
        entries = entries.get("entries")
        entries = list(entries.values()) if isinstance(entries, dict) else entries
    if not isinstance(entries, list) or not entries:
        raise DatasetError(f"{url}: expected a record with a list of files, found none")
    files = [_parse(entry, url) for entry in entries]
    names = [name for file in files for name in (file.name, file.folder) if name]
    for name in names:
        if names.count(name) > 1:
            raise DatasetError(f"{url}: two of its files would both be written to {name!r}")
    return files


def _parse(entry: Any, url: str) -> RemoteFile:
    """Read a file from the record's JSON, in any form that the API has had."""

    def fail(field: str, value: Any) -> DatasetError:
        return DatasetError(f"{url}: a file of the record has no usable {field}: {value!r:.100}")

    if not isinstance(entry, dict):
        raise fail("description", entry)
    name, size = entry.get("key", entry.get("filename")), entry.get("size", entry.get("filesize"))
    if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
        raise fail("name", name)
    if type(size) is not int or size < 0:
        raise fail(f"size ({name})", size)
    algorithm, _, digest = str(entry.get("checksum")).lower().rpartition(":")
    algorithm = algorithm or "md5"
    if len(digest) != _DIGITS.get(algorithm) or re.search("[^0-9a-f]", digest):
        raise fail(f"checksum ({name})", entry.get("checksum"))
    links = entry["links"] if isinstance(entry.get("links"), dict) else {}
    # Where there is more than `self`, that is the file's description.
    link = links.get("content") or links.get("download") or links.get("self")
    if not isinstance(link, str) or urlsplit(link).scheme not in ("http", "https"):
        raise fail(f"link ({name})", link)
    return RemoteFile(name, size, f"{algorithm}:{digest}", link)


def download(
    session: requests.Session, files: Sequence[RemoteFile], out: Path, *, remove_archives: bool
) -> list[RemoteFile]:
    """Download files into a folder and unpack the archives among them.

    Args:
        session: the connection, from `open_session`.
        files: the files to download.
        out: the folder; each archive gets a folder of its own in it.
        remove_archives: a flag to remove archives once they are unpacked.

    Returns:
        The files that were downloaded now; the others were complete before.

    Raises:
        DatasetError: no connection, a wrong checksum, an archive that is damaged or reaches out
            of its folder, something else in the way, or the disk is full.
    """
    with explaining_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        new = [file for file in files if not _is_finished(file, out)]
        _check_room(new, out, remove_archives)
        for file in files:
            if file in new:
                _fetch(session, file, out)
                if file.folder:
                    _unpack(file, out)
            if file.folder and remove_archives:
                (out / file.name).unlink(missing_ok=True)
    return new


def _is_finished(file: RemoteFile, out: Path) -> bool:
    """Check that a file is downloaded, and unpacked if it is an archive."""
    if file.folder is None:
        return _is_there(file, out)
    folder = out / file.folder
    shutil.rmtree(_unpacking(folder), ignore_errors=True)  # of a run that was killed
    if not folder.exists():
        return False
    if not (folder / _MARK).is_file() or read_json(folder / _MARK) != file.checksum:
        raise DatasetError(
            f"{folder} is there, but not unpacked from this {file.name}: move it away, or choose "
            "another --out"
        )
    return True


def _is_there(file: RemoteFile, out: Path) -> bool:
    """Check that a file is downloaded; refuse another of its name."""
    path = out / file.name
    fault = _fault(path, file) if path.exists() else None
    if fault:
        raise DatasetError(
            f"{path} is not the record's file: {fault}. Move it away, or choose another --out"
        )
    return path.exists()


def _fault(path: Path, file: RemoteFile) -> str | None:
    """Describe how a file differs from the record's; None if it does not."""
    if _size(path) != file.size:
        return f"expected {file.size} bytes, found {_size(path)}"
    if file.size > 10**9:
        Progress.print(f"checking {path}")
    algorithm = file.checksum.split(":")[0]
    checksum = f"{algorithm}:{file_digest(path, algorithm)}"
    return None if checksum == file.checksum else f"expected {file.checksum}, found {checksum}"


def _check_room(files: Sequence[RemoteFile], out: Path, remove_archives: bool) -> None:
    """Check that the disk has room for the files.

    Unpacked, an archive is taken to need its own size again: images hardly compress.
    """
    used = most = 0
    for file in files:
        have = file.size if (out / file.name).exists() else _size(_part(file, out))
        used += max(0, file.size - have) + (file.size if file.folder else 0)
        most = max(most, used)
        used -= file.size if file.folder and remove_archives else 0
    check_space(out, most, "Make room, fetch less (--files), or add --remove-archives")


def _part(file: RemoteFile, out: Path) -> Path:
    return out / f".{file.name}.part"


def _unpacking(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.unpacking")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class _Bar(Progress):
    """A progress bar in megabytes, which takes positions in bytes and never goes back."""

    def __init__(self, title: str, total: int, have: int = 0) -> None:
        super().__init__(title, total // 10**6, finished=have // 10**6, unit="MB")
        self.position = have

    def reach(self, position: int) -> None:
        new = position // 10**6 - self.position // 10**6
        self.position = max(position, self.position)
        if new > 0:
            self.advance(new)


def _fetch(session: requests.Session, file: RemoteFile, out: Path) -> None:
    """Download a file, in several attempts if need be, and check it."""
    part = _part(file, out)
    if _is_there(file, out):
        return
    bar = _Bar(f"downloading {file.name}", file.size, min(_size(part), file.size))
    with bar:
        _persist(file.url, lambda: _fetch_rest(session, file, part, bar), lambda: bar.position)
    fault = _fault(part, file)
    if fault:
        part.unlink()
        raise DatasetError(
            f"{file.name} is not what the record says: {fault}. What was fetched of it is "
            "removed; run the same command again to fetch it anew"
        )
    part.replace(out / file.name)


def _fetch_rest(session: requests.Session, file: RemoteFile, part: Path, bar: _Bar) -> None:
    """Complete a partial file with one request, or fail and keep the part."""
    have = _size(part)
    if have == file.size and part.exists():
        return
    headers = {"Accept-Encoding": "identity"}
    if 0 < have < file.size:
        headers["Range"] = f"bytes={have}-"
    with _get(session, file.url, headers, _AGAIN) as response:
        start = 0  # of what is sent: everything, where a server ignores the range
        if response.status_code != 200:
            match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            start = int(match[1]) if response.status_code == 206 and match else have + 1
        if start > have:
            part.unlink(missing_ok=True)
            raise _LaterError(f"no going on from byte {have} (HTTP {response.status_code})")
        with part.open("r+b" if part.exists() else "wb") as target:
            target.truncate(start)
            target.seek(start)
            for chunk in response.iter_content(_CHUNK):
                target.write(chunk)
                target.flush()
                bar.reach(target.tell())
                if target.tell() > file.size:
                    break
            os.fsync(target.fileno())
    if _size(part) < file.size:
        raise _LaterError("the connection broke")


def _get(
    session: requests.Session, url: str, headers: dict[str, str], advice: str
) -> requests.Response:
    """Request an address; the answer's content is not read yet.

    Its status is 200 (the whole), 206 (a part), or 416 (there is no such part).
    """
    response = session.get(url, headers=headers, stream=True, timeout=_TIMEOUTS)
    status, wait = response.status_code, response.headers.get("Retry-After", "")
    if status in (200, 206, 416):
        return response
    response.close()
    if status in _BUSY:
        raise _LaterError(f"HTTP {status}", float(wait) if wait.isdecimal() else None)
    raise DatasetError(f"cannot fetch {url}: HTTP {status} ({response.reason}). {advice}")


def _persist(url: str, attempt: Callable[[], T], reached: Callable[[], int] = lambda: 0) -> T:
    """Repeat an attempt until it succeeds; give up after a few that get no further.

    Args:
        url: the address, for the messages.
        attempt: the function to call.
        reached: a function that tells how far the attempts have come.

    Returns:
        The result of the attempt that succeeds.
    """
    import requests

    best, failures = reached(), 0
    while True:
        try:
            return attempt()
        except (requests.RequestException, _LaterError) as error:
            failures = 1 if reached() > best else failures + 1
            best = reached()
            wait = getattr(error, "wait", None) or _FIRST_WAIT * 2 ** (failures - 1)
            message = f"cannot fetch {url}: {_reason(error)}"
            if wait > _LONGEST_WAIT:
                raise DatasetError(f"{message}, to wait for {wait:.0f} s. {_AGAIN}") from error
            if failures >= _ATTEMPTS:
                raise DatasetError(f"{message}, {failures} times in a row. {_AGAIN}") from error
        Progress.print(f"{message}; trying again in {wait:g} s")
        time.sleep(wait)


def _reason(error: BaseException) -> str:
    """Name the cause of an error of the connection."""
    import requests

    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    broken = (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)
    return "the connection broke" if isinstance(error, broken) else str(error)


def _unpack(file: RemoteFile, out: Path) -> None:
    """Unpack an archive into its folder, which appears once it is whole."""
    archive, folder = out / file.name, out / str(file.folder)
    temporary, bar = _unpacking(folder), _Bar(f"unpacking {file.name}", file.size)
    try:
        with archive.open("rb") as handle, bar:
            temporary.mkdir()
            for path, content in _members(file.name, handle):
                target = temporary / path
                (target.parent if content else target).mkdir(parents=True, exist_ok=True)
                if content:
                    with target.open("wb") as copy:
                        shutil.copyfileobj(content, copy, _CHUNK)
                bar.reach(handle.tell())
        write_json(temporary / _MARK, file.checksum)
        os.sync()
        temporary.rename(folder)
    except Exception as error:  # the parsers of archives raise many kinds
        if isinstance(error, DatasetError) or getattr(error, "errno", None):
            raise
        reason = " ".join(str(error).split())
        raise DatasetError(f"cannot unpack {archive}: {reason}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _members(name: str, handle: IO[bytes]) -> Iterator[tuple[PurePosixPath, IO[bytes] | None]]:
    """Iterate over an archive: the path of each member, and its content (None: a folder)."""
    if name.lower().endswith(".zip"):
        with zipfile.ZipFile(handle) as packed:
            for entry in packed.infolist():
                kind = stat.S_IFMT(entry.external_attr >> 16)
                plain = kind in (0, stat.S_IFDIR if entry.is_dir() else stat.S_IFREG)
                path = _inside(name, entry.filename, plain)
                if entry.is_dir():
                    yield path, None
                else:
                    with packed.open(entry) as content:
                        yield path, content
        return
    with tarfile.open(fileobj=handle, mode="r:*") as tar:
        while member := tar.next():
            tar.members = []  # type: ignore[attr-defined]  # or it remembers them all
            path = _inside(name, member.name, member.isdir() or member.isreg())
            yield path, tar.extractfile(member)


def _inside(archive: str, member: str, plain: bool) -> PurePosixPath:
    """Return the path of a member, relative to the folder; refuse anything but a file inside it."""
    path = PurePosixPath(member)
    if plain and not (
        path.is_absolute() or ".." in path.parts or re.search(r"[\\:\x00-\x1f]", member)
    ):
        return path
    fault = "outside of its folder" if plain else "a link or a device, not a file or a folder"
    raise DatasetError(
        f"{archive} is not unpacked: its member {member!r} is {fault}. Nothing of it is kept; do "
        "not trust this archive"
    )


def find_others(root: Path) -> list[Path]:
    """Find the files right in `root` that are one of the papers' other datasets."""
    return sorted(
        path for path in root.iterdir() if path.is_file() and papers.find_form(path) is not None
    )


def find_layouts(root: Path) -> list[Path]:
    """Find the folders under `root` that hold the published layout."""
    layouts = []
    for folder, folders, files in os.walk(root):
        if published.RAW_LATENTS in files and published.IMAGES in folders:
            layouts.append(Path(folder))
        folders[:] = [f for f in folders if f != published.IMAGES and not f.startswith(".")]
    return sorted(layouts)
