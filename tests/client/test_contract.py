"""What every transport has to carry: the same tests over TCP and over actor calls."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import numpy as np
import pytest

from tests.client.conftest import PATIENCE_S, MakeClient, Recorder
from tests.client.fake_server import FakeServer
from waltz_ray.config import ClientConfig

pytestmark = pytest.mark.parametrize("transport", ["tcp", "actor"], indirect=True)


def test_append_gives_transaction_ids(server: FakeServer, make_client: MakeClient) -> None:
    client = make_client()
    futures = [client.append(0, b"r%d" % i, header=i) for i in range(100)]
    assert [future.result(PATIENCE_S) for future in futures] == list(range(100))
    assert server.logs[0].data() == [b"r%d" % i for i in range(100)]
    fields = np.concatenate([batch.fields for batch in server.logs[0].batches])
    assert fields["header"].tolist() == list(range(100))
    assert set(fields["client_id"].tolist()) == {client.client_id}
    assert client.statistics()["committed"] == 100


def test_append_many_is_packed_and_ordered(server: FakeServer, make_client: MakeClient) -> None:
    client = make_client(config=ClientConfig(batch_records=7))
    ids = client.append_many(1, [b"x" * i for i in range(20)], headers=np.arange(20, dtype=np.int32)).result(PATIENCE_S)
    assert ids.dtype == np.int64
    assert ids.tolist() == list(range(20))
    assert server.batch_sizes == [7, 7, 6]
    assert server.logs[1].data() == [b"x" * i for i in range(20)]
    assert client.append_many(1, []).result(0).tolist() == []


def test_large_records(make_client: MakeClient, server: FakeServer) -> None:
    client = make_client()
    datas = [bytes([i]) * 700_000 for i in range(6)]
    futures = [client.append(0, data) for data in datas]
    assert sorted(future.result(PATIENCE_S) for future in futures) == list(range(6))
    assert server.logs[0].data() == datas
    assert [one.data for one in client.read(0, 0, 6)] == datas


@pytest.mark.parametrize("drops", ["drop_after_admitting", "drop_before_admitting"])
def test_connection_loss_neither_loses_nor_doubles(server: FakeServer, make_client: MakeClient, drops: str) -> None:
    client = make_client()
    client.append(0, b"first").result(PATIENCE_S)
    setattr(server.script, drops, 2)
    futures = [client.append(0, b"%d" % i) for i in range(10)]
    ids = [future.result(PATIENCE_S) for future in futures]
    log = server.logs[0].data()
    assert len(log) == 11
    assert [log[i] for i in ids] == [b"%d" % i for i in range(10)]
    assert client.statistics()["reconnects"] >= 1


@pytest.mark.parametrize("feed", ["records", "headers"])
def test_feed_reaches_the_callbacks_in_order(server: FakeServer, make_client: MakeClient, feed: str) -> None:
    server.append_directly(0, [b"old%d" % i for i in range(5)], header=9)
    recorder = Recorder()
    client = make_client(recorder, feed="records" if feed == "records" else "headers")
    client.wait_ready(PATIENCE_S)
    future = client.append(0, b"new", header=4)
    assert future.result(PATIENCE_S) == 5
    recorder.wait_for(lambda: len(recorder.applied) == 6)
    assert recorder.applied == [(0, i, 9, b"old%d" % i) for i in range(5)] + [(0, 5, 4, b"new")]
    assert client.high_water_mark(0) == 5 or recorder.ids()[-1] == 5
    assert client.server_high_water_mark(0) == 5


def test_reconnect_goes_on_after_the_last_transaction(server: FakeServer, make_client: MakeClient) -> None:
    recorder = Recorder({0: 2})
    server.append_directly(0, [b"%d" % i for i in range(5)])
    make_client(recorder, partitions=[0])
    recorder.wait_for(lambda: recorder.ids() == [3, 4])
    server.drop_connections()
    server.append_directly(0, [b"5", b"6"])
    recorder.wait_for(lambda: len(recorder.ids()) >= 4)
    assert recorder.ids() == [3, 4, 5, 6]
    assert server.mount_marks == [2, 4]


def test_asyncio(make_client: MakeClient) -> None:
    client = make_client()

    async def main() -> list[int]:
        futures: list[Future[int]] = [client.append(0, b"x") for _ in range(10)]
        return await asyncio.gather(*map(asyncio.wrap_future, futures))

    assert asyncio.run(main()) == list(range(10))
