"""``waltz streams``: the collector and the stream services of one file (``waltz_spark.streams``)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from waltz_ray.cli.chatter import redirected
from waltz_ray.cli.common import AddressOption, JsonOption, print_json, table_of
from waltz_ray.cli.connecting import ZooKeeperOption
from waltz_ray.runtime.status import to_json

if TYPE_CHECKING:  # what a command needs of Spark it imports when it runs
    from waltz_spark.streams.collector_status import CollectorStatus
    from waltz_spark.streams.status import ThreadStatus

__all__ = ["register"]


class SparkChoice(str, Enum):
    """The Spark that ``--spark`` asks for."""

    auto = "auto"
    raydp = "raydp"
    local = "local"


ConfigOption = Annotated[Path, typer.Option("--config", help="The TOML file that names the services.")]
ServiceOption = Annotated[
    list[str] | None, typer.Option("--service", help="Only this one; may be given again.", show_default=False)
]
SparkOption = Annotated[
    SparkChoice, typer.Option("--spark", help="What collectors write with; auto: raydp if one Ray runs, else local.")
]
_FILE = Path("streams.toml")
_FILE_WIDTH = 180

_streams = typer.Typer(help="Feed -> minute files -> streams_local -> streams -> mirrors, every record exactly once.")


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    app.add_typer(_streams, name="streams", no_args_is_help=True)


@_streams.command()
def run(
    config: ConfigOption = _FILE,
    service: ServiceOption = None,
    once: Annotated[bool, typer.Option("--once", help="One pass of each, sources first, and end.")] = False,
    seconds: Annotated[float | None, typer.Option("--for", min=0.0, help="End after so many seconds.")] = None,
    spark: SparkOption = SparkChoice.auto,
    zookeeper: ZooKeeperOption = "",
    address: AddressOption = "",
    as_json: JsonOption = False,
) -> None:
    """Run the services of the file until Ctrl-C. Exit code 1, and one line, when one of them ends in an error."""
    from waltz_spark.streams import cli
    from waltz_spark.streams.configuration import read_config

    chosen = read_config(config).only(service or ())
    with _chatter_to_stderr(), cli.opened_place(chosen, spark.value, zookeeper, address) as place:
        if not once:
            cli.run_forever(chosen, place, _say, seconds)
            return
        done = cli.run_once(chosen, place, _say)
    if as_json:
        print_json(done)
    else:
        _print_passes(done)


@_streams.command()
def status(
    config: ConfigOption = _FILE,
    service: ServiceOption = None,
    zookeeper: ZooKeeperOption = "",
    spark: SparkOption = SparkChoice.auto,
    address: AddressOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show what every thread that ever ran is doing: state, what is in flight, lag, what waits, what is quarantined."""
    from waltz_spark.streams import cli
    from waltz_spark.streams.configuration import read_config
    from waltz_spark.streams.texts import shown

    known = read_config(config)
    known.only(service or ())
    opened = cli.opened_place(known, spark.value, zookeeper, address, lambda config, hosts: False)
    with _chatter_to_stderr(), opened as place:
        view = cli.streams_status(place, known.zookeeper_root, service or ())
    if as_json:
        print_json(to_json(view))
        return
    console = _console()
    console.print(_collectors(view.collectors))
    console.print(_services(view.services))
    for each in view.services:
        if each.holder:
            console.print(f"{each.name}: {each.holder}", soft_wrap=True, markup=False)
        for record in each.quarantined:
            what = f"{each.name}: {shown(record.commit)}: {record.reason} ({record.count} looks since {record.since})"
            console.print(what, style="yellow", soft_wrap=True, markup=False)
        for reason, count in each.ignored.items():
            console.print(f"{each.name}: {count} left alone: {reason}", soft_wrap=True)
    for problem in view.unreadable.values():
        console.print(problem, style="yellow", soft_wrap=True, markup=False)
    for collector in view.collectors:
        if collector.trouble:
            console.print(f"{collector.name}: {collector.trouble}", style="yellow", soft_wrap=True)


@_streams.command()
def recover(
    config: ConfigOption = _FILE,
    service: ServiceOption = None,
    spark: SparkOption = SparkChoice.auto,
    zookeeper: ZooKeeperOption = "",
    address: AddressOption = "",
    as_json: JsonOption = False,
) -> None:
    """Carry through what a crash left, and begin nothing new."""
    from waltz_spark.streams import cli
    from waltz_spark.streams.configuration import read_config

    chosen = read_config(config).only(service or ())
    opened = cli.opened_place(chosen, spark.value, zookeeper, address, cli.in_flight)
    with _chatter_to_stderr(), opened as place:
        done = cli.recover(chosen, place, _say)
    if as_json:
        print_json(done)
        return
    table = table_of("thread", "was in", "is in")
    for each in done:
        table.add_row(each["name"], each["before"], each["after"])
    _console().print(table)


def _console() -> Console:
    """Into a file or a pipe lines may be long."""
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_WIDTH)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _chatter_to_stderr() -> Iterator[None]:
    """A command's output is what it prints itself. Spark's Java processes inherit stdout and write to it."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("waltz_spark.streams")
    log.addHandler(handler)
    try:
        with redirected((1,), 2):
            yield
    finally:
        log.removeHandler(handler)


def _print_passes(done: list[dict[str, Any]]) -> None:
    table = table_of("thread", "kind", "what was done")
    for each in done:
        if each["standing_by"]:
            text = f"stands by: {each['holder']}"
        elif each["kind"] == "collector":
            text = f"{each['records']} records in {each['minute']}" if each["minute"] else "no minute is over"
        else:
            text = f"{len(each['committed'])} committed, {len(each['replayed'])} dropped as repeated"
            if each["quarantined"]:
                text += f", {len(each['quarantined'])} cannot be done now: " + "; ".join(each["quarantined"].values())
        table.add_row(each["name"], each["kind"], text)
    _console().print(table)


def _collectors(collectors: list[CollectorStatus]) -> Table:
    table = table_of("collector", "category", "running", "state", "last minute", "behind", "records", "not collected")
    for each in collectors:
        table.add_row(
            each.name,
            each.category,
            "yes" if each.running else "no",
            each.state + (f" {each.in_flight}" if each.in_flight else ""),
            each.last_minute or "-",
            _text(each.lag_minutes, " min"),
            str(each.records),
            _text(each.lag_records),
        )
    return table


def _services(services: list[ThreadStatus]) -> Table:
    table = table_of(
        "service", "kind", "running", "state", "last commit", "behind", "commits", "not consumed", "quarantined"
    )
    for each in services:
        table.add_row(
            each.name,
            each.kind,
            "yes" if each.running else "no",
            each.state + (f" {each.in_flight}" if each.in_flight else ""),
            each.last_commit or "-",
            _text(each.lag_minutes, " min"),
            str(each.commits),
            ", ".join(f"{consumer} {count}" for consumer, count in each.pending.items()) or "-",
            str(len(each.quarantined)),
        )
    return table


def _text(value: object, unit: str = "") -> str:
    return "-" if value is None else f"{value}{unit}"
