"""The synthetic benchmark: random invertible networks, and pairs through them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from threedident.datasets import (
    Box,
    Laplace,
    Mixing,
    Normal,
    PairProcess,
    Sphere,
    SyntheticPairs,
    Unbounded,
    VonMisesFisher,
)
from threedident.datasets import synthetic as synthetic_module
from threedident.distributions.torch_sampler import seeded
from threedident.errors import UsageError

TRIALS = 500


@pytest.fixture(scope="module")
def mixing():
    return Mixing(10, trials=TRIALS, seed=1)


def test_the_mixing_is_invertible(mixing):
    z = 2 * torch.rand(500, 10, generator=seeded(0)) - 1
    x = mixing(z)
    assert x.shape == z.shape
    assert x.dtype == torch.float32
    assert torch.allclose(mixing.inverse(x), z, atol=1e-4)
    assert torch.allclose(mixing(mixing.inverse(z)), z, atol=1e-4)
    assert not torch.allclose(x, z, atol=0.1)
    wide = mixing.inverse(mixing.double()(z.double()))
    mixing.float()
    assert torch.allclose(wide, z.double(), atol=1e-12)


def test_the_mixing_is_linear_layers_with_leaky_relu_between_them(mixing):
    z = (2 * torch.rand(100, 10, generator=seeded(0)) - 1).numpy().astype(float)
    first, second, third = mixing.weights.numpy().astype(float)

    def leaky(x):
        return np.where(x > 0, x, 0.2 * x)

    expected = leaky(leaky(z @ first.T) @ second.T) @ third.T  # none at the end
    assert mixing(torch.from_numpy(z).float()).numpy() == pytest.approx(expected, abs=1e-5)
    straight = Mixing(4, layers=1, trials=10)
    z = torch.randn(50, 4, generator=seeded(0))
    assert torch.allclose(straight(z), z @ straight.weights[0].T, atol=1e-6)
    steep = Mixing(4, layers=2, negative_slope=1.0, trials=10)
    assert torch.allclose(steep(-z), -steep(z), atol=1e-6)


@pytest.mark.parametrize(("n", "layers", "trials"), [(10, 3, TRIALS), (3, 5, 50), (2, 1, 1)])
def test_columns_and_condition_numbers(n, layers, trials):
    mixing = Mixing(n, layers=layers, trials=trials, seed=4)
    weights = mixing.weights.double().numpy()
    assert weights.shape == (layers, n, n)
    assert np.linalg.norm(weights, axis=1) == pytest.approx(np.ones((layers, n)), abs=1e-6)
    numbers = np.linalg.cond(weights)
    assert numbers == pytest.approx(np.array(mixing.condition_numbers), rel=1e-5)
    assert (numbers <= mixing.threshold * (1 + 1e-5)).all()
    assert len({w.tobytes() for w in weights}) == layers


@pytest.mark.parametrize("trials", [1, 7, 100, 130])
def test_the_threshold_is_the_least_of_the_trials(trials, monkeypatch):
    monkeypatch.setattr(synthetic_module, "_AT_ONCE", 50)
    generator = seeded(9)
    drawn, numbers = [], []
    for _ in range(3):
        drawn = 2 * torch.rand(50, 3, 3, generator=generator, dtype=torch.float64).numpy() - 1
        numbers += list(np.linalg.cond(drawn / np.linalg.norm(drawn, axis=1, keepdims=True)))
    mixing = Mixing(3, trials=trials, seed=9)
    assert mixing.threshold == pytest.approx(min(numbers[:trials]), rel=1e-9)


def test_more_trials_make_flatter_mixings():
    """The published number of trials leaves next to nothing that is badly conditioned."""
    few = [max(Mixing(5, trials=1, seed=s).condition_numbers) for s in range(10)]
    many = [max(Mixing(5, trials=2000, seed=s).condition_numbers) for s in range(3)]
    assert np.median(few) > 2 * max(many)
    assert max(many) < 2


def test_weights_are_uniform_before_they_are_scaled():
    """As published: the columns' directions are those of points of a cube, not of a ball."""
    matrices, numbers = next(synthetic_module._draws(2, seeded(0)))
    assert numbers == pytest.approx(np.linalg.cond(matrices), rel=1e-9)
    angles = np.arctan2(matrices[:, 0, 0], matrices[:, 1, 0]) % (np.pi / 2)
    # In a square, tan of the angle to the nearer axis is uniform.
    ratio = np.tan(np.minimum(angles, np.pi / 2 - angles))
    counts = np.histogram(ratio, 10, (0, 1))[0]
    assert np.abs(counts - 500).max() < 100


def test_mixings_are_seeded(mixing):
    again, other = Mixing(10, trials=TRIALS, seed=1), Mixing(10, trials=TRIALS, seed=2)
    assert torch.equal(again.weights, mixing.weights)
    assert again.condition_numbers == mixing.condition_numbers
    assert again.threshold == mixing.threshold
    assert not torch.isclose(other.weights, mixing.weights).all((1, 2)).any()
    assert torch.equal(pickle.loads(pickle.dumps(mixing)).weights, mixing.weights)
    assert not list(mixing.parameters())  # nothing is trained
    assert list(mixing.state_dict()) == ["weights"]


@pytest.mark.parametrize(
    "options",
    [{"n": 0}, {"layers": 0}, {"trials": 0}, {"negative_slope": 0.0}, {"negative_slope": 1.5}],
)
def test_mixings_that_make_no_sense(options):
    with pytest.raises(UsageError, match="a mixing needs n, layers and trials >= 1 and a slope"):
        Mixing(**{"n": 3, "trials": 2, **options})


def test_one_dimension():
    mixing = Mixing(1, trials=3)
    assert mixing.condition_numbers == (1.0, 1.0, 1.0)
    z = torch.linspace(-1, 1, 11)[:, None]
    assert torch.allclose(mixing.inverse(mixing(z)), z, atol=1e-6)


@pytest.mark.parametrize(
    "process",
    [
        PairProcess(Box(10), Normal(0.05)),
        PairProcess(Sphere(10), VonMisesFisher(200.0)),
        PairProcess(Unbounded(10), Laplace(0.05), Normal(1.0)),
    ],
    ids=str,
)
def test_synthetic_pairs(mixing, process):
    pairs = SyntheticPairs(mixing, process, batch_size=2000, batches=3, seed=7)
    (z, z_tilde), (x, x_tilde) = pairs.batch(0, 0)
    for points in (z, z_tilde):
        assert points.shape == (2000, 10)
        assert points.dtype == torch.float32
        assert not process.space.outside(points).any()
    assert torch.equal(x, mixing(z))
    assert torch.equal(x_tilde, mixing(z_tilde))
    assert torch.allclose(mixing.inverse(x), z, atol=1e-3)
    assert not x.requires_grad
    apart = (z - z_tilde).norm(dim=1).mean()
    assert 0.1 < apart < 0.3
    assert (z - z[torch.randperm(2000, generator=seeded(0))]).norm(dim=1).mean() > 4 * apart
    drawn = process.sample(2000, generator=seeded(7, 0, 0))
    assert torch.equal(drawn[0], z)
    assert torch.equal(drawn[1], z_tilde)


def test_synthetic_batches_depend_on_seed_epoch_and_number(mixing):
    process = PairProcess(Box(10), Normal(0.1))

    def flat(batch):
        return torch.stack([t for pair in batch for t in pair])

    options = {"batch_size": 64, "batches": 4}
    pairs = SyntheticPairs(mixing, process, **options, seed=7)
    assert len(pairs.loader()) == 4
    for threads in (1, 3):
        loader = pairs.loader(threads=threads)
        for epoch in range(2):
            for number, batch in enumerate(loader):
                assert torch.equal(flat(batch), flat(pairs.batch(epoch, number)))
            assert number == 3
    other = SyntheticPairs(mixing, process, **options, seed=8)
    first = flat(pairs.batch(0, 0))
    for different in (pairs.batch(0, 1), pairs.batch(1, 0), other.batch(0, 0)):
        assert not torch.isclose(flat(different), first).all(2).any()
    again = SyntheticPairs(Mixing(10, trials=TRIALS, seed=1), process, **options, seed=7)
    assert torch.equal(flat(again.batch(1, 2)), flat(pairs.batch(1, 2)))


def test_the_first_batch_shares_no_random_numbers_with_the_weights():
    mixing = Mixing(4, trials=1, seed=0)
    (z, _), _ = SyntheticPairs(mixing, PairProcess(Box(4), Normal(0.1)), batch_size=64).batch(0, 0)
    # One trial: the weights are among the generator's first draws.
    directions = z / z.norm(dim=1, keepdim=True)
    drawn = (2 * torch.rand(64, 4, generator=seeded(0), dtype=torch.float64) - 1).float()
    assert not torch.isclose(z, drawn).any()
    assert directions.shape == (64, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"process": PairProcess(Box(3), Normal(0.1))}, r"takes 10 dimensions, found Box\(n=3"),
        ({"batch_size": 0}, "at least 1 pair and batch, found 0"),
        ({"batches": 0}, "at least 1 pair and batch, found 6144, 0"),
    ],
)
def test_synthetic_pairs_that_make_no_sense(mixing, options, message):
    options = {"process": PairProcess(Box(10), Normal(0.1)), **options}
    with pytest.raises(UsageError, match=message):
        SyntheticPairs(mixing, **options)
