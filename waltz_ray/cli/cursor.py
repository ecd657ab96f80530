"""``waltz cursor``: the named positions of applications, seen and moved."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

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
from waltz_ray.cli.connecting import SpaceOption, ZooKeeperOption, open_client
from waltz_ray.cli.moments import MOMENT_HELP, moment
from waltz_ray.errors import CursorNotFound, InvalidInput
from waltz_ray.protocol.spaces import DEFAULT_SPACE
from waltz_ray.runtime.status import CursorStatus, to_json

if TYPE_CHECKING:
    from waltz_ray.client.bounds import Bound
    from waltz_ray.client.client import WaltzClient

__all__ = ["cursor_table", "register", "start_of"]

_cursor = typer.Typer(help="Cursors: named positions in the log, one owner at a time.")

NameArgument = Annotated[str, typer.Argument(help="The cursor's name.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    app.add_typer(_cursor, name="cursor", no_args_is_help=True)


def cursor_table(cursors: Iterable[CursorStatus]) -> Table:
    """One line for each."""
    table = table_of("cursor", "space", "behind by", "taken by", "since", "holds", "written")
    for each in cursors:
        behind = "?" if each.lag is None else str(each.lag)
        holds = "yes" if each.holds_retention else "no"
        table.add_row(
            each.name, each.space, behind, each.owner or "-", _time(each.since_ms), holds, _time(each.changed_ms)
        )
    return table


def start_of(text: str) -> Bound:
    """``earliest``, ``latest``, a transaction ID, or a point in time. InvalidInput."""
    if text in ("earliest", "latest"):
        return text  # type: ignore[return-value]  # they are two of the words
    return int(text) if text.isdecimal() else moment("--to", text)


@_cursor.command("list")
def list_cursors(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    space: SpaceOption = DEFAULT_SPACE,
    as_json: JsonOption = False,
) -> None:
    """List the cursors of a space, and how many transactions each is behind. waltz status has those of all spaces."""
    with open_client(directory, cluster, address, zookeeper, space=space) as client:
        found = client.cursors()
    if as_json:
        print_data(to_json(found))
    else:
        console().print(cursor_table(found))


@_cursor.command()
def show(
    name: NameArgument,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    space: SpaceOption = DEFAULT_SPACE,
    as_json: JsonOption = False,
) -> None:
    """Show a cursor and where it is in each partition."""
    with open_client(directory, cluster, address, zookeeper, space=space) as client:
        found = _found(client, name, space)
    if as_json:
        print_data(to_json(found))
        return
    screen, table = console(), table_of("partition", "next ID")
    for partition_id, position in found.positions.items():
        table.add_row(str(partition_id), str(position))
    screen.print(cursor_table([found]))
    screen.print(table)


@_cursor.command()
def reset(
    name: NameArgument,
    to: Annotated[str, typer.Option(help=f"earliest, latest, a transaction ID, or {MOMENT_HELP}.", show_default=False)],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    space: SpaceOption = DEFAULT_SPACE,
) -> None:
    """Move a cursor that nobody has, in all its partitions, back or forth."""
    start = start_of(to)
    with open_client(directory, cluster, address, zookeeper, space=space) as client:
        found = _found(client, name, space)  # or it would be made
        now = ", ".join(f"{p}/{position}" for p, position in found.positions.items())
        confirmed(f"cursor {name} of space {space} forgets that it is at {now}, and goes on at {to}", yes, dry_run)
        with client.cursor(name, wait=0) as cursor:
            cursor.reset(start)
            where = ", ".join(f"{p}/{position}" for p, position in cursor.positions.items())
    typer.echo(f"cursor {name} of space {space} goes on at {where}")


@_cursor.command()
def delete(
    name: NameArgument,
    confirm: Annotated[str, typer.Option(help="Its name once more, instead of --yes.", show_default=False)] = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    space: SpaceOption = DEFAULT_SPACE,
) -> None:
    """Delete a cursor that nobody has, and what it holds: where it was is known to nobody then."""
    if confirm not in ("", name):
        raise InvalidInput(f"--confirm {confirm} is not the name of cursor {name!r}; nothing was changed")
    with open_client(directory, cluster, address, zookeeper, space=space) as client:
        _found(client, name, space)
        confirmed(
            f"cursor {name} of space {space} goes; where it was is known to nobody then", yes or bool(confirm), dry_run
        )
        client.delete_cursor(name)
    typer.echo(f"cursor {name} of space {space} is gone")


def _found(client: WaltzClient, name: str, space: str) -> CursorStatus:
    for each in client.cursors():
        if each.name == name:
            return each
    raise CursorNotFound(f"space {space!r} has no cursor {name!r}; see waltz cursor list")


def _time(time_ms: int | None) -> str:
    if time_ms is None:
        return "-"
    return f"{datetime.fromtimestamp(time_ms / 1000, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
