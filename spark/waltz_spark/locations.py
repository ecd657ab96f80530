"""Where the partitions are, for a reader: from ZooKeeper, or from a fixed table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType

from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.ids import Endpoint

__all__ = ["Locations", "Where"]

Where = str | Mapping[int, str]
"""A ZooKeeper connect string, or partition ID -> "host:port" of its server."""


class Locations:
    """Answers "who has this partition?" for ``RangeReader``. Made in every Spark task from picklable values.

    With ZooKeeper every question is asked anew, so a reader follows a partition that moves.
    """

    def __init__(self, where: Where, cluster: str) -> None:
        self._fixed: dict[int, Endpoint] = {}
        self._zookeeper: KazooZooKeeper | None = None
        self._store: ClusterStore | None = None
        if isinstance(where, str):
            self._zookeeper = KazooZooKeeper(where)
            self._store = ClusterStore(self._zookeeper, cluster)
        else:
            self._fixed = {partition: Endpoint.parse(endpoint) for partition, endpoint in where.items()}

    def partitions(self) -> list[int]:
        """Every partition there is."""
        return list(range(self._store.info().partitions)) if self._store else sorted(self._fixed)

    def checked(self, partitions: list[int] | None) -> list[int]:
        """The asked-for partitions, None = all. InvalidInput for one that does not exist."""
        known = self.partitions()
        unknown = sorted(set(partitions or []) - set(known))
        if unknown:
            raise InvalidInput(f"there is no partition {unknown[0]}; known: {known}")
        return known if partitions is None else sorted(set(partitions))

    @property
    def resolve(self) -> Callable[[int], Endpoint | None]:
        """For ``RangeReader``."""
        return self._from_store if self._store else self._fixed.get

    def _from_store(self, partition_id: int) -> Endpoint | None:
        assert self._store is not None
        assignment, _ = self._store.assignment()
        owner = assignment.owner(partition_id)
        server = self._store.servers().get(owner.server_id) if owner else None
        return server.endpoint if server else None

    def close(self) -> None:
        if self._zookeeper is not None:
            self._zookeeper.close()

    def __enter__(self) -> Locations:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
