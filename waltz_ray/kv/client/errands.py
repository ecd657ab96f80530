"""What a client has its engine do: jobs, the commands they become, and what the answers mean for them. Pure.

A job is about one item or one lock. It is *done* when its answer is final. Until then it is sent again, a write with
the number it has had from the start, so that it happens once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Generic, TypeVar

from waltz_ray.errors import AccessRefused, InvalidInput, KvNotReady, KvUnknownFate, WaltzError
from waltz_ray.kv.client.request_numbers import RequestNumbers
from waltz_ray.kv.client.values import name_text
from waltz_ray.kv.messages import (
    Ack,
    Command,
    DataLock,
    Fail,
    FailCode,
    FailInfo,
    GetMany,
    Op,
    OpResult,
    Put,
    PutDone,
    Reply,
    Seen,
    SeenMany,
)
from waltz_ray.kv.routing import fnv1a_32

__all__ = ["Errand", "GetErrand", "GetJob", "KvJob", "LockErrand", "LockJob", "PutErrand", "PutJob"]

_MOST_ENTRIES = 1024  # of a command
_MOST_BYTES = 1024 * 1024  # of a command; a larger value goes alone
_NOT_NOW = {FailCode.NOT_READY, FailCode.TOO_MANY, FailCode.NO_ROOM, FailCode.ELSEWHERE}
_NOT_NOW_WORDS = {
    FailCode.NOT_READY: "nobody serves it just now",
    FailCode.TOO_MANY: "too much is outstanding there",
    FailCode.NO_ROOM: "its actor has no room on its disk",
    FailCode.UNKNOWN_FATE: "its actor could not say in time what has become of it",
}

MakeCommand = Callable[[float], Command]
J = TypeVar("J", bound="KvJob")


class KvJob:
    """One item or lock that is asked about or changed."""

    __slots__ = ("detour", "done", "elsewhere", "error", "key_hash", "moved", "name", "reason", "unknown")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.key_hash = fnv1a_32(name)
        self.done = False
        self.error: WaltzError | None = None
        """Why it is refused for good."""
        self.reason = ""
        """Why it is not done."""
        self.unknown = False
        """A command with it was sent and its fate was not told."""
        self.detour = False
        """Another actor was named for it just now."""
        self.moved = False
        """It was not where the table has it."""
        self.elsewhere = False
        """The actor asked does not serve it."""

    def refuse(self, error: WaltzError) -> None:
        """It is done: it cannot be."""
        self.error, self.done = error, True

    def not_allowed(self, why: str) -> None:
        """The same, for lack of a right; of what was sent before nobody says more."""
        self.refuse(AccessRefused(f"{why}; it was sent before, and may have happened" if self.unknown else why))

    def check(self, what: str, timeout_s: float) -> None:
        """Raise its error; KvUnknownFate or KvNotReady if it is not done."""
        if self.error is not None:
            raise self.error
        if not self.done:
            said = f"{what} {name_text(self.name)!r} was not done within {timeout_s:g} s: {self.reason or 'no answer'}"
            if self.unknown:
                raise KvUnknownFate(f"{said}; it may have happened, read and decide")
            raise KvNotReady(f"{said}; nothing was changed, try again")


class Errand(ABC, Generic[J]):
    """What jobs of one kind are: see the module."""

    alone = False
    """They go over a connection that no other client has: its end says that nobody waits for them any more."""

    @abstractmethod
    def commands(self, jobs: Sequence[J], left_s: float) -> Iterator[tuple[Command, list[J]]]:
        """Commands for one actor, and which jobs are in each; ``left_s`` of the call's time is left."""

    @abstractmethod
    def answered(self, jobs: Sequence[J], reply: Reply) -> None:
        """A reply that is no refusal of the whole command."""

    def missed(self, jobs: Iterable[J], reason: str) -> None:
        """There was no answer."""
        for job in jobs:
            job.reason, job.unknown = reason, True

    def failed(self, jobs: Sequence[J], info: FailInfo, server: str) -> None:
        """The whole command was refused."""
        for job in jobs:
            if info.code == FailCode.UNKNOWN_FATE:
                job.unknown = True
            if info.code in _NOT_NOW or info.code == FailCode.UNKNOWN_FATE:
                job.reason = f"{server} says: {info.text or _NOT_NOW_WORDS.get(FailCode(info.code), 'not now')}"
            elif info.code == FailCode.NOT_ALLOWED:
                job.not_allowed(f"{name_text(job.name)!r} was refused by {server}: {info.text}")
            else:
                job.refuse(InvalidInput(f"{name_text(job.name)!r} was refused by {server}: {info.text}"))

    def refused(self, jobs: Iterable[J], reason: str) -> None:
        """The actor cannot do such a thing."""
        for job in jobs:
            job.refuse(InvalidInput(reason))


class PutJob(KvJob):
    """A write."""

    __slots__ = ("op", "result", "sequence")

    def __init__(self, op: Op) -> None:
        super().__init__(op.name)
        self.op = op
        self.sequence = 0
        """Its number; to be given before it is run."""
        self.result = OpResult(FailCode.OK)


class PutErrand(Errand[PutJob]):
    """Writes to one map."""

    def __init__(self, numbers: RequestNumbers, map_name: bytes, fullwait: bool) -> None:
        self._numbers = numbers
        self._map_name = map_name
        self._fullwait = fullwait

    def commands(self, jobs: Sequence[PutJob], left_s: float) -> Iterator[tuple[Command, list[PutJob]]]:
        """The numbers in one command are consecutive."""
        if len(jobs) == 1:
            yield self._put(jobs), [*jobs]
            return
        ordered = sorted(jobs, key=lambda job: job.sequence)
        for _, run in groupby(enumerate(ordered), lambda each: each[1].sequence - each[0]):
            for some in _cut([job for _, job in run]):
                yield self._put(some), some

    def _put(self, jobs: Sequence[PutJob]) -> Put:
        numbers, ops = self._numbers, tuple([job.op for job in jobs])
        repeated = any(job.unknown for job in jobs)
        return Put(self._map_name, numbers.client, jobs[0].sequence, numbers.settled, self._fullwait, ops, repeated)

    def answered(self, jobs: Sequence[PutJob], reply: Reply) -> None:
        if not isinstance(reply, PutDone) or len(reply.results) != len(jobs):
            self.refused(jobs, f"writes were answered with a {type(reply).__name__} that does not fit them")
            return
        for job, result in zip(jobs, reply.results, strict=True):
            if result.code == FailCode.ELSEWHERE:
                job.elsewhere = True
            elif result.code in _NOT_NOW_WORDS:
                job.reason = _NOT_NOW_WORDS[FailCode(result.code)]
                job.unknown |= result.code == FailCode.UNKNOWN_FATE
            else:
                job.result, job.done = result, True


class GetJob(KvJob):
    """A read."""

    __slots__ = ("seen",)

    def __init__(self, name: bytes) -> None:
        super().__init__(name)
        self.seen = Seen(FailCode.MISSING)


class GetErrand(Errand[GetJob]):
    """Reads from one map."""

    def __init__(self, map_name: bytes) -> None:
        self.left_s = 0.0
        """Of the call's time, when they were asked for last."""
        self._map_name = map_name
        self._most = _MOST_ENTRIES

    def commands(self, jobs: Sequence[GetJob], left_s: float) -> Iterator[tuple[Command, list[GetJob]]]:
        self.left_s = left_s
        for begin in range(0, len(jobs), self._most):
            some = [*jobs[begin : begin + self._most]]
            yield GetMany(self._map_name, tuple([job.name for job in some])), some

    def answered(self, jobs: Sequence[GetJob], reply: Reply) -> None:
        if not isinstance(reply, SeenMany) or len(reply.items) != len(jobs):
            self.refused(jobs, f"reads were answered with a {type(reply).__name__} that does not fit them")
            return
        for job, seen in zip(jobs, reply.items, strict=True):
            if seen.code in (FailCode.OK, FailCode.MISSING):
                job.seen, job.done = seen, True
            else:
                job.elsewhere = seen.code == FailCode.ELSEWHERE
                job.reason = "nobody serves it just now"

    def missed(self, jobs: Iterable[GetJob], reason: str) -> None:
        for job in jobs:
            job.reason = reason

    def failed(self, jobs: Sequence[GetJob], info: FailInfo, server: str) -> None:
        if info.code == FailCode.TOO_LONG and len(jobs) > 1:  # their values do not fit into one answer
            self._most = max(1, min(self._most, len(jobs)) // 2)
            for job in jobs:
                job.reason = info.text
            return
        super().failed(jobs, info, server)
        for job in jobs:
            job.unknown = False  # as an actor that closes says to whoever waits there: a read changes nothing


class LockJob(KvJob):
    """Something about a lock."""

    __slots__ = ("reply",)

    def __init__(self, name: bytes) -> None:
        super().__init__(name)
        self.reply: DataLock | Fail | Ack = Fail()


class LockErrand(Errand[LockJob]):
    """One command about one lock; ``make(left_s)`` makes it, anew each time."""

    alone = True

    def __init__(self, make: MakeCommand) -> None:
        self._make = make

    def commands(self, jobs: Sequence[LockJob], left_s: float) -> Iterator[tuple[Command, list[LockJob]]]:
        for job in jobs:
            yield self._make(left_s), [job]

    def answered(self, jobs: Sequence[LockJob], reply: Reply) -> None:
        if not isinstance(reply, DataLock | Fail | Ack):
            self.refused(jobs, f"a lock was answered with a {type(reply).__name__}")
            return
        for job in jobs:
            job.reply, job.done = reply, True


def _cut(run: Sequence[PutJob]) -> Iterator[list[PutJob]]:
    """The run in pieces of a command's size."""
    piece: list[PutJob] = []
    size = 0
    for job in run:
        length = len(job.name) + len(job.op.data)
        if piece and (len(piece) >= _MOST_ENTRIES or size + length > _MOST_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(job)
        size += length
    if piece:
        yield piece
