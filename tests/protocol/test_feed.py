"""Feeds: what a frame costs of the credit is what really goes over the wire; who is told what."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.checkers import Sent, keys_of
from tests.protocol.model_client import append_batch
from tests.protocol.model_replica import records_of
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.locks import LockTable
from waltz_ray.protocol.messages.client import AppendedBatch, FeedBatch, FeedMode, FeedRecords, Mounted
from waltz_ray.protocol.partition.admission import Arrival, admit
from waltz_ray.protocol.partition.events import Effect, ReadFeed, SendFeed, SendMessage
from waltz_ray.protocol.partition.feed import FeedHub, Subscriber, feed_frame_bytes, own_entries
from waltz_ray.protocol.records import FEW_RECORDS, Int32s, RecordBatch
from waltz_ray.protocol.retained import RetainedMemory, RetainedRecords
from waltz_ray.wire.codec import encode_client
from waltz_ray.wire.framing import MAGIC_CLIENT, encode_frame

CLIENTS = st.lists(st.integers(1, 4), min_size=1, max_size=10)


def records(clients: list[int], first_id: int = 0) -> RecordBatch:
    """One record for each of ``clients``; the sequence number is the transaction ID."""
    arrivals = [
        Arrival(client_id, append_batch(client_id, 1, first_id + i, [Sent(-1)])) for i, client_id in enumerate(clients)
    ]
    admitted = admit(arrivals, 0, first_id, LockTable(8, 1, -1))
    assert admitted.records is not None
    return admitted.records


def frame_of(mode: FeedMode, batch: RecordBatch) -> bytes:
    """The frame the server sends."""
    if mode is FeedMode.RECORDS:
        return encode_frame(MAGIC_CLIENT, 5, *encode_client(5, FeedRecords(batch)))

    def column(name: str) -> Int32s:
        native: Int32s = batch.fields[name].astype(np.int32)
        return native

    columns = [column(name) for name in ("client_id", "generation", "sequence_number", "header")]
    message = FeedBatch(batch.partition_id, batch.first_id, *columns)
    return encode_frame(MAGIC_CLIENT, 5, *encode_client(5, message))


@given(CLIENTS, st.integers(0, 2**40))
@settings(max_examples=40)
@pytest.mark.parametrize("mode", [FeedMode.RECORDS, FeedMode.HEADERS])
def test_a_frame_costs_what_it_is_on_the_wire(mode: FeedMode, clients: list[int], first_id: int) -> None:
    batch = records(clients, first_id % (1 << 30))
    assert feed_frame_bytes(mode, batch) == len(frame_of(mode, batch))
    part = batch.slice(0, 1)
    assert feed_frame_bytes(mode, part) == len(frame_of(mode, part))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=40), st.sets(st.integers(1, 4)))
@settings(max_examples=60)
def test_own_entries_are_those_of_the_clients_asked_for(clients: list[int], wanted: set[int]) -> None:
    batch = records(clients, 30)
    found = [
        (client_id, number, transaction_id)
        for client_id, numbers, ids in own_entries(batch, wanted)
        for number, transaction_id in zip(numbers.tolist(), ids.tolist(), strict=True)
    ]
    own = [(client_id, 30 + i, 30 + i) for i, client_id in enumerate(clients) if client_id in wanted]
    assert sorted(found) == sorted(own)
    for client_id in wanted:
        assert [entry for entry in found if entry[0] == client_id] == [entry for entry in own if entry[0] == client_id]
    if len(clients) > FEW_RECORDS:
        assert len(list(own_entries(batch, wanted))) == len(wanted & set(clients)), "one item for each"
    assert keys_of(records_of(batch)) == [(client_id, 30 + i) for i, client_id in enumerate(clients)]


def subscriber(client_id: int, mode: FeedMode, position: int, credit: int = 1 << 30, target: int = -1) -> Subscriber:
    return Subscriber(client_id, client_id, mode, position, credit, ReqId(client_id, 1, 0, 0), target)


def ids_told(effects: list[Effect], connection_id: int) -> list[int]:
    told: list[int] = []
    for effect in effects:
        if isinstance(effect, SendFeed) and connection_id in effect.connection_ids:
            told += range(effect.batch.first_id, effect.batch.end_id)
        elif (
            isinstance(effect, SendMessage)
            and effect.connection_id == connection_id
            and isinstance(effect.message, AppendedBatch)
        ):
            told += effect.message.transaction_ids.tolist()
    return told


@given(st.lists(CLIENTS, min_size=1, max_size=6), st.data())
@settings(max_examples=40)
def test_everybody_is_told_everything_once_whatever_the_commits(groups: list[list[int]], data: st.DataObject) -> None:
    retained = RetainedRecords(0)
    hub = FeedHub(0)
    owners = list(itertools.chain.from_iterable(groups))
    for client_id, mode in [(1, FeedMode.OWN), (2, FeedMode.RECORDS), (3, FeedMode.HEADERS), (4, FeedMode.NONE)]:
        hub.mount(subscriber(client_id, mode, -1))
    effects: list[Effect] = []
    mark = -1
    for group in groups:
        retained.append(records(group, retained.end_id))
        new_mark = data.draw(st.integers(mark, retained.end_id - 1))
        if new_mark > mark:
            effects += hub.committed(mark + 1, new_mark, retained)
            mark = new_mark
    assert ids_told(effects, 1) == [i for i in range(mark + 1) if owners[i] == 1]
    assert ids_told(effects, 2) == ids_told(effects, 3) == list(range(mark + 1))
    assert ids_told(effects, 4) == []
    if mark >= 0:
        mounted = [e for e in effects if isinstance(e, SendMessage) and isinstance(e.message, Mounted)]
        assert len(mounted) == 4, "each mount is answered once"


def limited_to(size_bytes: int) -> RetainedRecords:
    retained = RetainedRecords(0)
    RetainedMemory(size_bytes).join(retained)
    return retained


def test_only_what_is_in_memory_is_sent_from_memory() -> None:
    retained = limited_to(700)
    for _ in range(3):
        retained.append(records([1, 1], retained.end_id))
    retained.trim(5)
    assert (retained.first_id, retained.end_id) == (4, 6)
    hub = FeedHub(0)
    hub.mount(subscriber(7, FeedMode.RECORDS, -1, target=5))
    hub.mount(subscriber(8, FeedMode.RECORDS, 4, target=5))
    effects = hub.advance(5, retained)
    assert [(e.first_id, e.end_id) for e in effects if isinstance(e, ReadFeed)] == [(0, 4)]
    assert ids_told(effects, 8) == [5]
    assert [e for e in hub.advance(5, retained) if isinstance(e, ReadFeed)] == [], "one read at a time"
    effects = hub.read(7, 7, records([1, 1, 1, 1], 0), 5) + hub.advance(5, retained)
    assert ids_told(effects, 7) == [0, 1, 2, 3, 4, 5]


def test_memory_never_forgets_what_is_not_committed() -> None:
    retained = limited_to(1)
    for _ in range(3):
        retained.append(records([1, 1], retained.end_id))
    retained.trim(2)
    assert retained.first_id == 2
    assert [b.first_id for b in retained.since(3)] == [3, 4]
    assert [(b.first_id, b.end_id) for b in retained.between(3, 5)] == [(3, 4), (4, 5)]
    with pytest.raises(AssertionError):
        retained.since(1)
    with pytest.raises(AssertionError):
        retained.append(records([1], 9))


def test_a_stopped_subscriber_costs_nothing_and_holds_nobody_up() -> None:
    retained = RetainedRecords(0)
    hub = FeedHub(0)
    hub.mount(subscriber(7, FeedMode.RECORDS, -1, credit=0))
    hub.mount(subscriber(8, FeedMode.RECORDS, -1))
    retained.append(records([1, 1]))
    effects = hub.committed(0, 1, retained)
    assert (ids_told(effects, 7), ids_told(effects, 8)) == ([], [0, 1])
    hub.add_credit(7, 1)
    assert ids_told(hub.advance(1, retained), 7) == [0, 1]


def test_unmounting_one_client_of_a_connection_leaves_the_others() -> None:
    hub = FeedHub(0)
    for client_id in (1, 2):
        one = subscriber(client_id, FeedMode.NONE, -1)
        one.connection_id = 5
        hub.mount(one)
    hub.unmount(5, 1)
    assert (hub.connection_of(1), hub.connection_of(2), len(hub)) == (None, 5, 1)
    hub.unmount(6)
    assert len(hub) == 1
    assert [s.client_id for s in hub.take_all()] == [2]
    assert len(hub) == 0


@pytest.mark.parametrize("second_comes_first", [False, True])
def test_a_read_that_fails_is_not_ordered_again_at_once_because_the_next_one_does_not(second_comes_first: bool) -> None:
    hub, retained = FeedHub(0, 1000), RetainedRecords(1000)
    hub.mount(subscriber(1, FeedMode.RECORDS, -1))

    def ordered() -> list[ReadFeed]:
        return [effect for effect in hub.advance(999, retained) if isinstance(effect, ReadFeed)]

    def come(order: ReadFeed) -> None:
        count = min(20, order.end_id - order.first_id)
        hub.read(1, 1, records([1] * count, order.first_id), 999)

    come(*ordered())
    first, second = ordered()
    if second_comes_first:
        come(second)
        ahead = ordered()
        hub.read_failed(1, 1, 0)
    else:
        hub.read_failed(1, 1, 0)
        ahead = [second]
    for order in ahead:
        come(order)
    assert ordered() == [], "they would be read and fail again, as fast as a replica answers"
    hub.try_again()
    assert ordered()[0] == first
