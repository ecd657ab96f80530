"""The logs of actors: one event, one line, whatever is in it; read from files that grow, are cut, and are renamed."""

from __future__ import annotations

import ast
import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import waltz_ray
from waltz_ray.actors.actor_log import begin_log, read_logs
from waltz_ray.errors import InvalidInput
from waltz_ray.runtime.log_lines import EventFormatter, LogEvent, parsed_line

FORMATTER = EventFormatter("shop", "replica/0")


def line(text: str, at_ms: int = 1_700_000_000_123, actor: str = "replica/0") -> str:
    record = logging.LogRecord("waltz_ray.x", logging.WARNING, __file__, 1, text, (), None)
    record.created = at_ms / 1000
    return EventFormatter("shop", actor).format(record)


@given(st.text(), st.integers(0, 4_000_000_000_000))
def test_what_is_written_is_read(text: str, at_ms: int) -> None:
    written = line(text.replace("%", ""), at_ms)
    assert "\n" not in written
    assert "\r" not in written
    expected = LogEvent(at_ms, "shop", "replica/0", "WARNING", "waltz_ray.x", text.replace("%", ""))
    assert parsed_line(written + "\n") == expected


def test_a_traceback_is_in_the_line_of_its_event() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "partition %d: lost", (7,), None)
        record.exc_info = (ValueError, error, error.__traceback__)
    written = FORMATTER.format(record)
    assert "\n" not in written
    event = parsed_line(written)
    assert event is not None
    assert (event.partition, event.severity) == (7, logging.ERROR)
    assert event.text.splitlines()[0] == "partition 7: lost"
    assert event.text.endswith("ValueError: two\nlines")


@pytest.mark.parametrize(
    "text",
    [
        *("", ":actor_name:StorageReplica", "INFO:x:partition 1", "2026-13-40T11:00:00.123Z INFO shop replica/0 x: y"),
        *("2026-11-24T11:00:00Z INFO shop replica/0 x: y", "x 2026-11-24T11:00:00.123Z INFO shop replica/0 x: y"),
    ],
)
def test_what_others_write_is_no_event(text: str) -> None:
    assert parsed_line(text) is None


@given(st.text())
def test_any_text_is_an_event_or_none(text: str) -> None:
    assert parsed_line(text) is None or isinstance(parsed_line(text), LogEvent)


def test_a_partition_is_the_first_that_is_named() -> None:
    assert parsed_line(line("replica 2: partition 13: x, partition 1")).partition == 13  # type: ignore[union-attr]
    assert parsed_line(line("the partitions 3, repartition 4")).partition is None  # type: ignore[union-attr]


def texts(events: list[LogEvent]) -> list[str]:
    return [event.text for event in events]


def test_files_are_merged_by_time_and_read_on(tmp_path: Path) -> None:
    one, two = tmp_path / "worker-aa-ffffffff-1.err", tmp_path / "worker-bb-ffffffff-2.err"
    (tmp_path / "raylet.err").write_text(line("not of an actor") + "\n")
    one.write_text(f"{line('a', 1000)}\n:job_id:1\n{line('c', 3000)}\n")
    two.write_text(f"{line('b', 2000)}\n{line('d', 4000)}")  # whose last line is being written
    events, read = read_logs(str(tmp_path), {})
    assert texts(events) == ["a", "b", "c"]
    assert read_logs(str(tmp_path), read) == ([], read)
    with two.open("a") as file:
        file.write("\n" + line("e", 5000) + "\n")
    one.rename(tmp_path / "worker-aa-ffffffff-1.err.1")  # as Ray does with one that has grown too long
    one.write_text(line("f", 6000) + "\n")
    events, read = read_logs(str(tmp_path), read)
    assert texts(events) == ["d", "e", "f"]
    assert read_logs(str(tmp_path), read)[0] == []


def test_a_log_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "worker-aa-ffffffff-1.err").write_text(line("a") + "\n")
    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(InvalidInput, match=r"worker-aa-ffffffff-1.err cannot be read: Permission denied"):
        read_logs(str(tmp_path), {})


def test_of_a_large_file_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line(f"number {number}", number) for number in range(100)]
    (tmp_path / "worker-aa-ffffffff-1.err").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr("waltz_ray.actors.actor_log._FIRST_READ_BYTES", 3 * len(lines[-1]) - 5)
    events, read = read_logs(str(tmp_path), {})
    assert texts(events) == ["number 98", "number 99"]
    assert list(read.values()) == [(tmp_path / "worker-aa-ffffffff-1.err").stat().st_size]


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    log = logging.getLogger()
    handlers, level = log.handlers[:], log.level
    log.handlers = []
    yield log
    log.handlers = handlers
    log.setLevel(level)


def test_a_process_logs_as_its_actor_and_once(root: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    root.addHandler(logging.StreamHandler(io.StringIO()))
    monkeypatch.setattr("sys.stderr", out := io.StringIO())
    begin_log("shop", "kv/1")
    logging.getLogger("waltz_ray.kv").info("kv/%d: %s", 1, "x")
    logging.getLogger("waltz_ray.kv").debug("not this")
    (event,) = [parsed_line(each) for each in out.getvalue().splitlines()]
    assert event is not None
    assert (event.cluster, event.actor, event.level, event.text) == ("shop", "kv/1", "INFO", "kv/1: x")


def test_every_actor_logs_like_this() -> None:
    """Nobody sets up logging by himself: there would be a second format again."""
    package = Path(waltz_ray.__file__).parent

    def calls(name: str) -> Callable[[Path], bool]:
        def has(path: Path) -> bool:
            found = (each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.Call))
            return any(ast.unparse(each.func).endswith(name) for each in found)

        return has

    modules = sorted(package.rglob("*.py"))
    assert [path.name for path in filter(calls("basicConfig"), modules)] == ["actor_log.py"]
    begun = {str(path.relative_to(package)) for path in filter(calls("begin_log"), modules)}
    assert begun == {
        *("actors/cluster_manager.py", "actors/partition_server.py", "actors/storage_replica.py"),
        *("actors/zookeeper_host.py", "kv/serving/actor.py", "topics/serving/actor.py"),
    }
