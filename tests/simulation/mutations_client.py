"""Rules of the client, broken (see ``mutations.py``)."""

from __future__ import annotations

from typing import Any

import pytest

from waltz_ray.client.partition import Partition
from waltz_ray.protocol.client_monitor import ClientMonitor
from waltz_ray.protocol.partition import FROM_NOW

__all__ = [
    "fates_decided_at_a_lost_connection",
    "older_pending_are_not_failed",
    "own_mount_skips_what_is_pending",
    "sequence_numbers_come_again",
]

Patch = pytest.MonkeyPatch


def older_pending_are_not_failed(patch: Patch) -> None:
    def fail_before(self: ClientMonitor[Any], end: int) -> list[Any]:
        return []

    patch.setattr(ClientMonitor, "_fail_before", fail_before)


def fates_decided_at_a_lost_connection(patch: Patch) -> None:
    """What was on its way is sent again at once, although it may be in the log."""

    def end_mount(self: Partition, reason: Exception) -> None:
        original(self, reason)
        self.fates.mounted_ready(-1)

    original = Partition._end_mount
    patch.setattr(Partition, "_end_mount", end_mount)


def own_mount_skips_what_is_pending(patch: Patch) -> None:
    patch.setattr(ClientMonitor, "resume_mark", property(lambda self: FROM_NOW))


def sequence_numbers_come_again(patch: Patch) -> None:
    """A client gives the numbers of requests that have their fate once more."""

    def register(self: ClientMonitor[Any], token: Any, start: int, count: int) -> int:
        if not self.pending and self._next > 20:
            self._next -= 10
        return original(self, token, start, count)

    original = ClientMonitor.register
    patch.setattr(ClientMonitor, "register", register)
