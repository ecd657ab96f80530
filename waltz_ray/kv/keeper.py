"""What the actor does with the commands of one kv space: a machine, ``step(event, now_ms) -> effects``. Pure.

Ownership (``protocol/ownership.py``) says which units are served here; the projections' states say what the log has.
In between stands this: writes are decided in the order of their coming, one of each hash at a time (``lines.py``), by
the rules of ``rules.py``; appended under the read lock of their unit; answered when they are committed. A write that
the log refuses, because somebody may own its unit by now, is decided again once the projection has seen what was in
its way. Reads: ``reading.py``.

==================== ======================================================================================
killed               what the log has of it
==================== ======================================================================================
before an append     nothing: the client repeats it, elsewhere
after it             the write: the next owner folds it before it serves; repeated, it is recognised
before the answer    the same
while it drains      no RELEASE: the next owner waits until the registration has gone, then owns
==================== ======================================================================================
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from waltz_ray.kv import answers
from waltz_ray.kv.copies import AskedForCopies, SecondCopies
from waltz_ray.kv.expiry import Expiry
from waltz_ray.kv.intake import CommandIntake
from waltz_ray.kv.keeper_types import (
    Answer,
    Asked,
    AskWhetherItStands,
    ConnectionLeft,
    Effect,
    Event,
    FateUnknown,
    FoldedTo,
    KeeperLimits,
    LeaseIsOver,
    Rearranged,
    RecordCommitted,
    RecordRefused,
    SecondaryAnswered,
    Serving,
    StandsOrNot,
    TimePassed,
    UnitStops,
    WantFolded,
    WritesBounded,
)
from waltz_ray.kv.lines import Line, LineKey, PendingRead, PendingWrite, lock_code
from waltz_ray.kv.lock_waiting import LockWaiting
from waltz_ray.kv.messages import (
    FailCode,
    Put,
    TryElsewhere,
)
from waltz_ray.kv.model import BARRIER, ItemKey, Lock, Record, WriteRefused
from waltz_ray.kv.orders import Orders
from waltz_ray.kv.reading import Reads
from waltz_ray.kv.routing import Unit, partition_of
from waltz_ray.kv.rules import (
    NativeWrite,
    Outcome,
    Waits,
    decide,
    must_be_kept,
    over_of,
    reveals,
)
from waltz_ray.kv.state import KvState

__all__ = ["Keeper"]

_LEFT = "its connection is gone; nothing was changed"


class _Flight:
    """A write's record on its way; or that of its refusal, so that no copy of it is done later."""

    def __init__(self, keeper: Keeper, line: Line, write: PendingWrite, record: Record) -> None:
        self._keeper = keeper
        self._line = line
        self._write = write
        self._record = record

    def committed(self, version: int) -> None:
        self._keeper.write_committed(self._line, self._write, self._record, version)

    def refused(self, partition: int, conflict: int) -> None:
        self._keeper.after(partition, conflict, self._write)  # the line is held: nothing must overtake it

    def lost(self, reason: str) -> None:
        self._keeper.write_lost(self._line, self._write, reason)


class _Refusal:
    """A write that is to be refused for what is there. Only the owner may say that, as with a read: by its lease, or by
    a BARRIER in the log, after which the write is decided again."""

    def __init__(self, keeper: Keeper, line: Line, write: PendingWrite, outcome: Outcome, unit: Unit) -> None:
        self._keeper = keeper
        self.line = line
        self.write = write
        self.outcome = outcome
        self.unit = unit
        self.sought_ms = 0
        """When the BARRIER was appended."""

    def committed(self, version: int) -> None:
        self.write.proven_ms = self.sought_ms
        self._keeper.again(self.write)

    def refused(self, partition: int, conflict: int) -> None:
        self._keeper.after(partition, conflict, self.write)

    def lost(self, reason: str) -> None:
        self._keeper.write_lost(self.line, self.write, reason)


class Keeper:
    """See the module's docstring. ``random16``: sixteen random bits."""

    def __init__(
        self,
        partitions: int,
        states: Mapping[int, KvState],
        serving: Serving,
        limits: KeeperLimits,
        random16: Callable[[], int],
    ) -> None:
        """``states``: of the partitions that are projected here; it may change."""
        self._partitions = partitions
        self._states = states
        self._serving = serving
        self._limits = limits
        self._random16 = random16
        self._orders = Orders(partitions)
        self._lines: dict[LineKey, Line] = {}
        self._fresh: dict[int, list[tuple[int, LineKey]]] = defaultdict(list)
        self._after_fold: dict[int, list[tuple[int, int, PendingWrite | PendingRead]]] = defaultdict(list)
        self._parked: list[PendingWrite | PendingRead] = []
        self._expiry = Expiry(self._orders, states, self._lines, serving, self.after, self._expired_not_said)
        self._reads = Reads(
            self._orders, states, self._lines, serving, limits, self._send_on, self.after, self._expiry.say_first
        )
        self._copies = SecondCopies(self._orders, serving, limits, self._end)
        self._asked_for = AskedForCopies(self._orders, states, limits)
        self._locks = LockWaiting(self._orders, limits, self._end)
        self._intake = CommandIntake(self._orders, limits, self._reads, self._asked_for, self._begin, self._end)

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take in one fact; the orders that follow from it."""
        self._orders.now_ms = now_ms
        match event:
            case Asked():
                return self.asked([event], now_ms)
            case RecordCommitted(number, transaction_id):
                self._orders.committed(number, transaction_id)
            case RecordRefused(number, transaction_id):
                self._orders.refused(number, transaction_id)
            case FateUnknown(number, reason):
                self._orders.lost(number, reason)
            case FoldedTo(partition):
                self._folded(partition)
            case UnitStops(unit):
                self._stop(unit)
            case WritesBounded(partition, room_bytes):
                self._orders.bound(partition, room_bytes)
            case Rearranged():
                self._rearranged()
            case LeaseIsOver(read):
                assert isinstance(read, PendingRead)
                self._reads.prove(read)
            case StandsOrNot(refusal, stands):
                assert isinstance(refusal, _Refusal)
                self._stands_or_not(refusal, stands)
            case SecondaryAnswered(number, has):
                self._copies.answered(number, has)
            case ConnectionLeft(connection, goodbye):
                self._left(connection, goodbye)
            case TimePassed():
                self._time_passed()
        return self._orders.taken()

    def asked(self, together: Iterable[Asked], now_ms: int) -> list[Effect]:
        """Take in commands that have come together: what they write shares transactions (``Orders``)."""
        self._orders.now_ms = now_ms
        for each in together:
            self._intake.asked(each.token, each.connection, each.command)
        return self._orders.taken()

    @property
    def waiting(self) -> int:
        """Commands that wait for something else than the log."""
        return len(self._parked) + len(self._copies) + len(self._locks) + self._orders.waiting

    def ahead_bytes(self, partition: int) -> int:
        """Of items that were written here, and are not folded as far as is known."""
        return self._orders.ahead_bytes(partition)

    @property
    def commands(self) -> int:
        """That have come."""
        return self._intake.commands

    def expect_backups(self, expected: bool) -> None:
        """The cluster has grown: whether it is to have secondaries from now on."""
        self._copies.expected = expected

    # ---- writes

    def _begin(self, write: PendingWrite) -> None:
        if self._serving.unit_of(write.key_hash) is None:
            self._send_on(write)
            return
        line = self._lines.get(write.line_key)
        if line is None:
            state = self._states[partition_of(write.key_hash, self._partitions)]
            line = self._lines[write.line_key] = Line(write.line_key, state)
        if line.queue or line.flying is not None:
            line.queue.append(write)
            return
        self._decide(line, write)
        if line.flying is None:
            self._advance(line)

    def _advance(self, line: Line) -> None:
        """Decide what stands in the line, until something is on its way to the log."""
        while line.queue and line.flying is None:
            one = line.queue.popleft()
            if isinstance(one, PendingRead):
                self._reads.go_on(one)
            else:
                self._decide(line, one)
        if line.idle:
            self._lines.pop(line.key, None)

    def _decide(self, line: Line, write: PendingWrite) -> None:
        if write.call.abandoned:
            self._end(write, Outcome(FailCode.NOT_READY, text=_LEFT))
            return
        unit = self._serving.unit_of(write.key_hash)
        if unit is None:
            self._send_on(write)
            return
        now_ms = write.proven_ms or self._orders.now_ms
        decided = decide(write.what, write.request, line, now_ms, self._random16)
        proven, write.proven_ms = bool(write.proven_ms), 0
        if isinstance(decided, Outcome) and reveals(decided) and (over := _over(write, line, now_ms)):
            line.flying = write
            self._expiry.say_first({unit: over}, write)
        elif proven and not isinstance(decided, Outcome):
            self._decide(line, write)  # by what is there now
        elif isinstance(decided, Outcome) and self._is_to_be_kept(decided, line, write):
            line.flying = write
            record = WriteRefused(decided.code, decided.version, write.request, self._orders.now_ms)
            self._orders.append(_Flight(self, line, write, record), unit, record)
        elif isinstance(decided, Outcome) and reveals(decided) and not proven:
            line.flying = write
            self._orders.effects.append(AskWhetherItStands(unit, _Refusal(self, line, write, decided, unit)))
        elif isinstance(decided, Outcome):
            self._end(write, decided)
        elif isinstance(decided, Waits) and write.call.parting:
            self._end(write, Outcome(FailCode.NOT_READY, text=_LEFT))
        elif isinstance(decided, Waits):
            self._locks.wait(line, write)
        else:
            line.flying = write
            self._orders.append(_Flight(self, line, write, decided), unit, decided)

    def _stands_or_not(self, refusal: _Refusal, stands: bool) -> None:
        if not stands:
            refusal.sought_ms = self._orders.now_ms
            self._orders.append(refusal, refusal.unit, BARRIER)
            return
        refusal.line.flying = None
        self._end(refusal.write, refusal.outcome)
        self._advance(refusal.line)

    @staticmethod
    def _is_to_be_kept(outcome: Outcome, line: Line, write: PendingWrite) -> bool:
        command, request = write.call.command, write.request
        repeated = isinstance(command, Put) and command.repeated
        return must_be_kept(outcome, request, repeated, line.settled(request.client))

    def write_committed(self, line: Line, write: PendingWrite, record: Record, version: int) -> None:
        """It is in the log."""
        line.flying = None
        line.committed(record, version)
        if line.fresh.version == version:
            heapq.heappush(self._fresh[partition_of(write.key_hash, self._partitions)], (version, line.key))
        if isinstance(record, WriteRefused):
            self._end(write, Outcome(record.code, record.version))
        else:
            code = (record.renewed or lock_code(version, record.random)) if isinstance(record, Lock) else 0
            self._copies.confirm(write, Outcome(FailCode.OK, version, "", code))
        if line.waiting:
            self._locks.may_be_free(line)
        self._advance(line)

    def write_lost(self, line: Line, write: PendingWrite, reason: str) -> None:
        """Nobody can say whether it is in the log."""
        line.flying = None
        self._end(write, Outcome(FailCode.UNKNOWN_FATE, text=f"it may have happened: {reason}"))
        self._advance(line)

    def _expired_not_said(self, one: PendingWrite | PendingRead, reason: str) -> None:
        self._nobody(one, FailCode.NOT_READY, f"the log does not answer: {reason}")
        if isinstance(one, PendingWrite):
            line = self._lines[one.line_key]
            line.flying = None
            self._advance(line)

    def after(self, partition: int, transaction_id: int, one: PendingWrite | PendingRead) -> None:
        """Go on with it once the partition's state has ``transaction_id``."""
        state = self._states[partition]
        if state.mark >= transaction_id:
            self.again(one)
        else:
            heapq.heappush(self._after_fold[partition], (transaction_id, self._orders.number(), one))
            self._orders.effects.append(WantFolded(partition, transaction_id))

    def again(self, one: PendingWrite | PendingRead) -> None:
        """Decide, or read, once more what was held up."""
        if isinstance(one, PendingRead):
            self._reads.go_on(one)
            return
        line = self._lines[one.line_key]
        line.flying = None
        line.queue.appendleft(one)
        self._advance(line)

    def _end(self, write: PendingWrite, outcome: Outcome) -> None:
        call = write.call
        call.outcomes[write.index] = outcome
        call.left -= 1
        if not call.left:
            self._orders.effects.append(Answer(call.token, answers.of_call(call)))

    # ---- who has it elsewhere

    def _send_on(self, one: PendingWrite | PendingRead) -> None:
        """Its bucket is not served here: say who has it, or wait until somebody has."""
        server = self._serving.elsewhere(one.key_hash)
        if server:
            self._elsewhere(one, server)
            return
        if isinstance(one, PendingWrite) and one.call.parting:
            self._nobody(one, FailCode.NOT_READY, _LEFT)
            return
        if not one.park_until_ms:
            one.park_until_ms = self._orders.now_ms + self._limits.park_ms
        if one.park_until_ms <= self._orders.now_ms:
            self._nobody(one, FailCode.NOT_READY, answers.elsewhere_text())
        elif len(self._parked) >= self._limits.waiting:
            self._nobody(one, FailCode.TOO_MANY, answers.elsewhere_text())
        else:
            self._parked.append(one)

    def _elsewhere(self, one: PendingWrite | PendingRead, server: str) -> None:
        if isinstance(one, PendingRead):
            self._orders.effects.append(Answer(one.token, TryElsewhere(server)))
        elif isinstance(one.call.command, Put):
            self._end(one, Outcome(FailCode.ELSEWHERE))
        else:
            self._orders.effects.append(Answer(one.call.token, TryElsewhere(server)))

    def _nobody(self, one: PendingWrite | PendingRead, code: FailCode, text: str) -> None:
        if isinstance(one, PendingRead):
            self._orders.fail(one.token, code, text)
        else:
            self._end(one, Outcome(code, text=text))

    def _rearranged(self) -> None:
        self._try_parked()
        self._copies.rearranged()

    def _try_parked(self) -> None:
        parked, self._parked = self._parked, []
        for one in parked:
            if isinstance(one, PendingRead):
                self._reads.go_on(one)
            else:
                self._begin(one)

    def _stop(self, unit: Unit) -> None:
        """Nothing of it is begun any more; what stands in lines is sent on."""
        self._orders.drain(unit)
        for line in [line for line in self._lines.values() if line.key[1] & unit.mask == unit.bucket]:
            self._locks.wait_no_more(line)
            self._advance(line)

    # ---- folding

    def _folded(self, partition: int) -> None:
        mark = self._states[partition].mark
        self._orders.folded(partition, mark)
        fresh = self._fresh[partition]
        while fresh and fresh[0][0] <= mark:
            line = self._lines.get(heapq.heappop(fresh)[1])
            if line is not None:
                line.folded()
                if line.idle:
                    del self._lines[line.key]
        waiting = self._after_fold[partition]
        while waiting and waiting[0][0] <= mark:
            self.again(heapq.heappop(waiting)[2])
        self._asked_for.folded(partition, mark)

    # ---- time, and who has gone

    def _time_passed(self) -> None:
        self._try_parked()
        for line in self._locks.time_passed():
            self._advance(line)
        self._copies.time_passed()
        self._asked_for.time_passed()
        self._expiry.time_passed()

    def _left(self, connection: int, goodbye: bool) -> None:
        """Its commands that only wait end without being done. They are answered, too: that ends what is kept for them.

        Who has asked elsewhere meanwhile must not find that a write which waited here comes after his later ones. Who
        has said goodbye waits for the answers: of what he has sent one after the other all is done, not only the first.
        """
        parked, self._parked = self._parked, []
        for each in parked:
            if _connection_of(each) == connection:
                self._nobody(each, FailCode.NOT_READY, _LEFT)
            else:
                self._parked.append(each)
        for line in self._locks.left(connection, Outcome(FailCode.NOT_READY, text=_LEFT)):
            if line.idle:
                del self._lines[line.key]
        for line in self._lines.values():
            if not line.queue and line.flying is None:
                continue  # as in all those in which somebody waits for a lock
            for one in [*line.queue, line.flying]:
                if isinstance(one, PendingWrite) and one.call.connection == connection:
                    one.call.parting, one.call.abandoned = True, not goodbye


def _over(write: PendingWrite, line: Line, now_ms: int) -> list[tuple[ItemKey, int]]:
    """Its item, if the log does not say yet that it has expired: then nobody may be told that it is not there."""
    what = write.what
    return over_of(what.key, line.item(what.key), now_ms) if isinstance(what, NativeWrite) else []


def _connection_of(one: PendingWrite | PendingRead) -> int:
    return one.connection if isinstance(one, PendingRead) else one.call.connection
