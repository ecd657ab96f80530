"""When a kv partition's live state is written into its log anew, and in which records. Pure.

The state is written in sections, one after the other and round and round: so the log has one state and what was written
in a round, where whole states would leave two of them at each end of the newer one. Where little is alive sections are
small, and each snapshot costs what it costs to begin and end it: there some are written together.

The partition's compactor appends ``SnapshotBegin`` of the state's ``oldest_sections``; once its own state has folded
that, and ``snapshot_begun`` is that ID, the chunks of ``chunks(state.snapshot_items(...), id)``, then ``SnapshotEnd``;
and when the state's ``needed_from`` has risen, it may raise the trim mark to it: a fold from there on comes to the
same. If it dies in between, or another begins, ``is_due`` says so again: a snapshot that has not ended changes none of
the sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from waltz_ray.kv.model import SECTIONS, SnapshotChunk, SnapshotItem

__all__ = ["CHUNK_BYTES", "chunks", "is_due", "room_bytes", "sections_at_once"]

CHUNK_BYTES = 256 * 1024

_ENTRY_BYTES = 15
_CHUNK_HEAD_BYTES = 10


def _round_bytes(live_bytes: int, least_tail_bytes: int) -> int:
    """So much is written by others while each section is written once: half of what is alive.

    The cost of snapshots stays in proportion to writes: two bytes for each that is written.
    """
    return max(live_bytes // 2, least_tail_bytes)


def sections_at_once(live_bytes: int, least_tail_bytes: int) -> int:
    """How many sections one snapshot is of: as many as fit, with what is alive, into twice ``least_tail_bytes``; one,
    where not even that does."""
    fitting = 2 * SECTIONS * least_tail_bytes // max(1, live_bytes) - SECTIONS
    return min(max(fitting, 1), SECTIONS)


def is_due(live_bytes: int, since_snapshot_bytes: int, tail_bytes: int, least_tail_bytes: int) -> bool:
    """Has its sections' part of a round been written since the last snapshot began, or much more than a round at
    all?"""
    a_round = _round_bytes(live_bytes, least_tail_bytes)
    part = a_round * sections_at_once(live_bytes, least_tail_bytes) // SECTIONS
    return since_snapshot_bytes >= part or tail_bytes >= a_round * 5 // 4


def room_bytes(live_bytes: int, tail_bytes: int, least_tail_bytes: int) -> int:
    """How much more may be written before the snapshot that is due has ended; if that is not positive, writes wait.

    At its end the log has one state, sections that are there twice, and a round and a quarter of writes: not quite
    twice what is alive. Where less is alive than twice ``least_tail_bytes`` it may become as long as if that were: the
    sections are small there, and writes need not wait for them.
    """
    twice = live_bytes * sections_at_once(live_bytes, least_tail_bytes) // SECTIONS
    return max(live_bytes, 2 * least_tail_bytes) * 15 // 8 - live_bytes - twice - tail_bytes


def chunks(items: Iterable[SnapshotItem], snapshot: int, most_bytes: int = CHUNK_BYTES) -> Iterator[SnapshotChunk]:
    """``items`` in records of at most ``most_bytes``; one that is larger comes alone. Taken one by one."""
    some: list[SnapshotItem] = []
    size = _CHUNK_HEAD_BYTES
    for item in items:
        more = _ENTRY_BYTES + len(item.key) + len(item.data)
        if some and size + more > most_bytes:
            yield SnapshotChunk(snapshot, tuple(some))
            some, size = [], _CHUNK_HEAD_BYTES
        some.append(item)
        size += more
    if some:
        yield SnapshotChunk(snapshot, tuple(some))
