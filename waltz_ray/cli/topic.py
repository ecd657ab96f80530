"""``waltz topic``: messages, groups, rights and limits of topics."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from waltz_ray.cli.common import (
    AddressOption,
    ClusterOption,
    DirOption,
    DryRunOption,
    JsonOption,
    YesOption,
    confirmed,
    console,
    print_data,
    table_of,
)
from waltz_ray.cli.connecting import ZooKeeperOption
from waltz_ray.cli.moments import MOMENT_HELP, moment
from waltz_ray.config import ClientConfig
from waltz_ray.errors import BadPayload, InvalidInput, PartitionNotReady, SpaceGone, SpaceNotFound, VersionConflict
from waltz_ray.protocol.spaces import OFFSETS_SPACE
from waltz_ray.small_files import read_small_file

if TYPE_CHECKING:
    from waltz_ray.client.client import WaltzClient
    from waltz_ray.coordination.zookeeper import KazooZooKeeper
    from waltz_ray.finding.find import FoundCluster
    from waltz_ray.kv import KvClient
    from waltz_ray.protocol.ids import Endpoint
    from waltz_ray.topics.client.client import TopicClient
    from waltz_ray.topics.client.positions import GroupPlace
    from waltz_ray.topics.offset_item import OffsetItem

__all__ = ["register"]

_TELL_S = 2.0

_topic = typer.Typer(help="Topics: messages, groups that consume them, rights and limits.")

TopicArgument = Annotated[str, typer.Argument(help="A space of kind topic.", show_default=False)]


AuthorityOption = Annotated[
    str,
    typer.Option("--tls-authority", help="PEM file of whom the ports' certificates are from, if they speak TLS."),
]

_PULLED = 1000


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    app.add_typer(_topic, name="topic", no_args_is_help=True)


class _Topics:
    """A cluster that was found, and what is opened of it."""

    def __init__(self, directory: str, cluster: str, address: str, zookeeper: str) -> None:
        from waltz_ray.coordination.zookeeper import KazooZooKeeper
        from waltz_ray.finding.find import find_cluster

        self.stack = ExitStack()
        self.found: FoundCluster = find_cluster(cluster, directory, address, zookeeper)
        self.zookeeper: KazooZooKeeper = KazooZooKeeper(self.found.zookeeper)
        self.stack.callback(self.zookeeper.close)

    def __enter__(self) -> _Topics:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def items(self) -> KvClient:
        from waltz_ray import kv

        return self.stack.enter_context(kv.connect(self.found.name, OFFSETS_SPACE, zookeeper=self.found.zookeeper))

    def log(self, topic: str) -> WaltzClient:
        from waltz_ray.connecting import connect

        self.partitions(topic)
        return self.stack.enter_context(connect(self.found.name, zookeeper=self.found.zookeeper, space=topic))

    def client(self, user: str, password: str, authority: str, timeout_s: float) -> TopicClient:
        """With TLS if the cluster was made so."""
        from waltz_ray.actors.settings import from_json
        from waltz_ray.coordination.cluster_store import ClusterStore
        from waltz_ray.topics.client.client import TopicClient
        from waltz_ray.topics.client.connecting import ClusterTopics
        from waltz_ray.topics.client.settings import TopicClientConfig

        settings = from_json(ClusterStore(self.zookeeper, self.found.name).info().settings)
        tls = bool(settings.config.topics.tls_certificate)
        config = TopicClientConfig(user, password, tls, authority if tls else "", timeout_s)
        return TopicClient(ClusterTopics(self.found), config)

    def slots(self, count: int) -> list[tuple[int | None, Endpoint | None]]:
        """Of the first ``count``: the actor that should have each, and where that listens for it."""
        from waltz_ray.coordination.topic_store import TopicStore
        from waltz_ray.coordination.unit_store import UnitStore
        from waltz_ray.protocol.ids import Endpoint
        from waltz_ray.topics.slots import SLOTS, SlotSplitting

        store = UnitStore[int](self.zookeeper, self.found.name, "topic", SLOTS, SlotSplitting(lambda: count))
        arranged = store.table()[0]
        places = {} if arranged is None else arranged.places
        said = TopicStore(self.zookeeper, self.found.name).ports()
        found: list[tuple[int | None, Endpoint | None]] = []
        for slot in range(1, count + 1):
            actor = places[slot].primary if slot in places else None
            ports = None if actor is None else said.get(actor)
            port = None if ports is None else ports.ports.get(slot)
            found.append((actor, None if ports is None or port is None else Endpoint(ports.host, port)))
        return found

    def partitions(self, topic: str) -> int:
        """How many the topic has. InvalidInput if it is none."""
        from waltz_ray.coordination.cluster_store import ClusterStore

        space = ClusterStore(self.zookeeper, self.found.name).spaces.get(topic)
        if space.kind != "topic":
            raise InvalidInput(f"space {topic!r} is of kind {space.kind}, not topic; see waltz space list")
        return space.count


@_topic.command()
def produce(
    topic: TopicArgument,
    data: Annotated[list[str] | None, typer.Argument(help="Messages; none: the lines of stdin.")] = None,
    msg_type: Annotated[str, typer.Option("--type", help="Of all of them; consumers may filter by it.")] = "",
    partition: Annotated[
        int | None, typer.Option(min=0, help="All of them to this one. \\[default: each in turn]", show_default=False)
    ] = None,
    user: Annotated[str, typer.Option(help="Who we are, if the cluster asks for that.")] = "",
    password: Annotated[str, typer.Option(envvar="WALTZ_TOPIC_PASSWORD", help="Theirs.", show_default=False)] = "",
    authority: AuthorityOption = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for each request.")] = 10.0,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Send messages to a topic and print partition/ID of each."""
    with _Topics(directory, cluster, address, zookeeper) as there:
        there.partitions(topic)
        with there.client(user, password, authority, timeout) as client, client.producer() as producer:
            for each in map(os.fsencode, data) if data else _lines(sys.stdin.buffer):
                sent = producer.send(topic, each, msg_type, partition=partition)
                print(f"{sent.partition}/{sent.offset}", flush=True)


def _lines(stdin: BinaryIO) -> Iterator[bytes]:
    """Without their ends. InvalidInput for one that is longer than a message can be."""
    most = ClientConfig().max_frame_bytes
    while line := stdin.readline(most + 1):
        if len(line) > most:
            raise InvalidInput(f"line too long: more than {most} bytes, as no message has; those before it are sent")
        yield line.removesuffix(b"\n")


@_topic.command()
def consume(
    topic: TopicArgument,
    group: Annotated[str, typer.Option(help="Of which we are a member.", show_default=False)],
    types: Annotated[
        list[str] | None, typer.Option("--type", help="Messages of this type only; may be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="End after so many; 0 = at Ctrl-C.")] = 0,
    user: Annotated[str, typer.Option(help="Who we are, if the cluster asks for that.")] = "",
    password: Annotated[str, typer.Option(envvar="WALTZ_TOPIC_PASSWORD", help="Theirs.", show_default=False)] = "",
    authority: AuthorityOption = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for each request.")] = 10.0,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Print the messages of a topic as a member of a group: a line each. They are confirmed when they are printed."""
    printed = 0
    with _Topics(directory, cluster, address, zookeeper) as there:
        there.partitions(topic)
        with (
            there.client(user, password, authority, timeout) as client,
            client.consumer(group, {topic: types or ()}) as consumer,
        ):
            while printed < limit or not limit:
                batch = consumer.pull(min(limit - printed, _PULLED) if limit else _PULLED)
                assert batch is not None, "it waits for ever"
                for message in batch:
                    sys.stdout.buffer.write(message.data + b"\n")
                    printed += 1
                sys.stdout.flush()
                consumer.confirm(batch)


@_topic.command()
def describe(
    topic: TopicArgument,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show a topic's partitions: the slot and the actor that serve each, where it listens, where the log ends."""
    from waltz_ray.topics.slots import slot_of

    with _Topics(directory, cluster, address, zookeeper) as there:
        log, count = there.log(topic), there.partitions(topic)
        rows = []
        for partition, (actor, listens) in enumerate(there.slots(count)):
            rows.append(
                {
                    "partition": partition,
                    "slot": slot_of(partition),
                    "actor": actor,
                    "address": None if listens is None else str(listens),
                    "end": log.server_high_water_mark(partition) + 1,
                }
            )
    if as_json:
        print_data(rows)
        return
    table = table_of("partition", "slot", "actor", "address", "end")
    for row in rows:
        table.add_row(*("-" if value is None else str(value) for value in row.values()))
    console().print(table)


@_topic.command()
def groups(
    directory: DirOption = "", cluster: ClusterOption = "", address: AddressOption = "", as_json: JsonOption = False
) -> None:
    """Show the groups of consumers that the master knows: their members, and who has which partition."""
    from waltz_ray.actors.supervision import ask, running_actors
    from waltz_ray.finding.find import find_on_ray
    from waltz_ray.runtime.status import to_json

    name, _ = find_on_ray(cluster, directory, address)
    actors = [each for each in running_actors(name) if each.startswith("topic/")]
    answers = (ask(name, each, "groups", 5.0) for each in actors)
    found = next((answer for answer in answers if answer is not None), None)
    if found is None:
        raise PartitionNotReady("no topic actor says that it is the master: see waltz status")
    if as_json:
        print_data(to_json(found))
        return
    table = table_of("group", "topic", "partition", "consumer", "connected")
    for group in found:
        for each in group.partitions:
            number = str(each.partition.slot - 1)
            connected = "yes" if each.connected else "no"
            table.add_row(group.name, each.partition.topic, number, each.owner or "-", connected)
    console().print(table)


@_topic.command()
def lag(
    group: Annotated[str, typer.Argument(help="One group only.", show_default=False)] = "",
    topic: Annotated[str, typer.Option(help="One topic only.", show_default=False)] = "",
    stream: Annotated[
        list[Path] | None,
        typer.Option(help="And of a stream of Spark: its checkpoint. May be given more than once.", show_default=False),
    ] = None,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show where groups are, how many transactions from there to the last message, and how many were trimmed before."""
    from waltz_ray.topics.client.lag import behind
    from waltz_ray.topics.client.positions import positions

    rows = []
    with _Topics(directory, cluster, address, zookeeper) as there:
        logs: dict[str, WaltzClient] = {}
        counts: dict[str, int] = {}
        known = dict(positions(there.items(), group, topic))
        for each in stream or ():
            known.update(_stream_positions(there, each, topic))
        for place, item in sorted(known.items(), key=lambda one: one[0][::-1]) if stream else known.items():
            if place.topic not in counts:
                counts[place.topic] = there.partitions(place.topic) if topic else _partitions_left(there, place.topic)
            if place.partition not in range(counts[place.topic]):  # nobody consumes it any more, or ever did
                continue
            if place.topic not in logs:
                logs[place.topic] = there.log(place.topic)
            log, partition = logs[place.topic], place.partition
            end, first = log.server_high_water_mark(partition) + 1, _offset(log, partition, "earliest")
            found = behind(item, first, end, partial(_records, log, partition))
            rows.append({**place._asdict(), "offset": item.offset, "end": end, **found._asdict()})
    if as_json:
        print_data(rows)
        return
    table = table_of("group", "topic", "partition", "offset", "end", "lag", "lost")
    for row in rows:
        table.add_row(*("-" if value == -1 else str(value) for value in row.values()))
    console().print(table)


def _partitions_left(there: _Topics, topic: str) -> int:
    """How many a topic has of which there are offsets; 0: it was deleted since, and they are still there."""
    try:
        return there.partitions(topic)
    except (SpaceGone, SpaceNotFound):
        return 0


def _stream_positions(there: _Topics, checkpoint: Path, topic: str) -> dict[GroupPlace, OffsetItem]:
    """Of a stream, as if it were a group. InvalidInput: it reads something else."""
    from waltz_spark.offset_log import position_of

    from waltz_ray.coordination.cluster_store import ClusterStore
    from waltz_ray.topics.client.positions import GroupPlace
    from waltz_ray.topics.offset_item import OffsetItem

    found = position_of(checkpoint)
    name, _, space = found.cluster.partition("/")
    if name != there.found.name or found.cluster_key != str(ClusterStore(there.zookeeper, name).info().cluster_key):
        raise InvalidInput(f"{checkpoint} is of a stream of another cluster, {found.cluster}, than {there.found.name}")
    if not space:
        raise InvalidInput(f"{checkpoint} is of a stream that reads the log of {name}, and no topic")
    if topic not in ("", space):
        return {}
    who = f"stream {checkpoint}"  # as it was given: the last name of many is "checkpoint"
    return {GroupPlace(who, space, number): OffsetItem(end, 0, 0, 0) for number, end in found.ends.items()}


@_topic.command()
def reset(
    group: Annotated[str, typer.Argument(help="Who goes on elsewhere.", show_default=False)],
    topic: TopicArgument,
    to: Annotated[str, typer.Option(help=f"earliest, latest, an offset, or {MOMENT_HELP}", show_default=False)],
    partition: Annotated[
        int | None, typer.Option(min=0, help="Of this one only. \\[default: of all]", show_default=False)
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Set where a group goes on. Members that consume are sent away for a moment, and go on there."""
    from waltz_ray.topics.client.positions import GroupPlace, set_position
    from waltz_ray.topics.texts import checked_group

    try:
        group = checked_group(group)
    except BadPayload as error:
        raise InvalidInput(str(error)) from None
    with _Topics(directory, cluster, address, zookeeper) as there:
        count, log, items = there.partitions(topic), there.log(topic), there.items()
        if partition is not None and partition >= count:
            raise InvalidInput(f"topic {topic} has partitions 0 to {count - 1}, not {partition}")
        slots = there.slots(count)
        offsets = {number: _offset(log, number, to) for number in (range(count) if partition is None else [partition])}
        where = ", ".join(f"{number}/{offset}" for number, offset in offsets.items())
        confirmed(f"group {group} forgets where it is in topic {topic}, and goes on at {where}", yes, dry_run)
        for number, offset in offsets.items():
            set_position(items, GroupPlace(group, topic, number), offset)
            print(f"{group} goes on at {topic} {number}/{offset}")
            listens = slots[number][1]
            if listens is not None:
                _send_away(there, GroupPlace(group, topic, number), listens)


def _send_away(there: _Topics, place: GroupPlace, slot: Endpoint) -> None:
    """Who consumes would hear of it only when it confirms something, and there may be nothing to confirm."""
    import asyncio

    from waltz_ray.coordination.topic_store import TopicStore
    from waltz_ray.topics.client.links import tell_slot
    from waltz_ray.topics.lease_ending import others_end
    from waltz_ray.topics.slots import slot_of
    from waltz_ray.topics.tokens import decode_secrets

    secrets = decode_secrets(TopicStore(there.zookeeper, there.found.name).document("secrets")[0])
    number = slot_of(place.partition)
    if why := asyncio.run(tell_slot(slot, others_end(secrets, place.group, place.topic, number, ""), _TELL_S)):
        print(f"slot {number} does not hear of it, at {slot}: {why}; who consumes goes on until it confirms something")


def _records(log: WaltzClient, partition: int, first_id: int, end_id: int) -> Iterator[tuple[int, bytes]]:
    return ((each.transaction_id, each.data) for each in log.read(partition, first_id, end_id))


def _offset(log: WaltzClient, partition: int, to: str) -> int:
    end = log.server_high_water_mark(partition) + 1
    if to == "latest":
        return end
    if to.isdecimal():
        if int(to) > end:
            raise InvalidInput(f"partition {partition} ends at {end}: {to} is not in the log")
        return int(to)
    from datetime import datetime, timezone

    when = datetime.fromtimestamp(0, timezone.utc) if to == "earliest" else moment("--to", to)
    return min(end, log.first_id_at(partition, when))


@_topic.command()
def access(
    file: Annotated[Path | None, typer.Argument(help="JSON that replaces it; none: print what holds.")] = None,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Print or replace who may produce and consume: docs/tubemq.md has the form. It holds at once."""
    from waltz_ray.topics.access_document import decode_access

    with _Topics(directory, cluster, address, zookeeper) as there:
        _document(there, "access", file, decode_access)


@_topic.command()
def flow(
    file: Annotated[Path | None, typer.Argument(help="JSON that replaces it; none: print what holds.")] = None,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Print or replace how fast groups may consume: docs/tubemq.md has the form. It holds at once."""
    from waltz_ray.topics.flow_table import decode_flow_table

    with _Topics(directory, cluster, address, zookeeper) as there:
        _document(there, "flow", file, decode_flow_table)


def _document(there: _Topics, name: str, file: Path | None, check: Callable[[bytes], object]) -> None:
    from waltz_ray.coordination.topic_store import TopicStore

    store = TopicStore(there.zookeeper, there.found.name)
    before, version = store.document(name)
    if file is None:
        print(before.decode() or "{}")
        return
    data = read_small_file(file)
    check(data)
    if not store.set_document(name, data, version):
        raise VersionConflict(f"somebody else has just replaced {name}; look at it, and try again")
    print(f"{name} holds from now on")
