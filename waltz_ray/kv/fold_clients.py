"""What is remembered of native clients' requests, so that a write which is repeated is not done twice. Pure.

Of each client: what it has *settled*, the minute of its last write by the clock of the records, and the version of
each write that is not settled; of one that was refused a number below 0, which says how (``refused_number``). It is
forgotten ten minutes after its last write. It is not kept in the items: another write of the same item would take it
away, between a write and its repetition.

All of it is in memory, for every write asks and changes it; who keeps it in a file writes what ``taken_changes`` says.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator

__all__ = [
    "FORGOTTEN_MINUTES",
    "MOST_REFUSED_VERSION",
    "Clients",
    "client_key",
    "is_forgotten",
    "is_settled",
    "last_write_ms",
    "refusal_of",
    "refused_number",
]

FORGOTTEN_MINUTES = 10
"""After its last write a client's requests are remembered so long, and for up to a minute more."""

MOST_REFUSED_VERSION = (1 << 54) - 1
"""An item's version that a refusal can name."""

_MINUTE_MS = 60_000
_CLIENT_BYTES, _REQUEST_BYTES = 24, 16
_KEY = struct.Struct(">Q")
_HEAD = struct.Struct(">QQ")  # settled, minute
_REQUEST = struct.Struct(">Qq")
_NEVER = 1 << 64


def is_forgotten(minute: int, now_minute: int) -> bool:
    """Whose last write was in ``minute``: is it gone?"""
    return minute + FORGOTTEN_MINUTES < now_minute


def is_settled(sequence: int, settled: int) -> bool:
    """Has the client its answer?"""
    return sequence < settled


def refused_number(code: int, version: int) -> int:
    """In place of the version that a write got: it was refused with that code, a byte, and an item's version or -1."""
    return -1 - ((version + 1) << 8 | code)


def refusal_of(number: int) -> tuple[int, int]:
    """Code and version of ``refused_number``."""
    found = -1 - number
    return found & 0xFF, (found >> 8) - 1


def last_write_ms(entry: bytes) -> int:
    """When a client has written last, to the minute; milliseconds since 1970."""
    minute: int = _HEAD.unpack_from(entry)[1]
    return minute * _MINUTE_MS


def client_key(client: int) -> bytes:
    """What a client's entry is found under; in the order of the numbers."""
    return _KEY.pack(client)


class _Client:
    """What is known of one; ``requests``: sequence -> version, and ``sequences``: a heap of these."""

    __slots__ = ("minute", "requests", "sequences", "settled")

    def __init__(self, settled: int, minute: int) -> None:
        self.settled = settled
        self.minute = minute
        self.requests: dict[int, int] = {}
        self.sequences: list[int] = []


class Clients:
    """Of one partition. ``entries``: (key, entry) of all, as ``taken_changes`` has said them."""

    def __init__(self, entries: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._known: dict[int, _Client] = {}
        self._changed: set[int] = set()
        self._oldest = _NEVER  # no client's last write was in an earlier minute
        for key, entry in entries:
            self._merge(key, entry)
        self._changed.clear()

    # ---- looking

    def request(self, client: int, sequence: int) -> int | None:
        """The version that this write got, or the number of its refusal; None: it is not known, or settled, or
        forgotten."""
        known = self._known.get(client)
        return None if known is None else known.requests.get(sequence)

    def settled(self, client: int) -> int:
        """All its writes below this one have their answers; 0: it is not known."""
        known = self._known.get(client)
        return 0 if known is None else known.settled

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Key and entry of each client, in their order: what a chunk says of it. They may change meanwhile."""
        for client in sorted(self._known):
            if (known := self._known.get(client)) is not None:
                yield client_key(client), _entry(known)

    def taken_changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Key and entry, None for one that was forgotten, of each that has changed since the last time."""
        changed, self._changed = self._changed, set()
        for client in sorted(changed):
            known = self._known.get(client)
            yield client_key(client), None if known is None else _entry(known)

    # ---- changing; each says by how many bytes the state has grown

    def remember(self, request: tuple[int, int, int], version: int, at_ms: int) -> int:
        """A write of a client, (client, sequence, settled), got ``version``."""
        client, sequence, settled = request
        grown = self._seen(client, settled, at_ms // _MINUTE_MS)
        return grown + self._add(self._known[client], sequence, version)

    def merge(self, key: bytes, entry: bytes) -> int:
        """What a chunk has of a client; it may have been forgotten and have come back."""
        known = self._known.get(_KEY.unpack(key)[0])
        if known is not None and is_forgotten(_HEAD.unpack_from(entry)[1], known.minute):
            return 0
        return self._merge(key, entry)

    def forget_idle(self, now_ms: int) -> int:
        """Forget who has not written for long."""
        now_minute = now_ms // _MINUTE_MS
        if not is_forgotten(self._oldest, now_minute):
            return 0
        grown = 0
        for client in [client for client, known in self._known.items() if is_forgotten(known.minute, now_minute)]:
            grown -= _CLIENT_BYTES + _REQUEST_BYTES * len(self._known.pop(client).requests)
            self._changed.add(client)
        self._oldest = min((known.minute for known in self._known.values()), default=_NEVER)
        return grown

    def _merge(self, key: bytes, entry: bytes) -> int:
        (client,) = _KEY.unpack(key)
        settled, minute = _HEAD.unpack_from(entry)
        grown = self._seen(client, settled, minute)
        known = self._known[client]
        for sequence, version in _REQUEST.iter_unpack(entry[_HEAD.size :]):
            grown += self._add(known, sequence, version)
        return grown

    def _seen(self, client: int, settled: int, minute: int) -> int:
        """Raise what is known of a client."""
        self._changed.add(client)
        known = self._known.get(client)
        if known is None:
            self._known[client] = _Client(settled, minute)
            self._oldest = min(self._oldest, minute)
            return _CLIENT_BYTES
        if minute > known.minute:
            known.minute = minute
        if settled <= known.settled:
            return 0
        known.settled = settled
        before, sequences = len(known.requests), known.sequences
        while sequences and is_settled(sequences[0], settled):
            del known.requests[heapq.heappop(sequences)]
        return _REQUEST_BYTES * (len(known.requests) - before)

    @staticmethod
    def _add(known: _Client, sequence: int, version: int) -> int:
        if is_settled(sequence, known.settled):
            return 0
        stored = known.requests.get(sequence)
        if stored is None:
            known.requests[sequence] = version
            heapq.heappush(known.sequences, sequence)
            return _REQUEST_BYTES
        if version < stored:
            known.requests[sequence] = version
        return 0


def _entry(known: _Client) -> bytes:
    requests = [_REQUEST.pack(sequence, version) for sequence, version in sorted(known.requests.items())]
    return b"".join((_HEAD.pack(known.settled, known.minute), *requests))
