"""``export_original``: read back by a reader that was made from docs/formats.md and shares no code with the writer."""

from __future__ import annotations

import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tests.storage.faulty_disk import Crashed, FaultyDisk, Survival
from tests.storage.helpers import DIRECTORY, KEY, SMALL, append, create, data_of, reopen
from tests.storage.originals import original_directory
from tests.storage.page_reader import ORIGINAL, Entry, control_entries, index_of, records_of
from tests.storage.test_golden import GOLDEN_CONFIG, golden
from waltz_ray.config import StorageConfig
from waltz_ray.errors import ControlFileMissing, Corruption, DiskFull, InvalidInput, StorageLocked
from waltz_ray.storage.control_file import CONTROL_FILE, ORIGINAL_COPY
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.export import Exported, export_original
from waltz_ray.storage.original import open_original
from waltz_ray.storage.store import ReplicaStore
from waltz_ray.storage.verify import verify_directory

__all__ = ["golden"]

TARGET = "/node/for-waltz-0.13"
CONTROL = f"{TARGET}/waltz-storage.ctl"
AHEAD = StorageConfig(segment_size_bytes=700, index_flush_interval=3, preallocate_bytes=1 << 16, journal_bytes=1500)
JOURNAL = StorageConfig(preallocate_bytes=0, journal_bytes=1 << 16)  # all is in the journal


def files_of(disk: FaultyDisk, directory: str = TARGET) -> dict[str, bytes]:
    below = f"{directory}/"
    return {path.removeprefix(below): disk.content(path) for path in disk.files() if path.startswith(below)}


def used(disk: FaultyDisk, config: StorageConfig = AHEAD) -> FaultyDisk:
    """Partitions 0 to 4: two with records, one of a deleted space, one without a record, one never opened."""
    store = create(disk, config, partitions=5)
    for p in range(4):
        store.partition(p).open_session(5 + p)
    append(store.partition(2), 3)
    store.remove(2)
    for turn in range(12):
        for p in (0, 1):
            append(store.partition(p), 1 + (turn + p) % 3)
        store.sync((0, 1))
        if turn == 4:
            store.partition(1).set_low_water_mark(6, 3, 2)
    append(store.partition(1), 3)  # nobody waits for these
    return disk


@pytest.mark.parametrize("config", [AHEAD, JOURNAL], ids=["ahead", "journal"])
@pytest.mark.parametrize("survival", [None, Survival(1.0), Survival(0.0), Survival(0.5), Survival(0.3, 0.5)])
def test_what_a_crash_has_left_is_exported_as_the_next_start_would_find_it(
    config: StorageConfig, survival: Survival | None
) -> None:
    disk = used(FaultyDisk(7), config)
    if survival is None:
        disk.end_process()
    else:
        disk.crash(survival)
    before = files_of(disk, DIRECTORY)
    found = export_original(disk, DIRECTORY, TARGET)
    assert files_of(disk, DIRECTORY) == before
    files = files_of(disk)
    assert struct.unpack_from(">i", files["waltz-storage.ctl"], 28) == (5,)
    assert len(files["waltz-storage.ctl"]) == 128 + 5 * ORIGINAL[0]
    never = Entry(-1, -1, -1)
    assert control_entries(files) == [Entry(5, -1, -1), Entry(6, 3, 2), never, Entry(8, -1, -1), never]
    assert {path.partition("/")[0] for path in files if "/" in path} == {"0", "1", "3"}
    assert {path[-4:] for path in files} == {".ctl", ".seg", ".idx"}
    for path, content in files.items():
        if path.endswith(".seg"):
            p, first_id = int(path[0]), int(path[2:-4])
            offsets = index_of(files, p, first_id)
            ends = [at + 40 + struct.unpack_from(">i", content, at + 28)[0] for at in offsets]
            assert [128, *ends] == [*offsets, len(content)], "indexes are whole, and no zeros are behind the records"
    assert verify_directory(disk, TARGET).ok

    store = reopen(disk, config)
    assert found.records == {0: store.partition(0).last_id + 1, 1: store.partition(1).last_id + 1, 2: None, 3: 0, 4: 0}
    for p in (0, 1, 3, 4):
        assert records_of(files, p) == [data_of(i) for i in range(store.partition(p).last_id + 1)]
    assert len(records_of(files, 0)) >= 24


def test_our_own_start_takes_it_for_one_of_0_13(tmp_path: Path) -> None:
    disk = used(FaultyDisk())
    disk.end_process()
    export_original(disk, DIRECTORY, TARGET)
    store = ReplicaStore.open(disk, TARGET, KEY, SMALL)
    assert disk.exists(f"{TARGET}/{ORIGINAL_COPY}")
    assert store.partition(1).session_id == 6
    store.close()


@pytest.mark.parametrize("survival", [Survival(1.0), Survival(0.0), Survival(0.5)])
def test_a_crash_in_the_midst_leaves_no_control_file_and_the_source_as_it_was(survival: Survival) -> None:
    def crashed(seed: int) -> FaultyDisk:
        disk = used(FaultyDisk(seed))
        disk.crash(Survival(1.0))
        return disk

    whole = crashed(0)
    begun = whole.changes()
    expected = export_original(whole, DIRECTORY, TARGET)
    complete = 0
    for calls in range(whole.changes() - begun + 1):
        disk = crashed(calls)
        before = files_of(disk, DIRECTORY)
        disk.crash_after = calls
        try:
            assert export_original(disk, DIRECTORY, TARGET) == expected
        except Crashed:
            disk.crash(survival)
        assert files_of(disk, DIRECTORY) == before
        if disk.exists(CONTROL):
            complete += 1
            assert verify_directory(disk, TARGET).ok
            assert files_of(disk) == files_of(whole)
        elif disk.exists(TARGET):
            with pytest.raises(ControlFileMissing):
                verify_directory(disk, TARGET)
    assert 1 <= complete <= 3, "after the control file has its name only two directories are synced"


def refused(disk: FaultyDisk, kind: type[Exception], directory: str = DIRECTORY, target: str = TARGET) -> str:
    with pytest.raises(kind) as told:
        export_original(disk, directory, target)
    assert not disk.exists(CONTROL)
    return str(told.value)


def test_what_is_not_exported() -> None:
    disk = used(FaultyDisk())
    assert "another process has this storage directory open" in refused(disk, StorageLocked)
    disk.end_process()
    assert "is within /node/replica-0" in refused(disk, InvalidInput, target=f"{DIRECTORY}/x")
    assert "there is no control file" in refused(disk, ControlFileMissing, "/node")
    assert "is not a directory" in refused(disk, InvalidInput, "/nowhere")
    disk.mkdir("/node/full")
    disk.put("/node/full/a", b"")
    assert "/node/full is not empty; give one that is not there" in refused(disk, InvalidInput, target="/node/full")
    disk.capacity_bytes = disk._used() + 100
    assert "bytes too few are free" in refused(disk, DiskFull)
    assert "is a directory of Waltz 0.13 already" in refused(original_directory(FaultyDisk()), InvalidInput)


def test_damage_and_a_log_without_its_beginning_are_told() -> None:
    def damaged(path: str, offset: int) -> FaultyDisk:
        disk = used(FaultyDisk())
        disk.end_process()
        disk.flip(f"{DIRECTORY}/{path}", offset)
        return disk

    first = "0/0000000000000000000.seg"
    told = refused(damaged(first, 140), Corruption)
    assert told.startswith(f"{DIRECTORY}/{first}: damaged at byte 128: record 0 has a wrong checksum, but the next")
    both = damaged(CONTROL_FILE, 128 + 60 + 10)
    both.flip(f"{DIRECTORY}/{CONTROL_FILE}", 128 + 60 + 40)
    assert "both slots of partition 1 have wrong checksums" in refused(both, Corruption)
    disk, newest = all_committed()
    rotten = disk.content(newest)
    disk.flip(newest, 150)
    assert "damaged at byte 128: record" in refused(disk, Corruption)
    assert "below the local low-water mark 39" in str(refused(disk, Corruption, target=f"{TARGET}-2"))
    disk.put(newest, rotten)
    reopen(disk).partition(0).trim(20)
    disk.end_process()
    trimmed = refused(disk, InvalidInput, target=f"{TARGET}-3")
    assert "what was before has been trimmed away; Waltz 0.13 reads a log from transaction 0 on" in trimmed


def all_committed() -> tuple[FaultyDisk, str]:
    """A replica that has ended, with forty committed records, and its newest segment."""
    disk = FaultyDisk()
    store = create(disk)
    log = store.partition(0)
    log.open_session(1)
    append(log, 40)
    store.sync([0])
    log.set_low_water_mark(1, 39, 39)
    newest = max(path for path in disk.files() if path.endswith(".seg"))
    disk.end_process()
    return disk, newest


@pytest.mark.parametrize("size", [0, 60, 128], ids=["empty", "no header", "header alone"])
def test_a_newest_segment_that_has_lost_what_was_committed_is_no_interrupted_creation(size: int) -> None:
    disk, newest = all_committed()
    disk.put(newest, disk.content(newest)[:size])
    assert newest in refused(disk, Corruption)
    assert reopen(disk).partition(0).damaged is not None


def test_a_segment_that_only_the_journal_knows_is_missed() -> None:
    disk = used(FaultyDisk(), replace(JOURNAL, segment_size_bytes=700))
    disk.end_process()
    newest = max(path for path in disk.files() if path.startswith(f"{DIRECTORY}/1/") and path.endswith(".seg"))
    disk.remove(newest)
    assert f"{newest}: damaged at byte 0: the journal has records of it, and it is not there" in refused(
        disk, Corruption
    )


def test_a_crash_while_the_first_segment_was_made_is_mended_as_by_a_start() -> None:
    disk = used(FaultyDisk())
    disk.end_process()
    disk.mkdir(f"{DIRECTORY}/4")
    disk.put(f"{DIRECTORY}/4/0000000000000000000.seg", bytes(60))
    found = export_original(disk, DIRECTORY, TARGET)
    assert found.records[4] == 0
    assert verify_directory(disk, TARGET).ok


def test_a_torn_tail_is_cut_and_told() -> None:
    disk = used(FaultyDisk())
    disk.end_process()
    newest = max(path for path in disk.files() if path.startswith(f"{DIRECTORY}/1/") and path.endswith(".seg"))
    content = disk.content(newest).rstrip(b"\0")
    disk.put(newest, content[:-1] + bytes([content[-1] ^ 1]))
    found: Exported = export_original(disk, DIRECTORY, TARGET)
    [note] = found.notes
    assert f"{newest}: record {found.records[1]} has a wrong checksum; it is cut there, at byte" in note


def test_the_golden_directory_there_and_back(golden: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(golden, kept)
    ReplicaStore.open(OsDisk(), str(golden), KEY, GOLDEN_CONFIG).close()  # which makes it one of ours
    target = tmp_path / "target"
    assert export_original(OsDisk(), str(golden), str(target)).records == {0: 5361, 1: 0}
    old, new = ({str(f.relative_to(d)): f.read_bytes() for f in d.rglob("*.*")} for d in (kept, target))
    assert old.keys() == new.keys()
    assert control_entries(old) == control_entries(new)
    for name, content in old.items():
        if name.endswith(".seg"):
            assert new[name] == content
        elif name.endswith(".idx"):
            assert new[name][128:] == content[128:]
            assert new[name][:4] + new[name][12:128] == content[:4] + content[12:128], "all but the creation time"
    with open_original(OsDisk(), str(target)) as again:
        assert again.counts == {0: 5361, 1: 0}
