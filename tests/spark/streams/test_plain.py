"""Files without markers: taken when they rest, never while they are being written."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from waltz_spark.streams.entries import CollectorDirectory
from waltz_spark.streams.files import ByteSpan
from waltz_spark.streams.layout import PublishedPath, data_path, join
from waltz_spark.streams.plain import plain_minute, plain_minutes
from waltz_spark.streams.services import Pass, StreamService
from waltz_spark.streams.status import status

from tests.spark.streams.faults import Fuse
from tests.spark.streams.memory_files import MemoryFiles
from tests.spark.streams.staging import Stage
from tests.spark.streams.world import FIRST, NOW, World
from waltz_ray.coordination.memory import MemoryZooKeeperServer

HOST = "host1.example.com"
NAME = f"{HOST}-bank-2026-11-21-15-50_00000.gz"
COMMIT = f"202611211550.bank.tokyo.{HOST}"


class Writer:
    """A world in which one writer brings files without markers; a clock that can be set."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.server = MemoryZooKeeperServer()
        self.zookeeper = self.server.client()
        self.world = World(self.files, "/x")
        self.now = FIRST
        self.directory = data_path(self.world.root("tokyo"), "bank", HOST)
        self.files.make_directories(self.directory)
        self.local = self.service()

    def service(self) -> StreamService:
        return StreamService(self.world.settings["tokyo"], self.zookeeper, lambda root: self.files, lambda: self.now)

    def write(self, name: str, data: bytes) -> None:
        self.files.write(join(self.directory, name), [data])
        self.files.touch(join(self.directory, name), self.now.timestamp())

    def after(self, seconds: float) -> Pass:
        """A pass so long after the first minute began; of what it committed only the writer's."""
        self.now = FIRST + timedelta(seconds=seconds)
        done = self.local.run_once()
        return Pass(done.standing_by, tuple(each for each in done.committed if HOST in each), (), done.quarantined)


@pytest.fixture
def writer() -> Writer:
    return Writer()


@pytest.mark.parametrize(
    ("name", "minute"),
    [
        (NAME, FIRST),
        (NAME.removesuffix(".gz"), FIRST),
        ("a-b-2026-11-21-15-50_123456", FIRST),
        (NAME + ".tmp", None),
        ("a-b-2026-11-21-15-50_0000.gz", None),
        ("a-b-2026-13-21-15-50_00000.gz", None),
        ("2026-11-21-15-50_00000.gz", None),
        ("a-b-2026-11-21-15-50_00000.gz\n", None),
        ("a_current", None),
    ],
)
def test_names(name: str, minute: datetime | None) -> None:
    assert plain_minute(name) == minute


def test_whose_they_are() -> None:
    names = [NAME, NAME.replace(HOST, "host1"), NAME.replace("bank", "shop"), "202611211550.done"]
    found, others = plain_minutes(CollectorDirectory("bank", HOST, "/d", names))
    assert (found, others) == ({FIRST: [NAME]}, names[1:3])


def test_taken_when_its_minute_is_over_and_all_of_it_rests(writer: Writer) -> None:
    writer.write(NAME, b"one")
    assert writer.after(30).committed == ()
    assert writer.after(59).committed == ()  # it rests, and its minute is not over
    second = NAME.replace("_00000", "_00001")
    writer.write(second, b"tw")
    assert writer.after(95).committed == ()
    writer.write(second, b"two")  # grows
    assert writer.after(130).committed == ()
    assert writer.after(189).committed == ()
    assert status(writer.zookeeper, lambda root: writer.files)[0].ignored["without markers, until they rest"] == 2
    assert writer.after(190).committed == (COMMIT,)
    part = PublishedPath("streams_local", "bank", FIRST, "tokyo", HOST).on(writer.world.root("tokyo"))
    assert [writer.files.read(join(part, name)) for name in (NAME, second)] == [b"one", b"two"]
    assert writer.files.list(writer.directory) == []
    writer.write(NAME.replace("_00000", "_00002"), b"late")
    assert writer.after(200).quarantined == {}
    (late,) = writer.after(300).quarantined.values()
    assert "came when" in late


def test_a_clock_that_is_ahead_is_waited_for(writer: Writer) -> None:
    writer.write(NAME.replace("15-50", "15-55"), b"one")
    for seconds in (1, 100, 359):
        assert writer.after(seconds).committed == ()
    assert writer.after(360).committed == (COMMIT.replace("1550", "1555"),)


def test_the_last_minute_there_is_never_over(writer: Writer) -> None:
    writer.write(NAME.replace("2026-11-21-15-50", "9999-12-31-23-59"), b"one")
    writer.write(NAME, b"two")
    assert writer.after(1).committed == ()
    assert writer.after(7200).committed == (COMMIT,)


def test_one_look_is_enough_after_an_hour(writer: Writer) -> None:
    writer.write(NAME, b"one")
    assert writer.after(3599).committed == ()
    writer.local.close()
    writer.local = writer.service()
    assert writer.after(3600).committed == (COMMIT,)


def test_what_is_written_when_the_clock_is_set_does_not_rest(writer: Writer) -> None:
    elapsed = 0.0

    def after(seconds: float, set_by_s: float) -> tuple[str, ...]:
        nonlocal elapsed
        elapsed = seconds
        return writer.after(seconds + set_by_s).committed

    settings, files = writer.world.settings["tokyo"], writer.files
    writer.local = StreamService(
        settings, writer.zookeeper, lambda root: files, lambda: writer.now, elapsed_s=lambda: elapsed
    )
    writer.write(NAME, b"o")
    assert after(65, 0) == ()
    writer.write(NAME, b"on")
    assert after(66, 7200) == (), "nobody has seen it rest, and two hours have not passed"
    writer.write(NAME, b"one")
    assert after(90, 7200) == after(149, 7200) == ()
    assert after(150, 7200) == (COMMIT,)


def test_a_change_of_the_time_alone_is_a_change(writer: Writer) -> None:
    writer.write(NAME, b"one")
    writer.after(60)
    writer.write(NAME, b"two")
    assert writer.after(121).committed == ()
    assert writer.after(181).committed == (COMMIT,)


def test_what_grows_while_it_is_copied_stays(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.write(NAME, b"one")
    writer.after(60)
    copy = MemoryFiles.copy

    def growing(self: MemoryFiles, path: str, target: str, span: ByteSpan | None = None) -> int:
        checksum = copy(self, path, target, span)
        if path.endswith(NAME):
            writer.write(NAME, b"one and more")
        return checksum

    monkeypatch.setattr(MemoryFiles, "copy", growing)
    done = writer.after(120)
    assert (done.committed, list(done.quarantined)) == ((), [COMMIT])
    assert "changed while it was copied" in done.quarantined[COMMIT]
    monkeypatch.undo()
    assert writer.after(121).quarantined == {}
    assert writer.after(181).committed == (COMMIT,)


def test_what_is_named_for_another_is_kept_for_people(writer: Writer) -> None:
    writer.write(NAME.replace("bank", "shop"), b"one")
    (problem,) = writer.after(3600).quarantined.values()
    assert "1 files are named for another collector or category" in problem


def test_a_crash_at_every_change() -> None:
    files, server = MemoryFiles(), MemoryZooKeeperServer()
    world = World(files, "/x", minutes=1, files_each=1)
    directory = data_path(world.root("tokyo"), "bank", HOST)
    files.make_directories(directory)
    minute = (NOW - timedelta(hours=2)).replace(second=0, tzinfo=timezone.utc)
    name = f"{HOST}-bank-{minute:%Y-%m-%d-%H-%M}_00000.gz"
    files.write(join(directory, name), [b"one"])
    files.touch(join(directory, name), minute.timestamp())
    files.sync_directory(directory)
    world.expected[PublishedPath("streams_local", "bank", minute, "tokyo", HOST)] = {name: b"one"}
    start = Stage(world, files, server)
    number, crashed = 0, True
    while crashed:
        stage = start.copied()
        crashed = not stage.run("tokyo", Fuse(number, middle=bool(number % 2)))
        if number % 3:
            stage.lose_power()
        assert stage.problems() == [], f"crashed at its change {number}"
        number += 1
    assert number > 40
