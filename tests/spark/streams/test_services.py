"""What a service does in a pass: several producers, what it leaves alone, quarantine, replays, retention, status."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from waltz_spark.streams.announce import Announcement, announce
from waltz_spark.streams.layout import (
    PublishedPath,
    consumers_path,
    data_path,
    encode_marker,
    join,
    marker_name,
    parse_published,
    tmp_path,
)
from waltz_spark.streams.services import StreamService
from waltz_spark.streams.settings import CategoryRetention, Source, StreamSettings
from waltz_spark.streams.states import StreamState
from waltz_spark.streams.status import status

from tests.spark.streams.memory_files import MemoryFiles
from tests.spark.streams.world import CHAIN, FIRST, NOW, World, walk
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.errors import ConfigError, CoordinationError, StorageError, VersionConflict
from waltz_ray.runtime.status import to_json

NOTHING: Callable[[str], None] = lambda point: None  # noqa: E731


class Died(BaseException):
    """A run ends here."""


class Bench:
    """A world in memory, a clock that can be set, and one client for everything that is not to die."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.server = MemoryZooKeeperServer()
        self.zookeeper = self.server.client()
        self.world = World(self.files, "/x")
        self.now = NOW

    def service(
        self, settings: StreamSettings, zookeeper: ZooKeeper | None = None, hook: Callable[[str], None] = NOTHING
    ) -> StreamService:
        client = zookeeper or self.zookeeper
        return StreamService(settings, client, lambda root: self.files, lambda: self.now, hook)

    def named(self, name: str) -> StreamService:
        return self.service(self.world.settings[name])

    def die(self, name: str, at: str) -> None:
        """A run of ``name`` that ends at a point."""

        def hook(point: str) -> None:
            if point == at:
                raise Died

        client = self.server.client()
        with pytest.raises(Died):
            self.service(self.world.settings[name], client, hook).run_once()
        client.close()

    def status(self) -> dict[str, dict[str, Any]]:
        found = status(self.zookeeper, lambda root: self.files, lambda: self.now)
        return {one.name: json.loads(json.dumps(to_json(one))) for one in found}

    def quarantined(self, name: str) -> list[dict[str, Any]]:
        return list(self.status()[name]["quarantined"])


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_several_collectors_and_locals_bring_the_same_minute(bench: Bench) -> None:
    world = bench.world
    world.collect(FIRST, 1, collector="c2")
    osaka = replace(world.settings["tokyo"], name="osaka", root="/x/osaka")
    directory = data_path(osaka.root, "bank", "c1")
    bench.files.make_directories(directory)
    for name in ("202611211550.0", marker_name(FIRST)):
        tokyo = data_path(world.root("tokyo"), "bank", "c2")
        bench.files.write(join(directory, name), [bench.files.read(join(tokyo, name))])
    merged = world.settings["all"]
    merged = replace(merged, sources=(*merged.sources, Source("osaka", osaka.root)))
    with bench.named("tokyo") as local, bench.service(merged) as service:
        local.run_once()
        assert len(service.run_once().committed) == 3
        with bench.service(osaka) as late:  # the same minute, when the merged has published it before
            assert late.run_once().committed == ("202611211550.bank.osaka.c1",)
        assert service.run_once().committed == ("202611211550.bank.osaka.c1",)
        assert service.run_once().committed == ()
    minute = join(merged.root, "streams/bank/2026/11/21/15/50")
    assert bench.files.list(minute) == ["osaka.c1", "tokyo.c1", "tokyo.c2"]


def test_a_collector_is_a_host(bench: Bench) -> None:
    """Through all streams; two hosts whose names differ behind a dot are two."""
    bench.world.collect(FIRST, 2, collector="host1.example.com")
    bench.world.collect(FIRST, 1, collector="host1.example")
    directory = data_path(bench.world.root("tokyo"), "bank", "host1.example.com")
    bench.files.write(join(directory, ".hidden"), [b"?"])
    bench.files.make_directories(join(bench.world.root("tokyo"), "data", "_logs"))
    with bench.named("tokyo") as service:
        service.run_once()
    assert bench.status()["tokyo"]["ignored"] == {"hidden": 2, "no marker names them": 1}
    bench.world.finish(bench.zookeeper)
    bench.files.delete(join(directory, ".hidden"))
    assert bench.world.problems(bench.zookeeper) == []
    part = join(bench.world.root("copy"), "streams/bank/2026/11/21/15/50")
    assert bench.files.list(part) == ["tokyo.c1", "tokyo.host1.example", "tokyo.host1.example.com"]


def test_categories_that_are_not_asked_for_stay(bench: Bench) -> None:
    settings = replace(bench.world.settings["tokyo"], categories=("shop",))
    with bench.service(settings) as service:
        assert service.run_once().committed == ()
    with bench.named("tokyo") as service:
        service.run_once()
    with bench.service(replace(bench.world.settings["all"], categories=("shop",))) as service:
        assert service.run_once() == service.run_once()
        assert not service.run_once().quarantined
    assert bench.status()["tokyo"]["pending"] == {"all": 2}


def test_what_no_complete_marker_names_is_not_touched(bench: Bench) -> None:
    directory = data_path(bench.world.root("tokyo"), "bank", "c1")
    for name in ("202611211550.more", ".hidden", "_SUCCESS", "marker", "202611211559.done.tmp"):
        bench.files.write(join(directory, name), [b"?"])
    bench.files.write(join(bench.world.root("tokyo"), "data", "stray"), [b"?"])
    before = set(bench.files.list(directory))
    with bench.named("tokyo") as service:
        assert len(service.run_once().committed) == 2
    gone = before - set(bench.files.list(directory))
    assert gone == {"202611211550.0", "202611211550.1", "202611211550.done", "202611211551.done"}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("202611211552.done", b"{", "damaged"),
        ("202611219952.done", b"{}", "minute"),
        ("202611211552.done", b'{"version": 1, "files": ["202611211552.gone"]}', "not all of its files"),
    ],
)
def test_a_bad_marker_blocks_nothing(bench: Bench, name: str, content: bytes, reason: str) -> None:
    directory = data_path(bench.world.root("tokyo"), "bank", "c1")
    bench.files.write(join(directory, name), [content])
    with bench.named("tokyo") as service:
        first = service.run_once()
        assert (len(first.committed), len(first.quarantined)) == (2, 1)
        service.run_once()
        (record,) = bench.quarantined("tokyo")
        assert reason in record["reason"]
        assert (record["since"], record["count"]) == (NOW.isoformat(), 2)
        bench.files.delete(join(directory, name))
        assert service.run_once().quarantined == {}
        assert bench.status()["tokyo"]["quarantined"] == []


def test_a_minute_that_is_still_to_come_waits_and_takes_no_holes_from_others(bench: Bench) -> None:
    """A host whose clock is years ahead would have all other collectors forgotten, with what is missing of them."""
    settings = replace(bench.world.settings["tokyo"], holes_after_s=60)
    bench.world.collect(FIRST + timedelta(minutes=3), 1)  # 15:52 is missing
    directory = data_path(bench.world.root("tokyo"), "bank", "ahead")
    bench.files.make_directories(directory)
    bench.files.write(
        join(directory, "209901010000.done"), [encode_marker(datetime(2099, 1, 1, tzinfo=NOW.tzinfo), [])]
    )
    bench.now += timedelta(minutes=10)
    with bench.service(settings) as service:
        passed = service.run_once()
        assert "202611211552.bank.tokyo.c1" in passed.committed
        assert not any("2099" in name for name in passed.committed)
        assert "is still to come" in passed.quarantined["209901010000.bank.tokyo.ahead"]
        bench.now = datetime(2099, 1, 1, tzinfo=NOW.tzinfo)
        assert service.run_once().committed == ("209901010000.bank.tokyo.ahead",)


def test_a_minute_marked_again_is_kept_for_people(bench: Bench) -> None:
    with bench.named("tokyo") as service:
        service.run_once()
        kept = walk(bench.files, join(bench.world.root("tokyo"), "streams_local"))
        bench.world.collect(FIRST, 1)
        found = service.run_once()
    assert "is there already" in found.quarantined["202611211550.bank.tokyo.c1"]
    assert walk(bench.files, join(bench.world.root("tokyo"), "streams_local")) == kept
    assert "202611211550.0" in bench.files.list(data_path(bench.world.root("tokyo"), "bank", "c1"))


def test_a_final_path_that_somebody_else_made_is_not_taken_for_ours(bench: Bench) -> None:
    bench.die("tokyo", at="after TRANS_COMMIT_START")
    target = PublishedPath("streams_local", "bank", FIRST, "tokyo", "c1").on(bench.world.root("tokyo"))
    bench.files.make_directories(target)
    with bench.named("tokyo") as service:
        found = service.run_once()
    assert "is there already" in found.quarantined["202611211550.bank.tokyo.c1"]
    assert "202611211550.0" in bench.files.list(data_path(bench.world.root("tokyo"), "bank", "c1"))


def test_an_announced_path_that_is_missing_is_taken_up_when_it_appears(bench: Bench) -> None:
    with bench.named("tokyo") as local:
        local.run_once()
    path = PublishedPath("streams_local", "bank", FIRST, "tokyo", "c1").on(bench.world.root("tokyo"))
    bench.files.rename(path, "/x/elsewhere")
    with bench.named("all") as service:
        found = service.run_once()
        assert found.committed == ("202611211551.bank.tokyo.c1",)  # it blocks nothing
        assert "is not there" in found.quarantined["202611211550.bank.tokyo.c1"]
        assert bench.status()["tokyo"]["pending"] == {"all": 1}
        (record,) = bench.quarantined("all")
        assert (record["commit"], record["count"]) == ("202611211550.bank.tokyo.c1", 1)
        bench.files.rename("/x/elsewhere", path)
        assert service.run_once().committed == ("202611211550.bank.tokyo.c1",)
    bench.world.finish(bench.zookeeper)
    assert bench.world.problems(bench.zookeeper) == []


def test_a_damaged_announcement_blocks_nothing(bench: Bench) -> None:
    with bench.named("tokyo") as local:
        local.run_once()
    inbox = join(bench.world.root("tokyo"), "system", "consumers", "all", "tokyo")
    bench.files.write(join(inbox, "202611211550.bank.tokyo.c9"), [b""])
    with bench.named("all") as service:
        found = service.run_once()
    assert (len(found.committed), list(found.quarantined)) == (2, ["202611211550.bank.tokyo.c9"])


@pytest.mark.parametrize("purged", [False, True])
def test_the_one_possible_replay_is_dropped(bench: Bench, purged: bool) -> None:
    """Announced, taken over, the producer killed before it noted that; also when the copy has been purged since."""
    bench.die("tokyo", at="after ANNOUNCE")
    with bench.named("all") as merged:
        assert len(merged.run_once().committed) == 1
    if purged:
        bench.now += timedelta(days=30)
        with bench.named("all") as merged:
            assert len(merged.purge_once()) > 0
    with bench.named("tokyo") as local:
        assert local.run_once().committed == ("202611211551.bank.tokyo.c1",)
    with bench.named("all") as merged:
        found = merged.run_once()
    assert (found.replayed, found.committed) == (("202611211550.bank.tokyo.c1",), ("202611211551.bank.tokyo.c1",))
    assert bench.status()["tokyo"]["pending"] == {"all": 0}


def test_an_announcement_is_there_until_the_consumer_has_committed(bench: Bench) -> None:
    with bench.named("tokyo") as local:
        local.run_once()
    for point in ("after build", "after TRANS_COMMIT_START", "after MOVE", "after TRANS_MV_COMPLETE"):
        bench.die("all", at=point)
        assert bench.status()["tokyo"]["pending"] == {"all": 2}, point


def test_purge(bench: Bench) -> None:
    with bench.named("tokyo") as local, bench.named("all") as merged, bench.named("far") as mirror:
        for service in (local, merged):
            service.run_once()
        bench.now = FIRST.replace(minute=59) + timedelta(hours=72)
        assert local.purge_once() == [join(bench.world.root("tokyo"), "system/trash/2026112115/tokyo")]
        bench.now += timedelta(minutes=1)  # the parts' hour is now more than 72 full hours ago
        assert merged.purge_once() == [join(bench.world.root("tokyo"), "system/trash/2026112115/all")]
        removed = local.purge_once()
        assert [parse_published(path.removeprefix("/x/a/")).minute for path in removed] == [
            FIRST,
            FIRST.replace(minute=51),
        ]
        assert walk(bench.files, "/x/a/streams_local") == {"/x/a/streams_local": None}
        # What the merged published is still announced to the mirror, and stays until that has taken it over.
        assert len(walk(bench.files, "/x/b/streams")) == 3
        mirror.run_once()
        assert len(merged.purge_once()) == 2


def test_a_full_disk_is_purged_before_it_ends_the_service(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it stays full: whoever begins again copies first, and comes to no purge."""
    tokyo = replace(bench.world.settings["tokyo"], consumers=())
    with bench.service(tokyo) as service:
        assert service.run_once().committed
    bench.now += timedelta(hours=80)
    bench.world.collect(bench.now - timedelta(minutes=3), 2, collector="new")

    def full(path: str, target: str, span: object = None) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(bench.files, "copy", full)
        with pytest.raises(StorageError, match="No space left"):
            bench.service(tokyo).run(threading.Event())
    assert walk(bench.files, "/x/a/streams_local") == {"/x/a/streams_local": None}
    with bench.service(tokyo) as service:
        assert service.run_once().committed == ("202611242350.bank.tokyo.new",)


@pytest.mark.parametrize("years", [80, -50])
def test_nothing_is_purged_for_an_hour_after_the_clock_was_set(bench: Bench, years: int) -> None:
    settings, elapsed = replace(bench.world.settings["tokyo"], consumers=()), 0.0
    start, files = bench.now, bench.files

    def passed(hours: float, set_by: timedelta) -> set[str]:
        """What is published after a turn of the loop, so long after the start."""
        nonlocal elapsed
        elapsed, bench.now = 3600 * hours, start + timedelta(hours=hours) + set_by
        service.run_once()
        service._purge_hourly()
        return {path for path in walk(files, "/x/a/streams_local") if path.count("/") > 3}

    ahead, right = timedelta(days=365 * years), timedelta()
    with StreamService(
        settings, bench.zookeeper, lambda root: files, lambda: bench.now, elapsed_s=lambda: elapsed
    ) as service:
        published = passed(0, right)
        assert published
        for hours, set_by in [(0.1, ahead), (1.0, ahead), (1.05, right), (1.9, right), (2.1, right)]:
            assert passed(hours, set_by) == published, hours
        assert passed(2.2, timedelta(hours=100)) == published, "set once more, and not believed at once"
        assert passed(3.3, timedelta(hours=100)) == set(), "it was meant"


def test_a_categorys_retention_is_the_larger_of_local_and_merged(bench: Bench) -> None:
    """The merged of the root keeps bank for 100 hours, so its local does, too; a category of its own it does not."""
    other = CategoryRetention(("bank",), 100)
    alone = replace(bench.world.settings["tokyo"], consumers=())
    longer = replace(alone, also_kept=(other, CategoryRetention(("clicks",), 1000), CategoryRetention((), 1)))
    assert (longer.retention_of("bank"), longer.retention_of("other"), longer.retention_of("clicks")) == (100, 72, 1000)
    with bench.service(longer) as service:
        service.run_once()
        for hours, purged in ((73, 0), (100, 0), (101, 2)):
            bench.now = NOW + timedelta(hours=hours)
            assert len([path for path in service.purge_once() if "streams_local" in path]) == purged, hours


def test_purge_spares_what_is_in_flight_in_another_thread(bench: Bench) -> None:
    with bench.named("tokyo") as local:
        local.run_once()
    bench.die("all", at="after MOVE")
    bench.now += timedelta(days=30)
    other = replace(bench.world.settings["all"], name="other", consumers=(), sources=(Source("osaka", "/x/e"),))
    with bench.service(other) as service:
        assert service.purge_once() == []
    assert len(walk(bench.files, "/x/b/streams")) == 2


def test_purge_never_touches_the_current_hour(bench: Bench) -> None:
    settings = replace(bench.world.settings["tokyo"], consumers=(), retention_hours=1, trash_retention_hours=1)
    with bench.service(settings) as service:
        service.run_once()
        for minutes in (0, 6, 66):  # 15:53, 15:59, 16:59
            bench.now = NOW + timedelta(minutes=minutes)
            assert service.purge_once() == []
        bench.now = NOW + timedelta(minutes=67)  # 17:00
        assert len(service.purge_once()) == 3


def test_status(bench: Bench) -> None:
    bench.die("tokyo", at="after TRANS_MV_COMPLETE")
    found = bench.status()["tokyo"]
    assert (found["state"], found["running"], found["commits"]) == (StreamState.MOVED.value, False, 0)
    assert found["in_flight"] == "streams_local/bank/2026/11/21/15/50/tokyo.c1"
    assert (found["lag_minutes"], found["last_commit"]) == (None, None)
    with bench.named("tokyo") as service:
        service.run_once()
        found = bench.status()["tokyo"]
    assert (found["state"], found["running"], found["in_flight"]) == (StreamState.SUCCESS.value, True, None)
    assert (found["commits"], found["lag_minutes"], found["pending"]) == (2, 2, {"all": 2})
    assert found["last_commit"] == "streams_local/bank/2026/11/21/15/51/tokyo.c1"
    assert bench.status()["tokyo"]["running"] is False


def test_a_second_run_stands_by_and_takes_over(bench: Bench) -> None:
    first, second = bench.server.client(), bench.server.client()
    one = bench.service(bench.world.settings["tokyo"], first)
    other = bench.service(bench.world.settings["tokyo"], second)
    assert len(one.run_once().committed) == 2
    assert other.run_once().standing_by
    bench.server.expire(first.session_id)
    assert not other.run_once().standing_by
    with pytest.raises(VersionConflict, match="taken over"):
        one.run_once()
    assert one.run_once().standing_by
    other.close()
    assert not one.run_once().standing_by


def test_a_lock_whose_answer_was_lost_is_found_again(bench: Bench) -> None:
    class Deaf(MemoryZooKeeper):
        lost = False

        def create(
            self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False, make_parents: bool = False
        ) -> str:
            made = super().create(path, data, ephemeral=ephemeral, sequence=sequence, make_parents=make_parents)
            if ephemeral and not self.lost:
                self.lost = True
                raise StorageError("the answer is lost")
            return made

    service = bench.service(bench.world.settings["tokyo"], Deaf(bench.server))
    with pytest.raises(StorageError):
        service.run_once()
    assert len(service.run_once().committed) == 2


def test_a_damaged_node_is_for_people(bench: Bench) -> None:
    bench.zookeeper.create("/databus/tokyo", b'{"state": "TRANS', make_parents=True)
    with pytest.raises(CoordinationError, match="/databus/tokyo"):
        bench.named("tokyo").run_once()
    assert len(bench.files.list(data_path(bench.world.root("tokyo"), "bank", "c1"))) == 5


def test_a_node_without_state_means_no_recovery(bench: Bench) -> None:
    """It has ended behind the move, and a person has emptied its node: nothing is lost, nothing published again."""
    bench.die("tokyo", at="after MOVE")
    bench.zookeeper.set("/databus/tokyo", b"", -1)
    with bench.named("tokyo") as service:
        done = service.run_once()
    assert done.committed == ("202611211551.bank.tokyo.c1",)
    assert "is there already" in done.quarantined["202611211550.bank.tokyo.c1"]


def test_a_thread_with_a_path_in_flight_keeps_its_root(bench: Bench) -> None:
    bench.die("tokyo", at="after MOVE")
    moved = replace(bench.world.settings["tokyo"], root="/x/elsewhere")
    bench.files.make_directories("/x/elsewhere")
    with pytest.raises(ConfigError, match="in flight"):
        bench.service(moved).run_once()
    bench.world.finish(bench.zookeeper)
    assert bench.world.problems(bench.zookeeper) == []


def test_two_file_systems_are_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryFiles, "file_system", lambda self, path: "other" if "/system/tmp/" in path else "memory")
    with pytest.raises(ConfigError, match="different file systems"):
        bench.named("tokyo").run_once()


def test_what_the_file_system_refuses_is_one_clear_line(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: MemoryFiles, path: str, content: object) -> None:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(MemoryFiles, "write", full)
    with bench.named("tokyo") as service, pytest.raises(StorageError, match="No space left"):
        service.run_once()
    monkeypatch.undo()
    bench.world.finish(bench.zookeeper)
    assert bench.world.problems(bench.zookeeper) == []


def test_a_run_without_its_directory_cannot_announce(bench: Bench) -> None:
    path = PublishedPath("streams_local", "bank", FIRST, "tokyo", "c1")
    staged = tmp_path("/x/a", "tokyo", "gone", "to.all")
    with pytest.raises(FileNotFoundError):
        announce(bench.files, "/x/a", consumers_path("/x/a", "all", "tokyo"), Announcement("tokyo", path), staged)
    assert bench.files.list("/x/a/system/consumers/all/tokyo") == []


def test_the_loop_goes_on_after_a_takeover_and_stops(bench: Bench) -> None:
    stop = threading.Event()
    client = bench.server.client()
    passed: list[str] = []

    def hook(point: str) -> None:
        passed.append(point)
        if point == "after MOVE" and passed.count(point) == 1:
            bench.server.expire(client.session_id)
        if point == "after SUCCESS_COMMIT" and passed.count(point) == 2:
            stop.set()

    settings = replace(bench.world.settings["tokyo"], interval_s=0.001)
    bench.service(settings, client, hook).run(stop)
    assert passed.count("after claim") == 2
    assert bench.status()["tokyo"]["running"] is False
    bench.world.finish(bench.zookeeper)
    assert bench.world.problems(bench.zookeeper) == []


def test_empty_minutes_are_in_every_stream(bench: Bench) -> None:
    bench.world.finish(bench.zookeeper)
    for name in CHAIN:
        stream = "streams_local" if name == "tokyo" else "streams"
        path = PublishedPath(stream, "bank", datetime.fromisoformat("2026-11-21T15:51:00+00:00"), "tokyo", "c1")
        assert bench.files.list(path.on(bench.world.root(name))) == []
