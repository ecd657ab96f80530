"""What an application writes and reads: callbacks, transaction contexts, transactions.

Order promised for one partition: ``on_completion(True)`` of a context, then ``apply_transaction`` of its
transaction; transactions in the order of their IDs, each at least once, none skipped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from numbers import Integral
from typing import Any, Protocol

from waltz_ray.client.codecs import Codec
from waltz_ray.client.keys import Key, lock_of
from waltz_ray.errors import DataUnavailable, DecodingFailed, InvalidInput, Trimmed
from waltz_ray.protocol.ids import LockId, ReqId

__all__ = ["Callbacks", "SubmitResult", "Transaction", "TransactionBuilder", "TransactionContext", "TransactionSource"]


class TransactionSource(Protocol):
    """Gives a transaction's less used parts when somebody asks for them."""

    def req_id(self, index: int) -> ReqId: ...

    def data(self, index: int) -> bytes: ...

    def appended_at(self, index: int) -> datetime | None: ...


class _Sent:
    """Where the parts of a transaction are that has travelled between processes."""

    def __init__(self, req_id: ReqId, data: bytes) -> None:
        self._req_id = req_id
        self._data = data

    def appended_at(self, index: int) -> datetime | None:
        raise DataUnavailable(
            "nobody had asked when this transaction was appended before it was sent here: client.appended_at(it)"
        )

    def req_id(self, index: int) -> ReqId:
        return self._req_id

    def data(self, index: int) -> bytes:
        return self._data


def _received(
    partition_id: int,
    transaction_id: int,
    header: int,
    req_id: ReqId,
    data: bytes,
    codec: Codec | None,
    times: tuple[datetime | None, ...],
) -> Transaction:
    transaction = Transaction(partition_id, transaction_id, header, _Sent(req_id, data), 0, codec)
    for appended_at in times:
        transaction.keep_time(appended_at)
    return transaction


class Transaction:
    """One committed transaction, as the application sees it. It pickles with its data.

    A client connected with ``feed="headers"`` fetches ``data`` from the server when it is first read
    (``DataUnavailable`` if that fails); where that would hold up a loop, ``await client.fetch(transaction)`` first.
    Otherwise it is already here.
    """

    __slots__ = (
        "_appended_at",
        "_codec",
        "_data",
        "_index",
        "_source",
        "_value",
        "header",
        "partition_id",
        "transaction_id",
    )

    def __init__(
        self,
        partition_id: int,
        transaction_id: int,
        header: int,
        source: TransactionSource,
        index: int,
        codec: Codec | None = None,
    ) -> None:
        self.partition_id = partition_id
        self.transaction_id = transaction_id
        self.header = header
        self._source = source
        self._index = index
        self._codec = codec
        self._data: bytes | None = None

    @property
    def req_id(self) -> ReqId:
        """Who asked for it."""
        return self._source.req_id(self._index)

    @property
    def data(self) -> bytes:
        """The bytes that the application appended."""
        if self._data is None:
            self._data = self._source.data(self._index)
        return self._data

    @property
    def appended_at(self) -> datetime | None:
        """When it was appended, by the server's clock and to about a second; the server is asked, once for many.

        Never earlier than that of the transaction before. None of a log that was written before there were times.
        """
        if not hasattr(self, "_appended_at"):
            self._appended_at = self._source.appended_at(self._index)
        return self._appended_at

    @property
    def value(self) -> Any:
        """What the client's codec makes of ``data``, once; without a codec the same bytes. DecodingFailed."""
        codec = self._codec
        if codec is None:
            return self.data
        if not hasattr(self, "_value"):
            try:
                self._value = codec.decode(self.data)
            except (DataUnavailable, Trimmed):
                raise
            except Exception as error:
                reason = f"{type(codec).__name__}: {' '.join(str(error).split())}"
                raise DecodingFailed(self.partition_id, self.transaction_id, self.header, reason) from error
        return self._value

    def keep(self, data: bytes) -> None:
        """``data`` has been fetched: nobody needs to do so again."""
        self._data = data

    def keep_time(self, appended_at: datetime | None) -> None:
        """``appended_at`` has been fetched: nobody needs to do so again."""
        self._appended_at = appended_at

    def __reduce__(self) -> tuple[object, ...]:
        what = self.partition_id, self.transaction_id, self.header, self.req_id, self.data, self._codec
        return _received, (*what, (self._appended_at,) if hasattr(self, "_appended_at") else ())

    def __repr__(self) -> str:
        return f"Transaction({self.partition_id}/{self.transaction_id}, header={self.header})"


class Callbacks(ABC):
    """How a client tells the application about committed transactions.

    Called on the client's apply thread, never at the same time for one client; ``client_high_water_mark`` is also
    called on the thread that connects. The application keeps its own mark, best in the same database transaction
    as what it derives, so that a restart neither skips nor repeats anything.
    """

    @abstractmethod
    def client_high_water_mark(self, partition_id: int) -> int:
        """ID of the last transaction the application has applied, -1 = none."""

    @abstractmethod
    def apply_transaction(self, transaction: Transaction) -> None:
        """Apply one committed transaction. An exception means it was not applied; it comes again."""

    def apply_transactions(self, partition_id: int, transactions: Sequence[Transaction]) -> None:
        """Apply consecutive transactions of one partition; override to do many in one database transaction.

        After an exception the client asks ``client_high_water_mark`` how far it came.
        """
        for transaction in transactions:
            self.apply_transaction(transaction)

    @abstractmethod
    def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        """Applying (or completing) ``transaction_id`` raised ``error``. It is tried again after a short pause."""


class TransactionBuilder:
    """What a context fills in: ``header`` (a signed 32-bit integer the application chooses), ``data``, locks.

    Of a client with a codec ``value`` may be set in place of ``data``: then the data is what the codec makes of it.
    A lock is a name and a number, or a name and a text (``client/keys.py``). InvalidInput for what is neither.
    """

    __slots__ = ("append_locks", "data", "header", "read_locks", "value", "write_locks")

    value: Any

    def __init__(self) -> None:
        self.header = 0
        self.data: bytes | None = None
        self.write_locks: list[LockId] = []
        self.read_locks: list[LockId] = []
        self.append_locks: list[LockId] = []

    def write_lock(self, name: str, id: Key) -> None:
        """Refuse this transaction if anything newer than the client's mark wrote or appended under the lock."""
        self.write_locks.append(lock_of(name, id))

    def read_lock(self, name: str, id: Key) -> None:
        """Check a lock as ``write_lock`` does, but refuse nobody else by taking it."""
        self.read_locks.append(lock_of(name, id))

    def append_lock(self, name: str, id: Key) -> None:
        """No check; refuses others' write and read locks that do not know of this transaction yet."""
        self.append_locks.append(lock_of(name, id))


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """What became of a context: True if it has committed, False if its code gave up."""

    partition_id: int
    transaction_id: int | None
    """None: it gave up."""

    @property
    def committed(self) -> bool:
        """Its transaction is in the log."""
        return self.transaction_id is not None

    def __bool__(self) -> bool:
        return self.committed


class TransactionContext(ABC):
    """Application code that builds a transaction; run again until the transaction commits or the code gives up."""

    @abstractmethod
    def partition_id(self, partitions: int) -> int:
        """Which of the cluster's partitions this transaction belongs to."""

    @abstractmethod
    def execute(self, builder: TransactionBuilder) -> bool:
        """Read the application's state, fill in the builder; False = give up.

        The client notes its high-water mark before this is called, so whatever is applied meanwhile makes a lock
        fail rather than pass. Runs on a thread of the client's pool, possibly several times.
        """

    def on_completion(self, committed: bool) -> None:  # noqa: B027 - a hook, empty on purpose
        """Once, at the end: the transaction has committed (called before it is applied), or the code gave up."""

    def on_exception(self, error: BaseException) -> None:  # noqa: B027 - a hook, empty on purpose
        """Instead of ``on_completion``: ``execute`` raised, or the client could not append."""

    def on_lock_failure(self, transaction_id: int) -> None:  # noqa: B027 - a hook, empty on purpose
        """A lock was refused because of ``transaction_id``; it has been applied now and ``execute`` comes next."""


def checked_int(what: str, value: object) -> int:
    """``value`` as an int of 64 bits. InvalidInput for what is none, and for True and False."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidInput(f"{what} must be an integer, not {type(value).__name__}: {value!r:.60}")
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise InvalidInput(f"{what} must be an integer of 64 bits, not one of {number.bit_length() + 1}")
    return number


def checked_client_id(client_id: int) -> int:
    """``client_id`` if a client can have had it."""
    client_id = checked_int("a client ID", client_id)
    if not 0 <= client_id < 1 << 31:
        raise InvalidInput(f"a client ID is from 0 to 2^31 - 1, not {client_id}")
    return client_id


def checked_header(header: int) -> int:
    """``header`` if it is a signed 32-bit integer."""
    if type(header) is not int:
        header = checked_int("a transaction header", header)
    if not -(1 << 31) <= header < 1 << 31:
        raise InvalidInput(f"a transaction header must be a signed 32-bit integer, not {header}")
    return header


def checked_mark(mark: int) -> int:
    """``mark`` if it can be a client's high-water mark."""
    mark = checked_int("a client high-water mark", mark)
    if mark < -1:
        raise InvalidInput(f"a client high-water mark must be -1 (none) or a transaction ID, not {mark}")
    return mark
