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
from waltz_ray.protocol.spaces import DEFAULT_SPACE

if TYPE_CHECKING:
    from waltz_ray.client.application import Transaction

__all__ = ["as_object", "as_line", "data_text", "print_feed", "register"]


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command()(feed)


def feed(
    partition: Annotated[int, typer.Option("--partition", "-p", help="Which partition.")],
    start: Annotated[int, typer.Option("--from", min=0, help="ID of the first transaction.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new ones until Ctrl-C.")] = False,
    limit: Annotated[int | None, typer.Option(min=0, help="Stop after so many.")] = None,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    space: SpaceOption = DEFAULT_SPACE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print committed transactions in their order: ID, client, header, and the data (as text, or in hexadecimal)."""
    with open_client(directory, cluster, address, zookeeper, space=space) as client:
        try:
            print_feed(islice(client.feed(partition, start, follow), limit), sys.stdout, as_json, _width(), follow)
        except BrokenPipeError:  # whoever read this has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's last flush


def print_feed(
    transactions: Iterable[Transaction], out: TextIO, as_json: bool, width: int | None, flush: bool = False
) -> None:
    """A line each; ``width``: columns of the terminal, None = nothing is shortened."""
    for transaction in transactions:
        line = json.dumps(as_object(transaction)) if as_json else as_line(transaction, width)
        print(line, file=out, flush=flush)
    out.flush()


def as_object(transaction: Transaction) -> dict[str, Any]:
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
    try:
        return found | {"data": transaction.data.decode()}
    except UnicodeDecodeError:
        return found | {"data_base64": base64.b64encode(transaction.data).decode()}


def as_line(transaction: Transaction, width: int | None) -> str:
    """A transaction as one line for people: ID, client, header, data."""
    line = (
        f"{transaction.transaction_id:>10}  client {transaction.req_id.client_id:<5} "
        f"header {transaction.header:<6} {data_text(transaction.data)}"
    )
    return line if width is None or len(line) <= width else line[: max(1, width - 1)] + "…"


def data_text(data: bytes) -> str:
    """UTF-8 text with control characters escaped, so that no data can upset a terminal; else hexadecimal."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "0x" + data.hex()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
