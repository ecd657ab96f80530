"""``waltz kv``, over actors in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.kv.fake_cluster import FakeKvCluster
from waltz_ray.cli import main
from waltz_ray.client.codecs import BytesCodec, JsonCodec
from waltz_ray.kv.client import connecting
from waltz_ray.kv.client.client import KvClient
from waltz_ray.kv.client.settings import KvClientConfig

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeKvCluster]:
    with FakeKvCluster() as found:
        yield found


@pytest.fixture
def run(cluster: FakeKvCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    cluster.state.items.clear()

    def connect(name: str, space: str, **options: object) -> KvClient:
        assert space == "kv"
        return KvClient(cluster.place(), KvClientConfig(timeout_s=5), BytesCodec())

    monkeypatch.setattr(connecting, "connect", connect)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as leaving:
            main(["kv", *arguments])
        said = capsys.readouterr()
        return int(str(leaving.value.code)), said.out, said.err

    return call


def test_items(run: Run) -> None:
    code, out, _ = run("set", "ann", "käse")
    version = int(out)
    assert (code, run("get", "ann")) == (0, (0, "käse\n", ""))
    assert json.loads(run("get", "ann", "--json")[1]) == {
        "name": "ann",
        "value": "käse",
        "version": version,
        "expires_s": None,
    }
    assert run("get", "nobody") == (1, "", "waltz: there is no item 'nobody'\n")
    assert run("set", "n", "7", "--int", "--expected", "absent")[0] == 0
    code, _, error = run("set", "n", "8", "--expected", "absent")
    assert code == 1
    assert error.startswith("waltz: item 'n' was to be at version absent, but it is at ")
    assert run("set", "n", "x", "--int") == (1, "", "waltz: the value must be an integer, not 'x'\n")
    assert json.loads(run("get", "n", "--json")[1])["value"] == 7
    assert run("delete", "n") == (0, "", "")
    assert run("delete", "n")[0] == 1
    run("set", "ann", "in a map", "--map", "users", "--expires", "60")
    assert json.loads(run("get", "ann", "--map", "users", "--json")[1])["expires_s"] > 50


def test_what_a_codec_made_and_bytes(run: Run, cluster: FakeKvCluster) -> None:
    with KvClient(cluster.place(), codec=JsonCodec()) as kv:
        kv.set("coded", {"a": 1})
        kv.set("raw", b"\0\xff")
    assert json.loads(run("get", "raw", "--json")[1])["base64"] == "AP8="
    assert json.loads(run("get", "coded", "--json")[1])["base64"] == "eyJhIjoxfQ=="


def test_scanning(run: Run) -> None:
    for name in ("b", "a", "c"):
        run("set", name, name.upper())
    assert [each["name"] for each in json.loads(run("scan", "--json")[1])] == ["a", "b", "c"]
    assert [each["value"] for each in json.loads(run("scan", "--json", "--limit", "2")[1])] == ["A", "B"]
    assert run("scan", "--count") == (0, "3\n", "")
    table = run("scan", "b")[1]
    assert "B" in table
    assert "A" not in table


def test_a_command_under_a_lock(run: Run, cluster: FakeKvCluster) -> None:
    text = "import os, sys; sys.exit(3 if int(os.environ['WALTZ_LOCK_CODE']) > 0 else 4)"
    assert run("lock", "leader", sys.executable, "-c", text)[0] == 3
    assert cluster.state.locks == {}
    assert run("lock", "leader", "/no/such/thing") == (
        1,
        "",
        "waltz: '/no/such/thing' cannot be run: No such file or directory\n",
    )


def test_who_serves_what(run: Run, cluster: FakeKvCluster) -> None:
    found = json.loads(run("status", "--json")[1])
    assert (sorted(found["buckets"].values()), found["unserved"]) == ([5, 5, 6], 0)
