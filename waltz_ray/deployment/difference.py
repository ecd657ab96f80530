"""What would have to change for a cluster to be as its file says, and what of it cannot be: a pure comparison.

Only what the file says is compared. The shape that a cluster was made with stands; settings are changed by starting
who reads them again (``stages.py``), layers get more actors, spaces are added and theirs changed, while it runs.
Nothing is ever taken away because a file does not name it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from waltz_ray.config import ClusterConfig
from waltz_ray.deployment.file import Deployment
from waltz_ray.deployment.stages import can_change, impossible
from waltz_ray.protocol.spaces import DEFAULT_SPACE, KV_SPACE, OFFSETS_SPACE, Space, SpaceState

__all__ = ["RESTART", "Change", "SeenCluster", "Verb", "difference", "space_changes", "with_settings"]

_FIXED = "was decided when the cluster was made"
_WHY_FIXED = {
    "partitions": f"{_FIXED}; add a space for more of them",
    "replication": f"{_FIXED}, as every partition's place was",
    "replicas": f"{_FIXED}; further ones come and go by: waltz replica add, drain, remove",
    "servers": f"{_FIXED}; further ones come and go by: waltz server add, drain, remove",
    "disks": f"{_FIXED}; a replica moves with its disk, and a lost one is replaced by: waltz replace-replica",
    "directory": f"{_FIXED}: another directory is another cluster",
    "name": f"{_FIXED}: another name is another cluster",
    "zookeeper": f"{_FIXED}: the cluster lives in the ZooKeeper that it has",
}
_OF_LAYERS = {DEFAULT_SPACE, KV_SPACE, OFFSETS_SPACE}  # which come by themselves
_LAYERS = {"kv.actors": "kv", "topics.actors": "topic"}

RESTART = "who reads it is started again, one process after the other"
"""The ``why`` of a setting that is changed."""


class Verb(enum.Enum):
    """ADD: something new; CHANGE: done while it runs; REFUSE: cannot be done; NOTE: nothing is done about it."""

    ADD = "add"
    CHANGE = "change"
    REFUSE = "refuse"
    NOTE = "note"


@dataclass(frozen=True)
class Change:
    """``what``: a path in the file; ``line``: its line there, 0 if it is not there; ``why``: of REFUSE, NOTE."""

    verb: Verb
    what: str
    before: Any
    after: Any
    line: int = 0
    why: str = ""


@dataclass(frozen=True)
class SeenCluster:
    """A cluster as its ZooKeeper has it: what it was made with, the actors of each layer, its spaces."""

    config: ClusterConfig
    layers: Mapping[str, int]
    spaces: Sequence[Space]


def difference(deployment: Deployment, seen: SeenCluster) -> list[Change]:
    """In the order of the file. Empty: the cluster is as the file says."""
    of_config = list(_of_config(deployment, seen))
    refused = dict(impossible(seen.config, with_settings(seen.config, of_config)))
    return [
        *(
            replace(each, verb=Verb.REFUSE, why=refused[each.what]) if each.what in refused else each
            for each in of_config
        ),
        *_of_spaces(deployment, seen),
    ]


def with_settings(config: ClusterConfig, changes: Sequence[Change]) -> ClusterConfig:
    """With what these change of its settings. ConfigError if they do not go together."""
    sections: dict[str, dict[str, Any]] = {}
    for each in changes:
        section, _, name = each.what.partition(".")
        if each.verb is Verb.CHANGE and can_change(each.what):
            sections.setdefault(section, {})[name] = each.after
    return replace(config, **{name: replace(getattr(config, name), **values) for name, values in sections.items()})


def _of_config(deployment: Deployment, seen: SeenCluster) -> Iterator[Change]:
    for path, wanted in _leaves(deployment.cluster):
        if not deployment.says(path):
            continue
        line = deployment.lines[path]
        if path in _LAYERS:
            there = seen.layers.get(_LAYERS[path], 0)
            if wanted > there:
                yield Change(Verb.CHANGE, path, there, wanted, line)
            elif wanted < there:
                why = "actors of a layer are not taken away: there are clients that know only their ports"
                yield Change(Verb.REFUSE, path, there, wanted, line, why)
            continue
        there = _at(seen.config, path)
        if there == wanted:
            continue
        if path == "zookeeper" and there and wanted:
            why = "the cluster's actors keep the addresses that they were made with"
            yield Change(Verb.NOTE, path, there, wanted, line, why)
        elif can_change(path):
            yield Change(Verb.CHANGE, path, there, wanted, line, RESTART)
        else:
            top = path.partition(".")[0].partition("[")[0]
            yield Change(Verb.REFUSE, path, there, wanted, line, _WHY_FIXED.get(top, _FIXED))


def _of_spaces(deployment: Deployment, seen: SeenCluster) -> Iterator[Change]:
    there = {space.name: space for space in seen.spaces}
    for name in deployment.spaces:
        yield from space_changes(deployment, name, there.get(name))
    left_out = (there.keys() - deployment.spaces.keys() - _OF_LAYERS) if deployment.spaces else set()
    for name in sorted(left_out):
        if there[name].state is not SpaceState.GONE:
            why = f"it is not in the file, and left as it is; waltz space delete {name} removes it"
            yield Change(Verb.NOTE, f"spaces.{name}", there[name].kind, None, 0, why)


def space_changes(deployment: Deployment, name: str, there: Space | None) -> Iterator[Change]:
    """What would have to change of one space of the file; ``there``: as it is now."""
    path, wanted, settings = f"spaces.{name}", deployment.spaces[name], deployment.space_settings(name)
    line = deployment.lines[path]
    if there is None:
        told = {key: value for key, value in settings.items() if value is not None}
        yield Change(Verb.ADD, path, None, {"kind": wanted.kind, "partitions": wanted.partitions} | told, line)
        return
    if there.state is SpaceState.GONE:
        why = "a space of that name was deleted, and names are not used again; take another"
        yield Change(Verb.REFUSE, path, "gone", wanted.kind, line, why)
        return
    for key, has in (("kind", there.kind), ("partitions", there.count)):
        says, where = getattr(wanted, key), f"{path}.{key}"
        if name != DEFAULT_SPACE and says not in (None, has):
            why = "was decided when the space was made; add another space"
            yield Change(Verb.REFUSE, where, has, says, deployment.lines.get(where, line), why)
    for key, says in settings.items():
        if there.settings.get(key) != says:
            where = f"{path}.{key}"
            yield Change(Verb.CHANGE, where, there.settings.get(key), says, deployment.lines[where])


def _leaves(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value in the tree, by its path; a list is one value."""
    for name, value in vars(config).items():
        where = f"{path}{name}"
        if is_dataclass(value):
            yield from _leaves(value, f"{where}.")
        else:
            yield where, value


def _at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config
