"""``waltz backup`` and ``waltz restore``."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from waltz_ray.cli.backup_progress import BackupProgress
from waltz_ray.cli.common import (
    AddressOption,
    ClusterOption,
    DirOption,
    JsonOption,
    YesOption,
    confirmed,
    console,
    print_data,
    table_of,
)
from waltz_ray.cli.connecting import ZooKeeperOption
from waltz_ray.cli.moments import moment
from waltz_ray.errors import InvalidInput
from waltz_ray.interruption import interruptible

if TYPE_CHECKING:
    from waltz_ray.backup.restore import Cut
    from waltz_ray.backup.source import RunningCluster

__all__ = ["parsed_bytes", "parsed_cut", "register"]

_DEFAULT_COMMAND = "run"


class _RunsByDefault(TyperGroup):
    """``waltz backup DIR`` is ``waltz backup run DIR``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [_DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)


_backup = typer.Typer(
    cls=_RunsByDefault,
    help="waltz backup DIR|URL: everything that is committed, while the cluster runs. The word run may be left out.",
)

TargetArgument = Annotated[
    str, typer.Argument(metavar="DIR|URL", help="A local directory, or s3://, gs://, abfs://, hdfs://.")
]
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmg]i?)?b?", re.IGNORECASE)


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    app.add_typer(_backup, name="backup", no_args_is_help=True)
    app.command("restore")(restore)


def parsed_bytes(name: str, text: str) -> int:
    """``50MB``, ``1.5 GiB``, ``4096``. InvalidInput; ``name`` is the option's."""
    found = _SIZE.fullmatch(text.strip())
    size = float(found[1]) * _UNITS[(found[2] or "").lower()] if found else 0.0
    if not 1 <= size <= sys.maxsize:
        raise InvalidInput(f"{name} must be a size such as 50MB or 64MiB, not {text!r:.60}")
    return int(size)


def parsed_cut(text: str, now: datetime | None = None) -> Cut:
    """``P=ID``, ``P=TIME`` or ``TIME``. InvalidInput."""
    from waltz_ray.backup.restore import Cut

    number, equals, bound = text.rpartition("=")
    if equals and not number.strip().isdecimal():
        raise InvalidInput(f"--until must begin with a partition's number and =, or be a time for all, not {text!r}")
    partition_id = int(number) if equals else None
    if bound.strip().isdecimal():
        if partition_id is None:
            raise InvalidInput(f"--until {text}: a transaction is one of a partition; give it as P={text.strip()}")
        return Cut(partition_id, first_id=int(bound))
    return Cut(partition_id, time_ms=int(moment("--until", bound, now).timestamp() * 1000))


@contextmanager
def _open(directory: str, cluster: str, address: str, zookeeper: str) -> Iterator[RunningCluster]:
    from waltz_ray.backup.source import RunningCluster
    from waltz_ray.finding.find import find_cluster

    with RunningCluster(find_cluster(cluster, directory, address, zookeeper)) as source:
        yield source


@_backup.command(_DEFAULT_COMMAND)
def run(
    target: TargetArgument,
    rate: Annotated[str, typer.Option(help="Read at most so much a second, such as 50MB.", show_default=False)] = "",
    piece_size: Annotated[str, typer.Option(help="Objects become a little larger than this.")] = "64MiB",
    hold: Annotated[
        bool, typer.Option("--hold", help="Keep retention from trimming what the next run has to read.")
    ] = False,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    as_json: JsonOption = False,
) -> None:
    """Back up what is committed now and not there yet, of all spaces. The cluster goes on.

    The first run takes everything, each later one what is new. One that was killed or failed leaves the last backup as
    it was, and the same command goes on from what is there.
    """
    from waltz_ray.backup.pace import Pace
    from waltz_ray.backup.run import BackupChoices, back_up
    from waltz_ray.backup.target import Target

    choices = BackupChoices(parsed_bytes("--piece-size", piece_size), hold)
    pace = Pace(parsed_bytes("--rate", rate) if rate else None)
    place, begin_s = Target.at(target), time.monotonic()
    try:
        with interruptible(), _open(directory, cluster, address, zookeeper) as source, BackupProgress(as_json) as shown:
            done = back_up(source, place, choices, pace, shown)
    except KeyboardInterrupt:
        typer.echo("waltz: interrupted: the last backup is as it was; the same command goes on", err=True)
        raise
    seconds = time.monotonic() - begin_s
    if as_json:
        print_data({"target": place.shown, **asdict(done), "seconds": round(seconds, 3)})
        return
    typer.echo(
        f"{place.shown}: {done.transactions:,} transactions of {done.cluster} in {seconds:.1f} s, "
        f"{done.written_bytes:,} bytes written; in all {done.total_transactions:,} transactions of {done.partitions} "
        f"partitions, {done.total_bytes:,} bytes"
    )


@_backup.command("verify")
def verify(target: TargetArgument, as_json: JsonOption = False) -> None:
    """Read every byte of the newest backup and check it. Exit code 1, with what is wrong, if it cannot be restored."""
    from waltz_ray.backup.target import Target
    from waltz_ray.backup.verify import verify_backup

    place = Target.at(target)
    with BackupProgress(as_json) as shown:
        report = verify_backup(place, shown)
    manifest = report.manifest
    partitions = manifest.partitions.values()
    pieces = [piece for each in partitions for piece in each.pieces]
    counts = {
        "cluster": manifest.identity.cluster,
        "made_ms": manifest.made_ms,
        "partitions": len(partitions),
        "transactions": sum(each.next_id - each.first_id for each in partitions),
        "pieces": len(pieces),
        "bytes": sum(piece.size for piece in pieces),
        "unnamed": sorted(report.unnamed),
    }
    if as_json:
        damages = [{"file": d.file, "offset": d.offset, "reason": d.reason} for d in report.damages]
        print_data({"target": place.shown, "ok": report.ok, **counts, "damages": damages})
    else:
        for damage in report.damages:
            typer.echo(str(damage), err=True)
        made = datetime.fromtimestamp(manifest.made_ms / 1000).astimezone().isoformat(" ", "seconds")
        typer.echo(
            f"{place.shown}: {'ok' if report.ok else 'DAMAGED'}, {counts['cluster']} of {made}: "
            f"{counts['partitions']} partitions, {counts['transactions']:,} transactions, {counts['bytes']:,} bytes"
        )
    if not report.ok:
        raise typer.Exit(1)


@_backup.command("holds")
def holds(
    release: Annotated[str, typer.Option(help="Let go of this one.", show_default=False)] = "",
    yes: YesOption = False,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    as_json: JsonOption = False,
) -> None:
    """List what backups keep from being trimmed: with --hold, and where a run was killed. Or let go of it."""
    with _open(directory, cluster, address, zookeeper) as source:
        found = source.backup_holds()
        if release:
            if release not in found:
                raise InvalidInput(f"no backup holds anything by the name {release!r}; there are: {_listed(found)}")
            confirmed(f"hold {release} ({found[release][0]}) keeps nothing from being trimmed any more", yes)
            source.release(release)
            typer.echo(f"{release} is released: what it kept may be trimmed")
            return
    if as_json:
        print_data([{"name": name, "why": why, "positions": positions} for name, (why, positions) in found.items()])
        return
    table = table_of("hold", "of", "partitions", "from transaction")
    for name, (why, positions) in found.items():
        ids = sorted(positions.values())
        table.add_row(name, why, str(len(ids)), f"{ids[0]} to {ids[-1]}" if ids else "-")
    console().print(table)


def _listed(found: Any) -> str:
    return ", ".join(found) or "none"


def restore(
    target: TargetArgument,
    into: Annotated[str, typer.Option(help="The new cluster's directory: empty, or not there.", show_default=False)],
    name: Annotated[str, typer.Option(help="The new cluster's name. \\[default: the old one's]")] = "",
    until: Annotated[
        list[str] | None,
        typer.Option(
            help="P=ID, P=TIME, or TIME for all: partition P ends before it. May be repeated.", show_default=False
        ),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, max=99, help="Storage replicas. \\[default: as many as there were]")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the directory of a new cluster from a backup: the same records, byte for byte. Then: waltz up --dir DIR.

    All of the backup is checked before anything is written. Nothing that exists is overwritten.
    """
    from waltz_ray.backup.restore import restore as restored
    from waltz_ray.backup.restored import read_restored
    from waltz_ray.backup.target import Target
    from waltz_ray.errors import StorageError

    cuts = [parsed_cut(text) for text in until or []]
    place, begin_s = Target.at(target), time.monotonic()
    try:
        with interruptible(), BackupProgress(as_json) as shown:
            done = restored(place, into, shown, name, cuts, replicas)
    except KeyboardInterrupt:
        try:
            read_restored(into)
        except StorageError:  # else there is nothing of ours, or what somebody else has restored meanwhile
            typer.echo(f"waltz: interrupted: {into} is not whole; remove it", err=True)
        raise
    seconds = time.monotonic() - begin_s
    if as_json:
        print_data({"target": place.shown, **asdict(done), "seconds": round(seconds, 3)})
        return
    typer.echo(
        f"{done.directory}: {done.transactions:,} transactions of {len(done.next_ids)} partitions on {done.replicas} "
        f"replicas, in {seconds:.1f} s; start it with: waltz up --dir {done.directory}"
    )
    if done.hold:
        typer.echo(f"its retention trims nothing of this until you say: waltz backup holds --release {done.hold} --yes")
    for note in done.notes:
        typer.echo(f"note: {note}", err=True)
