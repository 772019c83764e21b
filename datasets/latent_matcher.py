"""`LatentMatcher`: rendered latents for drawn ones, by nearest neighbours or resampling."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.distributions import Distribution, PairProcess, Uniform
from threedident.distributions.torch_sampler import seeded
from threedident.errors import DatasetError, MissingExtraError, UsageError
from threedident.latents import latents_digest
from threedident.progress import Progress
from threedident.storage.atomic_files import read_json, replacing, write_json
from threedident.system import file_digest

try:
    import faiss
    import torch
except ImportError as error:
    raise MissingExtraError(str(error.name), "train", "matching latents") from error

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

MATCHES = ("nearest", "resample")
#: Up to this number of latents, "auto" searches exactly (see benchmarks/pairs.py).
EXACT_UP_TO = 20_000
_NPROBE = 16
_BLOCK = 512  # latents whose weights are summed before any is looked at
_AT_ONCE = 2**24  # weights in memory
_DRAWS = 2000  # pairs of which the spread is estimated

if hasattr(os, "register_at_fork"):
    # FAISS's threads do not survive a fork, and a forked process would wait for them for ever.
    os.register_at_fork(after_in_child=lambda: faiss.omp_set_num_threads(1))


@dataclasses.dataclass(frozen=True)
class Resampled:
    """Partners drawn among the rendered latents.

    Attributes:
        partners: the image numbers of the partners, (B,) int64; never the anchor itself.
        effective: the effective sample size of each draw, (sum w)^2 / sum w^2, (B,) float64.
    """

    partners: torch.Tensor
    effective: torch.Tensor


class LatentMatcher:
    """A finder of rendered latents for drawn ones.

    Attributes:
        latents: the rendered latents, (N, n) float32.
        factory: the name of the index in FAISS's factory; "Flat" is exact.
        match: the way of matching. "nearest" takes the rendered latents nearest to z and z~, as
            published (Zimmermann et al. 2021, section 4.2.2; see CITATION.cff). "resample" takes a
            rendered latent as z and draws z~ among the others with weight p(z~ | z).
    """

    def __init__(
        self,
        latents: npt.ArrayLike | torch.Tensor,
        *,
        index: str = "auto",
        match: str = "nearest",
        nprobe: int = _NPROBE,
        ef_search: int = 16,
        path: str | Path | None = None,
        device: torch.device | str = "cpu",
        repeatable: bool = False,
    ) -> None:
        """Build the index, or map a saved one into memory.

        Args:
            latents: the rendered latents, (N, n), at least two.
            index: the kind of index: auto, exact, ivf (an inverted file with an HNSW coarse
                quantiser), hnsw, or a factory string of FAISS.
            match: the way of matching, "nearest" or "resample".
            nprobe: the number of cells of an inverted file to search.
            ef_search: the breadth of the search in an HNSW graph.
            path: the file that keeps the index between runs; None: no file. If it holds the
                index of other latents, it is built anew, with a note.
            device: the device that computes the weights of resampling.
            repeatable: a flag to build the index with a single thread, so that it finds the same
                neighbours whenever it is built; several threads are quicker.

        Raises:
            UsageError: an argument does not fit.
        """
        array = np.array(
            latents.cpu().numpy() if isinstance(latents, torch.Tensor) else latents,
            np.float32,
            order="C",
        )
        if array.ndim != 2 or len(array) < 2 or not np.isfinite(array).all():
            raise UsageError(
                f"matching needs at least two finite latents (N, n), found shape {array.shape}"
            )
        if match not in MATCHES:
            raise UsageError(f"match must be one of {', '.join(MATCHES)}, found {match!r}")
        if nprobe < 1 or ef_search < 1:
            raise UsageError(f"nprobe and ef_search must be >= 1, found {nprobe} and {ef_search}")
        self.latents: Float32 = array
        self.match = match
        self.factory = _factory(index, *array.shape)
        self._nprobe, self._ef_search = nprobe, ef_search
        self._path = None if path is None else Path(path)
        try:
            self._device = torch.device(device)
        except RuntimeError as error:  # whose text lists every device of torch's
            raise UsageError(f'device must be one of torch such as "cuda", found {device!r}') from (
                error
            )
        self._repeatable = repeatable
        self._index: Any = None
        self._points: torch.Tensor | None = None
        if match == "nearest":
            self._open()

    def __getstate__(self) -> dict[str, Any]:
        """The state without the index and the tensor that each process makes for itself."""
        return {**self.__dict__, "_index": None, "_points": None}

    def nearest(self, points: npt.ArrayLike, k: int = 1) -> tuple[Float32, Int64]:
        """Find the k nearest rendered latents of each point.

        Args:
            points: the points, (B, n).
            k: the number of neighbours.

        Returns:
            The Euclidean distances (B, k), ascending, and the image numbers (B, k).

        Raises:
            UsageError: the points have another dimension, or there are fewer than k latents.
        """
        queries = np.ascontiguousarray(points, np.float32)
        count, n = self.latents.shape
        if queries.ndim != 2 or queries.shape[1] != n or not 1 <= k <= count:
            raise UsageError(
                f"expected points of shape (B, {n}) and k in [1, {count}], found shape "
                f"{queries.shape} and k = {k}"
            )
        squared, numbers = self._open().search(queries, k)
        if (numbers < 0).any():  # too few latents in the cells that were searched
            exact = faiss.IndexFlatL2(self.latents.shape[1])
            exact.add(self.latents)
            rows = (numbers < 0).any(1)
            squared[rows], numbers[rows] = exact.search(queries[rows], k)
        return np.sqrt(np.maximum(squared, 0)), numbers

    def nearest_pairs(self, z: npt.ArrayLike, z_tilde: npt.ArrayLike) -> tuple[Int64, Int64]:
        """Match both members of each pair, never to the same image.

        Args:
            z: the first members of the pairs, (B, n).
            z_tilde: the second members, (B, n).

        Returns:
            The image numbers of either, (B,) each. Where both are nearest to one image, z~ takes
            its second neighbour, as published.
        """
        count = len(np.asarray(z))
        both = np.concatenate([np.asarray(z, np.float32), np.asarray(z_tilde, np.float32)])
        _, numbers = self.nearest(both)
        i, j = numbers[:count, 0], numbers[count:, 0]
        same = i == j
        if same.any():
            _, second = self.nearest(both[count:][same], 2)
            # Equal distances can come in either order.
            j[same] = np.where(second[:, 0] == i[same], second[:, 1], second[:, 0])
        return i, j

    def pairs(
        self, process: PairProcess, count: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw pairs of a process among the rendered latents, in the way of `match`.

        Args:
            process: the process of the pairs.
            count: the number of pairs.
            generator: the generator of random numbers, on the CPU.

        Returns:
            The image numbers of either member, (count,) int64 each.

        Raises:
            UsageError: the latents cannot be resampled by the process.
        """
        if self.match == "resample":
            anchors = self.anchors(process, count, generator)
            return anchors, self.resample(anchors, process, generator).partners
        z, z_tilde = process.sample(count, generator=generator)
        i, j = self.nearest_pairs(z.numpy(), z_tilde.numpy())
        return torch.from_numpy(i), torch.from_numpy(j)

    def anchors(
        self, process: PairProcess, count: int, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Draw rendered latents as z, with weight p(z).

        They follow the marginal as far as the rendered latents are uniform over the space.

        Args:
            process: the process whose marginal gives the weights.
            count: the number of anchors.
            generator: the generator of random numbers, on the CPU.

        Returns:
            The image numbers of the anchors, (count,) int64.

        Raises:
            UsageError: the marginal gives no rendered latent any weight.
        """
        points = self._on_device()
        if isinstance(process.marginal, Uniform) and not process.space.outside(points).any():
            return torch.randint(len(points), (count,), generator=generator)
        center = torch.as_tensor(process.space.center(), dtype=torch.float32)[None]
        weight = process.marginal.log_weight(process.space, center.to(points.device), points)[0]
        if weight.max() == -math.inf:
            raise UsageError(f"no rendered latent lies in {process.space}")
        weight = (weight - weight.max()).exp().cpu()
        return torch.multinomial(weight, count, replacement=True, generator=generator)

    def resample(
        self,
        anchors: torch.Tensor,
        process: PairProcess,
        generator: torch.Generator | None = None,
    ) -> Resampled:
        """Draw each anchor's partner among all other rendered latents, with weight p(z~ | z).

        Args:
            anchors: the image numbers of the anchors, (B,).
            process: the process whose conditional gives the weights.
            generator: the generator of random numbers, on the CPU.

        Raises:
            UsageError: the conditional has no density in closed form, or no other latent has
                any weight.
        """
        # Drawn at once, so that nothing depends on how the rows are cut.
        level = torch.rand(len(anchors), dtype=torch.float64, generator=generator)
        rows = max(1, _AT_ONCE // len(self.latents))
        parts = [
            self._resample(anchors[s : s + rows], level[s : s + rows, None], process)
            for s in range(0, len(anchors), rows)
        ]
        return Resampled(
            torch.cat([p.partners[:, 0] for p in parts]), torch.cat([p.effective for p in parts])
        )

    def partners(
        self, process: PairProcess, draws: int, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Draw several partners of every rendered latent, each with weight p(z~ | z).

        The weights take most of the time; each latent's are computed once for all its partners.

        Args:
            process: the process whose conditional gives the weights.
            draws: the number of partners of each latent.
            generator: the generator of random numbers, on the CPU.

        Returns:
            The image numbers of the partners, (N, draws) int32.

        Raises:
            UsageError: as for `resample`.
        """
        count = len(self.latents)
        level = torch.rand(count, draws, dtype=torch.float64, generator=generator)
        numbers = torch.empty(count, draws, dtype=torch.int32)
        rows = max(1, _AT_ONCE // max(count, _BLOCK * draws))
        with Progress("resampling", count, unit="latents") as progress:
            for first in range(0, count, rows):
                anchors = torch.arange(first, min(first + rows, count))
                drawn = self._resample(anchors, level[first : first + rows], process)
                numbers[first : first + rows] = drawn.partners
                progress.advance(len(anchors))
        return numbers

    def _resample(
        self, anchors: torch.Tensor, level: torch.Tensor, process: PairProcess
    ) -> Resampled:
        """Draw partners (B, k) of anchors (B,) by uniform random numbers (B, k)."""
        points = self._on_device()
        anchors = anchors.to(points.device)
        unpadded = self._weights(anchors, process)
        count = len(points)
        padding = -count % _BLOCK
        weight = torch.nn.functional.pad(unpadded, (0, padding))
        blocks = weight.view(len(anchors), -1, _BLOCK)
        sums = blocks.sum(2, dtype=torch.float64)
        upto = sums.cumsum(1)
        total = upto[:, -1:]
        target = level.to(points.device) * total
        block = _first_above(upto, target)
        before = torch.where(block > 0, upto.gather(1, (block - 1).clamp_min(0)), 0.0)
        rows = torch.arange(len(anchors), device=points.device)[:, None]
        within = blocks[rows, block].double().cumsum(2)
        partner = block * _BLOCK + _first_above(within, (target - before)[:, :, None])[:, :, 0]
        squares = (blocks * blocks).sum((1, 2), dtype=torch.float64)
        return Resampled(partner.cpu(), (total[:, 0] ** 2 / squares).cpu())

    def _weights(self, anchors: torch.Tensor, process: PairProcess) -> torch.Tensor:
        """Weigh all latents but the anchor itself by p(z~ | z), (B, N), at most 1."""
        points = self._on_device()
        log_weight = process.conditional.log_weight(process.space, points[anchors], points)
        log_weight.scatter_(1, anchors[:, None], -math.inf)
        peak = log_weight.amax(1, keepdim=True)
        if (peak == -math.inf).any():
            raise UsageError(
                f"{process.conditional} gives no other rendered latent any weight: take a wider "
                "one, more images, or exact pairs (`3dident render --pairs`, RenderedPairs)"
            )
        return log_weight.sub_(peak).exp_()

    def spread(self, process: PairProcess, match: str) -> tuple[Float64, Float64]:
        """Estimate the spread of z~ - z that a process requests, and the spread after matching.

        The estimate is good to within some percent; it uses few draws, always the same ones.
        `3dident pairs` measures more.

        Args:
            process: the process of the pairs.
            match: the way of matching, "nearest" or "resample".

        Returns:
            The requested and the realised root mean squares, (n,) each.

        Raises:
            UsageError: rendered latents cannot be resampled by the process.
        """
        generator = seeded(0)
        if match == "nearest":
            z, z_tilde = process.sample(_DRAWS, generator=generator)
            i, j = self.nearest_pairs(z.numpy(), z_tilde.numpy())
            return _rms(z_tilde - z), _rms(torch.from_numpy(self.latents[j] - self.latents[i]))
        points = self._on_device()
        count = min(_DRAWS, max(1, _AT_ONCE // len(points)))
        anchors = self.anchors(process, count, generator).to(points.device)
        z = points[anchors]
        # Of all partners that an anchor can get, each with its probability.
        weight = self._weights(anchors, process)
        total = weight.sum(1, keepdim=True)
        first, second = weight @ points / total, weight @ points.square() / total
        realised = (second - 2 * z * first + z.square()).clamp_min(0).sqrt()
        around = z.cpu().repeat_interleave(-(-_DRAWS // count), 0)
        drawn = process.conditional.sample(process.space, around, generator=generator) - around
        return _rms(drawn), _rms(realised)

    def recall(self, count: int = 10_000, seed: int = 0) -> float:
        """Measure recall@1 against exact search.

        Args:
            count: the number of points, uniform in the latents' bounding box.
            seed: the seed for the points.

        Returns:
            The share of points whose true nearest latent is found.
        """
        low, high = self.latents.min(0), self.latents.max(0)
        random = np.random.default_rng(seed)
        points = random.uniform(low, high, (count, len(low))).astype(np.float32)
        exact = faiss.IndexFlatL2(len(low))
        exact.add(self.latents)
        _, truth = exact.search(points, 1)
        return float((self.nearest(points)[1] == truth).mean())

    def _on_device(self) -> torch.Tensor:
        if self._points is None:
            try:
                self._points = torch.from_numpy(self.latents).to(self._device)
            except (RuntimeError, AssertionError) as error:
                raise UsageError(
                    f"{len(self.latents)} latents need {self.latents.nbytes / 1e6:.1f} MB on "
                    f"{self._device}, which cannot be had ({str(error).splitlines()[0]}): choose "
                    "another device"
                ) from error
        return self._points

    def _open(self) -> Any:
        """Read or build the index once, and set how far it searches."""
        if self._index is None:
            if torch.utils.data.get_worker_info() is not None:
                faiss.omp_set_num_threads(1)  # as torch does: there are other workers
            index = self._read() or self._build()
            with contextlib.suppress(RuntimeError):
                inverted: Any = faiss.extract_index_ivf(index)
                inverted.nprobe = min(self._nprobe, inverted.nlist)
                lists = faiss.downcast_InvertedLists(inverted.invlists)
                if hasattr(lists, "prefetch_nthread"):  # mapped from a file, which is small
                    lists.prefetch_nthread = 0  # a forked process would join these threads
                index_of_cells = faiss.downcast_index(inverted.quantizer)
                if hasattr(index_of_cells, "hnsw"):
                    index_of_cells.hnsw.efSearch = max(self._ef_search, self._nprobe)
            if hasattr(index, "hnsw"):
                index.hnsw.efSearch = self._ef_search
            self._index = index
        return self._index

    def _build(self) -> Any:
        """Build the index, and save it if it has a path."""
        threads = faiss.omp_get_max_threads()
        try:
            if self._repeatable:
                faiss.omp_set_num_threads(1)
            index = faiss.index_factory(self.latents.shape[1], self.factory)
            index.train(self.latents)
            index.add(self.latents)
        except RuntimeError as error:
            # FAISS says where in its source it has failed, and only then why.
            line = str(error).strip().splitlines()[-1]
            reason = re.sub(r"^.* at \S+:\d+: (Error: '.*' failed: )?", "", line)
            raise UsageError(
                f"FAISS cannot build the index {self.factory!r} of {len(self.latents)} latents "
                f"({reason}): expected auto, exact, ivf, hnsw, or a factory string of FAISS, such "
                "as IVF64,Flat"
            ) from error
        finally:
            if self._repeatable:
                faiss.omp_set_num_threads(threads)
        if self._path is not None and self.factory != "Flat":
            try:
                with replacing(self._path) as temporary:
                    faiss.write_index(index, str(temporary))
                    digest = file_digest(temporary)
                write_json(self._path.with_suffix(".json"), self._identity(digest))
            except (DatasetError, RuntimeError) as error:  # a read-only folder will do
                Progress.print(f"the index is not kept: {error}")
        return index

    def _read(self) -> Any:
        """Read the saved index; None where there is none, or one of other latents."""
        if self._path is None or self.factory == "Flat" or not self._path.exists():
            return None
        try:
            identity = read_json(self._path.with_suffix(".json"))
            if identity != self._identity(file_digest(self._path)):
                raise DatasetError("it belongs to other latents, or is damaged")
            flags = faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY
            return faiss.read_index(str(self._path), flags)
        except (DatasetError, OSError, RuntimeError) as error:
            Progress.print(f"building the index {self._path} anew: {error}")
            return None

    def _identity(self, file_digest: str) -> dict[str, Any]:
        latents = latents_digest(self.latents)
        return {"latents": latents, "factory": self.factory, "file": file_digest}


def index_path(root: Path, columns: tuple[int, ...], index: str, count: int) -> Path:
    """Name the file for the index of a dataset's columns, in its directory or beside its file."""
    factory = _factory(index, count, len(columns))
    name = hashlib.sha256(json.dumps([columns, factory]).encode()).hexdigest()[:8]
    if root.is_dir():
        return root / f"matcher-{name}.faiss"
    return root.with_name(f"{root.stem}-matcher-{name}.faiss")


def _factory(index: str, count: int, dimensions: int) -> str:
    if index == "auto":
        index = "exact" if count <= EXACT_UP_TO else "ivf"
    # About 2 sqrt(N) cells, 1,024 for the published 250,000 latents; FAISS wants 39 points each.
    cells = 2 ** max(0, round(math.log2(2 * math.sqrt(count))))
    cells = max(1, min(cells, count // 39))
    names = {"exact": "Flat", "ivf": f"IVF{cells}_HNSW32,Flat", "hnsw": "HNSW32,Flat"}
    return names.get(index, index)


def _first_above(ascending: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Find the first column whose value is above each target, of the targets' shape (..., k)."""
    # Rounding must not carry the target past the end, where no weight is.
    last = ascending[..., -1:]
    below = torch.minimum(target, torch.nextafter(last, torch.zeros_like(last)))
    return torch.searchsorted(ascending, below, right=True)


def _rms(differences: torch.Tensor) -> Float64:
    """The root mean square of each column."""
    return np.sqrt((differences.cpu().double().numpy() ** 2).mean(0))


def check_resampling(process: PairProcess) -> None:
    """Check that rendered latents can be resampled by a process.

    Raises:
        UsageError: the process does not allow it; the message says why.
    """
    point = torch.as_tensor(process.space.center(), dtype=torch.float32)[None]
    for part in (process.conditional, process.marginal):
        assert isinstance(part, Distribution)
        part.log_weight(process.space, point, point)
