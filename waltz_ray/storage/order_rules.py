"""May this order change this log? The rules of a replica's service, each by its name.

A session must have been opened, by one owner, and its orders come over the connection that opened it last
(``ReplicaService`` says why). Each check raises ``OrderRefused``, which becomes the answer. Nothing is changed here.
"""

from __future__ import annotations

from waltz_ray.errors import (
    Corruption,
    DiskFull,
    Fenced,
    InvalidInput,
    NotContiguous,
    OutOfResources,
    PartitionDamaged,
    RecordsChanged,
    SegmentRotten,
    Trimmed,
)
from waltz_ray.protocol.messages.replica import Open, RefusalCode, ReplicaRequest
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.store import ReplicaStore

__all__ = [
    "OrderRefused",
    "check_connection",
    "check_files",
    "check_owner",
    "check_session",
    "check_there",
    "refusing",
    "refusing_open",
    "taken_away",
]


class OrderRefused(Exception):
    """A refusal on its way to becoming a reply."""

    def __init__(self, code: RefusalCode, message: str, last_id: int | None = None) -> None:
        """``last_id``: what the refusal says in the place of the log's last record."""
        super().__init__(code, message)
        self.code, self.message, self.last_id = code, message, last_id


# ---- which partition -----------------------------------------------------------------------------------------------


def check_there(store: ReplicaStore, partition_id: int) -> None:
    """There is such a partition here: not if this replica has not grown yet, nor if its space was deleted.

    To a server it is a replica that is absent, for now: it asks again.
    """
    if partition_id in store.removed:
        why = f"partition {partition_id} was removed: its space has been deleted"
        raise OrderRefused(RefusalCode.UNKNOWN_PARTITION, why)
    if partition_id not in store.partition_ids:
        count = len(store.partition_ids)
        raise OrderRefused(RefusalCode.UNKNOWN_PARTITION, f"there is no partition {partition_id}, only {count}")


# ---- opening ----------------------------------------------------------------------------------------------------


def check_owner(log: PartitionLog, request: Open, owner: str | None) -> None:
    """A session that is open is opened again by its ``owner`` only."""
    open_here = log.is_open and log.session_id == request.session_id
    if open_here and owner != request.owner:
        raise OrderRefused(
            RefusalCode.OTHER_OWNER if request.owner else RefusalCode.FENCED,  # code 9 came with the owner
            f"partition {log.partition_id}: session {request.session_id} was opened by another process, which had "
            "taken the same number; take a higher one",
        )


def check_files(log: PartitionLog, request: Open, directory: str) -> None:
    """A replica that remembers less than the session it had joined has lost its files: it may neither vote nor join."""
    if log.session_id < request.joined_session_id:
        raise OrderRefused(
            RefusalCode.LOST_FILES,
            f"{directory} has lost the files of partition {log.partition_id}: it had joined session "
            f"{request.joined_session_id} and remembers {log.session_id}; it may neither vote nor join until an "
            "operator says `waltz replace-replica`",
        )


# ---- orders -----------------------------------------------------------------------------------------------------


def check_session(log: PartitionLog, request: ReplicaRequest) -> None:
    """The highest session orders, and only if it was opened since the replica started."""
    if request.session_id < log.session_id:
        raise OrderRefused(RefusalCode.FENCED, str(Fenced(log.partition_id, request.session_id, log.session_id)))
    if request.session_id > log.session_id or not log.is_open:
        raise OrderRefused(
            RefusalCode.NOT_OPEN,
            f"partition {log.partition_id}: session {request.session_id} has not been opened since the replica started",
        )


def check_connection(log: PartitionLog, request: ReplicaRequest, connection: object, opened_over: object) -> None:
    """What changes the log, or speaks for its session, comes over the connection that opened the session last."""
    if opened_over is not connection:
        raise OrderRefused(
            RefusalCode.NOT_OPEN,
            f"partition {log.partition_id}: session {request.session_id} was opened again elsewhere",
        )


# ---- what refusals say ------------------------------------------------------------------------------------------


def taken_away(log: PartitionLog, session_id: int) -> OrderRefused:
    """Why what this session has written is not there any more."""
    if log.session_id > session_id:
        return OrderRefused(RefusalCode.FENCED, str(Fenced(log.partition_id, session_id, log.session_id)))
    if log.damaged is not None:
        why = f"partition {log.partition_id} was found damaged meanwhile: {log.damaged}"
        return OrderRefused(RefusalCode.DAMAGED, why)
    return OrderRefused(
        RefusalCode.NOT_OPEN,
        f"partition {log.partition_id}: session {session_id} was opened again elsewhere, and the log was cut, before "
        "these records were durable",
    )


class _Refusing:
    """``with refusing:`` what storage refuses becomes a refusal. SyncFailed is none and passes."""

    def __init__(self, invalid: RefusalCode) -> None:
        self._invalid = invalid

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        match error:
            case None:
                return
            case Fenced():
                code = RefusalCode.FENCED
            case Trimmed():
                raise OrderRefused(RefusalCode.TRIMMED, str(error), error.first_id - 1) from error
            case NotContiguous():
                code = RefusalCode.NOT_CONTIGUOUS
            case RecordsChanged():
                code = RefusalCode.INVALID_REQUEST
            case InvalidInput():
                code = self._invalid
            case SegmentRotten():
                code = RefusalCode.ROTTEN
            case PartitionDamaged() | Corruption():
                code = RefusalCode.DAMAGED
            case DiskFull():
                code = RefusalCode.DISK_FULL
            case OutOfResources():
                code = RefusalCode.NO_RESOURCES
            case _:
                return
        raise OrderRefused(code, str(error)) from error


refusing = _Refusing(RefusalCode.NOT_CONTIGUOUS)
refusing_open = _Refusing(RefusalCode.INVALID_REQUEST)
