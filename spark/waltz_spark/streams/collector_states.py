"""What a collector is doing: its states, its one table, its plan, and its node in ZooKeeper. Pure.

The position in the log moves with the state COLLECT_DONE and never otherwise. What a minute consists of is written
down before anything is written (COLLECT_PLANNED), so an attempt that is repeated, after whatever crash, reads the same
ranges into files of the same names.

================== ====================================================== ============================================
state in the node  what a crash leaves                                    recovery
================== ====================================================== ============================================
COLLECT_DONE       perhaps a temporary directory                          deletes it
COLLECT_PLANNED    files, whole or half, in the temporary directory; some writes all files again, over those in place;
                   or all in place; no marker in ``data/``, so nobody     deletes the temporary directory
                   takes them
COLLECT_FILED      all files in place; of the markers, which lie whole    renames the markers that are still in the
                   in the temporary directory, the first few in place,    temporary directory; the others are in place,
                   and those may be published and in the trash by now     or were
================== ====================================================== ============================================

In COLLECT_FILED the look is at the marker that was prepared, not at ``data/``: an empty minute has no files, so nothing
there would tell a minute that was never marked from one that was marked, published and put away.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from waltz_ray.client.readers.ranges import Range
from waltz_ray.errors import DataUnavailable, InvalidInput, NodeDamaged
from waltz_spark.streams.layout import minute_name, minute_of, parse_minute
from waltz_spark.streams.texts import parsed_json

__all__ = [
    "SUFFIXES",
    "TABLE",
    "CollectorAction",
    "CollectorNode",
    "CollectorState",
    "Format",
    "KnownTimes",
    "Plan",
    "CollectorRow",
    "decode_collector",
    "encode_collector",
    "file_name",
    "is_collector",
    "minutes_from",
    "next_minute",
]

Format = Literal["parquet", "jsonl"]

SUFFIXES: Mapping[str, str] = MappingProxyType({"parquet": "parquet", "jsonl": "jsonl.gz"})

_MINUTE = timedelta(minutes=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_VERSION = 1
_MAX_BYTES = 900_000  # a ZooKeeper node takes 1 MB


class CollectorState(enum.Enum):
    """The value is what stands in the node."""

    DONE = "COLLECT_DONE"
    PLANNED = "COLLECT_PLANNED"
    FILED = "COLLECT_FILED"


class CollectorAction(enum.Enum):
    """What is done in a state; each may be done again."""

    WRITE = "write the files of the plan, prepare the markers, move the files into place"
    MARK = "move the markers into place"


class CollectorRow(NamedTuple):
    """``action`` and the state written after it."""

    action: CollectorAction
    next: CollectorState


TABLE: Mapping[CollectorState, CollectorRow] = MappingProxyType(
    {
        CollectorState.PLANNED: CollectorRow(CollectorAction.WRITE, CollectorState.FILED),
        CollectorState.FILED: CollectorRow(CollectorAction.MARK, CollectorState.DONE),
    }
)
"""For the normal run and for recovery, which enters it at the state the crash left."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``ranges`` become the files of ``minute``; the minutes from ``since`` up to it are empty.

    ``markers``: the directory where their markers were prepared, from COLLECT_FILED on.
    """

    minute: datetime
    since: datetime
    ranges: tuple[Range, ...]
    format: Format
    markers: str = ""

    @property
    def files(self) -> list[str]:
        """The names of the files, one for each range."""
        return [file_name(self.minute, each, self.format) for each in self.ranges]

    @property
    def records(self) -> int:
        return sum(each.end_id - each.first_id for each in self.ranges)


class KnownTimes(Protocol):
    """What is known of the times of transactions (``waltz_ray.client.readers.reading.Marks``)."""

    def appended_ms(self, partition_id: int, transaction_id: int) -> int | None: ...
    def first_id_at(self, partition_id: int, time_ms: int) -> int: ...


def next_minute(
    new: Sequence[Range], first: datetime, last: datetime, times: KnownTimes
) -> tuple[datetime, list[Range]]:
    """The first minute of ``first`` to ``last`` in which anything of ``new`` was appended, and what of it was.

    What is older belongs to ``first``, for the minutes before are closed; what has no time to ``last``. If nothing was
    appended in any of them, (``last``, nothing).
    """
    appended = {each: times.appended_ms(each.partition_id, each.first_id) for each in new}
    began = {each: _minute(appended_ms, first, last) for each, appended_ms in appended.items()}
    minute = min(began.values(), default=last)
    if minute > last:
        return last, []
    end_ms = round((minute + _MINUTE).timestamp() * 1000)
    ranges = []
    for each in new:
        end_id = each.end_id
        if appended[each] is not None:
            end_id = min(end_id, times.first_id_at(each.partition_id, end_ms))
        if began[each] == minute and each.first_id < end_id:
            ranges.append(each._replace(end_id=end_id))
    return minute, ranges


def _minute(appended_ms: int | None, first: datetime, last: datetime) -> datetime:
    if appended_ms is None:
        return last
    return max(first, minute_of(_EPOCH + timedelta(milliseconds=appended_ms)))


def file_name(minute: datetime, wanted: Range, kind: Format) -> str:
    """``<minute>.<partition>-<first ID>-<last ID>.<suffix>``: another range never has the same name."""
    return f"{minute_name(minute)}.{wanted.partition_id}-{wanted.first_id}-{wanted.end_id - 1}.{SUFFIXES[kind]}"


def minutes_from(since: datetime, last: datetime) -> Iterator[datetime]:
    """Every minute, both ends included."""
    while since <= last:
        yield since
        since += _MINUTE


@dataclass(frozen=True, slots=True)
class CollectorNode:
    """What stands at ``/databus/<thread>`` for a collector. ``plan`` is there in every state but COLLECT_DONE.

    ``partitions``: () = all; ``position``: partition -> the first ID that is in no file yet; ``last``: the last minute
    that is marked; ``minutes`` and ``records``: how many were collected so far, minutes with records and records.
    ``cluster_key``: of the cluster of that name; "" as an earlier version has written it.
    """

    state: CollectorState = CollectorState.DONE
    plan: Plan | None = None
    holder: str = ""
    cluster: str = ""
    category: str = ""
    root: str = ""
    partitions: tuple[int, ...] = ()
    position: Mapping[int, int] = field(default_factory=dict)
    last: datetime | None = None
    minutes: int = 0
    records: int = 0
    cluster_key: str = ""

    def planned(self, minute: datetime, ranges: Sequence[Range], kind: Format) -> CollectorNode:
        """The next plan. DataUnavailable unless ``ranges`` go on exactly where the position is."""
        position = dict(self.position)
        for each in ranges:
            if each.first_id != position.get(each.partition_id, 0) or each.end_id <= each.first_id:
                raise DataUnavailable(
                    f"partition {each.partition_id}: transactions [{each.first_id}, {each.end_id}) do not go on at "
                    f"{position.get(each.partition_id, 0)}, where the collector is"
                )
            position[each.partition_id] = each.end_id
        since = self.last + _MINUTE if self.last is not None else minute
        return replace(self, state=CollectorState.PLANNED, plan=Plan(minute, since, tuple(ranges), kind))

    def filed(self, markers: str) -> CollectorNode:
        assert self.plan is not None
        return replace(self, state=CollectorState.FILED, plan=replace(self.plan, markers=markers))

    def done(self) -> CollectorNode:
        """The position moves: the minute is marked."""
        plan = self.plan
        assert plan is not None
        return replace(
            self,
            state=CollectorState.DONE,
            plan=None,
            position={**self.position, **{each.partition_id: each.end_id for each in plan.ranges}},
            last=plan.minute,
            minutes=self.minutes + bool(plan.ranges),
            records=self.records + plan.records,
        )


def is_collector(data: bytes) -> bool:
    """Whether a thread's node is a collector's; False for what is damaged, too."""
    try:
        fields = parsed_json(data)
    except ValueError:
        return False
    return isinstance(fields, dict) and fields.get("kind") == "collector"


def encode_collector(node: CollectorNode) -> bytes:
    """JSON. InvalidInput for what ZooKeeper would not take."""
    plan = node.plan
    fields = {
        "version": _VERSION,
        "kind": "collector",
        "state": node.state.value,
        "plan": plan
        and {
            "minute": minute_name(plan.minute),
            "since": minute_name(plan.since),
            "ranges": plan.ranges,
            "format": plan.format,
            "markers": plan.markers,
        },
        "holder": node.holder,
        "cluster": node.cluster,
        "cluster_key": node.cluster_key,
        "category": node.category,
        "root": node.root,
        "partitions": node.partitions,
        "position": node.position,
        "last": node.last and minute_name(node.last),
        "minutes": node.minutes,
        "records": node.records,
    }
    data = json.dumps(fields).encode()
    if len(data) > _MAX_BYTES:
        raise InvalidInput(f"{len(data)} bytes are too many for a ZooKeeper node; raise bytes_per_task: fewer ranges")
    return data


def decode_collector(where: str, data: bytes) -> CollectorNode:
    """``where``: the node's path, for the error. NodeDamaged for content that is torn, or another thread's."""
    try:
        fields = parsed_json(data)
        if not isinstance(fields, dict) or fields.get("kind") != "collector" or fields.get("version") != _VERSION:
            raise ValueError(f"not a collector's node of version {_VERSION}")
        plan, last = fields["plan"], fields["last"]
        node = CollectorNode(
            CollectorState(fields["state"]),
            None if plan is None else _plan(plan),
            str(fields["holder"]),
            str(fields["cluster"]),
            str(fields["category"]),
            str(fields["root"]),
            tuple(int(partition) for partition in fields["partitions"]),
            {int(partition): int(first_id) for partition, first_id in fields["position"].items()},
            None if last is None else parse_minute(last),
            int(fields["minutes"]),
            int(fields["records"]),
            str(fields.get("cluster_key", "")),
        )
        if (node.plan is None) != (node.state is CollectorState.DONE):
            raise ValueError(f"{node.state.value} {'without' if node.plan is None else 'with'} a plan")
    except (InvalidInput, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NodeDamaged(
            f"ZooKeeper node {where}: {type(error).__name__} {error}; is it damaged, or another service's? "
            "Nothing was done; put its content right, or give the collector another name"
        ) from error
    return node


def _plan(fields: Mapping[str, Any]) -> Plan:
    if fields["format"] not in SUFFIXES:
        raise ValueError(f"format {fields['format']!r}")
    ranges = tuple(Range(*(int(number) for number in each)) for each in fields["ranges"])
    return Plan(
        parse_minute(fields["minute"]), parse_minute(fields["since"]), ranges, fields["format"], str(fields["markers"])
    )
