"""Which replicas hold which partition of a cluster that has more replicas than each partition needs.

A pure function of what is fixed when the cluster is made, so that whoever makes partitions, at whatever time and
however often, arrives at the same sets: two managers that make a space at once, or one that goes on after a crash.
The sets rule only where a partition is made: from then on its record (``roster.py``) says who holds it.

One replica after the other is taken into a partition's set. The next one is, in this order: in the zone of which the
set has the fewest so far, on the node of which it has the fewest, with the fewest partitions, with the fewest in common
with those in the set (so that the partitions of a replica that is lost are spread over all others, and all of those
help to copy it), of the lowest number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from waltz_ray.protocol.placement import NodeView
from waltz_ray.protocol.value import value

__all__ = ["ReplicaPlace", "choose_sets", "locate", "nowhere_in_particular"]


@value()
class ReplicaPlace:
    """What may be lost at once with a replica: its node's address, and the zone of that node; "" = not known, which
    counts as one and the same place."""

    node: str = ""
    zone: str = ""


def nowhere_in_particular(replica_ids: Sequence[int]) -> dict[int, ReplicaPlace]:
    """The places of replicas of which nobody knows where they are."""
    return dict.fromkeys(replica_ids, ReplicaPlace())


def locate(placement: Mapping[int, str], nodes: Sequence[NodeView]) -> dict[int, ReplicaPlace]:
    """Where the replicas are that are tied to these Ray resources (``placement.place_replicas``)."""
    homes = {resource: ReplicaPlace(node.address, node.zone) for node in nodes for resource in sorted(node.resources)}
    return {replica_id: homes.get(resource, ReplicaPlace()) for replica_id, resource in placement.items()}


def choose_sets(places: Mapping[int, ReplicaPlace], replication: int) -> Iterator[tuple[int, ...]]:
    """The replicas, in rising order, of partition 0, of partition 1 and so on, without an end.

    ``places``: replica -> where it is. ValueError if there are fewer than ``replication``.
    """
    if not 0 < replication <= len(places):
        raise ValueError(f"{replication} of {len(places)} replicas cannot hold a partition")
    if replication == len(places):
        everybody = tuple(sorted(places))
        while True:
            yield everybody
    chooser = _Chooser(places)
    while True:
        yield chooser.next_set(replication)


class _Chooser:
    """``_loads``: how many partitions each replica has so far; ``_in_common``: with each other one."""

    def __init__(self, places: Mapping[int, ReplicaPlace]) -> None:
        self._places = dict(sorted(places.items()))
        self._loads = dict.fromkeys(self._places, 0)
        self._in_common = {replica_id: dict.fromkeys(self._places, 0) for replica_id in self._places}

    def next_set(self, replication: int) -> tuple[int, ...]:
        chosen: list[int] = []
        zones: Counter[str] = Counter()
        nodes: Counter[str] = Counter()

        def preference(replica_id: int) -> tuple[int, int, int, int, int]:
            place = self._places[replica_id]
            in_common = self._in_common[replica_id]
            return (
                zones[place.zone],
                nodes[place.node],
                self._loads[replica_id],
                sum(in_common[other] for other in chosen),
                replica_id,
            )

        for _ in range(replication):
            best = min((r for r in self._places if r not in chosen), key=preference)
            chosen.append(best)
            zones[self._places[best].zone] += 1
            nodes[self._places[best].node] += 1
        self._note(chosen)
        return tuple(sorted(chosen))

    def _note(self, chosen: list[int]) -> None:
        for replica_id in chosen:
            self._loads[replica_id] += 1
            for other in chosen:
                self._in_common[replica_id][other] += 1
