"""A page of a scan: what is folded and what is fresh, of the buckets that are served here. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from waltz_ray.kv.keeper_types import Serving
from waltz_ray.kv.lines import Line
from waltz_ray.kv.messages import ScanCommand, ScanItem, Scanned
from waltz_ray.kv.model import Item, ItemKey
from waltz_ray.kv.routing import Unit, fnv1a_32, partition_of
from waltz_ray.kv.rules import visible
from waltz_ray.kv.state import KvState

__all__ = ["scanned"]

_ROWS, _ROWS_BYTES = 512, 1 << 20  # that are looked at together
_PAGE_BYTES = 4 << 20  # names and values: at so many a page ends, though it could have more items
_PAGE_ITEMS = 4096  # the same where they have one name: of those that a page goes on behind a command says how many


def scanned(
    scan: ScanCommand,
    state: KvState | None,
    lines: Iterable[Line],
    serving: Serving,
    partitions: int,
    now_ms: int,
) -> tuple[Scanned, tuple[Unit, ...]]:
    """The page, and the units whose items are in it. ``lines``: those of the whole space."""
    mask = serving.mask
    served = {bucket: serving.unit_of(bucket) for bucket in range(scan.partition, mask + 1, partitions)}
    mine = {bucket: unit for bucket, unit in served.items() if unit is not None}
    units = tuple(sorted(set(mine.values())))
    if state is None or not mine:
        return Scanned(mask, (), False, -1, ()), ()
    map_hash = fnv1a_32(scan.map_name) if scan.map_name else 0
    found: list[ScanItem] = []
    counted = size = 0  # not one without a name: the last name is a place to go on from
    for key, item in _merged(scan, map_hash, state, _fresh(scan, map_hash, lines, partitions)):
        shown = visible(item, now_ms)
        if shown is None or key.hash & mask not in mine or (shown.map_name and shown.map_name != scan.map_name):
            continue
        same = bool(found) and found[-1].name == key.name
        if same and (len(found) >= _PAGE_ITEMS or size >= _PAGE_BYTES):
            continue  # of clients that hash oddly, or give no names: a page goes on behind a name, so there is no room
        if not same and counted and (counted == scan.limit or size >= _PAGE_BYTES):
            return Scanned(mask, tuple(mine), True, state.mark, tuple(found)), units
        expires_ms = max(1, shown.deadline_ms - now_ms) if shown.deadline_ms else 0
        found.append(ScanItem(key.name, shown.type, shown.data, shown.version, expires_ms))
        counted += not same and key.name != b""
        size += len(key.name) + len(shown.data)
    return Scanned(mask, tuple(mine), False, state.mark, tuple(found)), units


def _fresh(scan: ScanCommand, map_hash: int, lines: Iterable[Line], partitions: int) -> dict[ItemKey, Item | None]:
    """What is committed and not folded yet, in the range of the page."""
    return {
        key: item
        for line in lines
        if line.key[0] == map_hash and partition_of(line.key[1], partitions) == scan.partition
        for key, item in line.fresh.items.items()
        if key.name.startswith(scan.prefix) and (key.name > scan.after or not scan.after)
    }


def _merged(
    scan: ScanCommand, map_hash: int, state: KvState, fresh: dict[ItemKey, Item | None]
) -> Iterator[tuple[ItemKey, Item | None]]:
    """By name; fresh ones instead of folded ones."""
    left = sorted(fresh, key=_by_name, reverse=True)
    after = scan.after
    while True:
        rows = state.scan(map_hash, scan.prefix, after, _ROWS, _ROWS_BYTES)
        for key, item in rows:
            while left and _by_name(left[-1]) < _by_name(key):
                yield left[-1], fresh[left.pop()]
            if key not in fresh:
                yield key, item
        after = rows[-1][0].name if rows else b""
        cut = len(rows) >= _ROWS or sum(len(item.data) for _, item in rows) >= _ROWS_BYTES
        if not cut or not after:
            break
    while left:
        yield left[-1], fresh[left.pop()]


def _by_name(key: ItemKey) -> tuple[bytes, int]:
    return key.name, key.hash
