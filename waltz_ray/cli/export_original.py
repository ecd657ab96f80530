"""``waltz export-original``: a replica's directory as Waltz 0.13 has one."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from waltz_ray.cli.common import JsonOption, print_data

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command("export-original")(export)


def export(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A replica's directory, or a copy of one.")],
    into: Annotated[str, typer.Option("--into", help="Where: a directory that is not there, or empty.")],
    as_json: JsonOption = False,
) -> None:
    """Make a storage directory that Waltz 0.13 reads of a replica's that does not run; DIR itself is not changed.

    All partitions, by the cluster's numbers, for 0.13 knows no spaces. A log that has been trimmed is refused.
    """
    from waltz_ray.cli.load_progress import LoadProgress
    from waltz_ray.storage.disk import OsDisk
    from waltz_ray.storage.export import export_original

    begin_s = time.monotonic()
    with LoadProgress(as_json, unit="segments", look_every=1) as shown:
        shown.stage("copied")

        def progress(done: int, total: int) -> None:
            if done == 1:
                shown.stage("copied", total)
            shown.at(done)

        found = export_original(OsDisk(), os.path.realpath(directory), os.path.realpath(into), progress)
    for note in found.notes:
        typer.echo(f"waltz: {note}", err=True)
    if as_json:
        partitions = {str(partition): records for partition, records in found.records.items()}
        print_data({"directory": into, "partitions": partitions, "segments": found.segments, "bytes": found.bytes})
        return
    records = sum(each or 0 for each in found.records.values())
    counts = f"{len(found.records)} partitions, {records:,} records, {found.bytes:,} bytes"
    typer.echo(f"{into}: {counts} in {time.monotonic() - begin_s:.1f} s")
    gone = [str(partition) for partition, each in found.records.items() if each is None]
    if gone:
        typer.echo(f"  of deleted spaces, left out: partitions {', '.join(gone)}")
