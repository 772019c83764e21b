"""The published layouts of the family: what is written is read, and what is damaged is refused."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import shutil
import struct
import zipfile

import numpy as np
import pytest
from helpers import family_folders
from helpers.causal import TEN, model
from helpers.fake_dataset import as_rendered
from PIL import Image

from threedident.causal import Sampling, load_model
from threedident.datasets.dataset import ThreeDIdent
from threedident.datasets.formats import open_dataset, splits_of
from threedident.datasets.formats.convert import convert
from threedident.datasets.formats.family.causal3dident import write_causal3dident
from threedident.datasets.formats.family.identbox import ORDER, write_3didentbox
from threedident.datasets.formats.family.layout import CITRIS_SHAPES, SHAPES
from threedident.datasets.formats.family.multimodal3dident import (
    IMAGE_COLUMNS,
    TEXT_COLUMNS,
    caption,
    write_multimodal3dident,
)
from threedident.datasets.formats.family.temporal import NAMES, write_temporal
from threedident.datasets.groups import ImageGroups
from threedident.datasets.pairs import PositivePairs
from threedident.distributions import Normal
from threedident.errors import DatasetError, MatchingWarning, UsageError
from threedident.factors import FACTOR_NAMES

MAKERS = {
    "causal3dident": (family_folders.causal, write_causal3dident),
    "multimodal3dident": (family_folders.multimodal, write_multimodal3dident),
    "3didentbox": (family_folders.box, write_3didentbox),
    "temporal-causal3dident": (family_folders.temporal, write_temporal),
}
FORMS = list(MAKERS)


def place(form, root, name="d"):
    return root / (f"{name}.npz" if form.startswith("temporal") else name)


@pytest.fixture
def made(tmp_path):
    """A function that writes a small dataset of a form, and gives its source and path."""

    def make(form, name="d"):
        source = MAKERS[form][0]()
        path = place(form, tmp_path, name)
        assert MAKERS[form][1](source, path) == len(source)
        return source, path

    return make


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_is_read(made, form):
    source, path = made(form)
    read = open_dataset(path)
    assert read.form == form
    assert read.shape == source.shape
    order = np.arange(len(source))
    if form == "causal3dident":  # class after class
        order = np.argsort(source.variables[:, 0], kind="stable")
    assert np.array_equal(read.images(range(len(read))), source.pixels[order])
    assert np.abs(read.raw_latents - source.raw_latents[order]).max() < 1e-6
    assert np.abs(read.latents - source.latents[order]).max() < 1e-5
    assert read.raw_latents.dtype == read.latents.dtype == np.float32
    for name in source.names:
        ours, theirs = source.values(name)[order], read.values(name)
        if ours.dtype.kind == "U":
            assert ours.tolist() == theirs.tolist()
        else:
            assert np.abs(ours - theirs).max() < 1e-6
    if source.targets is not None:
        known = [read.names.index(name) for name in source.names]
        assert np.array_equal(read.targets[:, known], source.targets)
    if source.pairs is not None:
        assert np.array_equal(read.pairs, source.pairs)
    assert all(path.is_file() for path in read.files())


@pytest.mark.parametrize("form", FORMS)
def test_a_dataset_of_torch_and_the_commands_take_it(cli, made, form):
    source, path = made(form)
    data = ThreeDIdent(path)
    assert len(data) == len(source)
    image, latents = data[3]
    assert image.shape == (3, 6, 6)
    assert latents.shape == (10,)
    assert np.isfinite(data.mean).all()
    said = cli("info", path).stdout
    assert f"{len(source)} images of 6 x 6" in said
    assert "published layout of " in said
    facts = json.loads(cli("info", path, "--json").stdout)["family"]
    assert [each["name"] for each in facts["variables"]] == list(data.source.names)
    cli("verify", path, "--n", len(source))
    cli("preview", path, "--count", 4, "--out", "p.png")
    cli("stats", path)
    told = cli("convert", path, "--to", "shards", "--out", "s").stderr
    assert "keeps images and the ten latents, and not the variables that are no latents" in told
    with open_dataset(path.parent / "s") as shards:
        assert np.array_equal(shards.images(range(4)), data.source.images(range(4)))
        assert np.array_equal(shards.raw_latents, data.source.raw_latents)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_layout_again(cli, made, form, tmp_path):
    _, path = made(form)
    again = place(form, tmp_path, "again")
    cli("convert", path, "--to", form, "--out", again)
    first, second = open_dataset(path), open_dataset(again)
    assert np.array_equal(first.variables, second.variables)
    assert np.array_equal(first.latents, second.latents)
    assert first.captions == second.captions
    refused = cli("convert", path, "--to", form, "--out", again, code=2).stderr
    assert "choose another --out" in refused


@pytest.mark.parametrize("form", FORMS)
def test_a_dataset_without_variables_is_refused(form, tmp_path, small_dataset):
    with (
        open_dataset(small_dataset) as source,
        pytest.raises(UsageError, match="no variables but the ten latents"),
    ):
        convert(source, place(form, tmp_path), form)


@pytest.mark.parametrize("form", FORMS)
def test_splits(cli, tmp_path, form):
    source = MAKERS[form][0]()
    names = {"causal3dident": {"train": "trainset", "test": "testset"}}.get(
        form, {"train": "train", "val": "val", "test": "test"}
    )
    for folder in names.values():
        MAKERS[form][1](source, place(form, tmp_path / "all", folder))
    assert splits_of(tmp_path / "all") == tuple(names)
    refused = cli("info", "all", code=2).stderr
    assert f"holds the splits {', '.join(names)}: choose one with --split" in refused
    cli("info", "all", "--split", "test")
    cli("convert", "all", "--split", "test", "--to", "published", "--out", "p")
    with pytest.raises(UsageError, match="has no split"):
        open_dataset(tmp_path / "all", "new")
    one = place(form, tmp_path / "all", names["test"])
    with pytest.raises(UsageError, match="is itself a split"):
        open_dataset(one, "test")
    for name, folder in names.items():
        if name != "test":
            gone = place(form, tmp_path / "all", folder)
            shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    assert len(open_dataset(tmp_path / "all")) == len(source)  # the only one is left


def test_class_numbers_stand_for_other_names_in_each_layout(made, tmp_path):
    _, path = made("causal3dident")
    (path / "3dident-family.json").unlink()  # ours alone: published folders have none
    source = open_dataset(path)
    assert source.column("shape").values == SHAPES
    assert set(source.values("shape")[source.variables[:, 0] == 1]) == {"hare"}
    _, path = made("temporal-causal3dident")
    source = open_dataset(path)
    assert source.column("shape").values == CITRIS_SHAPES
    numbers = source.variables[:, source.names.index("shape")]
    assert set(source.values("shape")[numbers == 1]) == {"armadillo"}
    # From one to the other, by name.
    memory = family_folders.causal(classes=CITRIS_SHAPES)
    write_causal3dident(memory, tmp_path / "by-name")
    back = open_dataset(tmp_path / "by-name")
    assert back.column("shape").values == SHAPES
    hares = memory.values("shape") == "hare"
    assert np.array_equal(
        back.raw_latents[back.values("shape") == "hare"], memory.raw_latents[hares]
    )


def test_classes_of_other_names_are_kept_on_the_card(tmp_path):
    names = ("teapot", "knot", "horn", "coil", "star", "pebble", "wedge")
    write_causal3dident(family_folders.causal(classes=names), tmp_path / "d")
    assert open_dataset(tmp_path / "d").column("shape").values == names
    card = tmp_path / "d/3dident-family.json"
    for text in ("[]", '{"classes": {"shape": ["a", "a"]}}', '{"classes": {"size": ["a"]}}', "{"):
        card.write_text(text)
        with pytest.raises(DatasetError, match=r"3dident-family\.json"):
            open_dataset(tmp_path / "d")


def test_causal3dident_has_the_published_files(made):
    source, path = made("causal3dident")
    for c in range(7):
        count = int((source.variables[:, 0] == c).sum())
        raw = np.load(path / f"raw_latents_{c}.npy")
        assert raw.shape == np.load(path / f"latents_{c}.npy").shape == (count, 10)
        names = sorted(p.name for p in (path / f"images_{c}").iterdir())
        width = max(1, math.ceil(math.log10(count)))
        assert names == [f"{i:0{width}d}.png" for i in range(count)]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("images_3/0.png", lambda p: p.unlink(), "images_3 lacks image 0: raw_latents_3.npy has"),
        ("images_2", shutil.rmtree, "images_2 is missing"),
        ("raw_latents_4.npy", lambda p: p.unlink(), r"latents of the class 4 \(armadillo\)"),
        ("latents_4.npy", lambda p: p.unlink(), "latents_4.npy: there is no such file"),
        ("latents_0.npy", lambda p: np.save(p, np.zeros((99, 10))), "latents_0.npy 99"),
        ("raw_latents_0.npy", lambda p: np.save(p, np.zeros((3, 9))), r"expected shape \(N, 10\)"),
        ("raw_latents_0.npy", lambda p: np.save(p, np.full((3, 10), 2.0)), "from -1 to 1, found 2"),
        ("raw_latents_0.npy", lambda p: np.save(p, np.full((3, 10), np.nan)), "found nan"),
        ("raw_latents_0.npy", lambda p: np.save(p, np.array([{}])), "not a .npy array"),
        ("raw_latents_0.npy", lambda p: p.write_bytes(p.read_bytes()[:-20]), "raw_latents_0.npy"),
        ("images_1/x.png", lambda p: p.write_bytes(b""), "x.png is no image of the layout"),
        ("images_1/0000.png", lambda p: p.write_bytes(b""), "are both one image"),
        ("images_1/99.png", lambda p: p.write_bytes(b""), "99.png is one too many"),
    ],
)
def test_a_damaged_causal3dident(made, name, change, message):
    _, path = made("causal3dident")
    change(path / name)
    with pytest.raises(DatasetError, match=message):
        open_dataset(path)


def test_images_of_another_size_are_refused(made):
    _, path = made("causal3dident")
    Image.new("RGB", (5, 6)).save(path / "images_6/0.png")
    source = open_dataset(path)
    with pytest.raises(DatasetError, match=r"shape \(6, 5, 3\), expected \(6, 6, 3\)"):
        source.images(range(len(source)))


def test_multimodal3dident_has_the_published_files(made):
    source, path = made("multimodal3dident")
    text = (path / "text/text_raw.txt").read_text()
    assert not text.endswith("\n")
    assert len(text.split("\n")) == len(source)
    assert (path / "images/000000.png").is_file()
    tables = {}
    for name in ("image", "text"):
        with (path / f"latents_{name}.csv").open(newline="") as file:
            tables[name] = list(csv.DictReader(file))
    assert tuple(tables["image"][0]) == tuple(IMAGE_COLUMNS)
    assert tuple(tables["text"][0]) == TEXT_COLUMNS
    row = tables["image"][2]
    assert SHAPES[int(row["object_shape"])] == source.values("shape")[2]
    assert int(row["object_xpos"]) == source.variables[2, 1]
    assert np.float32(row["object_color"]) == source.variables[2, source.names.index("object_hue")]
    scene = dict(zip(FACTOR_NAMES, source.latents[2], strict=True))
    assert scene["y"] == 3 * int(row["object_xpos"]) - 3  # the published mapping
    assert scene["x"] == 3 * int(row["object_ypos"]) - 3


def test_captions_are_at_hand(made):
    source, path = made("multimodal3dident")
    read = open_dataset(path)
    expected = caption(source)
    assert read.captions == expected.texts
    assert tuple(read.caption_variables["color_name"]) == expected.color_names
    assert read.caption_variables["color_index"].tolist() == expected.color_indices.tolist()
    assert read.caption_variables["phrasing"].tolist() == expected.phrasings.tolist()
    # A hue is the colour that the caption names: 0 is red, whichever palette.
    hue = source.variables[:, source.names.index("object_hue")]
    hue[:] = 0
    source.latents[:, FACTOR_NAMES.index("object_hue")] = 0
    reds = {"tab:red", "red", "xkcd:fire engine red", "xkcd:bright red", "xkcd:red", "tab:orange"}
    assert set(caption(source).color_names) <= reds


def test_captions_of_ones_own_are_written(tmp_path):
    source = family_folders.multimodal()
    own = caption(source, seed=3, split="test", templates=("{shape} {xpos} {ypos} {color}",))
    write_multimodal3dident(source, tmp_path / "d", own)
    assert open_dataset(tmp_path / "d").captions == own.texts
    assert set(own.phrasings) == {0}
    short = caption(family_folders.multimodal(5))
    with pytest.raises(UsageError, match="found 5 captions for 17 images"):
        write_multimodal3dident(source, tmp_path / "e", short)


def test_the_command_takes_templates(cli, made, tmp_path):
    _, path = made("multimodal3dident")
    (tmp_path / "t.txt").write_text("{color}/{shape}\n")
    cli("convert", path, "--to", "multimodal3dident", "--out", "o", "--templates", "t.txt")
    before, after = open_dataset(path), open_dataset(tmp_path / "o")
    words = zip(after.caption_variables["color_name"], before.values("shape"), strict=True)
    assert after.captions == tuple(f"{color}/{shape}" for color, shape in words)
    refused = cli("convert", path, "--to", "shards", "--out", "s", "--templates", "t.txt", code=2)
    assert "--to shards takes no --templates" in refused.stderr
    (tmp_path / "t.txt").write_text("{size}\n")
    words = ("--to", "multimodal3dident", "--out", "p", "--templates", "t.txt")
    assert "a template's slots are" in cli("convert", path, *words, code=2).stderr
    assert not (tmp_path / "p").exists()


def _edit_csv(column, row, value):
    def change(path):
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        rows[row + 1][rows[0].index(column)] = value
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        path.write_text(text.getvalue())

    return change


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("images/000003.png", lambda p: p.unlink(), "lacks image 3: latents_image.csv has 17"),
        ("images", shutil.rmtree, "images is missing"),
        ("latents_image.csv", lambda p: p.unlink(), "cannot read .*latents_image.csv"),
        ("latents_text.csv", lambda p: p.unlink(), "cannot read .*latents_text.csv"),
        ("text/text_raw.txt", lambda p: p.unlink(), "cannot read .*text_raw.txt"),
        ("text/text_raw.txt", lambda p: p.write_text("one\ntwo"), "2 lines for 17 images"),
        ("text/text_raw.txt", lambda p: p.write_bytes(b"\xff"), "cannot read .*text_raw.txt"),
        ("latents_image.csv", lambda p: p.write_text("a,b\n1,2\n"), "no column object_shape"),
        ("latents_image.csv", _edit_csv("object_shape", 2, "7"), "0 to 6, found 7.0 in row 2"),
        ("latents_image.csv", _edit_csv("object_xpos", 2, "1.5"), "whole numbers from 0 to 2"),
        ("latents_image.csv", _edit_csv("object_color", 2, "1.5"), "from 0 to 1, found 1.5"),
        ("latents_image.csv", _edit_csv("object_color", 2, "red"), "could not convert"),
        ("latents_image.csv", _edit_csv("object_color", 2, "nan"), "finite"),
        ("latents_image.csv", _edit_csv("object_zpos", 2, "1"), "object_zpos is not 0"),
        ("latents_text.csv", _edit_csv("object_xpos", 2, "9"), "object_xpos is not the same"),
        (
            "latents_text.csv",
            lambda p: p.write_text(p.read_text().rsplit("\n", 2)[0]),
            "latents_text.csv 16",
        ),
        (
            "latents_image.csv",
            lambda p: p.write_text(p.read_text() + "1,2\n"),
            "expected 11 fields",
        ),
    ],
)
def test_a_damaged_multimodal3dident(made, name, change, message):
    _, path = made("multimodal3dident")
    change(path / name)
    with pytest.raises(DatasetError, match=message):
        open_dataset(path)


def test_3didentbox_has_the_published_files(made):
    source, path = made("3didentbox")
    assert ORDER[0] == "spotlight_hue"
    for v, view in enumerate(("m1", "m2")):
        assert len(list((path / "samples" / view).glob("*.png"))) == len(source) // 2
        raw = np.load(path / "factors" / view / "raw_latents.npy")
        assert raw.shape == (7, 10)
        for k, name in enumerate(ORDER[:-1]):
            ours = source.raw_latents[v::2, FACTOR_NAMES.index(name)]
            assert np.array_equal(raw[:, k], ours)
        assert not raw[:, -1].any()  # the teapot is class 0
    read = open_dataset(path)
    assert read.pairs.tolist() == [[2 * i, 2 * i + 1] for i in range(7)]
    assert read.values("material").tolist() == ["metal", "rubber"] * 7
    assert set(read.values("shape")) == {"teapot"}
    assert not read.latents[:, FACTOR_NAMES.index("psi")].any()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("samples/m2/000003.png", lambda p: p.unlink(), "m2 lacks image 3"),
        ("samples/m1", shutil.rmtree, "m1 is missing"),
        ("factors/m2/latents.npy", lambda p: p.unlink(), "latents.npy: there is no such file"),
        ("factors/m2", shutil.rmtree, "m2.raw_latents.npy: there is no such file"),
        (
            "factors/m1/raw_latents.npy",
            lambda p: np.save(p, np.zeros((7, 24))),
            "several objects have more",
        ),
        (
            "factors/m1/raw_latents.npy",
            lambda p: np.save(p, np.full((7, 10), 3.0)),
            r"column 0 \(spotlight_hue\)",
        ),
        (
            "factors/m1/latents.npy",
            lambda p: np.save(p, np.full((7, 10), 0.5)),
            "whole numbers from 0 to",
        ),
        ("factors/m1/latents.npy", lambda p: np.save(p, np.zeros((5, 10))), "latents.npy 5"),
    ],
)
def test_a_damaged_3didentbox(made, name, change, message):
    _, path = made("3didentbox")
    change(path / name)
    with pytest.raises(DatasetError, match=message):
        open_dataset(path)


def test_the_box_needs_pairs_and_no_third_rotation(tmp_path):
    source = family_folders.box()
    source.pairs = None
    with pytest.raises(UsageError, match="holds no pairs"):
        write_3didentbox(source, tmp_path / "d")
    source = family_folders.box()
    source.latents[3, FACTOR_NAMES.index("psi")] = 0.1
    with pytest.raises(UsageError, match="psi varies"):
        write_3didentbox(source, tmp_path / "d")


def test_the_box_is_of_metal_and_rubber(tmp_path):
    """Readers know the material by the view, so that another one would be lost without a word."""
    box = load_model("3didentbox-hues-positions-rotations-1")
    pairs = {
        "rubber": Sampling(box, do={"material": "rubber"}, view="second"),
        "metal": Sampling(box, counterfactual={"x": 0.5}),
    }
    for material, sampling in pairs.items():
        as_rendered(tmp_path / material, 6, sampling=sampling)
        with (
            open_dataset(tmp_path / material) as source,
            pytest.raises(UsageError, match=rf"image [01] is of {material}"),
        ):
            convert(source, tmp_path / "out", "3didentbox")
    assert not (tmp_path / "out").exists()


def test_several_objects_are_not_written_as_one(tmp_path):
    two = model(TEN, scene={"objects": 2})
    as_rendered(tmp_path / "d", 6, sampling=Sampling(two))
    with (
        open_dataset(tmp_path / "d") as source,
        pytest.raises(UsageError, match="shows 2 objects, and the layout causal3dident has"),
    ):
        convert(source, tmp_path / "out", "causal3dident")


def test_a_sequence_is_written_in_the_units_of_the_scene(tmp_path):
    """The layout holds metres: a variable in [-1, 1] is what it renders there, or refused."""
    step = {"kind": "step", "goal": 0.0, "std": 0.5}
    moving = {"x": {"mechanism": {"kind": "uniform"}, "transition": step}}
    scene = {"material": "metal", "shape": "knot"}
    for end in (2.0, 3.0):
        variables = {"x": {**moving["x"], "scene": [-end, end]}}
        sampling = Sampling(model(variables, scene=scene), steps=24)
        as_rendered(tmp_path / str(end), 24, sampling=sampling)
    with open_dataset(tmp_path / "2.0") as source:
        convert(source, tmp_path / "d.npz", "temporal-causal3dident")
        read = open_dataset(tmp_path / "d.npz")
        assert np.abs(source.latents[:, 0]).max() > 1
        assert read.latents == pytest.approx(source.latents, abs=1e-6)
    assert set(read.values("shape")) == {"knot"}
    assert set(read.values("material")) == {"metal"}
    with (
        open_dataset(tmp_path / "3.0") as source,
        pytest.raises(UsageError, match=r"the scene's x in \[-2, 2\], found -?2\."),
    ):
        convert(source, tmp_path / "e.npz", "temporal-causal3dident")


def test_the_box_names_a_shape_that_does_not_vary(tmp_path):
    knots = load_model("3didentbox-hues-positions-rotations-1")
    knots = dataclasses.replace(knots, preset=dataclasses.replace(knots.preset, shape="knot"))
    as_rendered(tmp_path / "d", 6, sampling=Sampling(knots, view="second"))
    with open_dataset(tmp_path / "d") as source:
        convert(source, tmp_path / "out", "3didentbox")
    assert set(open_dataset(tmp_path / "out").values("shape")) == {"knot"}


def save_npz(path, compressed=False, **arrays):
    (np.savez_compressed if compressed else np.savez)(path, **arrays)


def test_the_temporal_layout_is_as_published(made):
    source, path = made("temporal-causal3dident")
    with np.load(path) as file:
        assert set(file) == {"imgs", "raw_latents", "shape_latents", "interventions"}
        assert file["imgs"].shape == (29, 6, 6, 3)
        assert file["shape_latents"].shape == (29, 2)
        # Row t is of the step from frame t to t + 1.
        assert file["interventions"].shape == (28, 12)
        assert np.array_equal(file["interventions"][:, 0], source.targets[1:, 0])
        assert np.array_equal(file["raw_latents"], source.latents)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("extra", [0, 4])
def test_channels_beyond_the_third_do_not_count(made, compressed, extra, tmp_path):
    source, path = made("temporal-causal3dident")
    arrays = dict(np.load(path))
    noise = np.full((*arrays["imgs"].shape[:3], extra), 7, np.uint8)
    arrays["imgs"] = np.concatenate([arrays["imgs"], noise], -1)
    save_npz(tmp_path / "e.npz", compressed, **arrays)
    read = open_dataset(tmp_path / "e.npz")
    assert read.shape == (6, 6, 3)
    assert np.array_equal(read.images([5, 0, 28]), source.pixels[[5, 0, 28]])


def test_triplets(tmp_path):
    rng = np.random.default_rng(0)
    mask = rng.integers(0, 2, (5, 12))
    latents = rng.uniform(0, 2, (5, 3, 10)).astype(np.float32)
    shapes = np.stack([rng.integers(0, 7, (5, 3)), np.zeros((5, 3), int)], -1).astype(np.uint8)
    images = rng.integers(0, 256, (5, 3, 4, 4, 3)).astype(np.uint8)
    save_npz(
        tmp_path / "test_triplets.npz",
        imgs=images,
        raw_latents=latents,
        shape_latents=shapes,
        interventions=mask,
    )
    source = open_dataset(tmp_path / "test_triplets.npz")
    assert len(source) == 15
    assert source.triplets.tolist() == np.arange(15).reshape(5, 3).tolist()
    assert np.array_equal(source.mask, mask)
    assert source.targets is None
    assert np.array_equal(source.images(source.triplets[2]), images[2])
    assert np.array_equal(source.variables[source.triplets[4], :10], latents[4])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"imgs": None}, "has no array 'imgs'"),
        ({"raw_latents": None}, "has no array 'raw_latents'"),
        ({"interventions": None}, "no array interventions"),
        ({"imgs": np.zeros((29, 6, 6, 3))}, "of float64, expected"),
        ({"imgs": np.zeros((29, 6, 6), np.uint8)}, "expected"),
        ({"imgs": np.zeros((0, 6, 6, 3), np.uint8)}, "there is no image"),
        ({"imgs": np.zeros((7, 4, 6, 6, 3), np.uint8)}, "three images a triplet"),
        ({"raw_latents": np.zeros((28, 10), np.float32)}, r"expected \(29, 10\)"),
        ({"raw_latents": np.full((29, 10), 7.0)}, "from -2 to 2, found 7"),
        ({"raw_latents": np.full((29, 10), -1.0)}, "from 0 to 6.28"),
        ({"shape_latents": np.full((29, 2), 7, np.uint8)}, "0 to 6, found 7"),
        ({"interventions": np.zeros((27, 12), int)}, r"expected \(28, 12\)"),
        ({"interventions": np.full((28, 12), 2)}, "other values than 0 and 1"),
        ({"raw_latents": np.array([[{}] * 10] * 29)}, "Python objects, which are not unpickled"),
    ],
)
def test_a_damaged_temporal_file(made, tmp_path, change, message):
    _, path = made("temporal-causal3dident")
    arrays = dict(np.load(path)) | change
    save_npz(tmp_path / "e.npz", **{k: v for k, v in arrays.items() if v is not None})
    with pytest.raises(DatasetError, match=message):
        open_dataset(tmp_path / "e.npz")


def _npy(shape, data, dtype="|u1"):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "shape", ["(1000000000000, 6, 6, 3)", "(29, 6, 6, 4)", "(-29, 6, 6, 3)", "(1 << 40,)"]
)
def test_declared_sizes_are_not_believed(made, tmp_path, shape, compressed):
    source, path = made("temporal-causal3dident")
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "e.npz", "w", method) as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "imgs.npy":
                content = _npy(shape, source.pixels.tobytes())
            new.writestr(name, content)
    with pytest.raises(DatasetError, match=r"e\.npz"):
        open_dataset(tmp_path / "e.npz")


def test_files_that_are_no_npz(made, tmp_path):
    _, path = made("temporal-causal3dident")
    content = path.read_bytes()
    for damaged in (b"", b"hello", content[:1000], content[:-30]):
        (tmp_path / "e.npz").write_bytes(damaged)
        with pytest.raises(DatasetError, match=r"e\.npz"):
            open_dataset(tmp_path / "e.npz")


@pytest.mark.parametrize("compressed", [False, True])
def test_whatever_byte_is_changed_nothing_but_an_error_comes_of_it(made, tmp_path, compressed):
    _, path = made("temporal-causal3dident")
    save_npz(tmp_path / "c.npz", compressed, **dict(np.load(path)))
    content = (tmp_path / "c.npz").read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(150):
        changed = bytearray(content)
        for at in rng.integers(0, len(content), 3):
            changed[at] = rng.integers(0, 256)
        (tmp_path / "e.npz").write_bytes(changed)
        try:
            open_dataset(tmp_path / "e.npz").images(range(29))
        except DatasetError as error:
            assert "e.npz" in str(error)


def test_a_sequence_must_fit_the_layout(tmp_path):
    source = family_folders.temporal()
    with pytest.raises(UsageError, match=r"ends in \.npz"):
        write_temporal(source, tmp_path / "d")
    source.targets = None
    with pytest.raises(UsageError, match="is not one sequence"):
        write_temporal(source, tmp_path / "d.npz")
    other = family_folders.box()
    other.targets = np.zeros(other.variables.shape, np.uint8)
    column = other.columns[-1]
    other.columns = (*other.columns[:-1], dataclasses.replace(column, values=("gold", "wood")))
    with pytest.raises(UsageError, match="material has the class gold, which the layout has not"):
        write_temporal(other, tmp_path / "d.npz")
    wrong = family_folders.multimodal()
    wrong.targets = np.zeros(wrong.variables.shape, np.uint8)
    with pytest.raises(UsageError, match="has the variable xpos, which the layout has not"):
        write_temporal(wrong, tmp_path / "d.npz")
    assert NAMES[-2:] == ("shape", "material")


def test_a_sequence_of_other_shapes_keeps_their_names(tmp_path):
    source = family_folders.temporal()
    names = ("teapot", *"abcdef")
    source.columns = (*source.columns[:-1], dataclasses.replace(source.columns[-1], values=names))
    write_temporal(source, tmp_path / "d.npz")
    read = open_dataset(tmp_path / "d.npz")
    assert read.column("shape").values == names
    assert read.values("shape").tolist() == source.values("shape").tolist()
    for wrong in (np.array([["a"]]), np.array([1, 2]), np.array(["a", "a"]), np.array(["a"])):
        arrays = dict(np.load(tmp_path / "d.npz")) | {"shape_names": wrong}
        save_npz(tmp_path / "e.npz", **arrays)
        with pytest.raises(DatasetError, match=r"names of classes|whole numbers from 0 to 0"):
            open_dataset(tmp_path / "e.npz")


@pytest.mark.parametrize(
    ("name", "options", "form"),
    [
        ("temporal-causal3dident-teapot", {"steps": 12}, "temporal-causal3dident"),
        ("temporal-causal3dident-primitives", {"steps": 12}, "temporal-causal3dident"),
        ("multimodal3dident-primitives", {}, "multimodal3dident"),
        ("3didentbox-hues-positions-rotations-2", {"view": "second"}, "3didentbox"),
        ("causal3dident-recalled-primitives", {}, "causal3dident"),
    ],
)
def test_a_dataset_of_a_model_is_written_in_its_layout(tmp_path, name, options, form):
    model = load_model(name)
    count = 12 if options else 60
    as_rendered(tmp_path / "d", count, shard=60, sampling=Sampling(model, **options))
    with open_dataset(tmp_path / "d") as source:
        assert convert(source, place(form, tmp_path, "out"), form) == count
        order = np.arange(count)
        if form == "causal3dident":
            order = np.argsort(source.draws.variables[:, 0], kind="stable")
        read = open_dataset(place(form, tmp_path, "out"))
        assert np.array_equal(read.images(range(count)), source.images(order.tolist()))
        known = [read.names.index(each) for each in model.names]
        assert np.abs(read.variables[:, known] - source.draws.variables[order]).max() < 1e-6
        assert np.abs(read.latents - source.latents[order]).max() < 1e-5
        if form.startswith("temporal"):
            assert np.array_equal(read.targets[:, known], source.draws.targets)
        for variable in model.variables:
            if variable.kind == "discrete":
                numbers = source.draws.variables[order, model.names.index(variable.name)]
                expected = np.array(variable.values)[numbers.astype(int)].tolist()
                assert read.values(variable.name).tolist() == expected
    data = ThreeDIdent(place(form, tmp_path, "out"))
    assert data.variable_names == read.names
    assert np.array_equal(data.variables.numpy(), read.variables)
    with pytest.raises(UsageError, match="does not record that"):
        _ = data.graph


def test_several_sequences_are_not_taken_for_one(tmp_path):
    model = load_model("temporal-causal3dident-teapot")
    as_rendered(tmp_path / "d", 12, shard=60, sampling=Sampling(model, steps=6))
    with (
        open_dataset(tmp_path / "d") as source,
        pytest.raises(UsageError, match="is not one sequence"),
    ):
        convert(source, tmp_path / "d.npz", "temporal-causal3dident")


def test_groups_of_a_published_folder(made, tmp_path):
    source, path = made("3didentbox")
    groups = ImageGroups(path, batch_size=3)
    assert (groups.kind, groups.length) == ("views", 2)
    (first, second), (x, _) = groups.batch(0, 0)
    names = open_dataset(path).names
    assert set(first[:, names.index("material")].tolist()) == {0.0}
    assert set(second[:, names.index("material")].tolist()) == {1.0}
    i, j = groups.indices(0, 0)
    assert (j - i == 1).all() and (i % 2 == 0).all()
    assert np.array_equal(x.permute(0, 2, 3, 1).numpy(), source.pixels[i])
    _, path = made("temporal-causal3dident")
    groups = ImageGroups(path, 4, batch_size=5)
    assert groups.kind == "sequence"
    assert len(groups.batch(0, 0).latents) == 4
    assert groups.targets(0, 0)[0].shape == (5, 12)
    _, path = made("causal3dident", "single")
    with pytest.raises(UsageError, match="holds single images"):
        ImageGroups(path, batch_size=2)


def test_pairs_that_are_matched_across_classes_come_with_a_warning(made):
    _, path = made("causal3dident")
    with pytest.warns(MatchingWarning, match="the two images of a pair can differ in shape"):
        PositivePairs(path, conditional=Normal(1.0), batch_size=4)
    _, path = made("3didentbox", "box")
    with pytest.raises(UsageError, match=r"belong together \(views\): ImageGroups"):
        PositivePairs(path, conditional=Normal(1.0), batch_size=4)


def test_a_class_without_an_image(tmp_path):
    source = family_folders.causal()
    source.variables[source.variables[:, 0] == 3, 0] = 2
    with pytest.raises(UsageError, match="no image of the class cow"):
        write_causal3dident(source, tmp_path / "d")


def test_variables_by_name(made):
    _, path = made("multimodal3dident")
    source = open_dataset(path)
    with pytest.raises(UsageError, match="has no variable 'color': it has shape, xpos"):
        source.values("color")


def test_counterfactuals_are_said_to_be_parted(tmp_path, capsys):
    model = load_model("causal3dident-recalled-primitives")
    sampling = Sampling(model, counterfactual={"object_hue": 0.5})
    as_rendered(tmp_path / "d", 60, shard=60, sampling=sampling)
    with open_dataset(tmp_path / "d") as source:
        convert(source, tmp_path / "out", "causal3dident")
    said = " ".join(capsys.readouterr().err.split())
    assert "belong together (counterfactual)" in said
    assert "nor for which are the counterfactuals" in said


def test_pairs_of_the_box_are_kept_and_nothing_is_said(tmp_path, capsys):
    model = load_model("3didentbox-hues-positions-rotations-2")
    as_rendered(tmp_path / "d", 12, shard=60, sampling=Sampling(model, view="second"))
    with open_dataset(tmp_path / "d") as source:
        convert(source, tmp_path / "out", "3didentbox")
    assert "belong together" not in capsys.readouterr().err
