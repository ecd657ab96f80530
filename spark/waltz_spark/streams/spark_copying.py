"""Copies by Spark tasks: a mirror of a terabyte uses the cluster.

The driver groups the files by size and names a directory of the run for the job; every attempt of a task writes files
of names that no other attempt has, compares them, and answers with their paths. Only the driver gives a file its name
in a temporary, by a rename, and only one that an answer named. So it does not matter what else Spark starts, repeats or
forgets to end: a task that comes late writes into files that nobody will look at, and once the driver has deleted the
directory, or a later run has taken it away, it cannot even make one (no gate makes a missing directory).

Large files are copied in pieces (``splitting`` says how, and why this changes nothing of the above): one job copies
whole files and pieces, a second one joins pieces, a third one reads what was joined again.

A root that is a directory has to be seen by every executor. On a Hadoop file system the copies run in a JVM of the
task's own Python process: Spark's is out of its reach.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from waltz_spark.streams.copying import CopyRoom, FileCopy, in_tasks
from waltz_spark.streams.files import Files, local_files, other_bytes
from waltz_spark.streams.layout import join
from waltz_spark.streams.splitting import (
    Copied,
    FilePiece,
    Gates,
    Join,
    answers_of_files,
    attempt_compact,
    attempt_copy,
    attempt_join,
    attempt_sum,
    pieces_of,
)

__all__ = ["OnSpark", "SparkJobs", "TaskGates"]

_RESULT = "number long, path string, checksum long, problem string, error string"

Unit = TypeVar("Unit")

Group = Callable[[int], Iterator[Copied]]
"""The work of the task of this number. Pickled, and run somewhere else."""

RunJob = Callable[[int, Group, str], list[Copied]]
"""So many tasks, the work of each, and what the job is called; the answers of one attempt of each. OSError."""


class _NotJoined(OSError):
    """A file system that says that it can join files has not done so."""


class OnSpark:
    """A ``Copier``: ``run`` runs a job of at most ``tasks`` tasks, ``gates`` are the gates inside of one.

    ``say`` is told when a batch has been copied, for people. ``split_bytes``: a file with more is copied in pieces of
    so many, where they can be joined; 0: never.
    """

    def __init__(
        self,
        run: RunJob,
        gates: Gates,
        tasks: int,
        say: Callable[[str], None] = lambda text: None,
        split_bytes: int = 0,
    ) -> None:
        self._run, self._gates, self._tasks, self._say, self._split_bytes = run, gates, tasks, say, split_bytes

    def copy(self, works: Sequence[Sequence[FileCopy]], room: CopyRoom) -> list[str]:
        began = time.monotonic()
        copies = [each for work in works for each in work]
        attempts = room.new_directory("copies")
        try:
            answers = self._copied(copies, attempts, room)
        except _NotJoined as error:
            self._say(f"{error}; files are copied whole from now on")
            self._split_bytes = 0
            answers = self._copied(copies, attempts, room)
        problems = []
        first = 0
        for work in works:
            mine = answers[first : first + len(work)]
            problems.append(next((each.problem for each in mine if each.problem), ""))
            if not problems[-1]:
                for each, answer in zip(work, mine, strict=True):
                    room.files.rename(answer.path, each.target)
                    room.copied()
            first += len(work)
        room.files.delete(attempts)
        what = f"{len(copies)} files, {sum(each.size_bytes for each in copies) / 1e6:.0f} MB, of {len(works)} parts"
        self._say(f"copied {what}, with {self._tasks} tasks in {time.monotonic() - began:.1f} s")
        return problems

    def compact(self, groups: Sequence[Sequence[str]], attempts: str, files: Files) -> dict[str, str]:
        numbers: dict[str, int] = {}
        for group in groups:
            for path in group:
                numbers[path] = len(numbers)
        units = [{path: numbers[path] for path in group} for group in groups]
        gates = self._gates
        answers = self._job(
            units, [len(unit) for unit in units], lambda mine: attempt_compact(gates, attempts, mine), "compactions"
        )
        for answer in answers.values():
            if answer.error:
                raise OSError(f"a Spark task could not compact files: {answer.error}")
        return {path: answers[number].path for path, number in numbers.items() if number in answers}

    def _copied(self, copies: Sequence[FileCopy], attempts: str, room: CopyRoom) -> list[Copied]:
        """For each file an answer with a path or a problem."""
        is_split = self._split_bytes and room.files.joining(attempts) != "no"
        pieces = pieces_of([each.size_bytes for each in copies], self._split_bytes if is_split else 0)
        units = [(number, copies[each.file], each.span) for number, each in enumerate(pieces)]
        sizes = [each.span.size_bytes if each.span else copies[each.file].size_bytes for each in pieces]
        gates = self._gates
        answers = self._job(units, sizes, lambda mine: attempt_copy(gates, attempts, mine), "copies")
        for number, each in enumerate(pieces):
            if answers[number].error:
                raise OSError(f"a Spark task could not copy {copies[each.file].path}: {answers[number].error}")
        found, joins = answers_of_files(pieces, answers)
        joined = self._joined(joins, [copies[each.file].size_bytes for each in joins], attempts, room.files)
        self._compare(joined, pieces, answers)
        for file, path in joined.items():
            seen = room.files.look(path)
            if seen is None or seen.size_bytes != copies[file].size_bytes:
                raise other_bytes(path)
            found[file] = Copied(file, path)
        return [found[file] for file in range(len(copies))]

    def _joined(self, joins: Sequence[Join], sizes: Sequence[int], attempts: str, files: Files) -> dict[int, str]:
        """File -> the path of what its pieces have become."""
        if not joins:
            return {}
        if files.joining(attempts) == "names":
            paths = {each.file: join(attempts, f"joined.{each.file}") for each in joins}
            for each in joins:
                try:
                    files.join(each.paths, paths[each.file])
                except OSError as error:
                    raise _NotJoined(f"{paths[each.file]} could not be joined of its pieces: {error}") from error
            return paths
        gates = self._gates
        answers = self._job(joins, sizes, lambda mine: attempt_join(gates, attempts, mine), "joins")
        for answer in answers.values():
            if answer.error:
                raise OSError(f"a Spark task could not join the pieces of a copy: {answer.error}")
        return {number: answer.path for number, answer in answers.items()}

    def _compare(self, joined: Mapping[int, str], pieces: Sequence[FilePiece], read: Mapping[int, Copied]) -> None:
        """OSError if what was joined is not what was ``read``."""
        spans = [
            (number, joined[each.file], each.span)
            for number, each in enumerate(pieces)
            if each.span is not None and each.file in joined
        ]
        gates = self._gates
        sizes = [span.size_bytes for _, _, span in spans]
        answers = self._job(spans, sizes, lambda mine: attempt_sum(gates, mine), "comparisons")
        for number, path, _ in spans:
            if answers[number].error:
                raise OSError(f"a Spark task could not read {path} again: {answers[number].error}")
            if answers[number].checksum != read[number].checksum:
                raise other_bytes(path)

    def _job(
        self,
        units: Sequence[Unit],
        sizes: Sequence[int],
        work: Callable[[Sequence[Unit]], Iterator[Copied]],
        what: str,
    ) -> dict[int, Copied]:
        """The answers, by their numbers. ``work``: what a task does with its units."""
        if not units:
            return {}
        groups = [[units[number] for number in group] for group in in_tasks(sizes, self._tasks)]
        what = f"{len(units)} {what}, {sum(sizes) / 1e6:.0f} MB"
        return {each.number: each for each in self._run(len(groups), lambda task: work(groups[task]), what)}


class SparkJobs:
    """``RunJob`` of a SparkSession."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __call__(self, tasks: int, group: Group, what: str) -> list[Copied]:
        # Where there is a Spark there are these.
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        def work(batches: Iterable[Any]) -> Iterator[Any]:
            import pyarrow as pa

            for batch in batches:
                for task in batch.column(0).to_pylist():
                    for answer in group(task):
                        yield pa.record_batch([[value] for value in answer], names=list(Copied._fields))

        try:
            self._spark.sparkContext.setJobDescription(f"waltz streams: {what}")
            try:
                # Row i of spark.range(n, numPartitions=n) is the only one of task i.
                rows = self._spark.range(0, tasks, 1, tasks).mapInArrow(work, _RESULT).collect()
            finally:
                self._spark.sparkContext.setJobDescription(None)
        except (PySparkException, Py4JError, ConnectionError) as error:  # the last two: its JVM has gone
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise OSError(f"Spark could not copy: {lines[-1] if lines else type(error).__name__}") from error
        return [Copied(*row) for row in rows]


class TaskGates:
    """The gates in a task's process. Made by the driver and pickled. ``configuration``: Hadoop's, as XML; "" = none."""

    def __init__(self, configuration: str = "") -> None:
        self._configuration = configuration

    @classmethod
    def of(cls, spark: Any) -> TaskGates:
        """With the Hadoop configuration of a SparkSession, which may have what it needs to log in somewhere."""
        context = spark.sparkContext
        text = context._jvm.java.io.StringWriter()
        context._jsc.hadoopConfiguration().writeXml(text)
        return cls(str(text.toString()))

    def __call__(self, root: str) -> Files:
        if "://" not in root:
            return local_files(root)
        if (files := _opened.get(self._configuration)) is None:
            files = _opened[self._configuration] = self._hadoop_files()
        return files

    def _hadoop_files(self) -> Files:
        from pyspark.java_gateway import launch_gateway

        from waltz_spark.streams.hadoop_files import HadoopFiles

        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]  # ends with its input, which is this process
        configuration = gateway.jvm.org.apache.hadoop.conf.Configuration(False)
        configuration.addResource(gateway.jvm.java.io.ByteArrayInputStream(self._configuration.encode()))
        return HadoopFiles(gateway, configuration)


_opened: dict[str, Files] = {}
"""Of this process; a task's Python process is used for many tasks."""
