"""Random walks in which an operator adds and removes replicas at any moment, also while a session opens.

No damage here: a set that shrinks while another copy rots has fewer good disks than the quorum promises.
"""

from __future__ import annotations

import pytest

from tests.protocol.checkers import Violation
from tests.protocol.model_replica import records_of
from tests.protocol.world import Server, World
from tests.simulation.mutations import WALKED
from waltz_ray.protocol.roster import Roster

REPLICAS = 5
SMALLEST = 3
FAULTS = ("cut", "replica_crash", "server_crash", "move", "twin", "zookeeper", "lost_ack", "assign", "assign", "assign")
SEEDS = 120
FOUND = [1289]  # a replica that was removed and added again was vouched for with its old files
TEETH_SEEDS = 600


class SetWorld(World):
    """Five replicas, of which an operator assigns three to five; in the end all of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, replicas=REPLICAS, faults=FAULTS)
        self.zookeeper.roster = Roster.initial(range(self.random.choice([3, 4, 5])))
        self.changes = 0

    def _fault(self, kind: str) -> None:
        if kind == "assign":
            size = self.random.randint(SMALLEST, REPLICAS)
            self._assign(self.random.sample(range(REPLICAS), size))
        else:
            super()._fault(kind)

    def _assign(self, replica_ids: list[int]) -> None:
        before = self.zookeeper.roster
        try:
            self.zookeeper.roster = before.with_replicas(replica_ids)
        except ValueError as refused:
            self.tell(f"operator: {sorted(replica_ids)} refused: {refused}")
            return
        self.zookeeper.version += 1
        self.changes += before.replicas.keys() != self.zookeeper.roster.replicas.keys()
        self.tell(f"operator: {self.zookeeper.roster}")

    def _watch_high_water_mark(self, server: Server) -> None:
        """A commit may rest on a replica that was removed meanwhile, so here one disk that holds it must do.

        That it is never lost is checked at every publication and at the end.
        """
        for transaction_id in range(len(self.committed), server.partition.high_water_mark + 1):
            own = server.partition.recent(transaction_id, transaction_id + 1)
            held = [r.log[transaction_id] for r in self.replicas.values() if r.durable > transaction_id]
            record = records_of(own[0])[0] if own else max(held, key=held.count)
            if record not in held:
                raise Violation(f"{transaction_id} counts as committed, but is on no disk")
            self.committed.append(record)
        super()._watch_high_water_mark(server)

    def heal(self) -> None:
        self._assign(list(range(REPLICAS)))
        super().heal()


def walk(seeds: int) -> tuple[int, int]:
    """(commits, changes of the set) over all walks."""
    committed = changes = 0
    for seed in range(seeds):
        world = SetWorld(seed)
        committed += world.run(500).committed
        changes += world.changes
    return committed, changes


def test_no_loss_and_no_fork_while_replicas_come_and_go() -> None:
    committed, changes = walk(SEEDS)
    assert committed > 10 * SEEDS
    assert changes > 3 * SEEDS


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_stays_found(seed: int) -> None:
    assert SetWorld(seed).run(500).committed > 0


def test_forgetting_the_quorum_of_the_last_session_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Teeth: count with the quorum of the present set, as it was before."""
    WALKED["removal_forgets_the_published_quorum"](monkeypatch)
    with pytest.raises(Violation, match="seed"):
        walk(TEETH_SEEDS)
