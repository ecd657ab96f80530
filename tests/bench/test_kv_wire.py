"""What the benchmark of the key/value layer says to Redis and etcd, byte by byte; and how it starts and ends them."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import psutil  # type: ignore[import-untyped]
import pytest
from waltz_bench import kv_etcd, kv_redis
from waltz_bench.cluster import Waltz
from waltz_bench.kv import PEERS, SET_MANY, KvOptions, cases_of, kv_space
from waltz_bench.kv_load import LoadThread

from waltz_ray.errors import AppendFailed, ConfigError, InvalidInput


def test_resp_commands_and_replies_cut_anywhere() -> None:
    assert kv_redis.command(b"SET", b"a", b"\r\n") == b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\n\r\n\r\n"
    stream = b"+OK\r\n$5\r\nab\r\nc\r\n:12\r\n$-1\r\n$0\r\n\r\n-ERR wrong\r\n"
    for size in (1, 2, 3, 7, 100):
        reader = kv_redis.RespReader()
        found = [each for at in range(0, len(stream), size) for each in reader.feed(stream[at : at + size])]
        assert found[:5] == [b"OK", b"ab\r\nc", 12, None, b""]
        assert isinstance(found[5], AppendFailed)
        assert "ERR wrong" in str(found[5])
    with pytest.raises(AppendFailed, match="something else"):
        kv_redis.RespReader().feed(b"HTTP/1.1 400\r\n")


def test_protocol_buffers() -> None:
    """As ``protoc`` packs them: tag, length, bytes."""
    assert kv_etcd.put_request("k", b"v" * 200) == b"\x0a\x01k\x12\xc8\x01" + b"v" * 200
    assert kv_etcd.range_request("key") == b"\x0a\x03key"
    assert kv_etcd.txn_request({"k": b"v"}) == b"\x12\x08\x12\x06\x0a\x01k\x12\x01v"
    message = b"\x08\x96\x01" + kv_etcd.field(2, b"x") + kv_etcd.field(5, b"")
    assert kv_etcd.number(message, 1) == 150
    assert kv_etcd.first_bytes(message, 2) == b"x"
    assert kv_etcd.first_bytes(message, 5) == b""
    assert kv_etcd.first_bytes(message, 3) is None
    assert kv_etcd.number(message, 3) == 0


def test_a_store_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, package in (("redis", "redis-server"), ("etcd", "etcd-server")):
        with pytest.raises(ConfigError, match=f"apt-get install {package}"), PEERS[name][1](tmp_path / name, print):
            pass
    with pytest.raises(InvalidInput, match="no comparison with 'mongo'; there is: redis, etcd"):
        KvOptions(peers=("mongo",))


def test_partitions_that_no_space_has() -> None:
    """Said before a cluster is started; and a running cluster gets no space for a benchmark."""
    with pytest.raises(InvalidInput, match="has 1, 2, 4, 8"):
        KvOptions(partitions=3)
    running = cast(Waltz, None)  # not asked
    with pytest.raises(InvalidInput, match="for a cluster of the benchmark's own: orders gets no space"):
        kv_space(running, 4, "orders")
    assert kv_space(running, 0, "orders") == "kv"


@pytest.mark.parametrize("name", PEERS)
def test_a_store_is_measured_and_ended(name: str, tmp_path: Path) -> None:
    if shutil.which({"redis": "redis-server", "etcd": "etcd"}[name]) is None:
        pytest.skip(f"{name} is not installed")
    system, start = PEERS[name]
    options = KvOptions(runs=1, seconds=0.5, warmup_s=0.05)  # at least one call of each, on a busy machine, too
    with start(tmp_path / name, print) as store, LoadThread() as thread, ExitStack() as stack:
        assert store.version[0].isdigit()
        pids = dict(store.processes().pids)
        samples = {case.name: case.run() for case in cases_of(system, store, thread, options, stack)}
    assert len(samples) == 5
    assert all(sample.records > 0 for sample in samples.values())
    assert samples[SET_MANY].records % 100 == 0
    assert not any(psutil.pid_exists(pid) for name, pid in pids.items() if name != "driver")
