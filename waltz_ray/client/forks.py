"""What of a process must not stay as it is in a forked child: locks whose holder was not copied, threads."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["in_forked_child"]


def in_forked_child(renew: Callable[[], None]) -> None:
    """Call ``renew`` first thing in every child that this process forks."""
    if hasattr(os, "register_at_fork"):  # not on every platform; where it is missing nothing forks
        os.register_at_fork(after_in_child=renew)
