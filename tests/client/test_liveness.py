"""Who says nothing is asked, and given up; a slow line, and our own standing still, are no silence."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import TimeoutError

import pytest

from tests.client.conftest import MakeClient, Recorder
from tests.client.fake_server import FakeDirectory, FakeServer
from tests.cluster.harness import wait_until
from tests.net.cutting_proxy import CuttingProxy
from waltz_ray.client import WaltzClient
from waltz_ray.client.liveness import BEATS, Liveness, WhatToDo
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.config import ClientConfig
from waltz_ray.net.carried import Carried

SILENT_S = 1.5
BEAT_S = SILENT_S / BEATS
PATIENCE_S = 20.0


class _Line:
    """Turns of a ``Liveness``, and what came through its connection meanwhile."""

    def __init__(self) -> None:
        self.liveness = Liveness(SILENT_S)
        self.now = Carried(0, 0, 0)
        self.turns(1)

    def turns(self, count: int, expects: bool = True, seconds: float = BEAT_S) -> list[WhatToDo]:
        """What was to be done in them, but for nothing."""
        verdicts = [self.liveness.passed(seconds, self.now, expects) for _ in range(count)]
        return [verdict for verdict in verdicts if verdict is not WhatToDo.NOTHING]

    def comes(self, received: int = 0, acknowledged: int = 0, under_way: int = 0) -> None:
        _, acknowledged_before, received_before = self.now
        self.now = Carried(under_way, acknowledged_before + acknowledged, received_before + received)


def test_a_silent_server_is_asked_and_given_up_in_time() -> None:
    line = _Line()
    assert line.turns(BEATS - 1) == [WhatToDo.ASK]
    assert line.turns(1) == [WhatToDo.GIVE_UP]


def test_a_server_that_answers_is_asked_again_and_never_given_up() -> None:
    line = _Line()
    for _ in range(10):
        assert line.turns(BEATS - 1) == [WhatToDo.ASK]
        line.comes(received=20)
        assert line.turns(1) == []


def test_where_nothing_is_waited_for_it_is_asked_seldom() -> None:
    line = _Line()
    assert line.turns(10 * BEATS - 1, expects=False) == []
    assert line.turns(1, expects=False) == [WhatToDo.ASK]
    assert line.turns(4, expects=False) == [WhatToDo.GIVE_UP], "half-open"


def test_silence_counts_from_when_something_is_waited_for() -> None:
    line = _Line()
    line.turns(8 * BEATS, expects=False)
    assert line.turns(1) == []
    assert line.turns(1) == [WhatToDo.ASK]


def test_a_slow_line_on_which_much_is_under_way_is_not_silent() -> None:
    line = _Line()
    for _ in range(100):
        line.comes(acknowledged=1000, under_way=7)
        assert line.turns(1) == []
    assert line.turns(BEATS) == [WhatToDo.ASK, WhatToDo.GIVE_UP], "nothing is taken any more"


def test_what_a_proxy_acknowledges_at_once_is_no_sign_of_a_server() -> None:
    line = _Line()
    found = []
    for _ in range(BEATS):
        line.comes(acknowledged=1000)
        found += line.turns(1)
    assert found == [WhatToDo.ASK, WhatToDo.GIVE_UP]


def test_while_we_stood_still_nobody_was_silent() -> None:
    line = _Line()
    assert line.turns(1, seconds=60.0) == [WhatToDo.ASK]
    line.comes(received=20)
    assert line.turns(1, seconds=60.0) == []


SOON = ClientConfig(silent_ms=300)


@pytest.fixture
def proxy(server: FakeServer, directory: FakeDirectory) -> Iterator[CuttingProxy]:
    """Between all clients and the server."""
    with CuttingProxy(server.endpoint) as between:
        directory.move(0, server.location(0)._replace(endpoint=between.endpoint))
        yield between


def test_a_connection_that_somebody_has_forgotten_is_made_anew(proxy: CuttingProxy, make_client: MakeClient) -> None:
    client = make_client(config=SOON, partitions=[0])
    assert client.append(0, b"first").result(PATIENCE_S) == 0
    assert client.server_high_water_mark(0) == 0
    proxy.forget()  # TCP says nothing of it: the proxy's machine answers
    assert client.append(0, b"second").result(PATIENCE_S) == 1
    assert client.server_high_water_mark(0) == 1


def test_who_only_follows_a_feed_notices_as_well(
    proxy: CuttingProxy, server: FakeServer, make_client: MakeClient
) -> None:
    recorder = Recorder()
    client = make_client(recorder, ClientConfig(silent_ms=60))
    client.append(0, b"first").result(PATIENCE_S)
    recorder.wait_for(lambda: recorder.ids() == [0])
    proxy.forget()
    other = WaltzClient(FakeDirectory({0: server}), TcpTransport())
    try:
        other.append(0, b"second").result(PATIENCE_S)
    finally:
        other.close()
    recorder.wait_for(lambda: recorder.ids() == [0, 1])


def test_with_0_it_is_left_to_tcp(proxy: CuttingProxy, make_client: MakeClient) -> None:
    client = make_client(config=ClientConfig(silent_ms=0), partitions=[0])
    client.append(0, b"first").result(PATIENCE_S)
    proxy.stall()
    waiting = client.append(0, b"second")
    with pytest.raises(TimeoutError):
        waiting.result(2.0)
    proxy.heal()
    assert waiting.result(PATIENCE_S) == 1
    assert proxy.accepted == 1


def test_a_partition_that_has_moved_does_not_wait_for_who_hangs(
    proxy: CuttingProxy,
    server: FakeServer,
    directory: FakeDirectory,
    make_client: MakeClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("waltz_ray.client.stream._HELLO_TIMEOUT_MS", 60_000)  # longer than the patience of the test
    proxy.stall()
    waiting = make_client(config=SOON, partitions=[0]).append(0, b"first")
    wait_until(lambda: proxy.accepted, "a connection is being opened")
    directory.move(0, server.location(0))
    assert waiting.result(PATIENCE_S) == 0
