"""Shared by the storage tests: records that say who they are, stores on the faulty disk, and what must hold."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from tests.storage.faulty_disk import Crashed, FaultyDisk, Survival
from waltz_ray.config import StorageConfig
from waltz_ray.protocol.records import RecordBatch, build_records
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.store import ReplicaStore
from waltz_ray.storage.verify import verify_directory

KEY = uuid.UUID("ae7968ef-3b42-479f-9fe3-a49b2ba8ff33")
DIRECTORY = "/node/replica-0"
CLOCK_MS = 1_700_000_000_000
"""The server's clock at record 0; a record takes 0.4 s, so that there is an entry of the time index every few."""
TRIMMED = b"trimmed away"
SMALL = StorageConfig(segment_size_bytes=600, index_flush_interval=3, preallocate_bytes=0)
UNREPAIRED = replace(SMALL, repair=False)
"""Where nobody fetches what has rotted: the log is damaged there, and cut."""
SMALL_AHEAD = StorageConfig(segment_size_bytes=600, index_flush_interval=3, preallocate_bytes=256 * 64)


def data_of(transaction_id: int, tag: int = 0) -> bytes:
    """Different for every ID and tag, of different lengths, sometimes empty."""
    return (b"%d/%d;" % (transaction_id, tag)) * ((transaction_id * 7 + tag) % 9)


def records(first_id: int, count: int, tag: int = 0, partition_id: int = 0) -> RecordBatch:
    datas = [data_of(transaction_id, tag) for transaction_id in range(first_id, first_id + count)]
    columns = (
        np.arange(count, dtype=np.int32),
        np.full(count, tag, dtype=np.int32),
        np.array([len(data) for data in datas], dtype=np.int32),
        np.array([zlib.crc32(data) for data in datas], dtype=np.uint32),
    )
    batch = build_records(partition_id, first_id, 7, 1, columns, b"".join(datas))
    batch.times = ((first_id, CLOCK_MS + 400 * first_id),)
    return batch


def create(disk: FaultyDisk, config: StorageConfig = SMALL, partitions: int = 1) -> ReplicaStore:
    return ReplicaStore.create(disk, DIRECTORY, KEY, partitions, config)


def reopen(disk: FaultyDisk, config: StorageConfig = SMALL) -> ReplicaStore:
    return ReplicaStore.open(disk, DIRECTORY, KEY, config)


def crashed_while_opened(made: Callable[[int], FaultyDisk], survival: Survival) -> Iterator[FaultyDisk]:
    """What ``made`` makes, by a seed, after a crash in each step of opening it, until one is opened before that."""
    for step in range(100):
        disk = made(step)
        disk.crash_after = step
        try:
            reopen(disk)
        except Crashed:
            disk.crash(survival)
        else:
            return
        yield disk
    raise AssertionError("it was never opened")


def new_log(disk: FaultyDisk, config: StorageConfig = SMALL, session_id: int = 1) -> PartitionLog:
    log = create(disk, config).partition(0)
    log.open_session(session_id)
    return log


def append(log: PartitionLog, count: int, tag: int = 0) -> None:
    log.append(log.session_id, records(log.last_id + 1, count, tag, log.partition_id))


def contents(log: PartitionLog) -> list[bytes]:
    """The data of every record, read through the log in pieces; b"" for what was trimmed away."""
    found = [TRIMMED] * log.first_id
    while len(found) <= log.last_id:
        batch = log.read(len(found), log.last_id + 1, 300)
        assert batch.first_id == len(found)
        found += [bytes(data) for data in batch.datas()]
    return found


def assert_verifies(disk: FaultyDisk, last_id: int) -> None:
    report = verify_directory(disk, DIRECTORY)
    assert report.ok, str(report.damage)
    assert report.partitions[0].last_id == last_id
