"""Which transactions a filter looks at, by their headers alone. Pure.

The header of a message is the hash of its type, so what is not wanted need not be read: of what may be wanted the type
itself is compared, for two types may have one hash.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from waltz_ray.protocol.records import Int32s
from waltz_ray.topics.records import header_of_type

__all__ = ["headers_of_types", "wanted_ranges"]

_GAP = 4  # transactions that nobody wants, between two that are wanted: read with them
_LONGEST = 4096  # transactions of one range


def headers_of_types(types: Iterable[str]) -> Int32s:
    """The headers that messages of these types have."""
    return np.array(sorted({header_of_type(each) for each in types}), dtype=np.int32)


def wanted_ranges(first_id: int, headers: Int32s, wanted: Int32s) -> list[tuple[int, int]]:
    """Ranges [first, end) that have every transaction whose header is ``wanted``, and little else. ``headers``: of
    ``first_id`` and those behind it."""
    ranges: list[tuple[int, int]] = []
    for each in (first_id + np.isin(headers, wanted).nonzero()[0]).tolist():
        if ranges and each - ranges[-1][1] < _GAP and each - ranges[-1][0] < _LONGEST:
            ranges[-1] = ranges[-1][0], each + 1
        else:
            ranges.append((each, each + 1))
    return ranges
