"""The end of something comes whole, whoever stops waiting for it."""

from __future__ import annotations

import asyncio

import pytest

from waltz_ray.client.ending import Ending


def test_it_comes_once_and_goes_on_without_who_is_cancelled() -> None:
    async def run() -> None:
        goes_on, done = asyncio.Event(), list[str]()

        async def end() -> None:
            done.append("begun")
            await goes_on.wait()
            done.append("over")

        ending = Ending(end)
        waiting = [asyncio.create_task(ending.come()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        goes_on.set()
        await waiting[1]
        await ending.come()
        assert done == ["begun", "over"]

    asyncio.run(run())


def test_what_it_raises_is_raised_for_all() -> None:
    async def run() -> None:
        async def end() -> None:
            raise OSError("it cannot be closed")

        ending = Ending(end)
        for _ in range(2):
            with pytest.raises(OSError, match="it cannot be closed"):
                await ending.come()

    asyncio.run(run())
