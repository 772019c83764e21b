"""Transitions on a grid in torch: exact draws, and exact logarithms of probabilities.

Draws are by inverse transform, one number for each factor; nothing is rejected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from threedident.distributions.grid import Grid
from threedident.distributions.transitions import DiscreteLaplace, UniformFactors
from threedident.errors import MissingExtraError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "train", "sampling pairs") from error

Tensor = torch.Tensor
Generator = torch.Generator | None

_NODES = 64  # of the quadrature over rates


def uniform_points(grid: Grid, like: Tensor, generator: Generator) -> Tensor:
    """Draw uniform points of a grid, as many as `like` has rows."""
    return _redraw_columns(grid, like, range(grid.n), generator)


def sample_uniform_factors(
    transition: UniformFactors, grid: Grid, mean: Tensor, generator: Generator
) -> Tensor:
    """Draw z~ around each mean, (N, n), by UNI."""
    out = _redraw_columns(grid, mean, transition.redrawn(grid), generator)
    columns = transition.movable(grid)
    rows, device = len(mean), mean.device
    shape = (rows, len(columns))
    least, most = transition.bounds(len(columns))
    chosen = torch.randint(least, most + 1, (rows, 1), generator=generator, device=device)
    if transition.coin:
        heads = torch.randint(2, (rows, 1), generator=generator, device=device)
        chosen = torch.where(heads == 1, chosen, torch.ones_like(chosen))
    order = torch.rand(shape, generator=generator, device=device).argsort(1).argsort(1)
    changes = order < chosen
    for place, column in enumerate(columns):
        size = grid.sizes[column]
        # A step of 0 keeps the value; from 1 on, steps lead to each of the others.
        first = 0 if transition.replace else 1
        step = torch.randint(first, size, (rows,), generator=generator, device=device)
        value = (mean[:, column].long() + step) % size
        out[:, column] = torch.where(changes[:, place], value.to(mean.dtype), mean[:, column])
    return out


def log_uniform_factors(
    transition: UniformFactors, grid: Grid, mean: Tensor, points: Tensor
) -> Tensor:
    """Compute log p(z~ | z) by UNI for means (B, n) and points (N, n), (B, N)."""
    columns = transition.movable(grid)
    same = _same(mean, points)
    # The coefficient of x^c is the sum, over all sets of c factors that can have been chosen, of
    # the probabilities of the new values.
    wide = _wide(mean)
    sums = [torch.ones_like(same[0], dtype=wide)]
    for column in columns:
        size, stays = grid.sizes[column], same[column].to(wide)
        taken = torch.full_like(stays, 1 / size)
        if not transition.replace:
            taken = (1 - stays) / (size - 1)
        longer = [stays * each for each in sums]
        longer.append(torch.zeros_like(stays))
        for chosen, each in enumerate(sums):
            longer[chosen + 1] += taken * each
        sums = longer
    total = torch.zeros_like(sums[0])
    for chosen, weight in enumerate(transition.weights(len(columns))):
        total += weight / math.comb(len(columns), chosen) * sums[chosen]
    logs = total.log() - _log_of_hidden(grid, transition.redrawn(grid))
    return _where_kept(grid, same, (*columns, *transition.redrawn(grid)), logs).to(mean.dtype)


def sample_discrete_laplace(
    transition: DiscreteLaplace, grid: Grid, mean: Tensor, generator: Generator
) -> Tensor:
    """Draw z~ around each mean, (N, n), by LAP."""
    out = _redraw_columns(grid, mean, transition.redrawn(grid), generator)
    columns = list(transition.movable(grid))
    rows = len(mean)

    def rand(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=mean.device, dtype=_wide(mean))

    if isinstance(transition.rate, tuple):
        low, high = transition.rate
        rate = low + (high - low) * rand(rows, 1)
    else:
        rate = mean.new_tensor(transition.rate, dtype=_wide(mean))
    steps = _Steps(grid, columns, mean, rate)
    moved = rand(rows, len(columns)) < steps.log_move.exp()
    still = ~moved.any(1)
    if transition.redraw == "one":
        forced = (rand(rows) * len(columns)).long().clamp_max(len(columns) - 1)
        moved[still, forced[still]] = True
    else:
        # As if pairs were drawn until one factor moves: the first that does, and those after it.
        first = _choose(steps.log_first_move, rand(rows))[:, None]
        place = torch.arange(len(columns), device=mean.device)
        again = (place == first) | (
            (place > first) & (rand(rows, len(columns)) < steps.log_move.exp())
        )
        moved = torch.where(still[:, None], again, moved)
    values = steps.to(rand(rows, len(columns))).to(mean.dtype)
    out[:, columns] = torch.where(moved, values, out[:, columns])
    return out


def log_discrete_laplace(
    transition: DiscreteLaplace, grid: Grid, mean: Tensor, points: Tensor
) -> Tensor:
    """Compute log p(z~ | z) by LAP for means (B, n) and points (N, n), (B, N).

    Where each pair has its own rate, the integral over the rates is a Gauss-Legendre quadrature
    with 64 nodes.
    """
    columns = list(transition.movable(grid))
    same = _same(mean, points)
    distance = [
        (mean[:, None, k].to(_wide(mean)) - points[None, :, k].to(_wide(mean))).abs()
        for k in columns
    ]
    rates, shares = [1.0], [1.0]
    if isinstance(transition.rate, tuple):
        low, high = transition.rate
        nodes, parts = np.polynomial.legendre.leggauss(_NODES)  # type: ignore[no-untyped-call]
        rates, shares = (low + (high - low) * (1 + nodes) / 2).tolist(), (parts / 2).tolist()
    else:
        rates = [transition.rate]
    logs = torch.full_like(distance[0], -math.inf)
    for rate, share in zip(rates, shares, strict=True):
        steps = _Steps(grid, columns, mean, mean.new_tensor(rate, dtype=_wide(mean)))
        each = _log_steps(steps, [same[k] for k in columns], distance, transition.redraw)
        logs = torch.logaddexp(logs, each + math.log(share))
    logs = logs - _log_of_hidden(grid, transition.redrawn(grid))
    return _where_kept(grid, same, (*columns, *transition.redrawn(grid)), logs).to(mean.dtype)


def _log_steps(
    steps: _Steps, same: Sequence[Tensor], distance: Sequence[Tensor], redraw: str
) -> Tensor:
    """The log probabilities of the columns that can move, at one rate."""
    logs = torch.zeros_like(distance[0])
    only = torch.zeros_like(logs)  # the log probability of the step of what moves
    moved = torch.zeros_like(logs)
    decays = torch.zeros_like(logs)
    for k, (stays, apart) in enumerate(zip(same, distance, strict=True)):
        step = -steps.decay[:, k, None] * (apart - 1) - steps.reach[:, k, None].log()
        move = steps.log_move_beyond[:, k, None] + step
        logs += torch.where(stays, steps.log_stay[:, k, None], move)
        decays += torch.where(stays, torch.zeros_like(step), steps.decay[:, k, None])
        only += torch.where(stays, torch.zeros_like(step), step)
        moved += (~stays).to(moved.dtype)
    if redraw == "reject":
        logs = logs + (steps.least - decays) - steps.log_first_move.logsumexp(1)[:, None]
    else:
        logs = logs - decays
        all_stay = steps.log_stay.sum(1)[:, None] - math.log(len(same))
        forced = torch.where(moved == 1, all_stay + only, torch.full_like(logs, -math.inf))
        logs = torch.logaddexp(logs, forced)
    return logs.masked_fill(moved == 0, -math.inf)


class _Steps:
    """The steps of the columns that can move, from given means and at given rates.

    Everything is relative to a step of one, so that nothing underflows at high rates.

    Attributes:
        decay: rate / ln n, (N, M).
        log_move: the log probability that a factor moves by itself, (N, M).
        log_stay: that it stays, (N, M).
        reach: the sum of exp(-decay (d - 1)) over all steps d, to both sides, (N, M).
        log_move_beyond: `log_move` + `decay`, (N, M).
        least: the least decay, (N, 1).
        log_first_move: the log probability that a factor moves and none before it, + `least`,
            (N, M).
    """

    def __init__(self, grid: Grid, columns: Sequence[int], mean: Tensor, rate: Tensor) -> None:
        self._mean = mean[:, list(columns)].to(rate.dtype)
        last = self._mean.new_tensor([grid.sizes[k] - 1 for k in columns])
        self.decay = (rate / (last + 1).log()).expand(self._mean.shape)
        self._right = self._sum(last - self._mean)
        self.reach = self._right + self._sum(self._mean)
        self._last = last
        odds = self.reach.log() - self.decay
        self.log_move = torch.nn.functional.logsigmoid(odds)
        self.log_stay = torch.nn.functional.logsigmoid(-odds)
        self.log_move_beyond = self.reach.log() - torch.nn.functional.softplus(odds)
        self.least = self.decay.amin(1, keepdim=True)
        before = self.log_stay.cumsum(1) - self.log_stay
        # What is small beside the decay would be lost in a sum with it.
        self.log_first_move = before + self.log_move_beyond + (self.least - self.decay)

    def _sum(self, count: Tensor) -> Tensor:
        """The sum of exp(-decay (d - 1)) over d from 1 to `count`."""
        return torch.expm1(-self.decay * count) / torch.expm1(-self.decay)

    def to(self, share: Tensor) -> Tensor:
        """The value that a factor moves to, by a number in [0, 1) each, (N, M)."""
        place = share * self.reach
        right = (place < self._right) | (self._mean == 0)
        rest = torch.where(right, place, place - self._right)
        # The number of steps whose sum `rest` has passed.
        far = (-torch.log1p(rest * torch.expm1(-self.decay)) / self.decay).floor() + 1
        most = torch.where(right, self._last - self._mean, self._mean)
        far = torch.minimum(far, most).clamp_min(1)  # which rounding alone can overstep
        return self._mean + torch.where(right, far, -far)


def _choose(logs: Tensor, share: Tensor) -> Tensor:
    """Choose a column of each row by weights (N, M), given as logarithms, and numbers (N,)."""
    sums = (logs - logs.logsumexp(1, keepdim=True)).exp().cumsum(1)
    return (share[:, None] >= sums).sum(1).clamp_max(logs.shape[1] - 1)


def _redraw_columns(
    grid: Grid, mean: Tensor, columns: Sequence[int], generator: Generator
) -> Tensor:
    """A copy of the means (N, n), with uniform values in some columns."""
    out = mean.clone()
    for column in columns:
        drawn = torch.randint(
            grid.sizes[column], (len(mean),), generator=generator, device=mean.device
        )
        out[:, column] = drawn.to(mean.dtype)
    return out


def _same(mean: Tensor, points: Tensor) -> list[Tensor]:
    """Whether means and points agree in each column, (B, N) each."""
    return [mean[:, None, k] == points[None, :, k] for k in range(mean.shape[1])]


def _where_kept(grid: Grid, same: Sequence[Tensor], free: Sequence[int], logs: Tensor) -> Tensor:
    """The log probabilities, -inf where a column changes that is not free to."""
    for column in range(grid.n):
        if column not in free:
            logs = logs.masked_fill(~same[column], -math.inf)
    return logs


def _log_of_hidden(grid: Grid, columns: Sequence[int]) -> float:
    """The logarithm of the number of values of columns that are drawn anew."""
    return sum(math.log(grid.sizes[column]) for column in columns)


def _wide(like: Tensor) -> torch.dtype:
    """Double precision where the device has it."""
    return like.dtype if like.device.type == "mps" else torch.float64
