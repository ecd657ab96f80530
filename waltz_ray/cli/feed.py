"""``waltz feed``: prints the transactions of a partition."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption
from waltz_ray.cli.connecting import SpaceOption, ZooKeeperOption, open_client
from waltz_ray.cli.moments import MOMENT_HELP, moment
from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.spaces import DEFAULT_SPACE

if TYPE_CHECKING:
    from waltz_ray.client.application import Transaction
    from waltz_ray.client.bounds import Bound

__all__ = ["as_object", "as_line", "data_text", "print_feed", "register"]


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command()(feed)


def feed(
    partition: Annotated[int, typer.Option("--partition", "-p", help="Which partition.")],
    start: Annotated[
        str, typer.Option("--from", help="ID of the first transaction. \\[default: earliest, the first there is]")
    ] = "",
    since: Annotated[str, typer.Option(help=f"Begin with what was appended then: {MOMENT_HELP}.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new ones until Ctrl-C.")] = False,
    limit: Annotated[int | None, typer.Option(min=0, help="Stop after so many.")] = None,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    space: SpaceOption = DEFAULT_SPACE,
    times: Annotated[bool, typer.Option("--times", help="Say when each was appended, to about a second.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print committed transactions in their order: ID, client, header, and the data (as text, or in hexadecimal)."""
    if since and start:
        raise InvalidInput("a feed begins with --from or with --since: give one of them")
    begin = moment("--since", since) if since else _first_id(start)
    with open_client(directory, cluster, address, zookeeper, space=space) as client:
        try:
            feed = islice(client.feed(partition, begin, follow), limit)
            print_feed(feed, sys.stdout, as_json, _width(), follow, times)
        except BrokenPipeError:  # whoever read this has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's last flush


def _first_id(start: str) -> Bound:
    if start in ("", "earliest"):
        return "earliest"
    if not start.isdecimal():
        raise typer.BadParameter(f"it must be a transaction ID or earliest, not {start!r}", param_hint="--from")
    return int(start)


def print_feed(
    transactions: Iterable[Transaction],
    out: TextIO,
    as_json: bool,
    width: int | None,
    flush: bool = False,
    times: bool = False,
) -> None:
    """A line each; ``width``: columns of the terminal, None = nothing is shortened; ``times``: with its time."""
    for transaction in transactions:
        line = json.dumps(as_object(transaction, times)) if as_json else as_line(transaction, width, times)
        print(line, file=out, flush=flush)
    out.flush()


def as_object(transaction: Transaction, times: bool = False) -> dict[str, Any]:
    """A transaction as ``--json`` prints it: with ``data`` if it is UTF-8 text, else with ``data_base64``."""
    req_id = transaction.req_id
    found: dict[str, Any] = {
        "transaction_id": transaction.transaction_id,
        "partition_id": transaction.partition_id,
        "client_id": req_id.client_id,
        "generation": req_id.generation,
        "sequence_number": req_id.sequence_number,
        "header": transaction.header,
    }
    if times:
        appended_at = transaction.appended_at
        found["appended_at"] = None if appended_at is None else appended_at.isoformat(timespec="milliseconds")
    try:
        return found | {"data": transaction.data.decode()}
    except UnicodeDecodeError:
        return found | {"data_base64": base64.b64encode(transaction.data).decode()}


def as_line(transaction: Transaction, width: int | None, times: bool = False) -> str:
    """A transaction as one line for people: ID, its time in the local zone, client, header, data."""
    when = _local(transaction) if times else ""
    line = (
        f"{transaction.transaction_id:>10}  {when}client {transaction.req_id.client_id:<5} "
        f"header {transaction.header:<6} {data_text(transaction.data)}"
    )
    return line if width is None or len(line) <= width else line[: max(1, width - 1)] + "…"


def _local(transaction: Transaction) -> str:
    appended_at = transaction.appended_at
    text = "-" if appended_at is None else appended_at.astimezone().isoformat(" ", "seconds")
    return f"{text:<27}"


def data_text(data: bytes) -> str:
    """UTF-8 text with control characters escaped, so that no data can upset a terminal; else hexadecimal."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "0x" + data.hex()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
