"""The record of a shard: its checksums, provenance and sums, apart from its file.

Forms of a dataset that have no shards keep it, so that shards can be made from them again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import DatasetError
from threedident.storage.shard_plan import Interval
from threedident.storage.statistics import ImageSums, parse_sums

Array = npt.NDArray[Any]

#: The arrays of a shard.
ARRAYS = ("images", "raw_latents", "latents", "index")
#: The attribute of an array's checksum: this, and the array's name.
CHECKSUM = "sha256_"
#: The arrays that a dataset of a causal model has beside them; `Draws` explains them.
DRAWN = ("variables", "noise", "targets", "environment", "item", "frame")
_CHECKED = ("images", "raw_latents", "latents")


def checksum(array: Array) -> str:
    """The SHA-256 of an array's bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


@dataclasses.dataclass(frozen=True)
class Part:
    """The record of a shard, for the forms of a dataset that have no shards.

    Attributes:
        interval: its images.
        checksums: the SHA-256 of images, raw_latents and latents.
        provenance: the engine and the machine that rendered them, as in `write_shard`.
        sums: the sums over the images.
    """

    interval: Interval
    checksums: Mapping[str, str]
    provenance: Mapping[str, str]
    sums: ImageSums

    @classmethod
    def of(cls, interval: Interval, attributes: Mapping[str, Any]) -> Part:
        """The record of a shard with these attributes.

        Raises:
            KeyError, TypeError, ValueError: an attribute is missing or does not fit.
        """
        known = {"format", "fingerprint", *(CHECKSUM + name for name in (*ARRAYS, *DRAWN))}
        provenance = {
            name: value
            for name, value in attributes.items()
            if isinstance(value, str) and name not in known
        }
        checksums = {name: attributes[CHECKSUM + name] for name in _CHECKED}
        return cls(interval, checksums, provenance, parse_sums(attributes))

    def as_dict(self) -> dict[str, Any]:
        """The record as plain data for JSON."""
        sums = {name: np.asarray(value).tolist() for name, value in vars(self.sums).items()}
        if math.isnan(self.sums.in_frame):
            sums["in_frame"] = None
        return {
            "first": self.interval.first,
            "count": self.interval.count,
            "sha256": dict(self.checksums),
            "provenance": dict(self.provenance),
            "sums": sums,
        }

    def check(self, arrays: Mapping[str, Array], where: str) -> None:
        """Check images and latents against the checksums.

        Args:
            arrays: the arrays by name.
            where: the name of their source in errors.

        Raises:
            DatasetError: an array is another one.
        """
        for name, digest in self.checksums.items():
            if checksum(arrays[name]) != digest:
                raise DatasetError(
                    f"{where}: the checksum of {name} does not match the content of images "
                    f"{self.interval.first} to {self.interval.stop - 1}"
                )


def parse_parts(data: Any, total: int) -> tuple[Part, ...]:
    """Parse the records of a dataset's shards.

    Args:
        data: a list of records, as `Part.as_dict` returns them.
        total: the number of images in the dataset.

    Raises:
        KeyError, TypeError, ValueError: a record does not fit, or is one of other images.
    """
    parts, position = [], 0
    for each in data:
        interval = Interval(each["first"], each["count"])
        if type(interval.first) is not int or type(interval.count) is not int:
            raise TypeError("first and count of a shard are whole numbers")
        if interval.first != position or interval.count < 1:
            raise ValueError(f"the shard at image {position} is missing")
        position = interval.stop
        sums = dict(each["sums"])
        if sums["in_frame"] is None:
            sums["in_frame"] = math.nan
        attributes = {f"sum_{name}": value for name, value in sums.items()}
        for prefix, texts in ((CHECKSUM, each["sha256"]), ("", each["provenance"])):
            for name, text in dict(texts).items():
                if not isinstance(text, str):
                    raise TypeError(f"{name} of a shard is {text!r:.100}")
                attributes[prefix + name] = text
        part = Part.of(interval, attributes)
        if part.sums.count != interval.count:
            raise ValueError(f"the shard at image {interval.first} has sums of other images")
        parts.append(part)
    if position != total:
        raise ValueError(f"the shards hold {position} images, not {total}")
    return tuple(parts)
