"""What stands in a thread's lock: who has it, and since when. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from waltz_spark.streams.texts import parsed_json, shown

__all__ = ["LockHolder", "decode_holder", "encode_holder"]


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A run: ``token`` is its own, ``since`` is when it took the lock, ISO 8601, UTC, by its own clock."""

    token: str
    host: str
    pid: int
    since: str

    def told(self, now: datetime) -> str:
        """For people, with how long that is."""
        try:
            for_s = f", for {max(0.0, (now - datetime.fromisoformat(self.since)).total_seconds()):.0f} s"
        except (ValueError, TypeError):
            for_s = ""
        return f"process {self.pid} on {shown(self.host)} has the lock since {shown(self.since)}{for_s}"


def encode_holder(holder: LockHolder) -> bytes:
    fields = {"token": holder.token, "host": holder.host, "pid": holder.pid, "since": holder.since}
    return json.dumps(fields).encode()


def decode_holder(data: bytes) -> LockHolder:
    """Of a lock that others made, as much as is known: it is told to people, and decides nothing."""
    try:
        fields = parsed_json(data)
        return LockHolder(str(fields["token"]), str(fields["host"]), int(fields["pid"]), str(fields["since"]))
    except (ValueError, KeyError, TypeError):
        return LockHolder("", "an unknown host", 0, "an unknown time")
