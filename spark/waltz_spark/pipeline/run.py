"""The whole way on one command: appends -> log -> collector -> local -> merged -> mirror, and everything compared.

The records are appended in ten parts. After each the clock of the services is turned on by a minute, so that a run does
not wait ten minutes, and the collector (Spark tasks) and the three services take what is there. A last minute is empty.
Then count, bytes, checksum and transaction IDs of every partition are compared: what the appender counted, what Spark
reads from the log, and what Spark reads from the files of streams_local, streams and the mirror.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Protocol

from waltz_ray import connect
from waltz_ray.bring_up import bring_up
from waltz_ray.client.client import WaltzClient
from waltz_ray.client.readers.ranges import Range
from waltz_ray.client.readers.reading import Reading
from waltz_ray.cluster_directory import holds_cluster
from waltz_ray.config import ClusterConfig
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.hold_store import HoldStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import InvalidInput
from waltz_ray.finding import ray_lookup
from waltz_ray.finding.find import FoundCluster
from waltz_ray.interruption import interruptible, undisturbed
from waltz_ray.take_down import take_down_in
from waltz_spark.feed import read_feed
from waltz_spark.pipeline.sums import PartitionSums, Sums, differences, sums_of_frame, total
from waltz_spark.session import start_spark, stop_spark, use_java
from waltz_spark.streams.collector import Collector, CollectorSettings
from waltz_spark.streams.collector_files import ClusterFeed, collector_hold
from waltz_spark.streams.collector_states import Format
from waltz_spark.streams.services import StreamService
from waltz_spark.streams.settings import Source, StreamSettings

__all__ = ["PARTS", "PipelineResult", "PipelineScreen", "files_frame", "flow", "run_pipeline"]

PARTS = 10

_CLUSTER, _CATEGORY = "pipeline", "records"
_PARTITIONS, _REPLICAS, _SERVERS = 4, 3, 2
_BATCH = 1000
_CHUNK = 100_000
_CHUNK_BYTES = 64_000_000  # made before it is appended, and in flight at one time
_APPEND_TIMEOUT_S = 120.0


class PipelineScreen(Protocol):
    """What the pipeline shows its doings on."""

    def stage(self, text: str) -> None:
        """What is going on now."""

    def committed(self, records: int) -> None:
        """Show how many records are committed so far."""


@dataclass
class PipelineResult:
    """Filled in as the pipeline goes on. ``sums``: place -> of all its partitions; ``seconds``: stage -> seconds;
    ``differences``: a line for whatever is not as it should be."""

    records: int
    appended_bytes: int = 0
    sums: dict[str, PartitionSums] = field(default_factory=dict)
    partitions: dict[str, Sums] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Every check was made and holds."""
        return bool(self.checks) and all(self.checks.values())

    @property
    def rates(self) -> dict[str, float]:
        """Records and megabytes of data a second, of the stages that move records.

        With a running cluster that held records before, the appends are fewer than what went into files.
        """
        whole = self.sums.get("appended", PartitionSums())
        found = {}
        for stage in ("append", "log to files", "local", "merged", "mirror"):
            moved = (self.records, self.appended_bytes) if stage == "append" else (whole.records, whole.size_bytes)
            if seconds := self.seconds.get(stage):
                found[f"{stage}, records/s"] = moved[0] / seconds
                found[f"{stage}, MB/s"] = moved[1] / 1e6 / seconds
        return found

    def took(self, stage: str, begin: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - begin

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "records": self.records,
            "checks": self.checks,
            "differences": self.differences,
            "rates": {name: round(value, 1) for name, value in self.rates.items()},
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "partitions": {
                place: {str(p): asdict(each) for p, each in sums.items()} for place, sums in self.partitions.items()
            },
        }


def run_pipeline(
    directory: Path,
    records: int,
    screen: PipelineScreen,
    running: FoundCluster | None = None,
    address: str = "",
    kind: Format = "parquet",
    record_bytes: int = 200,
) -> PipelineResult:
    """Everything, in ``directory``, on a new cluster (on the Ray at ``address``, or one of its own) or on ``running``.

    On a running cluster nobody else may append meanwhile. The threads' ZooKeeper nodes have a root of their own, which
    is deleted. What was started is taken down, also after Ctrl-C. InvalidInput if ``directory`` was used before.
    """
    if (directory / "roots").exists() or holds_cluster(directory / "cluster"):
        raise InvalidInput(f"{directory} has been used for a pipeline before; give a new directory")
    result = PipelineResult(records)
    with interruptible(), _cluster(directory, running, address, result, screen) as cluster, interruptible():
        spark = _spark(result, screen)
        with interruptible():
            flow(spark, cluster.name, cluster.zookeeper, directory / "roots", result, screen, kind, record_bytes)
    return result


@contextmanager
def _cluster(
    directory: Path, running: FoundCluster | None, address: str, result: PipelineResult, screen: PipelineScreen
) -> Iterator[Any]:
    """With ``name`` and ``zookeeper``. Spark ends before it does."""
    use_java()
    begin = time.monotonic()
    place = directory / "cluster"
    try:
        if running is not None:
            ray_lookup.join(running.ray)
            yield running
        else:
            config = ClusterConfig(_CLUSTER, str(place.resolve()), _PARTITIONS, _REPLICAS, _SERVERS)
            cluster = bring_up(config, address, progress=screen.stage)
            result.took("bringing the cluster up", begin)
            yield cluster
    finally:
        screen.stage("taking everything down")
        with undisturbed():
            try:
                stop_spark()
            finally:
                take_down_in(place, screen.stage)


def _spark(result: PipelineResult, screen: PipelineScreen) -> Any:
    import ray  # not at import time: ``flow`` needs none

    screen.stage("RayDP starts Spark")
    begin = time.monotonic()
    cores = max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]
    spark = start_spark("waltz-pipeline", executor_cores=cores)
    result.took("starting Spark", begin)
    return spark


def flow(
    spark: Any,
    cluster: str,
    zookeeper: str,
    roots: Path,
    result: PipelineResult,
    screen: PipelineScreen,
    kind: Format = "parquet",
    record_bytes: int = 200,
    parts: int = PARTS,
) -> None:
    """From the appends to the comparison, on a cluster and a Spark that run. ``roots`` is made."""
    client = KazooZooKeeper(zookeeper)
    node = f"/databus-pipeline-{uuid.uuid4().hex[:8]}"
    try:
        services = _Services(spark, cluster, zookeeper, client, node, roots, kind)
        with connect(cluster, zookeeper=zookeeper) as appender:
            appended = _before(appender, cluster, zookeeper, screen)
            for part in range(parts):
                count = result.records * (part + 1) // parts - result.records * part // parts
                _append(appender, appended, count, record_bytes, result, screen)
                services.minute(f"part {part + 1} of {parts}", result, screen)
            services.minute("an empty minute", result, screen)
        frames: dict[str, Callable[[], Any]] = {
            "read_feed": lambda: read_feed(spark, cluster, zookeeper=zookeeper),
            "streams_local": lambda: files_frame(spark, str(roots / "a" / "streams_local"), kind),
            "streams": lambda: files_frame(spark, str(roots / "a" / "streams"), kind),
            "mirror": lambda: files_frame(spark, str(roots / "b" / "streams"), kind),
        }
        _compare(frames, appended, result, screen)
        services.check(result)
    finally:
        try:
            HoldStore(client, cluster).release(collector_hold(_reader(node)))  # or it keeps that cluster's log for ever
            _delete_nodes(client, node)
        finally:
            client.close()


def _before(client: WaltzClient, cluster: str, zookeeper: str, screen: PipelineScreen) -> Sums:
    """What a running cluster holds already, counted here; nothing for a new one."""
    marks = {p: client.server_high_water_mark(p) for p in range(client.partitions)}
    sums = {p: PartitionSums() for p in marks}
    if any(mark >= 0 for mark in marks.values()):
        screen.stage("counting what the log holds already")
        for rows in Reading.of(zookeeper, cluster).batches([Range(p, 0, mark + 1) for p, mark in marks.items()]):
            sums[rows["partition_id"][0].as_py()].add(rows["transaction_id"][0].as_py(), rows["data"].to_pylist())
    return sums


def _append(
    client: WaltzClient, appended: Sums, count: int, record_bytes: int, result: PipelineResult, screen: PipelineScreen
) -> None:
    """``count`` records over all partitions, in batches; each is counted when the log has said its IDs."""
    screen.stage(f"appending {count:,} records")
    while count:
        done = sum(sums.records for sums in appended.values())
        chunk = min(count, _CHUNK, max(1, _CHUNK_BYTES // record_bytes))
        # Made before and counted afterwards: what is measured is the appending.
        datas = [_data(done + index, record_bytes) for index in range(chunk)]
        size = min(_BATCH, -(-chunk // client.partitions))  # few are over all partitions, too
        batches = [datas[first : first + size] for first in range(0, chunk, size)]
        begin = time.monotonic()
        futures = [client.append_many(number % client.partitions, batch) for number, batch in enumerate(batches)]
        firsts = [int(future.result(_APPEND_TIMEOUT_S)[0]) for future in futures]
        result.took("append", begin)
        result.appended_bytes += sum(map(len, datas))
        for number, (first_id, batch) in enumerate(zip(firsts, batches, strict=True)):
            # One appender: its batches lie one behind the other. Another's in between is found by the comparison.
            appended[number % client.partitions].add(first_id, batch)
        count -= chunk
        screen.committed(done + chunk)


def _data(number: int, record_bytes: int) -> bytes:
    """JSON of about the wanted length, never the same twice."""
    text = f'{{"number":{number},"account":{number * 7919 % 100_003},"amount":{number % 1000},"note":"'.encode()
    length = max(2, record_bytes - len(text) - 2)
    # Hexadecimal digits of a hash: files of it are about half as long, as those of real data may be.
    return text + hashlib.shake_128(text).hexdigest((length + 1) // 2)[:length].encode() + b'"}'


class _Services:
    """A collector, its local and merged in root a, the mirror in root b; a clock that is turned by hand."""

    def __init__(
        self, spark: Any, cluster: str, hosts: str, zookeeper: ZooKeeper, node: str, roots: Path, kind: Format
    ) -> None:
        a, b = (str(roots / name) for name in "ab")
        for root in (a, b):
            os.makedirs(root)
        self.roots, self.minutes = (a, b), 0
        self.now = datetime.now(timezone.utc)
        settings = CollectorSettings("collector", a, _CATEGORY, cluster, format=kind, zookeeper_root=node)
        clock: Callable[[], datetime] = lambda: self.now  # noqa: E731
        # What it holds in the log is nobody else's: a cluster that ran before may have a collector of that name.
        feed = ClusterFeed(spark, replace(settings, name=_reader(node)), hosts)
        self.collector = Collector(settings, zookeeper, feed, clock=clock)
        local = StreamSettings("local", "local", a, consumers=("merged",), zookeeper_root=node)
        merged = replace(local, kind="merged", name="merged", sources=(Source("local", a),), consumers=("mirror",))
        mirror = replace(local, kind="mirror", name="mirror", root=b, sources=(Source("merged", a),), consumers=())
        self.services = [StreamService(each, zookeeper, clock=clock) for each in (local, merged, mirror)]

    def minute(self, what: str, result: PipelineResult, screen: PipelineScreen) -> None:
        """A minute is over; everybody takes what there is."""
        self.now += timedelta(minutes=1)
        self.minutes += 1
        screen.stage(f"{what}: log to files")
        begin = time.monotonic()
        self.collector.run_once()
        result.took("log to files", begin)
        for service in self.services:
            screen.stage(f"{what}: {service.settings.kind}")
            begin = time.monotonic()
            service.run_once()
            result.took(service.settings.kind, begin)

    def check(self, result: PipelineResult) -> None:
        """Every minute is in every stream, and nothing waits anywhere."""
        a, b = self.roots
        for stream, root in (("streams_local", a), ("streams", a), ("mirror", b)):
            base = Path(root, "streams_local" if stream == "streams_local" else "streams", _CATEGORY)
            minutes = len([path for path in base.glob("*/*/*/*/*") if path.is_dir()])
            result.checks[f"every minute is in {stream}"] = minutes == self.minutes
        left = [path for place in ("data", "system/consumers") for path in Path(a, place).rglob("*") if path.is_file()]
        result.checks["nothing waits"] = not left
        result.differences += [f"{path} was left" for path in left]
        self.collector.close()
        for service in self.services:
            service.close()


def files_frame(spark: Any, directory: str, kind: Format) -> Any:
    """Everything below a stream's directory, as ``read_feed`` gives it: partition_id, transaction_id, data."""
    reader = spark.read.option("recursiveFileLookup", "true")
    if kind == "parquet":
        return reader.parquet(directory).select("partition_id", "transaction_id", "data")
    lines = reader.schema("partition_id int, transaction_id long, data string, data_base64 string").json(directory)
    return lines.selectExpr(
        "partition_id", "transaction_id", "coalesce(encode(data, 'UTF-8'), unbase64(data_base64)) AS data"
    )


def _compare(
    frames: Mapping[str, Callable[[], Any]], appended: Sums, result: PipelineResult, screen: PipelineScreen
) -> None:
    """``frames``: place -> a DataFrame of what is there."""
    expected = {p: sums for p, sums in appended.items() if sums.records}
    result.partitions["appended"] = expected
    for place, frame in frames.items():
        screen.stage(f"Spark counts {place}")
        begin = time.monotonic()
        result.partitions[place] = sums_of_frame(frame())
        result.took(f"counting {place}", begin)
        found = differences(expected, result.partitions[place], place)
        result.checks[f"{place} is what was appended"] = not found
        result.differences += found
    result.sums = {place: total(sums.values()) for place, sums in result.partitions.items()}


def _reader(node: str) -> str:
    """Who this pipeline's collector is in the log: another one for each pipeline."""
    return node.strip("/")


def _delete_nodes(zookeeper: ZooKeeper, node: str) -> None:
    """The threads' nodes of this pipeline; their locks are ours and go first."""
    if zookeeper.exists(node) is None:
        return
    for thread in zookeeper.children(node):
        for lock in zookeeper.children(f"{node}/{thread}"):
            zookeeper.delete(f"{node}/{thread}/{lock}")
        zookeeper.delete(f"{node}/{thread}")
    zookeeper.delete(node)
