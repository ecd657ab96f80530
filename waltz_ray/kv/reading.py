"""Reads: from the state and what is fresh, under the lease or with a proof from the log. Pure.

The lease is looked at when the answer leaves (``AnswerRead``): a process that was paused in between has none any more.
Who has no lease appends a BARRIER: its commit proves that the units were ours after the reads had come. Not that they
are when we hear of it: so what has expired is asked as of the time when the proof was sought. Another owner may have
given an item a later deadline since.

A read of one item or of several does not find it missing because its deadline is over, but once the log says that it
has expired (``Expiry.say_first``). A scan says what is there by the owner's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from waltz_ray.kv import answers
from waltz_ray.kv.keeper_types import Answer, AnswerRead, KeeperLimits, Serving
from waltz_ray.kv.lines import Line, LineKey, PendingRead, PendingWrite
from waltz_ray.kv.messages import (
    DataString,
    FailCode,
    Get,
    GetMany,
    Reply,
    ScanCommand,
    Scanned,
    Seen,
    SeenMany,
)
from waltz_ray.kv.model import BARRIER, ItemKey
from waltz_ray.kv.orders import Orders
from waltz_ray.kv.routing import Unit, fnv1a_32, partition_of
from waltz_ray.kv.rules import over_of, over_of_hash, visible, visible_of_hash
from waltz_ray.kv.scanning import scanned
from waltz_ray.kv.state import KvState

__all__ = ["Reads"]

ReadCommand = Get | GetMany | ScanCommand


class _Proof:
    """A BARRIER on its way: reads that wait for it, each with the attempt it was in."""

    def __init__(self, reads: Reads, unit: Unit, waiting: list[tuple[PendingRead, int]]) -> None:
        self._reads = reads
        self.unit = unit
        self.waiting = waiting
        self.next: list[tuple[PendingRead, int]] = []
        """They came when it was on its way: it says nothing about them."""

    def committed(self, version: int) -> None:
        self._reads.proven(self)

    def refused(self, partition: int, conflict: int) -> None:
        self._reads.not_proven(self, lambda read: self._reads.after(partition, conflict, read))

    def lost(self, reason: str) -> None:
        text = f"the log does not answer: {reason}"
        self._reads.not_proven(self, lambda read: self._reads.orders.fail(read.token, FailCode.NOT_READY, text))


class Reads:
    """``send_on``: what becomes of a read whose bucket is not served here; ``after``: goes on with one once the state
    of the partition has a transaction; ``say_first``: once the log says that these items have expired."""

    def __init__(
        self,
        orders: Orders,
        states: Mapping[int, KvState],
        lines: Mapping[LineKey, Line],
        serving: Serving,
        limits: KeeperLimits,
        send_on: Callable[[PendingWrite | PendingRead], None],
        after: Callable[[int, int, PendingWrite | PendingRead], None],
        say_first: Callable[[Mapping[Unit, Sequence[tuple[ItemKey, int]]], PendingRead], None],
    ) -> None:
        self.orders = orders
        self.after = after
        self._say_first = say_first
        self._states = states
        self._lines = lines
        self._serving = serving
        self._limits = limits
        self._send_on = send_on
        self._proofs: dict[Unit, _Proof] = {}

    def begin(self, token: int, connection: int, command: ReadCommand) -> None:
        """A command that reads has come."""
        match command:
            case Get(_, _, key_hash):
                self.go_on(PendingRead(token, connection, command, key_hash))
            case GetMany(_, names):
                if 0 < len(names) <= self._limits.max_batch:
                    self.go_on(PendingRead(token, connection, command, fnv1a_32(names[0])))
                else:
                    text = f"a batch has 1 to {self._limits.max_batch} names, not {len(names)}"
                    self.orders.fail(token, FailCode.BAD_REQUEST, text)
            case ScanCommand(partition, limit=limit):
                if 0 < limit <= self._limits.max_batch and 0 <= partition < self.orders.partitions:
                    self.go_on(PendingRead(token, connection, command, partition))
                else:
                    text = (
                        f"a page has 1 to {self._limits.max_batch} items of a partition below {self.orders.partitions}"
                    )
                    self.orders.fail(token, FailCode.BAD_REQUEST, text)

    def go_on(self, read: PendingRead) -> None:
        """Answer it, unless it has to wait for a write of its own connection."""
        found = self._found(read, self.orders.now_ms)
        if found is not None and self._fits(found):
            self.orders.effects.append(found)

    def _fits(self, found: AnswerRead) -> bool:
        """Whether it may be held beside the other answers of this step, until all are sent; else it is refused."""
        size, orders = _value_bytes(found.reply), self.orders
        if size and orders.read_bytes and orders.read_bytes + size > self._limits.step_bytes:
            orders.fail(found.token, FailCode.TOO_MANY, "much is being read at the same time; ask again later")
            return False
        orders.read_bytes += size
        return True

    def _found(self, read: PendingRead, now_ms: int) -> AnswerRead | None:
        command = read.command
        if isinstance(command, Get):
            return self._get(read, command, now_ms)
        if isinstance(command, GetMany):
            return self._get_many(read, command, now_ms)
        assert isinstance(command, ScanCommand)
        state = self._states.get(command.partition)
        partitions = self.orders.partitions
        page, units = scanned(command, state, self._lines.values(), self._serving, partitions, now_ms)
        return AnswerRead(read.token, page, units, read)

    def _get(self, read: PendingRead, get: Get, now_ms: int) -> AnswerRead | None:
        unit = self._serving.unit_of(get.key_hash)
        if unit is None:
            self._send_on(read)
            return None
        line = self._lines.get((get.map_hash, get.key_hash))
        if line is not None and line.is_before(read.connection, now_ms):
            line.queue.append(read)
            return None
        known = self._states[partition_of(get.key_hash, self.orders.partitions)] if line is None else line
        items = [item for _, item in visible_of_hash(known, get.map_hash, get.key_hash, now_ms)]
        if not items and (over := over_of_hash(known, get.map_hash, get.key_hash, now_ms)):
            self._say_first({unit: over}, read)
            return None
        return AnswerRead(read.token, answers.of_get(get, items), (unit,), read)

    def _get_many(self, read: PendingRead, get: GetMany, now_ms: int) -> AnswerRead | None:
        map_hash = fnv1a_32(get.map_name) if get.map_name else 0
        partitions = self.orders.partitions
        seen: list[Seen] = []
        units: set[Unit] = set()
        over: dict[Unit, list[tuple[ItemKey, int]]] = {}
        size = 0
        for name in get.names:
            key_hash = fnv1a_32(name)
            unit = self._serving.unit_of(key_hash)
            if unit is None:
                seen.append(Seen(FailCode.ELSEWHERE))
                continue
            units.add(unit)
            line = self._lines.get((map_hash, key_hash))
            if line is not None and line.is_before(read.connection, now_ms):
                line.queue.append(read)
                return None
            known = self._states[partition_of(key_hash, partitions)] if line is None else line
            key = ItemKey(map_hash, key_hash, name)
            found = known.item(key)
            item = visible(found, now_ms)
            if item is None and (unsaid := over_of(key, found, now_ms)):
                over.setdefault(unit, []).extend(unsaid)
            seen.append(answers.seen(item, get.map_name, now_ms))
            size += len(seen[-1].data)
            if size > self._limits.answer_bytes:  # before more of them is in memory
                text = f"the answer has more than {self._limits.answer_bytes} bytes; ask for fewer at once"
                self.orders.fail(read.token, FailCode.TOO_LONG, text)
                return None
        if over:
            self._say_first(over, read)
            return None
        return AnswerRead(read.token, SeenMany(tuple(seen)), tuple(units), read)

    # ---- without a lease

    def prove(self, read: PendingRead) -> None:
        """Have the log say that its units are ours, each of them; then it is answered."""
        read.attempt += 1
        read.sought_ms = self.orders.now_ms
        read.missing = self._units_of(read)
        read.proven = frozenset(read.missing)
        if not read.missing:
            self._send_on(read)
        for unit in sorted(read.missing):
            proof = self._proofs.get(unit)
            if proof is None:
                self._append(unit, [(read, read.attempt)])
            else:
                proof.next.append((read, read.attempt))

    def proven(self, proof: _Proof) -> None:
        """The barrier is committed."""
        self._over(proof)
        for read, attempt in proof.waiting:
            if read.attempt == attempt:
                read.missing.discard(proof.unit)
                if not read.missing:
                    self._answer_proven(read)

    def not_proven(self, proof: _Proof, then: Callable[[PendingRead], None]) -> None:
        """It is not, or nobody can say."""
        self._over(proof)
        for read, attempt in proof.waiting:
            if read.attempt == attempt:
                read.attempt += 1  # whatever other barriers say
                then(read)

    def _units_of(self, read: PendingRead) -> set[Unit]:
        match read.command:
            case Get(_, _, key_hash):
                hashes = [key_hash]
            case GetMany(_, names):
                hashes = [fnv1a_32(name) for name in names]
            case ScanCommand(partition):
                hashes = list(range(partition, self._serving.mask + 1, self.orders.partitions))
            case _:
                raise AssertionError(f"{read.command} reads nothing")
        return {unit for key_hash in hashes if (unit := self._serving.unit_of(key_hash)) is not None}

    def _append(self, unit: Unit, waiting: list[tuple[PendingRead, int]]) -> None:
        proof = self._proofs[unit] = _Proof(self, unit, waiting)
        self.orders.append(proof, unit, BARRIER)

    def _over(self, proof: _Proof) -> None:
        """The next one, if reads have come meanwhile."""
        del self._proofs[proof.unit]
        waiting = [(read, attempt) for read, attempt in proof.next if read.attempt == attempt]
        if waiting:
            self._append(proof.unit, waiting)

    def _answer_proven(self, read: PendingRead) -> None:
        """What it reads now needs no lease, unless it has come to need other units."""
        read.attempt += 1
        found = self._found(read, read.sought_ms)
        if found is None or not self._fits(found):
            return
        if read.proven.issuperset(found.units):
            self.orders.effects.append(Answer(found.token, found.reply))
        else:
            self.go_on(read)


def _value_bytes(reply: Reply) -> int:
    """Of the values that are read."""
    if isinstance(reply, SeenMany | Scanned):
        return sum(len(item.data) for item in reply.items)
    return len(reply.data) if isinstance(reply, DataString) else 0
