"""What the simulation has found, each once more as small as it can be told."""

from __future__ import annotations

import asyncio
import errno
import uuid
from random import Random
from unittest import mock

import numpy as np
import pytest

from tests.actors.listening import Listening
from tests.security.keys import SilentReplica, keyring
from tests.simulation.loop import Scheduler, new_loop
from tests.simulation.network import Network
from tests.storage.faulty_disk import FaultyDisk
from waltz_ray.actors.replica_link import ReplicaLink
from waltz_ray.config import ServerConfig, StorageConfig
from waltz_ray.errors import DiskFull, ReplicaRefused
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.replica import (
    Appended,
    Read,
    RefusalCode,
    Refused,
)
from waltz_ray.protocol.partition.events import NO_SUCH_SESSION, Assigned, ReadRoster, RosterRead
from waltz_ray.protocol.partition.machine import Partition
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.records import RecordBatch, build_records
from waltz_ray.protocol.roster import ReplicaEntry, Roster
from waltz_ray.protocol.session_types import (
    ReplicaAvailable,
    ReplicaFenced,
    ReplicaLost,
    ReplicaOpened,
    RosterWritten,
    StartTimer,
    WriteRoster,
)
from waltz_ray.storage.store import ReplicaStore

KEY = uuid.UUID(int=1)


def test_a_replica_that_vanishes_before_its_hello_is_connected_to_again() -> None:
    scheduler = Scheduler(Random(1))
    network = Network(scheduler, Random(2))
    replica, server = new_loop(scheduler, network, "replica"), new_loop(scheduler, network, "server")
    accepted: list[asyncio.Protocol] = []

    def accept() -> asyncio.Protocol:
        accepted.append(SilentReplica() if len(accepted) >= 2 else asyncio.Protocol())
        return accepted[-1]

    listener = network.listen(replica, accept, "replica", 0)
    events: list[object] = []
    config = ServerConfig(replica_timeout_ms=500)
    drivers = Listening(lambda _, event: events.append(event), 0)
    link = server.enter(lambda: ReplicaLink(0, KEY, config, drivers, Outgoing(), Pool(1), keyring()))
    link.move_to(Endpoint(*listener.address))
    scheduler.run(0.4)
    assert not link.up
    assert len(accepted) == 2
    scheduler.run(5.0)
    assert link.up
    server.bury()
    replica.bury()


def test_a_replaced_replica_can_help_a_session_that_is_opening() -> None:
    """Of three replicas one is down, one has been lost: the session needs the lost one as soon as it is replaced."""
    partition = Partition(0, ServerConfig())
    record = Roster(1, 1, {0: ReplicaEntry(1, None), 1: ReplicaEntry(1, None), 2: ReplicaEntry(0, 5)})
    partition.step(Assigned(1))
    (write,) = partition.step(RosterRead(record, 7))
    assert isinstance(write, WriteRoster)
    partition.step(RosterWritten(2, 8))
    partition.step(ReplicaOpened(2, 0, 5, 9))
    partition.step(ReplicaLost(2, 1, "down"))
    assert partition.step(ReplicaLost(2, 2, "no files", lost_files=True)) == [ReadRoster()]
    replaced = Roster(2, 1, {**write.roster.replicas, 2: ReplicaEntry(-1, -1)})
    assert partition.step(RosterRead(write.roster, 8)) == []
    effects = partition.step(RosterRead(replaced, 9))
    assert any(isinstance(effect, StartTimer) and effect.name == "backoff" for effect in effects)


def test_damage_met_by_a_read_is_told_to_the_session() -> None:
    """Seed 0x22e: the only holder of the log's end met its damage as a source of copies, and the session asked on."""
    refused = Refused(7, 5, 7, RefusalCode.DAMAGED, 5, 8, "record 9 has a wrong checksum")
    assert _told_after(refused) == [(7, ReplicaLost(5, 3, "record 9 has a wrong checksum"))]


def test_a_session_that_only_copies_hears_that_it_is_fenced_off() -> None:
    """A twin took a higher session and died: the session that copied its last records asked for them for ever."""
    assert _told_after(Refused(7, 5, 7, RefusalCode.FENCED, 6, 8, "session 5 is fenced off")) == [
        (7, ReplicaFenced(5, 3, 6))
    ]


def test_a_full_disk_does_not_end_every_session_that_begins() -> None:
    """Seed 0xd0009c: 38 sessions in 4 s. The replica opened each, was a member, and refused its first append."""
    scheduler = Scheduler(Random(1))
    network = Network(scheduler, Random(2))
    server = new_loop(scheduler, network, "server")
    events: list[object] = []

    async def open_again() -> None:
        drivers = Listening(lambda *told: events.append(told), 7)
        link = ReplicaLink(3, KEY, ServerConfig(), drivers, Outgoing(), Pool(1), keyring())
        link._up, link._live = True, mock.Mock()
        link.on_live(Refused(7, 5, 5, RefusalCode.DISK_FULL, 5, 8, "no space left"))
        link.open(7, 6, 5, "b/1")
        link.open(8, 6, 5, "b/1")  # another partition, whose next record may fit
        assert link._live.send_bytes.call_count == 1
        await asyncio.sleep(1.5)
        link.open(7, 6, 5, "b/1")
        assert link._live.send_bytes.call_count == 2
        link._task.cancel()

    task = server.enter(lambda: server.create_task(open_again()))
    scheduler.run(3.0)
    assert task.done()
    assert task.exception() is None
    assert events == [
        (7, ReplicaLost(5, 3, "no space left")),
        (7, ReplicaLost(6, 3, "no space left")),
        (7, ReplicaAvailable(NO_SUCH_SESSION, 3)),
    ]
    server.bury()


def test_a_disk_that_stays_full_is_tried_ever_more_seldom() -> None:
    """224 sessions in a minute, of four partitions: each second one was opened, and ended with its first append."""
    scheduler = Scheduler(Random(1))
    network = Network(scheduler, Random(2))
    server = new_loop(scheduler, network, "server")
    tries = 0

    async def refuse_all() -> None:
        def told(partition_id: int, event: object) -> None:
            nonlocal tries
            if isinstance(event, ReplicaAvailable):
                tries += 1
                link.open(7, 6, 5, "b/1")
                link.on_live(Refused(7, 6, 5, RefusalCode.DISK_FULL, 6, 8, "no space left"))

        link = ReplicaLink(3, KEY, ServerConfig(), Listening(told, 7), Outgoing(), Pool(1), keyring())
        link._up, link._live = True, mock.Mock()
        link.on_live(Refused(7, 5, 5, RefusalCode.DISK_FULL, 5, 8, "no space left"))
        await asyncio.sleep(60)
        assert 7 <= tries <= 12
        link.on_appended(Appended(7, 6, 9))
        link.on_live(Refused(7, 6, 5, RefusalCode.DISK_FULL, 6, 9, "no space left"))
        before = tries
        await asyncio.sleep(1.5)
        assert tries > before, "there was room in between: it is tried soon"
        link._task.cancel()

    task = server.enter(lambda: server.create_task(refuse_all()))
    scheduler.run(70.0)
    assert task.done()
    assert task.exception() is None
    server.bury()


def _told_after(refused: Refused) -> list[object]:
    """What the session is told when a read is refused so."""
    scheduler = Scheduler(Random(1))
    network = Network(scheduler, Random(2))
    server = new_loop(scheduler, network, "server")
    events: list[object] = []

    async def read() -> None:
        drivers = Listening(lambda *told: events.append(told), 7)
        link = ReplicaLink(3, KEY, ServerConfig(), drivers, Outgoing(), Pool(1), keyring())
        future = asyncio.get_running_loop().create_future()
        link._reads.append((Read(7, 5, 0, 9, 1000), future))
        link.on_bulk(refused)
        with pytest.raises(ReplicaRefused, match=refused.message):
            await future

    task = server.enter(lambda: server.create_task(read()))
    scheduler.run(0.5)
    assert task.done()
    assert task.exception() is None
    server.bury()
    return events


def test_opening_a_partition_on_a_full_disk_can_be_repeated_for_ever() -> None:
    disk = FaultyDisk()
    config = StorageConfig(index_flush_interval=1_000_000)
    store = ReplicaStore.create(disk, "/data", KEY, 1, config)
    log = store.partition(0)
    log.open_session(1)
    log.append(1, _records(30))
    log.sync()
    disk.crash()
    store = ReplicaStore.open(disk, "/data", KEY, config)
    disk.errors["pwrite", ".seg"] = errno.ENOSPC  # where even what is overwritten takes room
    before = disk.open_handles()
    for _ in range(3):
        with pytest.raises(DiskFull):
            store.partition(0)
    assert disk.open_handles() == before
    disk.errors.clear()
    assert store.partition(0).last_id == 29


def _records(count: int) -> RecordBatch:
    zeros = np.zeros(count, dtype=np.int32)
    columns = (np.arange(count, dtype=np.int32), zeros, zeros, np.zeros(count, dtype=np.uint32))
    return build_records(0, 0, 1, 1, columns, b"")
