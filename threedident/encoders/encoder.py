"""Whole encoders, of images and of vectors, and how they are built from a plain description."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from threedident.encoders.conv import ConvEncoder, MLPImageEncoder
from threedident.encoders.inputs import Normalize
from threedident.encoders.mlp import MLPEncoder, WhitenedMLP
from threedident.encoders.outputs import BoxOutput, GaussianOutput, SphereOutput, UnboundedOutput
from threedident.encoders.part import Part
from threedident.encoders.resnet import COLORS, ResNetEncoder
from threedident.errors import UsageError


class VectorEncoder(Part):
    """An encoder of vectors and its output space.

    Args:
        encoder: the encoder of vectors.
        output: the space of the codes.
    """

    def __init__(self, encoder: Part, output: Part) -> None:
        super().__init__()
        self.spec = {"kind": "vector", "encoder": encoder.spec, "output": output.spec}
        self.encoder, self.output = encoder, output

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Codes (B, m) of observations (B, n)."""
        codes: torch.Tensor = self.output(self.encoder(observations))
        return codes


class ImageEncoder(Part):
    """An encoder of uint8 images: normalisation, encoder, output space.

    Args:
        mean: the mean of each channel of the training images, in [0, 1].
        std: the standard deviation of each channel, in the same units.
        encoder: the encoder of normalised images.
        output: the space of the codes.
    """

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], encoder: Part, output: Part
    ) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.encoder, self.output = encoder, output
        self.spec = {
            "kind": "image",
            "mean": [float(m) for m in mean],
            "std": [float(s) for s in std],
            "encoder": encoder.spec,
            "output": output.spec,
        }

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Codes (B, m) of uint8 images (B, C, H, W)."""
        codes: torch.Tensor = self.output(self.before_output(images))
        return codes

    def before_output(self, images: torch.Tensor) -> torch.Tensor:
        """What the output space gets: of a `GaussianOutput` means and log-variances, (B, 2 m)."""
        codes: torch.Tensor = self.encoder(self.normalize(images))
        return codes


_BODIES = {"image": ("resnet", "conv", "mlp-image"), "vector": ("mlp", "whitened-mlp")}
_OUTPUTS = ("unbounded", "sphere", "box", "gaussian")
#: The fields of each kind's description, and their types.
_FIELDS: dict[str, dict[str, type]] = {
    "resnet": {"codes": int, "arch": str},
    "conv": {"codes": int, "channels": int, "side": int},
    "mlp-image": {"codes": int, "inputs": int, "hidden": int},
    "mlp": {"n": int, "codes": int},
    "whitened-mlp": {"n": int, "codes": int},
    "unbounded": {},
    "sphere": {"radius": float, "learned": bool},
    "box": {"n": int, "learned": bool},
    "gaussian": {"n": int},
    "vector": {"encoder": dict, "output": dict},
    "image": {"mean": list, "std": list, "encoder": dict, "output": dict},
}
#: Fields that can be left out.
_OPTIONAL: dict[str, dict[str, type]] = {
    "resnet": {"width": int, "channels": int},
    "mlp": {"unit": int},
    "whitened-mlp": {"unit": int},
}
_SIMPLE: dict[str, type[Part]] = {
    "resnet": ResNetEncoder,
    "conv": ConvEncoder,
    "mlp-image": MLPImageEncoder,
    "mlp": MLPEncoder,
    "whitened-mlp": WhitenedMLP,
    "unbounded": UnboundedOutput,
    "sphere": SphereOutput,
    "box": BoxOutput,
    "gaussian": GaussianOutput,
}


def build(spec: Any) -> ImageEncoder | VectorEncoder:
    """Build the encoder that a description asks for, with new weights.

    Args:
        spec: the `spec` of an `ImageEncoder` or a `VectorEncoder`.

    Raises:
        UsageError: the description does not fit.
    """
    fields = _parse(spec, ("vector", "image"))
    kind = fields.pop("kind")
    parts = []
    for key, kinds in (("encoder", _BODIES[kind]), ("output", _OUTPUTS)):
        inner = _parse(fields[key], kinds)
        parts.append(_SIMPLE[inner.pop("kind")](**inner))
    encoder, output = parts
    outputs = encoder.spec["codes"]
    if output.spec["kind"] == "gaussian" and 2 * output.spec["n"] != outputs:
        raise UsageError(
            f"a Gaussian over {output.spec['n']} codes needs an encoder of twice as many outputs, "
            f"found {outputs}"
        )
    if output.spec["kind"] == "box" and output.spec["n"] != outputs:
        raise UsageError(
            f"an encoder of {outputs} codes needs a box of as many dimensions, "
            f"found {output.spec['n']}"
        )
    if kind == "vector":
        return VectorEncoder(encoder, output)
    for key in ("mean", "std"):
        if not all(isinstance(v, float) and math.isfinite(v) for v in fields[key]):
            raise UsageError(f"{key} must be three numbers, found {fields[key]!r:.100}")
    channels = encoder.spec.get("channels", COLORS)
    if len(fields["mean"]) != channels and encoder.spec["kind"] != "mlp-image":
        raise UsageError(
            f"an encoder of images of {channels} channels needs a mean for each, found "
            f"{fields['mean']!r:.100}"
        )
    return ImageEncoder(fields["mean"], fields["std"], encoder, output)


def _parse(spec: Any, kinds: Sequence[str]) -> dict[str, Any]:
    kind = spec.get("kind") if isinstance(spec, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise UsageError(
            f"expected the description of an encoder's part, of kind {' or '.join(kinds)}, found "
            f"{spec!r:.100}"
        )
    expected = _FIELDS[kind]
    optional = _OPTIONAL.get(kind, {})
    if set(spec) - {*optional} != {"kind", *expected}:
        raise UsageError(f"{kind} is described by {', '.join(expected)}, found {', '.join(spec)}")
    expected = {**expected, **{key: optional[key] for key in optional if key in spec}}
    for key, needed in expected.items():
        if type(spec[key]) is not needed:
            raise UsageError(f"{kind}: {key} must be {needed.__name__}, found {spec[key]!r:.100}")
    return dict(spec)
