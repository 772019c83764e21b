"""The N x M part of the contrastive losses: log sum_j exp s(a_i, b_j), and its gradient.

Nothing of size N x M x n is ever held. The compiled backend goes over the pairs in tiles and
holds O((N + M) n); the backend of plain torch holds blocks of rows of the N x M similarities.
Both compute them again in the backward pass instead of storing them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from threedident.errors import MissingExtraError, UsageError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "train", "a contrastive loss") from error

try:
    import numba
except ImportError:  # plain torch will do
    numba = None

BACKENDS = ("auto", "numba", "torch")

_NARROW = (torch.float16, torch.bfloat16)
_CACHED = 1 << 20  # similarities of a block on a processor
_LARGE = 1 << 26  # on an accelerator

# exp(s - largest s) below exp(these) is 0: none of 1e12 of them would change a sum, but processors
# take a hundred times as long over what is almost too small for a number.
_LEAST, _LEAST_64 = np.float32(-60), -600.0

# Of the compiled backend.
_TILE = 5120  # numbers of a tile of candidates: it and its gradient lie in the nearest cache
_ROWS = 64  # that go over a tile before the next is taken
_ALONE = 1 << 17  # so few pairs are not worth a second thread
_DOT, _CITYBLOCK, _SQUARE, _CUBE, _OTHER = range(5)
_KINDS = {None: _DOT, 1.0: _CITYBLOCK, 2.0: _SQUARE, 3.0: _CUBE}


def similarity(a: torch.Tensor, b: torch.Tensor, p: float | None = None) -> torch.Tensor:
    """Compute s(a, b) over the last dimension: a . b where p is None, else -||a - b||_p^p.

    Args:
        a, b: the codes, (..., n), of shapes that broadcast.
        p: the power, at least 1, or None.

    Returns:
        (...).
    """
    if p is None:
        return (a * b).sum(-1)
    distance = a - b
    return -(distance.square() if p == 2 else distance.abs().pow(p)).sum(-1)


def log_sum_exp(
    a: torch.Tensor,
    b: torch.Tensor,
    p: float | None = None,
    *,
    exclude: int | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """Compute log sum_j exp s(a_i, b_j), with s of `similarity`; differentiable once in a and b.

    Args:
        a: the anchors, (N, n), floating point. Half precision is computed in float32, also under
            autocast.
        b: the candidates, (M, n), on the device of a.
        p: the power, at least 1, or None for the dot product.
        exclude: an offset: row i leaves out the candidate i + exclude, where there is one.
        backend: the backend: numba (on a processor), torch, or auto: numba where it can be had.

    Returns:
        (N,), float32 or float64. -inf, with a gradient of 0, where no candidate is left.

    Raises:
        UsageError: an argument does not fit, or numba was asked for and cannot be had.
    """
    _check(a, b, p, backend)
    dtype = torch.promote_types(a.dtype, b.dtype)
    if dtype in _NARROW:
        dtype = torch.float32
    a, b = a.to(dtype), b.to(dtype)
    power = None if p is None else float(p)
    result: torch.Tensor = _LogSumExp.apply(a, b, power, exclude, _choose(a, b, backend))
    return result


def _check(a: torch.Tensor, b: torch.Tensor, p: float | None, backend: str) -> None:
    for name, value in (("a", a), ("b", b)):
        if value.ndim != 2 or 0 in value.shape or not value.is_floating_point():
            raise UsageError(
                f"{name} must be floating point of shape (rows, n), neither 0, found "
                f"{value.dtype} of shape {tuple(value.shape)}"
            )
    if a.shape[1] != b.shape[1] or a.device != b.device:
        raise UsageError(
            "a and b must have as many columns and one device, found shapes "
            f"{tuple(a.shape)} and {tuple(b.shape)} on {a.device} and {b.device}"
        )
    if p is not None and not 1 <= p < math.inf:
        raise UsageError(f"p must be at least 1, or None for the dot product, found {p}")
    if backend not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r}: expected one of {', '.join(BACKENDS)}")


def _choose(a: torch.Tensor, b: torch.Tensor, backend: str) -> str:
    if backend == "torch" or (backend == "auto" and a.device.type != "cpu"):
        return "torch"
    if a.device.type != "cpu":
        raise UsageError(f"the numba backend computes on a processor, found {a.device}")
    if _kernels(a.dtype == torch.float64) is None:
        if backend == "numba":
            raise UsageError("the numba backend needs numba, which cannot be imported or used here")
        return "torch"
    # The compiled maximum takes numbers for granted; torch carries a nan through.
    return "numba" if a.isfinite().all() and b.isfinite().all() else "torch"


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, a: torch.Tensor, b: torch.Tensor, p: float | None, offset: int | None, chosen: str
    ) -> torch.Tensor:
        ctx.p, ctx.offset, ctx.chosen = p, offset, chosen
        with torch.autocast(a.device.type, enabled=False):
            value, peak, total = _FORWARD[chosen](a, b, p, offset)
        ctx.save_for_backward(a, b, peak, total)
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a, b, peak, total = ctx.saved_tensors
        with torch.autocast(a.device.type, enabled=False):
            # A row without candidates has none to pull at.
            empty = total == 0
            scale = torch.where(empty, 0, grad / torch.where(empty, 1, total))
            peak = torch.where(empty, 0, peak)
            of_a, of_b = _BACKWARD[ctx.chosen](a, b, ctx.p, ctx.offset, peak, scale)
        return of_a, of_b, None, None, None


def _torch_forward(
    a: torch.Tensor, b: torch.Tensor, p: float | None, offset: int | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return of every row log sum exp of s, the largest s, and sum exp(s - largest): (N,) each."""
    peak, total = a.new_empty(len(a)), a.new_empty(len(a))
    columns = b.T.contiguous()
    for rows, scores, free in _blocks(a, b):
        _scores(a[rows], columns, p, scores, free)
        _leave_out(scores, offset, rows)
        peak[rows] = scores.amax(1)
        top = torch.where(peak[rows] == -math.inf, 0, peak[rows])
        total[rows] = _exp_rows(scores, top).sum(1)
    return peak + total.log(), peak, total


def _torch_backward(
    a: torch.Tensor,
    b: torch.Tensor,
    p: float | None,
    offset: int | None,
    peak: torch.Tensor,
    scale: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of sum_ij scale_i exp(s_ij - peak_i), exp's factor held, in a and b."""
    columns = b.T.contiguous()
    of_a, of_columns = torch.empty_like(a), torch.zeros_like(columns)
    for rows, scores, free in _blocks(a, b):
        _scores(a[rows], columns, p, scores, free)
        _leave_out(scores, offset, rows)
        weights = _exp_rows(scores, peak[rows]).mul_(scale[rows, None])
        if p is None:
            of_a[rows] = weights @ b
            of_columns.addmm_(a[rows].T, weights)
            continue
        for k, column in enumerate(columns):
            pull = torch.sub(a[rows, k, None], column, out=free)
            if p == 1:
                pull.sign_()
            elif p != 2:
                pull = pull.abs().pow_(p - 1).copysign_(pull)
            pull.mul_(weights)
            of_a[rows, k] = -p * pull.sum(1)
            of_columns[k] += p * pull.sum(0)
    return of_a, of_columns.T


def _exp_rows(scores: torch.Tensor, peak: torch.Tensor) -> torch.Tensor:
    """Return exp(scores - peak), (rows, M), in the place of the scores."""
    least = _LEAST_64 if scores.dtype == torch.float64 else float(_LEAST)
    below: torch.Tensor = torch.threshold_(scores.sub_(peak[:, None]), least, -math.inf)
    return below.exp_()


def _blocks(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """Yield rows of a, with room for two arrays (rows, M), which all blocks share."""
    size = max(1, (_CACHED if a.device.type == "cpu" else _LARGE) // len(b))
    room = a.new_empty(2, min(size, len(a)), len(b))
    for start in range(0, len(a), size):
        rows = slice(start, min(start + size, len(a)))
        scores, free = room[:, : rows.stop - start]
        yield rows, scores, free


def _scores(
    a: torch.Tensor,
    columns: torch.Tensor,
    p: float | None,
    scores: torch.Tensor,
    apart: torch.Tensor,
) -> None:
    """Compute s of some rows and all candidates, into scores.

    A dimension at a time: |a|^2 + |b|^2 - 2 a . b would cancel.

    Args:
        a: the rows, (rows, n).
        columns: the candidates, (n, M).
        p: the power of the similarity; None for the dot product.
        scores: the array that s goes into, (rows, M).
        apart: an array that is overwritten, (rows, M).
    """
    if p is None:
        torch.mm(a, columns, out=scores)
        return
    scores.zero_()
    for k, column in enumerate(columns):
        torch.sub(a[:, k, None], column, out=apart)
        if p == 2:
            scores.addcmul_(apart, apart, value=-1)
        else:
            scores.sub_(apart.abs_() if p == 1 else apart.abs_().pow_(p))


def _leave_out(scores: torch.Tensor, offset: int | None, rows: slice) -> None:
    """Put -inf for the candidate i + offset of each row i, of scores (rows, M)."""
    if offset is None:
        return
    first, last = max(rows.start, -offset), min(rows.stop, scores.shape[1] - offset)
    if first < last:
        out = scores[first - rows.start : last - rows.start, first + offset : last + offset]
        out.diagonal().fill_(-math.inf)


Function = TypeVar("Function", bound=Callable[..., Any])


def _compiled(*flags: str) -> Callable[[Function], Function]:
    """Compile a function at its first call, where numba can be had.

    Args:
        flags: the liberties, beyond IEEE 754, that LLVM may take with its arithmetic.
    """

    def compiled(function: Function) -> Function:
        return function if numba is None else _jit(function, set(flags))

    return compiled


def _jit(function: Callable[..., Any], flags: set[str], cache: bool = False) -> Any:
    # Without the interpreter's lock, threads of Python will do: not every layer of threads that
    # numba may find survives a fork and calls from two threads.
    # Helpers are inlined without exception: a kernel just compiled would else call them as
    # compiled by themselves, one from the cache as compiled with it, and the two may
    # round otherwise.
    return numba.njit(
        nogil=True, error_model="numpy", fastmath=flags, cache=cache, forceinline=not cache
    )(function)


# Sums are vectorised only where they may be reordered.
_SUMS = ("contract", "nsz", "reassoc")

# Of exp: log2 e; 3 * 2^22, which rounds what it is added to; log 2 in two parts, the first
# short enough that its multiples are exact; 1 / k!.
_LOG2_E = np.float32(1 / math.log(2))
_ROUND = np.float32(3 << 22)
_LOG_2 = np.float32(round(math.log(2) * 4096) / 4096)
_LOG_2_REST = np.float32(math.log(2) - round(math.log(2) * 4096) / 4096)
_C0, _C1, _C2, _C3, _C4, _C5, _C6 = (np.float32(1 / math.factorial(k)) for k in range(7))
_EXPONENT = np.int32(23)  # where it begins in a float32

_SIGN, _REST = np.int32(31), np.int32(0x7FFFFFFF)


@_compiled("contract")
def _exp(x: Any) -> Any:
    """Compute exp of a float32 up to 88, within 3e-7 of itself; 0 below -60.

    LLVM can vectorise it: 2^k exp(r), with k the nearest integer to x / log 2, is a polynomial in
    r, to whose exponent k is added.
    """
    above = _LEAST if x < _LEAST else x
    shifted = above * _LOG2_E + _ROUND  # its last bits are k
    k = shifted - _ROUND
    r = above - k * _LOG_2 - k * _LOG_2_REST
    value = ((((_C6 * r + _C5) * r + _C4) * r + _C3) * r + _C2) * r * r + (_C1 * r + _C0)
    bits = np.float32(value).view(np.int32) + (np.float32(shifted).view(np.int32) << _EXPONENT)
    return np.float32(0) if x < _LEAST else np.int32(bits).view(np.float32)


@_compiled("contract")
def _exp_all(scores: Any, peak: Any, factor: Any) -> None:
    """Put factor * exp(scores - peak) in the place of scores (T,)."""
    if scores.itemsize == 4:
        for j in range(len(scores)):
            scores[j] = factor * _exp(np.float32(scores[j] - peak))
    else:
        for j in range(len(scores)):
            exponent = scores[j] - peak
            scores[j] = factor * math.exp(exponent) if exponent >= _LEAST_64 else 0.0


@_compiled()
def _largest(scores: Any) -> Any:
    if scores.itemsize == 8:
        peak = scores[0]
        for j in range(len(scores)):
            peak = scores[j] if scores[j] > peak else peak
        return peak
    # As integers, whose largest LLVM can find with vectors: the bits of floating point numbers
    # are in their order but for those below 0, which are in the opposite one.
    bits = scores.view(np.int32)
    top = np.int32(bits[0] ^ ((bits[0] >> _SIGN) & _REST))
    for j in range(len(bits)):
        ordered = np.int32(bits[j] ^ ((bits[j] >> _SIGN) & _REST))
        top = ordered if ordered > top else top
    return scores.dtype.type(np.int32(top ^ ((top >> _SIGN) & _REST)).view(np.float32))


@_compiled(*_SUMS)
def _total(values: Any) -> Any:
    total = values[0] - values[0]
    for j in range(len(values)):
        total += values[j]
    return total


@_compiled(*_SUMS)
def _score(kind: int, p: Any, row: Any, tile: Any, scores: Any) -> None:
    """Compute s of a row (n,) and the candidates of a tile (n, T), into scores (T,)."""
    scores[:] = 0
    for k in range(len(row)):
        x, column = row[k], tile[k]
        if kind == _DOT:
            for j in range(len(scores)):
                scores[j] += x * column[j]
        elif kind == _CITYBLOCK:
            for j in range(len(scores)):
                scores[j] -= abs(x - column[j])
        elif kind == _SQUARE:
            for j in range(len(scores)):
                apart = x - column[j]
                scores[j] -= apart * apart
        elif kind == _CUBE:
            for j in range(len(scores)):
                apart = abs(x - column[j])
                scores[j] -= apart * apart * apart
        else:
            for j in range(len(scores)):
                scores[j] -= abs(x - column[j]) ** p


@_compiled(*_SUMS)
def _pull(kind: int, p: Any, row: Any, tile: Any, weights: Any, of_row: Any, of_tile: Any) -> None:
    """Add the gradients of the weighted scores of a row and a tile, without the factor p.

    Args:
        kind, p, row, tile: the arguments of `_score`.
        weights: the weights of the scores, (T,).
        of_row: the sum that the row's gradient is added to, (n,).
        of_tile: the sum that the tile's gradient is added to, (n, T).
    """
    zero = row[0] - row[0]
    for k in range(len(row)):
        x, column, of_column, total = row[k], tile[k], of_tile[k], zero
        if kind == _DOT:
            for j in range(len(weights)):
                total -= weights[j] * column[j]
                of_column[j] += weights[j] * x
        elif kind == _CITYBLOCK:
            for j in range(len(weights)):
                apart = x - column[j]
                pull = weights[j] if apart > 0 else -weights[j]
                pull = zero if apart == 0 else pull
                total += pull
                of_column[j] += pull
        elif kind == _SQUARE:
            for j in range(len(weights)):
                pull = weights[j] * (x - column[j])
                total += pull
                of_column[j] += pull
        elif kind == _CUBE:
            for j in range(len(weights)):
                apart = x - column[j]
                pull = weights[j] * apart * abs(apart)
                total += pull
                of_column[j] += pull
        else:
            for j in range(len(weights)):
                apart = x - column[j]
                pull = weights[j] * abs(apart) ** (p - 1)
                pull = pull if apart > 0 else -pull
                total += pull
                of_column[j] += pull
        of_row[k] -= total


@_compiled()
def _score_of(
    kind: int, p: Any, row: Any, tiles: Any, t: int, count: int, without: int, scores: Any
) -> None:
    """Compute `_score` of tile t; -inf for the candidate `without` and those from `count` on."""
    _score(kind, p, row, tiles[t], scores)
    first = t * len(scores)
    if first <= without < first + len(scores):
        scores[without - first] = -np.inf
    for j in range(max(count - first, 0), len(scores)):
        scores[j] = -np.inf


@_compiled()
def _forward_rows(
    kind: int,
    p: Any,
    a: Any,
    tiles: Any,
    count: int,
    offset: int,
    start: int,
    stop: int,
    value: Any,
    peak: Any,
    total: Any,
) -> None:
    """Compute log sum exp of the scores, the peak and the total of the rows from start to stop.

    Args:
        kind: the kind of similarity, such as `_SQUARE`.
        p: the power of the similarity, for `_OTHER`.
        a: the rows, (N, n).
        tiles: the candidates, (t, n, T).
        count: the number of candidates; the rest of the last tile is padding.
        offset: the distance from a row i to the candidate i + offset that it leaves out.
        start, stop: the first row, and the first one that is not computed.
        value: the array that peak + log(total) goes into, (N,).
        peak: the array that the largest score goes into, (N,).
        total: the array that the sum of exp(score - peak) goes into, (N,) float64.
    """
    peak[start:stop], total[start:stop] = -np.inf, 0
    scores = np.empty(tiles.shape[2], a.dtype)
    for block in range(start, stop, _ROWS):
        for t in range(len(tiles)):
            for i in range(block, min(block + _ROWS, stop)):
                _score_of(kind, p, a[i], tiles, t, count, i + offset, scores)
                top = _largest(scores)
                if top > peak[i]:
                    total[i] *= math.exp(peak[i] - top)
                    peak[i] = top
                if peak[i] > -np.inf:
                    _exp_all(scores, peak[i], a.dtype.type(1))
                    total[i] += _total(scores)
        for i in range(block, min(block + _ROWS, stop)):
            value[i] = peak[i] + math.log(total[i])


@_compiled()
def _backward_rows(
    kind: int,
    p: Any,
    a: Any,
    tiles: Any,
    count: int,
    offset: int,
    start: int,
    stop: int,
    peak: Any,
    scale: Any,
    of_a: Any,
    of_tiles: Any,
) -> None:
    """Add the gradients of sum_ij scale_i exp(s_ij - peak_i), of the exp's argument alone.

    Args:
        kind, p, a, tiles, count, offset, start, stop: the arguments of `_forward_rows`.
        peak: the largest score of each row, (N,).
        scale: the factor of each row, (N,).
        of_a: the sum that the rows' gradients are added to, (N, n).
        of_tiles: the sum that the tiles' gradients are added to, (t, n, T); no other part of the
            rows adds to it.
    """
    weights = np.empty(tiles.shape[2], a.dtype)
    part = np.empty(tiles.shape[1:], a.dtype)
    for block in range(start, stop, _ROWS):
        for t in range(len(tiles)):
            part[:] = 0  # sums of sums: they round less
            for i in range(block, min(block + _ROWS, stop)):
                _score_of(kind, p, a[i], tiles, t, count, i + offset, weights)
                _exp_all(weights, peak[i], scale[i])
                _pull(kind, p, a[i], tiles[t], weights, of_a[i], part)
            of_tiles[t] += part


@functools.cache
def _kernels(double: bool) -> tuple[Any, Any] | None:
    """Compile `_forward_rows` and `_backward_rows` for float32 or float64; None without numba.

    They are kept on the disk where they can be: compiling takes seconds.
    """
    if numba is None:
        return None
    dtype = np.float64 if double else np.float32
    outer: tuple[Any, ...] = (_forward_rows, _backward_rows)
    for cache in (True, False):
        with contextlib.suppress(Exception):  # no folder to write to, a damaged file, no compiler
            forward, backward = (_jit(f.py_func, set(), cache) for f in outer)
            a, tiles, one = np.zeros((1, 1), dtype), np.zeros((1, 1, 1), dtype), np.zeros(1, dtype)
            fixed = (_SQUARE, dtype(2), a, tiles, 1, 0, 0, 1)
            forward(*fixed, one.copy(), one.copy(), np.zeros(1))
            backward(*fixed, one, one, a.copy(), tiles.copy())
            return forward, backward
    return None


def _numba_forward(
    a: torch.Tensor, b: torch.Tensor, p: float | None, offset: int | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the result of `_torch_forward` with the compiled kernels."""
    fixed = _packed(a, b, p, offset)
    value, peak, total = (np.empty(len(a), d) for d in (fixed[3].dtype, fixed[3].dtype, float))
    kernel, _ = _loaded(a)
    _in_threads(_parts(a, b), len(a), lambda _, i, j: kernel(*fixed, i, j, value, peak, total))
    return torch.from_numpy(value), torch.from_numpy(peak), torch.from_numpy(total)


def _numba_backward(
    a: torch.Tensor,
    b: torch.Tensor,
    p: float | None,
    offset: int | None,
    peak: torch.Tensor,
    scale: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the result of `_torch_backward` with the compiled kernels."""
    fixed, ins = _packed(a, b, p, offset), (peak.numpy(), scale.to(a.dtype).numpy())
    tiles, parts = fixed[3], _parts(a, b)
    of_a = np.zeros(a.shape, tiles.dtype)
    of_tiles = np.zeros((parts, *tiles.shape), tiles.dtype)  # one a part: no races
    _, kernel = _loaded(a)
    _in_threads(parts, len(a), lambda k, i, j: kernel(*fixed, i, j, *ins, of_a, of_tiles[k]))
    of_b = of_tiles.sum(0).transpose(0, 2, 1).reshape(-1, b.shape[1])[: len(b)]
    factor = 1.0 if p is None else p
    return torch.from_numpy(of_a).mul_(factor), torch.from_numpy(of_b).mul_(factor)


def _loaded(a: torch.Tensor) -> tuple[Any, Any]:
    kernels = _kernels(a.dtype == torch.float64)
    assert kernels is not None
    return kernels


def _packed(
    a: torch.Tensor, b: torch.Tensor, p: float | None, offset: int | None
) -> tuple[Any, ...]:
    """Return the arguments of the kernels from kind to offset."""
    count, n = b.shape
    width = min(max(_TILE // n // 16, 1), -(-count // 16)) * 16
    tiles = b.new_zeros(-(-count // width) * width, n)
    tiles[:count] = b
    packed = tiles.view(-1, width, n).transpose(1, 2).contiguous().numpy()
    power = packed.dtype.type(1 if p is None else p)
    # An offset that leaves nothing out is one that no row reaches.
    without = -len(a) if offset is None else offset
    return _KINDS.get(p, _OTHER), power, a.contiguous().numpy(), packed, count, without


def _parts(a: torch.Tensor, b: torch.Tensor) -> int:
    """Return the number of parts to cut the rows into: some a thread, as a thread may wait."""
    threads = torch.get_num_threads()
    enough = min(len(a) * len(b) // _ALONE, len(a) // _ROWS)
    return 1 if threads == 1 else max(1, min(4 * threads, enough))


def _in_threads(parts: int, rows: int, work: Callable[[int, int, int], None]) -> None:
    """Call work(part, start, stop) for every part of the rows."""
    if parts == 1:
        work(0, 0, rows)
        return
    bounds = [part * rows // parts for part in range(parts + 1)]
    pool = _pool(torch.get_num_threads(), os.getpid())
    list(pool.map(work, range(parts), bounds[:-1], bounds[1:]))


@functools.lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    # One a process: threads do not survive a fork.
    return ThreadPoolExecutor(threads, thread_name_prefix="log_sum_exp")


_FORWARD = {"torch": _torch_forward, "numba": _numba_forward}
_BACKWARD = {"torch": _torch_backward, "numba": _numba_backward}
