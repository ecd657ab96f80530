"""``waltz kv``: the items and locks of a key/value space."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waltz_ray.cli.common import (
    AddressOption,
    ClusterOption,
    DirOption,
    JsonOption,
    console,
    print_data,
    print_item,
    table_of,
)
from waltz_ray.cli.connecting import ZooKeeperOption
from waltz_ray.errors import InvalidInput

if TYPE_CHECKING:
    from waltz_ray.kv.client.client import KvClient, KvMap

__all__ = ["register", "shown"]

_kv = typer.Typer(help="Items and locks of a key/value space.")

NameArgument = Annotated[str, typer.Argument(help="Its name.", show_default=False)]
KvSpaceOption = Annotated[str, typer.Option("--space", help="A space of kind kv; see waltz space list.")]
MapOption = Annotated[str, typer.Option("--map", help="The map whose items are meant.")]


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    app.add_typer(_kv, name="kv", no_args_is_help=True)


@_kv.command()
def get(
    name: NameArgument,
    in_map: MapOption = "",
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    space: KvSpaceOption = "kv",
    as_json: JsonOption = False,
) -> None:
    """Print the value of an item; exit code 1 if there is none."""
    with _open(directory, cluster, address, zookeeper, space) as client:
        entry = _items(client, in_map).get_item(name)
    if entry is None:
        print(f"waltz: there is no item {name!r}", file=sys.stderr)
        raise typer.Exit(1)
    if as_json:
        print_data({"name": name, **shown(entry.value), "version": entry.version, "expires_s": entry.expires})
    elif isinstance(entry.value, bytes):
        sys.stdout.flush()
        sys.stdout.buffer.write(entry.value + b"\n" * sys.stdout.isatty())
        sys.stdout.buffer.flush()
    else:
        print(entry.value)


@_kv.command("set")
def set_item(
    name: NameArgument,
    value: Annotated[str, typer.Argument(help="Its value, as text; - is what stdin has, as bytes.")],
    number: Annotated[bool, typer.Option("--int", help="The value is an integer.")] = False,
    expires: Annotated[float, typer.Option(help="Seconds from now; 0 = never.")] = 0,
    expected: Annotated[
        str, typer.Option(help="Only if it is at this version; absent = if there is none.", show_default=False)
    ] = "",
    fullwait: Annotated[bool, typer.Option("--fullwait", help="Wait for the secondary, too.")] = False,
    in_map: MapOption = "",
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    space: KvSpaceOption = "kv",
) -> None:
    """Give an item a value, and print its version."""
    content: str | bytes | int = _stdin() if value == "-" else value
    if number:
        content = _integer("the value", value)
        if not -(2**63) <= content < 2**63:
            raise InvalidInput(
                f"the value must be an integer of 64 bits, not {value}; leave --int out to keep it as text"
            )
    version = _version(expected)
    with _open(directory, cluster, address, zookeeper, space) as client:
        print(_items(client, in_map).set(name, content, expires or None, fullwait, version))


@_kv.command()
def delete(
    name: NameArgument,
    in_map: MapOption = "",
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    space: KvSpaceOption = "kv",
) -> None:
    """Remove an item; exit code 1 if there is none."""
    with _open(directory, cluster, address, zookeeper, space) as client:
        if not _items(client, in_map).delete(name):
            print(f"waltz: there is no item {name!r}", file=sys.stderr)
            raise typer.Exit(1)


@_kv.command()
def scan(
    prefix: Annotated[str, typer.Argument(help="What their names begin with.", show_default=False)] = "",
    limit: Annotated[int, typer.Option(min=0, help="How many at most; 0 = all.")] = 0,
    count: Annotated[bool, typer.Option("--count", help="Only say how many there are.")] = False,
    in_map: MapOption = "",
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    space: KvSpaceOption = "kv",
    as_json: JsonOption = False,
) -> None:
    """List items in the order of their names."""
    with _open(directory, cluster, address, zookeeper, space) as client:
        items = _items(client, in_map)
        if count:
            print(items.count(prefix))
            return
        found = list(items.scan(prefix, limit=limit or None))
    if as_json:
        print_data(
            [
                {**_named(each.name), **shown(each.value), "version": each.version, "expires_s": each.expires}
                for each in found
            ]
        )
        return
    table = table_of("name", "value", "version", "expires")
    for each in found:
        expires = "-" if each.expires is None else f"{each.expires:.0f} s"
        table.add_row(_word(each.name), _word(each.value), str(each.version), expires)
    console().print(table)


@_kv.command()
def watch(
    prefix: Annotated[str, typer.Argument(help="What their names begin with.", show_default=False)] = "",
    earliest: Annotated[
        bool, typer.Option("--earliest", help="From the first record, or the snapshots in its place.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="End after so many; 0 = at Ctrl-C.")] = 0,
    in_map: MapOption = "",
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    space: KvSpaceOption = "kv",
    as_json: JsonOption = False,
) -> None:
    """Print what becomes of items, as it is committed, a line each; with --json, JSON lines."""
    from dataclasses import asdict

    start: Any = "earliest" if earliest else "latest"
    with (
        _open(directory, cluster, address, zookeeper, space) as client,
        client.watch(prefix, start, in_map) as events,
    ):
        print("watching", file=sys.stderr, flush=True)
        for number, event in enumerate(events, 1):
            what, fields = type(event).__name__.removeprefix("Item").lower(), asdict(event)
            if as_json:
                content = shown(fields.pop("value")) if "value" in fields else {}
                print_item({"event": what, **_named(fields.pop("name")), **content, **fields})
            else:
                said = f" = {_word(fields['value'])}" if "value" in fields else ""
                print(f"{event.partition}/{event.version} {what} {_word(event.name)}{said}", flush=True)
            if number == limit:
                return


@_kv.command(context_settings={"allow_interspersed_args": False})
def lock(
    name: NameArgument,
    command: Annotated[
        list[str], typer.Argument(help="What is run while it is had; after -- or not.", show_default=False)
    ],
    lease: Annotated[float, typer.Option(help="Seconds after which it is free if we vanish.")] = 10.0,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for it.")] = 30.0,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    space: KvSpaceOption = "kv",
) -> None:
    """Run a command while a lock is had, which is renewed meanwhile: waltz kv lock [OPTIONS] NAME -- COMMAND.

    The exit code is the command's. Its environment has the lock's code, a fencing token, as WALTZ_LOCK_CODE. If the
    lock is lost the command is sent SIGTERM, and the exit code is 75. SIGTERM and SIGHUP are handed on to the command.
    """
    from waltz_ray.cli.under_lock import run_under

    if command[0] == "--":
        command = command[1:]
    if not command or command[0].startswith("-"):
        said = f"options come before the lock's name, and {command[0]!r} is no command" if command else "no command"
        raise typer.BadParameter(f"{said}; waltz kv lock [OPTIONS] NAME -- COMMAND")
    with _open(directory, cluster, address, zookeeper, space) as client:
        code = run_under(client.lock(name, lease, wait), command)
    raise typer.Exit(code)


@_kv.command()
def status(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    space: KvSpaceOption = "kv",
    as_json: JsonOption = False,
) -> None:
    """Show which actors serve a space, and how many buckets each has, as clients see it; exit code 1 if not all are
    served. What the actors say of themselves is in waltz status."""
    with _open(directory, cluster, address, zookeeper, space) as client:
        found = client.routes(timeout=5)
    unserved = found.pop("", 0)
    if as_json:
        print_data({"space": space, "buckets": found, "unserved": unserved})
    else:
        table = table_of("actor", "buckets")
        for server, buckets in sorted(found.items()):
            table.add_row(server, str(buckets))
        console().print(table)
    if unserved:
        print(f"waltz: nobody is known to serve {unserved} buckets of space {space!r}", file=sys.stderr)
        raise typer.Exit(1)


def shown(value: Any) -> Mapping[str, Any]:
    """A value for JSON: ``value``, or ``base64`` if it is bytes."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return {"value": value}


def _named(name: str | bytes) -> Mapping[str, Any]:
    return {"name": name} if isinstance(name, str) else {"name_base64": base64.b64encode(name).decode()}


def _word(value: Any) -> str:
    """For people: text as it is if it can be printed, anything else as Python writes it."""
    return value if isinstance(value, str) and value.isprintable() else repr(value)


def _stdin() -> bytes:
    """All of it. InvalidInput if it is longer than a value can be."""
    from waltz_ray.kv.client.values import MOST_VALUE_BYTES

    data = sys.stdin.buffer.read(MOST_VALUE_BYTES + 1)
    if len(data) > MOST_VALUE_BYTES:
        raise InvalidInput(f"stdin has more than the {MOST_VALUE_BYTES} bytes that a value can have")
    return data


def _integer(what: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(f"{what} must be an integer, not {text!r}") from None


def _version(text: str) -> int | None:
    from waltz_ray.kv.messages import ABSENT

    if not text:
        return None
    return ABSENT if text == "absent" else _integer("--expected", text)


def _items(client: KvClient, in_map: str) -> KvMap:
    return client.map(in_map) if in_map else client


def _open(directory: str, cluster: str, address: str, zookeeper: str, space: str) -> KvClient:
    from waltz_ray.client.codecs import BytesCodec
    from waltz_ray.kv.client.connecting import connect

    # What a codec has made is shown as the bytes that it is.
    return connect(cluster, space, codec=BytesCodec(), zookeeper=zookeeper, directory=directory, address=address)
