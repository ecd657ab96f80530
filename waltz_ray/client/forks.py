"""What of a process must not stay as it is in a forked child: locks whose holder was not copied, threads."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Protocol

__all__ = ["ANOTHER_PROCESS_S", "LeftToParent", "in_forked_child", "left_to_parent"]

ANOTHER_PROCESS_S = "the client is another process's, which has forked this one; connect again"
"""What who uses it there is told."""


class LeftToParent(Protocol):
    """What goes on in the process that has made it, and in no child."""

    def leave_to_parent(self) -> None:
        """In a forked child: nothing of it is done or let go of there."""


_left: weakref.WeakSet[LeftToParent] = weakref.WeakSet()


def in_forked_child(renew: Callable[[], None]) -> None:
    """Call ``renew`` first thing in every child that this process forks."""
    if hasattr(os, "register_at_fork"):  # not on every platform; where it is missing nothing forks
        os.register_at_fork(after_in_child=renew)


def left_to_parent(what: LeftToParent) -> None:
    """Call its ``leave_to_parent`` in every child that this process forks while it is there."""
    _left.add(what)


def _leave_all() -> None:
    for each in list(_left):
        each.leave_to_parent()


in_forked_child(_leave_all)
