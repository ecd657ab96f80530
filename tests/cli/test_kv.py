"""``waltz kv``, over actors in this process."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.kv.fake_cluster import FakeKvCluster
from waltz_ray.cli import main
from waltz_ray.client.codecs import BytesCodec, JsonCodec
from waltz_ray.kv.client import connecting
from waltz_ray.kv.client.client import KvClient
from waltz_ray.kv.client.settings import KvClientConfig
from waltz_ray.kv.client.values import MOST_VALUE_BYTES

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


def test_a_value_on_stdin_that_never_ends(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/zero", "rb") as endless:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=endless))
        code, out, error = run("set", "ann", "-")
    assert (code, out) == (1, "")
    assert error == f"waltz: stdin has more than the {MOST_VALUE_BYTES} bytes that a value can have\n"


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


@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_a_command_under_a_lock(run: Run, cluster: FakeKvCluster, dashes: list[str]) -> None:
    had = "int(os.environ['WALTZ_LOCK_CODE']) > 0 and sys.argv[1:] == ['--', 'x']"
    text = f"import os, sys; sys.exit(3 if {had} else 4)"
    assert run("lock", "--lease", "5", "leader", *dashes, sys.executable, "-c", text, "--", "x") == (3, "", "")
    assert cluster.state.locks == {}
    assert run("lock", "leader", *dashes, "/no/such/thing") == (
        1,
        "",
        "waltz: '/no/such/thing' cannot be run: No such file or directory\n",
    )
    code, _, error = run("lock", "leader", *dashes, "--lease", "5")
    assert code == 2
    assert "options come before the lock's name" in error
    code, _, error = run("lock", "leader", *dashes)
    assert (code, "ommand" in error) == (2, True)
    assert cluster.state.locks == {}
    cluster.state.locks[b"leader"] = (7, time.monotonic() + 60)
    taken = "waltz: lock 'leader' was not free within 0.1 s; wait for longer (wait=), or try again\n"
    assert run("lock", "--wait", "0.1", "leader", *dashes, "true") == (1, "", taken)
    cluster.state.locks.clear()


def test_a_command_ended_by_a_signal_of_ours(run: Run, cluster: FakeKvCluster) -> None:
    """SIGTERM is for it, and the lock is had until it has ended; the exit code is a shell's for it."""
    text = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    assert run("lock", "leader", "--", sys.executable, "-c", text) == (128 + 15, "", "")
    assert cluster.state.locks == {}


def test_a_command_whose_lock_is_lost(run: Run, cluster: FakeKvCluster, tmp_path: Path) -> None:
    """It is ended, and the exit code says why whatever its own is."""
    runs = tmp_path / "runs"
    text = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "
    text += "open(sys.argv[1], 'x').close(); signal.pause()"

    async def take_away() -> None:
        while not runs.exists():
            await asyncio.sleep(0.005)  # polling interval, not synchronisation
        cluster.state.locks[b"leader"] = (1 << 60, time.monotonic() + 60)

    thief = cluster.thread.start(take_away())
    code, _, error = run("lock", "--lease", "3", "leader", "--", sys.executable, "-c", text, str(runs))
    thief.result(20)
    cluster.state.locks.clear()
    first, second = error.splitlines()
    assert (code, first) == (75, f"waltz: lock 'leader' was lost, so {sys.executable!r} is ended")
    assert second.startswith("waltz: lock 'leader' was lost: somebody else has it, or it was freed; ")


def test_who_serves_what(run: Run, cluster: FakeKvCluster) -> None:
    found = json.loads(run("status", "--json")[1])
    assert (sorted(found["buckets"].values()), found["unserved"]) == ([5, 5, 6], 0)
