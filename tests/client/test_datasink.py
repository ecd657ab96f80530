"""A write task of Ray Data: whatever becomes of its attempts, each piece of its blocks is in the log once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.client.conftest import PATIENCE_S
from tests.client.fake_server import FakeDirectory, FakeServer
from waltz_ray.client import WaltzClient
from waltz_ray.client.ray import WaltzDatasink, block_rows
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.errors import InvalidInput

ROWS = [{"number": i, "text": f"row {i}"} for i in range(300)]
TABLE = pa.Table.from_pylist(ROWS)


@pytest.fixture
def sink(server: FakeServer, directory: FakeDirectory) -> Iterator[WaltzDatasink]:
    """A write that has begun; before it there was something else in the log."""
    server.append_directly(0, [b"before"] * 3, header=7)
    transport = TcpTransport()
    with WaltzClient(directory, transport, find=lambda: (FakeDirectory(directory.servers), transport)) as client:
        sink = WaltzDatasink(client, header=7, piece_bytes=200)
        sink.on_write_start()
        yield sink


def task(number: int) -> Any:
    return SimpleNamespace(task_idx=number)


def rows_in(server: FakeServer) -> list[dict[str, Any]]:
    datas = [data for partition in (0, 1) for data in server.logs[partition].data()]
    rows: list[dict[str, Any]] = block_rows(pa.record_batch([pa.array(datas, pa.binary())], names=["data"])).to_pylist()
    return sorted(rows, key=lambda row: int(row["number"]))


def pieces_in(server: FakeServer) -> int:
    return sum(len(log.data()) for log in server.logs.values()) - 3


def breaking(blocks: Sequence[Any], after: int) -> Iterator[Any]:
    yield from blocks[:after]
    raise RuntimeError("the task has died")


def test_rows_are_written_once(server: FakeServer, sink: WaltzDatasink) -> None:
    assert sink.write([TABLE], task(0)) == pieces_in(server) > 20
    assert rows_in(server) == ROWS
    assert {int(h) for log in server.logs.values() for b in log.batches for h in b.fields["header"]} == {7}
    assert all(log.batches for log in server.logs.values())  # in turn
    assert sink.write([TABLE.slice(0, 0)], task(1)) == 0


def test_a_task_that_is_run_again_adds_what_is_missing(server: FakeServer, sink: WaltzDatasink) -> None:
    blocks = [TABLE.slice(start, 50) for start in range(0, 300, 50)]
    for after in (2, 5):
        with pytest.raises(RuntimeError, match="has died"):
            sink.write(breaking(blocks, after), task(3))
        server.append_directly(1, [b"between"], header=7)
    assert 0 < pieces_in(server) - 2 < len(list(sink.pieces(blocks, 3)))
    assert sink.write(blocks, task(3)) == pieces_in(server) - 2
    assert rows_in(server) == ROWS
    assert sink.write(blocks, task(3)) == pieces_in(server) - 2  # all of it is there
    assert rows_in(server) == ROWS


def test_two_attempts_at_once(server: FakeServer, sink: WaltzDatasink) -> None:
    """Ray has taken one for dead which is not."""
    threads = [threading.Thread(target=sink.write, args=([TABLE], task(0))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert rows_in(server) == ROWS


class Forgotten(dict[int, int]):
    """The lock table of a server that has just got the partition: everything is as new as the log's end."""

    def __init__(self, mark: int) -> None:
        super().__init__()
        self.mark = mark

    def get(self, lock: int, default: Any = -1) -> Any:
        return super().get(lock, self.mark)


def test_a_refusal_that_proves_nothing(server: FakeServer, sink: WaltzDatasink) -> None:
    blocks = [TABLE.slice(0, 100), TABLE.slice(100)]
    with pytest.raises(RuntimeError):
        sink.write(breaking(blocks, 1), task(0))
    server.append_directly(0, [b"later"] * 5)
    for log in server.logs.values():
        log.locks = Forgotten(log.mark)
    sink.write(blocks, task(0))
    assert rows_in(server) == ROWS


def test_what_was_found_is_not_written_again(server: FakeServer, sink: WaltzDatasink) -> None:
    """The first refusal shows all pieces at once, more than are under way: behind those no lock is newer."""
    assert sink.write([TABLE], task(0)) > 20
    for log in server.logs.values():
        log.locks = Forgotten(log.mark)
    assert sink.write([TABLE], task(0)) == pieces_in(server)
    assert rows_in(server) == ROWS


def test_a_connection_that_breaks(server: FakeServer, sink: WaltzDatasink) -> None:
    server.script.drop_after_admitting = 2
    server.script.drop_before_admitting = 2
    sink.write([TABLE], task(0))
    assert rows_in(server) == ROWS


def test_another_write_is_another(server: FakeServer, sink: WaltzDatasink) -> None:
    sink.write([TABLE], task(0))
    sink.on_write_start()
    sink.write([TABLE], task(0))
    assert len(rows_in(server)) == 2 * len(ROWS)


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\x40\0\0\0", b"\x40\0\0\0", b""])
def test_what_is_no_piece_is_left_out(length: bytes, server: FakeServer, sink: WaltzDatasink) -> None:
    """Also what looks like one at first, and has its name for a name in it."""
    sink.write([TABLE], task(0))
    for partition in (0, 1):
        server.append_directly(partition, [length + b"waltz_ray.piece".ljust(80, b"\x01")], header=7)
    assert rows_in(server) == ROWS


def test_long_rows_among_short_ones_do_not_travel_together(sink: WaltzDatasink) -> None:
    """Together they might be longer than a log takes; and a task that is run again makes the same pieces."""
    table = pa.table({"text": ["short"] * 500 + ["x" * 1000] * 7 + ["short"] * 500})
    pieces = [pa.ipc.open_stream(piece.data).read_all() for piece in sink.pieces([table], 0)]
    assert [row for piece in pieces for row in piece["text"].to_pylist()] == table["text"].to_pylist()
    assert all(piece.num_rows == 1 or piece.nbytes <= 400 for piece in pieces)
    assert [piece.data for piece in sink.pieces([table], 0)] == [piece.data for piece in sink.pieces([table], 0)]


@pytest.mark.parametrize("index", [pa.int8(), pa.int32(), pa.uint64()])
def test_a_piece_has_no_more_of_a_dictionary_than_its_rows_need(
    sink: WaltzDatasink, server: FakeServer, index: pa.DataType
) -> None:
    words = [f"a long word, {i:030d}" for i in range(120)]
    kind = pa.dictionary(index, pa.string())
    column = pa.DictionaryArray.from_arrays(pa.array([*range(120), None], index), [*words, "of no row"])
    other = pa.DictionaryArray.from_arrays(pa.array([0], index), ["of another chunk"])
    table = pa.table({"number": list(range(122)), "word": pa.chunked_array([column, other])})
    pieces = list(sink.pieces([table], 0))
    assert len(pieces) < 122
    assert all(len(piece.data) < 3000 for piece in pieces)
    assert all(pa.ipc.open_stream(piece.data).schema.field("word").type == kind for piece in pieces)
    sink.write([table], task(0))
    assert rows_in(server) == table.to_pylist()


@pytest.mark.parametrize(
    "other",
    [
        pa.array(["a", "b"]),
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int16()), ["a", "b"]),
        pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), [f"other {i}" for i in range(100)]),
    ],
    ids=["none", "a wider one", "too many together"],
)
def test_blocks_whose_dictionaries_do_not_go_together_are_read_as_their_values(
    sink: WaltzDatasink, server: FakeServer, other: Any
) -> None:
    first = pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), [f"one {i}" for i in range(100)])
    blocks = [pa.table({"number": range(100), "word": first})]
    blocks.append(pa.table({"number": range(100, 100 + len(other)), "word": other}))
    sink.write(blocks, task(0))
    assert rows_in(server) == [row for block in blocks for row in block.to_pylist()]


def test_a_dictionary_with_an_order_keeps_it(sink: WaltzDatasink, server: FakeServer) -> None:
    words = [f"a long word, {i:030d}" for i in range(50)]
    column = pa.DictionaryArray.from_arrays(pa.array([40, 3, 17, None], pa.int8()), words, ordered=True)
    table = pa.table({"number": [0, 1, 2, 3], "word": column})
    for piece in sink.pieces([table], 0):
        assert pa.ipc.open_stream(piece.data).read_all()["word"].chunk(0).dictionary.to_pylist() == words
    sink.write([table], task(0))
    assert rows_in(server) == table.to_pylist()


@pytest.mark.parametrize("kind", ["string_view", "binary_view", "list_view", "list of a dictionary"])
def test_what_slices_of_a_column_share_is_not_brought_along_by_every_row(sink: WaltzDatasink, kind: str) -> None:
    texts = [f"a long text, {i:030d}" for i in range(1000)]
    columns = {
        "string_view": lambda: pa.array(texts, pa.string_view()),
        "binary_view": lambda: pa.array(map(str.encode, texts), pa.binary_view()),
        "list_view": lambda: pa.array([[i, i] for i in range(1000)], pa.list_view(pa.int64())),
        "list of a dictionary": lambda: pa.ListArray.from_arrays(range(1001), pa.array(texts).dictionary_encode()),
    }
    table = pa.table({"column": columns[kind]()})
    pieces = list(sink.pieces([table], 0))
    assert len(pieces) < 500
    found = [row for piece in pieces for row in pa.ipc.open_stream(piece.data).read_all().to_pylist()]
    assert found == table.to_pylist()
    if kind in ("string_view", "binary_view"):
        assert sum(len(piece.data) for piece in pieces) < 8 * table.nbytes


def test_a_block_whose_column_has_no_value_goes_with_the_others(sink: WaltzDatasink, server: FakeServer) -> None:
    nothing = pa.table({"number": [1], "text": pa.nulls(1), "list": [[]]})
    sink.write([nothing, pa.table({"number": [2], "text": ["x"], "list": [["y"]]})], task(0))
    assert rows_in(server) == [{"number": 1, "text": None, "list": []}, {"number": 2, "text": "x", "list": ["y"]}]
    sink.write([pa.table({"number": [3], "text": [4], "list": [["y"]]})], task(1))
    with pytest.raises(InvalidInput, match="do not have the same columns"):
        rows_in(server)


def test_what_cannot_be_written_or_read(sink: WaltzDatasink, server: FakeServer) -> None:
    with pytest.raises(InvalidInput, match="piece_bytes must be at least 1"):
        WaltzDatasink(sink._client, piece_bytes=0)
    with pytest.raises(InvalidInput, match="a write needs a partition"):
        WaltzDatasink(sink._client, partitions=[])
    with pytest.raises(InvalidInput, match="needs the column data"):
        block_rows(pa.record_batch([pa.array([1])], names=["header"]))
    assert block_rows(pa.record_batch([pa.array([b"waltz_ray.piece", b""])], names=["data"])).num_rows == 0
    sink.write([TABLE], task(0))
    sink.write([pa.table({"other": ["x"]})], task(1))
    with pytest.raises(InvalidInput, match="do not have the same columns"):
        rows_in(server)
