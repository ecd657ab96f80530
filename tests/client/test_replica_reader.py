"""What replicas are asked about times, and whose answer counts; no socket is opened."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from tests.security.keys import keyring
from waltz_ray.client.readers.locations import ReplicaView
from waltz_ray.client.readers.replica_reader import ReplicaReader
from waltz_ray.errors import ReplicaRefused
from waltz_ray.protocol.authentication import Role
from waltz_ray.protocol.ids import NO_SESSION, NO_TRANSACTION, Endpoint
from waltz_ray.protocol.messages.replica import FindTime, ReadTimes, RefusalCode, Refused, TimeFound, Times

SESSION, END, LOW = 5, 900, {0: 100, 1: 300, 2: 200}
VIEW = ReplicaView(SESSION, frozenset({0, 1, 2}), 2, {n: Endpoint("127.0.0.1", 1 + n) for n in range(3)})


def reader_of(monkeypatch: pytest.MonkeyPatch, has_session: set[int], dead: Collection[int] = ()) -> ReplicaReader:
    """Every replica has the same log of ``END`` records; those of ``LOW`` lie below its own mark."""

    def ask(number: int, endpoint: Endpoint, request: Any, left_s: float, may_refuse: bool = False) -> Any:
        if number in dead:
            raise ReplicaRefused("it has ended")
        if request.session_id != NO_SESSION and number not in has_session:
            fields = 0, SESSION, 23, RefusalCode.NOT_OPEN, NO_SESSION, NO_TRANSACTION, "not opened"
            return Refused(*fields)
        end_id = END if request.session_id != NO_SESSION else LOW[number]
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
