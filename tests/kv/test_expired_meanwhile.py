"""A write that was decided by an item which expires before the write is committed. The simulation found it."""

from __future__ import annotations

import pytest

from waltz_ray.kv.keeper import Keeper
from waltz_ray.kv.keeper_types import AnswerRead, AppendRecord, Asked, KeeperLimits, RecordCommitted
from waltz_ray.kv.messages import ANY_VERSION, Command, Get, GetMany, Op, Opcode, OpKind, Put, Reply
from waltz_ray.kv.routing import Unit, fnv1a_32, unit_of
from waltz_ray.kv.state import MemoryState

NAME = b"k"


class Alone:
    """Everything is served here."""

    mask = 0xF

    def unit_of(self, key_hash: int) -> Unit | None:
        return unit_of(key_hash, self.mask)

    def elsewhere(self, key_hash: int) -> str:
        return ""

    def secondary(self, key_hash: int) -> int | None:
        return None


def put(value: bytes, expires_ms: int = 0, expected: int = ANY_VERSION) -> Put:
    return Put(b"", 0, 0, 0, False, (Op(OpKind.SET, NAME, 4, value, expires_ms, expected),))


@pytest.mark.parametrize(
    "read", [GetMany(b"", (NAME,)), Get(Opcode.GET_STRING, 0, fnv1a_32(NAME))], ids=["get_many", "get_string"]
)
def test_nobody_sees_that_it_is_gone_before_the_write_that_found_it(read: Command) -> None:
    """Else: a reader is told that there is nothing, and then a write succeeds that expected what there was."""
    keeper = Keeper(1, {0: MemoryState()}, Alone(), KeeperLimits(backups=False), lambda: 7)
    [first] = keeper.step(Asked(1, 1, put(b"old", expires_ms=1000)), 0)
    assert isinstance(first, AppendRecord)
    keeper.step(RecordCommitted(first.number, 0), 10)
    [second] = keeper.step(Asked(2, 1, put(b"new", expected=0)), 900)
    assert isinstance(second, AppendRecord)
    [before] = keeper.step(Asked(3, 2, read), 950)
    assert isinstance(before, AnswerRead)
    assert b"old" in shown(before.reply)
    assert keeper.step(Asked(4, 2, read), 1500) == []
    answers = [
        effect for effect in keeper.step(RecordCommitted(second.number, 1), 1600) if isinstance(effect, AnswerRead)
    ]
    assert [b"new" in shown(answer.reply) for answer in answers] == [True]


def shown(reply: Reply) -> bytes:
    return repr(reply).encode()
