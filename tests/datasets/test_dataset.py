"""`ThreeDIdent` over every form of a dataset, its readers, `Normalize` and `TwoViews`."""

from __future__ import annotations

import multiprocessing as mp
import pickle
import shutil
import threading

import h5py
import numpy as np
import pytest
import torch
from helpers import fake_dataset as made
from helpers.fake_dataset import in_a_fork, same, wait_for
from PIL import Image
from torch.utils import data

from threedident.datasets import Normalize, ThreeDIdent, TwoViews, simclr
from threedident.datasets import dataset as dataset_module
from threedident.datasets.formats import _image_stacks, open_dataset
from threedident.datasets.formats.export import export
from threedident.datasets.formats.hdf5 import pack, to_shards
from threedident.datasets.formats.png_folder import to_published
from threedident.errors import DatasetError, UsageError
from threedident.factors import FACTOR_NAMES, GROUPS
from threedident.storage.directory import DatasetDir
from threedident.storage.shard_plan import list_shards

FORMS = ("shards", "gzip", "packed", "packed-gzip", "published", "plain", "webdataset", "parquet")

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def forms(tmp_path_factory, small_dataset):
    """One dataset in each of its forms."""
    folder = tmp_path_factory.mktemp("forms")
    paths = {
        "shards": small_dataset,
        "gzip": folder / "gzip",
        "packed": folder / "packed.h5",
        "packed-gzip": folder / "packed-gzip.h5",
        "published": folder / "published",
        "plain": folder / "plain",  # published, without the card that says what made it
        "webdataset": folder / "tar",
        "parquet": folder / "hub",
    }
    directory = DatasetDir.open(small_dataset)
    pack(directory, paths["packed"])
    pack(directory, paths["packed-gzip"], compression="gzip")
    with open_dataset(small_dataset) as source:
        to_published(source, paths["published"])
        for form in ("webdataset", "parquet"):
            export(source, paths[form], form, shard_size=5)
    shutil.copytree(paths["published"], paths["plain"])
    (paths["plain"] / "3dident.json").unlink()
    with open_dataset(paths["plain"]) as source:
        to_shards(source, paths["gzip"], shard_size=5, compression="gzip")
    return paths


@pytest.fixture(scope="module")
def truth(small_dataset):
    """Images, raw latents and latents, by way of h5py alone."""
    parts = {"images": [], "raw_latents": [], "latents": []}
    for path in sorted(small_dataset.glob("shard-*.h5")):
        with h5py.File(path) as file:
            for name, arrays in parts.items():
                arrays.append(file[name][()])
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def pixels_of(images):
    """(N, H, W, 3) numpy of what a dataset gives."""
    return images.permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cache", [None, "ram"])
def test_every_form_holds_the_same(forms, truth, form, cache):
    dataset = ThreeDIdent(forms[form], cache=cache)
    assert len(dataset) == 12
    assert dataset.cache_device == (None if cache is None else torch.device("cpu"))
    assert np.array_equal(dataset.raw_latents, truth["raw_latents"])
    assert np.array_equal(dataset.latents, truth["latents"])
    order = [7, 0, 11, 7, 3]
    for indices in (order, torch.tensor(order), np.array(order), range(2, 9, 2), []):
        images = dataset.images(indices)
        assert images.dtype == torch.uint8
        assert images.shape == (len(indices), 3, 32, 32)
        assert len(indices) == 0 or images.is_contiguous(memory_format=torch.channels_last)
        assert np.array_equal(pixels_of(images), truth["images"][list(indices)])
        out = np.zeros((len(indices), 32, 32, 3), np.uint8)
        dataset.read_into(indices, out)
        assert np.array_equal(out, truth["images"][list(indices)])
    for number, (image, latents) in enumerate(dataset):
        assert np.array_equal(image.permute(1, 2, 0), truth["images"][number])
        assert np.array_equal(latents, truth["raw_latents"][number])
    assert number == 11


@pytest.mark.parametrize("form", FORMS)
def test_what_made_it(forms, form):
    preset = ThreeDIdent(forms[form]).preset
    if form in ("gzip", "plain"):  # the published layout does not say
        assert preset is None
    else:
        assert preset.name == "3dident"


def test_factors_choose_and_order_the_columns(forms, truth):
    names = ["hue", "x", "psi"]
    columns = [*GROUPS["hue"], FACTOR_NAMES.index("x"), FACTOR_NAMES.index("psi")]
    dataset = ThreeDIdent(forms["shards"], factors=names, target="latents")
    assert dataset.columns == tuple(columns)
    assert dataset.factor_names == (*FACTOR_NAMES[7:], "x", "psi")
    assert np.array_equal(dataset.raw_latents, truth["raw_latents"][:, columns])
    assert np.array_equal(dataset.latents, truth["latents"][:, columns])
    assert np.array_equal(dataset[4][1], truth["latents"][4, columns])
    assert ThreeDIdent(forms["shards"], factors="position").factor_names == ("x", "y", "z")
    assert ThreeDIdent(forms["shards"], factors="theta").raw_latents.shape == (12, 1)
    assert ThreeDIdent(forms["shards"], factors=(n for n in ("y", "x"))).columns == (1, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factors": ["x", "shape"]}, "unknown factor or group 'shape': expected one of x, y, z"),
        ({"factors": []}, "names no factor"),
        ({"transform": "test"}, "^transform must be a function, or None .*, found 'test'$"),
        ({"target_transform": 2}, "^target_transform must be a function, or None .*, found 2$"),
        ({"target": "images"}, "raw_latents, latents, variables, found 'images'"),
        ({"cache": "disk"}, "cache must be .* such as \"cuda\", found 'disk'$"),
        ({"cache": "cuda:99"}, r"12 images need 0\.0 MB on cuda:99, which cannot be had"),
    ],
)
def test_arguments_that_do_not_fit(forms, options, message):
    with pytest.raises(UsageError, match=message):
        ThreeDIdent(forms["shards"], **options)


def test_transforms(forms, truth):
    seen = []

    def transform(image):
        seen.append(image)
        return np.asarray(image).mean()

    dataset = ThreeDIdent(forms["gzip"], transform, lambda z: z.numpy() + 1)
    image, latents = dataset[5]
    assert isinstance(seen[0], Image.Image)
    assert seen[0].mode == "RGB"
    assert np.array_equal(np.asarray(seen[0]), truth["images"][5])
    assert image == truth["images"][5].mean()
    assert np.array_equal(latents, truth["raw_latents"][5] + 1)
    image, _ = ThreeDIdent(forms["gzip"])[5]
    assert isinstance(image, torch.Tensor)
    assert image.dtype == torch.uint8


def test_an_item_is_the_callers_own(forms, truth):
    for cache in (None, "ram"):
        dataset = ThreeDIdent(forms["packed"], target_transform=lambda z: z.mul_(0), cache=cache)
        image, _ = dataset[3]
        image.fill_(0)
        dataset.images([4]).fill_(0)
        assert np.array_equal(dataset.raw_latents, truth["raw_latents"])
        assert np.array_equal(pixels_of(dataset.images(range(12))), truth["images"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cache", [None, "ram"])
def test_indices_out_of_range(forms, truth, form, cache):
    dataset = ThreeDIdent(forms[form], cache=cache)
    for last in (-1, np.int64(11), torch.tensor(11), np.uint8(11)):
        assert np.array_equal(dataset[last][0].permute(1, 2, 0), truth["images"][11])
    for wrong in (12, -13, 10**9):
        for index in (wrong, np.int64(wrong), torch.tensor(wrong), [0, wrong]):
            with pytest.raises(IndexError, match=rf"no image {wrong}: .* holds 12, 0 to 11$"):
                dataset[index]
    # Where an image is named by its number, -1 is a mistake, not the last one.
    for wrong in (-1, 12, 13, 2**40):
        for indices in ([0, wrong], torch.tensor([0, wrong])):
            with pytest.raises(IndexError, match=f"no image {wrong}: expected 0 to 11"):
                dataset.images(indices)
            with pytest.raises(IndexError, match=f"no image {wrong}"):
                dataset.read_into(indices, np.empty((2, 32, 32, 3), np.uint8))
    with pytest.raises(IndexError, match="no image 12"):
        dataset.source.image(12)
    with pytest.raises(TypeError):
        dataset.images([0.5])


@pytest.mark.parametrize("cache", [None, "ram"])
def test_several_items_at_once(forms, truth, cache):
    dataset = ThreeDIdent(forms["packed"], factors=["hue", "x"], cache=cache)
    columns = list(dataset.columns)
    for index, numbers in (
        (slice(0, 3), [0, 1, 2]),
        (slice(-2, None), [10, 11]),
        (slice(8, 1, -3), [8, 5, 2]),
        (slice(9, 99), [9, 10, 11]),
        (slice(5, 5), []),
        ([], []),
        ([4], [4]),
        ([0, -1, 0], [0, 11, 0]),
        (range(3), [0, 1, 2]),
        (np.array([3, -1]), [3, 11]),
        (torch.tensor([6]), [6]),
    ):
        images, latents = dataset[index]
        assert np.array_equal(pixels_of(images), truth["images"][numbers])
        assert np.array_equal(latents, truth["raw_latents"][numbers][:, columns])
        latents.zero_()
    assert np.array_equal(dataset.raw_latents, truth["raw_latents"][:, columns])
    wrong = [0.5, "x", None, (0, 1), True, [0.5], [[1]], [True, False]]
    for index in (*wrong, np.zeros(2), torch.zeros(2, 2)):
        with pytest.raises(TypeError, match=r"there is no image .*: expected a whole number"):
            dataset[index]


def test_a_mask_chooses_items(forms, truth):
    dataset = ThreeDIdent(forms["shards"])
    mask = dataset.raw_latents[:, 0] > 0
    assert 0 < mask.sum() < len(mask)
    for each in (mask, mask.numpy()):
        images, latents = dataset[each]
        assert np.array_equal(images.permute(0, 2, 3, 1), truth["images"][mask.numpy()])
        assert np.array_equal(latents, truth["raw_latents"][mask.numpy()])
    with pytest.raises(IndexError, match=r"a mask of 3 values: .* holds 12 images"):
        dataset[np.ones(3, bool)]


def test_several_items_go_through_transforms_one_by_one(forms, truth):
    def brightness(image):
        assert isinstance(image, Image.Image)
        return torch.tensor(float(np.asarray(image).mean()))

    dataset = ThreeDIdent(forms["shards"], brightness, lambda z: z + 1)
    images, latents = dataset[2:6]
    assert images.tolist() == pytest.approx(truth["images"][2:6].mean((1, 2, 3)))
    assert np.array_equal(latents, truth["raw_latents"][2:6] + 1)
    names, latents = ThreeDIdent(forms["shards"], lambda image: image.mode, list)[[1, 3]]
    assert names == ["RGB", "RGB"]  # which nothing can be stacked of
    assert latents == [list(z) for z in torch.from_numpy(truth["raw_latents"][[1, 3]])]
    ragged = iter((torch.zeros(2), torch.zeros(3)))
    images, _ = ThreeDIdent(forms["shards"], lambda _: next(ragged))[:2]
    assert [len(image) for image in images] == [2, 3]


def test_what_a_dataset_says_of_itself(forms, tmp_path):
    small = forms["shards"]
    assert repr(ThreeDIdent(small)) == (
        f"ThreeDIdent({small}, 12 x 32 x 32, preset 3dident, train split, 10 factors)"
    )
    published = forms["published"]
    assert repr(ThreeDIdent(published, factors="x")) == (
        f"ThreeDIdent({published}, 12 x 32 x 32, preset 3dident, train split, factor x)"
    )
    assert (
        repr(TwoViews(small, batch_size=5))
        == f"TwoViews({small}, 12 images, 2 x 5 images an epoch)"
    )


def test_batches_of_batches_are_refused(forms):
    views = TwoViews(forms["shards"], batch_size=4)
    for options in ({}, {"batch_size": 32}, {"batch_size": 2, "num_workers": 1}):
        loader = data.DataLoader(views, multiprocessing_context=None, **options)
        with pytest.raises(UsageError, match=r"of TwoViews are whole batches.*batch_size=None"):
            next(iter(loader))
    for wrong, error in ((3, IndexError), (slice(2), TypeError), ([0], TypeError)):
        with pytest.raises(error, match=r"no batch (3: an epoch has 3, 0 to 2|.*whole number)$"):
            views[wrong]


def test_a_single_shard_is_called_one(forms):
    shard = next(iter(list_shards(forms["shards"]).values()))
    said = f"is one shard of the dataset {forms['shards']}: open that"
    with pytest.raises(DatasetError, match=said):
        ThreeDIdent(shard)


@pytest.mark.parametrize("form", FORMS)
def test_mean_and_std_are_those_of_the_pixels(forms, truth, form):
    dataset = ThreeDIdent(forms[form])
    unit = truth["images"] / 255
    assert dataset.mean == pytest.approx(unit.mean((0, 1, 2)), abs=1e-6)
    assert dataset.std == pytest.approx(unit.std((1, 2)).mean(0), abs=1e-6)
    normalised = dataset.normalization()(dataset.images(range(12))).double().numpy()
    assert normalised.mean((0, 2, 3)) == pytest.approx(np.zeros(3), abs=1e-4)
    assert normalised.std((2, 3)).mean(0) == pytest.approx(np.ones(3), abs=1e-4)


def test_unrecorded_statistics_are_measured_on_some_images(forms, truth, monkeypatch):
    monkeypatch.setattr(dataset_module, "_SAMPLED", 5)
    monkeypatch.setattr(dataset_module, "_READ_AT_ONCE", 2)
    some = truth["images"][[0, 3, 6, 8, 11]] / 255  # spread evenly
    for cache in (None, "ram"):
        dataset = ThreeDIdent(forms["plain"], cache=cache)
        assert dataset.mean == pytest.approx(some.mean((0, 1, 2)), abs=1e-6)
        assert dataset.std == pytest.approx(some.std((1, 2)).mean(0), abs=1e-6)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "null",
        '{"images": 11, "mean": [0.1, 0.1, 0.1], "std_within_image": [0.1, 0.1, 0.1]}',
        '{"images": 12, "mean": [0.1, 0.1, 0.1]}',
        '{"images": 12, "mean": [0.1, 0.1, 0.1], "std_within_image": ["a", "b", "c"]}',
        '{"images": 12, "mean": [0.1, 0.1], "std_within_image": [0.1, 0.1, 0.1]}',
    ],
)
def test_statistics_of_something_else_are_not_believed(tmp_path, forms, truth, content):
    shutil.copytree(forms["shards"], tmp_path / "d")
    (tmp_path / "d/stats.json").write_text(content)
    shutil.copy(forms["packed"], tmp_path / "p.h5")
    with h5py.File(tmp_path / "p.h5", "a") as file:
        file.attrs["stats.json"] = content
    for name in ("d", "p.h5"):
        dataset = ThreeDIdent(tmp_path / name)
        assert dataset.mean == pytest.approx((truth["images"] / 255).mean((0, 1, 2)), abs=1e-6)
    (tmp_path / "d/stats.json").write_text("{")
    assert ThreeDIdent(tmp_path / "d").mean == dataset.mean


@pytest.mark.parametrize("form", FORMS)
def test_the_cache_needs_the_files_no_more(tmp_path, forms, truth, form):
    here = tmp_path / forms[form].name
    (shutil.copytree if forms[form].is_dir() else shutil.copy)(forms[form], here)
    dataset = ThreeDIdent(here, cache="ram")
    here.rename(tmp_path / "elsewhere")
    assert np.array_equal(pixels_of(dataset.images(range(12))), truth["images"])
    assert np.array_equal(dataset[2][0].permute(1, 2, 0), truth["images"][2])


def test_a_cache_that_does_not_fit(forms):
    dataset = ThreeDIdent(forms["published"])
    dataset.source.shape = (10**6, 10**6, 3)
    with pytest.raises(UsageError, match=r"12 images need 36000\.0 GB on cpu, which cannot be had"):
        dataset._load("cpu")


# --- processes and threads


@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])
def test_worker_processes_read_the_same(forms, truth, context, workers):
    sets = [ThreeDIdent(forms[form]) for form in FORMS]
    sets.append(ThreeDIdent(forms["published"], cache="ram"))
    for each in sets:
        each.images([0, 11])  # a fork takes over what is open
    together = data.ConcatDataset(sets)
    loader = data.DataLoader(together, 7, num_workers=workers, multiprocessing_context=context)
    images, latents = (torch.cat(parts) for parts in zip(*loader, strict=True))
    assert np.array_equal(pixels_of(images), np.concatenate(len(sets) * [truth["images"]]))
    assert np.array_equal(latents, np.concatenate(len(sets) * [truth["raw_latents"]]))


def in_threads(count, work):
    """Runs work(number) in threads, and raises what one of them raises."""
    failed = []

    def run(number):
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def read_much(source, expected):
    """Reads from several threads, all of them at once."""
    begin = threading.Barrier(4)

    def work(number):
        begin.wait()
        order = np.random.default_rng(number).integers(0, len(expected), 300)
        assert np.array_equal(source.images(order), expected[order])

    in_threads(4, work)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_threads_here_and_in_forked_processes(tmp_path, monkeypatch, compression):
    monkeypatch.setattr(_image_stacks, "_MOST_FILES", 2)  # of three
    expected = made.make(tmp_path / "d", 250, compression=compression).pixels
    source = open_dataset(tmp_path / "d")
    read_much(source, expected)
    for _ in range(3):
        in_a_fork(read_much, source, expected)
    read_much(source, expected)  # the children have closed nothing of ours


def test_a_process_forked_in_the_middle_of_a_read(tmp_path):
    expected = made.make(tmp_path / "d", 20, compression="gzip").pixels
    source = open_dataset(tmp_path / "d")
    source.image(0)
    with source._handles.lock:  # as another thread does
        child = mp.get_context("fork").Process(target=read_much, args=(source, expected))
        child.start()
    wait_for(child)


@pytest.mark.parametrize("form", FORMS)
def test_pickling(forms, truth, form):
    dataset = ThreeDIdent(forms[form], factors=["x", "hue"])
    dataset.images([3])
    again = pickle.loads(pickle.dumps(dataset))
    assert again.factor_names == dataset.factor_names
    assert np.array_equal(pixels_of(again.images(range(12))), truth["images"])
    assert torch.equal(again[5][1], dataset[5][1])
    assert again.mean == dataset.mean


def test_a_source_can_be_closed(forms, truth):
    for form in FORMS:
        with open_dataset(forms[form]) as source:
            for _ in range(2):
                assert np.array_equal(source.image(4), truth["images"][4])
                source.__exit__(None, None, None)


# --- what goes wrong


def test_what_is_no_dataset(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.h5").write_text("hello")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["images"] = np.zeros(3)
    for name in ("empty", "missing", "text.h5", "other.h5"):
        with pytest.raises(DatasetError, match=name):
            ThreeDIdent(tmp_path / name)
    for what in (3, [1, 2], np.zeros(3)):
        with pytest.raises(UsageError, match="expected a ThreeDIdent dataset or its path"):
            TwoViews(what)


@pytest.mark.parametrize("form", ["packed", "packed-gzip"])
@pytest.mark.parametrize("keep", [0, 100, 5000, -1])
def test_a_packed_file_cut_short(tmp_path, forms, form, keep):
    (tmp_path / "cut.h5").write_bytes(forms[form].read_bytes()[:keep])
    with pytest.raises(DatasetError, match=r"cut\.h5"):
        ThreeDIdent(tmp_path / "cut.h5")


@pytest.mark.parametrize("form", ["shards", "gzip"])
@pytest.mark.parametrize("keep", [0, 2000, -1])
def test_a_shard_cut_short(tmp_path, forms, form, keep):
    shutil.copytree(forms[form], tmp_path / "d")
    path = list(list_shards(tmp_path / "d").values())[1]
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DatasetError, match=path.name):
        ThreeDIdent(tmp_path / "d")


@pytest.mark.parametrize("form", ["shards", "gzip"])
def test_a_missing_shard(tmp_path, forms, form):
    shutil.copytree(forms[form], tmp_path / "d")
    list(list_shards(tmp_path / "d").values())[1].unlink()
    with pytest.raises(DatasetError, match="d lacks images 5 to 9"):
        ThreeDIdent(tmp_path / "d")


@pytest.mark.parametrize("form", ["shards", "gzip", "packed", "packed-gzip", "published"])
def test_files_that_go_while_they_are_read(tmp_path, forms, truth, form):
    here = tmp_path / forms[form].name
    (shutil.copytree if forms[form].is_dir() else shutil.copy)(forms[form], here)
    dataset = ThreeDIdent(here)
    if form in ("shards", "gzip"):
        gone = list(list_shards(here).values())[1]
    else:
        gone = here if here.is_file() else here / "images/07.png"
    gone.unlink()
    with pytest.raises(DatasetError, match=gone.name):
        dataset.images([1, 7])
    with pytest.raises(DatasetError, match=gone.name):
        dataset[7]
    if here.is_dir():
        assert np.array_equal(dataset[0][0].permute(1, 2, 0), truth["images"][0])


@pytest.mark.parametrize("form", ["shards", "packed"])
def test_files_that_shrink_while_they_are_read(tmp_path, forms, form):
    here = tmp_path / forms[form].name
    (shutil.copytree if forms[form].is_dir() else shutil.copy)(forms[form], here)
    dataset = ThreeDIdent(here)
    path = here if here.is_file() else list(list_shards(here).values())[-1]
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(DatasetError, match=f"{path.name} is cut short at image 11"):
        dataset[11]
    with pytest.raises(DatasetError, match=path.name):
        ThreeDIdent(here)


def test_a_missing_png(tmp_path, forms):
    shutil.copytree(forms["published"], tmp_path / "p")
    (tmp_path / "p/images/06.png").unlink()
    with pytest.raises(DatasetError, match=r"06\.png is missing"):
        ThreeDIdent(tmp_path / "p")


@pytest.mark.parametrize("name", ["raw_latents", "latents", "index"])
def test_a_file_that_promises_more_than_it_holds(tmp_path, forms, name):
    """A few kilobytes must not become gigabytes of latents."""
    path = tmp_path / "sparse.h5"
    shutil.copy(forms["packed"], path)
    with h5py.File(path, "a") as file:
        old = file[name]
        shape, dtype = old.shape, old.dtype
        del file[name]
        file.create_dataset(name, shape, dtype, chunks=True, compression="gzip")
    with pytest.raises(DatasetError, match=rf"sparse\.h5: {name} is not stored plainly"):
        ThreeDIdent(path)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("manifest", "{"), ("manifest", "[]"), ("manifest", 3), ("stats.json", "{"), ("format", [1])],
)
def test_a_packed_file_with_damaged_attributes(tmp_path, forms, attribute, value):
    path = tmp_path / "odd.h5"
    shutil.copy(forms["packed"], path)
    with h5py.File(path, "a") as file:
        file.attrs[attribute] = value
    with pytest.raises(DatasetError, match=r"odd\.h5"):
        ThreeDIdent(path)


# --- Normalize


def test_normalize():
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.1, 0.3)
    normalize = Normalize(mean, std)
    images = torch.randint(0, 256, (5, 3, 4, 6), dtype=torch.uint8)
    images = images.contiguous(memory_format=torch.channels_last)
    expected = (images.double() / 255 - torch.tensor(mean).double()[:, None, None]) / torch.tensor(
        std
    ).double()[:, None, None]
    found = normalize(images)
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(found.double(), expected, atol=1e-5)
    assert torch.equal(normalize(images[2]), found[2])
    assert torch.equal(normalize(images.contiguous()), found)
    assert torch.equal(normalize.double()(images), normalize.double()(images.contiguous()))
    assert normalize.double()(images).dtype == torch.float64
    normalize.float()
    one = Normalize((0.5,), (0.25,))
    assert torch.equal(one(images), one(images.contiguous()))
    assert images.dtype == torch.uint8
    assert torch.equal(pickle.loads(pickle.dumps(normalize))(images), found)
    assert torch.equal(Normalize((0, 0, 0), (1, 1, 1))(images), images / 255)
    assert not list(normalize.parameters())


def test_normalize_refuses_what_is_normalised_already():
    normalize = Normalize((0.4, 0.5, 0.6), (0.2, 0.1, 0.3))
    with pytest.raises(UsageError, match=r"expected uint8 images, found torch\.float32"):
        normalize(torch.rand(1, 3, 4, 4))


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ((0.5, 0.5), (0.5, 0.5)),
        ((0.5,), (0.0,)),
        ((0.5, 0.5, 0.5), (0.5, 0.5)),
        ((0.5, 0.5, 0.5), (0.5, 0.0, 0.5)),
        ((0.5, 0.5, 0.5), (0.5, float("nan"), 0.5)),
    ],
)
def test_normalize_checks_its_numbers(mean, std):
    with pytest.raises(UsageError, match="three means and three stds > 0, or one each"):
        Normalize(mean, std)


def test_normalize_takes_grey_images():
    images = torch.full((2, 1, 4, 4), 255, dtype=torch.uint8)
    assert Normalize((0.5,), (0.25,))(images).eq(2).all()


# --- two views


def mirror_or_not(image):
    return image.flip(2) if torch.rand(()) < 0.5 else image


def shift(image):
    return torch.roll(image, int(torch.randint(1, 32, ())), 2)


def test_two_views_of_every_image(forms, truth):
    views = TwoViews(ThreeDIdent(forms["gzip"]), mirror_or_not, batch_size=4, seed=3)
    assert len(views) == views.batches == 3
    seen, differ = [], 0
    for (z, z_tilde), (x, x_tilde) in views:
        assert torch.equal(z, z_tilde)
        for latents, *both in zip(z, x, x_tilde, strict=True):
            row = int((truth["raw_latents"] == latents.numpy()).all(1).nonzero()[0][0])
            seen.append(row)
            image = torch.from_numpy(truth["images"][row]).permute(2, 0, 1)
            for view in both:
                assert view.dtype == torch.uint8
                assert torch.equal(view, image) or torch.equal(view, image.flip(2))
            differ += not torch.equal(*both)
    assert sorted(seen) == list(range(12))
    assert 0 < differ < 12  # two draws for each image, not one


def noise(image):
    return torch.randint(0, 256, image.shape, dtype=torch.uint8)


def test_order_and_augmentations_are_drawn_anew(forms):
    views, other = (TwoViews(forms["packed"], noise, batch_size=4, seed=s) for s in (3, 4))
    batches = [views.batch(0, 0), views.batch(0, 1), views.batch(1, 0), other.batch(0, 0)]
    drawn = {x.numpy().tobytes() for _, both in batches for x in both}
    assert len(drawn) == 8
    orders = [
        tuple(z[0].tolist() for n in range(3) for z in v.batch(epoch, n)[0][0])
        for v, epoch in ((views, 0), (views, 1), (other, 0))
    ]
    assert len({str(order) for order in orders}) == 3


def test_views_depend_on_seed_epoch_and_number(forms):
    one, again = (TwoViews(forms["packed"], shift, batch_size=4, seed=3) for _ in range(2))
    other = TwoViews(forms["packed"], shift, batch_size=4, seed=4)
    assert same(one.batch(1, 2), again.batch(1, 2))
    for different in (one.batch(1, 1), one.batch(2, 2), other.batch(1, 2)):
        assert not same(one.batch(1, 2), different)
    _, (x, x_tilde) = one.batch(0, 0)
    assert not torch.equal(x, x_tilde)
    again.set_epoch(1)
    assert same(again[2], one.batch(1, 2))
    assert same(again[-1], one.batch(1, 2))
    with pytest.raises(IndexError):
        again[3]


def test_views_leave_the_global_random_numbers_alone(forms, monkeypatch):
    views = TwoViews(forms["packed"], batch_size=4)
    # torch.manual_seed would reseed the GPU that is training as well.
    monkeypatch.setattr(torch, "manual_seed", None)
    monkeypatch.setattr(torch.random, "manual_seed", None)
    before = torch.get_rng_state()
    views.batch(0, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_views_from_workers_are_the_same_in_every_epoch(forms):
    here, there = (TwoViews(ThreeDIdent(forms["gzip"]), batch_size=5) for _ in range(2))
    loader = there.loader(workers=2)
    assert here.batches == 2
    for epoch in (0, 4):
        there.set_epoch(epoch)
        found = list(loader)
        here.set_epoch(epoch)
        expected = list(here.loader(workers=0))
        assert len(found) == len(expected) == 2
        assert all(same(a, b) for a, b in zip(found, expected, strict=True))
        assert all(same(a, here.batch(epoch, n)) for n, a in enumerate(found))


def test_a_batch_of_more_views_than_images(forms):
    for size in (0, 13):
        with pytest.raises(
            UsageError,
            match=f"expected a batch_size of 1 to 12, the number of images, found {size}",
        ):
            TwoViews(forms["packed"], batch_size=size)


def test_the_published_augmentations_keep_form():
    torch.manual_seed(0)
    image = torch.randint(0, 256, (3, 20, 20), dtype=torch.uint8)
    views = [simclr(16)(image) for _ in range(40)]
    assert all(v.shape == (3, 16, 16) and v.dtype == torch.uint8 for v in views)
    grey = sum(torch.equal(v[0], v[1]) and torch.equal(v[1], v[2]) for v in views)
    assert 0 < grey < 20
    assert len({v.numpy().tobytes() for v in views}) == 40
