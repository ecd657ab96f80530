"""The key/value client for threads: ``waltz_ray.kv.connect`` makes one. It is ``aio`` on the process's IO thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from waltz_ray.client.address import StaysHere
from waltz_ray.client.codecs import Codec
from waltz_ray.client.io_thread import IoThread, check_elsewhere
from waltz_ray.errors import ClientClosed
from waltz_ray.kv.client.aio import AsyncKvClient
from waltz_ray.kv.client.items import AsyncKvMap
from waltz_ray.kv.client.locks import AsyncKvLock
from waltz_ray.kv.client.place import KvPlace
from waltz_ray.kv.client.settings import KvClientConfig
from waltz_ray.kv.client.values import (
    MOST_MAP_NAME_BYTES,
    Entry,
    Expected,
    KvName,
    NamedEntry,
    name_bytes,
    name_text,
)
from waltz_ray.kv.client.watching import KvWatch, LogsOfWatches, WatchStart, checked_start

__all__ = ["KvClient", "KvLock", "KvMap"]

T = TypeVar("T")


class _Shell:
    """The loop in its thread and the client on it: from the first use, and after a fork anew."""

    def __init__(self, place: KvPlace, config: KvClientConfig, codec: Codec | None) -> None:
        self.place, self.config, self.codec = place, config, codec
        self._lock = threading.Lock()
        self._process = 0  # in which it was opened
        self._io: IoThread | None = None
        self._core: AsyncKvClient | None = None
        self._closed = False
        self.watching = LogsOfWatches()

    def core(self) -> AsyncKvClient:
        """The client for coroutines, started."""
        if self._core is not None and self._process == os.getpid() and not self._closed:
            return self._core
        check_elsewhere()  # whoever holds the lock waits for the IO thread
        if self._process not in (0, os.getpid()):  # whoever held it is in another process
            self._lock = threading.Lock()
        with self._lock:
            if self._closed:
                raise ClientClosed("the key/value client is closed; connect again")
            if self._core is None or self._process != os.getpid():
                self._open()
            assert self._core is not None
            return self._core

    def _open(self) -> None:
        io, core = IoThread(), AsyncKvClient(self.place, self.config, self.codec)
        try:
            io.call(core.start())
        except BaseException:
            io.stop(core.close())
            raise
        self._io, self._core, self._process = io, core, os.getpid()

    @property
    def io(self) -> IoThread:
        """Where the core is now; what goes on for longer keeps it, for in a forked child there is another one."""
        assert self._io is not None, "there is a core"
        return self._io

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it where the core that made it is, and wait for it."""
        return self.io.call_interruptibly(coroutine)

    def close(self) -> None:
        check_elsewhere()  # a codec is called there
        self.watching.close()
        with self._lock:
            closed, self._closed = self._closed, True
            if closed or self._io is None or self._core is None or self._process != os.getpid():
                return
            self._io.stop(self._core.close())


class KvMap(StaysHere):
    """One map: names of its own. Made by ``KvClient.map``; the client itself has the items of no map. For any thread.

    Every call takes ``timeout`` seconds at the most (None: the client's ``timeout_s``), and until then goes on through
    lost connections, moved buckets and dead actors. Then KvNotReady is raised, and nothing has happened; or
    KvUnknownFate, if a write may have. Each write happens once. InvalidInput for what cannot be a name or a value;
    ClientClosed.
    """

    def __init__(self, shell: _Shell, name: bytes, codec: Codec | None) -> None:
        self._shell = shell
        self._name = name
        self._codec = codec

    @property
    def name(self) -> KvName:
        """Of the map; empty: the items of no map."""
        return name_text(self._name)

    def get(self, name: KvName, default: Any = None, timeout: float | None = None) -> Any:
        """The value of an item, ``default`` if there is none (or it has expired)."""
        return self._shell.call(self._items.get(name, default, timeout))

    def get_item(self, name: KvName, timeout: float | None = None) -> Entry | None:
        """An item with its version and what is left of its life; None if there is none."""
        return self._shell.call(self._items.get_item(name, timeout))

    def get_many(self, names: Iterable[KvName], timeout: float | None = None) -> dict[KvName, Any]:
        """The values of those of ``names`` that there are, by the names as they were given. Each is read on its own:
        they need not have been there at one moment."""
        return self._shell.call(self._items.get_many(_gone_through(names), timeout))

    def scan(
        self, prefix: KvName = "", after: KvName = "", limit: int | None = None, timeout: float | None = None
    ) -> Iterator[NamedEntry]:
        """Items whose names begin with ``prefix`` and are above ``after``, in the order of their names' bytes.

        At most ``limit``. Each piece of a partition is as it was when it was read; what is written meanwhile may be in
        it or not. ``timeout`` is for each piece. DecodingFailed, InvalidInput (there is no codec), which name the item:
        its value cannot be read; a scan ``after`` it goes on.
        """
        # Whoever leaves it does not wait for its end, which the loop sees to: that may be a garbage collection, in the
        # IO thread or behind ``close``, or be in a forked child, which has no such thread.
        pages = self._items.pages(prefix, after, limit, timeout)
        io = self._shell.io
        while (page := io.call_interruptibly(_next(pages))) is not None:
            yield from page

    def count(self, prefix: KvName = "", timeout: float | None = None) -> int:
        """How many items there are whose names begin with ``prefix``, whatever their values. It reads them all."""
        return self._shell.call(self._items.count(prefix, timeout))

    def set(
        self,
        name: KvName,
        value: Any,
        expires: float | None = None,
        fullwait: bool = False,
        expected: Expected = None,
        timeout: float | None = None,
    ) -> int:
        """Give an item a value; its version then. When it returns, it is committed by a quorum of the log's replicas.

        ``value``: bytes, str, an integer of 64 bits, or whatever the client's codec takes. ``expires``: seconds from
        now (None: never). ``fullwait``: until the bucket's secondary has it, too; KvNotReplicated if that lasts too
        long. ``expected``: only if the item is at this version, or, ABSENT, is not there; else KvConflict.
        """
        return self._shell.call(self._items.set(name, value, expires, fullwait, expected, timeout))

    def cas(
        self,
        name: KvName,
        value: Any,
        expected: int,
        expires: float | None = None,
        fullwait: bool = False,
        timeout: float | None = None,
    ) -> int | None:
        """``set`` if the item is at version ``expected`` (ABSENT: is not there): its version then. None: it is not, and
        nothing was changed."""
        return self._shell.call(self._items.cas(name, value, expected, expires, fullwait, timeout))

    def set_many(
        self,
        items: Mapping[KvName, Any],
        expires: float | None = None,
        fullwait: bool = False,
        timeout: float | None = None,
    ) -> dict[KvName, int]:
        """``set`` of many items: their versions. Each on its own, in no order: after an error some may have been set.

        Then it is KvNotReady if none was, else KvUnknownFate, which says how many.
        """
        given = dict(items) if isinstance(items, Mapping) else items  # in the caller's thread, as names are
        return self._shell.call(self._items.set_many(given, expires, fullwait, timeout))

    def delete(self, name: KvName, expected: Expected = None, timeout: float | None = None) -> bool:
        """Remove an item; False if there is none. ``expected``: only at this version, else KvConflict."""
        return self._shell.call(self._items.delete(name, expected, timeout))

    def expire(self, name: KvName, seconds: float | None, timeout: float | None = None) -> bool:
        """Have an item expire ``seconds`` from now, or (None) never; its version rises. False if there is none."""
        return self._shell.call(self._items.expire(name, seconds, timeout))

    def update(
        self,
        name: KvName,
        function: Callable[[Any], Any],
        default: Any = None,
        expires: float | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Set an item to ``function(its value)``, ``default`` if there is none; the new value. ``function`` runs in the
        caller's thread.

        If somebody else has changed the item meanwhile, it is read and ``function`` called again. It keeps what is left
        of its life, unless ``expires`` is given.
        """
        update = self._items.update_call(name, default, expires, timeout)
        while True:
            value = function(self._shell.call(update.read()))
            if self._shell.call(update.write(value)):
                return value

    def add(self, name: KvName, amount: int = 1, timeout: float | None = None) -> int:
        """Add to the integer that an item is, 0 if there is none; the sum. InvalidInput: it is none, or too large."""
        return self._shell.call(self._items.add(name, amount, timeout))

    @property
    def _items(self) -> AsyncKvMap:
        core = self._shell.core()
        return core.map(self._name, self._codec)


class KvClient(KvMap):
    """A client of a key/value space, for any thread; ``with`` closes it.

    It has the items of no map; ``map`` gives those of one. It pickles as its address, and connects when it is first
    used, also in a forked child.
    """

    def __init__(self, place: KvPlace, config: KvClientConfig | None = None, codec: Codec | None = None) -> None:
        self.config = config or KvClientConfig()
        super().__init__(_Shell(place, self.config, codec), b"", codec)

    def open(self) -> KvClient:
        """Connect now and not with the first call; raises what finding the space raises."""
        self._shell.core()
        return self

    def map(self, name: KvName, codec: Codec | None = None) -> KvMap:
        """The items of a map, with names of their own; ``codec``: of its values (None: the client's).

        An item's partition and bucket are those of its name, whatever the map.
        """
        return KvMap(self._shell, name_bytes(name, "a map's name", MOST_MAP_NAME_BYTES), codec or self._codec)

    def lock(self, name: KvName, lease: float = 10.0, wait: float = 30.0) -> KvLock:
        """A lock, for ``with``: KvLockTaken if it is not free within ``wait`` seconds (0: at once).

        It is freed ``lease`` seconds after the last that was heard of its holder, who is heard of every third of that.
        Locks have names of their own, beside those of items.
        """
        lock = self._shell.core().lock(name, lease, wait)
        return KvLock(self._shell.io, lock)

    def watch(self, prefix: KvName = "", start: WatchStart = "latest", map: KvName = "") -> KvWatch:
        """What becomes of items whose names begin with ``prefix``, as it is committed: ``for event in watch``.

        An event is an ItemSet, ItemDeleted, ItemTouched or ItemExpired. Those of one item come in their order.
        ``start``: "latest", from the time when it begins; an ID for each partition; or "earliest", from the first there
        is in the log. What was compacted away comes as an ItemSet for each item that was left, before what follows.
        ``with`` or ``stop`` ends it.
        """
        raw = name_bytes(map, "a map's name", MOST_MAP_NAME_BYTES)
        first, begin = name_bytes(prefix, "a prefix"), checked_start(start)
        return KvWatch(self._shell.place.log, self._shell.watching, self._codec, raw, first, begin)

    def statistics(self) -> dict[str, int]:
        """``connected``: actors; ``known_buckets`` of ``buckets``; ``retries``: of items, since the start."""
        return self._shell.core().statistics()

    def routes(self, timeout: float | None = None) -> dict[str, int]:
        """How many buckets each actor (``host:port``) has, as far as is heard within ``timeout`` seconds; "" has those
        that nobody is known to serve."""
        core = self._shell.core()
        return self._shell.call(core.routes(timeout))

    def close(self) -> None:
        """Let go of everything; calls that go on end with ClientClosed. Idempotent."""
        self._shell.close()

    def __enter__(self) -> KvClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[KvClient], tuple[KvPlace, KvClientConfig, Codec | None]]:
        return KvClient, (self._shell.place, self.config, self._codec)


class KvLock(StaysHere):
    """One lock, for ``with``. While it is had its lease is renewed in the background.

    Nobody else has it meanwhile, if clocks run at about one speed; but a process can be paused for longer than the
    lease and not know. So what is done elsewhere should carry ``code``, and be refused below the highest seen there.
    """

    def __init__(self, io: IoThread, lock: AsyncKvLock) -> None:
        self._io = io
        self._lock = lock

    @property
    def name(self) -> KvName:
        """Of the lock."""
        return self._lock.name

    @property
    def code(self) -> int:
        """Given with the lock, and higher than every code of this lock before it: a fencing token. InvalidInput: it is
        not had."""
        return self._lock.code

    @property
    def lost(self) -> bool:
        """It was had, and the lease has run out or somebody has freed it."""
        return self._lock.lost

    def check(self) -> None:
        """KvLockLost if it is."""
        self._lock.check()

    def acquire(self) -> int:
        """Have it; its code. KvLockTaken after ``wait`` seconds."""
        try:
            return self._io.call_interruptibly(self._lock.acquire())
        except Exception:
            raise
        except BaseException:  # Ctrl-C, perhaps when it had just come: nobody knows that it is had
            with suppress(ClientClosed):
                self._io.start(self._lock.give_up())
            raise

    def release(self) -> None:
        """Give it back. KvLockLost if it was not ours any more."""
        self._io.call_interruptibly(self._lock.release())

    def __enter__(self) -> KvLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._io.call_interruptibly(self._lock.__aexit__(kind, error, trace))
        except ClientClosed:
            if error is None:
                raise  # else what has happened first is told


def _gone_through(names: Iterable[KvName]) -> Iterable[KvName]:
    """In the caller's thread: a generator may wait, for a scan of the same client, say. What is no list is refused as
    it was given."""
    return [*names] if isinstance(names, Iterable) and not isinstance(names, str | bytes) else names


async def _next(pages: Any) -> list[NamedEntry] | None:
    return await anext(pages, None)
