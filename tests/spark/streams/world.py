"""A chain of services over any file system and any ZooKeeper, and what must hold when all is done.

tokyo (local, root a) -> all (merged, root b) -> far (mirror, root c) -> copy (mirror, root d), the last standing for
"the consumer" of the first mirror. One collector leaves a minute with files, an empty one, and one without a marker.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.parquet as pq
from waltz_spark.streams.announce import decode_announcement
from waltz_spark.streams.files import Files
from waltz_spark.streams.layout import (
    PublishedPath,
    data_path,
    encode_marker,
    join,
    marker_name,
    minute_name,
    tmp_path,
)
from waltz_spark.streams.nodes import read_nodes
from waltz_spark.streams.placing import encode_list, find_part
from waltz_spark.streams.quarantine import quarantined
from waltz_spark.streams.services import Pass, StreamService
from waltz_spark.streams.settings import Kind, Layout, Source, StreamSettings
from waltz_spark.streams.states import StreamState

from waltz_ray.coordination.api import ZooKeeper

__all__ = [
    "CHAIN",
    "DOCUMENT",
    "FIRST",
    "MIXED",
    "Layouts",
    "NOW",
    "PARTS",
    "World",
    "parquet_of",
    "settings_of",
    "walk",
]

NOW = datetime(2026, 11, 21, 15, 53, 20, tzinfo=timezone.utc)
FIRST = datetime(2026, 11, 21, 15, 50, tzinfo=timezone.utc)
CHAIN = ("tokyo", "all", "far", "copy")
STREAM_OF = {"tokyo": "streams_local", "all": "streams", "far": "streams", "copy": "streams"}

Layouts = tuple[Layout, Layout, Layout, Layout]
MakeService = Callable[[StreamSettings, ZooKeeper], StreamService]


PARTS: Layouts = ("parts",) * 4
DOCUMENT: Layouts = ("document",) * 4
MIXED: Layouts = ("document", "parts", "document", "parts")


def settings_of(base: str, node: str, layouts: Layouts = PARTS, compact: str = "") -> dict[str, StreamSettings]:
    """The chain, each service in a root of its own under ``base``. ``compact``: the service that does so."""
    roots = {name: join(base, letter) for name, letter in zip(CHAIN, "abcd", strict=True)}
    before = dict(zip(CHAIN[1:], CHAIN, strict=False))
    after = {producer: consumer for consumer, producer in before.items()}
    kinds: dict[str, Kind] = {"tokyo": "local", "all": "merged", "far": "mirror", "copy": "mirror"}
    return {
        name: StreamSettings(
            kinds[name],
            name,
            roots[name],
            (Source(before[name], roots[before[name]]),) if name in before else (),
            (after[name],) if name in after else (),
            zookeeper_root=node,
            layout=layout,
            compact_bytes=1_000_000 if name == compact else 0,
        )
        for name, layout in zip(CHAIN, layouts, strict=True)
    }


def walk(files: Files, path: str) -> dict[str, bytes | None]:
    """Every file's bytes, None for an empty directory."""
    try:
        names = files.list(path)
    except NotADirectoryError:
        return {path: files.read(path)}
    except FileNotFoundError:
        return {}
    found: dict[str, bytes | None] = {} if names else {path: None}
    for name in names:
        found |= walk(files, join(path, name))
    return found


def parquet_of(lines: Sequence[str]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"line": lines}), out)
    return out.getvalue()


def _lines_of(data: bytes) -> bytes:
    return "\n".join(pq.read_table(pa.BufferReader(data)).column("line").to_pylist()).encode()


class World:
    """``minutes``: how many the collector leaves, each with ``files`` files but the last, which is empty.

    ``compact``: the files are Parquet, and this service makes one of those of a part.
    """

    def __init__(
        self,
        files: Files,
        base: str,
        node: str = "/databus",
        minutes: int = 2,
        files_each: int = 2,
        layouts: Layouts = PARTS,
        compact: str = "",
    ) -> None:
        self.files, self.base, self.node, self.compact = files, base, node, compact
        self.settings = settings_of(base, node, layouts, compact)
        self.expected: dict[PublishedPath, dict[str, bytes]] = {}
        for number in range(minutes):
            self.collect(FIRST + timedelta(minutes=number), files_each if number < minutes - 1 or minutes == 1 else 0)
        self.unmarked = join(data_path(self.root("tokyo"), "bank", "c1"), "202611211553.part")
        self.files.write(self.unmarked, [b"of a minute that is not complete"])
        self.files.sync_directory(self.unmarked.rpartition("/")[0])

    def root(self, name: str) -> str:
        return self.settings[name].root

    def collect(self, minute: datetime, count: int, collector: str = "c1") -> None:
        """What a collector does for one minute."""
        directory = data_path(self.root("tokyo"), "bank", collector)
        self.files.make_directories(directory)
        content = {f"{minute_name(minute)}.{i}": f"record {minute} {collector} {i}".encode() for i in range(count)}
        if self.compact:
            content = {f"{name}.parquet": parquet_of([data.decode()]) for name, data in content.items()}
        self.leave(directory, minute, content)
        self.expected[PublishedPath("streams_local", "bank", minute, "tokyo", collector)] = content

    def leave(self, directory: str, minute: datetime, content: Mapping[str, bytes]) -> None:
        """The files of a minute, then their marker."""
        for name, data in content.items():
            self.files.write(join(directory, name), [data])
        self.files.sync_directory(directory)
        self.files.write(join(directory, "marker"), [encode_marker(minute, list(content))])
        self.files.rename(join(directory, "marker"), join(directory, marker_name(minute)))
        self.files.sync_directory(directory)

    def service(self, name: str, zookeeper: ZooKeeper) -> StreamService:
        return StreamService(self.settings[name], zookeeper, lambda root: self.files, lambda: NOW)

    def finish(self, zookeeper: ZooKeeper, make: MakeService | None = None) -> dict[str, Pass]:
        """A clean run of everything, in order; the locks are free again afterwards."""
        passes = {}
        for name in CHAIN:
            with make(self.settings[name], zookeeper) if make else self.service(name, zookeeper) as service:
                passes[name] = service.run_once()
                assert not passes[name].standing_by, f"{name}: the lock is still held"
        return passes

    def problems(self, zookeeper: ZooKeeper) -> list[str]:
        """What does not hold after a clean run."""
        found = []
        for name in CHAIN:
            found += self._stream_problems(name)
            found += self._announcement_problems(name)
            root = self.root(name)
            found += [f"{name}: quarantined {record}" for record in quarantined(self.files, root, name)]
            if len(left := walk(self.files, tmp_path(root, name))) > 1:
                found.append(f"{name}: left in tmp: {sorted(left)}")
        for name, node in read_nodes(zookeeper, self.node).services.items():
            if node.state is not StreamState.SUCCESS:
                found.append(f"{name}: state {node.state.value}")
            if node.commits != len(self.expected):
                found.append(f"{name}: {node.commits} commits of {len(self.expected)}")
        left = walk(self.files, join(self.root("tokyo"), "data"))
        if {path for path, data in left.items() if data is not None} != {self.unmarked}:
            found.append(f"left in data/: {sorted(left)}")
        return found

    def _stream_problems(self, name: str) -> list[str]:
        expected: dict[str, bytes | None] = {}
        for path, content in self.expected.items():
            directory = path.to_stream(STREAM_OF[name]).on(self.root(name))
            # From the first service with the document's layout on, the names have the part in front.
            before = [self.settings[each].layout for each in CHAIN[: CHAIN.index(name) + 1]]
            if self.compact and content:
                content = self._compacted(name, content)
            if "document" in before:
                content = {f"{path.part}-{file}": data for file, data in content.items()}
            if before[-1] == "document":
                directory = directory.rpartition("/")[0]
                content = {**content, f"_{path.part}.part": encode_list(list(content))}
            expected |= {join(directory, file): data for file, data in content.items()}
            if not content:
                expected[directory] = None
        there = walk(self.files, join(self.root(name), STREAM_OF[name]))
        if self.compact:
            there = {
                path: _lines_of(data) if data and path.endswith(".parquet") else data for path, data in there.items()
            }
        if there == expected:
            return []
        missing = sorted(expected.items() - there.items(), key=str)
        return [f"{name}: missing {missing}, too much {sorted(there.items() - expected.items(), key=str)}"]

    def _compacted(self, name: str, content: Mapping[str, bytes]) -> dict[str, bytes]:
        """The lines of each file; from the service that compacts on, all of them in the first one."""
        lines = {file: _lines_of(data) for file, data in content.items()}
        if CHAIN.index(name) < CHAIN.index(self.compact):
            return lines
        return {min(lines): b"\n".join(lines[file] for file in sorted(lines))}

    def _announcement_problems(self, name: str) -> list[str]:
        """What is published is consumed or announced, and what is announced is published."""
        found = []
        root = self.root(name)
        for consumer in self.settings[name].consumers:
            announced = set()
            for file, data in walk(self.files, self.settings[name].inbox(consumer)).items():
                if data is not None:
                    announced.add(decode_announcement(file.rpartition("/")[2], data).path)
            for path in announced:
                if not find_part(self.files, root, path):
                    found.append(f"{name}: announced to {consumer} and not there: {path.relative}")
            for path in self.expected:
                consumed = find_part(self.files, self.root(consumer), path.to_stream("streams"))
                if path.to_stream(STREAM_OF[name]) not in announced and not consumed:
                    found.append(f"{name}: neither announced to {consumer} nor consumed: {path.relative}")
        return found
