"""The rules of trimming, each by its name: how far a mark may rise, and what of a log may go then. Pure.

The *trim mark* of a partition is an ID: records below it may disappear. A replica drops whole closed segments, so its
log begins at or below the mark, and different replicas' at different records.

``tests/simulation/mutations_trimming.py`` breaks these rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

__all__ = [
    "AS_USUAL",
    "SegmentLimits",
    "by_size",
    "closes_early",
    "highest_mark",
    "policy_of",
    "raised_marks",
    "segment_limits",
    "segments_below",
]

_PIECES = 4
"""Only whole segments are dropped, so a segment must be small beside what is kept: at most such a part of it."""


class SegmentLimits(NamedTuple):
    """When a segment is closed early: with more bytes, or older, than that. None = no matter."""

    most_bytes: int | None
    age_ms: int | None


_SMALLEST_BYTES, _YOUNGEST_MS = 16 * 1024, 1_000  # however little is kept, a segment has something in it

_COMPACTED_PIECES, _SMALLEST_COMPACTED_BYTES = 16, 256 * 1024
"""Of a space that is compacted: nobody says how much is kept, so what there is counts. A segment costs some syncs."""

AS_USUAL = SegmentLimits(None, None)


def highest_mark(committed_id: int) -> int:
    """The highest trim mark there may be: everything that is committed may go, nothing else."""
    return committed_id + 1


def raised_marks(
    marks: Mapping[int, int], wanted: Mapping[int, int], holds: Iterable[Mapping[int, int]]
) -> dict[int, int]:
    """The marks that are to be changed: those of ``wanted``, as far as every hold lets, which are higher than now."""
    allowed = dict(wanted)
    for positions in holds:
        for p in positions.keys() & allowed.keys():
            allowed[p] = min(allowed[p], positions[p])
    return {p: mark for p, mark in allowed.items() if mark > marks.get(p, 0)}


def closes_early(settings: Mapping[str, int]) -> bool:
    """Are segments of a space with these settings closed before they are as long as usual?"""
    return bool(settings.get("compact")) or "retention_bytes" in settings or "retention_ms" in settings


def segment_limits(settings: Mapping[str, int], log_bytes: int) -> SegmentLimits:
    """Of the segments of a space with these settings; ``log_bytes``: how much there is now of the partition."""
    if settings.get("compact"):
        return SegmentLimits(max(_SMALLEST_COMPACTED_BYTES, log_bytes // _COMPACTED_PIECES), None)
    most_bytes, age_ms = settings.get("retention_bytes"), settings.get("retention_ms")
    return SegmentLimits(
        None if most_bytes is None else max(_SMALLEST_BYTES, most_bytes // _PIECES),
        None if age_ms is None else max(_YOUNGEST_MS, age_ms // _PIECES),
    )


def policy_of(settings: Mapping[str, int]) -> tuple[int, int] | None:
    """(age in ms, bytes) of what a space with these settings keeps, -1 = no matter; None if no mark is raised for it:
    it keeps everything, or a layer raises its marks itself."""
    age_ms, most_bytes = settings.get("retention_ms", -1), settings.get("retention_bytes", -1)
    return None if settings.get("compact", 0) or (age_ms < 0 and most_bytes < 0) else (age_ms, most_bytes)


def segments_below(segments: Sequence[int], mark: int) -> int:
    """How many of a log's segments, given by their first IDs, may go: those of which every record is below ``mark``.

    The newest is never one of them: it takes the next records.
    """
    return sum(1 for following in segments[1:] if following <= mark)


def by_size(segments: Sequence[int], sizes: Sequence[int], most_bytes: int) -> int:
    """The trim mark with which the newest segments that fit in ``most_bytes`` are kept: the first ID of the oldest of
    them. The newest segment is kept whatever its size."""
    kept = sizes[-1]
    first_id = segments[-1]
    for segment, size in zip(reversed(segments[:-1]), reversed(sizes[:-1]), strict=True):
        kept += size
        if kept > most_bytes:
            break
        first_id = segment
    return first_id
