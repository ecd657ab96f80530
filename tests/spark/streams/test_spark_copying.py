"""Copies by tasks: what tasks that are run twice, come late, fail or find odd input may not change.

The tasks are run by ``Jobs``, in this process and in the worst order; ``tests/spark/test_spark.py`` has real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from waltz_spark.streams.announce import Announcement, announce
from waltz_spark.streams.batches import FILES_OF_A_BATCH, Copies, Ready
from waltz_spark.streams.commit import Work
from waltz_spark.streams.copying import InProcess, in_tasks
from waltz_spark.streams.files import ByteSpan, Files, FilesOf, Joining
from waltz_spark.streams.layout import PublishedPath, join
from waltz_spark.streams.services import StreamService
from waltz_spark.streams.settings import Source, StreamSettings
from waltz_spark.streams.spark_copying import Group, OnSpark, SparkJobs
from waltz_spark.streams.splitting import MOST_PIECES, Copied, pieces_of
from waltz_spark.streams.work import Found

from tests.spark.streams.faults import Fuse
from tests.spark.streams.memory_files import MemoryFiles
from tests.spark.streams.staging import Make, stage_before
from tests.spark.streams.world import CHAIN, DOCUMENT, FIRST, NOW, PARTS, Layouts, World, walk
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.errors import ConfigError, StorageError


class Jobs:
    """Runs every task twice at once: the attempt that is believed, and one that is ended in the middle of each file.

    Keeps the tasks, to run them once more, much later.
    """

    def __init__(self) -> None:
        self.late: list[tuple[int, Group]] = []
        self.jobs: list[tuple[int, str]] = []
        self.said: list[str] = []
        self.dying = False

    def __call__(self, tasks: int, group: Group, what: str) -> list[Copied]:
        self.jobs.append((tasks, what))
        answers = [answer for task in reversed(range(tasks)) for answer in group(task)]
        self.dying = True
        ended = [answer for task in range(tasks) for answer in group(task)]
        assert "comparisons" in what or all(answer.error or answer.problem for answer in ended)
        self.dying = False
        self.late += [(task, group) for task in range(tasks)]
        return answers

    def gate(self, files: Files) -> Files:
        """What tasks see of it."""
        return cast(Files, EndedHalfway(files)) if self.dying else files


class EndedHalfway:
    """A gate whose writes come as far as their half."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def write(self, path: str, content: Iterable[bytes]) -> None:
        data = b"".join(content)
        self._files.write(path, [data[: len(data) // 2]])
        raise OSError("the attempt is ended")

    def join(self, pieces: Sequence[str], target: str) -> None:
        self.write(target, [self._files.read(piece) for piece in pieces])


def with_tasks(
    settings: StreamSettings, zookeeper: ZooKeeper, files_of: FilesOf, jobs: Jobs | None = None, split_bytes: int = 0
) -> StreamService:
    """A service that copies everything with tasks, two parts at a time."""
    settings = replace(settings, spark_copy_bytes=1, copy_tasks=3, copy_bytes_per_task=30)
    run = jobs or Jobs()
    on_spark = OnSpark(run, lambda root: run.gate(files_of(root)), settings.copy_tasks, run.said.append, split_bytes)
    return StreamService(settings, zookeeper, files_of, lambda: NOW, on_spark=on_spark)


def in_pieces(settings: StreamSettings, zookeeper: ZooKeeper, files_of: FilesOf) -> StreamService:
    """The same, and every file in pieces of ten bytes."""
    return with_tasks(settings, zookeeper, files_of, split_bytes=10)


def chain(world: World, jobs: Jobs, split_bytes: int = 0) -> ZooKeeper:
    """Everything has been through the chain, with tasks; the locks are free."""
    zookeeper = MemoryZooKeeperServer().client()
    world.finish(
        zookeeper, lambda settings, client: with_tasks(settings, client, lambda root: world.files, jobs, split_bytes)
    )
    return zookeeper


@pytest.mark.parametrize("layouts", [PARTS, DOCUMENT])
def test_the_chain_with_tasks(layouts: Layouts) -> None:
    jobs = Jobs()
    world = World(MemoryFiles(), "/x", minutes=5, layouts=layouts)
    assert world.problems(chain(world, jobs)) == []
    # Four minutes with two files, in batches of two; the empty one is not worth a job.
    assert [(tasks, what.split(",")[0]) for tasks, what in jobs.jobs] == [(3, "4 copies")] * 2 * len(CHAIN)


@pytest.mark.parametrize("joins", ["bytes", "names"])
def test_the_chain_in_pieces(joins: Joining) -> None:
    """Files of 36 bytes are four pieces each, and one file again; where names are enough no task joins."""
    jobs, files = Jobs(), MemoryFiles()
    files.joins = joins
    world = World(files, "/x", minutes=3)
    assert world.problems(chain(world, jobs, 10)) == []
    kinds = ["copies", "joins", "comparisons"] if joins == "bytes" else ["copies", "comparisons"]
    numbers = {"copies": "16", "joins": "4", "comparisons": "16"}
    assert [what.split(",")[0] for _, what in jobs.jobs] == [f"{numbers[kind]} {kind}" for kind in kinds] * len(CHAIN)


def test_where_nothing_can_be_joined_files_are_copied_whole() -> None:
    jobs, files = Jobs(), MemoryFiles()
    files.joins = "no"
    world = World(files, "/x", minutes=3)
    assert world.problems(chain(world, jobs, 10)) == []
    assert {what.split(",")[0] for _, what in jobs.jobs} == {"4 copies"}


def test_a_join_by_names_that_fails_is_no_end() -> None:
    """As in an encryption zone of HDFS: said once, and whole from then on."""

    class Refusing(MemoryFiles):
        joins: Joining = "names"

        def join(self, pieces: Sequence[str], target: str) -> None:
            raise OSError("concat can not be called for files in an encryption zone")

    jobs, world = Jobs(), World(Refusing(), "/x", minutes=5)
    assert world.problems(chain(world, jobs, 10)) == []
    said = [text for text in jobs.said if "copied whole from now on" in text]
    assert len(said) == len(CHAIN)
    assert all("encryption zone" in text for text in said)


@pytest.mark.parametrize("split_bytes", [0, 10])
def test_a_task_that_comes_late_changes_nothing(split_bytes: int) -> None:
    """After the driver has gone on, as after a run that was replaced: it finds no directory to write in."""
    jobs = Jobs()
    files = MemoryFiles()
    chain(World(files, "/x", minutes=3), jobs, split_bytes)
    before = walk(files, "/x")
    answers = [answer for task, group in jobs.late for answer in group(task)]
    assert len(answers) == (2 * 2 if not split_bytes else 16 + 4 + 16) * len(CHAIN)
    assert all("every executor must see the roots" in answer.error or answer.problem for answer in answers)
    assert walk(files, "/x") == before


@pytest.mark.parametrize(
    ("name", "layouts", "make", "joins"),
    [
        ("all", PARTS, with_tasks, "bytes"),
        ("far", PARTS, with_tasks, "bytes"),
        ("all", DOCUMENT, with_tasks, "bytes"),
        ("all", PARTS, in_pieces, "bytes"),
        ("far", DOCUMENT, in_pieces, "names"),
    ],
)
@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_a_crash_at_every_change(name: str, layouts: Layouts, make: Make, joins: Joining, power: bool) -> None:
    """Also within a batch: of what is copied and not committed nothing stays, and it is copied again."""
    start = stage_before(name, make, minutes=3, layouts=layouts)
    start.files.joins = joins
    at, crashed = 0, True
    while crashed:
        for middle in (False, True):
            stage = start.copied()
            crashed = not stage.run(name, Fuse(at, middle))
            if power:
                stage.lose_power()
            assert stage.problems() == [], f"{name} crashed at its change {at}, middle={middle}"
        at += 1
    assert at > 50


@pytest.mark.parametrize("joins", ["bytes", "names"])
@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"?", lambda data: b"?" + data[1:]])
def test_a_join_with_other_bytes_is_never_published(joins: Joining, change: Callable[[bytes], bytes]) -> None:
    class Joins(MemoryFiles):
        def join(self, pieces: Sequence[str], target: str) -> None:
            super().join(pieces, target)
            super().write(target, [change(self.read(target))])

    files = Joins()
    files.joins = joins
    world, zookeeper = world_before_all(files)
    with with_tasks(world.settings["all"], zookeeper, lambda root: files, split_bytes=10) as service:
        with pytest.raises(StorageError, match="does not have the bytes that were written to it"):
            service.run_once()
        assert walk(files, "/x/b/streams") == {}


@pytest.mark.parametrize("split_bytes", [0, 10])
@pytest.mark.parametrize("change", [lambda data: data[:-15], lambda data: data + b"?", None])
def test_an_input_that_changes_while_it_is_copied(split_bytes: int, change: Callable[[bytes], bytes] | None) -> None:
    """It grows, becomes shorter, or goes away: it is left for another pass, and nobody else waits."""
    files = MemoryFiles()
    world, zookeeper = world_before_all(files)
    first = PublishedPath("streams_local", "bank", FIRST, "tokyo", "c1").on(world.root("tokyo"))
    path = join(first, files.list(first)[1])
    data, run = files.read(path), Jobs()

    def gates(root: str) -> Files:
        if change is None:
            files.delete(path)
        elif files.read(path) == data:
            files.write(path, [change(data)])
        return run.gate(files)

    on_spark = OnSpark(run, gates, 3, split_bytes=split_bytes)
    settings = replace(world.settings["all"], spark_copy_bytes=1, copy_bytes_per_task=30)
    with StreamService(settings, zookeeper, lambda root: files, lambda: NOW, on_spark=on_spark) as service:
        passed = service.run_once()
        assert list(passed.quarantined) == ["202611211550.bank.tokyo.c1"]
        assert len(passed.committed) == 2
    files.write(path, [data])
    with StreamService(settings, zookeeper, lambda root: files, lambda: NOW) as settled:
        assert settled.run_once().committed == ("202611211550.bank.tokyo.c1",)
    part = PublishedPath("streams", "bank", FIRST, "tokyo", "c1").on(world.root("all"))
    assert files.read(join(part, path.rpartition("/")[2])) == data


@given(st.lists(st.integers(0, 3000), max_size=20), st.integers(0, 1000))
def test_pieces_are_all_of_a_file_once(sizes: list[int], piece_bytes: int) -> None:
    pieces = pieces_of(sizes, piece_bytes)
    for number, size_bytes in enumerate(sizes):
        spans = [each.span for each in pieces if each.file == number]
        if spans == [None]:
            assert not piece_bytes or size_bytes <= piece_bytes
            continue
        assert [each.first for each in spans if each] == list(range(0, size_bytes, piece_bytes))
        assert sum(each.size_bytes for each in spans if each) == size_bytes
        assert all(each and each.size_bytes > 0 for each in spans)


def test_a_file_has_so_many_pieces_at_the_most() -> None:
    assert len(pieces_of([10**12], 1)) == MOST_PIECES


class Broken(MemoryFiles):
    """What is written to ``wrong`` is not what stands there afterwards."""

    wrong = ""

    def write(self, path: str, content: Iterable[bytes]) -> None:
        data = b"".join(content)
        super().write(path, [b"?" + data[1:]] if self.wrong and self.wrong in path else [data])


def world_before_all(files: MemoryFiles) -> tuple[World, ZooKeeper]:
    world = World(files, "/x", minutes=3)
    zookeeper = MemoryZooKeeperServer().client()
    with world.service("tokyo", zookeeper) as service:
        assert len(service.run_once().committed) == 3
    return world, zookeeper


@pytest.mark.parametrize(("spark", "split_bytes"), [(False, 0), (True, 0), (True, 10)])
def test_a_copy_with_other_bytes_is_never_published(spark: bool, split_bytes: int) -> None:
    files = Broken()
    world, zookeeper = world_before_all(files)
    files.wrong = "/x/b/system/tmp/"
    gate: Callable[[str], Files] = lambda root: files  # noqa: E731
    settings = world.settings["all"]
    make = with_tasks(settings, zookeeper, gate, None, split_bytes) if spark else world.service("all", zookeeper)
    with make as service:
        with pytest.raises(StorageError, match="does not have the bytes that were written to it"):
            service.run_once()
        assert walk(files, "/x/b/streams") == {}
        files.wrong = ""
        assert len(service.run_once().committed) == 3


def test_one_odd_input_of_a_batch_keeps_nobody_up() -> None:
    files = MemoryFiles()
    world, zookeeper = world_before_all(files)
    first = PublishedPath("streams_local", "bank", FIRST, "tokyo", "c1").on(world.root("tokyo"))
    lost = join(first, files.list(first)[1])

    def gates(root: str) -> Files:
        files.delete(lost)  # between the driver's look and the task
        return run.gate(files)

    run = Jobs()
    on_spark = OnSpark(run, gates, 3)
    settings = replace(world.settings["all"], spark_copy_bytes=1, copy_bytes_per_task=30)
    with StreamService(settings, zookeeper, lambda root: files, lambda: NOW, on_spark=on_spark) as service:
        passed = service.run_once()
        assert list(passed.quarantined) == ["202611211550.bank.tokyo.c1"]
        assert "has not all of its files" in passed.quarantined["202611211550.bank.tokyo.c1"]
        assert len(passed.committed) == 2


def test_two_parts_of_a_batch_that_want_one_name() -> None:
    """In the document's layout: the second goes to quarantine, as if it had come later."""
    files = MemoryFiles()
    world = World(files, "/x", minutes=1, layouts=DOCUMENT)
    zookeeper = MemoryZooKeeperServer().client()
    for collector, name in (("c1", "x-y"), ("c1-x", "y")):
        path = PublishedPath("streams_local", "bank", FIRST, "tokyo", collector)
        part = path.on(world.root("tokyo"))
        files.make_directories(part)
        files.write(join(part, name), [collector.encode()])
        inbox = replace(world.settings["tokyo"], layout="parts").inbox("all")
        announce(files, world.root("tokyo"), inbox, Announcement("tokyo", path), "/x/staged")
    with with_tasks(replace(world.settings["all"], spark_copy_bytes=1), zookeeper, lambda root: files) as service:
        passed = service.run_once()
        assert passed.committed == ("202611211550.bank.tokyo.c1",)
        assert "is there already" in passed.quarantined["202611211550.bank.tokyo.c1-x"]
        assert service.run_once().quarantined == passed.quarantined


def test_a_task_that_cannot_write_ends_the_run() -> None:
    files = MemoryFiles()
    world, zookeeper = world_before_all(files)

    class Full(MemoryFiles):
        def write(self, path: str, content: Iterable[bytes]) -> None:
            raise OSError(f"{path}: no space left on device")

        def exists(self, path: str) -> bool:
            return files.exists(path)

        def chunks(self, path: str, span: ByteSpan | None = None) -> Iterator[bytes]:
            return files.chunks(path, span)

    on_spark = OnSpark(Jobs(), lambda root: Full(), 3)
    settings = replace(world.settings["all"], spark_copy_bytes=1)
    with StreamService(settings, zookeeper, lambda root: files, lambda: NOW, on_spark=on_spark) as service:
        with pytest.raises(StorageError, match=r"a Spark task could not copy /x/a/.*no space left on device"):
            service.run_once()
        assert walk(files, "/x/b/streams") == {}


@given(st.lists(st.integers(0, 10_000_000_000), max_size=60), st.integers(1, 8))
def test_groups_of_about_equal_size(sizes: list[int], tasks: int) -> None:
    groups = in_tasks(sizes, tasks)
    assert sorted(number for group in groups for number in group) == list(range(len(sizes)))
    assert len(groups) == min(tasks, len(sizes))
    assert all(groups)
    if groups:
        weights = [sum(sizes[number] + 64 * 1024 for number in group) for group in groups]
        largest = max(sizes) + 64 * 1024
        # Graham: no list schedule is longer than this.
        assert max(weights) <= sum(weights) / tasks + largest * (1 - 1 / tasks)


def ready(size_bytes: int, files: int = 1) -> Ready:
    target = PublishedPath("streams", "bank", FIRST, "tokyo", "c1")
    names = tuple(map(str, range(files)))
    work = Work(target, "/a", "/a/in", names, "/a", (), sizes=(size_bytes,) * files)
    return Ready(Found("one", work), work)


def copies(settings: StreamSettings, spark: bool = True) -> tuple[Copies, InProcess, OnSpark]:
    in_process, on_spark = InProcess(lambda root: MemoryFiles()), OnSpark(Jobs(), lambda root: MemoryFiles(), 4)
    return Copies(settings, in_process, on_spark if spark else None), in_process, on_spark


SETTINGS = StreamSettings("merged", "all", "/b", spark_copy_bytes=1000, copy_tasks=4, copy_bytes_per_task=500)


def test_small_batches_stay_in_the_process() -> None:
    both, in_process, on_spark = copies(SETTINGS)
    assert both.copier([ready(999)]) is in_process
    assert both.copier([ready(999), ready(1)]) is on_spark
    assert [both.is_full(batch) for batch in ([], [ready(1999)], [ready(1000)] * 2)] == [False, False, True]
    assert both.is_full([ready(0, FILES_OF_A_BATCH)])


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, spark_copy_bytes=0)])
def test_without_spark_one_after_the_other(settings: StreamSettings) -> None:
    both, in_process, _ = copies(settings, spark=settings.spark_copy_bytes == 0)
    assert both.copier([ready(10_000)]) is in_process
    assert (both.is_full([]), both.is_full([ready(0)])) == (False, True)


@pytest.mark.parametrize(
    "settings",
    [
        replace(SETTINGS, spark_copy_bytes=-1),
        replace(SETTINGS, copy_tasks=0),
        replace(SETTINGS, copy_bytes_per_task=0),
        replace(SETTINGS, split_bytes=-1),
    ],
)
def test_settings_out_of_range(settings: StreamSettings) -> None:
    with pytest.raises(
        ConfigError, match=r"(spark_copy_bytes|copy_tasks|copy_bytes_per_task|split_bytes) must be at least [01]"
    ):
        replace(settings, sources=(Source("tokyo", "/a"),)).validate()


@pytest.mark.parametrize("alive", [0, 1], ids=["before the job", "in the middle of it"])
def test_a_spark_that_has_gone_is_one_line(alive: int) -> None:
    gone = Py4JNetworkError("Answer from Java side is empty")
    spark = mock.MagicMock()
    spark.sparkContext.setJobDescription.side_effect = [None] * alive + [gone] * 2
    spark.range.side_effect = gone
    with pytest.raises(OSError, match=r"^Spark could not copy: Answer from Java side is empty$"):
        SparkJobs(spark)(1, lambda task: iter(()), "copies")
