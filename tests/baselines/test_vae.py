"""The terms of autoencoders' losses, against torch's distributions and numerical integrals."""

from __future__ import annotations

import math

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import distributions

from threedident.baselines import vae
from threedident.baselines.criterion import make_criterion
from threedident.baselines.experiment import Loss
from threedident.encoders import MLPDecoder
from threedident.errors import UsageError

few = hypothesis.settings(max_examples=25)
means = st.floats(-5, 5)
log_variances = st.floats(-8, 3)


def gaussians(*shape: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and log-variances, in double precision."""
    mean, log_variance = torch.randn(
        2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return mean, log_variance


def normal(mean: torch.Tensor, log_variance: torch.Tensor) -> distributions.Normal:
    return distributions.Normal(mean, (log_variance / 2).exp())


def test_reconstruction_is_minus_the_log_probability_of_the_pixels():
    logits, _ = gaussians(4, 1, 3, 5)
    images = (torch.rand(logits.shape, dtype=torch.float64) > 0.5).double()
    expected = -distributions.Bernoulli(logits=logits).log_prob(images).sum((1, 2, 3))
    assert torch.allclose(vae.reconstruction(logits, images), expected)
    with pytest.raises(UsageError, match=r"images' shape \(4, 15\), found \(4, 1, 3, 5\)"):
        vae.reconstruction(logits, images.flatten(1))


def test_kl_and_entropy_are_those_of_torch():
    mean, log_variance = gaussians(6, 3)
    q = normal(mean, log_variance)
    prior = distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    expected = distributions.kl_divergence(q, prior)
    assert torch.allclose(vae.gaussian_kl(mean, log_variance), expected)
    assert torch.allclose(vae.gaussian_entropy(log_variance), q.entropy())
    assert vae.gaussian_kl(torch.zeros(2), torch.zeros(2)).tolist() == [0, 0]


@few
@hypothesis.given(means, log_variances, means, st.floats(0.1, 10))
def test_the_cross_entropy_with_a_laplace_density_is_its_integral(mean, log_variance, center, rate):
    std = math.exp(log_variance / 2)
    z = np.union1d(np.linspace(mean - 12 * std, mean + 12 * std, 40_001), [center])
    density = np.exp(-(((z - mean) / std) ** 2) / 2) / (std * math.sqrt(2 * math.pi))
    expected = np.trapz(density * (rate * abs(z - center) - math.log(rate / 2)), z)
    q = (torch.tensor(value, dtype=torch.float64) for value in (mean, log_variance, center))
    assert vae.laplace_cross_entropy(*q, rate).item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_the_cross_entropy_has_gradients_also_where_q_is_narrow_or_wide():
    mean, log_variance = (each.requires_grad_() for each in gaussians(5))
    center = gaussians(5, seed=1)[0].requires_grad_()

    def cross_entropy(*q: torch.Tensor) -> torch.Tensor:
        return vae.laplace_cross_entropy(*q, 6.0)

    assert torch.autograd.gradcheck(cross_entropy, (mean, log_variance, center))
    for value in (-60.0, 40.0):
        extreme = torch.full((2,), value, requires_grad=True)
        apart = torch.tensor([0.0, 3.0], requires_grad=True)
        cross_entropy(apart, extreme, torch.zeros(2)).sum().backward()
        assert extreme.grad.isfinite().all() and apart.grad.isfinite().all()
    with pytest.raises(UsageError, match="rate of a Laplace density must be above 0"):
        vae.laplace_cross_entropy(mean, log_variance, center, 0.0)


def test_slow_transitions_are_two_divergences_or_as_coded_one_entropy_more():
    (mean, log_variance), (mean_tilde, log_variance_tilde) = (
        gaussians(8, 3),
        gaussians(8, 3, seed=1),
    )
    both = mean, log_variance, mean_tilde, log_variance_tilde
    rate = 3.0
    draws = torch.Generator().manual_seed(0)
    expected = torch.zeros(8, dtype=torch.float64)
    for center, q in (
        (mean_tilde, normal(mean, log_variance)),
        (mean, normal(mean_tilde, log_variance_tilde)),
    ):
        noise = torch.randn(100_000, 8, 3, dtype=torch.float64, generator=draws)
        z = q.mean + q.stddev * noise
        p = distributions.Laplace(center, 1 / rate)
        expected += (q.log_prob(z) - p.log_prob(z)).mean(0).sum(1)
    exact = vae.slow_transition(*both, rate, as_coded=False)
    assert torch.allclose(exact, expected, atol=0.15)
    assert (exact > 0).all()
    entropies = vae.gaussian_entropy(log_variance) + vae.gaussian_entropy(log_variance_tilde)
    as_coded = vae.slow_transition(*both, rate)
    assert torch.allclose(as_coded - exact, entropies.sum(1) / 2)
    swapped = vae.slow_transition(mean_tilde, log_variance_tilde, mean, log_variance, rate)
    assert torch.allclose(as_coded, swapped)


def test_shared_codes_are_those_below_the_middle_of_the_divergences():
    first, second = gaussians(50, 6), gaussians(50, 6, seed=1)
    new, new_tilde, shared = vae.shared_posteriors(*first, *second)
    divergences = distributions.kl_divergence(normal(*first), normal(*second))
    for row in range(50):
        kl = divergences[row]
        for code in range(6):
            q = [each[0][row, code].item() for each in (first, second)]
            v = [each[1][row, code].exp().item() for each in (first, second)]
            expected = [(q[0], v[0]), (q[1], v[1])]
            is_shared = bool(kl[code] < (kl.min() + kl.max()) / 2)
            if is_shared:
                expected = [((q[0] + q[1]) / 2, (v[0] + v[1]) / 2)] * 2
            assert bool(shared[row, code]) == is_shared
            for (mean, log_variance), values in zip((new, new_tilde), expected, strict=True):
                assert mean[row, code].item() == pytest.approx(values[0])
                assert log_variance[row, code].exp().item() == pytest.approx(values[1])
    assert 0.2 < shared.double().mean() < 0.98


def test_gradients_reach_both_images_through_shared_codes():
    parameters = [each.requires_grad_() for each in (*gaussians(3, 4), *gaussians(3, 4, seed=1))]
    noise = gaussians(4, 3, 4, seed=2)[0]

    def weighted(*given: torch.Tensor) -> torch.Tensor:
        first, second, _ = vae.shared_posteriors(*given)
        return sum((w * p).sum() for w, p in zip(noise, (*first, *second), strict=True))

    assert torch.autograd.gradcheck(weighted, parameters)


def loss_of(kind: str, images, views, *, draws: int = 1, **fields: float | bool):
    """The mean loss over draws of the noise, of a decoder from one code to six pixels; and it."""
    torch.manual_seed(3)
    decoder = MLPDecoder(1, 6, 8).double()
    criterion = make_criterion(Loss(kind=kind, **fields), 1, decoder=decoder)
    generator = torch.Generator().manual_seed(0)
    repeated = [each.repeat_interleave(draws, 0) for each in views]
    pixels = [each.repeat_interleave(draws, 0) for each in images]
    return criterion(repeated, (), None, pixels, generator).item(), criterion


def some_views(count: int = 3) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Images of six pixels, 0 or 255, and Gaussians over one code, of both views."""
    random = np.random.default_rng(0)
    images = [torch.from_numpy(random.integers(0, 2, (count, 6), np.uint8)) * 255 for _ in "ab"]
    return images, [torch.cat(gaussians(count, 1, seed=seed), 1) for seed in (5, 6)]


def test_the_loss_of_a_vae_is_the_evidence_and_the_divergence_from_the_true_posterior():
    """-ELBO = -log p(x) + KL(q || p(z | x)), both by integrals over the one code."""
    images, views = some_views()
    loss, criterion = loss_of("vae", images[:1], views[:1], draws=20_000)
    z = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    with torch.no_grad():
        pixels = distributions.Bernoulli(logits=criterion.decoder(z[:, None]))
    expected = []
    for image, parameters in zip(images[0], views[0], strict=True):
        joint = pixels.log_prob((image / 255).double()).sum(1)
        joint = joint + distributions.Normal(0.0, 1.0).log_prob(z)
        evidence = torch.trapezoid(joint.exp(), z).log()
        q = normal(*parameters).log_prob(z)
        divergence = torch.trapezoid(q.exp() * (q - joint + evidence), z)
        assert divergence > 0.01
        expected.append(float(divergence - evidence))
    assert loss == pytest.approx(np.mean(expected), abs=0.01)
    assert set(criterion.terms) == {"reconstruction", "kl"}


def test_the_losses_are_the_weighted_sums_of_their_terms():
    images, views = some_views()
    terms_of, losses = {}, {}
    for kind, fields in (
        ("vae", {"beta": 3.0}),
        ("slowvae", {"beta": 3.0, "gamma": 0.0}),
        ("slowvae", {"beta": 3.0, "gamma": 2.0, "rate": 4.0}),
        ("adagvae", {"beta": 3.0}),
    ):
        loss, criterion = loss_of(kind, images, views, **fields)
        terms = {name: float(value) for name, value in criterion.terms.items()}
        terms_of[kind], losses[kind, fields.get("gamma")] = terms, loss
    r, kl = terms_of["vae"]["reconstruction"], terms_of["vae"]["kl"]
    both = torch.cat(views)
    assert kl == pytest.approx(float(vae.gaussian_kl(both[:, :1], both[:, 1:]).mean()))
    assert losses["vae", None] == pytest.approx(r + 3 * kl)
    assert losses["slowvae", 0.0] == pytest.approx(2 * r + 3 * kl)
    parts = [each.chunk(2, 1) for each in views]
    transition = float(vae.slow_transition(*parts[0], *parts[1], 4.0).mean())
    assert terms_of["slowvae"]["transition"] == pytest.approx(transition)
    assert losses["slowvae", 2.0] == pytest.approx(2 * r + 3 * kl + 2 * transition)
    # One code is the least and the largest at once, and so never below the middle: none is shared.
    assert losses["adagvae", None] == pytest.approx(losses["vae", None])


def test_noise_comes_from_its_generator_alone():
    images, views = some_views()
    losses = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        losses.append(loss_of("vae", images, views)[0])
    assert losses[0] == losses[1]
    mean, log_variance = gaussians(20_000, 2)
    drawn = vae.draw(mean, log_variance, torch.Generator().manual_seed(0))
    standardised = (drawn - mean) / (log_variance / 2).exp()
    assert standardised.mean(0).abs().max() < 0.03
    assert (standardised.std(0) - 1).abs().max() < 0.03
