"""``waltz feed``: prints the transactions of partitions."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Iterable
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TextIO

import typer

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption
from waltz_ray.cli.connecting import SpaceOption, ZooKeeperOption, open_client
from waltz_ray.cli.moments import MOMENT_HELP, moment
from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.spaces import DEFAULT_SPACE

if TYPE_CHECKING:
    from waltz_ray.client.application import Transaction
    from waltz_ray.client.bounds import Bound

__all__ = [
    "as_object",
    "as_line",
    "data_text",
    "parsed_partitions",
    "print_data_alone",
    "print_feed",
    "register",
]


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command()(feed)


class Format(str, Enum):
    """What a transaction is printed as."""

    TEXT = "text"
    JSON = "json"
    LINES = "lines"
    NULL = "null"
    RAW = "raw"


_BEHIND = {Format.LINES: b"\n", Format.NULL: b"\0", Format.RAW: b""}


def feed(
    partition: Annotated[
        list[str] | None,
        typer.Option("--partition", "-p", help="Which: 2, or 0,1, or all; may be repeated. \\[default: all]"),
    ] = None,
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
    form: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="text, json: a line each. The data alone: lines, with a line's end behind each; null, with a zero "
            "byte; raw, with nothing. \\[default: text]",
            show_default=False,
        ),
    ] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
) -> None:
    """Print committed transactions: ID, client, header, and the data (as text, or in hexadecimal).

    Those of a partition are in their order. Of several partitions one comes after the other, and IDs are shown as
    PARTITION/ID; with --follow they come as they are committed.
    """
    if since and start:
        raise InvalidInput("a feed begins with --from or with --since: give one of them")
    if json_lines and form not in (None, Format.JSON):
        raise InvalidInput(f"--json and --format {form.value} contradict each other; leave one out")
    chosen = Format.JSON if json_lines else form or Format.TEXT
    begin = moment("--since", since) if since else _first_id(start)
    wanted = parsed_partitions(partition or ["all"])
    with open_client(directory, cluster, address, zookeeper, space=space) as client:
        several = wanted is None or len(wanted) > 1
        try:
            found = islice(client.feed(wanted, begin, follow), limit)
            if chosen in _BEHIND:
                print_data_alone(found, sys.stdout.buffer, _BEHIND[chosen], follow)
            else:
                print_feed(found, sys.stdout, chosen is Format.JSON, _width(), follow, times, several)
        except BrokenPipeError:  # whoever read this has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's last flush


def parsed_partitions(texts: list[str]) -> list[int] | None:
    """``2``, ``0,1`` or ``all``, several of them: the numbers in rising order, None for all. InvalidInput."""
    words = [word.strip() for text in texts for word in text.split(",")]
    if "all" in words:
        if len(words) > 1:
            raise InvalidInput(f"--partition all has the others in it: leave one out of {', '.join(words)}")
        return None
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise InvalidInput(f"--partition takes a number, several as 0,1, or all, not {', '.join(texts)!r}")
    return sorted({int(word) for word in words})


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
    several: bool = False,
) -> None:
    """A line each; ``width``: columns of the terminal, None = nothing is shortened; ``times``: with its time;
    ``several``: with its partition."""
    for transaction in transactions:
        line = json.dumps(as_object(transaction, times)) if as_json else as_line(transaction, width, times, several)
        print(line, file=out, flush=flush)
    out.flush()


def print_data_alone(transactions: Iterable[Transaction], out: BinaryIO, behind: bytes, flush: bool = False) -> None:
    """The data of each, byte for byte, and ``behind`` after it."""
    for transaction in transactions:
        out.write(transaction.data + behind)
        if flush:
            out.flush()
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


def as_line(transaction: Transaction, width: int | None, times: bool = False, several: bool = False) -> str:
    """A transaction as one line for people: ID, its time in the local zone, client, header, data."""
    when = _local(transaction) if times else ""
    name = f"{transaction.partition_id}/{transaction.transaction_id}" if several else str(transaction.transaction_id)
    line = (
        f"{name:>10}  {when}client {transaction.req_id.client_id:<5} "
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
