"""``waltz inspect``: what is in a storage directory."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from waltz_ray.cli.common import JsonOption, console, print_data, table_of
from waltz_ray.errors import InvalidInput

__all__ = ["StorageDirectory", "register", "storage_directories"]

StorageDirectory = Annotated[str, typer.Argument(metavar="DIR", help="A replica's directory, or a cluster's.")]


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command("inspect")(inspect)


def storage_directories(directory: str) -> list[str]:
    """``directory`` itself, or its replica-* below it if it is a cluster's. InvalidInput if it does not exist."""
    from waltz_ray.storage.layout import is_number

    path = Path(directory)
    if not path.is_dir():
        raise InvalidInput(f"{directory} is not a directory; give a replica's or a cluster's")
    numbers = {child.name[8:]: str(child) for child in path.glob("replica-*")}
    replicas = {int(number): each for number, each in numbers.items() if is_number(number)}
    return [replicas[number] for number in sorted(replicas)] or [str(path)]


def inspect(directory: StorageDirectory, as_json: JsonOption = False) -> None:
    """Show the control file, segments and indexes of a storage directory; nothing is checked, nothing changed."""
    from waltz_ray.storage.disk import OsDisk
    from waltz_ray.storage.inspect import describe_directory

    found = [describe_directory(OsDisk(), each) for each in storage_directories(directory)]
    if as_json:
        print_data(found)
        return
    screen = console()
    for each in found:
        screen.print(f"{each['directory']}", style="bold", soft_wrap=True)
        made = f"made {_when(each['created_ms'])}, by {each['written_by']}"
        screen.print(f"cluster key {each['cluster_key']}, {made}", soft_wrap=True)
        screen.print(_table(each["partitions"]))


def _when(time_ms: int) -> str:
    """A control file that is damaged may say any number."""
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"at no time that can be ({time_ms} ms since 1970)"


def _table(partitions: list[dict[str, Any]]) -> Table:
    table = table_of("partition", "session", "low-water mark", "local", "first ID", "last ID", "segments", "bytes")
    for partition in partitions:
        control = partition["control"] or {}
        table.add_row(
            str(partition["partition_id"]),
            *(str(control.get(key, "?")) for key in ("session_id", "low_water_mark", "local_low_water_mark")),
            "?" if partition["first_id"] is None else str(partition["first_id"]),
            str(partition["last_id"]),
            str(len(partition["segments"])),
            f"{sum(segment['bytes'] for segment in partition['segments']):,}",
        )
    return table
