"""Records are given up while everything else goes wrong: in the histories of seeds that have the bit ``TRIMS``.

Somebody raises trim marks by hand, makes holds, moves them and releases them, and changes what the space keeps, which
the servers act on. The checkers look at whole logs: what a replica drops is kept here for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.original_client import OriginalClient
from waltz_ray.errors import Trimmed, VersionConflict
from waltz_ray.protocol import trimming as rules
from waltz_ray.protocol.records import RECORD_OVERHEAD_BYTES
from waltz_ray.protocol.spaces import DEFAULT_SPACE
from waltz_ray.storage.layout import HEADER_BYTES, is_whole

if TYPE_CHECKING:
    from tests.simulation.replica import SimReplica
    from tests.simulation.world import World

__all__ = ["TRIMS", "Trimming"]

TRIMS = 1 << 25

_HOLDS = ("audit", "backup")
_LENGTH_AT = 28  # of a record's data, in its header


class Trimming:
    """The person who gives up records. ``archive``: per partition what replicas have dropped, by ID."""

    def __init__(self, world: World, random: Random) -> None:
        self.world, self.random = world, random
        self.store = world.operator_store
        self.archive: dict[int, dict[int, bytes]] = {}
        self._held: dict[str, dict[int, int]] = {}  # holds that are there, and whose positions nothing may pass

    def begin(self) -> None:
        """Clients of Waltz 0.13 know no word for what was trimmed: what they may need is held."""
        originals = [client for client in self.world.clients if isinstance(client, OriginalClient)]
        if originals:
            self._hold("originals", dict.fromkeys((client.partition_id for client in originals), 0))

    # ---- what is done -----------------------------------------------------------------------------------------

    def trim(self) -> bool:
        """Somebody raises a mark to what is committed, or less. Not of a kv space: its actors do that themselves, up to
        their last snapshot, and what is above it is needed."""
        kv = () if self.world.kv is None else self.world.kv.partitions
        partition_id = self.random.choice([p for p in self.world.living() if p not in kv])
        committed_id = max(self.world.history.committed[partition_id], default=-1)
        if committed_id < 0:
            return False
        mark = rules.highest_mark(committed_id)
        if self.random.random() < 0.7:
            mark = self.random.randint(0, mark)
        self._tell(f"trims partition {partition_id} up to {mark}")
        self.store.trims.raise_marks({partition_id: mark})
        self.check()
        return True

    def change_a_hold(self) -> bool:
        """One is made, moves on or back, or is released."""
        name = self.random.choice(_HOLDS)
        if name in self._held and self.random.random() < 0.3:
            self.check()
            del self._held[name]
            self.store.trims.holds.release(name)
            self._tell(f"releases {name}")
            return True
        positions = {
            p: self.random.randint(0, max(self.world.history.committed[p], default=0))
            for p in self.world.living()
            if self.random.random() < 0.7
        }
        return self._hold(name, positions)

    def _hold(self, name: str, positions: dict[int, int]) -> bool:
        self.check()
        self._held.pop(name, None)
        self._tell(f"holds {positions} for {name}")
        try:
            self.store.trims.holds.hold(name, positions, "somebody needs it")
        except Trimmed as late:
            self._tell(f"{late}")
            return False
        self._held[name] = positions
        return True

    def change_what_is_kept(self) -> bool:
        """The servers raise the marks then."""
        settings: dict[str, int | None] = {"retention_bytes": None, "retention_ms": None}
        kind = self.random.choice([*settings, "everything"])
        if kind != "everything":
            settings[kind] = self.random.choice([0, 500, 2_000, 10_000])
        self._tell(f"keeps {settings}")
        try:
            self.store.spaces.set(DEFAULT_SPACE, settings)
        except VersionConflict:
            return False
        return True

    # ---- what must hold ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """No mark is above what was committed, or what a hold keeps."""
        history = self.world.history
        living = set(self.world.living())
        for p, mark in self.store.trims.marks().items():
            if p not in living:
                continue
            highest = max(history.committed[p], default=-1) + 1
            if mark > highest:
                history.blame("trims", f"partition {p} is trimmed up to {mark}, {highest} are committed")
            for name, positions in self._held.items():
                if mark > positions.get(p, mark):
                    history.blame("trims", f"partition {p} is trimmed up to {mark}, {name} holds {positions[p]}")

    def dropped(self) -> bool:
        """No replica has a closed segment any more of which all records are below the mark."""
        marks = self.store.trims.marks()
        for replica in self.world.replicas:
            for p in self.world.living():
                starts = sorted(self.world.segments(replica, p))
                if rules.segments_below(starts, marks.get(p, 0)):
                    return False
        return True

    def keep(self, replica: SimReplica, partition_id: int, first_id: int, end_id: int) -> None:
        """A replica is about to drop records [first_id, end_id)."""
        archive = self.archive.setdefault(partition_id, {})
        for start, path in sorted(self.world.segments(replica, partition_id).items()):
            if first_id <= start < end_id:
                raw, at, transaction_id = replica.disk.content(path), HEADER_BYTES, start
                while transaction_id < end_id and at + RECORD_OVERHEAD_BYTES <= len(raw):
                    size = int.from_bytes(raw[at + _LENGTH_AT : at + _LENGTH_AT + 4], "big") + RECORD_OVERHEAD_BYTES
                    record = raw[at : at + size]
                    if int.from_bytes(record[:8], "big") != transaction_id or not is_whole(memoryview(record)):
                        break  # it has rotted
                    archive.setdefault(transaction_id, record)
                    at, transaction_id = at + size, transaction_id + 1
        marks = self.store.trims.marks()
        if end_id > marks.get(partition_id, 0):
            self.world.history.blame(
                "trims", f"partition {partition_id}: {replica.host} drops what is before {end_id}, the mark is {marks}"
            )

    def gone(self, partition_id: int, first_id: int, there: Mapping[int, bytes]) -> list[bytes]:
        """The records before ``first_id``, which a replica has no more, or never had: it was copied from where the log
        began by then. ``there``: what any replica has. What a session found when it began, nobody was told to be
        committed, and nobody may have dropped it yet."""
        committed, archive = self.world.history.committed[partition_id], self.archive.get(partition_id, {})
        found: list[bytes] = []
        for transaction_id in range(first_id):
            record = committed.get(transaction_id, archive.get(transaction_id, there.get(transaction_id)))
            if record is None:
                self.world.history.blame("trims", f"partition {partition_id}: nobody ever had {transaction_id}")
                return found
            found.append(record)
        return found

    def _tell(self, what: str) -> None:
        self.world.story.tell("operator", what)
