"""The bytes that docs/formats.md shows ("An example") are the ones that are written."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

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
    assert len(tables) == 5
    for table in tables:
        at = 0
        for line in table.splitlines():
            where, size, _ = (cell.strip() for cell in line.strip("| ").split(" | "))
            assert int(where.split(" + ")[0]) == at, line
            at += sizes.get(size) or int(size.removesuffix(" bytes").replace("n", "0"))
