"""``compat``: the same on every Python."""

from __future__ import annotations

import asyncio

import pytest

from waltz_ray import compat


def test_a_time_that_is_over_is_the_builtin_error() -> None:
    async def run() -> None:
        async with compat.timeout(0.01):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        asyncio.run(run())


def test_who_is_cancelled_before_the_time_is_over_is_told_so() -> None:
    async def wait() -> None:
        async with compat.timeout(20):
            await asyncio.Event().wait()

    async def run() -> None:
        task = asyncio.get_running_loop().create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_without_a_time_it_takes_as_long_as_it_takes() -> None:
    async def run() -> str:
        async with compat.timeout(None):
            await asyncio.sleep(0)
            return "done"

    assert asyncio.run(run()) == "done"
