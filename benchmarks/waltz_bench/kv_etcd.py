"""An etcd cluster of three members, which sync before they acknowledge, and a client through grpc.aio.

The few messages of etcd's API v3 that are needed are packed by hand (protocol buffers): no generated code.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from waltz_bench.nats_cluster import HOST, free_ports
from waltz_bench.processes import Processes
from waltz_bench.waiting import end_all, wait_listening
from waltz_ray.errors import ConfigError, PartitionNotReady

__all__ = ["Etcd", "EtcdClient", "etcd_cluster", "field", "first_bytes", "put_request", "range_request", "txn_request"]

MEMBERS = 3
_START_S, _POLL_S, _CALL_S = 60.0, 0.1, 30.0


@dataclass(frozen=True)
class Etcd:
    """A running cluster; ``port`` is the leader's."""

    version: str
    pids: dict[str, int]
    port: int

    def processes(self) -> Processes:
        """To be measured."""
        return Processes(self.pids)

    async def client(self) -> EtcdClient:
        """A connection of its own to the leader."""
        return EtcdClient(self.port)


@contextmanager
def etcd_cluster(directory: Path, progress: Callable[[str], None] = lambda text: None) -> Iterator[Etcd]:
    """Three members in ``directory``, ended at the end. ConfigError if it is not installed."""
    binary = shutil.which("etcd")
    if binary is None:
        raise ConfigError("there is no etcd here; apt-get install etcd-server")
    directory.mkdir(parents=True)
    ports = free_ports(2 * MEMBERS)
    members = {f"etcd-{n}": (ports[n], ports[MEMBERS + n]) for n in range(MEMBERS)}
    running: dict[str, subprocess.Popen[bytes]] = {}
    progress("starting etcd")
    try:
        for name in members:
            with open(directory / f"{name}.log", "wb") as log:
                arguments = [binary, *_arguments(name, members, directory)]
                running[name] = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for name, (port, _) in members.items():
            wait_listening(name, port, running[name], directory / f"{name}.log")
        leader = asyncio.run(_leader({name: port for name, (port, _) in members.items()}, directory))
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
        pids = {name: process.pid for name, process in running.items()}
        yield Etcd(said.splitlines()[0].rpartition(" ")[2], pids, members[leader][0])
    finally:
        progress("ending etcd")
        end_all(running.values())


def _arguments(name: str, members: dict[str, tuple[int, int]], directory: Path) -> list[str]:
    port, peer_port = members[name]
    client_url, peer_url = f"http://{HOST}:{port}", f"http://{HOST}:{peer_port}"
    cluster = ",".join(f"{each}=http://{HOST}:{peer}" for each, (_, peer) in members.items())
    settings = {
        "name": name,
        "data-dir": str(directory / name),
        "listen-client-urls": client_url,
        "advertise-client-urls": client_url,
        "listen-peer-urls": peer_url,
        "initial-advertise-peer-urls": peer_url,
        "initial-cluster": cluster,
        "initial-cluster-token": directory.parent.name,
        "initial-cluster-state": "new",
        "quota-backend-bytes": str(8 << 30),
    }
    return [part for option, value in settings.items() for part in (f"--{option}", value)]


async def _leader(ports: dict[str, int], directory: Path) -> str:
    """The name of the member that leads: its own ID is the leader's in its status."""
    deadline, trouble = time.monotonic() + _START_S, "no answer"
    while time.monotonic() < deadline:
        for name, port in ports.items():
            client = EtcdClient(port)
            try:
                status = await client.call("/etcdserverpb.Maintenance/Status", b"")
                header = first_bytes(status, 1)
                if number(status, 4) and number(status, 4) == number(header or b"", 2):
                    return name
                trouble = "they have no leader"
            except grpc.RpcError as error:
                trouble = f"{name}: {error}"
            finally:
                await client.close()
        await asyncio.sleep(_POLL_S)
    raise PartitionNotReady(f"etcd was not ready after {_START_S:g} s: {trouble}; see {directory}/etcd-*.log")


# ---- protocol buffers


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def field(number: int, data: bytes) -> bytes:
    """A field of bytes, a string or a message."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        elif tag & 7 == 2:
            length = varint()
            yield tag >> 3, message[at : at + length]
            at += length
        else:
            raise ValueError(f"a field of wire type {tag & 7}, which etcd's answers do not have")


def first_bytes(message: bytes, wanted: int) -> bytes | None:
    """The first field ``wanted`` of ``message`` that is bytes."""
    return next((each for number, each in _fields(message) if number == wanted and isinstance(each, bytes)), None)


def number(message: bytes, wanted: int) -> int:
    """The first field ``wanted`` of ``message`` that is a number, 0 if it is left out."""
    return next((each for number, each in _fields(message) if number == wanted and isinstance(each, int)), 0)


def put_request(name: str, value: bytes) -> bytes:
    """PutRequest: key = 1, value = 2."""
    return field(1, name.encode()) + field(2, value)


def range_request(name: str) -> bytes:
    """RangeRequest: key = 1; linearizable unless said otherwise."""
    return field(1, name.encode())


def txn_request(items: dict[str, bytes]) -> bytes:
    """TxnRequest without a condition: success = 2, each a RequestOp with request_put = 2."""
    return b"".join(field(2, field(2, put_request(name, value))) for name, value in items.items())


class EtcdClient:
    """See ``StoreClient``. Many calls share its HTTP/2 connection."""

    def __init__(self, port: int) -> None:
        # Without a pool of its own all channels of a process share one connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.aio.insecure_channel(f"{HOST}:{port}", options=options)
        self._methods: dict[str, Any] = {}

    async def call(self, method: str, request: bytes) -> bytes:
        """The bytes of the answer. grpc.RpcError."""
        if method not in self._methods:
            self._methods[method] = self._channel.unary_unary(method)
        answer: bytes = await self._methods[method](request, timeout=_CALL_S)
        return answer

    async def set(self, name: str, value: bytes) -> Any:
        return await self.call("/etcdserverpb.KV/Put", put_request(name, value))

    async def get(self, name: str) -> bytes | None:
        found = first_bytes(await self.call("/etcdserverpb.KV/Range", range_request(name)), 2)
        return None if found is None else first_bytes(found, 5)  # kvs = 2; KeyValue.value = 5

    async def set_many(self, items: dict[str, bytes]) -> Any:
        return await self.call("/etcdserverpb.KV/Txn", txn_request(items))

    async def close(self) -> None:
        await self._channel.close()
