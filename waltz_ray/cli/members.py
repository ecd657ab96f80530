"""``waltz replica`` and ``waltz server``: who belongs to a running cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    find,
    print_data,
    progress_line,
    table_of,
)
from waltz_ray.cli.connecting import ZooKeeperOption
from waltz_ray.cli.replicas import replace
from waltz_ray.errors import PartitionNotReady, WaltzError

if TYPE_CHECKING:
    from waltz_ray.members import Members

__all__ = ["NoWaitOption", "TimeoutOption", "open_members", "register", "show_moves"]

_replica = typer.Typer(help="Storage replicas, added to a running cluster, drained and removed from it.")
_server = typer.Typer(help="Partition servers, added to a running cluster, drained and removed from it.")

ReplicaArgument = Annotated[int, typer.Argument(help="The replica's number.", show_default=False)]
ServerArgument = Annotated[int, typer.Argument(help="The server's number.", show_default=False)]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Do not wait until it is done.")]
TimeoutOption = Annotated[float, typer.Option(min=0, help="Wait so many seconds; it goes on being done.")]
CancelOption = Annotated[bool, typer.Option("--cancel", help="It is to stay after all.")]


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    _replica.command("replace")(replace)
    app.add_typer(_replica, name="replica", no_args_is_help=True)
    app.add_typer(_server, name="server", no_args_is_help=True)


def open_members(directory: str, cluster: str, address: str, zookeeper: str) -> Members:
    """The members of the cluster that is meant."""
    from waltz_ray.members import Members

    return Members(cluster, directory=directory, address=address, zookeeper=zookeeper)


# ---- replicas


@_replica.command("list")
def list_replicas(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show each replica, where it is, and the partitions that are on it, are to be, and are not to be any more."""
    with open_members(directory, cluster, address, zookeeper) as members:
        found = members.replicas()
    if as_json:
        fields = ("replica", "node", "zone", "draining", "partitions", "coming", "going")
        print_data([{name: getattr(each, name) for name in fields} for each in found])
        return
    table = table_of("replica", "node", "zone", "state", "partitions", "coming", "going")
    for each in found:
        state = "draining" if each.draining else "in use"
        columns = map(_listed, (each.partitions, each.coming, each.going))
        table.add_row(str(each.replica), each.node or "-", each.zone or "-", state, *columns)
    console().print(table)


@_replica.command("add")
def add_replica(
    timeout: TimeoutOption = 120.0,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
) -> None:
    """Add a storage replica, of the next number; it has no partitions before ``waltz rebalance``, or new spaces.

    Of a Ray of several nodes the one that has its disk offers the resource waltz-replica-<number>.
    """
    from waltz_ray.actors.supervision import alive_nodes, statuses
    from waltz_ray.finding import ray_lookup

    found = find(directory, cluster, address)
    ray_lookup.join(found.ray)
    with (
        open_members(directory, cluster, address, "") as members,
        _telling_of_one_more("replica", lambda: members.membership.next_replica),
        progress_line(quiet=False) as progress,
    ):
        number = members.add_replica(alive_nodes())

        def left() -> str:
            status = statuses(found.name, [], [number]).replicas[number]
            return "" if status.serving else f"replica {number} is {status.state}: {status.reason}"

        _wait(left, progress, timeout)
    typer.echo(f"replica {number} of cluster {found.name} serves; it gets partitions by: waltz rebalance")


@_replica.command("drain")
def drain_replica(
    number: ReplicaArgument,
    cancel: CancelOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would move.")] = False,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 3600.0,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Move all partitions of a replica to others, so that it can be removed; the cluster goes on meanwhile.

    Interrupted, it goes on; asked again, it is waited for again. Exit code 1 if too few replicas would be left.
    """
    with open_members(directory, cluster, address, zookeeper) as members:
        if cancel:
            members.keep_replica(number)
            typer.echo(f"replica {number} of cluster {members.cluster} stays, and may be given partitions")
            return
        if dry_run:
            show_moves(members.sets(), members.drained(number))
            return
        members.drain_replica(number)
        done = f"gives up {sum(number in one for one in members.sets().values())} partitions"
        if not no_wait:
            with progress_line(quiet=False) as progress:
                members.wait_until_replica_has_none(number, progress, timeout)
            done = "has no partitions any more"
        typer.echo(f"replica {number} of cluster {members.cluster} {done}; then: waltz replica remove {number}")


@_replica.command("remove")
def remove_replica(
    number: ReplicaArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Take a drained replica out of the cluster: its process ends, its files stay. Its number never comes again."""
    with open_members(directory, cluster, address, zookeeper) as members:
        members.check_replica_removal(number)
        confirmed(f"replica {number} leaves cluster {members.cluster}; its number never comes again", yes, dry_run)
        members.remove_replica(number)
        typer.echo(f"replica {number} belongs to cluster {members.cluster} no more; its directory may be deleted")


# ---- servers


@_server.command("list")
def list_servers(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show each server, the partitions that it has, and those that it is to have whenever it is there."""
    with open_members(directory, cluster, address, zookeeper) as members:
        found = members.servers()
    if as_json:
        fields = ("server", "registered", "draining", "partitions", "preferred")
        print_data([{name: getattr(each, name) for name in fields} for each in found])
        return
    table = table_of("server", "state", "partitions", "preferred")
    for each in found:
        state = ("draining" if each.draining else "in use") if each.registered else "not there"
        table.add_row(str(each.server), state, _listed(each.partitions), _listed(each.preferred))
    console().print(table)


@_server.command("add")
def add_server(
    timeout: TimeoutOption = 120.0,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Add a partition server, of the next number; it is given its share of the partitions as soon as it is there."""
    with (
        open_members(directory, cluster, address, zookeeper) as members,
        _telling_of_one_more("server", lambda: members.membership.next_server),
        progress_line(quiet=False) as progress,
    ):
        number = members.add_server()

        def left() -> str:
            there = {each.server: each for each in members.servers()}[number]
            return "" if there.registered else f"server {number} is being started"

        _wait(left, progress, timeout)
        typer.echo(f"server {number} of cluster {members.cluster} serves")


@_server.command("drain")
def drain_server(
    number: ServerArgument,
    cancel: CancelOption = False,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 60.0,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Have others serve the partitions of a server, and give it none, so that it can be removed."""
    with open_members(directory, cluster, address, zookeeper) as members:
        if cancel:
            members.keep_server(number)
            typer.echo(f"server {number} of cluster {members.cluster} stays, and may be given partitions")
            return
        members.drain_server(number)
        if not no_wait:
            with progress_line(quiet=False) as progress:
                members.wait_until_server_has_none(number, progress, timeout)
        typer.echo(f"server {number} of cluster {members.cluster} is given nothing; then: waltz server remove {number}")


@_server.command("remove")
def remove_server(
    number: ServerArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
) -> None:
    """Take a drained server out of the cluster: its process ends. Its number never comes again."""
    with open_members(directory, cluster, address, zookeeper) as members:
        members.check_server_removal(number)
        confirmed(f"server {number} leaves cluster {members.cluster}; its number never comes again", yes, dry_run)
        members.remove_server(number)
        typer.echo(f"server {number} belongs to cluster {members.cluster} no more")


def show_moves(before: Mapping[int, frozenset[int]], plan: Mapping[int, frozenset[int]]) -> None:
    """The partitions of ``plan``: on which replicas they are, and are to be."""
    if not plan:
        typer.echo("nothing has to move")
        return
    table = table_of("partition", "is on", "is to be on")
    for p, one in plan.items():
        table.add_row(str(p), _listed(tuple(sorted(before.get(p, ())))), _listed(tuple(sorted(one))))
    console().print(table)


def _listed(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers)) or "-"


@contextmanager
def _telling_of_one_more(kind: str, next_number: Callable[[], int]) -> Iterator[None]:
    """The same command would add another one: whom something ends has to know whether there is one by now."""
    number = next_number()
    try:
        yield
    except PartitionNotReady:
        raise  # which says so
    except (KeyboardInterrupt, WaltzError) as error:
        if next_number() > number:
            why = "interrupted; " if isinstance(error, KeyboardInterrupt) else ""
            typer.echo(
                f"waltz: {why}{kind} {number} has been added, and is being started: see waltz {kind} list; the "
                f"same command would add another one, and without waltz {kind} drain and remove it stays",
                err=True,
            )
        raise


def _wait(left: Callable[[], str], progress: Callable[[str], None], timeout: float) -> None:
    from waltz_ray.members import still_waiting

    deadline = time.monotonic() + timeout
    while text := still_waiting(left):
        progress(text)
        if time.monotonic() > deadline:
            raise PartitionNotReady(
                f"not done after {timeout:g} s: {text}; it is added, and the manager goes on with it: waltz status"
            )
        time.sleep(0.2)
