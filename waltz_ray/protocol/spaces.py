"""Spaces: named runs of a cluster's partitions. What they are, what may become of them, and the rules about it. Pure.

A cluster's partitions are numbered 0 .. N - 1, and N only grows. A space is a contiguous run of them, with a kind and
settings. Its clients number its partitions from 0; on the wire, on disk and in ZooKeeper they keep their numbers in the
cluster. Neither a name nor a number is ever used again: a space that is deleted stays where it is, as *gone*.

::

    create: N raised ──► MAKING ── every partition has a published session ──► READY
                            │                                                    │
                            └───────────────── delete ────────► GONE ◄───────────┘
                                            unassigned, then its files removed
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from waltz_ray.errors import InvalidInput, SpaceGone, SpaceNotFound
from waltz_ray.protocol.placement import Assignment
from waltz_ray.protocol.value import value

__all__ = [
    "DEFAULT_SPACE",
    "KINDS",
    "KV_SPACE",
    "SETTINGS",
    "KV_PARTITIONS",
    "OFFSETS_PARTITIONS",
    "OFFSETS_SPACE",
    "MOST_PARTITIONS",
    "MOST_TOPIC_PARTITIONS",
    "MOST_KV_PARTITIONS",
    "Space",
    "SpaceState",
    "SpaceTable",
    "changed_settings",
    "checked_count",
    "checked_kind",
    "checked_space_name",
    "first_settings",
    "most_partitions",
    "removable",
]

DEFAULT_SPACE = "log"
"""The space that a new cluster has, over all its partitions; it cannot be deleted."""

KV_SPACE = "kv"
"""The space that a cluster has once it has kv actors."""

OFFSETS_SPACE = "topic-offsets"
"""The space, of kind ``kv``, that a cluster has once it has topic actors: where groups of consumers are."""

OFFSETS_PARTITIONS = 4

MOST_TOPIC_PARTITIONS = 1024
"""Of a space of kind ``topic``: each is served by a slot, which has a port."""

KINDS = ("log", "kv", "topic")

KV_PARTITIONS = 16
"""Of a space of kind ``kv``, unless somebody says another power of two."""

MOST_KV_PARTITIONS = 4096
"""Its buckets under the finest mask: each lies in one partition."""

SETTINGS = ("compact", "max_message_bytes", "retention_bytes", "retention_ms")
"""What may be set: how much of each partition, and for how long, somebody wants to keep, numbers >= 0; whether its
layer raises the trim marks itself, 0 or 1 (docs/retention.md, "Policies"); of a topic how large a message may be."""

_KEPT = {"retention_bytes", "retention_ms"}

_NAME = re.compile("[a-z0-9_-]{1,64}")

MOST_PARTITIONS = 1 << 20
"""Of a cluster: far more than its nodes in ZooKeeper have room for. What says that it has more is damaged or forged,
and nobody counts so far."""

_NODE_BYTES = 768 * 1024  # of the 1 MiB that a ZooKeeper node may have; the rest is for names and for what is to come
_PREFERRED_BYTES = 12  # of a partition's number in the JSON of ``store/preferred``
_ASSIGNED_BYTES = 4  # of one beside each of its replicas in ``store/assignment``
_TRIMMED_BYTES = 32  # of one and its mark in the JSON of ``store/trims``


class SpaceState(enum.Enum):
    """MAKING: its partitions are being made; READY: each has had a session; GONE: deleted, for ever."""

    MAKING = "making"
    READY = "ready"
    GONE = "gone"


@value()
class Space:
    """``count`` partitions, of which the first has the number ``first`` in the cluster."""

    name: str
    kind: str
    first: int
    count: int
    state: SpaceState
    settings: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.first < 0 or self.count < 0 or self.first + self.count > MOST_PARTITIONS:
            raise ValueError(f"a space of {self.count} partitions from {self.first} on is impossible")

    @property
    def partitions(self) -> range:
        """Their numbers in the cluster."""
        return range(self.first, self.first + self.count)

    def in_state(self, state: SpaceState) -> Space:
        return replace(self, state=state)


@value()
class SpaceTable:
    """All spaces of a cluster with ``partitions`` partitions, gone ones too."""

    partitions: int
    spaces: Mapping[str, Space]

    def __post_init__(self) -> None:
        if not 0 <= self.partitions <= MOST_PARTITIONS:
            raise ValueError(f"a cluster of {self.partitions} partitions is impossible")

    def named(self, name: str, cluster: str) -> Space:
        """The space of that name. SpaceGone, SpaceNotFound (which names those there are)."""
        space = self.spaces.get(name)
        if space is None:
            there = ", ".join(each.name for each in self.present())
            raise SpaceNotFound(f"cluster {cluster!r} has no space {name!r}; it has: {there}")
        if space.state is SpaceState.GONE:
            raise SpaceGone(
                f"space {name!r} of cluster {cluster!r} was deleted, with all its records; names are not used again"
            )
        return space

    def present(self) -> list[Space]:
        """Those that were not deleted, in the order of their partitions."""
        found = (each for each in self.spaces.values() if each.state is not SpaceState.GONE)
        return sorted(found, key=lambda each: each.first)

    @property
    def making(self) -> list[Space]:
        """What somebody has to finish."""
        return [each for each in self.present() if each.state is SpaceState.MAKING]

    @property
    def gone(self) -> frozenset[int]:
        """The partitions of deleted spaces."""
        return frozenset(p for each in self.spaces.values() if each.state is SpaceState.GONE for p in each.partitions)

    @property
    def has_grown(self) -> bool:
        """Partitions were added to those that the cluster was made with."""
        return len(self.spaces) > 1

    @property
    def kept(self) -> list[int]:
        """The partitions of all others."""
        gone = self.gone
        return [p for p in range(self.partitions) if p not in gone]


def checked_space_name(name: object) -> str:
    """InvalidInput if it cannot be the name of a space."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(f"{name!r:.60} cannot name a space: take 1 to 64 of a-z, 0-9, _ and -")
    return name


def checked_kind(kind: object) -> str:
    """InvalidInput if there is none such."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidInput(f"there are spaces of the kinds {', '.join(KINDS)}, not {kind!r:.60}")
    return kind


def checked_count(kind: str, count: object) -> int:
    """How many partitions a new space has; None: as its kind has it. InvalidInput if it cannot have so many."""
    if count is None:
        if kind == "kv":
            return KV_PARTITIONS
        raise InvalidInput(f"a space of kind {kind} has as many partitions as you say: say how many")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidInput(f"a space needs at least one partition, not {count!r:.60}")
    if kind == "kv" and (count & (count - 1) or count > MOST_KV_PARTITIONS):
        raise InvalidInput(
            f"a space of kind kv has 1, 2, 4, 8 ... or {MOST_KV_PARTITIONS} partitions, not {count}; "
            f"take {KV_PARTITIONS}"
        )
    if kind == "topic" and count > MOST_TOPIC_PARTITIONS:
        raise InvalidInput(f"a topic has at most {MOST_TOPIC_PARTITIONS} partitions, not {count}")
    return count


def first_settings(kind: str, settings: Mapping[str, Any]) -> dict[str, int]:
    """Of a new space. Of kind kv it is compacted, unless ``compact`` is given: then all of its log is kept.

    InvalidInput as of ``changed_settings``.
    """
    return changed_settings({"compact": 1} if kind == "kv" else {}, settings, kind)


def changed_settings(before: Mapping[str, int], changes: Mapping[str, Any], kind: str = "log") -> dict[str, int]:
    """``before`` with ``changes``; None takes a setting away. InvalidInput for an unknown one, one that a space of this
    ``kind`` has no use for, or no number >= 0."""
    after = dict(before)
    for name, wanted in changes.items():
        if name not in SETTINGS:
            raise InvalidInput(f"a space has no setting {name!r:.60}; it has: {', '.join(SETTINGS)}")
        if wanted is None:
            after.pop(name, None)
        elif isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
            raise InvalidInput(f"{name} must be a whole number >= 0, or none, not {wanted!r}")
        elif name == "compact" and wanted > 1:
            raise InvalidInput(f"compact is 1 or 0, not {wanted}")
        elif name == "max_message_bytes" and (kind != "topic" or wanted < 1):
            raise InvalidInput(f"max_message_bytes is of spaces of kind topic, at least 1: not {wanted} of kind {kind}")
        else:
            after[name] = wanted
    if kind == "kv" and _KEPT & after.keys():
        raise InvalidInput(
            "retention would give up items that are alive, and then nobody could serve a space of kind kv again: set "
            "no retention_ms, retention_bytes; compact=1 keeps its log short"
        )
    if after.get("compact") and _KEPT & after.keys():
        raise InvalidInput(
            "with compact=1 the space's layer raises the trim marks: set no retention_ms, retention_bytes"
        )
    return after


def most_partitions(replicas: int) -> int:
    """How many partitions a cluster may have: its longest ZooKeeper node must hold them, see docs/formats.md."""
    return _NODE_BYTES // max(_PREFERRED_BYTES, _TRIMMED_BYTES, _ASSIGNED_BYTES * replicas)


def removable(table: SpaceTable, assignment: Assignment) -> frozenset[int]:
    """The partitions whose files may be removed: their space was deleted, and no server has them any more."""
    return frozenset(p for p in table.gone if assignment.owner(p) is None)
