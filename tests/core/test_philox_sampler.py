"""Exact positive pairs: their latents, and `3dident render --pairs`."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.commands import run_command
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from threedident.cli import main
from threedident.datasets.formats import open_dataset
from threedident.distributions import (
    Change,
    Distribution,
    GeneralizedNormal,
    Laplace,
    Normal,
    PairProcess,
    PerFactor,
    ProjectedNormal,
    Unchanged,
    Uniform,
    VonMisesFisher,
    raw_box,
)
from threedident.distributions.philox_sampler import (
    check_renderable,
    sample_pair_latents,
    sample_partners,
)
from threedident.errors import DatasetError, UsageError
from threedident.factors import FACTOR_NAMES
from threedident.latents import sample_raw_latents
from threedident.storage.directory import DatasetDir
from threedident.storage.manifest import MANIFEST

PAIRS = 2_000
UNLIKELY = 1e-4  # a p-value that a right sampler does not reach


def pairs(conditional: Distribution, count: int = PAIRS, seed: int = 0, split: str = "train"):
    """z and z~ in double precision, (count, 10) each."""
    raw = sample_pair_latents(range(2 * count), seed=seed, split=split, conditional=conditional)
    assert raw.dtype == np.float32
    assert (np.abs(raw) <= 1).all()
    return raw[::2].astype(np.float64), raw[1::2].astype(np.float64)


def fits(sample, cdf) -> None:
    found = stats.kstest(np.asarray(sample, np.float64), cdf)
    assert found.pvalue > UNLIKELY, found


def uncorrelated(*columns) -> None:
    corr = np.corrcoef(np.stack(columns))
    assert np.abs(corr - np.eye(len(columns))).max() < 5 / math.sqrt(len(columns[0]))


def ranks(z, z_tilde, scale, beta: float):
    """The probability integral transform of the truncated conditional."""
    law = stats.gennorm(beta, loc=z, scale=scale)
    low, high = law.cdf(-1), law.cdf(1)
    return (law.cdf(z_tilde) - low) / (high - low)


# From widths far below the box to far above it, on both sides of where candidates change.
WIDTHS = (1e-4, 0.01, 0.1, 0.3, 0.49, 0.51, 0.7, 1.0, 5.0, 1e6)


@pytest.mark.parametrize(
    ("conditional", "scale", "beta"),
    [
        (Normal(WIDTHS), math.sqrt(2) * np.array(WIDTHS), 2),
        (Normal(0.1), math.sqrt(2) * 0.1, 2),
        (Laplace(WIDTHS), WIDTHS, 1),
        (Laplace(0.1), 0.1, 1),
        *((GeneralizedNormal(WIDTHS, beta), WIDTHS, beta) for beta in (0.2, 0.5, 1.5, 3, 20)),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Distribution) else str(v)[:7],
)
def test_partners_follow_the_truncated_conditional(conditional, scale, beta):
    z, z_tilde = pairs(conditional)
    found = ranks(z, z_tilde, np.asarray(scale), beta)
    for column in range(10):
        fits(found[:, column], stats.uniform.cdf)
    uncorrelated(*found.T, *z.T)


def test_a_large_shape_is_uniform_without_a_warning():
    z, z_tilde = pairs(GeneralizedNormal(0.1, 1000))
    step = (z_tilde - z)[np.abs(z) < 0.9]
    fits(step[:PAIRS], stats.uniform(-0.1, 0.2).cdf)


def test_uniform_partners_are_independent():
    z, z_tilde = pairs(Uniform())
    for column in range(10):
        fits(z_tilde[:, column], stats.uniform(-1, 2).cdf)
    uncorrelated(*z.T, *z_tilde.T)
    others = [pairs(Uniform(), 100, seed=1)[1], pairs(Uniform(), 100, split="val")[1]]
    for other in others:
        assert not np.isin(other, z_tilde[:100]).any()


@pytest.mark.parametrize(
    "conditional",
    [Laplace(0.2), GeneralizedNormal((0.1,) * 5 + (0.6,) * 5, 3), Change(Normal(0.5), (1, 4))],
    ids=str,
)
def test_partners_agree_with_the_sampler_in_torch(conditional):
    import torch

    process = PairProcess(raw_box(), conditional)
    z, z_tilde = process.sample(PAIRS, generator=torch.Generator().manual_seed(0))
    expected = (z_tilde - z).double().numpy()
    here = np.subtract(*pairs(conditional)[::-1])
    for column in range(10):
        fits(here[:, column], expected[:, column])
    counts = [np.bincount((step != 0).sum(1), minlength=11) for step in (here, expected)]
    if isinstance(conditional, Change):
        found = stats.chi2_contingency([c[1:5] for c in counts])
        assert found.pvalue > UNLIKELY


def test_anchors_are_the_latents_of_single_images():
    z, _ = pairs(Normal(0.3), 50, seed=3, split="test")
    assert np.array_equal(z, sample_raw_latents(range(50), seed=3, split="test"))


@given(
    st.lists(st.integers(0, 2**40), max_size=6),
    st.integers(0, 2**64 - 1),
    st.sampled_from([Laplace(0.1), Change(Uniform(), (1, 3)), GeneralizedNormal(0.2, 0.5)]),
)
def test_pairs_depend_on_seed_split_and_number_alone(indices, seed, conditional):
    def draw(numbers):
        return sample_pair_latents(numbers, seed=seed, split="val", conditional=conditional)

    together = draw(iter(indices))
    assert together.shape == (len(indices), 10)
    assert np.array_equal(together, draw(np.array(indices, np.int64)))
    assert np.array_equal(together[::-1], draw(indices[::-1]))
    for row, index in enumerate(indices):
        assert np.array_equal(together[row : row + 1], draw([index]))


#: A point in the middle, near both ends and at one.
GIVEN = np.array([0, 0.5, -0.5, 0.9, -0.9, 0.99, -0.99, 1, -1, 0.25], np.float32)


@pytest.mark.parametrize(
    ("conditional", "scale", "beta"),
    [
        (Normal(0.3), 0.3 * math.sqrt(2), 2),
        (Laplace(0.2), 0.2, 1),
        (GeneralizedNormal(0.5, 3), 0.5, 3),
    ],
    ids=str,
)
def test_partners_of_a_given_point_follow_the_truncated_conditional(conditional, scale, beta):
    z_tilde = sample_partners(GIVEN, PAIRS, conditional=conditional, seed=1)
    assert z_tilde.shape == (PAIRS, 10)
    assert z_tilde.dtype == np.float32
    found = ranks(GIVEN.astype(np.float64), z_tilde.astype(np.float64), scale, beta)
    for column in range(10):
        fits(found[:, column], stats.uniform.cdf)
    uncorrelated(*found.T)


def test_partners_of_a_given_point_agree_with_the_sampler_in_torch():
    import torch

    conditional = PerFactor.by_name(
        {"position": Change(Normal(0.5), (1, 2)), "rotation": Uniform()}
        | {"spotlight": Unchanged(), "hue": Laplace(0.3)}
    )
    here = sample_partners(GIVEN, PAIRS, conditional=conditional, seed=2)
    z = torch.from_numpy(GIVEN).expand(PAIRS, -1)
    expected = conditional.sample(raw_box(), z, generator=torch.Generator().manual_seed(0)).numpy()
    for column in range(10):
        fits(here[:, column], expected[:, column])
    counts = [np.bincount((each != GIVEN)[:, :3].sum(1), minlength=4) for each in (here, expected)]
    assert all(count[[0, 3]].sum() == 0 for count in counts)
    assert stats.chi2_contingency([count[1:3] for count in counts]).pvalue > UNLIKELY


def test_partners_of_a_given_point_depend_on_seed_and_number_alone():
    def draw(count, seed):
        return sample_partners(GIVEN, count, conditional=Laplace(0.1), seed=seed)

    assert np.array_equal(draw(7, 3)[:4], draw(4, 3))
    assert not (draw(7, 3) == draw(7, 4))[:, :7].any()
    z, z_tilde = pairs(Laplace(0.1), 1)
    around = sample_partners(z[0], 1, conditional=Laplace(0.1), seed=0)
    assert not (around == z_tilde).any()  # other random numbers than those of rendered pairs


def test_partners_of_no_point():
    for z, seed, message in (
        (GIVEN[:9], 0, "expected shape"),
        (1.5 * GIVEN, 0, "is not a point of"),
        (np.full(10, np.nan), 0, "is not a point of"),
        (GIVEN, -1, "seed"),
    ):
        with pytest.raises(UsageError, match=message):
            sample_partners(z, 1, conditional=Uniform(), seed=seed)
    with pytest.raises(UsageError, match=r"from beta 0\.2 on"):
        sample_partners(GIVEN, 1, conditional=GeneralizedNormal(0.1, 0.1), seed=0)


def test_pairs_never_change():
    golden = {
        Laplace(0.1): [-0.9974009394645691, -0.9616963267326355, -0.707369327545166],
        Change(GeneralizedNormal(0.5, 1.5), (1, 9)): [
            *(-0.18302421271800995, -0.8311730027198792, -0.8030103445053101)
        ],
    }
    for conditional, expected in golden.items():
        found = sample_pair_latents([1], seed=0, split="train", conditional=conditional)
        assert found[0, :3].tolist() == expected


def test_unchanged():
    z, z_tilde = pairs(Unchanged(), 20)
    assert np.array_equal(z, z_tilde)
    conditional = PerFactor.by_name(
        {"hue": Unchanged(), "rotation": Normal(0.1), "x": Laplace(2), "y": Uniform()}
        | {"z": Unchanged(), "spotlight": Change(Uniform(), 0)}
    )
    z, z_tilde = pairs(conditional)
    same = [FACTOR_NAMES.index(name) for name in ("z", "spotlight_position")] + [7, 8, 9]
    assert np.array_equal(z[:, same], z_tilde[:, same])
    assert (z[:, [0, 1, 3, 4, 5]] != z_tilde[:, [0, 1, 3, 4, 5]]).all()
    fits(ranks(z[:, 0], z_tilde[:, 0], 2, 1), stats.uniform.cdf)
    fits(z_tilde[:, 1], stats.uniform(-1, 2).cdf)
    fits(ranks(z[:, 4], z_tilde[:, 4], 0.1 * math.sqrt(2), 2), stats.uniform.cdf)


@pytest.mark.parametrize("k", [0, 1, 4, 10, (0, 10), (2, 5)])
def test_how_many_factors_change(k):
    least, most = (k, k) if isinstance(k, int) else k
    z, z_tilde = pairs(Change(Laplace(0.3), k))
    changed = z != z_tilde
    counts = np.bincount(changed.sum(1), minlength=11)
    assert counts[:least].sum() == counts[most + 1 :].sum() == 0
    if least < most:
        assert stats.chisquare(counts[least : most + 1]).pvalue > UNLIKELY
    expected = PAIRS * (least + most) / 2 / 10
    assert np.abs(changed.sum(0) - expected).max() < 5 * math.sqrt(PAIRS / 4)
    for column in range(10):
        rows = changed[:, column]
        if rows.any():
            fits(ranks(z[rows, column], z_tilde[rows, column], 0.3, 1), stats.uniform.cdf)


@pytest.mark.parametrize(
    ("conditional", "message"),
    [
        (VonMisesFisher(1), r"defined on a sphere, found Box\(n=10"),
        (ProjectedNormal(1), "defined on a sphere"),
        (Normal((0.1, 0.2)), "has 2 widths for 10 dimensions"),
        (GeneralizedNormal(0.1, 0.1), "beta=0.1.* pairs can be rendered from beta 0.2 on"),
        (Change(GeneralizedNormal(0.1, 0.1)), "from beta 0.2 on"),
        (
            PerFactor((((*range(9),), Uniform()), ((9,), GeneralizedNormal(0.1, 0.19)))),
            "beta=0.19.* from beta 0.2 on",
        ),
        (Change(Uniform(), 11), "k = 11 of 10 factors"),
        (PerFactor((((0, 1), Uniform()),)), "2 columns for Box"),
    ],
    ids=str,
)
def test_conditionals_that_cannot_be_rendered(conditional, message):
    with pytest.raises(UsageError, match=message):
        check_renderable(conditional)
    with pytest.raises(UsageError, match=message):
        sample_pair_latents([0], seed=0, split="train", conditional=conditional)


def test_bad_seeds_and_splits():
    for seed, split in ((-1, "train"), (2**64, "train"), (0, "dev")):
        with pytest.raises(UsageError):
            sample_pair_latents([1], seed=seed, split=split, conditional=Uniform())


def test_pairs_are_drawn_and_read_without_torch(dataset):
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"  # importing it fails
        "from threedident.distributions import Change, Laplace\n"
        "from threedident.distributions.philox_sampler import sample_pair_latents as sample\n"
        "from threedident.storage.directory import DatasetDir\n"
        "print(sample(range(4), seed=0, split='train', conditional=Change(Laplace(0.1))).shape)\n"
        f"print(DatasetDir.open({str(dataset)!r}).raw_latents(range(4)).shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["(4, 10)", "(4, 10)"], done.stderr


# On the command line

SMALL = ("--engine", "direct", "--resolution", 16, "--quality", "draft", "--workers", 1)
LAPLACE = ("--conditional", "laplace", "--lambda", 0.1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    """Six pairs in shards of five images. Read it; to change it, take a copy."""
    root = tmp_path_factory.mktemp("pairs") / "dataset"
    words = ("render", "--pairs", *LAPLACE, "--n", 6, "--shard-size", 5, "--out", root, *SMALL)
    run_command(*words)
    return root


def test_pairs_are_rendered(dataset, cli):
    assert "all is well" in cli("verify", dataset, "--n", 12).stdout
    expected = sample_pair_latents(range(12), seed=0, split="train", conditional=Laplace(0.1))
    with open_dataset(dataset) as source:
        assert len(source) == 12
        assert np.array_equal(source.raw_latents, expected)
        assert not np.array_equal(source.image(0), source.image(1))

    said = cli("info", dataset).stdout
    assert "12 images of 16 x 16" in said
    assert "pairs      images 2i and 2i + 1, z~ from Laplace(lam=0.1)" in said
    written = json.loads((dataset / MANIFEST).read_text())["settings"]
    assert (written["seed"], written["split"]) == (0, "train")
    assert written["latents"] == {
        "source": "pairs",
        "space": {"name": "box", "n": 10, "low": -1.0, "high": 1.0},
        "marginal": {"name": "uniform"},
        "conditional": {"name": "laplace", "lam": 0.1},
    }
    process = DatasetDir.open(dataset).manifest.pair_process
    assert process == PairProcess(raw_box(), Laplace(0.1))


def test_a_dataset_of_pairs_is_extended_and_of_no_other_kind(dataset, cli, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(dataset, copy)
    before = {path.name: path.read_bytes() for path in copy.glob("*.h5")}
    cli("render", "--pairs", *LAPLACE, "--n", 8, "--out", copy, *SMALL)
    assert "all is well" in cli("verify", copy, "--n", 16).stdout
    with open_dataset(copy) as source, open_dataset(dataset) as shorter:
        assert len(source) == 16
        assert np.array_equal(source.raw_latents[:12], shorter.raw_latents)
        assert all(np.array_equal(source.image(i), shorter.image(i)) for i in range(12))
    assert (copy / "shard-00000000-00005.h5").read_bytes() == before["shard-00000000-00005.h5"]

    def refused(*words) -> str:
        done = CliRunner().invoke(
            main, [*map(str, ("render", "--n", 8, "--out", copy, *SMALL, *words))]
        )
        assert done.exit_code == 2
        assert "was made with other settings" in done.output
        return done.output

    said = refused("--pairs", "--conditional", "laplace", "--lambda", 0.2)
    assert "latents.conditional.lam: the dataset has 0.1, this command 0.2" in said
    assert "latents.conditional.name: the dataset has 'laplace', this command 'normal'" in refused(
        "--pairs", "--conditional", "normal", "--sigma", 0.1
    )
    assert "latents.source: the dataset has 'pairs', this command 'seed'" in refused()


def test_content_style_and_fixed_factors_are_rendered(cli, tmp_path):
    words = ("--conditional", "gennorm", "--lambda", 0.3, "--beta", 1.5, "--unchanged", "hue")
    words = (*words, "--unchanged", "z", "--unchanged", "x", "--change", "1-3")
    words = (*words, "--split", "val", "--seed", 5)
    cli("render", "--pairs", *words, "--fix", "x=0.5", "--n", 3, "--out", "made", *SMALL)
    assert "all is well" in cli("verify", "made", "--n", 6).stdout
    made = Change(GeneralizedNormal(0.3, 1.5), (1, 3))
    moving, still = (1, 3, 4, 5, 6), (0, 2, 7, 8, 9)
    conditional = PerFactor(((moving, made), (still, Unchanged())))
    directory = DatasetDir.open(tmp_path / "made")
    assert directory.manifest.pair_process == PairProcess(raw_box(), conditional)
    expected = sample_pair_latents(range(6), seed=5, split="val", conditional=conditional)
    expected[:, 0] = 0.5
    with open_dataset(tmp_path / "made") as source:
        assert np.array_equal(source.raw_latents, expected)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--pairs",
            "--conditional must be one of normal, laplace, gennorm, uniform: it is missing",
        ),
        ("--pairs --conditional vmf", "must be one of .* found 'vmf'"),
        ("--pairs --conditional normal", "normal needs --sigma, its width in raw units"),
        ("--pairs --conditional laplace --sigma 0.1", "laplace takes no --sigma"),
        ("--pairs --conditional gennorm --beta 2", "gennorm needs --lambda"),
        ("--pairs --conditional uniform --beta 2", "uniform takes no --beta"),
        ("--pairs --conditional normal --sigma 0", "sigma must be a finite number > 0, found 0.0"),
        ("--pairs --conditional normal --sigma nan", "sigma must .* found nan"),
        ("--pairs --conditional normal --sigma 0,1", "--sigma has 2 widths, expected 10 or one"),
        ("--pairs --conditional normal --sigma a", "--sigma: expected a number .* found 'a'"),
        ("--pairs --conditional gennorm --lambda 1 --beta -1", "beta must .* found -1.0"),
        ("--pairs --conditional gennorm --lambda 1 --beta 0.1", "from beta 0.2 on"),
        ("--pairs --conditional uniform --change 0.5", "--change expects K .* found '0.5'"),
        ("--pairs --conditional uniform --change 3-1", r"least <= most, found \(3, 1\)"),
        ("--pairs --conditional uniform --change 11", "k = 11 of 10 factors"),
        ("--pairs --conditional uniform --unchanged hue --change 8", "k = 8 of 7 factors"),
        ("--pairs --conditional uniform --unchanged colour", "unknown factor or group 'colour'"),
        (
            "--pairs --conditional uniform --unchanged position --unchanged rotation "
            "--unchanged spotlight --unchanged hue",
            "--unchanged leaves no factor that changes",
        ),
        (
            "--pairs --conditional uniform --latents raw.npy",
            "--pairs draws the latents itself: leave out --latents",
        ),
        ("--conditional uniform", "a conditional is for positive pairs: add --pairs"),
        ("--sigma 0.1", "add --pairs"),
        ("--change 1", "add --pairs"),
        ("--unchanged hue", "add --pairs"),
    ],
)
def test_options_that_do_not_fit(words, message, tmp_path):
    np.save(tmp_path / "raw.npy", np.zeros((4, 10), np.float32))
    small = map(str, SMALL)
    done = CliRunner().invoke(main, ["render", "--n", "2", "--out", "d", *small, *words.split()])
    assert done.exit_code == 2
    assert done.output.startswith("error: ")
    assert done.output.count("\n") == 1
    assert re.search(message, done.output), done.output
    assert not (tmp_path / "d").exists()


def damaged(root: Path, change) -> None:
    """Changes the settings' `latents`, and the fingerprint with them."""
    data = json.loads((root / MANIFEST).read_text())
    data["settings"]["latents"] = change(data["settings"]["latents"])
    text = json.dumps(data["settings"], sort_keys=True, separators=(",", ":"))
    data["fingerprint"] = hashlib.sha256(text.encode()).hexdigest()
    (root / MANIFEST).write_text(json.dumps(data))


@pytest.mark.parametrize(
    "change",
    [
        lambda latents: None,
        lambda latents: {"source": "pairs"},
        lambda latents: {**latents, "conditional": None},
        lambda latents: {**latents, "conditional": {"name": "cauchy"}},
        lambda latents: {**latents, "conditional": {"name": "laplace", "lam": -0.1}},
        lambda latents: {**latents, "conditional": {"name": "laplace", "lam": [0.1, 0.1]}},
        lambda latents: {**latents, "conditional": {"name": "vmf", "kappa": 1}},
        lambda latents: {**latents, "conditional": {"name": "normal", "sigma": 10**400}},
        lambda latents: {**latents, "marginal": {"name": "normal"}},
        lambda latents: {**latents, "space": {"name": "unbounded", "n": 10}},
        lambda latents: {**latents, "space": {"name": "box", "n": 10}},
    ],
)
def test_a_damaged_description_of_pairs(dataset, tmp_path, change):
    shutil.copytree(dataset, tmp_path / "d")
    damaged(tmp_path / "d", dict)
    DatasetDir.open(tmp_path / "d")
    damaged(tmp_path / "d", change)
    with pytest.raises(DatasetError, match=r"dataset\.json is damaged: "):
        DatasetDir.open(tmp_path / "d")
