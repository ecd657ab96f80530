"""Copies by Spark tasks: a mirror of a terabyte uses the cluster.

The driver groups the files by size and names a directory of the run for the job; every attempt of a task writes files
of names that no other attempt has, compares them, and answers with their paths. Only the driver gives a file its name
in a temporary, by a rename, and only one that an answer named. So it does not matter what else Spark starts, repeats or
forgets to end: a task that comes late writes into files that nobody will look at, and once the driver has deleted the
directory, or a later run has taken it away, it cannot even make one (no gate makes a missing directory).

A root that is a directory has to be seen by every executor. On a Hadoop file system the copies run in a JVM of the
task's own Python process: Spark's is out of its reach.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from waltz_spark.streams.copying import CopyRoom, FileCopy, copy_input, in_tasks
from waltz_spark.streams.files import Files, local_files
from waltz_spark.streams.layout import join

__all__ = ["Copied", "OnSpark", "SparkJobs", "TaskGates", "copied_group"]

_RESULT = "number long, path string, problem string, error string"


class Copied(NamedTuple):
    """The answer of an attempt about one file: its copy's ``path``, the ``problem`` with the input, or the ``error``.

    An error is an answer, not a failure of the task: doing it again at once would not help, and the driver says it
    better.
    """

    number: int
    path: str
    problem: str
    error: str


Group = Callable[[int], Iterator[Copied]]
"""The work of the task of this number. Pickled, and run somewhere else."""

RunJob = Callable[[int, Group, str], list[Copied]]
"""So many tasks, the work of each, and what the job is called; the answers of one attempt of each. OSError."""


class OnSpark:
    """A ``Copier``: ``run`` runs a job of at most ``tasks`` tasks, ``gates`` are the gates inside of one.

    ``say`` is told when a batch has been copied, for people.
    """

    def __init__(
        self, run: RunJob, gates: Callable[[str], Files], tasks: int, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._run, self._gates, self._tasks, self._say = run, gates, tasks, say

    def copy(self, works: Sequence[Sequence[FileCopy]], room: CopyRoom) -> list[str]:
        began = time.monotonic()
        copies = [each for work in works for each in work]
        attempts = room.new_directory("copies")
        groups = in_tasks([each.size_bytes for each in copies], self._tasks)
        what = f"{len(copies)} files, {sum(each.size_bytes for each in copies) / 1e6:.0f} MB, of {len(works)} parts"
        answers = {each.number: each for each in self._run(len(groups), self._group(copies, groups, attempts), what)}
        problems = []
        first = 0
        for work in works:
            mine = [answers[number] for number in range(first, first + len(work))]
            problems.append(next((each.problem for each in mine if each.problem), ""))
            if not problems[-1]:
                self._take(work, mine, room)
            first += len(work)
        room.files.delete(attempts)
        seconds = time.monotonic() - began
        self._say(f"copied {what}, with {len(groups)} tasks in {seconds:.1f} s")
        return problems

    def _group(self, copies: Sequence[FileCopy], groups: Sequence[Sequence[int]], attempts: str) -> Group:
        gates = self._gates
        return lambda task: copied_group(gates, [(number, copies[number]) for number in groups[task]], attempts)

    def _take(self, work: Sequence[FileCopy], answers: Sequence[Copied], room: CopyRoom) -> None:
        for each, answer in zip(work, answers, strict=True):
            if answer.error:
                raise OSError(f"a Spark task could not copy {each.path}: {answer.error}")
            room.files.rename(answer.path, each.target)
            room.copied()


def copied_group(
    gates: Callable[[str], Files], copies: Iterable[tuple[int, FileCopy]], attempts: str
) -> Iterator[Copied]:
    """What one attempt of a task does. ``copies``: (number, what is copied); ``attempts``: on the thread's root."""
    target = gates(attempts)
    for number, each in copies:
        path = join(attempts, f"{number}.{uuid.uuid4().hex}")
        try:
            yield Copied(number, path, copy_input(gates(each.root), each.path, target, path), "")
        except OSError as error:
            yield Copied(number, "", "", f"{error or repr(error)} (every executor must see the roots)")


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

        self._spark.sparkContext.setJobDescription(f"waltz streams: {what}")
        try:
            # Row i of spark.range(n, numPartitions=n) is the only one of task i.
            rows = self._spark.range(0, tasks, 1, tasks).mapInArrow(work, _RESULT).collect()
        except (PySparkException, Py4JError, ConnectionError) as error:  # the last two: its JVM has gone
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise OSError(f"Spark could not copy: {lines[-1] if lines else type(error).__name__}") from error
        finally:
            self._spark.sparkContext.setJobDescription(None)
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
