"""What clients propose, on its way into the log: refused, waiting, in flight, committed.

Everything that arrives gets an answer; records in flight are never dropped as long as the log lives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from waltz_ray.protocol.messages.client import LockFailureBatch, Rejected, RejectionCode
from waltz_ray.protocol.partition.admission import MAX_BATCH_BYTES, Admitted, Arrival, admit, arrivals, pieces
from waltz_ray.protocol.partition.events import NO_SUCH_SESSION, Effect, SendMessage
from waltz_ray.protocol.partition.feed import Subscriber
from waltz_ray.protocol.partition.held_failures import HeldFailures, LockFailures
from waltz_ray.protocol.partition.state import Log, PartitionState
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.records import MOST_LOCKS, AppendBatch, RecordBatch
from waltz_ray.protocol.session_types import StartTimer

__all__ = ["LINES_TIMER", "Intake", "is_unaware"]

LINES_TIMER = "lines"

_RECORD_COST_BYTES = 64
"""More than a record adds to its data in any frame."""

_LOCK_COST_BYTES = 4
_BATCHES_IN_FLIGHT = 2
_CROWD_BYTES = 256  # what a failure that is held takes, about
_LINES_PAUSE_MS = 5  # some round trips: who was told of a lock failure has tried again by then, if it will


def is_unaware(refused_end: int, batch: AppendBatch) -> bool:
    """Whether the client did not know, when it sent these, that what it had sent before was refused: they would get
    ahead of it. One that knows leaves out a number; ``refused_end``: the one behind those that were refused."""
    return int(batch.sequence_numbers[0]) == refused_end


def _queued_bytes(batch: AppendBatch) -> int:
    """What a batch that waits counts for in the queue: records without data are not free, nor are locks."""
    return len(batch.body) + _RECORD_COST_BYTES * len(batch) + _LOCK_COST_BYTES * batch.lock_count


def _asks_too_much(batch: AppendBatch) -> bool:
    """Whether one of its transactions has more locks than any may have."""
    return batch.lock_count > MOST_LOCKS and int(np.diff(batch.lock_ends).max()) > MOST_LOCKS


class Intake:
    """What clients propose to one partition, until it has its fate. Methods that tell somebody return the effects."""

    def __init__(self, state: PartitionState, queue: Pool) -> None:
        """``queue``: for what is in flight, of all partitions of the server."""
        self._state = state
        self._queue = queue
        self.in_flight_bytes = 0
        """Of records that are admitted and not committed, of batches that wait to be admitted, and of lock failures
        that wait for a commit and have no place in a line."""
        self.come = self.admitted = 0
        """Arrivals, ever, and how many of them are not waiting any more."""
        self._waiting_bytes = 0  # of arrivals
        self._arrivals: list[Arrival] = []
        self._in_flight: deque[RecordBatch] = deque()
        self._held_failures = HeldFailures()
        self._crowd_bytes = 0  # of failures that found no place in a line, as the pool knows them
        self._lines_timer = False  # it runs
        self._now_ms = 0

    # ---- arrivals -------------------------------------------------------------------------------------------

    def append(self, connection_id: int, batch: AppendBatch, newest: Subscriber | None) -> list[Effect]:
        """A client proposes these; ``newest`` is what it has mounted last."""
        if not len(batch):
            return []  # nothing is proposed, so nobody waits for a fate
        state, size_bytes = self._state, _queued_bytes(batch)
        if batch.generation != state.generation:
            code, why = RejectionCode.WRONG_GENERATION, f"the partition's generation is {state.generation}"
        elif state.log is None or newest is None:
            code, why = RejectionCode.NOT_MOUNTED, "mount the partition first"
        elif newest.connection_id != connection_id:
            code, why = RejectionCode.SUPERSEDED, "a newer connection of this client has mounted the partition"
        elif size_bytes > state.config.max_frame_bytes // 2:
            code, why = RejectionCode.TOO_LARGE, "its records would not fit the frames to replicas and subscribers"
        elif _asks_too_much(batch):
            code, why = RejectionCode.TOO_LARGE, f"a transaction takes {MOST_LOCKS} locks at the most"
        elif newest.refused_end is not None and is_unaware(newest.refused_end, batch):
            code, why = RejectionCode.QUEUE_FULL, "what was sent before it was refused, and goes first"
            newest.refused_end = batch.end_number
        elif not self._queue.has_room(self.in_flight_bytes, size_bytes):
            code, why = RejectionCode.QUEUE_FULL, "too many appends are in flight; try again shortly"
            newest.refused_end = batch.end_number if newest.in_order else None
        else:
            newest.refused_end = None
            come = arrivals(connection_id, batch)
            self._arrivals += come
            self.come += len(come)
            self._waiting_bytes += size_bytes
            self._hold(size_bytes)
            return []
        return [self._rejection(Arrival(connection_id, batch), code, why)]

    def _rejection(self, arrival: Arrival, code: RejectionCode, why: str) -> SendMessage:
        state, batch = self._state, arrival.batch
        rejected = Rejected(state.partition_id, state.generation, code, batch.sequence_numbers, why)
        return SendMessage(arrival.connection_id, rejected)

    def _hold(self, size_bytes: int) -> None:
        self.in_flight_bytes += size_bytes
        self._queue.used_bytes += size_bytes

    @property
    def is_waiting(self) -> bool:
        """Something has arrived and is not admitted."""
        return bool(self._arrivals)

    # ---- admission ------------------------------------------------------------------------------------------

    @property
    def may_admit(self) -> bool:
        """Two batches under way keep every replica busy: what comes meanwhile makes the next one larger.

        Unless it is a large one already: then the server's work on it overlaps with the replicas'.
        """
        return bool(self._arrivals) and (
            len(self._in_flight) < _BATCHES_IN_FLIGHT or self._waiting_bytes >= MAX_BATCH_BYTES
        )

    @property
    def stands_still(self) -> bool:
        """Something waits, and nothing is in flight whose commit would let it in."""
        return bool(self._arrivals) and not self._in_flight

    def clock_shows(self, now_ms: int) -> None:
        """The server's clock; no record is older than the one before it."""
        self._now_ms = max(self._now_ms, now_ms)

    def admit(self, log: Log) -> tuple[list[Effect], RecordBatch | None]:
        """Give the next piece of what has arrived its IDs: what follows, with the records for the replicas in it.

        One piece a time: it is on its way while the next one is worked on.
        """
        run = next(pieces(self._arrivals))
        del self._arrivals[: len(run)]
        self.admitted += len(run)
        admitted = admit(run, self._state.partition_id, log.next_id, log.locks)
        size_bytes = sum(_queued_bytes(arrival.batch) for arrival in run)
        self._waiting_bytes -= size_bytes
        self._hold(-size_bytes)
        if admitted.records is not None:
            if self._now_ms:
                admitted.records.times = ((admitted.records.first_id, self._now_ms),)
            log.retained.append(admitted.records)
            self._in_flight.append(admitted.records)
            self._hold(admitted.records.size_bytes)
            if self._held_failures and admitted.estimates is not None:
                self._held_failures.passed(admitted.records.first_id, admitted.estimates)
        code, why = RejectionCode.BAD_CHECKSUM, "data differs from its checksum"
        effects: list[Effect] = [self._rejection(damaged, code, why) for damaged in admitted.damaged]
        return effects + self._failed(admitted, log.high_water_mark), admitted.records

    def _failed(self, admitted: Admitted, high_water_mark: int) -> list[Effect]:
        effects: list[Effect] = []
        for failures in admitted.lock_failures:
            in_flight = failures.conflicts > high_water_mark
            if in_flight.all():  # nearly always: who asks has applied what is committed
                self._held_failures.hold(failures)
            else:
                effects += self._told(failures.chosen(~in_flight))
                self._held_failures.hold(failures.chosen(in_flight))
        self._count_crowd()
        return effects

    def _count_crowd(self) -> None:
        """Failures that have no place in a line take room until they are told, as their appends did."""
        before, self._crowd_bytes = self._crowd_bytes, self._held_failures.crowded * _CROWD_BYTES
        if self._crowd_bytes != before:
            self._hold(self._crowd_bytes - before)

    # ---- fates ----------------------------------------------------------------------------------------------

    def committed(self, first_id: int, log: Log) -> list[Effect]:
        """Records from ``first_id`` to the log's mark are committed."""
        while self._in_flight and self._in_flight[0].last_id <= log.high_water_mark:
            self._hold(-self._in_flight.popleft().size_bytes)
        if not self._held_failures:
            self._held_failures.committed(log.high_water_mark, {})
            return []
        newest: dict[int, int] = {}  # sequence number of each client that has committed something
        for batch in log.retained.between(first_id, log.high_water_mark + 1):
            newest.update(batch.origins)
        told = self._tell(self._held_failures.committed(log.high_water_mark, newest))
        self._count_crowd()
        return told

    def settle(self, connection_id: int) -> list[Effect]:
        """The lock failures of this connection that wait: all that it has sent before gets its fate now."""
        return self._tell(self._held_failures.settle(connection_ids=(connection_id,)))

    def pause_is_over(self) -> list[Effect]:
        """The timer of the lines has fired."""
        self._lines_timer = False
        return self._tell(self._held_failures.pause_over())

    def _tell(self, failures: Sequence[LockFailures]) -> list[Effect]:
        effects = [effect for one in failures for effect in self._told(one)]
        if self._held_failures.resting and not self._lines_timer:
            self._lines_timer = True
            effects.append(StartTimer(NO_SUCH_SESSION, LINES_TIMER, _LINES_PAUSE_MS))
        return effects

    def _told(self, failures: LockFailures) -> list[Effect]:
        if not len(failures.conflicts):
            return []
        message = LockFailureBatch(self._state.partition_id, failures.sequence_numbers, failures.conflicts)
        return [SendMessage(failures.connection_id, message)]

    # ---- ends -----------------------------------------------------------------------------------------------

    def forget_connection(self, connection_id: int) -> None:
        """Nobody is there any more to be told of a lock failure."""
        self._held_failures.forget(connection_ids=(connection_id,))
        self._count_crowd()

    def forget_client(self, client_id: int) -> None:
        """Hold no answers for the client: it mounts anew, and learns every fate from its feed."""
        self._held_failures.forget(client_ids=(client_id,))
        self._count_crowd()

    def log_lost(self, reason: str) -> list[Effect]:
        """What waits is refused; what is in flight gets its fate where the partition is next."""
        effects: list[Effect] = [self._rejection(arrival, RejectionCode.CLOSING, reason) for arrival in self._arrivals]
        self._arrivals = []
        self.admitted = self.come
        self._held_failures.clear()
        self._crowd_bytes = 0
        self._in_flight.clear()
        self._hold(-self.in_flight_bytes)
        self._waiting_bytes = 0
        return effects
