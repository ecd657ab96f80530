"""Whoever waits is told why: in the process's log, once for each reason, and at the end of the error."""

from __future__ import annotations

import logging

import pytest

from tests.client.conftest import MakeAnyClient
from tests.client.fake_server import FakeDirectory, FakeServer
from tests.cluster.harness import wait_until
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendTimeout, OutboxFull, PartitionNotReady

PATIENCE_S = 20.0
SOON = ClientConfig(hindrance_after_ms=50, outstanding_appends=2)
FULL = "replica 1: no space left on the disk"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        one.getMessage() for one in caplog.records if one.name == "waltz_ray.client.hindrances" and one.levelno >= 30
    ]


def until_warned(caplog: pytest.LogCaptureFixture, text: str) -> None:
    wait_until(lambda: any(text in told for told in warnings_of(caplog)), f"a warning of {text}", PATIENCE_S)


def test_appends_that_wait(server: FakeServer, make_any: MakeAnyClient, caplog: pytest.LogCaptureFixture) -> None:
    client = make_any(config=SOON)
    client.append(0, b"first").result(PATIENCE_S)
    server.script.hold_appends, server.script.hindrance = True, FULL
    waiting = client.append(0, b"x")
    until_warned(caplog, FULL)
    with pytest.raises(AppendTimeout, match=f"its server says: {FULL}") as late:
        client.append(0, b"y", timeout=0.5).result(PATIENCE_S)
    assert warnings_of(caplog) == [f"partition 0 takes no appends just now: {FULL}"], "once for each reason"
    with pytest.raises(OutboxFull, match=f"its server says: {FULL}"):
        client.append(0, b"z", timeout=0.01).result(PATIENCE_S)
    with pytest.raises(AppendTimeout, match=f"the servers say: partition 0: {FULL}"):
        client.flush(0.01)
    server.script.hindrance = "replica 2: its node is down"
    until_warned(caplog, "its node is down")
    assert not waiting.done()
    assert late.value.fate is not None


def test_a_mount_that_waits(server: FakeServer, make_any: MakeAnyClient, caplog: pytest.LogCaptureFixture) -> None:
    server.script.hold_mounts, server.script.hindrance = True, FULL
    client = make_any(config=ClientConfig(hindrance_after_ms=50, mount_timeout_ms=1500), partitions=[0])
    waiting = client.append(0, b"x")
    until_warned(caplog, FULL)
    with pytest.raises(PartitionNotReady, match=FULL):
        client.wait_ready(0.05)
    with pytest.raises(PartitionNotReady, match=FULL):
        waiting.result(PATIENCE_S)
    assert warnings_of(caplog) == [f"partition 0 takes no appends just now: {FULL}"]


def test_nobody_has_the_partition(
    directory: FakeDirectory, make_any: MakeAnyClient, caplog: pytest.LogCaptureFixture
) -> None:
    directory.move(0, None)
    client = make_any(config=SOON, partitions=[0])
    client.append(0, b"x")
    until_warned(caplog, "no server has it")
    with pytest.raises(PartitionNotReady, match="no server has it"):
        client.wait_ready(0.05)
    assert warnings_of(caplog) == ["partition 0 takes no appends just now: no server has it"]


def test_who_does_not_want_to_know(
    server: FakeServer, make_any: MakeAnyClient, caplog: pytest.LogCaptureFixture
) -> None:
    server.script.hold_mounts, server.script.hindrance = True, FULL
    with pytest.raises(PartitionNotReady, match="no server owns it"):
        make_any(config=ClientConfig(hindrance_after_ms=0), partitions=[0]).wait_ready(0.3)
    assert warnings_of(caplog) == []


def test_it_goes_on_and_waits_once_more(
    server: FakeServer, make_any: MakeAnyClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "waltz_ray.client.hindrances")
    client = make_any(config=SOON)
    for _ in range(2):
        server.script.hindrance = FULL
        client.append(0, b"x").result(PATIENCE_S)
        caplog.clear()
        server.script.hold_appends = True
        client.append(0, b"y")
        until_warned(caplog, FULL)
        server.script.hold_appends = False
        server.drop_connections()
        client.append(0, b"z").result(PATIENCE_S)
        wait_until(lambda: "partition 0 goes on" in caplog.text, "a line that it goes on", PATIENCE_S)
