"""``waltz bench kv``: the key/value layer, and beside it Redis and etcd, in turn, on the same disk.

A write is answered when it is synced: by a quorum of three replicas (waltz_ray), of three members (etcd), or by the one
server there is (Redis). A read is linearizable in all three.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, cast

from waltz_bench.clients import clients_of, single_load, window
from waltz_bench.cluster import Waltz, pid_of, waltz_cluster
from waltz_bench.kv_etcd import etcd_cluster
from waltz_bench.kv_load import (
    BATCH_ITEMS,
    AsyncCall,
    ChainLoad,
    LoadThread,
    StoreClient,
    batch_of,
    fill,
    getting,
    setting,
)
from waltz_bench.kv_redis import redis_server
from waltz_bench.measure import Case, Figure, Sample, alternate, measure, ratio, warm_up
from waltz_bench.processes import DRIVER, Processes
from waltz_bench.report import report
from waltz_ray.errors import InvalidInput
from waltz_ray.kv import connect_async
from waltz_ray.protocol.spaces import KV_SPACE, checked_count
from waltz_ray.spaces import Spaces

__all__ = [
    "APPEND",
    "GET",
    "PEERS",
    "PIPELINED_GET",
    "SET",
    "SET_64",
    "SET_MANY",
    "WALTZ",
    "kv",
    "KvOptions",
    "cases_of",
    "kv_ratios",
    "kv_space",
]

WALTZ, ETCD, REDIS = "waltz_ray", "etcd", "Redis"
SET, SET_64, GET, PIPELINED_GET, SET_MANY = (
    "set, 1 outstanding",
    "set, 64 clients with 1 each",
    "get, 1 outstanding",
    "get, pipelined",
    f"set_many({BATCH_ITEMS})",
)
APPEND = "the log's append, 1 outstanding"
CLIENTS, ACTORS = 64, 2
_GETS, _BATCHES = 256, 16  # outstanding of one client


class Store(Protocol):
    """A running store."""

    @property
    def version(self) -> str: ...

    def processes(self) -> Processes: ...

    async def client(self) -> StoreClient: ...


StartStore = Callable[[Path, Callable[[str], None]], AbstractContextManager[Store]]
PEERS: Mapping[str, tuple[str, StartStore]] = {"redis": (REDIS, redis_server), "etcd": (ETCD, etcd_cluster)}
"""By what ``--compare`` says: name, and how it is started in a directory."""


@dataclass(frozen=True)
class KvOptions:
    """``seconds`` measured in each run after ``warmup_s``; values of ``size_bytes``; ``peers`` of PEERS.

    ``partitions``: of a space that is made for it, 0 = the one that every cluster has, as it is.
    """

    runs: int = 5
    seconds: float = 2.0
    warmup_s: float = 0.3
    size_bytes: int = 100
    peers: tuple[str, ...] = ()
    partitions: int = 0

    def __post_init__(self) -> None:
        unknown = [peer for peer in self.peers if peer not in PEERS]
        if unknown:
            raise InvalidInput(f"there is no comparison with {unknown[0]!r}; there is: {', '.join(PEERS)}")
        checked_count("kv", self.partitions or None)


class _Ours:
    """The key/value layer of a running cluster."""

    def __init__(self, waltz: Waltz, space: str) -> None:
        self.version = version("waltz-ray")
        self._waltz = waltz
        self._space = space

    def processes(self) -> Processes:
        actors = {f"kv-{number}": actor for number, actor in sorted(self._waltz.status().kv.items())}
        return Processes(self._waltz.pids() | {name: pid_of(name, actor) for name, actor in actors.items()})

    async def client(self) -> StoreClient:
        client = await connect_async(self._waltz.name, self._space, zookeeper=self._waltz.zookeeper)
        return cast(StoreClient, client)  # its names may be bytes, too


def kv(
    directory: Path, options: KvOptions, running: str = "", progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """All stores in ``directory``, every case in turn, and beside it the log's own append."""
    with ExitStack() as stack:
        waltz = stack.enter_context(waltz_cluster(directory, running, progress, kv=ACTORS))
        stores: dict[str, Store] = {WALTZ: _Ours(waltz, kv_space(waltz, options.partitions, running))}
        for peer in options.peers:
            name, start = PEERS[peer]
            stores[name] = stack.enter_context(start(directory / peer, progress))
        thread = stack.enter_context(LoadThread())
        found = [cases_of(name, store, thread, options, stack) for name, store in stores.items()]
        appending = stack.enter_context(clients_of(waltz, 1, 1))
        load, times = single_load(appending, 1, options.size_bytes), (options.seconds, options.warmup_s)
        cases = [Case(APPEND, window(load, waltz.processes(), times), WALTZ)]
        cases += [case for of_all in zip(*found, strict=True) for case in of_all]
        warm_up(cases, progress)
        rows = alternate(cases, options.runs, progress)
        versions = {name: store.version for name, store in stores.items() if name != WALTZ}
        return report("kv", rows, kv_ratios(rows), directory, versions=versions, notes=_notes(rows))


def kv_space(waltz: Waltz, partitions: int, running: str) -> str:
    """The name of the space that is measured. InvalidInput: ``running`` is somebody's cluster, where none is made."""
    if not partitions:
        return KV_SPACE
    if running:
        raise InvalidInput(f"--partitions is for a cluster of the benchmark's own: {running} gets no space for it")
    with Spaces(waltz.name, zookeeper=waltz.zookeeper) as spaces:
        return spaces.create(f"{KV_SPACE}-{partitions}", partitions, kind="kv").name


def _notes(rows: Sequence[Figure]) -> list[str]:
    shares = [f"{row.system}, {row.case}: {row.cpu_share[DRIVER]:.0%} of a core" for row in rows]
    return [f"load generator: {'; '.join(shares)}"]


def cases_of(system: str, store: Store, thread: LoadThread, options: KvOptions, stack: ExitStack) -> list[Case]:
    """What is measured of every store. Its clients live as long as ``stack``; the items that are read are written."""
    clients = stack.enter_context(thread.clients(store.client, CLIENTS))
    first, size = clients[0], options.size_bytes
    thread.run(fill(first, size))
    processes = store.processes()

    def case(name: str, calls: Sequence[AsyncCall], records: int = 1) -> Case:
        def run() -> Sample:
            load = ChainLoad(thread, calls, records)
            return measure(load, processes, options.seconds, options.warmup_s)

        return Case(name, run, system)

    return [
        case(SET, [setting(first, size)]),
        case(SET_64, [setting(client, size, n / CLIENTS) for n, client in enumerate(clients)]),
        case(GET, [getting(first, size)]),
        case(PIPELINED_GET, [getting(first, size)] * _GETS),
        case(SET_MANY, [batch_of(first, size)] * _BATCHES, BATCH_ITEMS),
    ]


def kv_ratios(rows: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    """What was promised, as ratios: by the log's own append, by etcd, and by what is wanted of a get and a set_many."""
    found = {(row.system, row.case): row for row in rows}
    ours = {case: row for (system, case), row in found.items() if system == WALTZ}
    ratios: dict[str, dict[str, Any]] = {}
    if APPEND in ours:
        value = ours[SET].p50_us / ours[APPEND].p50_us
        ratios["set by the log's append, p50"] = ratio(value, 1.5, smaller_is_better=True)
    if (ETCD, SET_64) in found:
        ratios[f"{SET_64}, rate by etcd's"] = ratio(ours[SET_64].rate / found[ETCD, SET_64].rate, 1.0, 1.5)
    ratios[f"{PIPELINED_GET}, rate by 25,000/s"] = ratio(ours[PIPELINED_GET].rate / 25_000, 1.0)
    ratios["get, p50 by 0.3 ms"] = ratio(ours[GET].p50_us / 300, 1.0, smaller_is_better=True)
    ratios[f"{SET_MANY}, items by 60,000/s"] = ratio(ours[SET_MANY].rate / 60_000, 1.0)
    return ratios
