"""What a stream has read: its checkpoint directory. No Spark here.

::

    <checkpoint>/
        lock            flocked by the one runner
        stream          its ID, before anything is held in the log under that
        metadata        whose checkpoint this is, and where its stream began
        offsets/<n>     the ranges of batch n, written before it runs
        commits/<n>     its sink has returned

Every file is JSON with a checksum of its own, written under ``<name>.tmp``, synced, renamed, and the directory synced
before anything else is done, so a name without ``.tmp`` is a whole file. What a kill leaves, and the next start does:

=============================================  =================================================================
kill                                           next start
=============================================  =================================================================
before ``metadata`` has its name               makes it (anew: nothing has been read yet), with the ID in ``stream``, if
                                               that has its name: the hold that was made for it is its own
before ``offsets/<n>`` has its name            plans batch n anew: nothing of it has run
after that, before ``commits/<n>`` has its     runs batch n again with exactly the ranges of ``offsets/<n>``: the
name (also: in the middle of the sink)         same transactions in the same order in the same tasks
after that                                     goes on with batch n + 1
while old entries are removed                  removes them with the next commit, or leaves them: only the last count
=============================================  =================================================================
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from waltz_ray.client.readers.ranges import Range
from waltz_ray.errors import Corruption, ForeignStorage, InvalidInput, StorageLocked

__all__ = ["KEPT", "OffsetFiles", "OffsetLog", "StreamBatch", "StreamOf", "StreamPosition", "position_of"]

KEPT = 100
"""How many of the last batches stay in the log, to be looked at."""

_FORMAT, _VERSION = "waltz stream checkpoint", 1
_NAMES = {"lock", "stream", "stream.tmp", "metadata", "metadata.tmp", "offsets", "commits"}


class OffsetFiles:
    """The changes that the log and the path sink make to a disk, so that tests can end a run between any two."""

    def write(self, path: Path, data: bytes) -> None:
        """Create or replace, and sync the content (not the name)."""
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def sync_directory(self, path: Path) -> None:
        """Make the names in it durable."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def make_directories(self, path: Path) -> None:
        """Make what is missing of a path, durably. Idempotent."""
        for each in (*path.parents[::-1], path):
            if not each.exists():
                each.mkdir(exist_ok=True)
                self.sync_directory(each.parent)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def write_whole(self, path: Path, data: bytes) -> None:
        """All or nothing, durable when it returns."""
        temporary = path.with_name(path.name + ".tmp")
        self.write(temporary, data)
        self.rename(temporary, path)
        self.sync_directory(path.parent)


class StreamOf(NamedTuple):
    """What a checkpoint is of: another cluster, even of the same name, has another key."""

    cluster: str
    cluster_key: str
    partitions_of_cluster: int
    partitions: tuple[int, ...]


class StreamBatch(NamedTuple):
    """``ranges`` in the order in which they are read; ``ends``: partition -> where the stream is after this batch."""

    batch_id: int
    ranges: tuple[Range, ...]
    ends: Mapping[int, int]


class StreamPosition(NamedTuple):
    """``cluster``: its name, of another space than the first ``<cluster>/<space>``. ``ends``: partition -> ID behind
    the last committed batch, or where the stream began."""

    cluster: str
    cluster_key: str
    ends: Mapping[int, int]


def position_of(directory: Path) -> StreamPosition:
    """Where the stream of a checkpoint is, whether or not it runs. ForeignStorage: it is none; Corruption."""
    path = directory / "metadata"
    if not path.is_file():
        raise ForeignStorage(f"{directory} is not the checkpoint of a stream: it has no file metadata")
    fields = _own(path)
    committed = max(_numbers(directory / "commits"), default=-1)
    ends = fields["start"] if committed < 0 else _decoded(directory / "offsets" / str(committed))["ends"]
    found = {int(partition): int(end) for partition, end in ends.items()}
    return StreamPosition(str(fields["cluster"]), str(fields["cluster_key"]), found)


class OffsetLog:
    """The checkpoint in ``directory``, which this process has locked until ``close``.

    ``pending``: the batch that was planned but not committed, to be run again first; None if there is none.
    ``ends``: partition -> ID behind the last committed batch. ``start``: the same at the beginning of the stream.
    """

    def __init__(
        self, directory: Path, of: StreamOf, start: Callable[[str], Mapping[int, int]], files: OffsetFiles | None = None
    ) -> None:
        """``start(stream ID)`` is asked only when the checkpoint is new.

        StorageLocked: another runner has it. ForeignStorage: it is of another cluster or other partitions, or the
        directory holds something else. Corruption: a file of it is damaged or missing.
        """
        self._directory = directory
        self._files = files or OffsetFiles()
        self._offsets, self._commits = directory / "offsets", directory / "commits"
        self._create_directories()
        self._lock = _locked(directory / "lock")
        try:
            self.stream_id, self.start = self._identify(of, start)
            self._load(of)
        except BaseException:
            self.close()
            raise

    def _create_directories(self) -> None:
        if self._directory.exists() and not self._directory.is_dir():
            raise InvalidInput(f"{self._directory} is no directory; name one for the checkpoint")
        found = set(os.listdir(self._directory)) if self._directory.exists() else set()
        if found - _NAMES:
            raise ForeignStorage(f"{self._directory} holds {min(found - _NAMES)!r} and is no checkpoint; name another")
        self._files.make_directories(self._directory)
        for each in (self._offsets, self._commits):
            each.mkdir(exist_ok=True)
            self._files.sync_directory(each.parent)

    def _identify(self, of: StreamOf, start: Callable[[str], Mapping[int, int]]) -> tuple[str, dict[int, int]]:
        path = self._directory / "metadata"
        if not path.exists():
            if os.listdir(self._offsets) or os.listdir(self._commits):
                raise Corruption(str(path), 0, "it is missing; start with a new checkpoint")
            stream_id = self._new_stream_id()
            fields = {"format": _FORMAT, "stream_id": stream_id, **of._asdict(), "start": _keyed(start(stream_id))}
            self._files.write_whole(path, _encoded(fields))
        fields = _own(path)
        for name, wanted in of._asdict().items():
            found = tuple(fields[name]) if isinstance(fields[name], list) else fields[name]
            if found != wanted:
                raise ForeignStorage(
                    f"{self._directory} is the checkpoint of a stream whose {name} is {found}, not {wanted}; "
                    "use another checkpoint"
                )
        return str(fields["stream_id"]), {int(p): int(end) for p, end in fields["start"].items()}

    def _new_stream_id(self) -> str:
        """The same after a kill: what is held under the ID by then would keep the log for ever under another one."""
        path = self._directory / "stream"
        if not path.exists():
            self._files.write_whole(path, _encoded({"format": _FORMAT, "stream_id": str(uuid.uuid4())}))
        return str(_own(path)["stream_id"])

    def _load(self, of: StreamOf) -> None:
        for each in (self._offsets, self._commits):
            self._files.sync_directory(each)  # a process that was killed may have left names that would not stay
        offsets, commits = _numbers(self._offsets), _numbers(self._commits)
        self._oldest = min([*offsets, *commits], default=0)
        planned, committed = max(offsets, default=-1), max(commits, default=-1)
        if committed > planned:
            raise Corruption(str(self._offsets / str(committed)), 0, "it is missing, but its batch was committed")
        if committed < planned - 1:
            raise Corruption(str(self._commits / str(planned - 1)), 0, "it is missing, but the next batch was planned")
        self.ends: Mapping[int, int] = self.start
        if committed >= 0:
            # A batch that is to be run again may be the oldest one there is; its predecessor's ends are in its ranges.
            _decoded(self._commits / str(committed))
            self.ends = self._read(committed, of).ends
        self.pending = self._read(planned, of) if planned > committed else None
        self.next_id = committed + 1

    def _read(self, batch_id: int, of: StreamOf) -> StreamBatch:
        path = self._offsets / str(batch_id)
        if not path.exists():
            raise Corruption(str(path), 0, "it is missing")
        fields = _decoded(path)
        try:
            ranges = tuple(Range(*map(int, each)) for each in fields["ranges"])
            ends = {int(p): int(end) for p, end in fields["ends"].items()}
        except (KeyError, TypeError, ValueError) as error:
            raise Corruption(str(path), 0, f"it does not say what the batch is ({error!r})") from error
        if fields.get("batch") != batch_id or set(ends) != set(of.partitions):
            raise Corruption(str(path), 0, "it speaks of another batch or of other partitions")
        return StreamBatch(batch_id, ranges, ends)

    def plan(self, ranges: tuple[Range, ...]) -> StreamBatch:
        """Decide the next batch. When this returns it is on disk, and it will be run until it is committed."""
        if self.pending is not None:
            raise InvalidInput(f"batch {self.pending.batch_id} is not committed yet")
        ends = dict(self.ends)
        for each in ranges:
            ends[each.partition_id] = each.end_id
        batch = StreamBatch(self.next_id, ranges, ends)
        fields = {"batch": batch.batch_id, "ranges": [list(each) for each in ranges], "ends": _keyed(ends)}
        self._files.write_whole(self._offsets / str(batch.batch_id), _encoded(fields))
        self.pending = batch
        return batch

    def commit(self, **facts: Any) -> None:
        """The pending batch's sink has returned. ``facts`` are for people who look."""
        batch = self.pending
        if batch is None:
            raise InvalidInput("there is no batch to commit")
        self._files.write_whole(self._commits / str(batch.batch_id), _encoded({"batch": batch.batch_id, **facts}))
        self.pending, self.ends, self.next_id = None, batch.ends, batch.batch_id + 1
        while self._oldest <= batch.batch_id - KEPT:
            self._files.remove(self._commits / str(self._oldest))
            self._files.remove(self._offsets / str(self._oldest))
            self._oldest += 1

    def close(self) -> None:
        """Let another runner have it. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise StorageLocked(f"another runner has the checkpoint {path.parent}; end it first") from error
    return handle


def _numbers(directory: Path) -> list[int]:
    """The batches that have a file here. What a kill left half-written has no name that counts."""
    names = [name for name in os.listdir(directory) if not name.endswith(".tmp")]
    wrong = [name for name in names if not name.isdecimal() or str(int(name)) != name]
    if wrong:
        raise ForeignStorage(f"{directory} holds {min(wrong)!r}, which is not of a stream's checkpoint")
    return [int(name) for name in names]


def _keyed(values: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): value for partition, value in sorted(values.items())}


def _checksum(fields: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode())


def _encoded(fields: dict[str, Any]) -> bytes:
    fields = {"version": _VERSION, **fields}
    return json.dumps({**fields, "crc32": _checksum(fields)}, indent=1).encode() + b"\n"


def _own(path: Path) -> dict[str, Any]:
    """The fields of a file that says of itself that it is of a stream's checkpoint. ForeignStorage: it does not."""
    fields = _decoded(path)
    if fields.get("format") != _FORMAT:
        raise ForeignStorage(f"{path} is not of a stream's checkpoint; name another directory")
    return fields


def _decoded(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_bytes())
    except ValueError as error:
        raise Corruption(str(path), 0, "it is no JSON; restore the checkpoint or start with a new one") from error
    if not isinstance(fields, dict) or fields.pop("crc32", None) != _checksum(fields):
        raise Corruption(str(path), 0, "its checksum is wrong; restore the checkpoint or start with a new one")
    if fields.get("version") != _VERSION:
        raise ForeignStorage(f"{path} is of version {fields.get('version')}, this program knows {_VERSION}")
    return fields
