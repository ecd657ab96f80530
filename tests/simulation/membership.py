"""Servers join and leave the cluster: in the histories of seeds with the bit ``SERVERS``.

What a person does is done by the real ``Members``; the real manager follows it. Processes begin when their server is
added, and end some time after it was removed. All other histories are what they were: there as many servers as there
are at first belong to the cluster for good.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.history import Violation
from tests.simulation.moves import SimMembers
from waltz_ray.errors import InvalidInput

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["MOST_MORE", "SERVERS", "Membership"]

SERVERS = 1 << 34

MOST_MORE = 3
"""So many servers are added at the most: numbers never come twice."""

_LIVES_ON_S = (0.0, 0.0, 0.3, 2.0)


class Membership:
    """The person who adds, drains and removes servers."""

    def __init__(self, world: World, random: Random, servers: int) -> None:
        """``servers``: how many belong to the cluster when it is made; the others of the world may be added."""
        self.world, self.random = world, random
        self.members = SimMembers(world.operator_store)
        for _ in range(servers):
            self.members.add_server()
        for server in world.servers[servers:]:
            server.retired = True
        self.kinds: dict[str, Callable[[], bool]] = {
            "server added": self._add,
            "server drained": self._drain,
            "drain of a server cancelled": self._keep,
            "server removed": self._remove,
        }

    def _do(self, what: str, act: Callable[[], Any]) -> bool:
        try:
            act()
        except InvalidInput as error:
            self._tell(f"{what} is refused: {error}")
            return False
        self._tell(what)
        return True

    def _add(self) -> bool:
        number = self.members.membership.next_server
        if number >= len(self.world.servers):
            return False
        done = self._do(f"add server {number}", self.members.add_server)
        server = self.world.servers[number]
        server.retired = False
        server.start()
        return done

    def _drain(self) -> bool:
        number = self.random.choice(sorted(self.members.membership.servers))
        return self._do(f"drain server {number}", lambda: self.members.drain_server(number))

    def _keep(self) -> bool:
        draining = sorted(self.members.membership.draining_servers)
        if not draining:
            return False
        number = self.random.choice(draining)
        return self._do(f"keep server {number}", lambda: self.members.keep_server(number))

    def _remove(self) -> bool:
        draining = sorted(self.members.membership.draining_servers)
        return bool(draining) and self._removed(self.random.choice(draining))

    def _removed(self, number: int) -> bool:
        if not self._do(f"remove server {number}", lambda: self.members.remove_server(number)):
            return False
        if has := self._partitions_of(number):
            raise Violation("servers", f"server {number} is removed, and has partitions {has}")
        server = self.world.servers[number]
        server.retired = True  # whoever looks after actors ends it, some time
        why = "it belongs to the cluster no more"
        self.world.scheduler.after(self.random.choice(_LIVES_ON_S), server.kill, why)
        return True

    def reached(self) -> bool:
        """Who is drained has nothing and is removed, and every partition is with somebody who stays."""
        for number in sorted(self.members.membership.draining_servers):
            if self._partitions_of(number):
                return False
            if not self._removed(number):
                raise Violation("servers", f"server {number} is drained, has no partition, and cannot be removed")
        owners = {server.server_id for server in self.world.servers if self._partitions_of(server.server_id)}
        return owners <= self.members.membership.servers

    def _partitions_of(self, number: int) -> list[int]:
        return sorted(self.world.operator_store.assignment()[0].partitions_of(number))

    def state(self) -> str:
        """For who waits in vain."""
        return f"{self.members.membership}, {self.world.operator_store.assignment()[0]}"

    def _tell(self, what: str) -> None:
        self.world.story.tell("operator", what)
