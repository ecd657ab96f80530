"""What ``waltz streams run | status | recover`` do. The options are in ``waltz_ray.cli.streams``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import ClusterNotFound, ConfigError, InvalidInput, RayNotRunning, StorageError
from waltz_ray.finding import ray_lookup
from waltz_ray.finding.find import FoundCluster, find_cluster
from waltz_ray.interruption import interruptible, undisturbed
from waltz_spark.streams.collector import Collector, CollectorSettings
from waltz_spark.streams.collector_files import ClusterFeed
from waltz_spark.streams.collector_states import decode_collector
from waltz_spark.streams.collector_status import CollectorStatus, collector_status
from waltz_spark.streams.configuration import StreamsConfig
from waltz_spark.streams.files import Files, FilesOf, local_files
from waltz_spark.streams.nodes import read_nodes
from waltz_spark.streams.services import StreamService, check_file_systems
from waltz_spark.streams.set_clock import utc_now
from waltz_spark.streams.settings import StreamSettings
from waltz_spark.streams.spark_copying import OnSpark, SparkJobs, TaskGates
from waltz_spark.streams.states import decode_node
from waltz_spark.streams.status import ThreadStatus, status

__all__ = [
    "StreamsPlace",
    "StreamsStatus",
    "SparkKind",
    "check_roots",
    "in_flight",
    "opened_place",
    "recover",
    "run_forever",
    "run_once",
    "streams_status",
]

SparkKind = Literal["auto", "raydp", "local"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class StreamsPlace:
    """What services run with: their ZooKeeper's connect string, a Spark if any needs one, the gates to the roots."""

    hosts: str
    spark: Any
    files_of: FilesOf
    clock: Callable[[], datetime] = utc_now
    cluster: str = ""
    """That ``hosts`` was asked from; "" = ``hosts`` was given."""

    def collector(self, settings: CollectorSettings, zookeeper: ZooKeeper, say: Say) -> Collector:
        def hook(point: str) -> None:
            if point == "after COLLECT_DONE":
                node = collector.node
                say(f"{settings.name}: {node.last:%Y-%m-%d %H:%M} collected; {node.records} records so far")

        if not settings.cluster:  # the one that is meant
            settings = replace(settings, cluster=self.cluster or find_cluster(zookeeper=self.hosts).name)
        feed = ClusterFeed(self.spark, settings, self.hosts, self.files_of)
        collector = Collector(settings, zookeeper, feed, self.files_of, self.clock, hook)
        return collector

    def service(self, settings: StreamSettings, zookeeper: ZooKeeper, say: Say) -> StreamService:
        def hook(point: str) -> None:
            last = service.thread.node.last
            if point == "after SUCCESS_COMMIT" and last is not None:
                say(f"{settings.name}: {last.final_path}")

        on_spark = None
        if self.spark is not None and settings.spark_copy_bytes:
            on_spark = OnSpark(
                SparkJobs(self.spark),
                TaskGates.of(self.spark),
                settings.copy_tasks,
                lambda text: say(f"{settings.name}: {text}"),
                settings.split_bytes,
            )
        service = StreamService(settings, zookeeper, self.files_of, self.clock, hook, on_spark=on_spark)
        return service


def check_roots(config: StreamsConfig) -> None:
    """ConfigError for a directory that is not there: it may be a disk that is not mounted, so it is never made."""
    for root in config.roots:
        if "://" not in root and not os.path.isdir(root):
            raise ConfigError(f"the root {root} is not there; mount or make the directory")


@contextmanager
def opened_place(
    config: StreamsConfig,
    spark: SparkKind = "auto",
    zookeeper: str = "",
    address: str = "",
    works: Callable[[StreamsConfig, str], bool] = lambda config, hosts: config.uses_spark,
) -> Iterator[StreamsPlace]:
    """What ``config`` needs; the Spark that was started for it ends with it.

    ``zookeeper``: instead of the file's; ``address``: Ray's; ``works``: whether a collector will write, or a service
    copy with tasks, which is what needs a Spark (and roots on a Hadoop file system do). RayNotRunning, ClusterNotFound,
    ConfigError.
    """
    check_roots(config)
    hosts, name = zookeeper or config.zookeeper, ""
    if not hosts or (config.collectors and not address):
        found = _located(config, address, must=not hosts)
        address = found.ray
        if not hosts:
            hosts, name = found.zookeeper, found.name
    remote = any("://" in root for root in config.roots)
    with ExitStack() as stack:
        session = None
        if remote or works(config, hosts):
            session = stack.enter_context(_spark(spark, address))
        yield StreamsPlace(hosts, session, _gates(session), cluster=name)


def in_flight(config: StreamsConfig, hosts: str) -> bool:
    """Whether a collector of the file has a plan that ``recover`` has to carry through."""
    zookeeper = KazooZooKeeper(hosts)
    try:
        nodes = read_nodes(zookeeper, config.zookeeper_root).collectors
    finally:
        zookeeper.close()
    return any(nodes[each.name].plan is not None for each in config.collectors if each.name in nodes)


def _located(config: StreamsConfig, address: str, must: bool) -> FoundCluster:
    """The first collector's cluster, with Ray's address and its ZooKeeper: as this machine knows it, or as Ray does.

    Without ``must`` what is not found is "". ConfigError, InvalidInput, RayNotRunning, ClusterNotFound.
    """
    if config.cluster is None:
        raise ConfigError('the file names no zookeeper; write zookeeper = "host:port" at its top, or give --zookeeper')
    name = config.cluster
    if not address:
        try:
            return find_cluster(name)
        except ClusterNotFound:
            if must:
                raise
            return FoundCluster("", "")
    return find_cluster(name, address=address)


def _gates(spark: Any) -> FilesOf:
    if spark is None:
        return local_files
    from waltz_spark.streams.hadoop_files import HadoopFiles

    hadoop = HadoopFiles.of(spark)

    def files_of(root: str) -> Files:
        return hadoop if "://" in root else local_files(root)

    return files_of


@contextmanager
def _spark(kind: SparkKind, address: str) -> Iterator[Any]:
    """RayDP's on the Ray at ``address``, or a plain local one; "auto": the first if there is one Ray."""
    if kind != "local":
        try:
            address = ray_lookup.join(address or "auto")
        except (RayNotRunning, InvalidInput):  # none, or one of several
            if kind == "raydp":
                raise
            kind = "local"
    from waltz_spark.local_session import start_local_spark
    from waltz_spark.session import start_spark, stop_spark

    if kind == "local":
        session = start_local_spark("waltz-streams")
        try:
            yield session
        finally:
            session.stop()
        return
    try:
        yield start_spark("waltz-streams")
    finally:
        stop_spark()


def run_once(config: StreamsConfig, place: StreamsPlace, say: Say) -> list[dict[str, Any]]:
    """One pass of every service, each behind what it takes from; what each did. Errors as of ``run_once``."""
    done: list[dict[str, Any]] = []
    zookeeper = KazooZooKeeper(place.hosts)
    try:
        for settings in config.collectors:
            with place.collector(settings, zookeeper, say) as collector:
                passed = collector.run_once()
            done.append(
                {
                    **{"name": settings.name, "kind": "collector", "standing_by": passed.standing_by},
                    **{"minute": passed.minute and passed.minute.isoformat(), "records": passed.records},
                    "holder": passed.holder,
                }
            )
        for service_settings in config.services:
            with place.service(service_settings, zookeeper, say) as service:
                result = service.run_once()
            done.append(
                {
                    **{"name": service_settings.name, "kind": service_settings.kind},
                    **{"standing_by": result.standing_by, "holder": result.holder, "committed": list(result.committed)},
                    **{"replayed": list(result.replayed), "quarantined": dict(result.quarantined)},
                }
            )
    finally:
        zookeeper.close()
    return done


def run_forever(config: StreamsConfig, place: StreamsPlace, say: Say, seconds: float | None = None) -> None:
    """Every service in a thread of its own, each with its ZooKeeper session, until Ctrl-C, SIGTERM or ``seconds``.

    The first error that ends a service ends all, and is raised.
    """
    stop = threading.Event()
    with ExitStack() as stack:
        loops: list[Callable[[threading.Event], None]] = []
        for settings in config.collectors:
            loops.append(place.collector(settings, _connected(stack, place), say).run)
        for service_settings in config.services:
            loops.append(place.service(service_settings, _connected(stack, place), say).run)
        pool = stack.enter_context(ThreadPoolExecutor(len(loops), "waltz-streams"))
        futures: list[Future[None]] = []
        try:
            with interruptible():
                for loop in loops:
                    futures.append(pool.submit(loop, stop))
                    futures[-1].add_done_callback(lambda future: stop.set())
                say(f"running {', '.join(config.names)}")
                stop.wait(seconds)
        except KeyboardInterrupt:
            say("ending: what is being committed is finished first")
        finally:
            with undisturbed():
                stop.set()
                for future in futures:
                    future.result()


def _connected(stack: ExitStack, place: StreamsPlace) -> ZooKeeper:
    zookeeper = KazooZooKeeper(place.hosts)
    stack.callback(zookeeper.close)
    return zookeeper


def recover(config: StreamsConfig, place: StreamsPlace, say: Say) -> list[dict[str, Any]]:
    """Carry through what a crash left in every thread, and begin nothing: what each was in and is in now.

    A thread whose lock another run has recovers by itself: "running".
    """
    zookeeper = KazooZooKeeper(place.hosts)
    threads: list[tuple[str, str, Callable[[bytes], str], Collector | StreamService]] = []
    try:
        for settings in config.collectors:
            one = place.collector(settings, zookeeper, say)
            threads.append((settings.name, settings.node, _collector_state, one))
        for service_settings in config.services:
            other = place.service(service_settings, zookeeper, say)
            threads.append((service_settings.name, service_settings.node, _service_state, other))
        return [_recovered(zookeeper, place, *thread) for thread in threads]
    finally:
        zookeeper.close()


def _recovered(
    zookeeper: ZooKeeper,
    place: StreamsPlace,
    name: str,
    node: str,
    state: Callable[[bytes], str],
    what: Collector | StreamService,
) -> dict[str, Any]:
    def now() -> str:
        return state(zookeeper.get(node)[0]) if zookeeper.exists(node) is not None else "never ran"

    before = now()
    thread = what.thread if isinstance(what, StreamService) else what
    with what:
        try:
            if isinstance(what, StreamService):
                check_file_systems(what.settings, place.files_of)
            running = not thread.open()
        except OSError as error:
            raise StorageError(f"{name}: {error or repr(error)}; run recover again when that is put right") from error
    return {"name": name, "before": before, "after": "running" if running else now()}


def _collector_state(data: bytes) -> str:
    return decode_collector("of the collector", data).state.value


def _service_state(data: bytes) -> str:
    return decode_node("of the service", data).state.value


@dataclass(frozen=True, slots=True)
class StreamsStatus:
    """What every thread of one ZooKeeper is doing; the fields are the keys of ``waltz streams status --json``.

    ``unreadable``: name -> why its node cannot be understood; it is somebody else's, or has to be put right.
    """

    zookeeper: str
    services: list[ThreadStatus]
    collectors: list[CollectorStatus]
    unreadable: dict[str, str]


def streams_status(place: StreamsPlace, zookeeper_root: str, names: Sequence[str] = ()) -> StreamsStatus:
    """The services and collectors of these names, () = all that ever ran. ZooKeeperUnreachable."""
    zookeeper = KazooZooKeeper(place.hosts)
    try:
        services = status(zookeeper, place.files_of, place.clock, zookeeper_root)
        collectors = collector_status(zookeeper, place.hosts, place.clock, zookeeper_root)
        unreadable = read_nodes(zookeeper, zookeeper_root).unreadable
    finally:
        zookeeper.close()
    return StreamsStatus(
        place.hosts,
        [each for each in services if not names or each.name in names],
        [each for each in collectors if not names or each.name in names],
        {name: problem for name, problem in unreadable.items() if not names or name in names},
    )
