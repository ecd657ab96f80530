"""Where a cluster is looked into: the manager's watch, and the HTTP port that shows what it sees."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from waltz_ray.actors.cluster_watch import ClusterWatch
from waltz_ray.actors.http_pages import HttpPages
from waltz_ray.actors.http_port import HttpLimits, HttpPort
from waltz_ray.config import HttpConfig
from waltz_ray.net.tls import ServerTls
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.runtime.status import ClusterStatus

__all__ = ["Window"]

log = logging.getLogger(__name__)


class Window:
    """``look`` sees the cluster; ``then`` is told what was seen. A port that cannot be had is tried for at every look:
    a manager that was killed may have left it for a moment, and nothing else waits for it."""

    def __init__(
        self, look: Callable[[], ClusterStatus], then: Callable[[ClusterStatus], None], config: HttpConfig
    ) -> None:
        self._look, self._config = look, config
        self._watch = ClusterWatch(self._see, then, config.interval_ms / 1000)
        self._port: HttpPort | None = None
        self._lock = threading.Lock()  # of the port, while it is opened or closed
        self._closed = False
        self.error = ""
        """Why there is no port although there should be."""

    def open(self) -> None:
        """Begin to look, and to show."""
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
                tls = ServerTls(config.tls_certificate, config.tls_key) if config.tls_certificate else None
                self._port = HttpPort(config.host, config.port, HttpPages(self._watch).answer, limits, tls)
            except OSError as error:
                files = f" with {config.tls_certificate} and {config.tls_key}" if config.tls_certificate else ""
                told = f"cannot listen for HTTP on {config.host}:{config.port}{files}: {error.strerror or error}"
                if told != self.error:
                    log.warning("manager: %s; it tries again", told)
                self.error = told
                return
        self.error = ""
        log.info("manager: http://%s", self._port.endpoint)
