"""Two actors of one space over a log in memory: who serves, who takes over, what becomes of commands meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from waltz_ray import compat
from waltz_ray.client.aio import engine_of, next_client_id_of
from waltz_ray.client.append_fates import AppendFates
from waltz_ray.errors import ProjectionFailed, Trimmed
from waltz_ray.kv import messages as m
from waltz_ray.kv.keeper_types import KeeperLimits
from waltz_ray.kv.messages import FailCode, Op, Opcode, OpKind, Put, PutDone, Reply
from waltz_ray.kv.model import ItemKey, Record, Set
from waltz_ray.kv.placement import BucketSplitting
from waltz_ray.kv.routing import Unit, fnv1a_32, units_of
from waltz_ray.kv.serving import folding
from waltz_ray.kv.serving.clock import SteadyClock
from waltz_ray.kv.serving.gateway import Gateway
from waltz_ray.kv.serving.port import GatewayLimits
from waltz_ray.kv.serving.space_log import SpaceLog
from waltz_ray.kv.serving.space_node import KvMember, SpaceNode, Surroundings
from waltz_ray.kv.state import MemoryState
from waltz_ray.kv.wire import HEADER, encode_command
from waltz_ray.protocol.ownership_types import UnitPlace, UnitTable
from waltz_ray.testing import InMemoryCluster

PARTITIONS = 4
LIMIT_S = 20.0


@dataclass
class Actors:
    """The actors of one space, and the ZooKeeper and manager that they believe in: this."""

    cluster: InMemoryCluster
    nodes: dict[int, SpaceNode] = field(default_factory=dict)
    incarnations: dict[int, str] = field(default_factory=dict)
    owners: dict[Unit, UnitPlace] = field(default_factory=dict)
    clients: list[Any] = field(default_factory=list)
    lease_s: float = 1000.0
    failures: list[str] = field(default_factory=list)
    fails: bool = False

    async def add(self, actor: int, **limits: Any) -> SpaceNode:
        client = await self.cluster.connect_async()
        self.clients.append(client)
        states = {partition: MemoryState(f"{actor}/{partition}") for partition in range(PARTITIONS)}

        async def confirm() -> Mapping[int, str]:
            return dict(self.incarnations)

        async def ask(server: str, partition: int, transaction_id: int) -> bool:
            reply = await self.ask(int(server.removeprefix("host:")), m.SecondaryHas(partition, transaction_id))
            return isinstance(reply, m.Ack)

        def failed(error: Exception) -> None:
            self.failures.append(str(error))
            assert self.fails, str(error)

        around = Surroundings(
            SpaceLog(engine_of(client), partial(next_client_id_of, client)),
            states,
            confirm,
            ask,
            failed,
            SteadyClock(),
            time.monotonic,
        )
        node = self.nodes[actor] = SpaceNode(actor, self.lease_s, 0.0, KeeperLimits(**limits), around)
        await node.start()
        self.register(actor, f"{actor}-first")
        return node

    def register(self, actor: int, incarnation: str) -> None:
        self.incarnations[actor] = incarnation
        self.nodes[actor].registered(incarnation)
        self.nodes[actor].lease_confirmed(incarnation, time.monotonic())
        self.tell_members()

    def gone(self, actor: int) -> None:
        """Its registration is."""
        del self.incarnations[actor]
        self.tell_members()

    def tell_members(self) -> None:
        members = {actor: KvMember(name, f"host:{actor}") for actor, name in self.incarnations.items()}
        for node in self.nodes.values():
            node.members_seen(members)

    def arrange(self, place: Callable[[Unit], tuple[int, int | None]], mask: int = 0xF) -> None:
        """The manager writes a table."""
        for unit in units_of(mask):
            primary, secondary = place(unit)
            before = self.owners.get(unit)
            epoch = 1 + max(each.epoch for each in self.owners.values()) if self.owners else 1
            if before is not None and before.primary == primary:
                epoch = before.epoch
            self.owners[unit] = UnitPlace(primary, epoch, secondary)
        table = UnitTable(mask, {unit: self.owners[unit] for unit in units_of(mask)})
        for node in self.nodes.values():
            node.table_seen(table)

    async def ask(self, actor: int, command: m.Command, connection: int = 1) -> Reply:
        told: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.nodes[actor].submit(connection, command, lambda reply: None if told.done() else told.set_result(reply))
        async with compat.timeout(LIMIT_S):
            return await told

    async def until(self, what: Callable[[], bool]) -> None:
        async with compat.timeout(LIMIT_S):
            while not what():
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.close()
        for client in self.clients:
            await client.close()


@asynccontextmanager
async def actors(count: int = 2, **limits: Any) -> AsyncIterator[Actors]:
    async with InMemoryCluster(partitions=PARTITIONS) as cluster:
        found = Actors(cluster)
        try:
            for actor in range(count):
                await found.add(actor, **limits)
            yield found
        finally:
            await found.close()


def put(name: bytes, data: bytes, request: tuple[int, int] = (0, 0), **options: Any) -> Put:
    fullwait = options.pop("fullwait", False)
    return Put(b"", *request, 0, fullwait, (Op(OpKind.SET, name, data=data, **options),))


def get(name: bytes) -> m.Get:
    return m.Get(Opcode.GET_STRING, 0, fnv1a_32(name))


def value_of(reply: Reply) -> bytes:
    assert isinstance(reply, m.DataString), reply
    return reply.data


def test_what_is_written_is_read_and_a_secondary_says_where_to_go() -> None:
    async def run() -> None:
        async with actors() as space:
            space.arrange(lambda unit: (0, 1))
            reply = await space.ask(0, put(b"a", b"1"))
            assert isinstance(reply, PutDone)
            assert reply.results[0].code == FailCode.OK
            assert value_of(await space.ask(0, get(b"a"))) == b"1"
            assert await space.ask(1, get(b"a")) == m.TryElsewhere("host:0")
            assert await space.ask(0, get(b"b")) == m.Fail()

    asyncio.run(run())


def test_a_new_owner_has_everything_and_the_old_one_nothing() -> None:
    """Also what was on its way: it is committed before the RELEASE, or sent on."""

    async def run() -> None:
        async with actors() as space:
            space.arrange(lambda unit: (0, 1))
            names = [b"%d" % number for number in range(100)]
            await asyncio.gather(*(space.ask(0, put(name, b"old")) for name in names))
            late = [asyncio.ensure_future(space.ask(0, put(name, b"new"))) for name in names]
            space.arrange(lambda unit: (1, 0))
            ends = [reply.results[0] for reply in await asyncio.gather(*late) if isinstance(reply, PutDone)]
            assert {each.code for each in ends} <= {FailCode.OK, FailCode.ELSEWHERE}
            for name, end in zip(names, ends, strict=True):
                expected = b"new" if end.code == FailCode.OK else b"old"
                assert value_of(await space.ask(1, get(name))) == expected
                assert await space.ask(0, get(name)) == m.TryElsewhere("host:1")

    asyncio.run(run())


def test_a_deposed_owner_that_knows_nothing_writes_nothing_and_reads_nothing_old() -> None:
    """It was stopped: it has seen neither the table nor the end of its registration; its lease is over."""

    async def run() -> None:
        async with actors() as space:
            space.arrange(lambda unit: (0, 1))
            await space.ask(0, put(b"a", b"old"))
            zombie = space.nodes.pop(0)
            zombie.ownership._sent_at_s = None
            space.gone(0)
            space.arrange(lambda unit: (1, None))
            assert value_of(await space.ask(1, get(b"a"))) == b"old"
            await space.ask(1, put(b"a", b"new"))
            space.nodes[0] = zombie
            read = await space.ask(0, get(b"a"))
            assert read == m.TryElsewhere("host:1")
            written = await space.ask(0, put(b"a", b"zombie"))
            assert isinstance(written, PutDone)
            assert written.results[0].code == FailCode.ELSEWHERE
            assert value_of(await space.ask(1, get(b"a"))) == b"new"

    asyncio.run(run())


def of_partition(partition: int, count: int) -> list[bytes]:
    names = (b"%d" % number for number in range(100 * count))
    return [name for name in names if fnv1a_32(name) % PARTITIONS == partition][:count]


def test_commands_of_one_turn_of_the_loop_share_a_transaction() -> None:
    """Whoever sent them: a record costs more than an item. A command that comes later has its own."""

    async def run() -> None:
        async with actors() as space:
            space.arrange(lambda unit: (0, 1))
            await space.until(lambda: len(space.nodes[0].ownership.hosted()) == 16)
            first, second, later = of_partition(1, 3)
            asked = (space.ask(0, put(first, b"1"), connection=1), space.ask(0, put(second, b"2"), connection=2))
            replies = [*await asyncio.gather(*asked), await space.ask(0, put(later, b"3"))]
            versions = [reply.results[0].version for reply in replies if isinstance(reply, PutDone)]
            assert versions[0] == versions[1] == versions[2] - 1
            for name, data in ((first, b"1"), (second, b"2"), (later, b"3")):
                assert value_of(await space.ask(0, get(name))) == data

    asyncio.run(run())


def test_a_command_that_is_alone_is_taken_and_sent_as_soon_as_its_input_ends() -> None:
    """Nothing is gained by waiting: nobody else's answer is to come. Beside others it waits for theirs."""

    async def run() -> None:
        async with actors() as space:
            space.arrange(lambda unit: (0, 1))
            node = space.nodes[0]
            await space.until(lambda: len(node.ownership.hosted()) == 16)
            first, second = of_partition(1, 2)
            assert isinstance(await space.ask(0, put(first, b"1")), PutDone)  # its partition is mounted
            outbox = engine_of(space.clients[0]).attachments[1].outbox
            told: list[Reply] = []
            node.submit(1, put(first, b"2"), told.append)
            held = outbox.outstanding
            node.input_ended()
            assert (held, outbox.outstanding) == (0, 1), "more of its input might have come"
            assert not outbox.waiting, "it has left"
            node.submit(2, get(second), told.append)
            node.input_ended()
            assert not told, "another one waits for its answer"
            await space.until(lambda: len(told) == 2)

    asyncio.run(run())


def test_commands_do_not_wait_for_the_end_of_a_turn_that_brings_many() -> None:
    """What a step of the loop takes is bounded: who brings many commands has them taken in the time he is given."""

    async def run() -> None:
        async with actors() as space:
            space.arrange(lambda unit: (0, 1))
            await space.until(lambda: len(space.nodes[0].ownership.hosted()) == 16)
            told: list[Reply] = []
            for _ in range(511):
                space.nodes[0].submit(1, get(b"a"), told.append)
            assert not told
            space.nodes[0].submit(1, m.GetMany(b"", (b"a",)), told.append)
            assert len(told) == 512

    asyncio.run(run())


def test_what_has_come_before_an_actor_leaves_is_still_taken() -> None:
    async def run() -> None:
        async with actors() as space:
            space.arrange(lambda unit: (0, 1))
            await space.until(lambda: len(space.nodes[0].ownership.hosted()) == 16)
            told: list[Reply] = []
            space.nodes[0].submit(1, get(b"a"), told.append)
            space.nodes[0].leave()
            space.nodes[0].submit(1, get(b"a"), told.append)
            assert [type(reply) for reply in told] == [m.Fail, m.TryElsewhere]

    asyncio.run(run())


def test_o46_who_leaves_sends_clients_of_the_document_on() -> None:
    """A client of 2011 knows no codes: it goes on only where it is told where. Ours asks again by itself."""

    async def run() -> None:
        async with actors(2) as space:
            space.arrange(lambda unit: (0, None))
            await space.until(lambda: all(node.caught_up for node in space.nodes.values()))
            space.nodes[0].leave()
            a_set = m.SetCommand(4, 0, fnv1a_32(b"ann"), 0, False, b"ann", b"1")
            for command in (get(b"ann"), a_set, m.LockCommand(b"ann", 1, 1), m.UnlockCommand(b"ann", 1)):
                assert await space.ask(0, command) == m.TryElsewhere("host:1")
            refused = m.FailInfo(FailCode.NOT_READY, "the actor is closing: ask another one")
            assert await space.ask(0, put(b"ann", b"1")) == refused
            del space.incarnations[1]
            space.tell_members()
            assert await space.ask(0, get(b"ann")) == refused

    asyncio.run(run())


def test_a_write_whose_actor_has_closed_is_told_so_once() -> None:
    """Its record may be committed after that, while the actor's other parts are closed."""

    async def run() -> None:
        async with actors() as space:
            space.arrange(lambda unit: (0, 1))
            node = space.nodes.pop(0)
            await space.until(lambda: len(node.ownership.hosted()) == 16)
            on_their_way: list[AppendFates] = []

            def append(partition: int, record: Record, mark: int, fates: AppendFates, **locks: Any) -> None:
                on_their_way.append(fates)

            node._around.log.append = append  # type: ignore[method-assign,assignment]
            told: list[Reply] = []
            node.submit(1, put(b"a", b"1"), told.append)
            await node.close()
            [fates] = on_their_way
            fates.set_result(99)
            [reply] = told
            assert isinstance(reply, m.FailInfo)
            assert reply.code == FailCode.UNKNOWN_FATE

    asyncio.run(run())


def test_what_is_written_together_rests_on_every_unit_that_it_touches() -> None:
    """One of two buckets of a partition has gone to another actor, and who had it does not hear of it: the transaction
    of both is refused, and each is decided again for itself."""

    async def run() -> None:
        async with actors() as space:
            space.arrange(lambda unit: (0, 1))
            names = of_partition(1, 20)
            kept = names[0]
            moved = next(name for name in names if fnv1a_32(name) & 0xF != fnv1a_32(kept) & 0xF)
            both = Put(b"", 0, 0, 0, False, tuple(Op(OpKind.SET, name, data=b"1") for name in (kept, moved)))
            reply = await space.ask(0, both)
            assert isinstance(reply, PutDone)
            assert len({result.version for result in reply.results}) == 1, "one transaction"
            zombie = space.nodes.pop(0)
            folding, late = zombie._folding, list[Any]()
            hears, folding._taken = folding._taken, lambda *frame: late.append(frame)  # type: ignore[method-assign]
            space.gone(0)
            space.arrange(lambda unit: (1, None) if unit.bucket == fnv1a_32(moved) & 0xF else (0, 1))
            assert value_of(await space.ask(1, get(moved))) == b"1"
            space.nodes[0] = zombie
            asked = asyncio.ensure_future(space.ask(0, both))
            await space.until(lambda: asked.done() or folding._gathered[1].wanted >= 0)
            folding._taken = hears  # type: ignore[method-assign]
            for frame in late:
                hears(*frame)
            reply = await asked
            assert isinstance(reply, PutDone)
            assert [result.code for result in reply.results] == [FailCode.OK, FailCode.ELSEWHERE]

    asyncio.run(run())


def test_without_a_lease_reads_are_proven_by_the_log() -> None:
    async def run() -> None:
        async with actors(1) as space:
            space.arrange(lambda unit: (0, None))
            await space.ask(0, put(b"a", b"1"))
            space.nodes[0].ownership._sent_at_s = None
            marks = [state.mark for state in space.nodes[0].states.values()]
            assert value_of(await space.ask(0, get(b"a"))) == b"1"
            await space.until(lambda: [state.mark for state in space.nodes[0].states.values()] != marks)

    asyncio.run(run())


def test_a_write_is_done_once_however_often_it_is_asked() -> None:
    """Also when another one has changed the item since, and by another owner (an ID kept in the item would be gone)."""

    async def run() -> None:
        async with actors() as space:
            space.arrange(lambda unit: (0, 1))
            first = await space.ask(0, put(b"a", b"1", (7, 1)))
            await space.ask(0, put(b"a", b"2", (8, 1)))
            space.arrange(lambda unit: (1, 0))
            assert value_of(await space.ask(1, get(b"a"))) == b"2"
            assert await space.ask(1, put(b"a", b"1", (7, 1))) == first
            assert value_of(await space.ask(1, get(b"a"))) == b"2"

    asyncio.run(run())


def test_a_record_that_cannot_be_is_told_to_who_waits_for_it() -> None:
    """And what was decided in the same step is done."""

    async def run() -> None:
        async with actors(1) as space:
            space.arrange(lambda unit: (0, None))
            await space.until(lambda: space.nodes[0].caught_up)
            told: list[str] = []
            fates = AppendFates(lambda _: told.append("committed"), lambda _: told.append("refused"), told.append)
            impossible = Set(ItemKey(0, 0, b"n" * 481), 4, b"")
            space.nodes[0]._around.log.append(0, impossible, -1, fates)
            assert told == []
            await space.until(lambda: bool(told))
            assert "a name has at most 480 bytes" in told[0]

    asyncio.run(run())


def test_a_split_changes_who_serves_and_no_item() -> None:
    """O10, O11, O14: under the new mask each unit has one owner, and the old mask still leads to every item."""

    async def run() -> None:
        async with actors() as space:
            space.arrange(lambda unit: (0, 1))
            names = [b"%d" % number for number in range(200)]
            await asyncio.gather(*(space.ask(0, put(name, name)) for name in names))
            late = [asyncio.ensure_future(space.ask(0, put(name, name + b"!"))) for name in names]
            space.arrange(lambda unit: (unit.bucket >> 4 & 1, unit.bucket >> 4 & 1 ^ 1), mask=0xFF)
            replies: list[Reply] = await asyncio.gather(*late)
            for name, reply in zip(names, replies, strict=True):
                owner = fnv1a_32(name) >> 4 & 1
                assert isinstance(reply, PutDone)
                done = reply.results[0].code == FailCode.OK
                assert value_of(await space.ask(owner, get(name))) == name + (b"!" if done else b"")
                assert await space.ask(owner ^ 1, get(name)) == m.TryElsewhere(f"host:{owner}")
            await space.until(lambda: all(len(node.hashmasks().buckets) == 256 for node in space.nodes.values()))
            primaries = [bucket for node in space.nodes.values() for bucket, of in node.hashmasks().buckets if of == 0]
            assert sorted(primaries) == list(range(256))

    asyncio.run(run())


def test_fullwait_waits_for_the_second_copy() -> None:
    """O43: with the secondary gone 0 acknowledges, 1 not until another has it, or says that it is committed."""

    async def run() -> None:
        async with actors(3, fullwait_ms=400) as space:
            space.arrange(lambda unit: (0, 1))
            assert isinstance(await space.ask(0, put(b"a", b"1", fullwait=True)), PutDone)
            stopped = space.nodes.pop(1)
            space.gone(1)
            assert (await _code(space, put(b"a", b"2"))) == FailCode.OK
            assert (await _code(space, put(b"a", b"3", fullwait=True))) == FailCode.NOT_REPLICATED
            assert value_of(await space.ask(0, get(b"a"))) == b"3"
            waits = asyncio.ensure_future(_code(space, put(b"a", b"4", fullwait=True)))
            await asyncio.sleep(0)
            space.arrange(lambda unit: (0, 2))
            assert await waits == FailCode.OK
            await stopped.close()

    asyncio.run(run())


def test_an_actor_that_was_alone_waits_for_second_copies_once_it_is_not_to_be() -> None:
    """O43: it was started as the only one, the cluster has grown since."""

    async def run() -> None:
        async with actors(1, fullwait_ms=200, backups=False) as space:
            space.arrange(lambda unit: (0, None))
            assert (await _code(space, put(b"a", b"1", fullwait=True))) == FailCode.OK
            space.nodes[0].actors_wanted(2)
            assert (await _code(space, put(b"a", b"2", fullwait=True))) == FailCode.NOT_REPLICATED

    asyncio.run(run())


async def _code(space: Actors, command: Put) -> int:
    reply = await space.ask(0, command)
    assert isinstance(reply, PutDone)
    return reply.results[0].code


def test_locks_have_rising_codes_and_survive_a_move() -> None:
    """O47."""

    async def run() -> None:
        async with actors() as space:
            space.arrange(lambda unit: (0, 1))
            first = await space.ask(0, m.LockCommand(b"leader", 100, 0))
            assert isinstance(first, m.DataLock)
            assert await space.ask(0, m.LockCommand(b"leader", 100, 0), connection=2) == m.Fail()
            waits = asyncio.ensure_future(space.ask(0, m.LockCommand(b"leader", 100, 10), connection=3))
            assert await space.ask(0, m.UnlockCommand(b"leader", first.code + 1)) == m.Fail()
            assert await space.ask(0, m.UnlockCommand(b"leader", first.code)) == m.Ack()
            second = await waits
            assert isinstance(second, m.DataLock)
            assert second.code > first.code
            space.arrange(lambda unit: (1, 0))
            assert await space.ask(1, m.LockCommand(b"leader", 100, 0)) == m.Fail()
            assert await space.ask(1, m.UnlockCommand(b"leader", first.code)) == m.Fail()
            assert await space.ask(1, m.UnlockCommand(b"leader", second.code)) == m.Ack()
            third = await space.ask(1, m.LockCommand(b"leader", 100, 0))
            assert isinstance(third, m.DataLock)
            assert third.code > second.code

    asyncio.run(run())


def test_the_first_table_of_a_space_has_one_level() -> None:
    assert BucketSplitting(PARTITIONS).first() == 0xF


def test_a_write_that_its_client_has_settled_is_never_done_late() -> None:
    """Its first actor was stopped with it, the client has repeated it elsewhere and gone on: once awake, and the owner
    again, the first actor must not do it once more."""

    async def run() -> None:
        async with actors() as space:
            space.arrange(lambda unit: (0, 1))
            await space.ask(0, put(b"a", b"1", (7, 1)))
            await space.ask(0, Put(b"", 7, 2, 2, False, (Op(OpKind.SET, b"a", data=b"2"),)))
            state = space.nodes[0].states[fnv1a_32(b"a") % PARTITIONS]
            await space.until(lambda: state.settled(7) == 2)
            late = await space.ask(0, put(b"a", b"1", (7, 1)))
            assert isinstance(late, PutDone)
            assert late.results[0].code == FailCode.CONFLICT
            assert value_of(await space.ask(0, get(b"a"))) == b"2"

    asyncio.run(run())


def test_what_a_lost_connection_has_left_behind_is_not_begun() -> None:
    """A client without IDs asks elsewhere when its connection breaks: what waits here must not come after that."""

    async def run() -> None:
        async with actors() as space:
            node = space.nodes[0]
            space.arrange(lambda unit: (1, 0))
            await space.until(lambda: node.elsewhere(0) == "host:1")
            answers: list[Reply] = []
            del space.incarnations[1]
            node.members_seen({0: KvMember("0-first", "host:0")})
            command = m.SetCommand(4, 0, fnv1a_32(b"a"), 0, False, b"a", b"late")
            node.submit(9, command, answers.append)
            node.left(9)
            space.arrange(lambda unit: (0, None))
            await space.until(lambda: len(node.hashmasks().buckets) == 16)
            assert await space.ask(0, get(b"a")) == m.Fail()
            (answer,) = answers
            assert isinstance(answer, m.FailInfo)
            assert answer.code == FailCode.NOT_READY

    asyncio.run(run())


def test_o27_what_was_sent_before_goodbye_is_done_also_behind_another_write() -> None:
    """O19, O27: several writes of one key, and goodbye behind them. But a lock that is taken is not waited for."""

    async def run() -> None:
        async with actors(1) as space:
            node = space.nodes[0]
            space.arrange(lambda unit: (0, None))
            await space.until(lambda: len(node.hashmasks().buckets) == 16)
            assert isinstance(await space.ask(0, m.LockCommand(b"taken", 60, 0), connection=99), m.DataLock)
            gateway = Gateway("test", node, outgoing=node.outgoing)
            port = await gateway.listen("127.0.0.1", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            sets = [m.SetCommand(4, 0, fnv1a_32(b"a"), 0, False, b"a", b"%d" % number) for number in range(4)]
            lock, again = m.LockCommand(b"taken", 60, 60), m.LockCommand(b"free", 60, 60)
            commands: list[m.Command] = [*sets, lock, again, again, m.Goodbye()]
            writer.write(b"".join(encode_command(number, command) for number, command in enumerate(commands)))
            replies: dict[int, int] = {}
            async with compat.timeout(LIMIT_S):
                while len(replies) < len(commands):
                    opcode, _, message_id, size = HEADER.unpack(await reader.readexactly(HEADER.size))
                    await reader.readexactly(size)
                    replies[message_id] = opcode
            done = [Opcode.ACK] * len(sets)
            assert [replies[n] for n in range(8)] == [*done, Opcode.FAILINFO, 1005, Opcode.FAILINFO, Opcode.ACK]
            assert value_of(await space.ask(0, get(b"a"))) == b"3"
            assert node.keeper.waiting == 0
            writer.close()
            await gateway.close()

    asyncio.run(run())


def test_who_hangs_up_while_his_command_waits_leaves_the_room_to_others() -> None:
    """All connections of a port share it."""

    async def run() -> None:
        async with actors(1) as space:
            node = space.nodes[0]
            gateway = Gateway("test", node, limits=GatewayLimits(outstanding_bytes=300_000), outgoing=node.outgoing)
            port = await gateway.listen("127.0.0.1", 0)
            for number in range(4):  # nobody serves its bucket yet
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(encode_command(1, put(b"%d" % number, bytes(100_000))))
                await space.until(lambda: node.keeper.waiting == 1)
                writer.transport.abort()
                await space.until(lambda: gateway.connections == 0)
                assert (node.keeper.waiting, gateway.outstanding_bytes) == (0, 0)
            space.arrange(lambda unit: (0, None))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(encode_command(1, put(b"a", bytes(100_000))))
            async with compat.timeout(LIMIT_S):
                opcode, replied_to, message_id, _ = HEADER.unpack(await reader.readexactly(HEADER.size))
            assert (opcode, replied_to, message_id) == (Opcode.PUT_DONE, Opcode.PUT, 1)
            writer.close()
            await gateway.close()

    asyncio.run(run())


def test_what_is_folded_anew_is_not_read_until_it_is_known_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner whose partition another one compacts, faster than it folds: it must not say that there is nothing."""

    async def run() -> None:
        async with actors(1) as space:
            space.arrange(lambda unit: (0, None))
            await space.until(lambda: space.nodes[0].caught_up)
            node = space.nodes[0]
            here, other = of_partition(1, 1)[0], of_partition(2, 1)[0]
            for name, partition in ((here, 1), (other, 2)):
                await space.ask(0, put(name, b"old"))
                done = await space.ask(0, put(name, b"new"))
                assert isinstance(done, PutDone)
                await node.folded_to(partition, done.results[0].version)
            mark = node.states[1].mark
            if_absent = Put(b"", 0, 0, 0, False, (Op(OpKind.SET, here, data=b"lost", expected=m.ABSENT),))
            commands: list[m.Command] = [m.Get(Opcode.GET_STRING, 0, fnv1a_32(here)), if_absent]
            asked: list[asyncio.Task[Reply]] = []
            reset = node.states[1].reset

            def reset_and_ask() -> None:
                reset()
                asked.extend(asyncio.ensure_future(space.ask(0, each)) for each in commands)
                asked.append(asyncio.ensure_future(space.ask(0, m.Get(Opcode.GET_STRING, 0, fnv1a_32(other)))))

            monkeypatch.setattr(node.states[1], "reset", reset_and_ask)
            monkeypatch.setattr(folding, "_A_TURN", 1)  # one record after the other: what was old is there for a while
            (subscription,) = node._folding._subscriptions
            node._folding._taken(subscription, range(PARTITIONS), Trimmed(1, 0, 0))
            await space.until(lambda: len(asked) == 3)
            read, written, elsewhere = await asyncio.gather(*asked)
            assert read == m.DataString(0, fnv1a_32(here), b"new")
            assert isinstance(written, PutDone)
            assert written.results[0].code == FailCode.CONFLICT
            assert elsewhere == m.DataString(0, fnv1a_32(other), b"new")
            assert node.states[1].mark >= mark
            assert not node._anew

    asyncio.run(run())


def test_a_deposed_owner_decides_nothing_that_has_come_just_before_it_hears_so() -> None:
    """Its commands and the OWN of its successor, in one turn of the loop: the log would let the write pass, for it is
    appended with the mark of a state that has the OWN."""

    async def run() -> None:
        async with actors() as space:
            space.arrange(lambda unit: (0, 1))
            assert isinstance(await space.ask(0, put(b"a", b"old")), PutDone)
            partition = fnv1a_32(b"a") % PARTITIONS
            zombie = space.nodes.pop(0)
            told: list[Reply] = []
            apply = zombie.states[partition].apply

            def asked_before(transactions: Any) -> None:
                apply(transactions)
                owner = zombie.states[partition].ownership(Unit(0xF, fnv1a_32(b"a") & 0xF))
                if owner is not None and owner.actor == 1 and not told:
                    zombie.submit(1, put(b"a", b"zombie"), told.append)

            zombie.states[partition].apply = asked_before  # type: ignore[method-assign]
            space.gone(0)
            space.arrange(lambda unit: (1, None))
            await space.until(lambda: bool(told))
            assert isinstance(told[0], PutDone)
            assert told[0].results[0].code == FailCode.ELSEWHERE
            assert value_of(await space.ask(1, get(b"a"))) == b"old"

    asyncio.run(run())


def test_what_is_folded_anew_takes_no_unit_that_somebody_has_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state comes past his OWN before it is whole, and nothing is told of owners until then."""
    whole = [True]
    monkeypatch.setattr(MemoryState, "whole", property(lambda state: whole[0]))

    async def run() -> None:
        async with actors() as space:
            space.arrange(lambda unit: (0, 1))
            (name,) = of_partition(1, 1)
            await space.ask(0, put(name, b"old"))
            late, unit = space.nodes.pop(0), Unit(0xF, fnv1a_32(name) & 0xF)
            (subscription,), follow = late._folding._subscriptions, late._folding._taken
            late._folding._taken = lambda *frame: None  # type: ignore[method-assign]
            space.gone(0)
            space.arrange(lambda unit: (1, None))
            await space.ask(1, put(name, b"new"))
            other = space.nodes.pop(1)
            space.nodes[0] = late
            space.register(0, "0-second")
            space.arrange(lambda unit: (0, None))
            await space.until(lambda: late._folding._gathered[1].wanted >= 0)  # its OWN was refused
            late._folding._taken = follow  # type: ignore[method-assign]
            whole[0] = False
            late._folding._taken(subscription, range(PARTITIONS), Trimmed(1, 0, 0))
            await space.until(lambda: late.states[1].mark >= other.states[1].mark)
            await asyncio.sleep(0.1)
            assert other.ownership.serving(unit)
            whole[0] = True
            space.nodes[1] = other
            assert isinstance(await space.ask(1, put(name, b"newest")), PutDone)
            space.arrange(lambda unit: (0, None))
            await space.until(lambda: late.ownership.serving(unit))
            assert value_of(await space.ask(0, get(name))) == b"newest"

    asyncio.run(run())


def test_what_is_on_its_way_when_its_partition_is_folded_anew_is_known_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A TOUCH says nothing of the item's value: who hears of its commit does not know it any more, or not yet."""
    monkeypatch.setattr(folding, "_A_TURN", 1)  # one record after the other: all but that is there for a while

    async def run() -> None:
        async with actors(1) as space:
            space.arrange(lambda unit: (0, None))
            (name,) = of_partition(1, 1)
            await space.ask(0, put(name, b"older"))
            await space.ask(0, put(name, b"old"))
            node = space.nodes[0]
            log, reset, asked = node._around.log, node.states[1].reset, list[asyncio.Task[Reply]]()
            append, committed = log.append, list[tuple[AppendFates, int]]()

            def held(
                partition: int, record: Any, mark: int, fates: AppendFates, read: Any = (), write: Any = ()
            ) -> None:
                later = AppendFates(lambda version: committed.append((fates, version)), print, print)
                append(partition, record, mark, later, read, write)

            def reset_and_told() -> None:
                reset()
                monkeypatch.setattr(log, "append", append)
                (fates, version), *_ = committed
                fates.set_result(version)
                asked.append(asyncio.ensure_future(space.ask(0, put(name, b"new", expected=version))))

            monkeypatch.setattr(log, "append", held)
            monkeypatch.setattr(node.states[1], "reset", reset_and_told)
            (subscription,), follow = node._folding._subscriptions, node._folding._taken
            node._folding._taken = lambda *frame: None  # type: ignore[method-assign]
            touch = Put(b"", 0, 0, 0, False, (Op(OpKind.TOUCH, name, expires_ms=60_000),))
            touched = asyncio.ensure_future(space.ask(0, touch))
            await space.until(lambda: bool(committed))
            node._folding._taken = follow  # type: ignore[method-assign]
            node._folding._taken(subscription, range(PARTITIONS), Trimmed(1, 0, 0))
            await space.until(lambda: bool(asked))
            for reply in await asyncio.gather(touched, *asked):
                assert isinstance(reply, PutDone)
                assert reply.results[0].code == FailCode.OK
            assert value_of(await space.ask(0, get(name))) == b"new"

    asyncio.run(run())


@pytest.mark.parametrize("where", ["a tick", "a task"])
def test_what_a_bug_has_ended_is_told(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Nothing would tick any more, and nobody would know: the space is left, and opened anew."""

    async def run() -> None:
        async with actors(1) as found:
            found.fails = True
            node = found.nodes[0]

            def bug(*_: object) -> None:
                raise TypeError("a bug")

            async def ends() -> None:
                bug()

            asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # where it goes on to
            if where == "a tick":
                monkeypatch.setattr(node.keeper, "step", bug)
            else:
                node._spawn(ends())
            await found.until(lambda: bool(found.failures))
            [told] = found.failures
            assert told == "a step of it has failed: TypeError('a bug'), a bug of this actor; see its log"
            refused = await found.ask(0, put(b"a", b"x"))
            assert isinstance(refused, m.FailInfo)
            assert (refused.code, refused.text) == (FailCode.NO_ROOM, told)
            monkeypatch.undo()

    asyncio.run(run())


def test_a_projection_that_cannot_be_read_ends_it_with_a_reason() -> None:
    """Who asks is refused, nothing waits for a fold that does not come, it is told once; the other one goes on."""

    async def run() -> None:
        async with actors() as found:
            found.fails = True
            found.arrange(lambda unit: (unit.bucket % 2, 1 - unit.bucket % 2))
            node = found.nodes[0]
            await found.until(lambda: sum(len(each.ownership.hosted()) for each in found.nodes.values()) == 32)
            name, fresh, *_ = (b"%d" % n for n in range(99) if fnv1a_32(b"%d" % n) % 2 == 0)
            other = next(b"%d" % n for n in range(99) if fnv1a_32(b"%d" % n) % 2 == 1)
            assert isinstance(await found.ask(0, put(name, b"x")), PutDone)
            waiting = asyncio.ensure_future(node.folded_to(0, 1 << 40))
            await asyncio.sleep(0)

            def damaged(*_: object) -> None:
                raise ProjectionFailed("projection a.lmdb is damaged")

            for state in node.states.values():
                assert isinstance(state, MemoryState)
                state.tables.get = damaged  # type: ignore[method-assign]
                state.tables.under = damaged  # type: ignore[method-assign,assignment]
            together: list[Reply] = []
            for command in (put(name, b"w"), get(fresh), put(name, b"y")):  # one step, of which nothing is ordered
                node.submit(1, command, together.append)
            together.append(await found.ask(0, put(name, b"z")))
            assert len(together) == 4
            for refused in together:
                assert isinstance(refused, m.FailInfo)
                assert (refused.code, refused.text) == (FailCode.NO_ROOM, "projection a.lmdb is damaged")
            with pytest.raises(ProjectionFailed):
                await waiting
            with pytest.raises(ProjectionFailed):
                await node.next_fold()
            assert found.failures == ["projection a.lmdb is damaged"]
            assert isinstance(await found.ask(1, put(other, b"x")), PutDone)

    asyncio.run(run())
