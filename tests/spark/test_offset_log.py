"""The checkpoint of a stream and its loop, without Spark: a run may die at any change of the disk or in its sink."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from waltz_spark.offset_log import KEPT, OffsetFiles, OffsetLog, StreamBatch, StreamOf, position_of
from waltz_spark.parquet_sink import ParquetSink
from waltz_spark.progress import BatchProgress
from waltz_spark.rate_limits import Limits
from waltz_spark.stream_runner import FeedStream, RunBatch, RunSettings

from tests.spark.crashing import CrashingFiles, Killed
from waltz_ray.client.readers.ranges import Range
from waltz_ray.errors import ClientAhead, Corruption, ForeignStorage, InvalidInput, StorageLocked, Trimmed

OF = StreamOf("bank", "a-key", 3, (0, 2))
MARKS = {0: 24, 2: 9}
ROOT = Path(__file__).resolve().parent.parent.parent


class FakeLog:
    """What ``Marks`` is to the loop."""

    def __init__(self, marks: dict[int, int], trim_marks: dict[int, int] | None = None) -> None:
        self.marks = marks
        self.trim_marks = trim_marks or {}
        self.trimmed_next: list[dict[int, int]] = []  # marks that rise just before something is held
        self.holds: dict[str, dict[int, int]] = {}

    def beginnings(self, partitions: Iterable[int]) -> dict[int, int]:
        return {p: self.trim_marks.get(p, 0) for p in partitions}

    def hold(self, name: str, positions: Mapping[int, int], why: str) -> None:
        if self.trimmed_next:
            self.trim_marks = self.trimmed_next.pop()
        for p, first_id in positions.items():
            if first_id < self.trim_marks.get(p, 0):
                raise Trimmed(p, first_id, self.trim_marks[p])
        self.holds[name] = dict(positions)

    def high_water_mark(self, partition_id: int) -> int:
        return self.marks[partition_id]

    def first_id_at(self, partition_id: int, time_ms: int) -> int:
        return time_ms // 1000  # one a second since 1970

    def record_bytes(self, ranges: Sequence[Range]) -> dict[int, float]:
        return {each.partition_id: 100.0 for each in ranges}

    def close(self) -> None:
        pass


class Sink:
    """Remembers every call; a batch that comes again must be the same."""

    def __init__(self) -> None:
        self.batches: dict[int, tuple[Range, ...]] = {}
        self.calls: list[int] = []
        self.fail_at = -1

    def __call__(self, ranges: Sequence[Range], batch_id: int) -> None:
        assert self.batches.setdefault(batch_id, tuple(ranges)) == tuple(ranges), "another batch under the same number"
        self.calls.append(batch_id)
        if len(self.calls) - 1 == self.fail_at:
            raise Killed

    def transactions(self) -> list[tuple[int, int]]:
        assert sorted(self.batches) == list(range(len(self.batches)))
        return sorted((r.partition_id, i) for batch in self.batches.values() for r in batch for i in range(*r[1:]))


def settings(directory: Path, **other: Any) -> RunSettings:
    values: dict[str, Any] = {
        "trigger": "available_now",
        "limits": Limits(max_records=8),
        "bytes_per_task": 300,
    } | other
    return RunSettings(directory, values.pop("of", OF), **values)


def stream(directory: Path, sink: RunBatch, files: OffsetFiles | None = None, **other: Any) -> FeedStream:
    log = other.pop("log", FakeLog(MARKS))
    progress = other.pop("on_progress", None)
    return FeedStream(settings(directory, **other), lambda: log, lambda stream_id: sink, progress, files)


EVERYTHING = [(p, i) for p, mark in MARKS.items() for i in range(mark + 1)]


def test_a_stream_holds_what_it_has_not_committed(tmp_path: Path) -> None:
    """Before its first batch, after each one; a batch whose sink did not return keeps its transactions."""
    log, sink = FakeLog(MARKS, {0: 4}), Sink()
    held: list[dict[int, int]] = []

    def spy(ranges: Sequence[Range], batch_id: int) -> None:
        held.extend(log.holds.values())
        sink(ranges, batch_id)

    sink.fail_at = 1
    with pytest.raises(Killed):
        stream(tmp_path, spy, log=log).run()
    assert held == [{0: 4, 2: 0}, {0: 8, 2: 4}]
    log.holds.clear()  # as if its process had died before it was written
    stream(tmp_path, spy, log=log).run()
    assert held[2] == held[1], "the second batch again"
    [(name, last)] = log.holds.items()
    assert name == f"spark.log.{json.loads((tmp_path / 'metadata').read_text())['stream_id']}"
    assert last == {0: 25, 2: 10}
    assert sink.transactions() == [(p, i) for p, i in EVERYTHING if p or i >= 4]


def test_a_stream_whose_transactions_are_gone_ends_with_trimmed(tmp_path: Path) -> None:
    log, sink = FakeLog({0: 7, 2: 1}), Sink()
    stream(tmp_path / "old", sink, log=log).run()
    log.marks, log.trim_marks = MARKS, {0: 9}
    with pytest.raises(Trimmed, match="partition 0: transaction 8 was trimmed away; the first that can be read is 9"):
        stream(tmp_path / "old", sink, log=log).run()
    with pytest.raises(Trimmed):
        stream(tmp_path / "new", sink, log=log, start=8).run()
    log.trimmed_next = [{0: 12}, {0: 11}]  # each time that it is about to hold what it found
    stream(tmp_path / "late", again := Sink(), log=log).run()
    assert again.transactions() == [(p, i) for p, i in EVERYTHING if p or i >= 12]


def test_everything_once_in_limited_batches(tmp_path: Path) -> None:
    sink, seen = Sink(), list[BatchProgress]()
    running = stream(tmp_path / "a" / "b", sink, on_progress=seen.append)
    running.run()
    assert sink.transactions() == EVERYTHING
    assert sink.calls == list(range(len(sink.calls)))
    assert [each.batch_id for each in seen] == sink.calls
    assert [each.records for each in seen] == [8, 8, 8, 8, 3]
    assert seen[0].lag == {0: 21, 2: 6}
    assert seen[-1].lag == {0: 0, 2: 0}
    assert seen[-1].bytes == 300
    assert running.last_progress == seen[-1]
    assert json.loads(json.dumps(seen[0].as_json()))["lag"] == {"0": 21, "2": 6}
    labels = {"cluster": "bank", "checkpoint": str(tmp_path / "a" / "b")}
    assert REGISTRY.get_sample_value("waltz_spark_stream_records_total", labels) == 35
    assert REGISTRY.get_sample_value("waltz_spark_stream_lag", labels | {"partition": "2"}) == 0
    running.run()
    assert len(sink.calls) == 5, "nothing new, no batch"


def steps_of(run: Callable[[Path, OffsetFiles], None], directory: Path) -> list[str]:
    files = CrashingFiles()
    run(directory, files)
    return files.steps


@pytest.mark.parametrize("after", [False, True])
def test_a_power_failure_at_any_change_loses_and_doubles_nothing(tmp_path: Path, after: bool) -> None:
    steps = steps_of(lambda directory, files: stream(directory, Sink(), files).run(), tmp_path / "whole")
    assert {"write metadata.tmp", "rename 0", "sync offsets", "sync commits"} <= set(steps)
    for at in range(len(steps)):
        directory, sink, log = tmp_path / f"at-{at}", Sink(), FakeLog(MARKS)
        with pytest.raises(Killed):
            stream(directory, sink, CrashingFiles(at, after), log=log).run()
        before = list(sink.calls)
        stream(directory, sink, log=log).run()
        assert len(log.holds) == 1, f"{steps[at]}: a hold is left that nobody moves"
        assert sink.transactions() == EVERYTHING, steps[at]
        assert len(sink.calls) <= len(sink.batches) + 1, "more than the last batch came again"
        assert sink.calls[: len(before)] == before


@pytest.mark.parametrize("at", range(5))
def test_a_sink_that_dies_gets_the_same_batch_again(tmp_path: Path, at: int) -> None:
    sink, seen = Sink(), list[BatchProgress]()
    sink.fail_at = at
    with pytest.raises(Killed):
        stream(tmp_path / "checkpoint", sink).run()
    # More has been committed since, and the limits are others: the batch that was planned stays what it was.
    grown = FakeLog({0: 40, 2: 9})
    stream(tmp_path / "checkpoint", sink, log=grown, limits=Limits(), on_progress=seen.append).run()
    assert sink.calls == [*range(at + 1), at, at + 1]
    assert [each.replayed for each in seen] == [True, False]
    assert sink.transactions() == sorted([*EVERYTHING, *((0, i) for i in range(25, 41))])


class Forgetful(OffsetLog):
    """Breaks the rule: writes a batch down when it has run, not before."""

    def plan(self, ranges: tuple[Range, ...]) -> StreamBatch:
        files, self._files = self._files, _Nothing()
        try:
            return super().plan(ranges)
        finally:
            self._files = files

    def commit(self, **facts: Any) -> None:
        if self.pending is not None:
            batch, self.pending = self.pending, None
            super().plan(batch.ranges)
        super().commit(**facts)


class _Nothing(OffsetFiles):
    def write_whole(self, path: Path, data: bytes) -> None:
        pass


def test_the_tests_notice_a_batch_that_was_not_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltz_spark.stream_runner.OffsetLog", Forgetful)
    with pytest.raises(AssertionError, match="another batch under the same number"):
        test_a_sink_that_dies_gets_the_same_batch_again(tmp_path, 2)


class NoDirectorySync(CrashingFiles):
    def write_whole(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + ".tmp")
        self.write(temporary, data)
        self.rename(temporary, path)


def test_where_a_stream_is_can_be_seen_while_it_runs(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(ForeignStorage, match="is not the checkpoint of a stream"):
        position_of(checkpoint)
    log = OffsetLog(checkpoint, OF, lambda stream_id: {0: 3, 2: 0})
    assert position_of(checkpoint) == (OF.cluster, OF.cluster_key, {0: 3, 2: 0})
    log.plan((Range(0, 3, 7),))
    assert position_of(checkpoint).ends == {0: 3, 2: 0}, "it is not committed"
    log.commit()
    assert position_of(checkpoint).ends == {0: 7, 2: 0}
    log.close()
    (checkpoint / "metadata").write_text("{}")
    with pytest.raises(Corruption, match="checksum"):
        position_of(checkpoint)


def test_the_tests_notice_a_name_that_was_not_synced(tmp_path: Path) -> None:
    """A batch runs, its name in the log is lost, and it comes again as another one."""
    sink, files = Sink(), NoDirectorySync()
    OffsetLog(tmp_path / "checkpoint", OF, lambda stream_id: {0: 0, 2: 0}).close()

    def lose(ranges: Sequence[Range], batch_id: int) -> None:
        sink(ranges, batch_id)
        files.die()

    with pytest.raises(Killed):
        stream(tmp_path / "checkpoint", lose, files).run()
    with pytest.raises(AssertionError, match="another batch"):
        stream(tmp_path / "checkpoint", sink, limits=Limits(max_records=3)).run()


def test_a_batch_whose_name_a_killed_run_has_not_synced_is_the_same_after_a_loss_of_power(tmp_path: Path) -> None:
    checkpoint, sink = tmp_path / "checkpoint", Sink()

    class KilledBeforeSync(OffsetFiles):
        def sync_directory(self, path: Path) -> None:
            if path.name == "offsets" and os.listdir(path):
                raise Killed
            super().sync_directory(path)

    with pytest.raises(Killed):
        stream(checkpoint, sink, KilledBeforeSync()).run()
    files = CrashingFiles()
    files.left_unsynced(checkpoint / "offsets" / "0")

    def lose(ranges: Sequence[Range], batch_id: int) -> None:
        sink(ranges, batch_id)
        files.die()

    with pytest.raises(Killed):
        stream(checkpoint, lose, files).run()
    stream(checkpoint, sink, limits=Limits(max_records=3)).run()


CHILD = """
import json, os, signal, sys
from pathlib import Path
from tests.spark.test_offset_log import stream
from waltz_spark.offset_log import OffsetFiles

class Deadly(OffsetFiles):
    left = int(sys.argv[2])
    def sync_directory(self, path):
        super().sync_directory(path)
        Deadly.left -= 1
        if Deadly.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

def sink(ranges, batch_id):
    OffsetFiles().write_whole(Path(sys.argv[1], f"batch-{batch_id}"), json.dumps(ranges).encode())

stream(Path(sys.argv[1], "checkpoint"), sink, Deadly()).run()
"""


def test_sigkill(tmp_path: Path) -> None:
    """Real processes, each killed a few steps further on, until one ends by itself."""
    codes: list[int] = []
    before: dict[str, bytes] = {}
    while not codes or codes[-1] != 0:
        assert len(codes) < 9
        steps = str(6 if len(codes) < 3 else 0)
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(tmp_path), steps], cwd=ROOT, env={**os.environ}, timeout=60, check=False
        )
        codes.append(done.returncode)
        found = {path.name: path.read_bytes() for path in tmp_path.glob("batch-*")}
        assert {name: found[name] for name in before} == before, "a replayed batch differs"
        before = found
    assert codes == [-signal.SIGKILL] * 3 + [0]
    batches = [Range(*each) for name in sorted(before) for each in json.loads(before[name])]
    assert sorted((r.partition_id, i) for r in batches for i in range(*r[1:])) == EVERYTHING


def test_the_last_hundred_entries_are_kept(tmp_path: Path) -> None:
    sink = Sink()
    log = FakeLog({0: 149, 2: -1})
    stream(tmp_path, sink, log=log, limits=Limits(max_records=1)).run()
    for name in ("offsets", "commits"):
        assert sorted(map(int, os.listdir(tmp_path / name))) == list(range(150 - KEPT, 150))
    log.marks[2] = 0
    stream(tmp_path, sink, log=log).run()
    assert len(sink.transactions()) == 151
    assert sorted(map(int, os.listdir(tmp_path / "offsets"))) == list(range(151 - KEPT, 151))


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    sink = Sink()
    stream(tmp_path / "c", sink).run()
    for other, text in (
        (OF._replace(cluster="shop"), "whose cluster is bank, not shop"),
        (OF._replace(cluster_key="b-key"), "whose cluster_key is a-key, not b-key"),
        (OF._replace(partitions_of_cluster=4), "whose partitions_of_cluster is 3, not 4"),
        (OF._replace(partitions=(0,)), r"whose partitions is \(0, 2\), not \(0,\)"),
    ):
        with pytest.raises(ForeignStorage, match=text):
            stream(tmp_path / "c", sink, of=other).run()
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "notes.txt").write_text("mine")
    with pytest.raises(ForeignStorage, match=r"holds 'notes.txt' and is no checkpoint"):
        stream(tmp_path / "d", sink).run()
    (tmp_path / "c" / "offsets" / "readme").write_text("")
    with pytest.raises(ForeignStorage, match="holds 'readme'"):
        stream(tmp_path / "c", sink).run()
    with pytest.raises(InvalidInput, match="is no directory"):
        stream(tmp_path / "d" / "notes.txt", sink).run()


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("offsets/4", None, "it is missing, but its batch was committed"),
        ("commits/4", "", "it is no JSON"),
        ("offsets/4", "{}", "its checksum is wrong"),
        ("metadata", '{"version": 1}', "its checksum is wrong"),
        ("metadata", None, "it is missing; start with a new checkpoint"),
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, name: str, content: str | None, text: str) -> None:
    stream(tmp_path, Sink()).run()
    path = tmp_path / name
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(Corruption, match=text):
        stream(tmp_path, Sink()).run()


def test_a_flipped_digit_is_noticed(tmp_path: Path) -> None:
    stream(tmp_path, Sink()).run()
    path = tmp_path / "offsets" / "4"
    path.write_text(path.read_text().replace("25", "24"))
    with pytest.raises(Corruption, match="checksum"):
        stream(tmp_path, Sink()).run()


def test_one_runner_at_a_time(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(ranges: Sequence[Range], batch_id: int) -> None:
        entered.set()
        assert leave.wait(20)

    first = stream(tmp_path, slow).start()
    assert entered.wait(20)
    with pytest.raises(StorageLocked, match="another runner has the checkpoint"):
        stream(tmp_path, Sink()).run()
    with pytest.raises(InvalidInput, match="running already"):
        first.run()
    with pytest.raises(InvalidInput, match="running already"):
        first.start()
    assert first.await_termination(0.01) is False
    assert first.is_active
    leave.set()
    assert first.await_termination(20) is True
    assert not first.is_active


def test_an_interval_goes_on_until_it_is_stopped(tmp_path: Path) -> None:
    log, sink = FakeLog({0: 2, 2: -1}), Sink()
    batches = threading.Semaphore(0)

    def counted(ranges: Sequence[Range], batch_id: int) -> None:
        sink(ranges, batch_id)
        batches.release()

    running = stream(tmp_path, counted, log=log, trigger=0.01).start()
    for mark in (5, 7):
        assert batches.acquire(timeout=20)
        log.marks[0] = mark
    assert batches.acquire(timeout=20)
    running.stop()
    assert running.await_termination(20) is True
    assert sink.transactions() == [(0, i) for i in range(8)]
    assert len(sink.calls) == 3, "a trigger with nothing new makes no batch"


def test_times_that_no_thread_can_wait(tmp_path: Path) -> None:
    running = stream(tmp_path, Sink()).start()
    assert running.await_termination(float("inf")) is True
    for wrong in (float("nan"), -1.0):
        with pytest.raises(InvalidInput, match="timeout_s must be a number of seconds, at least 0"):
            running.await_termination(wrong)
    log, came = FakeLog({0: 2, 2: -1}), threading.Event()
    seldom = stream(tmp_path / "seldom", lambda ranges, batch_id: came.set(), log=log, trigger=1e12).start()
    assert came.wait(20)
    assert seldom.await_termination(0.1) is False, "it waits for the next batch"
    seldom.stop()
    assert seldom.await_termination(20) is True


def test_a_stop_that_comes_late_does_not_keep_the_next_run_from_reading(tmp_path: Path) -> None:
    log, sink = FakeLog({0: 2, 2: -1}), Sink()
    of = stream(tmp_path, sink, log=log)
    of.run()
    of.stop()  # as in a finally
    log.marks[0] = 4
    of.run()
    assert sink.transactions() == [(0, i) for i in range(5)]


def test_a_stream_that_was_started_runs(tmp_path: Path) -> None:
    """At once: who looks before its thread has come to work would take it for one that has ended."""
    sink = Sink()
    of = stream(tmp_path, sink, log=FakeLog({0: 2, 2: -1}))
    with mock.patch.object(threading.Thread, "start"):  # it has not come to work yet
        of.start()
    assert of.is_active
    with pytest.raises(InvalidInput, match="running already"):
        of.run()
    of._run_in_thread()
    assert not of.is_active
    assert sink.transactions() == [(0, i) for i in range(3)]


def test_errors_are_raised_not_swallowed(tmp_path: Path) -> None:
    def broken(ranges: Sequence[Range], batch_id: int) -> None:
        raise KeyError("of the sink")

    running = stream(tmp_path, broken).start()
    with pytest.raises(KeyError, match="of the sink"):
        running.await_termination(20)
    with pytest.raises(KeyError, match="of the sink"):
        running.run()
    with pytest.raises(InvalidInput, match="start"):
        stream(tmp_path, broken).await_termination(1)
    with pytest.raises(ZeroDivisionError):
        stream(tmp_path, Sink(), on_progress=lambda progress: 1 / 0).run()


def test_where_a_stream_begins(tmp_path: Path) -> None:
    for name, start, expected in (
        ("latest", "latest", []),
        ("id", 23, [(0, 23), (0, 24)]),
        ("ids", {0: 24, 2: 8}, [(0, 24), (2, 8), (2, 9)]),
        ("later", 1000, []),
        ("time", datetime(1970, 1, 1, 0, 0, 23, tzinfo=timezone.utc), [(0, 23), (0, 24)]),
    ):
        sink = Sink()
        stream(tmp_path / name, sink, start=start).run()
        assert sink.transactions() == expected
    sink = Sink()
    stream(tmp_path / "latest", sink, start="earliest", log=FakeLog({0: 25, 2: 9})).run()
    assert sink.transactions() == [(0, 25)], "an old checkpoint goes on where it was"


def test_a_log_that_has_become_shorter_is_another_one(tmp_path: Path) -> None:
    stream(tmp_path, Sink()).run()
    with pytest.raises(ClientAhead, match="has read partition 0 up to 24, but its log ends with 3"):
        stream(tmp_path, Sink(), log=FakeLog({0: 3, 2: 9})).run()
    stream(tmp_path, Sink(), log=FakeLog({0: 3, 2: 9}), mark_is_final=False).run()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"trigger": "once"}, "trigger must be 'available_now' or seconds"),
        ({"trigger": -1}, "trigger must be"),
        ({"trigger": float("nan")}, "trigger must be"),
        ({"start": "newest"}, "start must be"),
        ({"start": {0: 1}}, "start names no transaction ID for partition 2"),
        ({"bytes_per_task": 0}, "bytes_per_task"),
    ],
)
def test_bad_settings(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        settings(tmp_path, **options)


def test_bad_limits() -> None:
    for bad in (0, -1, 1.5, True):
        with pytest.raises(InvalidInput, match="max_records_per_trigger"):
            Limits(max_records=bad)  # type: ignore[arg-type]


@given(
    st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 50), st.integers(1, 200)), min_size=1),
    st.none() | st.integers(1, 300),
    st.none() | st.integers(1, 30_000),
    st.floats(1.0, 400.0),
)
def test_limits(
    backlog: dict[int, tuple[int, int]], max_records: int | None, max_bytes: int | None, size: float
) -> None:
    ranges = [Range(p, first, first + count) for p, (first, count) in backlog.items()]
    taken = Limits(max_records, max_bytes).of(ranges, dict.fromkeys(backlog, size))
    whole = {each.partition_id: each for each in ranges}
    records = sum(each.end_id - each.first_id for each in taken)
    assert taken, "there must be progress"
    for each in taken:
        assert whole[each.partition_id].first_id == each.first_id < each.end_id <= whole[each.partition_id].end_id
    if max_records is not None:
        assert records <= max_records
    if max_bytes is not None:
        assert records * size <= max_bytes + 1e-6 or records == 1
    if max_records is None and max_bytes is None:
        assert taken == ranges


def test_a_limit_is_shared_equally() -> None:
    ranges = [Range(0, 0, 1000), Range(1, 0, 1000), Range(2, 0, 10)]
    taken = Limits(max_records=110).of(ranges, {})
    assert taken == [Range(0, 0, 50), Range(1, 0, 50), Range(2, 0, 10)]


class FakeFrame:
    """A DataFrame as far as ParquetSink uses it."""

    def __init__(self, content: str) -> None:
        self.content = content

    @property
    def write(self) -> FakeFrame:
        return self

    def mode(self, name: str) -> FakeFrame:
        assert name == "overwrite"
        return self

    def parquet(self, uri: str) -> None:
        path = Path(uri.removeprefix("file://"))
        path.mkdir(exist_ok=True)
        (path / "part-0").write_text(self.content)


def write_batches(path: Path, files: OffsetFiles, batches: Sequence[tuple[int, str]]) -> None:
    sink = ParquetSink(path, "me", files)
    for batch_id, content in batches:
        sink(FakeFrame(content), batch_id)  # type: ignore[arg-type]


@pytest.mark.parametrize("after", [False, True])
def test_the_path_sink_shows_whole_batches_only(tmp_path: Path, after: bool) -> None:
    batches = [(0, "a"), (1, "b"), (1, "b")]
    steps = steps_of(lambda path, files: write_batches(path, files, batches), tmp_path / "whole")
    assert steps.count("rename batch=1") == 2
    for at in range(len(steps)):
        path = tmp_path / f"at-{at}"
        with pytest.raises(Killed):
            write_batches(path, CrashingFiles(at, after), batches)
        shown = {each.name: (each / "part-0").read_text() for each in path.glob("batch=*")}
        assert shown.items() <= {"batch=0": "a", "batch=1": "b"}.items()
        write_batches(path, OffsetFiles(), batches[1:] if (path / "batch=1").exists() else batches)
        assert sorted(os.listdir(path)) == ["_waltz_stream", "batch=0", "batch=1"]


def test_a_checkpoint_that_is_older_than_the_batches_does_not_write_them_twice(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write_batches(path, OffsetFiles(), [(8, "a"), (9, "b"), (10, "c")])
    with pytest.raises(
        ForeignStorage, match="has batches up to 10, and the checkpoint goes on with batch 9: it is older"
    ):
        write_batches(path, OffsetFiles(), [(9, "b and c")])
    assert {each.name: (each / "part-0").read_text() for each in path.glob("batch=*")} == {
        "batch=8": "a",
        "batch=9": "b",
        "batch=10": "c",
    }
    write_batches(path, OffsetFiles(), [(10, "c"), (11, "d")])


def test_a_new_directory_of_batches_is_durable_before_any_of_them(tmp_path: Path) -> None:
    """Else a loss of power takes it away, with batches whose commits are in the checkpoint."""
    files = CrashingFiles()
    ParquetSink(tmp_path / "years" / "out", "me", files)
    assert files.steps[: files.steps.index("write _waltz_stream.tmp")].count(f"sync {tmp_path.name}") == 1
    assert "sync years" in files.steps


def test_the_path_of_another_stream_is_refused(tmp_path: Path) -> None:
    ParquetSink(tmp_path / "out", "me")
    ParquetSink(tmp_path / "out", "me")
    with pytest.raises(ForeignStorage, match="another checkpoint"):
        ParquetSink(tmp_path / "out", "you")
    (tmp_path / "old" / "batch=0").mkdir(parents=True)
    with pytest.raises(ForeignStorage, match="of nobody knows whom"):
        ParquetSink(tmp_path / "old", "me")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="is no directory"):
        ParquetSink(tmp_path / "file", "me")
