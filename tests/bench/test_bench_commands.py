"""``waltz bench``: one clear line for what cannot work; one small comparison, end to end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from waltz_bench.availability import BETWEEN, CHECKPOINT, EVENTS, EVERYTHING

from waltz_ray.cli import main


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(list(arguments))
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("waltz_bench", ("latency",)),
        ("nats", ("compare", "nats")),
        ("matplotlib", ("all",)),
    ],
)
def test_what_is_not_installed_is_named_in_one_line(
    missing: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [each for each in sys.modules if each == missing or each.startswith(missing + ".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert run("bench", *command) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"waltz: waltz bench needs {missing}")
    assert "pip install -e '.[bench]'" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("append", "--partitions", "1,x"), "--partitions must be whole numbers"),
        (("append", "--locks", "hard"), "--locks must be none, unique or contended, not 'hard'"),
        (("append", "--sizes", "-1"), "--sizes must be at least 1"),
        (("append", "--partitions", "0"), "--partitions must be at least 1"),
        (("compare", "nats", "--case", "no such case"), "there is no case 'no such case'"),
        (("growth", "--millions", "10,1"), "--millions must be rising"),
        (("latency", "--cluster", "no-such-cluster"), "no cluster 'no-such-cluster'"),
        (("append", "--space", "orders"), "a new cluster has no space 'orders'; say with --cluster which running one"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(
    arguments: tuple[str, ...], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", *arguments, "--dir", str(tmp_path)) == 1
    error = capsys.readouterr().err
    assert text in error.splitlines()[-1]
    assert error.splitlines()[-1].startswith("waltz: ")
    assert list(tmp_path.iterdir()) == []  # nothing was begun, or it was cleared away


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "--help") == 0
    text = capsys.readouterr().out
    for command in (
        "append",
        "kv",
        "latency",
        "context",
        "feed",
        "fetch",
        "recover",
        "growth",
        "partitions",
        "actor",
        "kills",
        "smoke",
        "availability",
        "topics",
        "retention",
        "compare",
        "all",
    ):
        assert command in text


@pytest.mark.long
@pytest.mark.cluster
def test_short_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A replica and a server are killed beside appends and checkpoints; nothing is refused out of order, or lost."""
    short = ("--minutes", "0.15", "--kill-every", "3", "--checkpoint", "1000", "--outstanding", "8")
    assert run("bench", "kills", "--dir", str(tmp_path), "--json", *short) == 0
    found = json.loads(capsys.readouterr().out)
    figures = {each["name"]: each["value"] for each in found["figures"]}
    assert figures["acknowledged"] > 0
    assert figures["acknowledged and not in the log, or twice"] == 0, found
    assert figures["appends that failed"] == 0, found["failures"]
    assert figures["refused: not contiguous"] == 0
    assert figures["sessions taken"] > 0
    assert len(found["pauses"]["replica"]) >= 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
def test_what_is_felt_of_a_hung_server_and_of_a_move(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = ("nothing", "SIGSTOP of a server", "planned move")
    short = ("--tries", "1", "--clients", "2", *(word for name in events for word in ("--event", name)))
    results = tmp_path / "results"
    assert run("bench", "availability", "--dir", str(tmp_path), "--results", str(results), "--json", *short) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads((results / "availability.json").read_text()) == found
    (results / "availability.json").unlink()
    assert "| SIGSTOP of a server | 1 |" in (results / "availability.md").read_text()
    (results / "availability.md").unlink()
    results.rmdir()
    assert list(found["felt_s"]) == list(events)
    (hung,) = found["felt_s"]["SIGSTOP of a server"]
    assert 1.0 < hung < 5.5, "its ZooKeeper session would have ended after 6 s"
    assert found["failures"] == []
    assert set(found["ratios"]) == {"SIGSTOP of a server, max, s", "planned move, max, s"}
    assert [(row["event"], row["tries"], row["max_s"]) for row in found["events"]] == [
        (name, 1, found["felt_s"][name][0]) for name in events
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.cluster
def test_a_catch_up_that_is_not_from_disks_is_not_taken_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server has so short a log in its memory."""
    short = ("--runs", "1", "--seconds", "0.2", "--subscribers", "1", "--records", "1000", "--cold")
    assert run("bench", "feed", "--dir", str(tmp_path), *short) == 1
    assert "bytes of the log were read from disks" in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.timeout(500)
def test_every_event_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once each; ZooKeeper away for two of its sessions, and few records in what is killed as a whole."""
    short = ("--tries", "1", "--clients", "2", "--zookeeper-seconds", "12", "--records", "20000")
    assert run("bench", "availability", "--dir", str(tmp_path), "--json", *short) == 0
    found = json.loads(capsys.readouterr().out)
    told = {row["event"]: row for row in found["events"]}
    assert set(told) == {*EVENTS, BETWEEN}
    long = {EVERYTHING, "SIGSTOP of two replicas"}
    assert all(row["max_s"] < 5 for name, row in told.items() if name not in long), told
    assert 12 < told["SIGSTOP of two replicas"]["max_s"] < 15
    assert told[BETWEEN]["p50_s"] < told[CHECKPOINT]["p50_s"]
    assert 1 < told[EVERYTHING]["max_s"] < 60
    assert found["failures"] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
def test_topics_beside_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ("--runs", "1", "--seconds", "0.2", "--messages", "8000")
    assert run("bench", "topics", "--dir", str(tmp_path), "--json", *short) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 6
    assert all(row["rate"] > 0 for row in found["rows"]), found["rows"]
    assert "produce pipelined, rate by the log's append" in found["ratios"]
    assert list(tmp_path.iterdir()) == []


def test_an_event_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "availability", "--event", "flood") != 0
    assert "there is no event 'flood'" in capsys.readouterr().err


@pytest.mark.cluster
def test_a_small_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both systems, every acknowledgement accounted for, and nothing left behind."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    code = run(
        *("bench", "compare", "nats", "--dir", str(tmp_path), "--json"),
        *("--runs", "1", "--seconds", "0.1", "--clients", "2", "--proof", "20"),
        *("--case", "1 outstanding", "--case", "append_many(100)"),
    )
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [(row["system"], row["case"]) for row in found["rows"]] == [
        ("waltz_ray", "1 outstanding"),
        ("NATS", "1 outstanding"),
        ("waltz_ray", "append_many(100)"),
        ("NATS", "append_many(100)"),
        ("NATS", "append_many(100), as atomic batches"),
    ]
    assert all(row["rate"] > 0 for row in found["rows"])
    assert set(found["ratios"]) == {"1 outstanding, p50", "append_many(100), rate"}
    proof = found["sync_proof"]
    assert proof["proven"] is True or "strace" in proof["reason"], proof
    assert list(tmp_path.iterdir()) == []
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert after <= before, [psutil.Process(pid).cmdline() for pid in after - before]
