"""``waltz streams``: the collector and the stream services of one file (``waltz_spark.streams``)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from waltz_ray.cli.chatter import redirected
from waltz_ray.cli.common import (
    AddressOption,
    JsonOption,
    YesOption,
    confirmed,
    console,
    print_data,
    print_item,
    table_of,
    tell,
)
from waltz_ray.cli.connecting import ZooKeeperOption
from waltz_ray.cli.live import IntervalOption, show_live, views
from waltz_ray.errors import ConfigError
from waltz_ray.runtime.status import to_json

if TYPE_CHECKING:  # what a command needs of Spark it imports when it runs
    from waltz_spark.streams.cli import StreamsStatus
    from waltz_spark.streams.collector_status import CollectorStatus
    from waltz_spark.streams.files import FilesOf
    from waltz_spark.streams.settings import StreamSettings
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
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        help="Serve /metrics for Prometheus on 127.0.0.1; 0: at any port, which is said.",
        show_default=False,
    ),
]
_FILE = Path("streams.toml")

OneServiceOption = Annotated[str, typer.Option("--service", help="The service whose quarantine it is in.")]
RecordsArgument = Annotated[list[str], typer.Argument(help="Names of records, as list shows them.")]

_quarantine = typer.Typer(help="What a service cannot do at the moment: list, retry, drop.")
_streams = typer.Typer(help="Feed -> minute files -> streams_local -> streams -> mirrors, every record exactly once.")


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    _streams.add_typer(_quarantine, name="quarantine", no_args_is_help=True)
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
    metrics_port: MetricsPortOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the services of the file until Ctrl-C. Exit code 1, and one line, when one of them ends in an error."""
    from waltz_spark.streams import cli
    from waltz_spark.streams.configuration import read_config

    chosen = read_config(config).only(service or ())
    with ExitStack() as stack:
        stack.enter_context(_chatter_to_stderr())
        place = stack.enter_context(cli.opened_place(chosen, spark.value, zookeeper, address))
        stack.enter_context(_metrics(metrics_port, lambda: cli.streams_status(place, chosen.zookeeper_root)))
        if not once:
            cli.run_forever(chosen, place, tell, seconds)
            return
        done = cli.run_once(chosen, place, tell)
    if as_json:
        print_data(done)
    else:
        _print_passes(done)


@contextmanager
def _metrics(port: int | None, look: Callable[[], StreamsStatus]) -> Iterator[None]:
    """``/metrics`` while it is open; None: nothing. ConfigError for a port that cannot be had."""
    if port is None:
        yield
        return
    from waltz_spark.streams.metrics import StreamsWatch

    from waltz_ray.actors.exposition import KIND
    from waltz_ray.actors.http_port import HttpPort, page_at

    with closing(StreamsWatch(look)) as watch:
        try:
            http = HttpPort("127.0.0.1", port, page_at("/metrics", KIND, watch.page))
        except OSError as error:
            raise ConfigError(f"127.0.0.1:{port} cannot be had: {error}; give another --metrics-port") from error
        with closing(http):
            tell(f"metrics at http://127.0.0.1:{http.endpoint.port}/metrics")
            yield


@_streams.command()
def status(
    config: ConfigOption = _FILE,
    service: ServiceOption = None,
    zookeeper: ZooKeeperOption = "",
    spark: SparkOption = SparkChoice.auto,
    address: AddressOption = "",
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing it until Ctrl-C.")] = False,
    interval: IntervalOption = 2.0,
) -> None:
    """Show what every thread that ever ran is doing: state, what is in flight, lag, what waits, what is quarantined.

    With --watch and --json a line each time.
    """
    from waltz_spark.streams import cli
    from waltz_spark.streams.configuration import read_config

    known = read_config(config)
    known.only(service or ())
    opened = cli.opened_place(known, spark.value, zookeeper, address, lambda config, hosts: False)
    with ExitStack() as stack:
        with _chatter_to_stderr():  # of a Spark that starts; what is shown while it goes on is not chatter
            place = stack.enter_context(opened)

        def look() -> StreamsStatus:
            return cli.streams_status(place, known.zookeeper_root, service or ())

        if watch and as_json:
            with suppress(KeyboardInterrupt):
                for view in views(look, interval):
                    print_item(to_json(view))
            return
        if watch:
            show_live(_pages(view) for view in views(look, interval))
            return
        view = look()
    if as_json:
        print_data(to_json(view))
        return
    screen = console()
    for page in _pages(view):
        screen.print(page, soft_wrap=isinstance(page, Text))


def _pages(view: StreamsStatus) -> Iterator[Table | Text]:
    """What is shown, from the top; a line of text is never cut."""
    from waltz_spark.streams.texts import shown

    yield _collectors(view.collectors)
    yield _services(view.services)
    for each in view.services:
        if each.holder:
            yield Text(f"{each.name}: {each.holder}")
        for record in each.quarantined:
            looks = f"({record.count} looks since {record.since})"
            yield Text(f"{each.name}: {shown(record.commit)}: {record.reason} {looks}", style="yellow")
        for reason, count in each.ignored.items():
            yield Text(f"{each.name}: {count} left alone: {reason}")
    for problem in view.unreadable.values():
        yield Text(problem, style="yellow")
    for collector in view.collectors:
        if collector.trouble:
            yield Text(f"{collector.name}: {collector.trouble}", style="yellow")


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
        done = cli.recover(chosen, place, tell)
    if as_json:
        print_data(done)
        return
    table = table_of("thread", "was in", "is in")
    for each in done:
        table.add_row(each["name"], each["before"], each["after"])
    console().print(table)


@_quarantine.command("list")
def list_quarantine(config: ConfigOption = _FILE, service: ServiceOption = None, as_json: JsonOption = False) -> None:
    """Show what cannot be done at the moment, why, since when, and how often it was looked at."""
    from waltz_spark.streams.quarantine import quarantined
    from waltz_spark.streams.texts import shown

    found = []
    with _gates(config, service or ()) as (services, files_of):
        for each in services:
            for record in quarantined(files_of(each.root), each.root, each.name):
                found.append({"service": each.name, **asdict(record)})
    if as_json:
        print_data(found)
        return
    table = table_of("service", "record", "looks", "since", "reason")
    for one in found:
        table.add_row(one["service"], shown(one["commit"]), str(one["count"]), one["since"], Text(one["reason"]))
    console().print(table)


@_quarantine.command()
def retry(service: OneServiceOption, record: RecordsArgument, config: ConfigOption = _FILE) -> None:
    """Look at it as new. (Every pass looks at it again; this forgets since when and how often.)"""
    from waltz_spark.streams.drops import look_again

    with _gates(config, [service]) as ([settings], files_of):
        look_again(files_of(settings.root), settings.root, settings.name, record)
    tell(f"{service} looks at {len(record)} of them as new in its next pass")


@_quarantine.command()
def drop(
    service: OneServiceOption, record: RecordsArgument, config: ConfigOption = _FILE, yes: YesOption = False
) -> None:
    """Give its input up: the service moves it to trash, unpublished, in its next pass."""
    from waltz_spark.streams.drops import ask_to_drop

    with _gates(config, [service]) as ([settings], files_of):
        confirmed(f"what {service} cannot publish of {', '.join(record)} is given up, and moved to trash", yes)
        ask_to_drop(files_of(settings.root), settings.root, settings.name, record)
    tell(f"{service} puts {len(record)} of them away in its next pass")


@contextmanager
def _gates(config: Path, names: Sequence[str]) -> Iterator[tuple[tuple[StreamSettings, ...], FilesOf]]:
    """The services of these names, () = all, and the gates to their roots; ZooKeeper is not asked."""
    from waltz_spark.streams import cli
    from waltz_spark.streams.configuration import read_config

    chosen = read_config(config)
    chosen = replace(chosen.only(names), collectors=(), zookeeper=chosen.zookeeper or "not asked")
    with _chatter_to_stderr(), cli.opened_place(chosen, works=lambda config, hosts: False) as place:
        yield chosen.services, place.files_of


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
    console().print(table)


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
        *("service", "kind", "running", "state", "last commit", "behind", "commits"),
        *("unpublished", "oldest", "not consumed", "quarantined"),
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
            str(each.unpublished),
            each.oldest_unpublished or "-",
            ", ".join(f"{consumer} {count}" for consumer, count in each.pending.items()) or "-",
            str(len(each.quarantined)),
        )
    return table


def _text(value: object, unit: str = "") -> str:
    return "-" if value is None else f"{value}{unit}"
