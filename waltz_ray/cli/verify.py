"""``waltz verify``: every byte of a storage directory."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from waltz_ray.cli.common import JsonOption, print_json
from waltz_ray.cli.inspect import StorageDirectory, storage_directories
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.verify import VerifyReport, verify_directory

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(verify)


def verify(
    directory: StorageDirectory,
    running: Annotated[
        bool, typer.Option("--running", help="Although a replica has it open; its newest records may be missed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check every header, record, index entry and checksum. Exit code 1, with file, offset and reason, if damaged."""
    reports = [verify_directory(OsDisk(), each, allow_running=running) for each in storage_directories(directory)]
    if as_json:
        print_json([_plain(report) for report in reports])
    else:
        for report in reports:
            records = sum(partition.records for partition in report.partitions.values())
            size = sum(partition.bytes for partition in report.partitions.values())
            verdict = "DAMAGED" if report.damages else "ok"
            counts = f"{len(report.partitions)} partitions, {records:,} records, {size:,} bytes"
            typer.echo(f"{report.directory}: {verdict}, {counts}")
            for damage in report.damages:
                typer.echo(str(damage), err=True)
    if any(report.damages for report in reports):
        raise typer.Exit(1)


def _plain(report: VerifyReport) -> dict[str, Any]:
    return {
        "directory": report.directory,
        "ok": report.ok,
        "cluster_key": str(report.cluster_key) if report.cluster_key else None,
        "running": report.running,
        "damages": [{"file": d.file, "offset": d.offset, "reason": d.reason} for d in report.damages],
        "partitions": [
            {
                "partition": partition.partition_id,
                "first_id": partition.first_id,
                "last_id": partition.last_id,
                "records": partition.records,
                "bytes": partition.bytes,
                "segments": partition.segments,
            }
            for partition in report.partitions.values()
        ],
    }
