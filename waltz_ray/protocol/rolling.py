"""A rolling upgrade: actors are started again one at a time, each with the code that its node has by then.

Servers first, then replicas, then layers, the manager last. Which are done is told by their processes: an actor whose
process is not the one of the beginning has been started again, by whomever. So an upgrade that was interrupted goes on
with what is left, and never does anything twice.

Where settings have been changed, the processes of the beginning are those that are seen after that: one that crashed
just before may have read the old ones, whatever process was known then. Until that look they are ``UNSEEN``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.value import value

__all__ = ["UNSEEN", "RollingUpgrade", "in_order"]

UNSEEN = 0
"""In the place of a process: it is not known yet which one is to end."""

_KINDS = ("server", "replica", "kv", "topic", "cluster-manager")


def in_order(actors: Iterable[str]) -> list[str]:
    """In which order they are started again; what is not of the cluster's own code is left out."""

    def place(name: str) -> tuple[int, int]:
        kind, _, number = name.partition("/")
        return _KINDS.index(kind), int(number or 0)

    return sorted((name for name in actors if name.partition("/")[0] in _KINDS), key=place)


@value()
class RollingUpgrade:
    """``before``: the process that each actor had when it began; ``drained``: the server that has been drained for it,
    and is to be kept when its process is another one."""

    before: Mapping[str, int] = field(default_factory=dict)
    drained: int | None = None

    @classmethod
    def of_fields(cls, fields: Mapping[str, object]) -> RollingUpgrade:
        """From a node's fields; ValueError, TypeError or KeyError for what is none."""
        before, drained = fields["before"], fields["drained"]
        if not isinstance(before, dict) or not all(type(pid) is int for pid in before.values()):
            raise ValueError(f"'before' is no table of processes: {before!r:.100}")
        if not (drained is None or type(drained) is int):
            raise ValueError(f"'drained' is no server: {drained!r:.100}")
        in_order(before)  # each has a number
        return cls(before, drained)

    def fields(self) -> dict[str, object]:
        """As ``of_fields`` takes them."""
        return {"before": dict(self.before), "drained": self.drained}

    def left(self, processes: Mapping[str, int | None]) -> list[str]:
        """Who has still to be started again, in order. ``processes``: those there are now, None of who says nothing.

        Who was not there at the beginning, or is not there any more, is of no interest.
        """
        return [
            name
            for name in in_order(self.before)
            if name in processes and (self.before[name] == UNSEEN or processes[name] in (None, self.before[name]))
        ]

    @property
    def looked(self) -> bool:
        """Whether it is known which processes are to end."""
        return UNSEEN not in self.before.values()

    def seeing(self, processes: Mapping[str, int | None]) -> RollingUpgrade:
        """The same, of the processes that there are now; of an actor that is gone there is nothing to do."""
        now = {name: pid for name in self.before if (pid := processes.get(name)) is not None}
        return replace(self, before=now)

    def draining(self, server: int | None) -> RollingUpgrade:
        """The same, with that server drained. InvalidInput if another one is."""
        if server is not None and self.drained not in (None, server):
            raise InvalidInput(f"server {self.drained} is drained for the upgrade; server {server} has to wait")
        return replace(self, drained=server)
