"""The threads of a replica, each a greenlet that stops where the seed says so, and the locks they meet at.

A real replica serves every connection in a thread of its own. Here a thread is a greenlet: at every call of the disk's
gate and before every lock it may be put aside for a while (``DiskThreads.point``), and the process's loop lets it go
on; others run meanwhile. Which, where and for how long is drawn from the seed, so a history stays reproducible. What
is put aside neither runs while the process is stopped nor after it has ended: ``end`` unwinds it, and on its way out
it finds no disk and no lock any more.

``LOCKS`` stands in for the module ``threading`` in the storage modules. Outside of a thread (a start, the checkers) all
locks must be free. A thread that can only be woken by threads that wait themselves is a deadlock, and told at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, TypeVar

from greenlet import GreenletExit, greenlet

from tests.simulation.loop import ProcessLoop
from tests.storage.faulty_disk import Crashed
from waltz_ray.storage.disk import Disk, Mode, Writable

__all__ = ["LOCKS", "DiskThreads", "GatedDisk", "Lock", "MayStop", "Pace", "RLock"]

T = TypeVar("T")
Afterwards = Callable[[], None]
Range = tuple[float, float]

_SHORT_S, _LONG_S = (1e-5, 1e-3), (1e-3, 0.3)  # pauses
_PAUSES = 12  # of one thread; afterwards only one in ten: a turn of a hundred segments must not take for ever


class Pace(NamedTuple):
    """How long a slow thread is put aside (every other time it may be), and how long its syncs take."""

    points_s: Range | None = None
    syncs_s: Range | None = None


class MayStop:
    """How threads are put aside: with ``chance`` at each point, a share ``long`` of these for so long that others come
    and go. ``calm``: not any more, the world has been healed."""

    def __init__(self, chance: float, long: float = 0.0) -> None:
        self.chance, self.long = chance, long
        self.calm = False

    @classmethod
    def drawn(cls, random: Random) -> MayStop:
        """As often as the seed says. No thread in some, for another history is worth the time that this one takes."""
        chance = random.choice([0.0, 0.03, 0.1, 0.4])
        return cls(chance, random.choice([0.0, 0.003, 0.03]) / max(chance, 0.03))

    def draw_s(self, random: Random, slow: Range | None) -> float:
        """For how long now, within ``slow`` if that is given; 0 = not at all."""
        if random.random() >= (self.chance if slow is None else max(self.chance, 0.5)):
            return 0.0
        is_long = not self.calm and random.random() < self.long
        return drawn_s(random, slow or (_LONG_S if is_long else _SHORT_S))


def drawn_s(random: Random, between: Range) -> float:
    """Short ones as often as long ones."""
    shortest, longest = between
    return shortest * math.exp(random.random() * math.log(longest / shortest))


_NORMAL = Pace()


class _Thread:
    """``work`` returns what the process is to do when the thread has ended, outside of it."""

    running: ClassVar[_Thread | None] = None

    def __init__(self, threads: DiskThreads, work: Callable[[], Afterwards], pace: Pace) -> None:
        self.threads, self.pace = threads, pace
        self.pauses = 0
        self._greenlet = greenlet(work)

    @property
    def dead(self) -> bool:
        return bool(self._greenlet.dead)

    def go_on(self) -> Any:
        """Until it stops again, or has ended: then with its result."""
        return self._run(self._greenlet.switch)

    def unwind(self) -> None:
        self._run(self._greenlet.throw, GreenletExit)
        assert self.dead

    def stop(self) -> None:
        """Called by itself: back to whoever made it go on."""
        self._greenlet.parent.switch()

    def _run(self, enter: Callable[..., Any], *arguments: Any) -> Any:
        assert _Thread.running is None, "a thread does not start another one"
        _Thread.running = self
        try:
            return enter(*arguments)
        finally:
            _Thread.running = None


class DiskThreads:
    """All threads of one life of a process. ``sync_s`` draws how long the disk takes for a sync."""

    def __init__(self, loop: ProcessLoop, random: Random, may_stop: MayStop, sync_s: Callable[[], float]) -> None:
        self.over = False
        """The process has ended, or is about to: no disk, no lock, no pause for what still unwinds."""
        self._loop, self._random, self._sync_s = loop, random, sync_s
        self._may_stop = may_stop
        self._alive: dict[_Thread, None] = {}
        self._due: dict[_Thread, asyncio.TimerHandle] = {}  # that will go on by themselves
        self.switches = 0

    def start(self, work: Callable[[], Afterwards], pace: Pace = _NORMAL) -> None:
        """Run ``work`` in a new thread, until it is put aside for the first time or has ended."""
        thread = _Thread(self, work, pace)
        self._alive[thread] = None
        self._run(thread)

    def _run(self, thread: _Thread) -> None:
        self._due.pop(thread, None)
        try:
            afterwards = thread.go_on()
        finally:
            if thread.dead:
                del self._alive[thread]
        if thread.dead:
            afterwards()
        if self._alive and not self._due and not self.over:
            raise AssertionError(f"{self._loop.name}: {len(self._alive)} threads wait for each other for ever")

    def end(self) -> None:
        """The process has ended: every thread is unwound where it stands."""
        self.over = True
        for timer in self._due.values():
            timer.cancel()
        self._due.clear()
        for thread in list(self._alive):
            thread.unwind()
        self._alive.clear()

    def finish(self) -> None:
        """Let everything that is put aside go on to its end, here and now."""
        may_stop, self._may_stop = self._may_stop, MayStop(0.0)
        while self._due:
            thread, timer = next(iter(self._due.items()))
            timer.cancel()
            self._loop.enter(partial(self._run, thread))
        self._may_stop = may_stop

    # ---- called by threads --------------------------------------------------------------------------------

    def point(self) -> None:
        """Here a thread may be put aside."""
        thread = self._may_pause()
        if thread is not None and (seconds := self._may_stop.draw_s(self._random, thread.pace.points_s)):
            self._pause(thread, seconds)

    def sync(self, sync: Callable[[], None]) -> None:
        """A sync of the disk takes its time, before or after the moment at which it covers what has been written."""
        thread = self._may_pause()
        when = self._random.randrange(3) if thread is not None else -1
        if thread is not None and when != 1:
            self._pause(thread, self._takes_s(thread))
        sync()
        if thread is not None and when != 0:
            self._pause(thread, self._takes_s(thread))

    def _takes_s(self, thread: _Thread) -> float:
        syncs_s = thread.pace.syncs_s
        return self._sync_s() if syncs_s is None else drawn_s(self._random, syncs_s)

    def _may_pause(self) -> _Thread | None:
        thread = _Thread.running
        if thread is None or self.over or not self._may_stop.chance:
            return None
        return thread if thread.pauses < _PAUSES or self._random.random() < 0.1 else None

    def _pause(self, thread: _Thread, seconds: float) -> None:
        thread.pauses += 1
        self.wake(thread, seconds)
        self.park(thread)

    def park(self, thread: _Thread) -> None:
        """Until somebody wakes it."""
        self.switches += 1
        thread.stop()

    def wake(self, thread: _Thread, after_s: float | None = None) -> None:
        """It goes on soon, or when so many seconds have passed."""
        delay_s = self._random.uniform(2e-6, 120e-6) if after_s is None else after_s
        self._due[thread] = self._loop.call_later(delay_s, self._run, thread)

    def pick(self, waiting: list[_Thread]) -> _Thread:
        return waiting.pop(self._random.randrange(len(waiting)))


_OUTSIDE = object()  # owns a lock that is taken outside of a thread


class RLock:
    """Like ``threading.RLock``. It is not fair: who comes while a woken one is on its way may be faster."""

    def __init__(self) -> None:
        self._owner: object = None
        self._depth = 0
        self._waiting: list[_Thread] = []

    def acquire(self) -> bool:
        thread = _Thread.running
        if thread is None:
            assert self._owner in (None, (thread or _OUTSIDE)), "a lock is held by a thread that was put aside"
        elif thread.threads.over:
            return True
        elif self._owner is not thread:
            thread.threads.point()
            while self._owner is not None:
                self._waiting.append(thread)
                thread.threads.park(thread)
        self._owner = thread or _OUTSIDE
        self._depth += 1
        return True

    def release(self) -> None:
        thread = _Thread.running
        if thread is not None and thread.threads.over:
            return
        assert self._owner is (thread or _OUTSIDE), "a lock is released by another thread"
        self._depth -= 1
        if not self._depth:
            self._free()

    def _free(self) -> None:
        self._owner = None
        if self._waiting:
            threads = self._waiting[0].threads
            threads.wake(threads.pick(self._waiting))

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def give_up(self) -> int:
        """However often it is held, not any more: for a condition that waits."""
        depth, self._depth = self._depth, 0
        self._free()
        return depth

    def take_back(self, depth: int) -> None:
        self.acquire()
        self._depth = depth


class Lock(RLock):
    """Like ``threading.Lock``; the thread that holds it would wait for itself."""

    def acquire(self) -> bool:
        assert self._owner is not (_Thread.running or _OUTSIDE), "a thread waits for a lock that it holds itself"
        return super().acquire()


class Condition:
    """Like ``threading.Condition``, without timeouts."""

    def __init__(self, lock: RLock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiting: list[_Thread] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def wait(self) -> None:
        thread = _Thread.running
        assert thread is not None, "only threads wait"
        if thread.threads.over:
            raise GreenletExit
        self._waiting.append(thread)
        depth = self._lock.give_up()
        thread.threads.park(thread)
        self._lock.take_back(depth)

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            if not thread.threads.over:
                thread.threads.wake(thread)


LOCKS = SimpleNamespace(Lock=Lock, RLock=RLock, Condition=Condition)


class GatedDisk:
    """The disk as one life of a process sees it: each call is a point, and none gets through when the life is over."""

    def __init__(self, disk: Disk, threads: DiskThreads) -> None:
        self._disk, self._threads = disk, threads

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        self._threads.point()
        return self._through(function, *arguments)

    def _through(self, function: Callable[..., T], *arguments: Any) -> T:
        if self._threads.over:
            raise GreenletExit
        try:
            return function(*arguments)
        except Crashed:
            self._threads.over = True
            raise

    def open(self, path: str, mode: Mode) -> int:
        return self._call(self._disk.open, path, mode)

    def close(self, handle: int) -> None:
        if not self._threads.over:
            self._call(self._disk.close, handle)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        return self._call(self._disk.pread, handle, size, offset)

    def pwrite(self, handle: int, data: Writable, offset: int) -> None:
        self._call(self._disk.pwrite, handle, data, offset)

    def truncate(self, handle: int, size: int) -> None:
        self._call(self._disk.truncate, handle, size)

    def size(self, handle: int) -> int:
        return self._call(self._disk.size, handle)

    def fdatasync(self, handle: int) -> None:
        self._threads.sync(lambda: self._through(self._disk.fdatasync, handle))

    def fsync(self, handle: int) -> None:
        self._threads.sync(lambda: self._through(self._disk.fsync, handle))

    def begin_writing(self, handle: int, size: int, offset: int) -> None:
        self._through(self._disk.begin_writing, handle, size, offset)

    def at_once(self, calls: Sequence[Callable[[], None]]) -> None:
        for call in calls:
            call()

    def fsync_directory(self, path: str) -> None:
        self._threads.sync(lambda: self._through(self._disk.fsync_directory, path))

    def rename(self, old: str, new: str) -> None:
        self._call(self._disk.rename, old, new)

    def unlink(self, path: str) -> None:
        self._call(self._disk.unlink, path)

    def mkdir(self, path: str) -> None:
        self._call(self._disk.mkdir, path)

    def listdir(self, path: str) -> list[str]:
        return self._call(self._disk.listdir, path)

    def exists(self, path: str) -> bool:
        return self._call(self._disk.exists, path)

    def is_directory(self, path: str) -> bool:
        return self._call(self._disk.is_directory, path)

    def is_at(self, path: str, lock: int) -> bool:
        return self._call(self._disk.is_at, path, lock)

    def file_size(self, path: str) -> int:
        return self._call(self._disk.file_size, path)

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(path)

    def unneeded(self, handle: int, size: int, offset: int) -> None:
        """There is no page cache."""

    def lock(self, path: str, shared: bool) -> int:
        return self._through(self._disk.lock, path, shared)

    def now_ms(self) -> int:
        return self._disk.now_ms()
