"""Rules of connections that clients share, broken (see ``mutations.py``). Only seeds with the bit ``SHARES`` notice."""

from __future__ import annotations

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.actors import client_connection
from waltz_ray.client.mount_stream import MountStream

__all__ = [
    "answers_leave_their_channel",
    "only_the_first_hears_of_the_end",
]

Patch = pytest.MonkeyPatch


def answers_leave_their_channel(patch: Patch) -> None:
    """What one client is to be told is told the first one."""
    break_rule(patch, client_connection, "channel_head", lambda channel: b"")


def only_the_first_hears_of_the_end(patch: Patch) -> None:
    """A shared connection ends, and the others wait for ever."""

    def lost(self: MountStream, error: Exception) -> None:
        if not self.channel:
            original(self, error)

    original = MountStream.lost
    break_rule(patch, MountStream, "lost", lost)
