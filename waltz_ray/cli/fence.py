"""``waltz fence show`` and ``waltz fence reset``: which sessions a replica refuses, and a way back when it is all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waltz_ray.cli.common import JsonOption, YesOption, confirmed, console, print_data, table_of
from waltz_ray.cli.inspect import StorageDirectory, storage_directories
from waltz_ray.errors import InvalidInput

if TYPE_CHECKING:
    from waltz_ray.storage.fence import Fence

__all__ = ["register"]

_WARNING = """\
{directory}, partition {partition}: the fence is {old}, it will be {new}.

The fence keeps a server that was replaced without noticing from changing the log. {new} is safe only if it is at least
the session that ZooKeeper has for this partition (waltz status shows it). If it is lower, a server that still runs
somewhere may cut or extend this replica's log behind its successor's back: transactions that were acknowledged can be
lost. Where the replica's copy is not needed, waltz replace-replica is the safer way."""

PartitionOption = Annotated[int, typer.Option("--partition", help="The partition.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    fence = typer.Typer(name="fence", help="The sessions a storage directory refuses (offline).", no_args_is_help=True)
    fence.command("show")(show)
    fence.command("reset")(reset)
    app.add_typer(fence)


def show(
    directory: StorageDirectory,
    partition: Annotated[int | None, typer.Option("--partition", help="Only this one.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the highest session that each partition has accepted: every lower one is refused. Changes nothing."""
    from waltz_ray.storage.disk import OsDisk
    from waltz_ray.storage.fence import read_fences

    found = {each: _wanted(each, read_fences(OsDisk(), each), partition) for each in storage_directories(directory)}
    if as_json:
        print_data([{"directory": each} | fence._asdict() for each, fences in found.items() for fence in fences])
        return
    screen = console()
    for each, fences in found.items():
        screen.print(each, style="bold", soft_wrap=True)
        table = table_of("partition", "session", "low-water mark", "local", "slots")
        for fence in fences:
            marks = (fence.session_id, fence.low_water_mark, fence.local_low_water_mark)
            slots = ["good" if valid else "damaged" for valid in fence.slots_valid]
            table.add_row(
                str(fence.partition_id), *("?" if mark is None else str(mark) for mark in marks), ", ".join(slots)
            )
        screen.print(table)


def _wanted(directory: str, fences: list[Fence], partition: int | None) -> list[Fence]:
    if partition is None:
        return fences
    if not 0 <= partition < len(fences):
        raise InvalidInput(f"{directory} has no partition {partition}, only 0 to {len(fences) - 1}")
    return [fences[partition]]


def reset(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A replica's directory, not a cluster's.")],
    partition: PartitionOption,
    session: Annotated[int, typer.Option("--session", help="The fence from now on.", show_default=False)],
    yes: YesOption = False,
) -> None:
    """Lower a partition's fence, if a session number that ZooKeeper never gave keeps every server out.

    The replica must not be running. Read the warning: a wrong number can cost acknowledged transactions.
    """
    from waltz_ray.storage.disk import OsDisk
    from waltz_ray.storage.fence import read_fences, reset_fence

    if storage_directories(directory) != [directory.rstrip("/") or directory]:
        raise InvalidInput(f"{directory} is a cluster's directory; give one replica's, like {directory}/replica-0")
    directory = directory.rstrip("/")
    (fence,) = _wanted(directory, read_fences(OsDisk(), directory), partition)
    typer.echo(_WARNING.format(directory=directory, partition=partition, old=fence.session_id, new=session), err=True)
    confirmed(f"the fence of partition {partition} is lowered to {session}", yes)
    reset_fence(OsDisk(), directory, partition, session)
    typer.echo(f"{directory}, partition {partition}: the fence is {session}")
