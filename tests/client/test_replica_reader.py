"""What replicas are asked about times, and whose answer counts; no socket is opened."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from tests.security.keys import keyring
from waltz_ray.client.readers import replica_reader
from waltz_ray.client.readers.locations import ReplicaView
from waltz_ray.client.readers.replica_reader import ReplicaReader
from waltz_ray.errors import DataUnavailable, ReplicaRefused
from waltz_ray.protocol.authentication import Role
from waltz_ray.protocol.ids import NO_SESSION, NO_TRANSACTION, Endpoint
from waltz_ray.protocol.messages.replica import (
    FindTime,
    ReadTimes,
    RefusalCode,
    Refused,
    ReplicaReply,
    State,
    StateReply,
    TimeFound,
    Times,
)
from waltz_ray.wire.replica_codec import decode_replica, encode_replica

SESSION, END, LOW = 5, 900, {0: 100, 1: 300, 2: 200}
VIEW = ReplicaView(SESSION, frozenset({0, 1, 2}), 2, {n: Endpoint("127.0.0.1", 1 + n) for n in range(3)})


def reader_of(
    monkeypatch: pytest.MonkeyPatch,
    has_session: set[int],
    dead: Collection[int] = (),
    behind: Mapping[int, int] = MappingProxyType({}),
) -> ReplicaReader:
    """Every replica has the same log of ``END`` records, or of those ``behind`` so many; those of ``LOW`` lie below its
    own mark. Record 800 is the first one of the time that is asked for."""

    def ask(number: int, endpoint: Endpoint, request: Any, left_s: float, may_refuse: bool = False) -> Any:
        if number in dead:
            raise ReplicaRefused("it has ended")
        if not isinstance(request, State) and request.session_id != NO_SESSION and number not in has_session:
            fields = 0, SESSION, 23, RefusalCode.NOT_OPEN, NO_SESSION, NO_TRANSACTION, "not opened"
            return Refused(*fields)
        has = behind.get(number, END)
        if isinstance(request, State):
            return StateReply(0, NO_SESSION, SESSION, LOW[number] - 1, LOW[number] - 1, has - 1, False)
        end_id = has if request.session_id != NO_SESSION else LOW[number]
        if isinstance(request, FindTime):
            return TimeFound(0, request.session_id, min(800, end_id))
        assert isinstance(request, ReadTimes)
        end_id = min(request.end_id, end_id)
        marks = ((request.first_id, 1_000),) if end_id > request.first_id else ()
        return Times(0, request.session_id, max(end_id, request.first_id), marks)

    reader = ReplicaReader(lambda partition_id: VIEW, keyring(Role.READER), 0.2)
    monkeypatch.setattr(reader, "_ask", ask)
    return reader


@pytest.mark.parametrize("has_session", [{0}, {1}, {2}, {1, 2}])
def test_times_are_asked_of_who_knows_all_though_a_restarted_replica_answers(
    monkeypatch: pytest.MonkeyPatch, has_session: set[int]
) -> None:
    reader = reader_of(monkeypatch, has_session)
    assert reader.first_id_at(0, 7_000) == 800
    assert reader.times(0, 700, 701) == ((700, 1_000),)


def test_where_no_session_is_open_who_knows_most_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reader_of(monkeypatch, set()).first_id_at(0, 7_000) == 300
    assert reader_of(monkeypatch, set(), {1}).first_id_at(0, 7_000) == 200
    assert reader_of(monkeypatch, set()).times(0, 250, 251) == ((250, 1_000),)


@pytest.mark.parametrize("behind", [{0: 500}, {1: 700}, {0: 799}, {0: 800}, {2: 0}, {0: 801}])
def test_a_member_that_is_some_seconds_behind_says_nothing_of_what_it_does_not_have(
    monkeypatch: pytest.MonkeyPatch, behind: dict[int, int]
) -> None:
    """It would be said that what it lacks is of that time, or of no time."""
    reader = reader_of(monkeypatch, {0, 1, 2}, behind=behind)
    assert reader.first_id_at(0, 7_000) == 800
    assert reader.times(0, 898, 899) == ((898, 1_000),)


def test_where_a_log_ends_is_known_when_so_many_have_said_so_that_a_quorum_has_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever asks of idle partitions waits for no third replica."""
    reader, asked = reader_of(monkeypatch, {0, 1}, {2}, {0: 500, 1: 700}), []
    ask = reader._ask

    def noted(number: int, *arguments: Any, **options: Any) -> Any:
        asked.append(number)
        return ask(number, *arguments, **options)

    monkeypatch.setattr(reader, "_ask", noted)
    assert reader.first_id_at(0, 7_000) == 700
    assert asked == [0, 0, 1, 1]


def test_where_all_members_are_behind_who_has_most_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reader_of(monkeypatch, {0, 1, 2}, (), {0: 500, 1: 700, 2: 700}).first_id_at(0, 7_000) == 700
    assert reader_of(monkeypatch, {0, 1, 2}, (), {0: 500, 1: 700, 2: 600}).times(0, 800, 801) == ()


class _Interrupted:
    """A connection to a replica of partition 3, which answers what it is asked in turn; the first wait is cut short."""

    def __init__(self) -> None:
        self.asked: deque[Any] = deque()
        self.waits = 0
        self.open = True

    def settimeout(self, timeout_s: float) -> None: ...

    def send(self, *parts: bytes) -> None:
        self.asked.append(decode_replica(b"".join(parts)))

    def receive(self) -> bytes:
        self.waits += 1
        if self.waits == 1:
            raise KeyboardInterrupt
        request = self.asked.popleft()
        answer: ReplicaReply = StateReply(3, request.session_id, SESSION, 0, 0, END, False)
        if isinstance(request, FindTime):
            answer = TimeFound(3, request.session_id, 800)
        return b"".join(encode_replica(answer))

    def close(self) -> None:
        self.open = False


def reader_over(monkeypatch: pytest.MonkeyPatch) -> tuple[ReplicaReader, list[_Interrupted]]:
    opened: list[_Interrupted] = []

    def open_stream(*_: object) -> _Interrupted:
        opened.append(_Interrupted())
        opened[-1].waits = len(opened) - 1
        return opened[-1]

    monkeypatch.setattr(replica_reader, "open_stream", open_stream)
    view = ReplicaView(SESSION, frozenset({0}), 1, {0: VIEW.endpoints[0]})
    return ReplicaReader(lambda partition_id: view, keyring(Role.READER), 0.2), opened


def test_the_answer_to_a_question_that_was_interrupted_is_not_taken_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, opened = reader_over(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        reader.first_id_at(3, 7_000)
    assert reader.committed_mark(3) == END
    assert [each.open for each in opened] == [False, True]


def test_an_answer_about_another_partition_counts_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, _ = reader_over(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        reader.first_id_at(3, 7_000)
    with pytest.raises(DataUnavailable, match="answered for partition 3"):
        reader.committed_mark(4)


class _Slow(_Interrupted):
    """Nothing is wrong with it, but an answer takes a second."""

    def settimeout(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s

    def receive(self) -> bytes:
        if self.timeout_s < 1:
            raise TimeoutError("timed out, it says nothing, or nothing whole")
        self.waits = 1
        return super().receive()


def test_where_every_answer_is_long_in_coming_the_next_one_has_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long record over a slow line: no attempt would ever be long enough."""
    monkeypatch.setattr(replica_reader, "_ANSWER_S", 0.5)
    monkeypatch.setattr(replica_reader, "open_stream", lambda *_: _Slow())
    view = ReplicaView(SESSION, frozenset({0}), 1, {0: VIEW.endpoints[0]})
    reader = ReplicaReader(lambda partition_id: view, keyring(Role.READER), 10.0)
    assert reader.first_id_at(3, 7_000) == 800
