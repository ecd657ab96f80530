"""``waltz recover``: a cluster of which only the replicas' disks are left gets its nodes in ZooKeeper again.

1. *Plan.* Each directory is opened as its replica would open it, and nothing else is changed. Of every partition it is
   decided what its log is (``protocol/disaster.py``), from the copies, compared record by record, and from what the
   replicas remember of the cluster (``storage/cluster_memory.py``).
2. *Apply.* ``waltz-recovered.json`` is written into the cluster's directory, as unfinished: nothing is brought up from
   it. What was never committed is cut, under a session number above all that any disk remembers; then the file is
   written anew. A crash leaves some logs cut: planned again, it comes to the same, for nothing was cut that may have
   been committed. Where a person has accepted that something such is cut, only the file knows it by then; whoever
   writes the next one takes it over from there.
3. *Up.* ``waltz up`` finds no cluster in ZooKeeper, makes the nodes of that file, and renames it.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from waltz_ray.config import StorageConfig
from waltz_ray.coordination.cluster_nodes import given_up_fields, given_up_of, read_info
from waltz_ray.coordination.embedded import zookeeper_directory
from waltz_ray.coordination.snapshot import RecoveredNodes, given_up_in, info_in
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import (
    ControlFileMissing,
    Corruption,
    InvalidInput,
    NoNode,
    StorageError,
    WaltzError,
    ZooKeeperUnreachable,
)
from waltz_ray.finding import cluster_file
from waltz_ray.protocol.disaster import Belief, CopyFacts, GivenUp, Undecided, decide, first_given_up, possible_sets
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.roster import Roster
from waltz_ray.small_files import replace_small_file, sync_directory
from waltz_ray.storage.cluster_memory import MEMORY_FILE, read_memory
from waltz_ray.storage.control_file import read_control_image
from waltz_ray.storage.disk import OsDisk, is_shortage
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.store import ReplicaStore

__all__ = ["RECOVERED", "RecoveryPlan", "apply_recovery", "forget_recovered", "plan_recovery", "read_recovered"]

RECOVERED = "waltz-recovered.json"
_USED = "waltz-recovered.used.json"
_KIND, _VERSION = "waltz cluster recovered from its replicas", 1
_UNFINISHED = "waltz cluster that is being recovered from its replicas"

_GENERATION_MARGIN = 1_000
_CLIENT_ID_MARGIN = 100_000
_SERVER_ID_MARGIN = 1_000
"""So many more than the records show may have been given out to who has never appended."""

_READ_BYTES = 1 << 20

Progress = Callable[[str], None]


@dataclass(frozen=True)
class RecoveryPlan:
    """``verdicts``: of every partition that is there. ``unread``: copies that do not count, and why, for people.
    ``seen``: (partition, replica) -> the session and the last ID of what was looked at."""

    name: str
    cluster_key: uuid.UUID
    remembered_by: str
    nodes: Mapping[str, str]
    directories: Mapping[int, str]
    verdicts: Mapping[int, Belief | Undecided]
    unread: tuple[str, ...]
    generations: Mapping[int, int]
    trim_marks: Mapping[int, int]
    last_client_id: int
    seen: Mapping[tuple[int, int], tuple[int, int]]

    @property
    def undecided(self) -> dict[int, str]:
        return {p: verdict.why for p, verdict in self.verdicts.items() if isinstance(verdict, Undecided)}

    @property
    def decided(self) -> dict[int, Belief]:
        return {p: verdict for p, verdict in self.verdicts.items() if isinstance(verdict, Belief)}


def plan_recovery(
    directories: Sequence[str], accept_loss: bool = False, progress: Progress = lambda text: None
) -> RecoveryPlan:
    """What would be made of these replicas' directories. InvalidInput if they are not those of one cluster, or remember
    none; StorageLocked while one of them runs."""
    disk = OsDisk()
    numbers = {_number_of(directory): directory for directory in directories}
    if len(numbers) < len(directories):
        raise InvalidInput("each replica is named once")
    name, key, newest, memories = _remembered(disk, numbers)
    nodes: dict[str, str] = memories[newest]["nodes"]
    with _opened(disk, numbers, key) as stores:
        info = info_in(nodes, name)
        slots = max(len(store.partition_ids) for store in stores.values())
        if slots > info.partitions:
            raise InvalidInput(
                f"the replicas have {slots} partitions, and {numbers[newest]}/{MEMORY_FILE} knows of "
                f"{info.partitions}: a space was added just before ZooKeeper was lost; nobody remembers it"
            )
        reader = _Reader(stores, given_up_in(nodes), progress)
        sets = _sets_of(memories, newest, nodes, info.replica_ids)
        verdicts = {p: reader.verdict(p, sets(p), accept_loss) for p in range(info.partitions) if p not in reader.gone}
        return RecoveryPlan(
            name,
            key,
            numbers[newest],
            nodes,
            numbers,
            verdicts,
            tuple(reader.unread),
            {p: generation + _GENERATION_MARGIN for p, generation in reader.generations.items()},
            {p: first_id for p, first_id in reader.first_ids.items() if first_id},
            reader.client_id + _CLIENT_ID_MARGIN,
            reader.seen,
        )


def apply_recovery(plan: RecoveryPlan, into: str, progress: Progress = lambda text: None) -> None:
    """Cut what was never committed, and leave ``waltz up --dir INTO`` what it needs. InvalidInput if something is
    undecided, or has changed since it was looked at, or if ZooKeeper has the cluster, or its data is there. Whatever
    ends it in its midst, it can be planned and done again."""
    if plan.undecided:
        raise InvalidInput(f"{len(plan.undecided)} partitions are undecided; nothing was changed")
    left = next(Path(zookeeper_directory(into)).rglob("log.*"), None)
    if left is not None:
        raise InvalidInput(
            f"ZooKeeper's data is still there ({left}): bring the cluster up with it, or, if it is damaged, move it "
            "away; nothing was changed"
        )
    lost = _lost_file(plan, into)
    _check_not_known(plan, into)
    with _opened(OsDisk(), plan.directories, plan.cluster_key) as stores:
        _check_unchanged(plan, stores)
        fields = _fields(plan, _cut_before(plan, into))
        _write(into, fields | {"kind": _UNFINISHED})
        for p, verdict in plan.decided.items():
            progress(f"partition {p}")
            for r, end in verdict.keep.items():
                log = stores[r].partition(p)
                log.open_session(verdict.roster.session_id)
                if log.last_id > end:
                    log.truncate(verdict.roster.session_id, end)
        if lost is not None:
            cluster_file.write(lost)  # first: without what was recovered nothing begins from it
        _write(into, fields)  # while nobody else has the disks, and gives them higher sessions


def _check_not_known(plan: RecoveryPlan, into: str) -> None:
    """InvalidInput if the ensemble that the cluster was in has it still, or has begun to have it again: it knows better
    than the disks, and with it the cluster comes up, while its sessions would be refused once the disks have accepted
    higher ones."""
    found = cluster_file.read(into)
    recorded: dict[str, Any] = dict(info_in(plan.nodes, plan.name).settings).get("config", {})
    zookeeper = found.zookeeper if found is not None and not found.embedded else str(recorded.get("zookeeper", ""))
    if not zookeeper:
        return
    try:
        client = KazooZooKeeper(zookeeper)
    except ZooKeeperUnreachable:
        return  # it may be gone for good
    try:
        info, complete, _ = read_info(client, f"/{plan.name}")
    except NoNode:
        return
    finally:
        client.close()
    if info.cluster_key != plan.cluster_key:
        return
    if complete:
        raise InvalidInput(
            f"the ZooKeeper at {zookeeper} has cluster {plan.name!r} still: bring it up with that; nothing was changed"
        )
    raise InvalidInput(  # what is there of it would stay, with sessions that are too low by then
        f"a waltz up that ended in its midst has begun to make cluster {plan.name!r} in the ZooKeeper at {zookeeper}: "
        f"waltz up goes on with it; if it cannot, remove /{plan.name} there and recover again; nothing was changed"
    )


def _check_unchanged(plan: RecoveryPlan, stores: Mapping[int, ReplicaStore]) -> None:
    """InvalidInput if somebody has had the cluster up since, while a person was asked for instance: what was committed
    then would be cut."""
    for (p, r), seen in plan.seen.items():
        log = stores[r].partition(p)
        if (log.session_id, log.last_id) != seen:
            raise InvalidInput(
                f"partition {p} in {plan.directories[r]} is not as it was when it was looked at; nothing was changed: "
                "give the same command again"
            )


# ---- the file between -----------------------------------------------------------------------------------------------


def _lost_file(plan: RecoveryPlan, into: str) -> cluster_file.ClusterFile | None:
    """``cluster.json`` as it was, where it was lost, too: else ``waltz up`` would begin another cluster there. None: it
    is there. InvalidInput if it is damaged, or another cluster's, or if the cluster was not in that directory."""
    found = cluster_file.read(into)
    if found is not None and found.key not in ("", str(plan.cluster_key)):
        raise InvalidInput(f"{into} holds another cluster, {found.name!r}; say where this one was, with --into")
    info = info_in(plan.nodes, plan.name)
    config: dict[str, Any] = dict(info.settings).get("config", {})
    directory = os.path.realpath(into)
    if config.get("directory", directory) != directory:
        raise InvalidInput(
            f"the cluster was in {config['directory']}, and its processes look there for what is theirs; recover it "
            "there, with --into"
        )
    if found is not None and found.key:
        return None
    lost = cluster_file.ClusterFile(
        plan.name,
        directory,
        int(config.get("partitions", info.partitions)),
        len(info.replica_ids),
        int(config.get("servers", 1)),
        zookeeper=str(config.get("zookeeper", "")),
        embedded=not config.get("zookeeper"),
        key=str(plan.cluster_key),
        replication=info.replication if info.replication < len(info.replica_ids) else 0,
    )
    return lost if found is None else replace(lost, address=found.address, ray=found.ray)


def _fields(plan: RecoveryPlan, cut_before: Mapping[int, Sequence[GivenUp]]) -> dict[str, Any]:
    """What the file has. ``cut``: of what was given up that of which the disks here tell nothing any more."""
    rosters = {
        str(p): json.loads(replace(verdict.roster, generation=plan.generations.get(p, 0)).to_json())
        for p, verdict in plan.decided.items()
    }
    before = given_up_in(plan.nodes)
    cut, given_up = dict[int, list[GivenUp]](), dict[int, list[GivenUp]]()
    for p, verdict in plan.decided.items():
        now = [verdict.given_up] if verdict.given_up is not None else []
        cut[p] = [*cut_before.get(p, ()), *(now if verdict.cut_with_loss else [])]
        given_up[p] = [*before.get(p, ()), *cut_before.get(p, ()), *now]
    return {
        "version": _VERSION,
        "kind": _KIND,
        "name": plan.name,
        "cluster_key": str(plan.cluster_key),
        "nodes": dict(plan.nodes),
        "rosters": rosters,
        "generations": {str(p): generation for p, generation in sorted(plan.generations.items())},
        "trim_marks": {str(p): mark for p, mark in sorted(plan.trim_marks.items())},
        "last_client_id": plan.last_client_id,
        "last_server_id": _SERVER_ID_MARGIN,
        "recovery": str(uuid.uuid4()),
        "given_up": given_up_fields(given_up),
        "cut": given_up_fields(cut),
    }


def _cut_before(plan: RecoveryPlan, into: str) -> dict[int, list[GivenUp]]:
    """What was cut, with the loss accepted, by those of before from which nothing was brought up. StorageError."""
    path = Path(into) / RECOVERED
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        ours = fields["cluster_key"] == str(plan.cluster_key)
        return given_up_of({"given_up": fields.get("cut", {})}) if ours else {}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}; nothing was changed") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(
            f"{path} is damaged ({error}), and would tell what was given up before; if nothing was (without "
            "--accept-data-loss), move it away; nothing was changed"
        ) from error


def _write(into: str, fields: Mapping[str, Any]) -> None:
    path = Path(into) / RECOVERED
    try:
        replace_small_file(path, json.dumps(fields, indent=1) + "\n", 0o600)  # with the passwords of topics' users
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}; give the same command again") from error


def read_recovered(directory: str) -> tuple[uuid.UUID, RecoveredNodes] | None:
    """(the cluster's key, its nodes) of what was recovered and not brought up yet; None: nothing was. StorageError."""
    path = Path(directory) / RECOVERED
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        if fields.get("kind") == _UNFINISHED:
            raise StorageError(f"the recovery that began {path} was not finished; give waltz recover --apply again")
        if (fields.get("kind"), fields.get("version")) != (_KIND, _VERSION):
            raise ValueError(f"it is no {_KIND} of version {_VERSION}")
        nodes = RecoveredNodes(
            fields["nodes"],
            {int(p): Roster.from_json(json.dumps(roster)) for p, roster in fields["rosters"].items()},
            {int(p): int(generation) for p, generation in fields["generations"].items()},
            {int(p): int(mark) for p, mark in fields["trim_marks"].items()},
            (int(fields["last_client_id"]), int(fields["last_server_id"])),
            str(fields.get("recovery", "")),  # neither is in a file of an earlier version
            given_up_of(fields),
        )
        return uuid.UUID(fields["cluster_key"]), nodes
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(f"{path} is damaged ({error}); make it again with: waltz recover") from error


def forget_recovered(directory: str) -> None:
    """ZooKeeper has the cluster: nothing begins from the file any more. Idempotent."""
    path = Path(directory) / RECOVERED
    if path.exists():
        path.replace(Path(directory) / _USED)
        sync_directory(directory)


# ---- what the directories have --------------------------------------------------------------------------------------


def _number_of(directory: str) -> int:
    name = Path(os.path.realpath(directory)).name
    number = name.removeprefix("replica-")
    if name == number or not number.isdecimal():
        raise InvalidInput(f"{directory} is not a replica's directory, whose name is replica-<number>")
    return int(number)


def _remembered(disk: OsDisk, numbers: Mapping[int, str]) -> tuple[str, uuid.UUID, int, dict[int, dict[str, Any]]]:
    """(the cluster's name, its key, the replica that knows most recently, what each remembers)."""
    keys = {r: _key_of(disk, directory) for r, directory in numbers.items()}
    if len(set(keys.values())) != 1:
        listed = ", ".join(f"{numbers[r]} {key}" for r, key in sorted(keys.items()))
        raise InvalidInput(f"these are replicas of different clusters: {listed or 'none was given'}")
    key = next(iter(keys.values()))
    found = {r: read_memory(disk, directory) for r, directory in numbers.items()}
    memories = {r: each for r, each in found.items() if each is not None and each["cluster_key"] == str(key)}
    if not memories:
        raise InvalidInput(
            f"none of these replicas remembers its cluster (there is no {MEMORY_FILE} that is whole): without it "
            "nobody knows the cluster's name, spaces and sets"
        )
    newest = max(memories, key=lambda r: int(memories[r]["seen_ms"]))
    return str(memories[newest]["name"]), key, newest, memories


def _key_of(disk: OsDisk, directory: str) -> uuid.UUID:
    try:
        return read_control_image(disk, directory).cluster_key
    except ControlFileMissing as error:
        raise InvalidInput(
            f"{directory} holds no replica's files: is its disk mounted? If they are lost, name the other replicas' "
            "directories, one by one, and with --into the cluster's"
        ) from error
    except OSError as error:
        raise _cannot_be_read(directory, error) from error


def _cannot_be_read(directory: str, error: OSError) -> InvalidInput:
    return InvalidInput(
        f"{directory} cannot be read: {error.strerror}; if its disk is lost, name the other replicas' directories, one "
        "by one, and with --into the cluster's"
    )


def _sets_of(
    memories: Mapping[int, Mapping[str, Any]], newest: int, nodes: Mapping[str, str], replica_ids: tuple[int, ...]
) -> Callable[[int], list[frozenset[int]]]:
    """Partition -> the sets that it may be on, as the replica remembers that has seen it last."""
    by_age = sorted(memories, key=lambda r: (r != newest, -int(memories[r]["seen_ms"])))
    wanted = json.loads(nodes["/store/moves"])["wanted"] if "/store/moves" in nodes else {}

    def sets(p: int) -> list[frozenset[int]]:
        seen = next((memories[r]["sets"][str(p)] for r in by_age if str(p) in memories[r]["sets"]), replica_ids)
        return possible_sets(seen, wanted.get(str(p), seen))

    return sets


@contextmanager
def _opened(disk: OsDisk, numbers: Mapping[int, str], key: uuid.UUID) -> Iterator[dict[int, ReplicaStore]]:
    with ExitStack() as held:
        stores = {}
        for r, directory in numbers.items():
            try:
                stores[r] = ReplicaStore.open(disk, os.path.realpath(directory), key, StorageConfig())
            except OSError as error:
                raise _cannot_be_read(directory, error) from error
            held.callback(stores[r].close)
        yield stores


class _Reader:
    """Reads every copy once to learn what was given out, and each pair to see where they differ."""

    def __init__(
        self, stores: Mapping[int, ReplicaStore], given_up: Mapping[int, Sequence[GivenUp]], progress: Progress
    ) -> None:
        self._stores, self._given_up, self._progress = stores, given_up, progress
        self.seen: dict[tuple[int, int], tuple[int, int]] = {}
        self.gone = frozenset().union(*(store.removed for store in stores.values()))
        self.unread: list[str] = []
        self.generations: dict[int, int] = {}
        self.first_ids: dict[int, int] = {}
        self.client_id = 0

    def verdict(self, p: int, sets: list[frozenset[int]], accept_loss: bool) -> Belief | Undecided:
        self._progress(f"reading partition {p}")
        logs = {}
        for r, store in self._stores.items():
            if p not in store.partition_ids:
                continue
            try:
                log = store.partition(p)
                why = str(log.fence_lost or log.damaged or "") or self._of_before(p, log) or self._scanned(p, log)
            except OSError as error:  # a bad sector, which may be why somebody recovers
                if is_shortage(error):
                    raise
                why = f"{store.directory} cannot be read: {error.strerror}"
            if why:
                self.unread.append(f"partition {p} of replica {r} does not count: {why}")
            else:
                logs[r] = log
                self.seen[p, r] = log.session_id, log.last_id
        facts = [
            CopyFacts(r, log.session_id, log.low_water_mark, log.local_low_water_mark, log.last_id)
            for r, log in logs.items()
        ]
        differences = {}
        for one, other in combinations(sorted(logs), 2):
            at = _first_difference(logs[one], logs[other])
            if at is not None:
                differences[one, other] = at
        return decide(facts, differences, sets, accept_loss)

    def _of_before(self, p: int, log: PartitionLog) -> str:
        """ "" unless it has what an earlier recovery has given up."""
        first_id = first_given_up(self._given_up.get(p, ()), log.session_id, log.local_low_water_mark)
        return (
            "" if first_id is None else f"an earlier recovery has given up what it has from transaction {first_id} on"
        )

    def _scanned(self, p: int, log: PartitionLog) -> str:
        """ "" if all of it can be read."""
        try:
            for batch in _batches(log, log.first_id, log.last_id + 1):
                self.client_id = max(self.client_id, int(batch.fields["client_id"].max()))
                highest = int(batch.fields["generation"].max())
                self.generations[p] = max(self.generations.get(p, 0), highest)
        except (Corruption, WaltzError) as error:
            return str(error)
        self.first_ids[p] = max(self.first_ids.get(p, 0), log.first_id)
        return ""


def _batches(log: PartitionLog, first_id: int, end_id: int) -> Iterator[RecordBatch]:
    while first_id < end_id:
        batch = log.read(first_id, end_id, _READ_BYTES)
        yield batch
        first_id = batch.end_id


def _first_difference(one: PartitionLog, other: PartitionLog) -> int | None:
    """The first ID of which both have a record, not with the same bytes."""
    first_id, end_id = max(one.first_id, other.first_id), min(one.last_id, other.last_id) + 1
    while first_id < end_id:
        mine, its = (log.read(first_id, end_id, _READ_BYTES) for log in (one, other))
        for number, (left, right) in enumerate(zip(_records(mine), _records(its), strict=False)):
            if left != right:
                return first_id + number
        first_id = min(mine.end_id, its.end_id)
    return None


def _records(batch: RecordBatch) -> list[bytes]:
    data = bytes(batch.records)
    return [data[begin:end] for begin, end in pairwise(batch.offsets.tolist())]
