"""A TCP proxy in the hands of a test: what goes through it can be delayed, lost one way, stalled, cut, or forgotten.

TCP hides a loss that passes: what was sent meanwhile arrives when the network is well again. So here, too, what is lost
is kept and arrives with ``heal``; connections that were cut, or forgotten, never come back, and new ones are made.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, TypeVar

from waltz_ray.protocol.ids import Endpoint

__all__ = ["CuttingProxy", "Way"]

T = TypeVar("T")

_PIECE_BYTES = 64 * 1024
_PIECES = 256  # that are under way in one direction of a connection; behind these its sender is stalled


class Way(Enum):
    """A direction: from who connects to the target, or back."""

    THERE = "there"
    BACK = "back"


BOTH = (Way.THERE, Way.BACK)


@dataclass(eq=False)
class _Connection:
    near: asyncio.StreamWriter  # to who has connected
    far: asyncio.StreamWriter | None = None  # to the target
    forgotten: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class CuttingProxy:
    """``with CuttingProxy(target) as proxy``: who connects to ``proxy.endpoint`` is connected to ``target``.

    Has a thread and a loop of its own; methods are for any other thread, and what they say holds when they return.
    """

    def __init__(self, target: Endpoint) -> None:
        self.target = target
        """Of connections that are made from now on."""
        self.accepted = 0
        """Connections so far."""
        self._delay_s = 0.0
        self._refusing = False
        self._connections: set[_Connection] = set()
        self._accepting: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._open = {way: asyncio.Event() for way in BOTH}
        for event in self._open.values():
            event.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cutting-proxy")
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.endpoint = Endpoint("127.0.0.1", int(self._server.sockets[0].getsockname()[1]))

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Nothing listens and nothing is open any more."""

        async def end() -> None:
            self._server.close()
            for each in list(self._connections):
                self._reset(each)
            await asyncio.gather(*self._accepting, return_exceptions=True)
            await asyncio.sleep(0)  # the sockets of what was reset are closed in the next turn

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ---- faults

    def delay(self, seconds: float) -> None:
        """Each piece of bytes is so long under way, in either direction; their order is kept."""
        self._call(lambda: setattr(self, "_delay_s", seconds))

    def lose(self, *ways: Way) -> None:
        """Nothing arrives in these directions until ``heal``, on connections of now and of later. Their senders are not
        told: what they send is taken."""

        def shut() -> None:
            for way in ways:
                self._open[way].clear()

        self._call(shut)

    def stall(self) -> None:
        """Connected, and silent: nothing arrives in either direction until ``heal``."""
        self.lose(*BOTH)

    def cut(self) -> None:
        """All connections are reset, and so is every new one until ``heal``."""

        def now() -> None:
            self._refusing = True
            for each in list(self._connections):
                self._reset(each)

        self._call(now)

    def forget(self) -> None:
        """Half-open: nothing more ever arrives on the connections of now, and neither side is told; new ones work."""

        def now() -> None:
            for each in self._connections:
                each.forgotten = True

        self._call(now)

    def heal(self) -> None:
        """New connections work, nothing is delayed, and what was lost arrives."""

        def now() -> None:
            self._refusing, self._delay_s = False, 0.0
            for event in self._open.values():
                event.set()

        self._call(now)

    @property
    def connections(self) -> int:
        """Those that are open now."""
        return self._call(lambda: len(self._connections))

    # ---- in the loop

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _call(self, function: Callable[[], T]) -> T:
        async def calling() -> T:
            return function()

        return self._run(calling())

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, task = _Connection(writer), asyncio.current_task()
        assert task is not None
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)
        self.accepted += 1
        self._connections.add(connection)
        try:
            if self._refusing:
                return
            far_reader, connection.far = await asyncio.open_connection(*self.target)
            for way, source, sink in ((Way.THERE, reader, connection.far), (Way.BACK, far_reader, writer)):
                connection.tasks.append(asyncio.create_task(self._carry(connection, way, source, sink)))
            await asyncio.wait(connection.tasks, return_when=asyncio.FIRST_COMPLETED)
        except OSError:  # nobody listens at the target: whoever has connected is told so by the reset
            return
        finally:
            self._reset(connection)
            await asyncio.gather(*connection.tasks, return_exceptions=True)

    async def _carry(
        self, connection: _Connection, way: Way, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        """Until the source has ended and all of it was carried, or either side is gone."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES)

        async def read() -> None:
            data = b"."
            while data:
                try:
                    data = await source.read(_PIECE_BYTES)
                except OSError:
                    data = b""  # reset: the other side is told the same, behind what came before
                await under_way.put((self._loop.time() + self._delay_s, data))

        reading = asyncio.create_task(read())
        try:
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(due - self._loop.time())
                await self._open[way].wait()
                if connection.forgotten:
                    continue
                if not data:
                    return
                sink.write(data)
                with contextlib.suppress(OSError):  # its own end is read by the other direction
                    await sink.drain()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _reset(self, connection: _Connection) -> None:
        """Both sides at once; what is under way is lost."""
        self._connections.discard(connection)
        for writer in (connection.near, connection.far):
            if writer is None:
                continue
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):  # it may have gone already
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        for task in connection.tasks:
            task.cancel()
