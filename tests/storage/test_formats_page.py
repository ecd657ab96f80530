"""docs/formats.md tells the bytes that are written: its example, its tables, and a reader made from it alone."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

from tests.storage.faulty_disk import FaultyDisk, Survival
from tests.storage.helpers import DIRECTORY, append, contents, create, data_of, reopen
from tests.storage.originals import CONTROL, original_directory
from tests.storage.page_reader import Entry, control_entries, index_of, records_of, with_journal
from waltz_ray.config import StorageConfig
from waltz_ray.protocol.checksum import crc32
from waltz_ray.protocol.records import few_records
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.store import ReplicaStore

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
KEY = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


class DiskOf2023(OsDisk):
    def now_ms(self) -> int:
        return 1_700_000_000_000


def shown() -> dict[str, bytes]:
    """What is on the page, by the words in front of it."""
    found: dict[str, bytes] = {}
    name = ""
    block = PAGE.split("## An example")[1].split("```")[1]
    for line in block.strip().splitlines():
        before, colon, digits = line.rpartition(":")
        if colon:
            what = before.strip()
            name = what if not what.startswith("from") else f"{name.split(',')[0]}, {what}"
        found[name] = found.get(name, b"") + bytes.fromhex(digits)
    return found


def test_the_example(tmp_path: Path) -> None:
    directory = tmp_path / "replica"
    store = ReplicaStore.create(DiskOf2023(), str(directory), KEY, 2, StorageConfig(preallocate_bytes=0))
    for p in (0, 1):
        store.partition(p).open_session(7)
        rows = [(3, 1, 5, -2, crc32(b"wal"), b"wal"), (3, 1, 6, 0, crc32(b""), b"")]
        store.partition(p).append(7, few_records(p, 0, rows))
    store.sync((0, 1))  # through the journal
    journal = (directory / "waltz-journal.0").read_bytes()
    segment = (directory / "0/0000000000000000000.seg").read_bytes()
    control = (directory / "waltz-storage.ctl").read_bytes()
    store.close()
    index = (directory / "0/0000000000000000000.idx").read_bytes()

    page = shown()
    assert control[128 : 128 + 60] == page["waltz-storage.ctl, from byte 128"]
    header = page["0000000000000000000.seg"]
    assert segment == header.ljust(128, b"\0") + page["0000000000000000000.seg, from byte 128"]
    assert index == header.ljust(128, b"\0") + page["0000000000000000000.idx, at the end"]
    assert journal[:64] == page["waltz-journal.0"].ljust(64, b"\0")
    entry = page["waltz-journal.0, from byte 64"]
    assert journal[64 : 64 + 36 + len(segment) - 128] == entry + segment[128:]


def test_the_tables_add_up() -> None:
    """Each field begins where the one before ends; fields of n bytes count as none."""
    sizes = {"int": 4, "long": 8}
    tables = re.findall(r"\| at \| bytes \| \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", PAGE)
    assert len(tables) == 7
    for table in tables:
        at = 0
        for line in table.splitlines():
            where, size, _ = (cell.strip() for cell in line.strip("| ").split(" | "))
            assert int(where.split(" + ")[0]) == at, line
            at += sizes.get(size) or int(size.removesuffix(" bytes").replace("n", "0"))


# ---- the reader made from the page ------------------------------------------------------------------------------

SMALL = StorageConfig(segment_size_bytes=700, index_flush_interval=3, preallocate_bytes=4096, journal_bytes=1500)
LARGE = StorageConfig(preallocate_bytes=0, journal_bytes=1 << 16)  # all is in the journal


def files_of(disk: FaultyDisk) -> dict[str, bytes]:
    return {path.removeprefix(f"{DIRECTORY}/"): disk.content(path) for path in disk.files()}


@pytest.mark.parametrize("config", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("survival", [Survival(1.0), Survival(0.0), Survival(0.5), Survival(0.3, 0.5)])
def test_the_reader_finds_what_a_crash_has_left(seed: int, survival: Survival, config: StorageConfig) -> None:
    """Records that are only in the journal, segments with zeros behind them, torn tails, lagging indexes."""
    disk = FaultyDisk(seed)
    store = create(disk, config, partitions=3)
    for p in store.partition_ids:
        store.partition(p).open_session(5 + p)
    for turn in range(9 + seed):
        for p in store.partition_ids:
            append(store.partition(p), 1 + (turn + p) % 3)
        store.sync(store.partition_ids)
        if turn == 4:
            store.partition(1).set_low_water_mark(6, 3, 2)
        if turn == 6:
            store.partition(0).trim(store.partition(0).last_id - 2)
            store.partition(2).begin_at(7, store.partition(2).last_id + 10)
    durable = [store.partition(p).last_id for p in store.partition_ids]
    append(store.partition(2), 3)  # nobody waits for these
    disk.crash(survival)

    files = files_of(disk)
    assert control_entries(files) == [Entry(5, -1, -1), Entry(6, 3, 2), Entry(7, -1, -1)]
    whole = with_journal(files)
    store = reopen(disk, config)
    for p in store.partition_ids:
        found = records_of(whole, p)
        assert len(found) > durable[p]
        begin = store.partition(p).first_id
        assert found == contents(store.partition(p))
        assert found[begin:] == [data_of(i) for i in range(begin, len(found))]
    assert store.partition(2).first_id > 0
    if (survival, config) == (Survival(0.0), LARGE):
        assert [len(records_of(files, p)) for p in range(3)] != [id + 1 for id in durable], "no journal was needed"


def test_the_reader_finds_all_indexes_of_a_closed_store() -> None:
    disk = FaultyDisk()
    store = create(disk, SMALL)
    store.partition(0).open_session(1)
    append(store.partition(0), 60)
    store.close()
    files = files_of(disk)
    segments = sorted(path for path in files if path.endswith(".seg"))
    assert len(segments) > 3
    datas = records_of(files, 0)
    for path in segments:
        first_id = int(path[2:21])
        offsets = index_of(files, 0, first_id)
        at = 128
        for position, offset in enumerate(offsets):
            assert offset == at
            at += 40 + len(datas[first_id + position])
        assert at == len(files[path])
        assert path == segments[-1] or at > SMALL.segment_size_bytes >= offsets[-1]


def test_the_reader_tells_the_control_files_apart() -> None:
    files = files_of(original_directory(FaultyDisk()))
    assert control_entries(files) == [Entry(4, 12, 11)]
    disk = FaultyDisk()
    store = create(disk, partitions=2)
    store.partition(1).open_session(3)
    store.close()
    disk.put(CONTROL, disk.content(CONTROL) + bytes(2 * 16))  # as the original's tools leave it
    assert control_entries(files_of(disk)) == [Entry(-1, -1, -1), Entry(3, -1, -1)]
    disk.flip(CONTROL, 128 + 60 + 4 + 1)
    disk.flip(CONTROL, 128 + 60 + 4 + 28 + 1)
    assert control_entries(files_of(disk)) == [Entry(-1, -1, -1), None]
