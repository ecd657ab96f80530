"""The state of a kv partition in memory and in a file: the same to whoever asks; and what the file survives."""

from __future__ import annotations

import json
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from tests.kv.plain_fold import assert_equal
from tests.kv.walk import CLIENTS, Walk, check_walk
from waltz_ray.errors import ProjectionFailed, StorageLocked
from waltz_ray.kv.model import (
    ALL_SECTIONS,
    BARRIER,
    MAX_NAME_BYTES,
    SECTIONS,
    Delete,
    Expired,
    Item,
    ItemKey,
    Lock,
    LockHeld,
    Own,
    Record,
    RequestId,
    Set,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    Touch,
    Unlock,
)
from waltz_ray.kv.records import encode_record
from waltz_ray.kv.routing import Unit
from waltz_ray.kv.state import KvState, MemoryState, TableState
from waltz_ray.kv.tables import Table, item_key_of
from waltz_ray.projections.kv_state import LmdbState

KEY = ItemKey(0, 7, b"seven")

Open = Callable[[], KvState]


def in_file(directory: Path, boot: str | None = None, key: str = "c1", number: int = 8) -> LmdbState:
    return LmdbState(directory, key, "stock", 3, number, boot)


@pytest.fixture(params=["memory", "file"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KvState]:
    found: KvState = MemoryState("space 'stock', partition 3") if request.param == "memory" else in_file(tmp_path)
    yield found
    found.close()


def a_set(value: bytes, deadline_ms: int = 0) -> bytes:
    return encode_record(Set(KEY, 4, value, deadline_ms))


# ---- the same in memory and in a file


@pytest.mark.parametrize("seed", range(3))
def test_a_walk(state: KvState, seed: int) -> None:
    check_walk(seed, 200, also=state)


def test_a_walk_in_pieces(state: KvState) -> None:
    walk = Walk(7)
    walk.run(200)
    for at, data in enumerate(walk.log):
        state.apply([(at, data)])
    assert_equal(state, walk.plain, CLIENTS, 200)
    for sections in range(1, ALL_SECTIONS + 1):
        assert list(state.snapshot_items(sections)) == list(walk.whole.snapshot_items(sections))


def test_the_latest_time_of_a_decision_is_known(state: KvState) -> None:
    """Also by who begins with a snapshot, to the minute."""
    request = RequestId(5, 1, 0)
    state.apply([(0, encode_record(Set(KEY, 4, b"", 0, b"", request, 240_007))), (1, encode_record(BARRIER))])
    state.apply([(2, encode_record(Delete(KEY, at_ms=180_000)))])
    assert state.newest_ms == 240_007
    state.apply([(3, encode_record(SnapshotBegin()))])
    chunk = encode_record(SnapshotChunk(3, tuple(state.snapshot_items())))
    other = MemoryState()
    other.apply([(3, encode_record(SnapshotBegin())), (4, chunk), (5, encode_record(SnapshotEnd(3)))])
    assert other.newest_ms == 240_000


def test_items_of_a_hash_are_at_most_two_and_none_of_its_neighbours(state: KvState) -> None:
    keys = [ItemKey(0, 7, b"a"), ItemKey(0, 7, b"b"), ItemKey(0, 7, b"c"), ItemKey(0, 8, b"d"), ItemKey(1, 6, b"e")]
    state.apply((n, encode_record(Set(key, 4, key.name, 0))) for n, key in enumerate(keys))
    assert [key for key, _ in state.items_of_hash(0, 7)] == keys[:2]
    assert [(key, item.data) for key, item in state.items_of_hash(0, 8)] == [(keys[3], b"d")]
    assert state.items_of_hash(1, 6) == [(keys[4], Item(4, b"e", 4, 0, b""))]
    assert state.items_of_hash(0, 6) == state.items_of_hash(0, 9) == state.items_of_hash(2, 0) == []


def test_pages_of_a_scan(state: KvState) -> None:
    names = [b"", b"a", b"a\0", b"ab", b"b", b"ba", b"c"]
    records = [Set(ItemKey(5, key_hash, name), 4, name) for name in names for key_hash in (1, 2)]
    records.append(Set(ItemKey(6, 1, b"a"), 4, b"of another map"))
    state.apply(enumerate(map(encode_record, records)))
    for limit in (1, 2, 3, 100):
        found, after = [], b""
        while page := state.scan(5, b"", after, limit):
            found += [key.name for key, _ in page]
            after = page[-1][0].name
            assert len(found) <= 14
        assert found == sorted(names * 2)
    assert [key.name for key, _ in state.scan(5, b"a", b"a", 100)] == [b"a\0", b"a\0", b"ab", b"ab"]
    assert state.scan(5, b"b", b"bb", 100) == []
    assert [key.name for key, _ in state.scan(5, b"b", b"a", 1)] == [b"b", b"b"]


def test_many_items_of_one_name_go_as_fast_as_others() -> None:
    """Of clients that give none: a thousand that have expired are folded in one turn of an actor's loop."""
    state = MemoryState()
    hashes = [number << 8 for number in range(8_000)] + [*range(1, 200)]  # between two of those, each of these is found
    keys = [ItemKey(0, key_hash, b"") for key_hash in hashes]
    state.apply(enumerate(encode_record(Set(key, 4, b"", 1)) for key in keys))
    gone = tuple((keys[at], at) for at in (*range(1, 8_000, 20), *range(8_000, 8_100)))
    began_s = time.process_time()
    state.apply([(len(keys), encode_record(Expired(gone)))])
    assert time.process_time() - began_s < 0.5
    assert {key for key, _ in state.scan(0, b"", b"", 1)} == {*keys} - {key for key, _ in gone}


def test_what_does_not_follow_is_refused(state: KvState) -> None:
    state.apply([(4, encode_record(SnapshotBegin())), (5, a_set(b"x"))])
    assert (state.mark, state.snapshot_begun, state.needed_from, state.whole) == (5, 4, -1, False)
    with pytest.raises(ProjectionFailed, match="transaction 7 does not follow 5"):
        state.apply([(7, a_set(b"y"))])
    state.reset()
    assert (state.mark, state.snapshot_begun, state.item(KEY), state.live_bytes) == (-1, -1, None, 0)
    state.apply([(0, a_set(b"z"))])
    assert state.item(KEY) == Item(4, b"z", 0)
    assert state.whole


def test_what_is_no_record_ends_it_and_nothing_of_that_is_kept(state: KvState) -> None:
    state.apply([(0, a_set(b"x"))])
    with pytest.raises(ProjectionFailed, match=r"space 'stock', partition 3: transaction 2 is no kv record: kv record"):
        state.apply([(1, a_set(b"y")), (2, b"{}")])
    assert (state.mark, state.item(KEY)) == (0, Item(4, b"x", 0))


def test_how_large_it_is(state: KvState) -> None:
    state.apply((at, a_set(bytes(1000))) for at in range(10))
    assert 1000 < state.live_bytes < 1100
    assert 10_000 < state.tail_bytes < 11_000
    state.apply([(10, encode_record(SnapshotBegin())), (11, a_set(bytes(1000)))])
    assert state.tail_bytes > 11_000  # until it is whole
    items = tuple(state.snapshot_items())
    state.apply([(12, encode_record(SnapshotChunk(10, items))), (13, b"\x0c\x00" + (10).to_bytes(8, "big"))])
    assert 1000 < state.tail_bytes < 1300
    assert (state.needed_from, state.snapshot_begun) == (10, -1)


def end_of(snapshot: int) -> bytes:
    return encode_record(SnapshotEnd(snapshot))


def test_how_much_of_the_log_is_needed(state: KvState) -> None:
    """From the oldest section's last snapshot on; how long ago the last one was, of whatever section, is known too."""
    state.apply((at, a_set(bytes(1000))) for at in range(10))
    for section, begin in enumerate((10, 20, 30, 40)):
        assert (state.oldest_sections(1), state.needed_from) == (1 << section, -1)
        state.apply([(begin, encode_record(SnapshotBegin(1 << section))), (begin + 1, end_of(begin))])
        state.apply((at, a_set(bytes(1000))) for at in range(begin + 2, begin + 10))
        assert 8_000 < state.since_snapshot_bytes < 9_000
    assert (state.oldest_sections(1), state.needed_from) == (0b1, 10)
    assert 32_000 < state.tail_bytes < 35_000
    state.apply([(50, encode_record(SnapshotBegin(0b11))), (51, a_set(b""))])
    assert (state.needed_from, state.tail_bytes > 32_000) == (10, True), "until it is whole"
    state.apply([(52, end_of(50))])
    assert (state.oldest_sections(1), state.needed_from) == (0b100, 30)
    assert [state.oldest_sections(count) for count in (2, 3, 4)] == [0b1100, 0b1101, 0b1111]
    assert 16_000 < state.tail_bytes < 18_000
    assert state.since_snapshot_bytes < 1000


@pytest.mark.parametrize("page_entries", [1, 3, 1024])
def test_a_section_has_its_items_and_the_first_all_else(
    state: KvState, page_entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableState, "page_entries", page_entries)
    keys = [ItemKey(map_hash, n << 28 | 0xFFF, b"x") for map_hash in (0, 7, 0xFFFF_FFFF) for n in range(16)]
    records: list[Record] = [
        *(Set(key, 4, b"") for key in keys),
        Lock(b"door", 9, 1 << 50),
        Own(Unit(0xFF, 0xFF), 1, "", 1),
    ]
    state.apply(enumerate(map(encode_record, records)))
    found = [list(state.snapshot_items(1 << section)) for section in range(SECTIONS)]
    for section, entries in enumerate(found):
        items = [item_key_of(each.key) for each in entries if each.table == Table.ITEMS]
        assert items == [key for key in keys if key.hash >> 30 == section]
        assert [each.table for each in entries if each.table != Table.ITEMS] == ([] if section else [3, 2])
    assert list(state.snapshot_items(0b1010)) == sorted(found[1] + found[3], key=lambda each: each.key)
    assert sorted(state.snapshot_items()) == sorted(each for entries in found for each in entries)


def test_the_longest_names(state: KvState) -> None:
    """Every key that is made of them fits into LMDB's, also while a snapshot is open."""
    name, map_name = b"n" * MAX_NAME_BYTES, b"m" * 255
    key = ItemKey(0xFFFFFFFF, 0xFFFFFFFF, name)
    records: list[Record] = [
        SnapshotBegin(),
        Touch(key, 5),
        Set(key, 4, b"x", 1 << 50, map_name),
        Delete(key),
        Unlock(name, 7),
        Lock(name, 9, 1 << 50),
        Set(key, 4, b"y", 1 << 51, map_name),
    ]
    state.apply(enumerate(map(encode_record, records)))
    assert state.item(key) == Item(4, b"y", 6, 1 << 51, map_name)
    assert state.lock(name) == LockHeld(5 << 16 | 9, 1 << 50)
    assert state.expired(1 << 60, 9) == [(key, 6)]
    assert state.expired_locks(1 << 60, 9) == [(name, 5 << 16 | 9)]
    assert len(list(state.snapshot_items())) == 2


# ---- the file


def test_it_goes_on_after_closing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = in_file(tmp_path, "boot 1")
    first.apply([(0, encode_record(Set(KEY, 4, b"x", at_ms=77)))])
    first.close()
    assert (tmp_path / "stock" / "3.lmdb").is_file()
    again = in_file(tmp_path, "boot 2")
    assert (again.mark, again.item(KEY), again.newest_ms) == (0, Item(4, b"x", 0), 77)
    again.close()
    assert caplog.messages == []


KILLED = """
import os, sys
from pathlib import Path
from tests.projections.test_kv_state import a_set, in_file
state = in_file(Path(sys.argv[1]))
state.apply((at, a_set(b"%d" % at)) for at in range(1000))
print(state.mark, flush=True)
at = 1000
while True:
    state.apply([(at, a_set(b"%d" % at))])
    at += 1
"""


def test_it_goes_on_after_kill_9(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"999\n"
        with pytest.raises(StorageLocked, match=r"3\.lmdb is open already"):
            in_file(tmp_path)
        process.send_signal(signal.SIGKILL)
    state = in_file(tmp_path)
    assert state.mark >= 999
    assert state.item(KEY) == Item(4, b"%d" % state.mark, state.mark)
    state.close()


def abandoned(tmp_path: Path) -> None:
    """Files as a process leaves them that ends without closing them."""
    state = in_file(tmp_path / "open")
    state.apply((at, a_set(b"%d" % at)) for at in range(1000))
    shutil.copytree(tmp_path / "open" / "stock", tmp_path / "stock")
    state.close()


def other_boot(tmp_path: Path) -> LmdbState:
    return in_file(tmp_path, "another boot")


def other_cluster(tmp_path: Path) -> LmdbState:
    return in_file(tmp_path, key="c2")


def other_number(tmp_path: Path) -> LmdbState:
    return in_file(tmp_path, number=9)


def nothing_beside(tmp_path: Path) -> LmdbState:
    (tmp_path / "stock/3.json").unlink()
    return in_file(tmp_path)


def nonsense_beside(tmp_path: Path) -> LmdbState:
    (tmp_path / "stock/3.json").write_text("[")
    return in_file(tmp_path)


def cut_short(tmp_path: Path) -> LmdbState:
    os.truncate(tmp_path / "stock/3.lmdb", 3 * 4096)
    return in_file(tmp_path)


def garbage(tmp_path: Path) -> LmdbState:
    (tmp_path / "stock/3.lmdb").write_bytes(bytes(range(256)) * 100)
    return in_file(tmp_path)


def emptied(tmp_path: Path) -> LmdbState:
    (tmp_path / "stock/3.lmdb").write_bytes(b"")
    return in_file(tmp_path)


def of_another_name(tmp_path: Path) -> LmdbState:
    other = LmdbState(tmp_path, "c1", "stock", 4, 9)
    other.apply([(0, a_set(b"foreign"))])
    other.close()
    (tmp_path / "stock/4.lmdb").replace(tmp_path / "stock/3.lmdb")
    return in_file(tmp_path)


def test_what_a_killed_process_leaves_is_believed(tmp_path: Path) -> None:
    abandoned(tmp_path)
    state = in_file(tmp_path)
    assert state.mark == 999
    state.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_boot, "the machine has gone down"),
        (other_cluster, "it is of {'cluster': 'c1'"),
        (other_number, "it is of {'cluster': 'c1'"),
        (nothing_beside, "nothing says whose it is"),
        (nonsense_beside, "nothing says whose it is"),
        (cut_short, "bytes of"),
        (garbage, "begun anew"),
        (of_another_name, "another's tables"),
        (emptied, ""),
    ],
)
def test_what_cannot_be_believed_is_begun_anew(
    tmp_path: Path, change: Callable[[Path], LmdbState], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    abandoned(tmp_path)
    with caplog.at_level(logging.WARNING):
        state = change(tmp_path)
    assert (state.mark, state.item(KEY)) == (-1, None)
    assert len(caplog.messages) == (why != "")
    assert all("is begun anew, from the log" in line and why in line for line in caplog.messages)
    state.apply([(0, a_set(b"x"))])
    state.close()
    assert json.loads((tmp_path / "stock/3.json").read_text())["clean"] is True


def damage(path: Path, seed: int) -> None:
    """Random bytes over a third of its pages, but for those that say where the others are."""
    chance, data = random.Random(seed), bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        if chance.random() < 0.3:
            data[page * 4096 : (page + 1) * 4096] = chance.randbytes(4096)
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").replace(path)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("use", ["read", "find", "apply"])
def test_damage_that_is_met_later_ends_it_and_then_it_is_begun_anew(tmp_path: Path, seed: int, use: str) -> None:
    def record(at: int) -> bytes:
        return encode_record(Set(ItemKey(0, at, b"%d" % at), 4, bytes(100), 1 << 50))

    before = in_file(tmp_path)
    before.apply((at, record(at)) for at in range(3000))
    before.close()
    damage(tmp_path / "stock/3.lmdb", seed)
    state = in_file(tmp_path)
    uses: dict[str, Callable[[], object]] = {
        "read": lambda: list(state.items()),
        "find": lambda: [state.items_of_hash(0, at) for at in range(3000)],
        "apply": lambda: state.apply((at, record(at % 3000)) for at in range(3000, 6000)),
    }
    if state.mark == 2999:  # else it was noticed at once
        with pytest.raises(ProjectionFailed, match=r"3\.lmdb is damaged: .*; it is removed and folded anew"):
            uses[use]()
        state.close()
        assert not (tmp_path / "stock/3.lmdb").exists()
        state = in_file(tmp_path)
    assert (state.mark, list(state.items())) == (-1, [])
    state.apply([(0, record(0))])
    state.close()


class FailsToSync:
    """LMDB on a disk that has not taken some pages; the kernel tells it once."""

    def __init__(self, environment: lmdb.Environment) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def sync(self, force: bool) -> None:
        raise lmdb.Error("mdb_env_sync: Input/output error")


def test_what_could_not_be_synced_is_not_believed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the same boot: what is to be read there now may be what was there before once the kernel forgets it."""
    state = in_file(tmp_path)
    state.apply([(0, a_set(b"x"))])
    monkeypatch.setattr(state._file, "_environment", FailsToSync(state._file._environment))
    state.close()
    assert "begun anew, from the log: it could not be synced: mdb_env_sync: Input/output error" in caplog.text
    again = in_file(tmp_path)
    assert (again.mark, again.item(KEY)) == (-1, None)
    again.close()


def refuse_to_open(patch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise lmdb.DiskError("No space left on device")

    patch.setattr(lmdb, "open", full)


def test_a_full_disk_when_it_is_begun_anew_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = in_file(tmp_path)
    with monkeypatch.context() as patch:
        refuse_to_open(patch)
        with pytest.raises(ProjectionFailed, match=r"cannot be begun anew: .*No space left"):
            state.reset()
    state.close()
    in_file(tmp_path).close()


def test_what_cannot_be_read_and_not_be_begun_anew_is_not_kept_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def unreadable(state: LmdbState) -> None:
            refuse_to_open(patch)
            raise lmdb.CorruptedError("a page is none")

        patch.setattr(LmdbState, "_begin", unreadable)
        with pytest.raises(ProjectionFailed, match="cannot be begun anew"):
            in_file(tmp_path)
    in_file(tmp_path).close()


def test_a_lack_of_handles_takes_nothing_away(tmp_path: Path) -> None:
    """It says nothing about the file, which would have to be folded anew from the whole log."""
    first = in_file(tmp_path)
    first.apply([(0, a_set(b"x"))])
    first.close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    refused: list[str] = []
    for spare in range(6):
        free = [os.open(os.devnull, os.O_RDONLY) for _ in range(spare + 1)]  # others, of other tests, may lie between
        for handle in free:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], limits[1]))
        try:
            in_file(tmp_path).close()
        except ProjectionFailed as error:
            refused.append(str(error))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        state = in_file(tmp_path)
        assert (state.mark, state.item(KEY)) == (0, Item(4, b"x", 0)), spare
        state.close()
    assert 0 < len(refused) < 6
    assert all("Too many open files" in why for why in refused)


def test_a_second_opener_is_refused(tmp_path: Path) -> None:
    state = in_file(tmp_path)
    with pytest.raises(StorageLocked, match="open already"):
        in_file(tmp_path)
    state.apply([(0, a_set(b"x"))])
    state.close()
    in_file(tmp_path).close()


def test_it_grows(tmp_path: Path) -> None:
    state = in_file(tmp_path)
    state.apply((at, encode_record(Set(ItemKey(0, at, b"%d" % at), 4, bytes(1 << 20)))) for at in range(100))
    assert (state.mark, len(state.scan(0, b"", b"", 1000))) == (99, 100)
    state.close()


def test_a_full_disk_leaves_it_as_it_was(tmp_path: Path) -> None:
    state = in_file(tmp_path)
    state.apply([(0, a_set(b"x"))])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(
            ProjectionFailed, match=r"partition 3, transactions 1 to 1: projection .* make room on that"
        ):
            state.apply([(1, a_set(bytes(4 << 20)))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert (state.mark, state.item(KEY)) == (0, Item(4, b"x", 0))
    state.close()
