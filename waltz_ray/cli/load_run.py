"""One run of ``waltz load``: rows are read, found good, and appended; what was interrupted goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from waltz_ray.cli.common import print_data
from waltz_ray.cli.connecting import open_client
from waltz_ray.cli.ctrl_c import ctrl_c_between_steps
from waltz_ray.cli.load_appender import KeyedAppender
from waltz_ray.cli.load_cursor import LoadCursor, LoadedRows, open_cursor
from waltz_ray.cli.load_progress import LoadProgress
from waltz_ray.cli.load_rows import Choices, RowReader, check_rows
from waltz_ray.cli.load_source import Format, LoadSource, open_source
from waltz_ray.client.application import checked_header
from waltz_ray.client.client import WaltzClient
from waltz_ray.client.keys import key_hash
from waltz_ray.client.requests import longest_record_bytes
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendFailed, InvalidInput, Trimmed, WaltzError
from waltz_ray.protocol.ids import LockId
from waltz_ray.protocol.spaces import DEFAULT_SPACE

__all__ = ["Job", "run_job"]

_LAST_FATES_S = 10.0
_SETTLE_S = 60.0


@dataclass(frozen=True)
class Job:
    """What is to be loaded, as the command was given it (``waltz load --help``)."""

    file: str
    form: Format | None
    choices: Choices
    header: int
    cursor: str
    resume: bool
    as_json: bool
    space: str = DEFAULT_SPACE


def run_job(job: Job, directory: str, cluster: str, address: str, zookeeper: str) -> None:
    """All of it, into the cluster that is found by the last four. InvalidInput before anything is appended."""
    header, choices, resume, as_json = checked_header(job.header), job.choices, job.resume, job.as_json
    with (
        open_source(job.file, job.form) as source,
        _cursor_of(source, job.cursor, resume) as kept,
        LoadProgress(as_json) as shown,
    ):
        settings = {**asdict(choices), "header": header, "format": source.form, "space": job.space}
        settings["bytes"] = source.size_bytes
        if resume and kept is not None:
            kept.check(settings)
        reader = source.reader(choices)
        shown.stage("read")
        rows = check_rows(reader, longest_record_bytes(ClientConfig().max_frame_bytes, locks=1), shown.at)
        begin_s = time.monotonic()
        with open_client(directory, cluster, address, zookeeper, space=job.space) as client:
            work = _Load(source, reader, rows, choices.key, client, KeyedAppender(client, header), shown)
            work.run(kept, settings)
        if kept is not None:
            kept.remove()
    work.summary(time.monotonic() - begin_s, as_json)


def _cursor_of(source: LoadSource, path: str, resume: bool) -> AbstractContextManager[LoadCursor | None]:
    if path or source.name != "-":
        return open_cursor(Path(path or f"{source.name}.waltz-load"), resume)
    if resume:
        raise InvalidInput("a load from stdin is resumed by the file it was given with --cursor; give it again")
    return nullcontext()


@dataclass
class _Load:
    """One run: rows that have been found good, on their way into the log."""

    source: LoadSource
    reader: RowReader
    rows: int
    key: str
    client: WaltzClient
    appender: KeyedAppender
    shown: LoadProgress
    before: int = 0
    """Rows that earlier runs have appended."""

    def run(self, cursor: LoadCursor | None, settings: dict[str, Any]) -> None:
        """Append what is not in the log. Ctrl-C and errors say how far it came."""
        settings = {**settings, "cluster_key": self.client.cluster_key}
        loaded = None
        if cursor is not None and cursor.settings:
            cursor.check_cluster(self.client.cluster_key, self.client.partitions)
            loaded = self._loaded(cursor) if cursor.clients else None
        self.before = loaded.count if loaded is not None else 0
        self.source.check_unchanged()  # what was found good is what will be appended
        if cursor is not None:
            marks = [self.client.server_high_water_mark(partition) for partition in range(self.client.partitions)]
            cursor.begin(settings, [mark + 1 for mark in marks], self.client.client_id)
        try:
            self._append(loaded)
        except KeyboardInterrupt:
            why = "".join(f"; partition {p}: {reason}" for p, reason in self.client.hindrances().items())
            self.appender.abandon(_LAST_FATES_S)
            print(f"waltz: interrupted: {self._how_far(cursor)}{why}", file=sys.stderr)
            raise
        except WaltzError as error:
            self.appender.abandon(_LAST_FATES_S)
            raise AppendFailed(f"{error}; {self._how_far(cursor)}") from error

    def _loaded(self, cursor: LoadCursor) -> LoadedRows:
        """What the log has of the rows, after nothing more can come from the process that was interrupted."""
        client, partitions = self.client, self.client.partitions
        marks = client.supersede(cursor.clients[-1], _SETTLE_S)
        ids = frozenset(cursor.clients)

        def records(partition_id: int) -> Iterator[bytes]:
            try:
                for transaction in client.read(partition_id, cursor.starts[partition_id], marks[partition_id] + 1):
                    if transaction.req_id.client_id in ids:
                        yield transaction.data
            except Trimmed as error:
                raise InvalidInput(
                    f"{cursor.path}: the load that was interrupted began in partition {partition_id} with transaction "
                    f"{cursor.starts[partition_id]}, and what is below {error.first_id} was trimmed away since: nobody "
                    "can tell any more which rows were in the log; nothing was appended; delete that file to load all "
                    "of them, also those that were"
                ) from error

        loaded = LoadedRows({partition: records(partition) for partition in range(partitions)})
        self.shown.stage("compared with the log", self.rows)
        for number, row in enumerate(self.reader.rows()):
            loaded.look(number, key_hash(row.key) % partitions, row.data)
            self.shown.at(number)
        loaded.finish()
        return loaded

    def _append(self, loaded: LoadedRows | None) -> None:
        partitions, appender = self.client.partitions, self.appender
        self.shown.stage("appended", self.rows)
        with ctrl_c_between_steps() as check:
            for number, row in enumerate(self.reader.rows()):
                check()
                if number == self.rows:  # nobody has looked at this one
                    break
                hashed = key_hash(row.key)
                partition_id = hashed % partitions
                if loaded is None or (number, partition_id) not in loaded:
                    appender.put(partition_id, LockId(self.key, hashed), row.data)
                self.shown.at(number)
        appender.finish()
        self.source.check_unchanged()

    def _how_far(self, cursor: LoadCursor | None) -> str:
        more = f", up to {self.appender.open} more may be" if self.appender.open else ""
        then = "; the same command with --resume goes on" if cursor is not None else ""
        return f"{self.before + self.appender.appended} of {self.rows} rows are in the log{more}{then}"

    def summary(self, seconds: float, as_json: bool) -> None:
        """What has been done."""
        appender = self.appender
        rate = appender.appended / seconds if seconds else 0.0
        partitions = sorted(appender.partitions.items())
        if as_json:
            found = {"file": self.source.name, "rows": appender.appended, "rows_before": self.before}
            times = {"seconds": round(seconds, 3), "rows_per_s": round(rate, 1)}
            print_data({**found, **times, "partitions": {str(p): asdict(count) for p, count in partitions}})
            return
        before = f", {self.before:,} were there before" if self.before else ""
        typer.echo(f"{self.source.name}: {appender.appended:,} rows in {seconds:.1f} s, {rate:,.0f} a second{before}")
        for partition_id, count in partitions:
            typer.echo(
                f"  partition {partition_id}: {count.rows:,} rows, transactions {count.first_id} to {count.last_id}"
            )
