"""Clients of the key/value layer: each call again and again, at one actor or another, until it is answered.

A native one gives its writes a RequestId and repeats them with it; one that speaks the document's messages has none, so
what it was not answered it will never know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, cast

from tests.kv.linearizability import (
    ANYTHING,
    MISSING,
    Asked,
    Denied,
    Erase,
    Erased,
    Extend,
    Granted,
    Obtain,
    Peek,
    Result,
    Retime,
    Shown,
    Store,
    Stored,
    Unlatch,
    Unmet,
)
from tests.simulation.kv_history import OpenCall
from tests.simulation.process import Process
from waltz_ray import compat
from waltz_ray.kv.messages import (
    ABSENT,
    ANY_VERSION,
    Ack,
    Command,
    DataLock,
    DataString,
    Fail,
    FailCode,
    FailInfo,
    Get,
    GetMany,
    LockCommand,
    LockNative,
    Op,
    Opcode,
    OpKind,
    Put,
    PutDone,
    Renew,
    Reply,
    SeenMany,
    SetCommand,
    TryElsewhere,
    UnlockCommand,
    UnlockNative,
)
from waltz_ray.kv.model import RequestId, ValueType
from waltz_ray.kv.routing import fnv1a_32
from waltz_ray.kv.wire import decode_reply, encode_command, encode_reply
from waltz_ray.kv.wire_framer import KvFramer

if TYPE_CHECKING:
    from tests.simulation.kv import KvPart

__all__ = ["SimKvClient", "of_model"]

_AGAIN = "nothing has happened; try again"
_PERHAPS = "it may have happened"
Answered = Result | str


@dataclass
class _Begun:
    """A call that is under way."""

    call: OpenCall
    sequence: int


class _LinkLost(Exception):
    """``sent``: what was asked may have come there."""

    def __init__(self, sent: bool) -> None:
        self.sent = sent


class _Link(asyncio.Protocol):
    """One connection to one actor; many commands at a time."""

    def __init__(self) -> None:
        self._framer = KvFramer()
        self._transport: asyncio.Transport | None = None
        self._open: dict[int, asyncio.Future[Reply]] = {}
        self._last = 0
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.get_extra_info("socket").setsockopt(1, 9, 1)  # SO_KEEPALIVE

    def data_received(self, data: bytes) -> None:
        for opcode, replied_to, message_id, payload in self._framer.feed(data):
            assert payload is not None
            if replied_to:
                future = self._open.pop(message_id, None)
                if future is not None and not future.done():
                    future.set_result(decode_reply(opcode, payload))
            elif self._transport is not None:  # whatever it tells of its buckets
                self._transport.write(encode_reply(opcode, message_id, Ack()))

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        """What is asked is little."""

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        for future in self._open.values():
            if not future.done():
                future.set_exception(_LinkLost(True))
        self._open.clear()

    def ask(self, command: Command) -> asyncio.Future[Reply]:
        assert self._transport is not None
        self._last += 1
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._open[self._last] = future
        self._transport.write(encode_command(self._last, command))
        return future

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class SimKvClient(Process):
    """``working`` False: no further calls; those that are open go on until they are answered or given up."""

    def __init__(
        self, part: KvPart, number: int, random: Random, native: bool, reads: float = 0.45, cautious: bool = False
    ) -> None:
        super().__init__(part.world, f"kv-client-{number}", session_s=6.0)
        self.part = part
        self.random = random
        self.native = native
        self.reads = reads
        """The share of its calls that are reads."""
        self.working = True
        self.busy = 0
        """Calls that are open."""
        self._cautious = cautious
        """It writes only what is not there, and mostly is told that it is."""
        self.together = part.together
        """Several items are written with one command, too."""
        self.writes = native and reads < 0.9
        """Much, and again and again until it has an answer."""
        self._pace_s = random.uniform(0.005, 0.05)
        self._workers = random.choice([2, 3, 4])
        self._reply_s = random.choice([0.3, 1.0, 4.0])
        self._links: dict[int, _Link] = {}
        self._whose: dict[int, int] = {}  # key hash -> the actor that had it last
        self._client = 0
        self._sequence = self._values = 0
        self._unanswered: set[int] = set()
        self._open: set[OpenCall] = set()
        self._versions: dict[str, int] = {}  # as last seen

    # ---- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.begin()
        self._links, self._unanswered, self._open, self.busy = {}, set(), set(), 0
        self._client, self._sequence = self.random.getrandbits(63) + 1, 0
        for _ in range(self._workers):
            self.spawn(self._work())

    def kill(self, why: str, silent_s: float = 0.0) -> None:
        super().kill(why, silent_s)
        for call in self._open:
            call.ended(None)
        self._open.clear()
        self.busy = 0

    async def _work(self) -> None:
        while self.working:
            await asyncio.sleep(self.random.expovariate(1 / self._pace_s))
            if self.working:
                await self._do_something()

    async def _do_something(self) -> None:
        key = self.random.choice(self.part.names)
        reads = self.random.random() < self.reads
        if key.startswith("l"):
            if not reads:
                await self._use_lock(key)
        elif reads:
            await self.read(key)
        elif not self.native:
            await self._store(key)
        elif self.together and self.random.random() < 0.25:
            await self._store_several()
        else:
            await self.random.choice([self._store, self._store, self._store, self._erase, self._retime])(key)

    # ---- items --------------------------------------------------------------------------------------------

    async def read(self, key: str, limit_s: float = 8.0) -> bool:
        """Whether it was answered."""
        name = key.encode()
        native: Command = GetMany(b"", (name,))
        command = native if self.native else Get(Opcode.GET_STRING, 0, fnv1a_32(name))
        return await self._call(key, Peek(), lambda request: command, self._shown, limit_s) is not None

    def _shown(self, reply: Reply) -> Answered:
        match reply:
            case SeenMany((seen,)) if seen.code == FailCode.OK:
                return Shown(seen.data, seen.version)
            case SeenMany((seen,)) if seen.code == FailCode.MISSING:
                return Shown(None)
            case DataString(_, _, data):
                return Shown(data)
            case Fail():
                return Shown(None)
        return _otherwise(reply)

    async def _store(self, key: str) -> None:
        self._values += 1
        value = f"{self.loop.name}/{self._values}".encode()
        life_s = float(self.random.choice([0, 0, 0, 1, 2])) * (not self.part.lasts(key))
        if not self.native:
            command = SetCommand(ValueType.STRING, 0, fnv1a_32(key.encode()), int(life_s), False, key.encode(), value)
            asked = Store(value, life_s or float("inf"))
            await self._call(key, asked, lambda request: command, lambda reply: self._put_ended(reply, asked))
            return
        expected = self._expected(key)
        asked = Store(value, life_s or float("inf"), of_model(expected))
        await self._put(key, asked, Op(OpKind.SET, key.encode(), 4, value, int(life_s * 1000), expected))

    async def _store_several(self) -> None:
        """With one command, as far as that is done; what is left goes on item by item."""
        keys, asked, ops = self._several()
        begun = [self._begin(key, each) for key, each in zip(keys, asked, strict=True)]
        until_s = self.world.scheduler.now + 8.0
        request = RequestId(self._client, begun[0].sequence, min(self._unanswered))
        results: list[Answered] = [_PERHAPS] * len(begun)

        def ended(reply: Reply) -> Answered:
            if not isinstance(reply, PutDone):
                return self._put_ended(reply, asked[0])
            self.world.history.counts["kv written together"] += len(begun)
            parts = zip(reply.results, asked, strict=True)
            results[:] = [self._put_ended(PutDone((result,)), each) for result, each in parts]
            return Stored()  # so much for the command; its writes have ended each in its way

        answered = await self._attempt(fnv1a_32(keys[0].encode()), Put(b"", *request, False, tuple(ops)), ended)
        if isinstance(answered, str):
            results = [answered] * len(begun)
        for each, result in zip(begun, results, strict=True):
            if not isinstance(result, str):
                self._end(each, result, False)
        for each, one, op, result in zip(begun, asked, ops, results, strict=True):
            if isinstance(result, str):
                limit_s = max(1.0, until_s - self.world.scheduler.now)
                await self._go_on(each, *self._one_put(one, op, False), limit_s, result is _PERHAPS)

    def _several(self) -> tuple[list[str], list[Store], list[Op]]:
        """Two to four keys, and what is written to each."""
        items = [name for name in self.part.names if name.startswith("k")]
        keys = self.random.sample(items, self.random.randint(2, min(4, len(items))))
        asked, ops = [], []
        for key in keys:
            expected = self._expected(key)
            self._values += 1
            value = f"{self.loop.name}/{self._values}".encode()
            asked.append(Store(value, float("inf"), of_model(expected)))
            ops.append(Op(OpKind.SET, key.encode(), 4, value, 0, expected))
        return keys, asked, ops

    async def _erase(self, key: str) -> None:
        expected = self._expected(key)
        await self._put(key, Erase(of_model(expected)), Op(OpKind.DELETE, key.encode(), expected=expected))

    async def _retime(self, key: str) -> None:
        expected, life_s = self._expected(key), float(self.random.choice([0, 1, 3])) * (not self.part.lasts(key))
        asked = Retime(life_s or float("inf"), of_model(expected))
        await self._put(key, asked, Op(OpKind.TOUCH, key.encode(), expires_ms=int(life_s * 1000), expected=expected))

    def _expected(self, key: str) -> int:
        """Of half the writes nothing, of the others mostly what was seen last."""
        if self._cautious:
            return ABSENT
        known = self._versions.get(key, ABSENT)
        return self.random.choice([ANY_VERSION, ANY_VERSION, known if known >= 0 else ABSENT, ABSENT])

    async def _put(self, key: str, asked: Store | Erase | Retime, op: Op) -> None:
        fullwait = self.random.random() < 0.1
        await self._call(key, asked, *self._one_put(asked, op, fullwait))

    def _one_put(
        self, asked: Store | Erase | Retime, op: Op, fullwait: bool
    ) -> tuple[Callable[[RequestId], Command], Callable[[Reply], Answered]]:
        def command(request: RequestId) -> Command:
            return Put(b"", *request, fullwait, (op,))

        return command, lambda reply: self._put_ended(reply, asked)

    def _put_ended(self, reply: Reply, asked: Asked) -> Answered:
        if isinstance(reply, Ack):
            return Stored()
        if not isinstance(reply, PutDone):
            return _otherwise(reply)
        (result,) = reply.results
        if result.code == FailCode.CONFLICT:
            return Unmet(result.version)
        if result.code == FailCode.MISSING:
            return Erased(False) if isinstance(asked, Erase) else Shown(None)
        if result.code in (FailCode.OK, FailCode.NOT_REPLICATED):
            return Erased(True) if isinstance(asked, Erase) else Stored(result.version if result.version >= 0 else None)
        return _by_code(result.code)

    # ---- locks --------------------------------------------------------------------------------------------

    async def _use_lock(self, key: str) -> None:
        """Had for a while; given back, or left to its lease."""
        name, lease_s = key.encode(), float(self.random.choice([1, 1, 2, 4]))
        wait_s = self.random.choice([0, 0, 1, 3])

        def acquire(request: RequestId) -> Command:
            if self.native:
                return LockNative(name, *request, int(lease_s * 1000), wait_s * 1000)
            return LockCommand(name, int(lease_s), wait_s)

        granted = await self._call(key, Obtain(lease_s), acquire, _granted)
        if not isinstance(granted, Granted):
            return
        code = granted.code
        await asyncio.sleep(self.random.uniform(0.0, 0.8) * lease_s)
        if self.native and self.random.random() < 0.4:
            await self._call(
                key, Extend(code, lease_s), lambda request: Renew(name, *request, code, int(lease_s * 1000)), _granted
            )
        if self.random.random() < 0.8:

            def give_back(request: RequestId) -> Command:
                return UnlockNative(name, *request, code) if self.native else UnlockCommand(name, code)

            def ended(reply: Reply) -> Answered:
                return Granted(code) if isinstance(reply, Ack) else _granted(reply)

            await self._call(key, Unlatch(code), give_back, ended)

    # ---- a call -------------------------------------------------------------------------------------------

    async def _call(
        self,
        key: str,
        asked: Asked,
        command: Callable[[RequestId], Command],
        ended: Callable[[Reply], Answered],
        limit_s: float = 8.0,
    ) -> Result | None:
        """What it was answered in the end; None: it never happened, or nobody knows."""
        return await self._go_on(self._begin(key, asked), command, ended, limit_s)

    def _begin(self, key: str, asked: Asked) -> _Begun:
        self._sequence += 1
        self._unanswered.add(self._sequence)
        call = self.part.history.begin(key, asked, self.loop.name)
        self._open.add(call)
        self.busy += 1
        return _Begun(call, self._sequence)

    async def _go_on(
        self,
        begun: _Begun,
        command: Callable[[RequestId], Command],
        ended: Callable[[Reply], Answered],
        limit_s: float,
        perhaps: bool = False,
    ) -> Result | None:
        """``perhaps``: it may have been done already."""
        until_s = self.world.scheduler.now + limit_s
        result: Result | None = None
        while self.world.scheduler.now < until_s:
            request = RequestId(self._client, begun.sequence, min(self._unanswered))
            one = command(request)
            if perhaps and isinstance(one, Put):
                one = Put(one.map_name, one.client, one.sequence, one.settled, one.fullwait, one.ops, repeated=True)
            answered = await self._attempt(fnv1a_32(begun.call.key.encode()), one, ended)
            if not isinstance(answered, str):
                result = answered
                break
            perhaps |= answered is _PERHAPS
            if perhaps and not self.native and not isinstance(begun.call.asked, Peek):
                break
            await asyncio.sleep(self.random.choice([0.0, 0.01, 0.1]))
        return self._end(begun, result, perhaps)

    def _end(self, begun: _Begun, result: Result | None, perhaps: bool) -> Result | None:
        call = begun.call
        self._unanswered.discard(begun.sequence)
        self._open.discard(call)
        self.busy -= 1
        if perhaps and isinstance(result, Denied):
            result = None  # an attempt before may have got the lock, or may get it yet
        elif result is None and not perhaps:
            call.never()
            return None
        call.ended(result)
        version = getattr(result, "version", None)
        if version is not None:
            self._versions[call.key] = version
        return result

    async def _attempt(self, key_hash: int, command: Command, ended: Callable[[Reply], Answered]) -> Answered:
        actor = self._whose.get(key_hash, -1)
        if actor < 0 or self.random.random() < 0.02:
            actor = self.random.randrange(len(self.part.actors))
        try:
            reply = await self._ask(actor, command)
        except _LinkLost as lost:
            self._whose.pop(key_hash, None)
            return _PERHAPS if lost.sent else _AGAIN
        if isinstance(reply, TryElsewhere):
            self._whose[key_hash] = self.part.actor_at(reply.server)
            return _AGAIN
        answered = ended(reply)
        if answered is _AGAIN:
            self._whose.pop(key_hash, None)
        else:
            self._whose[key_hash] = actor
        return answered

    async def _ask(self, actor: int, command: Command) -> Reply:
        link = await self._link(actor)
        try:
            async with compat.timeout(self._reply_s + _waits_s(command)):
                return await link.ask(command)
        except TimeoutError:
            if self.random.random() < 0.5:
                link.close()
            raise _LinkLost(True) from None

    async def _link(self, actor: int) -> _Link:
        link = self._links.get(actor)
        if link is None or link.ended:
            try:
                async with compat.timeout(self._reply_s):
                    host, port = self.part.address_of(actor)
                    _, link = await asyncio.get_running_loop().create_connection(_Link, host, port)
            except (OSError, TimeoutError):
                await asyncio.sleep(0.05)
                raise _LinkLost(False) from None
            self._links[actor] = link
        return link


def _waits_s(command: Command) -> float:
    """How long the actor may think about it."""
    match command:
        case LockCommand(_, _, wait_s):
            return float(wait_s)
        case LockNative():
            return command.wait_ms / 1000
    return 0.0


def _granted(reply: Reply) -> Answered:
    match reply:
        case DataLock(code):
            return Granted(code)
        case Fail():
            return Denied()
    return _otherwise(reply)


def _otherwise(reply: Reply) -> str:
    """Of an answer that is no result."""
    if isinstance(reply, FailInfo):
        return _by_code(reply.code)
    if isinstance(reply, SeenMany):
        return _by_code(reply.items[0].code)
    raise AssertionError(f"this is no answer to what was asked: {reply}")


def _by_code(code: int) -> str:
    if code in (FailCode.ELSEWHERE, FailCode.NOT_READY, FailCode.TOO_MANY):
        return _AGAIN
    if code in (FailCode.UNKNOWN_FATE, FailCode.NOT_REPLICATED):
        return _PERHAPS
    raise AssertionError(f"an actor answers with {FailCode(code).name}")


def of_model(expected: int | None) -> int:
    """What the model expects where a client expects this; None: whatever is there."""
    return {ANY_VERSION: ANYTHING, ABSENT: MISSING}.get(ANY_VERSION if expected is None else expected, expected or 0)
