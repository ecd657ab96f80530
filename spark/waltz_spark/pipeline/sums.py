"""Sums by which the same records are recognised wherever they are: what was appended, in the log, in the files.

For each partition: how many, how many bytes, the sum of the data's CRC-32 (whatever the order), and which transaction
IDs. Two places with equal sums in which no ID is missing or twice hold the same transactions.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import functions

__all__ = ["PartitionSums", "Sums", "differences", "sums_of_frame", "total"]


@dataclass
class PartitionSums:
    """Of one partition. ``distinct``: different IDs; IDs begin with ``first_id`` and end with ``last_id``."""

    records: int = 0
    size_bytes: int = 0
    crc_sum: int = 0
    first_id: int = 0
    last_id: int = -1
    distinct: int = 0

    @property
    def is_whole(self) -> bool:
        """IDs 0 to n - 1, exactly once each."""
        return self.first_id == 0 and self.last_id + 1 == self.records == self.distinct

    def add(self, first_id: int, datas: Sequence[bytes]) -> None:
        """Records that follow the last one."""
        if not self.records:
            self.first_id = first_id
        self.last_id = first_id + len(datas) - 1
        self.records += len(datas)
        self.distinct += len(datas)
        self.size_bytes += sum(map(len, datas))
        self.crc_sum += sum(map(zlib.crc32, datas))


Sums = dict[int, PartitionSums]


def sums_of_frame(frame: Any) -> Sums:
    """Of a Spark DataFrame with columns partition_id, transaction_id and data (binary); computed by its tasks."""
    rows = (
        frame.groupBy("partition_id")
        .agg(
            functions.count("*"),
            functions.sum(functions.length("data")),
            functions.sum(functions.crc32("data")),
            functions.min("transaction_id"),
            functions.max("transaction_id"),
            functions.countDistinct("transaction_id"),
        )
        .collect()
    )
    return {int(row[0]): PartitionSums(*(int(value) for value in row[1:])) for row in rows}


def differences(expected: Mapping[int, PartitionSums], found: Mapping[int, PartitionSums], where: str) -> list[str]:
    """In which partitions ``found`` is not what it should be, a line each; partitions without records do not count."""
    lines = []
    for partition_id in sorted({*expected, *found}):
        wanted, there = expected.get(partition_id, PartitionSums()), found.get(partition_id, PartitionSums())
        if wanted != there:
            lines.append(f"{where}, partition {partition_id}: {_shown(there)}; appended: {_shown(wanted)}")
        elif there.records and not there.is_whole:
            lines.append(f"{where}, partition {partition_id}: not all of IDs {there.first_id} to {there.last_id}")
    return lines


def _shown(sums: PartitionSums) -> str:
    return ", ".join(f"{name} {value}" for name, value in asdict(sums).items())


def total(sums: Iterable[PartitionSums]) -> PartitionSums:
    """Of all partitions; IDs mean nothing in it."""
    whole = PartitionSums()
    for each in sums:
        whole.records += each.records
        whole.size_bytes += each.size_bytes
        whole.crc_sum += each.crc_sum
        whole.distinct += each.distinct
    return whole
