"""The layout of the document: files in the minute's directory, a part published by its list; beside ours, and mixed."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest
from waltz_spark.streams import placing
from waltz_spark.streams.consumer import pending_names
from waltz_spark.streams.files import Files
from waltz_spark.streams.ignored import ignored
from waltz_spark.streams.layout import PublishedPath, join, trash_hour
from waltz_spark.streams.placing import (
    encode_list,
    find_part,
    list_of_part,
    names_problem,
    placed_name,
    read_list,
)
from waltz_spark.streams.purge import purge
from waltz_spark.streams.services import StreamService

from tests.spark.streams.faults import Crash, FaultyFiles, FaultyZooKeeper, Fuse
from tests.spark.streams.memory_files import MemoryFiles
from tests.spark.streams.staging import Stage, stage_before
from tests.spark.streams.world import DOCUMENT, FIRST, MIXED, NOW, PARTS, Layouts, World, walk
from waltz_ray.coordination.memory import MemoryZooKeeper
from waltz_ray.errors import InvalidInput

LATER = NOW + timedelta(hours=80)
MINUTE = "/x/a/streams_local/bank/2026/11/21/15/50"
PART = PublishedPath("streams_local", "bank", FIRST, "tokyo", "c1")


def local_of(stage: Stage) -> StreamService:
    return stage.world.service("tokyo", stage.server.client())


def test_the_documents_paths_and_node() -> None:
    """Its rows: /databus/data/<category>/<collector>, /databus/streams_local/, and the znode /databus/<threadname>."""
    stage = stage_before("tokyo", layouts=DOCUMENT)
    assert "202611211550.0" in stage.files.list("/x/a/data/bank/c1")
    assert stage.problems() == []
    names = ["_tokyo.c1.part", "tokyo.c1-202611211550.0", "tokyo.c1-202611211550.1"]
    assert stage.files.list(MINUTE) == names
    assert stage.files.list("/x/d/streams/bank/2026/11/21/15/50") == names
    assert stage.files.list("/x/a/streams_local/bank/2026/11/21/15/51") == ["_tokyo.c1.part"]
    assert stage.server.client().exists("/databus/tokyo") is not None
    assert stage.files.list("/x/a/system/trash/2026-11-21/15/tokyo") == [
        "202611211550.bank.tokyo.c1",
        "202611211551.bank.tokyo.c1",
    ]


@pytest.mark.parametrize("layouts", [DOCUMENT, MIXED])
def test_who_comes_later_with_the_same_minute_stands_beside_the_others(layouts: Layouts) -> None:
    stage = stage_before("tokyo", layouts=layouts)
    assert stage.problems() == []
    stage.world.collect(FIRST, 1, "host2.example.com")
    assert stage.problems() == []
    assert "tokyo.host2.example.com-202611211550.0" in stage.files.list(MINUTE)


def test_a_name_that_is_taken_goes_to_quarantine_and_stays_as_it_is() -> None:
    stage = stage_before("tokyo", layouts=DOCUMENT)
    stage.files.make_directories(MINUTE)
    stage.files.write(join(MINUTE, "tokyo.c1-202611211550.1"), [b"somebody's"])
    with local_of(stage) as service:
        done = service.run_once()
    assert done.committed == ("202611211551.bank.tokyo.c1",)
    assert "is there already" in done.quarantined["202611211550.bank.tokyo.c1"]
    assert walk(stage.files, MINUTE) == {join(MINUTE, "tokyo.c1-202611211550.1"): b"somebody's"}


@pytest.mark.parametrize(("before", "after"), [(DOCUMENT, PARTS), (PARTS, DOCUMENT)])
@pytest.mark.parametrize("at", [6, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 22])
def test_another_layout_is_set_after_a_crash(before: Layouts, after: Layouts, at: int) -> None:
    """What is in flight is recovered in the layout that it has; what is published is not published again."""
    stage = stage_before("tokyo", minutes=1, layouts=before)
    assert not stage.run("tokyo", Fuse(at))
    stage.world.settings = World(MemoryFiles(), "/x", layouts=after).settings
    with local_of(stage) as service:
        assert service.run_once().quarantined == {}
    part = find_part(stage.files, "/x/a", PART)
    assert part is not None
    assert [stage.files.read(join(part.directory, name)) for name in part.names] == [
        *stage.world.expected[PART].values()
    ]
    assert sorted(walk(stage.files, "/x/a/data")) == [stage.world.unmarked]
    assert len([data for data in walk(stage.files, "/x/a/streams_local").values() if data is not None]) == (
        len(part.names) + stage.files.exists(list_of_part(PART, "/x/a"))
    )


def test_the_files_are_durable_before_their_list_is_there() -> None:
    """Else a loss of power may leave a list of files that are not there."""
    stage, fuse = stage_before("tokyo", minutes=1, layouts=DOCUMENT), Fuse()
    assert stage.run("tokyo", fuse)
    changes = [each for each in fuse.names if MINUTE in each and not each.startswith("make")]
    assert [each.split(" to ")[-1] for each in changes] == [
        f"{MINUTE}/tokyo.c1-202611211550.0",
        f"sync {MINUTE}",
        f"{MINUTE}/_tokyo.c1.part",
        f"sync {MINUTE}",
    ]


def test_no_way_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "take_back_files", lambda *of: None)
    start = stage_before("tokyo", layouts=DOCUMENT)
    problems = []
    for at in range(30):
        stage = start.copied()
        stage.run("tokyo", Fuse(at))
        problems += stage.problems()
    assert any("is there already" in problem for problem in problems), problems


def purger(stage: Stage, zookeeper: MemoryZooKeeper, files: Files) -> StreamService:
    """The local service, when all that it has published is old."""
    return StreamService(stage.world.settings["tokyo"], zookeeper, lambda root: files, lambda: LATER)


def test_purge_removes_whole_parts_also_after_a_crash_at_every_change() -> None:
    start = stage_before("all", layouts=DOCUMENT)
    assert start.run("all", Fuse())
    at, crashed = 0, True
    while crashed:
        stage, fuse = start.copied(), Fuse(at)
        zookeeper = FaultyZooKeeper(stage.server, fuse)
        session_id = zookeeper.session_id
        with suppress(Crash):
            purger(stage, zookeeper, FaultyFiles(stage.files, fuse)).purge_once()
        crashed = fuse.blown
        stage.server.expire(session_id)
        with purger(stage, stage.server.client(), stage.files) as service:
            service.purge_once()
        assert {*walk(stage.files, "/x/a/streams_local").values()} == {None}, at  # empty directories may stay
        at += 1
    assert at > 12


def test_what_is_announced_is_not_purged_and_foreign_lists_stay() -> None:
    stage = stage_before("all", layouts=DOCUMENT)
    stage.files.write(join(MINUTE, "_other.c1.part"), [b"no list"])
    with purger(stage, stage.server.client(), stage.files) as service:
        assert service.purge_once() == ["/x/a/system/trash/2026-11-21/15/tokyo"]
        assert stage.run("all", Fuse())
        assert [path for path in service.purge_once() if "streams_local" in path] == [
            f"{MINUTE}/tokyo.c1",
            f"{MINUTE[:-2]}51/tokyo.c1",
        ]
    assert stage.files.list(MINUTE) == ["_other.c1.part"]


def test_a_damaged_list_blocks_nothing() -> None:
    stage = stage_before("all", layouts=DOCUMENT)
    stage.files.write(list_of_part(PART, "/x/a"), [b'{"version": 1, "files": ["../x"]}'])
    with stage.world.service("all", stage.server.client()) as service:
        done = service.run_once()
    assert done.committed == ("202611211551.bank.tokyo.c1",)
    assert "is no list of a part" in done.quarantined["202611211550.bank.tokyo.c1"]


def test_names() -> None:
    assert placed_name("tokyo.c1", "x") == placed_name("tokyo.c1", "tokyo.c1-x") == "tokyo.c1-x"
    assert names_problem("tokyo.c1", ["x", "y"]) == ""
    assert "would have one name" in names_problem("tokyo.c1", ["x", "tokyo.c1-x"])
    assert "too long" in names_problem("tokyo.c1", ["x" * 250])


def test_system_mirrors_has_what_a_merged_and_a_mirror_announce() -> None:
    """And system/consumers what a local does; a trash of days is purged, and no riddle for status."""
    stage = stage_before("far", layouts=DOCUMENT)
    commits = ["202611211550.bank.tokyo.c1", "202611211551.bank.tokyo.c1"]
    assert stage.files.list("/x/b/system/mirrors/far/all") == commits
    assert not stage.files.exists("/x/b/system/consumers/far")
    assert stage.files.list("/x/a/system/consumers/all/tokyo") == []
    assert pending_names(stage.files, "/x/b", "far", "all") == commits
    with stage.world.service("all", stage.server.client()) as service:
        service.thread.open()
        assert purge(service.thread, stage.server.client(), lambda root: stage.files, LATER)
    assert stage.files.list("/x/b/streams/bank/2026/11/21/15") == ["50", "51"]  # it is announced
    assert ignored(stage.files, "/x/a", "merged") == {}
    with purger(stage, stage.server.client(), stage.files) as local:
        local.purge_once()
    assert stage.files.list("/x/a/system/trash") == []


@pytest.mark.parametrize(
    ("name", "hour"),
    [("2026112115", 15), ("2026-11-21/15", 15), ("2026-11-21", None), ("2026-11-31/15", None), ("x", None)],
)
def test_hours_of_the_trash(name: str, hour: int | None) -> None:
    assert trash_hour(name) == (None if hour is None else FIRST.replace(minute=0, hour=hour))


@pytest.mark.parametrize("content", [b"", b"[]", b'{"version": 2, "files": []}', b'{"version": 1, "files": ["a/b"]}'])
def test_damaged_lists(content: bytes) -> None:
    files = MemoryFiles()
    files.make_directories("/x")
    files.write("/x/_a.b.part", [content])
    with pytest.raises(InvalidInput, match="is no list of a part"):
        read_list(files, "/x/_a.b.part")
    files.write("/x/_a.b.part", [encode_list(["a.b-2", "a.b-1"])])
    assert read_list(files, "/x/_a.b.part") == ("a.b-1", "a.b-2")
