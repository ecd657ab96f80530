"""``waltz pipeline``: the log's way into files, end to end, with everything compared."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from waltz_ray.cli.common import ClusterOption, find
from waltz_ray.cli.long_command import at_work, check_writable, write_json

__all__ = ["register"]


class FileFormat(str, Enum):
    """The file formats that ``--format`` takes."""

    parquet = "parquet"
    jsonl = "jsonl"


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command()(pipeline)


def pipeline(
    records: Annotated[int, typer.Option(min=1, help="How many to append.")] = 1_000_000,
    directory: Annotated[
        str, typer.Option("--dir", help="Where to store everything; kept. \\[default: temporary]")
    ] = "",
    json_file: Annotated[str, typer.Option("--json", help="Write the result to this file (- = stdout).")] = "",
    cluster: ClusterOption = "",
    address: Annotated[
        str, typer.Option("--address", help="A Ray to run on, host:port or auto. \\[default: one of its own]")
    ] = "",
    file_format: Annotated[FileFormat, typer.Option("--format", help="Of the files.")] = FileFormat.parquet,
    record_bytes: Annotated[int, typer.Option(min=100, help="About the length of a record's data.")] = 200,
) -> None:
    """Append, collect with Spark, publish, merge, mirror, and compare counts, checksums and IDs at every place.

    Without --cluster a cluster is brought up for it and taken down again. Exit code 1 if anything differs.
    """
    from waltz_spark.pipeline.run import run_pipeline

    check_writable(json_file)
    running = find("", cluster, address) if cluster else None
    place = Path(os.path.realpath(directory or tempfile.mkdtemp(prefix="waltz-pipeline-")))
    place.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=json_file == "-")
    begin = time.monotonic()
    ok = False
    try:
        with at_work(place, "pipeline", "records committed", records, console) as screen:
            result = run_pipeline(
                place, records, screen, running, "" if cluster else address, file_format.value, record_bytes
            )
        ok = result.ok
        result.took("altogether", begin)
        _print_result(result, console)
        write_json(json_file, result.as_json())
    finally:
        if not directory and ok:
            shutil.rmtree(place)
        else:
            console.print(f"The data is in {place}", highlight=False, soft_wrap=True)
    if not ok:
        raise typer.Exit(1)


def _print_result(result: Any, console: Console) -> None:
    table = Table("place", "records", "bytes", "sum of CRC-32", title="waltz pipeline", title_justify="left")
    for place, sums in result.sums.items():
        table.add_row(place, f"{sums.records:,}", f"{sums.size_bytes:,}", f"{sums.crc_sum:,}")
    console.print(table)
    times = Table("stage", "seconds", "records/s", "MB/s")
    for stage, seconds in result.seconds.items():
        rates = [result.rates.get(f"{stage}, {unit}") for unit in ("records/s", "MB/s")]
        shown = ["" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" for rate in rates]
        times.add_row(stage, f"{seconds:.1f}", *shown)
    console.print(times)
    for name, holds in result.checks.items():
        console.print(f"{'[green]yes[/]' if holds else '[bold red]NO[/] '}  {name}", highlight=False)
    for line in result.differences:
        console.print(f"[red]![/] {line}", highlight=False, soft_wrap=True)
