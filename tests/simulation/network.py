"""The simulated network: hosts, ports and byte streams.

Within one stream bytes keep their order; between streams, and between the two directions of one, nothing is promised.
What can happen to a stream: its pieces are cut anywhere and delayed; a direction stalls; a host pair is partitioned
(bytes wait, as TCP sends them again); a connection breaks, losing what is in flight, and each side hears of it soon,
late, or only when it writes (half-open) or its keep-alive probes go unanswered.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from tests.simulation.loop import ProcessLoop, Scheduler

__all__ = ["Listener", "Network", "Stream", "desert_once_used"]

_KEEPALIVE_S = 11.0  # what net.connector sets: 5 s idle, 3 probes of 2 s
_SYN_WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class _Socket:
    """What is left of a socket: an address and options."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self.options: list[tuple[int, int, int]] = []

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.options.append((level, option, value))

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Nothing is counted here: whether somebody is silent is for ``tests/client/test_liveness.py``."""
        raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))


class Listener:
    """What ``create_server`` gives: as much of ``asyncio.Server`` and ``LoopListener`` as is used."""

    def __init__(
        self, network: Network, loop: ProcessLoop, factory: Callable[[], Any], address: tuple[str, int]
    ) -> None:
        self.loop, self.factory, self.address = loop, factory, address
        self.sockets = (_Socket(address),)
        self.port = address[1]
        self._network = network

    def close(self) -> None:
        self._network.listeners.pop(self.address, None)


class Stream(asyncio.Transport):
    """One side of a connection; ``other`` is the other one. It is the transport its protocol is given."""

    def __init__(self, network: Network, loop: ProcessLoop, name: str) -> None:
        super().__init__()
        self.network, self.loop, self.name = network, loop, name
        self.protocol: Any = None
        self.other: Stream = self
        self.socket = _Socket((loop.name, 0))
        self.broken = False  # nothing written here will arrive any more
        self.silent_until_s = 0.0  # of a broken one: until then not even a reset comes back
        self.stalled_until_s = 0.0
        self._deserted = False
        self._made = False
        self._ended = False  # connection_lost has been (or is about to be) called
        self._out: deque[tuple[float, bytes | None]] = deque()  # (due, bytes or None = end of stream)
        self._out_bytes = 0
        self._pumping = False
        self._in: list[bytes] = []
        self._reading = False
        self._held = False  # the process does not read
        self._ended_held = False  # and the end of the stream has come meanwhile
        self._high = 64 * 1024
        self._writing_paused = False

    # ---- asyncio.Transport --------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self.socket, "peername": self.other.loop.name}.get(name, default)

    def is_closing(self) -> bool:
        return self._ended

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else self._high

    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    def pause_reading(self) -> None:
        self._held = True

    def resume_reading(self) -> None:
        self._held = False
        if self._ended_held:
            self.loop.call_soon(self._on_eof)
        elif self._in and not self._reading:
            self._reading = True
            self.loop.call_soon(self._read)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._ended or self.loop.dead or not len(data):
            return
        if self.broken:
            self._reset_later()
            return
        for piece in self.network.pieces(bytes(data)):
            self._send(piece)
        if self._out_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            self.protocol.pause_writing()

    def close(self) -> None:
        if not self._ended:
            self._send(None)
            self._end(None)

    def abort(self) -> None:
        if not self._ended:
            self._drop_out()
            self.broken = True
            self.other.hear_of_the_end(self.network.delay_s(), ConnectionResetError("connection reset by the peer"))
            self._end(None)

    # ---- bytes on their way -------------------------------------------------------------------------------

    def _send(self, piece: bytes | None) -> None:
        scheduler = self.network.scheduler
        due = max(scheduler.now + self.network.delay_s(), self.stalled_until_s)
        if self._out:
            due = max(due, self._out[-1][0])
        self._out.append((due, piece))
        self._out_bytes += len(piece or b"")
        if not self._pumping:
            self._pumping = True
            scheduler.after(due - scheduler.now, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        now = self.network.scheduler.now
        if self.broken:
            self._drop_out()
            return
        wait_s = self.network.blocked_for_s(self.loop, self.other.loop)
        if wait_s:
            self._pump_again(wait_s)
            return
        while self._out and self._out[0][0] <= now:
            piece = self._out.popleft()[1]
            self._out_bytes -= len(piece or b"")
            self.other.arrive(piece)
        if self._out:
            self._pump_again(self._out[0][0] - now)
        elif self._deserted:
            self.other.hear_of_the_end(self.network.delay_s(), ConnectionResetError("connection reset by the peer"))
        if self._writing_paused and self._out_bytes <= self._high // 4 and not self._ended:
            self._writing_paused = False
            self.loop.call_soon(self._resume_writing)

    def _pump_again(self, wait_s: float) -> None:
        self._pumping = True
        self.network.scheduler.after(wait_s, self._pump)

    def _resume_writing(self) -> None:
        if not self._ended:
            self.protocol.resume_writing()

    def _drop_out(self) -> None:
        self._out.clear()
        self._out_bytes = 0

    def arrive(self, piece: bytes | None) -> None:
        """Into this side's kernel buffer; the process reads it when it runs."""
        if self.loop.dead or self._ended:
            self.other.broken = True
            self.other.hear_of_the_end(self.network.delay_s(), ConnectionResetError("connection reset by the peer"))
        elif piece is None:
            self.loop.call_soon(self._on_eof)
        else:
            self._in.append(piece)
            if not self._reading:
                self._reading = True
                self.loop.call_soon(self._read)

    def made(self, protocol: Any) -> None:
        """The protocol learns of the connection before anything else."""
        self.protocol = protocol
        self._made = True
        protocol.connection_made(self)

    def _read(self) -> None:
        self._reading = False
        if self._in and not self._ended and not self._held:
            data, self._in = b"".join(self._in), []
            self.protocol.data_received(data)

    def _on_eof(self) -> None:
        if self._held:
            self._ended_held = True
            return
        self._read()
        if not self._ended:
            self.protocol.eof_received()
            self.broken = True
            self._drop_out()
            self._end(None)

    # ---- the end ------------------------------------------------------------------------------------------

    def _end(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended = True
            self.loop.call_soon(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        if self._made:
            self.protocol.connection_lost(error)
        self.network.forget(self)

    def _reset_later(self) -> None:
        scheduler = self.network.scheduler
        wait_s = max(0.0, self.silent_until_s - scheduler.now) + self.network.delay_s()
        self.hear_of_the_end(wait_s, ConnectionResetError("connection reset by the peer"))

    def hear_of_the_end(self, delay_s: float, error: Exception) -> None:
        """This side's socket fails after a while."""
        self.network.scheduler.after(delay_s, self._fail, error)

    def _fail(self, error: Exception) -> None:
        if not self.loop.dead:
            self.broken = True
            self._drop_out()
            self._end(error)

    def desert(self) -> None:
        """This side has lost the connection, yet what it had written still arrives, when it does."""
        if self.broken or self._ended or self.loop.dead:
            return
        self._deserted = True
        self.other._drop_out()
        self.other.stalled_until_s = self.stalled_until_s + 1.0
        self._end(ConnectionResetError("connection reset by the peer"))

    def cut(self, silent_s: float) -> None:
        """What is on its way from here is lost; this side hears nothing for ``silent_s``, then when it writes."""
        self.broken = True
        self.silent_until_s = self.network.scheduler.now + silent_s
        self._drop_out()
        if any(option for option in self.socket.options if option[1] == _SO_KEEPALIVE):
            self.hear_of_the_end(_KEEPALIVE_S, TimeoutError("no answer to keep-alive probes"))


_SO_KEEPALIVE = 9


class Network:
    """All connections and listeners; ``faults`` counts what was done to them."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.scheduler = scheduler
        self.random = random
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.streams: dict[Stream, None] = {}
        self.faults: Counter[str] = Counter()
        self.latency_s = random.choice([(1e-5, 1e-4), (1e-4, 2e-3), (1e-4, 0.02)])
        self.cut_pieces = random.random() < 0.7
        self._blocked: dict[tuple[str, str], float] = {}  # from, to -> until
        self._last_port = 20_000

    def delay_s(self) -> float:
        return self.random.uniform(*self.latency_s)

    def pieces(self, data: bytes) -> list[bytes]:
        """``data`` as the network may cut it."""
        if not self.cut_pieces or len(data) < 2 or self.random.random() < 0.6:
            return [data]
        at = self.random.randrange(1, len(data))
        return [data[:at], data[at:]]

    # ---- connections --------------------------------------------------------------------------------------

    def listen(self, loop: ProcessLoop, factory: Callable[[], Any], host: str, port: int) -> Listener:
        if not port:
            self._last_port += 1
            port = self._last_port
        listener = self.listeners[host, port] = Listener(self, loop, factory, (host, port))
        return listener

    async def connect(
        self, loop: ProcessLoop, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """ConnectionRefusedError where nobody listens, TimeoutError where nothing answers."""
        await asyncio.sleep(2 * self.delay_s())
        for wait_s in _SYN_WAITS_S:
            if not self._blocked_hosts(_host(loop.name), host):
                break
            await asyncio.sleep(wait_s)
        else:
            raise TimeoutError(110, f"connection to {host}:{port} timed out")
        listener = self.listeners.get((host, port))
        if listener is None or listener.loop.dead:
            raise ConnectionRefusedError(111, f"connection to {host}:{port} refused")
        here, there = Stream(self, loop, f"{loop.name}->{host}"), Stream(self, listener.loop, f"{host}<-{loop.name}")
        here.other, there.other = there, here
        self.streams[here] = self.streams[there] = None
        listener.loop.call_soon(lambda: there.made(listener.factory()))
        protocol = factory()
        here.made(protocol)
        return here, protocol

    def forget(self, stream: Stream) -> None:
        self.streams.pop(stream, None)

    # ---- faults -------------------------------------------------------------------------------------------

    def blocked_for_s(self, source: ProcessLoop, target: ProcessLoop) -> float:
        """How long until TCP tries again to get something across; 0 = the way is free."""
        return self._blocked_hosts(_host(source.name), _host(target.name)) and self.random.uniform(0.05, 0.3)

    def _blocked_hosts(self, source: str, target: str) -> float:
        if not self._blocked:
            return 0.0
        now = self.scheduler.now
        return max(0.0, *(self._blocked.get(pair, 0.0) - now for pair in ((source, target), (target, source))))

    def partition(self, host: str, others: Iterable[str], seconds: float) -> None:
        """No byte between ``host`` and ``others`` in either direction for so long."""
        for other in others:
            self._blocked[host, other] = self.scheduler.now + seconds

    def connections(self) -> list[Stream]:
        """The connecting side of every open connection."""
        return [stream for stream in self.streams if "->" in stream.name and not stream.broken]

    def break_connection(self, stream: Stream, here_s: float, there_s: float) -> None:
        """Lose what is in flight. A side hears of it after so many seconds, and not before it if it writes."""
        for side, silent_s in ((stream, here_s), (stream.other, there_s)):
            side.cut(silent_s)
            side.hear_of_the_end(silent_s, ConnectionResetError("connection reset by the peer"))

    def half_open(self, stream: Stream, unaware: Stream, silent_s: float) -> None:
        """One side loses the connection; the other hears of it only by writing (after ``silent_s``) or keep-alive."""
        aware = stream.other if unaware is stream else stream
        aware.cut(0.0)
        aware.hear_of_the_end(self.delay_s(), ConnectionResetError("connection reset by the peer"))
        unaware.cut(silent_s)

    def process_ended(self, loop: ProcessLoop, silent_s: float) -> None:
        """Its sockets go: peers are reset, or (``silent_s``, the machine is gone) find out as in ``half_open``."""
        for address in [address for address, listener in self.listeners.items() if listener.loop is loop]:
            del self.listeners[address]
        for stream in [stream for stream in self.streams if stream.loop is loop]:
            self.forget(stream)
            stream.broken = True
            # What the process had written may still arrive: it was in the kernel.
            if silent_s:
                stream._drop_out()
                stream.other.cut(silent_s)
            else:
                stream.other.hear_of_the_end(self.delay_s(), ConnectionResetError("connection reset by the peer"))

    def heal(self) -> None:
        """Every way is free, nothing is silent any more; broken connections are told so."""
        self._blocked.clear()
        for stream in list(self.streams):
            stream.stalled_until_s = 0.0
            if stream.broken:
                stream.silent_until_s = 0.0


def _host(name: str) -> str:
    """Of a process ``server-1.2`` (its second life) the host is ``server-1``."""
    return name.partition(".")[0]


def desert_once_used(scheduler: Scheduler, random: Random, stream: Stream, least_bytes: int, left_s: float) -> None:
    """Have its side lose a stalled connection as soon as so much is on its way, unless that takes too long."""
    if stream.get_write_buffer_size() >= least_bytes:
        stream.desert()
    elif left_s > 0.0:
        wait_s = random.uniform(0.005, 0.05)
        scheduler.after(wait_s, desert_once_used, scheduler, random, stream, least_bytes, left_s - wait_s)
