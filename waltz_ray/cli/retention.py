"""``waltz trim`` and ``waltz holds``: what a cluster may forget, by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waltz_ray.cli.common import (
    AddressOption,
    ClusterOption,
    DirOption,
    DryRunOption,
    JsonOption,
    YesOption,
    confirmed,
    console,
    print_data,
    table_of,
)
from waltz_ray.cli.connecting import SpaceOption, ZooKeeperOption
from waltz_ray.cli.moments import MOMENT_HELP, moment
from waltz_ray.protocol.spaces import DEFAULT_SPACE

if TYPE_CHECKING:
    from waltz_ray.retention import KeptFor, RetentionByHand

__all__ = ["register"]

_holds = typer.Typer(help="Holds: what must not be trimmed, for whom.")


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    app.command()(trim)
    app.add_typer(_holds, name="holds", no_args_is_help=True)


def _open(directory: str, cluster: str, address: str, zookeeper: str) -> RetentionByHand:
    from waltz_ray.retention import RetentionByHand

    return RetentionByHand(cluster, directory=directory, address=address, zookeeper=zookeeper)


def trim(
    partition: Annotated[int, typer.Option("--partition", "-p", help="Which partition.")],
    before: Annotated[str, typer.Option(help=f"A transaction ID, or {MOMENT_HELP}.", show_default=False)],
    space: SpaceOption = DEFAULT_SPACE,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Let go of the records of a partition before an ID or a time, for ever. Replicas drop whole segments, soon after.

    What a hold keeps stays, and the hold is named.
    """
    until = int(before) if before.strip().isdecimal() else moment("--before", before)
    what = f"partition {partition} of space {space}"
    with _open(directory, cluster, address, zookeeper) as retention:
        found = retention.trim(partition, until, space, dry_run=True)
        if found.records and not dry_run:
            go = f"{found.records} transaction{'s go' if found.records > 1 else ' goes'}"
            confirmed(f"{what}: {go}, for ever, those before {found.mark}", yes)
            found = retention.trim(partition, until, space)
    if found.records:
        verb = "would be raised" if dry_run else "is raised"
        mark = f"the trim mark {verb} from {found.mark_before} to {found.mark}"
        typer.echo(f"{what}: {mark}, {found.records} more transactions may go")
    else:
        typer.echo(f"{what}: the trim mark is {found.mark} already, nothing is changed")
    for hold in found.held_by:
        kept = f"keeps transactions from {hold.positions[space, partition]} on"
        typer.echo(f"{what}: not to {found.wanted_id}: hold {hold.name} {kept} ({hold.why})")


@_holds.command("list")
def list_holds(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    as_json: JsonOption = False,
) -> None:
    """List who keeps what: of each partition the first transaction that must stay."""
    with _open(directory, cluster, address, zookeeper) as retention:
        found = retention.holds()
    if as_json:
        print_data([_as_object(hold) for hold in found])
        return
    table = table_of("hold", "keeps from", "for")
    for hold in found:
        kept = ", ".join(f"{space}/{p}: {first_id}" for (space, p), first_id in hold.positions.items())
        table.add_row(hold.name, kept or "-", hold.why)
    console().print(table)


def _as_object(hold: KeptFor) -> dict[str, object]:
    positions = [
        {"space": space, "partition": p, "first_id": first_id} for (space, p), first_id in hold.positions.items()
    ]
    return {"name": hold.name, "why": hold.why, "positions": positions}


@_holds.command()
def release(
    name: Annotated[str, typer.Argument(help="As waltz holds list shows it.", show_default=False)],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Keep nothing for a hold any more. Who still runs with it makes it again, or finds its records gone."""
    with _open(directory, cluster, address, zookeeper) as retention:
        kept = next((each for each in retention.holds() if each.name == name), None)
        if kept is not None:  # else it is refused below
            what = ", ".join(f"{space}/{p} from {first_id} on" for (space, p), first_id in kept.positions.items())
            confirmed(f"hold {name} ({kept.why}) keeps {what or 'nothing'} no more", yes, dry_run)
        retention.release(name)
    typer.echo(f"hold {name} is released")
