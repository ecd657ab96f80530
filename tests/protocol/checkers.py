"""What must hold of any run, real or simulated. Each function raises ``Violation`` with one clear line.

A *log* is the list of a replica's records in order: ``log[i]`` is transaction i. ``Sent`` is what a client proposed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from waltz_ray.protocol.records import HEADER_DTYPE, RECORD_HEADER_BYTES

__all__ = [
    "Fate",
    "Key",
    "Sent",
    "Violation",
    "check_fates",
    "check_feed_is_dense",
    "check_flush",
    "check_ids",
    "check_locks",
    "check_no_duplicates",
    "check_no_fork",
    "check_no_loss",
    "check_same_logs",
    "keys_of",
]

Key = tuple[int, int]  # client ID, sequence number


class Violation(AssertionError):
    """A rule of the log is broken."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One proposal: the client's mark and its locks when it was built."""

    client_mark: int
    write: tuple[int, ...] = ()
    read: tuple[int, ...] = ()
    append: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Fate:
    """What a client was told: ``committed`` as ``transaction_id``; or ``failed``, ``lock_failed``, ``rejected``; or
    ``open``: what would have told it was trimmed away."""

    kind: str
    transaction_id: int = -1


def keys_of(log: Sequence[bytes]) -> list[Key]:
    """Who asked for each record."""
    heads = b"".join(bytes(record[:RECORD_HEADER_BYTES]) for record in log)
    fields = np.frombuffer(heads, dtype=HEADER_DTYPE)
    return list(zip(fields["client_id"].tolist(), fields["sequence_number"].tolist(), strict=True))


def check_no_fork(logs: Mapping[int, Sequence[bytes]], committed: Sequence[bytes]) -> None:
    """No replica holds, below its own end, another record than the committed one *that it vouches for*."""
    for name, log in logs.items():
        for transaction_id, (mine, true) in enumerate(zip(log, committed, strict=False)):
            if mine != true:
                raise Violation(f"fork: replica {name} holds another record at {transaction_id}")


def check_no_loss(log: Sequence[bytes], committed: Sequence[bytes]) -> None:
    """Everything that any server ever counted as committed is in the log."""
    if len(log) < len(committed):
        raise Violation(f"loss: {len(committed)} were committed, the log has {len(log)}")
    check_no_fork({-1: log}, committed)


def check_same_logs(logs: Mapping[int, Sequence[bytes]]) -> None:
    """All replicas are identical (after healing)."""
    first, *others = logs
    for other in others:
        if list(logs[other]) != list(logs[first]):
            raise Violation(f"replicas {first} and {other} differ: {len(logs[first])} and {len(logs[other])} records")


def check_ids(log: Sequence[bytes]) -> None:
    """IDs are dense from 0."""
    for position, record in enumerate(log):
        transaction_id = int.from_bytes(record[:8], "big", signed=True)
        if transaction_id != position:
            raise Violation(f"gap: the record at {position} has ID {transaction_id}")


def check_no_duplicates(log: Sequence[bytes]) -> None:
    """A ReqId is in the log at most once."""
    seen: dict[Key, int] = {}
    for transaction_id, key in enumerate(keys_of(log)):
        if key in seen:
            raise Violation(f"duplicate: request {key} is at {seen[key]} and at {transaction_id}")
        seen[key] = transaction_id


def check_fates(log: Sequence[bytes], fates: Mapping[Key, Fate]) -> None:
    """Committed ones are in the log at the ID that was told, all the others are not in it."""
    where = {key: transaction_id for transaction_id, key in enumerate(keys_of(log))}
    for key, fate in fates.items():
        found = where.get(key)
        if fate.kind == "committed" and found != fate.transaction_id:
            raise Violation(f"request {key} was told committed at {fate.transaction_id}, the log has it at {found}")
        if fate.kind not in ("committed", "open") and found is not None:
            raise Violation(f"request {key} was told {fate.kind}, the log has it at {found}")


def check_locks(log: Sequence[bytes], sent: Mapping[Key, Sent]) -> None:
    """No transaction is in the log that locks what a later transaction than its client's mark had updated."""
    updated: dict[int, int] = {}
    for transaction_id, key in enumerate(keys_of(log)):
        one = sent[key]
        for lock in (*one.write, *one.read):
            if updated.get(lock, -1) > one.client_mark:
                raise Violation(
                    f"lock {lock}: transaction {transaction_id} of {key} was built at mark {one.client_mark}, "
                    f"but {updated[lock]} updated it"
                )
        for lock in (*one.write, *one.append):
            updated[lock] = transaction_id


def check_feed_is_dense(mark: int, ids: Sequence[int]) -> None:
    """A subscriber that mounted with ``mark`` sees mark + 1, mark + 2, ..."""
    if list(ids) != list(range(mark + 1, mark + 1 + len(ids))):
        raise Violation(f"feed after {mark} brought {list(ids)[:20]}")


def check_flush(log: Sequence[bytes], before: Sequence[Key], high_water_mark: int) -> None:
    """What was appended over the connection before a flush is, if at all, at or below the flush's mark."""
    where = {key: transaction_id for transaction_id, key in enumerate(keys_of(log))}
    for key in before:
        if where.get(key, -1) > high_water_mark:
            raise Violation(f"a flush answered {high_water_mark}, but request {key} before it is at {where[key]}")
