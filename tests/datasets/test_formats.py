"""The forms of a dataset: shards, packed, published; and what is read from each."""

from __future__ import annotations

import base64
import json
import shutil
import tarfile

import h5py
import numpy as np
import pytest
from helpers.commands import SMALL, run_command
from PIL import Image

from threedident.datasets import convert
from threedident.datasets.dataset import ThreeDIdent
from threedident.datasets.interchange import export
from threedident.datasets.published import image_name, write_image
from threedident.datasets.reading import open_source
from threedident.distributions import Normal
from threedident.errors import DatasetError, UsageError
from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.render.settings import EngineSettings, dataset_settings
from threedident.shards import ImageSums, Interval, write_shard
from threedident.store import DatasetDir

#: Those that a directory of shards can be turned into.
OTHERS = ("packed", "published", "webdataset", "parquet")
FRAME = 0.75  # the share of every object in the frame, as if it had been measured


def everything(root):
    with open_source(root) as source:
        images = np.stack([source.image(i) for i in range(len(source))])
        return images, source.raw_latents, source.latents


def test_the_published_layout_round_trips(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    names = sorted(p.name for p in (tmp_path / "p/images").iterdir())
    assert names == [f"{i:02d}.png" for i in range(12)]
    assert np.load(tmp_path / "p/raw_latents.npy").shape == (12, 10)
    cli("convert", "p", "--to", "shards", "--out", "s")
    cli("verify", "s", "--n", 12)
    for form in (tmp_path / "p", tmp_path / "s"):
        for ours, theirs in zip(everything(small_dataset), everything(form), strict=True):
            assert np.array_equal(ours, theirs)
            assert ours.dtype == theirs.dtype


def test_shards_are_not_written_where_another_process_writes(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    shutil.copytree(small_dataset, tmp_path / "s")
    gone = sorted((tmp_path / "s").glob("shard-*"))[0]
    gone.unlink()
    with DatasetDir.open(tmp_path / "s").only_render():
        said = cli("convert", "p", "--to", "shards", "--out", "s", code=2).stderr
    assert "another process writes to s (all of it): pid " in said
    assert not gone.exists()
    cli("convert", "p", "--to", "shards", "--out", "s")
    assert gone.exists()
    assert not list((tmp_path / "s").glob(".render-*"))


def test_a_render_waits_for_shards_that_are_being_converted(tmp_path, small_dataset, monkeypatch):
    def write_or_refuse(*_, **__):
        with DatasetDir.open(tmp_path / "s").only_render():
            pass

    monkeypatch.setattr(convert, "write_shard", write_or_refuse)
    with open_source(small_dataset) as source, pytest.raises(UsageError, match="another process"):
        convert.to_shards(source, tmp_path / "s")


def test_images_carry_pixels_and_nothing_else(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    content = (tmp_path / "p/images/03.png").read_bytes()
    kinds, position = [], 8
    while position < len(content):
        length = int.from_bytes(content[position : position + 4], "big")
        kinds.append(content[position + 4 : position + 8])
        position += 12 + length
    assert set(kinds) == {b"IHDR", b"IDAT", b"IEND"}


@pytest.mark.parametrize(
    ("count", "name"), [(1, "0.png"), (10, "7.png"), (11, "07.png"), (250_000, "000007.png")]
)
def test_names_are_as_wide_as_published(count, name):
    assert image_name(0 if count == 1 else 7, count) == name


def test_a_conversion_goes_on_where_it_stopped(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    kept = (tmp_path / "p/images/00.png").stat().st_mtime_ns
    for gone in ("images/05.png", "raw_latents.npy"):
        (tmp_path / "p" / gone).unlink()
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    assert (tmp_path / "p/images/00.png").stat().st_mtime_ns == kept
    assert np.array_equal(everything(tmp_path / "p")[0], everything(small_dataset)[0])


def test_conversions_do_not_mix_datasets(cli, tmp_path, small_dataset):
    cli("render", *SMALL, "--seed", 1, "--n", 12, "--out", "other")
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    (tmp_path / "p/raw_latents.npy").unlink()
    (tmp_path / "p/images/11.png").unlink()  # as if it had been interrupted
    refused = cli("convert", "other", "--to", "published", "--out", "p", code=2).stderr
    assert "another dataset" in refused
    (tmp_path / "p/3dident.json").unlink()
    assert (
        "another" in cli("convert", small_dataset, "--to", "published", "--out", "p", code=2).stderr
    )


def test_transparent_images_are_not_taken_for_opaque_ones(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    path = tmp_path / "p/images/04.png"
    with Image.open(path) as image:
        image.convert("RGBA").save(path)
    cli("convert", "p", "--to", "shards", "--out", "s")
    with Image.open(path) as image:
        image.putalpha(100)
        image.save(path)
    refused = cli("convert", "p", "--to", "shards", "--out", "t", code=2).stderr
    assert "transparent" in refused


def test_a_bad_compression_leaves_nothing(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    words = ("convert", "p", "--to", "shards", "--out", "s", "--compression")
    assert "unknown compression" in cli(*words, "zip", code=2).stderr
    cli(*words, "gzip")


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_packing(cli, tmp_path, small_dataset, compression):
    cli("pack", small_dataset, "--out", "all.h5", "--compression", compression)
    for ours, theirs in zip(
        everything(small_dataset), everything(tmp_path / "all.h5"), strict=True
    ):
        assert np.array_equal(ours, theirs)
    assert "preset     3dident" in cli("info", "all.h5").stdout
    assert "exists already" in cli("pack", small_dataset, "--out", "all.h5", code=2).stderr
    cli("preview", "all.h5")
    assert (tmp_path / "all.png").exists()


def test_a_corrupt_shard_is_not_packed(cli, tmp_path, small_dataset):
    shutil.copytree(small_dataset, tmp_path / "d")
    with h5py.File(next((tmp_path / "d").glob("shard-*")), "a") as file:
        file["images"][0, 0, 0, 0] ^= 255
    assert "checksum of images" in cli("pack", "d", "--out", "all.h5", code=2).stderr
    assert not (tmp_path / "all.h5").exists()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("images/04.png", lambda p: p.unlink(), "04.png is missing"),
        ("images/04.png", lambda p: p.write_bytes(p.read_bytes()[:200]), "04.png"),
        ("images/04.png", lambda p: p.write_bytes(b"not a png"), "04.png"),
        ("images/04.png", lambda p: Image.new("L", (32, 32)).save(p), "RGB image, found mode L"),
        (
            "images/04.png",
            lambda p: Image.new("RGB", (16, 16)).save(p),
            "image 4 has shape (16, 16, 3)",
        ),
        ("images/12.png", lambda p: Image.new("RGB", (32, 32)).save(p), "one too many"),
        ("latents.npy", lambda p: p.unlink(), "latents.npy: there is no such file"),
        ("latents.npy", lambda p: p.write_bytes(b"x"), "not a .npy array"),
        (
            "latents.npy",
            lambda p: np.save(p, np.zeros((12, 9))),
            "expected shape (N, 10), found (12, 9)",
        ),
        ("latents.npy", lambda p: np.save(p, np.zeros((7, 10))), "12 rows and latents.npy 7"),
        ("latents.npy", lambda p: np.save(p, np.full((12, 10), np.inf)), "finite"),
        ("raw_latents.npy", lambda p: np.save(p, np.array([None] * 3)), "raw_latents.npy"),
    ],
)
def test_a_damaged_published_layout(cli, tmp_path, small_dataset, name, change, message):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    change(tmp_path / "p" / name)
    assert message in cli("convert", "p", "--to", "shards", "--out", "s", code=2).stderr


def test_what_is_no_dataset(cli, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.h5").write_text("hello")
    (tmp_path / "torus.obj").write_text("v 0 0 0")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["images"] = np.zeros(3)
    for name, message in (
        ("empty", "none of these"),
        ("missing", "no such file or directory"),
        ("text.h5", "text.h5 is no HDF5 file"),
        ("torus.obj", "it is no dataset. Expected a directory made by `3dident render`"),
        ("other.h5", "not a dataset packed"),
    ):
        assert message in cli("info", name, code=2).stderr
        assert message in cli("preview", name, code=2).stderr
        assert message in cli("convert", name, "--to", "published", "--out", "p", code=2).stderr


def test_a_packed_file_cut_short(cli, tmp_path, small_dataset):
    cli("pack", small_dataset, "--out", "all.h5")
    path = tmp_path / "all.h5"
    path.write_bytes(path.read_bytes()[:5000])
    assert "all.h5" in cli("info", "all.h5", code=2).stderr


def test_conversions_that_make_no_sense(cli, tmp_path, small_dataset):
    shutil.copytree(small_dataset, tmp_path / "d")
    assert (
        "another directory" in cli("convert", "d", "--to", "published", "--out", "d", code=2).stderr
    )
    refused = cli("info", next((tmp_path / "d").glob("shard-*")), code=2).stderr
    assert "is one shard of the dataset " in refused
    (tmp_path / "p/images").mkdir(parents=True)
    (tmp_path / "p/images/holiday.jpg").write_text("")
    refused = cli("convert", "d", "--to", "published", "--out", "p", code=2).stderr
    assert "holiday.jpg" in refused


# --- every form: checked, and turned back


def build(root, count=12, *, shard=5, preset="3dident", wanted=None, **latents):
    """A dataset as `3dident render` writes it, but with noise for images."""
    generator = load_preset(preset)
    engine = EngineSettings(generator, 8, "draft", "cpu", "direct", "1.0")
    options = {"seed": 3, "split": "val", "given": None, "conditional": None, **latents}
    settings = dataset_settings(engine, **options)
    dataset = DatasetDir.create_or_open(
        root,
        settings,
        shard_size=shard,
        compression=None,
        about=generator.about(),
        given=latents.get("given"),
    )
    dataset.record_wanted(wanted or count)
    pixels = np.random.default_rng(1).integers(0, 256, (count, 8, 8, 3), np.uint8)
    for first in range(0, count, shard):
        interval = Interval(first, min(shard, count - first))
        images, raw = pixels[first : interval.stop], dataset.raw_latents(interval.indices)
        write_shard(
            root,
            interval,
            images=images,
            raw_latents=raw,
            latents=generator.to_scene(raw),
            sums=ImageSums.of(images, np.full(len(images), FRAME)),
            fingerprint=dataset.manifest.fingerprint,
            provenance={"device": "cpu", "toolkit_version": "0.0.7", "processor": f"P{first}"},
        )
    dataset.write_stats()
    return root


def turned(root, form, out):
    """A dataset in another form."""
    if form == "packed":
        run_command("pack", root, "--out", f"{out}.h5")
        return out.with_suffix(".h5")
    run_command("convert", root, "--to", form, "--out", out)
    return out


def files_of(root):
    """What a dataset directory holds, but for what names the command, and the lock."""
    found = {}
    for path in sorted(root.iterdir()):
        if path.suffix == ".h5":
            with h5py.File(path) as file:
                arrays = {name: (array.dtype, array[()].tobytes()) for name, array in file.items()}
                attributes = {
                    name: np.asarray(value).tolist() for name, value in file.attrs.items()
                }
                found[path.name] = arrays, attributes
        elif path.name not in (".lock", "dataset.json"):
            found[path.name] = path.read_bytes()
    return found


def settings_of(root):
    manifest = json.loads((root / "dataset.json").read_text())
    return {key: value for key, value in manifest.items() if key != "command"}


@pytest.mark.parametrize("form", OTHERS)
def test_every_form_comes_back_as_the_same_shards(cli, tmp_path, form):
    root = build(tmp_path / "d", wanted=20)
    there = turned(root, form, tmp_path / "other")
    said = cli("convert", there, "--to", "shards", "--out", "back").stdout
    assert said.splitlines()[0] == "wrote back: 12 of 20 images"
    # The sums, what rendered each shard, and the number that was wanted, too.
    assert files_of(tmp_path / "back") == files_of(root)
    assert settings_of(tmp_path / "back") == settings_of(root)
    before, after = (DatasetDir.open(p).manifest for p in (root, tmp_path / "back"))
    assert after.command == ("" if form in ("webdataset", "parquet") else before.command)
    assert cli("verify", "back", "--n", 12).stdout.endswith("all is well\n")


@pytest.mark.parametrize("form", ["packed", "webdataset"])
def test_a_dataset_that_comes_back_can_be_rendered_on(cli, tmp_path, small_dataset, form):
    there = turned(small_dataset, form, tmp_path / "other")
    cli("convert", there, "--to", "shards", "--out", "back")
    said = cli("render", *SMALL, "--shard-size", 5, "--n", 13, "--out", "back").stdout
    assert "13 images, 1 of them new" in said
    cli("verify", "back", "--n", 13)


@pytest.mark.parametrize("form", OTHERS)
def test_every_form_becomes_every_other(cli, tmp_path, form):
    root = build(tmp_path / "d")
    first = turned(root, form, tmp_path / "first")
    for then in OTHERS:
        second = turned(first, then, tmp_path / f"{form}-{then}")
        cli("convert", second, "--to", "shards", "--out", f"{form}-{then}-back")
        assert files_of(tmp_path / f"{form}-{then}-back") == files_of(root)


def test_exports_of_every_form_are_the_same_bytes(tmp_path):
    root = build(tmp_path / "d")
    expected = turned(root, "parquet", tmp_path / "hub")
    for form in OTHERS[:3]:
        made = turned(turned(root, form, tmp_path / form), "parquet", tmp_path / f"{form}-hub")
        for path in expected.rglob("*.parquet"):
            assert (made / path.relative_to(expected)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("form", ["shards", *OTHERS])
def test_other_shards_of_the_same_images(cli, tmp_path, form):
    root = build(tmp_path / "d")
    there = root if form == "shards" else turned(root, form, tmp_path / "other")
    words = ("convert", there, "--to", "shards", "--shard-size", 4, "--compression", "gzip")
    cli(*words, "--out", "cut")
    assert sorted(p.name for p in tmp_path.glob("cut/shard-*")) == [
        f"shard-{first:08d}-00004.h5" for first in (0, 4, 8)
    ]
    cli("verify", "cut")
    for ours, theirs in zip(everything(root), everything(tmp_path / "cut"), strict=True):
        assert np.array_equal(ours, theirs)
    with h5py.File(tmp_path / "cut/shard-00000004-00004.h5") as file:
        assert file.attrs["processor"].decode() == "P0, P5"  # of either shard that it was cut from
    # The share in the frame is not noted for each image: it is worked out again.
    shares = json.loads((tmp_path / "cut/stats.json").read_text())["object_in_frame"]
    assert 0 < shares < 1


def test_a_way_back_that_is_interrupted_goes_on(cli, tmp_path):
    root = build(tmp_path / "d")
    there = turned(root, "webdataset", tmp_path / "tar")
    cli("convert", there, "--to", "shards", "--out", "back")
    kept = tmp_path / "back/shard-00000000-00005.h5"
    when = kept.stat().st_mtime_ns
    (tmp_path / "back/shard-00000005-00005.h5").unlink()
    cli("convert", there, "--to", "shards", "--out", "back")
    assert kept.stat().st_mtime_ns == when
    assert files_of(tmp_path / "back") == files_of(root)
    other = turned(build(tmp_path / "e", seed=4), "webdataset", tmp_path / "tar-e")
    refused = cli("convert", other, "--to", "shards", "--out", "back", code=2).stderr
    assert "made with other settings:\n  seed: the dataset has 3, this command 4" in refused


@pytest.mark.parametrize("form", OTHERS)
def test_given_latents_come_back_where_all_of_them_are_there(cli, tmp_path, form):
    given = sample_raw_latents(range(12), seed=9, split="train")
    root = build(tmp_path / "d", given=given)
    there = turned(root, form, tmp_path / "other")
    assert "not all of those" not in cli("verify", there).stdout
    cli("convert", there, "--to", "shards", "--out", "back")
    assert files_of(tmp_path / "back") == files_of(root)
    few = build(tmp_path / "few", 7, given=given)
    there = turned(few, form, tmp_path / "other-few")
    said = cli("verify", there).stdout
    assert "not checked: latents: not all of those that were given to render are kept" in said
    done = cli("convert", there, "--to", "shards", "--out", "import")
    assert "keeps 7 of the 12 latents that were given to render: import is written" in done.stderr
    assert "what rendered it is not recorded" in cli("info", "import").stdout
    cli("verify", "import")


@pytest.mark.parametrize("form", OTHERS)
def test_pairs_come_back_as_pairs(tmp_path, form):
    root = build(tmp_path / "d", 8, conditional=Normal(0.1))
    there = turned(root, form, tmp_path / "other")
    run_command("verify", there)
    with open_source(there) as source:
        assert source.manifest.pair_process is not None
    assert "pairs      images 2i and 2i + 1" in run_command("info", there).stdout


def test_a_packed_import_stays_an_import(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "p")
    (tmp_path / "p/3dident.json").unlink()
    cli("pack", "p", "--out", "p.h5")
    assert "imported from the published layout" in cli("info", "p.h5").stdout
    said = cli("verify", "p.h5").stdout
    assert "checked: latents are those that were imported" in said
    assert "checked: images and latents have the checksums" in said
    cli("convert", "p.h5", "--to", "shards", "--out", "s")
    cli("verify", "s", "--n", 12)
    for ours, theirs in zip(everything(small_dataset), everything(tmp_path / "s"), strict=True):
        assert np.array_equal(ours, theirs)


def damage_packed(path):
    with h5py.File(path, "a") as file:
        file["images"][7, 0, 0, 0] ^= 255


def damage_published(path):
    pixels = np.asarray(Image.open(path / "images/07.png")).copy()
    pixels[0, 0, 0] ^= 255
    write_image(path / "images/07.png", pixels)


def damage_tar(path):
    """Puts the PNG of image 1 in the place of that of image 7."""
    archive = path / "data/validation-000000.tar"
    with tarfile.open(archive) as tar:
        a, b = (tar.getmember(f"0000000{i}.png") for i in (1, 7))
    content = bytearray(archive.read_bytes())
    png = content[a.offset_data : a.offset_data + a.size]
    assert a.size == b.size
    content[b.offset_data : b.offset_data + b.size] = png
    archive.write_bytes(content)


def damage_parquet(path):
    """Puts the PNG of image 1 in the place of that of image 7."""
    file = path / "data/validation-00000-of-00001.parquet"
    content = file.read_bytes()
    first = content.index(b"\x89PNG")
    starts = [first]
    while (place := content.find(b"\x89PNG", starts[-1] + 1)) > 0:
        starts.append(place)
    a, b, size = starts[1], starts[7], starts[2] - starts[1]
    assert starts[8] - b == size
    file.write_bytes(content[:b] + content[a : a + size] + content[b + size :])


@pytest.mark.parametrize(
    ("form", "damage"),
    [
        ("packed", damage_packed),
        ("published", damage_published),
        ("webdataset", damage_tar),
        ("parquet", damage_parquet),
    ],
)
def test_pixels_that_are_not_what_they_were_are_found_in_every_form(cli, tmp_path, form, damage):
    root = build(tmp_path / "d")
    there = turned(root, form, tmp_path / "other")
    good = cli("verify", there).stdout
    assert "12 images are good, the last there is 11" in good
    assert "checked: images and latents have the checksums of the shards that they were" in good
    assert "checked: latents are those that the settings give" in good
    assert "checked: how many images there are, against the 12 wanted" in good
    assert "missing: images 12 to 13\n" in cli("verify", there, "--n", 14, code=1).stderr
    damage(there)
    wrong = cli("verify", there, code=1)
    assert "7 of 12 images are good" in wrong.stdout
    assert "the checksum of images does not match the content of images 5 to 9" in wrong.stderr
    assert "missing: images 5 to 9\n" in wrong.stderr
    document = json.loads(cli("verify", there, "--json", code=1).stdout)
    assert (document["good"], document["images"], document["missing"]) == (False, 7, [[5, 9]])
    for words in (
        ("convert", there, "--to", "shards", "--out", "s"),
        ("convert", there, "--to", "published", "--out", "p"),
        ("convert", there, "--to", "webdataset", "--out", "t"),
        ("pack", there, "--out", "all.h5"),
    ):
        refused = cli(*words, code=2).stderr
        assert "the checksum of images does not match" in refused
    assert not (tmp_path / "all.h5").exists()


@pytest.mark.parametrize("form", OTHERS)
def test_stats_of_every_form_are_those_of_the_shards(cli, tmp_path, form):
    root = build(tmp_path / "d")
    expected = json.loads((root / "stats.json").read_text())
    assert expected["object_in_frame"] == FRAME
    there = turned(root, form, tmp_path / "other")
    assert json.loads(cli("stats", there).stdout) == expected
    if form == "published":  # nothing recorded: measured, but for where the object is
        (there / "3dident.json").unlink()
        unknown = {"object_in_frame": None, "images_fully_in_frame": None}
        assert json.loads(cli("stats", there).stdout) == {**expected, **unknown}


@pytest.mark.parametrize("form", OTHERS)
def test_info_of_every_form_says_what_rendered_it(cli, tmp_path, form):
    root = build(tmp_path / "d", wanted=20)
    there = turned(root, form, tmp_path / "other")
    lines = cli("info", there).stdout.splitlines()
    assert lines[0].startswith(f"{there}: 12 of 20 images of 8 x 8, ")
    assert lines[1] == "incomplete: images 12 to 19 missing"
    assert any(line.startswith("preset     3dident: teapot") for line in lines)
    document = json.loads(cli("info", there, "--json").stdout)
    assert document["form"] == form
    assert (document["images"], document["wanted"], document["missing"]) == (12, 20, [[12, 19]])
    assert document["fingerprint"] == DatasetDir.open(root).manifest.fingerprint
    cli("preview", there)
    assert not list(tmp_path.glob("other/**/preview.png"))


def test_an_export_of_several_splits_asks_which(cli, tmp_path):
    for split, count in (("train", 7), ("test", 4)):
        root = build(tmp_path / split, count, split=split)
        with open_source(root) as source:
            export(source, tmp_path / "hub", "parquet")
    with pytest.raises(UsageError, match="hub holds the splits train, test: choose one with"):
        ThreeDIdent(tmp_path / "hub")
    with pytest.raises(UsageError, match="hub has no split validation: it holds train, test"):
        open_source(tmp_path / "hub", "val")
    with pytest.raises(UsageError, match="is the split test, asked for train"):
        open_source(tmp_path / "hub/3dident-test.json", "train")
    for name in ("info", "verify", "stats", "preview"):
        assert "holds the splits train, test" in cli(name, "hub", code=2).stderr
        cli(name, "hub", "--split", "test")
    assert (tmp_path / "hub-test-preview.png").is_file()
    assert len(ThreeDIdent(tmp_path / "hub/3dident-test.json")) == 4
    cli("pack", "hub", "--split", "test", "--out", "test.h5")
    cli("convert", "hub", "--split", "test", "--to", "shards", "--out", "back")
    assert files_of(tmp_path / "back") == files_of(tmp_path / "test")
    cli("convert", "hub/3dident-train.json", "--to", "shards", "--out", "back-train")
    assert files_of(tmp_path / "back-train") == files_of(tmp_path / "train")
    cli("convert", "hub", "--split", "test", "--to", "webdataset", "--out", "tar")
    assert (tmp_path / "tar/3dident-test.json").is_file()
    refused = cli("info", "train", "--split", "test", code=2).stderr
    assert "has no splits to choose from" in refused


def test_a_published_layout_whose_latents_were_changed_is_not_taken_for_ours(cli, tmp_path):
    there = turned(build(tmp_path / "d"), "published", tmp_path / "p")
    raw = np.load(there / "raw_latents.npy")
    np.save(there / "raw_latents.npy", -raw)
    for words in (("info", "p"), ("convert", "p", "--to", "shards", "--out", "s")):
        refused = cli(*words, code=2).stderr
        assert "raw_latents.npy is not what" in refused
        assert "remove 3dident.json" in refused
    assert "raw_latents.npy is not what" in cli("verify", "p", code=1).stderr
    (there / "3dident.json").unlink()
    assert "not recorded" in cli("info", "p").stdout


def test_a_published_layout_of_an_older_version_reads_as_before(cli, tmp_path):
    there = turned(build(tmp_path / "d"), "published", tmp_path / "p")
    card = json.loads((there / "3dident.json").read_text())
    old = {name: card[name] for name in ("latents", "fingerprint", "images")}
    (there / "3dident.json").write_text(json.dumps(old))
    said = cli("verify", "p").stdout
    assert "not checked: pixels: this form was written without checksums of them" in said
    assert "not checked: latents: what drew them is not recorded" in said
    assert "not recorded" in cli("info", "p").stdout
    # The command that wrote it goes on with it, and adds what it did not keep.
    cli("convert", "d", "--to", "published", "--out", "p")
    assert json.loads((there / "3dident.json").read_text()) == card


def test_a_packed_file_of_an_older_version_comes_back(cli, tmp_path):
    root = build(tmp_path / "d")
    there = turned(root, "packed", tmp_path / "all")
    with h5py.File(there, "a") as file:
        del file["shards"]
        for name in ("sha256_shards", "wanted"):
            del file.attrs[name]
    said = cli("verify", there).stdout
    assert "not checked: pixels: this form was written without checksums of them" in said
    assert "checked: latents are those that the settings give" in said
    assert "not checked: whether there should be more images after the last" in said
    assert "how many images were asked for is not recorded" in cli("info", there).stdout
    cli("convert", there, "--to", "shards", "--out", "back")
    cli("verify", "back", "--n", 12)
    assert settings_of(tmp_path / "back") == settings_of(root)
    for ours, theirs in zip(everything(root), everything(tmp_path / "back"), strict=True):
        assert np.array_equal(ours, theirs)


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
    with open_source(root) as source:
        export(source, tmp_path / "whole", form, shard_size=5)
    first, second, _ = sorted((tmp_path / "whole/data").iterdir())

    def refused(change, message):
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "x")
        change(tmp_path / "x/data")
        with pytest.raises(DatasetError, match=message):
            open_source(tmp_path / "x")
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
        open_source(first)


def test_parquet_that_unfolds_to_more_than_it_holds_is_not_read(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    there = turned(build(tmp_path / "d"), "parquet", tmp_path / "hub")
    path = next((there / "data").iterdir())
    table = parquet.read_table(path)
    for options in ({"compression": "zstd"}, {"compression": "none", "use_dictionary": True}):
        parquet.write_table(table, path, **options)
        with pytest.raises(DatasetError, match="is compressed or encoded"):
            open_source(there)


def packed_by_prefixes(path):
    """Rewrites a Parquet file: all images share 1 MB, which it holds once."""
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(path)
    images = table["image"].combine_chunks()
    large = [np.random.default_rng(1).bytes(1 << 20)] * len(table)
    image = pa.StructArray.from_arrays([pa.array(large), images.field("path")], ["bytes", "path"])
    encodings = dict.fromkeys(
        ("image.path", "index", "raw_latents.list.element", "latents.list.element"), "PLAIN"
    )
    parquet.write_table(
        table.set_column(0, table.schema.field("image"), image),
        path,
        compression="none",
        use_dictionary=False,
        column_encoding={"image.bytes": "DELTA_BYTE_ARRAY", **encodings},
    )


def test_parquet_whose_images_share_what_they_begin_with_is_not_read(tmp_path):
    pytest.importorskip("pyarrow")
    there = turned(build(tmp_path / "d"), "parquet", tmp_path / "hub")
    path = next((there / "data").iterdir())
    packed_by_prefixes(path)
    assert path.stat().st_size < 2 << 20
    with pytest.raises(
        DatasetError, match=r"image\.bytes is compressed or encoded .*DELTA_BYTE_ARR"
    ):
        open_source(there)
    # The footer says PLAIN, the pages are what they were: no more is read than the file holds.
    content = path.read_bytes()
    said, lie = bytes([0x25, 2 * 3, 2 * 7]), bytes([0x25, 2 * 3, 0])  # a list of RLE, DELTA_...
    assert content.count(said) == 1
    path.write_bytes(content.replace(said, lie))
    with pytest.raises(DatasetError, match="its images are more than the file holds"):
        open_source(there)


def test_parquet_of_other_columns_is_not_read(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    there = turned(build(tmp_path / "d"), "parquet", tmp_path / "hub")
    path = next((there / "data").iterdir())
    table = parquet.read_table(path)
    options = {"compression": "none", "use_dictionary": False}
    wide = table.set_column(1, "index", table["index"].cast(pa.float64()))
    parquet.write_table(wide, path, **options)
    with pytest.raises(
        DatasetError, match=r"columns .*index \(double\).* expected .*index \(int64\)"
    ):
        open_source(there)
    # Lists of free length that say they are vectors; nulls take no room.
    nulls = pa.array([[None] * 5000] * len(table), pa.list_(pa.float32()))
    kept = base64.b64encode(table.schema.serialize())
    table = table.set_column(2, "raw_latents", nulls)
    table = table.replace_schema_metadata({"ARROW/schema": kept})
    parquet.write_table(table, path, **options)
    content = path.read_bytes().replace(b"ARROW:schema", b"ARROW-schema")
    path.write_bytes(content.replace(b"ARROW/schema", b"ARROW:schema"))
    with pytest.raises(DatasetError, match="has 60000 values in 12 rows, expected 10 in each"):
        open_source(there)


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


def test_the_number_that_was_wanted_is_held_against_what_is_there(cli, tmp_path):
    root = build(tmp_path / "d", 25, wanted=40)
    for first in (5, 10, 20):
        next(root.glob(f"shard-{first:08d}-*")).unlink()
    lines = cli("info", "d").stdout.splitlines()
    assert lines[0].startswith("d: 10 of 40 images of 8 x 8, 2 shards of up to 5, ")
    assert lines[1] == "incomplete: images 5 to 14 and 20 to 39 missing"  # adjacent gaps joined
    assert lines[2] == "all that is wrong: 3dident verify d"
    assert lines[3] == "to complete it: 3dident render --extend d"
    wrong = cli("verify", "d", code=1)
    assert wrong.stdout.startswith("d: 10 of 40 images are good, the last there is 19\n")
    assert wrong.stderr.startswith("missing: images 5 to 14 and 20 to 39\n")
    document = json.loads(cli("verify", "d", "--json", code=1).stdout)
    assert document["missing"] == [[5, 14], [20, 39]]
    (root / "wanted.json").unlink()
    assert "d: 10 images of 8 x 8" in cli("info", "d").stdout
    assert "how many images were asked for is not recorded" in cli("info", "d").stdout
    said = cli("verify", "d", code=1)
    assert said.stderr.startswith("missing: images 5 to 14\n")
    assert "not checked: whether there should be more images after the last" in said.stdout


def test_a_damaged_shard_is_said_to_be_one_wherever_it_is_met(cli, tmp_path):
    root = build(tmp_path / "d")
    path = root / "shard-00000005-00005.h5"
    path.write_bytes(path.read_bytes()[:1000])
    said = cli("info", "d").stdout.splitlines()
    assert said[1] == f"damaged: {path.relative_to(tmp_path)} is cut short"
    assert "3dident verify d" in said[2]
    for words in (("preview", "d"), ("convert", "d", "--to", "published", "--out", "p")):
        refused = cli(*words, code=2).stderr
        assert "shard-00000005-00005.h5 is cut short or damaged: `3dident verify`" in refused
        assert "`3dident render`" in refused
    wrong = cli("verify", "d", code=1).stderr
    assert "is cut short or damaged" in wrong
    assert "missing: images 5 to 9\n" in wrong


def test_info_of_one_shard(cli, tmp_path):
    build(tmp_path / "d", 3)
    assert ", 1 shard of up to 5, " in cli("info", "d").stdout


def test_best_scores_are_shown_where_they_apply(cli, tmp_path):
    def shown(root):
        lines = cli("info", root).stdout.splitlines()
        row = next(line for line in lines if line.startswith("object_hue"))
        return row.split()[-1], lines[-1]

    assert shown(build(tmp_path / "uniform"))[0] == "0.9630"
    given = np.zeros((12, 10), np.float32)
    for root, reason in (
        (build(tmp_path / "given", given=given), "the latents were given"),
        (build(tmp_path / "pairs", conditional=Normal(0.1)), "pairs are not uniform"),
    ):
        best, last = shown(root)
        assert best == "-"
        assert last.startswith("best R2 is not known: ")
        assert reason in last


def test_packing_where_nothing_can_be_written(cli, tmp_path):
    build(tmp_path / "d")
    words = ("pack", "d", "--out", "/proc/all.h5", "--compression", "gzip")
    # No text of HDF5's own.
    expected = "error: cannot write /proc/all.h5: No such file or directory\n"
    assert cli(*words, code=2).stderr == expected
