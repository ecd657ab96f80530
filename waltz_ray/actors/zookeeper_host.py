"""``zookeeper``: the embedded ZooKeeper under a cluster that has no ensemble of its own.

The server is a process of its own; its directory is its identity. This small actor starts it, or adopts it when it
is there already, and starts it again on the same port when it dies. If the actor dies the server goes on, and the
actor's next start adopts it; while it is being restarted, open sessions of the log go on committing (docs/design.md,
"Sessions and recovery").
"""

from __future__ import annotations

import logging
import threading

from waltz_ray.actors.actor_log import begin_log
from waltz_ray.actors.full_disk import little_room
from waltz_ray.actors.replica_endpoint import end_process
from waltz_ray.coordination.embedded import EmbeddedZooKeeper
from waltz_ray.errors import SHORTAGES, CoordinationError, shortage
from waltz_ray.finding.ray_lookup import namespace_of
from waltz_ray.runtime.status import ActorState, EmbeddedZooKeeperStatus

__all__ = ["ZooKeeperHost", "ZooKeeperKeeper"]

log = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 1.0
_END_S = 5.0  # who ends this actor waits for twice as long, and a server that does not end by itself would be left


class ZooKeeperKeeper:
    """Keeps the server of ``data_dir`` alive, from a thread. The constructor returns when it answers."""

    def __init__(
        self,
        data_dir: str,
        check_interval_s: float = _CHECK_INTERVAL_S,
        host: str = "127.0.0.1",
        start_timeout_s: float = 30.0,
    ) -> None:
        self.connect_string = EmbeddedZooKeeper(data_dir, host=host).start(start_timeout_s)
        # From here on this port or none: at another one nobody would find it.
        self._server = EmbeddedZooKeeper(data_dir, int(self.connect_string.rpartition(":")[2]), host)
        self._interval_s = check_interval_s
        self.restarts = 0
        self.error = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zookeeper-keeper", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return self._server.pid

    def close(self) -> None:
        """Stop looking after the server; it goes on. Idempotent."""
        self._stopping.set()
        self._thread.join()

    def stop(self, timeout_s: float = _END_S) -> None:
        """Stop looking after the ZooKeeper server, and end it, the hard way after so long."""
        self.close()
        self._server.stop(timeout_s)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            try:
                if self._server.pid is not None:
                    self.error = ""  # it may have needed longer than it was waited for
                    continue
                self._server.start(given_up=self._stopping.is_set)
            except Exception as error:  # as of a full disk, or a lack of handles: who ceases to look starts it no more
                if str(error) != self.error and not self._stopping.is_set():
                    log.exception("zookeeper: the server died and cannot be started; trying again")
                self.error = str(error)
            else:
                self.restarts += 1
                self.error = ""
                log.warning("zookeeper: the server had died and was started again at %s", self.connect_string)


class ZooKeeperHost:
    """The actor; see ``ZooKeeperKeeper``. The server listens on this node's Ray address (loopback on a local Ray)."""

    def __init__(self, data_dir: str, start_timeout_s: float) -> None:
        import ray

        context = ray.get_runtime_context()
        begin_log(str(context.namespace).removeprefix(namespace_of("")), "zookeeper")
        host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._data_dir = data_dir
        try:
            self._keeper = ZooKeeperKeeper(data_dir, host=host, start_timeout_s=start_timeout_s)
        except (CoordinationError, *SHORTAGES) as error:
            if not context.was_current_actor_reconstructed:
                raise  # who makes it the first time is told
            # Ray starts a process anew that has ended, and never an actor whose constructor has raised an error.
            end_process(f"zookeeper: the server cannot be started: {shortage(error)}; this process ends")

    def connect_string(self) -> str:
        return self._keeper.connect_string

    def health(self) -> str:
        return self._keeper.error or "SERVING"

    def status(self) -> EmbeddedZooKeeperStatus:
        keeper = self._keeper
        return EmbeddedZooKeeperStatus(
            state=ActorState.SERVING if keeper.pid else ActorState.DOWN,
            reason=keeper.error,
            problem=little_room(self._data_dir),
            pid=keeper.pid,
            endpoint=keeper.connect_string,
            restarts=keeper.restarts,
        )

    def shutdown(self) -> None:
        """End the ZooKeeper server; the actor may be ended after it."""
        self._keeper.stop()
