"""The synthetic benchmark: latents through an invertible random network.

The network is that of Zimmermann et al. (2021), appendix A.2; see CITATION.cff.
"""

from __future__ import annotations

from typing import Any, Protocol

from threedident.distributions import PairProcess
from threedident.errors import MissingExtraError, UsageError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "train", "the synthetic benchmark") from error

from threedident.datasets.loader import Batch, PairLoader, check_sizes
from threedident.distributions.torch_sampler import seeded

_AT_ONCE = 5000  # matrices whose condition numbers are computed together


class LatentMap(Protocol):
    """A map x = g(z) of latents (N, n) to observations (N, d)."""

    @property
    def n(self) -> int:
        """The number of latents."""

    @property
    def outputs(self) -> int:
        """The number of dimensions of an observation, d."""

    @property
    def device(self) -> torch.device:
        """The device that it computes on."""

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        """Map latents (N, n) to observations (N, d)."""


class Mixing(torch.nn.Module):
    """The mixing g: linear layers without bias, LeakyReLU between them; invertible.

    Weights are uniform in [-1, 1] with columns scaled to length 1. Each layer is drawn until
    its condition number is at most the smallest of `trials` draws, so that g neither folds
    nor flattens the latents much. Nothing is trained.

    Attributes:
        condition_numbers: the condition number of each layer's matrix.
        threshold: the largest condition number that a layer may have.
    """

    def __init__(
        self,
        n: int = 10,
        *,
        layers: int = 3,
        negative_slope: float = 0.2,
        trials: int = 25_000,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        """Draw the layers on the CPU, so that they are the same for every device.

        Args:
            n: the number of dimensions of latents and observations.
            layers: the number of linear layers.
            negative_slope: the slope of the LeakyReLU below 0.
            trials: the number of draws that set the threshold.
            seed: the seed for the weights.
            device: the device that holds the weights.

        Raises:
            UsageError: an argument does not fit.
        """
        super().__init__()
        if n < 1 or layers < 1 or trials < 1 or not 0 < negative_slope <= 1:
            raise UsageError(
                "a mixing needs n, layers and trials >= 1 and a slope in (0, 1], found "
                f"{n}, {layers}, {trials} and {negative_slope}"
            )
        generator = seeded(seed)
        draws = _draws(n, generator)
        seen, least = 0, torch.inf
        while seen < trials:
            least = min(least, float(next(draws)[1][: trials - seen].min()))
            seen += _AT_ONCE
        self.threshold = least
        chosen: list[torch.Tensor] = []
        numbers: list[float] = []
        while len(chosen) < layers:
            matrices, conditions = next(draws)
            for row in (conditions <= least).nonzero()[:, 0].tolist()[: layers - len(chosen)]:
                chosen.append(matrices[row])
                numbers.append(float(conditions[row]))
        self.condition_numbers = tuple(numbers)
        self._slope = negative_slope
        self.weights: torch.Tensor
        self.register_buffer("weights", torch.stack(chosen).float().to(device))

    @property
    def n(self) -> int:
        """The number of latents."""
        return int(self.weights.shape[-1])

    @property
    def outputs(self) -> int:
        """The number of dimensions of an observation: as many."""
        return self.n

    @property
    def device(self) -> torch.device:
        """The device that it computes on."""
        return self.weights.device

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Map latents (N, n) to observations (N, n)."""
        x = z
        for number, weight in enumerate(self.weights):
            if number:
                x = torch.nn.functional.leaky_relu(x, self._slope)
            x = x @ weight.T
        return x

    def inverse(self, x: torch.Tensor) -> torch.Tensor:
        """Map observations (N, n) to latents (N, n)."""
        z = x
        for number, weight in reversed(list(enumerate(self.weights))):
            z = torch.linalg.solve(weight, z.T).T
            if number:
                z = torch.nn.functional.leaky_relu(z, 1 / self._slope)
        return z


def _draws(n: int, generator: torch.Generator) -> Any:
    """Draw matrices (k, n, n) with columns of length 1, and their condition numbers, endlessly."""
    while True:
        drawn = 2 * torch.rand(_AT_ONCE, n, n, generator=generator, dtype=torch.float64) - 1
        matrices = drawn / drawn.norm(dim=1, keepdim=True)
        values = torch.linalg.svdvals(matrices)
        yield matrices, values[:, 0] / values[:, -1]


class SyntheticPairs:
    """Batches `((z, z~), (x, x~))` of exact pairs and their observations, drawn on the fly.

    Attributes:
        mixing: the map x = g(z); the pairs are drawn on its device.
        process: the process of the pairs.
        batches: the number of batches in an epoch; None: there is no end.
    """

    def __init__(
        self,
        mixing: LatentMap,
        process: PairProcess,
        *,
        batch_size: int = 6144,
        batches: int | None = None,
        seed: int = 0,
    ) -> None:
        """Take a mixing and a process; nothing is drawn yet.

        Args:
            mixing: the map x = g(z), such as a `Mixing` or a `DecoderMixing`.
            process: the process of the pairs, on a space of the mixing's dimension.
            batch_size: the number of pairs in a batch.
            batches: the number of batches in an epoch; None: there is no end.
            seed: the seed for the pairs.

        Raises:
            UsageError: the mixing has another dimension than the process's space, or an argument
                does not fit.
        """
        if process.space.n != mixing.n:
            raise UsageError(f"the mixing takes {mixing.n} dimensions, found {process.space}")
        check_sizes(batch_size, batches)
        self.mixing, self.process, self.batches = mixing, process, batches
        self._batch_size, self._seed = batch_size, seed

    def batch(self, epoch: int, number: int) -> Batch:
        """Draw batch `number` of an epoch: latents (B, n), observations (B, d), float32."""
        generator = seeded(self._seed, epoch, number, device=self.mixing.device)
        z, z_tilde = self.process.sample(self._batch_size, generator=generator)
        with torch.no_grad():
            return Batch((z, z_tilde), (self.mixing(z), self.mixing(z_tilde)))

    def loader(self, *, threads: int = 1, ahead: int = 1) -> PairLoader:
        """Make a loader of the batches in order, prepared by threads of this process."""
        return PairLoader(self, threads=threads, ahead=ahead)
