"""Stream services under fire: ``python examples/streams_chaos.py --minutes 3``.

Three writers feed one root: the log (appends to a cluster of its own, and a collector), a writer of minutes with
markers that leaves some minutes out, and one that knows of no markers. Between their files stand odd ones. Local,
merged, mirror and collector run in a process each, which are killed, or stopped for some seconds, at random.

At the end a table says how many records went in and are in each stream, each exactly once, that every input file is in
trash once, and what is left: nothing but the odd ones. Or the program ends with 1.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.table import Table

import waltz_ray
from waltz_ray.bring_up import bring_up
from waltz_ray.config import ClusterConfig
from waltz_ray.errors import WaltzError
from waltz_ray.interruption import undisturbed
from waltz_ray.readiness import cluster_status
from waltz_ray.take_down import take_down_in

NAME, PATIENCE_S = "streams-chaos", 240.0
SERVICES = ("log", "local", "merged", "mirror")
STREAMS = {"streams_local": "a/streams_local", "streams": "a/streams", "mirror": "b/streams"}

CONFIG = """
zookeeper = "{zookeeper}"
interval_s = 0.3
[roots]
a = "{base}/a"
b = "{base}/b"
[collectors.log]
root = "a"
category = "bank"
cluster = "{name}"
format = "jsonl"
[services.local]
kind = "local"
layout = "{layout}"
root = "a"
consumers = ["merged"]
holes_after_s = 1
plain_rest_s = 2
[services.merged]
kind = "merged"
layout = "{layout}"
root = "a"
sources = ["local"]
consumers = ["mirror"]
[services.mirror]
kind = "mirror"
layout = "{layout}"
root = "b"
sources = ["merged"]
"""


class ChaosWriters:
    """The writers; ``records`` counts every record that went in, ``files`` every file that has to come to trash."""

    def __init__(self, base: Path) -> None:
        self.records: Counter[str] = Counter()
        self.files: Counter[str] = Counter()
        self._data = base / "a" / "data" / "bank"
        self._minute = datetime.now(timezone.utc).replace(second=0, microsecond=0) - timedelta(days=1)

    def minute(self, number: int) -> None:
        """The next minute of both writers of files: a day ago, so that none has to be waited for."""
        minute = self._minute + timedelta(minutes=number)
        if number % 5 != 3:  # which is a hole
            self._marked("host1.example.com", minute, number)
        self._plain("scribe1", minute, number)

    def log(self, client: waltz_ray.WaltzClient, number: int) -> None:
        records = [f"log/{number}/{n}" for n in range(20)]
        client.append_many(number % 2, [record.encode() for record in records]).result()
        self.records.update(records)

    def odd(self) -> int:
        """What is nobody's, among the files; how many records of quarantine it makes."""
        directory = self._data / "host1.example.com"
        (directory / "202001010000.done").mkdir(parents=True)
        deep = b'{"version":1,"files":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
        (directory / "202001010001.done").write_bytes(deep)
        (directory / "202001010002.done").write_text('{"version": 1, "files": ["202001010002.missing"]}')
        (self._data / "stray").write_text("?")
        return 4

    def _marked(self, host: str, minute: datetime, number: int) -> None:
        directory = self._data / host
        directory.mkdir(parents=True, exist_ok=True)
        name = f"{minute:%Y%m%d%H%M}"
        records = [f"{host}/{number}/{n}" for n in range(10)]
        (directory / f"{name}.txt").write_text("\n".join(records))
        (directory / "writing").write_text(json.dumps({"version": 1, "files": [f"{name}.txt"]}))
        (directory / "writing").rename(directory / f"{name}.done")
        self.records.update(records)
        self.files.update([f"{name}.txt", f"{name}.done"])

    def _plain(self, host: str, minute: datetime, number: int) -> None:
        directory = self._data / host
        directory.mkdir(parents=True, exist_ok=True)
        records = [f"{host}/{number}/{n}" for n in range(10)]
        name = f"{host}-bank-{minute:%Y-%m-%d-%H-%M}_00000.gz"
        with gzip.open(directory / name, "wt") as file:
            file.write("\n".join(records))
        self.records.update(records)
        self.files.update([name])


class Services:
    """A process for each, started again when it has ended."""

    def __init__(self, config: Path, log: IO[bytes]) -> None:
        self._config, self._log = config, log
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._stopped: dict[str, float] = {}
        self.kills: Counter[str] = Counter()

    def look_after(self) -> None:
        for name in SERVICES:
            if name not in self._running or self._running[name].poll() is not None:
                command = [sys.executable, "-m", "waltz_spark.streams", "run", "--service", name, "--spark", "local"]
                command += ["--config", str(self._config)]
                self._running[name] = subprocess.Popen(command, stdout=self._log, stderr=self._log)
                self._stopped.pop(name, None)
        for name in [name for name, until in self._stopped.items() if time.monotonic() > until]:
            del self._stopped[name]
            self._running[name].send_signal(signal.SIGCONT)

    def trouble(self) -> None:
        """Kill one, or stop it for longer than its session lives."""
        name = random.choice([name for name in SERVICES if name not in self._stopped])
        kind = random.choice([signal.SIGKILL, signal.SIGSTOP])
        self._running[name].send_signal(kind)
        if kind == signal.SIGSTOP:
            self._stopped[name] = time.monotonic() + 10
        self.kills[f"{name} {kind.name}"] += 1

    def close(self) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self._running.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def records_of(directory: Path) -> Counter[str]:
    """Every record in the files below."""
    found: Counter[str] = Counter()
    for path in directory.rglob("*"):
        if path.is_file() and not path.name.startswith("_"):  # the lists of layout = "document"
            data = path.read_bytes()
            lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines()
            found.update(json.loads(line)["data"] if path.name.endswith("jsonl.gz") else line for line in lines)
    return found


def left_behind(base: Path, writers: ChaosWriters) -> Iterator[str]:
    """What should not be there at the end. (Files that the collector made have their names from the log.)"""
    trashed = Counter(path.name for path in (base / "a/system/trash").rglob("*/local/*/*") if path.is_file())
    wrong = {name: trashed[name] for name in writers.files if trashed[name] != writers.files[name]}
    if wrong or any(count > 1 for name, count in trashed.items() if name not in writers.files and "done" not in name):
        yield f"in trash not once: {wrong}"
    for root in ("a", "b"):
        yield from (f"in tmp: {path}" for path in (base / root).glob("system/tmp/*/*/*"))
        for inbox in ("consumers", "mirrors"):
            yield from (f"announced still: {path}" for path in (base / root).glob(f"system/{inbox}/*/*/*"))
    for path in (base / "a/data").rglob("*"):
        if path.is_file() and not (path.name.startswith("20200101") or path.name == "stray"):
            yield f"in data: {path}"


def main(arguments: argparse.Namespace) -> int:
    random.seed(arguments.seed)
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="waltz-chaos-")))
        stack.callback(undisturbed()(take_down_in), base / "cluster")  # a second ^C leaves no processes behind
        print("bringing up a cluster", flush=True)
        bring_up(ClusterConfig(name=NAME, directory=str(base / "cluster"), partitions=2, replicas=3, servers=1))
        for root in ("a", "b"):
            (base / root).mkdir()
        config = base / "streams.toml"
        zookeeper = cluster_status(NAME).zookeeper
        config.write_text(CONFIG.format(zookeeper=zookeeper, base=base, name=NAME, layout=arguments.layout))
        writers, services = ChaosWriters(base), Services(config, stack.enter_context((base / "streams.log").open("wb")))
        stack.callback(undisturbed()(services.close))
        odd = writers.odd()
        until, number = time.monotonic() + 60 * arguments.minutes, 0
        with waltz_ray.connect(NAME, directory=str(base / "cluster")) as client:
            while time.monotonic() < until:
                services.look_after()
                writers.minute(number)
                writers.log(client, number)
                number += 1
                if number % 10 == 0:
                    services.trouble()
                time.sleep(0.5)
        writers.minute((number // 5 + 1) * 5)  # no hole, so that what is missing before lies between two
        print(f"{sum(services.kills.values())} kills and stops; waiting for the streams", flush=True)
        patience, found = time.monotonic() + PATIENCE_S, {}
        while time.monotonic() < patience:
            services.look_after()
            found = {name: records_of(base / place) for name, place in STREAMS.items()}
            if all(each == writers.records for each in found.values()) and not list(left_behind(base, writers)):
                break
            time.sleep(1)
        services.close()
        return told(base, writers, found, services, odd)


def told(base: Path, writers: ChaosWriters, found: dict[str, Counter[str]], services: Services, odd: int) -> int:
    table = Table("", "records", "missing", "too often")
    table.add_row("input", str(writers.records.total()), "", "")
    for name, records in found.items():
        missing, more = writers.records - records, records - writers.records
        table.add_row(name, str(records.total()), str(missing.total()), str(more.total()))
    Console().print(table)
    holes = sum(not any(path.iterdir()) for path in (base / "b/streams").rglob("local.host1.example.com"))
    lists = (base / "b/streams").rglob("_local.host1.example.com.part")  # of layout = "document"
    holes += sum(not json.loads(path.read_text())["files"] for path in lists)
    quarantined = len(list((base / "a/system/quarantine/local").iterdir()))
    left = list(left_behind(base, writers))
    print(f"{dict(services.kills)}; {holes} holes are empty minutes; {quarantined} of {odd} odd entries in quarantine")
    print(*left, sep="\n", end="\n" if left else "")
    good = all(each == writers.records for each in found.values()) and not left and quarantined == odd
    print("input = streams_local = streams = mirror" if good else "NOT the same; the services' log:")
    if not good:
        print((base / "streams.log").read_text()[-5000:])
    return int(not good)


def _arguments_of_command() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Stream services that are killed while they work.")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--layout", choices=["parts", "document"], default="parts", help="of the services")
    parser.add_argument("--seed", type=int, default=None, help="of what is killed when")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main(_arguments_of_command()))
    except KeyboardInterrupt:
        sys.exit(130)
    except WaltzError as error:
        sys.exit(f"streams_chaos: {error}")
