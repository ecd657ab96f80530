"""One partition on its server: mounts, appends, locks, flushes, feeds, and what happens when sessions change.

``Bench`` is the shell: three obedient replicas and ZooKeeper, answering in order and only when told to.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest

from tests.protocol.checkers import Sent
from tests.protocol.model_client import append_batch
from waltz_ray.config import ServerConfig
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import (
    FROM_NOW,
    AppendedBatch,
    FeedMode,
    LockFailureBatch,
    Mount,
    Mounted,
    NotReady,
    Rejected,
    RejectionCode,
)
from waltz_ray.protocol.messages.original import FlushResponse, MountState
from waltz_ray.protocol.partition.admission import MAX_BATCH_RECORDS
from waltz_ray.protocol.partition.events import (
    NO_SUCH_SESSION,
    AppendReceived,
    Assigned,
    ConfirmSession,
    ConnectionClosed,
    CreditReceived,
    Effect,
    EndTurn,
    Event,
    FeedAgain,
    FeedDue,
    FeedRead,
    FeedReadFailed,
    FlushReceived,
    MountReceived,
    PartitionDropped,
    PartitionReady,
    ReadFeed,
    ReadRoster,
    RosterRead,
    SendFeed,
    SendMessage,
    SessionConfirmed,
    TurnEnded,
    Unassigned,
    UnmountReceived,
)
from waltz_ray.protocol.partition.feed import feed_frame_bytes
from waltz_ray.protocol.partition.held_failures import MOST_IN_LINE_OF_ONE
from waltz_ray.protocol.partition.machine import Partition
from waltz_ray.protocol.partition.state import Stage
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.records import MOST_LOCKS, RECORD_OVERHEAD_BYTES, RecordBatch
from waltz_ray.protocol.retained import RetainedMemory
from waltz_ray.protocol.roster import ReplicaEntry, Roster
from waltz_ray.protocol.session_types import (
    AppendToReplicas,
    OpenReplica,
    ReplicaAppended,
    ReplicaAvailable,
    ReplicaFenced,
    ReplicaLost,
    ReplicaOpened,
    RosterConflict,
    RosterWritten,
    StartTimer,
    TimerFired,
    Warn,
    WriteRoster,
)

Message = TypeVar("Message")
G = 3  # the generation
PLENTY = 1 << 30


class Bench:
    """``sent`` collects what connections were told; replicas and ZooKeeper answer in ``settle``."""

    def __init__(
        self, config: ServerConfig | None = None, queue: Pool | None = None, memory: RetainedMemory | None = None
    ) -> None:
        config = config or ServerConfig(lock_table_size=1000, join_grace_ms=0)
        self.partition = Partition(0, config, queue, memory=memory)
        self.roster = Roster.initial([0, 1, 2])
        self.version = 0
        self.logs = {0: -1, 1: -1, 2: -1}  # last ID on each disk
        self.deaf: set[int] = set()  # replicas that take orders and do not answer, but for confirmations
        self.unsure: set[int] = set()  # replicas that do not confirm a session
        self.zookeeper_away = False
        self.todo: list[Effect] = []
        self.effects: list[Effect] = []
        self.sent: list[tuple[int, object]] = []
        self.appended: list[RecordBatch] = []
        self.number = 0

    def step(self, event: Event) -> list[Effect]:
        effects = self.partition.step(event)
        self.todo += effects
        self.effects += effects
        for effect in effects:
            if isinstance(effect, SendMessage):
                self.sent.append((effect.connection_id, effect.message))
            elif isinstance(effect, SendFeed):
                self.sent += [(connection_id, effect) for connection_id in effect.connection_ids]
        for effect in effects:
            if isinstance(effect, ConfirmSession):
                for replica_id in set(effect.replica_ids) - self.unsure:
                    self.step(SessionConfirmed(effect.session_id, replica_id, effect.number))
            elif isinstance(effect, FeedAgain):
                effects = [*effects, *self.step(FeedDue())]
        return [effect for effect in effects if not isinstance(effect, FeedAgain)]

    def stage(self) -> Stage:
        return self.partition.stage

    def settle(self) -> None:
        """Everything that can be answered is."""
        later: list[Effect] = []
        while self.todo:
            effect = self.todo.pop(0)
            if isinstance(effect, ReadRoster | WriteRoster) and self.zookeeper_away:
                later.append(effect)
            elif isinstance(effect, ReadRoster):
                self.step(RosterRead(self.roster, self.version))
            elif isinstance(effect, WriteRoster):
                self._write(effect)
            elif isinstance(effect, OpenReplica) and effect.replica_id not in self.deaf:
                last_id = self.logs[effect.replica_id]
                self.step(ReplicaOpened(effect.session_id, effect.replica_id, -1, last_id))
            elif isinstance(effect, AppendToReplicas):
                for replica_id in effect.replica_ids:
                    if replica_id not in self.deaf:
                        assert effect.batch.first_id == self.logs[replica_id] + 1
                        self.logs[replica_id] = effect.batch.last_id
                        self.step(ReplicaAppended(effect.session_id, replica_id, effect.batch.last_id))
            elif isinstance(effect, StartTimer) and effect.name == "grace":
                self.step(TimerFired(effect.session_id, effect.name))
            else:
                later.append(effect)
        self.todo = later

    def _write(self, write: WriteRoster) -> None:
        if write.version != self.version:
            self.step(RosterConflict(write.session_id))
            return
        self.roster, self.version = write.roster, self.version + 1
        self.step(RosterWritten(write.session_id, self.version))

    def open(self) -> Bench:
        self.step(Assigned(G))
        self.settle()
        assert self.stage() is Stage.OPEN
        return self

    def mount(
        self,
        connection_id: int = 1,
        client_id: int = 1,
        mark: int = -1,
        feed: FeedMode = FeedMode.RECORDS,
        credit: int = PLENTY,
        generation: int = G,
        in_order: bool = False,
    ) -> list[Mounted]:
        self.number += 1
        req_id = ReqId(client_id, generation, 0, self.number)
        told_before = len(self.sent)
        self.step(MountReceived(connection_id, Mount(req_id, mark, feed, credit, in_order)))
        return [message for _, message in self.sent[told_before:] if isinstance(message, Mounted)]

    def append(
        self,
        first: int,
        *sent: Sent,
        client_id: int = 1,
        connection_id: int = 1,
        turn: bool = True,
        generation: int = G,
    ) -> None:
        batch = append_batch(client_id, generation, first, list(sent))
        self.step(AppendReceived(connection_id, batch))
        if turn:
            self.step(TurnEnded())

    def told(self, kind: type[Message], connection_id: int | None = None) -> list[Message]:
        return [m for c, m in self.sent if isinstance(m, kind) and connection_id in (None, c)]

    def fed(self, connection_id: int = 1) -> list[int]:
        """IDs that a connection was fed."""
        return [i for f in self.told(SendFeed, connection_id) for i in range(f.batch.first_id, f.batch.end_id)]


def free(mark: int = -1) -> Sent:
    return Sent(mark)


# ---- mounting -------------------------------------------------------------------------------------------------


def test_before_it_is_assigned_every_mount_is_told_not_ready() -> None:
    [mounted] = Bench().mount()
    assert (mounted.state, mounted.generation) == (MountState.NOT_READY, -1)


def test_another_generation_is_told_the_current_one() -> None:
    bench = Bench().open()
    for generation in (G - 1, G + 1):
        [mounted] = bench.mount(generation=generation)
        assert (mounted.state, mounted.generation) == (MountState.NOT_READY, G)


def test_a_mount_is_held_while_the_partition_opens() -> None:
    bench = Bench()
    bench.step(Assigned(G))
    assert bench.mount() == []
    bench.settle()
    [mounted] = bench.told(Mounted)
    assert (mounted.state, mounted.high_water_mark) == (MountState.READY, -1)


def test_a_held_mount_goes_with_its_connection_or_its_unmount() -> None:
    for goodbye in (ConnectionClosed(1), UnmountReceived(1, 1)):
        bench = Bench()
        bench.step(Assigned(G))
        bench.mount()
        bench.mount(connection_id=1, client_id=2)
        bench.step(goodbye)
        bench.settle()
        expected = 0 if isinstance(goodbye, ConnectionClosed) else 1
        assert bench.partition.subscribers == len(bench.told(Mounted)) == expected


def test_a_held_mount_is_answered_when_the_partition_goes() -> None:
    bench = Bench()
    bench.step(Assigned(G))
    bench.mount()
    bench.step(Unassigned("moved"))
    assert [m.state for m in bench.told(Mounted)] == [MountState.NOT_READY]


def test_a_client_ahead_of_the_log_is_an_error_for_a_person() -> None:
    bench = Bench().open()
    [mounted] = bench.mount(mark=0)
    assert (mounted.state, mounted.high_water_mark) == (MountState.CLIENT_AHEAD, -1)
    assert bench.partition.subscribers == 0


@pytest.mark.parametrize("feed", [FeedMode.NONE, FeedMode.HEADERS, FeedMode.RECORDS, FeedMode.OWN])
def test_ready_comes_after_everything_that_was_in_flight(feed: FeedMode) -> None:
    bench = Bench().open()
    bench.mount()
    bench.append(0, free(), free())
    assert bench.mount(connection_id=2, feed=feed) == []
    bench.settle()
    [mounted] = bench.told(Mounted, 2)
    assert (mounted.state, mounted.high_water_mark) == (MountState.READY, 1)
    before = [m for c, m in bench.sent if c == 2]
    assert isinstance(before[-1], Mounted), "the feed comes first"


def test_what_an_older_connection_had_sent_is_settled_before_ready() -> None:
    bench = Bench().open()
    bench.mount()
    bench.append(0, free(), turn=False)
    assert bench.mount(connection_id=2) == []
    bench.append(1, free())  # over the older connection, later than the mount
    assert [r.code for r in bench.told(Rejected, 1)] == [RejectionCode.NOT_MOUNTED]
    bench.settle()
    assert bench.fed(2) == [0]


def test_a_mount_without_its_answer_gets_one_when_the_log_is_lost() -> None:
    bench = Bench().open()
    bench.mount()
    bench.append(0, free())
    bench.mount(connection_id=2, client_id=2)
    bench.step(Unassigned("moved"))
    assert [m.state for m in bench.told(Mounted, 2)] == [MountState.NOT_READY]
    assert bench.told(NotReady, 2) == []
    assert len(bench.told(NotReady, 1)) == 1


def test_who_flushes_without_a_mount_is_told_when_the_log_is_lost() -> None:
    bench = Bench().open()
    bench.mount()
    bench.deaf = {0, 1, 2}
    bench.append(0, free())
    for connection_id in (1, 2, 2):
        bench.step(FlushReceived(connection_id, ReqId(connection_id, G, 0, 50)))
    bench.step(Unassigned("moved"))
    assert bench.told(NotReady, 1) == bench.told(NotReady, 2) == [NotReady(0, G)]
    bench.step(Unassigned("moved"))
    assert len(bench.told(NotReady)) == 2, "once"


def test_a_record_that_changed_in_memory_is_not_sent_again() -> None:
    """The log is read anew from the replicas, and who had something in flight makes it again."""
    bench = Bench().open()
    bench.mount()
    bench.append(0, free())
    bench.settle()
    bench.deaf = {0, 1, 2}
    bench.append(1, free())  # in flight, and changed before anybody had it
    change_in_memory(bench, 1)
    bench.todo = []
    bench.step(ReplicaLost(1, 0, "transaction 1 of an append is not what its CRC says", bad_records=True))
    assert bench.told(NotReady) == [NotReady(0, G)]
    assert "transaction 1 has changed in this server's memory" in bench.partition.reign.trouble
    bench.deaf = set()
    bench.step(TimerFired(NO_SUCH_SESSION, "backoff"))
    bench.settle()
    assert bench.stage() is Stage.OPEN
    bench.mount(mark=0)
    bench.append(1, free(mark=0))
    bench.settle()
    assert bench.fed() == [0, 1]
    assert bench.logs == {0: 1, 1: 1, 2: 1}


def test_a_record_that_changed_in_memory_is_fed_once_at_the_most() -> None:
    """Who was fed it comes back at once, and the log is read anew."""
    bench = Bench().open()
    bench.mount()
    bench.append(0, *[free()] * 3)
    bench.settle()
    change_in_memory(bench, 0)
    [answer] = bench.mount(connection_id=2, client_id=2, mark=2)
    assert answer.state is MountState.READY, "it needs none of that"
    [answer] = bench.mount(connection_id=2, client_id=2, feed=FeedMode.HEADERS)
    assert answer.state is MountState.READY, "no data"
    bench.sent = []
    bench.mount()
    bench.settle()
    assert bench.told(NotReady, 2) == [NotReady(0, G)]
    assert "transaction 0 has changed in this server's memory" in bench.partition.reign.trouble
    bench.step(TimerFired(NO_SUCH_SESSION, "backoff"))
    bench.settle()
    assert bench.partition.recent(0, 3) is None, "it is read from replicas now"
    [answer] = bench.mount(connection_id=3, client_id=3, mark=2)
    assert answer.state is MountState.READY


def test_what_has_changed_in_memory_is_no_answer_to_a_question() -> None:
    bench = Bench().open()
    bench.mount()
    bench.append(0, free())
    bench.settle()
    assert bench.partition.recent(0, 1) is not None
    change_in_memory(bench, 0)
    assert bench.partition.recent(0, 1) is None


def change_in_memory(bench: Bench, first_id: int) -> None:
    """The batch that begins there."""
    log = bench.partition.state.log
    assert log is not None
    [at] = [at for at, batch in enumerate(log.retained._batches) if batch.first_id == first_id]
    batch = log.retained._batches[at]
    changed = bytearray(batch.records)
    changed[RECORD_OVERHEAD_BYTES - 1] ^= 1
    log.retained._batches[at] = RecordBatch(0, first_id, batch.lengths, bytes(changed))


def test_a_record_that_changed_on_its_way_costs_nobody_but_its_replica() -> None:
    bench = Bench().open()
    bench.mount()
    bench.deaf = {2}
    bench.append(0, free())
    bench.step(ReplicaLost(1, 2, "transaction 0 of an append is not what its CRC says", bad_records=True))
    bench.settle()
    assert bench.told(NotReady) == []
    assert bench.fed() == [0]


def test_an_older_connection_does_not_take_the_mount_back() -> None:
    # Two sockets have no order between them: the newer connection's mount may be read first.
    bench = Bench().open()
    old = Mount(ReqId(1, G, 0, 7), -1, FeedMode.RECORDS, PLENTY)
    bench.step(MountReceived(2, replace(old, req_id=ReqId(1, G, 0, 8))))
    bench.step(MountReceived(1, old))
    assert [m.state for m in bench.told(Mounted, 1)] == [MountState.NOT_READY]
    bench.step(ConnectionClosed(1))
    bench.append(0, free(), connection_id=2)
    bench.settle()
    assert bench.fed(2) == [0]


def test_mount_numbers_wrap_around() -> None:
    bench = Bench().open()
    for connection_id, number in [(1, 0x7FFFFFFF), (2, -(1 << 31)), (3, 0x7FFFFFF0)]:
        req_id = ReqId(1, G, 0, number)
        bench.step(MountReceived(connection_id, Mount(req_id, -1, FeedMode.NONE, 0)))
    assert [m.state for m in bench.told(Mounted)] == [MountState.READY, MountState.READY, MountState.NOT_READY]


# ---- rejections -----------------------------------------------------------------------------------------------


def test_rejections_name_their_reason_and_every_request() -> None:
    bench = Bench(ServerConfig(append_queue_bytes=50)).open()
    bench.append(0, free(), free())
    bench.mount()
    bench.append(2, free(), generation=G - 1)
    bench.append(3, free(), connection_id=9)
    bench.append(4, free())
    bench.append(5, free(), free(), free(), free())
    batch = append_batch(1, G, 9, [free()])
    bench.settle()
    bench.step(AppendReceived(1, replace(batch, checksums=batch.checksums + np.uint32(1))))
    bench.step(TurnEnded())
    assert [(r.code, r.sequence_numbers.tolist(), r.generation) for r in bench.told(Rejected)] == [
        (RejectionCode.NOT_MOUNTED, [0, 1], G),
        (RejectionCode.WRONG_GENERATION, [2], G),
        (RejectionCode.SUPERSEDED, [3], G),
        (RejectionCode.QUEUE_FULL, [5, 6, 7, 8], G),
        (RejectionCode.BAD_CHECKSUM, [9], G),
    ]
    assert bench.fed() == [0]
    assert bench.partition.in_flight_bytes == 0


def test_a_batch_larger_than_the_whole_queue_passes_when_the_queue_is_empty() -> None:
    bench = Bench(ServerConfig(append_queue_bytes=5)).open()
    bench.mount()
    bench.append(0, *[free()] * 10)
    bench.settle()
    assert bench.fed() == list(range(10))
    assert bench.partition.in_flight_bytes == 0


def test_what_waits_for_the_end_of_the_turn_is_answered_when_the_partition_goes() -> None:
    bench = Bench().open()
    bench.mount()
    bench.append(0, free(), turn=False)
    bench.step(Unassigned("moved"))
    assert [r.code for r in bench.told(Rejected)] == [RejectionCode.CLOSING]
    assert bench.step(TurnEnded()) == []


# ---- locks ----------------------------------------------------------------------------------------------------


def test_a_lock_failure_against_a_committed_transaction_is_told_at_once() -> None:
    bench = Bench().open()
    bench.mount()
    bench.append(0, Sent(-1, write=(5,)))
    bench.settle()
    bench.append(1, Sent(-1, read=(5,)), Sent(0, read=(5,)), Sent(-1, append=(5,)))
    [failure] = bench.told(LockFailureBatch)
    assert (failure.sequence_numbers.tolist(), failure.transaction_ids.tolist()) == ([1], [0])


def test_a_lock_failure_against_one_in_flight_waits_for_its_fate() -> None:
    bench = Bench().open()
    bench.mount()
    bench.append(0, Sent(-1, write=(5,)))
    bench.append(1, Sent(-1, write=(5,)), Sent(-1))
    bench.append(3, Sent(-1))
    assert bench.told(LockFailureBatch) == []
    bench.settle()
    order = [m for c, m in bench.sent if isinstance(m, LockFailureBatch | SendFeed)]
    [failure] = bench.told(LockFailureBatch)
    assert (failure.sequence_numbers.tolist(), failure.transaction_ids.tolist()) == ([1], [0])
    position = next(i for i, m in enumerate(order) if isinstance(m, LockFailureBatch))
    later = [m.batch.first_id for m in order[:position] if isinstance(m, SendFeed)]
    assert max(later, default=-1) <= 0, "it comes before the feed entry of the transaction after the conflict"


def test_of_many_that_want_one_lock_one_is_told_at_a_time() -> None:
    bench = Bench().open()
    for client_id in (1, 2, 3):
        bench.mount(client_id, client_id)
    bench.append(0, Sent(-1, write=(5,)), client_id=1, connection_id=1)
    bench.append(0, Sent(-1, write=(5,)), client_id=2, connection_id=2)
    bench.append(0, Sent(-1, write=(5,)), client_id=3, connection_id=3)
    bench.settle()
    assert [len(bench.told(LockFailureBatch, client_id)) for client_id in (2, 3)] == [1, 0]
    bench.append(1, Sent(0, write=(5,)), client_id=2, connection_id=2)
    bench.settle()
    [failure] = bench.told(LockFailureBatch, 3)
    assert (failure.sequence_numbers.tolist(), failure.transaction_ids.tolist()) == ([0], [1])
    assert StartTimer(NO_SUCH_SESSION, "lines", 5) in bench.effects


def test_after_a_pause_the_others_are_told_too() -> None:
    bench = Bench().open()
    for client_id in (1, 2, 3):
        bench.mount(client_id, client_id)
        bench.append(0, Sent(-1, write=(5,)), client_id=client_id, connection_id=client_id)
    bench.settle()
    bench.step(TimerFired(NO_SUCH_SESSION, "lines"))
    assert bench.told(LockFailureBatch, 3) == []
    effects = bench.step(TimerFired(NO_SUCH_SESSION, "lines"))
    assert len(bench.told(LockFailureBatch, 3)) == 1
    assert not any(isinstance(effect, StartTimer) for effect in effects), "nobody waits any more"


def test_lock_failures_beyond_the_places_in_line_are_told_with_the_commit_and_take_room_until_then() -> None:
    many = MOST_IN_LINE_OF_ONE + 1000
    bench = Bench(ServerConfig(join_grace_ms=0, append_queue_bytes=100_000)).open()
    bench.mount(1, 1)
    bench.mount(2, 2)
    bench.append(0, Sent(1 << 40, write=(5,)), client_id=1, connection_id=1)
    bench.append(0, *[Sent(-1, read=(5,))] * many, client_id=2, connection_id=2)
    assert bench.partition.in_flight_bytes > 1000 * 100
    bench.append(many, Sent(-1, read=(5,)), client_id=2, connection_id=2)
    assert [r.code for r in bench.told(Rejected, 2)] == [RejectionCode.QUEUE_FULL]
    bench.settle()
    told = [number for failure in bench.told(LockFailureBatch, 2) for number in failure.sequence_numbers.tolist()]
    assert told == [0, *range(MOST_IN_LINE_OF_ONE, many)]
    assert bench.partition.in_flight_bytes == 0


@pytest.mark.parametrize("end", [ConnectionClosed(2), Unassigned("test")])
def test_the_room_of_lock_failures_is_free_when_nobody_waits_for_them(end: Event) -> None:
    bench = Bench(ServerConfig(join_grace_ms=0)).open()
    bench.mount(1, 1)
    bench.mount(2, 2)
    bench.append(0, Sent(-1, write=(5,)), client_id=1, connection_id=1)
    before = bench.partition.in_flight_bytes
    bench.append(0, *[Sent(-1, read=(5,))] * (MOST_IN_LINE_OF_ONE + 10), client_id=2, connection_id=2)
    assert bench.partition.in_flight_bytes > before
    bench.step(end)
    assert bench.partition.in_flight_bytes == (before if isinstance(end, ConnectionClosed) else 0)


def test_locks_are_kept_over_a_new_session() -> None:
    bench = Bench(ServerConfig(lock_table_size=1000, checkpoint_interval=1, join_grace_ms=0)).open()
    bench.mount()
    bench.append(0, Sent(-1, write=(5,)))
    bench.settle()
    bench.append(1, Sent(0, write=(6,)))
    bench.settle()
    bench.append(2, Sent(0, read=(5,)), Sent(0, read=(6,)))
    [failure] = bench.told(LockFailureBatch)
    assert (failure.sequence_numbers.tolist(), failure.transaction_ids.tolist()) == ([3], [1])


def test_a_fresh_lock_table_starts_at_the_end_of_the_log() -> None:
    bench = Bench()
    bench.logs = {0: 9, 1: 9, 2: 9}
    bench.open()
    bench.mount(feed=FeedMode.NONE, mark=9)
    bench.append(0, Sent(8, read=(5,)), Sent(9, read=(5,)))
    [failure] = bench.told(LockFailureBatch)
    assert (failure.sequence_numbers.tolist(), failure.transaction_ids.tolist()) == ([0], [9])


@pytest.mark.parametrize("damaged", [False, True])
def test_pieces_of_which_nothing_passes_do_not_hold_up_what_is_behind_them(damaged: bool) -> None:
    def end_turns() -> None:
        while EndTurn() in bench.todo:
            bench.todo.remove(EndTurn())
            bench.step(TurnEnded())

    bench = Bench().open()
    bench.mount()
    bench.append(0, Sent(-1, write=(7,)))
    bench.append(1, free())  # two batches are under way: what comes now waits for a commit
    whole_piece = [Sent(-1, write=(7,), read=tuple(range(100, 99 + MOST_LOCKS)))] * 4
    for first in (2, 6, 10):
        batch = append_batch(1, G, first, whole_piece)
        if damaged:
            batch = replace(batch, checksums=batch.checksums + np.uint32(1))
        bench.step(AppendReceived(1, batch))
    bench.step(AppendReceived(1, append_batch(1, G, 14, [free()])))
    end_turns()
    assert bench.partition.intake.is_waiting
    bench.settle()
    end_turns()
    bench.settle()
    assert not bench.partition.intake.is_waiting
    assert bench.fed() == [0, 1, 2]
    assert len(bench.told(Rejected)) == (3 if damaged else 0)


# ---- flush ----------------------------------------------------------------------------------------------------


def test_a_flush_waits_for_what_came_before_it() -> None:
    bench = Bench().open()
    bench.mount()
    bench.step(FlushReceived(1, ReqId(1, G, 0, 50)))
    assert bench.told(FlushResponse) == [FlushResponse(ReqId(1, G, 0, 50), -1)]
    bench.append(0, free(), turn=False)
    bench.step(FlushReceived(1, ReqId(1, G, 0, 51)))
    bench.step(TurnEnded())
    assert len(bench.told(FlushResponse)) == 1
    bench.settle()
    assert bench.told(FlushResponse)[1:] == [FlushResponse(ReqId(1, G, 0, 51), 0)]
    assert isinstance(bench.sent[-1][1], FlushResponse), "after the feed entry"


def test_a_flush_and_a_mount_wait_behind_what_came_before_them_and_no_step_admits_it_all() -> None:
    bench = Bench().open()
    bench.mount()
    bench.deaf = {0, 1, 2}
    for number in range(40):  # two pieces go out, the rest waits
        batch = append_batch(1, G, 300 * number, [free()] * 300)
        bench.step(AppendReceived(1, replace(batch)))
    bench.step(TurnEnded())
    bench.step(FlushReceived(1, ReqId(1, G, 0, 1)))
    assert bench.mount(connection_id=2, client_id=2) == []
    assert bench.partition.next_id <= 2 * MAX_BATCH_RECORDS, "neither has admitted what waits"
    bench.deaf = set()
    while bench.partition.high_water_mark < 11_999:
        bench.settle()
        bench.step(TurnEnded())
    assert [m.high_water_mark for m in bench.told(FlushResponse)] == [11_999]
    assert [(m.state, m.high_water_mark) for m in bench.told(Mounted, 2)] == [(MountState.READY, 11_999)]


def test_a_client_that_mounts_again_has_one_mount_waiting() -> None:
    bench = Bench().open()
    bench.unsure = {0, 1, 2}
    for _ in range(100):
        bench.mount()
    assert bench.partition.mounts.held == 1
    assert [m.state for m in bench.told(Mounted)] == [MountState.NOT_READY] * 99


@pytest.mark.parametrize("behind_appends", [False, True])
def test_a_mount_whose_feed_has_not_come_far_enough_is_answered_when_the_client_mounts_again(
    behind_appends: bool,
) -> None:
    bench = Bench().open()
    bench.mount()
    bench.append(0, free())
    bench.settle()
    assert bench.mount(connection_id=2, client_id=2, credit=0) == [], "it is told of nothing, so it waits"
    if behind_appends:  # two batches in flight, one that waits to be admitted
        bench.deaf = {0, 1, 2}
        for first in range(1, 4):
            bench.append(first, free())
    bench.mount(connection_id=2, client_id=2)
    bench.deaf = set()
    bench.settle()
    assert [m.state for m in bench.told(Mounted, 2)] == [MountState.NOT_READY, MountState.READY]


@pytest.mark.parametrize("behind_appends", [False, True])
def test_credit_that_comes_while_a_mount_waits_is_the_mount_s(behind_appends: bool) -> None:
    """Seed 0x1a003b1: a client that mounts again may have nothing to give until it has applied what it holds."""
    bench = Bench().open()
    bench.mount()
    bench.append(0, free())
    bench.settle()
    bench.deaf = {0, 1, 2}
    if behind_appends:  # two batches in flight, one that waits to be admitted
        for first in range(1, 4):
            bench.append(first, free())
    bench.unsure = {0, 1, 2}
    assert bench.mount(connection_id=2, client_id=2, credit=0) == []
    if not behind_appends:
        bench.step(CreditReceived(2, PLENTY))
    asked = next(e for e in reversed(bench.effects) if isinstance(e, ConfirmSession))
    for replica_id in (0, 1):
        bench.step(SessionConfirmed(asked.session_id, replica_id, asked.number))
    if behind_appends:
        assert not bench.told(Mounted, 2)
        bench.step(CreditReceived(2, PLENTY))
        bench.deaf = set()
        bench.settle()
        bench.step(TurnEnded())
        bench.settle()
    assert [m.state for m in bench.told(Mounted, 2)] == [MountState.READY]


def test_records_without_data_fill_the_queue() -> None:
    bench = Bench(ServerConfig(lock_table_size=1000, join_grace_ms=0, append_queue_bytes=10_000)).open()
    bench.mount()
    bench.deaf = {0, 1, 2}
    for number in range(100):
        batch = append_batch(1, G, 10 * number, [free()] * 10)
        empty = np.zeros(10, np.int32)
        bench.step(AppendReceived(1, replace(batch, body=b"", lengths=empty, checksums=empty.astype(np.uint32))))
    assert RejectionCode.QUEUE_FULL in {r.code for r in bench.told(Rejected)}


def turned_away(in_order: bool) -> Bench:
    """Appends 0 to 9 fill the queue; 10 to 19 were refused; then there is room again."""
    bench = Bench(ServerConfig(lock_table_size=1000, join_grace_ms=0, append_queue_bytes=1_000)).open()
    bench.mount(in_order=in_order)
    bench.deaf = {0, 1, 2}
    bench.append(0, *[free()] * 10)
    bench.append(10, *[free()] * 10)
    bench.deaf = set()
    bench.settle()
    assert [r.sequence_numbers.tolist() for r in bench.told(Rejected)] == [list(range(10, 20))]
    return bench


def test_what_follows_a_refused_append_is_refused_until_the_client_knows() -> None:
    bench = turned_away(in_order=True)
    bench.append(20, free())
    assert [r.sequence_numbers.tolist() for r in bench.told(Rejected)][1:] == [[20]], "it would get ahead of 10 to 19"
    bench.append(22, free(), free())
    bench.settle()
    assert bench.fed() == list(range(12)), "who leaves out a number knows"
    bench.append(24, free())
    bench.settle()
    assert (len(bench.told(Rejected)), bench.fed()) == (2, list(range(13)))


def test_a_new_mount_knows_what_was_refused() -> None:
    bench = turned_away(in_order=True)
    bench.mount(in_order=True)
    bench.append(20, free())
    assert len(bench.told(Rejected)) == 1


def test_who_does_not_ask_for_order_is_taken_when_there_is_room() -> None:
    """Clients of the original's protocol."""
    bench = turned_away(in_order=False)
    bench.append(20, free())
    assert len(bench.told(Rejected)) == 1


@pytest.mark.parametrize(("last", "end"), [(5, 6), (-1, 0), (2**31 - 1, -(2**31))])
def test_numbers_of_appends_go_round(last: int, end: int) -> None:
    assert replace(append_batch(1, G, 0, [free()]), sequence_numbers=np.array([last], np.int32)).end_number == end


def test_flushes_go_with_their_connection_and_are_few() -> None:
    bench = Bench().open()
    bench.mount()
    bench.deaf = {0, 1, 2}
    bench.append(0, free())
    for number in range(1000):
        bench.step(FlushReceived(2, ReqId(2, G, 0, number)))
    bench.step(FlushReceived(1, ReqId(1, G, 0, 1)))
    held = bench.partition.flushes.held
    assert held < 100
    assert len(bench.told(NotReady, 2)) == 1000 - (held - 1), "who is not held is answered"
    bench.step(ConnectionClosed(2))
    assert bench.partition.flushes.held == 1
    bench.deaf = set()
    bench.settle()
    assert [m.req_id.client_id for m in bench.told(FlushResponse)] == [1]


def test_who_waits_does_not_make_the_end_of_others_cost_more() -> None:
    """Ten thousand mounts wait for a session that a quorum of replicas does not open, and all give up: as many
    partitions of the server that are well would wait for as long as that takes."""
    bench = Bench()
    bench.partition.step(Assigned(G))
    begin_s = time.process_time()
    for connection in range(10_000):
        request = Mount(ReqId(connection, G, 0, 1), -1, FeedMode.HEADERS, 1000)
        bench.partition.step(MountReceived(connection, request))
    assert bench.partition.mounts.held == 10_000
    for connection in range(10_000):
        bench.partition.step(CreditReceived(connection, 10))
    for connection in range(9_999):
        bench.partition.step(ConnectionClosed(connection))
    assert bench.partition.mounts.held == 1
    assert time.process_time() - begin_s < 2.0


def test_a_flush_without_a_log_is_told_not_ready() -> None:
    bench = Bench()
    bench.step(FlushReceived(1, ReqId(1, G, 0, 50)))
    assert bench.told(NotReady) == [NotReady(0, -1)]


# ---- feeds ----------------------------------------------------------------------------------------------------


def test_subscribers_at_one_position_share_a_frame() -> None:
    bench = Bench().open()
    for connection_id in (1, 2, 3):
        bench.mount(connection_id, connection_id, feed=FeedMode.HEADERS if connection_id == 3 else FeedMode.RECORDS)
    bench.append(0, free())
    bench.settle()
    assert [(f.connection_ids, f.mode) for f in bench.effects if isinstance(f, SendFeed)] == [
        ((1, 2), FeedMode.RECORDS),
        ((3,), FeedMode.HEADERS),
    ]


def test_credit_stops_a_feed_after_one_frame_too_many_and_starts_it_again() -> None:
    bench = Bench().open()
    bench.mount(credit=1)
    for number in range(3):
        bench.append(number, free())
        bench.settle()
    assert bench.fed() == [0]
    cost = feed_frame_bytes(FeedMode.RECORDS, bench.told(SendFeed)[0].batch)
    bench.step(CreditReceived(1, cost - 1))
    assert bench.fed() == [0]
    bench.step(CreditReceived(1, 1))
    assert bench.fed() == [0, 1, 2]
    assert len(bench.told(SendFeed)) == 2, "what has waited leaves together"
    bench.append(3, free())
    bench.settle()
    assert bench.fed() == [0, 1, 2]
    bench.step(CreditReceived(1, PLENTY))
    assert bench.fed() == [0, 1, 2, 3]


def test_who_is_behind_memory_is_read_for_from_a_replica() -> None:
    bench = Bench(ServerConfig(retained_bytes=0, join_grace_ms=0)).open()
    bench.mount()
    bench.append(0, free(), free(), free())
    bench.settle()
    records = bench.told(SendFeed)[0].batch
    assert bench.mount(connection_id=2, client_id=2) == []
    [read] = [e for e in bench.effects if isinstance(e, ReadFeed)]
    assert (read.connection_id, read.client_id, read.first_id, read.end_id) == (2, 2, 0, 3)
    effects = bench.step(FeedReadFailed(2, 2, "disk"))
    assert {type(e) for e in effects} == {Warn, StartTimer}
    bench.step(TimerFired(NO_SUCH_SESSION, "feed"))
    bench.step(FeedRead(2, 2, records.slice(0, 2)))
    assert bench.told(Mounted, 2) == []
    bench.step(FeedRead(2, 2, records.slice(2, 3)))
    assert bench.fed(2) == [0, 1, 2]
    assert [m.state for m in bench.told(Mounted, 2)] == [MountState.READY]


def test_a_read_for_an_earlier_mount_of_the_same_connection_is_not_fed_again() -> None:
    bench = Bench(ServerConfig(retained_bytes=0, join_grace_ms=0)).open()
    bench.mount()
    bench.append(0, free(), free())
    bench.settle()
    records = bench.told(SendFeed)[0].batch
    bench.mount(connection_id=2, client_id=2)
    bench.mount(connection_id=2, client_id=2, mark=0)
    bench.step(FeedRead(2, 2, records))
    assert bench.fed(2) == []
    bench.step(FeedRead(2, 2, records.slice(1, 2)))
    assert bench.fed(2) == [1]


def test_own_mode_tells_of_own_transactions_only() -> None:
    bench = Bench().open()
    bench.mount(1, 1)
    [mounted] = bench.mount(2, 2, mark=FROM_NOW, feed=FeedMode.OWN)
    assert mounted.state is MountState.READY
    bench.append(0, free(), free())
    bench.append(70, free(), client_id=2, connection_id=2)
    bench.settle()
    assert bench.told(SendFeed, 2) == []
    [own] = bench.told(AppendedBatch, 2)
    assert (own.sequence_numbers.tolist(), own.transaction_ids.tolist()) == ([70], [2])
    bench.mount(3, 2, mark=-1, feed=FeedMode.OWN)
    assert [m.transaction_ids.tolist() for m in bench.told(AppendedBatch, 3)] == [[2]]
    assert [m.state for m in bench.told(Mounted, 3)] == [MountState.READY]


def test_recent_gives_committed_records_only() -> None:
    bench = Bench().open()
    assert Partition(0, ServerConfig()).recent(0, 1) is None
    bench.mount()
    bench.append(0, free(), free())
    assert bench.partition.recent(0, 5) == []
    bench.settle()
    found = bench.partition.recent(1, 5)
    assert found is not None
    assert [(b.first_id, len(b)) for b in found] == [(1, 1)]


# ---- sessions -------------------------------------------------------------------------------------------------


def test_in_flight_appends_survive_the_loss_of_two_members() -> None:
    bench = Bench().open()
    bench.mount()
    bench.deaf = {1, 2}
    bench.append(0, free(), free())
    bench.settle()
    for replica_id in (1, 2):
        bench.step(ReplicaLost(NO_SUCH_SESSION, replica_id, "unplugged"))
    bench.settle()
    assert bench.stage() is Stage.OPENING
    bench.append(2, free())
    bench.deaf = set()
    for replica_id in (1, 2):
        bench.step(ReplicaLost(NO_SUCH_SESSION, replica_id, "unplugged"))
        bench.step(ReplicaAvailable(NO_SUCH_SESSION, replica_id))
    bench.settle()
    assert bench.stage() is Stage.OPEN
    assert bench.fed() == [0, 1, 2]
    assert bench.logs == {0: 2, 1: 2, 2: 2}
    assert not bench.told(Rejected)
    assert not bench.told(NotReady)


def test_what_is_in_flight_leaves_before_what_waits_when_a_session_opens() -> None:
    bench = Bench().open()
    bench.mount()
    bench.deaf = {0, 1, 2}
    bench.append(0, free(), free())
    bench.append(2, free(), turn=False)  # waits for the end of the turn, or for the session that opens
    bench.step(ReplicaLost(NO_SUCH_SESSION, 2, "unplugged"))
    bench.deaf = {2}
    bench.todo = [effect for effect in bench.todo if not isinstance(effect, AppendToReplicas)]  # lost with session 1
    bench.settle()  # asserts that every replica is given what follows its last record
    assert bench.stage() is Stage.OPEN
    assert bench.roster.session_id == 2, "one lost member costs one session"
    assert bench.fed() == [0, 1, 2]


def test_without_zookeeper_the_running_session_goes_on_after_a_member_failed() -> None:
    bench = Bench().open()
    bench.mount()
    bench.zookeeper_away = True
    bench.deaf = {2}
    bench.step(ReplicaLost(NO_SUCH_SESSION, 2, "unplugged"))
    bench.append(0, free())
    bench.settle()
    assert bench.fed() == [0]
    assert bench.stage() is Stage.READING
    bench.zookeeper_away = False
    bench.settle()
    bench.append(1, free())
    bench.settle()
    assert bench.fed() == [0, 1]
    assert bench.roster.session_id == 2


def test_a_checkpoint_opens_a_new_session_and_loses_no_append() -> None:
    bench = Bench(ServerConfig(checkpoint_interval=10, join_grace_ms=0)).open()
    bench.mount()
    for number in range(0, 60, 3):
        bench.append(number, free(), free(), free())
        if number % 2:
            bench.settle()
    bench.settle()
    assert bench.fed() == list(range(60))
    assert bench.roster.session_id > 2
    assert not bench.told(Rejected)
    assert not bench.told(NotReady)


def test_another_servers_session_takes_the_log_away() -> None:
    bench = Bench().open()
    bench.mount()
    bench.deaf = {0, 1, 2}
    bench.append(0, free())
    bench.settle()
    bench.roster = Roster(5, G, dict.fromkeys(range(3), ReplicaEntry(5, None)))
    bench.version += 3
    bench.step(ReplicaFenced(1, 0, 5))
    assert bench.told(NotReady) == [], "the fates may still be decided here"
    assert bench.stage() is Stage.BACKOFF
    bench.deaf = set()
    bench.step(TimerFired(NO_SUCH_SESSION, "backoff"))
    bench.settle()
    assert len(bench.told(NotReady)) == 1
    assert bench.stage() is Stage.OPEN
    assert bench.roster.session_id == 6
    assert bench.partition.next_id == 0
    assert bench.partition.in_flight_bytes == 0


def test_a_session_that_was_only_taken_elsewhere_leaves_the_log_here() -> None:
    bench = Bench().open()
    bench.mount()
    bench.deaf = {0, 1, 2}
    bench.append(0, free())
    bench.settle()
    bench.roster = replace(bench.roster, session_id=5)
    bench.version += 1
    bench.step(ReplicaFenced(1, 0, 5))
    bench.deaf = set()
    bench.step(TimerFired(NO_SUCH_SESSION, "backoff"))
    bench.settle()
    assert bench.fed() == [0]
    assert bench.told(NotReady) == []


def test_a_newer_generation_in_zookeeper_drops_the_partition() -> None:
    bench = Bench()
    bench.roster = replace(bench.roster, generation=G + 1)
    bench.step(Assigned(G))
    bench.settle()
    assert bench.stage() is Stage.IDLE
    assert len([e for e in bench.effects if isinstance(e, PartitionDropped)]) == 1
    assert bench.roster.session_id == 0


def test_a_newer_assignment_starts_over() -> None:
    bench = Bench().open()
    bench.mount()
    bench.step(Assigned(G))
    assert bench.told(NotReady) == []
    bench.step(Assigned(G + 1))
    assert bench.told(NotReady) == [NotReady(0, G)]
    bench.settle()
    assert [(e.generation, e.session_id) for e in bench.effects if isinstance(e, PartitionReady)] == [
        (G, 1),
        (G + 1, 2),
    ]
    assert bench.roster.generation == G + 1


def test_a_lost_compare_and_set_is_read_again() -> None:
    bench = Bench()
    bench.step(Assigned(G))
    bench.zookeeper_away = False
    [read] = [e for e in bench.todo if isinstance(e, ReadRoster)]
    bench.todo.remove(read)
    bench.step(RosterRead(bench.roster, bench.version))
    bench.roster, bench.version = replace(bench.roster, session_id=4), 1
    bench.settle()
    assert bench.stage() is Stage.OPEN
    assert bench.roster.session_id == 5


def test_no_two_attempts_write_the_same_record() -> None:
    """Of two processes of one server, or of one process that takes the same number a second time."""
    written: list[Roster] = []
    for owner in ("older process", "newer process"):
        partition = Partition(0, ServerConfig(), owner=owner)
        partition.step(Assigned(G))
        for _ in range(2):
            effects = partition.step(RosterRead(Roster.initial([0, 1, 2]), 0))
            [write] = [effect for effect in effects if isinstance(effect, WriteRoster)]
            written.append(write.roster)
            partition.step(RosterConflict(write.session_id))
    assert {roster.session_id for roster in written} == {1}
    for mine in written:
        assert [mine.has_replaced(0, stored, 1) for stored in written].count(True) == 1
        assert Roster.from_json(mine.to_json()) == mine


def test_two_lines_of_one_log_stop_the_partition() -> None:
    bench = Bench().open()
    bench.mount()
    bench.append(0, free(), free())
    bench.settle()
    bench.logs = {0: 0, 1: 0, 2: 0}  # what no correct set of replicas does
    bench.step(ReplicaLost(NO_SUCH_SESSION, 2, "unplugged"))
    bench.settle()
    assert bench.stage() is Stage.IDLE
    [dropped] = [e for e in bench.effects if isinstance(e, PartitionDropped)]
    assert "not one line" in dropped.reason


def test_after_it_is_dropped_late_events_change_nothing() -> None:
    bench = Bench().open()
    bench.mount()
    bench.append(0, free())
    bench.step(Unassigned("moved"))
    late: list[Event] = [
        ReplicaAppended(1, 0, 0),
        ReplicaAppended(1, 1, 0),
        ReplicaFenced(1, 0, 9),
        RosterWritten(1, 9),
        RosterRead(bench.roster, 9),
        TimerFired(NO_SUCH_SESSION, "backoff"),
        TimerFired(NO_SUCH_SESSION, "feed"),
        TimerFired(1, "grace"),
        CreditReceived(1, 5),
        Unassigned("again"),
    ]
    assert [bench.step(event) for event in late] == [[]] * len(late)
    assert bench.partition.high_water_mark == -1


def test_a_mount_waits_until_a_quorum_still_obeys_this_session() -> None:
    bench = Bench().open()
    bench.unsure = {1, 2}
    assert bench.mount(client_id=1) == []
    asked = next(e for e in reversed(bench.effects) if isinstance(e, ConfirmSession))
    bench.step(SessionConfirmed(asked.session_id, 0, asked.number))
    assert bench.told(Mounted) == [], "one member and the same member again are no quorum"
    assert bench.mount(connection_id=2, client_id=2) == []
    bench.unsure = {0, 1, 2}
    bench.step(SessionConfirmed(asked.session_id, 2, asked.number))
    first = bench.told(Mounted)
    assert [m.state for m in first] == [MountState.READY], "the second mount came after this round had begun"
    again = next(e for e in reversed(bench.effects) if isinstance(e, ConfirmSession))
    assert again.number > asked.number
    for replica_id in (1, 2):
        bench.step(SessionConfirmed(again.session_id, replica_id, again.number))
    assert [m.state for m in bench.told(Mounted, 2)] == [MountState.READY]


@pytest.mark.parametrize("goodbye", [ConnectionClosed(1), UnmountReceived(1, 1)])
def test_a_mount_is_answered_after_the_one_before_it_has_gone_during_its_round(goodbye: Event) -> None:
    bench = Bench().open()
    bench.unsure = {0, 1, 2}
    assert bench.mount() == []
    bench.step(goodbye)
    bench.unsure = set()
    for replica_id in (1, 2):  # they had been stopped; with their links went what they were asked
        bench.step(ReplicaLost(NO_SUCH_SESSION, replica_id, "no answer"))
        bench.step(ReplicaAvailable(NO_SUCH_SESSION, replica_id))
    bench.settle()
    assert bench.stage() is Stage.OPEN
    bench.mount(connection_id=2, client_id=2)
    bench.settle()
    assert [m.state for m in bench.told(Mounted, 2)] == [MountState.READY]


def test_a_replaced_server_calls_nobody_ready_or_ahead() -> None:
    bench = Bench().open()
    bench.unsure = {0, 1, 2}
    assert bench.mount(mark=5) == []
    session = bench.partition.session
    assert session is not None
    bench.step(ReplicaFenced(session.session_id, 0, session.session_id + 7))
    assert bench.told(Mounted) == [], "held for the next session"
    bench.step(Unassigned("another server has it"))
    assert [m.state for m in bench.told(Mounted)] == [MountState.NOT_READY]


@pytest.mark.parametrize("in_order", [False, True])
def test_a_batch_of_nothing_is_nothing(in_order: bool) -> None:
    """Also where what was sent before it has been refused: that one looks at the first sequence number."""
    bench = Bench(ServerConfig(lock_table_size=1000, join_grace_ms=0, append_queue_bytes=10_000)).open()
    bench.mount(in_order=in_order)
    bench.deaf = {0, 1, 2}
    nothing = append_batch(1, G, 0, [])
    for number in range(40):
        bench.append(10 * number, *[free()] * 10)
    assert RejectionCode.QUEUE_FULL in {r.code for r in bench.told(Rejected)}
    used_bytes, told = bench.partition.in_flight_bytes, len(bench.told(Rejected))
    for _ in range(3):
        bench.step(AppendReceived(1, nothing))
        bench.step(TurnEnded())
    assert (bench.partition.in_flight_bytes, len(bench.told(Rejected))) == (used_bytes, told)


def test_a_transaction_takes_so_many_locks_at_the_most() -> None:
    bench = Bench(ServerConfig(lock_table_size=1_000_000, join_grace_ms=0)).open()
    bench.mount()
    most = Sent(0, tuple(range(2000)), tuple(range(2000, 4000)), tuple(range(4000, 4000 + MOST_LOCKS - 4000)))
    bench.append(1, most)
    assert not bench.told(Rejected)
    bench.append(2, free(), Sent(0, most.write, most.read, (*most.append, -1)))
    [rejected] = bench.told(Rejected)
    assert (rejected.code, rejected.sequence_numbers.tolist()) == (RejectionCode.TOO_LARGE, [2, 3])
    assert rejected.message == "a transaction takes 4096 locks at the most"
    bench.append(4, *[Sent(0, tuple(range(1000)))] * 9)
    assert len(bench.told(Rejected)) == 1, "as many of several transactions are none too many"


def test_locks_fill_the_queue() -> None:
    bench = Bench(ServerConfig(lock_table_size=1000, join_grace_ms=0, append_queue_bytes=100_000)).open()
    bench.mount()
    bench.deaf = {0, 1, 2}
    for number in range(30):
        bench.append(number, Sent(0, tuple(range(2000))))
    assert RejectionCode.QUEUE_FULL in {r.code for r in bench.told(Rejected)}


def test_a_batch_that_no_frame_to_a_replica_could_hold_is_refused() -> None:
    bench = Bench(ServerConfig(max_frame_bytes=2048)).open()
    bench.mount()
    bench.append(1, *[Sent(-1)] * 20)
    assert [r.code for r in bench.told(Rejected)] == [RejectionCode.TOO_LARGE]


def test_the_partitions_of_a_server_share_its_memory() -> None:
    memory = RetainedMemory(20_000)
    bench = Bench(ServerConfig(join_grace_ms=0), memory=memory).open()
    bench.mount()
    for first in range(20):
        bench.append(first, free())
        bench.settle()
    memory.sharers = 4
    memory.used_bytes += 1
    bench.step(Assigned(G, partitions_here=4))
    assert bench.stage() is Stage.OPEN
    assert bench.partition.recent(0, 20) is not None, "nobody else needs the room"
    memory.used_bytes = 20_001  # others have taken the rest, and more
    bench.step(Assigned(G, partitions_here=4))
    assert bench.partition.recent(0, 20) is None, "what exceeds the share is forgotten"
    assert bench.partition.recent(17, 20) is not None
    before = memory.used_bytes
    bench.step(Unassigned("to be elsewhere"))
    assert memory.used_bytes < before - 1000, "and leaves room"


def test_what_is_in_flight_is_counted_for_all_partitions_together() -> None:
    queue = Pool(2000)
    queue.sharers = 4
    bench = Bench(queue=queue).open()
    bench.mount()
    bench.deaf = {0, 1, 2}
    for first in range(20):
        bench.append(first, free())
    assert not bench.told(Rejected), "nobody else needs the room"
    own_bytes = queue.used_bytes
    assert own_bytes == bench.partition.in_flight_bytes > 100
    queue.used_bytes = 2000  # others have taken the rest
    bench.append(20, free())
    [rejected] = bench.told(Rejected)
    assert (rejected.code, rejected.sequence_numbers.tolist()) == (RejectionCode.QUEUE_FULL, [20])
    queue.used_bytes = own_bytes
    bench.step(Unassigned("to be elsewhere"))
    assert queue.used_bytes == 0


def test_a_share_is_always_there() -> None:
    queue = Pool(1000)
    queue.sharers, queue.used_bytes = 4, 2000
    assert queue.has_room(0, 5000)
    assert queue.has_room(100, 150)
    assert not queue.has_room(100, 151)
