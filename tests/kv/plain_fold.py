"""A fold that keeps dicts and knows nothing of snapshots: what every other one must come to, from wherever it began."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from waltz_ray.kv.fold_clients import refused_number
from waltz_ray.kv.model import (
    Delete,
    Expired,
    Item,
    ItemKey,
    Lock,
    LockHeld,
    Own,
    Ownership,
    Record,
    Release,
    RequestId,
    Set,
    Several,
    Touch,
    Unlock,
    WriteRefused,
)
from waltz_ray.kv.routing import Unit
from waltz_ray.kv.state import KvState

__all__ = ["PlainFold", "assert_equal"]


@dataclass
class PlainFold:
    """The whole log, in order."""

    items: dict[ItemKey, Item] = field(default_factory=dict)
    locks: dict[bytes, LockHeld] = field(default_factory=dict)
    owners: dict[Unit, Ownership] = field(default_factory=dict)
    clients: dict[int, tuple[int, int]] = field(default_factory=dict)
    requests: dict[tuple[int, int], int] = field(default_factory=dict)

    def fold(self, at: int, record: Record) -> None:
        if isinstance(record, Set):
            self.items[record.key] = Item(record.type, record.data, at, record.deadline_ms, record.map_name)
        elif isinstance(record, Delete):
            self.items.pop(record.key, None)
        elif isinstance(record, Touch):
            if item := self.items.get(record.key):
                self.items[record.key] = replace(item, version=at, deadline_ms=record.deadline_ms)
        elif isinstance(record, Several):
            for write in record.writes:
                self.fold(at, write)
        elif isinstance(record, Expired):
            for key, version in record.items:
                if key in self.items and self.items[key].version == version:
                    del self.items[key]
        elif isinstance(record, Lock | Unlock):
            self._lock(at, record)
        elif isinstance(record, Own):
            self.owners[record.unit] = Ownership(record.actor, record.incarnation, record.epoch, at)
        elif isinstance(record, Release):
            self._release(at, record)
        if isinstance(record, WriteRefused):
            self._request(refused_number(record.code, record.version), record.request, record.at_ms)
        if isinstance(record, Set | Delete | Touch | Lock | Unlock):
            self._request(at, record.request, record.at_ms)

    def _lock(self, at: int, record: Lock | Unlock) -> None:
        held = self.locks.get(record.name)
        if isinstance(record, Unlock):
            if held and held.code == record.code:
                del self.locks[record.name]
        elif not record.renewed:
            self.locks[record.name] = LockHeld(at << 16 | record.random, record.deadline_ms)
        elif held and held.code == record.renewed:
            self.locks[record.name] = LockHeld(held.code, record.deadline_ms)

    def _release(self, at: int, record: Release) -> None:
        owner = self.owners.get(record.unit)
        if owner is None:
            owner = Ownership(record.actor, record.incarnation, record.epoch, at)
        if (owner.actor, owner.incarnation, owner.epoch) == (record.actor, record.incarnation, record.epoch):
            self.owners[record.unit] = replace(owner, released=True)

    def _request(self, at: int, request: RequestId, at_ms: int) -> None:
        now = at_ms // 60_000
        self.clients = {who: seen for who, seen in self.clients.items() if not at_ms or now - seen[1] <= 10}
        self._forget()
        client, sequence, settled = request
        if client:
            before, minute = self.clients.get(client, (0, 0))
            self.clients[client] = max(before, settled), max(minute, now)
            self.requests[client, sequence] = at
            self._forget()

    def _forget(self) -> None:
        self.requests = {
            (who, number): version
            for (who, number), version in self.requests.items()
            if who in self.clients and number >= self.clients[who][0]
        }


def assert_equal(state: KvState, plain: PlainFold, clients: int, sequences: int) -> None:
    """``state`` says of everything what ``plain`` has."""
    hashes = {(key.map_hash, key.hash) for key in plain.items}
    for map_hash in range(3):
        wanted = [(key, item) for key, item in plain.items.items() if key.map_hash == map_hash]
        found = state.scan(map_hash, b"", b"", 1 << 30)
        assert sorted(found) == sorted(wanted)
        assert [key.name for key, _ in found] == sorted(key.name for key, _ in wanted)
        for key_hash in (*{key.hash for key in plain.items}, 5):
            of_hash = sorted(entry for entry in wanted if entry[0].hash == key_hash)
            assert state.items_of_hash(map_hash, key_hash) == of_hash[:2]
            assert bool(of_hash) == ((map_hash, key_hash) in hashes)
    for key, item in plain.items.items():
        assert state.item(key) == item
    ends = [(item.deadline_ms, key) for key, item in plain.items.items() if item.deadline_ms]
    assert state.expired(1 << 60, 1 << 30) == [(key, plain.items[key].version) for _, key in sorted(ends)]
    lock_ends = sorted((held.deadline_ms, name) for name, held in plain.locks.items())
    assert state.expired_locks(1 << 60, 1 << 30) == [(name, plain.locks[name].code) for _, name in lock_ends]
    for _, name in lock_ends:
        assert state.lock(name) == plain.locks[name]
    for mask, bucket in ((0xF, 3), (0xFF, 3), (0xFF, 0x13)):
        assert state.ownership(Unit(mask, bucket)) == plain.owners.get(Unit(mask, bucket))
    for client in range(1, clients + 1):
        known = {n: version for n in range(sequences) if (version := state.request(client, n)) is not None}
        assert known == {n: version for (who, n), version in plain.requests.items() if who == client}
