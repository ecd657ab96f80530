"""Rules for tests, and a server that has them, without sockets."""

from __future__ import annotations

from typing import Any

from tests.actors.bench_server import Door, Wire, bench_server, open_with
from tests.security.keys import SECRET
from waltz_ray.actors.access_guard import AccessGuard
from waltz_ray.actors.server import Server
from waltz_ray.protocol.access import SpaceRight, SpaceRules, digest_of
from waltz_ray.wire.access_document import encode_access_rules

__all__ = ["NAMES", "RULES", "TOKEN", "Comes", "KnownWire", "door_of", "guarded_server"]

TOKEN = "a token of the loader's"
NAMES = ("reader", "appender", "admin")
RULES = SpaceRules(
    frozenset({*NAMES, "loader"}),
    {digest_of(TOKEN): "loader"},
    {
        ("reader", "log"): frozenset({SpaceRight.READ}),
        ("appender", "log"): frozenset({SpaceRight.APPEND}),
        ("admin", "log"): frozenset({SpaceRight.ADMIN}),
        ("loader", "log"): frozenset({SpaceRight.READ, SpaceRight.APPEND}),
    },
)


class Comes:
    """``name``: of its certificate."""

    def __init__(self, name: str = "", tls: bool = True, member: bool = False) -> None:
        self.name, self.tls, self.member = name, tls, member


class KnownWire(Wire):
    def __init__(self, comes: Comes) -> None:
        super().__init__()
        self._comes = comes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return object() if self._comes.tls else None
        if name == "peercert":
            return {"subject": ((("commonName", self._comes.name),),)} if self._comes.name else {}
        if name == "waltz_member":
            return self._comes.member
        return super().get_extra_info(name, default)


def door_of(server: Server, comes: Comes, version: int = 5) -> Door:
    """Somebody at the door, who has said HELLO."""
    return Door(server, version, wire=KnownWire(comes)).greet()


def guarded_server(rules: SpaceRules | None = RULES) -> Server:
    """With one partition open, of the space ``log``."""
    server = bench_server(bench=open_with(3))
    if rules is not None:
        assert server.store.access.replace(encode_access_rules(rules), -1)
    server.guard = AccessGuard("server 1", server.store, lambda: SECRET)
    server.guard.read()
    return server
