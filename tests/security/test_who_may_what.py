"""Every message of every port, as everybody: what docs/security.md says of each, in its table, is what happens."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from tests.actors.bench_server import Door
from tests.actors.test_feed_pace import in_loop
from tests.security import test_replica_port as replica_port
from tests.security.rights import NAMES, Comes, door_of, guarded_server
from tests.wire.test_client_codec import GOLDEN as BATCHES
from tests.wire.test_original_codec import GOLDEN as ORIGINALS
from waltz_ray.actors.server import Server
from waltz_ray.protocol.access import is_of_clients, needed
from waltz_ray.protocol.messages.client import (
    ErrorMessage,
    FeedMode,
    InChannel,
    Mount,
    NotAllowed,
    PartitionStateRequest,
    Rejected,
    RejectionCode,
)
from waltz_ray.protocol.messages.original import (
    AddPreferredRequest,
    AppendRequest,
    DataResponse,
    RemovePreferredRequest,
)
from waltz_ray.protocol.messages.replica import ReplicaRequest
from waltz_ray.protocol.records import AppendBatch
from waltz_ray.wire.channel_codec import channel_head
from waltz_ray.wire.codec import CLIENT_TABLE, CLIENT_VERSIONS, ClientMessage, decode_client, encode_client
from waltz_ray.wire.framing import MAGIC_CLIENT, encode_frame
from waltz_ray.wire.replica_codec import REPLICA_TABLE

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
COLUMNS = ("nobody", "wrong certificate", *NAMES)


def table_of(port: str, columns: tuple[str, ...] = COLUMNS) -> dict[str, tuple[str, ...]]:
    """Message -> what each of the columns may."""
    rows = re.findall(rf"^\| {port} \| ([^|]+) \|(.*)\|$", PAGE, flags=re.MULTILINE)
    found = {name.strip(): tuple(cell.strip() for cell in cells.split("|")) for name, cells in rows}
    assert len(found) == len(rows), "a message stands twice"
    assert all(len(cells) == len(columns) and {*cells} <= {"yes", "no"} for cells in found.values())
    return found


SERVER = table_of("server")


def changed(message: Any, **fields: Any) -> ClientMessage:
    found: ClientMessage = dataclasses.replace(message, **fields)
    return found


def of_partition_0(message: ClientMessage) -> ClientMessage:
    """The same, about the partition that the bench has."""
    if isinstance(message, AddPreferredRequest | RemovePreferredRequest):
        return dataclasses.replace(message, partitions=(0,))
    if isinstance(message, AppendRequest):  # locks are not of every version
        message = dataclasses.replace(message, write_locks=(), read_locks=(), append_locks=())
    if hasattr(message, "partition_id"):
        return changed(message, partition_id=0)
    if hasattr(message, "req_id"):
        return changed(message, req_id=message.req_id._replace(partition_id=0))
    return message


def name_of(message: ClientMessage) -> str:
    number = next(row.number for row in CLIENT_TABLE.rows.values() if row.cls is message.__class__)
    feed = f", feed {message.feed.name}" if isinstance(message, Mount) else ""
    none = ", of none" if isinstance(message, PartitionStateRequest) and message.partition_id < 0 else ""
    return f"{CLIENT_TABLE.names[number]}{feed}{none}"


def samples() -> dict[str, tuple[ClientMessage, tuple[int, ...]]]:
    """Of every row of the codec one, and of MOUNT one of each feed: message, versions."""
    found: dict[str, tuple[ClientMessage, tuple[int, ...]]] = {}
    every = [*((message, versions) for versions, message, _ in ORIGINALS), *((message, (5,)) for message, _ in BATCHES)]
    for message, versions in every:
        if isinstance(message, InChannel):  # what is in it is what counts: ``IN_A_CHANNEL``
            found["IN_CHANNEL"] = message, versions
        elif isinstance(message, Mount):
            for feed in FeedMode:
                one = of_partition_0(dataclasses.replace(message, feed=feed))
                found[name_of(one)] = one, versions
        else:
            name = name_of(message)
            before = found.get(name, (message, ()))[1]
            found[name] = of_partition_0(message), (*before, *versions)
    found["PARTITION_STATE_REQUEST, of none"] = PartitionStateRequest(6, -1), (5,)
    assert {name.split(",")[0] for name in found} == {*CLIENT_TABLE.names.values()}, "a message has no sample"
    return found


SAMPLES = samples()


def test_the_table_has_every_message_of_clients_and_no_other() -> None:
    """What is only sent to clients is refused as what breaks the protocol, whoever sends it: it is in no table."""
    server_only = set(SAMPLES) - set(SERVER)
    assert set(SERVER) <= set(SAMPLES)
    assert not {name for name in server_only if name.endswith("_REQUEST") or name.startswith("MOUNT,")}


def outcome(server: Server, door: Door, message: ClientMessage, channel: bool = False) -> str:
    """One of yes, no, and never: no client may send it. ``channel``: it is sent, and answered, in one."""
    assert server.guard is not None
    refused = sum(server.guard.refused.values())
    payload = b"".join(bytes(part) for part in encode_client(door.version, message))
    door.send(InChannel(7, memoryview(payload)) if channel else message)
    told = door.told()
    if channel and told and isinstance(told[-1], InChannel):
        assert told[-1].channel == 7
        told = [decode_client(5, told[-1].message)]
    if sum(server.guard.refused.values()) > refused:
        last = told[-1] if told else None
        numbers = len(message.sequence_numbers) if isinstance(message, AppendBatch) else 0
        if door.version < 5 and not isinstance(last, DataResponse):
            assert door.wire.ended, "it was refused and may go on"
        elif isinstance(last, Rejected):
            assert last.code is RejectionCode.NOT_ALLOWED
            assert len(last.sequence_numbers) == numbers
        else:
            assert isinstance(last, NotAllowed | DataResponse), last
        return "no"
    if any(isinstance(each, ErrorMessage) and "must not send" in each.message for each in told):
        return "never"
    never = needed(message) is None
    assert isinstance(message, InChannel) or never is not is_of_clients(type(message))
    assert not never or door.wire.ended, "it was taken"
    return "never" if never else "yes"


CASES = [(name, version) for name, (_, versions) in SAMPLES.items() for version in sorted({*versions})]


@pytest.mark.parametrize(("name", "version"), CASES)
@in_loop
async def test_what_the_table_says_is_what_happens(name: str, version: int) -> None:
    message, _ = SAMPLES[name]
    comers = {"nobody": Comes(), **{each: Comes(each) for each in NAMES}}
    for column, comes in comers.items():
        server = guarded_server()
        found = outcome(server, door_of(server, comes, version), message)
        if name not in SERVER:
            assert found == "never", f"{name} of a client is taken, and is not in the table"
        elif found == "never":
            assert version == 5, f"{name} is no message of clients"
            assert name in ("MOUNT_REQUEST", "APPEND_REQUEST", "FEED_REQUEST"), f"{name}: never"
        else:
            assert found == SERVER[name][COLUMNS.index(column)], f"{column}, version {version}"


IN_A_CHANNEL = [name for name in SERVER if name.startswith(("MOUNT,", "APPEND_BATCH", "UNMOUNT", "FEED_CREDIT"))]


@pytest.mark.parametrize("name", IN_A_CHANNEL)
@in_loop
async def test_in_a_channel_nobody_may_more(name: str) -> None:
    message, _ = SAMPLES[name]
    comers = {"nobody": Comes(), **{each: Comes(each) for each in NAMES}}
    for column, comes in comers.items():
        server = guarded_server()
        assert outcome(server, door_of(server, comes), message, True) == SERVER[name][COLUMNS.index(column)], column


@in_loop
async def test_of_what_only_servers_say_nothing_is_read() -> None:
    """Which may be millions of partitions or replicas, of whoever reaches the port."""
    for row in CLIENT_TABLE.rows.values():
        if not is_of_clients(row.cls):
            for channel in (False, True):
                door = door_of(guarded_server(), Comes(tls=False))
                cut_short = bytes((row.number,))
                inside = [channel_head(7), cut_short] if channel else [cut_short]
                door.connection.data_received(encode_frame(MAGIC_CLIENT, 5, *inside))
                assert [each.message for each in door.told() if isinstance(each, ErrorMessage)] == [
                    f"a client must not send {row.cls.__name__} in {'a channel' if channel else 'version 5'}"
                ]


def test_nobody_with_a_wrong_certificate_is_answered_anything() -> None:
    """It does not get so far: ``test_rights.py`` has the handshake."""
    assert {cells[COLUMNS.index("wrong certificate")] for cells in SERVER.values()} == {"no"}


@in_loop
async def test_without_rights_everybody_may_everything() -> None:
    for name in SERVER:
        message, versions = SAMPLES[name]
        server = guarded_server(rules=None)
        outcome(server, door_of(server, Comes(tls=False), max(versions)), message)
        assert server.guard is not None
        assert not server.guard.refused, name


def test_versions_are_those_of_the_protocol() -> None:
    assert {version for _, version in CASES} == {*CLIENT_VERSIONS}


REPLICA_COLUMNS = ("nobody", "another secret", "a ticket", "the secret")


def test_the_table_of_the_replicas_port_is_what_is_tested_there() -> None:
    table = table_of("replica", REPLICA_COLUMNS)
    rows = [row for row in REPLICA_TABLE.rows.values() if issubclass(row.cls, ReplicaRequest)]
    assert {row.name for row in rows} == set(table)
    assert {row.cls for row in rows} == {type(request) for request in replica_port.REQUESTS}
    for row in rows:
        ticket = "yes" if row.cls in replica_port.READS else "no"
        assert table[row.name] == ("no", "no", ticket, "yes"), row.name
