"""``waltz bench``: the benchmark suite, which is a package of its own (``waltz_bench``, extra ``bench``)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from waltz_ray.cli.common import JsonOption, print_data, progress_line
from waltz_ray.config import ServerConfig
from waltz_ray.errors import ConfigError, InvalidInput
from waltz_ray.protocol.spaces import DEFAULT_SPACE

__all__ = ["register"]

RunsOption = Annotated[int, typer.Option(min=1, help="Runs of each case, in turn; the medians are shown.")]
SecondsOption = Annotated[float, typer.Option(min=0.05, help="Measured seconds of one run.")]
DirOption = Annotated[
    str,
    typer.Option("--dir", help="Work in a new directory below this one. \\[default: temporary]", show_default=False),
]
ClusterOption = Annotated[
    str, typer.Option("--cluster", help="Use this running cluster, not one of its own.", show_default=False)
]

_FILE_WIDTH = 200

_bench = typer.Typer(help="Measure the log, and compare it with others. Work is done on a cluster of its own.")
_compare = typer.Typer(help="The same work by waltz_ray and by another system, in turn, on this machine.")


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    app.add_typer(_bench, name="bench", no_args_is_help=True)


_bench.add_typer(_compare, name="compare", no_args_is_help=True)


def _part(module: str, *needs: str) -> Any:
    """A module of the suite. ConfigError, saying how to get it, if it or what it needs is not installed."""
    try:
        for each in needs:
            importlib.import_module(each)
        return importlib.import_module(f"waltz_bench.{module}")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("waltz_ray"):
            raise
        raise ConfigError(
            f"waltz bench needs {error.name}, which is not installed; in the source tree: pip install -e '.[bench]'"
        ) from error


def _run(
    directory: str,
    as_json: bool,
    action: Callable[[Path, Callable[[str], None]], dict[str, Any]],
    kept_for: tuple[type[BaseException], ...] = (),
) -> None:
    """``action`` in a directory that is gone afterwards, but for these errors; what it found is printed."""
    scratch, report = _part("cluster"), _part("report")
    in_place = scratch.scratch_directory(directory, kept_for)
    with progress_line(as_json) as progress, in_place as place, redirect_stdout(sys.stderr):
        found = action(place, progress)  # Ray reports killed processes on stdout, which is for the result
    if as_json:
        print_data(found)
    else:
        report.show(found, _console())


def _run_on_cluster(
    directory: str,
    cluster: str,
    as_json: bool,
    action: Callable[[Any, Callable[[str], None]], dict[str, Any]],
    space: str = DEFAULT_SPACE,
) -> None:
    """``action`` on a cluster of its own, or on the running one, in ``space``."""
    part = _part("cluster")

    def on_cluster(place: Path, progress: Callable[[str], None]) -> dict[str, Any]:
        with part.waltz_cluster(place, cluster, progress, space=space) as waltz:
            return action(waltz, progress)

    _run(directory, as_json, on_cluster)


def _console() -> Console:
    """Wide enough for the tables where nobody looks at a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_WIDTH)


def _numbers(text: str, option: str, least: int = 1) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidInput(f"{option} must be whole numbers with commas between them, not {text!r}") from error
    if min(numbers) < least:
        raise InvalidInput(f"{option} must be at least {least}: {text!r}")
    return numbers


@_compare.command("nats")
def compare_nats(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    runs: RunsOption = 5,
    seconds: SecondsOption = 2.0,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a record.")] = 1024,
    clients: Annotated[int, typer.Option(min=1, help="Clients of the case with many.")] = 64,
    proof: Annotated[int, typer.Option(min=0, help="Appends while syncs are counted, 0 = do not count.")] = 200,
    only: Annotated[list[str] | None, typer.Option("--case", help="Only this case; may be repeated.")] = None,
    as_json: JsonOption = False,
) -> None:
    """NATS JetStream: three servers, three replicas, every message synced before its acknowledgement."""
    part = _part("compare", "nats", "uvloop")
    cases = tuple(only) if only else part.CASES
    options = part.CompareOptions(runs, seconds, size_bytes=size, clients=clients, proof_appends=proof, cases=cases)
    _run(directory, as_json, lambda place, progress: part.compare_nats(place, options, cluster, progress))


@_compare.command("postgres")
def compare_postgres(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    runs: RunsOption = 5,
    seconds: SecondsOption = 2.0,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a record.")] = 1024,
    clients: Annotated[int, typer.Option(min=1, help="Clients of the case with many.")] = 64,
    as_json: JsonOption = False,
) -> None:
    """PostgreSQL: a primary and two standbys, one of which has flushed before a commit returns."""
    part = _part("compare_postgres", "uvloop")
    options = part.CompareOptions(runs, seconds, size_bytes=size, clients=clients)
    _run(directory, as_json, lambda place, progress: part.compare_postgres(place, options, cluster, progress))


@_bench.command()
def append(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    runs: RunsOption = 5,
    seconds: SecondsOption = 2.0,
    clients: Annotated[str, typer.Option(help="Clients; those of several have one append each.")] = "1,64",
    outstanding: Annotated[int, typer.Option(min=1, help="Records outstanding of one client.")] = 6400,
    sizes: Annotated[str, typer.Option(help="Bytes of a record.")] = "1024",
    partitions: Annotated[str, typer.Option(help="Partitions the load is spread over.")] = "1",
    locks: Annotated[str, typer.Option(help="none, unique, contended.")] = "none",
    many: Annotated[str, typer.Option(help="Records of an append_many; 0 = single appends.")] = "0,100",
    space: Annotated[
        str, typer.Option("--space", help="Whose partitions, of the one named by --cluster.")
    ] = DEFAULT_SPACE,
    as_json: JsonOption = False,
) -> None:
    """Rate of appends: every combination of the options, which are lists with commas."""
    part = _part("appending")
    options = part.AppendOptions(
        runs,
        seconds,
        clients=_numbers(clients, "--clients"),
        outstanding=outstanding,
        sizes_bytes=_numbers(sizes, "--sizes"),
        partitions=_numbers(partitions, "--partitions"),
        locks=tuple(locks.split(",")),
        many=_numbers(many, "--many", least=0),
    )
    _run_on_cluster(directory, cluster, as_json, lambda waltz, progress: part.append(waltz, options, progress), space)


@_bench.command()
def kv(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    runs: RunsOption = 5,
    seconds: SecondsOption = 2.0,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a value.")] = 100,
    compare: Annotated[
        list[str] | None, typer.Option("--compare", help="Beside it redis or etcd; may be repeated.")
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=0, help="Of a space made for it; 0 = that of every cluster, which has 16.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Keys and values: single sets and gets, 64 clients, pipelined gets, set_many; and the log's own append."""
    part = _part("kv", "uvloop", "grpc")
    peers = tuple(dict.fromkeys(compare or ()))
    options = part.KvOptions(runs, seconds, size_bytes=size, peers=peers, partitions=partitions)
    _run(directory, as_json, lambda place, progress: part.kv(place, options, cluster, progress))


@_bench.command()
def topics(
    directory: DirOption = "",
    runs: RunsOption = 5,
    seconds: SecondsOption = 2.0,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a message.")] = 1024,
    messages: Annotated[int, typer.Option(min=1000, help="In the topic that is consumed.")] = 400_000,
    compare: Annotated[list[str] | None, typer.Option("--compare", help="Beside it nats.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Messages of topics: single, pipelined, in batches, consumed by a group; and the log's own append."""
    part = _part("topics", "nats", "uvloop")
    peers = tuple(dict.fromkeys(compare or ()))
    options = part.TopicOptions(runs, seconds, size_bytes=size, messages=messages, peers=peers)
    _run(directory, as_json, lambda place, progress: part.topics(place, options, "", progress))


@_bench.command()
def latency(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    runs: RunsOption = 5,
    seconds: SecondsOption = 2.0,
    sizes: Annotated[str, typer.Option(help="Bytes of a record.")] = "100,1024,10240",
    as_json: JsonOption = False,
) -> None:
    """Time of one append while nothing else is under way."""
    part = _part("appending")
    wanted = _numbers(sizes, "--sizes")
    _run_on_cluster(
        directory, cluster, as_json, lambda waltz, progress: part.latency(waltz, runs, seconds, wanted, progress)
    )


@_bench.command()
def context(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    runs: RunsOption = 5,
    seconds: SecondsOption = 2.0,
    threads: Annotated[int, typer.Option(min=1, help="Threads that submit.")] = 8,
    outstanding: Annotated[int, typer.Option(min=1, help="Contexts that may be open.")] = 1024,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a record.")] = 100,
    partitions: Annotated[str, typer.Option(help="Partitions the load is spread over.")] = "1,8",
    as_json: JsonOption = False,
) -> None:
    """Transaction contexts: execute under a lock, append, complete, apply to SQLite."""
    part = _part("contexts")
    options = part.ContextOptions(runs, seconds, threads, outstanding, size, _numbers(partitions, "--partitions"))
    _run_on_cluster(directory, cluster, as_json, lambda waltz, progress: part.contexts(waltz, options, progress))


@_bench.command()
def feed(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    runs: RunsOption = 5,
    seconds: SecondsOption = 2.0,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a record.")] = 1024,
    subscribers: Annotated[str, typer.Option(help="Subscribers of the live feed.")] = "1,8,64",
    records: Annotated[int, typer.Option(min=1000, help="Records to catch up with.")] = 200_000,
    cold: Annotated[bool, typer.Option("--cold", help="Catch up from disks, not from the page cache.")] = False,
    as_json: JsonOption = False,
) -> None:
    """The feed: live, beside appends at full rate, and catch-up from the beginning; inline data, headers only."""
    part = _part("feeds")
    options = part.FeedOptions(
        runs, seconds, size, _numbers(subscribers, "--subscribers"), catch_up_records=records, cold=cold
    )
    _run_on_cluster(directory, cluster, as_json, lambda waltz, progress: part.feed(waltz, options, progress))


@_bench.command()
def fetch(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    runs: RunsOption = 5,
    records: Annotated[int, typer.Option(min=1000, help="Transactions to fetch in each run.")] = 2000,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a record.")] = 1024,
    as_json: JsonOption = False,
) -> None:
    """Data of transactions fetched when somebody looks at it."""
    part = _part("feeds")
    _run_on_cluster(
        directory, cluster, as_json, lambda waltz, progress: part.fetch(waltz, runs, records, size, progress)
    )


@_bench.command()
def actor(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    runs: RunsOption = 5,
    seconds: SecondsOption = 2.0,
    as_json: JsonOption = False,
) -> None:
    """Appends through actor calls instead of sockets: one client, single and append_many, and 8 clients."""
    part = _part("appending")
    options = part.AppendOptions(runs, seconds, clients=(1, 8), transport="actor")
    _run_on_cluster(directory, cluster, as_json, lambda waltz, progress: part.append(waltz, options, progress, "actor"))


@_bench.command()
def recover(
    directory: DirOption = "",
    runs: RunsOption = 5,
    records: Annotated[int, typer.Option(min=1000, help="Records of 100 bytes in the partition.")] = 1_000_000,
    missed: Annotated[int, typer.Option(min=100, help="MB that a replica misses.")] = 200,
    as_json: JsonOption = False,
) -> None:
    """Kills: how long a long partition is away, what a replica reads when it starts, how fast it catches up."""
    part = _part("recovery")
    options = part.RecoverOptions(runs, records, missed)
    _run_on_cluster(directory, "", as_json, lambda waltz, progress: part.recover(waltz, options, progress))


@_bench.command()
def spark(
    directory: DirOption = "",
    runs: RunsOption = 3,
    records: Annotated[int, typer.Option(min=4000, help="Records in four partitions.")] = 500_000,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a record.")] = 1024,
    executors: Annotated[int, typer.Option(min=1, help="Spark executors of one core each.")] = 2,
    as_json: JsonOption = False,
) -> None:
    """The log as a DataFrame: from servers, from replicas, headers only; by a Parquet read of the same rows."""
    part = _part("spark_read", "pyspark", "raydp")
    part.prepare()
    options = part.SparkOptions(records, size, runs, executors)
    _run_on_cluster(directory, "", as_json, lambda waltz, progress: part.spark_read(waltz, options, progress))


@_bench.command()
def copies(
    directory: DirOption = "",
    runs: RunsOption = 3,
    minutes: Annotated[int, typer.Option(min=1, help="Parts that wait.")] = 8,
    files: Annotated[int, typer.Option(min=1, help="Files of each.")] = 4,
    mb: Annotated[int, typer.Option("--mb", min=1, help="Megabytes of each file.")] = 32,
    split_mb: Annotated[int, typer.Option("--split-mb", min=0, help="Tasks also in pieces of so many.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """A mirror's copies: by its process, by 1 and 4 Spark tasks; by a plain copy of the same files."""
    part = _part("copies", "pyspark")
    options = part.CopiesOptions(minutes, files, mb, runs, split_mb=split_mb)
    _run(directory, as_json, lambda place, progress: part.copies(place, options, progress))


@_bench.command()
def growth(
    directory: DirOption = "",
    runs: RunsOption = 5,
    seconds: SecondsOption = 2.0,
    millions: Annotated[str, typer.Option(help="Records in the partition; 50 million need 21 GB.")] = "1,10,50",
    as_json: JsonOption = False,
) -> None:
    """Rate, latency and memory as the log grows."""
    part = _part("growth")
    sizes = part.rising(_numbers(millions, "--millions"))
    _run_on_cluster(directory, "", as_json, lambda waltz, progress: part.growth(waltz, sizes, runs, seconds, progress))


@_bench.command()
def partitions(
    directory: DirOption = "",
    count: Annotated[int, typer.Option("--partitions", min=2, help="How many, that nobody uses.")] = 1024,
    as_json: JsonOption = False,
) -> None:
    """Idle partitions: start, growth, failover of a server that has half of them, memory, ZooKeeper's writes."""
    part = _part("partitions")
    _run(directory, as_json, lambda place, progress: part.idle_partitions(place, count, progress))


@_bench.command()
def smoke(
    directory: DirOption = "",
    transactions: Annotated[int, typer.Option(min=1, help="In the log at the end.")] = 1_000_000,
    clients: Annotated[int, typer.Option(min=1, max=200, help="Client processes.")] = 4,
    rate: Annotated[
        float, typer.Option(min=0, help="Transactions a second that they begin. 0: by their number, 6,000 at the most.")
    ] = 0.0,
    only: Annotated[list[str] | None, typer.Option("--fault", help="Only this fault; may be repeated.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Locked transactions while everything is stopped and started in turn; the rules asked of the files; once more.

    One line for each fault with the pause that was felt. Exit code 1 if a rule does not hold; the files are left then.
    """
    part = _part("smoke")
    options = part.SmokeOptions(transactions, clients, rate, faults=part.chosen_faults(only or ()))
    tell: Callable[[str], None] = (lambda text: None) if as_json else partial(print, file=sys.stderr, flush=True)

    def run(place: Path, progress: Callable[[str], None]) -> dict[str, Any]:
        found: dict[str, Any] = part.smoke(place, options, progress, tell)
        return found

    _run(directory, as_json, run, (part.RuleBroken,))


@_bench.command()
def kills(
    directory: DirOption = "",
    minutes: Annotated[float, typer.Option(min=0.1, help="How long.")] = 20.0,
    kill_every: Annotated[float, typer.Option(min=1, help="Seconds between two kills.")] = 20.0,
    checkpoint: Annotated[int, typer.Option(min=1, help="Transactions between two checkpoints.")] = 3_000,
    outstanding: Annotated[int, typer.Option(min=1, help="Appends under way in each of four partitions.")] = 16,
    size: Annotated[int, typer.Option(min=16, help="Bytes of a record.")] = 200,
    as_json: JsonOption = False,
) -> None:
    """Appends while processes are killed: pauses, refusals, sessions, memory, and everything acknowledged compared."""
    part, cluster = _part("kills"), _part("cluster")
    options = part.KillsOptions(minutes, kill_every, outstanding, size)
    server = ServerConfig(checkpoint_interval=checkpoint)

    def run(place: Path, progress: Callable[[str], None]) -> dict[str, Any]:
        with cluster.waltz_cluster(place, "", progress, 4, server) as waltz:
            found: dict[str, Any] = part.kills(waltz, options, progress)
            return found

    _run(directory, as_json, run)


@_bench.command()
def availability(
    directory: DirOption = "",
    tries: Annotated[int, typer.Option(min=1, help="Of each event.")] = 20,
    long_tries: Annotated[
        int, typer.Option(min=1, help="At the most, of each event that takes half a minute or more.")
    ] = 5,
    clients: Annotated[int, typer.Option(min=1, help="Clients that append to four partitions.")] = 4,
    outstanding: Annotated[int, typer.Option(min=1, help="Appends of each client under way in each of them.")] = 4,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a record.")] = 200,
    zookeeper_seconds: Annotated[float, typer.Option(min=1, help="For how long ZooKeeper is dead, or hangs.")] = 60.0,
    records: Annotated[int, typer.Option(min=4, help="In the cluster of which everything is killed.")] = 10_000_000,
    only: Annotated[list[str] | None, typer.Option("--event", help="Only this event; may be repeated.")] = None,
    results: Annotated[str, typer.Option(help="Write availability.{md,json} here.", show_default=False)] = "",
    as_json: JsonOption = False,
) -> None:
    """The pause that is felt when a process is killed, or hangs, or partitions are moved under load."""
    part = _part("availability")
    options = part.AvailabilityOptions(
        tries, clients, outstanding, size, part.chosen(only or ()), long_tries, zookeeper_seconds, records
    )

    def run(place: Path, progress: Callable[[str], None]) -> dict[str, Any]:
        found: dict[str, Any] = part.availability(place, options, progress)
        if results:
            part.write_availability(found, Path(results))
        return found

    _run(directory, as_json, run)


@_bench.command()
def retention(
    directory: DirOption = "",
    minutes: Annotated[float, typer.Option(min=0.1, help="How long.")] = 3.0,
    kill_every: Annotated[float, typer.Option(min=1, help="Seconds between two kills.")] = 12.0,
    kept_mb: Annotated[float, typer.Option("--kept-mb", min=1, help="Megabytes each partition keeps.")] = 16.0,
    rate_mb: Annotated[float, typer.Option("--rate-mb", min=0.1, help="Megabytes a second into each.")] = 1.5,
    as_json: JsonOption = False,
) -> None:
    """A log that keeps little, under load, everything killed in turn: disk use, gaps, and what is left compared."""
    part, cluster = _part("retention"), _part("cluster")
    options = part.RetentionOptions(minutes, kill_every, int(kept_mb * 1e6), int(rate_mb * 1e6))

    def run(place: Path, progress: Callable[[str], None]) -> dict[str, Any]:
        with cluster.waltz_cluster(place, "", progress, part.PARTITIONS) as waltz:
            found: dict[str, Any] = part.retention(waltz, options, progress)
            return found

    _run(directory, as_json, run)


@_bench.command("all")
def everything(
    directory: DirOption = "",
    results: Annotated[str, typer.Option(help="Write latest.{md,json} and the plots here.", show_default=False)] = "",
    runs: RunsOption = 5,
    seconds: SecondsOption = 0.8,
    records: Annotated[int, typer.Option(min=1000, help="Records of the recovery.")] = 1_000_000,
    as_json: JsonOption = False,
) -> None:
    """The suite, short: NATS, appends, latency, contexts, feeds, fetches, recovery."""
    part = _part("suite", "nats", "uvloop", "matplotlib")
    report, scratch = _part("report"), _part("cluster")
    options = part.SuiteOptions(runs, seconds, records)
    with progress_line(as_json) as progress, scratch.scratch_directory(directory) as place:
        found = part.run_suite(place, options, progress)
    if results:
        part.write_results(found, Path(results))
    if as_json:
        print_data(found)
    else:
        console = _console()
        for each in found["parts"]:
            console.rule(each["benchmark"])
            report.show(each, console)
