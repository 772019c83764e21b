"""`DecoderMixing`: images that a frozen decoder makes of latents on a sphere, as a mixing."""

from __future__ import annotations

import dataclasses
import math

from threedident.errors import MissingExtraError, UsageError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "train", "observations of a decoder") from error

from threedident.distributions.spaces import Sphere
from threedident.distributions.torch_sampler import seeded
from threedident.encoders.files import Decoder

_STRETCHED, _COMPARED = 1024, 2048  # latents of which Jacobians and distances are taken


@dataclasses.dataclass(frozen=True)
class Stretching:
    """How much a map stretches the sphere at random points, and how close it brings two of them.

    A least stretching of 0 would mean that the map folds, or flattens a direction: the latents
    could not be read from the observations. These are samples, and prove nothing for all points.

    Attributes:
        least: the smallest singular value of the Jacobian along the sphere, over the points.
        median: the median of the points' smallest singular values.
        largest: the largest singular value, over the points.
        closest: the least ratio of the distance of two points' observations to that of the points.
        points: the number of points of which Jacobians are taken.
        compared: the number of points of which all pairs are compared.
    """

    least: float
    median: float
    largest: float
    closest: float
    points: int
    compared: int


class DecoderMixing(torch.nn.Module):
    """The mixing g of a decoder: latents on a sphere, made sqrt(n) long, to pixels in [0, 1].

    A standard normal vector of n numbers is about sqrt(n) long, so that the decoder of a VAE sees
    codes as long as those that it was trained on. Nothing is trained here.

    Attributes:
        decoder: the decoder, whose outputs are the pixels' logits; its parameters are frozen.
    """

    def __init__(
        self,
        decoder: Decoder,
        space: Sphere | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        """Take a decoder; it is frozen.

        Args:
            decoder: the decoder.
            space: the sphere of the latents; None: that of radius 1.
            device: the device that computes.

        Raises:
            UsageError: the space is no sphere, or has another dimension than the decoder's codes.
        """
        super().__init__()
        codes = int(decoder.spec["codes"])
        space = Sphere(codes) if space is None else space
        if not isinstance(space, Sphere) or space.n != codes:
            raise UsageError(
                f"a decoder of {codes} codes needs latents on a sphere in as many dimensions, "
                f"found {space}"
            )
        self._n = codes
        self._scale = math.sqrt(codes) / space.r
        self._radius = space.r
        self.decoder = decoder.to(device).eval().requires_grad_(False)
        self._outputs = self(torch.zeros(1, codes, device=device)).shape[1]

    @property
    def n(self) -> int:
        """The number of latents."""
        return self._n

    @property
    def outputs(self) -> int:
        """The number of pixels, channels counted."""
        return self._outputs

    @property
    def device(self) -> torch.device:
        """The device that it computes on."""
        return next(self.decoder.parameters()).device

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Map latents (N, n) to flattened images (N, d) with pixels in [0, 1]."""
        return torch.sigmoid(self.decoder(self._scale * z)).flatten(1)

    def stretching(self, seed: int = 0) -> Stretching:
        """Measure how much it stretches the sphere, at uniform points of it.

        Args:
            seed: the seed for the points.
        """
        generator = seeded(seed)
        points = torch.randn(_COMPARED, self.n, generator=generator)
        points = torch.nn.functional.normalize(points, dim=-1)
        few = points[:_STRETCHED].to(self.device)
        jacobian = torch.func.jacrev(lambda point: self(point[None])[0])
        jacobians = torch.func.vmap(jacobian)(self._radius * few)
        eye = torch.eye(self.n, device=self.device)
        along = eye - few[:, :, None] * few[:, None, :]  # the directions that stay on the sphere
        values = torch.linalg.svdvals(jacobians @ along)[:, : self.n - 1]
        images = self(self._radius * points.to(self.device))
        ratios = torch.pdist(images) / torch.pdist(self._radius * points.to(self.device))
        return Stretching(
            least=float(values[:, -1].min()),
            median=float(values[:, -1].median()),
            largest=float(values[:, 0].max()),
            closest=float(ratios.min()),
            points=_STRETCHED,
            compared=_COMPARED,
        )
