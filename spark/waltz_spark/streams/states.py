"""The commit of one path: its states, its one table, and the node in ZooKeeper. Pure.

``TABLE`` says for each state what is done next and which state then is written. The normal run enters it at
TRANS_COMMIT_START; recovery enters it at the state the crash left. One row differs in recovery: after a crash
TRANS_COMMIT_START does not tell whether the move happened, so it first looks (``RECOVERY``).

=========================  ==========================================================  ============================
state in the node          what a crash leaves                                         recovery
=========================  ==========================================================  ============================
SUCCESS_COMMIT             perhaps half a temporary directory                          deletes it; the input is there
TRANS_COMMIT_START         the whole temporary, or (moved) the final path              final: goes on; else discards
TRANS_MV_COMPLETE          the final path, announced to none, some or all              announces to all
TRANS_CNSMR_COMPLETE       final, announced; input in its place, partly or in trash    moves the rest to trash
TRANS_TRASH_COMPLETE       everything done                                             forgets the path
=========================  ==========================================================  ============================
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from waltz_ray.errors import InvalidInput, NodeDamaged
from waltz_spark.streams.holes import MinutesSeen, seen_with
from waltz_spark.streams.layout import minute_name, parse_minute, parse_published
from waltz_spark.streams.texts import parsed_json

__all__ = [
    "APPLIED_LIMIT",
    "RECOVERY",
    "TABLE",
    "Action",
    "LastCommit",
    "PathInFlight",
    "Row",
    "StreamState",
    "ThreadNode",
    "decode_node",
    "encode_node",
    "parse_state",
]

APPLIED_LIMIT = 64
"""How many commits of each producer a consumer remembers. A producer repeats at most the one in flight."""

_VERSION = 1
_KINDS = ("local", "merged", "mirror")
_MAX_BYTES = 900_000  # a ZooKeeper node takes 1 MB


class StreamState(enum.Enum):
    """How far the commit of a thread is; the value is what stands in the node."""

    START = "TRANS_COMMIT_START"
    MOVED = "TRANS_MV_COMPLETE"
    ANNOUNCED = "TRANS_CNSMR_COMPLETE"
    TRASHED = "TRANS_TRASH_COMPLETE"
    SUCCESS = "SUCCESS_COMMIT"


class Action(enum.Enum):
    """What is done in a state. Each may be done again: what is done already stays as it is."""

    MOVE = "move the temporary to the final path"
    ANNOUNCE = "announce the final path to every consumer"
    TRASH = "move the input to trash"
    FORGET = "remove the path object"
    LOOK = "see whether the final path exists; if not, the temporary is discarded and the input stays"


class Row(NamedTuple):
    """``action`` and the state written after it; ``otherwise`` where LOOK finds no final path."""

    action: Action
    next: StreamState
    otherwise: StreamState | None = None


TABLE: Mapping[StreamState, Row] = MappingProxyType(
    {
        StreamState.START: Row(Action.MOVE, StreamState.MOVED),
        StreamState.MOVED: Row(Action.ANNOUNCE, StreamState.ANNOUNCED),
        StreamState.ANNOUNCED: Row(Action.TRASH, StreamState.TRASHED),
        StreamState.TRASHED: Row(Action.FORGET, StreamState.SUCCESS),
    }
)

RECOVERY: Mapping[StreamState, Row] = MappingProxyType(
    {**TABLE, StreamState.START: Row(Action.LOOK, StreamState.MOVED, otherwise=StreamState.SUCCESS)}
)


def parse_state(name: str) -> StreamState:
    """The state of a word in any spelling in use, MOVE_COMPLETE too, with or without ``TRANS_``. InvalidInput else."""
    known = {state.value.removeprefix("TRANS_"): state for state in StreamState} | {"MOVE_COMPLETE": StreamState.MOVED}
    state = known.get(name.removeprefix("TRANS_")) if isinstance(name, str) else None
    if state is None:
        raise InvalidInput(f"{name!r} is no commit state; known: {', '.join(state.value for state in StreamState)}")
    return state


@dataclass(frozen=True, slots=True)
class PathInFlight:
    """The path object of Databus {src, finalPath, trashPath, consumers}, and what is needed to act on it.

    ``src``: the directory the input is moved away from, ``names``: the entries there; ``src`` and ``trash_path`` are
    on ``src_root``, ``tmp_path`` and ``final_path`` (relative to it) on the thread's own root. ``source``: the
    producer who announced it, "" where it came from a collector.
    """

    commit: str
    src_root: str
    src: str
    names: tuple[str, ...]
    tmp_path: str
    final_path: str
    trash_path: str
    consumers: tuple[str, ...]
    source: str = ""


@dataclass(frozen=True, slots=True)
class LastCommit:
    """``final_path`` relative to the root; ``time``: ISO 8601, UTC."""

    commit: str
    final_path: str
    time: str


@dataclass(frozen=True, slots=True)
class ThreadNode:
    """What stands at ``/databus/<thread>``. ``path`` is there in every state but SUCCESS_COMMIT.

    ``holder``: the run that wrote it; ``applied``: the last commits taken over from each producer, oldest first;
    ``seen``: of a local's collectors, which minutes are missing (``holes``).
    """

    state: StreamState = StreamState.SUCCESS
    path: PathInFlight | None = None
    holder: str = ""
    kind: str = ""
    root: str = ""
    consumers: tuple[str, ...] = ()
    commits: int = 0
    last: LastCommit | None = None
    applied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seen: Mapping[str, MinutesSeen] = field(default_factory=dict)

    def started(self, path: PathInFlight) -> ThreadNode:
        return replace(self, state=StreamState.START, path=path)

    def at(self, state: StreamState, time: str) -> ThreadNode:
        """The next state; SUCCESS_COMMIT removes the path object and remembers that it was applied."""
        if state is not StreamState.SUCCESS or self.path is None:
            return replace(self, state=state)
        path = self.path
        last = LastCommit(path.commit, path.final_path, time)
        seen = self.seen if path.source else seen_with(self.seen, parse_published(path.final_path))
        remembering = self.remembering(path.source, path.commit)
        return replace(remembering, state=state, path=None, commits=self.commits + 1, last=last, seen=seen)

    def discarded(self) -> ThreadNode:
        """Back to SUCCESS_COMMIT without having committed the path."""
        return replace(self, state=StreamState.SUCCESS, path=None)

    def remembering(self, source: str, commit: str) -> ThreadNode:
        if not source:
            return self
        commits = (*(name for name in self.applied.get(source, ()) if name != commit), commit)
        return replace(self, applied={**self.applied, source: commits[-APPLIED_LIMIT:]})

    def has_applied(self, source: str, commit: str) -> bool:
        return commit in self.applied.get(source, ())


def encode_node(node: ThreadNode) -> bytes:
    """JSON. InvalidInput for what ZooKeeper would not take."""
    path, last = node.path, node.last
    fields = {
        "version": _VERSION,
        "state": node.state.value,
        "path": path
        and {
            "commit": path.commit,
            "srcRoot": path.src_root,
            "src": path.src,
            "names": path.names,
            "tmpPath": path.tmp_path,
            "finalPath": path.final_path,
            "trashPath": path.trash_path,
            "consumers": path.consumers,
            "source": path.source,
        },
        "holder": node.holder,
        "kind": node.kind,
        "root": node.root,
        "consumers": node.consumers,
        "commits": node.commits,
        "last": last and {"commit": last.commit, "finalPath": last.final_path, "time": last.time},
        "applied": node.applied,
        "seen": {key: _encode_seen(each) for key, each in node.seen.items()},
    }
    data = json.dumps(fields, indent=1).encode()
    if len(data) > _MAX_BYTES:
        what = path.commit if path else "the thread"
        raise InvalidInput(f"{what}: {len(data)} bytes are too many for a ZooKeeper node; write fewer files a minute")
    return data


def decode_node(where: str, data: bytes) -> ThreadNode:
    """``where``: the node's path, for the error. NodeDamaged for content that is torn, or not ours.

    It is never guessed at: what stood there decides whether data is published twice or not at all. A node without
    content, or without state and path, is that of a thread with nothing to recover (the Databus page, recovery 5).
    """
    try:
        fields = parsed_json(data) if data else {}
        if not isinstance(fields, dict) or fields.get("version", _VERSION) != _VERSION:
            raise ValueError(f"not JSON of version {_VERSION}")
        if "state" not in fields and fields.get("path") is None and fields.get("kind", "") in ("", *_KINDS):
            fields = {**parsed_json(encode_node(ThreadNode())), **fields}
        node = ThreadNode(
            parse_state(fields["state"]),
            _path(fields["path"]),
            _text(fields, "holder"),
            _text(fields, "kind"),
            _text(fields, "root"),
            _texts(fields, "consumers"),
            int(fields["commits"]),
            _last(fields["last"]),
            {source: _texts(fields["applied"], source) for source in fields["applied"]},
            # Nodes from before there was this field have none.
            {key: _decode_seen(each) for key, each in fields.get("seen", {}).items()},
        )
        if (node.path is None) != (node.state is StreamState.SUCCESS):
            raise ValueError(f"{node.state.value} {'without a' if node.path is None else 'with a'} path object")
    except (InvalidInput, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NodeDamaged(
            f"ZooKeeper node {where}: {type(error).__name__} {error}; is it damaged? "
            "Nothing was done; put its content right, or delete it if no commit is in flight"
        ) from error
    return node


def _path(fields: Mapping[str, Any] | None) -> PathInFlight | None:
    if fields is None:
        return None
    return PathInFlight(
        commit=_text(fields, "commit"),
        src_root=_text(fields, "srcRoot"),
        src=_text(fields, "src"),
        names=_texts(fields, "names"),
        tmp_path=_text(fields, "tmpPath"),
        final_path=_text(fields, "finalPath"),
        trash_path=_text(fields, "trashPath"),
        consumers=_texts(fields, "consumers"),
        source=_text(fields, "source"),
    )


def _encode_seen(seen: MinutesSeen) -> list[str]:
    """The newest minute, then first and last of each run."""
    return [minute_name(minute) for minute in (seen.newest, *(end for run in seen.missing for end in run))]


def _decode_seen(names: list[str]) -> MinutesSeen:
    newest, *ends = (parse_minute(name) for name in names)
    return MinutesSeen(newest, tuple(zip(ends[::2], ends[1::2], strict=True)))


def _last(fields: Mapping[str, Any] | None) -> LastCommit | None:
    return None if fields is None else LastCommit(*(_text(fields, key) for key in ("commit", "finalPath", "time")))


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} is {value!r}, not text")
    return value


def _texts(fields: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = fields[key]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{key} is {values!r}, not a list of texts")
    return tuple(values)
