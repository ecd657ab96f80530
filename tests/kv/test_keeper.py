"""The keeper alone, told facts one by one."""

from __future__ import annotations

from typing import Any

import pytest

from waltz_ray.kv import messages as m
from waltz_ray.kv import scanning
from waltz_ray.kv.keeper import Keeper
from waltz_ray.kv.keeper_types import (
    Answer,
    AnswerRead,
    AppendRecord,
    Asked,
    AskWhetherItStands,
    ConnectionLeft,
    Effect,
    FateUnknown,
    FoldedTo,
    KeeperLimits,
    LeaseIsOver,
    RecordCommitted,
    RecordRefused,
    StandsOrNot,
    TimePassed,
    UnitDrained,
    UnitStops,
    WantFolded,
    WritesBounded,
)
from waltz_ray.kv.messages import FailCode, Opcode
from waltz_ray.kv.model import (
    BARRIER,
    NOBODYS,
    Barrier,
    Delete,
    Expired,
    Item,
    ItemKey,
    Lock,
    LockHeld,
    RequestId,
    Set,
    Touch,
    Unlock,
    WriteRefused,
)
from waltz_ray.kv.records import encode_record
from waltz_ray.kv.routing import Unit, fnv1a_32
from waltz_ray.kv.state import MemoryState
from waltz_ray.kv.wire import encode_reply

NAME = b"something"
HASH = fnv1a_32(NAME)
UNIT = Unit(0xF, HASH & 0xF)
NOW = 1_000_000


class Everything:
    """``Serving`` of who has all units, until told otherwise."""

    mask = 0xF

    def __init__(self) -> None:
        self.serves = True
        self.nobody = False
        """Serves them just now."""

    def unit_of(self, key_hash: int) -> Unit | None:
        return Unit(self.mask, key_hash & self.mask) if self.serves and not self.nobody else None

    def elsewhere(self, key_hash: int) -> str:
        return "" if self.serves or self.nobody else "there:1"

    def secondary(self, key_hash: int) -> int | None:
        return None


class Owner:
    """A keeper of one partition, and its state."""

    def __init__(self, **limits: int) -> None:
        self.state = MemoryState()
        self.serving = Everything()
        self.keeper = Keeper(1, {0: self.state}, self.serving, KeeperLimits(backups=False, **limits), lambda: 7)
        self.now_ms = NOW
        self._token = 0

    def ask(self, command: m.Command, connection: int = 1) -> list[Effect]:
        self._token += 1
        return self.keeper.step(Asked(self._token, connection, command), self.now_ms)

    def fold(self, *records: object) -> list[Effect]:
        first = self.state.mark + 1
        self.state.apply((first + at, encode_record(record)) for at, record in enumerate(records))  # type: ignore[arg-type]
        return self.keeper.step(FoldedTo(0), self.now_ms)

    def scanned(self, after: bytes, limit: int) -> m.Scanned:
        """A page of all items."""
        (read,) = self.ask(m.ScanCommand(0, b"", b"", after, limit))
        assert isinstance(read, AnswerRead)
        assert isinstance(read.reply, m.Scanned)
        return read.reply


def a_set(data: bytes, expires_s: int = 0) -> m.SetCommand:
    return m.SetCommand(4, 0, HASH, expires_s, False, NAME, data)


def put(name: bytes, data: bytes) -> m.Put:
    return m.Put(b"", 0, 0, 0, False, (m.Op(m.OpKind.SET, name, data=data),))


def the_append(effects: list[Effect]) -> AppendRecord:
    (effect,) = effects
    assert isinstance(effect, AppendRecord)
    return effect


def stands(owner: Owner, effects: list[Effect]) -> Answer:
    """The answer to a write that is refused, under the lease."""
    (asked,) = effects
    assert isinstance(asked, AskWhetherItStands)
    (answer,) = owner.keeper.step(StandsOrNot(asked.refusal, True), owner.now_ms)
    assert isinstance(answer, Answer)
    return answer


A_GET = m.Get(Opcode.GET_STRING, 0, HASH)
NOT_DONE = m.FailInfo(FailCode.NOT_READY, "its connection is gone; nothing was changed")


def test_an_answer_comes_after_the_commit_and_a_read_sees_it_before_it_is_folded() -> None:
    owner = Owner()
    append = the_append(owner.ask(a_set(b"1")))
    assert append.units == (Unit(0xF, 0xB),)
    assert owner.keeper.step(RecordCommitted(append.number, 0), NOW) == [Answer(1, m.Ack())]
    (read,) = owner.ask(A_GET)
    assert isinstance(read, AnswerRead)
    assert read.reply == m.DataString(0, HASH, b"1")
    owner.fold(append.record)
    (read,) = owner.ask(A_GET)
    assert isinstance(read, AnswerRead)
    assert read.reply == m.DataString(0, HASH, b"1")


def test_writes_of_one_hash_go_one_after_the_other_and_a_read_of_the_same_connection_waits() -> None:
    owner = Owner()
    first = the_append(owner.ask(a_set(b"1")))
    assert owner.ask(a_set(b"2")) == []
    assert owner.ask(A_GET) == []
    (other,) = owner.ask(A_GET, connection=2)
    assert isinstance(other, AnswerRead)
    assert other.reply == m.Fail()
    answer, second = owner.keeper.step(RecordCommitted(first.number, 0), NOW)
    assert answer == Answer(1, m.Ack())
    assert isinstance(second, AppendRecord)
    answer, read = owner.keeper.step(RecordCommitted(second.number, 1), NOW)
    assert answer == Answer(2, m.Ack())
    assert isinstance(read, AnswerRead)
    assert read.reply == m.DataString(0, HASH, b"2")


def test_what_the_log_refuses_is_decided_again_once_the_fold_has_what_was_in_the_way() -> None:
    owner = Owner()
    append = the_append(owner.ask(a_set(b"1")))
    assert owner.keeper.step(RecordRefused(append.number, 0), NOW) == [WantFolded(0, 0)]
    again = the_append(owner.fold(BARRIER))
    assert again.record == append.record
    owner.keeper.step(RecordRefused(again.number, 1), NOW)
    owner.serving.serves = False
    assert owner.fold(BARRIER) == [Answer(1, m.TryElsewhere("there:1"))]


def test_what_was_refused_is_dropped_once_its_connection_is_gone() -> None:
    """A client without IDs has asked elsewhere: done now it would come after what he has written since."""
    owner = Owner()
    append = the_append(owner.ask(a_set(b"1"), connection=9))
    owner.keeper.step(ConnectionLeft(9), NOW)
    owner.keeper.step(RecordRefused(append.number, 0), NOW)
    assert owner.fold(BARRIER) == [Answer(1, NOT_DONE)]
    the_append(owner.ask(a_set(b"2")))


def test_each_command_has_an_answer_though_its_connection_is_gone() -> None:
    """What is kept for a command is kept until then. Nothing of it is done any more, but for what is on its way."""
    owner = Owner()
    lock = m.LockNative(NAME, 0, 0, 0, 10_000, 60_000)
    flying, taken = the_append(owner.ask(a_set(b"1"), connection=9)), the_append(owner.ask(lock))
    assert owner.ask(a_set(b"2"), connection=9) == [], "it stands behind the other"
    assert owner.keeper.step(RecordCommitted(taken.number, 0), NOW) == [Answer(2, m.DataLock(7))]
    assert owner.ask(lock, connection=9) == [], "it waits for the lock"
    owner.serving.nobody = True
    assert owner.ask(put(b"other", b"3"), connection=9) == owner.ask(A_GET, connection=9) == [], "nobody serves it"
    put_not_done = m.PutDone((m.OpResult(FailCode.NOT_READY, -1),))
    left = owner.keeper.step(ConnectionLeft(9), NOW)
    assert left == [Answer(5, put_not_done), Answer(6, NOT_DONE), Answer(4, NOT_DONE)]
    owner.serving.nobody = False
    assert owner.keeper.step(RecordCommitted(flying.number, 1), NOW) == [Answer(1, m.Ack()), Answer(3, NOT_DONE)]
    assert owner.keeper.waiting == 0
    owner.fold(taken.record, flying.record)
    assert owner.keeper.step(TimePassed(), NOW) == []


def test_who_asks_for_a_copy_that_never_comes_is_told_when_no_primary_waits_any_more() -> None:
    """Else it keeps members from being answered, and the room of a port, for ever; but a goodbye waits for answers."""
    owner = Owner(waiting=3, fullwait_ms=1000)
    for transaction_id, passed_ms in ((5, 0), (1 << 60, 500), (0, 0)):
        owner.now_ms += passed_ms
        (wanted,) = owner.ask(m.SecondaryHas(0, transaction_id))
        assert isinstance(wanted, WantFolded)
    assert owner.keeper.step(ConnectionLeft(1), owner.now_ms) == []
    owner.now_ms += 500
    gone = m.FailInfo(FailCode.NOT_READY, "it has not come here in time")
    assert owner.keeper.step(TimePassed(), owner.now_ms) == [Answer(1, gone)]
    assert owner.fold(BARRIER) == [Answer(3, m.Ack())]
    owner.now_ms += 500
    assert owner.keeper.step(TimePassed(), owner.now_ms) == [Answer(2, gone)]
    (wanted,) = owner.ask(m.SecondaryHas(0, 7), connection=2)
    assert isinstance(wanted, WantFolded)


def test_without_a_lease_a_read_waits_for_a_barrier_that_left_after_it_came() -> None:
    owner = Owner()
    (first,) = owner.ask(A_GET)
    assert isinstance(first, AnswerRead)
    barrier = the_append(owner.keeper.step(LeaseIsOver(first.read), NOW))
    assert barrier.record == Barrier()
    (late,) = owner.ask(A_GET)
    assert isinstance(late, AnswerRead)
    assert owner.keeper.step(LeaseIsOver(late.read), NOW) == []
    following, answer = owner.keeper.step(RecordCommitted(barrier.number, 0), NOW)
    assert answer == Answer(1, m.Fail())
    assert isinstance(following, AppendRecord)
    assert owner.keeper.step(RecordCommitted(following.number, 1), NOW) == [Answer(2, m.Fail())]


def test_a_proof_says_nothing_of_what_has_expired_since() -> None:
    """The fate of its BARRIER came late, and another owner had given the item a later deadline by then (found by the
    simulation)."""
    owner = Owner()
    append = the_append(owner.ask(a_set(b"1", expires_s=2)))
    owner.keeper.step(RecordCommitted(append.number, 0), NOW)
    owner.fold(append.record)
    (read,) = owner.ask(A_GET)
    assert isinstance(read, AnswerRead)
    barrier = the_append(owner.keeper.step(LeaseIsOver(read.read), NOW))
    late = NOW + 3_000
    assert owner.keeper.step(RecordCommitted(barrier.number, 1), late) == [Answer(2, m.DataString(0, HASH, b"1"))]


def test_a_write_is_refused_for_what_was_there_when_the_proof_was_sought() -> None:
    """Or decided by what is there now, if nothing was in its way then."""
    for expected, expired in ((99, False), (m.ABSENT, True)):
        owner = Owner()
        append = the_append(owner.ask(a_set(b"1", expires_s=2)))
        owner.keeper.step(RecordCommitted(append.number, 0), NOW)
        owner.fold(append.record)
        (asked,) = owner.ask(m.Put(b"", 0, 0, 0, False, (m.Op(m.OpKind.SET, NAME, data=b"2", expected=expected),)))
        assert isinstance(asked, AskWhetherItStands)
        barrier = the_append(owner.keeper.step(StandsOrNot(asked.refusal, False), NOW))
        if expired:
            owner.fold(Expired(((ItemKey(0, HASH, NAME), 0),)))
        effects = owner.keeper.step(RecordCommitted(barrier.number, 1), NOW + 3_000)
        if expired:
            assert isinstance(the_append(effects).record, Set)
        else:
            assert effects == [Answer(2, m.PutDone((m.OpResult(m.FailCode.CONFLICT, 0),)))]


def test_only_the_owner_refuses_a_write_for_what_is_there() -> None:
    """Who was deposed and does not know it would tell what was there before (found by the simulation)."""
    owner = Owner()
    (asked,) = owner.ask(m.UnlockCommand(b"l", 5))
    assert isinstance(asked, AskWhetherItStands)
    barrier = the_append(owner.keeper.step(StandsOrNot(asked.refusal, False), NOW))
    assert barrier.record == Barrier()
    assert owner.keeper.step(RecordRefused(barrier.number, 0), NOW) == [WantFolded(0, 0)]
    owner.serving.serves = False
    assert owner.fold(BARRIER) == [Answer(1, m.TryElsewhere("there:1"))]
    owner.serving.serves = True
    (asked,) = owner.ask(m.UnlockCommand(b"l", 5))
    assert isinstance(asked, AskWhetherItStands)
    barrier = the_append(owner.keeper.step(StandsOrNot(asked.refusal, False), NOW))
    assert owner.keeper.step(RecordCommitted(barrier.number, 1), NOW) == [Answer(2, m.Fail())]


def test_a_unit_is_drained_when_nothing_of_it_is_under_way() -> None:
    owner = Owner()
    append = the_append(owner.ask(a_set(b"1")))
    assert owner.ask(a_set(b"2")) == []
    owner.serving.serves = False
    assert owner.keeper.step(UnitStops(append.units[0]), NOW) == []
    effects = owner.keeper.step(RecordCommitted(append.number, 0), NOW)
    assert set(map(type, effects)) == {UnitDrained, Answer}
    assert Answer(2, m.TryElsewhere("there:1")) in effects
    assert UnitDrained(append.units[0]) in effects


def test_an_item_is_gone_at_its_deadline_and_the_log_is_told_once() -> None:
    """O42."""
    owner = Owner()
    append = the_append(owner.ask(a_set(b"1", expires_s=5)))
    assert isinstance(append.record, Set)
    assert append.record.deadline_ms == NOW + 5000
    owner.keeper.step(RecordCommitted(append.number, 0), NOW)
    owner.fold(append.record)
    owner.now_ms = NOW + 4999
    (read,) = owner.ask(A_GET)
    assert isinstance(read, AnswerRead)
    assert read.reply == m.DataString(0, HASH, b"1")
    owner.now_ms = NOW + 5000
    told = the_append(owner.keeper.step(TimePassed(), owner.now_ms))
    assert isinstance(told.record, Expired)
    assert owner.keeper.step(TimePassed(), owner.now_ms) == []
    owner.keeper.step(RecordCommitted(told.number, 1), owner.now_ms)
    assert owner.keeper.step(TimePassed(), owner.now_ms) == []
    owner.fold(told.record)
    assert owner.keeper.step(TimePassed(), owner.now_ms) == []


GET_MANY = m.GetMany(b"", (NAME,))
READ_AS_MISSING = {A_GET: m.Fail(), GET_MANY: m.SeenMany((m.Seen(FailCode.MISSING),))}
DELETED = m.Put(b"", 0, 0, 0, False, (m.Op(m.OpKind.DELETE, NAME),))


def with_one_that_is_over() -> tuple[Owner, Expired]:
    """An owner by whose clock its item has just expired, and the record that says so."""
    owner = Owner()
    append = the_append(owner.ask(a_set(b"1", expires_s=5)))
    owner.keeper.step(RecordCommitted(append.number, 0), NOW)
    owner.fold(append.record)
    owner.now_ms = NOW + 5000
    return owner, Expired(((ItemKey(0, HASH, NAME), 0),))


@pytest.mark.parametrize("read", READ_AS_MISSING, ids=["get", "get_many"])
def test_that_an_item_is_gone_is_told_once_the_log_says_so(read: m.Command) -> None:
    """O42. By the owner's clock alone it was told: the next owner's was behind, and showed it again (found by the
    simulation)."""
    owner, expired = with_one_that_is_over()
    told = the_append(owner.ask(read))
    assert told.record == expired
    assert owner.ask(read, connection=2) == [], "that is said once"
    assert owner.keeper.step(TimePassed(), owner.now_ms) == []
    wanted = owner.keeper.step(RecordCommitted(told.number, 1), owner.now_ms)
    assert wanted == [WantFolded(0, 1)] * 2
    answers = owner.fold(told.record)
    assert [answer.reply for answer in answers if isinstance(answer, AnswerRead)] == [READ_AS_MISSING[read]] * 2


def test_a_write_is_refused_for_want_of_an_item_once_the_log_says_that_it_is_gone() -> None:
    owner, expired = with_one_that_is_over()
    told = the_append(owner.ask(DELETED))
    assert told.record == expired
    assert owner.ask(A_GET, connection=2) == [], "it comes behind the write"
    owner.keeper.step(RecordCommitted(told.number, 1), owner.now_ms)
    (asked,) = owner.fold(told.record)
    assert isinstance(asked, AskWhetherItStands)
    answer, read = owner.keeper.step(StandsOrNot(asked.refusal, True), owner.now_ms)
    assert answer == Answer(2, m.PutDone((m.OpResult(FailCode.MISSING),)))
    assert isinstance(read, AnswerRead)
    assert read.reply == m.Fail()


def test_who_cannot_say_that_an_item_is_gone_does_not_tell_it() -> None:
    """It is another owner's by now, or the log does not answer."""
    owner, expired = with_one_that_is_over()
    told = the_append(owner.ask(A_GET))
    assert owner.keeper.step(RecordRefused(told.number, 1), owner.now_ms) == [WantFolded(0, 1)]
    again = the_append(owner.fold(BARRIER))
    assert again.record == expired
    owner.keeper.step(RecordRefused(again.number, 2), owner.now_ms)
    owner.serving.serves = False
    assert owner.fold(BARRIER) == [Answer(2, m.TryElsewhere("there:1"))]
    owner.serving.serves = True
    text = "the log does not answer: away"
    told = the_append(owner.ask(A_GET))
    assert owner.keeper.step(FateUnknown(told.number, "away"), owner.now_ms) == [
        Answer(3, m.FailInfo(FailCode.NOT_READY, text))
    ]
    told = the_append(owner.ask(DELETED))
    assert owner.ask(A_GET, connection=2) == []
    refused, for_the_read = owner.keeper.step(FateUnknown(told.number, "away"), owner.now_ms)
    assert refused == Answer(4, m.PutDone((m.OpResult(FailCode.NOT_READY),)))
    assert isinstance(for_the_read, AppendRecord)
    assert for_the_read.record == expired


def test_of_many_items_that_are_asked_for_when_they_have_expired_one_record_says_so() -> None:
    owner = Owner()
    keys = [ItemKey(0, fnv1a_32(b"%d" % n) & ~0xFF | 0x33, b"%d" % n) for n in range(300)]
    owner.fold(*(Set(key, 4, b"", NOW + 1, b"", NOBODYS, NOW) for key in keys))
    owner.now_ms = NOW + 1
    told = the_append(owner.ask(m.Get(Opcode.GET_STRING, 0, keys[270].hash)))
    assert isinstance(told.record, Expired)
    assert (len(told.record.items), told.record.items[0][0]) == (250, keys[270])
    for key in keys:
        assert owner.ask(m.Get(Opcode.GET_STRING, 0, key.hash)) == []


def test_the_longest_life_ends_where_signed_numbers_do() -> None:
    """DataFrames and answers have deadlines, and what is left until them, in 64 bits with a sign."""
    owner = Owner()
    longest = (1 << 63) - 1
    for kind in (m.OpKind.SET, m.OpKind.TOUCH):
        append = the_append(owner.ask(m.Put(b"", 0, 0, 0, False, (m.Op(kind, NAME, expires_ms=longest),))))
        assert isinstance(append.record, Set | Touch)
        assert append.record.deadline_ms == longest
        owner.keeper.step(RecordCommitted(append.number, owner.state.mark + 1), owner.now_ms)
        owner.fold(append.record)
    owner.now_ms -= 1000  # another actor's clock
    (read,) = owner.ask(m.GetMany(b"", (NAME,)))
    assert isinstance(read, AnswerRead)
    assert encode_reply(Opcode.GET_MANY, 1, read.reply)


def test_a_lock_that_nobody_has_had_for_long_is_forgotten_and_its_codes_go_on_rising() -> None:
    owner = Owner()
    lock = m.LockNative(NAME, 0, 0, 0, 1_000, 0)
    taken = the_append(owner.ask(lock))
    assert owner.keeper.step(RecordCommitted(taken.number, 0), owner.now_ms) == [Answer(1, m.DataLock(7))]
    owner.fold(taken.record)
    owner.now_ms = NOW + 1_000 + 599_999
    assert owner.keeper.step(TimePassed(), owner.now_ms) == []
    owner.now_ms += 1
    over = the_append(owner.keeper.step(TimePassed(), owner.now_ms))
    assert (over.record, over.units) == (Unlock(NAME, 7, NOBODYS, owner.now_ms), (UNIT,))
    assert owner.keeper.step(TimePassed(), owner.now_ms) == [], "it is on its way"
    owner.keeper.step(RecordCommitted(over.number, 1), owner.now_ms)
    assert owner.keeper.step(TimePassed(), owner.now_ms) == [], "it is not folded"
    owner.fold(over.record)
    assert owner.state.lock(NAME) is None
    again = the_append(owner.ask(lock))
    (answer,) = owner.keeper.step(RecordCommitted(again.number, 2), owner.now_ms)
    assert answer == Answer(2, m.DataLock(2 << 16 | 7))


def test_a_lock_is_not_forgotten_while_a_renewal_is_on_its_way() -> None:
    """It keeps the code, so UNLOCK would take the lock from who has it."""
    owner = Owner()
    taken = the_append(owner.ask(m.LockNative(NAME, 0, 0, 0, 1_000, 0)))
    owner.keeper.step(RecordCommitted(taken.number, 0), owner.now_ms)
    owner.fold(taken.record)
    renewal = the_append(owner.ask(m.Renew(NAME, 0, 0, 0, 7, 3_600_000)))
    owner.now_ms = NOW + 700_000
    assert owner.keeper.step(TimePassed(), owner.now_ms) == []
    owner.keeper.step(RecordCommitted(renewal.number, 1), owner.now_ms)
    assert owner.keeper.step(TimePassed(), owner.now_ms) == [], "it is not folded"
    owner.fold(renewal.record)
    assert owner.keeper.step(TimePassed(), owner.now_ms) == []
    held = owner.state.lock(NAME)
    assert held is not None
    assert held.deadline_ms == NOW + 3_600_000


def test_those_who_wait_for_locks_are_not_all_looked_at_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One user may have a hundred thousand of them. Each has its lock, or is refused, as soon as it can be."""
    owner, looked_at = Owner(), list[bytes]()
    names = [b"%d" % number for number in range(1000)]
    owner.fold(*(Lock(name, 7, NOW + 60_000 + number) for number, name in enumerate(names)))
    for number, name in enumerate(names):
        assert owner.ask(m.LockCommand(name, 10, 5 if number == 999 else 3600), connection=1 + number % 10) == []
    assert owner.keeper.waiting == 1000
    lock = owner.state.lock

    def counted(name: bytes) -> LockHeld | None:
        looked_at.append(name)
        return lock(name)

    monkeypatch.setattr(owner.state, "lock", counted)

    def taken(now_ms: int) -> list[bytes]:
        """At that time."""
        owner.now_ms = now_ms
        effects = owner.keeper.step(TimePassed(), owner.now_ms)
        return [effect.record.name for effect in effects if isinstance(effect, AppendRecord)]  # type: ignore[union-attr]

    assert taken(NOW + 100) == []
    assert len(looked_at) < 300
    assert taken(NOW + 4_999) == []
    owner.now_ms = NOW + 5_000
    (asked,) = owner.keeper.step(TimePassed(), owner.now_ms)
    assert isinstance(asked, AskWhetherItStands), "who wanted to wait for five seconds is refused then"
    assert taken(NOW + 60_000) == [names[0]]
    assert taken(NOW + 60_003) == names[1:4]
    held = lock(names[500])
    assert held is not None
    owner.fold(Unlock(names[500], held.code))  # of whose fate nobody here had known
    assert [name for _ in range(4) for name in taken(NOW + 60_003)] == [names[500]], "it is found in its turn"
    left = owner.keeper.step(ConnectionLeft(1 + 900 % 10), owner.now_ms)
    assert len([effect for effect in left if isinstance(effect, Answer)]) == 98
    assert owner.keeper.step(ConnectionLeft(99), owner.now_ms) == []


def test_a_clock_that_begins_in_1970_ends_nothing() -> None:
    owner = Owner()
    owner.now_ms = 1
    assert owner.keeper.step(TimePassed(), owner.now_ms) == []


def test_what_expires_at_once_is_said_by_and_by() -> None:
    """A cache that was filled at once: folded in one turn, it would keep everybody waiting for longer than a lease."""
    owner = Owner()
    keys = [ItemKey(0, number, b"%d" % number) for number in range(10_000)]
    owner.fold(*(Set(key, 4, b"", 1, b"", NOBODYS, NOW) for key in keys))
    left = len(keys)
    while left:
        appends = [each for each in owner.keeper.step(TimePassed(), owner.now_ms) if isinstance(each, AppendRecord)]
        said = [len(append.record.items) for append in appends if isinstance(append.record, Expired)]
        assert said
        assert max(said) <= 250
        assert sum(said) <= 2000
        assert owner.keeper.step(TimePassed(), owner.now_ms) == [], "what is under way is waited for"
        for version, append in enumerate(appends, owner.state.mark + 1):
            owner.keeper.step(RecordCommitted(append.number, version), owner.now_ms)
        owner.fold(*(append.record for append in appends))
        left -= sum(said)
    assert owner.state.expired(owner.now_ms, 1) == []


def test_what_has_expired_is_said_though_much_of_others_has_before(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner()
    monkeypatch.setattr(owner.serving, "unit_of", lambda key_hash: UNIT if key_hash & 0xF == UNIT.bucket else None)
    of_others = [Set(ItemKey(0, number << 4, b"%d" % number), 4, b"", 1, b"", NOBODYS, NOW) for number in range(3000)]
    owner.fold(*of_others, Set(ItemKey(0, HASH, NAME), 4, b"", 2, b"", NOBODYS, NOW))
    append = the_append(owner.keeper.step(TimePassed(), owner.now_ms))
    assert append.record == Expired(((ItemKey(0, HASH, NAME), 3000),))


def test_each_partition_has_its_turn_when_much_has_expired() -> None:
    states = {partition: MemoryState() for partition in range(16)}
    serving = Everything()
    keeper = Keeper(16, states, serving, KeeperLimits(backups=False), lambda: 7)
    for partition, state in states.items():
        keys = [ItemKey(0, number << 4 | partition, b"%d" % number) for number in range(600)]
        state.apply(enumerate(encode_record(Set(key, 4, b"", 1, b"", NOBODYS, NOW)) for key in keys))
    told: list[set[int]] = []
    for _ in range(2):
        appends = [each for each in keeper.step(TimePassed(), NOW) if isinstance(each, AppendRecord)]
        told.append({append.partition for append in appends})
        for append in appends:
            state = states[append.partition]
            keeper.step(RecordCommitted(append.number, state.mark + 1), NOW)
            state.apply([(state.mark + 1, encode_record(append.record))])
            keeper.step(FoldedTo(append.partition), NOW)
    assert told == [{*range(8)}, {*range(8, 16)}]


def test_an_unlock_that_the_log_refuses_is_tried_again() -> None:
    owner = Owner()
    taken = the_append(owner.ask(m.LockNative(NAME, 0, 0, 0, 1_000, 0)))
    owner.keeper.step(RecordCommitted(taken.number, 0), owner.now_ms)
    owner.fold(taken.record)
    owner.now_ms = NOW + 700_000
    over = the_append(owner.keeper.step(TimePassed(), owner.now_ms))
    assert owner.keeper.step(RecordRefused(over.number, 1), owner.now_ms) == []
    owner.serving.nobody = True
    assert owner.keeper.step(TimePassed(), owner.now_ms) == [], "it may be somebody else's"
    owner.serving.nobody = False
    over = the_append(owner.keeper.step(TimePassed(), owner.now_ms))
    assert owner.keeper.step(FateUnknown(over.number, "it is away"), owner.now_ms) == []
    assert the_append(owner.keeper.step(TimePassed(), owner.now_ms)).record == over.record


def test_a_scan_has_the_item_without_a_name_folded_or_not_and_goes_on_behind_it() -> None:
    owner = Owner()

    def all_of_it() -> list[tuple[bytes, bytes]]:
        page = owner.scanned(b"", 1)
        rest = owner.scanned(page.items[-1].name, 10)
        assert (page.more, rest.more) == (True, False)
        assert page.items + rest.items == owner.scanned(b"", 10).items
        return [(item.name, item.data) for item in (*page.items, *rest.items)]

    for data in (b"old", b"new"):
        names, first = (b"", b"a", b"b"), owner.state.mark + 1
        appended = [the_append(owner.ask(put(name, data))) for name in names]
        for version, append in enumerate(appended, first):
            owner.keeper.step(RecordCommitted(append.number, version), NOW)
        assert all_of_it() == [(name, data) for name in names]
        owner.fold(*(append.record for append in appended))
        assert all_of_it() == [(name, data) for name in names]


def test_long_values_come_in_short_pages_and_no_more_of_them_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes of a command must not have an actor hold gigabytes."""
    monkeypatch.setattr(scanning, "_ROWS_BYTES", 100)
    monkeypatch.setattr(scanning, "_PAGE_BYTES", 200)
    owner = Owner(answer_bytes=150)
    names = [b"%02d" % number for number in range(20)]
    owner.fold(*(Set(ItemKey(0, fnv1a_32(name), name), 3, b"v" * 60) for name in names))
    read_rows: list[int] = []
    scan = owner.state.scan

    def counted(*asked: Any) -> list[tuple[ItemKey, Item]]:
        rows = scan(*asked)
        read_rows.append(len(rows))
        return rows

    monkeypatch.setattr(owner.state, "scan", counted)
    found: list[bytes] = []
    more = True
    while more:
        (read,) = owner.ask(m.ScanCommand(0, b"", b"", found[-1] if found else b"", 4096))
        assert isinstance(read, AnswerRead)
        assert isinstance(read.reply, m.Scanned)
        assert len(read.reply.items) <= 4
        found += [item.name for item in read.reply.items]
        more = read.reply.more
    assert found == names
    assert max(read_rows) == 2

    item, looked = owner.state.item, []

    def seen(key: ItemKey) -> Item | None:
        looked.append(key)
        return item(key)

    monkeypatch.setattr(owner.state, "item", seen)
    (answer,) = owner.ask(m.GetMany(b"", (names[0],) * 4096))
    assert isinstance(answer, Answer)
    assert isinstance(answer.reply, m.FailInfo)
    assert answer.reply.code == FailCode.TOO_LONG
    assert len(looked) == 3
    (read,) = owner.ask(m.GetMany(b"", (names[0],) * 2))
    assert isinstance(read, AnswerRead)


def test_no_more_is_read_in_a_step_than_may_be_held_until_it_ends() -> None:
    owner = Owner(step_bytes=100)
    owner.fold(Set(ItemKey(0, HASH, NAME), 4, b"v" * 60))
    for command in (A_GET, m.GetMany(b"", (NAME,)), m.ScanCommand(0, b"", b"", b"", 5)):
        effects = owner.keeper.asked([Asked(token, 1, command) for token in (1, 2, 3)], NOW)
        assert [type(effect) for effect in effects] == [AnswerRead, Answer, Answer]
        for effect in effects[1:]:
            assert isinstance(effect, Answer)
            assert isinstance(effect.reply, m.FailInfo)
            assert effect.reply.code == FailCode.TOO_MANY
    effects = owner.keeper.asked([Asked(4, 1, A_GET), Asked(5, 1, m.Get(Opcode.GET_TYPE, 0, HASH))], NOW)
    assert [type(effect) for effect in effects] == [AnswerRead, AnswerRead]


def test_a_second_name_of_one_hash_is_refused() -> None:
    """D10: costarring and liquid are both 5e4daa9d."""
    owner = Owner()
    there, other = b"costarring", b"liquid"
    key_hash = fnv1a_32(there)
    assert key_hash == fnv1a_32(other) == 0x5E4DAA9D
    append = the_append(owner.ask(m.SetCommand(4, 0, key_hash, 0, False, there, b"1")))
    owner.keeper.step(RecordCommitted(append.number, 0), NOW)
    for _ in range(2):
        refused = stands(owner, owner.ask(m.SetCommand(4, 0, key_hash, 0, False, other, b"2")))
        assert isinstance(refused.reply, m.FailInfo)
        assert refused.reply.code == FailCode.COLLISION
        owner.fold(append.record)


def test_a_third_name_of_one_hash_is_seen_behind_two_that_have_gone() -> None:
    """Which are still in the state: deleted and not folded yet, or expired and not said to be."""
    names = b"jvptehtrad", b"rvorrmmboj", b"yybvhwuvmi"
    (key_hash,) = {fnv1a_32(name) for name in names}
    get, other = m.Get(Opcode.GET_STRING, 0, key_hash), m.SetCommand(4, 0, key_hash, 0, False, b"other", b"1")
    for deadline_ms in (0, NOW + 5):
        owner = Owner()
        gone = [Set(ItemKey(0, key_hash, name), 4, b"gone", deadline_ms) for name in names[:2]]
        owner.fold(*gone, Set(ItemKey(0, key_hash, names[2]), 4, b"there"))
        if deadline_ms:
            owner.now_ms = deadline_ms
        else:
            for number, name in enumerate(names[:2]):
                append = the_append(owner.ask(m.Put(b"", 0, 0, 0, False, (m.Op(m.OpKind.DELETE, name),))))
                owner.keeper.step(RecordCommitted(append.number, 3 + number), owner.now_ms)
        (read,) = owner.ask(get)
        assert isinstance(read, AnswerRead)
        assert read.reply == m.DataString(0, key_hash, b"there")
        refused = stands(owner, owner.ask(other)).reply
        assert isinstance(refused, m.FailInfo)
        assert refused.code == FailCode.COLLISION


def test_nonsense_is_answered_and_changes_nothing() -> None:
    """D9, D11: a negative expiry, a name or a value that is too long, a lease of nothing, an empty batch."""
    owner = Owner(max_value_bytes=10)
    for command, code in (
        (a_set(b"1", expires_s=-1), FailCode.BAD_REQUEST),
        (a_set(b"x" * 11), FailCode.TOO_LONG),
        (m.SetCommand(4, 0, 1, 0, False, b"n" * 481, b""), FailCode.TOO_LONG),
        (m.LockCommand(b"l", 0, 0), FailCode.BAD_REQUEST),
        (m.LockCommand(b"l", -5, 0), FailCode.BAD_REQUEST),
        (m.Put(b"", 0, 0, 0, False, ()), FailCode.BAD_REQUEST),
        (m.GetMany(b"", ()), FailCode.BAD_REQUEST),
        (m.ScanCommand(1, b"", b"", b"", 10), FailCode.BAD_REQUEST),
        (m.ScanCommand(0, b"", b"", b"", 0), FailCode.BAD_REQUEST),
        (m.Ping(), FailCode.BAD_REQUEST),
    ):
        (effect,) = owner.ask(command)
        assert isinstance(effect, Answer), command
        assert isinstance(effect.reply, m.FailInfo), command
        assert effect.reply.code == code, command


def test_a_batch_whose_numbers_no_record_can_have_is_refused() -> None:
    """It would share a transaction with others' writes, and none of them could be sent."""
    owner = Owner()
    op, last = m.Op(m.OpKind.SET, NAME, data=b"1"), (1 << 64) - 1
    (answer,) = owner.ask(m.Put(b"", 7, last, 0, False, (op, op)))
    assert isinstance(answer, Answer)
    assert isinstance(answer.reply, m.FailInfo)
    assert answer.reply.code == FailCode.BAD_REQUEST
    append = the_append(owner.ask(m.Put(b"", 7, last, last, False, (op,))))
    assert encode_record(append.record)


def test_a_client_with_too_many_writes_without_answers_is_told_to_wait() -> None:
    """What is remembered of it is written anew at each fold, and has to fit into a record of a snapshot."""
    owner = Owner(unsettled=4)
    op = m.Op(m.OpKind.SET, NAME, data=b"1")
    too_many: list[m.Command] = [
        m.Put(b"", 7, 4, 1, False, (op, op)),
        m.LockNative(b"l", 7, 5, 1, 1000, 0),
        m.UnlockNative(b"l", 7, 5, 1, 3),
        m.Renew(b"l", 7, 5, 1, 3, 1000),
    ]
    for command in too_many:
        (answer,) = owner.ask(command)
        assert isinstance(answer, Answer)
        assert isinstance(answer.reply, m.FailInfo)
        assert answer.reply.code == FailCode.TOO_MANY
        assert "writes 1 to 5 of one client have no answers: 4 may have none" in answer.reply.text
    the_append(owner.ask(m.Put(b"", 7, 4, 2, False, (op, op))))
    assert owner.ask(m.Put(b"", 0, 99, 0, False, (op,))) == [], "a client that has no number asks for no memory"


def test_items_wait_while_the_log_may_not_grow_and_nothing_else_does() -> None:
    owner = Owner()
    assert owner.keeper.step(WritesBounded(0, 100), NOW) == []
    first = the_append(owner.ask(put(b"a", b"x" * 200)))
    assert owner.ask(put(b"b", b"1")) == []
    assert owner.keeper.waiting == 1
    owner.keeper.step(RecordCommitted(first.number, 0), NOW)
    (read,) = owner.ask(m.Get(Opcode.GET_STRING, 0, fnv1a_32(b"b")), connection=2)
    assert isinstance(read, AnswerRead)
    assert read.reply == m.Fail()
    lock = the_append(owner.ask(m.LockCommand(b"l", 5, 0)))
    assert isinstance(lock.record, Lock)
    late = the_append(owner.keeper.step(WritesBounded(0, None), NOW))
    assert isinstance(late.record, Set)
    assert (late.record.key.name, owner.keeper.waiting) == (b"b", 0)


def test_who_is_no_owner_any_more_does_not_append_what_had_no_room() -> None:
    """It was decided while the unit was ours; the log would take it for ours, once our mark has who owns it now."""
    owner = Owner()
    owner.keeper.step(WritesBounded(0, 0), NOW)
    assert owner.ask(a_set(b"1")) == []
    owner.serving.serves = False
    owner.fold(BARRIER)
    assert owner.keeper.step(UnitStops(UNIT), NOW) == [Answer(1, m.TryElsewhere("there:1")), UnitDrained(UNIT)]


def test_who_still_owns_it_appends_in_the_order_of_a_line_what_had_no_room() -> None:
    owner = Owner()
    owner.keeper.step(WritesBounded(0, 0), NOW)
    assert owner.ask(a_set(b"1")) == owner.ask(a_set(b"2")) == []
    assert owner.keeper.step(WritesBounded(0, -5), NOW) == []
    append = the_append(owner.keeper.step(WritesBounded(0, 1000), NOW))
    assert isinstance(append.record, Set)
    assert append.record.data == b"1"
    answer, following = owner.keeper.step(RecordCommitted(append.number, 0), NOW)
    assert answer == Answer(1, m.Ack())
    assert isinstance(following, AppendRecord)


def test_what_is_ahead_of_the_fold_is_known_whatever_becomes_of_it() -> None:
    owner = Owner()
    first, second, third = (the_append(owner.ask(put(name, b"x" * 100))) for name in (b"a", b"b", b"c"))
    each = owner.keeper.ahead_bytes(0) // 3
    assert each > 100
    owner.keeper.step(RecordCommitted(first.number, 0), NOW)
    owner.keeper.step(RecordRefused(second.number, 7), NOW)
    assert owner.keeper.ahead_bytes(0) == 2 * each
    owner.keeper.step(FateUnknown(third.number, "gone"), NOW)
    assert owner.keeper.ahead_bytes(0) == each
    owner.fold(first.record)
    assert owner.keeper.ahead_bytes(0) == 0


def erase(repeated: bool) -> m.Put:
    return m.Put(b"", 77, 5, 5, False, (m.Op(m.OpKind.DELETE, NAME),), repeated)


def refused_with(effects: list[Effect]) -> m.OpResult:
    (answer,) = effects
    assert isinstance(answer, Answer)
    assert isinstance(answer.reply, m.PutDone)
    (result,) = answer.reply.results
    return result


def test_a_copy_of_a_write_that_comes_after_its_refusal_is_not_done() -> None:
    """Its client was told that there was nothing; what another has written since is no business of it (found by the
    simulation: a copy that a paused actor, or its socket, had held)."""
    owner = Owner()
    kept = the_append(owner.ask(erase(repeated=True)))
    assert kept.record == WriteRefused(FailCode.MISSING, -1, RequestId(77, 5, 5), NOW)
    assert kept.units == (UNIT,)
    effects = owner.keeper.step(RecordCommitted(kept.number, 0), NOW)
    assert refused_with(effects) == m.OpResult(FailCode.MISSING)
    other = the_append(owner.ask(a_set(b"of another")))
    owner.keeper.step(RecordCommitted(other.number, 1), NOW)
    for folded in (False, True):
        if folded:
            owner.fold(kept.record, other.record)
        late = owner.ask(erase(repeated=False), connection=2)
        assert refused_with(late) == m.OpResult(FailCode.MISSING), "what it was answered, and no record"
    assert owner.state.request(77, 5) is not None


def test_what_stood_in_the_way_is_told_again_to_who_repeats_once_more() -> None:
    owner = Owner()
    there = the_append(owner.ask(a_set(b"1")))
    owner.keeper.step(RecordCommitted(there.number, 3), NOW)
    absent = m.Put(b"", 77, 5, 5, False, (m.Op(m.OpKind.SET, NAME, data=b"2", expected=m.ABSENT),), True)
    kept = the_append(owner.ask(absent))
    owner.keeper.step(RecordCommitted(kept.number, 4), NOW)
    gone = the_append(owner.ask(m.Put(b"", 0, 0, 0, False, (m.Op(m.OpKind.DELETE, NAME),))))
    owner.keeper.step(RecordCommitted(gone.number, 5), NOW)
    assert refused_with(owner.ask(absent)) == m.OpResult(FailCode.CONFLICT, 3)


def test_a_refusal_that_is_to_be_kept_and_is_refused_by_the_log_is_decided_again() -> None:
    owner = Owner()
    kept = the_append(owner.ask(erase(repeated=True)))
    assert owner.keeper.step(RecordRefused(kept.number, 0), NOW) == [WantFolded(0, 0)]
    again = the_append(owner.fold(Set(ItemKey(0, HASH, NAME), 4, b"since")))
    assert isinstance(again.record, Delete)
    kept = the_append(owner.ask(m.Put(b"", 77, 9, 9, False, (m.Op(m.OpKind.TOUCH, b"other"),), True)))
    lost = owner.keeper.step(FateUnknown(kept.number, "no answer"), NOW)
    assert refused_with(lost).code == FailCode.UNKNOWN_FATE


def test_a_refusal_of_what_was_sent_once_or_has_its_answer_is_not_kept() -> None:
    owner = Owner()
    assert refused_with([stands(owner, owner.ask(erase(repeated=False)))]).code == FailCode.MISSING
    settled = the_append(owner.ask(m.Put(b"", 77, 9, 9, False, (m.Op(m.OpKind.SET, b"x"),))))
    owner.keeper.step(RecordCommitted(settled.number, 0), NOW)
    owner.fold(settled.record)
    assert refused_with([stands(owner, owner.ask(erase(repeated=True)))]).code == FailCode.CONFLICT


def test_of_items_with_one_name_a_scan_has_no_more_than_fit_in_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of the document may give no names, or hash as they like: all of these in one answer are more than a frame
    takes, and nobody could scan the space."""
    owner = Owner()

    keys = [ItemKey(0, number << 8, name) for number, name in enumerate((b"", b"a", b"b") * 3)]
    owner.fold(*(Set(key, 4, b"%d" % number, 0, b"", NOBODYS, NOW) for number, key in enumerate(keys)))
    page, rest = owner.scanned(b"", 1), owner.scanned(b"a", 1)
    assert [item.name for item in page.items] == [b""] * 3 + [b"a"] * 3
    assert [item.data for item in rest.items] == [b"2", b"5", b"8"]
    assert (page.more, rest.more) == (True, False)
    for bound, value in (("_PAGE_ITEMS", 2), ("_PAGE_BYTES", 2)):
        with monkeypatch.context() as patched:
            patched.setattr(scanning, bound, value)
            page, rest = owner.scanned(b"", 1), owner.scanned(b"a", 1)
            assert [item.data for item in page.items] == [b"0", b"3", b"1"]
            assert [item.data for item in rest.items][:1] == [b"2"]
            assert len(rest.items) <= 2
            assert (page.more, rest.more) == (True, False)
