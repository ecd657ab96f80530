"""The nodes of ownership in ZooKeeper, of one space of one layer: who is there, and who should have which unit.

::

    /<cluster>/store/units/<layer>/<space>
        /table                       who should have which unit: the manager writes it, by compare-and-set
        /members/<actor>             where the actor listens, and its incarnation; ephemeral
        /members/<actor>.leaving     the actor shuts down: it is to get nothing more; ephemeral

What makes an incarnation: every creation of an actor's node has a new one, and none comes twice. An actor creates its
node only where there is none: that of a predecessor goes with his session, or the manager removes it because nobody
listens there any more. So whoever finds an incarnation gone knows that nobody holds a lease under it.

Crash story. A registration ends with its session. A lost answer to a creation is recognised by the incarnation that was
tried and by the node's session; a lost answer to a contact makes its version unknown: it is read before the next one.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

from waltz_ray.coordination.api import ConnectionState, Watch, ZooKeeper, release
from waltz_ray.coordination.cluster_nodes import naming, to_fields, to_json
from waltz_ray.errors import NodeExists, NoNode, VersionConflict
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.ownership_types import (
    LeaseConfirmed,
    RegisteredAs,
    Splitting,
    UnitPlace,
    UnitTable,
    Unregistered,
)

__all__ = ["UnitMember", "UnitRegistration", "UnitStore", "incarnations"]

U = TypeVar("U", bound=Hashable)

Told = Callable[[RegisteredAs | Unregistered], None]


class UnitMember(NamedTuple):
    """A registered actor: where it listens for this space. ``leaving``: it shuts down."""

    endpoint: Endpoint
    incarnation: str
    leaving: bool = False


class UnitStore(Generic[U]):
    """The nodes of ``space``. Holds no state.

    Every call may raise ZooKeeperUnreachable, and CoordinationError for a node whose bytes make no sense.
    """

    def __init__(self, zookeeper: ZooKeeper, cluster: str, layer: str, space: str, splitting: Splitting[U]) -> None:
        self._zookeeper = zookeeper
        self._root = f"/{cluster}/store/units/{layer}/{space}"
        self._table, self._members = self._root + "/table", self._root + "/members"
        self._splitting = splitting

    # ---- the table

    def table(self) -> tuple[UnitTable[U] | None, int]:
        """The table and its node's version; (None, -1) if there is none yet."""
        try:
            data, version = self._zookeeper.get(self._table)
        except NoNode:
            return None, -1
        return self._of_node(data), version

    def set_table(self, table: UnitTable[U], version: int) -> int:
        """Write it where the node has ``version`` (-1: where there is none): the new version. VersionConflict.

        After ZooKeeperUnreachable it may have happened.
        """
        data = self._to_node(table)
        if version >= 0:
            try:
                return self._zookeeper.set(self._table, data, version)
            except NoNode as error:
                raise VersionConflict(f"ZooKeeper node {self._table} is gone; read it again") from error
        try:
            self._zookeeper.create(self._table, data, make_parents=True)
        except NodeExists as error:
            raise VersionConflict(f"ZooKeeper node {self._table} was made by somebody else; read it again") from error
        return 0

    def watch_table(self, callback: Callable[[UnitTable[U] | None], None]) -> Watch:
        """``callback`` now and after each change."""

        def changed(data: bytes | None, version: int) -> None:
            callback(None if data is None else self._of_node(data))

        return self._zookeeper.watch_data(self._table, changed)

    def _to_node(self, table: UnitTable[U]) -> bytes:
        places = [table.places[unit] for unit in self._splitting.units(table.level)]
        return to_json({"level": table.level, "places": [list(place) for place in places]})

    def _of_node(self, data: bytes) -> UnitTable[U]:
        fields = to_fields(self._table, data)
        with naming(self._table):
            level = int(fields["level"])
            units = self._splitting.units(level)
            places = [UnitPlace(*map(_number, place)) for place in fields["places"]]  # type: ignore[arg-type]
            return UnitTable(level, dict(zip(units, places, strict=True)))

    # ---- members

    def register(self, actor: int, endpoint: Endpoint, told: Told, clock: Callable[[], float]) -> UnitRegistration:
        """Keep ``actor`` registered, through expired sessions, until ``cancel()`` (see UnitRegistration)."""
        self._make_members()
        return UnitRegistration(self._zookeeper, f"{self._members}/{actor}", endpoint, told, clock)

    def members(self) -> dict[int, UnitMember]:
        """Who is registered, by actor."""
        try:
            names = self._zookeeper.children(self._members)
        except NoNode:
            return {}
        return self._read(names)

    def confirmed_members(self) -> dict[int, UnitMember]:
        """``members``, sure to show all that was written before this was called, whichever server we talk to."""
        self._make_members()
        self._zookeeper.set(self._members, b"", -1)  # who has answered a write has heard of all before it
        return self.members()

    def watch_members(self, callback: Callable[[dict[int, UnitMember]], None]) -> Watch:
        """``callback`` now and whenever somebody comes, goes, or begins to leave."""
        return self._zookeeper.watch_children(self._members, lambda names: callback(self._read(names)))

    def remove(self, actor: int, incarnation: str) -> None:
        """Delete the registration of an actor *whose process is known to be gone*; of no later one. Idempotent.

        Whoever lives holds a lease under it: to remove that would let another take its units while it serves them.
        """
        path = f"{self._members}/{actor}"
        try:
            data, version = self._zookeeper.get(path)
            if _to_member(path, data, False).incarnation == incarnation:
                self._zookeeper.delete(path, version)
        except (NoNode, VersionConflict):  # VersionConflict: somebody writes it: he lives
            return

    def _make_members(self) -> None:
        if self._zookeeper.exists(self._members) is None:
            try:
                self._zookeeper.create(self._members, b"", make_parents=True)
            except NodeExists:
                return

    def _read(self, names: list[str]) -> dict[int, UnitMember]:
        found: dict[int, UnitMember] = {}
        for name in names:
            path = f"{self._members}/{name}"
            if not name.isdecimal():
                continue
            try:
                found[int(name)] = _to_member(path, self._zookeeper.get(path)[0], f"{name}.leaving" in names)
            except NoNode:
                continue  # gone since it was listed
        return found


class UnitRegistration:
    """An actor's node. ``told`` hears when it is there, under which incarnation, and when it may be gone, in order,
    from ZooKeeper's threads or from that which calls ``contact``; it must not block."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        path: str,
        endpoint: Endpoint,
        told: Told,
        clock: Callable[[], float],
        new_incarnation: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        """``clock``: seconds, also of time in which the machine sleeps: what the lease is counted by."""
        self._zookeeper, self._path, self._endpoint = zookeeper, path, endpoint
        self._told, self._clock, self._new_incarnation = told, clock, new_incarnation
        self._lock = threading.RLock()
        self._tried = ""  # the incarnation of the last creation
        self._registered = False
        self._session = 0  # in which the node was made
        self._version: int | None = None  # None: unknown
        self._over = self._leaving = False
        self._states = zookeeper.on_state(self._state_changed)
        self._watch = zookeeper.watch_data(path, self._changed)

    @property
    def incarnation(self) -> str | None:
        """Under which we are registered, as far as we know; None: we are not."""
        return self._tried if self._registered else None

    def contact(self) -> LeaseConfirmed | None:
        """Renew the lease, blocking: what is confirmed then; None while we are not registered.

        ZooKeeperUnreachable: nothing is confirmed.
        """
        with self._lock:
            if not self._registered or self._over or self._session != self._zookeeper.session_id:
                return None
            incarnation, version, sent_at_s = self._tried, self._version, self._clock()
            try:
                if version is None:
                    data, version = self._zookeeper.get(self._path)
                    if not self._is_ours(data):
                        self._lose()
                        return None
                self._version = None
                self._version = self._zookeeper.set(self._path, self._data(incarnation), version)
            except (NoNode, VersionConflict):
                self._lose()
                self._look()
                return None
            # Of a later session it could be a successor's node that happened to have our version.
            return LeaseConfirmed(incarnation, sent_at_s) if self._session == self._zookeeper.session_id else None

    def leave(self) -> None:
        """Say that we shut down: we are to get nothing more, and what we have is to be given to others. Idempotent."""
        with self._lock:
            self._leaving = True
            self._say_leaving()

    def cancel(self) -> None:
        """Delete the node: nothing may be read under its lease any more. If ZooKeeper cannot be reached, it goes with
        the session. Idempotent."""
        with self._lock:
            if self._over:
                return
            self._over = True
            self._lose()
            self._watch.cancel()
            self._states.cancel()
            release(self._zookeeper, f"{self._path}.leaving")
            release(self._zookeeper, self._path)

    # ----

    def _data(self, incarnation: str) -> bytes:
        return to_json({"host": self._endpoint.host, "port": self._endpoint.port, "incarnation": incarnation})

    def _is_ours(self, data: bytes) -> bool:
        """Whether it is what we have made last, in this session."""
        mine = self._tried and _to_member(self._path, data, False).incarnation == self._tried
        return bool(mine) and self._zookeeper.owner(self._path) == self._zookeeper.session_id

    def _lose(self) -> None:
        if self._registered:
            self._registered, self._version = False, None
            self._told(Unregistered())

    def _state_changed(self, state: ConnectionState) -> None:
        with self._lock:
            if self._over:
                return
            if state is ConnectionState.LOST:
                self._lose()
            elif state is ConnectionState.CONNECTED and not self._registered:
                self._look()  # the loss may have been told after the node was made in the new session

    def _changed(self, data: bytes | None, version: int) -> None:
        with self._lock:
            if self._over or (data is not None and self._registered and self._names_us(data)):
                return
            self._look()

    def _names_us(self, data: bytes) -> bool:
        return _to_member(self._path, data, False).incarnation == self._tried

    def _look(self) -> None:
        """As it is now: what is delivered may be older."""
        try:
            data, version = self._zookeeper.get(self._path)
        except NoNode:
            self._lose()
            self._create()
            return
        if self._is_ours(data):
            self._found(version)
        else:
            self._lose()  # a predecessor's, or of a session of ours that is over: when it goes, we are told

    def _create(self) -> None:
        self._tried = self._new_incarnation()
        try:
            self._zookeeper.create(self._path, self._data(self._tried), ephemeral=True)
        except NodeExists:
            return  # we are told when it goes
        self._found(0)
        if self._leaving:
            self._say_leaving()

    def _found(self, version: int) -> None:
        self._version, self._session = version, self._zookeeper.session_id
        if not self._registered:
            self._registered = True
            self._told(RegisteredAs(self._tried))

    def _say_leaving(self) -> None:
        try:
            self._zookeeper.create(f"{self._path}.leaving", b"", ephemeral=True)
        except NodeExists:
            return


def _to_member(path: str, data: bytes, leaving: bool) -> UnitMember:
    fields = to_fields(path, data)
    with naming(path):
        endpoint = Endpoint(str(fields["host"]), int(fields["port"]))
        return UnitMember(endpoint, str(fields["incarnation"]), leaving)


def _number(field: object) -> int | None:
    if field is None or (isinstance(field, int) and not isinstance(field, bool)):
        return field
    raise ValueError(f"{field!r} is not a number")


def incarnations(members: Mapping[int, UnitMember]) -> dict[int, str]:
    """What the machine is told of them."""
    return {actor: member.incarnation for actor, member in members.items()}
