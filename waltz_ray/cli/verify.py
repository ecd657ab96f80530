"""``waltz verify``: every byte of a storage directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from waltz_ray.cli.common import JsonOption, console, print_data, table_of
from waltz_ray.cli.inspect import StorageDirectory, storage_directories
from waltz_ray.errors import ControlFileMissing, Corruption

if TYPE_CHECKING:
    from waltz_ray.storage.compare import PartitionComparison, Standing
    from waltz_ray.storage.verify import VerifyReport

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command("verify")(verify)


def verify(
    directory: StorageDirectory,
    running: Annotated[
        bool, typer.Option("--running", help="Although a replica has it open; its newest records may be missed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check every header, record, index entry and checksum, and, of a cluster's directory, compare the replicas.

    Exit code 1, with file, offset and reason, if anything is damaged; also if copies contradict each other, or fewer
    than a quorum of them have what was committed. A copy that only ends earlier is shown as BEHIND: it is caught up
    when its replica runs.
    """
    from waltz_ray.storage.disk import OsDisk
    from waltz_ray.storage.verify import compare_reports

    directories = storage_directories(directory)
    reports = [_verified(each, running, len(directories) > 1) for each in directories]
    compared = compare_reports(OsDisk(), reports, *_replicas_of(directory, len(reports))) if len(reports) > 1 else []
    if as_json:
        print_data([_plain(report, compared) for report in reports])
    else:
        for report in reports:
            _print(report)
        if compared:
            console().print(_table(compared))
    errors = _of_different_clusters(reports)
    errors += [f"partition {one.partition_id}: {error}" for one in compared for error in one.errors]
    for error in errors:
        typer.echo(error, err=True)
    if errors or any(report.damages for report in reports):
        raise typer.Exit(1)


def _verified(directory: str, running: bool, one_of_several: bool) -> VerifyReport:
    from waltz_ray.storage.disk import OsDisk
    from waltz_ray.storage.verify import VerifyReport, verify_directory

    try:
        return verify_directory(OsDisk(), directory, allow_running=running)
    except ControlFileMissing as error:
        if not one_of_several:
            raise
        report = VerifyReport(directory, running=running)
        report.damages.append(Corruption(f"{directory}/waltz-storage.ctl", 0, f"it is missing: {error}"))
        return report


def _replicas_of(directory: str, found: int) -> tuple[int, int]:
    """How many the cluster has, and how many of them hold a partition (0: all); each node of a cluster of several nodes
    has only its own here."""
    from waltz_ray.backup.restored import read_restored
    from waltz_ray.finding import cluster_file

    restored = read_restored(directory)
    cluster = restored.config if restored is not None else cluster_file.read(directory)
    if cluster is None:
        return found, 0
    # Directories of replicas that were removed may still be here.
    return max(found, cluster.replicas), cluster.replication or cluster.replicas


def _of_different_clusters(reports: list[VerifyReport]) -> list[str]:
    keys = {report.cluster_key for report in reports if report.cluster_key is not None}
    if len(keys) < 2:
        return []
    whose = ", ".join(f"{Path(report.directory).name} {report.cluster_key}" for report in reports)
    return [f"the replicas belong to different clusters: {whose}"]


def _print(report: VerifyReport) -> None:
    records = sum(partition.records for partition in report.partitions.values())
    size = sum(partition.bytes for partition in report.partitions.values())
    verdict = "DAMAGED" if report.damages else "ok"
    counts = f"{len(report.partitions)} partitions, {records:,} records, {size:,} bytes"
    typer.echo(f"{report.directory}: {verdict}, {counts}")
    for damage in report.damages:
        typer.echo(str(damage), err=True)


def _table(compared: list[PartitionComparison]) -> Table:
    """Per partition and replica the last ID, and what is not as it should be."""
    names = list(dict.fromkeys(standing.replica for one in compared for standing in one.standings))
    table = table_of("partition", "committed", *names, "replicas")
    for one in compared:
        cells = {standing.replica: _cell(standing) for standing in one.standings}
        table.add_row(
            str(one.partition_id), str(one.committed_id), *(cells.get(name, "-") for name in names), one.verdict
        )
    return table


def _cell(standing: Standing) -> str:
    text = str(standing.last_id) if standing.first_id == 0 else f"{standing.first_id} to {standing.last_id}"
    if standing.differs_from is not None:
        text += f", never committed from {standing.differs_from}"
    return text + (f", behind by {standing.behind:,}" if standing.behind else "")


def _plain(report: VerifyReport, compared: list[PartitionComparison]) -> dict[str, Any]:
    name = Path(report.directory).name
    beside = {
        one.partition_id: {"verdict": one.verdict, "committed_id": one.committed_id, "errors": list(one.errors)}
        | {"behind": standing.behind, "differs_from": standing.differs_from}
        for one in compared
        for standing in one.standings
        if standing.replica == name
    }
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
                "compared": beside.get(partition.partition_id),
            }
            for partition in report.partitions.values()
        ],
    }
