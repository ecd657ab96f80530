"""A ``ray.data.Dataset`` written to the log, each row exactly once, also where Ray runs a write task again.

Rows travel in *pieces*: some rows of a block as an Arrow IPC stream, whose schema names the piece: the write (each has
a UUID), the write task, and a number that counts the task's pieces. A piece is one transaction, so its name is in the
log in the same atomic step as its rows. Each is appended under a write lock of that name, against the mark that
the partition had before the write began. So of several attempts, also of two that run at the same time because Ray took
one for dead, the first commits and the others are refused.

A refusal proves nothing yet: lock hashes collide, and a partition that has changed its server refuses whatever is older
than that. Who is refused reads on from what he knows up to the transaction that was in the way. Either the piece is
there, or it is not up to there and is appended again against that mark.

What has to hold: a task that is run again is given the same blocks (Ray computes them again, or has them still).
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from ray.data import Datasink
from ray.data.block import BlockAccessor

from waltz_ray.client import WaltzClient
from waltz_ray.errors import AppendFailed, InvalidInput, LockConflict, PartitionNotReady

__all__ = ["WrittenPiece", "WaltzDatasink", "block_rows"]

PIECE_BYTES = 1024 * 1024

_AT_ONCE = 16  # pieces of a task that are under way
_ATTEMPTS = 5  # of a piece that is known not to be in the log
_NAME = b"waltz_ray.piece"


@dataclass(frozen=True)
class WrittenPiece:
    """What is one transaction: ``name`` is in ``data``, and its lock has a number of its own under ``lock``."""

    partition_id: int
    name: bytes
    lock: tuple[str, int]
    data: bytes


class WaltzDatasink(Datasink[int]):
    """For ``dataset.write_datasink(...)``. The rows come back with ``read_dataset(..., decoder=block_rows)``.

    ``client`` has no callbacks and is not closed before the write has ended: each write task connects as it did.
    ``partitions`` (None: all) are written in turn, with ``header``, in transactions of about ``piece_bytes``.
    """

    def __init__(
        self,
        client: WaltzClient,
        partitions: int | Sequence[int] | None = None,
        header: int = 0,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        if piece_bytes < 1:
            raise InvalidInput(f"piece_bytes must be at least 1, not {piece_bytes}")
        self._client = client
        chosen = range(client.partitions) if partitions is None else partitions
        self._partitions = [chosen] if isinstance(chosen, int) else list(chosen)
        if not self._partitions:
            raise InvalidInput("a write needs a partition; name one, several, or none at all for all of them")
        self._header = header
        self._piece_bytes = piece_bytes
        self._write = uuid.UUID(int=0)
        self._marks: dict[int, int] = {}

    def get_name(self) -> str:
        """What Ray's progress shows."""
        return "waltz"

    def on_write_start(self, schema: Any = None) -> None:
        """On the driver, before any task has this object: nothing of this write is in the log up to these marks."""
        self._write = uuid.uuid4()
        self._marks = {partition: self._client.server_high_water_mark(partition) for partition in self._partitions}

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """In a task. How many transactions the blocks are."""
        with copy(self._client) as client:  # which is not connected yet
            attempt = _Attempt(client, self._header, self._marks)
            for piece in self.pieces(blocks, ctx.task_idx):
                attempt.put(piece)
            return attempt.finish()

    def pieces(self, blocks: Iterable[Any], task: int) -> Iterator[WrittenPiece]:
        """The same for every attempt of a task."""
        lock = uuid.uuid5(self._write, str(task)).hex  # locks of like names have like hashes
        for number, rows in enumerate(self._rows(blocks)):
            name = f"{self._write.hex}/{task}/{number}".encode()
            partition_id = self._partitions[(task + number) % len(self._partitions)]
            yield WrittenPiece(partition_id, name, (lock, number), _encoded(rows, name))

    def _rows(self, blocks: Iterable[Any]) -> Iterator[Any]:
        for block in blocks:
            table = BlockAccessor.for_block(block).to_arrow()
            if table.num_rows:
                size = max(1, table.num_rows * self._piece_bytes // max(1, table.nbytes))
                for start in range(0, table.num_rows, size):
                    yield from _short(_alone(table.slice(start, size)), 2 * self._piece_bytes)


def _short(rows: Any, most_bytes: int) -> Iterator[Any]:
    """``rows`` as they are, or, if those are longer than others, in parts that are not."""
    half = rows.num_rows // 2
    if half == 0 or rows.nbytes <= most_bytes:
        yield rows
        return
    parts = [_alone(part) for part in (rows.slice(0, half), rows.slice(half))]
    if sum(part.nbytes for part in parts) > 1.5 * rows.nbytes:  # each brings along what they share
        yield rows
        return
    for part in parts:
        yield from _short(part, most_bytes)


def _alone(rows: Any) -> Any:
    """A slice has all of a column's dictionary, and all texts of a view, and each piece would bring that along: now
    what its rows need of it."""
    for number, field in enumerate(rows.schema):
        for is_kind, alone in _SHARING:
            if is_kind(field.type):
                chunks = [alone(chunk) for chunk in rows.column(number).chunks]
                rows = rows.set_column(number, field, pa.chunked_array(chunks, field.type))
    return rows


def _own_dictionary(values: Any) -> Any:
    if values.type.ordered or len(values.dictionary) <= len(values):  # an order is one of all the values
        return values
    used = values.indices.drop_null().unique()
    indices = pc.index_in(values.indices, value_set=used).cast(values.type.index_type)
    return pa.DictionaryArray.from_arrays(indices, values.dictionary.take(used))


_SHARING: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...] = (
    (pa.types.is_dictionary, _own_dictionary),
    (pa.types.is_string_view, lambda texts: texts.cast(pa.large_string()).cast(texts.type)),
    (pa.types.is_binary_view, lambda datas: datas.cast(pa.large_binary()).cast(datas.type)),
)


class _Attempt:
    """One run of one write task."""

    def __init__(self, client: WaltzClient, header: int, marks: dict[int, int]) -> None:
        self._client = client
        self._header = header
        self._marks = dict(marks)  # up to here it is known which pieces are in the log
        self._found: set[bytes] = set()
        self._under_way: deque[tuple[WrittenPiece, Future[int]]] = deque()
        self._count = 0

    def put(self, piece: WrittenPiece) -> None:
        """It will be in the log once, when ``finish`` has returned."""
        if len(self._under_way) >= _AT_ONCE:
            self._settle(*self._under_way.popleft())
        if piece.name not in self._found:  # else its lock is no newer than the mark by now, and refuses nothing
            self._under_way.append((piece, self._append(piece)))
        self._count += 1

    def finish(self) -> int:
        """All of them are in the log; how many they are."""
        while self._under_way:
            self._settle(*self._under_way.popleft())
        return self._count

    def _append(self, piece: WrittenPiece) -> Future[int]:
        mark = self._marks[piece.partition_id]
        locks = [piece.lock]
        return self._client.append(piece.partition_id, piece.data, self._header, locks, client_mark=mark)

    def _settle(self, piece: WrittenPiece, future: Future[int]) -> None:
        failures = 0
        while piece.name not in self._found:
            try:
                future.result()
                return
            except LockConflict as conflict:
                self._look(piece.partition_id, conflict.transaction_id)
            except (AppendFailed, PartitionNotReady):
                failures += 1
                if failures == _ATTEMPTS:
                    raise
            if piece.name not in self._found:
                future = self._append(piece)

    def _look(self, partition_id: int, transaction_id: int) -> None:
        """Which pieces are in the log up to that transaction."""
        mark = self._marks[partition_id]
        for transaction in self._client.read(partition_id, mark + 1, transaction_id + 1):
            mark = transaction.transaction_id
            if transaction.header == self._header:
                name = _name_of(transaction.data)
                if name is not None:
                    self._found.add(name)
        self._marks[partition_id] = mark


def _encoded(rows: Any, name: bytes) -> bytes:
    rows = rows.replace_schema_metadata({**(rows.schema.metadata or {}), _NAME: name})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _name_of(data: bytes) -> bytes | None:
    """Of a piece; None for any other transaction."""
    if _NAME not in data:
        return None
    try:
        metadata = pa.ipc.open_stream(data).schema.metadata
    except (pa.ArrowException, OSError):  # as which pyarrow tells of messages that are none
        return None
    name: bytes | None = (metadata or {}).get(_NAME)
    return name


def block_rows(transactions: Any) -> Any:
    """A ``decoder`` for ``read_dataset`` and ``read_feed``: the rows that a ``WaltzDatasink`` has written.

    Transactions that are none of its are left out; it needs the column "data". Rows of two schemas do not go together:
    a write that has other columns wants another ``header``, to be told by.
    """
    if "data" not in transactions.schema.names:
        raise InvalidInput("block_rows needs the column data")
    pieces = [data for data in transactions["data"].to_pylist() if _name_of(data) is not None]
    tables = [pa.ipc.open_stream(data).read_all().replace_schema_metadata(None) for data in pieces]
    if not tables:
        return pa.RecordBatch.from_pylist([])
    try:
        if len({tuple(table.column_names) for table in tables}) > 1:
            raise pa.ArrowInvalid(f"{tables[0].column_names} and others")
        try:
            rows = _joined(tables)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            # Each block of pandas has categories of its own.
            rows = _joined([_without_dictionaries(table) for table in tables])
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidInput(
            f"the pieces do not have the same columns; choose one write by its header: {error}"
        ) from error
    return rows.to_batches()[0]


def _joined(tables: list[Any]) -> Any:
    # A column without any value in a block has no type there.
    return pa.concat_tables(tables, promote_options="default").combine_chunks()


def _without_dictionaries(table: Any) -> Any:
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(number, field.name, table.column(number).cast(field.type.value_type))
    return table
