"""What becomes of one write, given what its owner knows: the rules of the key/value layer on one page. Pure.

Each function decides one thing and changes nothing. The simulation breaks them by name (docs/testing.md, "Teeth").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from waltz_ray.kv.fold_clients import refusal_of
from waltz_ray.kv.messages import ABSENT, ANY_VERSION, FailCode, Op, OpKind, SetCommand
from waltz_ray.kv.model import (
    MAX_MAP_NAME_BYTES,
    MAX_NAME_BYTES,
    MOST_DEADLINE_MS,
    NOBODYS,
    Delete,
    Item,
    ItemKey,
    Lock,
    LockHeld,
    Record,
    RequestId,
    Set,
    Touch,
    Unlock,
)
from waltz_ray.protocol.value import value

__all__ = [
    "NO_VERSION",
    "Acquire",
    "Give",
    "Known",
    "NativeWrite",
    "Outcome",
    "Prolong",
    "Waits",
    "What",
    "collides",
    "decide",
    "expected",
    "is_free",
    "is_over",
    "is_stale",
    "is_to_be_said",
    "must_be_kept",
    "over_of",
    "over_of_hash",
    "refused_size",
    "reveals",
    "same_map",
    "visible",
    "visible_of_hash",
]

NO_VERSION = -1
_SOME = 250  # items of one hash that are said to have expired at once


class KnownItems(Protocol):
    """Items by their hash."""

    def items_of_hash(self, map_hash: int, key_hash: int, limit: int = 2) -> Sequence[tuple[ItemKey, Item]]:
        """Fewer than ``limit``: there are no more. Also expired ones."""


class Known(KnownItems, Protocol):
    """What an owner knows of a key: what is folded, and what of its own is committed and not yet folded."""

    def item(self, key: ItemKey) -> Item | None: ...

    def lock(self, name: bytes) -> LockHeld | None: ...

    def request(self, client: int, sequence: int) -> int | None:
        """The version that this write of that client got, or the number of its refusal; None: neither is known."""

    def settled(self, client: int) -> int:
        """All writes of that client below this one have their answers; nothing is remembered of them."""


@value()
class NativeWrite:
    """One ``Op`` of a ``Put``."""

    key: ItemKey
    op: Op
    map_name: bytes


@value()
class Acquire:
    """A lock is wanted; ``until_ms``: how long its client waits for it."""

    name: bytes
    lease_ms: int
    until_ms: int


@value()
class Give:
    """A lock is given back."""

    name: bytes
    code: int


@value()
class Prolong:
    """A lease is to begin anew."""

    name: bytes
    code: int
    lease_ms: int


What = SetCommand | NativeWrite | Acquire | Give | Prolong


@value()
class Outcome:
    """How a write ended. ``version``: of the item or lock now, or -1; ``lock_code``: what the lock is had under.

    Without a record it says something of what is there now, as a read does (``reveals``).
    """

    code: int
    version: int = NO_VERSION
    text: str = ""
    lock_code: int = 0
    remembered: bool = False
    """It was refused before, and the log says so."""


@value()
class Waits:
    """The lock is somebody else's: try again when that changes."""


def reveals(outcome: Outcome) -> bool:
    """Whether it tells what is there now, so that only the owner may say it. What has happened once is true for ever:
    that a repeated write was done (OK), or refused (``WriteRefused``)."""
    return outcome.code != FailCode.OK and not outcome.remembered


def must_be_kept(outcome: Outcome, request: RequestId, repeated: bool, settled: int) -> bool:
    """Whether the refusal of a write has to be in the log before its client may have it: of one that was sent before, a
    copy may come later, when nothing is in its way any more, and change what others have written since."""
    return repeated and request.client != 0 and reveals(outcome) and not is_stale(request, settled)


def is_over(deadline_ms: int, now_ms: int) -> bool:
    """Whether what ends at ``deadline_ms`` (0 = never) has ended."""
    return 0 < deadline_ms <= now_ms


def visible(item: Item | None, now_ms: int) -> Item | None:
    """The item as everybody is to see it: None once it has expired. That it is gone is told once the log says so."""
    return None if item is None or is_over(item.deadline_ms, now_ms) else item


def visible_of_hash(known: KnownItems, map_hash: int, key_hash: int, now_ms: int) -> list[tuple[ItemKey, Item]]:
    """What everybody is to see of one hash; of several items two or more."""
    limit = 2
    while True:
        there = known.items_of_hash(map_hash, key_hash, limit)
        found = [(key, item) for key, item in there if visible(item, now_ms) is not None]
        if len(found) > 1 or len(there) < limit:
            return found
        limit *= 4  # what has expired may be before what has not


def over_of_hash(known: KnownItems, map_hash: int, key_hash: int, now_ms: int) -> list[tuple[ItemKey, int]]:
    """(key, version) of the items whose deadline is over, though the log does not say so; of very many only some."""
    there = known.items_of_hash(map_hash, key_hash, _SOME)
    return [one for key, item in there for one in over_of(key, item, now_ms)]


def over_of(key: ItemKey, item: Item | None, now_ms: int) -> list[tuple[ItemKey, int]]:
    """The same of one item, if it is there."""
    return [(key, item.version)] if item is not None and is_to_be_said(item, now_ms) else []


def is_to_be_said(item: Item, now_ms: int) -> bool:
    """Whether the log has to say that it has expired before anybody is told that it is not there."""
    return is_over(item.deadline_ms, now_ms)


def is_free(lock: LockHeld | None, now_ms: int) -> bool:
    """Whether the lock can be had."""
    return lock is None or is_over(lock.deadline_ms, now_ms)


def same_map(item: Item, map_name: bytes) -> bool:
    """False if two maps of one hash have met. Who says no name (the document's clients) means any."""
    return not item.map_name or not map_name or item.map_name == map_name


def collides(there: Sequence[tuple[ItemKey, Item]], name: bytes, now_ms: int) -> bool:
    """Whether an item of another name has this hash: its readers, who know only the hash, would be given the wrong
    one (D10)."""
    return any(key.name != name and visible(item, now_ms) is not None for key, item in there)


def refused_size(name: bytes, map_name: bytes, data: bytes, max_value_bytes: int) -> str:
    """Why a name or a value is too long; empty = it is not."""
    if len(name) > MAX_NAME_BYTES:
        return f"a name has at most {MAX_NAME_BYTES} bytes, not {len(name)}"
    if len(map_name) > MAX_MAP_NAME_BYTES:
        return f"a map's name has at most {MAX_MAP_NAME_BYTES} bytes, not {len(map_name)}"
    if len(data) > max_value_bytes:
        return f"a value has at most {max_value_bytes} bytes, not {len(data)}; store it elsewhere and keep its address"
    return ""


def decide(
    what: What, request: RequestId, known: Known, now_ms: int, random16: Callable[[], int]
) -> Record | Outcome | Waits:
    """The record to append, or how the write ends without one, or that it has to wait."""
    if request.client:
        version = known.request(request.client, request.sequence)
        if version is not None:
            return _repeated(what, known, version)
        if is_stale(request, known.settled(request.client)):
            return Outcome(FailCode.CONFLICT, text="its client has had the answer to this write long ago")
    match what:
        case NativeWrite():
            return _native(what, request, known, now_ms)
        case SetCommand():
            return _foreign_set(what, known, now_ms)
        case Acquire(name, lease_ms, until_ms):
            if is_free(known.lock(name), now_ms):
                return Lock(name, random16(), now_ms + lease_ms, 0, request, now_ms)
            return Waits() if now_ms < until_ms else Outcome(FailCode.CONFLICT)
        case Give(name, code):
            if not _had(known.lock(name), code, now_ms):
                return Outcome(FailCode.CONFLICT)
            return Unlock(name, code, request, now_ms)
        case Prolong(name, code, lease_ms):
            if not _had(known.lock(name), code, now_ms):
                return Outcome(FailCode.CONFLICT)
            return Lock(name, 0, now_ms + lease_ms, code, request, now_ms)


def is_stale(request: RequestId, settled: int) -> bool:
    """Whether nobody waits for this write any more: a copy of it that was held up somewhere while its client has
    repeated it and gone on. What became of it is not remembered, and done now it would come after later ones."""
    return request.sequence < settled


def _had(lock: LockHeld | None, code: int, now_ms: int) -> bool:
    return lock is not None and lock.code == code and not is_free(lock, now_ms)


def _repeated(what: What, known: Known, version: int) -> Outcome:
    """The write has happened: its answer was lost. What it was answered then, as far as that is still so."""
    if version < 0:
        code, there = refusal_of(version)
        return Outcome(code, there, remembered=True)
    if isinstance(what, Acquire | Prolong):
        lock = known.lock(what.name)
        wanted = lock is not None and (lock.code >> 16 == version or getattr(what, "code", 0) == lock.code)
        return Outcome(FailCode.OK, version, "", lock.code) if lock and wanted else Outcome(FailCode.CONFLICT)
    return Outcome(FailCode.OK, version)


def _native(write: NativeWrite, request: RequestId, known: Known, now_ms: int) -> Record | Outcome:
    key, op = write.key, write.op
    if op.kind == OpKind.SET and op.expected == ANY_VERSION and not write.map_name:  # whatever is there
        return _set_of(write, request, now_ms)
    item = visible(known.item(key), now_ms)
    if item is not None and not same_map(item, write.map_name):
        return Outcome(FailCode.COLLISION, NO_VERSION, "another map has the same hash and an item of this name")
    version = NO_VERSION if item is None else item.version
    if not expected(op, version):
        return Outcome(FailCode.CONFLICT, version)
    if op.kind == OpKind.SET:
        return _set_of(write, request, now_ms)
    if item is None:
        return Outcome(FailCode.MISSING)
    if op.kind == OpKind.DELETE:
        return Delete(key, request, now_ms)
    return Touch(key, _deadline(op, now_ms), request, now_ms)


def _set_of(write: NativeWrite, request: RequestId, now_ms: int) -> Set:
    op = write.op
    return Set(write.key, op.type, op.data, _deadline(op, now_ms), write.map_name, request, now_ms)


def _deadline(op: Op, now_ms: int) -> int:
    return min(now_ms + op.expires_ms, MOST_DEADLINE_MS) if op.expires_ms else 0


def expected(op: Op, version: int) -> bool:
    """Whether the item is as the writer wants it to be; ``version`` NO_VERSION: there is none."""
    if op.expected == ANY_VERSION:
        return True
    return version == (NO_VERSION if op.expected == ABSENT else op.expected)


def _foreign_set(command: SetCommand, known: Known, now_ms: int) -> Record | Outcome:
    if collides(visible_of_hash(known, command.map_hash, command.key_hash, now_ms), command.name, now_ms):
        text = "another name has the same hash; nothing was changed"
        return Outcome(FailCode.COLLISION, NO_VERSION, text)
    key = ItemKey(command.map_hash, command.key_hash, command.name)
    deadline_ms = now_ms + 1000 * command.expires_s if command.expires_s else 0
    item = known.item(key)
    map_name = b"" if item is None else item.map_name
    return Set(key, command.type, command.data, deadline_ms, map_name, NOBODYS, now_ms)
