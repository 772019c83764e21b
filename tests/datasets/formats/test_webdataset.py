"""Tar files that are not read."""

from __future__ import annotations

import tarfile

import pytest
from helpers.dataset_forms import build, turned


@pytest.mark.parametrize(
    "kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE]
)
@pytest.mark.parametrize("before", [0, 9])
def test_a_tar_file_with_headers_other_than_of_plain_files_is_not_read(cli, tmp_path, kind, before):
    there = turned(build(tmp_path / "d"), "webdataset", tmp_path / "hub")
    path = next((there / "data").iterdir())
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, 1 << 45
    with tarfile.open(path) as tar:
        place = tar.getmembers()[before].offset
    content = path.read_bytes()
    path.write_bytes(content[:place] + header.tobuf(tarfile.GNU_FORMAT) + content[place:])
    said = cli("info", "hub", code=2).stderr
    assert f"cannot read {path.relative_to(tmp_path)}" in said
    assert f"has a header of type {kind!r}, expected plain files alone" in said
