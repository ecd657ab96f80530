"""A leader lock: one ephemeral node, and whoever made it leads while its session lives.

Leading is a matter of efficiency, not of safety: a leader that is cut off learns of the loss only when it
reaches ZooKeeper again. Whatever a leader decides it must write with compare-and-set.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from waltz_ray.coordination.api import ConnectionState, ZooKeeper, release
from waltz_ray.errors import NodeExists

__all__ = ["Leadership"]


class Leadership:
    """Contends for the node ``path`` with ``data`` until ``cancel()``; may win and lose many times.

    ``on_elected`` and ``on_lost`` alternate, beginning with ``on_elected``, never at the same time, from the
    ZooKeeper client's threads. They must not wait for a thread that calls ``cancel()``.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        path: str,
        data: bytes,
        on_elected: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._zookeeper, self._path, self._data = zookeeper, path, data
        self._on_elected, self._on_lost = on_elected, on_lost
        self._lock = threading.RLock()
        self._leading = False
        self._over = False
        self._states = zookeeper.on_state(self._state_changed)
        self._watch = zookeeper.watch_data(path, self._node_changed)

    @property
    def leading(self) -> bool:
        """Whether this candidate leads, as far as its ZooKeeper client knows."""
        return self._leading

    def cancel(self) -> None:
        """Stop contending and give the lock away. ``on_lost`` is not called. Idempotent."""
        with self._lock:
            if self._over:
                return
            self._over = True
            self._leading = False
            self._watch.cancel()
            self._states.cancel()
            release(self._zookeeper, self._path)

    def _node_changed(self, data: bytes | None, version: int) -> None:
        with self._lock:
            if self._over:
                return
            # Asked again rather than trusted: what is delivered may be older than our session.
            owner = self._zookeeper.owner(self._path)
            if owner is None:
                self._set_leading(False)
                try:
                    self._zookeeper.create(self._path, self._data, ephemeral=True)
                except NodeExists:
                    return  # somebody was quicker; the watch tells when it goes
                owner = self._zookeeper.session_id
            # Our session's node may be one whose creation we never heard of (a lost reply).
            self._set_leading(owner == self._zookeeper.session_id)

    def _state_changed(self, state: ConnectionState) -> None:
        if state is ConnectionState.LOST:
            with self._lock:
                self._set_leading(False)
        elif state is ConnectionState.CONNECTED:
            # The loss may have been told after this session had taken the lock, and no change of the node will tell.
            self._node_changed(None, -1)

    def _set_leading(self, leading: bool) -> None:
        if self._over or leading == self._leading:
            return
        self._leading = leading
        (self._on_elected if leading else self._on_lost)()
