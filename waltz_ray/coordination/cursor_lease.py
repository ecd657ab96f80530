"""A cursor that is this process's for a while: moved by compare-and-set, and told when it is another's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from waltz_ray.coordination.api import ConnectionState, Watch, release
from waltz_ray.coordination.cursor_nodes import CursorNodes, now_ms
from waltz_ray.errors import CursorLost, CursorNotFound, NodeExists, NoNode, VersionConflict
from waltz_ray.protocol.cursors import CursorRecord, advanced, deleted

__all__ = ["CursorLease"]


class CursorLease:
    """A cursor that is ours while our session lives: moved by compare-and-set, in our epoch. For any thread.

    ``lost`` is why it is not ours any more, None = it is, as far as is known here.
    """

    def __init__(
        self, nodes: CursorNodes, name: str, record: CursorRecord, version: int, ended: Callable[[bool], None]
    ) -> None:
        """``ended`` is called once, when it is given back or lost; with False, if its node may be there still."""
        self.name = name
        self.record = record
        self.version = version
        self.lost: CursorLost | None = None
        self._nodes = nodes
        self._ended = ended
        self._lock = threading.Lock()  # one write at a time
        self._over = False
        self._told: Callable[[], None] = lambda: None
        self._watches: list[Watch] = []
        self._watches.append(nodes.zookeeper.on_state(self._state_changed))
        self._watches.append(nodes.zookeeper.watch_data(nodes.lease_of(name), self._lease_changed))

    @property
    def connected(self) -> bool:
        """Whether a write would be answered at once, as far as is known."""
        return self._nodes.zookeeper.state is ConnectionState.CONNECTED

    def when_lost(self, callback: Callable[[], None]) -> None:
        """``callback`` once it is lost, from any thread; it must not wait for anything."""
        self._told = callback
        if self.lost is not None:
            callback()

    def advance(self, positions: Mapping[int, int]) -> None:
        """Move on; a partition that is not named, or would go back, stays. CursorLost.

        After ZooKeeperUnreachable it may have happened: the next call finds out.
        """
        self._write(lambda record: advanced(record, positions, now_ms()), moves_back=False)

    def reset(self, positions: Mapping[int, int]) -> None:
        """Stand at ``positions``, back or forth. CursorLost.

        Trimmed, and it stands there, if a position that it is to hold was trimmed away meanwhile.
        """
        self._write(lambda record: replace(record, positions=dict(positions), changed_ms=now_ms()), moves_back=True)
        if self.record.holds_retention:
            self._nodes.check_hold(positions)

    def release(self) -> None:
        """Give it back. If ZooKeeper cannot be reached, it is free when that answers again, or the session ends.
        Idempotent."""
        with self._lock:
            if self._over:
                return
            self._end()
        self._ended(self.lost is not None or release(self._nodes.zookeeper, self._nodes.lease_of(self.name)))

    def delete(self) -> None:
        """There is no such cursor any more, nor its hold. CursorLost, and nothing was changed."""
        self._write(lambda record: deleted(record, now_ms()), moves_back=True)

    def _write(self, change: Callable[[CursorRecord], CursorRecord], moves_back: bool) -> None:
        with self._lock:
            while True:
                if self.lost is not None:
                    raise self.lost
                if self._over:
                    raise CursorLost(self._nodes.space.name, self.name, "it was given back")
                wanted = change(self.record)
                try:
                    self.version = self._nodes.write(self.name, wanted, self.version, moves_back)
                except (VersionConflict, NodeExists, NoNode):
                    self._look()
                    continue
                self.record = wanted
                return

    def _look(self) -> None:
        """The node is not as we left it. Of our epoch: we were not told of a write of ours. Else it is another's."""
        try:
            record, version = self._nodes.read(self.name)
        except CursorNotFound:
            self._lose("it was deleted")
            return
        if record.epoch != self.record.epoch:
            self._lose(f"{record.owner} has it now")
            return
        self.record, self.version = record, version

    def _state_changed(self, state: ConnectionState) -> None:
        if state is ConnectionState.LOST:
            self._lose("the session with ZooKeeper has expired")

    def _lease_changed(self, data: bytes | None, version: int) -> None:
        zookeeper = self._nodes.zookeeper
        if data is None or zookeeper.owner(self._nodes.lease_of(self.name)) != zookeeper.session_id:
            self._lose("its lease in ZooKeeper is gone")

    def _lose(self, reason: str) -> None:
        if self._over or self.lost is not None:
            return
        self.lost = CursorLost(self._nodes.space.name, self.name, reason)
        self._end()
        self._ended(True)
        self._told()

    def _end(self) -> None:
        self._over = True
        for watch in self._watches:
            watch.cancel()
