"""``waltz load``: every row of a file becomes a transaction."""

from __future__ import annotations

import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, JsonOption, print_json
from waltz_ray.cli.connecting import ZooKeeperOption, open_client
from waltz_ray.errors import AppendFailed, WaltzError
from waltz_ray.protocol.ids import LockId

__all__ = ["key_hash", "key_text", "register"]

_LAST_FATES_S = 10.0
_REPORT_EVERY_ROWS = 512


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command()(load)


def key_text(value: Any) -> str:
    """A key as text. Rows without a value for the key (null, or no such field) all have the key ""."""
    return "" if value is None else str(value)


def key_hash(text: str) -> int:
    """CRC-32 of the key in UTF-8: a row's partition is this modulo their number, its lock is (column, this)."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def load(
    file: Annotated[Path, typer.Argument(help="A .csv, .jsonl or .parquet file.", show_default=False)],
    key: Annotated[str, typer.Option("--key", help="The column that decides partition and lock of a row.")],
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    header: Annotated[int, typer.Option(help="Header of every transaction, a signed 32-bit integer.")] = 0,
    text: Annotated[bool, typer.Option("--text", help="Keep all values of a .csv file as text.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Append every row of FILE as a transaction: its data is the row as JSON, partitioned and locked by its key.

    Rows with the same key go to the same partition. A row without a key has the empty key. The file is read once
    before anything is appended, so a damaged file or an unknown column leaves the log as it was.
    """
    from waltz_ray.cli.load_appender import KeyedAppender
    from waltz_ray.cli.load_rows import inspect_file
    from waltz_ray.client.application import checked_header

    checked_header(header)
    rows = inspect_file(file, key, text)
    begin = time.monotonic()
    with open_client(directory, cluster, address, zookeeper) as client:
        appender = KeyedAppender(client, header)
        try:
            _append_all(rows, key, client.partitions, appender, quiet=as_json)
        except KeyboardInterrupt:
            appender.abandon(_LAST_FATES_S)
            print(f"waltz: interrupted: {_how_far(appender, rows.rows)}", file=sys.stderr)
            raise
        except WaltzError as error:
            appender.abandon(_LAST_FATES_S)
            raise AppendFailed(f"{error}; {_how_far(appender, rows.rows)}") from error
    seconds = time.monotonic() - begin
    _summary(file, appender, seconds, as_json)


def _append_all(rows: Any, key: str, partitions: int, appender: Any, quiet: bool) -> None:
    from waltz_ray.cli.load_rows import read_rows, row_data

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as progress:
        bar = progress.add_task(f"appending {rows.path.name}", total=rows.rows)
        with _ctrl_c_between_rows() as check:
            for number, row in enumerate(read_rows(rows)):
                check()
                hashed = key_hash(key_text(row.get(key)))
                appender.put(hashed % partitions, LockId(key, hashed), row_data(row))
                if number % _REPORT_EVERY_ROWS == 0:
                    progress.update(bar, completed=appender.appended)
        appender.finish()
        progress.update(bar, completed=appender.appended)


@contextmanager
def _ctrl_c_between_rows() -> Iterator[Callable[[], None]]:
    """The given function raises the KeyboardInterrupt of a first Ctrl-C, so that none hits while a row is counted.

    A second one hits wherever the program is: it may be waiting for a log that does not answer.
    """
    pressed = False

    def remember(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def _how_far(appender: Any, rows: int) -> str:
    more = f", up to {appender.open} more may be" if appender.open else ""
    return f"{appender.appended} of {rows} rows are in the log{more}"


def _summary(file: Path, appender: Any, seconds: float, as_json: bool) -> None:
    rate = appender.appended / seconds if seconds else 0.0
    if as_json:
        print_json(
            {
                "file": str(file),
                "rows": appender.appended,
                "lock_conflicts": appender.lock_conflicts,
                "seconds": round(seconds, 3),
                "rows_per_s": round(rate, 1),
                "partitions": {str(p): asdict(count) for p, count in sorted(appender.partitions.items())},
            }
        )
        return
    typer.echo(
        f"{file}: {appender.appended:,} rows in {seconds:.1f} s, {rate:,.0f} a second, "
        f"{appender.lock_conflicts:,} lock conflicts"
    )
    for partition_id, count in sorted(appender.partitions.items()):
        typer.echo(f"  partition {partition_id}: {count.rows:,} rows, transactions {count.first_id} to {count.last_id}")
