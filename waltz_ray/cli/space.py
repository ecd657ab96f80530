"""``waltz space``: named runs of partitions, while the cluster runs."""

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
    progress_line,
    table_of,
)
from waltz_ray.cli.connecting import ZooKeeperOption
from waltz_ray.errors import InvalidInput

if TYPE_CHECKING:
    from waltz_ray.protocol.spaces import Space
    from waltz_ray.spaces import Spaces

__all__ = ["parsed_settings", "register"]

_space = typer.Typer(help="Spaces: named runs of partitions, added to a running cluster and deleted from it.")

NameArgument = Annotated[str, typer.Argument(help="The space's name.", show_default=False)]

_MOST_DIGITS = 4300  # of which Python makes an integer


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    app.add_typer(_space, name="space", no_args_is_help=True)


def parsed_settings(texts: list[str]) -> dict[str, int | None]:
    """``name=number`` or ``name=none``, several. InvalidInput."""
    found: dict[str, int | None] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        digits = number.removeprefix("-")
        if not equals or not (number == "none" or (digits.isdecimal() and len(digits) < _MOST_DIGITS)):
            raise InvalidInput(f"a setting is given as name=number, or name=none to take it away, not {text!r}")
        found[name] = None if number == "none" else int(number)
    return found


def _open(directory: str, cluster: str, address: str, zookeeper: str) -> Spaces:
    from waltz_ray.spaces import Spaces

    return Spaces(cluster, directory=directory, address=address, zookeeper=zookeeper)


def _settings_text(space: Space) -> str:
    return " ".join(f"{name}={number}" for name, number in sorted(space.settings.items())) or "-"


@_space.command()
def create(
    name: Annotated[str, typer.Argument(help="1 to 64 of a-z, 0-9, _ and -; never used before.", show_default=False)],
    partitions: Annotated[
        int | None,
        typer.Option(help="How many; fixed for ever. kv: a power of two, 16 by default.", show_default=False),
    ] = None,
    kind: Annotated[str, typer.Option(help="What it is for: log, kv or topic.")] = "log",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="name=number; may be repeated.", show_default=False)
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until it is ready.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Wait so many seconds.")] = 60.0,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Add a space to the running cluster; nothing else pauses. Returns when all of its partitions are open."""
    chosen = parsed_settings(settings or [])
    with _open(directory, cluster, address, zookeeper) as spaces, progress_line(quiet=False) as progress:
        progress(f"making space {name}")
        space = spaces.create(name, partitions, kind, chosen, None if no_wait else timeout)
        where = f"the cluster's partitions {space.first} to {space.partitions.stop - 1}"
        typer.echo(f"space {name} of cluster {spaces.cluster} is {space.state.value}: {where}")


@_space.command("list")
def list_spaces(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the spaces, but for deleted ones."""
    from waltz_ray.runtime.status import to_json

    with _open(directory, cluster, address, zookeeper) as spaces:
        found = spaces.list()
    if as_json:
        print_data(to_json(found))
        return
    table = table_of("space", "kind", "state", "partitions", "of the cluster", "settings")
    for space in found:
        numbers = f"{space.first} to {space.partitions.stop - 1}"
        table.add_row(space.name, space.kind, space.state.value, str(space.count), numbers, _settings_text(space))
    console().print(table)


@_space.command()
def describe(
    name: NameArgument,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show a space and each of its partitions: its number in the cluster, its server, its last published session."""
    from waltz_ray.runtime.status import to_json

    with _open(directory, cluster, address, zookeeper) as spaces:
        found = spaces.describe(name)
    if as_json:
        print_data(to_json(found))
        return
    space, screen = found.space, console()
    screen.print(f"space {name}: {space.kind}, {space.state.value}, settings {_settings_text(space)}", highlight=False)
    table = table_of("partition", "of the cluster", "server", "generation", "session", "members")
    for number, each in enumerate(found.partitions):
        server = "-" if each.server is None else str(each.server)
        session = "-" if each.session is None or each.session < 0 else str(each.session)
        members = " ".join(map(str, each.members)) or "-"
        table.add_row(str(number), str(each.partition), server, str(each.generation), session, members)
    screen.print(table)


@_space.command("set")
def change(
    name: NameArgument,
    settings: Annotated[list[str], typer.Argument(help="name=number, or name=none.", show_default=False)],
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Change settings of a space: retention_ms, retention_bytes, compact; of a topic max_message_bytes."""
    chosen = parsed_settings(settings)
    with _open(directory, cluster, address, zookeeper) as spaces:
        typer.echo(f"space {name}: {_settings_text(spaces.set(name, **chosen))}")


@_space.command()
def delete(
    name: NameArgument,
    confirm: Annotated[str, typer.Option(help="Its name once more, instead of --yes.", show_default=False)] = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Delete a space and all its records, for ever. Neither its name nor its partitions' numbers are used again."""
    with _open(directory, cluster, address, zookeeper) as spaces:
        if not confirm:
            found = spaces.deletable(name)
            confirmed(f"space {name} goes with all records of its {found.count} partitions, for ever", yes, dry_run)
        spaces.delete(name, confirm or name)
        typer.echo(f"space {name} of cluster {spaces.cluster} is gone; its files are being removed")
