"""Blocking reads for Spark's workers: ranges, verification, and a server that moves."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.client.fake_server import FakeServer
from tests.net.cutting_proxy import CuttingProxy
from waltz_ray.client import RangeReader, range_reader
from waltz_ray.errors import DataUnavailable, InvalidInput, ZooKeeperUnreachable
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.records import RecordBatch


def test_reads_a_range_in_batches(server: FakeServer) -> None:
    for start in range(0, 30, 10):
        server.append_directly(0, [b"%d" % i for i in range(start, start + 10)])
    before = threading.active_count()
    with RangeReader(lambda partition: server.endpoint) as reader:
        batches = list(reader.read_range(0, 5, 25))
        assert [(batch.first_id, batch.end_id) for batch in batches] == [(5, 10), (10, 20), (20, 25)]
        assert [bytes(data) for batch in batches for data in batch.datas()] == [b"%d" % i for i in range(5, 25)]
        assert list(reader.read_range(0, 28, 1000))[-1].end_id == 30
        assert list(reader.read_range(1, 0, 10)) == []
        assert (reader.high_water_mark(0), reader.high_water_mark(1)) == (29, -1)
        assert threading.active_count() == before
        with pytest.raises(InvalidInput):
            next(reader.read_range(0, -1, 10))


def test_finds_the_server_again(server: FakeServer) -> None:
    server.append_directly(0, [b"a", b"b", b"c"])
    asked: list[int] = []
    answers: list[Endpoint | None] = [Endpoint("127.0.0.1", 1), None]

    def resolve(partition: int) -> Endpoint | None:
        asked.append(partition)
        return answers.pop(0) if answers else server.endpoint

    with RangeReader(resolve) as reader:
        assert sum(map(len, reader.read_range(0, 0, 3))) == 3
        assert len(asked) == 3
        assert sum(map(len, reader.read_range(0, 0, 3))) == 3
        assert len(asked) == 3, "who has answered is asked again at once"
        server.drop_connections()
        assert sum(map(len, reader.read_range(0, 0, 3))) == 3
        assert len(asked) == 4


def test_goes_on_while_zookeeper_is_away(server: FakeServer) -> None:
    server.append_directly(0, [b"a"])
    away = [True, True]

    def resolve(partition: int) -> Endpoint | None:
        if away:
            away.pop()
            raise ZooKeeperUnreachable("no ZooKeeper server answers")
        return server.endpoint

    with RangeReader(resolve) as reader:
        assert reader.high_water_mark(0) == 0
        away.append(True)
        assert sum(map(len, reader.read_range(0, 0, 1))) == 1
        assert away, "nobody was needed to say where the server is"
        assert reader.high_water_mark(0) == 0
        assert not away, "but the one who knows the mark is looked for: another one may have replaced it"


def test_a_connection_on_which_nothing_comes_does_not_use_up_the_time(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something in between has forgotten it, or its server hangs and another one has the partition by now."""
    server.append_directly(0, [b"a", b"b"])
    with CuttingProxy(server.endpoint) as between, RangeReader(lambda partition: between.endpoint, 10.0) as reader:
        assert reader.high_water_mark(0) == 1
        monkeypatch.setattr(range_reader, "_ANSWER_S", 1.0)  # long enough for the new connection to answer
        between.forget()
        assert sum(map(len, reader.read_range(0, 0, 2))) == 2
        assert between.accepted == 2


def test_a_line_that_is_slow_has_the_rest_of_the_time(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "_ANSWER_S", 0.1)
    server.append_directly(0, [b"a", b"b"])
    with CuttingProxy(server.endpoint) as between, RangeReader(lambda partition: between.endpoint, 10.0) as reader:
        between.delay(0.15)
        assert sum(map(len, reader.read_range(0, 0, 2))) == 2


def test_gives_up_in_time() -> None:
    with (
        RangeReader(lambda partition: None, timeout_s=0.05) as reader,
        pytest.raises(DataUnavailable, match=r"partition 4 could not be read within 0\.05 s: no server owns it"),
    ):
        reader.high_water_mark(4)


def test_a_damaged_record_is_not_handed_out(server: FakeServer) -> None:
    server.append_directly(0, [b"good", b"bad!"])
    whole = server.logs[0].batches[0]
    damaged = bytearray(whole.records)
    damaged[-6] ^= 1
    lengths = np.array(whole.lengths, dtype=np.int32)
    server.do(lambda: server.logs[0].batches.__setitem__(0, RecordBatch(0, 0, lengths, bytes(damaged))))
    with (
        RangeReader(lambda partition: server.endpoint, timeout_s=1.0) as reader,  # enough to hear it once
        pytest.raises(DataUnavailable, match="transaction 1 arrived damaged"),
    ):
        list(reader.read_range(0, 0, 2))
