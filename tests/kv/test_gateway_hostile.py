"""A kv port and who means it no good: every command still gets its one reply, memory is bounded, others are served."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kv.dict_port import DictPort
from tests.kv.foreign_client import fnv, string
from tests.kv.golden_bytes import golden
from tests.kv.running_gateway import HEADER, Peer, RunningGateway, open_files
from waltz_ray.kv.messages import FailCode
from waltz_ray.kv.serving.port import GatewayLimits

GET = struct.pack(">II", 0, fnv(b"something"))
PING = golden()["ping"].frame
NEVER_BACK = ("goodbye", "hello")  # they end the connection, or send more than a reply


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningGateway]:
    """One gateway for all who are hostile, one after the other: the next is the other client that goes unharmed."""
    with RunningGateway() as running:
        running.node.keeps_log = False
        yield running


def code_of(payload: bytes) -> int:
    return int(struct.unpack_from(">i", payload)[0])


def set_string(name: bytes, value: bytes) -> bytes:
    return struct.pack(">IIii", 0, fnv(name), 0, 0) + string(name) + string(value)


# ---- framing --------------------------------------------------------------------------------------------------


def test_one_byte_at_a_time(shared: RunningGateway) -> None:
    with Peer(shared.port) as peer:
        for byte in golden()["set_int"].frame + golden()["get_int"].frame:
            peer.socket.sendall(bytes([byte]))
        assert [message.opcode for message in peer.messages(2)] == [1, 2105]


def test_half_a_header_and_no_more(shared: RunningGateway, caplog: pytest.LogCaptureFixture) -> None:
    for cut in (1, 11, 12, 30):
        with Peer(shared.port) as peer:
            peer.socket.sendall(golden()["set_int"].frame[:cut])
            peer.socket.shutdown(socket.SHUT_WR)
            assert peer.rest() == []
    assert f"inside a frame, {cut} bytes into it" in caplog.text


def test_a_length_of_4_gib_ends_the_connection_at_its_header(shared: RunningGateway) -> None:
    """And what came before it, in the same bytes, has its replies."""
    for length in (0xFFFFFFFF, 0x7FFFFFFF, GatewayLimits().frame_bytes - 11):
        for before in (0, 3):
            with Peer(shared.port) as peer:
                peer.socket.sendall(PING * before + HEADER.pack(2100, 0, 1, length))
                assert [message.opcode for message in peer.rest()] == [1] * before
    with Peer(shared.port) as peer:
        assert peer.ask(30).opcode == 1


def test_who_says_nothing_is_closed() -> None:
    with RunningGateway(limits=GatewayLimits(first_ms=50)) as running, Peer(running.port) as peer:
        peer.socket.sendall(PING[:11])
        assert peer.next() is None


def test_an_idle_connection_is_told_goodbye() -> None:
    """Not one that waits for an answer; and the first one not before its time."""
    limits = GatewayLimits(idle_ms=100, goodbye_ms=50)
    with RunningGateway(limits=limits) as running, Peer(running.port) as idle, Peer(running.port) as waiting:
        running.node.holds = True
        waiting.send(2100, 5, GET)
        running.until(lambda: running.node.held)
        assert idle.ask(30).opcode == 1
        assert [message.opcode for message in idle.rest()] == [20]
        running.call(running.node.let_go)
        assert waiting.messages(1)[0].message_id == 5


# ---- floods ---------------------------------------------------------------------------------------------------


def test_ten_thousand_pipelined(shared: RunningGateway) -> None:
    """One reply each, in one write of the client; of four kinds, one of them nonsense."""
    kinds = [(30, b"", 1), (2100, GET, None), (2999, b"", 9), (2100, b"x", 3)]
    with Peer(shared.port) as peer:
        frames = [HEADER.pack(kinds[i % 4][0], 0, i, len(kinds[i % 4][1])) + kinds[i % 4][1] for i in range(10_000)]
        peer.socket.sendall(b"".join(frames))
        replies = peer.messages(10_000)
        assert sorted(reply.message_id for reply in replies) == list(range(10_000))
        for reply in replies:
            opcode, _, expected = kinds[reply.message_id % 4]
            assert reply.replied_to == opcode
            assert reply.opcode == expected or expected is None


def test_outstanding_commands_are_bounded_and_input_is_held() -> None:
    limits = GatewayLimits(outstanding=10)
    with RunningGateway(limits=limits) as running, Peer(running.port) as peer, Peer(running.port) as other:
        node = running.node
        node.holds = True

        def let_go() -> int:
            """In one turn: in the next there may be more."""
            held = len(node.held)
            node.let_go()
            return held

        for message_id in range(1000):
            peer.send(2100, message_id, GET)
        running.until(lambda: len(node.held) == 10)
        assert other.ask(30).opcode == 1
        assert len(node.held) == 10
        answered = 0
        while answered < 1000:
            running.until(lambda: node.held)
            held = running.call(let_go)
            assert held <= 10
            answered += held
        assert [reply.message_id for reply in peer.messages(1000)] == list(range(1000))
        assert node.held == []


def test_bytes_of_all_connections_are_bounded() -> None:
    """Who finds no room waits, and has its turn; who has nothing outstanding has one small command done."""
    limits = GatewayLimits(outstanding_bytes=200_000)
    with RunningGateway(limits=limits) as running:
        node = running.node
        node.holds = True
        peers = [Peer(running.port) for _ in range(20)]
        for number, peer in enumerate(peers):
            peer.send(2020, number, set_string(b"n%d" % number, bytes(70_000)))
        running.until(lambda: len(node.held) == 3)
        with Peer(running.port) as other:
            for message_id in range(3):
                other.send(2100, message_id, GET)
            running.until(lambda: len(node.held) == 4)
            assert peers[0].ask(30).opcode == 1
            assert running.call(lambda: len(node.held)) == 4
            assert running.gateway.outstanding_bytes < 200_000 + 72_000
            command, answer = node.held.pop()
            running.call(lambda: answer(node.do(command)))
            running.until(lambda: len(node.held) == 4)
            node.holds = False
            running.call(node.let_go)
            assert [reply.message_id for reply in other.messages(3)] == [0, 1, 2]
        for number, peer in enumerate(peers):
            assert peer.messages(1) == [(1, 2020, number, b"")]
            peer.close()
        assert len(node.items) == 20


def test_long_frames_are_bounded() -> None:
    """A frame there is no room for is dropped as it comes, refused, and done when it is sent again."""
    limits = GatewayLimits(incoming_bytes=1_000_000)
    with RunningGateway(limits=limits) as running, Peer(running.port) as first, Peer(running.port) as second:
        payload = set_string(b"long", bytes(900_000))
        frame = HEADER.pack(2020, 0, 5, len(payload)) + payload
        first.socket.sendall(frame[:-1])
        running.until(lambda: running.gateway.outstanding_bytes > 890_000)
        second.socket.sendall(frame + PING)
        refused, ping = second.messages(2)
        assert (refused.opcode, refused.message_id, code_of(refused.payload)) == (3, 5, FailCode.TOO_MANY)
        assert ping.opcode == 1
        first.socket.sendall(frame[-1:])
        assert first.messages(1)[0].opcode == 1
        second.socket.sendall(frame)
        assert second.messages(1)[0].opcode == 1
        assert running.gateway.outstanding_bytes == 0
        assert running.gateway.counts.no_room == 1


def test_a_long_frame_that_never_becomes_whole_is_given_up() -> None:
    with RunningGateway(limits=GatewayLimits(frame_ms=100)) as running, Peer(running.port) as peer:
        assert peer.ask(30).opcode == 1
        peer.socket.sendall(HEADER.pack(2020, 0, 5, 1_000_000) + bytes(500_000))
        assert peer.next() is None


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_long_frame_has_its_time_while_it_is_read(goes_on: bool) -> None:
    """Not while it is we who do not read on; and again from then on."""
    with RunningGateway(limits=GatewayLimits(outstanding=1, frame_ms=200)) as running, Peer(running.port) as peer:
        running.node.holds = True
        payload = set_string(b"long", bytes(150_000))
        frame = HEADER.pack(2020, 0, 6, len(payload)) + payload
        peer.socket.sendall(HEADER.pack(2100, 0, 5, 8) + GET + frame[:100_000])
        running.until(lambda: running.node.held)
        peer.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            peer.next()
        peer.socket.settimeout(20)
        running.node.holds = False
        running.call(running.node.let_go)
        assert peer.messages(1)[0].message_id == 5
        if goes_on:
            peer.socket.sendall(frame[100_000:])
            assert peer.messages(1)[0].message_id == 6
            assert peer.ask(30).opcode == 1
        else:
            assert peer.next() is None


def test_who_takes_nothing_is_read_no_more_and_cut() -> None:
    """Large replies to few bytes: what is kept for it is bounded, whatever it asks."""
    limits = GatewayLimits(busy_bytes=100_000, untaken_ms=300)
    with RunningGateway(limits=limits) as running, Peer(running.port) as other:
        value = bytes(100_000)
        assert other.ask(2020, set_string(b"large", value)).opcode == 1
        running.node.keeps_log = False
        get = HEADER.pack(2120, 0, 1, 8) + struct.pack(">II", 0, fnv(b"large"))
        tracemalloc.start()
        try:
            with Peer(running.port) as peer:
                peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                with contextlib.suppress(TimeoutError, ConnectionError):  # it is not read, and then cut
                    peer.socket.settimeout(5)
                    for _ in range(50):
                        peer.socket.sendall(get * 10_000)
                running.until(lambda: running.gateway.connections == 1)
            assert tracemalloc.get_traced_memory()[1] < 40_000_000, "500,000 replies would be 50 GB"
            assert running.gateway.counts.commands < 1000, "the others were never looked at"
        finally:
            tracemalloc.stop()
        assert other.ask(30).opcode == 1


def test_who_reads_slowly_has_everything() -> None:
    """It is held up, not refused: what it has not taken never reaches the bound."""
    limits = GatewayLimits(busy_bytes=100_000, unsent_bytes=500_000)
    with RunningGateway(limits=limits) as running, Peer(running.port) as peer:
        assert peer.ask(2020, set_string(b"large", bytes(100_000))).opcode == 1
        get = struct.pack(">II", 0, fnv(b"large"))
        peer.socket.sendall(b"".join(HEADER.pack(2120, 0, i, 8) + get for i in range(300)) + PING)
        replies = peer.messages(301)
        assert [reply.message_id for reply in replies[:-1]] == list(range(300))
        assert {reply.opcode for reply in replies[:-1]} == {2125}
        assert running.gateway.counts.no_room == 0


def test_late_replies_for_who_takes_nothing_are_small() -> None:
    """Read answers that come all at once, later, are refused beyond the bound: nothing was changed by asking."""
    limits = GatewayLimits(busy_bytes=50_000, unsent_bytes=1_000_000, untaken_ms=0)
    with RunningGateway(limits=limits) as running, Peer(running.port) as peer:
        node = running.node
        assert peer.ask(2020, set_string(b"large", bytes(1_000_000))).opcode == 1
        node.holds = True
        for message_id in range(100):
            peer.send(2120, message_id, struct.pack(">II", 0, fnv(b"large")))
        running.until(lambda: len(node.held) == 100)
        running.call(node.let_go)
        replies = peer.messages(100)
        assert [reply.message_id for reply in replies] == list(range(100))
        found = Counter(reply.opcode for reply in replies)
        assert found[2125] < 30
        assert {code_of(reply.payload) for reply in replies if reply.opcode == 3} == {FailCode.TOO_MANY}


def test_what_all_who_take_nothing_have_together_is_bounded_and_who_reads_goes_on() -> None:
    """Each alone may have 64 MiB; of one address there may be 2,048."""
    limits = GatewayLimits(untaken_bytes=4_000_000, untaken_ms=0)
    with RunningGateway(limits=limits) as running, ExitStack() as stack:
        node, peers = running.node, [stack.enter_context(Peer(running.port)) for _ in range(8)]
        assert peers[0].ask(2020, set_string(b"large", bytes(300_000))).opcode == 1
        node.holds = True
        get = struct.pack(">II", 0, fnv(b"large"))
        for peer in peers:
            peer.socket.sendall(b"".join(HEADER.pack(2120, 0, i, 8) + get for i in range(50)))
        running.until(lambda: len(node.held) == 8 * 50)
        running.call(node.let_go)
        node.holds = False
        connections = running.gateway._shared.connections
        assert sum(running.call(lambda: [each.unsent_bytes for each in connections.values()])) < 6_000_000
        with Peer(running.port) as reader:
            for _ in range(5):
                assert reader.ask(2120, get).opcode == 2125
        for peer in peers:
            found = Counter(reply.opcode for reply in peer.messages(50))
            assert set(found) == {2125, 3}, "each has a reply for each of its commands"


def test_an_answer_that_is_too_long_for_a_frame_is_refused() -> None:
    with RunningGateway(limits=GatewayLimits(frame_bytes=100_000)) as running, Peer(running.port) as peer:
        assert peer.ask(2020, set_string(b"n", bytes(60_000))).opcode == 1
        one = struct.pack(">HI", 0, 1) + struct.pack(">H", 1) + b"n"
        two = struct.pack(">HI", 0, 2) + (struct.pack(">H", 1) + b"n") * 2
        assert peer.ask(3010, one).opcode == 3015
        reply = peer.ask(3010, two)
        assert (reply.opcode, code_of(reply.payload)) == (3, FailCode.TOO_LONG)


def test_a_member_whose_address_is_megabytes_is_acked_and_not_remembered(shared: RunningGateway) -> None:
    with Peer(shared.port) as peer:
        for server in (b"h" * (8 << 20), b"127.0.0.1:1"):
            assert peer.ask(130, struct.pack(">i", len(server)) + server) == (1, 130, 77, b"")
            connections = shared.gateway._shared.connections
            assert connections[max(connections)]._server == ("" if len(server) > 512 else "127.0.0.1:1")


def test_a_client_that_never_answers_is_harmless() -> None:
    """Our own commands without a reply are forgotten beyond a bound."""
    with RunningGateway() as running, Peer(running.port) as peer:
        for _ in range(200):
            peer.send(10, 1)
            peer.messages(3)
        (connection,) = running.gateway._shared.connections.values()
        assert len(connection._asked) == 64


def test_a_flood_of_connections() -> None:
    """More than there may be, some of them gone before they began: who was there is served, nothing leaks."""
    before = open_files()
    limits = GatewayLimits(connections_per_peer=100, goodbye_ms=100)
    with RunningGateway(limits=limits) as shared, Peer(shared.port) as other:
        assert other.ask(30).opcode == 1
        flood = []
        for number in range(300):
            each = socket.create_connection(("127.0.0.1", shared.port))
            if number % 3:
                flood.append(each)
                with contextlib.suppress(ConnectionError):  # it was refused
                    each.sendall(PING[: number % 13])
            else:
                each.close()
            if number % 50 == 0:  # the kernel's queue of those to be accepted is short
                assert other.ask(30).opcode == 1
        shared.until(lambda: 1 < shared.gateway.connections <= 100)
        for each in flood:
            each.close()
        shared.until(lambda: shared.gateway.connections == 1)
        other.send(20, 1)
        assert len(other.rest()) == 1
    assert open_files() <= before


def test_gone_while_it_waits() -> None:
    """Answers to a connection that is gone go nowhere, and its room is free again."""
    with RunningGateway() as running:
        running.node.holds = True
        with Peer(running.port) as peer:
            for message_id in range(100):
                peer.send(2100, message_id, GET)
            running.until(lambda: len(running.node.held) == 100)
            assert running.gateway.outstanding_bytes > 0
        running.until(lambda: running.node.gone == [1])
        running.call(running.node.let_go)
        assert running.gateway.outstanding_bytes == 0


# ---- noise ----------------------------------------------------------------------------------------------------

_FRAMES = st.lists(
    st.one_of(
        st.sampled_from([line.frame for line in golden().values() if line.name not in NEVER_BACK]),
        st.builds(
            lambda opcode, to, message_id, payload: HEADER.pack(opcode, to, message_id, len(payload)) + payload,
            st.one_of(st.integers(0, 0xFFFF), st.sampled_from(sorted({each.head[0] for each in golden().values()}))),
            st.sampled_from([0, 0, 0, 1, 100, 2100]),
            st.integers(0, 0xFFFFFFFF),
            st.binary(max_size=60),
        ),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=_FRAMES, cuts=st.lists(st.integers(1, 40), max_size=20))
def test_one_reply_for_each_command_whatever_it_is(
    shared: RunningGateway, frames: list[bytes], cuts: list[int]
) -> None:
    """O19, O22, O34: commands as replies, replies as commands, nonsense; cut anywhere."""
    frames = [frame for frame in frames if frame[:2] not in (b"\0\x0a", b"\0\x14")]
    data = b"".join(frames) + HEADER.pack(20, 0, 0xBEEF, 0)
    with Peer(shared.port) as peer:
        position = 0
        for size in cuts:
            peer.socket.sendall(data[position : position + size])
            position += size
        peer.socket.sendall(data[position:])
        replies = peer.rest()
    heads = [HEADER.unpack_from(frame) for frame in frames]
    expected = [(opcode, message_id) for opcode, replied_to, message_id, _ in heads if not replied_to]
    assert [(reply.replied_to, reply.message_id) for reply in replies] == [*expected, (20, 0xBEEF)]


def test_random_bytes(shared: RunningGateway) -> None:
    """Bounded, with the lengths of headers made small half of the time: it lives, and what it says are frames."""
    chance = random.Random(7)
    for _ in range(150):
        with Peer(shared.port) as peer:
            data = bytearray(chance.randbytes(chance.randint(1, 2000)))
            if chance.random() < 0.5:
                for start in range(0, len(data) - 12, 40):
                    data[start : start + 12] = HEADER.pack(
                        chance.choice((10, 11, 100, 110, 120, 1000, 2000, 2020, 3000, 3010, chance.randrange(65536))),
                        0,
                        start,
                        28,
                    )
            peer.socket.sendall(data)
            peer.socket.shutdown(socket.SHUT_WR)
            for message in peer.rest():
                assert message.opcode in {line.head[0] for line in golden().values()}
    with Peer(shared.port) as peer:
        assert peer.ask(30).opcode == 1
        assert shared.failures == []


def test_the_port_answers_twice() -> None:
    """A bug of the node is not hidden."""
    port = DictPort()
    with RunningGateway(port) as running, Peer(running.port) as peer:
        port.holds = True
        peer.send(2100, 1, GET)
        running.until(lambda: port.held)
        ((_, answer),) = port.held
        running.call(port.let_go)
        with pytest.raises(Exception, match="answered twice"):
            running.call(lambda: answer(port.do(running.node.submitted[0][1])))
        running.gateway._shared.connections[1].outstanding = 0
