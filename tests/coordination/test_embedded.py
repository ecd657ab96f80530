"""The embedded ZooKeeper: started once, adopted, restarted where it was, found without its record, and ended."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil  # type: ignore[import-untyped]
import pytest

from tests.coordination.conftest import Seen
from waltz_ray.actors import zookeeper_host
from waltz_ray.actors.zookeeper_host import ZooKeeperHost, ZooKeeperKeeper
from waltz_ray.coordination import embedded
from waltz_ray.coordination.api import ConnectionState
from waltz_ray.coordination.embedded import EmbeddedZooKeeper, _have_text
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import CoordinationError, InvalidInput, ZooKeeperUnreachable


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A directory whose server is ended whatever the test does."""
    directory = tmp_path / "zookeeper"
    yield directory
    server = EmbeddedZooKeeper(directory)
    server.stop()
    assert server.pid is None


def test_a_running_server_is_adopted_and_comes_back_on_its_port(data_dir: Path) -> None:
    server, other = EmbeddedZooKeeper(data_dir), EmbeddedZooKeeper(data_dir)
    address = server.start()
    pid = server.pid
    record = json.loads((data_dir / "zookeeper.json").read_text())
    assert record == {"version": 1, "pid": pid, "port": int(address.partition(":")[2])}
    assert (other.start(), other.pid) == (address, pid)
    with pytest.raises(CoordinationError, match=f"already runs on port {record['port']}, not 1"):
        EmbeddedZooKeeper(data_dir, port=1).start()
    listening = [c.laddr.ip for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert set(listening) <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert listening

    client = KazooZooKeeper(address, session_timeout_ms=2000)
    states: Seen[ConnectionState] = Seen()
    values: Seen[bytes | None] = Seen()
    try:
        client.create("/kept", b"a")
        client.on_state(states)
        client.watch_data("/kept", lambda data, version: values(data))
        values.until(b"a".__eq__)
        other.stop()
        other.stop()
        assert server.pid is None
        states.until(ConnectionState.SUSPENDED.__eq__)
        with pytest.raises(ZooKeeperUnreachable, match=address):
            client.get("/kept")
        assert server.start() == address
        assert server.pid != pid
        states.until(ConnectionState.CONNECTED.__eq__)
        assert client.get("/kept") == (b"a", 0)
        client.set("/kept", b"b", 0)
        values.until(b"b".__eq__)
    finally:
        client.close()


def test_a_killed_server_is_started_again_and_a_foreign_pid_is_ignored(data_dir: Path) -> None:
    server = EmbeddedZooKeeper(data_dir)
    address = server.start()
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    psutil.Process(pid).wait(10)
    record = data_dir / "zookeeper.json"
    record.write_text(json.dumps({"version": 1, "pid": os.getpid(), "port": 1}))  # the pid was given out again
    assert server.pid is None
    assert server.start() == address
    assert server.pid not in (pid, os.getpid())
    for lost in ("", "{}", None):
        record.unlink() if lost is None else record.write_text(lost)
        assert EmbeddedZooKeeper(data_dir).start() == address
        assert json.loads(record.read_text())["pid"] == server.pid


def test_one_that_was_only_launched_is_adopted(data_dir: Path) -> None:
    """As ``waltz up`` does it, which starts Ray meanwhile."""
    EmbeddedZooKeeper(data_dir).launch()
    EmbeddedZooKeeper(data_dir).launch()
    server = EmbeddedZooKeeper(data_dir)
    address = server.start()
    port = int(address.partition(":")[2])
    assert json.loads((data_dir / "zookeeper.json").read_text()) == {"version": 1, "pid": server.pid, "port": port}
    with pytest.raises(CoordinationError, match=f"already runs on port {port}, not 1"):
        EmbeddedZooKeeper(data_dir, port=1).launch()


def test_one_that_was_just_launched_is_not_launched_again(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Popen is back before Linux shows the new program's arguments: there would be two servers in one directory."""
    monkeypatch.setattr(psutil.Process, "cmdline", lambda process: [])
    EmbeddedZooKeeper(data_dir).launch()
    server = EmbeddedZooKeeper(data_dir)
    pid = server.pid
    assert pid is not None
    server.launch()
    monkeypatch.undo()
    assert server.start().startswith("127.0.0.1:")
    assert server.pid == pid


def test_what_an_earlier_version_has_started_is_adopted(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an upgrade: two servers in one directory would be the end of it."""
    with monkeypatch.context() as earlier:
        earlier.setattr(embedded, "_MAIN", "org.apache.zookeeper.server.ZooKeeperServerMain")
        address = EmbeddedZooKeeper(data_dir).start()
    server = EmbeddedZooKeeper(data_dir)
    pid = server.pid
    assert pid is not None
    assert (server.start(), server.pid) == (address, pid)


def test_a_loss_of_power_behind_the_first_start_leaves_what_the_next_one_needs(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not start with a log, and no snapshot that the log goes on from."""
    synced: set[Path] = set()
    fsync = os.fsync

    def noted(handle: int) -> None:
        fsync(handle)
        synced.add(Path(os.readlink(f"/proc/self/fd/{handle}")))

    monkeypatch.setattr(os, "fsync", noted)
    EmbeddedZooKeeper(data_dir).start()
    data = data_dir / "data"
    assert {data_dir, data, data / "version-2", data / "version-2" / "snapshot.0"} <= synced


def test_old_snapshots_and_logs_do_not_stay_for_ever(data_dir: Path) -> None:
    for number in range(7):
        client = KazooZooKeeper(EmbeddedZooKeeper(data_dir).start())
        client.create(f"/{number}", b"")
        assert all(client.get(f"/{before}") for before in range(number + 1))
        client.close()
        EmbeddedZooKeeper(data_dir).stop()
    names = [path.name.partition(".")[0] for path in (data_dir / "data" / "version-2").iterdir()]
    assert names.count("snapshot") < 6, "three are kept, and what has come since the last purge"
    assert names.count("log") < 7


def test_a_server_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Others:
        pid = 7

        def terminate(self) -> None:
            raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(EmbeddedZooKeeper, "_find", lambda server: Others())
    with pytest.raises(CoordinationError, match=r"pid 7. is another user's: end it as that user"):
        EmbeddedZooKeeper(tmp_path).stop()


@pytest.mark.parametrize("language", ["C", "C.UTF-8"])
def test_its_directory_may_be_called_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str) -> None:
    monkeypatch.setenv("LC_ALL", language)
    directory = tmp_path / "d \u00e9\u4e16\U0001f40d\\n" / "zookeeper"
    server = EmbeddedZooKeeper(directory)
    try:
        server.start()
        assert server.pid is not None
    finally:
        server.stop()
    assert {each.name for each in directory.iterdir()} >= {"data", "zookeeper.log"}
    assert [each.name for each in tmp_path.iterdir()] == ["d \u00e9\u4e16\U0001f40d\\n"], "and nothing is elsewhere"


def test_starters_at_once_start_one_server(data_dir: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        addresses = list(pool.map(lambda _: EmbeddedZooKeeper(data_dir).start(), range(4)))
    assert len(set(addresses)) == 1
    config = str(data_dir.resolve() / "zoo.cfg")
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert sum(command[-1:] == [config] for command in commands) == 1


def test_it_outlives_the_process_that_started_it(data_dir: Path) -> None:
    script = (
        "import sys; from waltz_ray.coordination.embedded import EmbeddedZooKeeper as Z; print(Z(sys.argv[1]).start())"
    )
    starter = subprocess.run(
        [sys.executable, "-c", script, str(data_dir)], capture_output=True, text=True, check=True, timeout=60
    )
    server = EmbeddedZooKeeper(data_dir)
    assert server.pid is not None
    assert server.start() == starter.stdout.strip()


def test_a_port_in_use_is_named(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CoordinationError, match=f"port {port} of 127.0.0.1 is in use"):
            EmbeddedZooKeeper(data_dir, port=port).start()
    assert EmbeddedZooKeeper(data_dir).pid is None


def test_a_full_disk_does_not_take_its_port_away(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would find it at another one."""
    data_dir.mkdir()
    (data_dir / "zookeeper.lock").touch()
    (data_dir / "zoo.cfg").write_text("# of an earlier version\nclientPort=23456\n")

    def full(handle: int) -> None:
        """Also a loss of power in this moment finds the old file: the new one has no name yet."""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    server = EmbeddedZooKeeper(data_dir)
    with pytest.raises(CoordinationError, match=r"zoo\.cfg cannot be written: No space left"):
        server.start()
    assert server._configured_port() == 23456


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\0", b"clientPort=\n", b"clientPort=21 81\n", b"clientPort=70000\n", bytes(300)]
)
def test_what_a_loss_of_power_left_of_its_settings_is_written_anew(data_dir: Path, content: bytes) -> None:
    data_dir.mkdir()
    (data_dir / "zookeeper.lock").touch()
    (data_dir / "zoo.cfg").write_bytes(content)
    server = EmbeddedZooKeeper(data_dir)
    assert server._configured_port() == 0
    config = data_dir / "zoo.cfg"
    _have_text(config, "clientPort=23456\n")
    assert server._configured_port() == 23456


def test_a_server_that_died_is_started_when_there_is_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keeper goes on to look, whatever a start meets, and says what that was."""
    tried = threading.Semaphore(0)
    room, started = threading.Event(), threading.Event()

    class Dead:
        pid: int | None = None

        def __init__(self, *where: object, **how: object) -> None:
            pass

        def start(self, *how: object, **unless: object) -> str:
            if threading.current_thread() is not threading.main_thread():
                tried.release()
                if not room.is_set():
                    raise OSError(errno.ENOSPC, "No space left on device")
                self.pid = 1
                started.set()
            return "127.0.0.1:23456"

    monkeypatch.setattr(zookeeper_host, "EmbeddedZooKeeper", Dead)
    keeper = ZooKeeperKeeper("nowhere", check_interval_s=0.01)
    try:
        for _ in range(3):
            assert tried.acquire(timeout=20)
        assert "No space left" in keeper.error
        room.set()
        assert started.wait(20)
    finally:
        keeper.close()
    assert (keeper.error, keeper.pid, keeper.restarts) == ("", 1, 1)


def test_a_server_that_is_being_started_again_is_ended_at_once(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that does not end by itself: whoever ends the keeper does not wait for long, and would leave it."""
    keeper = ZooKeeperKeeper(str(data_dir), check_interval_s=0.01)
    server, looks = EmbeddedZooKeeper(data_dir), threading.Semaphore(0)
    first = server.pid
    assert first is not None

    def looked(*where: object) -> bool:
        looks.release()
        return False

    monkeypatch.setattr(EmbeddedZooKeeper, "_answers", looked)
    psutil.Process(first).kill()
    assert looks.acquire(timeout=20)
    second = server.pid
    assert second not in (None, first)
    psutil.Process(second).suspend()
    begun = time.monotonic()
    keeper.stop(timeout_s=0.1)
    assert time.monotonic() - begun < 10, "not the 30 s of a start, and the 10 s of an end"
    assert server.pid is None


@pytest.mark.parametrize("again", [False, True])
def test_an_actor_that_ray_has_started_again_is_so_until_its_server_starts(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray gives an actor up whose constructor has raised an error; `waltz up` is to be told of it."""
    ended: list[str] = []

    def full(*where: object, **how: object) -> None:
        raise CoordinationError("No space left")

    context = SimpleNamespace(namespace="waltz-c", was_current_actor_reconstructed=again)
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(zookeeper_host, "begin_log", lambda *names: None)
    monkeypatch.setattr(zookeeper_host, "ZooKeeperKeeper", full)
    monkeypatch.setattr(zookeeper_host, "end_process", ended.append)
    if again:
        ZooKeeperHost("nowhere", 1.0)
    else:
        with pytest.raises(CoordinationError):
            ZooKeeperHost("nowhere", 1.0)
    assert ended == ["zookeeper: the server cannot be started: No space left; this process ends"] * again


def test_a_server_that_cannot_start_is_quoted(data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "zookeeper.lock").touch()  # it is ours
    (data_dir / "data").write_text("in the way")
    with pytest.raises(CoordinationError, match=r"ended while starting: .*\w{4}") as caught:
        EmbeddedZooKeeper(data_dir).start()
    assert "\n" not in str(caught.value)


def test_nothing_listening_is_one_line_in_time(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(ZooKeeperUnreachable, match=rf"at 127.0.0.1:{port} within 0.3 s \(.* refused\); is it"):
        KazooZooKeeper(f"127.0.0.1:{port}", connect_timeout_s=0.3)
    loud = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert loud == [], "the error is all that a program has to say"


def test_a_connect_string_that_makes_no_sense() -> None:
    with pytest.raises(InvalidInput, match=r"'127\.0\.0\.1:x' is no connect string of ZooKeeper"):
        KazooZooKeeper("127.0.0.1:x")


def test_somebody_s_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "zoo.cfg").write_text("clientPort=2181\n")
    for begin in (EmbeddedZooKeeper(tmp_path).start, EmbeddedZooKeeper(tmp_path).launch):
        with pytest.raises(InvalidInput, match="is not empty, and no ZooKeeper was started in it by waltz"):
            begin()
    assert [path.name for path in tmp_path.iterdir()] == ["zoo.cfg"]
    assert (tmp_path / "zoo.cfg").read_text() == "clientPort=2181\n"


def test_who_starts_it_at_the_same_time_is_no_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Path.iterdir

    def begun_meanwhile(directory: Path) -> Iterator[Path]:
        (directory / "zookeeper.lock").touch()
        return listed(directory)

    monkeypatch.setattr(Path, "iterdir", begun_meanwhile)
    EmbeddedZooKeeper(tmp_path).check_directory()
