"""What the smoke's clients leave in files, and what its records say: fixed rows, read as columns.

A client may be killed between any two instructions, so all that it is told goes into a file at once (the system keeps
that when a process ends), and what it was fed is where it goes on: of a row that was cut off in the middle nothing is
left. Nothing here holds an object for each transaction.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from waltz_ray.protocol.records import HEADER_DTYPE, RECORD_HEADER_BYTES
from waltz_ray.storage.disk import Disk
from waltz_ray.storage.layout import HEADER_BYTES, scan_records, segment_ids, segment_path

__all__ = [
    "ABSENT",
    "FATE",
    "FED",
    "IN_THE_LOG",
    "NO_LOCK",
    "PAYLOAD",
    "UNKNOWN",
    "UNLOCKED",
    "Rows",
    "RowFile",
    "fate_paths",
    "fates_path",
    "fed_path",
    "life_of",
    "log_of",
    "note_proposed",
    "payload",
    "read_proposed",
    "rows_of",
    "uid_of",
]

_PROPOSED = "proposed.json"

Rows = npt.NDArray[Any]

NO_LOCK = 0xFFFF
UNLOCKED = -2
"""The mark of a transaction without locks."""

PAYLOAD = np.dtype([("uid", "<u8"), ("mark", "<i8"), ("write", "<u2"), ("read", "<u2"), ("append", "<u2")])
"""What a transaction's data begins with: whose it is, its client's mark when it was built, its locks."""

IN_THE_LOG, ABSENT, UNKNOWN = -1, -2, -3
FATE = np.dtype([("uid", "<u8"), ("transaction_id", "<i8"), ("partition", "<i8")])
"""What a client was told of a transaction: the ID that it has, or one of the three above."""

FED = np.dtype([("transaction_id", "<i8"), ("uid", "<u8")])
"""What a client was fed of one partition."""

_LOG = np.dtype([("client_id", "<i8"), ("generation", "<i8"), ("sequence_number", "<i8"), *PAYLOAD.descr])


def uid_of(client: int, life: int, number: int) -> int:
    """A name for what the client's process ``life`` wants in the log as its ``number``-th."""
    return client << 56 | life << 32 | number


def life_of(uids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Client and life of each as one number: ``uid_of(client, life, 0) >> 32``."""
    lives: npt.NDArray[np.int64] = (uids >> np.uint64(32)).astype(np.int64)
    return lives


def payload(uid: int, mark: int, locks: tuple[int, int, int], size_bytes: int) -> bytes:
    """The data of a transaction, filled up to ``size_bytes``."""
    return np.array([(uid, mark, *locks)], dtype=PAYLOAD).tobytes().ljust(size_bytes, b".")


def fates_path(directory: Path, client: int) -> Path:
    """Where a client, in all of its lives, writes what it is told."""
    return directory / f"client-{client}.fates"


def fate_paths(directory: Path) -> list[Path]:
    """Those of all clients."""
    return sorted(directory.glob("client-*.fates"))


def fed_path(directory: Path, client: int, partition_id: int) -> Path:
    """Where a client, in all of its lives, writes what it was fed of a partition."""
    return directory / f"client-{client}.{partition_id}.fed"


def note_proposed(directory: Path, proposed: Mapping[int, int]) -> None:
    """Of processes of clients that were not killed (``life_of``), how many transactions each wanted in the log."""
    path = directory / _PROPOSED
    path.write_text(json.dumps({**read_proposed(directory), **proposed}))


def read_proposed(directory: Path) -> dict[int, int]:
    """What was noted so far."""
    path = directory / _PROPOSED
    return {int(life): count for life, count in json.loads(path.read_text()).items()} if path.exists() else {}


class RowFile:
    """Rows are added at the end. What is left of a row that was cut off is taken away first."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._dtype = dtype
        self.count = os.fstat(self._file).st_size // dtype.itemsize
        os.ftruncate(self._file, self.count * dtype.itemsize)

    def last(self) -> Any:
        """The last row; None if there is none."""
        if not self.count:
            return None
        raw = os.pread(self._file, self._dtype.itemsize, (self.count - 1) * self._dtype.itemsize)
        return np.frombuffer(raw, dtype=self._dtype)[0]

    def add(self, rows: Sequence[tuple[int, ...]]) -> None:
        """They are there when this returns, whatever becomes of the process."""
        raw = np.array(rows, dtype=self._dtype).tobytes()
        written = os.write(self._file, raw)
        if written != len(raw):
            raise OSError(f"{written} of {len(raw)} bytes were written; the disk is full")
        self.count += len(rows)

    def close(self) -> None:
        os.close(self._file)


def rows_of(path: Path, dtype: np.dtype[Any]) -> Rows:
    """All whole rows of a file; none if there is no file."""
    return (
        np.fromfile(path, dtype=dtype, count=path.stat().st_size // dtype.itemsize) if path.exists() else _none(dtype)
    )


def _none(dtype: np.dtype[Any]) -> Rows:
    return np.zeros(0, dtype=dtype)


def log_of(disk: Disk, folder: str, partition_id: int) -> Rows:
    """Who asked for each record of a replica's partition, and what it says, from its segment files.

    ValueError, saying where, if a record is not what should be there.
    """
    parts = list(_segments(disk, folder, partition_id))
    return np.concatenate(parts) if parts else _none(_LOG)


def _segments(disk: Disk, folder: str, partition_id: int) -> Iterator[Rows]:
    ids = segment_ids(disk.listdir(folder))
    next_id = 0
    for first_id in ids:
        path = segment_path(folder, first_id)
        if first_id != next_id:
            raise ValueError(f"{path} begins with transaction {first_id}, not {next_id}")
        handle = disk.open(path, "read")
        try:
            scan = scan_records(disk, handle, partition_id, first_id, HEADER_BYTES, data_checksums=True)
        finally:
            disk.close(handle)
        if scan.reason != "end":
            raise ValueError(f"{path}, byte {scan.end}: {scan.reason}")
        yield _columns(np.fromfile(path, dtype=np.uint8), scan.offsets)
        next_id += len(scan.offsets)


def _columns(raw: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Rows:
    width = RECORD_HEADER_BYTES + PAYLOAD.itemsize
    rows = _none(_LOG) if not len(offsets) else np.zeros(len(offsets), dtype=_LOG)
    if len(offsets):
        heads = raw[offsets[:, None] + np.arange(width)]
        header = heads[:, :RECORD_HEADER_BYTES].copy().view(HEADER_DTYPE)[:, 0]
        said = heads[:, RECORD_HEADER_BYTES:].copy().view(PAYLOAD)[:, 0]
        for name in ("client_id", "generation", "sequence_number"):
            rows[name] = header[name]
        for name in PAYLOAD.names or ():
            rows[name] = said[name]
    return rows
