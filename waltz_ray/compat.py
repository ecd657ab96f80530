"""What Python 3.10 lacks and we use, from the backports; everybody may import it. It goes with Python 3.10."""

from __future__ import annotations

import sys

__all__ = ["timeout", "tomllib"]

if sys.version_info >= (3, 11):
    from asyncio import timeout

    import tomllib
else:
    import asyncio
    from collections.abc import AsyncIterator
    from contextlib import asynccontextmanager

    import async_timeout
    import tomli as tomllib

    @asynccontextmanager
    async def timeout(delay: float | None) -> AsyncIterator[None]:
        """``asyncio.timeout``. A task that is cancelled in the very turn in which the time ends only gets TimeoutError.

        So a loop that goes on after TimeoutError has to look whether it should. Python 3.10's own TimeoutError of
        asyncio is another class than the builtin one, which this raises as later versions do.
        """
        try:
            async with async_timeout.timeout(delay):
                yield
        except asyncio.TimeoutError as error:
            raise TimeoutError from error
