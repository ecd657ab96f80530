"""The rules of a client's partition, each by its name: when a mount ends, what belongs to it, what it may be sent.

They look and decide; what follows from it is ``mounting.py``'s, and which append has which fate is decided in
``client_monitor.py``. ``tests/simulation/mutations_client.py`` breaks them.
"""

from __future__ import annotations

from waltz_ray.protocol.ids import Location
from waltz_ray.protocol.messages.client import FeedMode, Mounted, Rejected, RejectionCode

__all__ = [
    "answers_newest_mount",
    "begins_newest_feed",
    "has_moved",
    "is_refused_mount",
    "may_begin_further_on",
    "mount_credit_bytes",
    "needs_no_past",
    "next_pause_s",
    "waits_for_fates",
]

_QUICK_PAUSE_S, _LONGEST_PAUSE_S = 0.04, 1.0


def has_moved(mounted_at: Location, location: Location | None) -> bool:
    """Whether a mount ends because the partition is elsewhere now: a hung server would keep it for ever.

    What is known of the location may be older than the mount.
    """
    if location is None or location.endpoint is None or location == mounted_at:
        return False
    return location.generation >= mounted_at.generation


def next_pause_s(pause_s: float, paused_s: float, quick_s: float) -> float:
    """How long to wait after an attempt to mount, if it was ``pause_s`` before it, and ``paused_s`` since all began.

    Twice as long each time, but not before ``quick_s`` are over: most of what a client waits for is a move, which is
    over in a moment that it should not sleep through. A server that is away for long is asked once a second.
    """
    if pause_s >= _QUICK_PAUSE_S and paused_s < quick_s:
        return pause_s
    return min(2 * pause_s, _LONGEST_PAUSE_S)


def mount_credit_bytes(limit_bytes: int, held_bytes: int) -> int:
    """How much feed a new mount may be sent at first: not what is held already, delivered and not applied."""
    return max(0, limit_bytes - held_bytes)


def answers_newest_mount(message: Mounted, client_id: int, mount_number: int) -> bool:
    """Whether it is not an answer to an earlier mount over the same stream: mounts are numbered."""
    return message.req_id.sequence_number == mount_number and message.req_id.client_id == client_id


def is_refused_mount(message: Rejected) -> bool:
    """Whether the client has not the right to mount: what is refused is no append."""
    return message.code is RejectionCode.NOT_ALLOWED and not len(message.sequence_numbers)


def begins_newest_feed(first_id: int, mount_mark: int) -> bool:
    """Whether the feed of the mount from ``mount_mark`` begins with a frame from ``first_id``.

    What has come since the mount was sent for an earlier one then, and its credit has ended with that.
    """
    return first_id == mount_mark + 1


def may_begin_further_on(earliest: bool, lowest_mark: int, position: int) -> bool:
    """Whether a feed whose mount began with what was trimmed away goes on behind ``lowest_mark``, where it can.

    Only who asked for the ``earliest`` there is and has had nothing yet, and who has had what is gone from an earlier
    mount, in the meantime: anybody else would be served a gap.
    """
    return earliest or position >= lowest_mark


def needs_no_past(mode: FeedMode) -> bool:
    """Whether a client that has nothing under way mounts from now on, whatever was trimmed away."""
    return mode is FeedMode.OWN


def waits_for_fates(pending: int) -> bool:
    """Whether nothing is sent after an append was refused: until all that was sent behind it has its fate, of which
    nothing was taken. Then it is sent again in its order, and nothing has overtaken it."""
    return pending > 0
