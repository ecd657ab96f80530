"""``waltz load``: each value as it stands in the file, what cannot be loaded, keys, resuming; the log is in memory."""

from __future__ import annotations

import datetime
import decimal
import errno
import io
import json
import math
import os
import random
import signal
import stat
import sys
import tempfile
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.cli import load_run
from waltz_ray.cli.load_appender import KeyedAppender
from waltz_ray.cli.load_cursor import LoadedRows, open_cursor
from waltz_ray.cli.load_progress import LoadProgress
from waltz_ray.cli.load_rows import Choices, FileRow, NanRule, check_rows
from waltz_ray.cli.load_run import Job, run_job
from waltz_ray.cli.load_source import open_source
from waltz_ray.client.keys import key_hash, partition_for
from waltz_ray.errors import AppendFailed, DiskFull, InvalidInput, PartitionNotReady, Trimmed
from waltz_ray.protocol.ids import LockId


def loaded(
    path: Path, key: str, types: str = "text", nan: NanRule = "error", most_bytes: int = 1 << 20
) -> list[FileRow]:
    with open_source(str(path), None) as source:
        reader = source.reader(Choices(key, types, nan))
        count = check_rows(reader, most_bytes, lambda count: None)
        found = list(reader.rows())
    assert len(found) == count
    return found


def datas(path: Path, key: str, types: str = "text", nan: NanRule = "error") -> list[bytes]:
    return [row.data for row in loaded(path, key, types, nan)]


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


# ---- CSV


NINES = "9" * 23


def test_csv_cells_are_text_as_they_stand(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", f'id,x,n,when\r\n01234,{NINES},NaN,2013-01-01T10:00:00Z\n" 1","a,""b""\n",,ü\n')
    first, second = loaded(path, "id")
    assert first.data == f'{{"id":"01234","x":"{NINES}","n":"NaN","when":"2013-01-01T10:00:00Z"}}'.encode()
    assert (first.key, first.place) == ("01234", f"{path}, line 2")
    assert json.loads(second.data) == {"id": " 1", "x": 'a,"b"\n', "n": "", "when": "ü"}
    assert (second.key, second.place) == (" 1", f"{path}, line 3")


def test_csv_types_that_are_asked_for_keep_their_digits(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", f"id,i,f,b,n\n01,{NINES},1.10,true,1e5\n02,+007,+00.50,false,\n03,-0,.5E3,,-2\n")
    assert datas(path, "id", "i=int,f=float,b=bool,n=number") == [
        b'{"id":"01","i":%s,"f":1.10,"b":true,"n":1e5}' % NINES.encode(),
        b'{"id":"02","i":7,"f":0.50,"b":false,"n":null}',
        b'{"id":"03","i":-0,"f":0.5E3,"b":null,"n":-2}',
    ]


def test_csv_auto_takes_a_column_for_numbers_only_if_nothing_is_lost(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,zip,x,flag,late,none\n" + "1,01234,1.5,true,7,\n" * 3 + "2,1,,false,x,\n")
    assert datas(path, "id", "auto") == [
        b'{"id":1,"zip":"01234","x":1.5,"flag":true,"late":"7","none":""}',
    ] * 3 + [b'{"id":2,"zip":"1","x":null,"flag":false,"late":"x","none":""}']
    assert [row.key for row in loaded(path, "zip", "auto")] == ["01234"] * 3 + ["1"]


def test_csv_constants_need_a_rule(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,x\n1,2\n2,-inf\n3,nan\n")
    with pytest.raises(InvalidInput, match=r"line 3: column 'x' is -Infinity, .* --nan null\|text"):
        loaded(path, "id", "x=float")
    assert [json.loads(data)["x"] for data in datas(path, "id", "x=float", "null")] == [2, None, None]
    assert [json.loads(data)["x"] for data in datas(path, "id", "x=float", "text")] == [2, "-Infinity", "NaN"]


@pytest.mark.parametrize("kind", ["int", "float", "number", "bool"])
@given(cell=st.text(alphabet="0123456789+-.eExnat ", max_size=6))
def test_what_a_typed_cell_becomes_is_json_and_the_same_number(
    tmp_path_factory: pytest.TempPathFactory, kind: str, cell: str
) -> None:
    path = write(tmp_path_factory.getbasetemp() / f"{kind}.csv", f'id,x\n1,"{cell}"\n')
    try:
        [data] = datas(path, "id", f"x={kind}", "text")
    except InvalidInput:
        return
    value = json.loads(data)["x"]
    if isinstance(value, int | float) and not isinstance(value, bool):
        assert value == float(cell) or math.isinf(float(cell))


def test_csv_names_only_and_empty_lines(tmp_path: Path) -> None:
    assert datas(write(tmp_path / "a.csv", "id,name\n"), "id") == []
    assert datas(write(tmp_path / "b.csv", "\ufeffid,name\n\n1,b\n\n"), "id") == [b'{"id":"1","name":"b"}']
    assert datas(write(tmp_path / "c.csv", "id\n1\n\n2\n"), "id") == [b'{"id":"1"}', b'{"id":""}', b'{"id":"2"}']


# ---- JSON lines


def test_jsonl_is_passed_on_byte_for_byte(tmp_path: Path) -> None:
    lines = ['{"id": 01234}', f'{{"id": {NINES}, "x": [1.10, {{"y": null}}], "s": "\\ud800 ü"}}', '{"w": 1e400}']
    lines[0] = '{"id":  "01234"}'
    path = write(tmp_path / "a.jsonl", "\r\n\n".join(lines))
    found = loaded(path, "id")
    assert [row.data for row in found] == [line.encode() for line in lines]
    assert [row.key for row in found] == ["01234", NINES, ""]
    assert [row.place for row in found] == [f"{path}, line {number}" for number in (1, 3, 5)]


def test_a_long_number_of_a_jsonl_file_is_no_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"id": true, "x": {"7" * 5000}}}\n{{"id": null}}')
    assert [row.key for row in loaded(path, "id")] == ["true", ""]


def test_jsonl_constants_need_a_rule(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"id": 1}\n{"id": 2, "NaN": ["NaN \\" NaN", NaN, -Infinity]}\n')
    with pytest.raises(InvalidInput, match=r"line 2: a value is NaN, .* --nan null\|text"):
        loaded(path, "id")
    assert datas(path, "id", nan="null")[1] == b'{"id": 2, "NaN": ["NaN \\" NaN", null, null]}'
    assert datas(path, "id", nan="text")[1] == b'{"id": 2, "NaN": ["NaN \\" NaN", "NaN", "-Infinity"]}'


# ---- Parquet


def parquet(path: Path, columns: dict[str, Any]) -> Path:
    pa.parquet.write_table(pa.table(columns), path)
    return path


def test_parquet_values_lose_nothing(tmp_path: Path) -> None:
    second = 1_357_034_400_123_456_789
    nested = pa.struct([("at", pa.list_(pa.timestamp("ns"))), ("m", pa.map_(pa.string(), pa.decimal128(5, 2)))])
    path = parquet(
        tmp_path / "a.parquet",
        {
            "id": pa.array([(1 << 64) - 1, None], pa.uint64()),
            "at": pa.array([second, None], pa.timestamp("ns", "Europe/Berlin")),
            "ms": pa.array([datetime.datetime(2013, 1, 1, 10), None], pa.timestamp("ms")),
            "price": [decimal.Decimal("1.10"), None],
            "raw": [b"\xff\x00", None],
            "day": [datetime.date(2013, 1, 1), None],
            "time": pa.array([1_000_000_001, None], pa.time64("ns")),
            "took": pa.array([-1_500, None], pa.duration("ms")),
            "x": [0.1 + 0.2, None],
            "nested": pa.array([{"at": [second, None], "m": [("a", decimal.Decimal("2.50"))]}, None], nested),
        },
    )
    first, empty = (json.loads(data) for data in datas(path, "id"))
    assert first == {
        "id": (1 << 64) - 1,
        "at": "2013-01-01T10:00:00.123456789Z",
        "ms": "2013-01-01T10:00:00",
        "price": "1.10",
        "raw": "/wA=",
        "day": "2013-01-01",
        "time": "00:00:01.000000001",
        "took": "-PT1.5S",
        "x": 0.1 + 0.2,
        "nested": {"at": ["2013-01-01T10:00:00.123456789", None], "m": [["a", "2.50"]]},
    }
    assert set(empty.values()) == {None}
    assert [row.key for row in loaded(path, "id")] == [str((1 << 64) - 1), ""]


def test_parquet_views_and_extension_types_are_what_they_are_of(tmp_path: Path) -> None:
    at = datetime.datetime(2013, 1, 1, 10)
    opaque, uuid = (
        pa.ExtensionArray.from_storage(kind, pa.array([b"\xff" * 16], storage))
        for kind, storage in ((pa.opaque(pa.binary(), "a", "b"), pa.binary()), (pa.uuid(), pa.binary(16)))
    )
    path = parquet(
        tmp_path / "a.parquet",
        {
            "id": [1],
            "raw": pa.array([b"\xff\x00"], pa.binary_view()),
            "list": pa.array([[at]], pa.list_view(pa.timestamp("us", "Europe/Berlin"))),
            "large": pa.array([[at]], pa.large_list_view(pa.timestamp("ns"))),
            "opaque": opaque,
            "uuid": uuid,
        },
    )
    assert [json.loads(data) for data in datas(path, "id")] == [
        {
            "id": 1,
            "raw": "/wA=",
            "list": ["2013-01-01T10:00:00Z"],
            "large": ["2013-01-01T10:00:00"],
            "opaque": "/////////////////////w==",
            "uuid": "ffffffff-ffff-ffff-ffff-ffffffffffff",
        }
    ]


def test_a_uuid_may_be_the_key_of_a_parquet_file(tmp_path: Path) -> None:
    column = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"\xff" * 16, None], pa.binary(16)))
    found = loaded(parquet(tmp_path / "a.parquet", {"id": column}), "id")
    assert [row.key for row in found] == ["ffffffff-ffff-ffff-ffff-ffffffffffff", ""]
    assert json.loads(found[0].data) == {"id": "ffffffff-ffff-ffff-ffff-ffffffffffff"}


@pytest.mark.parametrize(
    "column", [pa.array([0, 1 << 62], pa.timestamp("us")), pa.array([0, 10**7], pa.date32())], ids=["timestamp", "date"]
)
def test_a_date_that_has_no_text_is_no_damage(tmp_path: Path, column: Any) -> None:
    path = parquet(tmp_path / "a.parquet", {"id": [1, 2], "at": column})
    with pytest.raises(InvalidInput, match=r"a\.parquet, rows 1 to 2: column 'at' has a date outside of the years"):
        loaded(path, "id")


def test_parquet_constants_need_a_rule(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"id": [1, 2], "x": [1.5, float("nan")], "y": [[], [float("inf")]]})
    with pytest.raises(InvalidInput, match="row 2: 'x' is NaN"):
        loaded(path, "id")
    assert json.loads(datas(path, "id", nan="text")[1]) == {"id": 2, "x": "NaN", "y": ["Infinity"]}
    assert json.loads(datas(path, "id", nan="null")[1]) == {"id": 2, "x": None, "y": [None]}


# ---- what cannot be loaded


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xlsx", b"x", "must end in .csv, .jsonl, .parquet"),
        ("a.csv", b"", "is empty: a .csv file begins with the names of its columns"),
        ("a.csv", b"id,tailnum,dest\n1,N1,IAH\n", "has no column 'tailnm'; it has tailnum, "),
        ("a.csv", b"tailnm,b\n1,2\n3\n", "line 3 has 1 cells where there are 2 columns"),
        ("a.csv", b'tailnm,b\n"1\n\n",2\n3,4,5\n', "line 5 has 3 cells where there are 2 columns"),
        ("a.csv", b"tailnm,b,b\n1,2,3\n", "more than one column 'b'"),
        ("a.csv", b"tailnm\nx\n\xff\xfe\xfa\n", r"line 3 is not in UTF-8 \(byte 1 of the line is 0xff\)"),
        ("a.csv", b'tailnm\nx\n"y\n', "line 3 is no CSV: unexpected end of data"),
        ("a.csv", b"tailnm,x\n1," + b"y" * 2000 + b"\n", "line 2: the row is 2021 bytes long, a transaction has 1000"),
        ("a.jsonl", b'{"tailnm": 1}\n{"tailnm": ', "line 2 is no JSON"),
        ("a.jsonl", b"[1]\n", "line 1 is no JSON object but"),
        ("a.jsonl", b'{"tailnum": 1}\n', "has no column 'tailnm'; it has tailnum"),
        ("a.jsonl", b'{"tailnm": 1, "b": {"c": 1, "c": 2}}\n', "line 1 has more than one 'c'"),
        ("a.jsonl", b'{"tailnm": [1]}\n', "line 1: the key 'tailnm' is no text, number"),
        ("a.jsonl", b'{"tailnm": "\xff"}\n', "line 1 is not in UTF-8"),
        ("a.jsonl", b'{"tailnm": ' + b"[" * 100_000, "line 1 is nested too deeply"),
        ("a.parquet", b"", "damaged or no .parquet file"),
        ("a.parquet", b"PAR1 and so on", "damaged or no .parquet file"),
    ],
)
def test_unusable_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=message) as caught:
        loaded(tmp_path / name, "tailnm", most_bytes=1000)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ("x=integer", r"must be text, auto or column=text\|number\|int\|float\|bool"),
        ("y=int", "has no column 'y'; it has id, x"),
        ("x=int", "line 3: \"x\" is to be int and is '1.5'"),
    ],
)
def test_types_that_do_not_fit(tmp_path: Path, types: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        loaded(write(tmp_path / "a.csv", "id,x\n1,2\n2,1.5\n"), "id", types)
    with pytest.raises(InvalidInput, match="--types is for"):
        loaded(write(tmp_path / "a.jsonl", '{"id": 1}\n'), "id", types)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not there"):
        loaded(tmp_path / "a.csv", "id")
    (tmp_path / "b.csv").mkdir()
    with pytest.raises(InvalidInput, match="is no file"):
        loaded(tmp_path / "b.csv", "id")


def test_parquet_columns_of_one_name(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InvalidInput, match="more than one column 'id'"):
        loaded(tmp_path / "a.parquet", "id")


def test_a_damaged_parquet_page_is_found_before_anything_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({"id": list(range(10_000))}), path, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="damaged"):
        loaded(path, "id")


def test_a_parquet_file_may_have_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.parquet")
    with path.open("wb") as file:
        pa.parquet.write_table(pa.table({"id": [1, 2]}), file)
    assert datas(path, "id") == [b'{"id":1}', b'{"id":2}']


# ---- stdin, progress


def test_stdin_needs_a_format(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=r"say --format csv\|jsonl\|parquet"), open_source("-", None):
        pass
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"id\n01\n")))
    with open_source("-", "csv") as source:
        assert [row.data for row in source.reader(Choices("id")).rows()] == [b'{"id":"01"}']
    assert not source.path.exists()


def test_stdin_that_finds_no_room_is_not_taken_for_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "stdin.csv").symlink_to("/dev/full")
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda prefix: nullcontext(str(tmp_path)))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"id\n01\n")))
    with pytest.raises(DiskFull, match=r"no room for it \(No space left.* TMPDIR; nothing was appended"):
        open_source("-", "csv").__enter__()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_ends_a_load_from_stdin_ends_its_copy_too(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(number: int, frame: object) -> None:
        raise AssertionError("nothing is removed by a process that this ends")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", mock.Mock(buffer=io.BytesIO(b"id\n1\n")))
    before = signal.signal(number, die)
    try:
        with pytest.raises(KeyboardInterrupt), open_source("-", "csv"):
            signal.raise_signal(number)
        assert signal.getsignal(number) is die
    finally:
        signal.signal(number, before)
    assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = iter(range(100))
    with LoadProgress(False, lambda: next(now_s)) as progress:
        progress.stage("appended", 4000)
        for rows in range(4000):
            progress.at(rows)
    assert capsys.readouterr().err.splitlines()[:2] == [
        "waltz: appended: 512 of 4,000 rows",
        "waltz: appended: 1,280 of 4,000 rows",
    ]


# ---- keys


def test_key_hash_is_stable() -> None:
    assert key_hash("N14228") == 2231757166
    assert key_hash("123456789") == key_hash(b"123456789") == key_hash(123456789) == 0xCBF43926  # the check value
    assert partition_for("N14228", 4) == 2231757166 % 4
    for wrong in (None, 1.5, True, ("a",)):
        with pytest.raises(InvalidInput, match="a key must be"):
            key_hash(wrong)  # type: ignore[arg-type]


# ---- appending


class FakeLog:
    """Fates are given when ``deliver`` is called."""

    def __init__(self) -> None:
        self.log: list[tuple[LockId, bytes]] = []
        self.waiting: list[tuple[Future[int], LockId, bytes]] = []

    def append(
        self,
        partition_id: int,
        data: bytes,
        header: int = 0,
        *,
        append_locks: tuple[LockId, ...] = (),
        client_mark: int | None = None,
    ) -> Future[int]:
        future: Future[int] = Future()
        [lock] = append_locks
        self.waiting.append((future, lock, data))
        if len(self.waiting) >= 5:
            self.deliver()
        return future

    def deliver(self) -> None:
        waiting, self.waiting = self.waiting, []
        for future, lock, data in waiting:
            self.log.append((lock, data))
            future.set_result(len(self.log) - 1)


def test_every_row_once_in_order_under_the_lock_of_its_key() -> None:
    log = FakeLog()
    appender = KeyedAppender(log, limit=8)
    for number in range(300):
        appender.put(0, LockId("id", number % 6), b"%d" % number)
        assert appender.open <= 8
    log.deliver()
    appender.finish()
    assert log.log == [(LockId("id", number % 6), b"%d" % number) for number in range(300)]
    assert (appender.appended, appender.open) == (300, 0)
    assert (appender.partitions[0].first_id, appender.partitions[0].last_id) == (0, 299)


def test_an_error_ends_the_load_and_it_is_known_how_far_it_came() -> None:
    log = FakeLog()
    appender = KeyedAppender(log)
    for number in range(4):
        appender.put(0, LockId("id", number), b"%d" % number)
    log.waiting.pop(1)[0].set_exception(AppendFailed("no"))
    with pytest.raises(AppendFailed, match="no"):
        appender.finish()
    appender.abandon(0.01)
    assert (appender.appended, appender.open) == (0, 3)
    log.deliver()
    appender.abandon(1.0)
    assert (appender.appended, appender.open) == (3, 0)


# ---- resuming


@pytest.mark.parametrize("seed", range(30))
def test_a_load_that_is_killed_again_and_again_appends_each_row_once(seed: int) -> None:
    """Runs append what is not there, out of order by up to a window, and are killed anywhere; some rows are equal."""
    choose = random.Random(seed)
    rows = [(choose.randrange(3), b"%d" % choose.randrange(150)) for _ in range(200)]
    logs: dict[int, list[bytes]] = {p: [] for p in range(3)}
    for _ in range(20):
        found = LoadedRows({p: iter(list(log)) for p, log in logs.items()})
        for number, (partition, data) in enumerate(rows):
            found.look(number, partition, data)
        found.finish()
        left = [(n, row) for n, row in enumerate(rows) if (n, row[0]) not in found]
        assert found.count == len(rows) - len(left) == sum(map(len, logs.values()))
        window = [left.pop(0) for _ in range(min(10, len(left)))]
        for _ in range(choose.randrange(60)):
            if window:
                _, (partition, data) = window.pop(choose.randrange(len(window)))
                logs[partition].append(data)
            if left:
                window.append(left.pop(0))
    found = LoadedRows({p: iter(log) for p, log in logs.items()})
    for number, (partition, data) in enumerate(rows):
        found.look(number, partition, data)
    found.finish()
    assert sum(map(len, logs.values())) <= len(rows)
    assert all((n, row[0]) in found for n, row in enumerate(rows)) == (found.count == len(rows))


def test_nothing_is_remembered_of_rows_behind_the_end_of_the_log() -> None:
    found = LoadedRows({0: iter([b"0", b"2"])})
    for number in range(1000):
        found.look(number, 0, b"%d" % number)
    assert len(found._missing) == 1
    found.finish()
    assert [n for n in range(5) if (n, 0) in found] == [0, 2]


def test_a_log_with_rows_that_the_file_does_not_have() -> None:
    found = LoadedRows({0: iter([b"a", b"x"]), 1: iter([])})
    found.look(0, 0, b"a")
    with pytest.raises(InvalidInput, match="partition 0 has a record of this load that is no row"):
        found.finish()


def test_a_load_is_not_resumed_into_another_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.csv", "id\n1\n")
    job = Job(str(path), None, Choices("id", "text", "error"), 0, "", False, True)
    keys = iter(["k1", "k2", "k1"])
    clients: list[mock.MagicMock] = []

    def another(*where: str, space: str) -> mock.MagicMock:
        client = mock.MagicMock(partitions=1, cluster_key=next(keys), client_id=7)
        client.__enter__.return_value = client
        client.server_high_water_mark.return_value = 4
        client.append.side_effect = PartitionNotReady("no space left")
        client.hindrances.return_value = {}
        clients.append(client)
        return client

    monkeypatch.setattr(load_run, "open_client", another)
    with pytest.raises(AppendFailed, match="no space left; 0 of 1 rows are in the log"):
        run_job(job, "", "", "", "")
    with pytest.raises(InvalidInput, match="was into another cluster than this one"):
        run_job(replace(job, resume=True), "", "", "", "")
    assert not clients[1].append.called
    assert not clients[1].supersede.called
    with pytest.raises(AppendFailed):
        run_job(replace(job, resume=True), "", "", "", "")
    assert clients[2].supersede.called


def test_a_load_is_not_resumed_into_a_space_that_was_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.csv", "id\n1\n")
    job = Job(str(path), None, Choices("id", "text", "error"), 0, "", False, True)
    client = mock.MagicMock(partitions=1, cluster_key="k", client_id=7)
    client.__enter__.return_value = client
    client.server_high_water_mark.return_value = -1
    client.append.side_effect = PartitionNotReady("no space left")
    client.hindrances.return_value = {}
    monkeypatch.setattr(load_run, "open_client", lambda *where, space: client)
    with pytest.raises(AppendFailed):
        run_job(job, "", "", "", "")
    client.partitions, client.supersede.return_value = 2, {0: -1, 1: -1}
    client.append.reset_mock()
    with pytest.raises(InvalidInput, match="was into 1 partitions, and there are 2 now"):
        run_job(replace(job, resume=True), "", "", "", "")
    assert not client.append.called


def test_a_load_whose_beginning_was_trimmed_away_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.csv", "id\n1\n")
    job = Job(str(path), None, Choices("id", "text", "error"), 0, "", False, True)
    client = mock.MagicMock(partitions=1, cluster_key="k", client_id=7)
    client.__enter__.return_value = client
    client.server_high_water_mark.return_value = 4
    client.append.side_effect = PartitionNotReady("no space left")
    client.hindrances.return_value = {}
    monkeypatch.setattr(load_run, "open_client", lambda *where, space: client)
    with pytest.raises(AppendFailed):
        run_job(job, "", "", "", "")
    client.supersede.return_value = {0: 9}
    client.read.side_effect = Trimmed(0, 5, 8)
    client.append.reset_mock()
    told = f"{path}.waltz-load: .* began in partition 0 with transaction 5, and what is below 8 was trimmed away since"
    with pytest.raises(InvalidInput, match=told):
        run_job(replace(job, resume=True), "", "", "", "")
    assert not client.append.called


@pytest.mark.parametrize("when", ["before the first append", "between two appends"])
@pytest.mark.parametrize("text", ["id\n1\n2\n3\n4", "id\n1\n", "id\n1\n7\n"], ids=["longer", "shorter", "replaced"])
def test_a_file_that_changes_while_it_is_loaded_is_not_said_to_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, text: str
) -> None:
    path, log = write(tmp_path / "a.csv", "id\n1\n2\n"), FakeLog()
    client = mock.MagicMock(partitions=1, cluster_key="k", client_id=7)
    client.__enter__.return_value = client
    client.server_high_water_mark.return_value = -1
    client.hindrances.return_value = {}

    def change() -> None:
        write(tmp_path / "new", text).replace(path)

    def connected(*where: str, space: str) -> mock.MagicMock:
        if when == "before the first append":
            change()
        return client

    def append(*arguments: Any, **options: Any) -> Future[int]:
        if not log.waiting and not log.log:
            change()
        future = log.append(*arguments, **options)
        log.deliver()
        return future

    client.append.side_effect = append
    monkeypatch.setattr(load_run, "open_client", connected)
    job = Job(str(path), None, Choices("id", "text", "error"), 0, "", False, True)
    with pytest.raises((InvalidInput, AppendFailed), match=r"a\.csv has changed while it was read") as caught:
        run_job(job, "", "", "", "")
    if when == "before the first append":
        assert not log.log
        assert not Path(f"{path}.waltz-load").exists()
    else:
        assert [json.loads(data)["id"] for _, data in log.log] == ["1", "2"]
        assert "2 of 2 rows are in the log" in str(caught.value)


def test_the_file_of_a_load(tmp_path: Path) -> None:
    path, settings = tmp_path / "a.csv.waltz-load", {"key": "id", "bytes": 7, "cluster_key": "k1"}
    with pytest.raises(InvalidInput, match="there is nothing to resume"), open_cursor(path, True):
        pass
    running = pytest.raises(InvalidInput, match="another load of the same rows is running")
    with open_cursor(path, False), running, open_cursor(path, False):
        pass
    assert not path.exists(), "a load that has not begun leaves nothing"
    with open_cursor(path, False) as cursor:
        cursor.begin(settings, [5, 0], 17)
    with pytest.raises(InvalidInput, match="an earlier load did not end"), open_cursor(path, False):
        pass
    with path.open("ab") as file:
        file.write(b'{"client_id": 1')  # torn by a kill: this run has appended nothing
    with open_cursor(path, True) as cursor:
        assert (cursor.starts, cursor.clients) == ([5, 0], [17])
        cursor.check(settings)
        with pytest.raises(InvalidInput, match="had key 'id', this one has 'name'"):
            cursor.check({**settings, "key": "name"})
        cursor.check_cluster("k1", 2)
        with pytest.raises(InvalidInput, match="was into 2 partitions, and there are 3 now"):
            cursor.check_cluster("k1", 3)
        with pytest.raises(InvalidInput, match=r"a\.csv\.waltz-load: .* was into another cluster than this one"):
            cursor.check_cluster("k2", 2)
        cursor.begin(settings, [9, 9], 18)
    with open_cursor(path, True) as cursor:
        assert (cursor.starts, cursor.clients) == ([5, 0], [17, 18])
        cursor.remove()
    assert not path.exists()
    path.write_bytes(b"[]\n")
    with pytest.raises(InvalidInput, match="is no file of an interrupted load"), open_cursor(path, True):
        pass
    with pytest.raises(InvalidInput, match="cannot be written"), open_cursor(tmp_path / "no" / "a", False):
        pass


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize(
    "content",
    [
        b"nothing that ends in a line",
        b'{"a": 1}\n{"b": 2}',
        b'{"waltz_loaf": 1}',
        b'{"a": 1, "waltz_load": 1}\n',
        b"null\n",
        b"\xff\xfe\x00",
        b'{"waltz_load": 1}\n' * 100_000,
    ],
    ids=lambda content: repr(content[:20]),
)
def test_another_file_than_that_of_a_load_stays_as_it_is(tmp_path: Path, content: bytes, resume: bool) -> None:
    path = tmp_path / "of somebody"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="is no file of an interrupted load") as caught, open_cursor(path, resume):
        pass
    assert path.read_bytes() == content
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("resume", [True, False])
def test_what_is_no_file_stays(tmp_path: Path, resume: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidInput, match="is no file; give another --cursor"), open_cursor(pipe, resume):
        pass
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("torn", [b"", b"{", b'{"waltz_load": ', b'{"waltz_load": 1, "key": "i'], ids=repr)
@pytest.mark.parametrize("resume", [True, False])
def test_what_is_left_of_a_load_that_had_not_begun_is_used(tmp_path: Path, torn: bytes, resume: bool) -> None:
    path = tmp_path / "load"
    path.write_bytes(torn)
    with open_cursor(path, resume) as cursor:
        cursor.check({"key": "id"})
        cursor.begin({"key": "id"}, [3], 4)
    with open_cursor(path, True) as cursor:
        assert (cursor.starts, cursor.clients) == ([3], [4])


@pytest.mark.parametrize("room", [5, 50], ids=["not for the first line", "not for the client's ID"])
def test_a_file_that_is_written_only_in_part_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    path, settings, write = tmp_path / "load", {"key": "id"}, os.write
    first_line = b'{"waltz_load": 1, "key": "id", "starts": [3]}\n'

    def to_a_full_disk(descriptor: int, data: bytes) -> int:
        """As a kernel does it: what there is room for is written, and no error; the next time there is one."""
        left = room - os.fstat(descriptor).st_size
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:left])

    with open_cursor(path, False) as cursor, monkeypatch.context() as full:
        full.setattr(os, "write", to_a_full_disk)
        with pytest.raises(InvalidInput, match=r"No space left on device\); this run has appended nothing"):
            cursor.begin(settings, [3], 4)
    assert path.stat().st_size == room
    begun = room > len(first_line)
    with open_cursor(path, begun) as cursor:
        assert (bool(cursor.settings), cursor.clients) == (begun, [])
        cursor.begin(settings, [3], 5)
    with open_cursor(path, True) as cursor:
        assert (cursor.starts, cursor.clients) == ([3], [5])
