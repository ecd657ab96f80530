"""The only gate between this package and the operating system.

Nothing else in ``storage`` touches ``os``, ``open``, ``fcntl``, ``pathlib`` or a clock (a test enforces it), so the
whole package can run on a disk that tears, loses, rots, fills up or fails: ``tests/storage/faulty_disk.py``.

Paths are strings with ``/``. Handles are small integers. Errors are ``OSError`` as the kernel gives them; what
they mean is decided here: by ``DurableDisk``, which also remembers a failed flush for ever, and for what only reads by
``enough_resources``: a process without file handles or memory to spare has neither lost nor damaged anything.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Protocol

from waltz_ray.errors import DiskFull, OutOfResources, StorageError, SyncFailed

__all__ = ["Disk", "DurableDisk", "Mode", "OsDisk", "Writable", "enough_resources", "is_shortage", "is_unreadable"]

Mode = Literal["read", "write", "create"]
Writable = bytes | memoryview
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_HANDLES = (errno.EMFILE, errno.ENFILE)
NO_RESOURCES = (*NO_HANDLES, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
NOT_READ = (errno.EIO, errno.ENODATA, errno.EBADMSG, errno.EUCLEAN)  # a bad sector; a file system's own checksum

_ZEROS = bytes(32 * 1024)
_SYNC_FILE_RANGE_WRITE = 2
_NOT_HERE = (errno.EINVAL, errno.ENOSYS, errno.ESPIPE)  # a file system, or what is no file, that has no such advice
_AT_ONCE = 4  # 64 files of 100 KB: 42 ms one after the other, 24 when all have begun, 11 by four threads, 10 by 16
_waiting = ThreadPoolExecutor(_AT_ONCE, "waltz-disk")


def _found_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The system call, which Python does not have; None where there is none (it is Linux's own)."""
    try:
        found = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return None
    found.argtypes, found.restype = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint), ctypes.c_int
    return found


_sync_file_range = _found_sync_file_range()


@contextlib.contextmanager
def enough_resources(path: str) -> Iterator[None]:
    """Around what opens or reads ``path``: a lack of handles or memory becomes OutOfResources, all else passes."""
    try:
        yield
    except MemoryError as error:
        raise _out_of_resources(path, "Cannot allocate memory") from error
    except OSError as error:
        if not is_shortage(error):
            raise
        raise _out_of_resources(path, error.strerror) from error


def is_shortage(error: OSError) -> bool:
    """Whether this is a lack of handles or memory, and says nothing about the file."""
    return error.errno in NO_RESOURCES


def is_unreadable(error: OSError) -> bool:
    """Whether the disk does not give these bytes, of a file that is there. Others of it, and other files, it may."""
    return error.errno in NOT_READ


def _out_of_resources(path: str, why: str | None) -> OutOfResources:
    return OutOfResources(
        f"{path}: cannot be opened or read just now ({why}); nothing was changed, raise the process's limits "
        "(ulimit -n) if it lasts"
    )


class Disk(Protocol):
    """What one replica asks of an operating system."""

    def open(self, path: str, mode: Mode) -> int:
        """A handle. "read" and "write" want an existing file, "create" makes an empty one (or empties it)."""

    def close(self, handle: int) -> None: ...

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """``size`` bytes; fewer only where the file ends."""

    def pwrite(self, handle: int, data: Writable, offset: int) -> None:
        """All of ``data``, or OSError with any part of it written."""

    def truncate(self, handle: int, size: int) -> None: ...

    def size(self, handle: int) -> int: ...

    def fdatasync(self, handle: int) -> None:
        """Content and length of the file survive a crash when this returns."""

    def fsync(self, handle: int) -> None:
        """The same, of a file that one thread has."""

    def begin_writing(self, handle: int, size: int, offset: int) -> None:
        """These bytes are on their way to the disk, so that an fdatasync soon after has less to wait for. It proves
        nothing; an OSError is one of a flush."""

    def at_once(self, calls: Sequence[Callable[[], None]]) -> None:
        """Make these calls, which wait for the disk, in any order and perhaps at the same time.

        All have ended when this returns, or raises what one of them has raised.
        """

    def fsync_directory(self, path: str) -> None:
        """The directory's entries survive a crash when this returns."""

    def rename(self, old: str, new: str) -> None:
        """Give ``old`` the name ``new``, at once, in place of what had it."""

    def unlink(self, path: str) -> None: ...

    def mkdir(self, path: str) -> None: ...

    def listdir(self, path: str) -> list[str]:
        """Sorted names; FileNotFoundError where there is no such directory."""

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def is_at(self, path: str, lock: int) -> bool:
        """Whether ``path`` leads to the directory that was locked, and not to another one, or to nothing."""

    def file_size(self, path: str) -> int: ...

    def free_bytes(self, path: str) -> int: ...

    def unneeded(self, handle: int, size: int, offset: int) -> None:
        """These bytes of the page cache will not be read again soon. Advice only."""

    def lock(self, path: str, shared: bool) -> int:
        """A handle that holds ``flock`` on a directory until it is closed; BlockingIOError when another has it."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch: for what is advice only (creation times, the time index)."""


class _Flushes:
    """By one handle, one at a time. A kernel tells a failure to one of those who flush, and counts the pages of all as
    clean: what the next one is told may be a lie, before anybody else can know of the failure. Here all are told."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._begun = 0  # with the lock: all of these have ended
        self._failed = False

    def flush(self, handle: int) -> None:
        """Who had to wait while one began that has what he has written needs none of his own."""
        enough = self._begun + 1
        with self.lock:
            if self._failed:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if self._begun >= enough:
                return
            self._begun += 1
            self._failed = True  # unless this one ends well
            os.fdatasync(handle)
            self._failed = False


_flushes: dict[int, _Flushes] = {}  # by handle


class OsDisk:
    """The real one, for any thread. Handles, and what is remembered of them, are the process's."""

    def open(self, path: str, mode: Mode) -> int:
        flags = {"read": os.O_RDONLY, "write": os.O_RDWR, "create": os.O_RDWR | os.O_CREAT | os.O_TRUNC}[mode]
        # All records are in these files, and what a replica remembers has the passwords of topics' users.
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def close(self, handle: int) -> None:
        _flushes.pop(handle, None)  # the next file to be opened may get that number
        os.close(handle)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        try:
            return self._pread(handle, size, offset)
        except OSError as error:
            with contextlib.suppress(OSError):  # which file it is the kernel does not say
                error.filename = error.filename or os.readlink(f"/proc/self/fd/{handle}")
            raise

    def _pread(self, handle: int, size: int, offset: int) -> bytes:
        data = os.pread(handle, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]  # the kernel returns at most 2 GiB at a time, and may be interrupted
        done = len(data)
        while done < size and (data := os.pread(handle, size - done, offset + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def pwrite(self, handle: int, data: Writable, offset: int) -> None:
        done = os.pwrite(handle, data, offset)
        view = memoryview(data)
        while done < view.nbytes:
            done += os.pwrite(handle, view[done:], offset + done)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def fdatasync(self, handle: int) -> None:
        _flushes.setdefault(handle, _Flushes()).flush(handle)

    def fsync(self, handle: int) -> None:
        os.fsync(handle)

    def begin_writing(self, handle: int, size: int, offset: int) -> None:
        if _sync_file_range is not None and _sync_file_range(handle, offset, size, _SYNC_FILE_RANGE_WRITE):
            error = ctypes.get_errno()
            if error not in _NOT_HERE:
                raise OSError(error, os.strerror(error))

    def at_once(self, calls: Sequence[Callable[[], None]]) -> None:
        left, failed = iter([*calls]), list[Exception]()

        def make() -> None:
            for call in left:  # whichever thread is next: each is given out once
                try:
                    call()
                except Exception as error:  # noqa: BLE001 - raised below, when all have ended
                    failed.append(error)

        others: list[concurrent.futures.Future[None]] = []
        try:
            with contextlib.suppress(RuntimeError, MemoryError):  # no thread can be started: those that there are do it
                for _ in calls[1 : 1 + _AT_ONCE]:
                    others.append(_waiting.submit(make))
            make()  # this thread waits, too
        finally:
            concurrent.futures.wait(others)
        if failed:
            raise failed[0]

    def fsync_directory(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        os.mkdir(path, 0o755)  # nobody else puts a file, or a link, in place of ours

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return self._mode(path) is not None

    def is_directory(self, path: str) -> bool:
        mode = self._mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    def is_at(self, path: str, lock: int) -> bool:
        try:
            return os.path.samestat(os.stat(path), os.fstat(lock))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _mode(self, path: str) -> int | None:
        """None where there is nothing. ``os.path`` says so, too, when the disk does not answer: that is an error."""
        try:
            return os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def unneeded(self, handle: int, size: int, offset: int) -> None:
        os.posix_fadvise(handle, offset, size, os.POSIX_FADV_DONTNEED)

    def lock(self, path: str, shared: bool) -> int:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
        return handle

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class DurableDisk:
    """Everything that changes a directory goes through here, so that one failure stops all of it.

    After a failed flush (or any write error but "no space") the kernel may have dropped dirty pages, and a second
    flush that succeeds would prove nothing: every later call raises SyncFailed and the process has to end.
    A file or directory that could not even be opened for lack of handles or memory is no such failure.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._failure: str | None = None
        self._closed: str | None = None
        self._unflushed: set[str] = set()  # folders that were made, and whose names are not known to be durable

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def check(self) -> None:
        """Raise SyncFailed if anything has failed before, StorageError after ``close``."""
        if self._failure is not None:
            raise SyncFailed(self._failure)
        if self._closed is not None:
            raise StorageError(f"{self._closed}: the store has been closed; open it again")

    def close(self, directory: str) -> None:
        """Refuse everything from now on."""
        self._closed = directory

    def _fail(self, what: str, path: str, error: OSError) -> SyncFailed:
        self._failure = f"{path}: {what} failed ({error.strerror or error}); end this process, do not retry"
        return SyncFailed(self._failure)

    def _write_error(self, what: str, path: str, error: OSError) -> StorageError:
        if error.errno in NO_SPACE:
            return DiskFull(f"{path}: no space left on the disk; make room, nothing was acknowledged")
        return self._fail(what, path, error)

    def create(self, path: str) -> int:
        """OutOfResources, DiskFull: there may be an empty file now."""
        self.check()
        try:
            with enough_resources(path):
                return self.disk.open(path, "create")
        except OSError as error:
            raise self._write_error("create", path, error) from error

    def pwrite(self, handle: int, path: str, data: Writable, offset: int) -> None:
        """Raises DiskFull (any part may be written: cut it off) or SyncFailed."""
        self.check()
        try:
            self.disk.pwrite(handle, data, offset)
        except OSError as error:
            raise self._write_error("write", path, error) from error

    def write_zeros(self, handle: int, path: str, size: int, offset: int) -> None:
        """``size`` zeros, like ``pwrite``, in small pieces.

        A write of megabytes leaves folios of megabytes in the page cache (ext4 since Linux 6.16), and every later small
        write into one walks through all of its blocks: a quarter of a replica's CPU with many partitions.
        """
        zeros = memoryview(_ZEROS)
        for done in range(0, size, len(zeros)):
            self.pwrite(handle, path, zeros[: size - done], offset + done)

    def replace_file(self, path: str, content: bytes) -> None:
        """``path`` has ``content``, durably, or (after a crash) is what it was before. DiskFull, OutOfResources: it is
        as it was, or its new name is not known to be durable; to be done again."""
        temporary = f"{path}.new"
        try:
            handle = self.create(temporary)
            try:
                self.pwrite(handle, temporary, content, 0)
                self.fsync(handle, temporary)
            finally:
                self.disk.close(handle)
        except DiskFull:
            self.unlink(temporary)  # it may have taken the last room there was
            raise
        self.rename(temporary, path)
        self.fsync_directory(path.rpartition("/")[0])

    def mkdir(self, path: str) -> None:
        self.check()
        try:
            self.disk.mkdir(path)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EROFS):
                # Nothing was changed and nothing is in doubt: not the kind of failure that must end the process.
                raise StorageError(f"{path} cannot be made: {error.strerror}") from error
            raise self._write_error("mkdir", path, error) from error

    def have_folder(self, path: str) -> None:
        """There is such a folder, and its name survives a crash. OutOfResources: perhaps not; to be called again."""
        if not self.disk.exists(path):
            self.mkdir(path)
            self._unflushed.add(path)
        if path in self._unflushed:  # also one that could not be flushed before, for lack of handles
            self.fsync_directory(path.rpartition("/")[0])
            self._unflushed.discard(path)

    def truncate(self, handle: int, path: str, size: int) -> None:
        self.check()
        try:
            self.disk.truncate(handle, size)
        except OSError as error:
            raise self._fail("truncate", path, error) from error

    def unlink(self, path: str) -> None:
        """No error where there is no such file: a crash may have been faster."""
        self.check()
        try:
            with contextlib.suppress(FileNotFoundError):
                self.disk.unlink(path)
        except OSError as error:
            raise self._fail("unlink", path, error) from error

    def rename(self, old: str, new: str) -> None:
        self.check()
        try:
            self.disk.rename(old, new)
        except OSError as error:
            raise self._fail("rename", old, error) from error

    def fdatasync(self, handle: int, path: str) -> None:
        self.check()
        try:
            self.disk.fdatasync(handle)
        except OSError as error:
            raise self._fail("fdatasync", path, error) from error
        self.check()  # one that failed meanwhile in another thread may have dropped pages of this file, too

    def begin_writing(self, handle: int, path: str, size: int, offset: int) -> None:
        """See ``Disk.begin_writing``. SyncFailed."""
        self.check()
        try:
            self.disk.begin_writing(handle, size, offset)
        except OSError as error:
            raise self._fail("write", path, error) from error

    def fsync(self, handle: int, path: str) -> None:
        self.check()
        try:
            self.disk.fsync(handle)
        except OSError as error:
            raise self._fail("fsync", path, error) from error
        self.check()

    def fsync_directory(self, path: str) -> None:
        """OutOfResources: it could not be opened, so nothing was flushed and nothing is lost."""
        self.check()
        try:
            self.disk.fsync_directory(path)
        except OSError as error:
            if error.errno in NO_HANDLES:  # no fsync fails so
                raise _out_of_resources(path, error.strerror) from error
            raise self._fail("fsync of the directory", path, error) from error
