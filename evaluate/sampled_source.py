"""`SampledSource`: some images of a dataset that is in the order of a grid or of time, drawn once.

Scores halve their samples and take them to be in random order, as those of rendered datasets are.
Frames of a sequence are much alike, so that they go into the same half.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.datasets.formats.source import ImageSource, Source, UInt8, check_numbers
from threedident.errors import UsageError

Int64 = npt.NDArray[np.int64]

#: The number of images that are scored where nobody says; all where there are fewer.
SAMPLES = 10_000
_LEAST = 8
_SEED = (0, 6)


def apart_by_sequence(
    numbers: Int64, sequences: Int64 | None, generator: np.random.Generator
) -> Int64:
    """Order images such that a sequence lies in one half of them; at random within the halves.

    The sequence in the middle may lie in both.

    Args:
        numbers: the numbers of the images, (k,), in random order.
        sequences: the numbers at which sequences begin, and N, (S + 1,); None: there are none,
            and the images stay as they are.
        generator: the random numbers.

    Returns:
        The same numbers, (k,).
    """
    if sequences is None:
        return numbers
    of = np.searchsorted(sequences, numbers, side="right")
    order = np.argsort(generator.permutation(len(sequences) + 1)[of], kind="stable")
    halves = np.array_split(order, [len(order) // 2])
    return numbers[np.concatenate([generator.permutation(half) for half in halves])]


class SampledSource(ImageSource):
    """Images drawn from a dataset, in random order, the same ones each time.

    Of sequences, the first half of the images are frames of other ones than the second.

    Attributes:
        whole: the dataset.
        numbers: the numbers of the images in it, (k,).
    """

    def __init__(self, whole: ImageSource, count: int) -> None:
        """Draw `count` images of a dataset, or all in random order where there are fewer."""
        self.whole, self.root, self.form, self.shape = whole, whole.root, whole.form, whole.shape
        self.factor_columns = whole.factor_columns
        generator = np.random.default_rng(_SEED)
        drawn: Int64 = generator.permutation(len(whole))[:count]
        self.numbers: Int64 = apart_by_sequence(drawn, whole.sequences, generator)
        self.factors = whole.factors[self.numbers]

    @property
    def fingerprint(self) -> str:
        """That of the dataset."""
        return self.whole.fingerprint

    def facts(self) -> dict[str, Any] | None:
        """Those of the dataset."""
        return self.whole.facts()

    def files(self) -> list[Path]:
        """The files of the dataset."""
        return self.whole.files()

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images by their places in the sample; see `ImageSource.read`."""
        places = check_numbers(indices, len(self))
        self.whole.read(self.numbers[places].tolist(), out)

    def as_dict(self) -> dict[str, Any]:
        """The way they were drawn, as plain data for scores.json."""
        order = "random" if self.whole.sequences is None else "random, sequences in one half"
        return {"images": len(self), "of": len(self.whole), "order": order, "seed": list(_SEED)}


def sampled(source: ImageSource, samples: int | None) -> ImageSource:
    """Draw the images to score of a dataset that is in some order; others stay as they are.

    Args:
        source: the dataset.
        samples: the number of images; None: `SAMPLES` of them.

    Raises:
        UsageError: a number is given for rendered images, all of which are scored, or is too small.
    """
    if isinstance(source, Source):
        if samples is not None:
            raise UsageError(
                f"samples is for datasets in the order of a grid or of time: all {len(source):,} "
                "images of a rendered dataset are scored. Leave it out"
            )
        return source
    if samples is not None and samples < _LEAST:
        raise UsageError(f"expected at least {_LEAST} samples, found {samples}")
    return SampledSource(source, SAMPLES if samples is None else samples)
