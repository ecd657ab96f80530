"""When a kv partition's live state is written into its log anew, and in which records. Pure.

The partition's compactor appends ``SnapshotBegin``; once its own state has folded that, and ``snapshot_begun`` is
that ID, the chunks of ``chunks(state.snapshot_items(), id)``, then ``SnapshotEnd``; and once the state's
``last_snapshot`` is it, it may raise the trim mark to it: a fold from there on comes to the same. If it dies in
between, or another begins, ``is_due`` says so again: a snapshot that has not ended changes neither of the two sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from waltz_ray.kv.model import SnapshotChunk, SnapshotItem

__all__ = ["CHUNK_BYTES", "chunks", "is_due", "room_bytes"]

CHUNK_BYTES = 256 * 1024

_ENTRY_BYTES = 15
_CHUNK_HEAD_BYTES = 10


def is_due(live_bytes: int, tail_bytes: int, least_tail_bytes: int) -> bool:
    """Has half as much been written since the last whole snapshot as there is, and more than what is not worth it?

    Its cost stays in proportion to writes: two bytes for each that is written.
    """
    return tail_bytes >= max(live_bytes // 2, least_tail_bytes)


def room_bytes(live_bytes: int, tail_bytes: int, least_tail_bytes: int) -> int:
    """How much more may be written before the snapshot that is due has ended; if that is not positive, writes wait.

    At its end the log has two snapshots and a tail of three quarters of what is alive: less than three times that.
    Where little is alive it is two snapshots and five quarters of ``least_tail_bytes``.
    """
    return max(live_bytes * 3 // 4, least_tail_bytes * 5 // 4) - tail_bytes


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
