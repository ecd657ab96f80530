"""The error tree: complete in its docstring, picklable, with a verdict on retrying."""

from __future__ import annotations

import ast
import inspect
import pickle
from pathlib import Path

import pytest

from waltz_ray import errors
from waltz_ray.errors import (
    AccessRefused,
    AppendFailed,
    AppendTimeout,
    AuthenticationFailed,
    BadPayload,
    BelowTheLog,
    ClientAhead,
    ClientClosed,
    ClientError,
    ClusterMismatch,
    ClusterNotFound,
    ConfigError,
    ControlFileMissing,
    CoordinationError,
    CopiesDisagree,
    Corruption,
    CursorLost,
    CursorNotFound,
    CursorTaken,
    CursorUnsettled,
    DataUnavailable,
    DecodingFailed,
    DiskFull,
    Fenced,
    ForeignStorage,
    InvalidInput,
    InvariantBroken,
    KvConflict,
    KvLockLost,
    KvLockTaken,
    KvNotReady,
    KvNotReplicated,
    KvUnknownFate,
    LockConflict,
    NodeDamaged,
    NodeExists,
    NoNode,
    NotApplied,
    NotContiguous,
    OutboxFull,
    OutOfResources,
    PartitionDamaged,
    PartitionNotReady,
    PartlyAppended,
    PeerUnavailable,
    ProjectionFailed,
    RayNotRunning,
    RecordsChanged,
    ReplicaRefused,
    RuntimeEnvFailed,
    SecretUnusable,
    SegmentRotten,
    SpaceGone,
    SpaceNotFound,
    StorageError,
    StorageLocked,
    SyncFailed,
    TopicRefused,
    TopicUnknownFate,
    Trimmed,
    VersionConflict,
    VersionMismatch,
    WaltzError,
    WireError,
    ZooKeeperRefused,
    ZooKeeperUnreachable,
)

CLASSES = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, WaltzError)]
SPECIAL: dict[type[WaltzError], tuple[object, ...]] = {
    Corruption: ("0.seg", 128, "bad crc"),
    SegmentRotten: ("0.seg", 128, "bad crc"),
    Fenced: (1, 2, 3),
    NotContiguous: (1, 5, 2),
    RecordsChanged: (1, 5),
    LockConflict: (1, 7),
    PartlyAppended: ((3, -1), "closed"),
    DecodingFailed: (1, 7, 3, "no JSON"),
    CursorTaken: ("log", "audit", "pid 1", "noon"),
    CursorLost: ("log", "audit", "why"),
    CursorUnsettled: ("audit",),
    Trimmed: (1, 7, 9),
    BelowTheLog: (1, 9),
    KvConflict: ("ann", "7", 9),
    KvNotReplicated: ("ann", 9),
    KvLockTaken: ("leader", 1.5),
    KvLockLost: ("leader", "why"),
    TopicRefused: (403, "why"),
}

# May the very same call be made again? Then nothing has to be changed by a person, what it was based on still holds,
# and nothing can be in the log twice. Each class has its own verdict here, also where it inherits it.
AGAIN = {
    *(OutOfResources, ZooKeeperUnreachable, DataUnavailable, NotApplied),
    *(PartitionNotReady, AppendFailed, OutboxFull),  # it is not in the log
    *(CursorTaken, KvLockTaken),  # until its owner ends
    KvNotReady,  # nothing has happened
}
NEVER = {
    *(WaltzError, StorageError, ReplicaRefused, CoordinationError, ClientError),  # nobody knows what happened
    *(InvalidInput, ConfigError, BadPayload, AccessRefused, ZooKeeperRefused),  # would be refused again
    *(WireError, ForeignStorage, ClusterMismatch, NodeDamaged, ControlFileMissing),  # for a person
    *(Corruption, PartitionDamaged),  # for a person, too
    *(AuthenticationFailed, SecretUnusable),  # until a person has put the right secret there
    *(StorageLocked, DiskFull, RayNotRunning, ClusterNotFound),  # until a person ends, frees or starts something
    RuntimeEnvFailed,  # or gives another one
    VersionMismatch,  # or installs the same
    *(SyncFailed, InvariantBroken),  # the process ends
    ProjectionFailed,  # the same record, or a disk for a person
    RecordsChanged,  # the same bytes
    *(Fenced, NotContiguous, NoNode, NodeExists, VersionConflict),  # based on what is not so any more
    LockConflict,  # decide again: appended as it is it would overwrite what it has not seen
    *(AppendTimeout, PartlyAppended),  # what is in the log, or may be, would be there twice
    DecodingFailed,  # the same bytes, the same codec
    *(KvConflict, KvLockLost, TopicRefused),  # read and decide again
    *(KvUnknownFate, KvNotReplicated, TopicUnknownFate),  # it has happened, or may have
    CursorLost,  # what comes now is what comes again: open it anew
    CursorUnsettled,  # until it has been reset
    *(SpaceNotFound, SpaceGone, CursorNotFound),  # until a person makes it, or never
    *(SegmentRotten, PeerUnavailable, CopiesDisagree),  # the replica itself goes on, or a person has to
    *(Trimmed, BelowTheLog),  # what is gone does not come back
    *(ClientAhead, ClientClosed),  # of this client nothing is taken any more
}


def test_every_class_has_its_verdict() -> None:
    assert AGAIN.isdisjoint(NEVER)
    assert set(CLASSES) == AGAIN | NEVER
    assert {kind for kind in CLASSES if kind.retriable} == AGAIN


def test_there_is_one_tree() -> None:
    """No other exception class can reach an application: one becomes a replica's answer, one is what a smoke
    has found, others are their modules'."""
    root, others = Path(__file__).parents[1], []
    for path in [*root.glob("waltz_ray/**/*.py"), *root.glob("spark/**/*.py"), *root.glob("benchmarks/**/*.py")]:
        if path.name == "errors.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
                others += [(path.name, node.name) for base in bases if base.endswith(("Error", "Exception"))]
    assert others == [("order_rules.py", "OrderRefused"), ("smoke_checks.py", "RuleBroken")]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_survives_pickling(kind: type[WaltzError]) -> None:
    error = kind(*SPECIAL.get(kind, ("what happened",)))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert "\n" not in str(error)
    assert again.retriable in (True, False)


def test_the_docstring_draws_the_whole_tree() -> None:
    assert errors.__doc__ is not None
    for kind in CLASSES:
        assert kind.__name__ in errors.__doc__
        assert kind.__name__ in errors.__all__
        drawn = next(line for line in errors.__doc__.splitlines() if f" {kind.__name__}" in line)
        assert ("retriable" in drawn) == kind.retriable
