import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES, GROUPS, factor_columns
from threedident.latents import check_raw_latents, load_raw_latents, sample_raw_latents

seeds = st.integers(0, 2**64 - 1)
splits = st.sampled_from(["train", "val", "test"])


def test_the_table_of_factors():
    assert (
        *("x", "y", "z", "phi", "theta", "psi"),
        *("spotlight_position", "object_hue", "spotlight_hue", "background_hue"),
    ) == FACTOR_NAMES
    assert GROUPS == {
        "position": (0, 1, 2),
        "rotation": (3, 4, 5),
        "spotlight": (6,),
        "hue": (7, 8, 9),
    }
    assert factor_columns(["hue", "x", "object_hue"]) == (7, 8, 9, 0)
    with pytest.raises(UsageError, match="expected one of x, y"):
        factor_columns(["colour"])


@given(seeds, splits, st.integers(0, 2**40), st.integers(1, 5))
def test_latents_depend_on_seed_split_and_index_alone(seed, split, first, count):
    together = sample_raw_latents(range(first, first + count), seed=seed, split=split)
    apart = [sample_raw_latents([first + i], seed=seed, split=split) for i in range(count)]
    assert together.dtype == np.float32
    assert np.array_equal(together, np.concatenate(apart))


@given(seeds, splits, st.integers(0, 2**40))
def test_latents_are_exact_odd_multiples_of_2_to_the_minus_24(seed, split, index):
    scaled = sample_raw_latents([index], seed=seed, split=split).astype(np.float64) * 2**24
    assert np.array_equal(scaled, np.round(scaled))
    assert (scaled % 2 == 1).all()
    assert (np.abs(scaled) < 2**24).all()


def test_latents_follow_the_documented_formula():
    # Philox4x64-10 as numpy states it, from the definition rather than from our function.
    bits = np.random.Philox(key=[7, 1], counter=[0, 42, 0, 0]).random_raw(10)
    expected = [(2 * (int(b) >> 40) + 1) / 2**24 - 1 for b in bits]
    assert sample_raw_latents([42], seed=7, split="val").tolist() == [expected]


def test_latents_never_change():
    first = sample_raw_latents([0], seed=0, split="train")[0]
    golden = [-0.9769064784049988, -0.5169015526771545]
    assert first[:2].tolist() == golden


def test_latents_are_uniform_and_splits_differ():
    raw = sample_raw_latents(range(20_000), seed=3, split="train")
    assert np.abs(raw.mean(0)).max() < 4 * np.sqrt(1 / 3 / 20_000)
    assert np.abs(raw.var(0) - 1 / 3).max() < 0.01
    off_diagonal = np.corrcoef(raw.T) - np.eye(10)
    assert np.abs(off_diagonal).max() < 5 / np.sqrt(20_000)
    for other in (
        sample_raw_latents(range(100), seed=3, split="test"),
        sample_raw_latents(range(100), seed=4, split="train"),
    ):
        assert not np.isin(other, raw[:100]).any()


def test_the_scene_of_a_longer_dataset_starts_with_that_of_a_shorter_one():
    assert np.array_equal(
        sample_raw_latents(range(1000), seed=0, split="train"),
        sample_raw_latents(range(2000), seed=0, split="train")[:1000],
    )


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 9)), r"expected an array of shape \(N, 10\), found \(3, 9\)"),
        (np.zeros(10), "shape"),
        (np.zeros((0, 10)), "at least one row"),
        (np.full((2, 10), 1.5), r"lie in \[-1, 1\], found 1.5 in row 0"),
        (np.full((2, 10), np.nan), "found nan"),
        (np.full((2, 10), "a"), "real numbers"),
    ],
)
def test_latents_that_do_not_fit(array, message):
    with pytest.raises(UsageError, match=message):
        check_raw_latents(array)


def test_unusable_latent_files(tmp_path):
    (tmp_path / "text.npy").write_text("hello")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "archive.npz", a=np.zeros((1, 10)))
    (tmp_path / "zip.npy").write_bytes(b"PK\3\4 and so on")
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999, 10), }"
    (tmp_path / "huge.npy").write_bytes(
        b"\x93NUMPY\x01\x00" + (len(header) + 1).to_bytes(2, "little") + header + b"\n"
    )
    for name in ("zip.npy", "huge.npy", "text.npy", "objects.npy", "archive.npz", "missing.npy"):
        with pytest.raises(UsageError, match=name):
            load_raw_latents(tmp_path / name)


@pytest.mark.parametrize(("seed", "split"), [(-1, "train"), (2**64, "train"), (0, "dev")])
def test_bad_seeds_and_splits(seed, split):
    with pytest.raises(UsageError):
        sample_raw_latents([0], seed=seed, split=split)
