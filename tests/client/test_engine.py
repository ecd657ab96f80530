"""The engine by itself: what it does in which order, on a shell that does nothing until it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import cast

from waltz_ray.client.directory import Directory
from waltz_ray.client.engine import Engine, settle
from waltz_ray.client.feeds import Origin
from waltz_ray.client.outbox import Outbox
from waltz_ray.client.requests import AppendCall
from waltz_ray.client.shell import Turn
from waltz_ray.net.connector import Opening
from waltz_ray.protocol.ids import Endpoint, Location
from waltz_ray.protocol.mounting_types import MountingState
from waltz_ray.protocol.times import TimeMarks


class Shell:
    """Keeps what is posted until ``run``."""

    def __init__(self) -> None:
        self.posted: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def monotonic(self) -> float:
        return 0.0

    def jitter(self) -> float:
        return 1.0

    def post(self, function: Callable[..., object], *args: object) -> None:
        self.posted.append((function, args))

    def run(self) -> None:
        while self.posted:
            function, args = self.posted.pop(0)
            function(*args)

    def put(self, outbox: Outbox, append: AppendCall) -> None:
        assert outbox.offer(append)

    def run_context(self, function: Callable[..., None], *args: object) -> None:
        self.post(function, *args)

    def stop_contexts(self) -> None: ...

    def drive(self, turn: Turn) -> Callable[[], None]:
        return lambda: self.post(turn)

    def stop_driving(self) -> None: ...


class Wire(asyncio.Transport):
    """A transport, and its one connection, over which nobody answers."""

    shared: Hashable | None = None

    def __init__(self) -> None:
        super().__init__()
        self.connections = 0
        self._stream: Opening | None = None

    async def connect(self, location: Location, stream: Opening) -> None:
        self.connections += 1
        self._stream = stream
        stream.connection_made(self)

    def write(self, data: object) -> None: ...

    def writelines(self, list_of_data: object) -> None: ...

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.connection_lost(None)


def no_times(partition_id: int, first_id: int, end_id: int) -> TimeMarks:
    raise AssertionError("nobody has asked for a time")


def fetch(partition_id: int, transaction_id: int) -> bytes:
    raise AssertionError((partition_id, transaction_id))


def test_a_location_that_comes_before_a_partition_begins_does_not_begin_it() -> None:
    """The application's thread attaches it while the loop hears from the directory: it was mounted twice."""

    async def test() -> None:
        shell, wire = Shell(), Wire()
        directory = cast(Directory, SimpleNamespace(partitions=1, cluster_key="a-key"))
        engine = Engine(
            settle(1, directory, None, None, None, None), wire, None, Origin(fetch, no_times), shell, lambda: None
        )
        partition = engine.attachment(0).partition
        engine.located({0: Location(1, 1, Endpoint("127.0.0.1", 1))})
        assert partition._opening is None
        shell.run()
        opening = partition._opening
        assert opening is not None
        engine.located({0: Location(1, 1, Endpoint("127.0.0.1", 1))})
        assert partition._opening is opening
        while not wire.connections:
            await asyncio.sleep(0)
        assert partition.machine.state is MountingState.LOCATING
        await engine.shut_down()
        assert partition.machine.state is MountingState.CLOSED

    asyncio.run(test())
