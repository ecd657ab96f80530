"""A Redis that syncs every write before its answer, and a small client of it: RESP over one connection."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from waltz_bench.nats_cluster import HOST, free_ports
from waltz_bench.processes import Processes
from waltz_bench.waiting import end_all, wait_listening
from waltz_ray.errors import AppendFailed, ConfigError

__all__ = ["Redis", "RedisClient", "RespReader", "command", "redis_server"]

_SETTINGS = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no", "--bind", HOST)


@dataclass(frozen=True)
class Redis:
    """It runs, alone: ``WAIT`` for a replica says nothing of a replica's disk."""

    version: str
    pid: int
    port: int

    def processes(self) -> Processes:
        """To be measured."""
        return Processes({"redis": self.pid})

    async def client(self) -> RedisClient:
        """A connection to it."""
        return await RedisClient.connect(self.port)


@contextmanager
def redis_server(directory: Path, progress: Callable[[str], None] = lambda text: None) -> Iterator[Redis]:
    """One server in ``directory``, ended at the end. ConfigError if it is not installed."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise ConfigError("there is no redis-server here; apt-get install redis-server")
    directory.mkdir(parents=True)
    (port,) = free_ports(1)
    progress("starting Redis")
    with open(directory / "server.log", "wb") as log:
        arguments = [binary, "--port", str(port), "--dir", str(directory), *_SETTINGS]
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_listening("Redis", port, process, directory / "server.log")
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
        yield Redis(said.partition("v=")[2].split()[0], process.pid, port)
    finally:
        progress("ending Redis")
        end_all([process])


def command(*parts: bytes) -> bytes:
    """A command's bytes."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class RespReader:
    """Replies of a stream that may be cut anywhere: simple strings, errors, integers, bulk strings."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> list[Any]:
        """The replies that ``data`` completes; an error is an AppendFailed. AppendFailed is raised for what is none."""
        held, at = self._held + data, 0
        found: list[Any] = []
        while (end := held.find(b"\r\n", at)) >= 0:
            kind, text = held[at : at + 1], held[at + 1 : end]
            if kind == b"$" and text != b"-1":
                last = end + 2 + int(text)
                if len(held) < last + 2:
                    break
                found.append(held[end + 2 : last])
                end = last
            elif kind == b"$":
                found.append(None)
            elif kind == b"+":
                found.append(text)
            elif kind == b":":
                found.append(int(text))
            elif kind == b"-":
                found.append(AppendFailed(f"Redis refused a command: {text.decode(errors='replace')}"))
            else:
                raise AppendFailed(f"Redis answered something else than replies: {held[at : at + 100]!r}")
            at = end + 2
        self._held = held[at:]
        return found


class RedisClient(asyncio.Protocol):
    """See ``StoreClient``. Answers come in the order of the commands."""

    def __init__(self) -> None:
        self._reader = RespReader()
        self._open: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, port: int) -> RedisClient:
        """To the server at ``port`` of this machine."""
        _, client = await asyncio.get_running_loop().create_connection(cls, HOST, port)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for answer in self._reader.feed(data):
            future = self._open.popleft()
            if future.done():
                continue
            if isinstance(answer, AppendFailed):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        while self._open:
            future = self._open.popleft()
            if not future.done():
                future.set_exception(AppendFailed(f"Redis closed the connection: {error}; see its log"))

    def call(self, *parts: bytes) -> asyncio.Future[Any]:
        """A command; what it is answered."""
        assert self._transport is not None
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open.append(future)
        self._transport.write(command(*parts))
        return future

    async def set(self, name: str, value: bytes) -> Any:
        return await self.call(b"SET", name.encode(), value)

    async def get(self, name: str) -> bytes | None:
        value: bytes | None = await self.call(b"GET", name.encode())
        return value

    async def set_many(self, items: dict[str, bytes]) -> Any:
        flat = [part for name, value in items.items() for part in (name.encode(), value)]
        return await self.call(b"MSET", *flat)

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
