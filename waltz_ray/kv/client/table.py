"""Which actor has which bucket, as far as a client has been told. Pure.

The actors announce what they have (hashmasks 110, hashmask 120), and send on whom they cannot serve (tryelsewhere 4).
All of that may be old news when it arrives. A wrong entry costs a detour, never a wrong answer: only the owner answers.
"""

from __future__ import annotations

from waltz_ray.errors import WireError
from waltz_ray.kv.messages import Hashmask, Hashmasks
from waltz_ray.kv.routing import MASKS, expanded

__all__ = ["RouteTable"]


class RouteTable:
    """``mask + 1`` entries: the server (``host:port``) of each bucket, None where nobody is known to have it."""

    def __init__(self) -> None:
        self._owners: list[str | None] = [None] * (MASKS[0] + 1)

    @property
    def mask(self) -> int:
        """The largest that was announced."""
        return len(self._owners) - 1

    def owner(self, key_hash: int) -> str | None:
        """Whom to ask about an item."""
        return self._owners[key_hash & self.mask]

    def owners(self) -> list[str | None]:
        """Of every bucket under ``mask``."""
        return list(self._owners)

    def announced(self, server: str, message: Hashmasks) -> set[str]:
        """``server`` has these and no others; who had some of them. WireError: there is no such mask or bucket."""
        primaries: set[int] = set()
        before: set[str] = set()
        for bucket, instance in message.buckets:
            entries = self._entries(message.mask, bucket)
            if instance == 0:
                primaries.update(entries)
        for entry, owner in enumerate(self._owners):
            if entry in primaries:
                if owner is not None:
                    before.add(owner)
                self._owners[entry] = server
            elif owner == server:
                self._owners[entry] = None
        return before - {server}

    def changed(self, server: str, message: Hashmask) -> set[str]:
        """``server`` has this one now, or, instance other than 0, does not serve it any more; who had it before.

        WireError."""
        before: set[str] = set()
        for entry in self._entries(message.mask, message.bucket):
            owner = self._owners[entry]
            if message.instance == 0:
                if owner is not None:
                    before.add(owner)
                self._owners[entry] = server
            elif owner == server:
                self._owners[entry] = None
        return before - {server}

    def redirected(self, key_hash: int, server: str) -> None:
        """Somebody says that ``server`` has it."""
        self._owners[key_hash & self.mask] = server

    def doubted(self, key_hash: int, server: str) -> None:
        """``server`` says that it has it not, or cannot be reached."""
        if self._owners[key_hash & self.mask] == server:
            self._owners[key_hash & self.mask] = None

    def _entries(self, mask: int, bucket: int) -> range:
        """The entries that are this bucket; the table grows with the mask, a coarser bucket is several entries."""
        if mask not in MASKS or not 0 <= bucket <= mask:
            raise WireError(f"there is no bucket 0x{bucket:X} under mask 0x{mask:X}")
        if mask > self.mask:
            self._owners = expanded(self._owners, mask)
        return range(bucket, len(self._owners), mask + 1)
