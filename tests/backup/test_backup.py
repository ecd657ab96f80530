"""Runs of a backup, restored and compared: what is new, what is left behind, and what is killed or full on the way."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import waltz_ray.backup.restore as restoring
from tests.backup.memory_source import CLOCK_MS, KEY, BrittleFileSystem, Killed, MemorySource, Quiet, SharedFileSystem
from tests.cli.test_commands import run as command
from tests.storage.helpers import records
from waltz_ray.backup.catalogue import load_piece, read_catalogue
from waltz_ray.backup.format import Identity, Manifest, piece_of
from waltz_ray.backup.pace import Pace
from waltz_ray.backup.restore import Cut, restore
from waltz_ray.backup.restored import read_restored
from waltz_ray.backup.run import BackupChoices, Summary, back_up, hold_name
from waltz_ray.backup.target import Target
from waltz_ray.backup.verify import damages_of, verify_backup
from waltz_ray.config import StorageConfig
from waltz_ray.coordination.hold_store import Hold
from waltz_ray.coordination.seeding import SEED_SESSION
from waltz_ray.errors import (
    ClusterMismatch,
    CoordinationError,
    Corruption,
    DataUnavailable,
    DiskFull,
    InvalidInput,
    StorageError,
)
from waltz_ray.protocol.spaces import SpaceState
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.store import ReplicaStore
from waltz_ray.storage.verify import compare_reports, verify_directory

SMALL = BackupChoices(piece_bytes=1000)
FULL_SPEED = Pace(None)


def run(source: MemorySource, target: Target, choices: BackupChoices = SMALL) -> Summary:
    shown = Quiet()
    done = back_up(source, target, choices, FULL_SPEED, shown, lambda: CLOCK_MS)
    assert shown.stages == [["transactions", done.transactions, done.transactions]]
    return done


def local(path: Path) -> Target:
    return Target.at(str(path))


def newest(target: Target) -> Manifest:
    manifest = read_catalogue(target).newest
    assert manifest is not None
    return manifest


def wanted(partition_id: int, first_id: int, end_id: int) -> bytes:
    """The bytes of these records, made in one go."""
    return bytes(records(0, end_id, tag=partition_id, partition_id=partition_id).since(first_id).records)


def restored_bytes(
    target: Target, into: Path, cuts: Sequence[Cut] = (), replicas: int | None = None
) -> dict[int, tuple[int, bytes]]:
    """Of each partition the first ID and the bytes of all records; the replicas' directories are good, and alike."""
    done = restore(target, str(into), Quiet(), "again", cuts, replicas)
    reports = [verify_directory(OsDisk(), str(into / f"replica-{n}")) for n in range(done.replicas)]
    assert [report.damages for report in reports] == [[]] * done.replicas
    compared = compare_reports(OsDisk(), reports, done.replicas)
    assert [one.verdict for one in compared if one.partition_id in done.next_ids] == ["ok"] * len(done.next_ids)
    known = read_restored(into)
    assert known is not None
    store = ReplicaStore.open(OsDisk(), str(into / "replica-0"), known.seed.cluster_key, StorageConfig())
    try:
        found = {}
        for p, end in done.next_ids.items():
            log, first_id, data = store.partition(p), known.seed.trim_marks.get(p, 0), b""
            assert (log.session_id, log.last_id) == (SEED_SESSION, end - 1)
            assert (log.low_water_mark, log.local_low_water_mark) == (end - 1, end - 1)
            at = first_id
            while at < end:
                batch = log.read(at, end, 10_000)
                data, at = data + bytes(batch.records), batch.end_id
            found[p] = (first_id, data)
        return found
    finally:
        store.close()


def test_full_then_incremental_then_restored_byte_for_byte(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path / "b")
    source.ends = {0: 100, 1: 8, 2: 0}
    first = run(source, target)
    assert (first.manifest, first.transactions, first.partitions) == (0, 108, 3)
    before = newest(target)
    assert len(before.partitions[0].pieces) > 3
    source.ends = {0: 130, 1: 9, 2: 5}
    source.reads.clear()
    second = run(source, target)
    after = newest(target)
    assert (second.manifest, second.transactions) == (1, 36)
    assert source.reads == [(0, 100, 130), (1, 8, 9), (2, 0, 5)], "what is there is not read from the cluster again"
    full = [piece for piece in before.partitions[0].pieces if piece.size >= SMALL.piece_bytes]
    assert after.partitions[0].pieces[: len(full)] == tuple(full), "full pieces are never written again"
    assert all(piece.size >= SMALL.piece_bytes for piece in after.partitions[0].pieces[:-1])
    assert [(piece.first_id, piece.next_id) for piece in after.partitions[1].pieces] == [(0, 9)], (
        "short ones are joined"
    )
    names = set(target.names())
    assert names == {"backup.json", "manifests/0000000001.json", *after.names()}, "what no manifest names is gone"
    assert source.holds == {}

    found = restored_bytes(target, tmp_path / "again")
    assert found == {p: (0, wanted(p, 0, end)) for p, end in source.ends.items()}
    known = read_restored(tmp_path / "again")
    assert known is not None
    assert known.seed.cluster_key != KEY
    assert (known.config.name, known.config.replicas, known.config.partitions) == ("again", 3, 2)
    assert known.config.storage.segment_size_bytes == 900
    assert (known.seed.last_client_id, known.seed.last_server_id) == (17, 4)
    assert known.seed.generations == {0: 3, 1: 2, 2: 1}
    assert known.seed.spaces == source.spaces()
    assert known.seed.hold == Hold("backup.restored", {2: 0}, f"restored from {target.shown}"), "orders has a setting"


def test_each_partition_is_restored_on_as_many_replicas_as_it_was_on(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path / "backup")
    source.replica_count, source.config = 5, {**source.config, "replication": 3}
    source.ends = {0: 100, 1: 8, 2: 5}
    run(source, target)
    done = restore(target, str(tmp_path / "five"), Quiet(), "five")
    known = read_restored(tmp_path / "five")
    assert known is not None
    assert (known.config.replicas, known.config.replication) == (5, 3)
    reports = [verify_directory(OsDisk(), str(tmp_path / "five" / f"replica-{n}")) for n in range(5)]
    for p in source.ends:
        has = {n for n, report in enumerate(reports) if report.partitions[p].records}
        assert has == set(known.seed.sets[p])
        assert len(known.seed.sets[p]) == 3
    compared = compare_reports(OsDisk(), reports, 5, 3)
    assert [one.verdict for one in compared if one.partition_id in done.next_ids] == ["ok"] * len(done.next_ids)
    fewer = restore(target, str(tmp_path / "one"), Quiet(), "one", replicas=1)
    known = read_restored(tmp_path / "one")
    assert known is not None
    assert (fewer.replicas, known.config.replication, known.seed.sets) == (1, 0, {})


def test_nothing_new_is_another_run_all_the_same(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path)
    source.ends = {0: 3, 1: 0, 2: 0}
    run(source, target)
    done = run(source, target)
    assert (done.manifest, done.transactions, done.pieces_written) == (1, 0, 0)
    assert verify_backup(target, Quiet()).ok


def test_times_come_back(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path / "b")
    source.ends = {0: 50, 1: 50, 2: 0}
    run(source, target)
    source.ends = {0: 70, 1: 50, 2: 0}
    run(source, target)
    restored_bytes(target, tmp_path / "again", replicas=1)
    known = read_restored(tmp_path / "again")
    assert known is not None
    store = ReplicaStore.open(OsDisk(), str(tmp_path / "again/replica-0"), known.seed.cluster_key, StorageConfig())
    for p, end in ((0, 70), (1, 50)):
        lookup = store.partition(p).times()
        assert lookup.first_id_at(CLOCK_MS + 9_000) == 27
        for n in range(p, end // 3):
            assert lookup.marks(3 * n, 3 * n + 1) == (3 * n + 1, ((3 * n, CLOCK_MS + 1000 * n),))
        for segment in (tmp_path / f"again/replica-0/{p}").glob("*.seg"):
            made_ms, first_id = int.from_bytes(segment.read_bytes()[4:12], "big"), int(segment.stem)
            assert made_ms <= CLOCK_MS + 1000 * (first_id // 3), "no record is older than its segment"
    store.close()


def test_times_of_which_two_replicas_have_told_a_part_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one knows less: its marks are older than the last one of the first. None of them falls in a piece."""
    source, target = MemorySource(), local(tmp_path / "b")
    told = ((0, CLOCK_MS), (5, CLOCK_MS + 9000), (6, CLOCK_MS + 1000), (8, CLOCK_MS + 20_000))
    monkeypatch.setattr(source, "times", lambda p, first_id, end_id: told)
    source.ends = {0: 10, 1: 0, 2: 0}
    run(source, target)
    assert verify_backup(target, Quiet()).damages == []
    assert restored_bytes(target, tmp_path / "r", [Cut(0, time_ms=CLOCK_MS + 20_000)])[0] == (0, wanted(0, 0, 8))


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_killed_between_any_two_steps(tmp_path: Path, kind: str) -> None:
    """Two runs, the second one killed at each of its steps: the first one's records can be restored at any moment, and
    the next run goes on."""

    def prepared(folder: Path) -> tuple[MemorySource, BrittleFileSystem, Target]:
        source, brittle = MemorySource(), BrittleFileSystem(kind)
        source.ends = {0: 30, 1: 4, 2: 0}
        run(source, local(folder))
        source.ends = {0: 75, 1: 9, 2: 1}
        return source, brittle, Target(brittle, str(folder), str(folder))

    source, brittle, target = prepared(tmp_path / "whole")
    whole = run(source, target)
    kept = 0
    for step in range(brittle.steps):
        folder = tmp_path / f"b{step}"
        source, brittle, target = prepared(folder)
        brittle.left = step
        with pytest.raises(Killed):
            run(source, target)
        brittle.left = None
        assert verify_backup(target, Quiet()).ok
        ends = {p: each.next_id for p, each in newest(target).partitions.items()}
        assert ends in ({0: 30, 1: 4, 2: 0}, {0: 75, 1: 9, 2: 1})
        if step % 5 == 0:
            found = restored_bytes(target, tmp_path / f"r{step}", replicas=1)
            assert found == {p: (0, wanted(p, 0, end)) for p, end in ends.items()}
        again = run(source, target)
        kept = max(kept, again.pieces_resumed)
        assert again.pieces_written + again.pieces_resumed <= whole.pieces_written
        assert verify_backup(target, Quiet()).unnamed == []
        last = newest(target)
        assert {p: each.next_id for p, each in last.partitions.items()} == source.ends
        assert set(target.names()) == {"backup.json", f"manifests/{last.number:010d}.json", *last.names()}
    assert kept == whole.pieces_written, "killed last of all, everything is taken over"


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_killed_in_the_first_run(tmp_path: Path, kind: str) -> None:
    probe = BrittleFileSystem(kind)
    source = MemorySource()
    source.ends = {0: 20, 1: 0, 2: 0}
    run(source, Target(probe, str(tmp_path / "whole"), "whole"))
    for step in range(probe.steps):
        brittle = BrittleFileSystem(kind)
        target = Target(brittle, str(tmp_path / f"b{step}"), "b")
        brittle.left = step
        with pytest.raises(Killed):
            run(source, target)
        brittle.left = None
        if read_catalogue(target).newest is None:
            with pytest.raises(
                InvalidInput, match=r"(holds no backup; make|no run of this backup has come to its end)"
            ):
                restore(target, str(tmp_path / "x"), Quiet())
        run(source, target)
        assert verify_backup(target, Quiet()).ok
        assert newest(target).partitions[0].next_id == 20


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_a_full_disk_is_one_line_and_the_next_run_goes_on(tmp_path: Path, kind: str) -> None:
    source, brittle = MemorySource(), BrittleFileSystem(kind)
    target = Target(brittle, str(tmp_path / "b"), str(tmp_path / "b"))
    source.ends = {0: 10, 1: 0, 2: 0}
    run(source, target)
    source.ends = {0: 100, 1: 0, 2: 0}
    brittle.room = 2500
    with pytest.raises(DiskFull, match=r"b/pieces/0/.*: no space left where the backup is written; make room and give"):
        run(source, target)
    assert source.holds == {}
    assert not any(name.endswith(".new") for name in target.names()), "a full disk is not kept full by it"
    brittle.room = None
    manifest = newest(target)
    if kind == "s3":
        half = [name for name in target.names() if piece_of(name) is not None and name not in manifest.names()]
        assert len(half) == 1, "what was cut short is not left under its name"
    assert newest(target).partitions[0].next_id == 10
    again = run(source, target)
    assert again.pieces_resumed == 1
    assert restored_bytes(target, tmp_path / "r", replicas=1)[0] == (0, wanted(0, 0, 100))


def test_what_a_killed_run_left_is_believed_only_after_a_look(tmp_path: Path) -> None:
    source, brittle = MemorySource(), BrittleFileSystem()
    target = Target(brittle, str(tmp_path), "b")
    source.ends = {0: 60, 1: 0, 2: 0}
    source.lock_lost = True
    with pytest.raises(CoordinationError):
        run(source, target)
    source.lock_lost = False
    (*_, name) = sorted(name for name in target.names() if name.startswith("pieces/0/"))
    flip(tmp_path / name, 400)
    again = run(source, target)
    assert again.pieces_written == 1
    assert again.pieces_resumed > 1
    assert restored_bytes(target, tmp_path / "r", replicas=1)[0] == (0, wanted(0, 0, 60))


def test_a_short_piece_of_a_killed_run_does_not_stay_in_the_middle(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path)
    source.ends = {0: 50, 1: 0, 2: 0}
    source.lock_lost = True
    with pytest.raises(CoordinationError):
        run(source, target)
    source.lock_lost, source.ends[0] = False, 80
    assert run(source, target).pieces_resumed == 2
    pieces = newest(target).partitions[0].pieces
    assert all(piece.size >= SMALL.piece_bytes for piece in pieces[:-1])


def test_a_run_that_was_replaced_does_not_let_go_of_what_its_successor_holds(tmp_path: Path) -> None:
    """It was paused for longer than its ZooKeeper session; both use the hold of the backup."""
    source, target = MemorySource(), local(tmp_path)
    source.ends = {0: 50, 1: 0, 2: 0}

    def replaced() -> None:
        source.lock_lost = True

    source.on_read = replaced
    with pytest.raises(CoordinationError, match="lost"):
        run(source, target)
    assert [*source.holds.values()] == [{0: 0, 1: 0, 2: 0}]
    source.lock_lost, source.on_read = False, lambda: None
    run(source, target)
    assert source.holds == {}


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(bytes(raw))


# ---- trimming and holds ---------------------------------------------------------------------------------------------


def test_records_are_held_while_they_are_read_and_longer_on_request(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path)
    source.ends = {0: 40, 1: 0, 2: 0}
    held: list[dict[str, dict[int, int]]] = []
    source.on_read = lambda: held.append({name: dict(positions) for name, positions in source.holds.items()})
    run(source, target)
    identity = read_catalogue(target).identity
    assert identity is not None
    name = hold_name(identity.backup)
    assert held[0] == {name: {0: 0, 1: 0, 2: 0}}
    assert source.holds == {}
    assert run(source, target, replace(SMALL, keep_hold=True)).hold == name
    assert source.holds == {name: {0: 40, 1: 0, 2: 0}}
    source.ends[0] = 50
    run(source, target, replace(SMALL, keep_hold=True))
    assert held[-1] == {name: {0: 40, 1: 0, 2: 0}}, "nothing that was not backed up was let go of"
    assert source.holds == {name: {0: 50, 1: 0, 2: 0}}


def test_the_first_run_begins_at_the_trim_mark_even_if_it_moves(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path / "b")
    source.ends, source.marks = {0: 40, 1: 0, 2: 0}, {0: 9}

    def trimmed_further() -> None:
        source.marks[0] = 12

    source.before_hold = trimmed_further
    run(source, target)
    assert newest(target).partitions[0].first_id == 12
    assert source.reads == [(0, 12, 40)]
    assert restored_bytes(target, tmp_path / "r")[0] == (12, wanted(0, 12, 40))
    assert restored_bytes(target, tmp_path / "none", [Cut(0, first_id=12)])[0] == (12, b"")


def test_what_was_backed_up_stays_although_the_cluster_has_trimmed_it(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path / "b")
    source.ends = {0: 10, 1: 0, 2: 0}
    run(source, target)
    source.ends, source.marks = {0: 20, 1: 0, 2: 0}, {0: 10}
    run(source, target)  # writes the short piece once more, with records that only the backup has
    assert newest(target).partitions[0].first_id == 0
    assert restored_bytes(target, tmp_path / "r", replicas=1)[0] == (0, wanted(0, 0, 20))


def test_a_gap_is_refused(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path)
    source.ends = {0: 10, 1: 0, 2: 0}
    run(source, target)
    source.ends, source.marks = {0: 20, 1: 0, 2: 0}, {0: 15}
    with pytest.raises(
        InvalidInput, match=r"partition 0: transactions 10 to 14 were trimmed before they were backed up"
    ):
        run(source, target)
    assert newest(target).partitions[0].next_id == 10


# ---- spaces, clusters -----------------------------------------------------------------------------------------------


def test_a_space_that_goes_while_it_is_read_is_gone_in_the_backup(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path / "b")
    source.ends = {0: 5, 1: 0, 2: 60}
    run(source, target)
    source.ends[2] = 90

    def deleted() -> None:
        source.state = SpaceState.GONE

    source.on_read = deleted
    back_up(source, target, SMALL, FULL_SPEED, Quiet())
    assert sorted(newest(target).partitions) == [0, 1]
    assert newest(target).spaces.gone == {2}
    assert not any(name.startswith("pieces/2/") for name in target.names()), "with all its records, for ever"
    assert sorted(restored_bytes(target, tmp_path / "r")) == [0, 1]


def test_a_space_that_goes_before_it_is_read_is_left_out(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path)
    source.ends = {0: 5, 1: 0}

    def deleted() -> None:
        source.state = SpaceState.GONE

    source.before_hold = deleted
    run(source, target)
    assert sorted(newest(target).partitions) == [0, 1]


def test_what_cannot_be_read_ends_the_run(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path)
    source.ends = {0: 5, 1: 0, 2: 0}

    def unreadable() -> None:
        raise DataUnavailable("nobody answers")

    source.on_read = unreadable
    with pytest.raises(DataUnavailable):
        run(source, target)
    assert source.holds == {}


def test_a_cluster_that_ends_before_its_backup(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path)
    source.ends = {0: 5, 1: 0, 2: 0}
    run(source, target)
    source.ends[0] = 4
    with pytest.raises(DataUnavailable, match=r"partition 0 ends with transaction 3, and the backup has 4 already"):
        run(source, target)


@pytest.mark.parametrize("fork", [29, 30, None])
def test_a_cluster_that_was_recovered_goes_on_unless_it_has_lost_what_the_backup_has(
    tmp_path: Path, fork: int | None
) -> None:
    source, target = MemorySource(), local(tmp_path / "b")
    source.ends = {0: 30, 1: 0, 2: 0}
    run(source, target)
    source.recovered, source.ends[0] = "one", 40
    source.forks = {} if fork is None else {0: fork}
    if fork == 29:
        with pytest.raises(InvalidInput, match=r"transaction 29 is another one than in the backup: .* \(partition 0\)"):
            run(source, target)
        assert (newest(target).partitions[0].next_id, source.holds) == (30, {})
        return
    assert run(source, target).transactions == 10
    assert newest(target).recovery == "one"
    again = wanted(0, 30, 40) if fork is None else bytes(records(0, 40, tag=1000).since(30).records)
    assert restored_bytes(target, tmp_path / "r", replicas=1)[0] == (0, wanted(0, 0, 30) + again)
    source.marks = {0: 40}
    assert run(source, target).transactions == 0, "nothing is compared any more"
    source.recovered = "two"
    with pytest.raises(InvalidInput, match=r"transaction 39, the last one of the backup, was trimmed before"):
        run(source, target)


def test_what_a_killed_run_left_of_records_that_a_recovery_has_lost_is_not_taken_over(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path / "b")
    source.ends, source.lock_lost = {0: 60, 1: 0, 2: 0}, True
    with pytest.raises(CoordinationError):
        run(source, target)
    source.lock_lost, source.recovered, source.forks = False, "one", {0: 40}
    assert run(source, target).pieces_resumed == 1
    lost = bytes(records(0, 60, tag=1000).since(40).records)
    assert restored_bytes(target, tmp_path / "r", replicas=1)[0] == (0, wanted(0, 0, 40) + lost)


def test_another_clusters_backup_and_other_things_are_refused(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path / "b")
    run(source, target)
    source.cluster_key = Identity.decode(target.read("backup.json")).backup  # any other
    with pytest.raises(ClusterMismatch, match=r"is the backup of another cluster, 'c' \(their keys differ\)"):
        run(source, target)
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "a.txt").write_text("mine")
    with pytest.raises(InvalidInput, match=r"is no backup, and has a.txt in it; give a place that is empty"):
        run(source, local(tmp_path / "things"))
    with pytest.raises(InvalidInput, match=r"^what://x is no place that pyarrow can write to"):
        Target.at("what://me:secret@x?key=1")
    with pytest.raises(InvalidInput, match=r"b.udcff' is no place that pyarrow can write to: it is not UTF-8"):
        Target.at(f"{tmp_path}/b\udcff")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/b/backup.json cannot be written: .*Not a directory"):
        run(source, local(tmp_path / "file" / "b"))
    with pytest.raises(StorageError, match=r"/proc/x/backup.json cannot be written: .*No such file"):
        run(source, local(Path("/proc/x")))


def test_a_file_whose_name_is_no_utf8_is_told_and_is_in_nobodys_way(tmp_path: Path) -> None:
    source, target, stray = MemorySource(), local(tmp_path / "backup"), Path(os.fsdecode(b"\xff"))
    (tmp_path / "backup" / stray).mkdir(parents=True)
    path = tmp_path / "backup" / stray / stray
    path.touch()
    with pytest.raises(InvalidInput, match="is no backup, and has a file whose name is no UTF-8 in it"):
        run(source, target)
    path.unlink()
    run(source, target)
    path.touch()
    source.ends[0] = 30
    run(source, target)
    assert verify_backup(target, Quiet()).ok
    assert path.exists()


def test_a_url(tmp_path: Path) -> None:
    source, target = MemorySource(), Target.at(f"file://{tmp_path}/b")
    source.ends = {0: 30, 1: 0, 2: 0}
    run(source, target)
    assert target.shown == f"file://{tmp_path}/b"
    assert verify_backup(local(tmp_path / "b"), Quiet()).ok


def test_two_runs_at_once_do_not_both_count(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path)
    source.ends = {0: 5, 1: 0, 2: 0}
    other = MemorySource()
    other.ends = {0: 9, 1: 0, 2: 0}
    run(source, target)
    source.ends[0] = 7

    def meanwhile() -> None:
        source.on_read = lambda: None
        run(other, target)

    source.on_read = meanwhile
    with pytest.raises(CoordinationError, match=r"another run of the backup in .* has come to its end meanwhile"):
        back_up(source, target, SMALL, FULL_SPEED, Quiet())
    assert newest(target).partitions[0].next_id == 9
    assert verify_backup(target, Quiet()).ok


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_of_two_first_runs_at_once_one_makes_the_backup(tmp_path: Path, kind: str) -> None:
    """The other one begins, and would come to its end, between any two steps of the first."""

    def raced(folder: Path, step: int | None) -> tuple[set[str], SharedFileSystem]:
        source, other, ended = MemorySource(), MemorySource(), set[str]()
        refusals = set[str]()
        source.ends = other.ends = {0: 9, 1: 0, 2: 0}
        source.locks, source.holds = other.locks, other.holds

        def tried(who: str, source: MemorySource, target: Target) -> None:
            try:
                run(source, target)
                ended.add(who)
            except CoordinationError as error:
                refusals.add(str(error))

        place = str(folder)
        shared = SharedFileSystem(lambda: tried("other", other, Target(BrittleFileSystem(kind), place, place)), kind)
        shared.left = step
        tried("first", source, Target(shared, place, place))
        assert refusals <= {"another run is under way"}
        assert verify_backup(local(folder), Quiet()).ok
        assert run(source, local(folder)).total_transactions == 9
        assert source.holds == {}
        return ended, shared

    _, whole = raced(tmp_path / "whole", None)
    found = [raced(tmp_path / f"b{step}", step)[0] for step in range(whole.steps)]
    assert {"first"} in found
    assert {"first", "other"} in found
    assert set() not in found


@pytest.mark.parametrize("at", ["begin", "end"])
def test_a_place_that_has_become_anothers_is_not_written_to(tmp_path: Path, at: str) -> None:
    """Who calls it by another name takes other locks, and a cluster has its own."""
    other = Identity(uuid.UUID(int=1), "other", uuid.UUID(int=2))
    source, target = MemorySource(), local(tmp_path)
    source.ends, source.lock_lost = {0: 9, 1: 0, 2: 0}, True
    with pytest.raises(CoordinationError, match="lost"):
        run(source, target)  # it is begun
    source.lock_lost = False
    source.holds.clear()  # which its next run would take over

    def begun() -> None:
        target.write("backup.json", [other.encode()])

    if at == "end":
        source.ends[0], source.on_read = 10, begun
    else:
        source.on_lock = begun
    with pytest.raises(CoordinationError, match=r"another backup has been begun in .* meanwhile; give each backup a"):
        back_up(source, target, SMALL, FULL_SPEED, Quiet())
    assert read_catalogue(target).identity == other
    assert read_catalogue(target).newest is None
    assert source.holds == {}


# ---- restoring ------------------------------------------------------------------------------------------------------


def backed_up(folder: Path) -> Target:
    source, target = MemorySource(), local(folder)
    source.ends = {0: 60, 1: 20, 2: 1}
    run(source, target)
    return target


def test_until(tmp_path: Path) -> None:
    target = backed_up(tmp_path / "b")
    cuts = [Cut(None, time_ms=CLOCK_MS + 5_200), Cut(1, first_id=4)]
    found = restored_bytes(target, tmp_path / "r", cuts)
    assert found == {0: (0, wanted(0, 0, 15)), 1: (0, wanted(1, 0, 4)), 2: (0, wanted(2, 0, 1))}
    assert restored_bytes(target, tmp_path / "none", [Cut(0, first_id=0)])[0] == (0, b"")
    late = [Cut(0, time_ms=CLOCK_MS + 10**9)]
    assert restored_bytes(target, tmp_path / "all", late)[0] == (0, wanted(0, 0, 60))
    for cut, why in (
        (Cut(0, first_id=61), r"partition 0 cannot end before transaction 61: the backup has 0 to 59"),
        (Cut(7, first_id=0), r"the backup has no partition 7; it has 0, 1, 2"),
    ):
        with pytest.raises(InvalidInput, match=why):
            restore(target, str(tmp_path / "no"), Quiet(), "", [cut])
        assert not (tmp_path / "no").exists()


def test_rights_come_back(tmp_path: Path) -> None:
    source, target = MemorySource(), local(tmp_path / "b")
    source.rights = {"/store/access": '{"tls_only": true}'}
    run(source, target)
    assert restore(target, str(tmp_path / "r"), Quiet()).notes == []
    known = read_restored(tmp_path / "r")
    assert known is not None
    assert known.seed.documents == source.rights
    source.rights["/store/topics/access"] = '{"authenticate": true}'
    run(source, target)
    (note,) = restore(target, str(tmp_path / "topics"), Quiet()).notes
    assert note.startswith("passwords of topics' users are not in a backup")


def test_who_restores_a_backup_of_before_is_told_that_it_has_no_rights(tmp_path: Path) -> None:
    target = backed_up(tmp_path / "b")
    target.write("manifests/0000000000.json", [replace(newest(target), documents=None).encode()])
    (note,) = restore(target, str(tmp_path / "r"), Quiet()).notes
    assert note.startswith("this backup was made by a version that did not back up rights: the new cluster has none")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    target = backed_up(tmp_path / "b")
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "x").touch()
    with pytest.raises(InvalidInput, match=r"r is not empty \(x is in it\), and nothing is overwritten"):
        restore(target, str(tmp_path / "r"), Quiet())
    with pytest.raises(InvalidInput, match=r"x cannot be restored into: Not a directory"):
        restore(target, str(tmp_path / "r" / "x"), Quiet())
    assert os.listdir(tmp_path / "r") == ["x"]


@pytest.mark.parametrize("begun", [False, True])
def test_who_interrupts_a_restore_is_told_to_remove_what_it_has_begun_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], begun: bool
) -> None:
    """While the backup was looked at somebody else may have restored it there, and brought it up."""
    target, into = backed_up(tmp_path / "b"), tmp_path / "r"

    def interrupted(*arguments: Any) -> None:
        if not begun:
            monkeypatch.setattr(restoring, "damages_of", damages_of)
            restore(target, str(into), Quiet())
        raise KeyboardInterrupt

    monkeypatch.setattr(restoring, "_write_replicas" if begun else "damages_of", interrupted)
    assert command("restore", str(tmp_path / "b"), "--into", str(into)) == 130
    assert (f"{into} is not whole; remove it" in capsys.readouterr().err) == begun


def test_two_that_restore_into_one_directory_leave_it_to_the_faster_one(tmp_path: Path) -> None:
    """Its cluster may have been brought up by the time that the other one has looked at the backup."""
    target, into = backed_up(tmp_path / "b"), tmp_path / "r"

    class Slower(Quiet):
        def begin(self, what: str, total: int) -> None:
            super().begin(what, total)
            if len(self.stages) == 1:
                restore(target, str(into), Quiet())

    with pytest.raises(InvalidInput, match="is not empty"):
        restore(target, str(into), Slower())
    assert read_restored(into) is not None, "it is whole"


def damaged(target: Target, folder: Path, how: str) -> str:
    """Which object was damaged."""
    manifest = newest(target)
    name = manifest.partitions[0].pieces[1].name(0)
    path = folder / name
    if how == "missing":
        path.unlink()
    elif how == "short":
        path.write_bytes(path.read_bytes()[:-1])
    elif how == "exchanged":
        other = (folder / manifest.partitions[0].pieces[0].name(0)).read_bytes()
        path.write_bytes(other.ljust(path.stat().st_size, b"\0")[: path.stat().st_size])
    elif how == "manifest":
        name = "manifests/0000000000.json"
        flip(folder / name, (folder / name).read_bytes().index(b'"next_id"') + 12)
    else:
        flip(path, int(how))
    return name


HOW = {
    "missing": "the piece is missing",
    "short": "it has [0-9]+ bytes, not [0-9]+",
    "exchanged": "first transaction ID 0, expected",
    "manifest": "its checksum is wrong",
    "5": "its checksum is not the one in the manifest",  # the creation time, which no other checksum covers
    "13": "the cluster key is not this directory's",
    "200": "record [0-9]+ is damaged",
    "-3": "the time of a record is damaged",
}


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_backup_is_refused_before_anything_is_written(tmp_path: Path, how: str) -> None:
    target = backed_up(tmp_path / "b")
    name = damaged(target, tmp_path / "b", how)
    with pytest.raises(Corruption, match=HOW[how]) as refused:
        restore(target, str(tmp_path / "r"), Quiet())
    assert refused.value.file == str(tmp_path / "b" / name)
    assert not (tmp_path / "r").exists()
    if how != "manifest":
        (damage,) = verify_backup(target, Quiet()).damages
        assert damage.file == refused.value.file


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    target = backed_up(tmp_path)
    piece = newest(target).partitions[0].pieces[0]
    path = tmp_path / piece.name(0)
    for at in range(0, piece.size, 3):
        flip(path, at)
        assert len(verify_backup(target, Quiet()).damages) == 1, f"byte {at}"
        flip(path, at)
    assert verify_backup(target, Quiet()).ok


def test_a_torn_newest_manifest_is_told_and_the_one_before_counts(tmp_path: Path) -> None:
    """As a file system leaves it that does not rename in one step."""
    target = backed_up(tmp_path)
    (tmp_path / "manifests/0000000001.json").write_bytes(target.read("manifests/0000000000.json")[:-200])
    assert newest(target).number == 0
    (damage,) = verify_backup(target, Quiet()).damages
    assert damage.file.endswith("manifests/0000000001.json")
    source = MemorySource()
    source.ends = {0: 60, 1: 20, 2: 1}
    assert run(source, target).manifest == 2
    assert [name for name in target.names() if name.startswith("manifests/")] == ["manifests/0000000002.json"]
    assert verify_backup(target, Quiet()).ok


class Between:
    """A backup of which another run comes to its end before the reader's look number ``step`` at the files.
    ``deleted``: without space orders."""

    def __init__(self, folder: Path, step: int | None, deleted: bool = False) -> None:
        self._place, self._source = str(folder), MemorySource()
        self._source.ends = {0: 60, 1: 20, 2: 1}
        run(self._source, local(folder))
        self.files = SharedFileSystem(self.end_run)
        self.files.left = step
        self.target = Target(self.files, self._place, self._place)
        self._deleted = deleted

    def end_run(self) -> None:
        self._source.ends = {0: 75, 1: 25, 2: 5}
        if self._deleted:
            self._source.state = SpaceState.GONE
        run(self._source, Target.at(self._place))


@pytest.mark.parametrize("seconds", [None, 6])
def test_a_restore_beside_a_run_restores_one_of_its_two_backups(tmp_path: Path, seconds: int | None) -> None:
    """Record 3n of a partition is of second n."""
    cuts = [] if seconds is None else [Cut(None, time_ms=CLOCK_MS + 1000 * seconds)]
    most = 100 if seconds is None else 3 * seconds
    before, after = (
        {p: (0, wanted(p, 0, min(end, most))) for p, end in ends.items()}
        for ends in ({0: 60, 1: 20, 2: 1}, {0: 75, 1: 25, 2: 5})
    )
    whole = Between(tmp_path / "whole", None)
    assert restored_bytes(whole.target, tmp_path / "r", cuts, replicas=1) == before
    found = [
        restored_bytes(Between(tmp_path / f"b{step}", step).target, tmp_path / f"r{step}", cuts, replicas=1)
        for step in range(whole.files.steps)
    ]
    assert all(each in (before, after) for each in found)
    assert (found[0], found[-1]) == (after, before)


def test_a_backup_is_ok_while_a_run_goes_on_with_it(tmp_path: Path) -> None:
    whole = Between(tmp_path / "whole", None)
    assert verify_backup(whole.target, Quiet()).ok
    for step in range(whole.files.steps):
        assert verify_backup(Between(tmp_path / f"b{step}", step).target, Quiet()).damages == []


def test_a_piece_that_is_missing_after_another_run_is_missing(tmp_path: Path) -> None:
    beside = Between(tmp_path / "b", None)
    manifest = newest(beside.target)
    beside.end_run()
    for name in newest(beside.target).names():
        (tmp_path / "b" / name).unlink()
    for piece in manifest.partitions[0].pieces:
        with pytest.raises(Corruption, match="the piece is missing"):
            load_piece(beside.target, manifest, 0, piece)


def test_a_manifest_that_is_listed_and_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = backed_up(tmp_path)
    there = target.names()
    monkeypatch.setattr(target, "names", lambda folder="": {**there, "manifests/0000000001.json": 5})
    with pytest.raises(Corruption, match=r"manifests: damaged .* a manifest is listed that is not there"):
        verify_backup(target, Quiet())


def test_a_space_that_goes_while_it_is_restored_is_told(tmp_path: Path) -> None:
    whole = Between(tmp_path / "whole", None)
    restore(whole.target, str(tmp_path / "r"), Quiet())
    told, left = set[str](), set[tuple[bool, bool]]()
    for step in range(whole.files.steps):
        into = tmp_path / f"r{step}"
        try:
            restore(Between(tmp_path / f"b{step}", step, deleted=True).target, str(into), Quiet(), replicas=1)
        except DataUnavailable as error:
            told.add(str(error).replace(f"/b{step}", "/b").replace(f"/r{step}", "/r"))
            left.add((into.exists(), "not whole" in str(error)))
    line = f"the space of partition 2 was deleted, and a run has taken it out of {tmp_path}/b meanwhile; give the same"
    assert told == {f"{line} command again", f"{line} command again, after removing {tmp_path}/r, which is not whole"}
    assert left == {(False, False), (True, True)}


def test_a_restore_that_did_not_end_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = backed_up(tmp_path / "b")
    monkeypatch.setattr("waltz_ray.backup.restore._write_partition", fail)
    with pytest.raises(DiskFull, match=r"/r: no space left on the disk; remove it, make room and restore again"):
        restore(target, str(tmp_path / "r"), Quiet())
    with pytest.raises(
        StorageError, match=r"the restore of .*/b into .*/r did not come to its end; remove the directory"
    ):
        read_restored(tmp_path / "r")
    with pytest.raises(InvalidInput, match=r"is not empty"):
        restore(target, str(tmp_path / "r"), Quiet())
    (tmp_path / "r/waltz-restored.json").write_text("{}")
    with pytest.raises(StorageError, match=r"waltz-restored.json is damaged"):
        read_restored(tmp_path / "r")
    assert read_restored(tmp_path / "nowhere") is None


def fail(*arguments: object) -> None:
    raise DiskFull("full")


# ---- the rest -------------------------------------------------------------------------------------------------------


def test_a_rate_is_kept() -> None:
    now, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(1000, lambda: now[0], sleep)
    for _ in range(10):
        pace.took(500)
    assert now[0] == pytest.approx(5.0)
    now[0] += 100  # what was not used is not made up for, but for a moment
    pace.took(1000)
    assert slept[-1] == pytest.approx(0.75)
    Pace(None, lambda: now[0], sleep).took(10**12)
    assert now[0] == pytest.approx(105.75)


def test_the_manifest_is_json_that_people_can_read(tmp_path: Path) -> None:
    fields = json.loads(backed_up(tmp_path).read("manifests/0000000000.json"))
    assert fields["cluster"] == "c"
    assert fields["partitions"]["1"]["next_id"] == 20
    assert [space["name"] for space in fields["spaces"]] == ["log", "orders"]


@pytest.mark.parametrize(
    "url",
    [
        "what://key:secret@x/y?key=secret",
        "s3://key:secret  text@b/x",
        "s3://key:secret%zz@b/x?secret_key=secret value",
        "s3://key:se/secret %@b/x",
        "s3://key:secret@[b/x",
    ],
)
def test_no_error_shows_the_password_of_a_url(url: str) -> None:
    with pytest.raises(InvalidInput, match="is no place that pyarrow can write to") as caught:
        Target.at(url)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__, "a traceback would show pyarrow's words"
