"""Where the partitions are, for a reader: from ZooKeeper, or from a fixed table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import NamedTuple, TypeVar

from waltz_ray.client.credentials import Credentials
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import InvalidInput, NoNode, Trimmed
from waltz_ray.finding.find import check_key, find_cluster
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.spaces import DEFAULT_SPACE, Space

__all__ = ["FeedPlace", "Locations", "ReplicaView", "Where", "where_of"]

T = TypeVar("T")

Where = str | Mapping[int, str]
"""A ZooKeeper connect string, or partition ID -> "host:port" of its server."""


class FeedPlace(NamedTuple):
    """``where`` the feed of ``cluster`` is read from; ``ray``: the address of the cluster's Ray, "" if not known."""

    where: Where
    cluster: str
    ray: str


def where_of(
    cluster: str | None,
    zookeeper: str | None = None,
    endpoints: Mapping[int, str] | None = None,
    directory: str | None = None,
    address: str | None = None,
) -> FeedPlace:
    """Where to look: ``endpoints`` as they are, or the cluster that ``find_cluster`` finds, which has the right key.

    For the driver only: what it returns is all that Spark's Python workers get, so none of them needs Ray.
    ClusterNotFound names the clusters that do run; InvalidInput if what is given contradicts itself.
    """
    if endpoints is not None:
        if zookeeper or directory or address:
            raise InvalidInput("give endpoints=, or what finds the cluster, not both")
        return FeedPlace(dict(endpoints), cluster or "waltz", "")
    found = find_cluster(cluster, directory, address, zookeeper)
    if found.key is not None:
        with Locations(found.zookeeper, found.name) as locations:
            check_key(found, locations.store.info())
    return FeedPlace(found.zookeeper, found.name, found.ray)


class ReplicaView(NamedTuple):
    """The replicas of one partition as ZooKeeper has them now.

    ``members`` of the last published session ``session_id``; at least ``quorum`` of them hold whatever that session
    has committed. ``endpoints``: of every replica that was ever announced, member or not. ``trim_mark``: what is below
    may be gone, here and there.
    """

    session_id: int
    members: frozenset[int]
    quorum: int
    endpoints: Mapping[int, Endpoint]
    trim_mark: int = 0


class Locations:
    """Answers "who has this partition?" for the readers. Made in every Spark task from picklable values.

    With ZooKeeper every question is asked anew, so a reader follows a partition that moves.
    """

    def __init__(self, where: Where, cluster: str, space: str = DEFAULT_SPACE) -> None:
        """Of ``space``, whose partitions are numbered from 0. SpaceNotFound, SpaceGone."""
        self.first = 0
        """The number in the cluster of what is partition 0 here."""
        self._space = space
        self._fixed: dict[int, Endpoint] = {}
        self._zookeeper: KazooZooKeeper | None = None
        self._store: ClusterStore | None = None
        if isinstance(where, str):
            self._zookeeper = KazooZooKeeper(where)
            self._store = ClusterStore(self._zookeeper, cluster)
            if space != DEFAULT_SPACE:
                self.first = self._of_space(self._store).first
        elif space != DEFAULT_SPACE:
            raise InvalidInput("a space is found in ZooKeeper; give zookeeper= instead of endpoints=")
        else:
            self._fixed = {partition: _parsed(partition, endpoint) for partition, endpoint in where.items()}

    @property
    def store(self) -> ClusterStore:
        """The cluster's nodes in ZooKeeper. InvalidInput where there is only a table of endpoints."""
        if self._store is None:
            raise InvalidInput("this needs ZooKeeper; give zookeeper= instead of endpoints=")
        return self._store

    @property
    def has_zookeeper(self) -> bool:
        return self._store is not None

    @property
    def cluster_key(self) -> str:
        """The cluster's; "" where there is only a table of endpoints. ClusterNotFound if ZooKeeper has none."""
        return str(self._known(self._store.info).cluster_key) if self._store else ""

    def partitions(self) -> list[int]:
        """Every partition of the space. ClusterNotFound if ZooKeeper has no such cluster."""
        return list(range(self._of_space(self._store).count)) if self._store else sorted(self._fixed)

    def _of_space(self, store: ClusterStore) -> Space:
        return self._known(lambda: store.spaces.get(self._space))

    def _known(self, ask: Callable[[], T]) -> T:
        """What ZooKeeper says; where it cannot be asked, its connection is closed."""
        try:
            return ask()
        except BaseException:
            self.close()
            raise

    def checked(self, partitions: list[int] | None) -> list[int]:
        """The asked-for partitions, None = all. InvalidInput for one that does not exist."""
        known = self.partitions()
        unknown = sorted(set(partitions or []) - set(known))
        if unknown:
            of_space = "" if self._space == DEFAULT_SPACE else f" in space {self._space!r}"
            raise InvalidInput(f"there is no partition {unknown[0]}{of_space}; known: {known}")
        return known if partitions is None else sorted(set(partitions))

    @property
    def resolve(self) -> Callable[[int], Endpoint | None]:
        """The endpoint of a partition's server, None if it has none now; what ``RangeReader`` asks."""
        return self._from_store if self._store else self._fixed.get

    def _from_store(self, partition_id: int) -> Endpoint | None:
        assignment, _ = self.store.assignment()
        owner = assignment.owner(self.first + partition_id)
        server = self.store.servers().get(owner.server_id) if owner else None
        return server.endpoint if server else None

    def shown(self, credentials: Credentials) -> Credentials:
        """What a server is to be shown: where the cluster says that it takes TLS only, TLS is spoken."""
        return credentials.where_tls_is_asked_for(self._store is not None and self._store.access.tls_only())

    def replicas(self, partition_id: int) -> ReplicaView:
        """The replicas of a partition; needs ZooKeeper."""
        record, _ = self.store.roster(self.first + partition_id)
        announced = {number: each.endpoint for number, each in self.store.replicas().items()}
        endpoints = {number: announced[number] for number in record.replicas if number in announced}
        session_id, mark = record.last_published_session, self.trim_marks().get(partition_id, 0)
        return ReplicaView(session_id, record.members, record.published_quorum, endpoints, mark)

    def trim_marks(self) -> dict[int, int]:
        """Partition -> its trim mark, if it has one; needs ZooKeeper."""
        return {number - self.first: mark for number, mark in self.store.trims.marks().items()}

    def hold(self, name: str, positions: Mapping[int, int], why: str) -> None:
        """Nothing is trimmed from ``positions`` (partition -> ID) on; needs ZooKeeper. Trimmed if it has been.

        A hold of that name that was there is moved, and no record between is free to go meanwhile.
        """
        holds = self.store.trims.holds
        numbered = {self.first + p: first_id for p, first_id in positions.items()}
        before = holds.find(name)
        if before is not None and before.positions == numbered:
            return
        try:
            if before is not None and _is_kept(numbered, before.positions):
                holds.advance(name, numbered)
            else:
                holds.hold(name, numbered, why)
        except NoNode:  # somebody has released it since
            self.hold(name, positions, why)
        except Trimmed as gone:
            raise Trimmed(gone.partition_id - self.first, gone.wanted_id, gone.first_id) from None

    def close(self) -> None:
        if self._zookeeper is not None:
            self._zookeeper.close()

    def __enter__(self) -> Locations:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_kept(wanted: Mapping[int, int], held: Mapping[int, int]) -> bool:
    return all(number in held and held[number] <= first_id for number, first_id in wanted.items())


def _parsed(partition_id: int, endpoint: str) -> Endpoint:
    try:
        return Endpoint.parse(endpoint)
    except ValueError as error:
        raise InvalidInput(f"the endpoint of partition {partition_id} must be 'host:port', not {endpoint!r}") from error
