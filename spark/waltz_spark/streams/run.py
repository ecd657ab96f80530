"""A run of a thread: its lock, its directory, and what keeps an older run from doing anything more.

``commit`` says why this is enough; the collector (``collector``) rests on the same.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from waltz_ray.coordination.api import ZooKeeper, release
from waltz_ray.errors import CoordinationError, NodeExists, NoNode, StorageError, VersionConflict
from waltz_spark.streams.files import Files
from waltz_spark.streams.layout import join, tmp_path
from waltz_spark.streams.locks import LockHolder, decode_holder, encode_holder
from waltz_spark.streams.odd import make_way

__all__ = ["FENCED", "Hook", "ThreadRun"]

Hook = Callable[[str], None]
"""Told the name of every point passed, for tests that stop there."""

FENCED = ".fenced"
"""Behind the name of a directory whose run has been replaced."""


class ThreadRun:
    """Base of what runs a thread: the node at ``node_path``, with a lock below it, and ``system/tmp/<name>`` on a root.

    A subclass's ``open`` takes the lock, claims the node, fences, recovers and cleans, in this order.
    """

    def __init__(
        self,
        name: str,
        root: str,
        node_path: str,
        zookeeper: ZooKeeper,
        files: Files,
        clock: Callable[[], datetime],
        hook: Hook = lambda point: None,
    ) -> None:
        self._name, self._root, self._node_path = name, root, node_path
        self._zookeeper, self._files, self._clock, self._hook = zookeeper, files, clock, hook
        self._lock = node_path + "/lock"
        self._session_id: int | None = None
        self._token = uuid.uuid4().hex
        self.holder = ""
        """Who else has the lock, for people; "" = nobody when it was last looked at."""
        self._run = ""
        self._attempts = 0
        self._version = -1

    @property
    def is_open(self) -> bool:
        return self._session_id is not None

    def close(self) -> None:
        """Give the lock away. Idempotent."""
        if self._session_id is not None:
            session_id, self._session_id = self._session_id, None
            if self._zookeeper.session_id == session_id:
                release(self._zookeeper, self._lock)

    @contextmanager
    def ending_on_error(self, what: str) -> Iterator[None]:
        """Any error ends the run; what a file system refused becomes a StorageError about ``what``."""
        try:
            yield
        except BaseException as error:
            # Where even this cannot be told to ZooKeeper, the lock goes with the session.
            self.close()
            if isinstance(error, OSError):
                raise StorageError(
                    f"{what}: {error or repr(error)}; the next pass goes on from the state in ZooKeeper"
                ) from error
            raise

    def staged(self, name: str) -> str:
        """A path in this run's directory that was not given out before."""
        self._attempts += 1
        return tmp_path(self._root, self._name, self._run, f"{name}.{self._attempts}")

    def check_held(self) -> None:
        """VersionConflict unless this run still has the lock and nobody else has written the node."""
        mine = self._session_id is not None and self._zookeeper.owner(self._lock) == self._session_id
        if not mine or self._zookeeper.exists(self._node_path) != self._version:
            raise VersionConflict(f"stream thread {self._name}: another run has taken over; this one stops")

    def _take_lock(self, first: bytes) -> bool:
        """Begin a run. ``first``: what a thread that never ran has in its node."""
        self._run = uuid.uuid4().hex
        with suppress(NodeExists):  # as it is from the second run on
            self._zookeeper.create(self._node_path, first, make_parents=True)
        session_id = self._zookeeper.session_id
        try:
            self._zookeeper.create(self._lock, self._holding(), ephemeral=True)
        except NodeExists:
            if not self._lock_is_ours(session_id):
                return False
        self._session_id, self.holder = session_id, ""
        return True

    def _lock_is_ours(self, session_id: int) -> bool:
        """A lost reply may have left us a lock of our session that we do not know of."""
        try:
            holder = decode_holder(self._zookeeper.get(self._lock)[0])
            ours = self._zookeeper.owner(self._lock) == session_id and holder.token == self._token
        except NoNode:
            return False
        self.holder = "" if ours else holder.told(self._clock())
        return ours

    def _holding(self) -> bytes:
        return encode_holder(LockHolder(self._token, socket.gethostname(), os.getpid(), self._clock().isoformat()))

    def _read(self) -> bytes:
        """The node's content, to be decoded and claimed by the next ``_put``."""
        data, self._version = self._zookeeper.get(self._node_path)
        return data

    def _put(self, data: bytes) -> None:
        try:
            self._version = self._zookeeper.set(self._node_path, data, self._version)
        except NoNode as error:
            raise CoordinationError(f"ZooKeeper node {self._node_path} was deleted under a running service") from error

    def _fence(self) -> None:
        directory = tmp_path(self._root, self._name)
        make_way(self._files, self._root, directory)
        for run in self._files.list(directory):
            if not run.endswith(FENCED):
                self.check_held()
                self._files.rename(join(directory, run), join(directory, run + FENCED))
                self._hook("during fence")
        self._files.make_directory(join(directory, self._run))
        self._files.sync_directory(directory)

    def _clean(self) -> None:
        directory = tmp_path(self._root, self._name)
        for run in self._files.list(directory):
            if run.endswith(FENCED):
                self._files.delete(join(directory, run))
