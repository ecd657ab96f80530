"""The directory that the Java original wrote (skipped where the archive is absent), and one like it."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.storage.faulty_disk import FaultyDisk
from tests.storage.helpers import DIRECTORY, KEY, append, contents, data_of, records, reopen
from tests.storage.originals import CONTROL, original_directory
from waltz_ray.config import StorageConfig
from waltz_ray.storage.control_file import CONTROL_FILE, ORIGINAL_COPY
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.inspect import describe_directory
from waltz_ray.storage.store import ReplicaStore
from waltz_ray.storage.verify import verify_directory

ARCHIVE = Path(__file__).resolve().parents[3] / "shared" / "golden" / "waltz-0.13-storage.tgz"
GOLDEN_CONFIG = StorageConfig(segment_size_bytes=3000)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    if not ARCHIVE.exists():
        pytest.skip("the golden archive is not here")
    with tarfile.open(ARCHIVE) as archive:
        safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11 from 3.11.4 on
        archive.extractall(tmp_path, **safely)
    return next(tmp_path.rglob(CONTROL_FILE)).parent


def read_all(directory: Path) -> int:
    store = ReplicaStore.open(OsDisk(), str(directory), KEY, GOLDEN_CONFIG)
    log, next_id = store.partition(0), 0
    while next_id <= log.last_id:
        next_id = log.read(next_id, log.last_id + 1, 10_000).end_id
    assert (store.partition(1).last_id, store.partition(1).damaged) == (-1, None)
    assert (log.session_id, log.damaged) == (0, None)
    store.close()
    return next_id


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("ahead", [False, True], ids=["exact", "ahead"])
def test_the_golden_directory(golden: Path, converted: bool, ahead: bool) -> None:
    if converted:
        before = golden / CONTROL_FILE
        content = before.read_bytes()
        ReplicaStore.open(OsDisk(), str(golden), KEY, GOLDEN_CONFIG).close()
        assert (golden / ORIGINAL_COPY).read_bytes() == content
        assert before.stat().st_size == 128 + 60 * 2
        (golden / ORIGINAL_COPY).unlink()
    if ahead:
        newest = max(golden.glob("0/*.seg"))
        newest.write_bytes(newest.read_bytes() + bytes(100_000))
    report = verify_directory(OsDisk(), str(golden))
    assert report.ok, str(report.damage)
    assert (report.partitions[0].records, report.partitions[1].records) == (5361, 0)
    described = describe_directory(OsDisk(), str(golden))
    assert described["written_by"] == ("waltz_ray" if converted else "Waltz 0.13")
    assert described["partitions"][0]["last_id"] == 5360
    assert read_all(golden) == 5361


def test_the_golden_directory_is_appended_to(golden: Path) -> None:
    segments = {path: path.read_bytes() for path in golden.rglob("*.seg")}
    store = ReplicaStore.open(OsDisk(), str(golden), KEY, GOLDEN_CONFIG)
    for partition_id, count in ((0, 200), (1, 40)):
        log = store.partition(partition_id)
        assert log.open_session(1) == 0
        append(log, count)
        store.sync([partition_id])
    store.close()
    for path, content in segments.items():
        assert path.read_bytes()[: len(content)] == content
    report = verify_directory(OsDisk(), str(golden))
    assert report.ok, str(report.damage)
    assert [report.partitions[p].last_id for p in (0, 1)] == [5560, 39]
    again = ReplicaStore.open(OsDisk(), str(golden), KEY, GOLDEN_CONFIG)
    batch = again.partition(0).read(5361, 5562, 1)
    assert bytes(batch.records) == records(5361, 1).records
    again.close()


def test_a_lost_index_of_the_original_is_made_again(golden: Path) -> None:
    for index in sorted(golden.glob("0/*.idx"))[::7]:
        index.unlink()
    assert read_all(golden) == 5361
    assert verify_directory(OsDisk(), str(golden)).ok


def test_every_flip_in_a_golden_record_is_found(golden: Path, tmp_path: Path) -> None:
    victim = sorted(golden.glob("0/*.seg"))[40]
    content = victim.read_bytes()
    for offset in range(128, len(content), 61):
        victim.write_bytes(content[:offset] + bytes([content[offset] ^ 0x40]) + content[offset + 1 :])
        damage = verify_directory(OsDisk(), str(golden)).damage
        assert damage is not None
        assert damage.file == str(victim)
        assert damage.offset <= offset
    shutil.rmtree(golden)


def test_conversion_takes_the_higher_sequence_number_and_keeps_a_copy() -> None:
    disk = original_directory(FaultyDisk())
    before = disk.content(CONTROL)
    report = verify_directory(disk, DIRECTORY)
    assert report.ok, str(report.damage)
    store = reopen(disk)
    log = store.partition(0)
    assert (log.session_id, log.low_water_mark, log.local_low_water_mark) == (4, 12, 11)
    assert contents(log) == [data_of(i) for i in range(20)]
    store.close()
    assert disk.content(f"{DIRECTORY}/{ORIGINAL_COPY}") == before
    assert len(disk.content(CONTROL)) == 128 + 60
    assert verify_directory(disk, DIRECTORY).ok
