"""What a client of a kv port sees: rows of the document that concern the port, over real sockets."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from tests.kv.dict_port import DictPort
from tests.kv.foreign_client import ForeignClient, fnv, string
from tests.kv.golden_bytes import golden
from tests.kv.running_gateway import Peer, RunningGateway, open_files
from waltz_ray.kv.messages import FailCode, Hashmask, Hashmasks
from waltz_ray.kv.serving.gateway import changes
from waltz_ray.kv.serving.port import GatewayLimits

ALL = Hashmasks(0xF, tuple((bucket, 0) for bucket in range(16)))
KEY = fnv(b"something")
GET = struct.pack(">II", 0, KEY)
DATA = [line for line in golden().values() if line.head[0] >= 1000 and not line.is_reply]


@pytest.fixture
def running() -> Iterator[RunningGateway]:
    with RunningGateway() as running:
        yield running


@pytest.fixture
def peer(running: RunningGateway) -> Iterator[Peer]:
    with Peer(running.port) as peer:
        yield peer


def failinfo(payload: bytes) -> tuple[int, str]:
    code, size = struct.unpack_from(">ii", payload)
    assert len(payload) == 8 + size
    return code, payload[8:].decode()


# ---- the header, replies ------------------------------------------------------------------------------------


def test_o18_the_message_id_is_echoed(peer: Peer) -> None:
    """O18: whatever its 32 bits."""
    for message_id in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        assert peer.ask(30, message_id=message_id) == (1, 30, message_id, b"")


def test_o19_every_command_gets_exactly_one_reply(running: RunningGateway, peer: Peer) -> None:
    """O19, O23: of every opcode there is; goodbye at the end shows that nothing more comes."""
    commands = [line for line in golden().values() if not line.is_reply and line.name not in ("hello", "goodbye")]
    for line in commands:
        peer.socket.sendall(line.frame)
    peer.send(20, 99)
    replies = peer.rest()
    assert [(reply.replied_to, reply.message_id) for reply in replies] == [
        *((line.head[0], line.head[2]) for line in commands),
        (20, 99),
    ]


def test_o21_replies_without_data_have_no_payload(running: RunningGateway, peer: Peer) -> None:
    """O21."""
    assert peer.ask(30) == (1, 30, 77, b"")
    assert peer.ask(2100, GET) == (2, 2100, 77, b"")
    assert peer.ask(2999) == (9, 2999, 77, b"\x0b\xb7")
    assert failinfo(peer.ask(2100, b"short").payload)[0] == FailCode.BAD_REQUEST
    running.node.elsewhere = {KEY & 0xF: "there:1"}
    assert peer.ask(2100, GET) == (4, 2100, 77, string(b"there:1"))


def test_o22_an_unknown_command_leaves_the_connection_up(running: RunningGateway, peer: Peer) -> None:
    """O22: also one that is a reply's opcode, and what has a payload."""
    for opcode in (1, 9, 12, 999, 2105, 65535):
        assert peer.ask(opcode, b"whatever") == (9, opcode, 77, struct.pack(">H", opcode))
    assert peer.ask(30).opcode == 1
    assert running.gateway.counts.unknown == 6


@pytest.mark.parametrize("line", DATA, ids=lambda line: str(line.name))
def test_nonsense_is_refused_and_the_connection_goes_on(line: object, running: RunningGateway, peer: Peer) -> None:
    """D9, D11: the frame's length has told where the next one begins."""
    found = golden()[line.name]  # type: ignore[attr-defined]
    opcode = found.head[0]
    for payload in (found.payload[:-1], found.payload + b"\0", b"\xff" * len(found.payload)):
        reply = peer.ask(opcode, payload)
        if payload[:1] == b"\xff" and reply.opcode != 3:
            continue  # keys of 0xffffffff, for instance, are some
        assert failinfo(reply.payload)[0] == FailCode.BAD_REQUEST
    assert peer.ask(30).opcode == 1
    assert running.gateway.counts.nonsense >= 2


# ---- hello, goodbye, and what is below 1000 -------------------------------------------------------------------


def test_o24_hello_is_acked_first_then_told(running: RunningGateway, peer: Peer) -> None:
    """O24, O29, O30: ack, then serverlist and hashmasks as commands of their own."""
    running.node.masks = Hashmasks(0xF, ((0xB, 0), (3, 1)))
    running.node.members = ["a:1", "bbb:2"]
    peer.send(10, 5)
    ack, servers, masks = peer.messages(3)
    assert ack == (1, 10, 5, b"")
    assert (servers.opcode, servers.replied_to, servers.payload) == (100, 0, golden()["serverlist"].payload)
    assert (masks.opcode, masks.replied_to, masks.payload) == (110, 0, golden()["hashmasks"].payload)
    assert 0 < servers.message_id < masks.message_id


def test_o24_in_dialect_2012_one_by_one() -> None:
    """O24, D16."""
    port = DictPort(Hashmasks(0xF, ((0xB, 0), (3, 1))))
    with RunningGateway(port, "2012") as running, Peer(running.port) as peer:
        port.members = ["a:1", "bbb:2"]
        peer.send(10, 5)
        told = peer.messages(5)
        assert [(each.opcode, each.payload) for each in told] == [
            (1, b""),
            (100, string(b"a:1")),
            (100, string(b"bbb:2")),
            (120, struct.pack(">III", 0xF, 0xB, 0)),
            (120, struct.pack(">III", 0xF, 3, 1)),
        ]
        assert len({each.message_id for each in told[1:]}) == 4


def test_in_dialect_2012_our_own_clients_are_told_at_once() -> None:
    """D16: thousands of buckets one by one, each with its ack, are for those who know nothing else."""
    port = DictPort(Hashmasks(0xF, ((0xB, 0),)))
    with RunningGateway(port, "2012") as running, Peer(running.port) as old, Peer(running.port) as native:
        port.members = ["a:1", "bbb:2"]
        native.send(11, 1, struct.pack(">H", 3000))
        native.send(10, 2)
        assert [each.opcode for each in native.messages(4)] == [1, 1, 100, 110]
        old.send(10, 1)
        assert [each.opcode for each in old.messages(4)] == [1, 100, 100, 120]
        for instance in (0, 1):  # first all of the mask 0xFF that is here, and what 0xB had and is not; then changes
            masks = Hashmasks(0xFF, tuple((bucket, instance) for bucket in range(20)))
            running.call(partial(running.gateway.announce, masks))
        assert [each.opcode for each in native.messages(17)] == [110, *[120] * 15, 110]
        assert [each.opcode for each in old.messages(20 + 15 + 20)] == [120] * 55


def test_o24_elsewhere_while_nobody_is_accepted(running: RunningGateway, peer: Peer) -> None:
    """O24: and it hears of nothing that changes."""
    running.node.refuses = "there:1"
    assert peer.ask(10) == (4, 10, 77, string(b"there:1"))
    running.call(running.gateway.announce_servers)
    assert peer.ask(30).opcode == 1


def test_o25_capabilities(peer: Peer) -> None:
    """O25, D3: ack for each command there is, fail for all others; a reply is no command."""
    commands = {line.head[0] for line in golden().values() if not line.is_reply}
    known = {opcode for opcode in range(4000) if peer.ask(11, struct.pack(">H", opcode)).opcode == 1}
    assert known == commands
    assert peer.ask(11, struct.pack(">H", 2999)) == (2, 11, 77, b"")


def test_which_space_is_meant(peer: Peer) -> None:
    """Where the port knows its own."""
    ours = b"key/kv"
    assert peer.ask(520, struct.pack(">H", len(ours)) + ours).opcode == 1, "it does not know"
    with RunningGateway(identity="key/kv") as running, Peer(running.port) as other:
        for meant, opcode in ((ours, 1), (b"key/carts", 2), (b"", 2), (b"\xff", 2)):
            assert other.ask(520, struct.pack(">H", len(meant)) + meant) == (opcode, 520, 77, b"")


def test_o26_shutting_down_is_that_of_the_member_that_said_who_it_is(running: RunningGateway) -> None:
    """O26, O32, D15: 15 has no payload; newserver(130) on the same connection has told. Who is no member is nobody."""
    running.node.members = [running.address, "other:2"]
    with Peer(running.port) as peer, Peer(running.port) as stranger:
        assert stranger.ask(15) == (1, 15, 77, b"")
        assert stranger.ask(130, string(b"nobody:3")) == (1, 130, 77, b"")
        assert stranger.ask(15).opcode == 1
        assert running.node.shutting_down == []
        assert peer.ask(130, string(b"other:2")).opcode == 1
        assert peer.ask(15).opcode == 1
    assert running.node.shutting_down == ["other:2"]


def test_o27_goodbye_is_acked_and_the_connection_closed(running: RunningGateway, peer: Peer) -> None:
    """O27: what the client waits for is forgotten; what comes after its goodbye is not done."""
    peer.ask(30)
    peer.send(20, 5)
    peer.send(2000, 6, golden()["set_int"].payload)
    assert peer.rest() == [(1, 20, 5, b"")]
    running.until(lambda: running.gateway.connections == 0)
    assert len(running.node.gone) == 1
    assert running.node.submitted == []


def test_o27_goodbye_waits_for_what_is_outstanding(running: RunningGateway, peer: Peer) -> None:
    """O27: another member's syncs are resolved first."""
    running.node.holds = True
    peer.send(500, 1, struct.pack(">iq", 1, 7))
    peer.send(20, 2)
    running.until(lambda: running.node.gone)
    running.call(running.node.let_go)
    assert peer.rest() == [(1, 500, 1, b""), (1, 20, 2, b"")]


def test_o27_goodbye_does_not_wait_for_ever() -> None:
    """O27: for a lock that nobody gives any more, for instance."""
    with RunningGateway(limits=GatewayLimits(goodbye_ms=50)) as running, Peer(running.port) as peer:
        running.node.holds = True
        peer.send(2100, 1, GET)
        peer.send(20, 2)
        assert peer.rest() == []
        running.call(running.node.let_go)


def test_o27_the_servers_goodbye_waits_for_an_ack() -> None:
    """O27: and no longer than a while."""
    with RunningGateway(limits=GatewayLimits(goodbye_ms=300)) as running:
        with Peer(running.port) as peer, Peer(running.port) as mute:
            peer.ask(30)
            mute.ask(30)
            closing = running.loop.create_task(running.gateway.close())
            running.call(lambda: None)
            (goodbye,) = peer.messages(1)
            assert (goodbye.opcode, goodbye.replied_to, goodbye.payload) == (20, 0, b"")
            assert peer.ask(30).opcode == 1, "until then it is served"
            peer.send(1, goodbye.message_id, replied_to=20)
            assert peer.rest() == []
            assert not closing.done(), "the other has not answered"
            assert [each.opcode for each in mute.rest()] == [20]
        running.until(closing.done)
        assert sorted(running.node.gone) == [1, 2]


def test_o28_ping(peer: Peer) -> None:
    """O28."""
    assert peer.ask(30) == (1, 30, 77, b"")


def test_o29_to_o32_what_peers_tell_is_acked(peer: Peer) -> None:
    """O29, O30, O31, O32, D2, D8: in either dialect; nonsense is not."""
    for name in ("serverlist", "serverlist_one", "hashmasks", "hashmask", "hashmask_gone", "newserver"):
        line = golden()[name]
        assert peer.ask(line.head[0], line.payload) == (1, line.head[0], 77, b"")
    assert failinfo(peer.ask(110, b"\0\0\0\x0f\0\0\0\x10").payload)[0] == FailCode.BAD_REQUEST


def test_o33_low_ids_are_answered_while_data_work_waits(running: RunningGateway, peer: Peer) -> None:
    """O33: and data commands are handed on in their order."""
    running.node.holds = True
    for message_id in range(5):
        peer.send(2100 if message_id % 2 else 2120, message_id, GET)
    assert peer.ask(30, message_id=30).opcode == 1
    running.call(running.node.let_go)
    assert [reply.message_id for reply in peer.messages(5)] == [0, 1, 2, 3, 4]
    assert [command.opcode for _, command in running.node.submitted] == [2120, 2100, 2120, 2100, 2120]  # type: ignore[union-attr]


def test_o33_answers_may_come_in_any_order(running: RunningGateway, peer: Peer) -> None:
    """O18, O33: each with the ID of its command, also where two commands have the same one."""
    running.node.holds = True
    for message_id in (1, 2, 2, 3):
        peer.send(2100, message_id, GET)
    running.until(lambda: len(running.node.held) == 4)
    running.call(lambda: running.node.let_go(last_first=True))
    assert [reply.message_id for reply in peer.messages(4)] == [3, 2, 2, 1]


def test_o34_replies_are_matched_by_id_alone(running: RunningGateway, peer: Peer) -> None:
    """O34, D8: an old client acks hashmasks(110) as 100; and a reply to nothing is counted, not answered."""
    peer.send(10, 1)
    _, servers, masks = peer.messages(3)
    peer.send(1, servers.message_id, replied_to=100)
    peer.send(1, masks.message_id, replied_to=100)
    assert peer.ask(30).opcode == 1
    assert running.gateway.counts.stray_replies == 0
    peer.send(4, masks.message_id, string(b"x:1"), replied_to=110)
    peer.send(2105, 12345, b"nonsense", replied_to=2100)
    peer.send(2000, 3, golden()["set_int"].payload, replied_to=1)
    assert peer.ask(30).opcode == 1
    assert running.gateway.counts.stray_replies == 3
    assert running.node.submitted == []


# ---- what changes ---------------------------------------------------------------------------------------------


def test_o12_changes_are_told_to_who_said_hello(running: RunningGateway) -> None:
    """O12, O31."""
    with ForeignClient(running.address) as client, Peer(running.port) as quiet:
        assert quiet.ask(30).opcode == 1
        assert client.table == [running.address] * 16
        fewer = Hashmasks(0xF, tuple((bucket, 0) for bucket in range(15)))
        running.call(lambda: running.gateway.announce(fewer))
        server = client.open[running.address]
        (gone,) = server.listen_for(120)
        assert gone.payload == struct.pack(">IIi", 0xF, 15, -1)
        assert client.table == [running.address] * 15 + [""]
        finer = Hashmasks(0xFF, tuple((bucket, 0) for bucket in range(240) if bucket & 0xF != 15))
        running.call(lambda: running.gateway.announce(finer))
        server.listen_for(110, 2)
        assert client.mask == 0xFF
        assert client.table == ([running.address] * 15 + [""]) * 15 + [running.address] * 15 + [""]
        running.node.members = [running.address, "b:2"]
        running.call(running.gateway.announce_servers)
        server.listen_for(100, 2)
        assert client.servers == [running.address, "b:2"]
        server.ask(30)
        assert running.gateway.counts.stray_replies == 0
        assert quiet.ask(30).opcode == 1, "the next message is its reply"


def test_what_has_changed() -> None:
    """O12, O31: few one by one, many at once, what is gone always by itself; a larger mask is everything."""
    one = Hashmasks(0xF, ((1, 0), (2, 1)))
    assert changes(None, one) == [one]
    assert changes(one, one) == []
    assert changes(one, Hashmasks(0xF, ((1, 1), (3, 0)))) == [
        Hashmask(0xF, 1, 1),
        Hashmask(0xF, 3, 0),
        Hashmask(0xF, 2, -1),
    ]
    many = Hashmasks(0xFF, tuple((bucket, 0) for bucket in range(100)))
    other = Hashmasks(0xFF, tuple((bucket, 1) for bucket in range(1, 101)))
    assert changes(many, other) == [other, Hashmask(0xFF, 0, -1)]
    assert len(changes(many, other, 100)) == 101
    finer = Hashmasks(0xFF, tuple((bucket, 0) for bucket in range(256) if bucket & 0xF == 1 and bucket != 0x51))
    assert changes(Hashmasks(0xF, ((1, 0),)), finer) == [finer, Hashmask(0xFF, 0x51, -1)]


def test_who_takes_nothing_hears_everything_later() -> None:
    """What is announced is not kept for it: the state of then is told when it reads again."""
    limits = GatewayLimits(busy_bytes=20_000, untaken_ms=0)
    with RunningGateway(limits=limits) as running, ForeignClient(running.address, acks=False) as client:
        client.set_string(b"large", bytes(8_000_000))
        server = client.open[running.address]
        asked = [server.send(2120, struct.pack(">II", 0, fnv(b"large"))) for _ in range(3)]
        (connection,) = running.gateway._shared.connections.values()
        running.until(lambda: connection.busy)
        unsent = running.call(lambda: connection.unsent_bytes)
        for mask in (0xFF, 0xFFF, 0xF, 0xFFF):
            running.node.masks = Hashmasks(mask, tuple((bucket, 0) for bucket in range(mask + 1)))
            running.call(lambda: running.gateway.announce(running.node.masks))
        assert running.call(lambda: connection.unsent_bytes) <= unsent
        for message_id in asked:
            assert len(server.wait(message_id).payload) == 8_000_012
        server.listen_for(110, 2)
        assert client.mask == 0xFFF
        assert len(server.commands) == 4


# ---- data -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["doc", "2012"])
def test_o35_to_o45_a_client_written_from_the_document(dialect: str) -> None:
    """O05, O20, O29-O31, O35-O41, O43-O45, O47, D5, D9 in both dialects: nothing of it is ours."""
    with RunningGateway(dialect=dialect) as running, ForeignClient(running.address, dialect) as client:  # type: ignore[arg-type]
        client.open[running.address].listen_for(*((110, 1) if dialect == "doc" else (120, 16)))
        assert client.table == [running.address] * 16
        assert client.set_int(b"something", -45) == (1, 2000, 1 + 1, b"")
        assert client.get_int(b"something") == -45
        assert client.get_int(b"something", map_hash=fnv(b"map")) is None
        client.set_long(b"long", -(1 << 63), fullwait=1, map_hash=fnv(b"map"))
        assert client.get_long(b"long", map_hash=fnv(b"map")) == -(1 << 63)
        client.set_string(b"blob", b"\0" * 3)
        assert client.get_string(b"blob") == b"\0\0\0"
        assert client.get_string(b"nothing") is None
        assert [client.get_type(name) for name in (b"something", b"blob", b"nothing")] == [2, 4, None]
        with pytest.raises(ValueError, match="failinfo 5"):
            client.get_long(b"something")
        assert failinfo(client.set_int(b"x", 1, expires=-1).payload)[0] == FailCode.BAD_REQUEST
        code = client.lock(b"l", 10, 0)
        assert code is not None
        assert (client.unlock(b"l", code + 1), client.unlock(b"l", code)) == (False, True)
        assert running.gateway.counts.stray_replies == 0


def test_o35_real_bytes_are_served(peer: Peer) -> None:
    """O35: what a client of 2011 sent for something=45, and what it reads then (O38)."""
    peer.socket.sendall(golden()["set_int"].frame)
    assert peer.messages(1) == [(1, 2000, 7, b"")]
    peer.socket.sendall(golden()["get_int"].frame)
    assert peer.messages(1) == [(*golden()["data_int"].head, golden()["data_int"].payload)]


def test_o46_a_client_is_sent_on_by_the_server_of_old() -> None:
    """O05, O14, O16, O46: its table is old and stays so; every answer is right."""
    with RunningGateway() as a, RunningGateway() as b:
        halves = [Hashmasks(0xF, tuple((i, 0) for i in range(16) if i % 2 == odd)) for odd in (0, 1)]
        a.node.masks, b.node.masks = halves
        a.node.members = b.node.members = [a.address, b.address]
        a.node.elsewhere = {bucket: b.address for bucket, _ in halves[1].buckets}
        b.node.elsewhere = {bucket: a.address for bucket, _ in halves[0].buckets}
        names = [b"name-%d" % i for i in range(40)]
        with ForeignClient(a.address, updates=False) as client:
            for name in names:
                assert client.set_string(name, name).opcode == 1
            assert [client.get_string(name) for name in names] == names
            assert client.mask == 0xF
            assert client.elsewhere > 20
            assert len(a.node.items) + len(b.node.items) == 40
            assert len(a.node.items) in range(10, 31)


# ---- how it is put together -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("whole_turns")
def test_replies_of_one_turn_leave_with_one_write(running: RunningGateway, peer: Peer) -> None:
    peer.ask(30)
    (connection,) = running.gateway._shared.connections.values()
    writes: list[int] = []
    transport = connection._transport
    assert transport is not None
    assert connection._outlet is not None
    write = transport.write
    connection._outlet._transport = _Counting(write, writes)  # type: ignore[assignment]
    peer.socket.sendall(golden()["get_int"].frame * 50)
    peer.messages(50)
    assert sum(writes) == 50 * 12
    assert len(writes) <= 3, "one, unless the kernel cut the fifty into pieces"


class _Counting:
    def __init__(self, write: object, writes: list[int]) -> None:
        self._write, self._writes = write, writes

    def write(self, data: bytes) -> None:
        self._writes.append(len(data))
        self._write(data)  # type: ignore[operator]

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None: ...

    def close(self) -> None: ...


def test_nothing_is_left_open() -> None:
    before = open_files()
    with RunningGateway(limits=GatewayLimits(goodbye_ms=100)) as running:
        peers = [Peer(running.port) for _ in range(20)]
        for each in peers:
            each.ask(30)
        for each in peers[:10]:
            each.close()
        running.until(lambda: running.gateway.connections == 10)
    for each in peers[10:]:
        assert [message.opcode for message in each.rest()] == [20]
        each.close()
    assert open_files() == before
    assert len(running.node.gone) == 20


def test_limits_are_those_that_were_given() -> None:
    assert replace(GatewayLimits(), connections=3).connections == 3
    with RunningGateway(limits=GatewayLimits(connections=3)) as running:
        peers = [Peer(running.port) for _ in range(3)]
        for each in peers:
            assert each.ask(30).opcode == 1
        with Peer(running.port) as refused:
            assert refused.next() is None
        peers[0].close()
        running.until(lambda: running.gateway.connections == 2)
        with Peer(running.port) as admitted:
            assert admitted.ask(30).opcode == 1
        for each in peers:
            each.close()


def test_opcodes_below_1000_never_reach_the_node(running: RunningGateway, peer: Peer) -> None:
    """O33: but a member's question whether it has something."""
    for line in golden().values():
        if not line.is_reply and line.head[0] < 1000 and line.name != "goodbye":
            peer.socket.sendall(line.frame)
    peer.send(20, 1)
    peer.rest()
    assert [type(command).__name__ for _, command in running.node.submitted] == ["SecondaryHas"]
