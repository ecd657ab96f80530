"""Spaces come and go while everything else goes wrong: in the histories of seeds that have the bit ``GROWS``.

All others are what they were before there were spaces: nobody watches any there, and nothing is drawn for them.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.clients import SimClient
from waltz_ray.protocol.messages.client import FeedMode
from waltz_ray.protocol.spaces import DEFAULT_SPACE, Space, SpaceState

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["GROWS", "Growth"]

GROWS = 1 << 24

_MOST = 3  # spaces of a history


class Growth:
    """The person who adds spaces to the cluster and deletes them."""

    def __init__(self, world: World, random: Random) -> None:
        self.world, self.random = world, random
        self.store = world.operator_store.spaces
        self.made = 0

    def create(self) -> bool:
        """A space, and an application that uses it."""
        if self.made == _MOST:
            return False
        space = self.store.create(f"s{self.made}", self.random.choice([1, 1, 2]))
        if self.random.random() < 0.3:
            self._leave_half_made()
        self.made += 1
        self.world.history.grow(space.partitions.stop)
        self.tell(f"creates {space.name} over {list(space.partitions)}")
        mode = self.random.choice([FeedMode.RECORDS, FeedMode.HEADERS, FeedMode.OWN])
        number = len(self.world.clients)
        client = SimClient(self.world, number, mode, Random(self.random.getrandbits(64)), 0.1, space)
        self.world.clients.append(client)
        client.start()
        return True

    def _leave_half_made(self) -> None:
        """The manager does not hear what becomes of its next writes, which are likely to be those for the space."""
        client = self.world.manager.zookeeper
        if client is not None:
            client.lose_answers, client.lose_requests = self.random.choice([(1, 0), (0, 1), (2, 1)])
            self.world.history.faults["growth interrupted"] += 1

    def delete(self) -> bool:
        """A space goes, whatever is under way in it. Not those of layers: all that is asked of them is in the one space
        that they have here."""
        present = [s for s in self.store.table().present() if s.name != DEFAULT_SPACE and s.kind == "log"]
        if not present:
            return False
        space = self.random.choice(present)
        self.tell(f"deletes {space.name}")
        self.store.delete(space.name, space.name)
        return True

    @property
    def living(self) -> list[int]:
        """All partitions but those of deleted spaces."""
        return self.store.table().kept

    @property
    def gone(self) -> list[int]:
        return sorted(self.store.table().gone)

    def spaces_ready(self) -> bool:
        """Everything that was made is ready."""
        return not self.store.table().making

    def files_removed(self) -> bool:
        """No replica of the cluster has anything of a deleted space."""
        replicas = [replica for replica in self.world.replicas if not replica.retired]
        return all(replica.removed(p) for replica in replicas for p in self.gone)

    def state(self) -> str:
        """For who waits in vain."""
        return str([(space.name, space.state.value) for space in self.store.table().spaces.values()])

    def tell(self, what: str) -> None:
        self.world.story.tell("operator", what)


def is_gone(world: World, space: Space) -> bool:
    """Whether it has been deleted by now."""
    return world.operator_store.spaces.table().spaces[space.name].state is SpaceState.GONE
