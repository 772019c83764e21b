from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from threedident.datasets.decoder_mixing import DecoderMixing
from threedident.datasets.synthetic import SyntheticPairs
from threedident.distributions import PairProcess, ProjectedNormal
from threedident.distributions.spaces import Box, Sphere
from threedident.encoders import MLPDecoder
from threedident.errors import UsageError


def linear_decoder(matrix: torch.Tensor) -> MLPDecoder:
    """A decoder whose logits are a small linear map of its codes."""
    outputs, codes = matrix.shape
    decoder = MLPDecoder(codes, outputs, 2 * codes)
    eye = torch.eye(codes)
    first, second, third = (decoder.layers[k] for k in (0, 2, 4))
    with torch.no_grad():
        first.weight.copy_(torch.cat([eye, -eye]))
        second.weight.copy_(torch.eye(2 * codes))
        # LeakyReLU twice: a above 0 and 1e-4 a below; the difference of both halves is linear.
        third.weight.copy_(torch.cat([matrix, -matrix], 1) / (1 + 1e-4))
        for layer in (first, second, third):
            layer.bias.zero_()
    return decoder


def test_latents_come_at_length_sqrt_n_to_the_decoder_whatever_the_spheres_radius() -> None:
    decoder = MLPDecoder(4, 9, 16)
    unit = functional.normalize(torch.randn(50, 4, generator=torch.manual_seed(0)), dim=-1)
    expected = torch.sigmoid(decoder(2.0 * unit))
    torch.testing.assert_close(DecoderMixing(decoder)(unit), expected)
    torch.testing.assert_close(DecoderMixing(decoder, Sphere(4, 3.0))(3 * unit), expected)
    assert not any(p.requires_grad for p in DecoderMixing(decoder).parameters())


@pytest.mark.parametrize("space", [Sphere(5), Box(4)])
def test_a_decoder_is_for_a_sphere_of_as_many_dimensions(space: Sphere | Box) -> None:
    with pytest.raises(UsageError, match="a decoder of 4 codes needs latents on a sphere"):
        DecoderMixing(MLPDecoder(4, 9, 16), space)


def test_stretching_is_that_of_a_known_map() -> None:
    scales = torch.tensor([4.0, 2.0, 1.0]) * 1e-3
    mixing = DecoderMixing(linear_decoder(torch.diag(scales)))
    stretching = mixing.stretching()
    # Along the sphere the least stretching lies between the two smaller axes', the largest
    # between the two larger; a sigmoid's slope at 0 is 1/4.
    unit = 1e-3 * math.sqrt(3) / 4
    assert stretching.least == pytest.approx(unit, rel=0.02)
    assert unit <= stretching.median <= 2 * unit
    assert stretching.largest == pytest.approx(4 * unit, rel=0.02)
    assert stretching.closest == pytest.approx(unit, rel=0.02)


def test_stretching_shows_a_direction_that_the_decoder_does_not_see() -> None:
    mixing = DecoderMixing(linear_decoder(torch.diag(torch.tensor([1.0, 1.0, 0.0]))))
    stretching = mixing.stretching()
    assert stretching.least < 0.01 * stretching.largest
    assert stretching.closest < 0.01 * stretching.largest


def test_pairs_are_decoded_and_depend_on_seed_epoch_and_number_alone() -> None:
    mixing = DecoderMixing(MLPDecoder(4, 9, 16))
    process = PairProcess(Sphere(4), ProjectedNormal((5.0, 5.0, 20.0, 20.0)))
    pairs = SyntheticPairs(mixing, process, batch_size=32, seed=3)
    (z, z_tilde), (x, x_tilde) = pairs.batch(0, 1)
    assert z.shape == (32, 4)
    assert x.shape == x_tilde.shape == (32, 9)
    assert float(x.min()) > 0 and float(x.max()) < 1
    torch.testing.assert_close(x_tilde, mixing(z_tilde))
    again = SyntheticPairs(mixing, process, batch_size=32, seed=3).batch(0, 1)
    assert torch.equal(again[1][0], x)
    assert not torch.equal(pairs.batch(0, 2)[1][0], x)
