"""Cursors in ZooKeeper: made, found, taken by one owner at a time, moved, given back, deleted.

::

    /<cluster>/store/cursors/<space>/<name>     CursorRecord: positions, epoch, the owner of that epoch
        /lease                                  ephemeral: who has the cursor now, and since when
    /<cluster>/store/holds/cursor.<space>.<name>    of a cursor that holds retention, in the same transactions

Who makes the lease has the cursor while his session lives, and raises the *epoch* before anything else. From then on he
writes the node only in the version that he has written or read himself, and of his epoch. An owner that was paused for
so long that its session has ended may not know it: its next write meets another version, it reads the higher epoch, and
has lost the cursor. A write of his that is under way while the next one raises the epoch comes before that, and is seen
by it, or is refused. The node of a deleted cursor stays, without positions: neither its versions nor its epochs ever
come again, also if a cursor of that name is made anew.

What a crash leaves, step by step:

========================== =======================================================================================
made, not taken            a cursor at its start that nobody has
lease made, epoch not      the lease until the session ends; the epoch is as it was
epoch raised               the same; nobody writes in this epoch any more
applied, not advanced      the positions written last: what follows them comes again to the next owner
advanced, answer lost      positions that its owner finds when it looks, by its own epoch
deleted                    no hold; the node without positions, for ever, and the lease until the session ends
========================== =======================================================================================
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from itertools import islice

from waltz_ray.coordination.api import Watch, ZooKeeper, release
from waltz_ray.coordination.cluster_nodes import to_json
from waltz_ray.coordination.cursor_lease import CursorLease
from waltz_ray.coordination.cursor_nodes import CursorNodes, now_ms
from waltz_ray.errors import (
    CursorLost,
    CursorNotFound,
    CursorTaken,
    InvalidInput,
    NodeExists,
    NoNode,
    Trimmed,
    VersionConflict,
    ZooKeeperUnreachable,
)
from waltz_ray.protocol.cursors import CursorRecord, checked_cursor_name, deleted, taken
from waltz_ray.protocol.spaces import Space
from waltz_ray.runtime.status import CursorStatus

__all__ = ["CursorLooks", "CursorStore", "all_cursors"]

_MOST_BYTES = 768 * 1024  # of the 1 MiB that a node may have
_POSITION_BYTES = 32  # of one in the JSON, whatever it will be
_DELETED_AT_ONCE = 64  # of deleted ones are looked at again with each sparing look


def all_cursors(zookeeper: ZooKeeper, cluster: str, spaces: Iterable[Space]) -> list[CursorStatus]:
    """Those of all these spaces; how far each is behind is for who knows the servers' marks."""
    return CursorLooks(zookeeper, cluster).all(spaces)


class CursorLooks:
    """For one thread that looks at all cursors again and again. The nodes of deleted ones stay, and one of them may be
    made anew: who made and deleted many must not make each look as long as all that there ever were."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper, self._cluster = zookeeper, cluster
        self._deleted: dict[tuple[str, str], None] = {}  # space and name; whom was looked at last is last

    def all(self, spaces: Iterable[Space], sparing: bool = False) -> list[CursorStatus]:
        """As ``all_cursors``. ``sparing``: of those that were deleted when they were looked at last some are looked at
        now, in turn; one of the others that was made anew is not told yet."""
        deleted = dict.fromkeys(islice(self._deleted, _DELETED_AT_ONCE, None) if sparing else ())
        found: list[CursorStatus] = []
        for space in self._with_cursors(spaces):
            store = CursorStore(self._zookeeper, self._cluster, space)
            for name in store.names():
                key = space.name, name
                if key in deleted:
                    continue
                if (status := store.status(name)) is None:
                    deleted[key] = None
                else:
                    found.append(status)
        self._deleted = deleted
        return found

    def _with_cursors(self, spaces: Iterable[Space]) -> list[Space]:
        try:
            named = set(self._zookeeper.children(f"/{self._cluster}/store/cursors"))
        except NoNode:
            return []
        return [space for space in spaces if space.name in named]


class CursorStore:
    """The cursors of ``space``; ``identity`` is what others are told of who has one. For any thread.

    It knows which cursors were taken through it, and nothing else. Every call may raise ZooKeeperUnreachable, after
    which a write may have happened, and CoordinationError for a node whose bytes make no sense.
    """

    def __init__(self, zookeeper: ZooKeeper, cluster: str, space: Space, identity: str = "") -> None:
        self._nodes = CursorNodes(zookeeper, cluster, space)
        self._zookeeper = zookeeper
        self._space = space
        self._identity = identity
        self._lock = threading.Lock()
        self._mine: set[str] = set()
        self._late: dict[str, Watch] = {}  # of leases that are to be deleted when ZooKeeper answers again

    # ---- reading

    def first_ids(self) -> dict[int, int]:
        """Of each partition of the space the first ID that was not trimmed away."""
        return self._nodes.first_ids()

    def all(self) -> list[CursorStatus]:
        """Every cursor of the space, by name; how far each is behind is for who knows the servers' marks."""
        return [status for name in self.names() if (status := self.status(name)) is not None]

    def names(self) -> list[str]:
        """Of every cursor that the space has, or has had."""
        try:
            return self._zookeeper.children(self._nodes.path)
        except NoNode:
            return []

    def status(self, name: str) -> CursorStatus | None:
        """Of one; None: it was deleted."""
        try:
            record, _ = self._nodes.read(name)
        except CursorNotFound:
            return None  # gone since it was listed
        holder = self._nodes.holder(name)
        return CursorStatus(
            space=self._space.name,
            name=name,
            positions=record.positions,
            holds_retention=record.holds_retention,
            epoch=record.epoch,
            owner=holder[0] if holder else None,
            since_ms=holder[1] if holder else None,
            changed_ms=record.changed_ms,
        )

    def when_free(self, name: str, callback: Callable[[], None]) -> Callable[[], None]:
        """``callback``, from a thread of ZooKeeper's, when nobody has the cursor, perhaps often. What ends it."""
        watch = self._zookeeper.watch_data(
            self._nodes.lease_of(name), lambda data, version: callback() if data is None else None
        )
        return watch.cancel

    # ---- changing

    def create(self, name: str, positions: Mapping[int, int], hold: bool) -> None:
        """Have a cursor of that name: a new one at ``positions``, or the one that is there.

        Trimmed if it is to hold retention from where a partition was trimmed; then it is not made. InvalidInput.
        """
        checked_cursor_name(name)
        if len(positions) * _POSITION_BYTES > _MOST_BYTES:
            raise InvalidInput(f"cursor {name!r}: {len(positions)} partitions are more than a ZooKeeper node holds")
        self._make_parents()
        while True:
            before, version = self._nodes.read_any(name)
            if not before.deleted:
                return
            record = replace(before, positions=dict(positions), holds_retention=hold, changed_ms=now_ms())
            try:
                version = self._nodes.write(name, record, version, moves_back=True)
            except (VersionConflict, NodeExists, NoNode):
                continue  # somebody else has made it, or another hold
            break
        if hold:
            self._check_new(name, record, version)

    def _check_new(self, name: str, record: CursorRecord, version: int) -> None:
        try:
            self._nodes.check_hold(record.positions)
        except Trimmed:
            try:
                self._nodes.write(name, deleted(record, now_ms()), version, moves_back=True)
            except (VersionConflict, NoNode):
                return  # somebody has it already, and is told when he reads
            raise

    def take(self, name: str, hold: bool | None = None) -> CursorLease:
        """Have the cursor, from its next epoch on; ``hold``: whether it is to hold retention, None: as it did.

        CursorTaken, CursorNotFound; ZooKeeperUnreachable: it may be had by nobody until that answers again.
        """
        checked_cursor_name(name)
        with self._lock:
            if name in self._mine:
                raise self._taken(name)
            self._mine.add(name)
        try:
            record, version = self._take(name, hold)
        except BaseException as error:
            self._given_back(name, not isinstance(error, ZooKeeperUnreachable))
            raise
        return CursorLease(self._nodes, name, record, version, lambda free: self._given_back(name, free))

    def _take(self, name: str, hold: bool | None) -> tuple[CursorRecord, int]:
        while True:
            self._make_lease(name)
            try:
                record, version = self._nodes.read(name)
                # After the read: if another has had it since, then in a version that ours is not followed by.
                if not self._is_ours(self._nodes.lease_of(name)):
                    continue
                wanted = taken(record, self._identity, hold, now_ms())
                return wanted, self._nodes.write(name, wanted, version, moves_back=True)
            except (VersionConflict, NodeExists, NoNode):
                continue  # the owner before us has just advanced, or another hold was made
            except BaseException:
                release(self._zookeeper, self._nodes.lease_of(name))
                raise

    def _make_lease(self, name: str) -> None:
        """There is a lease, of our session. CursorTaken, CursorNotFound."""
        path, data = self._nodes.lease_of(name), to_json({"identity": self._identity, "since_ms": now_ms()})
        while True:
            try:
                self._zookeeper.create(path, data, ephemeral=True)
            except NoNode:
                raise self._nodes.not_found(name) from None
            except NodeExists:
                owner = self._zookeeper.owner(path)
                if owner is None:
                    continue  # given back in this moment
                # Ours, if nothing of ours is open: one whose creation, or end, we were not told of.
                if owner != self._zookeeper.session_id:
                    raise self._taken(name) from None
            return

    def delete(self, name: str) -> None:
        """Let go of where the cursor is, and of its hold. CursorTaken while somebody has it; CursorNotFound."""
        lease = self.take(name)
        try:
            lease.delete()
        except CursorLost:
            raise self._taken(name) from None  # in this moment
        finally:
            lease.release()

    def _given_back(self, name: str, free: bool) -> None:
        """Nothing of that name is open here any more. Not ``free``: a lease of ours may be there, for others to wait
        for as long as this process lives; it is deleted when ZooKeeper answers again."""
        with self._lock:
            self._mine.discard(name)
            before = None if free else self._late.pop(name, None)
        if free:
            return
        if before is not None:
            before.cancel()

        seen = False

        def look(data: bytes | None, version: int) -> None:
            nonlocal seen
            if data is not None:
                self._release_late(name)
            with self._lock:
                seen, done = True, self._late.pop(name, None)
            if done is not None:
                done.cancel()

        watch = self._zookeeper.watch_data(self._nodes.lease_of(name), look)
        with self._lock:
            if not seen:  # it may have been at once
                self._late[name] = watch
                return
        watch.cancel()

    def _release_late(self, name: str) -> None:
        """ZooKeeperUnreachable: it is called again after the reconnect."""
        with self._lock:
            if name in self._mine:
                return  # it has been taken again
            self._mine.add(name)  # nor is it meanwhile
        try:
            if self._is_ours(self._nodes.lease_of(name)):
                with suppress(NoNode):  # it went with our session
                    self._zookeeper.delete(self._nodes.lease_of(name))
        finally:
            with self._lock:
                self._mine.discard(name)

    def _is_ours(self, path: str) -> bool:
        return self._zookeeper.owner(path) == self._zookeeper.session_id

    def _taken(self, name: str) -> CursorTaken:
        owner, since_ms = self._nodes.holder(name) or ("somebody who has just finished", now_ms())
        since = datetime.fromtimestamp(since_ms / 1000, timezone.utc)
        return CursorTaken(self._space.name, name, owner, f"{since:%Y-%m-%d %H:%M:%S} UTC")

    def _make_parents(self) -> None:
        if self._zookeeper.exists(self._nodes.path) is None:
            try:
                self._zookeeper.create(self._nodes.path, b"", make_parents=True)
            except NodeExists:
                return
