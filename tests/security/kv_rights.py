"""A kv port that has rights, without sockets, and who comes to it."""

from __future__ import annotations

from tests.kv.dict_port import DictPort
from tests.kv.foreign_client import Message
from tests.security.keys import SECRET
from tests.security.rights import Comes, KnownWire
from waltz_ray.actors.access_guard import AccessGuard
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.kv.messages import Command, Opcode, Reply, ShowKvToken
from waltz_ray.kv.payload import HEADER
from waltz_ray.kv.serving.gateway import Gateway
from waltz_ray.kv.wire import Dialect, decode_reply, encode_command
from waltz_ray.kv.wire_framer import KvFramer
from waltz_ray.net.listener import Tls
from waltz_ray.protocol.access import SpaceRight, SpaceRules, digest_of
from waltz_ray.security.member_token import member_token
from waltz_ray.wire.access_document import encode_access_rules

__all__ = ["KV_RULES", "KV_TOKEN", "KvDoor", "guarded_gateway", "set_rules"]

KV_TOKEN = "a token of the loader's"
KV_RULES = SpaceRules(
    frozenset({"reader", "appender", "loader", "elsewhere"}),
    {digest_of(KV_TOKEN): "loader"},
    {
        ("reader", "kv"): frozenset({SpaceRight.READ}),
        ("appender", "kv"): frozenset({SpaceRight.APPEND}),
        ("loader", "kv"): frozenset({SpaceRight.READ, SpaceRight.APPEND}),
        ("elsewhere", "log"): frozenset({SpaceRight.READ, SpaceRight.APPEND, SpaceRight.ADMIN}),
    },
)


def guarded_gateway(
    rules: SpaceRules | None = KV_RULES,
    dialect: Dialect = "doc",
    node: DictPort | None = None,
    tls: Tls | None = None,
) -> Gateway:
    """Of the space ``kv``, in the loop that runs."""
    zookeeper = MemoryZooKeeper(MemoryZooKeeperServer())
    guard = AccessGuard("kv/0", ClusterStore(zookeeper, "c"), lambda: SECRET)
    guard.take_rules(None if rules is None else encode_access_rules(rules))
    return Gateway("kv/0, space kv", node or DictPort(), dialect, tls=tls, plain=True, guard=guard, space="kv")


def set_rules(gateway: Gateway, rules: SpaceRules | None) -> None:
    """As ZooKeeper tells it."""
    guard = gateway._shared.guard
    assert guard is not None
    guard.take_rules(None if rules is None else encode_access_rules(rules))
    gateway.rights_changed()


class KvDoor:
    """One connection. ``comes.member``: it shows what an actor of the cluster shows."""

    def __init__(self, gateway: Gateway, comes: Comes) -> None:
        self.wire = KnownWire(comes)
        self.connection = gateway.new_connection()
        self.wire.protocol = self.connection
        self.connection.connection_made(self.wire)
        self._framer = KvFramer()
        self._told: list[Message] = []
        self._last_id = 0
        if comes.member:
            self.say(ShowKvToken(member_token(SECRET)))

    def say(self, command: Command, dialect: Dialect = "doc") -> Reply | None:
        """Its reply; None: there is none yet."""
        self._last_id += 1
        self.connection.data_received(encode_command(self._last_id, command, dialect))
        return next((decode_reply(m.opcode, m.payload) for m in self.told() if m.message_id == self._last_id), None)

    def told(self) -> list[Message]:
        """Every reply until now. What it is told as a command it acks."""
        written, self.wire.written = bytes(self.wire.written), bytearray()
        for opcode, replied_to, message_id, payload in self._framer.feed(written):
            assert payload is not None
            if replied_to:
                self._told.append(Message(opcode, replied_to, message_id, payload))
            elif opcode == Opcode.GOODBYE:
                self.parted = message_id
        return self._told

    parted = 0
    """The message ID of the goodbye that it was told."""

    def part(self) -> None:
        """Ack that goodbye."""
        self.told()
        assert self.parted, "nobody has said goodbye"
        self.connection.data_received(HEADER.pack(Opcode.ACK, Opcode.GOODBYE, self.parted, 0))
