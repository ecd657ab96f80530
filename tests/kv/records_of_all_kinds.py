"""Hypothesis makes records of a kv space, every kind of them, with every number at its bounds now and then."""

from __future__ import annotations

from hypothesis import strategies as st

from waltz_ray.kv.fold_clients import MOST_REFUSED_VERSION
from waltz_ray.kv.model import (
    ALL_SECTIONS,
    BARRIER,
    NOBODYS,
    Delete,
    Expired,
    ItemKey,
    ItemWrite,
    Lock,
    Own,
    Record,
    Release,
    RequestId,
    Set,
    Several,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    SnapshotItem,
    Touch,
    Unlock,
    WriteRefused,
)
from waltz_ray.kv.routing import MASKS, Unit

__all__ = ["KEYS", "RECORDS"]

UINTS = st.integers(0, 2**32 - 1)
ULONGS = st.integers(0, 2**64 - 1)
IDS = st.integers(-1, 2**63 - 1)
NAMES = st.binary(max_size=20) | st.binary(min_size=480, max_size=480)
KEYS = st.builds(ItemKey, UINTS, UINTS, NAMES)
REQUESTS = st.just(NOBODYS) | st.builds(RequestId, ULONGS, ULONGS, ULONGS)
TIMES = st.just(0) | ULONGS
UNITS = st.builds(Unit, st.sampled_from(MASKS), st.integers(0, 0xFFF))
ENTRIES = st.builds(SnapshotItem, st.integers(0, 255), NAMES, st.binary(max_size=50), IDS)
TYPES = st.integers(0, 255)

WRITES: st.SearchStrategy[ItemWrite] = st.one_of(
    st.builds(Set, KEYS, TYPES, st.binary(max_size=50), ULONGS, st.binary(max_size=255), REQUESTS, TIMES),
    st.builds(Delete, KEYS, REQUESTS, TIMES),
    st.builds(Touch, KEYS, ULONGS, REQUESTS, TIMES),
)

RECORDS: st.SearchStrategy[Record] = st.one_of(
    WRITES,
    st.builds(Several, st.lists(WRITES, min_size=1, max_size=4).map(tuple)),
    st.builds(Expired, st.lists(st.tuples(KEYS, IDS), max_size=4).map(tuple)),
    st.builds(Lock, NAMES, st.integers(0, 2**16 - 1), ULONGS, ULONGS, REQUESTS, TIMES),
    st.builds(Unlock, NAMES, ULONGS, REQUESTS, TIMES),
    st.builds(WriteRefused, st.integers(0, 255), st.integers(-1, MOST_REFUSED_VERSION), REQUESTS, TIMES),
    st.builds(Own, UNITS, UINTS, st.text(max_size=20), ULONGS),
    st.builds(Release, UNITS, UINTS, st.text(max_size=20), ULONGS),
    st.just(BARRIER),
    st.builds(SnapshotBegin, st.integers(1, ALL_SECTIONS)),
    st.builds(SnapshotChunk, IDS, st.lists(ENTRIES, max_size=4).map(tuple)),
    st.builds(SnapshotEnd, IDS),
)
