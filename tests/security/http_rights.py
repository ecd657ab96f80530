"""The manager's HTTP port with rights, over TLS as clients come, and who comes to it."""

from __future__ import annotations

import base64
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.actors.test_window import DOWN
from waltz_ray.actors.access_guard import AccessGuard
from waltz_ray.actors.cluster_watch import ClusterWatch
from waltz_ray.actors.http_access import HttpAccess
from waltz_ray.actors.http_pages import HttpPages
from waltz_ray.actors.http_port import HttpPort
from waltz_ray.actors.window import server_tls
from waltz_ray.config import HttpConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.net.tls import client_context
from waltz_ray.protocol.access import ANY, SpaceRight, SpaceRules, digest_of
from waltz_ray.runtime.status import ClusterStatus
from waltz_ray.security.certificates import make_certificates
from waltz_ray.wire.access_document import encode_access_rules

__all__ = [
    "HTTP_NAMES",
    "HTTP_RULES",
    "HTTP_TOKEN",
    "GuardedPort",
    "Told",
    "basic",
    "bearer",
    "certified_port",
    "context_of",
    "fetch",
]

HTTP_TOKEN = "a_token_of_the_monitor's"
HTTP_NAMES = ("reader", "appender", "admin", "monitor")
HTTP_RULES = SpaceRules(
    frozenset({*HTTP_NAMES, "prometheus", "one_space"}),
    {digest_of(HTTP_TOKEN): "prometheus", digest_of("of one space"): "one_space"},
    {
        ("reader", ANY): frozenset({SpaceRight.READ}),
        ("appender", ANY): frozenset({SpaceRight.APPEND}),
        ("admin", ANY): frozenset({SpaceRight.ADMIN}),
        ("monitor", ANY): frozenset({SpaceRight.MONITOR}),
        ("prometheus", ANY): frozenset({SpaceRight.MONITOR}),
        ("one_space", "log"): frozenset({SpaceRight.READ, SpaceRight.APPEND, SpaceRight.ADMIN}),
    },
)


@dataclass(frozen=True)
class Told:
    """What came back. ``status`` 0: nothing did."""

    status: int = 0
    head: str = ""
    body: str = ""


class GuardedPort:
    """``guard``: its rights can be changed. ``watch``: so can what it sees."""

    def __init__(self, directory: Path, rules: SpaceRules | None, clients: bool = True, tls: bool = True) -> None:
        self.directory = directory
        self.watch = ClusterWatch(lambda: self.seen, lambda view: None, 1.0)
        self.seen: ClusterStatus = DOWN
        self.watch.beat()
        self.guard = AccessGuard("http", ClusterStore(MemoryZooKeeper(MemoryZooKeeperServer()), "c"))
        self.guard.take_rules(None if rules is None else encode_access_rules(rules))
        files = [str(directory / name) for name in ("server.pem", "server.key", "authority.pem")]
        config = HttpConfig(tls_certificate=files[0], tls_key=files[1], tls_clients=files[2] if clients else "")
        access = HttpAccess(self.guard, tls)
        encrypted = server_tls(config if tls else HttpConfig())
        self.port = HttpPort("127.0.0.1", 0, HttpPages(self.watch).answer, tls=encrypted, access=access)


@contextmanager
def certified_port(
    directory: Path, rules: SpaceRules | None = HTTP_RULES, clients: bool = True, tls: bool = True
) -> Iterator[GuardedPort]:
    """``directory`` has certificates then; ``strange`` in it, those of another authority."""
    make_certificates(directory, ["127.0.0.1"], HTTP_NAMES, 2)
    make_certificates(directory / "strange", ["127.0.0.1"], ["monitor"], 2)
    made = GuardedPort(directory, rules, clients, tls)
    try:
        yield made
    finally:
        made.port.close()


def context_of(directory: Path, name: str = "", of: str = ".") -> ssl.SSLContext:
    """Of who has the certificate ``name``; ``of``: another authority's."""
    certificate, key = (str(directory / of / f"{name}.{end}") if name else None for end in ("pem", "key"))
    return client_context(str(directory / "authority.pem"), certificate, key)


def basic(token: str, user: str = "") -> str:
    return f"Basic {base64.b64encode(f'{user}:{token}'.encode()).decode()}"


def bearer(token: str) -> str:
    return f"Bearer {token}"


def fetch(
    port: GuardedPort, path: str, context: ssl.SSLContext | None = None, shows: str = "", method: str = "GET"
) -> Told:
    """``shows``: its header Authorization."""
    endpoint = port.port.endpoint
    data = b""
    with socket.create_connection((endpoint.host, endpoint.port), timeout=10) as plain, suppress(OSError):
        connection = plain if context is None else context.wrap_socket(plain, server_hostname=endpoint.host)
        with connection:
            said = f"Authorization: {shows}\r\n" if shows else ""
            connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{said}\r\n".encode())
            while piece := connection.recv(65536):
                data += piece
    if not data:
        return Told()
    head, _, body = data.decode().partition("\r\n\r\n")
    return Told(int(head.split(" ", 2)[1]), head, body)
