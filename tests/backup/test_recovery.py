"""What ``waltz recover`` makes of replicas' directories, without the processes: read, decided, cut, planted."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_commands import run
from tests.storage.helpers import records
from waltz_ray import recording
from waltz_ray.actors.own_storage import open_storage
from waltz_ray.actors.settings import Settings, to_json
from waltz_ray.backup import recovery
from waltz_ray.backup.recovery import RECOVERED, apply_recovery, forget_recovered, plan_recovery, read_recovered
from waltz_ray.config import ClusterConfig, StorageConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.snapshot import plant_recovered, snapshot_nodes
from waltz_ray.errors import (
    ClusterMismatch,
    Corruption,
    ForeignStorage,
    InvalidInput,
    StorageError,
    StorageLocked,
    ZooKeeperUnreachable,
)
from waltz_ray.finding import cluster_file
from waltz_ray.finding.cluster_file import ClusterFile
from waltz_ray.protocol.disaster import SESSION_MARGIN, Undecided
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry
from waltz_ray.small_files import replace_small_file
from waltz_ray.storage.cluster_memory import MEMORY_FILE, read_memory, write_memory
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.fence import read_fences
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.store import ReplicaStore

CONFIG = StorageConfig(preallocate_bytes=0, segment_size_bytes=4_000)


class Disks:
    """Replicas' directories of a cluster of two partitions, and one in a space of its own."""

    def __init__(self, path: Path, settings: dict[str, Any] | None = None) -> None:
        self.path = path
        self.zookeeper = MemoryZooKeeperServer().client()
        self.store = ClusterStore(self.zookeeper, "c")
        self.key = self.store.initialize(2, range(3), settings or {"config": {"servers": 2}}).cluster_key
        self.store.spaces.create("orders", 1)
        self.store.spaces.finish(3)
        self.store.set_preferred(1, [0])
        self.directories: list[str] = []

    def replica(self, number: int, *logs: tuple[int, int, int], mark: int = -1, session: int = 5) -> None:
        """``logs``: by partition (count of records, tag of those from 10 on, session). ``mark``: of those that reach
        it."""
        directory = str(self.path / f"replica-{number}")
        store = ReplicaStore.create(OsDisk(), directory, self.key, 3, CONFIG)
        for p, (count, tag, of_session) in enumerate(logs):
            log = store.partition(p)
            log.open_session(of_session)
            log.append(of_session, records(0, min(10, count), 0, p))
            if count > 10:
                log.append(of_session, records(10, count - 10, tag, p))
            log.sync()
            if 0 <= mark < count:
                log.set_low_water_mark(of_session, mark, mark)
        store.close()
        self.directories.append(directory)

    def remember(self, seen_ms: int = 1_000, number: int = 0, sets: dict[str, list[int]] | None = None) -> None:
        nodes = snapshot_nodes(self.zookeeper, "c")
        fields = {"name": "c", "cluster_key": str(self.key), "sets": sets or {}, "nodes": nodes, "seen_ms": seen_ms}
        write_memory(OsDisk(), self.directories[number], fields)


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    disks = Disks(tmp_path)
    disks.replica(0, (30, 1, 5), (20, 0, 4))
    disks.replica(1, (25, 1, 5), (20, 0, 4))
    disks.replica(2, (40, 2, 3), (15, 0, 4))
    disks.remember()
    return disks


def test_everything_is_planted_as_it_was_and_only_what_was_never_committed_is_cut(disks: Disks) -> None:
    """Replica 2 has a tail of a session before, and is alone with it; what is behind 24 is on one disk only."""
    plan = plan_recovery(disks.directories)
    assert plan.undecided == {}
    assert {p: verdict.x for p, verdict in plan.decided.items()} == {0: 24, 1: 19, 2: -1}
    assert plan.decided[0].keep == {0: 24, 1: 24, 2: 9}
    assert not (disks.path / RECOVERED).exists(), "only planned"
    apply_recovery(plan, str(disks.path))
    recovered = read_recovered(str(disks.path))
    assert recovered is not None
    new = MemoryZooKeeperServer().client()
    info = plant_recovered(new, "c", *recovered)
    store = ClusterStore(new, "c")
    assert (info.cluster_key, store.partitions()) == (disks.key, 3)
    assert [space.name for space in store.spaces.table().present()] == ["log", "orders"]
    assert store.preferred(1) == (0,)
    assert store.recovery() == recovered[1].recovery
    assert ClusterStore(disks.zookeeper, "c").recovery() == "", "it was made, not recovered"
    roster, _ = store.roster(0)
    session = 5 + SESSION_MARGIN
    member = ReplicaEntry(session, UNRESOLVED)
    assert roster.replicas == {0: member, 1: member, 2: ReplicaEntry(session, 9)}
    assert roster.published_quorum == 2
    assert store.assignment()[0].generation(0) == roster.generation > 1000
    assert store.next_client_id() > 100_000
    for directory, last_id in zip(disks.directories, (24, 24, 9), strict=True):
        opened = ReplicaStore.open(OsDisk(), directory, disks.key, CONFIG)
        assert (opened.partition(0).last_id, opened.partition(0).session_id) == (last_id, session)
        opened.close()
    forget_recovered(str(disks.path))
    assert read_recovered(str(disks.path)) is None


def test_what_is_to_be_brought_up_survives_a_loss_of_power(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs are cut by then, and one who brings up what is left would begin another cluster."""
    synced: list[tuple[str, bool]] = []
    plan, fsync = plan_recovery(disks.directories), os.fsync

    def noted(handle: int) -> None:
        fsync(handle)
        synced.append((os.readlink(f"/proc/self/fd/{handle}"), (disks.path / RECOVERED).exists()))

    monkeypatch.setattr(os, "fsync", noted)
    apply_recovery(plan, str(disks.path))
    assert synced[-1] == (str(disks.path), True)
    forget_recovered(str(disks.path))
    assert synced[-1] == (str(disks.path), False)


def test_planned_again_it_comes_to_the_same_and_to_higher_sessions(disks: Disks) -> None:
    first = plan_recovery(disks.directories)
    apply_recovery(first, str(disks.path))
    recovered = read_recovered(str(disks.path))
    again = plan_recovery(disks.directories)
    assert {p: each.x for p, each in again.decided.items()} == {p: each.x for p, each in first.decided.items()}
    assert again.decided[0].roster.session_id == first.decided[0].roster.session_id + SESSION_MARGIN
    apply_recovery(again, str(disks.path))
    recovered_again = read_recovered(str(disks.path))
    assert recovered is not None
    assert recovered_again is not None
    assert recovered[1].recovery != recovered_again[1].recovery


def test_what_was_recovered_is_for_its_owner_only(disks: Disks) -> None:
    """Passwords of topics' users are among it."""
    before = os.umask(0)
    try:
        apply_recovery(plan_recovery(disks.directories), str(disks.path))
    finally:
        os.umask(before)
    assert stat.S_IMODE((disks.path / RECOVERED).stat().st_mode) == 0o600


def test_what_was_appended_while_somebody_was_asked_is_not_cut(disks: Disks) -> None:
    """The cluster was up in between, with an ensemble of ZooKeeper that was found again."""
    plan = plan_recovery(disks.directories)
    for directory in disks.directories[:2]:
        store = ReplicaStore.open(OsDisk(), directory, disks.key, CONFIG)
        store.partition(1).open_session(6)
        store.partition(1).append(6, records(20, 5, 0, 1))
        store.partition(1).sync()
        store.close()
    before = [control_entries(directory) for directory in disks.directories]
    with pytest.raises(InvalidInput, match=r"partition 1 in .*replica-0 is not as it was when it was looked at"):
        apply_recovery(plan, str(disks.path))
    assert [control_entries(directory) for directory in disks.directories] == before
    assert plan_recovery(disks.directories).decided[1].x == 24


def control_entries(directory: str) -> bytes:
    return (Path(directory) / "waltz-storage.ctl").read_bytes()


def test_an_ensemble_that_has_the_cluster_still_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = Disks(tmp_path, {"config": {"servers": 2, "zookeeper": "zk:2181", "directory": str(tmp_path)}})
    for number in range(3):
        disks.replica(number, (20, 0, 4))
    disks.remember()
    plan = plan_recovery(disks.directories)
    monkeypatch.setattr(recovery, "KazooZooKeeper", lambda zookeeper: disks.zookeeper)
    before = control_entries(disks.directories[0])
    with pytest.raises(InvalidInput, match="the ZooKeeper at zk:2181 has cluster 'c' still: bring it up with that"):
        apply_recovery(plan, str(tmp_path))
    assert control_entries(disks.directories[0]) == before

    class Killed(MemoryZooKeeper):
        def create(self, path: str, data: bytes, **how: Any) -> str:
            if path.endswith("/1"):
                raise KeyboardInterrupt
            return super().create(path, data, **how)

    def unreachable(zookeeper: str) -> None:
        raise ZooKeeperUnreachable("nobody answers")

    monkeypatch.setattr(recovery, "KazooZooKeeper", lambda zookeeper: MemoryZooKeeperServer().client())
    apply_recovery(plan, str(tmp_path))
    recovered = read_recovered(str(tmp_path))
    assert recovered is not None
    begun = MemoryZooKeeperServer()
    with pytest.raises(KeyboardInterrupt):
        plant_recovered(Killed(begun), "c", *recovered)
    monkeypatch.setattr(recovery, "KazooZooKeeper", lambda zookeeper: begun.client())
    with pytest.raises(InvalidInput, match="a waltz up that ended in its midst has begun to make cluster 'c'"):
        apply_recovery(plan_recovery(disks.directories), str(tmp_path))
    assert read_recovered(str(tmp_path)) is not None
    plant_recovered(begun.client(), "c", *recovered)
    monkeypatch.setattr(recovery, "KazooZooKeeper", unreachable)
    apply_recovery(plan_recovery(disks.directories), str(tmp_path))


def test_one_disk_of_three_is_no_quorum(disks: Disks) -> None:
    plan = plan_recovery(disks.directories[:1])
    assert plan.undecided.keys() == {0, 1, 2}
    with pytest.raises(InvalidInput, match="3 partitions are undecided; nothing was changed"):
        apply_recovery(plan, str(disks.path))
    accepted = plan_recovery(disks.directories[:1], accept_loss=True)
    assert [accepted.decided[p].lost for p in range(3)] == [((30, None),), ((20, None),), ((0, None),)]


def test_a_disk_that_is_found_when_its_records_were_given_up_does_not_vouch_for_them(tmp_path: Path) -> None:
    """It has a mark behind them, and a replica keeps what is up to its mark: their IDs are others' by then."""
    disks = Disks(tmp_path)
    for number, count in enumerate((30, 30, 15)):
        disks.replica(number, (count, 1, 5), (5, 0, 4), mark=4 if count == 15 else 29)
    disks.remember(number=2)
    here = disks.directories[2]
    apply_recovery(plan_recovery([here], accept_loss=True), str(tmp_path))
    recovered = read_recovered(str(tmp_path))
    assert recovered is not None
    server = MemoryZooKeeperServer()
    plant_recovered(server.client(), "c", *recovered)
    store = ClusterStore(server.client(), "c")
    open_storage(OsDisk(), here, store, 2, CONFIG).close()
    refused = r"replica 0: .* gave up what it has of partition 0 from transaction 15 on; .* replace-replica 0 --set"
    with pytest.raises(ForeignStorage, match=refused):
        open_storage(OsDisk(), disks.directories[0], store, 0, CONFIG)

    disks.zookeeper = server.client()
    disks.remember(number=2)  # as its process does; and then ZooKeeper is lost once more
    again = plan_recovery([disks.directories[0], here], accept_loss=True)
    assert again.unread == (
        "partition 0 of replica 0 does not count: an earlier recovery has given up what it has from transaction 15 on",
    )
    assert again.decided[0].keep == {2: 14}
    apply_recovery(again, str(tmp_path))
    recovered_again = read_recovered(str(tmp_path))
    assert recovered_again is not None
    assert [each.first_id for each in recovered_again[1].given_up[0]] == [15, 15]


def test_what_was_cut_though_it_may_have_been_committed_is_remembered_however_often_it_is_recovered(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first time the disks agree: nothing in them tells any more that there was something else."""
    absent = Disks(disks.path / "set-aside")
    absent.key = disks.key
    absent.replica(1, (40, 2, 3), (20, 0, 4), mark=39)
    disks.directories.pop(1)

    def ended(path: Path, text: str, mode: int) -> None:
        if "waltz-recovered" in str(path) and ended_at.pop():
            raise KeyboardInterrupt
        replace_small_file(path, text, mode)

    with monkeypatch.context() as killed:  # when all is cut
        ended_at = [True, False]
        killed.setattr(recovery, "replace_small_file", ended)
        with pytest.raises(KeyboardInterrupt):
            apply_recovery(plan_recovery(disks.directories, accept_loss=True), str(disks.path))
    for _ in range(2):
        plan = plan_recovery(disks.directories)
        assert plan.decided[0].lost == ()
        apply_recovery(plan, str(disks.path))
    recovered = read_recovered(str(disks.path))
    assert recovered is not None
    assert [each.first_id for each in recovered[1].given_up[0]] == [10]
    server = MemoryZooKeeperServer()
    plant_recovered(server.client(), "c", *recovered)
    with pytest.raises(ForeignStorage, match="gave up what it has of partition 0 from transaction 10 on"):
        open_storage(OsDisk(), absent.directories[0], ClusterStore(server.client(), "c"), 1, CONFIG)


def test_what_only_a_disk_had_that_was_missing_is_not_given_up_when_it_is_found_before_anything_began(
    disks: Disks,
) -> None:
    """Nobody was given its IDs yet."""
    here = disks.directories[:1]
    apply_recovery(plan_recovery(here, accept_loss=True), str(disks.path))
    recovered = read_recovered(str(disks.path))
    assert recovered is not None
    assert [each.first_id for each in recovered[1].given_up[1]] == [20]
    apply_recovery(plan_recovery(disks.directories), str(disks.path))
    recovered = read_recovered(str(disks.path))
    assert recovered is not None
    assert recovered[1].given_up == {}


def test_a_recovery_that_ended_in_its_midst_is_not_brought_up(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the one before has sessions that the disks refuse by then."""
    apply_recovery(plan_recovery(disks.directories), str(disks.path))
    cut = PartitionLog.open_session

    def ended(log: PartitionLog, session_id: int) -> int:
        if log.partition_id == 1:
            raise KeyboardInterrupt
        return cut(log, session_id)

    with monkeypatch.context() as killed:
        killed.setattr(PartitionLog, "open_session", ended)
        with pytest.raises(KeyboardInterrupt):
            apply_recovery(plan_recovery(disks.directories), str(disks.path))
    with pytest.raises(StorageError, match="was not finished; give waltz recover --apply again"):
        read_recovered(str(disks.path))
    apply_recovery(plan_recovery(disks.directories), str(disks.path))
    recovered = read_recovered(str(disks.path))
    assert recovered is not None
    for directory in disks.directories:
        for entry in read_fences(OsDisk(), directory):
            assert (entry.session_id or 0) <= recovered[1].rosters[entry.partition_id].session_id


def test_nobody_else_has_the_disks_until_the_file_is_written(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second operator's would be replaced by one with sessions that the disks refuse."""

    def noted(path: Path, text: str, mode: int) -> None:
        with pytest.raises(StorageLocked):
            plan_recovery(disks.directories)
        replace_small_file(path, text, mode)

    monkeypatch.setattr(recovery, "replace_small_file", noted)
    apply_recovery(plan_recovery(disks.directories), str(disks.path))


def test_two_disks_that_differ_and_may_both_be_right_are_undecided(disks: Disks) -> None:
    plan = plan_recovery([disks.directories[0], disks.directories[2]])
    assert "replicas 0 and 2 differ from transaction 10 on" in plan.undecided[0]
    assert isinstance(plan.verdicts[0], Undecided)
    assert plan.decided[1].x == 19, "what only one of the two has may be on the third"


def test_a_copy_that_is_damaged_does_not_count(disks: Disks) -> None:
    segment = sorted((disks.path / "replica-1" / "1").glob("*.seg"))[0]
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    index = segment.with_suffix(".idx")
    assert index.exists()
    plan = plan_recovery(disks.directories)
    assert 1 in plan.decided, "the two others are a quorum"
    assert plan.decided[1].x == 19


def test_the_newest_memory_counts_and_says_on_which_replicas_a_partition_is(disks: Disks) -> None:
    disks.store.moves.want({1: (0, 1, 2)})
    disks.remember(2_000, 2, {"0": [0, 1, 2], "1": [0, 1, 4]})
    plan = plan_recovery(disks.directories)
    assert plan.remembered_by == disks.directories[2]
    assert plan.decided[1].keep == {0: 19, 1: 19, 2: 14}, "it was on its way: each of the sets has a quorum here"
    alone = plan_recovery([disks.directories[0], disks.directories[2]])
    assert "is on replicas 0, 1, 4, and only 0" in alone.undecided[1]


def test_what_cannot_be_recovered_from_says_why(disks: Disks, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="whose name is replica-<number>"):
        plan_recovery([str(tmp_path)])
    with pytest.raises(InvalidInput, match="each replica is named once"):
        plan_recovery([disks.directories[0]] * 2)
    held = ReplicaStore.open(OsDisk(), disks.directories[1], disks.key, CONFIG)
    with pytest.raises(StorageLocked):
        plan_recovery(disks.directories)
    held.close()
    os.remove(f"{disks.directories[0]}/{MEMORY_FILE}")
    with pytest.raises(InvalidInput, match="none of these replicas remembers its cluster"):
        plan_recovery(disks.directories)
    Path(disks.directories[0], MEMORY_FILE).write_text("{")
    assert read_memory(OsDisk(), disks.directories[0]) is None
    (tmp_path / "replica-7").mkdir()
    with pytest.raises(InvalidInput, match=r"replica-7 holds no replica's files: .* name the other replicas"):
        plan_recovery([*disks.directories, str(tmp_path / "replica-7")])
    stranger = str(tmp_path / "other" / "replica-7")
    ReplicaStore.create(OsDisk(), stranger, uuid.uuid4(), 1, CONFIG).close()
    with pytest.raises(InvalidInput, match="replicas of different clusters"):
        plan_recovery([*disks.directories, stranger])
    shutil.rmtree(tmp_path / "other")


def test_a_zookeeper_that_has_data_and_one_that_has_another_cluster_are_left_alone(disks: Disks) -> None:
    (disks.path / "zookeeper" / "version-2").mkdir(parents=True)
    (disks.path / "zookeeper" / "version-2" / "log.1").write_bytes(b"")
    plan = plan_recovery(disks.directories)
    with pytest.raises(InvalidInput, match="ZooKeeper's data is still there"):
        apply_recovery(plan, str(disks.path))
    shutil.rmtree(disks.path / "zookeeper")
    apply_recovery(plan, str(disks.path))
    recovered = read_recovered(str(disks.path))
    assert recovered is not None
    other = MemoryZooKeeperServer().client()
    ClusterStore(other, "c").initialize(2, range(3), {})
    with pytest.raises(ClusterMismatch):
        plant_recovered(other, "c", *recovered)
    path = disks.path / RECOVERED
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 9}))
    with pytest.raises(StorageError, match="make it again with: waltz recover"):
        read_recovered(str(disks.path))


def test_a_space_that_nobody_remembers_is_told(disks: Disks) -> None:
    for directory in disks.directories:
        store = ReplicaStore.open(OsDisk(), directory, disks.key, CONFIG)
        store.grow(5)
        store.close()
    with pytest.raises(InvalidInput, match=r"have 5 partitions, and .* knows of 3: a space was added"):
        plan_recovery(disks.directories)


def test_corruption_of_a_control_file_is_not_hidden(disks: Disks) -> None:
    control = next(Path(disks.directories[2]).glob("*.ctl"))
    control.write_bytes(b"x" * 64)
    with pytest.raises(Corruption):
        plan_recovery(disks.directories)


def whole(directory: Path) -> tuple[ClusterConfig, Disks]:
    """A cluster in there of which all replicas are left, and what they remember of it."""
    config = ClusterConfig("c", str(directory), 2, 3, 2)
    disks = Disks(directory, to_json(Settings(config, dict.fromkeys(range(3), "CPU"))))
    for number in range(3):
        disks.replica(number, (20, 0, 4))
    disks.remember()
    return config, disks


def test_a_cluster_whose_file_is_lost_too_is_brought_up_and_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the disk of the node on which it was brought up: that had ZooKeeper's data, too."""
    config, disks = whole(tmp_path)
    server = MemoryZooKeeperServer()
    monkeypatch.setattr(recording, "KazooZooKeeper", lambda zookeeper: server.client())
    with pytest.raises(ClusterMismatch, match=r"replica-\d is a replica of a cluster already.*: waltz recover"):
        recording.initialise(recording.known_in(config), config)
    assert server.client().children("/") == []
    plan = plan_recovery(disks.directories)
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(InvalidInput, match=f"the cluster was in {tmp_path}, and its processes look there"):
        apply_recovery(plan, str(tmp_path / "elsewhere"))
    apply_recovery(plan, str(tmp_path))
    known = recording.known_in(config)
    assert known.key == str(disks.key)
    shutil.copytree(tmp_path, tmp_path.parent / "copied")
    copied = plan_recovery([str(tmp_path.parent / "copied" / Path(each).name) for each in disks.directories])
    with pytest.raises(InvalidInput, match=f"the cluster was in {tmp_path}, and its processes look there"):
        apply_recovery(copied, str(tmp_path.parent / "copied"))
    assert recording.initialise(known, config).cluster_key == disks.key
    cluster_file.write(replace(known, name="other", key=str(uuid.uuid4())))
    with pytest.raises(InvalidInput, match="holds another cluster, 'other'"):
        apply_recovery(plan, str(tmp_path))


def test_nobody_brings_the_cluster_up_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would plant the file of a recovery before, whose sessions the disks refuse afterwards."""
    whole(tmp_path)
    apply, asked = recovery.apply_recovery, ["recover", "--from-replicas", str(tmp_path), "--apply", "--yes"]

    def noted(*arguments: Any) -> None:
        with pytest.raises(StorageError, match=r"a waltz up or down of .* is under way"), cluster_file.alone(tmp_path):
            pass
        apply(*arguments)

    monkeypatch.setattr(recovery, "apply_recovery", noted)
    assert run(*asked) == 0
    assert "can be brought up again" in capsys.readouterr().out
    assert run(*asked, "--into", str(tmp_path / "none")) == 1
    assert f"{tmp_path / 'none'} is not a directory" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recovery, "apply_recovery", interrupted)
    assert run(*asked) == 130
    assert "interrupted: give the same command again, before waltz up" in capsys.readouterr().err


def test_what_was_planted_is_not_planted_again_when_zookeeper_is_lost_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``waltz up`` was killed when the nodes were there and the file was not renamed yet. Spaces were added since."""
    config, disks = whole(tmp_path)
    apply_recovery(plan_recovery(disks.directories), str(tmp_path))
    known = ClusterFile("c", str(tmp_path), 2, 3, 2, zookeeper="anywhere", key=str(disks.key))
    server = MemoryZooKeeperServer()
    monkeypatch.setattr(recording, "KazooZooKeeper", lambda zookeeper: server.client())

    def forgotten(directory: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(recording, "forget_recovered", forgotten)
        with pytest.raises(KeyboardInterrupt):
            recording.initialise(known, config)
    assert recording.initialise(known, config).cluster_key == disks.key
    server = MemoryZooKeeperServer()
    with pytest.raises(ClusterMismatch, match="if that is lost: waltz recover"):
        recording.initialise(known, config)


@pytest.mark.parametrize("at", ["its opening", "a later look"])
def test_a_copy_on_a_disk_that_cannot_be_read_does_not_count(
    at: str, disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad sector is why somebody recovers. The others are a quorum; what cannot be read is named."""
    bad = str(sorted((disks.path / "replica-1" / "1").glob("*.seg"))[0])
    broken, handles = at == "its opening", set[int]()
    opened, read, scan = OsDisk.open, OsDisk.pread, recovery._Reader._scanned

    def open_noted(self: OsDisk, path: str, mode: Any) -> int:
        handle = opened(self, path, mode)
        (handles.add if path == bad else handles.discard)(handle)
        return handle

    def pread(self: OsDisk, handle: int, size: int, offset: int) -> bytes:
        if handle in handles and broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(self, handle, size, offset)

    def scanned(self: Any, p: int, log: PartitionLog) -> str:
        nonlocal broken
        broken = True
        return scan(self, p, log)

    monkeypatch.setattr(OsDisk, "open", open_noted)
    monkeypatch.setattr(OsDisk, "pread", pread)
    monkeypatch.setattr(recovery._Reader, "_scanned", scanned)
    plan = plan_recovery(disks.directories)
    assert plan.decided[1].x == 19, "the two others are a quorum"
    (told,) = plan.unread
    assert told.startswith(f"partition 1 of replica 1 does not count: {disks.directories[1]}/1/")
    assert "cannot be read: Input/output error" in told


@pytest.mark.parametrize("name", ["waltz-storage.ctl", "waltz-journal.0"])
def test_a_replica_whose_own_files_cannot_be_read_is_named(name: str, disks: Disks) -> None:
    bad = Path(disks.directories[1]) / name
    bad.unlink(missing_ok=True)
    bad.mkdir()
    with pytest.raises(InvalidInput, match=r"replica-1 cannot be read: Is a directory; .* name the other replicas'"):
        plan_recovery(disks.directories)
    assert plan_recovery([disks.directories[0], disks.directories[2]]).decided[1].x == 19
