"""What one topic actor is: its master's port, its slots, its registration; the topics there are. In one event loop.

It listens first and registers after that: an endpoint found in ZooKeeper has always been bound. It leaves in the other
order. Of all actors the one that has the leader lock is the master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.config import PORTS_OF_AN_ACTOR, TopicConfig
from waltz_ray.coordination.api import EphemeralNode, Watch, ZooKeeper
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.leadership import Leadership
from waltz_ray.coordination.topic_store import SlotPorts, TopicStore
from waltz_ray.coordination.unit_lease import confirmed_incarnations, keep_lease
from waltz_ray.coordination.unit_store import UnitMember, UnitRegistration, UnitStore, incarnations
from waltz_ray.errors import SHORTAGES, ConfigError, CoordinationError, InvalidInput, WaltzError, shortage
from waltz_ray.net.tls import ServerTls
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.ownership_types import RegisteredAs, UnitTable, Unregistered
from waltz_ray.protocol.spaces import Space, SpaceState, SpaceTable
from waltz_ray.runtime.boot_clock import boot_s
from waltz_ray.runtime.status import ActorState, TopicActorStatus
from waltz_ray.topics.client.links import TopicLinks, to_our_own
from waltz_ray.topics.delivery_types import DeliveryLimits
from waltz_ray.topics.groups.events import SteppedDown, TookOver
from waltz_ray.topics.groups.limits import GroupTimes
from waltz_ray.topics.groups.status import GroupStatus
from waltz_ray.topics.groups.table import SlotPlace, TopicPartition, TopicShape, TopicTable
from waltz_ray.topics.lease_ending import others_end
from waltz_ray.topics.serving.access_view import AccessView
from waltz_ray.topics.serving.deliveries import Deliveries, unix_ms
from waltz_ray.topics.serving.gateway import MASTER_METHODS, TopicGateway
from waltz_ray.topics.serving.master_port import MasterPort
from waltz_ray.topics.serving.offsets import OffsetResets, Offsets
from waltz_ray.topics.serving.own_tasks import OwnTasks
from waltz_ray.topics.serving.port import TopicPortLimits
from waltz_ray.topics.serving.served_topic import TopicSurroundings
from waltz_ray.topics.serving.slot_duties import SlotDuties
from waltz_ray.topics.serving.topic_node import SlotListening, TopicNode
from waltz_ray.topics.slots import SLOTS, SlotSplitting, partition_of_slot

__all__ = ["GroupOffsets", "TopicServer"]

log = logging.getLogger(__name__)

_LIMIT = "max_message_bytes"  # the setting of a space
_AGAIN_S = 1.0
_TELL_S = 2.0
_TO_SLOTS_IDLE_S = 60.0


class GroupOffsets(Offsets, OffsetResets, Protocol):
    """Where groups are, for slots and for the master."""


class TopicServer:
    """``connect(space)`` gives a started client without callbacks, which is closed here."""

    def __init__(
        self,
        actor: int,
        cluster: str,
        cluster_key: str,
        zookeeper: ZooKeeper,
        config: TopicConfig,
        connect: Callable[[Space], Awaitable[AsyncWaltzClient]],
        offsets: GroupOffsets,
    ) -> None:
        self.endpoint: Endpoint | None = None
        """Of the master's port."""
        self.failure = ""
        self._actor = actor
        self._config = config
        self._cluster_key = cluster_key
        self._lease_s = (config.session_ms - config.lease_margin_ms) / 1000
        self._connect = connect
        self._offsets = offsets
        self._loop = asyncio.get_running_loop()
        self._spaces = ClusterStore(zookeeper, cluster).spaces
        self._store = TopicStore(zookeeper, cluster)
        self._units = UnitStore[int](zookeeper, cluster, "topic", SLOTS, SlotSplitting(lambda: 1))
        self._threads = ThreadPoolExecutor(2, thread_name_prefix=f"topic-{actor}-zookeeper")
        self._lease_thread = ThreadPoolExecutor(1, thread_name_prefix=f"topic-{actor}-lease")
        self._registration: UnitRegistration | None = None
        self._leadership: Leadership | None = None
        self._watches: list[Watch] = []
        self._announced: EphemeralNode | None = None
        self.tasks = OwnTasks(f"topic/{actor}")
        self._members: dict[int, UnitMember] = {}
        self._ports: dict[int, SlotPorts] = {}
        self._wanted: dict[str, Space] = {}
        self._spaces_changed = asyncio.Event()
        self._ports_changed = asyncio.Event()
        self._leading = False
        self._host = config.host or "127.0.0.1"
        self._limits = TopicPortLimits(
            connections=config.connections,
            connections_per_peer=config.connections_per_peer,
            outstanding=config.outstanding,
            untaken_ms=config.stall_ms,
            idle_ms=config.idle_ms,
        )
        self._tls = self._server_tls()
        self._to_slots = TopicLinks(_TELL_S, _TO_SLOTS_IDLE_S, None if self._tls is None else to_our_own(), cluster_key)
        self.access = AccessView(self._store, self._post, self._flow_changed)
        self.master = MasterPort(
            self._store_offsets,
            config.max_message_bytes,
            config.balance_ms / 1000,
            GroupTimes(client_ms=config.client_ms, order_ms=4 * config.client_ms, session_ms=2 * config.client_ms),
        )
        name = f"topic/{actor}, master"
        self._gateway = TopicGateway(
            name, self.master, MASTER_METHODS, self._limits, tls=self._tls, cluster_key=cluster_key
        )
        self.master.granted = self._tell_slot
        self.master.access = lambda: self.access.now
        self.master.flow = lambda: self.access.flow
        self.node = self._new_node()

    def _server_tls(self) -> ServerTls | None:
        config = self._config
        if not config.tls_certificate:
            return None
        try:
            return ServerTls(config.tls_certificate, config.tls_key)
        except OSError as error:  # which ssl.SSLError is
            files = f"{config.tls_certificate} and {config.tls_key}"
            raise ConfigError(f"TopicConfig.tls_certificate and tls_key, {files}, cannot be used: {error}") from error

    def _new_node(self) -> TopicNode:
        config = self._config
        limits = DeliveryLimits(
            lease_ms=config.client_ms, batch_messages=config.batch_messages, batch_bytes=config.batch_bytes
        )
        deliveries = Deliveries(
            self._actor, self._offsets, limits, lambda group: self.access.flow.rules_of(group), config.hold_ms / 1000
        )
        duties = SlotDuties(
            deliveries, config.max_message_bytes, lambda: self.access.now, lambda: self._in_thread(self.access.read)
        )
        first = config.broker_port + PORTS_OF_AN_ACTOR * self._actor if config.broker_port else 0
        around = TopicSurroundings(
            self._actor,
            self._confirm_members,
            config.tail_bytes,
            config.session_ms / 1000,
            config.lease_margin_ms / 1000,
        )
        listening = SlotListening(self._host, first, self._limits, self._tls, self._cluster_key)
        return TopicNode(around, duties, listening, self._ports_are)

    # ---- life

    async def start(self) -> None:
        """Listen, register, follow. ConfigError if the port is in use."""
        port = self._config.master_port + self._actor if self._config.master_port else 0
        try:
            self.endpoint = Endpoint(self._host, await self._gateway.listen(self._host, port))
        except OSError as error:
            raise ConfigError(
                f"topic/{self._actor} cannot listen on {self._host}:{port}: {error.strerror}; "
                "choose another TopicConfig.master_port, or 0 for any free one"
            ) from error
        self.node.start()
        self.node.duties.deliveries.start()
        self.master.start()
        self._spawn(self._follow_spaces())
        self._spawn(self._keep_announced())
        await self._in_thread(self._register)
        self._spawn(self._keep_lease())
        self._spawn(self._keep_tokens())

    async def close(self) -> None:
        """Serve nothing more: what it has is given to others. Idempotent."""
        registration, self._registration = self._registration, None
        watches, self._watches = self._watches, []
        leadership, self._leadership = self._leadership, None

        def leave() -> None:
            for watch in watches:
                watch.cancel()
            if leadership is not None:
                leadership.cancel()
            if registration is not None:
                registration.cancel()

        await self._in_thread(leave)
        await self.tasks.stop()
        await self.master.close()
        await self.node.duties.deliveries.close()
        await self.node.close()
        await self._gateway.close()
        await self._to_slots.close()
        announced, self._announced = self._announced, None
        if announced is not None:
            await self._in_thread(announced.cancel)
        self._threads.shutdown(wait=False)
        self._lease_thread.shutdown(wait=False)

    @property
    def broken(self) -> str:
        """A bug of ours that has ended something that never should; "": none has."""
        parts = (self.tasks, self.node.tasks, self.master.tasks, self.node.duties.deliveries.tasks)
        return next((each.broken for each in parts if each.broken), "")

    def status(self) -> TopicActorStatus:
        """What it says of itself. Waits for nothing."""
        node, duties = self.node, self.node.duties
        unserved = tuple(f"{topic}/{slot}" for topic, slot in node.unserved())
        missing = [name for name in self._wanted if name not in node.topics]
        reason = (
            self.broken
            or self.failure
            or node.failure
            or self.access.problem
            or self._offsets.trouble
            or (f"topic {missing[0]} is being opened" if missing else "")
            or (
                f"slot {unserved[0].rpartition('/')[2]} of topic {unserved[0].rpartition('/')[0]} is being opened"
                if unserved
                else ""
            )
        )
        incarnation = node.view.incarnation
        return TopicActorStatus(
            state=ActorState.STARTING if reason else ActorState.SERVING,
            reason=reason,
            actor=self._actor,
            master=self.endpoint,
            leads=self.master.machine.leads,
            incarnation=None if incarnation is None else incarnation.incarnation,
            slots=dict(node.ports),
            unserved=unserved,
            topics={topic.name: topic.count for topic in node.topics.values()},
            connections=self._gateway.connections + sum(each.connections for each in node.gateways.values()),
            produced=duties.produced,
            refused=duties.refused,
            delivered=duties.deliveries.delivered,
            groups=len(duties.deliveries.status()),
            outrun=node.outrun(),
        )

    def groups(self) -> list[GroupStatus] | None:
        """What the master knows of groups; None: this actor is not the master."""
        machine = self.master.machine
        if not machine.leads:
            return None
        found = [machine.group_status(name) for name in machine.group_names()]
        return [each for each in found if each is not None]

    # ---- coordination

    def _register(self) -> None:
        assert self.endpoint is not None

        def table(found: UnitTable[int] | None) -> None:
            if found is not None:
                self._post(self._table_seen, found)

        self._watches += self.access.watch()
        self._watches.append(self._units.watch_members(partial(self._post, self._members_seen)))
        self._watches.append(self._units.watch_table(table))
        self._watches.append(self._store.watch_ports(partial(self._post, self._ports_seen)))
        self._watches.append(self._spaces.watch(partial(self._post, self._spaces_seen)))
        self._registration = self._units.register(self._actor, self.endpoint, self._told, boot_s)
        self._leadership = self._store.lead(
            f"topic/{self._actor}", partial(self._post, self._elected), partial(self._post, self._deposed)
        )

    def _told(self, event: RegisteredAs | Unregistered) -> None:
        self._post(self.node.told, event)

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        """From ZooKeeper's threads."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)

    def _members_seen(self, members: dict[int, UnitMember]) -> None:
        self._members = members
        self.node.members_seen(incarnations(members))
        self._table_changed()

    def _table_seen(self, table: UnitTable[int]) -> None:
        self.node.table_seen(table)
        self._table_changed()

    def _ports_seen(self, ports: dict[int, SlotPorts]) -> None:
        self._ports = ports
        self._table_changed()

    def _spaces_seen(self, table: SpaceTable) -> None:
        ready = [each for each in table.present() if each.kind == "topic" and each.state is SpaceState.READY]
        self._wanted = {space.name: space for space in ready}
        most = self._config.max_message_bytes
        limits = {space.name: space.settings[_LIMIT] for space in ready if _LIMIT in space.settings}
        self.node.duties.topic_bytes = {name: min(most, limit) for name, limit in limits.items()}
        self._spaces_changed.set()
        self._table_changed()

    def _table_changed(self) -> None:
        """The master's: a slot has an address where its actor, who is there, listens for it."""
        places = {} if self.node.view.table is None else self.node.view.table.places
        slots: dict[int, SlotPlace] = {}
        for slot, place in places.items():
            said = self._ports.get(place.primary) if place.primary in self._members else None
            if said is not None and slot in said.ports:
                slots[slot] = SlotPlace(said.host, said.ports[slot])
        limits = self.node.duties.topic_bytes
        topics = {space.name: TopicShape(space.count, limits.get(space.name)) for space in self._wanted.values()}
        self.master.table_known(TopicTable(slots, topics))

    # ---- the master

    def _elected(self) -> None:
        self._leading = True
        self._spawn(self._take_over())

    async def _take_over(self) -> None:
        while self._leading:
            try:
                epoch = await self._in_thread(self._store.next_epoch)
            except CoordinationError as error:
                log.info("topic/%d: it leads, and cannot begin yet: %s", self._actor, error)
                await asyncio.sleep(_AGAIN_S)
                continue
            if self._leading:
                self.master.step(TookOver(epoch, 0 if epoch == 1 else self._config.client_ms))
                self._table_changed()
            return

    def _deposed(self) -> None:
        self._leading = False
        self.master.step(SteppedDown())

    async def _tell_slot(self, group: str, partition: TopicPartition, client_id: str, place: SlotPlace) -> None:
        """Where it is not heard, who had the partition loses it when his lease ends."""
        request = others_end(self.access.now.secrets, group, partition.topic, partition.slot, client_id)
        try:
            await self._to_slots.ask(Endpoint(place.host, place.port), request)
        except (OSError, WaltzError) as error:
            log.info("topic/%d: slot %d is not told of a grant: %s", self._actor, partition.slot, error)

    async def _store_offsets(self, group: str, offsets: Mapping[TopicPartition, int], still: Callable[[], bool]) -> str:
        """By the next master the group may have begun, and be further than that."""

        def has_the_word() -> bool:
            return still() and self._has_lease()

        for partition, offset in sorted(offsets.items()):
            number = partition_of_slot(partition.slot)
            if why := await self._offsets.put(group, partition.topic, number, offset, has_the_word):
                return f"{partition}: {why}"
        return ""

    # ---- going on

    async def _keep_lease(self) -> None:
        who = f"topic/{self._actor}"
        await keep_lease(who, lambda: self._registration, self._lease_thread, self._lease_s, self.node.told)

    def _has_lease(self) -> bool:
        """Whether its session lives for certain, so that nobody else leads if it does."""
        lease = self.node.view.lease
        return lease is not None and boot_s() < lease.sent_at_s + self._lease_s

    async def _keep_tokens(self) -> None:
        while True:
            if self._leading:
                try:
                    await self._in_thread(partial(self.access.rotate, unix_ms()))
                except (CoordinationError, InvalidInput) as error:
                    log.warning("topic/%d: the visit tokens are not made anew: %s", self._actor, error)
            await asyncio.sleep(_AGAIN_S)

    def _flow_changed(self) -> None:
        self.node.duties.deliveries.flow_changed()

    async def _confirm_members(self) -> Mapping[int, str]:
        again_s = self._config.session_ms / 1000
        return await confirmed_incarnations(f"topic/{self._actor}", self._units, self._threads, again_s)

    def _ports_are(self, ports: Mapping[int, int]) -> None:
        self._ports_changed.set()

    async def _keep_announced(self) -> None:
        """What was said before is taken back once the new is there."""
        while True:
            await self._ports_changed.wait()
            self._ports_changed.clear()
            said = self._announced
            announce = partial(self._store.announce, self._actor, self._host, dict(self.node.ports))
            try:
                self._announced = await self._in_thread(announce)
                if said is not None:
                    await self._in_thread(said.cancel)
            except CoordinationError as error:
                log.warning("topic/%d: where its slots listen is not announced: %s", self._actor, error)
                await asyncio.sleep(_AGAIN_S)
                self._ports_changed.set()

    async def _follow_spaces(self) -> None:
        """Serve each topic there is, and none that was deleted."""
        while True:
            await self._spaces_changed.wait()
            self._spaces_changed.clear()
            for name in [name for name in self.node.topics if name not in self._wanted]:
                await self.node.remove_topic(name)
            failures = [await self._begin_to_serve(space) for space in list(self._wanted.values())]
            self.failure = next(filter(None, failures), "")
            if self.failure:
                await asyncio.sleep(_AGAIN_S)
                self._spaces_changed.set()

    async def _begin_to_serve(self, space: Space) -> str:
        """Unless it is served already. Why it cannot be now, "" = it is: nobody else waits for that."""
        if space.name in self.node.topics:
            return ""
        try:
            client = await self._connect(space)
        except (WaltzError, *SHORTAGES) as error:
            failure = f"topic {space.name}: {shortage(error)}"
            log.error("topic/%d: %s", self._actor, failure)
            return failure
        self.node.add_topic(space.name, space.count, client)
        return ""

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return await self._loop.run_in_executor(self._threads, call)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.begin(work, "a task has ended")
