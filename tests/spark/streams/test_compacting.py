"""A part's Parquet files become fewer: the same records, whatever is in the files and wherever a crash comes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waltz_spark.streams import joining_parquet
from waltz_spark.streams.compacting import groups_of
from waltz_spark.streams.joining_parquet import join_parquet
from waltz_spark.streams.layout import PublishedPath, join
from waltz_spark.streams.settings import Source, StreamSettings

from tests.spark.streams.faults import Fuse
from tests.spark.streams.memory_files import MemoryFiles
from tests.spark.streams.staging import make_service, stage_before
from tests.spark.streams.test_spark_copying import Jobs, with_tasks
from tests.spark.streams.world import DOCUMENT, FIRST, PARTS, Layouts, World, parquet_of, walk
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.errors import ConfigError, StorageError


def parquet(table: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def rows(content: Any) -> list[Any]:
    return list(pq.read_table(pa.BufferReader(content)).to_pylist())


STRUCT = pa.struct({"a": pa.int64(), "b": pa.struct({"c": pa.string()})})


def table(first: int, count: int) -> Any:
    """Of many types, with nulls, nested, and floats that are no numbers."""
    numbers = range(first, first + count)
    floats = [float("nan") if n % 3 == 0 else -0.0 if n % 3 == 1 else n / 7 for n in numbers]
    return pa.table(
        {
            "id": pa.array(numbers, pa.uint64()),
            "text": pa.array([None if n % 5 == 0 else "ä" * (n % 4) for n in numbers], pa.string()),
            "data": pa.array([bytes([n % 256]) * (n % 9) for n in numbers], pa.large_binary()),
            "float": pa.array(floats, pa.float64()),
            "list": pa.array(
                [[f, None] if n % 2 else None for n, f in zip(numbers, floats, strict=True)], pa.list_(pa.float64())
            ),
            "struct": pa.array([{"a": n, "b": {"c": str(n)}} for n in numbers], STRUCT),
            "map": pa.array([[("k", n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
            "time": pa.array([n * 1_000_001 for n in numbers], pa.timestamp("us", "UTC")),
            "kind": pa.array([str(n % 3) for n in numbers]).cast(pa.dictionary(pa.int32(), pa.string())),
        }
    )


@given(st.lists(st.integers(0, 40), min_size=2, max_size=5), st.sampled_from(["zstd", "snappy", "gzip", "none"]))
@settings(deadline=None, max_examples=40)
def test_the_same_records_in_their_order(counts: list[int], compression: str) -> None:
    contents = [parquet(table(100 * n, count), compression=compression) for n, count in enumerate(counts)]
    [joined] = join_parquet(contents)
    assert joined.numbers == list(range(len(counts)))
    assert repr(rows(joined.content)) == repr([row for content in contents for row in rows(content)])
    before, after = pq.ParquetFile(pa.BufferReader(contents[0])), pq.ParquetFile(pa.BufferReader(joined.content))
    assert after.schema_arrow.equals(before.schema_arrow, check_metadata=True)
    if sum(counts):
        name = after.metadata.row_group(0).column(0).compression
        assert name == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())


def test_row_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining_parquet, "ROW_GROUP_BYTES", 100_000)
    contents = [parquet(pa.table({"a": list(range(50_000 * n, 50_000 * (n + 1)))})) for n in range(3)]
    [joined] = join_parquet(contents)
    file = pq.ParquetFile(pa.BufferReader(joined.content))
    assert file.metadata.num_row_groups > 5
    assert file.read().column("a").to_pylist() == list(range(150_000))


PLAIN = pa.table({"a": [1, 2], "b": ["x", "y"]})


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(PLAIN.select(["b", "a"]), id="order"),
        pytest.param(PLAIN.rename_columns(["a", "c"]), id="name"),
        pytest.param(PLAIN.set_column(0, "a", pa.array([1, 2], pa.int32())), id="type"),
        pytest.param(PLAIN.cast(pa.schema([pa.field("a", pa.int64(), False), ("b", pa.string())])), id="null"),
        pytest.param(PLAIN.replace_schema_metadata({"who": "somebody"}), id="footer"),
    ],
)
def test_what_differs_in_more_than_records_is_not_joined(other: Any) -> None:
    assert join_parquet([parquet(PLAIN), parquet(other)]) == []
    [first, second] = join_parquet([parquet(PLAIN), parquet(other), parquet(PLAIN), parquet(other)])
    assert (first.numbers, second.numbers) == ([0, 2], [1, 3])


def damaged() -> Iterator[Any]:
    good = parquet(PLAIN, compression="zstd")
    for name, content in {
        "text": b"no Parquet",
        "empty": b"",
        "cut": good[:-20],
        "page": good[:8] + bytes(40) + good[48:],
        "footer": good[:-200] + bytes(192) + good[-8:],
    }.items():
        yield pytest.param(content, id=name)


@pytest.mark.parametrize("odd", list(damaged()))
def test_what_cannot_be_read_is_left_and_the_others_are_joined(odd: bytes) -> None:
    assert join_parquet([odd, parquet(PLAIN)]) == []
    [joined] = join_parquet([parquet(PLAIN, compression="zstd"), odd, parquet(PLAIN, compression="zstd")])
    assert joined.numbers == [0, 2]
    assert rows(joined.content) == rows(parquet(PLAIN)) * 2


def test_types_that_would_be_written_differently_are_left() -> None:
    """Timestamps of 96 bits would come back as 64: nobody's Spark 2 would read them."""
    times = pa.table({"t": pa.array([1, 2], pa.timestamp("ns"))})
    content = parquet(times, use_deprecated_int96_timestamps=True, store_schema=False)
    assert join_parquet([content, content]) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda batches: batches[:-1],
        lambda batches: [*batches, batches[0]],
        lambda batches: [*batches[1:], batches[0]],
        lambda batches: [pa.record_batch({"a": pa.array([7] * len(batches[0]))}), *batches[1:]],
    ],
    ids=["lost", "twice", "order", "value"],
)
def test_other_records_are_noticed(monkeypatch: pytest.MonkeyPatch, change: Callable[[list[Any]], list[Any]]) -> None:
    written = joining_parquet._written
    monkeypatch.setattr(joining_parquet, "_written", lambda first, batches: written(first, change(list(batches))))
    contents = [parquet(pa.table({"a": [n, n + 1]})) for n in range(4)]
    assert join_parquet(contents) == []


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(0, 100)), st.integers(1, 150))
def test_groups(sizes: dict[str, int], most_bytes: int) -> None:
    groups = groups_of(sizes, most_bytes)
    together = [path for group in groups for path in group]
    assert together == sorted(set(together))
    assert all(len(group) > 1 and sum(sizes[path] for path in group) <= most_bytes for group in groups)
    if sum(sizes.values()) <= most_bytes and len(sizes) > 1:
        assert groups == [sorted(sizes)]


@pytest.mark.parametrize("layouts", [PARTS, DOCUMENT])
@pytest.mark.parametrize("name", ["tokyo", "all"])
@pytest.mark.parametrize("spark", [False, True])
def test_the_chain(name: str, layouts: Layouts, spark: bool) -> None:
    """The three files of a minute are one, from the service on that compacts; the originals are in trash."""
    files, jobs = MemoryFiles(), Jobs()
    world = World(files, "/x", minutes=3, files_each=3, layouts=layouts, compact=name)
    zookeeper = MemoryZooKeeperServer().client()
    world.finish(
        zookeeper,
        (lambda settings, client: with_tasks(settings, client, lambda root: files, jobs)) if spark else None,
    )
    assert world.problems(zookeeper) == []
    assert sum("compactions" in what for _, what in jobs.jobs) == 2 * spark  # of a minute each
    trash = walk(files, join(world.root("tokyo"), "system/trash"))
    originals = {file for content in world.expected.values() for file in content}
    assert originals <= {path.rpartition("/")[2] for path in trash}


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
@pytest.mark.parametrize(
    ("name", "layouts", "make"),
    [("tokyo", PARTS, make_service), ("all", DOCUMENT, make_service), ("all", PARTS, with_tasks)],
)
def test_a_crash_at_every_change(name: str, layouts: Layouts, make: Any, power: bool) -> None:
    start = stage_before(name, make, layouts=layouts, compact=name)
    at, crashed = 0, True
    while crashed:
        for middle in (False, True):
            stage = start.copied()
            crashed = not stage.run(name, Fuse(at, middle))
            if power:
                stage.lose_power()
            assert stage.problems() == [], f"{name} crashed at its change {at}, middle={middle}"
        at += 1
    assert at > 30


def test_odd_files_stay_beside_what_was_joined() -> None:
    """Also one that is called Parquet and is none: all that came is published."""
    files = MemoryFiles()
    world = World(files, "/x", minutes=1, files_each=2, compact="tokyo")
    directory = "/x/a/data/bank/c2"
    files.make_directories(directory)
    content = {
        "202611211550.a.parquet": parquet(PLAIN),
        "202611211550.b.parquet": b"none",
        "202611211550.c.parquet": parquet(PLAIN),
        "202611211550.d.jsonl": b"{}",
        "202611211550.e.parquet": parquet(PLAIN.select(["a"])),
    }
    world.leave(directory, FIRST, content)
    zookeeper = MemoryZooKeeperServer().client()
    with world.service("tokyo", zookeeper) as service:
        assert len(service.run_once().committed) == 2
    part = PublishedPath("streams_local", "bank", FIRST, "tokyo", "c2").on("/x/a")
    there = {path.rpartition("/")[2]: data for path, data in walk(files, part).items()}
    assert rows(there.pop("202611211550.a.parquet")) == rows(parquet(PLAIN)) * 2
    del content["202611211550.a.parquet"], content["202611211550.c.parquet"]
    assert there == content


def test_what_is_not_on_the_disk_as_it_was_written_ends_the_run() -> None:
    class Flips(MemoryFiles):
        def write(self, path: str, content: Any) -> None:
            data = b"".join(content)
            super().write(path, [data[:-1] + b"?" if "/compacted." in path else data])

    files = Flips()
    world = World(files, "/x", minutes=1, files_each=2, compact="tokyo")
    with world.service("tokyo", MemoryZooKeeperServer().client()) as service:
        with pytest.raises(StorageError, match="does not have the bytes that were written to it"):
            service.run_once()
        assert walk(files, "/x/a/streams_local") == {}


def test_files_larger_than_the_setting_stay() -> None:
    files = MemoryFiles()
    world = World(files, "/x", minutes=1, files_each=3, compact="tokyo")
    size = len(parquet_of(["one"]))
    world.settings["tokyo"] = replace(world.settings["tokyo"], compact_bytes=size)
    with world.service("tokyo", MemoryZooKeeperServer().client()) as service:
        service.run_once()
    part = PublishedPath("streams_local", "bank", FIRST, "tokyo", "c1").on("/x/a")
    assert len(files.list(part)) == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (StreamSettings("local", "a", "/a", compact_bytes=-1), "compact_bytes must be at least 0"),
        (StreamSettings("mirror", "a", "/a", (Source("b", "/b"),), compact_bytes=1), "a mirror has the bytes of its"),
    ],
)
def test_settings_that_cannot_be(settings: StreamSettings, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings.validate()
