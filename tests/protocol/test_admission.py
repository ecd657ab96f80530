"""From proposals to records: several batches of a turn are decided as if one transaction came at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.checkers import Sent, keys_of
from tests.protocol.model_client import append_batch
from tests.protocol.model_replica import records_of
from waltz_ray.protocol.locks import LockTable
from waltz_ray.protocol.partition import admission
from waltz_ray.protocol.partition.admission import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    Admitted,
    Arrival,
    admit,
    admit_columns,
    arrivals,
    pieces,
)
from waltz_ray.protocol.records import first_bad_record

LOCKS = st.lists(st.integers(0, 5), max_size=2).map(tuple)
SENT = st.builds(Sent, st.integers(8, 16), LOCKS, LOCKS, LOCKS)
TURN = st.lists(st.tuples(st.integers(1, 3), st.lists(SENT, min_size=1, max_size=4)), min_size=1, max_size=5)


def arrivals_of(turn: list[tuple[int, list[Sent]]]) -> list[Arrival]:
    return [
        Arrival(10 + client_id, append_batch(client_id, 2, 100 * position, sent))
        for position, (client_id, sent) in enumerate(turn)
    ]


def outcome(admitted: list[Admitted]) -> tuple[list[bytes], list[tuple[int, int, int]]]:
    """(record bytes in order, (connection, sequence number, conflict) of every lock failure)."""
    records = [r for a in admitted if a.records is not None for r in records_of(a.records)]
    failures = [
        (f.connection_id, number, conflict)
        for a in admitted
        for f in a.lock_failures
        for number, conflict in zip(f.sequence_numbers.tolist(), f.conflicts.tolist(), strict=True)
    ]
    return records, failures


@given(TURN)
@settings(max_examples=40)
def test_a_turn_equals_one_transaction_at_a_time(turn: list[tuple[int, list[Sent]]]) -> None:
    together = admit(arrivals_of(turn), 0, 10, LockTable(1000, 2, 9))
    table, next_id, alone = LockTable(1000, 2, 9), 10, []
    for position, (client_id, sent) in enumerate(turn):
        for index, one in enumerate(sent):
            batch = append_batch(client_id, 2, 100 * position + index, [one])
            alone.append(admit([Arrival(10 + client_id, batch)], 0, next_id, table))
            next_id += 0 if alone[-1].records is None else 1
    assert outcome([together]) == outcome(alone)
    if together.records is not None:
        assert first_bad_record(together.records) == -1


def test_records_carry_their_client_and_the_order_of_arrival() -> None:
    admitted = admit(arrivals_of([(1, [Sent(9)] * 2), (2, [Sent(9)])]), 0, 10, LockTable(8, 1, 9))
    assert admitted.records is not None
    assert (admitted.records.first_id, admitted.records.last_id) == (10, 12)
    assert keys_of(records_of(admitted.records)) == [(1, 0), (1, 1), (2, 100)]


def test_damaged_data_is_refused_whole_and_does_not_touch_the_others() -> None:
    good, bad, other = arrivals_of([(1, [Sent(9)]), (2, [Sent(9, write=(1,))] * 2), (3, [Sent(9, read=(1,))])])
    broken = Arrival(bad.connection_id, replace(bad.batch, body=b"!" + bytes(bad.batch.body)[1:]))
    admitted = admit([good, broken, other], 0, 10, LockTable(1000, 2, 9))
    assert admitted.damaged == [broken]
    assert admitted.lock_failures == []
    assert admitted.records is not None
    assert keys_of(records_of(admitted.records)) == [(1, 0), (3, 200)]
    assert admit([broken], 0, 10, LockTable(8, 1, 9)).records is None


def test_nothing_passed() -> None:
    admitted = admit(arrivals_of([(1, [Sent(8, read=(1,))])]), 0, 10, LockTable(8, 1, 9))
    assert admitted.records is None
    [failures] = admitted.lock_failures
    assert (failures.sequence_numbers.tolist(), failures.conflicts.tolist()) == ([0], [9])


def test_an_empty_body_is_a_transaction_too() -> None:
    batch = append_batch(1, 2, 0, [Sent(9)])
    empty = replace(batch, body=b"", lengths=np.zeros(1, dtype=np.int32), checksums=np.zeros(1, dtype=np.uint32))
    admitted = admit([Arrival(1, empty)], 0, 10, LockTable(8, 1, 9))
    assert admitted.records is not None
    assert admitted.records.size_bytes == 40


def test_pieces_keep_order_and_never_split_an_arrival() -> None:
    sizes = [MAX_BATCH_BYTES // 2, MAX_BATCH_BYTES // 2, 1, 3 * MAX_BATCH_BYTES, 1, 1]
    template = append_batch(1, 2, 0, [Sent(9)])
    arrivals = [Arrival(i, replace(template, body=bytes(size))) for i, size in enumerate(sizes)]
    assert [[a.connection_id for a in run] for run in pieces(arrivals)] == [[0, 1], [2], [3], [4, 5]]
    assert list(pieces([])) == []


@given(TURN)
@settings(max_examples=100)
def test_a_few_are_decided_as_many_are(turn: list[tuple[int, list[Sent]]]) -> None:
    arrivals = arrivals_of(turn)
    if len(turn) > 2:  # one of them damaged
        first = arrivals[1]
        arrivals[1] = Arrival(first.connection_id, replace(first.batch, body=b"!" + bytes(first.batch.body)[1:]))
    tables = LockTable(20, 2, 9), LockTable(20, 2, 9)
    few, many = admit(arrivals, 0, 10, tables[0]), admit_columns(arrivals, 0, 10, tables[1])
    assert outcome([few]) == outcome([many])
    assert few.damaged == many.damaged
    assert tables[0].marks.tolist() == tables[1].marks.tolist()
    if few.records is not None and many.records is not None:
        assert few.records.lengths.tolist() == many.records.lengths.tolist()
        assert (few.estimates is None) == (many.estimates is None)
        if few.estimates is not None and many.estimates is not None:
            assert few.estimates.tolist() == many.estimates.tolist()
        assert few.records.origins == many.records.origins


@given(st.lists(SENT, min_size=1, max_size=20))
@settings(max_examples=40)
def test_a_batch_of_too_many_records_is_decided_in_parts_as_if_it_were_one(sent: list[Sent]) -> None:
    batch = append_batch(1, 2, 100, sent)
    whole = outcome([admit([Arrival(11, batch)], 0, 10, LockTable(1000, 2, 9))])
    table, next_id, parts = LockTable(1000, 2, 9), 10, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "MAX_BATCH_RECORDS", 3)
        for run in pieces(arrivals(11, batch)):
            assert sum(len(arrival.batch) for arrival in run) <= 3
            parts.append(admit(run, 0, next_id, table))
            next_id += 0 if parts[-1].records is None else len(parts[-1].records)
    assert outcome(parts) == whole


@given(st.lists(SENT, min_size=1, max_size=20), st.integers(1, 5))
@settings(max_examples=60)
def test_a_batch_of_too_many_locks_is_decided_in_parts_as_if_it_were_one(sent: list[Sent], most: int) -> None:
    batch = append_batch(1, 2, 100, sent)
    whole = outcome([admit([Arrival(11, batch)], 0, 10, LockTable(1000, 2, 9))])
    table, next_id, parts = LockTable(1000, 2, 9), 10, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "MAX_BATCH_LOCKS", most)
        for run in pieces(arrivals(11, batch)):
            assert sum(a.batch.lock_count for a in run) <= most or sum(len(a.batch) for a in run) == 1
            parts.append(admit(run, 0, next_id, table))
            next_id += 0 if parts[-1].records is None else len(parts[-1].records)
    assert outcome(parts) == whole


def test_few_records_with_many_locks_are_decided_as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one they would take five times as long."""
    monkeypatch.setattr(admission, "_admit_few", None)
    locks = tuple(range(300))
    turn = [
        Arrival(1, append_batch(1, 2, 0, [Sent(9, locks)])),
        Arrival(2, append_batch(2, 2, 0, [Sent(9, (), locks)])),
    ]
    admitted = admit(turn, 0, 10, LockTable(100_000, 2, 9))
    assert admitted.records is not None
    assert len(admitted.records) == 1
    assert outcome([admitted])[1] == [(2, 0, 10)]


def test_a_piece_has_a_limited_number_of_records_however_short_they_are() -> None:
    count = 3 * MAX_BATCH_RECORDS + 5
    zeros = np.zeros(count, dtype=np.int32)
    batch = replace(
        append_batch(1, 2, 0, [Sent(-1)]),
        sequence_numbers=np.arange(count, dtype=np.int32),
        client_marks=zeros.astype(np.int64),
        headers=zeros,
        lengths=zeros,
        checksums=zeros.astype(np.uint32),
        body=b"",
    )
    cut = arrivals(1, batch)
    assert [len(run) for run in pieces(cut)] == [1, 1, 1, 1]
    assert [len(arrival.batch) for arrival in cut] == [MAX_BATCH_RECORDS] * 3 + [5]
    singles = [Arrival(1, append_batch(1, 2, n, [Sent(-1)])) for n in range(10)] * (MAX_BATCH_RECORDS // 5)
    assert max(len(run) for run in pieces(singles)) == MAX_BATCH_RECORDS
