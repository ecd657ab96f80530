"""What every way of reading the feed shares: which ranges there are, and how a task reads one into Arrow batches.

A ``Reading`` is made on the driver and travels, pickled, to whoever reads: a Spark Python worker, a Ray Data task. What
is pushed down to where:

====================  =================================================================================================
``start``, ``stop``   to the server or replica: only the transactions of the range are ever asked for
``columns``           without "data", and with ZooKeeper and ``source="server"``, to the server: it sends headers only,
                      16 bytes each. Otherwise to the task: columns that nobody wants are not built
``header``            to the task: rows are chosen on the header column, before any other column is built. The wire
                      has no filter, so the records do cross the network (their headers only, see ``columns``)
``decoder``           to the task: it sees the rows that are left, and only what it returns enters Spark
====================  =================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waltz_ray.client.credentials import Credentials
from waltz_ray.client.range_reader import RangeReader
from waltz_ray.client.readers.arrow import APPENDED_AT, COLUMNS, Positions, checked_columns, headers_to_arrow, to_arrow
from waltz_ray.client.readers.header_reader import HeaderReader
from waltz_ray.client.readers.locations import Locations, Where
from waltz_ray.client.readers.ranges import Bound, Range, at_time, bounds_of, split_ranges
from waltz_ray.client.readers.replica_access import keyring_of
from waltz_ray.client.readers.replica_reader import ReplicaReader
from waltz_ray.errors import DataUnavailable, InvalidInput
from waltz_ray.protocol.spaces import DEFAULT_SPACE
from waltz_ray.protocol.times import NO_TIMES
from waltz_ray.security.handshakes import Keyring

__all__ = [
    "DEFAULT_SPACE",
    "Decoder",
    "HeaderFilter",
    "Marks",
    "Reading",
    "Source",
    "checked_header",
    "plan_reading",
    "positions_of",
]

Source = Literal["server", "replica"]
HeaderFilter = int | range | Collection[int]
"""One header, a range of them, or a set."""
Decoder = Callable[[Any], Any]
"""``pyarrow.RecordBatch`` -> ``pyarrow.RecordBatch``; any number of rows may come out."""

BYTES_PER_TASK = 64 * 1024 * 1024

_SAMPLE_BYTES = 64 * 1024
_BATCH_BYTES = 1024 * 1024
_SERVER_S = 2.0  # if the replicas can answer as well
_ALONE_S = 30.0


def checked_header(header: HeaderFilter | None) -> range | frozenset[int] | None:
    """A filter in one of two forms. InvalidInput for anything but an int, a range or a collection of ints, and for
    what no header can be: it has 32 bits and a sign."""
    if header is None:
        return None
    if isinstance(header, range):
        values: list[Any] = [*header[:1], *header[-1:]]
    elif isinstance(header, Collection) and not isinstance(header, str | bytes):
        values = list(header)
    else:
        values = [header]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in values):
        raise InvalidInput(f"header must be an int, a range or a set of ints, not {header!r:.60}")
    if not all(-(2**31) <= each < 2**31 for each in values):
        raise InvalidInput(f"a header has 32 bits with a sign; there are others in {header!r:.60}")
    return header if isinstance(header, range) and len(set(values)) > 1 else frozenset(values)


def positions_of(header: range | frozenset[int] | None, headers: npt.NDArray[Any]) -> Positions | None:
    """The positions at which the headers pass the filter; None: there is no filter, all do."""
    if header is None:
        return None
    if not isinstance(header, range):
        return np.flatnonzero(np.isin(headers, np.fromiter(header, dtype=np.int64, count=len(header))))
    rising = header if header.step > 0 else header[::-1]
    values = headers.astype(np.int64)
    inside = (values >= rising.start) & (values < rising.stop)
    if rising.step > 1:
        inside &= (values - rising.start) % rising.step == 0
    return np.flatnonzero(inside)


@dataclass(frozen=True)
class Reading:
    """How ranges of ``cluster`` become rows. Picklable if the decoder is."""

    where: Where
    cluster: str
    source: Source = "server"
    columns: tuple[str, ...] = COLUMNS
    header: range | frozenset[int] | None = None
    decoder: Decoder | None = None
    space: str = DEFAULT_SPACE
    keyring: Keyring | None = field(default=None, repr=False, compare=False)
    """What proves to replicas that this may read them; pickled, it is a ticket."""
    credentials: Credentials = field(default_factory=Credentials, compare=False)
    """Where what servers want to see lies; of the environment in which the reading was made."""

    @classmethod
    def of(
        cls,
        where: Where,
        cluster: str,
        source: Source = "server",
        columns: Sequence[str] | None = None,
        header: HeaderFilter | None = None,
        decoder: Decoder | None = None,
        space: str = DEFAULT_SPACE,
    ) -> Reading:
        """From what a user gives; InvalidInput says what of it cannot be."""
        if source not in ("server", "replica"):
            raise InvalidInput(f"source must be 'server' or 'replica', not {source!r:.60}")
        if source == "replica" and not isinstance(where, str):
            raise InvalidInput("source='replica' finds the replicas in ZooKeeper; give zookeeper=, not endpoints=")
        if decoder is not None and not callable(decoder):
            raise InvalidInput(f"decoder must be a function of a pyarrow.RecordBatch, not {decoder!r:.60}")
        if space != DEFAULT_SPACE and not isinstance(where, str):
            raise InvalidInput("a space is found in ZooKeeper; give zookeeper=, not endpoints=")
        keyring = keyring_of(where, cluster) if source == "replica" and isinstance(where, str) else None
        return cls(
            where,
            cluster,
            source,
            checked_columns(columns),
            checked_header(header),
            decoder,
            space,
            keyring,
            Credentials.of(),
        )

    def batches(self, ranges: Sequence[Range]) -> Iterator[Any]:
        """``pyarrow.RecordBatch``es with the rows of the ranges, in order. DataUnavailable if a range ends early, and
        Trimmed if what comes next in it has gone meanwhile."""
        with ExitStack() as stack:
            locations = stack.enter_context(Locations(self.where, self.cluster, self.space))
            read = self._reader(locations, stack)
            for wanted in ranges:
                next_id = wanted.first_id
                for end_id, rows in read(wanted):
                    next_id = end_id
                    if rows.num_rows:
                        yield rows if self.decoder is None else self._decoded(rows)
                if next_id != wanted.end_id:
                    raise DataUnavailable(
                        f"partition {wanted.partition_id} ended with {next_id - 1}: {wanted.end_id - 1} had been "
                        "committed; has the cluster lost its log?"
                    )

    def _reader(self, locations: Locations, stack: ExitStack) -> Callable[[Range], Iterator[tuple[int, Any]]]:
        """A function that reads a range as (ID behind the rows, rows)."""
        if self.source == "server" and "data" not in self.columns and locations.has_zookeeper:
            headers = HeaderReader(
                locations.resolve,
                locations.store.next_client_id,
                first=locations.first,
                credentials=locations.shown(self.credentials),
                cluster_key=locations.cluster_key,
            )

            clock = stack.enter_context(self.server_reader(locations))

            def read_headers(wanted: Range) -> Iterator[tuple[int, Any]]:
                for feed in headers.read_headers(*wanted):
                    chosen, end_id = positions_of(self.header, feed.headers), feed.first_id + len(feed)
                    times = clock.times(feed.partition_id, feed.first_id, end_id) if self._with_times else NO_TIMES
                    yield end_id, headers_to_arrow(feed, self.columns, chosen, times)

            return read_headers
        reader: RangeReader | ReplicaReader
        if self.source == "replica":
            assert self.keyring is not None
            reader = stack.enter_context(ReplicaReader(locations.replicas, self.keyring, first=locations.first))
        else:
            reader = stack.enter_context(self.server_reader(locations))

        def read_records(wanted: Range) -> Iterator[tuple[int, Any]]:
            for batch in reader.read_range(*wanted, max_bytes=_BATCH_BYTES):
                chosen = positions_of(self.header, batch.fields["header"])
                if self._with_times:
                    batch.times = reader.times(batch.partition_id, batch.first_id, batch.end_id)
                yield batch.end_id, to_arrow(batch, self.columns, chosen)

        return read_records

    def server_reader(self, locations: Locations, timeout_s: float = _ALONE_S) -> RangeReader:
        """Reads from the servers, and gives up one question after ``timeout_s``."""
        return RangeReader(
            locations.resolve,
            timeout_s,
            first=locations.first,
            credentials=locations.shown(self.credentials),
            cluster_key=locations.cluster_key,
        )

    @property
    def _with_times(self) -> bool:
        return APPENDED_AT in self.columns

    def _decoded(self, rows: Any) -> Any:
        assert self.decoder is not None
        decoded = self.decoder(rows)
        if not isinstance(decoded, pa.RecordBatch):
            raise InvalidInput(f"the decoder must return a pyarrow.RecordBatch, not {type(decoded).__name__}")
        return decoded


class Marks:
    """The ends and the record sizes of partitions, as of now. For the driver; close it (``with``).

    With ``source="replica"`` and no server that answers within 2 s, an end is what a quorum of the replicas proves.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.locations = Locations(reading.where, reading.cluster, reading.space)
        self._server = reading.server_reader(self.locations, _SERVER_S if reading.source == "replica" else _ALONE_S)
        first, keyring = self.locations.first, reading.keyring
        self._replica = ReplicaReader(self.locations.replicas, keyring, first=first) if keyring is not None else None

    def high_water_mark(self, partition_id: int) -> int:
        """ID of the last committed transaction, -1 = none."""
        if self._replica is None:
            return self._server.high_water_mark(partition_id)
        if self.locations.resolve(partition_id) is not None:
            try:
                return self._server.high_water_mark(partition_id)
            except DataUnavailable:
                return self._replica.committed_mark(partition_id)
        return self._replica.committed_mark(partition_id)

    def beginnings(self, partitions: Iterable[int]) -> dict[int, int]:
        """Partition -> ID of the first transaction there is, or will be: its trim mark, 0 = nothing was trimmed."""
        if not self.locations.has_zookeeper:
            return {p: self._server.first_id_at(p, 0) for p in partitions}
        marks = self.locations.trim_marks()
        return {p: marks.get(p, 0) for p in partitions}

    def first_id_at(self, partition_id: int, time_ms: int) -> int:
        """The first transaction that may have been appended at ``time_ms`` or later, or the next one there will be."""
        if self._replica is None:
            return self._server.first_id_at(partition_id, time_ms)
        found = self._replica.first_id_at(partition_id, time_ms)
        return max(found, self.locations.trim_marks().get(partition_id, 0))

    def hold(self, name: str, positions: Mapping[int, int], why: str) -> None:
        """Nothing is trimmed from ``positions`` (partition -> ID) on, under this name, which only these readers use.

        Trimmed if it has been. Without ZooKeeper nothing can be held.
        """
        if self.locations.has_zookeeper:
            self.locations.hold(name, positions, why)

    def appended_ms(self, partition_id: int, transaction_id: int) -> int | None:
        """When a committed transaction was appended, ms since 1970; None if that is not known."""
        reader = self._replica or self._server
        times = reader.times(partition_id, transaction_id, transaction_id + 1)
        return times[0][1] if times else None

    def record_bytes(self, ranges: Sequence[Range]) -> dict[int, float]:
        """Partition -> average size of a record at the beginning of its range."""
        return {each.partition_id: self._average(each) for each in ranges}

    def _average(self, wanted: Range) -> float:
        reader = self._replica or self._server
        for batch in reader.read_range(*wanted, max_bytes=_SAMPLE_BYTES):
            return batch.size_bytes / len(batch)
        return 1.0

    def close(self) -> None:
        self._server.close()
        if self._replica is not None:
            self._replica.close()
        self.locations.close()

    def __enter__(self) -> Marks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def plan_reading(
    reading: Reading,
    partitions: Sequence[int] | None = None,
    start: Bound = "earliest",
    stop: Bound = "latest",
    bytes_per_task: int = BYTES_PER_TASK,
) -> list[Range]:
    """The ranges of a read as of now, each for one task. "earliest" is what has not been trimmed away.

    InvalidInput for a partition or a bound that cannot be; Trimmed for a start that is gone.
    """
    with Marks(reading) as marks:
        ends = {p: marks.high_water_mark(p) for p in marks.locations.checked(_listed(partitions))}
        first, end = (
            at_time(name, _known(bound, ends, name), ends, marks.first_id_at)
            for name, bound in (("start", start), ("stop", stop))
        )
        wanted = bounds_of(first, end, ends, marks.beginnings(ends))
        return split_ranges(wanted, marks.record_bytes(wanted), bytes_per_task)


def _listed(partitions: Sequence[int] | None) -> list[int] | None:
    if partitions is None:
        return None
    listed = list(partitions) if isinstance(partitions, Iterable) and not isinstance(partitions, str) else [None]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in listed):
        raise InvalidInput(f"partitions must be partition IDs, not {partitions!r:.60}")
    return listed


def _known(bound: Bound, ends: Mapping[int, int], name: str) -> Bound:
    """A bound for a partition that is not read is most likely a mistake."""
    if isinstance(bound, Mapping):
        extra = sorted(set(bound) - set(ends))
        if extra:
            raise InvalidInput(f"{name} names partition {extra[0]}, which is not read; read: {sorted(ends)}")
    return bound
