"""Locks of a key/value space: a lease that is renewed while the lock is had, and a code that only rises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from waltz_ray.client.address import StaysHere
from waltz_ray.errors import InvalidInput, KvLockLost, KvLockTaken, KvNotReady, KvUnknownFate, WaltzError
from waltz_ray.kv.client.engine import KvEngine
from waltz_ray.kv.client.errands import LockErrand, LockJob
from waltz_ray.kv.client.settings import MOST_TIMEOUT_S
from waltz_ray.kv.client.values import KvName, name_bytes, name_text
from waltz_ray.kv.messages import Ack, Command, DataLock, Fail, LockNative, Renew, UnlockNative
from waltz_ray.runtime.boot_clock import boot_s

__all__ = ["AsyncKvLock"]

_LEAST_LEASE_S = 0.5
_ANSWER_S = 5.0
"""Of the longest call so much is left for the answer to one who has waited in vain."""


class AsyncKvLock(StaysHere):
    """One lock, for ``async with``. While it is had its lease is renewed in the background.

    Nobody else has it meanwhile, if clocks run at about one speed; but a process can be paused for longer than the
    lease and not know. So what is done elsewhere should carry ``code``, and be refused below the highest seen there.
    """

    def __init__(self, engine: Callable[[], KvEngine], name: KvName, lease: float = 10.0, wait: float = 30.0) -> None:
        """``lease`` and ``wait`` in seconds; see ``AsyncKvClient.lock``."""
        self._raw = name_bytes(name, "a lock's name")
        if isinstance(lease, bool) or not isinstance(lease, int | float) or not _LEAST_LEASE_S <= lease <= 86400:
            raise InvalidInput(f"lease is a number of seconds from {_LEAST_LEASE_S} to 86400, not {lease!r:.60}")
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= MOST_TIMEOUT_S:
            raise InvalidInput(f"wait is a number of seconds from 0 to {MOST_TIMEOUT_S:g}, not {wait!r:.60}")
        self.lease_s, self.wait_s = float(lease), float(wait)
        self._get_engine = engine
        self._running: KvEngine | None = None
        self._code: int | None = None
        self._until_s = 0.0  # by a clock that goes on while the machine sleeps, as its lease does
        self._why_lost = ""
        self._renewing: asyncio.Task[None] | None = None

    @property
    def name(self) -> KvName:
        """Of the lock."""
        return name_text(self._raw)

    @property
    def code(self) -> int:
        """Given with the lock, and higher than every code of this lock before it: a fencing token. InvalidInput: it is
        not had."""
        if self._code is None:
            raise InvalidInput(f"lock {self.name!r} is not had; its code comes with it")
        return self._code

    @property
    def lost(self) -> bool:
        """It was had, and the lease has run out or somebody has freed it. For any thread."""
        return bool(self._why_lost) or (self._code is not None and boot_s() >= self._until_s)

    def check(self) -> None:
        """KvLockLost if it is."""
        if self.lost:
            raise KvLockLost(str(self.name), self._why_lost or self._run_out)

    async def acquire(self) -> int:
        """Have it; its code. KvLockTaken after ``wait`` seconds."""
        if self._code is not None:
            raise InvalidInput(f"lock {self.name!r} is had already; take another object for another holder")
        engine = self._running = self._get_engine()
        engine.check_open()
        self._why_lost = ""
        taking = engine.background(self._take(engine))
        try:
            code, self._until_s = await asyncio.shield(taking)
        except asyncio.CancelledError:
            if not engine.closed:  # it may be given to us all the same
                engine.background(self._let_go(engine, taking))
            engine.check_open()
            raise
        self._code = code
        self._renewing = engine.background(self._renew(engine, code))
        return code

    async def release(self) -> None:
        """Give it back. KvLockLost if it was not ours any more."""
        engine, code = self._running, self._code
        if engine is None or code is None:
            raise InvalidInput(f"lock {self.name!r} is not had; it cannot be released")
        try:
            if self._renewing is not None:
                self._renewing.cancel()
                await asyncio.wait([self._renewing])
            self.check()
            engine.check_open()
            reply = await self._unlock(engine, code)
            if isinstance(reply, Fail):
                self._why_lost = "it was free, or somebody else's, when it was released"
                self.check()
        except asyncio.CancelledError:
            if not engine.closed:  # nobody else would have it before its lease ends
                engine.background(self._give_back(engine, code))
            raise
        finally:
            if self.lost and not self._why_lost:
                self._why_lost = self._run_out
            self._code = None

    async def give_up(self) -> None:
        """Give it back if it is had."""
        if self._code is not None:
            with suppress(WaltzError):  # else its lease ends it
                await self.release()

    async def __aenter__(self) -> AsyncKvLock:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except WaltzError:
            if error is None:
                raise  # else what has happened first is told

    # ---- inside

    @property
    def _run_out(self) -> str:
        return f"its lease of {self.lease_s:g} s was not renewed in time"

    async def _take(self, engine: KvEngine) -> tuple[int, float]:
        """The code, and until when it is ours. KvLockTaken."""
        end_s = engine.now() + self.wait_s
        while True:
            begun_s = boot_s()
            reply = await self._wait_for_it(engine, end_s)
            if not isinstance(reply, DataLock):
                raise KvLockTaken(str(self.name), self.wait_s)
            # No earlier than it was asked for first, of which the answer may be lost: an actor says so again, whatever
            # is left of it. Who has waited for it has got it later, so the lease is begun anew.
            if (asked_s := boot_s()) < begun_s + self.lease_s / 3:
                return reply.code, begun_s + self.lease_s
            renewing = self._renewal(engine, reply.code)
            if isinstance(await self._asked(engine, renewing, "renewing lock", engine.config.timeout_s), DataLock):
                return reply.code, asked_s + self.lease_s
            if engine.now() >= end_s:
                raise KvLockTaken(str(self.name), self.wait_s)

    async def _wait_for_it(self, engine: KvEngine, end_s: float) -> DataLock | Fail | Ack:
        def make(left_s: float, sequence: int, settled: int) -> Command:
            answer_s = min(_ANSWER_S, engine.config.timeout_s)
            wait_ms = round(1000 * max(0.0, min(end_s - engine.now(), left_s - answer_s)))
            return LockNative(self._raw, engine.lock_numbers.client, sequence, settled, self._lease_ms, wait_ms)

        limit_s = min(MOST_TIMEOUT_S, max(0.0, end_s - engine.now()) + engine.config.timeout_s)
        return await self._asked(engine, make, "locking", limit_s)

    async def _renew(self, engine: KvEngine, code: int) -> None:
        """Until it is lost or released."""
        while True:
            await asyncio.sleep(min(self.lease_s / 3, max(0.01, (self._until_s - boot_s()) / 3)))
            sent_s = boot_s()
            left_s = self._until_s - sent_s
            if left_s <= 0:
                return  # ``lost`` says so
            try:
                reply = await self._asked(engine, self._renewal(engine, code), "renewing lock", left_s)
            except (KvNotReady, KvUnknownFate) as error:
                self._why_lost = f"its lease of {self.lease_s:g} s has run out: {error}"
                return
            except WaltzError as error:
                self._why_lost = str(error)
                return
            if not isinstance(reply, DataLock):
                self._why_lost = "somebody else has it, or it was freed"
                return
            self._until_s = sent_s + self.lease_s

    async def _unlock(self, engine: KvEngine, code: int) -> DataLock | Fail | Ack:
        def make(left_s: float, sequence: int, settled: int) -> Command:
            return UnlockNative(self._raw, engine.lock_numbers.client, sequence, settled, code)

        return await self._asked(engine, make, "releasing lock", engine.config.timeout_s)

    async def _let_go(self, engine: KvEngine, taking: asyncio.Task[tuple[int, float]]) -> None:
        """Nobody waits for it any more: give it back if it is given."""
        try:
            code, _ = await taking
        except WaltzError:
            return  # it was not had
        await self._give_back(engine, code)

    async def _give_back(self, engine: KvEngine, code: int) -> None:
        with suppress(WaltzError):  # else its lease ends it
            await self._unlock(engine, code)

    def _renewal(self, engine: KvEngine, code: int) -> Callable[[float, int, int], Command]:
        def make(left_s: float, sequence: int, settled: int) -> Command:
            return Renew(self._raw, engine.lock_numbers.client, sequence, settled, code, self._lease_ms)

        return make

    @property
    def _lease_ms(self) -> int:
        return round(self.lease_s * 1000)

    async def _asked(
        self, engine: KvEngine, make: Callable[[float, int, int], Command], what: str, timeout_s: float
    ) -> DataLock | Fail | Ack:
        """The answer to a command under a number of its own."""
        job = LockJob(self._raw)
        numbers = engine.lock_numbers
        sequence = numbers.take()
        errand = LockErrand(lambda left_s: make(left_s, sequence, numbers.settled))
        try:
            await engine.run(errand, [job], engine.now() + timeout_s)
        finally:
            numbers.settle(sequence)
        job.check(what, timeout_s)
        return job.reply
