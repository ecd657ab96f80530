"""Rules about records that change in memory or on their way, broken (see ``mutations.py``)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.protocol import mounting
from waltz_ray.protocol.partition.reign import Reign
from waltz_ray.storage import log_rules

__all__ = ["changed_memory_is_kept", "changed_records_are_fed", "changed_records_are_written"]

Patch = pytest.MonkeyPatch


def changed_records_are_written(patch: Patch) -> None:
    """A replica takes what a server sends as it comes."""
    break_rule(patch, log_rules, "check_records", lambda batch: None)


def changed_records_are_fed(patch: Patch) -> None:
    """A client gives its application what a server sends as it comes."""
    break_rule(patch, mounting, "first_bad_record", lambda batch: -1)


def changed_memory_is_kept(patch: Patch) -> None:
    """What has changed in a server's memory is sent again and again."""

    def look_at_the_memory(self: Reign, *where: Any) -> list[Any]:
        return []

    break_rule(patch, Reign, "look_at_the_memory", look_at_the_memory)
