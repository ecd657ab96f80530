"""``waltz bench copies``: how fast a mirror copies, in its process and with Spark tasks, beside a plain copy.

With ``--split-mb`` tasks copy in pieces, too, which are joined: one large file is then copied by all of them.

No log and no ZooKeeper take part: what one merged announced lies there, and each case is a mirror with a root of its
own that takes all of it in one pass. All files are in the page cache from the start, for every case.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from waltz_spark.local_session import start_local_spark
from waltz_spark.streams.announce import Announcement, announce
from waltz_spark.streams.files import local_files
from waltz_spark.streams.layout import STREAMS, PublishedPath, consumers_path
from waltz_spark.streams.services import StreamService
from waltz_spark.streams.settings import Source, StreamSettings
from waltz_spark.streams.spark_copying import OnSpark, SparkJobs, TaskGates

from waltz_bench.measure import median, ratio
from waltz_bench.recovery import figure
from waltz_bench.report import report
from waltz_bench.spark_read import stdout_is_stderr
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.errors import DataUnavailable

__all__ = ["CopiesOptions", "copies"]

_FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
_PIECE = 1024 * 1024

Progress = Callable[[str], None]


@dataclass(frozen=True)
class CopiesOptions:
    """``minutes`` parts of ``files`` files with ``mb`` megabytes each; every case ``runs`` times, in turn.

    ``split_mb``: tasks copy whole files, and, as cases of their own, pieces of so many megabytes; 0: whole files only.
    """

    minutes: int = 8
    files: int = 4
    mb: int = 32
    runs: int = 3
    tasks: tuple[int, ...] = (1, 4)
    split_mb: int = 0


def copies(place: Path, options: CopiesOptions, progress: Progress) -> dict[str, Any]:
    """Every case once for nothing, then ``runs`` times in turn."""
    source = place / "all"
    progress(f"writing {options.minutes * options.files} files of {options.mb} MB")
    parts = [_part(source, minute, options) for minute in range(options.minutes)]
    progress("starting Spark")
    with stdout_is_stderr():
        spark = start_local_spark("waltz-bench", cores=max(options.tasks))
    try:
        cases: dict[str, Callable[[str], None]] = {
            "plain copy": lambda name: _plain(source, parts, place / name),
            "in the service's process": partial(_mirror, place, source, parts, None, 0, 0),
        }
        for tasks in options.tasks:
            for split_mb in sorted({0, options.split_mb}):
                cases[f"{tasks} Spark tasks" + (f", pieces of {split_mb} MB" if split_mb else "")] = partial(
                    _mirror, place, source, parts, spark, tasks, split_mb * _PIECE
                )
        taken = _taken(place, cases, options.runs, progress)
    finally:
        spark.stop()
    return _found(place, options, taken)


def _taken(
    place: Path, cases: dict[str, Callable[[str], None]], runs: int, progress: Progress
) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for run in range(runs + 1):
        for number, (name, case) in enumerate(cases.items()):
            progress(f"{'warming up' if run == 0 else f'run {run} of {runs}'}: {name}")
            target = f"target-{run}-{number}"
            begin = perf_counter()
            case(target)
            seconds = perf_counter() - begin
            shutil.rmtree(place / target)
            if run:
                taken[name].append(seconds)
    return taken


def _part(source: Path, minute: int, options: CopiesOptions) -> PublishedPath:
    part = PublishedPath(STREAMS, "bench", _FIRST + timedelta(minutes=minute), "tokyo", "c1")
    directory = Path(part.on(str(source)))
    directory.mkdir(parents=True)
    for number in range(options.files):
        with open(directory / f"{number}.bin", "wb") as file:
            for _ in range(options.mb):
                file.write(os.urandom(_PIECE))
            file.flush()
            os.fsync(file.fileno())
    return part


def _plain(source: Path, parts: list[PublishedPath], target: Path) -> None:
    """What ``cp`` does, and a sync of every file."""
    for part in parts:
        there = Path(part.on(str(target)))
        there.mkdir(parents=True)
        for file in Path(part.on(str(source))).iterdir():
            shutil.copyfile(file, there / file.name)
            with open(there / file.name, "rb") as copied:
                os.fsync(copied.fileno())


def _mirror(
    place: Path, source: Path, parts: list[PublishedPath], spark: Any, tasks: int, split_bytes: int, name: str
) -> None:
    """One pass of a mirror that has to take everything; DataUnavailable if it has not."""
    files = local_files(str(source))
    inbox = consumers_path(str(source), name, "all")
    for part in parts:
        announce(files, str(source), inbox, Announcement("all", part), str(source / "staged"))
    target = place / name
    target.mkdir()
    settings = StreamSettings("mirror", name, str(target), (Source("all", str(source)),))
    on_spark = None
    if spark is not None:
        settings = replace(settings, spark_copy_bytes=1, copy_tasks=tasks)
        on_spark = OnSpark(SparkJobs(spark), TaskGates(), tasks, split_bytes=split_bytes)
    with StreamService(settings, MemoryZooKeeperServer().client(), on_spark=on_spark) as service:
        passed = service.run_once()
    if len(passed.committed) != len(parts):
        raise DataUnavailable(f"{len(passed.committed)} of {len(parts)} parts were mirrored: {passed.quarantined}")


def _found(place: Path, options: CopiesOptions, taken: dict[str, list[float]]) -> dict[str, Any]:
    mb = options.minutes * options.files * options.mb * _PIECE / 1e6
    figures = [figure(name, "MB/s", [mb / each for each in seconds]) for name, seconds in taken.items()]
    plain = median(taken["plain copy"])
    ratios = {
        f"{name}: MB/s by a plain copy's": ratio(plain / median(seconds))
        for name, seconds in taken.items()
        if name != "plain copy"
    }
    return report("copies", [], ratios, place, figures=figures)
