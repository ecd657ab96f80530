"""Every command of a kv port, in both dialects, as everybody: what docs/security.md says of each is what happens."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.actors.test_feed_pace import in_loop
from tests.kv.dict_port import DictPort
from tests.kv.golden_bytes import COMMANDS, golden
from tests.security.kv_rights import KV_RULES, KV_TOKEN, KvDoor, guarded_gateway
from tests.security.rights import Comes
from tests.security.test_who_may_what import table_of
from waltz_ray.kv.access import KV_NEEDS, OF_MEMBERS
from waltz_ray.kv.messages import Command, FailCode, FailInfo, Opcode, Ping, ShowKvToken
from waltz_ray.kv.wire import COMMAND_OPCODES, Dialect, encode_command
from waltz_ray.net.tls import ServerTls, client_context
from waltz_ray.security.certificates import make_certificates

COLUMNS = ("nobody", "wrong certificate", "reader", "appender", "an actor")
TABLE = table_of("kv", COLUMNS)
SAMPLES: dict[str, Command] = {
    **{Opcode(golden()[name].head[0]).name: command for name, command in COMMANDS.items()},
    "SHOW_TOKEN": ShowKvToken(KV_TOKEN),
}
COMERS = {
    "nobody": Comes(),
    "reader": Comes("reader"),
    "appender": Comes("appender"),
    "an actor": Comes(member=True),
}


def test_the_table_has_every_command_and_no_other() -> None:
    assert set(TABLE) == {Opcode(opcode).name for opcode in COMMAND_OPCODES} == set(SAMPLES)
    assert {int(opcode) for opcode in KV_NEEDS} | OF_MEMBERS == COMMAND_OPCODES


@pytest.mark.parametrize("dialect", ["doc", "2012"])
@pytest.mark.parametrize("name", sorted(SAMPLES))
@in_loop
async def test_what_the_table_says_is_what_happens(name: str, dialect: Dialect) -> None:
    """The port's dialect; serverlist and hashmasks, which are told one by one in 2012, are understood in both."""
    for column, comes in COMERS.items():
        node = DictPort()
        gateway = guarded_gateway(dialect=dialect, node=node)
        door = KvDoor(gateway, comes)
        assert not gateway.counts.access_refused
        reply = door.say(SAMPLES[name], dialect if name == "SERVERLIST" else "doc")
        refused = isinstance(reply, FailInfo) and reply.code == FailCode.NOT_ALLOWED
        assert reply is not None
        assert refused == bool(gateway.counts.access_refused)
        assert not (refused and (node.submitted or node.shutting_down)), "it was refused, and handed on"
        assert ("no" if refused else "yes") == TABLE[name][COLUMNS.index(column)], column


@in_loop
async def test_without_rights_everybody_may_everything() -> None:
    gateway = guarded_gateway(rules=None)
    for command in SAMPLES.values():
        KvDoor(gateway, Comes(tls=False)).say(command)
    assert not gateway.counts.access_refused


@pytest.mark.parametrize("name", sorted(SAMPLES))
@in_loop
async def test_who_has_its_rights_elsewhere_may_what_nobody_may(name: str) -> None:
    door = KvDoor(guarded_gateway(), Comes("elsewhere"))
    refused = isinstance(door.say(SAMPLES[name]), FailInfo)
    assert ("no" if refused else "yes") == TABLE[name][COLUMNS.index("nobody")]


def test_nobody_with_a_wrong_certificate_is_answered_anything(tmp_path: Path) -> None:
    """TLS ends before the first command is looked at; with a right one, or with none, it does not."""
    assert {cells[COLUMNS.index("wrong certificate")] for cells in TABLE.values()} == {"no"}
    make_certificates(tmp_path, ["127.0.0.1"], ["reader"], 2)
    make_certificates(tmp_path / "strange", ["127.0.0.1"], ["reader"], 2)
    authority = str(tmp_path / "authority.pem")
    node = DictPort()

    async def answer(port: int, context: ssl.SSLContext) -> bytes:
        everything = b"".join(encode_command(7, command) for command in (Ping(), *SAMPLES.values()))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        except OSError:
            return b""
        try:
            writer.write(everything)
            await writer.drain()
            return await reader.read(12)
        except OSError:
            return b""
        finally:
            writer.transport.abort()

    async def body() -> None:
        tls = ServerTls(str(tmp_path / "server.pem"), str(tmp_path / "server.key"), authority, optional=True)
        gateway = guarded_gateway(KV_RULES, node=node, tls=tls)
        port = await gateway.listen("127.0.0.1", 0)
        strange = tmp_path / "strange"
        wrong = client_context(authority, str(strange / "reader.pem"), str(strange / "reader.key"))
        assert await answer(port, wrong) == b""
        assert node.submitted == []
        right = client_context(authority, str(tmp_path / "reader.pem"), str(tmp_path / "reader.key"))
        for context in (right, client_context(authority)):
            assert (await answer(port, context))[:2] == Opcode.ACK.to_bytes(2, "big")
        await gateway.close()

    asyncio.run(body())
