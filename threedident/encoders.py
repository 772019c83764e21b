"""Encoders of the papers as modules, and their files, which are safe to load.

A file holds a plain description of the architecture, its weights, and whatever else is known of
it; it is read without unpickling anything but tensors.
"""

from __future__ import annotations

import itertools
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from threedident.baselines.training.checkpoints import check_archive, write_tensors
from threedident.datasets.dataset import Normalize
from threedident.errors import DatasetError, MissingExtraError, UsageError
from threedident.storage.atomic_files import replacing

try:
    import torch
    from torch import nn
except ImportError as error:
    raise MissingExtraError("torch", "train", "building an encoder") from error

FORMAT = "3dident-encoder"
FORMAT_VERSION = 1
ARCHITECTURES = ("resnet18", "resnet34", "resnet50")
#: Channels of the first layer of a published ResNet.
PUBLISHED_WIDTH = 64

_SLOPE = 0.01  # of LeakyReLU below 0
_WIDTHS = (10, 50, 50, 50, 50, 10)  # of the MLP's hidden layers, in units of n
_LARGEST = 100_000  # codes or inputs


class Part(nn.Module):
    """A module that says how it is made again.

    Attributes:
        spec: plain data for JSON; see `build`.
    """

    spec: dict[str, Any]


class ResNetEncoder(Part):
    """A torchvision ResNet from scratch with 10 outputs a code, LeakyReLU, and a linear layer.

    The 3DIdent encoder of Zimmermann et al. 2021.

    Args:
        codes: m.
        arch: resnet18, resnet34 or resnet50.
        width: the channels of the first layer, 64 as published; all other layers follow it.

    Raises:
        UsageError: an unknown architecture, or a width that does not fit.
        MissingExtraError: torchvision is not installed.
    """

    def __init__(
        self, codes: int = 10, arch: str = "resnet18", width: int = PUBLISHED_WIDTH
    ) -> None:
        super().__init__()
        if arch not in ARCHITECTURES:
            raise UsageError(
                f"unknown architecture {arch!r}: expected one of {', '.join(ARCHITECTURES)}"
            )
        _check_size("codes", codes)
        _check_size("width", width)
        self.spec = {"kind": "resnet", "codes": codes, "arch": arch}
        if width != PUBLISHED_WIDTH:  # files of the published one stay as they were
            self.spec["width"] = width
        body = _resnet(arch, 10 * codes, width)
        for module in body.modules():
            if type(module) is nn.Conv2d and module.kernel_size == (3, 3):
                module.__class__ = _Conv3x3  # without a bias or groups, in these architectures
        self.layers = nn.Sequential(
            body,
            nn.LeakyReLU(_SLOPE),
            nn.Linear(10 * codes, codes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Codes (B, m) of normalised images (B, 3, H, W)."""
        codes: torch.Tensor = self.layers(images)
        return codes


def _resnet(arch: str, outputs: int, width: int) -> nn.Module:
    """A torchvision ResNet with all channels scaled by width / 64.

    Raises:
        MissingExtraError: torchvision is not installed.
    """
    try:
        from torchvision import models
        from torchvision.models.resnet import BasicBlock, Bottleneck
    except ImportError as error:
        raise MissingExtraError("torchvision", "train", "building a ResNet") from error
    if width == PUBLISHED_WIDTH:
        body: nn.Module = getattr(models, arch)(weights=None, num_classes=outputs)
        return body

    class Scaled(models.ResNet):  # type: ignore[misc]
        def _make_layer(self, block: Any, planes: int, *rest: Any, **options: Any) -> Any:
            if planes == PUBLISHED_WIDTH:  # the first one: its input is as wide as the stem
                self.inplanes = width
            return super()._make_layer(block, planes // PUBLISHED_WIDTH * width, *rest, **options)

    blocks = [2, 2, 2, 2] if arch == "resnet18" else [3, 4, 6, 3]
    block = Bottleneck if arch == "resnet50" else BasicBlock
    scaled = Scaled(block, blocks, num_classes=outputs)
    scaled.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
    nn.init.kaiming_normal_(scaled.conv1.weight, mode="fan_out", nonlinearity="relu")
    scaled.bn1 = nn.BatchNorm2d(width)
    scaled.fc = nn.Linear(8 * width * block.expansion, outputs)
    return scaled


class _Conv3x3(nn.Conv2d):
    """A 3 x 3 convolution that is one matrix product where its map is 2 x 2 or a single pixel.

    The last layers of a ResNet see such maps on images of 32 x 32, and libraries of convolutions
    are several times slower there, in bfloat16 above all.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As `nn.Conv2d`."""
        height, width = x.shape[-2:]
        if max(height, width) > 2 or self.padding != (1, 1) or torch.compiler.is_exporting():
            return super().forward(x)
        # An output at i sees the input at k through the kernel's row 1 - stride i + k.
        taps = self.weight.unfold(2, height, 1).unfold(3, width, 1)
        for dim, size in ((2, height), (3, width)):
            outputs = (size - 1) // self.stride[0] + 1
            taps = taps.flip(dim) if outputs == 2 else taps.narrow(dim, 1, 1)
        rows, columns = taps.shape[2:4]
        matrix = taps.permute(2, 3, 0, 4, 5, 1).reshape(rows * columns * self.out_channels, -1)
        y = nn.functional.linear(x.permute(0, 2, 3, 1).flatten(1), matrix)
        return y.view(-1, rows, columns, self.out_channels).permute(0, 3, 1, 2)


class MLPEncoder(Part):
    """n -> 10 n -> 50 n (four times) -> 10 n -> m, with LeakyReLU between.

    The encoder of the synthetic benchmark of Zimmermann et al. 2021.

    Args:
        n: dimensions of an observation.
        codes: m; None: n.
    """

    def __init__(self, n: int, codes: int | None = None) -> None:
        super().__init__()
        codes = n if codes is None else codes
        _check_size("n", n)
        _check_size("codes", codes)
        self.spec = {"kind": "mlp", "n": n, "codes": codes}
        widths = (n, *(factor * n for factor in _WIDTHS), codes)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.LeakyReLU(_SLOPE)]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Codes (B, m) of observations (B, n)."""
        codes: torch.Tensor = self.layers(observations)
        return codes


class WhitenedMLP(MLPEncoder):
    """An MLP behind an affine map, which gives observations mean 0 and unit covariance.

    The map is invertible and fixed: what can be identified stays the same, and training is many
    times shorter. It is the identity until `whiten` is called.

    Args:
        n: dimensions of an observation.
        codes: m; None: n.
    """

    def __init__(self, n: int, codes: int | None = None) -> None:
        super().__init__(n, codes)
        self.spec = {**self.spec, "kind": "whitened-mlp"}
        self.mean: torch.Tensor
        self.matrix: torch.Tensor
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("matrix", torch.eye(n))

    def whiten(self, observations: torch.Tensor) -> None:
        """Sets the map from observations (N, n), N well above n.

        Raises:
            UsageError: they lie in a plane, so that no map does it.
        """
        exact = observations.double()
        mean = exact.mean(0)
        values, axes = torch.linalg.eigh(torch.cov(exact.T))
        if not values[0] > 1e-9 * values[-1]:
            raise UsageError(
                "observations cannot be whitened: along some direction they do not vary "
                f"(variances from {float(values[0]):.2g} to {float(values[-1]):.2g})"
            )
        self.mean.copy_(mean)
        self.matrix.copy_(axes * values.rsqrt())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Codes (B, m) of observations (B, n)."""
        return super().forward((observations - self.mean) @ self.matrix)


class UnboundedOutput(Part):
    """R^m: codes as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = {"kind": "unbounded"}

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """The codes."""
        return codes


class SphereOutput(Part):
    """The hypersphere: x / ||x|| times a radius.

    Args:
        radius: at the beginning, where it is learned.
        learned: whether it is a parameter.
    """

    def __init__(self, radius: float = 1.0, learned: bool = False) -> None:
        super().__init__()
        if not 0 < radius < math.inf:
            raise UsageError(f"the radius of a sphere must be above 0, found {radius}")
        self.spec = {"kind": "sphere", "radius": float(radius), "learned": learned}
        self.radius = nn.Parameter(torch.tensor(float(radius)), requires_grad=learned)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """The codes' directions, (B, m), at the radius."""
        return nn.functional.normalize(codes, dim=-1) * self.radius


class BoxOutput(Part):
    """A box: sigmoid(x) times a bound per dimension.

    Args:
        n: dimensions, m.
        learned: whether the bounds are parameters; they begin at 1, and are fixed there if not.
    """

    def __init__(self, n: int, learned: bool = False) -> None:
        super().__init__()
        _check_size("n", n)
        self.spec = {"kind": "box", "n": n, "learned": learned}
        self.bound = nn.Parameter(torch.ones(n), requires_grad=learned)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes in the box, (B, m)."""
        return torch.sigmoid(codes) * self.bound


class VectorEncoder(Part):
    """An encoder of vectors and its output space."""

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
        mean, std: per channel, in [0, 1]; those of the training images.
        encoder: of normalised images.
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
        """Codes (B, m) of uint8 images (B, 3, H, W)."""
        codes: torch.Tensor = self.output(self.encoder(self.normalize(images)))
        return codes


_BODIES = {"image": ("resnet",), "vector": ("mlp", "whitened-mlp")}
_OUTPUTS = ("unbounded", "sphere", "box")
#: The fields of each kind's description, and their types.
_FIELDS: dict[str, dict[str, type]] = {
    "resnet": {"codes": int, "arch": str},
    "mlp": {"n": int, "codes": int},
    "whitened-mlp": {"n": int, "codes": int},
    "unbounded": {},
    "sphere": {"radius": float, "learned": bool},
    "box": {"n": int, "learned": bool},
    "vector": {"encoder": dict, "output": dict},
    "image": {"mean": list, "std": list, "encoder": dict, "output": dict},
}
#: Those that can be left out.
_OPTIONAL: dict[str, dict[str, type]] = {"resnet": {"width": int}}
_SIMPLE: dict[str, type[Part]] = {
    "resnet": ResNetEncoder,
    "mlp": MLPEncoder,
    "whitened-mlp": WhitenedMLP,
    "unbounded": UnboundedOutput,
    "sphere": SphereOutput,
    "box": BoxOutput,
}


def build(spec: Any) -> ImageEncoder | VectorEncoder:
    """The encoder that a description describes, with weights of its own.

    Raises:
        UsageError: it describes none.
    """
    fields = _parse(spec, ("vector", "image"))
    kind = fields.pop("kind")
    parts = []
    for key, kinds in (("encoder", _BODIES[kind]), ("output", _OUTPUTS)):
        inner = _parse(fields[key], kinds)
        parts.append(_SIMPLE[inner.pop("kind")](**inner))
    encoder, output = parts
    if output.spec.get("n", encoder.spec["codes"]) != encoder.spec["codes"]:
        raise UsageError(
            f"an encoder of {encoder.spec['codes']} codes needs a box of as many dimensions, "
            f"found {output.spec['n']}"
        )
    if kind == "vector":
        return VectorEncoder(encoder, output)
    for key in ("mean", "std"):
        if not all(isinstance(v, float) and math.isfinite(v) for v in fields[key]):
            raise UsageError(f"{key} must be three numbers, found {fields[key]!r:.100}")
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


def _check_size(name: str, value: int) -> None:
    if not 1 <= value <= _LARGEST:
        raise UsageError(f"{name} must be from 1 to {_LARGEST}, found {value}")


def save_encoder(path: str | Path, encoder: Part, about: Mapping[str, Any] | None = None) -> None:
    """Writes an encoder's file, replacing it in one step.

    Args:
        path: the file.
        encoder: an `ImageEncoder` or a `VectorEncoder`.
        about: what else is known of it, as plain data for JSON: losses, steps, seeds.

    Raises:
        UsageError: `encoder` or `about` cannot be written.
        DatasetError: the disk is full or cannot be written to.
    """
    with torch.device("meta"):  # only to see that it can be made again
        build(encoder.spec)
    try:
        known = json.loads(json.dumps(dict(about or {}), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(f"about must be plain data for JSON: {error}") from error
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "spec": encoder.spec,
        "state": {name: value.detach().cpu() for name, value in encoder.state_dict().items()},
        "about": known,
    }
    with replacing(Path(path)) as temporary:
        write_tensors(temporary, content)


def load_encoder(path: Path) -> ImageEncoder | VectorEncoder:
    """The encoder of a file, on the CPU, in evaluation mode.

    Raises:
        DatasetError: there is no such file, or it is damaged or another kind of file.
    """
    return read_encoder(path)[0]


def read_encoder(path: Path) -> tuple[ImageEncoder | VectorEncoder, dict[str, Any]]:
    """The encoder of a file, and what else the file says of it.

    Raises:
        DatasetError: there is no such file, or it is damaged or another kind of file.
    """
    try:
        check_archive(path)
    except FileNotFoundError:
        raise DatasetError(f"{path}: there is no such file") from None
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path} is no encoder of this toolkit: {error}") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler's, the archive's and torch's own
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise DatasetError(f"cannot read {path} as an encoder: {said[0]:.200}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DatasetError(f"{path} is no encoder of this toolkit (format {FORMAT})")
    if content.get("format_version") != FORMAT_VERSION:
        raise DatasetError(
            f"{path} has format version {content.get('format_version')!r:.20}; this toolkit reads "
            f"version {FORMAT_VERSION}"
        )
    state, about = content.get("state"), content.get("about")
    if not isinstance(about, dict):
        raise DatasetError(f"{path} is damaged: it lacks `about`")
    if not isinstance(state, dict) or not all(map(_is_weight, state.items())):
        raise DatasetError(f"{path} is damaged: its weights are no tensors by name")
    try:
        with torch.device("meta"):  # nothing is allocated for what a file only declares
            encoder = build(content.get("spec"))
        for name, value in encoder.state_dict().items():
            if name in state and state[name].dtype != value.dtype:
                raise UsageError(f"{name} is {state[name].dtype}, expected {value.dtype}")
        encoder.load_state_dict(state, assign=True)
    except (UsageError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DatasetError(f"{path} is damaged: {reason:.300}") from error
    if not all(v.isfinite().all() for v in encoder.state_dict().values() if v.is_floating_point()):
        raise DatasetError(f"{path} is damaged: it has weights that are not finite")
    return encoder.eval(), about


def _is_weight(item: tuple[Any, Any]) -> bool:
    """Whether it is a name and a tensor that holds its numbers one by one."""
    name, value = item
    plain = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return isinstance(name, str) and plain and value.device.type == "cpu"
