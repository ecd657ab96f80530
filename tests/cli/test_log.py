"""``waltz log``: which events are shown, and how; the logs themselves are tests/actors/test_actor_log.py."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from tests.cli.test_commands import run
from waltz_ray.actors import actor_log
from waltz_ray.runtime.log_lines import LogEvent

NOW_MS = int(datetime.now(timezone.utc).timestamp() * 1000)
EVENTS = [
    LogEvent(NOW_MS - 9_000_000, "c", "replica/0", "INFO", "x.replica", "replica 0 serves"),
    LogEvent(NOW_MS - 4000, "c", "server/1", "INFO", "x.server", "partition 3: session 7 of generation 2 is open at 9"),
    LogEvent(NOW_MS - 3000, "c", "replica/1", "WARNING", "x.replica", "replica 1: partition 3: behind"),
    LogEvent(NOW_MS - 2000, "c", "cluster-manager", "ERROR", "x.manager", "it fails\nTraceback\x1b[31m"),
]


class Logs:
    """Two looks: the second has one event more; then Ctrl-C."""

    silent: set[str]

    def __init__(self, cluster: str) -> None:
        assert cluster == "c"
        self.silent = set()
        self._looks = iter([EVENTS, [LogEvent(NOW_MS, "c", "replica/0", "INFO", "x", "partition 3 is back")]])

    def new(self) -> list[LogEvent]:
        found = next(self._looks, None)
        if found is None:
            raise KeyboardInterrupt
        return found


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltz_ray.finding.find.find_on_ray", lambda name, directory, address: ("c", "LOCALHOST:9"))
    monkeypatch.setattr(actor_log, "ActorLogs", Logs)
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], ["replica/0", "server/1", "replica/1", "cluster-manager"]),
        (["--actor", "replica"], ["replica/0", "replica/1"]),
        (["--actor", "replica/1", "--actor", "server/1"], ["server/1", "replica/1"]),
        (["-p", "3"], ["server/1", "replica/1"]),
        (["-p", "3", "--actor", "server"], ["server/1"]),
        (["-p", "4"], []),
        (["--level", "warning"], ["replica/1", "cluster-manager"]),
        (["--since", "1h"], ["server/1", "replica/1", "cluster-manager"]),
        (["--limit", "1"], ["cluster-manager"]),
        (["--limit", "0"], []),
        (["-p", "3", "--follow", "--limit", "1"], ["replica/1", "replica/0"]),
    ],
)
def test_which_events_are_shown(arguments: list[str], shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("log", *arguments) == 0
    assert [line.split()[3] for line in capsys.readouterr().out.splitlines()] == shown
    assert run("log", "--json", *arguments) == 0
    assert [json.loads(line)["actor"] for line in capsys.readouterr().out.splitlines()] == shown


def test_one_event_a_line_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("log", "--level", "error") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("ERROR   cluster-manager it fails\\nTraceback\\x1b[31m")
    assert datetime.fromisoformat(line[:23]).timestamp() * 1000 == pytest.approx(NOW_MS - 2000, abs=1)
    assert run("log", "--json", "-p", "3", "--limit", "1") == 0
    assert json.loads(capsys.readouterr().out) == {
        "at_ms": NOW_MS - 3000,
        "level": "warning",
        "actor": "replica/1",
        "partition": 3,
        "logger": "x.replica",
        "text": "replica 1: partition 3: behind",
    }


def test_a_node_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Lame(Logs):
        def new(self) -> list[LogEvent]:
            self.silent = {"10.0.0.7"}
            return EVENTS[:1]

    monkeypatch.setattr(actor_log, "ActorLogs", Lame)
    assert run("log") == 1
    told = capsys.readouterr()
    assert told.out.count("\n") == 1
    assert told.err == "waltz: the node 10.0.0.7 does not answer, its logs are missing\n"


@pytest.mark.parametrize("arguments", [["--actor", "replica 0"], ["--level", "loud"], ["--since", "soon"]])
def test_what_is_no_actor_level_or_time(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("log", *arguments) == 1
    assert capsys.readouterr().err.startswith(f"waltz: {arguments[0]} ")
