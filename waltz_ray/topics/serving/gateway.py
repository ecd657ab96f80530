"""A port of topics: of the master, or of one slot. It knows nothing of the log: that is behind its ``RequestPort``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

from waltz_ray import compat
from waltz_ray.net.listener import LoopListener, Tls, listen
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.topics.codes import RpcMethod, ServiceType
from waltz_ray.topics.serving.connection import TopicConnection, TopicPortState
from waltz_ray.topics.serving.port import RequestPort, TopicPortCounts, TopicPortLimits

__all__ = ["BROKER_METHODS", "MASTER_METHODS", "TopicGateway"]

MASTER_METHODS = (*(method for method in RpcMethod if method.service is ServiceType.MASTER), RpcMethod.CLUSTER_MEANT)
BROKER_METHODS = tuple(method for method in RpcMethod if method.service is not ServiceType.MASTER)

_UNSENT_S = 1.0


class TopicGateway:
    """Serves ``port`` to whoever connects; all methods run in the event loop."""

    def __init__(
        self,
        name: str,
        port: RequestPort,
        methods: Collection[RpcMethod],
        limits: TopicPortLimits | None = None,
        outgoing: Outgoing | None = None,
        tls: Tls | None = None,
        cluster_key: str = "",
    ) -> None:
        """``name``: for the log. ``outgoing``: of whoever gathers answers himself. ``cluster_key``: of the cluster that
        is served: who means another one is sent away; "": whatever is served here is meant."""
        self.outgoing = outgoing or Outgoing()
        self._name = name
        self._tls = tls
        self._shared = TopicPortState(name, port, methods, limits or TopicPortLimits(), self.outgoing, cluster_key)
        self._listener: LoopListener | None = None
        self._sweep: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int) -> int:
        """Accept connections from now on; the port, which is any free one for 0. OSError if it cannot be had."""
        self._listener = await listen(self._name, self.new_connection, host, port, self._tls)
        self._sweep_later()
        return self._listener.port

    def new_connection(self) -> TopicConnection:
        """A protocol object for one more client."""
        return TopicConnection(self._shared)

    async def close(self) -> None:
        """Accept nobody more; connections end when what is unsent has left, or a second later. Idempotent."""
        if self._listener is not None:
            self._listener.close()
        if self._sweep is not None:
            self._sweep.cancel()
        shared = self._shared
        for connection in list(shared.connections):
            connection.finish("the port is being closed")
        while shared.connections:
            shared.none_left.clear()
            with contextlib.suppress(TimeoutError):
                async with compat.timeout(_UNSENT_S):
                    await shared.none_left.wait()
            for connection in list(shared.connections):
                connection.abort("the port is being closed")

    def _sweep_later(self) -> None:
        if idle_ms := self._shared.limits.idle_ms:
            self._sweep = asyncio.get_running_loop().call_later(idle_ms / 1000, self._look_at_all)

    def _look_at_all(self) -> None:
        for connection in list(self._shared.connections):
            connection.look()
        self._sweep_later()

    # ---- for operators

    @property
    def counts(self) -> TopicPortCounts:
        """What has happened since it was made."""
        return self._shared.counts

    @property
    def connections(self) -> int:
        """That are open."""
        return len(self._shared.connections)

    @property
    def outstanding_bytes(self) -> int:
        """Of requests without an answer, and of long frames that are coming in."""
        return self._shared.room.used + self._shared.frames_room.used
