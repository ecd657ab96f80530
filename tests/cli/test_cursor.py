"""``waltz cursor``, on a cluster in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.cli.test_commands import run
from waltz_ray.cli.cursor import start_of
from waltz_ray.client import WaltzClient
from waltz_ray.errors import InvalidInput
from waltz_ray.testing import InMemoryCluster


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[WaltzClient]:
    with InMemoryCluster(partitions=2) as cluster:
        monkeypatch.setattr("waltz_ray.cli.cursor.open_client", lambda *where, space: cluster.connect(space=space))
        with cluster.connect() as client:
            client.append_many(1, [b"x"] * 5).result(10)
            client.cursor("audit", 1, hold=True).close()
            yield client


def test_list_and_show(client: WaltzClient, capsys: pytest.CaptureFixture[str]) -> None:
    with client.cursor("audit"):
        assert run("cursor", "list", "--json") == 0
        (told,) = json.loads(capsys.readouterr().out)
        assert (told["name"], told["space"], told["lag"], told["holds_retention"]) == ("audit", "log", 5, True)
        assert (told["positions"], told["epoch"], told["owner"][:7]) == ({"1": 0}, 2, "session")
        assert run("cursor", "list") == 0
        assert "audit" in capsys.readouterr().out
    assert run("cursor", "show", "audit", "--json") == 0
    assert json.loads(capsys.readouterr().out)["owner"] is None
    assert run("cursor", "show", "audit") == 0
    assert "next ID" in capsys.readouterr().out
    assert run("cursor", "show", "none") == 1
    assert capsys.readouterr().err == "waltz: space 'log' has no cursor 'none'; see waltz cursor list\n"


def test_reset_and_delete(client: WaltzClient, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cursor", "reset", "audit", "--to", "3", "--yes") == 0
    assert capsys.readouterr().out == "cursor audit of space log goes on at 1/3\n"
    assert run("cursor", "reset", "audit", "--to", "latest", "--yes") == 0
    assert capsys.readouterr().out == "cursor audit of space log goes on at 1/5\n"
    assert run("cursor", "reset", "audit", "--to", "6", "--yes") == 1
    assert "a cursor stands at 5 at the most just now, not 6" in capsys.readouterr().err
    assert run("cursor", "reset", "none", "--to", "earliest", "--yes") == 1
    assert [(each.name, each.holds_retention) for each in client.cursors()] == [("audit", True)]
    with client.cursor("audit"):
        for command in (["reset", "audit", "--to", "1", "--yes"], ["delete", "audit", "--confirm", "audit"]):
            capsys.readouterr()
            assert run("cursor", *command) == 1
            assert "cursor 'audit' of space 'log' is taken by session" in capsys.readouterr().err
    assert run("cursor", "delete", "audit") == 1
    assert capsys.readouterr().err == (
        "waltz: nothing was changed: cursor audit of space log goes; where it was is known to nobody then; there is no "
        "terminal on which to ask, so say it with --yes\n"
    )
    assert run("cursor", "delete", "audit", "--confirm", "mail") == 1
    assert run("cursor", "delete", "audit", "--dry-run") == 0
    assert run("cursor", "reset", "audit", "--to", "earliest", "--dry-run") == 0
    assert "nothing was changed; without --dry-run: cursor audit of space log forgets" in capsys.readouterr().out
    assert [dict(each.positions) for each in client.cursors()] == [{1: 5}]
    assert run("cursor", "delete", "audit", "--confirm", "audit") == 0
    assert client.cursors() == []


def test_where_to() -> None:
    assert [start_of("earliest"), start_of("latest"), start_of("17")] == ["earliest", "latest", 17]
    assert isinstance(start_of("10m"), datetime)
    with pytest.raises(InvalidInput, match="--to must say"):
        start_of("-1")
