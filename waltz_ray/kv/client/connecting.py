"""Putting a key/value client together: the cluster is found as ``waltz_ray.connect`` does, its actors in ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.client.client import WaltzClient
from waltz_ray.client.codecs import Codec
from waltz_ray.client.credentials import Presented
from waltz_ray.config import ClientConfig
from waltz_ray.connecting import connect as connect_log
from waltz_ray.connecting import connect_async as connect_log_async
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.unit_store import UnitMember, UnitStore
from waltz_ray.errors import InvalidInput, SpaceGone
from waltz_ray.finding.find import FoundCluster, check_key, find_cluster
from waltz_ray.kv.client.aio import AsyncKvClient
from waltz_ray.kv.client.client import KvClient
from waltz_ray.kv.client.members import Members
from waltz_ray.kv.client.settings import KvClientConfig
from waltz_ray.kv.placement import BucketSplitting
from waltz_ray.kv.routing import space_identity
from waltz_ray.protocol.spaces import SpaceTable

__all__ = ["ClusterPlace", "MemberDirectory", "connect", "connect_async"]

DEFAULT_KV_SPACE = "kv"


def connect(
    cluster: str | None = None,
    space: str = DEFAULT_KV_SPACE,
    config: KvClientConfig | None = None,
    codec: Codec | None = None,
    *,
    zookeeper: str | None = None,
    directory: str | None = None,
    address: str | None = None,
) -> KvClient:
    """A client of the key/value space ``space`` of ``cluster``, connected: ``with kv.connect("demo") as items``.

    Which cluster: as of ``waltz_ray.connect``. ``codec``: of values that are no bytes, str or integers
    (``waltz_ray.JsonCodec`` and others). That there are actors is not waited for: calls wait.

    ClusterNotFound, ClusterMismatch, SpaceNotFound, SpaceGone, RayNotRunning, ZooKeeperUnreachable; InvalidInput if
    the space is no key/value space.
    """
    found = find_cluster(cluster, directory, address, zookeeper)
    place = ClusterPlace(found, space, None if config is None else config.of_the_log())
    client = KvClient(place, config, codec)
    try:
        return client.open()
    except BaseException:
        client.close()
        raise


async def connect_async(
    cluster: str | None = None,
    space: str = DEFAULT_KV_SPACE,
    config: KvClientConfig | None = None,
    codec: Codec | None = None,
    *,
    zookeeper: str | None = None,
    directory: str | None = None,
    address: str | None = None,
    credentials: Presented | None = None,
) -> AsyncKvClient:
    """The same for the loop that runs now: ``async with await kv.connect_async("demo") as items``.

    The arguments and the errors are those of ``connect``. ``credentials``: what actors are shown, in place of what
    ``config`` says; it does not travel with the client. What blocks on the way there runs in the loop's executor.
    """
    found = await asyncio.to_thread(find_cluster, cluster, directory, address, zookeeper)
    place = ClusterPlace(found, space, None if config is None else config.of_the_log())
    client = AsyncKvClient(place, config, codec, credentials)
    await client.start()
    return client


@dataclass(frozen=True)
class ClusterPlace:
    """``KvPlace`` of a cluster that was found."""

    found: FoundCluster
    space: str
    log_config: ClientConfig | None = None
    """Of clients of its log."""

    def directory(self) -> MemberDirectory:
        # Here, so that nobody loads kazoo who never connects.
        from waltz_ray.coordination.zookeeper import KazooZooKeeper

        return MemberDirectory(KazooZooKeeper(self.found.zookeeper), self.found, self.space)

    def log(self) -> WaltzClient:
        return connect_log(self.found.name, zookeeper=self.found.zookeeper, space=self.space, config=self.log_config)

    async def log_async(self) -> AsyncWaltzClient:
        return await connect_log_async(
            self.found.name, zookeeper=self.found.zookeeper, space=self.space, config=self.log_config
        )


class MemberDirectory:
    """``KvDirectory`` of what the actors have registered in ZooKeeper. Owns ``zookeeper``."""

    def __init__(self, zookeeper: ZooKeeper, found: FoundCluster, space: str) -> None:
        self._zookeeper = zookeeper
        try:
            store = ClusterStore(zookeeper, found.name)
            info = store.info()
            check_key(found, info)
            known = store.spaces.get(space)
            if known.kind != "kv":
                raise InvalidInput(
                    f"space {space!r} of cluster {found.name!r} is of kind {known.kind}, not kv; name one that is "
                    f"(space=), see waltz space list"
                )
        except BaseException:
            zookeeper.close()
            raise
        self.partitions = known.count
        """Of the space."""
        self.identity = found.zookeeper, found.name, info.cluster_key, space, known.first
        """A space that was made anew under its name has other partitions."""
        self.serves = space_identity(str(info.cluster_key), space)
        """The space, as its actors know it."""
        self._cluster, self._space, self._spaces = found.name, space, store.spaces
        self._access = store.access
        self._store = UnitStore(zookeeper, found.name, "kv", space, BucketSplitting(known.count))

    def watch(self, callback: Callable[[Members], None]) -> Callable[[], None]:
        """Tell ``callback`` the addresses of the actors, now and after every change, and SpaceGone when the space has
        been deleted; returns what ends it."""

        def told(members: dict[int, UnitMember]) -> None:
            callback([f"{member.endpoint.host}:{member.endpoint.port}" for member in members.values()])

        def spaces_changed(table: SpaceTable) -> None:
            try:
                table.named(self._space, self._cluster)
            except SpaceGone as error:
                callback(error)

        watches = [self._store.watch_members(told), self._spaces.watch(spaces_changed)]

        def cancel() -> None:
            for watch in watches:
                watch.cancel()

        return cancel

    def tls_only(self) -> bool:
        """Whether the cluster says that its ports take TLS only."""
        return self._access.tls_only()

    def close(self) -> None:
        """Close the ZooKeeper connection."""
        self._zookeeper.close()
