"""A server's address may be another cluster's by now: every client says which cluster it means."""

from __future__ import annotations

import pytest

from tests.client.conftest import MakeAnyClient
from tests.client.fake_server import THE_FAKE_CLUSTER, FakeServer
from waltz_ray.client import RangeReader
from waltz_ray.client.readers.header_reader import HeaderReader
from waltz_ray.errors import DataUnavailable


def test_a_client_appends_nothing_at_another_clusters_server(server: FakeServer, make_any: MakeAnyClient) -> None:
    server.script.of_cluster = "another one"
    client = make_any()
    future = client.append(0, b"a")
    with pytest.raises(TimeoutError):
        future.result(0.3)
    assert server.logs[0].data() == []
    server.script.of_cluster = THE_FAKE_CLUSTER
    assert future.result(10) == 0
    assert client.server_high_water_mark(0) == 0
    assert set(server.meant) == {THE_FAKE_CLUSTER}


def test_the_readers_read_nothing_there(server: FakeServer) -> None:
    server.append_directly(0, [b"a"])
    server.script.of_cluster = THE_FAKE_CLUSTER
    with (
        RangeReader(lambda _: server.endpoint, 0.3, cluster_key="another one") as reader,
        pytest.raises(DataUnavailable, match="another cluster's"),
    ):
        reader.high_water_mark(0)
    headers = HeaderReader(lambda _: server.endpoint, lambda: 7, 0.3, cluster_key="another one")
    with pytest.raises(DataUnavailable):
        list(headers.read_headers(0, 0, 1))
    assert set(server.meant) == {"another one"}
    with RangeReader(lambda _: server.endpoint, cluster_key=THE_FAKE_CLUSTER) as reader:
        assert reader.high_water_mark(0) == 0
