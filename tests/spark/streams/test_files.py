"""One contract for every kind of gate: local, Hadoop (on file://), and the tests' own that can lose its power."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from waltz_spark.streams.files import CHUNK_BYTES, ByteSpan, Files, LocalFiles, copy_file, local_files, normal_root
from waltz_spark.streams.hadoop_files import HadoopFiles
from waltz_spark.streams.layout import join
from waltz_spark.streams.odd import make_way, put_file

from tests.spark.streams.memory_files import MemoryFiles
from tests.spark.streams.world import CHAIN, World
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.errors import InvalidInput, StorageError
from waltz_ray.protocol.checksum import crc32

KINDS = ["memory", "local", pytest.param("hadoop", marks=pytest.mark.spark)]


@pytest.fixture(scope="session")
def java_gateway() -> Iterator[Any]:
    """A JVM with Spark's jars and no SparkSession: it gets in nobody's way."""
    from pyspark.java_gateway import launch_gateway
    from waltz_spark.session import use_java

    use_java()
    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    try:
        yield gateway
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()  # it ends with its input
        gateway.proc.wait(timeout=60)


def test_without_its_jvm_a_gate_refuses_in_one_line() -> None:
    """And ends the service: as an OSError it would be taken for one of the file, which goes to quarantine."""
    gateway = mock.MagicMock()
    gateway.jvm.org.apache.hadoop.fs.Path.side_effect = Py4JNetworkError("Answer from Java side\nis empty")
    files = HadoopFiles(gateway)
    for act in (files.exists, files.look, files.list, files.read, files.checksum, files.delete):
        with pytest.raises(
            StorageError, match=r"^hdfs://n/a: Spark's JVM does not answer: Answer from Java side is empty$"
        ):
            act("hdfs://n/a")


def test_an_error_of_java_without_words_is_one_all_the_same() -> None:
    error = Py4JJavaError("", mock.MagicMock(_target_id="o1"))
    error.java_exception.getClass().getName.return_value = "java.io.IOException"
    error.java_exception.getMessage.return_value = ""
    gateway = mock.MagicMock()
    gateway.jvm.org.apache.hadoop.fs.Path.side_effect = error
    with pytest.raises(OSError, match=r"^hdfs://n/a: IOException"):
        HadoopFiles(gateway).exists("hdfs://n/a")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def files(kind: str, request: pytest.FixtureRequest) -> Files:
    if kind == "memory":
        return MemoryFiles()
    return LocalFiles() if kind == "local" else HadoopFiles(request.getfixturevalue("java_gateway"))


@pytest.fixture
def top(kind: str, files: Files, tmp_path: Path) -> str:
    path = f"file://{tmp_path}" if kind == "hadoop" else str(tmp_path)
    files.make_directories(path)
    return path


def test_files_and_directories(files: Files, top: str) -> None:
    files.make_directories(join(top, "a", "b"))
    files.make_directories(join(top, "a", "b"))
    files.make_directory(join(top, "a", "c"))
    content = bytes(range(256)) * 5000
    files.write(join(top, "a", "file"), [content[:7], b"", content[7:]])
    files.write(join(top, "a", "empty"), [])
    assert files.list(join(top, "a")) == ["b", "c", "empty", "file"]
    assert files.read(join(top, "a", "file")) == content
    assert files.read(join(top, "a", "empty")) == b""
    pieces = list(files.chunks(join(top, "a", "file")))
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) <= CHUNK_BYTES
    files.write(join(top, "a", "file"), [b"new"])
    assert files.read(join(top, "a", "file")) == b"new"
    copy_file(files, join(top, "a", "file"), files, join(top, "a", "copy"))
    assert files.read(join(top, "a", "copy")) == b"new"
    assert (files.exists(join(top, "a", "copy")), files.exists(join(top, "a", "none"))) == (True, False)
    files.sync_directory(join(top, "a"))
    assert files.file_system(top) == files.file_system(join(top, "not", "made"))


@pytest.mark.parametrize(
    ("span", "wanted"),
    [
        (ByteSpan(0, 3), slice(0, 3)),
        (ByteSpan(5, 2 * CHUNK_BYTES), slice(5, 5 + 2 * CHUNK_BYTES)),
        (ByteSpan(CHUNK_BYTES, 10 * CHUNK_BYTES), slice(CHUNK_BYTES, None)),
        (ByteSpan(100 * CHUNK_BYTES, 1), slice(0, 0)),
        (ByteSpan(7, 0), slice(0, 0)),
    ],
)
def test_spans(files: Files, top: str, span: ByteSpan, wanted: slice) -> None:
    content = bytes(range(256)) * 10_000
    files.write(join(top, "file"), [content])
    pieces = list(files.chunks(join(top, "file"), span))
    assert b"".join(pieces) == content[wanted]
    assert all(len(piece) <= CHUNK_BYTES for piece in pieces)
    assert files.copy(join(top, "file"), join(top, "copy"), span) == crc32(content[wanted])
    assert files.read(join(top, "copy")) == content[wanted]
    assert files.checksum(join(top, "file"), span) == crc32(content[wanted])


def test_joins(files: Files, top: str) -> None:
    if files.joining(top) == "no":
        assert isinstance(files, HadoopFiles)  # on file://: has no concat
        return
    content = [bytes([number]) * (CHUNK_BYTES + number) for number in range(3)]
    for number, each in enumerate(content):
        files.write(join(top, str(number)), [each])
    files.join([join(top, "2"), join(top, "0"), join(top, "1")], join(top, "joined"))
    assert files.read(join(top, "joined")) == content[2] + content[0] + content[1]
    files.write(join(top, "0"), [content[0]])  # it may be gone
    with pytest.raises(FileNotFoundError):
        files.join([join(top, "0"), join(top, "none")], join(top, "more"))


def test_joins_where_the_kernel_does_not_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at all, or it stops in the middle."""
    copy = os.copy_file_range
    files = LocalFiles()
    for number in range(3):
        files.write(str(tmp_path / str(number)), [bytes([number]) * 5000])

    answers: list[bool] = []

    def refuses(source: int, target: int, count: int) -> int:
        if answers and answers.pop():
            return copy(source, target, 1000)
        raise OSError(errno.EXDEV, "two file systems")

    monkeypatch.setattr(os, "copy_file_range", refuses)
    for answers[:] in ([], [True, True], [False, True]):
        files.join([str(tmp_path / str(number)) for number in range(3)], str(tmp_path / "joined"))
        assert files.read(str(tmp_path / "joined")) == b"".join(bytes([number]) * 5000 for number in range(3))


CONCAT = """
import java.io.*;
import org.apache.hadoop.fs.*;

public class ConcatFileSystem extends RawLocalFileSystem {
    public java.net.URI getUri() { return java.net.URI.create("concat:///"); }
    public boolean hasPathCapability(Path path, String capability) throws IOException {
        return capability.equals("fs.capability.paths.concat") || super.hasPathCapability(path, capability);
    }
    public void concat(Path target, Path[] sources) throws IOException {
        OutputStream out = new FileOutputStream(pathToFile(target), true);
        for (int i = 0; i < sources.length; i++) {
            if (getFileStatus(sources[i]).getLen() == 0) throw new IOException("concat: an empty file, as HDFS says");
            java.nio.file.Files.copy(pathToFile(sources[i]).toPath(), out);
            if (!delete(sources[i], false)) throw new FileNotFoundException(sources[i].toString());
        }
        out.close();
    }
}
"""


@pytest.mark.spark
def test_a_hadoop_file_system_that_joins_by_names(java_gateway: Any, tmp_path: Path) -> None:
    """Compiled by the compiler that Spark brings along; there is no HDFS here."""
    jvm = java_gateway.jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(CONCAT)
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    configuration.setClassLoader(compiler.getClassLoader())
    configuration.set("fs.concat.impl", "ConcatFileSystem")
    files = HadoopFiles(java_gateway, configuration)
    top = f"concat://{tmp_path}"
    assert (files.joining(top), HadoopFiles(java_gateway).joining(f"file://{tmp_path}")) == ("names", "no")
    test_joins(files, top)
    assert (tmp_path / "0").exists()
    files.join([join(top, "0")], join(top, "alone"))
    assert (tmp_path / "alone").read_bytes() == bytes(CHUNK_BYTES)


@pytest.mark.parametrize("read", [LocalFiles.read, LocalFiles.checksum, lambda files, path: list(files.chunks(path))])
def test_what_is_no_file_is_never_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[LocalFiles, str], object]
) -> None:
    """A pipe that nobody writes to came between the look and the read."""
    monkeypatch.chdir(tmp_path)  # the names of sockets have to be short
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as there:
        there.bind("socket")
        for name in ("pipe", "socket", "/dev/zero"):
            with pytest.raises(OSError, match=r"not a file|No such device"):
                read(LocalFiles(), name)
    with pytest.raises(IsADirectoryError):
        read(LocalFiles(), str(tmp_path))


def test_renames(files: Files, top: str) -> None:
    files.make_directories(join(top, "one"))
    files.make_directories(join(top, "there"))
    files.write(join(top, "one", "file"), [b"1"])
    files.write(join(top, "other"), [b"2"])
    files.rename(join(top, "one"), join(top, "two"))
    assert (files.list(top), files.list(join(top, "two"))) == (["other", "there", "two"], ["file"])
    with pytest.raises(FileExistsError):
        files.rename(join(top, "two"), join(top, "there"))
    with pytest.raises(FileExistsError):
        files.rename(join(top, "two", "file"), join(top, "other"))
    files.replace(join(top, "two", "file"), join(top, "other"))
    assert (files.read(join(top, "other")), files.list(join(top, "two"))) == (b"1", [])
    files.replace(join(top, "other"), join(top, "again"))
    assert files.read(join(top, "again")) == b"1"


def test_deletes(files: Files, top: str) -> None:
    files.make_directories(join(top, "a", "b", "c"))
    files.write(join(top, "a", "file"), [b"1"])
    assert not files.remove_empty(join(top, "a"))
    assert files.remove_empty(join(top, "a", "b", "c"))
    assert files.remove_empty(join(top, "a", "b", "c"))
    files.delete(join(top, "a", "file"))
    files.delete(join(top, "a", "file"))
    assert files.list(join(top, "a")) == ["b"]
    files.delete(join(top, "a"))
    assert files.list(top) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda files, top: files.list(join(top, "none")),
        lambda files, top: files.read(join(top, "none")),
        lambda files, top: list(files.chunks(join(top, "none"))),
        lambda files, top: files.write(join(top, "none", "file"), [b"1"]),
        lambda files, top: files.copy(join(top, "none"), join(top, "copy")),
        lambda files, top: files.copy(join(top, "file"), join(top, "none", "copy")),
        lambda files, top: files.make_directory(join(top, "none", "a")),
        lambda files, top: files.rename(join(top, "none"), join(top, "a")),
        lambda files, top: files.rename(join(top, "file"), join(top, "none", "a")),
        lambda files, top: files.replace(join(top, "none"), join(top, "a")),
        lambda files, top: files.replace(join(top, "file"), join(top, "none", "a")),
        lambda files, top: files.sync_directory(join(top, "none")),
    ],
)
def test_what_is_missing_is_said(files: Files, top: str, call: Callable[[Files, str], object]) -> None:
    files.write(join(top, "file"), [b"1"])
    with pytest.raises(FileNotFoundError):
        call(files, top)
    assert files.list(top) == ["file"]


def test_other_refusals(files: Files, top: str) -> None:
    files.write(join(top, "file"), [b"1"])
    with pytest.raises(NotADirectoryError):
        files.list(join(top, "file"))
    files.make_directory(join(top, "a"))
    with pytest.raises(FileExistsError):
        files.make_directory(join(top, "a"))


def test_what_stands_there(files: Files, top: str) -> None:
    files.write(join(top, "file"), [b"123"])
    files.make_directory(join(top, "a"))
    seen = files.look(join(top, "file"))
    assert seen is not None
    assert (seen.kind, seen.size_bytes) == ("file", 3)
    assert files.look(join(top, "file")) == seen
    directory = files.look(join(top, "a"))
    assert directory is not None
    assert directory.kind == "directory"
    assert files.look(join(top, "none")) is files.look(join(top, "file", "below")) is None
    for below in ((), ("b", "c")):
        with pytest.raises((FileExistsError, NotADirectoryError)):
            files.make_directories(join(top, "file", *below))


def test_what_stands_in_the_way_is_moved_aside(files: Files, top: str) -> None:
    files.make_directories(join(top, "system"))
    files.write(join(top, "system", "trash"), [b"1"])
    make_way(files, top, join(top, "system", "trash", "2026112115", "tokyo"))
    files.make_directories(join(top, "system", "trash", "2026112115", "tokyo", "name", "below"))
    files.write(join(top, "new"), [b"2"])
    put_file(files, top, join(top, "new"), join(top, "system", "trash", "2026112115", "tokyo", "name"))
    assert files.read(join(top, "system", "trash", "2026112115", "tokyo", "name")) == b"2"
    aside = sorted(name.partition(".")[2] for name in files.list(join(top, "system", "odd")))
    assert aside == ["name", "trash"]


@pytest.mark.spark
def test_the_services_on_a_hadoop_file_system(java_gateway: Any, tmp_path: Path) -> None:
    """The whole chain, with renames, hsync and announcements by the JVM."""
    world = World(HadoopFiles(java_gateway), f"file://{tmp_path}")
    zookeeper = MemoryZooKeeperServer().client()
    assert [len(one.committed) for one in world.finish(zookeeper).values()] == [2] * len(CHAIN)
    assert world.problems(zookeeper) == []


def test_between_two_gates(tmp_path: Path) -> None:
    memory = MemoryFiles()
    memory.write("/file", [b"the same bytes"])
    copy_file(memory, "/file", LocalFiles(), str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == b"the same bytes"


def test_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert normal_root("x/") == str(tmp_path / "x")
    assert normal_root("file:///a%20b/c/") == "/a b/c"
    assert normal_root("hdfs://name/a/") == "hdfs://name/a"
    assert local_files("/a") is local_files("file:///b")
    with pytest.raises(InvalidInput, match="running Spark"):
        local_files("hdfs://name/a")
    with pytest.raises(InvalidInput, match="empty"):
        normal_root("")


def test_power_loss() -> None:
    """What the tests' own file system forgets: every name that was not synced, and the half of a rename never."""
    files = MemoryFiles()
    files.make_directories("/a")
    files.make_directories("/b")
    files.write("/a/synced", [b"1"])
    files.sync_directory("/a")
    files.write("/a/lost", [b"2"])
    files.rename("/a/synced", "/b/moved")
    files.lose_power()
    assert (files.list("/a"), files.list("/b")) == (["synced"], [])
    files.rename("/a/synced", "/b/moved")
    files.sync_directory("/b")
    files.write_unsynced("/b/moved", b"half")
    files.lose_power()
    assert (files.list("/a"), files.read("/b/moved")) == ([], b"1")


def test_a_directory_that_another_has_not_synced_yet_is_durable_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or that one was killed in between: a loss of power would take it with all that was published in it."""
    (tmp_path / "2026").mkdir()
    synced: list[str] = []
    monkeypatch.setattr(LocalFiles, "sync_directory", lambda files, path: synced.append(path))
    LocalFiles().make_directories(str(tmp_path / "2026"))
    assert synced == [str(tmp_path)]
    LocalFiles().make_directories(str(tmp_path / "2026" / "11"))
    assert synced[1:] == [str(tmp_path), str(tmp_path / "2026")]
