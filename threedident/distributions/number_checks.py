"""Numbers as users give them: python's, numpy's and torch's."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    """Turn scalars and arrays of numpy or torch into numbers and lists; leave all else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def is_number(value: Any) -> bool:
    """Whether a value is a finite int or float, and no bool."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and -math.inf < value < math.inf
