"""Where a cluster is looked into: the manager's watch, and the HTTP port that shows what it sees."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from waltz_ray.actors.access_guard import AccessGuard
from waltz_ray.actors.cluster_watch import ClusterWatch
from waltz_ray.actors.http_access import HttpAccess
from waltz_ray.actors.http_pages import HttpPages
from waltz_ray.actors.http_port import HttpLimits, HttpPort
from waltz_ray.config import HttpConfig
from waltz_ray.net.tls import ServerTls
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.runtime.status import ClusterStatus

__all__ = ["Window", "server_tls"]

log = logging.getLogger(__name__)


class Window:
    """``look`` sees the cluster; ``then`` is told what was seen. A port that cannot be had is tried for at every look:
    a manager that was killed may have left it for a moment, and nothing else waits for it."""

    def __init__(
        self,
        look: Callable[[], ClusterStatus],
        then: Callable[[ClusterStatus], None],
        config: HttpConfig,
        guard: AccessGuard | None = None,
    ) -> None:
        """``guard``: the rights of clients; None: who reaches the port sees all."""
        self._look, self._config = look, config
        self._access = None if guard is None else HttpAccess(guard, bool(config.tls_certificate))
        self._watch = ClusterWatch(self._see, then, config.interval_ms / 1000)
        self._port: HttpPort | None = None
        self._lock = threading.Lock()  # of the port, while it is opened or closed
        self._closed = False
        self.error = ""
        """Why there is no port although there should be."""

    def open(self) -> None:
        """Begin to look, and to show."""
        self._listen()
        self._watch.start()

    def close(self) -> None:
        """Neither looks nor listens any more. Idempotent."""
        self._watch.close()
        with self._lock:
            self._closed = True
            port, self._port = self._port, None
        if port is not None:
            port.close()

    @property
    def endpoint(self) -> Endpoint | None:
        """Where the port listens."""
        port = self._port
        return None if port is None else port.endpoint

    @property
    def url(self) -> str:
        """Of the page, "" while there is none."""
        endpoint = self.endpoint
        return "" if endpoint is None else f"{self._config.scheme}://{endpoint}/"

    def _see(self) -> ClusterStatus:
        self._listen()
        return self._look()

    def _listen(self) -> None:
        config = self._config
        with self._lock:
            if self._closed or not config.enabled or self._port is not None:
                return
            limits = HttpLimits(config.connections, max(1, config.connections * 3 // 4))
            try:
                tls = server_tls(config)
                answer = HttpPages(self._watch).answer
                self._port = HttpPort(config.host, config.port, answer, limits, tls, self._access)
            except OSError as error:
                paths = " and ".join(filter(None, (config.tls_certificate, config.tls_key, config.tls_clients)))
                files = f" with {paths}" if paths else ""
                told = f"cannot listen for HTTP on {config.host}:{config.port}{files}: {error.strerror or error}"
                if told != self.error:
                    log.warning("manager: %s; it tries again", told)
                self.error = told
                return
        self.error = ""
        log.info("manager: %s", self.url)


def server_tls(config: HttpConfig) -> ServerTls | None:
    """None: the port speaks plain. Who has no certificate of ``tls_clients`` may show a token. OSError if the files
    cannot be used."""
    if not config.tls_certificate:
        return None
    return ServerTls(config.tls_certificate, config.tls_key, config.tls_clients or None, optional=True)
