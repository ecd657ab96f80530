"""A replica gives up what was moved away from it, and nothing that anybody may still count on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.helpers import records
from waltz_ray.actors.own_sets import OwnSets
from waltz_ray.config import StorageConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.errors import OutOfResources
from waltz_ray.protocol.messages.replica import Append, Open, Refused
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry, Roster
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.storage.store import ReplicaStore

OWN, PARTITIONS = 1, 2


class Bench:
    def __init__(self, path: Path) -> None:
        self.store = ClusterStore(MemoryZooKeeperServer().client(), "c")
        self.key = self.store.initialize(PARTITIONS, range(4), {}, 3).cluster_key
        self.disk = ReplicaStore.create(OsDisk(), str(path / "replica"), self.key, PARTITIONS, StorageConfig())
        self.service = ReplicaService(self.disk)
        self.changes = 0
        self.sets = self.new_sets()

    def new_sets(self) -> OwnSets:
        """As of a replica that starts."""

        def changed() -> None:
            self.changes += 1

        sets = OwnSets(OWN, False, changed)
        self.store.moves.watch(sets.seen)
        return sets

    def published(self, p: int, session_id: int, replicas: tuple[int, ...]) -> None:
        """A session of partition ``p`` on these."""
        _, version = self.store.roster(p)
        member = ReplicaEntry(session_id, UNRESOLVED)
        self.store.set_roster(p, Roster(session_id, 1, dict.fromkeys(replicas, member)), version)

    def written(self, p: int, session_id: int, first_id: int, count: int) -> None:
        """By a server that has opened this session here."""
        batch = records(first_id, count, partition_id=p)
        append = Append(p, session_id, batch.first_id, batch.lengths, batch.records)
        for reply in self.service.handle([Open(p, session_id, self.key, -1, f"{session_id}"), append]):
            assert not isinstance(reply, Refused), reply

    def moved(self, p: int, replicas: tuple[int, ...]) -> None:
        """What is wanted has been reached."""
        self.store.moves.want({p: replicas})
        self.store.moves.done(p, frozenset(replicas))

    def follow(self) -> None:
        self.sets.follow(self.store, self.service)

    def last_id(self, p: int) -> int:
        return self.disk.partition(p).last_id


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    for p in range(PARTITIONS):
        bench.published(p, 5, (0, OWN, 2))
        bench.written(p, 5, 0, 10)
    bench.follow()
    yield bench
    bench.disk.close()


def test_what_was_moved_away_is_given_up_and_the_rest_is_kept(bench: Bench) -> None:
    bench.published(0, 6, (0, 2, 3))
    bench.moved(0, (0, 2, 3))
    assert bench.changes > 1
    bench.follow()
    assert [bench.last_id(p) for p in range(PARTITIONS)] == [-1, 9]
    assert bench.sets.left == {0}
    assert bench.disk.partition(0).session_id == 5, "a server of before is still refused"
    assert not list(Path(bench.disk.directory, "0").glob("*.seg"))[1:], "one empty segment"


def test_as_long_as_it_has_opened_the_newest_session_nothing_is_given_up(bench: Bench) -> None:
    """The set was changed, and the session of before goes on: its commits count on this replica."""
    roster, version = bench.store.roster(0)
    bench.store.set_roster(0, roster.with_replicas((0, 2, 3)), version)
    bench.moved(0, (0, 2, 3))
    bench.follow()
    assert bench.last_id(0) == 9
    bench.written(0, 5, 10, 3)
    bench.published(0, 6, (0, 2, 3))
    bench.follow()
    assert bench.last_id(0) == -1


def test_a_partition_that_comes_back_is_this_replicas_again(bench: Bench) -> None:
    bench.published(0, 6, (0, 2, 3))
    bench.moved(0, (0, 2, 3))
    bench.follow()
    bench.published(0, 7, (0, OWN, 2, 3))
    bench.written(0, 7, 0, 4)
    bench.moved(0, (0, OWN, 2))
    bench.follow()
    assert (bench.sets.left, bench.last_id(0)) == (frozenset(), 3)


def test_a_move_that_ends_while_its_partition_is_looked_at_is_looked_at_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch tells of it when the roster has just been read, in which this replica had the partition still."""
    roster = ClusterStore.roster

    def moved_then(store: ClusterStore, p: int) -> tuple[Roster, int]:
        read = roster(store, p)
        monkeypatch.undo()
        bench.published(0, 6, (0, 2, 3))
        bench.moved(0, (0, 2, 3))
        return read

    bench.moved(0, (0, OWN, 2))
    monkeypatch.setattr(ClusterStore, "roster", moved_then)
    bench.follow()
    assert bench.last_id(0) == 9
    bench.follow()
    assert bench.last_id(0) == -1


def test_all_are_looked_at_when_handles_that_were_short_are_there_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.published(0, 6, (0, 2, 3))
    bench.sets = bench.new_sets()

    def short(partition_id: int) -> PartitionLog:
        raise OutOfResources("no handle")

    with monkeypatch.context() as patched:
        patched.setattr(bench.disk, "partition", short)
        with pytest.raises(OutOfResources):
            bench.follow()
    bench.follow()
    assert bench.last_id(0) == -1


def test_one_that_was_away_when_it_was_moved_finds_out_when_it_starts(bench: Bench) -> None:
    bench.store.moves.want({0: (0, 2, 3)})
    roster, version = bench.store.roster(0)
    assert bench.store.moves.change_set(0, roster, version, roster.with_replicas((0, 2, 3)))
    assert not bench.store.moves.change_set(0, roster, version, roster), "it is another one by now"
    bench.published(0, 6, (0, 2, 3))
    bench.store.moves.done(0, frozenset((0, 2, 3)))
    bench.sets = bench.new_sets()
    bench.follow()
    assert bench.last_id(0) == -1
    assert bench.last_id(1) == 9


def test_a_move_that_began_and_ended_while_zookeeper_was_out_of_reach_is_found_out(bench: Bench) -> None:
    """The process lives on, and its watch tells what there is then: nothing that is wanted, as before."""
    sets = OwnSets(OWN, False, lambda: None)
    sets.seen(bench.store.moves.read())
    sets.look(bench.store)
    sets.follow(bench.store, bench.service)
    bench.store.moves.want({0: (0, 2, 3)})
    roster, version = bench.store.roster(0)
    assert bench.store.moves.change_set(0, roster, version, roster.with_replicas((0, 2, 3)))
    bench.published(0, 6, (0, 2, 3))
    bench.store.moves.done(0, frozenset((0, 2, 3)))
    sets.seen(bench.store.moves.read())
    sets.follow(bench.store, bench.service)
    assert [bench.last_id(p) for p in range(PARTITIONS)] == [-1, 9]
    sets.look(bench.store)
    assert sets.known == {0: (0, 2, 3), 1: (0, OWN, 2)}, "what ``waltz recover`` will go by"
