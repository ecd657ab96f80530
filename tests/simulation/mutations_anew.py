"""Rules of a kv log that is given up, and of a partition that is folded anew since what it needed next is gone, broken
(see ``mutations.py``). Only seeds with ``KV | TRIMS`` notice.

That no unit is taken by what its state says of owners before it is whole is what ``tests/kv/test_space_node.py`` asks.
"""

from __future__ import annotations

import pytest

from tests.kv.mutations_kv import the_log_is_given_up_from_the_newest_section_on
from tests.simulation.break_rule import break_rule
from waltz_ray.kv.serving.space_node import SpaceNode

__all__ = ["the_log_is_given_up_from_the_newest_section_on", "what_is_folded_anew_is_answered_for"]

Patch = pytest.MonkeyPatch


def what_is_folded_anew_is_answered_for(patch: Patch) -> None:
    """That there is nothing, or what was there before."""
    break_rule(patch, SpaceNode, "knows", lambda self, partition: True)
