"""Every error waltz_ray raises, in one tree.

::

    WaltzError
    ├── InvalidInput                 what the caller gave cannot be used
    │   └── ConfigError              a configuration field is unknown or out of range
    │       └── SecretUnusable       the file with the cluster's secret is not there, or not as it has to be
    ├── WireError                    the peer sent bytes that are not our protocol; the connection is closed
    │   ├── AuthenticationFailed     one of two sides has not proved who it is
    │   └── BadPayload               one command or reply of a port makes no sense; the connection goes on
    ├── StorageError
    │   ├── ForeignStorage           the directory belongs to another cluster
    │   ├── ControlFileMissing       segments without a control file, or no storage at all
    │   ├── StorageLocked            another process has the directory open
    │   ├── DiskFull                 no space; nothing was acknowledged
    │   ├── OutOfResources           retriable: no file handles or memory just now; nothing was changed
    │   ├── SyncFailed               fdatasync failed; the replica process must end
    │   ├── PeerUnavailable          no other replica tells what has rotted here, just now
    │   ├── CopiesDisagree           two replicas have different records of one ID, both whole
    │   └── Corruption               bytes on disk are damaged (file, offset, reason)
    │       └── SegmentRotten        in a closed segment, which is fetched from a peer while the log goes on
    ├── ReplicaRefused               a replica said no
    │   ├── Fenced                   a higher session has been seen
    │   ├── NotContiguous            first ID is not last + 1
    │   ├── RecordsChanged           a record of an append is not what its CRC says
    │   ├── BelowTheLog              what is asked for was trimmed away on that replica
    │   └── PartitionDamaged         this partition of this replica is not served
    ├── CoordinationError
    │   ├── ZooKeeperUnreachable     retriable
    │   ├── ZooKeeperRefused         ZooKeeper does not let this process do that
    │   ├── NoNode                   a ZooKeeper node is not there
    │   ├── NodeExists               a ZooKeeper node is there already
    │   ├── VersionConflict          a compare-and-set lost
    │   ├── NodeDamaged              a ZooKeeper node cannot be understood; nothing was done
    │   └── ClusterMismatch          the ZooKeeper root belongs to another cluster
    ├── ProjectionFailed             what a layer folds from the log cannot be kept, or not be understood
    ├── RayNotRunning                Ray cannot be started or reached
    ├── VersionMismatch              another version of the package runs there
    ├── InvariantBroken              a machine contradicts itself: a bug; what runs it ends
    └── ClientError
        ├── AccessRefused            the client has not the right to do this, or nobody knows who it is
        ├── ClusterNotFound          no cluster of that name
        │   └── RuntimeEnvFailed     Ray cannot begin its actors with the runtime_env that they were made with
        ├── SpaceNotFound            no space of that name
        ├── SpaceGone                the space was deleted, with its records
        ├── PartitionNotReady        retriable: moving or recovering
        ├── ClientAhead              the application claims transactions the log does not have
        ├── CursorNotFound           the space has no cursor of that name
        ├── CursorTaken              retriable: somebody else has the cursor
        ├── CursorLost               the cursor is not ours any more; what was not committed comes again
        ├── CursorUnsettled          a reset of the cursor ended half-way: reset it again
        ├── Trimmed                  the records asked for were trimmed away; the error names the first there is
        ├── LockConflict             refused by an optimistic lock: decide again, then append
        ├── AppendFailed             retriable: the append is known not to be in the log
        ├── PartlyAppended           of an append_many some records are in the log, or may be
        ├── AppendTimeout            the caller stopped waiting; the append's fate is open
        ├── OutboxFull               retriable: no room for another append; it was not sent
        ├── NotApplied               retriable: the application has not been brought up to a transaction
        ├── DataUnavailable          retriable: transaction data could not be read
        ├── DecodingFailed           the client's codec cannot make a value of a transaction's data
        ├── KvNotReady               retriable: no actor took a key/value call in time; nothing was changed
        ├── KvUnknownFate            a key/value write may have happened, or not
        ├── KvConflict               the item is not at the version that was expected; nothing was changed
        ├── KvNotReplicated          the write is committed, but no secondary has said in time that it has it
        ├── KvLockTaken              retriable: somebody else has had the lock for as long as one would wait
        ├── KvLockLost               the lock is not ours any more
        ├── TopicRefused             a master or a slot of topics says no, with the protocol's code
        ├── TopicUnknownFate         a confirm was sent, and the partition lost before its answer came
        └── ClientClosed

``retriable`` says whether the very same call may be made again: it may succeed then without anything being changed by
a person, what it was based on still holds, and nothing it writes can be in the log twice.
Fields are passed positionally to ``super().__init__`` so that every error survives pickling (Ray, Spark).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:  # every command imports this module, and few need a loop
    import asyncio
    import concurrent.futures

__all__ = [
    "AccessRefused",
    "AppendFailed",
    "AppendTimeout",
    "AuthenticationFailed",
    "BadPayload",
    "BelowTheLog",
    "ClientAhead",
    "ClientClosed",
    "ClientError",
    "ClusterMismatch",
    "ClusterNotFound",
    "ConfigError",
    "ControlFileMissing",
    "CoordinationError",
    "CopiesDisagree",
    "Corruption",
    "CursorLost",
    "CursorNotFound",
    "CursorTaken",
    "CursorUnsettled",
    "DataUnavailable",
    "DecodingFailed",
    "DiskFull",
    "Fenced",
    "ForeignStorage",
    "InvalidInput",
    "InvariantBroken",
    "KvConflict",
    "KvLockLost",
    "KvLockTaken",
    "KvNotReady",
    "KvNotReplicated",
    "KvUnknownFate",
    "LockConflict",
    "NoNode",
    "NodeDamaged",
    "NodeExists",
    "NotApplied",
    "NotContiguous",
    "OutOfResources",
    "OutboxFull",
    "PartitionDamaged",
    "PartitionNotReady",
    "PartlyAppended",
    "PeerUnavailable",
    "ProjectionFailed",
    "RayNotRunning",
    "RecordsChanged",
    "ReplicaRefused",
    "RuntimeEnvFailed",
    "SecretUnusable",
    "SegmentRotten",
    "SpaceGone",
    "SpaceNotFound",
    "StorageError",
    "StorageLocked",
    "SyncFailed",
    "TopicRefused",
    "TopicUnknownFate",
    "Trimmed",
    "VersionConflict",
    "VersionMismatch",
    "WaltzError",
    "WireError",
    "ZooKeeperRefused",
    "ZooKeeperUnreachable",
]


SHORTAGES = (OSError, RuntimeError, MemoryError)
"""What Python raises for a lack of handles, of threads ("can't start new thread") and of memory."""


def shortage(error: Exception) -> str:
    """What is lacking, for people; a MemoryError says nothing itself."""
    return str(error) or "no memory"


class WaltzError(Exception):
    """Base of all errors. ``str(error)`` is one line: what happened, to what, what to do."""

    retriable: ClassVar[bool] = False


class InvalidInput(WaltzError):
    """What the caller gave cannot be used; nothing was changed."""


class ConfigError(InvalidInput):
    """A configuration field is unknown or out of range."""


class WireError(WaltzError):
    """The peer sent bytes that are not our protocol. The connection is closed, nothing is half-done."""


class AuthenticationFailed(WireError):
    """One of the two sides has not proved who it is. Nothing was said before, and the connection is closed."""


class SecretUnusable(ConfigError):
    """The file with the cluster's secret is not there, or not as it has to be."""


class BadPayload(WireError):
    """One command or reply of a layer's port makes no sense: it is refused, nothing is done, the connection goes on."""


class StorageError(WaltzError):
    """A storage directory cannot be used."""


class ForeignStorage(StorageError):
    """The directory carries another cluster's key."""


class ControlFileMissing(StorageError):
    """There is no control file where one must be."""


class StorageLocked(StorageError):
    """Another process has the directory open."""


class DiskFull(StorageError):
    """The disk is full. What was being written is not acknowledged and has been cut off again."""


class OutOfResources(StorageError):
    """The process has no file handles or memory left for this just now. Nothing was changed and nothing is damaged."""

    retriable = True


class SyncFailed(StorageError):
    """fdatasync failed. The kernel may have dropped the dirty pages, so the process must end, never retry."""


class Corruption(StorageError):
    """Damaged bytes on disk: ``file`` (path), ``offset`` (bytes), ``reason``. ``unreadable``: the disk does not give
    them; the next time it may, and then they may be right."""

    def __init__(self, file: str, offset: int, reason: str, unreadable: bool = False) -> None:
        super().__init__(file, offset, reason, unreadable)
        self.file, self.offset, self.reason, self.unreadable = file, offset, reason, unreadable

    def __str__(self) -> str:
        return f"{self.file}: damaged at byte {self.offset}: {self.reason}"


class SegmentRotten(Corruption):
    """Damage in a closed segment of a log that goes on all the same: the records are fetched from a peer."""

    @classmethod
    def of(cls, damage: Corruption) -> SegmentRotten:
        return cls(damage.file, damage.offset, damage.reason)

    def __str__(self) -> str:
        return f"{super().__str__()}; these records are being fetched from another replica, ask one meanwhile"


class PeerUnavailable(StorageError):
    """No other replica tells the records that have rotted here, just now."""


class CopiesDisagree(StorageError):
    """Two replicas have different records of one ID, each with a right checksum: nothing is overwritten."""


class ReplicaRefused(WaltzError):
    """A storage replica said no."""


class Fenced(ReplicaRefused):
    """``session_id`` is lower than ``current_session_id``, the highest the replica has accepted."""

    def __init__(self, partition_id: int, session_id: int, current_session_id: int) -> None:
        super().__init__(partition_id, session_id, current_session_id)
        self.partition_id, self.session_id, self.current_session_id = (
            partition_id,
            session_id,
            current_session_id,
        )

    def __str__(self) -> str:
        return (
            f"partition {self.partition_id}: session {self.session_id} is fenced off, "
            f"the replica has accepted session {self.current_session_id}"
        )


class NotContiguous(ReplicaRefused):
    """An append must begin at last + 1: ``first_id`` was given, ``last_id`` is the replica's last."""

    def __init__(self, partition_id: int, first_id: int, last_id: int) -> None:
        super().__init__(partition_id, first_id, last_id)
        self.partition_id, self.first_id, self.last_id = partition_id, first_id, last_id

    def __str__(self) -> str:
        return (
            f"partition {self.partition_id}: an append beginning at transaction {self.first_id} "
            f"does not follow the last one, {self.last_id}"
        )


class RecordsChanged(ReplicaRefused):
    """A record of an append is not what its CRC says: it was changed in a server's memory or on its way."""

    def __init__(self, partition_id: int, transaction_id: int) -> None:
        super().__init__(partition_id, transaction_id)
        self.partition_id, self.transaction_id = partition_id, transaction_id

    def __str__(self) -> str:
        return (
            f"partition {self.partition_id}: transaction {self.transaction_id} of an append is not what its CRC says: "
            "it was changed in the server's memory or on its way; nothing was written"
        )


class BelowTheLog(ReplicaRefused):
    """What was asked for lies before ``first_id``, where the replica's log of the partition begins."""

    def __init__(self, partition_id: int, first_id: int) -> None:
        super().__init__(partition_id, first_id)
        self.partition_id, self.first_id = partition_id, first_id

    def __str__(self) -> str:
        return f"partition {self.partition_id}: the log begins with transaction {self.first_id}, the rest was trimmed"


class PartitionDamaged(ReplicaRefused):
    """A replica's copy of the partition has lost or damaged records and is not served."""


class CoordinationError(WaltzError):
    """ZooKeeper refused or could not be asked."""


class ZooKeeperUnreachable(CoordinationError):
    """No ZooKeeper server answers."""

    retriable = True


class ZooKeeperRefused(CoordinationError):
    """ZooKeeper does not let this process do that to a node: it is another one's, by name and password."""


class NoNode(CoordinationError):
    """The ZooKeeper node (or its parent) does not exist."""


class NodeExists(CoordinationError):
    """The ZooKeeper node exists already."""


class VersionConflict(CoordinationError):
    """A compare-and-set lost against another writer."""


class NodeDamaged(CoordinationError):
    """A ZooKeeper node has content that is torn, or somebody else's; it is never guessed at."""


class ClusterMismatch(CoordinationError):
    """The ZooKeeper root holds another cluster, or one of another shape."""


class ProjectionFailed(WaltzError):
    """A layer's projection of a partition has ended: a transaction makes no sense to it, or its disk fails.

    Nothing is lost, as all of it is in the log; what there was up to its mark is left as it was.
    """


class RayNotRunning(WaltzError):
    """Ray cannot be started or reached."""


class VersionMismatch(WaltzError):
    """Another version of this package runs there, and the two do not understand each other."""


class InvariantBroken(WaltzError):
    """What a machine holds contradicts itself: a bug, and nothing that it says can be trusted any more."""


class ClientError(WaltzError):
    """Base of what an application sees."""


class AccessRefused(ClientError):
    """The cluster does not let this client do that: what, to what, and what to do about it. Nothing was done.

    Not retriable: an operator has to give the right, or the client has to show who it is.
    """


class ClusterNotFound(ClientError):
    """No cluster of that name is running."""


class RuntimeEnvFailed(ClusterNotFound):
    """Ray cannot set up the runtime environment (``runtime_env``) with which an actor was made: nothing begins."""


class SpaceNotFound(ClientError):
    """The cluster has no space of that name."""


class SpaceGone(ClientError):
    """The space was deleted: its records are not there any more, and never will be."""


class CursorNotFound(ClientError):
    """The space has no cursor of that name."""


class CursorTaken(ClientError):
    """Cursor ``name`` of ``space`` is ``owner``'s, ``since`` then; a cursor has one owner at a time."""

    retriable = True

    def __init__(self, space: str, name: str, owner: str, since: str) -> None:
        super().__init__(space, name, owner, since)
        self.space, self.name, self.owner, self.since = space, name, owner, since

    def __str__(self) -> str:
        return (
            f"cursor {self.name!r} of space {self.space!r} is taken by {self.owner} since {self.since}; "
            f"wait for it (wait=), end that, or take another name"
        )


class CursorLost(ClientError):
    """Cursor ``name`` of ``space`` is not this client's any more, for ``reason``.

    Not retriable: what was not committed comes again, to whoever opens the cursor next.
    """

    def __init__(self, space: str, name: str, reason: str) -> None:
        super().__init__(space, name, reason)
        self.space, self.name, self.reason = space, name, reason

    def __str__(self) -> str:
        return (
            f"cursor {self.name!r} of space {self.space!r} was lost: {self.reason}; "
            f"what was not committed comes again: open it anew"
        )


class CursorUnsettled(ClientError):
    """A ``reset`` of cursor ``name`` was left half-way: whether it stands there now is not known."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"cursor {self.name!r} was being reset, and that did not end: it is not known where it stands; "
            f"reset it again, or close it and open it anew"
        )


class PartitionNotReady(ClientError):
    """The partition is moving or recovering."""

    retriable = True


class ClientAhead(ClientError):
    """The application's high-water mark is above the log's: it applied what the log never had."""


class Trimmed(ClientError):
    """Transaction ``wanted_id`` of the partition was asked for, or is needed next, and may be gone: records below the
    trim mark, ``first_id``, were given up (retention). Not retriable: they do not come back. ``follows``: what
    comes of it, if that is not plain."""

    def __init__(self, partition_id: int, wanted_id: int, first_id: int, follows: str = "") -> None:
        super().__init__(partition_id, wanted_id, first_id, follows)
        self.partition_id, self.wanted_id, self.first_id, self.follows = partition_id, wanted_id, first_id, follows

    def __str__(self) -> str:
        return (
            f"partition {self.partition_id}: transaction {self.wanted_id} was trimmed away; "
            f"the first that can be read is {self.first_id} (start='earliest' begins there)"
            f"{self.follows and '; '}{self.follows}"
        )


class LockConflict(ClientError):
    """Refused by an optimistic lock: ``transaction_id`` is the conflicting transaction.

    Not retriable: what the transaction was based on has changed, and appending it again would overwrite that unseen.
    """

    def __init__(self, partition_id: int, transaction_id: int) -> None:
        super().__init__(partition_id, transaction_id)
        self.partition_id, self.transaction_id = partition_id, transaction_id

    def __str__(self) -> str:
        return (
            f"partition {self.partition_id}: a lock is newer than the client's mark "
            f"(transaction {self.transaction_id}); apply it and try again"
        )


class AppendFailed(ClientError):
    """The append is known not to be in the log."""

    retriable = True


class PartlyAppended(ClientError):
    """An ``append_many`` ended in an error, ``reason``, and some of its records are in the log, or may be.

    ``transaction_ids``: of each record, in order; -1 = it is not known to be in the log. Not retriable: what is in the
    log would be there twice.
    """

    def __init__(self, transaction_ids: tuple[int, ...], reason: str) -> None:
        super().__init__(transaction_ids, reason)
        self.transaction_ids, self.reason = transaction_ids, reason

    def __str__(self) -> str:
        known = [transaction_id for transaction_id in self.transaction_ids if transaction_id >= 0]
        which = f" (transactions {known[0]} to {known[-1]})" if known else ""
        return (
            f"{len(known)} of {len(self.transaction_ids)} records are in the log{which}, "
            f"the others are not known to be: {self.reason}"
        )


class AppendTimeout(ClientError):
    """The caller stopped waiting; whether the append commits is not known yet.

    Not retriable: an append that is still open would be there twice. Wait for it, or flush again.

    ``fate`` is a future of the client (asyncio's, of a client for coroutines) that is done when the feed has said so,
    as the append would have been; None of ``flush``, and in another process.
    """

    def __init__(self, message: str, fate: concurrent.futures.Future[Any] | asyncio.Future[Any] | None = None) -> None:
        super().__init__(message)
        self.fate = fate

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args


class OutboxFull(ClientError):
    """As many appends of the partition as may be are without a fate. This one was not sent."""

    retriable = True


class NotApplied(ClientError):
    """The client has not applied as far as was asked for."""

    retriable = True


class DataUnavailable(ClientError):
    """Transaction data could not be read."""

    retriable = True


class DecodingFailed(ClientError):
    """The client's codec cannot make a value of a transaction's data, which can still be read: ``reason``."""

    def __init__(self, partition_id: int, transaction_id: int, header: int, reason: str) -> None:
        super().__init__(partition_id, transaction_id, header, reason)
        self.partition_id, self.transaction_id, self.header, self.reason = (
            partition_id,
            transaction_id,
            header,
            reason,
        )

    def __str__(self) -> str:
        return (
            f"partition {self.partition_id}, transaction {self.transaction_id}, header {self.header}: "
            f"its data cannot be decoded: {self.reason}"
        )


class KvNotReady(ClientError):
    """No actor took a call of the key/value client within its time. Nothing was changed."""

    retriable = True


class KvUnknownFate(ClientError):
    """A write of the key/value client was sent, and its answer did not come within its time: it may have happened.

    Not retriable: a write made anew has another number, so it could happen twice. Read the item and decide.
    """


class KvConflict(ClientError):
    """Item ``name`` was to be at version ``expected`` (text: a number or "absent") and is at ``version``, -1 = there is
    none. Nothing was changed. Not retriable: what the write was based on has changed."""

    def __init__(self, name: str, expected: str, version: int) -> None:
        super().__init__(name, expected, version)
        self.name, self.expected, self.version = name, expected, version

    def __str__(self) -> str:
        found = "there is none" if self.version < 0 else f"it is at {self.version}"
        return f"item {self.name!r} was to be at version {self.expected}, but {found}; read it and decide again"


class KvNotReplicated(ClientError):
    """Item ``name`` is committed as ``version``, but with ``fullwait`` no secondary has said in time that it has it.

    Not retriable: it has happened.
    """

    def __init__(self, name: str, version: int) -> None:
        super().__init__(name, version)
        self.name, self.version = name, version

    def __str__(self) -> str:
        return f"item {self.name!r} is committed (version {self.version}), but its secondary was not heard of in time"


class KvLockTaken(ClientError):
    """Somebody else has had lock ``name`` for the ``wait_s`` seconds for which this one would wait."""

    retriable = True

    def __init__(self, name: str, wait_s: float) -> None:
        super().__init__(name, wait_s)
        self.name, self.wait_s = name, wait_s

    def __str__(self) -> str:
        return f"lock {self.name!r} was not free within {self.wait_s:g} s; wait for longer (wait=), or try again"


class KvLockLost(ClientError):
    """Lock ``name`` is not this client's any more, for ``reason``: what was done meanwhile was not alone.

    Not retriable: somebody else may have had the lock since.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"lock {self.name!r} was lost: {self.reason}; what followed may not have been alone, check it"


class TopicRefused(ClientError):
    """A master or a slot of topics does not do what it is asked. ``code``: the protocol's
    (``waltz_ray.topics.codes.TopicCode``): 403 no right, 301, 411 or 412 the partition is not ours any more."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"refused with {code}: {text}")
        self.code = code
        self.text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.text)


class TopicUnknownFate(ClientError):
    """A batch's confirm was sent, and its partition lost before the answer came: it is confirmed, or it comes again.

    Not retriable: the partition is not ours any more.
    """


class ClientClosed(ClientError):
    """The client has been closed."""
