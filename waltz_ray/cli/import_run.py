"""One run of ``waltz import``: a directory of Waltz 0.13 is found good, compared with what is there, and appended.

There is no file that says how far it came: the space itself does. Every transaction of a partition is appended under
one and the same write lock, with the ID before its own as the mark. So transaction n gets in only where n - 1 is the
last one that an import has appended: what an import that was killed still has on the way, and what a second one does
at the same time, comes exactly to where it belongs, or is refused. What is there is compared with the directory before
anything is appended behind it.

Of a partition one batch is on its way at a time, in one frame, which a server takes or refuses as one: so nothing can
come before what it follows.
"""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import islice

import typer

from waltz_ray.cli.common import print_data
from waltz_ray.cli.connecting import open_client
from waltz_ray.cli.ctrl_c import ctrl_c_between_steps
from waltz_ray.cli.load_progress import LoadProgress
from waltz_ray.client.client import WaltzClient
from waltz_ray.client.requests import longest_record_bytes
from waltz_ray.client.waits import item_of
from waltz_ray.config import ClientConfig
from waltz_ray.errors import (
    AppendFailed,
    InvalidInput,
    LockConflict,
    PartlyAppended,
    SpaceNotFound,
    StorageError,
    Trimmed,
    WaltzError,
)
from waltz_ray.protocol.ids import LockId
from waltz_ray.protocol.records import RECORD_OVERHEAD_BYTES, Int64s, RecordBatch
from waltz_ray.protocol.spaces import Space, SpaceState
from waltz_ray.spaces import Spaces
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.original import OriginalDirectory, open_original, partitions_of_original

__all__ = ["ImportJob", "ImportPartition", "import_directory", "run_import"]

_LOCK = LockId("waltz import", 0)
_PARTITIONS_AT_ONCE = 16
_LAST_FATES_S = 10.0
_TELL_EVERY = 1000


@dataclass(frozen=True)
class ImportJob:
    """What is to be imported, as the command was given it (``waltz import --help``)."""

    directory: str
    space: str
    create: bool
    as_json: bool


def run_import(job: ImportJob, directory: str, cluster: str, address: str, zookeeper: str) -> None:
    """All of it, into the cluster that is found by the last four. InvalidInput, Corruption: nothing was appended."""
    partitions = partitions_of_original(OsDisk(), job.directory)
    where = (directory, cluster, address, zookeeper)
    with LoadProgress(job.as_json, unit="transactions") as shown:
        _check_space(job, partitions, where)
        shown.stage("verified")
        with open_original(OsDisk(), job.directory, _counted(shown)) as original:
            _check_lengths(original)
            _check_space(job, partitions, where, shown)
            begin_s = time.monotonic()
            with open_client(*where, space=job.space) as client:
                work = import_directory(original, client, job.space, shown)
    _summary(job, work, time.monotonic() - begin_s)


def _counted(shown: LoadProgress) -> Callable[[int], None]:
    done = 0

    def add(records: int) -> None:
        nonlocal done
        done += records
        shown.at(done)

    return add


def _check_lengths(original: OriginalDirectory) -> None:
    longest = longest_record_bytes(ClientConfig().max_frame_bytes, locks=1)
    if original.longest_bytes - RECORD_OVERHEAD_BYTES > longest:
        raise InvalidInput(
            f"{original.directory} has a transaction of {original.longest_bytes - RECORD_OVERHEAD_BYTES} bytes, and a "
            f"log takes {longest} (half of ClientConfig.max_frame_bytes); nothing was imported"
        )


def _check_space(
    job: ImportJob, partitions: int, where: tuple[str, str, str, str], making: LoadProgress | None = None
) -> None:
    """InvalidInput if it is no space for this directory; SpaceNotFound says how it is made. ``making``: it is made."""
    directory, cluster, address, zookeeper = where
    with Spaces(cluster, directory=directory, address=address, zookeeper=zookeeper) as spaces:
        try:
            space: Space | None = spaces.describe(job.space).space
        except SpaceNotFound as error:
            if not job.create:
                then = f"make it with: waltz space create {job.space} --partitions {partitions}, or give --create"
                raise SpaceNotFound(f"{error}; {then}") from error
            space = None
        if space is not None and space.count != partitions:
            raise InvalidInput(
                f"{job.directory} has {partitions} partitions and space {job.space!r} {space.count}: transactions are "
                "imported into the partition of the same number; make a space with as many, and nobody in it: "
                f"waltz space create NAME --partitions {partitions}"
            )
        if making is None or (space is not None and space.state is SpaceState.READY):
            return
        making.stage(f"making space {job.space}")
        if space is None:
            spaces.create(job.space, partitions)
        else:
            spaces.wait_ready(job.space)


class ImportPartition:
    """One partition on its way: what of it is in the space, and what comes next."""

    def __init__(self, original: OriginalDirectory, client: WaltzClient, partition_id: int, space: str) -> None:
        self.partition_id = partition_id
        self.end_id = original.counts[partition_id]
        """The ID behind its last transaction."""
        self.next_id = 0
        """The first transaction that is not known to be in the space."""
        self.appended = 0
        """Transactions that this run has appended."""
        self._where = f"partition {partition_id} of space {space!r}"
        self._directory, self._client = original.directory, client
        self._source = original.records(partition_id)
        self._batch: RecordBatch | None = None  # has ``next_id``, if it is known which one does

    @property
    def has_more(self) -> bool:
        """Not all of it is known to be in the space."""
        return self.next_id < self.end_id

    def _current(self) -> RecordBatch:
        while self._batch is None or self._batch.end_id <= self.next_id:
            self._batch = next(self._source)
        return self._batch

    def next_batch(self) -> RecordBatch:
        """What is to be appended next."""
        return self._current().since(self.next_id)

    def append(self, batch: RecordBatch) -> Future[Int64s]:
        """Behind what an import has put there, and nowhere else."""
        datas, headers = [bytes(data) for data in batch.datas()], batch.fields["header"].tolist()
        return self._client.append_many(
            self.partition_id, datas, headers, write_lock=_LOCK, client_mark=batch.first_id - 1
        )

    def settle(self, batch: RecordBatch, fate: Future[Int64s]) -> None:
        """Take note of what has become of ``batch``. Raises what it failed with."""
        try:
            ids = fate.result()
        except (LockConflict, PartlyAppended):  # another import was faster, perhaps one that was killed
            self.compare()
            return
        if int(ids[0]) != batch.first_id or int(ids[-1]) != batch.last_id:
            raise InvalidInput(
                f"{self._where}: somebody else has appended to it: transaction {batch.first_id} of {self._directory} "
                f"has become {ids[0]}; import into a new space, and let nobody append to it before that has ended"
            )
        self.appended += len(batch)
        self.next_id = batch.end_id

    def compare(self, tell: Callable[[], None] = lambda: None) -> None:
        """Go on behind what is in the space; ``tell`` is called every now and then.

        InvalidInput if that is not what is in the directory.
        """
        mark = self._client.server_high_water_mark(self.partition_id)
        try:
            self._compare(mark, tell)
        except Trimmed as error:
            raise InvalidInput(
                f"{self._where}: {error}; it cannot be compared with {self._directory} any more, nor gone on with"
            ) from error

    def _compare(self, mark: int, tell: Callable[[], None]) -> None:
        for transaction in self._client.read(self.partition_id, self.next_id, mark + 1):
            if not self.has_more:
                return  # what follows is of who uses the space now
            if transaction.transaction_id != self.next_id:
                raise Trimmed(self.partition_id, self.next_id, transaction.transaction_id)
            batch = self._current()
            at = self.next_id - batch.first_id
            if transaction.header != batch.fields["header"][at] or transaction.data != batch.data(at):
                raise InvalidInput(
                    f"{self._where} has another transaction {self.next_id} than {self._directory}; a directory is "
                    "imported into a space that is empty, or where its import was interrupted"
                )
            self.next_id += 1
            if self.next_id % _TELL_EVERY == 0:
                tell()


@dataclass
class _Work:
    """A run, and how far it came."""

    partitions: list[ImportPartition]
    before: int = 0
    """Transactions that were there."""

    @property
    def total(self) -> int:
        return sum(one.end_id for one in self.partitions)

    @property
    def done(self) -> int:
        return sum(one.next_id for one in self.partitions)

    @property
    def appended(self) -> int:
        return sum(one.appended for one in self.partitions)


_Fate = tuple[ImportPartition, RecordBatch, "Future[Int64s]"]


def import_directory(original: OriginalDirectory, client: WaltzClient, space: str, shown: LoadProgress) -> _Work:
    """Append what is not there. Ctrl-C and errors say how far it came."""
    work = _Work([ImportPartition(original, client, p, space) for p in original.counts])
    fates: queue.SimpleQueue[_Fate] = queue.SimpleQueue()
    under_way: set[ImportPartition] = set()
    try:
        with ctrl_c_between_steps() as check:

            def tell() -> None:
                check()
                shown.at(work.done)

            shown.stage("compared with the space", work.total)
            for one in work.partitions:
                one.compare(tell)
            work.before = work.done
            shown.stage("imported", work.total)
            waiting = iter([one for one in work.partitions if one.has_more])
            _begin(islice(waiting, _PARTITIONS_AT_ONCE), fates, under_way)
            while under_way:
                one, batch, fate = item_of(fates)
                under_way.discard(one)
                one.settle(batch, fate)
                tell()
                _begin([one] if one.has_more else islice(waiting, 1), fates, under_way)
    except KeyboardInterrupt:
        why = "".join(f"; partition {p}: {reason}" for p, reason in client.hindrances().items())
        _settle_rest(fates, under_way)
        print(f"waltz: interrupted: {_how_far(work)}{why}", file=sys.stderr)
        raise
    except WaltzError as error:
        _settle_rest(fates, under_way)
        if isinstance(error, InvalidInput | StorageError):
            raise  # the same command would find the same
        raise AppendFailed(f"{error}; {_how_far(work)}") from error
    return work


def _begin(
    partitions: Iterable[ImportPartition], fates: queue.SimpleQueue[_Fate], under_way: set[ImportPartition]
) -> None:
    for one in partitions:
        batch = one.next_batch()
        under_way.add(one)
        one.append(batch).add_done_callback(partial(_tell, fates, one, batch))


def _tell(fates: queue.SimpleQueue[_Fate], one: ImportPartition, batch: RecordBatch, fate: Future[Int64s]) -> None:
    """On the client's thread: as little as possible."""
    fates.put((one, batch, fate))


def _settle_rest(fates: queue.SimpleQueue[_Fate], under_way: set[ImportPartition]) -> None:
    """Wait a while for the fates of what is under way, whatever they are."""
    deadline = time.monotonic() + _LAST_FATES_S
    while under_way and (left_s := deadline - time.monotonic()) > 0:
        try:
            one, batch, fate = fates.get(timeout=left_s)
        except queue.Empty:
            return
        under_way.discard(one)
        if fate.exception() is None:
            one.settle(batch, fate)


def _how_far(work: _Work) -> str:
    return f"{work.done} of {work.total} transactions are in the space; the same command goes on"


def _summary(job: ImportJob, work: _Work, seconds: float) -> None:
    rate = work.appended / seconds if seconds else 0.0
    if job.as_json:
        found = {"directory": job.directory, "space": job.space, "transactions": work.appended}
        times = {"before": work.before, "seconds": round(seconds, 3), "transactions_per_s": round(rate, 1)}
        partitions = {
            str(one.partition_id): {"transactions": one.end_id, "appended": one.appended} for one in work.partitions
        }
        print_data({**found, **times, "partitions": partitions})
        return
    before = f", {work.before:,} were there before" if work.before else ""
    counts = f"{work.appended:,} transactions in {seconds:.1f} s, {rate:,.0f} a second{before}"
    typer.echo(f"{job.directory}: {counts}")
    for one in work.partitions:
        span = f"transactions 0 to {one.end_id - 1}" if one.end_id else "no transactions"
        typer.echo(f"  partition {one.partition_id}: {span}")
