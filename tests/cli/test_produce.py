"""``waltz produce``: what a record is, what is said of bad ones, and that the counts are those of the log."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.test_feed import transaction
from waltz_ray.cli import main
from waltz_ray.cli.feed import as_object
from waltz_ray.cli.load_progress import LoadProgress
from waltz_ray.cli.produce_records import CHUNK_BYTES, BadRecord, Record, from_jsonl, pieces
from waltz_ray.cli.produce_run import ProduceWork, Production
from waltz_ray.cli.produce_sender import Sender
from waltz_ray.client.keys import partition_for
from waltz_ray.errors import AppendFailed, InvalidInput, PartlyAppended
from waltz_ray.protocol.ids import LockId


class Log:
    """A client whose log is a list for each partition."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.most = most
        self.partitions: dict[int, list[tuple[bytes, int]]] = {}
        self.locks: list[LockId] = []
        self.calls = 0

    def append(
        self,
        partition_id: int,
        data: bytes,
        header: int = 0,
        *,
        append_locks: tuple[LockId, ...] = (),
        client_mark: int | None = None,
    ) -> Future[int]:
        self.locks += append_locks
        future: Future[int] = Future()
        future.set_result(self.append_many(partition_id, [data], [header]).result()[0])
        return future

    def append_many(self, partition_id: int, datas: Sequence[Any], headers: list[int]) -> Future[Any]:
        self.calls += 1
        log, future = self.partitions.setdefault(partition_id, []), Future[Any]()
        taken = list(zip(datas, headers, strict=True))[: self.most]
        self.most -= len(taken)
        ids = [*range(len(log), len(log) + len(taken))]
        log += taken
        if len(taken) == len(datas):
            future.set_result(ids)
        else:
            future.set_exception(PartlyAppended((*ids, *[-1] * (len(datas) - len(taken))), "the disks are full"))
        return future


def produced(
    log: Log, job: Production, text: bytes | io.BufferedIOBase, partitions: int = 4, most: int = 100
) -> ProduceWork:
    source: Any = io.BytesIO(text) if isinstance(text, bytes) else text
    work = ProduceWork(job, partitions, most, Sender(log, job.header), LoadProgress(quiet=True))
    work.run(source)
    return work


def reader(text: bytes, size: int) -> Callable[[int], bytes]:
    source = io.BytesIO(text)
    return lambda most: source.read(min(size, most))


@given(text=st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\0", b"\xff"])).map(b"".join), size=st.integers(1, 5))
def test_records_are_what_is_between_separators_however_it_comes(text: bytes, size: int) -> None:
    for separator in (b"\n", b"\0"):
        found = [piece for some in pieces(reader(text, size), separator, 3) for piece in some]
        expected = text.split(separator)
        if not expected[-1]:
            del expected[-1]
        assert found == [(n, data if len(data) <= 3 else None) for n, data in enumerate(expected, 1)]


@pytest.mark.parametrize("text", [b"", b"\n", b"a\nb\0\r\n"])
def test_raw_is_one_record(text: bytes) -> None:
    assert [*pieces(reader(text, CHUNK_BYTES), b"", 10)][-1] == [(1, text)]


def test_lines_go_byte_for_byte_into_one_partition_in_batches() -> None:
    log = Log()
    work = produced(log, Production(2, header=-5), b"a\r\n\n\xff\0 b\nlast")
    assert log.partitions == {2: [(b"a\r", -5), (b"", -5), (b"\xff\0 b", -5), (b"last", -5)]}
    assert (work.sender.appended, work.sender.open, log.calls) == (4, 0, 2)  # the line without an end comes last, alone


def test_the_key_before_a_separator_decides_the_partition_and_stays_in_the_record() -> None:
    log = Log()
    produced(log, Production(None, key_separator=b"\t"), b"ada\t1\nbob\t2\nada\t3\n")
    datas = {p: [data for data, _ in records] for p, records in log.partitions.items()}
    expected: dict[int, list[bytes]] = {}
    for line in (b"ada\t1", b"bob\t2", b"ada\t3"):
        expected.setdefault(partition_for(line[:3], 4), []).append(line)
    assert datas == expected


def test_jsonl_has_key_header_and_lock_and_keeps_the_order() -> None:
    log = Log()
    rows = [{"data": "a", "key": 7}, {"data_base64": "/w==", "key": 7, "header": 3, "lock": ["acct", 9]}]
    rows.append({"data": "b", "key": 7})
    produced(log, Production(None, jsonl=True), b"\n".join(json.dumps(row).encode() for row in rows))
    assert log.partitions == {partition_for(7, 4): [(b"a", 0), (b"\xff", 3), (b"b", 0)]}
    assert log.locks == [LockId("acct", 9)]


@pytest.mark.parametrize("data", [b"text", b"\xff\0", b""])
def test_what_feed_prints_as_json_is_taken(data: bytes) -> None:
    line = json.dumps(as_object(transaction(data), times=True)).encode()
    assert from_jsonl(line) == Record(data, None, -2)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "no JSON"),
        (b"[1]", "no JSON object"),
        (b"{}", "one of data and data_base64"),
        (b'{"data": "a", "data_base64": ""}', "one of data"),
        (b'{"data": 1}', "no text"),
        (b'{"data": "\\ud800"}', "no bytes"),
        (b'{"data_base64": "a"}', "no bytes"),
        (b'{"data": "", "header": 2147483648}', "32-bit"),
        (b'{"data": "", "header": true}', "32-bit"),
        (b'{"data": "", "key": true}', "key is no"),
        (b'{"data": "", "lock": "x"}', "lock is not"),
        (b'{"data": "", "lock": ["x", null]}', "no key"),
        (b'{"data": "", "lock": ["\\ud800", 1]}', "lock has no name"),
        (b'{"data": "", "dat": ""}', "it has 'dat'"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_record_says_why(line: bytes, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        from_jsonl(line)


def test_a_bad_record_is_named_before_anything_is_appended() -> None:
    log = Log()
    with pytest.raises(InvalidInput, match=r"^record 2: it is no JSON: .*; nothing was appended$"):
        produced(log, Production(0, jsonl=True), b'{"data": "a"}\nx\n{"data": "b"}\n')
    with pytest.raises(InvalidInput, match=r"^record 1 is longer than 100 bytes; nothing was appended$"):
        produced(log, Production(0), b"x" * 101)
    with pytest.raises(InvalidInput, match=r"^record 1 has no key; give it one, or a partition: -p 0; nothing was"):
        produced(log, Production(None), b"a\n")
    assert log.partitions == {}


def test_bad_records_are_left_out_by_name_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    work = produced(log, Production(0, skip_bad=True), b"a\n" + b"x" * 101 + b"\nb\n")
    assert log.partitions == {0: [(b"a", 0), (b"b", 0)]}
    assert (work.skipped, work.sender.appended) == (1, 2)
    assert capsys.readouterr().err == "waltz: record 2 is longer than 100 bytes; it is left out\n"


def test_what_comes_is_appended_where_nobody_reads_of_the_bad_ones_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as nobody:
        monkeypatch.setattr("sys.stderr", nobody)
        work = produced(log, Production(0, skip_bad=True), b"a\n" + b"x" * 101 + b"\nb\n")
    assert (work.skipped, [data for data, _ in log.partitions[0]]) == (1, [b"a", b"b"])


def test_an_error_says_how_many_are_in_the_log() -> None:
    log = Log(most=3)
    with pytest.raises(AppendFailed, match=r"the disks are full; 3 records are in the log$"):
        produced(log, Production(0), b"1\n2\n3\n4\n5\n")
    assert len(log.partitions[0]) == 3


def test_stdin_that_finds_no_room_is_not_taken_for_output(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    with Path("/dev/full").open("w+b") as full:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **options: full)
        with pytest.raises(AppendFailed, match=r"no room for it \(No space left.* nothing was appended; 0 records are"):
            produced(log, Production(0), bytes((16 << 20) + 1))
    assert log.partitions == {}


class Terminal(io.BytesIO):
    """Gives two lines, then somebody presses Ctrl-C, or ends the process."""

    given = False

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self._number = number

    def read1(self, size: int | None = -1) -> bytes:
        if not self.given:
            self.given = True
            return b"one\ntwo\n"
        os.kill(os.getpid(), self._number)
        raise AssertionError("the signal was not seen")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_ends_it_is_told_how_many_are_in_the_log(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    def die(number: int, frame: object) -> None:
        raise AssertionError("this ends the process, whatever is on its way")

    before = signal.signal(number, die)
    try:
        with pytest.raises(KeyboardInterrupt):
            produced(Log(), Production(0, skip_bad=True), Terminal(number))
        assert signal.getsignal(number) is die
    finally:
        signal.signal(number, before)
    assert capsys.readouterr().err == "waltz: interrupted: 2 records are in the log\n"


def test_the_summary_is_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    work = produced(Log(), Production(1, as_json=True), base64.b64encode(b"x") + b"\ny\n")
    work.summary()
    found = json.loads(capsys.readouterr().out)
    assert found.pop("seconds") >= 0
    spans = {"1": {"records": 2, "first_id": 0, "last_id": 1}}
    assert found == {"records": 2, "skipped": 0, "partitions": spans}


@pytest.mark.parametrize("given", [["--raw", "--null"], ["--jsonl", "--key-separator", ":"]])
def test_options_that_contradict_each_other(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["produce", *given])
    assert leaving.value.code == 1
    assert capsys.readouterr().err.startswith("waltz: --")


def test_a_separator_may_be_a_byte_that_is_no_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Production] = []
    monkeypatch.setattr("waltz_ray.cli.produce_run.run_production", lambda job, *where: jobs.append(job))
    with pytest.raises(SystemExit):
        main(["produce", "--key-separator", os.fsdecode(b"\xff")])
    assert [job.key_separator for job in jobs] == [b"\xff"]
