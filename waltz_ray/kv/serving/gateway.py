"""The port of one kv space: accepts clients and other members, and tells who said hello what changes.

It knows nothing of the log: what there is to know comes from a ``CommandPort``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from waltz_ray import compat
from waltz_ray.actors.access_guard import AccessGuard
from waltz_ray.kv.messages import Hashmask, Hashmasks, ServerList
from waltz_ray.kv.serving.connection import KvConnection, PortState
from waltz_ray.kv.serving.port import CommandPort, GatewayCounts, GatewayLimits
from waltz_ray.kv.wire import Dialect
from waltz_ray.net.listener import LoopListener, Tls, listen
from waltz_ray.net.outgoing import Outgoing

__all__ = ["Gateway", "changes"]

_ONE_BY_ONE = 16  # changed buckets that are told as so many hashmask(120); more are one hashmasks(110)


class Gateway:
    """Serves ``port`` to whoever connects; all methods run in the event loop."""

    def __init__(
        self,
        name: str,
        port: CommandPort,
        dialect: Dialect = "doc",
        limits: GatewayLimits | None = None,
        outgoing: Outgoing | None = None,
        tls: Tls | None = None,
        plain: bool = False,
        guard: AccessGuard | None = None,
        space: str = "",
        identity: str = "",
    ) -> None:
        """``name``: for the log. ``outgoing``: the node's, if it gathers answers itself. ``plain``: with ``tls``, a
        client may do without. ``guard``: of the rights that clients have in ``space``; None: they may everything.
        ``identity``: the space's, of whose clients others are told apart; "": whoever comes is one."""
        self.outgoing = outgoing or Outgoing()
        self._name = name
        self._tls, self._plain = tls, plain
        self._shared = PortState(name, port, dialect, limits or GatewayLimits(), self.outgoing, guard, space, identity)
        self._announced: Hashmasks | None = None
        self._listener: LoopListener | None = None
        self._sweep: asyncio.TimerHandle | None = None

    # ---- life -------------------------------------------------------------------------------------------

    async def listen(self, host: str, port: int) -> int:
        """Accept connections from now on; the port, which is any free one for 0. OSError if it cannot be had."""
        self._listener = await listen(self._name, self.new_connection, host, port, self._tls, self._plain)
        self._announced = self._shared.port.hashmasks()
        self._sweep_later()
        return self._listener.port

    def new_connection(self) -> KvConnection:
        """A protocol object for one more client."""
        return KvConnection(self._shared)

    async def close(self) -> None:
        """Accept nobody more; goodbye to everybody, and wait for their acks for ``goodbye_ms``. Idempotent."""
        if self._listener is not None:
            self._listener.close()
        if self._sweep is not None:
            self._sweep.cancel()
        shared = self._shared
        with self.outgoing:
            for connection in list(shared.connections.values()):
                connection.leave("the server is closing")
        while shared.connections:
            shared.none_left.clear()
            with contextlib.suppress(TimeoutError):
                async with compat.timeout(shared.limits.goodbye_ms / 1000 + 0.1):
                    await shared.none_left.wait()
            for connection in list(shared.connections.values()):  # who was just leaving, and takes nothing
                connection.abort("the server is closing")

    def _sweep_later(self) -> None:
        if idle_ms := self._shared.limits.idle_ms:
            self._sweep = asyncio.get_running_loop().call_later(idle_ms / 1000, self._look_at_all)

    def _look_at_all(self) -> None:
        for connection in list(self._shared.connections.values()):
            connection.look()
        self._sweep_later()

    def rights_changed(self) -> None:
        """The guard has other rights now."""
        with self.outgoing:
            for connection in list(self._shared.connections.values()):
                connection.rights_changed()

    # ---- what changes -----------------------------------------------------------------------------------

    def announce(self, masks: Hashmasks) -> None:
        """What this actor has now: what is different from the last time is told to who said hello."""
        before, self._announced = self._announced, masks
        self._tell(lambda dialect: changes(before, masks, _ONE_BY_ONE if dialect == "doc" else len(masks.buckets)))

    def announce_servers(self) -> None:
        """The members have changed."""
        servers = ServerList(tuple(self._shared.port.servers()))
        self._tell(lambda dialect: [servers])

    def _tell(self, commands: Callable[[Dialect], Sequence[ServerList | Hashmasks | Hashmask]]) -> None:
        """What is to be told in a dialect; it is encoded once for all who hear that."""
        frames: dict[Dialect, list[tuple[int, int, bytes]]] = {}
        with self.outgoing:
            for connection in self._shared.connections.values():
                dialect = connection.dialect
                if dialect not in frames:
                    frames[dialect] = [
                        frame for command in commands(dialect) for frame in self._frames(command, dialect)
                    ]
                connection.tell(frames[dialect])

    def _frames(self, command: ServerList | Hashmasks | Hashmask, dialect: Dialect) -> list[tuple[int, int, bytes]]:
        shared = self._shared
        return [shared.frame_of(command)] if isinstance(command, Hashmask) else shared.encoded(command, dialect)

    # ---- for operators ----------------------------------------------------------------------------------

    @property
    def counts(self) -> GatewayCounts:
        """What has happened since it was made."""
        return self._shared.counts

    @property
    def connections(self) -> int:
        """That are open."""
        return len(self._shared.connections)

    @property
    def outstanding_bytes(self) -> int:
        """Of commands without an answer, and of long frames that are coming in."""
        return self._shared.room.used + self._shared.frames_room.used


def changes(before: Hashmasks | None, now: Hashmasks, one_by_one: int = _ONE_BY_ONE) -> list[Hashmasks | Hashmask]:
    """What tells a client that knows ``before`` about ``now``: first what is here, then what is here no more.

    Under a larger mask that is everything, and the finer buckets of what was here and is not. ``one_by_one``: so many
    buckets that are new here are told as a hashmask each; more as all there are.
    """
    if before is None:
        return [now]
    here = dict(now.buckets)
    old = dict(before.buckets)
    if before.mask != now.mask:
        gone = [bucket for bucket in range(now.mask + 1) if bucket & before.mask in old and bucket not in here]
        return [now, *(Hashmask(now.mask, bucket, -1) for bucket in gone)]
    told: list[Hashmasks | Hashmask] = [
        Hashmask(now.mask, bucket, instance) for bucket, instance in now.buckets if old.get(bucket) != instance
    ]
    if len(told) > one_by_one:
        told = [now]
    return [*told, *(Hashmask(now.mask, bucket, -1) for bucket in old if bucket not in here)]
