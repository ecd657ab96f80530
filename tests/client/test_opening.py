"""What is opened for a task that does not wait for it is closed."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from waltz_ray.client.opening import opened

PATIENCE_S = 20.0


class Door:
    """What is opened, slowly."""

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.closed = threading.Event()
        self.error: Exception | None = None

    def open(self) -> Door:
        self.asked.set()
        assert self.go_on.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        return self

    def close(self) -> None:
        assert not self.closed.is_set(), "once"
        self.closed.set()


def test_who_waits_gets_it() -> None:
    async def run() -> None:
        door = Door()
        door.go_on.set()
        assert await opened(door.open, Door.close) is door
        assert not door.closed.is_set()
        door.error = ValueError("no")
        with pytest.raises(ValueError, match="no"):
            await opened(door.open, Door.close)
        assert not door.closed.is_set()

    asyncio.run(run())


@pytest.mark.parametrize("there", [False, True])
def test_it_is_closed_when_nobody_waits_any_more(there: bool) -> None:
    """The thread is still at it, or it is ``there`` already and the task has not been told."""
    door = Door()

    async def run() -> None:
        threads = ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(threads)
        opening = asyncio.create_task(opened(door.open, Door.close))
        while not door.asked.is_set():
            await asyncio.sleep(0)
        if there:
            door.go_on.set()
            threads.submit(int).result(PATIENCE_S)  # the one thread has done with what was before
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        door.go_on.set()

    asyncio.run(run())  # which waits for what runs in its threads
    assert door.closed.is_set()


def test_an_error_that_nobody_waits_for_is_nobodys() -> None:
    door = Door()
    door.error = ValueError("no")
    told: list[object] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        opening = asyncio.create_task(opened(door.open, Door.close))
        while not door.asked.is_set():
            await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        door.go_on.set()

    asyncio.run(run())
    assert (told, door.closed.is_set()) == ([], False)
