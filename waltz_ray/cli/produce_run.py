"""One run of ``waltz produce``: input is found good, or is taken as it comes, and appended; all is counted."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import BinaryIO

import typer

from waltz_ray.cli.common import print_data, tell
from waltz_ray.cli.connecting import open_client
from waltz_ray.cli.load_progress import LoadProgress
from waltz_ray.cli.produce_records import BadRecord, Piece, Record, from_jsonl, keyed, pieces
from waltz_ray.cli.produce_sender import Sender
from waltz_ray.cli.stdin_copy import room_for_stdin
from waltz_ray.client.application import checked_header
from waltz_ray.client.keys import partition_for
from waltz_ray.client.requests import longest_record_bytes
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendFailed, InvalidInput, WaltzError

__all__ = ["Production", "ProduceWork", "run_production"]

_LAST_FATES_S = 10.0
_IN_MEMORY_BYTES = 1 << 24


@dataclass(frozen=True)
class Production:
    """What is to be appended, as the command was given it (``waltz produce --help``)."""

    partition: int | None
    jsonl: bool = False
    separator: bytes = b"\n"
    key_separator: bytes = b""
    header: int = 0
    skip_bad: bool = False
    as_json: bool = False


def run_production(job: Production, directory: str, cluster: str, address: str, zookeeper: str, space: str) -> int:
    """All of stdin into a space of the cluster that is found by the others; the exit code."""
    most_bytes = longest_record_bytes(ClientConfig().max_frame_bytes, locks=1)
    checked_header(job.header)
    with (
        open_client(directory, cluster, address, zookeeper, space=space) as client,
        LoadProgress(quiet=not sys.stderr.isatty() or job.as_json, unit="records", look_every=1) as shown,
    ):
        if job.partition is not None and not 0 <= job.partition < client.partitions:
            raise InvalidInput(f"there is no partition {job.partition}, only 0 to {client.partitions - 1}")
        work = ProduceWork(job, client.partitions, most_bytes, Sender(client, job.header), shown)
        work.run(sys.stdin.buffer)
    work.summary()
    return 1 if work.skipped else 0


@dataclass
class ProduceWork:
    """The state of a run."""

    job: Production
    partitions: int
    most_bytes: int
    sender: Sender
    shown: LoadProgress
    skipped: int = 0
    begun_s: float = field(default_factory=time.monotonic)
    _waits: bool = True

    def run(self, stdin: BinaryIO) -> None:
        """Append all. Ctrl-C and errors say how many records are in the log."""
        try:
            with self._ctrl_c():
                if self.job.skip_bad:
                    self._append(stdin)
                else:
                    self._checked(stdin)
        except KeyboardInterrupt:
            self.sender.abandon(_LAST_FATES_S)
            tell(f"waltz: interrupted: {self._how_far()}")
            raise
        except BadRecord:
            raise
        except WaltzError as error:
            self.sender.abandon(_LAST_FATES_S)
            raise AppendFailed(f"{error}; {self._how_far()}") from error

    def _checked(self, stdin: BinaryIO) -> None:
        """Stdin can be read only once: a copy is looked through, then appended."""
        with _copied(stdin) as copy:
            for found in self._pieces(copy):
                for number, data in found:
                    self._partition(number, self._record(number, data))
            copy.seek(0)
            self._append(copy)

    def _append(self, source: BinaryIO | tempfile.SpooledTemporaryFile[bytes]) -> None:
        self.shown.stage("appended")
        for found in self._pieces(source):
            self._waits = False
            for partition, records in self._by_partition(found).items():
                self.sender.send(partition, records)
            self.shown.at(self.sender.appended)
            self._waits = True
            self._check()
        self.sender.finish()

    def _pieces(self, source: BinaryIO | tempfile.SpooledTemporaryFile[bytes]) -> Iterator[list[Piece]]:
        # read1 returns with what a pipe has, read waits until all that was asked for is there
        return pieces(getattr(source, "read1", source.read), self.job.separator, self.most_bytes)

    def _by_partition(self, found: Iterable[Piece]) -> dict[int, list[Record]]:
        sorted_out: dict[int, list[Record]] = defaultdict(list)
        for number, data in found:
            try:
                record = self._record(number, data)
                sorted_out[self._partition(number, record)].append(record)
            except BadRecord as error:
                if not self.job.skip_bad:
                    raise
                self.skipped += 1
                tell(f"waltz: {error}; it is left out")
        return sorted_out

    def _record(self, number: int, data: bytes | None) -> Record:
        if data is None:
            raise BadRecord(f"record {number} is longer than {self.most_bytes} bytes{self._then}")
        try:
            record = from_jsonl(data) if self.job.jsonl else keyed(data, self.job.key_separator)
        except BadRecord as error:
            raise BadRecord(f"record {number}: {error}{self._then}") from error
        return record

    @property
    def _then(self) -> str:
        return "" if self.job.skip_bad else "; nothing was appended"

    def _partition(self, number: int, record: Record) -> int:
        if self.job.partition is not None:
            return self.job.partition
        if record.key is not None:
            return partition_for(record.key, self.partitions)
        if self.partitions == 1:
            return 0
        raise BadRecord(f"record {number} has no key; give it one, or a partition: -p 0{self._then}")

    @contextmanager
    def _ctrl_c(self) -> Iterator[None]:
        """While input is awaited Ctrl-C hits at once, else between two pieces; a second one wherever this is. So does
        SIGTERM, by which services are stopped: what was read from a pipe is nowhere else."""
        self._pressed = False

        def on_signal(number: int, frame: object) -> None:
            if self._waits or self._pressed:
                raise KeyboardInterrupt
            self._pressed = True

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _check(self) -> None:
        if self._pressed:
            raise KeyboardInterrupt

    def _how_far(self) -> str:
        more = f", up to {self.sender.open} more may be" if self.sender.open else ""
        return f"{_records(self.sender.appended)} in the log{more}"

    def summary(self) -> None:
        """What has been done."""
        seconds, spans = time.monotonic() - self.begun_s, sorted(self.sender.spans.items())
        if self.job.as_json:
            counts = {"records": self.sender.appended, "skipped": self.skipped, "seconds": round(seconds, 3)}
            print_data({**counts, "partitions": {str(p): asdict(span) for p, span in spans}})
            return
        left_out = f", bad and left out: {self.skipped:,}" if self.skipped else ""
        typer.echo(f"{_records(self.sender.appended)} in the log after {seconds:.1f} s{left_out}")
        for p, span in spans:
            last = f" to {span.last_id}" if span.last_id != span.first_id else ""
            transactions = f"transaction{'s' if last else ''} {span.first_id}{last}"
            typer.echo(f"  partition {p}: {span.records:,} record{'s'[: span.records != 1]}, {transactions}")


def _copied(stdin: BinaryIO) -> tempfile.SpooledTemporaryFile[bytes]:
    """All of stdin, from its beginning. DiskFull."""
    copy = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - the caller closes it
    try:
        with room_for_stdin():
            while chunk := stdin.read1(1 << 20):  # type: ignore[attr-defined]  # a BufferedReader has it
                copy.write(chunk)
            copy.seek(0)
    except BaseException:
        with suppress(OSError):  # it writes once more what has found no room
            copy.close()
        raise
    return copy


def _records(count: int) -> str:
    return "1 record is" if count == 1 else f"{count:,} records are"
