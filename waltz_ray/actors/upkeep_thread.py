"""The thread in which a replica checks its closed segments and fetches what has rotted (``storage/upkeep.py``).

It ends with the replica. What it meets that nobody foresaw is told (``ScrubStatus.ended``) and ends the thread, not the
replica: the log is served without it. A failed sync ends the process, as everywhere."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from waltz_ray.actors.peers import PeerReplica
from waltz_ray.actors.replica_endpoint import end_process
from waltz_ray.config import StorageConfig
from waltz_ray.errors import CoordinationError, SyncFailed
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.runtime.status import RottenSegment, ScrubStatus
from waltz_ray.security.handshakes import Keyring
from waltz_ray.storage.store import ReplicaStore
from waltz_ray.storage.upkeep import Upkeep

__all__ = ["UpkeepThread"]

log = logging.getLogger(__name__)


class UpkeepThread:
    """``where`` says where the other replicas listen; it may raise CoordinationError. ``keyring`` proves to them that
    this may read. Runs from the beginning."""

    def __init__(
        self,
        store: ReplicaStore,
        config: StorageConfig,
        replica_id: int,
        where: Callable[[], Mapping[int, Endpoint]],
        keyring: Keyring,
        on_fatal: Callable[[str], None] = end_process,
    ) -> None:
        self._name = f"replica/{replica_id}"
        self._where, self._keyring, self._on_fatal = where, keyring, on_fatal
        self._peers: dict[int, tuple[Endpoint, PeerReplica]] = {}
        self._upkeep = Upkeep(store, config, self._sources, time.monotonic)
        self._stopping = threading.Event()
        self._ended = ""  # why, if it has ended by itself
        self._thread = threading.Thread(target=self._run, name=f"upkeep-{replica_id}", daemon=True)
        self._thread.start()

    def status(self) -> ScrubStatus:
        """How far it is, and what is damaged now."""
        progress = self._upkeep.progress
        unrepaired = tuple(
            RottenSegment(one.partition_id, one.damage.file, str(one.damage), one.why_not)
            for one in self._upkeep.unrepaired()
        )
        return ScrubStatus(
            progress.done_bytes,
            progress.total_bytes,
            progress.began_ms,
            progress.last_pass_ms,
            progress.found,
            progress.repaired,
            unrepaired,
            self._ended,
        )

    def stop(self) -> None:
        """Nothing of the store is touched any more when this returns. A peer that is asked just now has its
        time-out."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._upkeep.step()):
                pass
        except SyncFailed as error:
            self._on_fatal(f"{self._name}: {error}; the process ends")
        except Exception as error:
            self._ended = f"{type(error).__name__}: {error}"
            log.exception("%s: nothing is checked or repaired any more until it is started again", self._name)
        finally:
            self._upkeep.close()
            for _, peer in self._peers.values():
                peer.close()

    def _sources(self) -> list[PeerReplica]:
        """The replicas that have said where they are, as last known while ZooKeeper is away."""
        try:
            for number, endpoint in self._where().items():
                before, peer = self._peers.get(number, (None, None))
                if before != endpoint:
                    if peer is not None:
                        peer.close()
                    peer = PeerReplica(number, endpoint, f"{self._name} repairs", self._keyring)
                    self._peers[number] = endpoint, peer
        except CoordinationError as error:
            log.warning("%s: repairs with the peers it knows: %s", self._name, error)
        return [peer for _, peer in self._peers.values()]
