"""Exports to WebDataset and Parquet, read back with the libraries they are for."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.commands import command
from helpers.dataset_forms import OTHERS, build, settings_of, turned
from helpers.fake_dataset import as_rendered, make
from PIL import Image

from threedident.cli import main
from threedident.datasets.dataset import ThreeDIdent
from threedident.datasets.formats import open_dataset, png_folder, webdataset
from threedident.datasets.formats import parquet as parquet_module
from threedident.datasets.formats.dataset_card import card, is_unchanged
from threedident.datasets.formats.export import export
from threedident.datasets.formats.export_record import Split
from threedident.datasets.formats.hdf5 import pack
from threedident.datasets.formats.png_folder import to_published
from threedident.distributions import Normal
from threedident.errors import DatasetError, MissingExtraError, UsageError
from threedident.factors import FACTOR_NAMES
from threedident.storage.directory import DatasetDir

FORMS = ("webdataset", "parquet")
#: WebDataset leaves the last tar file to the garbage collector.
UNCLOSED = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


def write(root: Path, out: Path, form: str, **options) -> int:
    with open_dataset(root) as source:
        return export(source, out, form, **options)


def content(root: Path) -> dict[str, str]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture
def made(tmp_path):
    return make(tmp_path / "made", 23)


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    """A dataset as the renderer writes it, but with noise for images; by split and pairs."""

    def make_one(split="train", count=6, pairs=False, preset="3dident"):
        root = tmp_path_factory.mktemp("seeded") / "dataset"
        conditional = Normal(0.1) if pairs else None
        return as_rendered(
            root,
            count,
            side=8,
            seed=3,
            split=split,
            preset=preset,
            noise=1,
            conditional=conditional,
        )

    return make_one


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Hugging Face's `load_dataset`, without network or shared cache."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    datasets = pytest.importorskip("datasets")
    assert hasattr(datasets, "load_dataset"), f"{datasets.__file__} is not Hugging Face's"
    datasets.disable_progress_bars()

    def load(root, **options):
        return datasets.load_dataset(str(root), cache_dir=str(tmp_path / "cache"), **options)

    return load


def python_of(text: str) -> str:
    return re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]


@UNCLOSED
def test_webdataset_reads_it_back_exactly(tmp_path, made):
    webdataset = pytest.importorskip("webdataset")
    assert write(tmp_path / "made", tmp_path / "out", "webdataset", shard_size=10) == 23
    files = sorted(map(str, (tmp_path / "out/data").iterdir()))
    assert [Path(f).name for f in files] == [f"train-{i:06d}.tar" for i in range(3)]
    samples = list(webdataset.WebDataset(files, shardshuffle=False).decode("rgb8"))
    assert [int(sample["__key__"]) for sample in samples] == list(range(23))
    assert np.array_equal([sample["png"] for sample in samples], made.pixels)
    for name in ("raw_latents", "latents"):
        found = np.stack([sample[f"{name}.npy"] for sample in samples])
        assert found.dtype == np.float32
        assert np.array_equal(found, getattr(made, name))


def test_hugging_face_reads_parquet_back_exactly(tmp_path, made, load):
    assert write(tmp_path / "made", tmp_path / "out", "parquet", shard_size=10) == 23
    names = sorted(p.name for p in (tmp_path / "out/data").iterdir())
    assert names == [f"train-{i:05d}-of-00003.parquet" for i in range(3)]
    by_card = load(tmp_path / "out")["train"]
    plain = load("parquet", data_files=sorted(map(str, Path("out/data").iterdir())), split="train")
    for split in (by_card, plain):
        assert split["index"][:] == list(range(23))
        assert isinstance(split[0]["image"], Image.Image)
        assert split.features["raw_latents"].length == 10
        arrays = split.with_format("numpy")
        assert np.array_equal(np.stack(list(arrays["image"])), made.pixels)
        for name in ("raw_latents", "latents"):
            assert split.features[name].feature.dtype == "float32"
            assert np.array_equal(arrays[name][:], getattr(made, name))


def test_hugging_face_reads_webdataset_by_the_card(tmp_path, made, load):
    write(tmp_path / "made", tmp_path / "out", "webdataset", shard_size=10)
    split = load(tmp_path / "out", split="train")
    assert np.array_equal([np.asarray(row["png"]) for row in split], made.pixels)
    found = np.array([row["raw_latents.npy"] for row in split], np.float32)
    assert np.array_equal(found, made.raw_latents)


def test_row_groups_are_small_and_images_stored_once(tmp_path, monkeypatch, made):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(parquet_module, "ROW_GROUP", 4)
    write(tmp_path / "made", tmp_path / "out", "parquet")
    file = parquet.ParquetFile(tmp_path / "out/data/train-00000-of-00001.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(6)] == [4] * 5 + [3]
    assert np.array_equal(file.read()["index"].to_numpy(), np.arange(23))
    image = file.read_row_group(5)["image"][2].as_py()
    assert image["path"] == "00000022.png"
    with Image.open(io.BytesIO(image["bytes"]), formats=["PNG"]) as pixels:
        assert np.array_equal(np.asarray(pixels), made.pixels[22])


@pytest.mark.parametrize("form", FORMS)
def test_the_same_bytes_from_every_form_of_the_dataset(tmp_path, seeded, form):
    root = seeded()
    pack(DatasetDir.open(root), tmp_path / "all.h5")
    for name, source in (("a", root), ("b", tmp_path / "all.h5")):
        write(source, tmp_path / name, form)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    with open_dataset(root) as source:
        to_published(source, tmp_path / "png")
    write(tmp_path / "png", tmp_path / "c", form)
    data = [{n: h for n, h in content(tmp_path / k).items() if n.startswith("data/")} for k in "ac"]
    assert data[0] == data[1]


def test_tar_members_have_no_date_and_no_owner(tmp_path, made):
    write(tmp_path / "made", tmp_path / "out", "webdataset")
    with tarfile.open(tmp_path / "out/data/train-000000.tar") as tar:
        members = tar.getmembers()
    assert len(members) == 3 * 23
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}


@pytest.mark.parametrize("form", FORMS)
def test_an_export_goes_on_where_it_stopped(tmp_path, monkeypatch, made, form):
    write(tmp_path / "made", tmp_path / "whole", form, shard_size=6)
    encode, done = png_folder.encode_image, []

    def failing(pixels):
        done.append(pixels)
        if len(done) > 14:
            raise KeyboardInterrupt
        return encode(pixels)

    for module in (webdataset, parquet_module):
        monkeypatch.setattr(module, "encode_image", failing)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "made", tmp_path / "out", form, shard_size=6)
    monkeypatch.undo()
    finished = sorted((tmp_path / "out/data").iterdir())
    assert len(finished) == 2
    assert not (tmp_path / "out/README.md").exists()
    before = [path.stat().st_mtime_ns for path in finished]
    write(tmp_path / "made", tmp_path / "out", form)  # with files of the size it began with
    assert [path.stat().st_mtime_ns for path in finished] == before
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_an_export_that_is_killed_goes_on(tmp_path):
    make(tmp_path / "made", 3000, side=16)
    words = ("convert", "made", "--to", "webdataset", "--out", "out", "--shard-size", "100")
    run = subprocess.Popen([*command(), *words], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while len(list(tmp_path.glob("out/data/train-*.tar"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.wait()
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/data/train-*.tar")}
    assert 3 <= len(finished) < 30
    write(tmp_path / "made", tmp_path / "out", "webdataset")
    assert all(path.stat().st_mtime_ns == when for path, when in finished.items())
    names = sorted(p.name for p in (tmp_path / "out/data").iterdir())
    assert names == [f"train-{i:06d}.tar" for i in range(30)]  # and nothing temporary
    write(tmp_path / "made", tmp_path / "whole", "webdataset", shard_size=100)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_splits_share_a_folder(tmp_path, seeded, load):
    train, val = seeded(), seeded("val", 4)
    write(val, tmp_path / "out", "parquet")
    write(train, tmp_path / "out", "parquet")
    splits = load(tmp_path / "out")
    assert {name: len(split) for name, split in splits.items()} == {"train": 6, "validation": 4}
    for name, root in (("train", train), ("validation", val)):
        with open_dataset(root) as source:
            found = splits[name].with_format("numpy")["raw_latents"][:]
            assert np.array_equal(found, source.raw_latents)
    assert "10 RGB images of 8 x 8" in (tmp_path / "out/README.md").read_text()


def test_pairs_stay_together(tmp_path, seeded):
    root = seeded(pairs=True, count=10)
    with pytest.raises(UsageError, match="--shard-size 3 divides a pair"):
        write(root, tmp_path / "out", "webdataset", shard_size=3)
    write(root, tmp_path / "out", "webdataset", shard_size=4)
    text = (tmp_path / "out/README.md").read_text()
    assert "images 2i and 2i + 1 are a positive pair" in text
    assert "Normal" in text
    for path in (tmp_path / "out/data").iterdir():
        with tarfile.open(path) as tar:
            keys = sorted({int(name.split(".")[0]) for name in tar.getnames()})
        assert keys[0] % 2 == 0
        assert len(keys) % 2 == 0


@UNCLOSED
@pytest.mark.parametrize("form", FORMS)
def test_what_the_card_says(tmp_path, monkeypatch, seeded, load, form):
    yaml = pytest.importorskip("yaml")
    monkeypatch.setattr(sys, "argv", ["3dident", "render", "--out", "/home/somebody/data"])
    root = seeded()
    write(root, tmp_path / "out", form)
    text = (tmp_path / "out/README.md").read_text()
    front = yaml.safe_load(text.split("---\n")[1])
    pattern = {"parquet": "data/train-*.parquet", "webdataset": "data/train-*.tar"}[form]
    assert front["configs"][0]["data_files"] == [{"split": "train", "path": pattern}]
    assert front["license"] == "mit"
    assert front["size_categories"] == ["n<1K"]
    manifest = DatasetDir.open(root).manifest
    for expected in (manifest.fingerprint, "seed 3, train split", "direct 1.0 on cpu", "draft"):
        assert expected in text
    assert all(f"| {place} | {name} |" in text for place, name in enumerate(FACTOR_NAMES))
    assert "share one colour" in text
    if form == "parquet":
        code = python_of(text).replace("split=", f"cache_dir={str(tmp_path / 'c')!r}, split=")
    else:
        code = python_of(text)
    names: dict = {}
    exec(code.replace("DIR", str(tmp_path / "out")), names)
    with open_dataset(root) as source:
        index = 0 if form == "parquet" else 5  # what the loop ends with
        assert np.array_equal(names["image"], source.image(index))
        assert np.array_equal(names["raw_latents"], source.raw_latents[index])
    # The command names folders of whoever ran it.
    recorded = json.loads((tmp_path / "out/3dident-train.json").read_text())
    assert manifest.command
    assert recorded["dataset"]["command"] == ""
    assert manifest.command not in text


def test_the_card_cites_what_the_repository_cites(tmp_path, made):
    yaml = pytest.importorskip("yaml")
    write(tmp_path / "made", tmp_path / "out", "webdataset")
    text = (tmp_path / "out/README.md").read_text()
    cff = yaml.safe_load((Path(__file__).parents[3] / "CITATION.cff").read_text("utf-8"))
    entries = text.split("@inproceedings")[1:]
    for entry, paper in zip(entries, cff["references"], strict=True):
        assert f"title = {{{paper['title']}}}" in entry
        assert f"year = {{{paper['year']}}}" in entry
        people = [f"{a['family-names']}, {a['given-names']}" for a in paper["authors"]]
        assert " and ".join(people) in " ".join(entry.split())


def test_images_of_unknown_origin_have_no_licence_of_ours(tmp_path, made):
    write(tmp_path / "made", tmp_path / "out", "webdataset")
    text = (tmp_path / "out/README.md").read_text()
    assert "license: unknown" in text
    assert "rendered by: not recorded" in text
    assert "MIT" not in text


@pytest.mark.parametrize(
    ("images", "size"),
    [
        (999, "n<1K"),
        (1000, "1K<n<10K"),
        (275_000, "100K<n<1M"),
        (1_000_000, "1M<n<10M"),
        (100_000_000, "100M<n<1B"),
    ],
)
def test_size_categories(images, size):
    split = Split("parquet", "train", images, 8, 8, 10**4, "", "", None, None, None, None)
    assert f"size_categories:\n- {size}\n" in card([split])


def test_a_card_that_was_edited_stays(tmp_path, capsys, seeded):
    root, other = seeded(), seeded("test", 4)
    write(root, tmp_path / "out", "webdataset")
    path = tmp_path / "out/README.md"
    assert is_unchanged(path.read_text())
    edited = path.read_text().replace("license: mit", "license: cc-by-4.0")
    path.write_text(edited)
    write(other, tmp_path / "out", "webdataset")
    assert "was edited and stays" in capsys.readouterr().err
    assert path.read_text() == edited
    path.unlink()
    write(other, tmp_path / "out", "webdataset")
    assert "data/test-*.tar" in path.read_text()


def test_what_it_refuses(tmp_path, seeded, made):
    root, out = seeded(), tmp_path / "out"
    write(root, out, "webdataset")
    before = content(out)

    def refused(message, source, where=out, form="webdataset", **options):
        with pytest.raises(DatasetError, match=message):
            write(source, where, form, **options)

    refused("another dataset.*\n  images: there 6, now 8", seeded(count=8))
    refused("images_per_file: there 10000, now 4", root, shard_size=4)
    refused("form: there 'webdataset', now 'parquet'", root, form="parquet")
    refused("does not go with this as its split train", seeded("test", preset="3dident-wrapped"))
    refused("another dataset", tmp_path / "made")
    refused("preset", tmp_path / "made", split="test")
    assert content(out) == before
    (out / "data/holiday.jpg").write_text("")
    refused("holds holiday.jpg, no part of an export", root)
    (tmp_path / "home/.git").mkdir(parents=True)
    (tmp_path / "home/thesis.tex").write_text("")
    refused("holds thesis.tex", root, tmp_path / "home")
    assert not (tmp_path / "home/data").exists()
    (tmp_path / "home/thesis.tex").unlink()
    write(root, tmp_path / "home", "webdataset")  # what version control keeps is no matter
    (tmp_path / "file").write_text("")
    refused("cannot write .*file", root, tmp_path / "file")
    for text in ("{", "[]", '{"format": "other"}', '{"format": "3dident-export"}'):
        (out / "3dident-train.json").write_text(text)
        refused("3dident-train.json", root)
    shutil.copy(tmp_path / "home/3dident-train.json", out / "3dident-test.json")
    (out / "3dident-train.json").unlink()
    refused("describes the split train", root)


def test_a_record_that_was_tampered_with(tmp_path, seeded):
    root, out = seeded(), tmp_path / "out"
    write(root, out, "webdataset")
    path = out / "3dident-train.json"
    good = json.loads(path.read_text())
    for key, value in (
        *(("images", -1), ("height", "x"), ("mean", 3), ("form", []), ("name", "../train")),
        *(("dataset", {"format": "3dident"}), ("images_per_file", 0), ("std", ["a"])),
        *(("dataset", 7), ("format_version", 99), ("fingerprint", ["x"])),
    ):
        path.write_text(json.dumps({**good, key: value}))
        with pytest.raises(DatasetError):
            write(root, out, "webdataset")


def test_a_disk_that_is_too_full(tmp_path, monkeypatch, made):
    full = shutil.disk_usage(tmp_path)._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(DatasetError, match="the disk is too full"):
        write(tmp_path / "made", tmp_path / "out", "webdataset")


@pytest.mark.parametrize("form", FORMS)
def test_a_disk_that_fills_up(tmp_path, form):
    resource = pytest.importorskip("resource")
    make(tmp_path / "made", 40, side=32)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))  # a file of 40 needs 130 kB

    words = ("convert", "made", "--to", form, "--out", "out")
    done = subprocess.run(
        [*command(), *words], preexec_fn=limit, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: cannot write out/data/train-0")
    assert not list(Path("out/data").iterdir())
    write(tmp_path / "made", tmp_path / "out", form)


def test_parquet_without_pyarrow(tmp_path, monkeypatch, made):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"'\.\[export\]'"):
        write(tmp_path / "made", tmp_path / "out", "parquet")
    assert not (tmp_path / "out").exists()
    write(tmp_path / "made", tmp_path / "out", "webdataset")


def test_arguments(tmp_path, cli, made):
    for options, message in (
        ({"form": "zip"}, "form must be one of webdataset, parquet"),
        ({"form": "webdataset", "split": "all"}, "split must be one of train, val, test"),
        ({"form": "webdataset", "shard_size": 0}, "at least 1"),
    ):
        with pytest.raises(UsageError, match=message):
            write(tmp_path / "made", tmp_path / "out", **options)
    words = ["convert", "made", "--out", "out", "--to"]
    for form, option, value in (
        ("published", "--split", "train"),
        ("published", "--shard-size", "5"),
        ("shards", "--split", "test"),
        ("webdataset", "--compression", "gzip"),
    ):
        done = CliRunner().invoke(main, [*words, form, option, value])
        assert (done.exit_code, done.output) == (2, f"error: --to {form} takes no {option}\n")
    said = cli(*words, "webdataset", "--split", "test").stdout
    assert said.splitlines()[0] == "wrote out: 23 images"
    assert "3dident verify out" in said
    assert (tmp_path / "out/data/test-000000.tar").exists()
    cli(*words[:2], "--out", "val", "--to", "webdataset", "--split", "val")
    assert (tmp_path / "val/data/validation-000000.tar").exists()


def test_exports_of_every_form_are_the_same_bytes(tmp_path):
    root = build(tmp_path / "d")
    expected = turned(root, "parquet", tmp_path / "hub")
    for form in OTHERS[:3]:
        made = turned(turned(root, form, tmp_path / form), "parquet", tmp_path / f"{form}-hub")
        for path in expected.rglob("*.parquet"):
            assert (made / path.relative_to(expected)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_an_export_of_an_older_version_comes_back(cli, tmp_path, form):
    root = build(tmp_path / "d")
    there = turned(root, form, tmp_path / "old")
    path = there / "3dident-validation.json"
    record = json.loads(path.read_text())
    for name in ("shards", "wanted"):
        del record[name]
    path.write_text(json.dumps(record))
    assert "checked: latents are those that the settings give" in cli("verify", there).stdout
    found = ThreeDIdent(there)
    assert found.mean == tuple(record["mean"])
    cli("convert", there, "--to", "shards", "--out", "back")
    cli("verify", "back", "--n", 12)
    assert settings_of(tmp_path / "back") == settings_of(root)


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_a_damaged_export_is_an_error_that_names_the_file(cli, tmp_path, form):
    root = build(tmp_path / "d")
    with open_dataset(root) as source:
        export(source, tmp_path / "whole", form, shard_size=5)
    first, second, _ = sorted((tmp_path / "whole/data").iterdir())

    def refused(change, message):
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "x")
        change(tmp_path / "x/data")
        with pytest.raises(DatasetError, match=message):
            open_dataset(tmp_path / "x")
        wrong = cli("verify", "x", code=1).stderr
        assert "fault: " in wrong
        assert f"3dident convert --to {form}" in wrong

    refused(lambda d: (d / second.name).unlink(), "x lacks images 5 to 9 of the split validation")
    for keep in (0, 700, 1500):
        whole = second.read_bytes()
        refused(lambda d, k=keep, w=whole: (d / second.name).write_bytes(w[:k]), second.name)
    refused(lambda d: shutil.copy(d / first.name, d / second.name), second.name)
    refused(lambda d: (d / second.name).write_bytes(b"x" * 9000), second.name)
    with pytest.raises(DatasetError, match=r"one file of an export: give its folder, .*whole"):
        open_dataset(first)
