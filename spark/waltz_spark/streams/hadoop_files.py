"""The gate on any Hadoop file system (``hdfs://``, ``s3a://``, ...), through the classes of a running Spark's JVM.

Bytes that stay between Hadoop file systems are copied inside the JVM. ``hsync`` is as strong as the file system makes
it; HDFS keeps every name durably before it answers, so there is nothing to do for directories. A file system without
an atomic rename of directories (plain S3) must not hold a root.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from waltz_ray.errors import StorageError
from waltz_spark.streams.files import CHUNK_BYTES, ByteSpan, Joining, SeenPath

__all__ = ["HadoopFiles"]

_CONCAT = "fs.capability.paths.concat"  # HDFS has it: the blocks of several files become those of one

_ERRORS: dict[str, type[OSError]] = {
    "java.io.FileNotFoundException": FileNotFoundError,
    "java.nio.file.NoSuchFileException": FileNotFoundError,
    "org.apache.hadoop.fs.FileAlreadyExistsException": FileExistsError,
    "org.apache.hadoop.fs.ParentNotDirectoryException": NotADirectoryError,
}


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """Java's exceptions become the built-in ones, on one line. StorageError: there is no Java any more."""
    try:
        yield
    except Py4JJavaError as error:
        java = error.java_exception
        name = str(java.getClass().getName())
        message = str(java.getMessage()).partition("\n")[0]
        raise _ERRORS.get(name, OSError)(f"{path}: {name.rpartition('.')[2]} {message}") from error
    except Py4JError as error:
        # No OSError, which is one of the file: for that it would be put into quarantine, and looked for again.
        raise StorageError(f"{path}: Spark's JVM does not answer: {' '.join(str(error).split())}") from error


class HadoopFiles:
    """``gateway``: py4j's, of a JVM with Hadoop's classes; ``configuration``: Hadoop's, None: a new one.

    Paths are ``scheme://`` URIs. May serve several file systems at once, as a root and its sources may need.
    """

    def __init__(self, gateway: Any, configuration: Any = None) -> None:
        self._gateway = gateway
        self._hadoop = gateway.jvm.org.apache.hadoop
        self._configuration = configuration if configuration is not None else self._hadoop.conf.Configuration()

    @classmethod
    def of(cls, spark: Any) -> HadoopFiles:
        """On the JVM and the Hadoop configuration of a SparkSession."""
        context = spark.sparkContext
        return cls(context._gateway, context._jsc.hadoopConfiguration())

    def _at(self, path: str) -> tuple[Any, Any]:
        """(file system, Path)."""
        there = self._hadoop.fs.Path(path)
        return there.getFileSystem(self._configuration), there

    def exists(self, path: str) -> bool:
        with _translated(path):
            system, there = self._at(path)
            return bool(system.exists(there))

    def look(self, path: str) -> SeenPath | None:
        try:
            with _translated(path):
                system, there = self._at(path)
                status = system.getFileStatus(there)
                size_bytes, modified = status.getLen(), status.getModificationTime() / 1000
                is_file, is_directory = status.isFile(), status.isDirectory()
                return SeenPath("file" if is_file else "directory" if is_directory else "other", size_bytes, modified)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, directory: str) -> list[str]:
        with _translated(directory):
            system, there = self._at(directory)
            if not system.getFileStatus(there).isDirectory():
                raise NotADirectoryError(f"{directory} is a file")
            return sorted(str(status.getPath().getName()) for status in system.listStatus(there))

    def make_directories(self, path: str) -> None:
        with _translated(path):
            system, there = self._at(path)
            if system.exists(there) and not system.getFileStatus(there).isDirectory():
                raise FileExistsError(f"{path} is a file")
            if not system.mkdirs(there):
                raise OSError(f"{path}: the file system would not make the directory")

    def make_directory(self, path: str) -> None:
        with _translated(path):
            system, there = self._at(path)
            if system.exists(there):
                raise FileExistsError(f"{path} is there already")
            fs = self._hadoop.fs
            context = fs.FileContext.getFileContext(there.toUri(), self._configuration)
            context.mkdir(there, fs.permission.FsPermission.getDirDefault(), False)

    def read(self, path: str) -> bytes:
        return b"".join(self.chunks(path))

    def chunks(self, path: str, span: ByteSpan | None = None) -> Iterator[bytes]:
        with _translated(path):
            stream = self._open(path, span)
        try:
            while True:
                with _translated(path):
                    # One call per piece, with the bytes in the answer: py4j copies arrays, it does not share them.
                    bounded = self._bounded(stream, CHUNK_BYTES)
                    piece = bytes(self._gateway.jvm.org.apache.commons.io.IOUtils.toByteArray(bounded))
                if not piece:
                    return
                yield piece
        finally:
            with _translated(path):
                stream.close()

    def _open(self, path: str, span: ByteSpan | None) -> Any:
        system, there = self._at(path)
        stream = system.open(there)
        if span is None:
            return stream
        # Java's streams refuse to seek behind the end; such a span is empty.
        is_beyond = span.first > system.getFileStatus(there).getLen()
        stream.seek(0 if is_beyond else span.first)
        return self._bounded(stream, 0 if is_beyond else span.size_bytes)

    def _bounded(self, stream: Any, size_bytes: int) -> Any:
        return self._gateway.jvm.org.apache.commons.io.input.BoundedInputStream(stream, size_bytes)

    def write(self, path: str, content: Iterable[bytes]) -> None:
        with _translated(path):
            stream = self._create(path)
        try:
            for piece in content:
                with _translated(path):
                    stream.write(piece)
            with _translated(path):
                stream.hsync()
        finally:
            with _translated(path):
                stream.close()

    def _create(self, path: str) -> Any:
        system, there = self._at(path)
        return system.createFile(there).overwrite(True).build()

    def copy(self, path: str, target: str, span: ByteSpan | None = None) -> int:
        with self._summed(path, span) as (source, checksum), _translated(target):
            stream = self._create(target)
            try:
                self._hadoop.io.IOUtils.copyBytes(source, stream, CHUNK_BYTES, False)
                stream.hsync()
            finally:
                stream.close()
            return int(checksum.getValue())

    def checksum(self, path: str, span: ByteSpan | None = None) -> int:
        with self._summed(path, span) as (source, checksum), _translated(path):
            nowhere = self._gateway.jvm.org.apache.commons.io.output.NullOutputStream.NULL_OUTPUT_STREAM
            self._hadoop.io.IOUtils.copyBytes(source, nowhere, CHUNK_BYTES, False)
            return int(checksum.getValue())

    def joining(self, directory: str) -> Joining:
        with _translated(directory):
            system, there = self._at(directory)
            return "names" if system.hasPathCapability(there, _CONCAT) else "no"

    def join(self, pieces: Sequence[str], target: str) -> None:
        first, *others = pieces
        with _translated(first):
            if others:
                system, there = self._at(first)
                array = self._gateway.new_array(self._hadoop.fs.Path, len(others))
                for number, piece in enumerate(others):
                    array[number] = self._at(piece)[1]
                system.concat(there, array)
        self.rename(first, target)

    @contextmanager
    def _summed(self, path: str, span: ByteSpan | None) -> Iterator[tuple[Any, Any]]:
        """The file's stream, and the CRC-32 of what has been read from it."""
        zipped = self._gateway.jvm.java.util.zip
        with _translated(path):
            checksum = zipped.CRC32()
            source = zipped.CheckedInputStream(self._open(path, span), checksum)
        try:
            yield source, checksum
        finally:
            with _translated(path):
                source.close()

    def rename(self, source: str, target: str) -> None:
        with _translated(source):
            system, there = self._at(source)
            _, goal = self._at(target)
            if not system.exists(there):
                raise FileNotFoundError(f"{source} is not there; it cannot become {target}")
            if system.exists(goal):  # Hadoop would move a directory *into* it
                raise FileExistsError(f"{target} is there already; {source} is not renamed to it")
            if not system.exists(goal.getParent()):  # the local file system would make it
                raise FileNotFoundError(f"{target}: its directory is not there")
            if not system.rename(there, goal):
                raise OSError(f"{source} could not be renamed to {target}; the file system does not say why")

    def replace(self, source: str, target: str) -> None:
        with _translated(source):
            _, there = self._at(source)
            _, goal = self._at(target)
            fs = self._hadoop.fs
            options = self._gateway.new_array(fs.Options.Rename, 1)
            options[0] = fs.Options.Rename.OVERWRITE
            fs.FileContext.getFileContext(there.toUri(), self._configuration).rename(there, goal, options)

    def delete(self, path: str) -> None:
        with _translated(path):
            system, there = self._at(path)
            # False means that it was not there, unless it still is.
            if not system.delete(there, True) and system.exists(there):
                raise OSError(f"{path} could not be deleted; the file system does not say why")

    def remove_empty(self, directory: str) -> bool:
        with _translated(directory):
            system, there = self._at(directory)
            if not system.exists(there):
                return True
            if len(system.listStatus(there)):
                return False
            try:
                return bool(system.delete(there, False)) or not system.exists(there)
            except Py4JJavaError:
                if len(system.listStatus(there)):  # something came in meanwhile
                    return False
                raise

    def sync_directory(self, path: str) -> None:
        with _translated(path):
            system, there = self._at(path)
            if not system.getFileStatus(there).isDirectory():
                raise NotADirectoryError(f"{path} is a file")

    def file_system(self, path: str) -> str:
        with _translated(path):
            return str(self._at(path)[0].getUri().toString())
