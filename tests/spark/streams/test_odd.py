"""Whatever stands in data, in trash, among announcements or at /databus: what is valid goes on, people are told."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from waltz_spark.streams.drops import ask_to_drop, asked_drops, look_again
from waltz_spark.streams.files import LocalFiles
from waltz_spark.streams.layout import consumers_path, data_path, encode_marker, join, odd_path, quarantine_path
from waltz_spark.streams.nodes import read_nodes
from waltz_spark.streams.odd import SMALL_BYTES
from waltz_spark.streams.services import StreamService
from waltz_spark.streams.status import status

from tests.spark.streams.world import CHAIN, FIRST, NOW, World, walk
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.errors import InvalidInput, NodeDamaged

DEEP = b'{"version":1,"files":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
EMPTY = b'{"version":1,"files":[]}'
COMMIT = "202611211550.bank.tokyo.c1"


class Place:
    """The chain on real files, so that there are pipes and links."""

    def __init__(self, base: Path) -> None:
        self.world = World(LocalFiles(), str(base))
        self.zookeeper = MemoryZooKeeperServer().client()
        self.now = NOW
        self.data = Path(data_path(self.world.root("tokyo"), "bank", "c1"))

    def service(self, name: str) -> StreamService:
        return StreamService(self.world.settings[name], self.zookeeper, clock=lambda: self.now)

    def published(self, name: str) -> int:
        """How many of the world's parts the stream has, whole."""
        stream = "streams_local" if name == "tokyo" else "streams"
        there = walk(LocalFiles(), join(self.world.root(name), stream))
        parts = ((path.to_stream(stream).on(self.world.root(name)), data) for path, data in self.world.expected.items())
        return sum(all(there.get(join(part, file)) == data[file] for file in data) for part, data in parts)

    def reasons(self, name: str) -> dict[str, str]:
        (found,) = (one for one in status(self.zookeeper, clock=lambda: self.now) if one.name == name)
        return {record.commit: record.reason for record in found.quarantined}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "x")


def marker(place: Place, files: list[str]) -> None:
    (place.data / "202611211552.done").write_bytes(encode_marker(FIRST + timedelta(minutes=2), files))


def a_directory_as_input(place: Place) -> None:
    (place.data / "202611211552.a").mkdir()
    marker(place, ["202611211552.a"])


def a_pipe_as_input(place: Place) -> None:
    os.mkfifo(place.data / "202611211552.a")
    marker(place, ["202611211552.a"])


def a_link_to_nothing(place: Place) -> None:
    (place.data / "202611211552.a").symlink_to("/nowhere")
    marker(place, ["202611211552.a"])


def a_name_no_file_can_have(place: Place) -> None:
    (place.data / "202611211552.done").write_text('{"version": 1, "files": ["202611211552.a\\u0000b"]}')


def a_name_that_is_too_long(place: Place) -> None:
    (place.data / "202611211552.done").write_text(f'{{"version": 1, "files": ["202611211552.{"a" * 300}"]}}')


def a_huge_marker(place: Place) -> None:
    with open(place.data / "202611211552.done", "wb") as file:
        file.truncate(SMALL_BYTES + 1)


def names_too_long_for_a_commit(place: Place) -> None:
    directory = Path(data_path(place.world.root("tokyo"), "b" * 150, "c" * 150))
    directory.mkdir(parents=True)
    (directory / "202611211552.done").write_bytes(encode_marker(FIRST + timedelta(minutes=2), []))


def a_file_where_the_stream_goes_on(place: Place) -> None:
    stream = Path(place.world.root("tokyo"), "streams_local", "shop")
    stream.parent.mkdir(parents=True)
    stream.write_text("?")
    directory = Path(data_path(place.world.root("tokyo"), "shop", "c1"))
    directory.mkdir(parents=True)
    (directory / "202611211552.done").write_bytes(encode_marker(FIRST + timedelta(minutes=2), []))


def more_files_than_a_node_can_name(place: Place) -> None:
    names = [f"202611211552.{number:04}{'x' * 230}" for number in range(4000)]
    for name in names:
        (place.data / name).touch()
    marker(place, names)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda place: (place.data / "202611211552.done").mkdir(), "a directory, not a file"),
        (lambda place: os.mkfifo(place.data / "202611211552.done"), "a pipe"),
        (lambda place: (place.data / "202611211552.done").write_bytes(DEEP), "nested too deeply"),
        (a_directory_as_input, "a directory, not a file"),
        (a_pipe_as_input, "a pipe"),
        (a_link_to_nothing, "a link to nothing"),
        (a_name_no_file_can_have, "no file of minute"),
        (a_name_that_is_too_long, "no file of minute"),
        (a_huge_marker, "small file"),
        (more_files_than_a_node_can_name, "too many for a ZooKeeper node; write fewer files a minute"),
        (lambda place: (place.data / "000101010000.done").write_bytes(EMPTY), "UTC minute yyyyMMddHHmm since 1970"),
        (lambda place: (place.data / "999912312359.done").write_bytes(EMPTY), "that minute is still to come"),
        (names_too_long_for_a_commit, "characters"),
        (a_file_where_the_stream_goes_on, "not a directory"),
        (
            lambda place: (place.data.parent / "stray").write_text("?"),
            "can be no directory of a collector",
        ),
        (lambda place: (place.data.parents[1] / "a\nb").mkdir(), r"no directory of a category: a\nb"),
    ],
)
def test_odd_data_blocks_nothing(place: Place, make: Callable[[Place], object], reason: str) -> None:
    make(place)
    with place.service("tokyo") as service:
        assert len(service.run_once().committed) == 2
        (said,) = service.run_once().quarantined.values()
        assert reason in said
        assert list(place.reasons("tokyo").values()) == [said]
        service.purge_once()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda inbox, part: (inbox / "202611211552.bank.tokyo.c1").mkdir(), "a directory, not a file"),
        (lambda inbox, part: (inbox / "202611211552.bank.tokyo.c1").write_bytes(DEEP), "nested too deeply"),
        (lambda inbox, part: (inbox / "what is this").write_text("?"), "damaged"),
        (lambda inbox, part: (part.rename(part.parent / "aside"), part.write_text("?")), "is no directory"),
        (lambda inbox, part: (part / "below").mkdir(), "a directory, not a file"),
    ],
)
def test_odd_announcements_block_nothing(place: Place, make: Callable[[Path, Path], object], reason: str) -> None:
    root = place.world.root("tokyo")
    with place.service("tokyo") as service:
        service.run_once()
    part = Path(next(iter(place.world.expected)).on(root))
    make(Path(consumers_path(root, "all", "tokyo")), part)
    with place.service("all") as service:
        assert len(service.run_once().committed) == (1 if part.is_file() or (part / "below").exists() else 2)
        (said,) = place.reasons("all").values()
        assert reason in said
        service.purge_once()


def test_a_file_in_place_of_an_inbox_and_of_the_trash_is_moved_aside(place: Place) -> None:
    root = place.world.root("tokyo")
    for path in (consumers_path(root, "all", "tokyo"), join(root, "system", "trash", "2026112115")):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).write_text("a person's")
    os.makedirs(join(consumers_path(place.world.root("all"), "far", "all"), COMMIT, "below"))
    place.world.finish(place.zookeeper)
    assert place.world.problems(place.zookeeper) == []
    aside = odd_path(root)
    assert [Path(aside, name).read_text() for name in os.listdir(aside)] == ["a person's"] * 2
    (kept,) = os.listdir(odd_path(place.world.root("all")))
    assert (Path(odd_path(place.world.root("all"))) / kept / "below").is_dir()
    (tokyo,) = (one for one in status(place.zookeeper) if one.name == "tokyo")
    assert tokyo.ignored == {"no marker names them": 1, "moved aside to system/odd": 2}


def test_what_people_give_up_goes_to_trash(place: Place) -> None:
    root, files = place.world.root("tokyo"), LocalFiles()
    (place.data / "202611211550.0").rename(place.data / "gone")
    (place.data / "202611211552.done").mkdir()
    with place.service("tokyo") as service:
        records = sorted(service.run_once().quarantined)
        assert records == [COMMIT, COMMIT.replace("1550", "1552")]
        with pytest.raises(InvalidInput, match="not in the quarantine"):
            ask_to_drop(files, root, "tokyo", [*records, "other"])
        assert asked_drops(files, root, "tokyo") == []
        look_again(files, root, "tokyo", records[:1])
        service.run_once()
        (tokyo,) = status(place.zookeeper)
        assert [record.count for record in tokyo.quarantined] == [1, 2]
        assert (tokyo.unpublished, tokyo.oldest_unpublished) == (2, "202611211550")
        ask_to_drop(files, root, "tokyo", records)
        done = service.run_once()
        assert (sorted(done.dropped), done.quarantined) == (records, {})
        assert asked_drops(files, root, "tokyo") == []
        assert service.run_once() == service.run_once()
    assert sorted(os.listdir(place.data)) == ["202611211553.part", "gone"]
    trashed = {path.rpartition("/")[2] for path in walk(files, join(root, "system", "trash"))}
    assert trashed >= {"202611211550.1", "202611211550.done", "202611211552.done"}
    (tokyo,) = status(place.zookeeper)
    assert (tokyo.quarantined, tokyo.unpublished, tokyo.oldest_unpublished) == ([], 0, None)


def test_odd_trash_and_records_block_nothing(place: Place) -> None:
    root = place.world.root("tokyo")
    trash = Path(root, "system", "trash")
    trash.mkdir(parents=True)
    (trash / "2026112014").write_text("not ours")
    (trash / "what").mkdir()
    record = Path(quarantine_path(root, "tokyo", COMMIT))
    record.parent.mkdir(parents=True)
    record.write_bytes(DEEP)
    (record.parent / "other").mkdir()
    (place.data / "202611211550.0").rename(place.data / "gone")
    with place.service("tokyo") as service:
        for _ in range(2):
            assert list(service.run_once().quarantined) == [COMMIT]
        place.now += timedelta(days=30)
        assert len(service.purge_once()) == 1  # its own trash; all parts are announced
    assert (trash / "2026112014").read_text() == "not ours"
    reasons = place.reasons("tokyo")
    assert "not all of its files" in reasons[COMMIT]
    assert "the record is damaged" in reasons["other"]


@pytest.mark.parametrize("content", [b"{", b"[" * 200_000, b'{"kind": "collector"}', b'{"version": 1, "state": 7}'])
def test_a_foreign_node_is_named_and_stops_nobody(place: Place, content: bytes) -> None:
    place.zookeeper.create("/databus/other", content, make_parents=True)
    place.world.finish(place.zookeeper)
    with place.service("copy") as service:
        place.now += timedelta(days=30)
        assert len(service.purge_once()) == 3
    assert sorted(one.name for one in status(place.zookeeper)) == sorted(CHAIN)
    assert "/databus/other" in read_nodes(place.zookeeper, "/databus").unreadable["other"]


def test_a_damaged_node_keeps_the_parts_of_its_root_and_no_other(place: Place) -> None:
    """What it has in flight cannot be read: it may be published and announced to nobody yet."""
    place.world.finish(place.zookeeper)
    place.now += timedelta(days=30)
    place.zookeeper.set("/databus/copy", b"{", -1)
    Path(place.world.root("far"), "system", "tmp", "copy").mkdir(parents=True)
    with place.service("far") as service:
        assert [path for path in service.purge_once() if "/streams/" in path] == []
    assert place.published("far") == 2
    with place.service("all") as service:
        assert len([path for path in service.purge_once() if "/streams/" in path]) == 2
    with place.service("copy") as service, pytest.raises(NodeDamaged):
        service.run_once()
