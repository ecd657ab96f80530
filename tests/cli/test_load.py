"""``waltz load``: reading any file, partitioning, locks, errors; the log is a fake in memory."""

from __future__ import annotations

import datetime
import decimal
import json
import random
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.cli.load import key_hash, key_text
from waltz_ray.cli.load_appender import KeyedAppender
from waltz_ray.cli.load_rows import inspect_file, read_rows, row_data
from waltz_ray.errors import AppendFailed, InvalidInput, LockConflict
from waltz_ray.protocol.ids import LockId


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def rows(path: Path, key: str, text: bool = False) -> list[dict[str, Any]]:
    file = inspect_file(path, key, text)
    found = list(read_rows(file))
    assert len(found) == file.rows
    return found


# ---- reading


def test_csv_types(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'id,x,flag,when,name\n1,1.5,true,2013-01-01T10:00:00Z,"a,b"\n2,,false,,\n')
    assert rows(path, "id") == [
        {"id": 1, "x": 1.5, "flag": True, "when": "2013-01-01T10:00:00Z", "name": "a,b"},
        {"id": 2, "x": None, "flag": False, "when": "", "name": ""},
    ]
    assert rows(path, "id", text=True)[0] == {
        "id": "1",
        "x": "1.5",
        "flag": "true",
        "when": "2013-01-01T10:00:00Z",
        "name": "a,b",
    }


def test_csv_column_that_turns_out_to_be_text(tmp_path: Path) -> None:
    """The type is guessed from the first block; all rows of the column must still come out alike."""
    count = 100_000
    path = write(tmp_path / "a.csv", "id,code\n" + "".join(f"{i},{i}\n" for i in range(count)) + "7,x\n")
    found = rows(path, "id")
    assert found[0] == {"id": 0, "code": "0"}
    assert found[-1] == {"id": 7, "code": "x"}


def test_csv_with_nothing_but_a_header(tmp_path: Path) -> None:
    assert rows(write(tmp_path / "a.csv", "id,name\n"), "id") == []


def test_jsonl_keeps_each_object_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"id": 1, "x": [1, {"y": null}]}\n\n{"id": "b", "z": 1e3}\n{"w": 2}')
    assert rows(path, "id") == [{"id": 1, "x": [1, {"y": None}]}, {"id": "b", "z": 1000.0}, {"w": 2}]


def test_empty_jsonl_has_no_rows(tmp_path: Path) -> None:
    assert rows(write(tmp_path / "a.jsonl", ""), "id") == []


def test_parquet(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [1, None],
            "at": [datetime.datetime(2013, 1, 1, 10), None],
            "price": [decimal.Decimal("1.10"), None],
            "raw": [b"\xff\x00", None],
            "x": [float("nan"), 2.0],
        }
    )
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    first, second = (json.loads(row_data(row)) for row in rows(tmp_path / "a.parquet", "id"))
    assert first == {"id": 1, "at": "2013-01-01T10:00:00", "price": "1.10", "raw": "/wA=", "x": None}
    assert second == {"id": None, "at": None, "price": None, "raw": None, "x": 2.0}


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats() | st.text(), max_size=5))
def test_row_data_is_always_json(row: dict[str, Any]) -> None:
    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    assert list(json.loads(row_data(row), parse_constant=no_constant)) == list(row)


def test_half_a_surrogate_pair_survives() -> None:
    assert json.loads(row_data({"a": "\ud800", "b": "ü"})) == {"a": "\ud800", "b": "ü"}
    assert row_data({"b": "ü"}) == '{"b":"ü"}'.encode()


# ---- what cannot be loaded


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xlsx", b"x", "must end in .csv, .jsonl, .parquet"),
        ("a.csv", b"", "is empty: a .csv file begins with the names of its columns"),
        ("a.csv", b"id,tailnum,dest\n1,N1,IAH\n", "has no column 'tailnm'; it has tailnum, "),
        ("a.csv", b"tailnm,b\n1,2\n3\n", "damaged or no .csv file: .*; nothing was appended"),
        ("a.csv", b"tailnm\n\xff\xfe\xfa\n" * 2, "no column|damaged"),
        ("a.jsonl", b'{"tailnm": 1}\n{"tailnm": ', "line 2 is no JSON"),
        ("a.jsonl", b"[1]\n", "line 1 is no JSON object but"),
        ("a.jsonl", b'{"tailnum": 1}\n', "has no column 'tailnm'; it has tailnum"),
        ("a.parquet", b"", "damaged or no .parquet file"),
        ("a.parquet", b"PAR1 and so on", "damaged or no .parquet file"),
    ],
)
def test_unusable_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=message) as caught:
        inspect_file(tmp_path / name, "tailnm")
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not there"):
        inspect_file(tmp_path / "a.csv", "id")
    (tmp_path / "b.csv").mkdir()
    with pytest.raises(InvalidInput, match="is no file"):
        inspect_file(tmp_path / "b.csv", "id")


def test_a_damaged_parquet_page_is_found_before_anything_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({"id": list(range(10_000))}), path, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="damaged"):
        inspect_file(path, "id")


# ---- keys


def test_key_hash_is_stable() -> None:
    assert key_hash(key_text("N14228")) == 2231757166
    assert key_hash("123456789") == 0xCBF43926  # the CRC-32 check value
    assert key_hash(key_text(17)) == key_hash("17")
    assert key_text(None) == ""


# ---- appending


class FakeLog:
    """One partition server: lock table by lock ID, fates given when ``deliver`` is called."""

    def __init__(self) -> None:
        self.log: list[tuple[int, bytes]] = []
        self.locks: dict[int, int] = {}
        self.waiting: list[tuple[Future[int], LockId, bytes, int | None]] = []
        self.conflicts = 0
        self.batch = 1

    def server_high_water_mark(self, partition_id: int) -> int:
        return len(self.log) - 1

    def append(
        self,
        partition_id: int,
        data: bytes,
        header: int = 0,
        *,
        write_locks: tuple[LockId, ...] = (),
        append_locks: tuple[LockId, ...] = (),
        client_mark: int | None = None,
    ) -> Future[int]:
        future: Future[int] = Future()
        [lock] = write_locks or append_locks
        self.waiting.append((future, lock, data, client_mark if write_locks else None))
        if len(self.waiting) >= self.batch:
            self.deliver()
        return future

    def other_writes(self, lock: LockId) -> None:
        self.log.append((lock.id, b"other"))
        self.locks[lock.id] = len(self.log) - 1

    def deliver(self) -> None:
        waiting, self.waiting = self.waiting, []
        for future, lock, data, mark in waiting:
            if mark is not None and self.locks.get(lock.id, -1) > mark:
                self.conflicts += 1
                future.set_exception(LockConflict(0, self.locks[lock.id]))
                continue
            self.log.append((lock.id, data))
            self.locks[lock.id] = len(self.log) - 1
            future.set_result(len(self.log) - 1)

    def of_key(self, key: int) -> list[bytes]:
        return [data for lock, data in self.log if lock == key and data != b"other"]


def test_a_conflict_is_sent_again_with_what_has_been_learnt() -> None:
    log = FakeLog()
    appender = KeyedAppender(log)
    appender.put(0, LockId("id", 1), b"first")
    appender.finish()
    log.other_writes(LockId("id", 1))
    log.other_writes(LockId("id", 2))
    appender.put(0, LockId("id", 1), b"second")
    appender.finish()
    assert log.conflicts == appender.lock_conflicts == 1
    assert log.of_key(1) == [b"first", b"second"]
    assert appender.appended == 2
    assert (appender.partitions[0].first_id, appender.partitions[0].last_id) == (0, 3)


@pytest.mark.parametrize("seed", range(20))
def test_every_row_once_and_in_order_per_key_with_another_writer(seed: int) -> None:
    choose = random.Random(seed)
    log = FakeLog()
    appender = KeyedAppender(log, limit=choose.choice([1, 5, 100]))
    sent: dict[int, list[bytes]] = {}
    log.batch = 1 if appender._limit < 5 else choose.choice([1, 2, 4])
    for number in range(300):
        key = choose.randrange(6)
        sent.setdefault(key, []).append(b"%d" % number)
        if len(log.waiting) >= 1 and choose.random() < 0.5:
            log.deliver()
        if choose.random() < 0.3:
            log.other_writes(LockId("id", choose.randrange(6)))
        if appender.open >= appender._limit:
            log.batch = 1  # what follows has its fate at once, or put() would wait for us
            log.deliver()
        appender.put(0, LockId("id", key), b"%d" % number)
    log.batch = 1
    log.deliver()
    appender.finish()
    assert {key: log.of_key(key) for key in sent} == sent
    assert appender.appended == 300
    assert appender.lock_conflicts == log.conflicts


def test_another_error_ends_the_load_and_says_how_far_it_came() -> None:
    log = FakeLog()
    log.batch = 100
    appender = KeyedAppender(log)
    for number in range(4):
        appender.put(0, LockId("id", number % 2), b"%d" % number)  # two lead, two wait
    log.waiting[1][0].set_exception(AppendFailed("no"))
    del log.waiting[1]
    log.deliver()
    with pytest.raises(AppendFailed, match="no"):
        appender.finish()
    log.deliver()
    appender.abandon(0.0)
    log.deliver()
    appender.abandon(1.0)
    assert appender.open == 0
    assert appender.appended == len(log.log)
    assert appender.appended in (1, 2)


def test_finish_with_a_time_limit_leaves_what_has_no_fate() -> None:
    log = FakeLog()
    log.batch = 100
    appender = KeyedAppender(log)
    appender.put(0, LockId("id", 1), b"x")
    appender.finish(timeout_s=0.01)
    assert appender.open == 1
    log.deliver()
    appender.finish()
    assert (appender.open, appender.appended) == (0, 1)
