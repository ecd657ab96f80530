"""Ranges of committed records straight from the storage replicas, so that reads cost the partition servers nothing.

Only ``Read`` and ``State`` of the replica protocol (``docs/wire.md``, "R2") are sent: neither changes anything, opens
anything or moves a fence. What a replica holds need not be committed; why what is returned here is:

- at or below its low-water mark every replica's log is right, and it says so to anybody (session -1);
- above that only a *member* of the last published session is asked: ZooKeeper has it as (session, UNRESOLVED). Its log
  is a beginning of that session's one log. Any other replica may hold a tail that no session ever committed and that
  has not been cut off yet, even one that has accepted the session's number already;
- nobody is asked for more than the range, and the range ends at a mark that was known to be committed before ZooKeeper
  was asked for the members. So the session is not older than the one that committed the range, and what a member holds
  of the range is what was committed. That stays so if a later session begins meanwhile: it keeps what was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import TypeVar

from waltz_ray.client.numbering import feed_in_space
from waltz_ray.client.persist import persist
from waltz_ray.client.readers.locations import ReplicaView
from waltz_ray.client.readers.sockets import open_stream
from waltz_ray.client.times import WantedTimes
from waltz_ray.errors import BelowTheLog, DataUnavailable, InvalidInput, ReplicaRefused, Trimmed, WireError
from waltz_ray.net.blocking import BlockingStream
from waltz_ray.protocol.ids import NO_SESSION, Endpoint
from waltz_ray.protocol.messages.replica import (
    FindTime,
    Read,
    ReadTimes,
    Records,
    RefusalCode,
    Refused,
    ReplicaMessage,
    State,
    StateReply,
    TimeFound,
    Times,
)
from waltz_ray.protocol.records import RecordBatch, first_bad_record
from waltz_ray.protocol.times import TimeMarks
from waltz_ray.security.handshakes import Keyring
from waltz_ray.wire.framing import MAGIC_REPLICA
from waltz_ray.wire.replica_codec import (
    REPLICA_VERSION,
    decode_replica,
    encode_replica,
)

__all__ = ["ReplicaReader", "proven_mark"]

A = TypeVar("A", Times, TimeFound, StateReply)
T = TypeVar("T")
_Question = Read | ReadTimes | FindTime

_ANSWER_S = 5.0  # one replica that says nothing must not use up the time for all


def proven_mark(view: ReplicaView, states: dict[int, StateReply]) -> int | None:
    """The highest ID that these answers prove to be committed, -1 = none is; None if they prove nothing.

    Members that are still in the last published session each hold a beginning of its log on disk; what ``quorum`` of
    them hold is committed, for every later session asks for enough votes to meet one of them.
    """
    last_ids = sorted(
        (
            state.last_id
            for number, state in states.items()
            if number in view.members and state.previous_session_id == view.session_id and not state.damaged
        ),
        reverse=True,
    )
    return last_ids[view.quorum - 1] if len(last_ids) >= view.quorum else None


def _of_kind(kind: type[A], answer: ReplicaMessage) -> A:
    if not isinstance(answer, kind):
        raise WireError(f"a question about times was answered with {type(answer).__name__}")
    return answer


def _times_of(partition_id: int) -> str:
    return f"the times of partition {partition_id}"


class ReplicaReader:
    """Reads from whichever replica can: ``resolve(partition_id)`` says where they are. One thread at a time.

    One that is dead, refuses (damaged, fenced, no session open), has less than is wanted, or none of it any more, is
    passed over, and ``resolve`` is asked again when all were; after ``timeout_s`` DataUnavailable names the partition
    and the reason. Trimmed when one said that what is wanted is gone, and no other has it.
    """

    def __init__(
        self, resolve: Callable[[int], ReplicaView], keyring: Keyring, timeout_s: float = 30.0, first: int = 0
    ) -> None:
        """``keyring`` proves to replicas that this may read. ``first``: the number in the cluster of what is partition
        0 here."""
        self._keyring = keyring
        self._first = first
        self._resolve = resolve
        self._timeout_s = timeout_s
        self._streams: dict[Endpoint, BlockingStream] = {}
        self._views: dict[int, ReplicaView] = {}
        self._passed_over: set[Endpoint] = set()
        self._answer_s = _ANSWER_S  # more while no replica answers within that: it may be the line that is slow

    def committed_mark(self, partition_id: int) -> int:
        """ID of the last transaction that a quorum proves to be committed, -1 = none; no server is asked.

        It may lack what was committed last if a member does not answer: then nobody but a server knows more.
        """

        def attempt(left_s: float) -> int:
            view = self._resolve(partition_id)
            if view.session_id == NO_SESSION:
                return -1  # there never was a session, so there never was a commit
            states, reasons = {}, []
            for number, endpoint in view.endpoints.items():
                try:
                    answer = self._ask(number, endpoint, State(self._first + partition_id, NO_SESSION), left_s)
                except (OSError, WireError, ReplicaRefused) as error:
                    reasons.append(f"replica {number}: {error}")
                    continue
                assert isinstance(answer, StateReply)
                states[number] = answer
            mark = proven_mark(view, states)
            if mark is None:
                raise DataUnavailable(
                    f"no quorum of session {view.session_id} proves what is committed; " + "; ".join(reasons)
                )
            return mark

        return persist(f"the end of partition {partition_id}", self._timeout_s, attempt)

    def times(self, partition_id: int, first_id: int, end_id: int) -> TimeMarks:
        """When the transactions [first_id, end_id) were appended, as far as any replica knows."""
        wanted, in_cluster = WantedTimes(first_id, end_id), self._first + partition_id

        def ask(number: int, view: ReplicaView, left_s: float) -> Times:
            question = partial(ReadTimes, in_cluster, first_id=wanted.first_id, end_id=wanted.end_id)
            return _of_kind(Times, self._answers(number, view, question, left_s))

        def limited(times: Times) -> int | None:
            told = times.session_id != NO_SESSION and times.end_id > wanted.first_id
            return None if told else times.end_id

        while wanted.missing:
            answer = self._from_any(_times_of(partition_id), partition_id, wanted.first_id, ask, limited)
            wanted.take(answer.end_id, answer.times)
        return wanted.times

    def first_id_at(self, partition_id: int, time_ms: int) -> int:
        """The first transaction that may have been appended at ``time_ms`` or later, or the end of what is there."""
        in_cluster = self._first + partition_id
        question = partial(FindTime, in_cluster, time_ms=time_ms)

        ends: dict[tuple[int, int], int] = {}  # (session, member) -> where its log ended, which it has answered

        def ask(number: int, view: ReplicaView, left_s: float) -> tuple[int, bool]:
            """(the answer, whether nobody can know more)."""
            state = self._ask(number, view.endpoints[number], State(in_cluster, NO_SESSION), left_s)
            found = _of_kind(TimeFound, self._answers(number, view, question, left_s))
            if found.session_id == NO_SESSION or number not in view.members:
                return found.first_id, False
            if found.first_id <= _of_kind(StateReply, state).last_id:
                return found.first_id, True
            ends[view.session_id, number] = found.first_id
            heard = [end for (session_id, _), end in ends.items() if session_id == view.session_id]
            # Of so many one has each record that a quorum has.
            return max(heard), len(heard) > len(view.members) - view.quorum

        def limited(answer: tuple[int, bool]) -> int | None:
            return None if answer[1] else answer[0]

        return self._from_any(_times_of(partition_id), partition_id, 0, ask, limited)[0]

    def read_range(self, partition_id: int, first_id: int, end_id: int, max_bytes: int) -> Iterator[RecordBatch]:
        """Batches of about ``max_bytes`` with the records [first_id, end_id), every record's CRC verified.

        The caller knows that all of them are committed (see the top of this module).
        """
        if first_id < 0 or max_bytes < 1:
            raise InvalidInput(f"a range needs first_id >= 0 and max_bytes >= 1, not {first_id} and {max_bytes}")
        # Not a view of an earlier range: this range may end behind what that one's session committed.
        self._views.pop(partition_id, None)
        while first_id < end_id:
            batch = self._read(partition_id, first_id, end_id, max_bytes)
            yield batch
            first_id = batch.end_id

    def _read(self, partition_id: int, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        wanted = Read(self._first + partition_id, NO_SESSION, first_id, end_id, max_bytes)
        batch = self._from_any(
            f"partition {partition_id}, transaction {first_id}",
            partition_id,
            first_id,
            lambda number, view, left_s: self._read_from(number, view, wanted, left_s),
        )
        return feed_in_space(batch, partition_id)

    def _from_any(
        self,
        what: str,
        partition_id: int,
        wanted_id: int,
        ask: Callable[[int, ReplicaView, float], T],
        limited: Callable[[T], int | None] = lambda answer: None,
    ) -> T:
        """What the first replica answers that can; ``ask`` gets its number, the view it is of, and the seconds left.
        ``wanted_id``: the first that is asked about. ``limited``: of an answer that counts only if nobody has one
        without a limit, up to where it goes; of those the one that goes furthest counts. Who has no session open knows
        only what lies below its own mark, and a member that is some seconds behind what it has."""

        def attempt(left_s: float) -> T:
            view = self._views.get(partition_id) or self._resolve(partition_id)
            self._views.pop(partition_id, None)  # asked again unless this one works
            reasons = []
            begins: list[BelowTheLog] = []
            lesser: list[tuple[int, T]] = []
            late = False
            for number in self._order(partition_id, view):
                try:
                    answer = ask(number, view, left_s)
                except BelowTheLog as gone:  # the others' logs may begin before
                    begins.append(gone)
                    continue
                except (OSError, WireError, ReplicaRefused, DataUnavailable) as error:
                    self._passed_over.add(view.endpoints[number])
                    reasons.append(f"replica {number}: {error}")
                    late = late or isinstance(error, TimeoutError)
                    continue
                if (limit := limited(answer)) is not None:
                    lesser.append((limit, answer))
                    continue
                self._views[partition_id], self._answer_s = view, _ANSWER_S
                return answer
            if lesser:
                return max(lesser, key=lambda one: one[0])[1]
            self._passed_over.clear()
            self._answer_s = 2 * self._answer_s if late else _ANSWER_S
            if begins:
                raise Trimmed(partition_id, wanted_id, max(view.trim_mark, *(gone.first_id for gone in begins)))
            raise DataUnavailable("; ".join(reasons) or "no replica has ever said where it is")

        return persist(what, self._timeout_s, attempt)

    def _order(self, partition_id: int, view: ReplicaView) -> list[int]:
        """Those that did not fail before first, then members; partitions begin at different ones."""
        count = max(1, len(view.endpoints))

        def rank(number: int) -> tuple[bool, bool, int]:
            failed = view.endpoints[number] in self._passed_over
            return failed, number not in view.members, (number - partition_id) % count

        return sorted(view.endpoints, key=rank)

    def _read_from(self, number: int, view: ReplicaView, wanted: Read, left_s: float) -> RecordBatch:
        parts = partial(
            Read, wanted.partition_id, first_id=wanted.first_id, end_id=wanted.end_id, max_bytes=wanted.max_bytes
        )
        answer = self._answers(number, view, parts, left_s)
        if not isinstance(answer, Records):
            raise WireError(f"a read was answered with {type(answer).__name__}")
        batch = answer.batch
        if not len(batch):
            raise DataUnavailable(f"it does not have transaction {wanted.first_id} yet, or cannot know it is committed")
        if (batch.partition_id, batch.first_id) != (
            wanted.partition_id,
            wanted.first_id,
        ) or batch.end_id > wanted.end_id:
            raise DataUnavailable(f"it sent {batch.partition_id}/{batch.first_id} instead of {wanted.first_id}")
        bad = first_bad_record(batch)
        if bad >= 0:
            raise DataUnavailable(f"transaction {batch.first_id + bad} arrived damaged")
        return batch

    def _answers(
        self, number: int, view: ReplicaView, question: Callable[..., _Question], left_s: float
    ) -> ReplicaMessage:
        """Of a member with its session, or with the one it has accepted since; else below the mark."""
        endpoint, session_id = view.endpoints[number], view.session_id
        for _ in range(2 if number in view.members else 0):
            answer = self._ask(number, endpoint, question(session_id=session_id), left_s, may_refuse=True)
            if not isinstance(answer, Refused):
                return answer
            if answer.code is not RefusalCode.FENCED:
                break
            session_id = answer.current_session_id
        # No session is open there (it has just started): what is below its low-water mark it tells anybody.
        return self._ask(number, endpoint, question(session_id=NO_SESSION), left_s)

    def _ask(
        self, number: int, endpoint: Endpoint, request: _Question | State, left_s: float, may_refuse: bool = False
    ) -> ReplicaMessage:
        timeout_s = min(self._answer_s, left_s)
        try:
            if endpoint not in self._streams:
                prove = partial(self._keyring.open, number)
                self._streams[endpoint] = open_stream(
                    endpoint, MAGIC_REPLICA, REPLICA_VERSION, timeout_s, prove, self._keyring.context()
                )
            stream = self._streams[endpoint]
            stream.settimeout(timeout_s)
            stream.send(*encode_replica(request))
            answer = decode_replica(stream.receive())
            if answer.partition_id != request.partition_id:
                raise WireError(f"replica {number} answered for partition {answer.partition_id}")
        except BaseException:  # Ctrl-C in a notebook, too
            self._forget(endpoint)  # an answer that comes late must not be taken for the next one's
            raise
        if isinstance(answer, Refused) and not may_refuse:
            if answer.code is RefusalCode.TRIMMED:
                raise BelowTheLog(answer.partition_id, answer.last_id + 1)
            raise ReplicaRefused(answer.message)
        return answer

    def _forget(self, endpoint: Endpoint) -> None:
        stream = self._streams.pop(endpoint, None)
        if stream is not None:
            stream.close()

    def close(self) -> None:
        """Close the connections; the reader may be used again."""
        for endpoint in list(self._streams):
            self._forget(endpoint)

    def __enter__(self) -> ReplicaReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
