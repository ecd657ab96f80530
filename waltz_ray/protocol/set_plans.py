"""Where partitions shall be, when replicas come or go: from the sets as they are to the sets as they should be.

Pure and deterministic: who asks again, of the same, gets the same. As few partitions as possible move. What is better
is what ``replica_sets.py`` would choose: spread over zones first, then over nodes, then equal loads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.replica_sets import ReplicaPlace

__all__ = ["Sets", "balanced", "checked_set", "crowding", "kept_on", "loads_of", "moved_off"]

Sets = Mapping[int, frozenset[int]]
"""partition -> the replicas that it is on, or is to be on."""

_LARGEST_SET = 5


def loads_of(sets: Sets, replicas: Iterable[int]) -> dict[int, int]:
    """How many partitions are on each of these."""
    counts = Counter(replica_id for one in sets.values() for replica_id in one)
    return {replica_id: counts[replica_id] for replica_id in replicas}


def crowding(one: Iterable[int], places: Mapping[int, ReplicaPlace]) -> tuple[int, int]:
    """How many pairs of a set share a zone, and how many a node: each is lost at once."""
    known = [places.get(replica_id, ReplicaPlace()) for replica_id in one]
    zones, nodes = Counter(at.zone for at in known), Counter(at.node for at in known)
    return _pairs(zones), _pairs(nodes)


def _pairs(counts: Counter[str]) -> int:
    return sum(count * (count - 1) // 2 for count in counts.values())


def moved_off(sets: Sets, staying: Mapping[int, ReplicaPlace]) -> dict[int, frozenset[int]]:
    """Of the partitions that are on somebody who does not stay, the sets that they shall have instead.

    InvalidInput if a set has more replicas than stay.
    """
    loads = loads_of(sets, staying)
    changed: dict[int, frozenset[int]] = {}
    for p, one in sorted(sets.items()):
        kept = frozenset(one) & staying.keys()
        while len(kept) < len(one):
            free = [r for r in staying if r not in kept]
            if not free:
                raise InvalidInput(f"partition {p} is on {len(one)} replicas, and only {len(staying)} are left")
            best = min(free, key=lambda r: (*crowding({*kept, r}, staying), loads[r], r))
            loads[best] += 1
            kept |= {best}
        if kept != one:
            changed[p] = kept
    return changed


def kept_on(number: int, now: frozenset[int], wanted: frozenset[int], staying: Iterable[int]) -> frozenset[int]:
    """The set of a partition that was to leave replica ``number``, and is on ``now`` so far, if it is to stay there.

    As large as was wanted, of replicas that stay: on its way a partition is on more, and some may be drained, too.
    """
    there = now & frozenset(staying)
    order = [number, *sorted(there & wanted), *sorted(there - wanted), *sorted(wanted - there)]
    return frozenset(list(dict.fromkeys(order))[: len(wanted)])


def balanced(sets: Sets, staying: Mapping[int, ReplicaPlace]) -> dict[int, frozenset[int]]:
    """Of the partitions that should move, so that sets are spread and loads equal, the sets that they shall have.

    Each exchange of one replica for another makes the whole better, so there is an end; nothing moves that would only
    be different. InvalidInput as of ``moved_off``.
    """
    wanted = {**{p: frozenset(one) for p, one in sets.items()}, **moved_off(sets, staying)}
    loads = loads_of(wanted, staying)
    while better := _better(wanted, loads, staying):
        for p, gives, takes in better:
            wanted[p] = wanted[p] - {gives} | {takes}
    return {p: one for p, one in sorted(wanted.items()) if one != sets[p]}


def _better(
    wanted: Mapping[int, frozenset[int]], loads: dict[int, int], staying: Mapping[int, ReplicaPlace]
) -> list[tuple[int, int, int]]:
    """One round: of each partition the exchange that helps most, if one does; ``loads`` follow."""
    found = []
    for p, one in sorted(wanted.items()):
        now = crowding(one, staying)
        choices = []
        for gives in one:
            for takes in staying.keys() - one:
                zones, nodes = crowding(one - {gives} | {takes}, staying)
                gain = (zones - now[0], nodes - now[1], loads[takes] + 1 - loads[gives])
                if gain < (0, 0, 0):
                    choices.append((gain, gives, takes))
        if choices:
            _, gives, takes = min(choices)
            loads[gives] -= 1
            loads[takes] += 1
            found.append((p, gives, takes))
    return found


def checked_set(replicas: Iterable[int], staying: Iterable[int], replication: int) -> frozenset[int]:
    """The set that a person has asked for. InvalidInput says what it must be."""
    numbers, there = list(replicas), sorted(staying)
    one = frozenset(numbers)
    if len(one) < len(numbers):
        raise InvalidInput(f"a partition is on different replicas, not on {numbers}")
    if strangers := sorted(one - set(there)):
        raise InvalidInput(
            f"replica {strangers[0]} can be given no partition: it does not belong to the cluster, or is drained; "
            f"there are {', '.join(map(str, there))}"
        )
    if len(one) < replication:
        raise InvalidInput(f"a partition of this cluster is on {replication} replicas at least, not on {len(one)}")
    if len(one) != replication and (len(one) % 2 == 0 or len(one) > _LARGEST_SET):
        raise InvalidInput(f"a partition can be on {replication}, or on 3 or 5, replicas, not on {len(one)}")
    return one
