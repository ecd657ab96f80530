"""What every actor that serves units does with its registration, in its event loop: renew its lease, and look who else
is there. ``who`` is for the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import TypeVar

from waltz_ray.coordination.unit_store import UnitRegistration, UnitStore, incarnations
from waltz_ray.errors import CoordinationError
from waltz_ray.protocol.ownership_types import LeaseConfirmed

__all__ = ["agreed_session_ms", "confirmed_incarnations", "keep_lease"]

log = logging.getLogger(__name__)

UnitT = TypeVar("UnitT")

_SHORTEST_PAUSE_S = 0.02


def agreed_session_ms(who: str, asked_ms: int, agreed_ms: int) -> int:
    """How long the session is to be counted on: a lease that outlasts it would be read under while another has taken
    over. ``agreed_ms``: what ZooKeeper has agreed to."""
    if agreed_ms < asked_ms:
        text = "%s: ZooKeeper agrees to sessions of %d ms and no longer, so that is what counts, not %d (session_ms)"
        log.warning(text, who, agreed_ms, asked_ms)
    return min(asked_ms, agreed_ms)


async def keep_lease(
    who: str,
    registration: Callable[[], UnitRegistration | None],
    thread: Executor,
    lease_s: float,
    confirmed: Callable[[LeaseConfirmed], None],
) -> None:
    """Renew it several times within ``lease_s``, until this is cancelled. ``registration``: None while there is none.

    ``thread`` is its own, so that nothing else can make it late.
    """
    loop = asyncio.get_running_loop()
    pause_s = max(_SHORTEST_PAUSE_S, lease_s / 5)
    while True:
        current = registration()
        if current is not None:
            try:
                said = await loop.run_in_executor(thread, current.contact)
            except (CoordinationError, RuntimeError) as error:  # RuntimeError: no thread can be started just now
                log.info("%s: the lease is not renewed: %s", who, error)
                said = None
            if isinstance(said, LeaseConfirmed):
                confirmed(said)
        await asyncio.sleep(pause_s)


async def confirmed_incarnations(
    who: str, store: UnitStore[UnitT], threads: Executor, again_s: float
) -> Mapping[int, str]:
    """Who is registered, read anew, so that all is seen that was written before; asked until ZooKeeper answers."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return incarnations(await loop.run_in_executor(threads, store.confirmed_members))
        except (CoordinationError, RuntimeError) as error:
            log.info("%s: who is registered cannot be read: %s", who, error)
            await asyncio.sleep(again_s)
