"""When a disk counts as slow; the clock is given."""

from __future__ import annotations

from waltz_ray.actors.slow_disk import SlowDisk


class Syncs:
    """One after the other."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.disk = SlowDisk(lambda: self.now_s)

    def take(self, seconds: float, count: int = 1) -> str:
        for _ in range(count):
            sync = self.disk.begins()
            self.now_s += seconds
            assert abs(self.disk.ends(sync) - seconds) < 1e-9
        return self.disk.told()


def test_a_disk_that_was_never_used_is_not_slow() -> None:
    assert SlowDisk(lambda: 0.0).told() == ""


def test_some_slow_syncs_are_no_slow_disk_and_most_are() -> None:
    syncs = Syncs()
    assert syncs.take(0.3, 3) == "", "too few to tell"
    assert syncs.take(0.001, 16) == ""
    assert syncs.take(0.3, 7) == ""
    assert syncs.take(0.3, 3) == "its disk is slow: a sync takes 300 ms"
    assert syncs.take(0.001, 10) == "", "well again"


def test_a_sync_that_does_not_end_is_told_of_while_it_lasts() -> None:
    syncs = Syncs()
    sync = syncs.disk.begins()
    syncs.now_s += 1.9
    assert syncs.disk.told() == ""
    syncs.now_s += 8.1
    assert syncs.disk.told() == "its disk is slow: a sync has not ended for 10 s"
    syncs.disk.ends(sync)
    assert syncs.disk.told() == "", "one"


def test_a_disk_that_nobody_writes_to_any_more_is_not_slow() -> None:
    syncs = Syncs()
    assert syncs.take(0.5, 10)
    syncs.now_s += 61.0
    assert syncs.disk.told() == ""
