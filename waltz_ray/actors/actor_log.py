"""The log of an actor: Ray keeps what its process writes on stderr, in a file of the node; all nodes' are read here."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from waltz_ray.errors import InvalidInput
from waltz_ray.runtime.log_lines import EventFormatter, LogEvent, parsed_line

__all__ = ["ActorLogs", "begin_log", "read_logs"]

_FIRST_READ_BYTES = 1 << 26
"""Of a file that is read for the first time, its end: what is older is left to who looks into the file itself."""
_NODE_ANSWERS_S = 20.0


def begin_log(cluster: str, actor: str) -> None:
    """From now on this process logs as that actor, a line for an event, and nothing else does so beside."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EventFormatter(cluster, actor))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def read_logs(directory: str, read: Mapping[int, int]) -> tuple[list[LogEvent], dict[int, int]]:
    """Events of the processes' logs in a node's log directory, each file from where it was ``read`` to on.

    In the order of time, and how far is read now: to the last whole line, by inode, for Ray renames what has grown too
    long. Files that go meanwhile are passed over. InvalidInput for one that may not be read.
    """
    events: list[LogEvent] = []
    now = dict(read)
    for path in sorted(Path(directory).glob("worker-*.err*")):
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                begin = read.get(found.st_ino, max(0, found.st_size - _FIRST_READ_BYTES))
                if found.st_size > begin:
                    file.seek(begin)
                    data = file.read(found.st_size - begin)
                    end = data.rfind(b"\n") + 1
                    events += _events(data[:end])
                    now[found.st_ino] = begin + end
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InvalidInput(f"the log {path} cannot be read: {error.strerror}") from error
    return sorted(events), now


def _events(data: bytes) -> Iterator[LogEvent]:
    for line in data.decode(errors="replace").split("\n"):
        if (event := parsed_line(line)) is not None:
            yield event


def _own_directory() -> str:
    """Where the Ray of this process keeps its logs on this node."""
    import ray

    context = ray.get_runtime_context()
    return str(Path(context.get_temp_dir()) / context.get_session_name() / "logs")


class ActorLogs:
    """The logs of a cluster's actors on all nodes of the Ray that this process has joined.

    A node reads its own, in a task: nothing has to be mounted, and no dashboard has to run.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._places: dict[str, tuple[str, str]] = {}  # node -> machine and directory: nodes of a machine may share it
        self._read: dict[tuple[str, str], dict[int, int]] = {}
        self.silent: set[str] = set()
        """Addresses of the nodes that did not answer when they were asked last: their logs are missing."""

    def new(self) -> list[LogEvent]:
        """What was not read yet, in the order of time."""
        import ray

        self.silent = set()
        nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call]
        unknown = [node_id for node_id in nodes if node_id not in self._places]
        for node_id, directory in self._each(nodes, dict.fromkeys(unknown, ()), _own_directory).items():
            self._places[node_id] = (nodes[node_id]["NodeManagerHostname"], directory)
        readers = {place: node_id for node_id, place in self._places.items() if node_id in nodes}
        what = {node_id: (place[1], self._read.get(place, {})) for place, node_id in readers.items()}
        events: list[LogEvent] = []
        for node_id, (found, read) in self._each(nodes, what, read_logs).items():
            self._read[self._places[node_id]] = read
            events += [event for event in found if event.cluster == self._cluster]
        return sorted(events)

    def _each(
        self, nodes: Mapping[str, Mapping[str, Any]], what: Mapping[str, tuple[Any, ...]], ask: Callable[..., Any]
    ) -> dict[str, Any]:
        """What ``ask`` says on each node of ``what``; those that say nothing are ``silent``."""
        import ray
        from ray.exceptions import RayError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here, answers, asked = ray.get_runtime_context().get_node_id(), {}, {}
        for node_id, arguments in what.items():
            if node_id == here:
                answers[node_id] = ask(*arguments)
                continue
            there = NodeAffinitySchedulingStrategy(node_id, soft=False)
            asked[node_id] = ray.remote(ask).options(num_cpus=0, scheduling_strategy=there).remote(*arguments)
        for node_id, answer in asked.items():
            try:
                answers[node_id] = ray.get(answer, timeout=_NODE_ANSWERS_S)
            except RayError:
                self.silent.add(str(nodes[node_id]["NodeManagerAddress"]))
        return answers
