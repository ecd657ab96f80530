"""Commands that have come, as what a keeper does: checked, and made into writes. Pure."""

from __future__ import annotations

from collections.abc import Callable

from waltz_ray.kv.copies import AskedForCopies
from waltz_ray.kv.keeper_types import KeeperLimits
from waltz_ray.kv.lines import LOCKS, Call, PendingWrite
from waltz_ray.kv.messages import (
    Command,
    FailCode,
    Get,
    GetMany,
    LockCommand,
    LockNative,
    Put,
    Renew,
    ScanCommand,
    SecondaryHas,
    SetCommand,
    UnlockCommand,
    UnlockNative,
)
from waltz_ray.kv.model import NOBODYS, ItemKey, RequestId
from waltz_ray.kv.orders import Orders
from waltz_ray.kv.reading import Reads
from waltz_ray.kv.routing import fnv1a_32
from waltz_ray.kv.rules import Acquire, Give, NativeWrite, Outcome, Prolong, refused_size

__all__ = ["CommandIntake"]

_LAST_SEQUENCE = (1 << 64) - 1


class CommandIntake:
    """``begin`` is given each write of a command, ``end`` those that are refused as they are."""

    def __init__(
        self,
        orders: Orders,
        limits: KeeperLimits,
        reads: Reads,
        asked_for: AskedForCopies,
        begin: Callable[[PendingWrite], None],
        end: Callable[[PendingWrite, Outcome], None],
    ) -> None:
        self.commands = 0
        """That have come."""
        self._orders = orders
        self._limits = limits
        self._reads = reads
        self._asked_for = asked_for
        self._begin = begin
        self._end = end

    def asked(self, token: int, connection: int, command: Command) -> None:
        """A command has come over a connection; it ends in one answer."""
        self.commands += 1
        match command:
            case Get() | GetMany() | ScanCommand():
                self._reads.begin(token, connection, command)
            case SetCommand():
                self._set(token, connection, command)
            case Put():
                self._put(token, connection, command)
            case LockCommand(name, lease_s, wait_s):
                self._lock(token, connection, command, (name, 1000 * lease_s, 1000 * wait_s), NOBODYS)
            case LockNative(name, client, sequence, settled, lease_ms, wait_ms):
                request = RequestId(client, sequence, settled)
                self._lock(token, connection, command, (name, lease_ms, wait_ms), request)
            case UnlockCommand(name, code):
                self._of_lock(token, connection, command, Give(name, code), NOBODYS)
            case UnlockNative(name, client, sequence, settled, code):
                self._of_lock(token, connection, command, Give(name, code), RequestId(client, sequence, settled))
            case Renew(name, client, sequence, settled, code, lease_ms):
                if not self._lease_is_bad(token, lease_ms):
                    request = RequestId(client, sequence, settled)
                    self._of_lock(token, connection, command, Prolong(name, code, lease_ms), request)
            case SecondaryHas(partition, transaction_id):
                self._asked_for.asked(token, partition, transaction_id)
            case _:
                text = f"{type(command).__name__} is nothing to ask of the data"
                self._orders.fail(token, FailCode.BAD_REQUEST, text)

    def _set(self, token: int, connection: int, command: SetCommand) -> None:
        if command.expires_s < 0:
            text = f"expires is a number of seconds from now, 0 = never, not {command.expires_s}"
            self._orders.fail(token, FailCode.BAD_REQUEST, text)
            return
        why = refused_size(command.name, b"", command.data, self._limits.max_value_bytes)
        if why:
            self._orders.fail(token, FailCode.TOO_LONG, why)
            return
        call = Call(token, connection, command, 1, command.fullwait)
        self._begin(PendingWrite(call, 0, command, NOBODYS, (command.map_hash, command.key_hash)))

    def _put(self, token: int, connection: int, put: Put) -> None:
        count = len(put.ops)
        if not 0 < count <= self._limits.max_batch:
            text = f"a batch has 1 to {self._limits.max_batch} entries, not {count}"
            self._orders.fail(token, FailCode.BAD_REQUEST, text)
            return
        if put.sequence + count - 1 > _LAST_SEQUENCE:
            text = f"a write's number has 64 bits: {count} from {put.sequence} on have more"
            self._orders.fail(token, FailCode.BAD_REQUEST, text)
            return
        if self._is_far_ahead(token, RequestId(put.client, put.sequence + count - 1, put.settled)):
            return
        call = Call(token, connection, put, count, put.fullwait)
        map_hash = fnv1a_32(put.map_name) if put.map_name else 0
        for index, op in enumerate(put.ops):
            key = ItemKey(map_hash, fnv1a_32(op.name), op.name)
            request = RequestId(put.client, put.sequence + index, put.settled) if put.client else NOBODYS
            write = PendingWrite(call, index, NativeWrite(key, op, put.map_name), request, (map_hash, key.hash))
            why = refused_size(op.name, put.map_name, op.data, self._limits.max_value_bytes)
            if why:
                self._end(write, Outcome(FailCode.TOO_LONG, text=why))
            elif op.expires_ms < 0:
                self._end(write, Outcome(FailCode.BAD_REQUEST))
            else:
                self._begin(write)

    def _lock(
        self, token: int, connection: int, command: Command, asked: tuple[bytes, int, int], request: RequestId
    ) -> None:
        name, lease_ms, wait_ms = asked
        if not self._lease_is_bad(token, lease_ms):
            what = Acquire(name, lease_ms, self._orders.now_ms + max(0, wait_ms))
            self._of_lock(token, connection, command, what, request)

    def _is_far_ahead(self, token: int, last: RequestId) -> bool:
        """Whether more would have to be remembered of the client than may be."""
        far = last.client != 0 and last.sequence - last.settled >= self._limits.unsettled
        if far:
            text = (
                f"writes {last.settled} to {last.sequence} of one client have no answers: {self._limits.unsettled} may "
                "have none; ask again when the first of them has its own"
            )
            self._orders.fail(token, FailCode.TOO_MANY, text)
        return far

    def _lease_is_bad(self, token: int, lease_ms: int) -> bool:
        bad = not 0 < lease_ms <= self._limits.most_lease_ms
        if bad:
            text = f"a lease has 1 to {self._limits.most_lease_ms} milliseconds, not {lease_ms}"
            self._orders.fail(token, FailCode.BAD_REQUEST, text)
        return bad

    def _of_lock(
        self, token: int, connection: int, command: Command, what: Acquire | Give | Prolong, request: RequestId
    ) -> None:
        why = refused_size(what.name, b"", b"", self._limits.max_value_bytes)
        if why:
            self._orders.fail(token, FailCode.TOO_LONG, why)
            return
        if self._is_far_ahead(token, request):
            return
        call = Call(token, connection, command, 1, False)
        self._begin(PendingWrite(call, 0, what, request, (LOCKS, fnv1a_32(what.name))))
