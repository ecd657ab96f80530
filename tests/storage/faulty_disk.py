"""A disk in memory that crashes, tears, loses, rots, fills up and fails to flush: `Disk` for tests and simulation.

The model. A file is an inode: ``synced`` is the content that survives for sure, ``pending`` the writes and truncations
after it. A folder is a table of names, of which the last ``fsync_directory`` survives for sure. After ``crash`` every
unsynced write may be there, be missing, or be torn (a prefix of it, or some of its 512-byte sectors), independently of
every other; unsynced directory entries and removals may or may not have happened, each on its own. A rename is atomic:
its target is the old file or the new one. Handles and locks are gone.

While ``fail_sync`` is set (or after ``sync_failures_begin_after`` more syncs) every sync fails, and as a kernel does
it: the written pages stay readable and count as clean, so no later sync writes them, however well it goes, and a loss
of power loses them; unless they are written once more. What a journal of the file system keeps (lengths after a
truncation, names) is not lost by that, only late.

``errors`` makes calls of the gate fail before they have any effect, (name of the call, part of the path) -> errno,
until it is taken out again.

``calls`` records every call of the gate as (name, path). ``crash_after`` = n lets n calls that change something
through and raises ``Crashed`` at the next one, before it has any effect, and ever after until ``crash``.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from waltz_ray.storage.disk import Mode, Writable

__all__ = ["ALL_LOST", "Crashed", "FaultyDisk", "Survival"]

SECTOR_BYTES = 512
CHANGING = frozenset(
    ("create", "pwrite", "truncate", "fdatasync", "fsync", "fsync_directory", "rename", "unlink", "mkdir")
)


class Crashed(BaseException):
    """The machine has stopped. A BaseException, so that no ``except Exception`` survives a power cut."""


@dataclass
class Survival:
    """What becomes of unsynced changes in a crash: probabilities of being kept whole and of being torn."""

    kept: float
    torn: float = 0.0


ALL_KEPT = Survival(1.0)
ALL_LOST = Survival(0.0)


@dataclass
class _Inode:
    now: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # (offset, data) or (size, None): truncation

    def sync(self) -> None:
        """Write what is dirty. That is not all of ``now`` if a sync has failed before."""
        for offset, data in self.pending:
            _truncate(self.synced, offset) if data is None else _write(self.synced, offset, data)
        self.pending = []

    def fail(self) -> None:
        """The written pages are dropped from what is dirty."""
        self.pending = [(size, data) for size, data in self.pending if data is None]


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _truncate(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


class FaultyDisk:
    """See the module's docstring. ``capacity_bytes``: sum of all files; None = endless."""

    def __init__(self, seed: int = 0, capacity_bytes: int | None = None) -> None:
        self.random = random.Random(seed)
        self.capacity_bytes = capacity_bytes
        self.calls: list[tuple[str, str]] = []
        self.crash_after: int | None = None
        self.fail_sync = False
        self.sync_failures_begin_after: int | None = None
        self.errors: dict[tuple[str, str], int] = {}
        self.clock_ms = 1_700_000_000_000
        self._mutex = threading.RLock()
        self._files: dict[str, _Inode] = {}
        self._durable_files: dict[str, _Inode] = {}
        self._folders: set[str] = {"/"}
        self._durable_folders: set[str] = {"/"}
        self._handles: dict[int, tuple[str, _Inode]] = {}
        self._locks: dict[int, tuple[str, bool]] = {}
        self._next_handle = 3
        self._crashed = False

    # What tests do to the disk

    def changes(self) -> int:
        """Calls that changed something so far."""
        return sum(name in CHANGING for name, _ in self.calls)

    def crash(self, survival: Survival = ALL_LOST) -> None:
        """Power off and on again."""
        with self._mutex:
            files = dict(self._durable_files)
            for path in sorted(set(files) | set(self._files)):
                if files.get(path) is not self._files.get(path) and self.random.random() < survival.kept:
                    if path in self._files:
                        files[path] = self._files[path]
                    else:
                        del files[path]
            for inode in {id(inode): inode for inode in files.values()}.values():
                self._settle(inode, survival)
            folders = self._durable_folders | {
                folder for folder in sorted(self._folders) if self.random.random() < survival.kept
            }
            self._folders = {f for f in folders if all(parent in folders for parent in _parents(f))}
            self._files = {path: inode for path, inode in files.items() if _parent(path) in self._folders}
            self._durable_files, self._durable_folders = dict(self._files), set(self._folders)
            self._handles, self._locks = {}, {}
            self._crashed, self.crash_after = False, None

    def end_process(self) -> None:
        """Killed: its writes are in the page cache, synced or not; its handles and locks are gone."""
        with self._mutex:
            self._handles, self._locks = {}, {}
            self._crashed, self.crash_after = False, None

    def _settle(self, inode: _Inode, survival: Survival) -> None:
        for offset, data in inode.pending:
            chance = self.random.random()
            if chance < survival.kept:
                _truncate(inode.synced, offset) if data is None else _write(inode.synced, offset, data)
            elif chance < survival.kept + survival.torn and data:
                self._tear(inode.synced, offset, data)
        inode.now, inode.pending = bytearray(inode.synced), []

    def _tear(self, content: bytearray, offset: int, data: bytes) -> None:
        if self.random.random() < 0.5:
            _write(content, offset, data[: self.random.randrange(len(data))])
            return
        start = 0
        while start < len(data):
            size = SECTOR_BYTES - (offset + start) % SECTOR_BYTES
            if self.random.random() < 0.5:
                _write(content, offset + start, data[start : start + size])
            start += size

    def flip(self, path: str, offset: int, mask: int = 0xFF) -> None:
        """Bit rot, durable at once."""
        inode = self._files[path]
        inode.sync()
        inode.now[offset] ^= mask
        if offset < len(inode.synced):
            inode.synced[offset] ^= mask

    def content(self, path: str) -> bytes:
        return bytes(self._files[path].now)

    def put(self, path: str, content: bytes) -> None:
        """Replace a file's content, durably; its folder too."""
        for folder in (*_parents(path),):
            self._folders.add(folder)
            self._durable_folders.add(folder)
        self._files[path] = self._durable_files[path] = _Inode(bytearray(content), bytearray(content))

    def remove(self, path: str) -> None:
        del self._files[path]
        self._durable_files.pop(path, None)

    def files(self) -> list[str]:
        return sorted(self._files)

    def open_handles(self) -> int:
        return len(self._handles)

    # The gate

    def _enter(self, name: str, path: str) -> None:
        if self._crashed:
            raise Crashed(f"{name} {path}")
        if name in CHANGING and self.crash_after is not None:
            if self.crash_after == 0:
                self._crashed = True
                raise Crashed(f"{name} {path}")
            self.crash_after -= 1
        self.calls.append((name, path))
        for (failing, part), number in self.errors.items():
            if failing == name and part in path:
                raise OSError(number, os.strerror(number), path)

    def open(self, path: str, mode: Mode) -> int:
        with self._mutex:
            self._enter("create" if mode == "create" else "open", path)
            if mode == "create":
                if _parent(path) not in self._folders:
                    raise FileNotFoundError(errno.ENOENT, "no such directory", path)
                inode = self._files.get(path)
                if inode is None:
                    inode = self._files[path] = _Inode()
                else:
                    _truncate(inode.now, 0)
                    inode.pending.append((0, None))
            elif path not in self._files:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            return self._handle(path, self._files[path])

    def _handle(self, path: str, inode: _Inode) -> int:
        self._next_handle += 1
        self._handles[self._next_handle] = (path, inode)
        return self._next_handle

    def _of(self, handle: int) -> tuple[str, _Inode]:
        if handle not in self._handles:
            if self._crashed:
                raise Crashed("a handle of before")
            raise OSError(errno.EBADF, f"handle {handle} is not open")
        return self._handles[handle]

    def close(self, handle: int) -> None:
        with self._mutex:
            if self._crashed:
                return  # so that clean-up code lets the Crashed through
            if self._locks.pop(handle, None) is None:
                self._enter("close", self._of(handle)[0])
                del self._handles[handle]

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        with self._mutex:
            path, inode = self._of(handle)
            self._enter("pread", path)
            if offset < 0:  # as the kernel does; a slice would count from the end
                raise OSError(errno.EINVAL, "Invalid argument", path)
            return bytes(inode.now[offset : offset + size])

    def pwrite(self, handle: int, data: Writable, offset: int) -> None:
        with self._mutex:
            path, inode = self._of(handle)
            self._enter("pwrite", path)
            raw = bytes(data)
            growth = max(0, offset + len(raw) - len(inode.now))
            room = growth if self.capacity_bytes is None else max(0, self.capacity_bytes - self._used())
            fits = raw if growth <= room else raw[: max(0, len(raw) - (growth - room))]
            _write(inode.now, offset, fits)
            inode.pending.append((offset, fits))
            if len(fits) < len(raw):
                raise OSError(errno.ENOSPC, "No space left on device", path)

    def _used(self) -> int:
        return sum(len(inode.now) for inode in self._files.values())

    def truncate(self, handle: int, size: int) -> None:
        with self._mutex:
            path, inode = self._of(handle)
            self._enter("truncate", path)
            _truncate(inode.now, size)
            inode.pending.append((size, None))

    def size(self, handle: int) -> int:
        with self._mutex:
            return len(self._of(handle)[1].now)

    def fdatasync(self, handle: int) -> None:
        self._sync("fdatasync", handle)

    def fsync(self, handle: int) -> None:
        self._sync("fsync", handle)

    def begin_writing(self, handle: int, size: int, offset: int) -> None:
        """What is pending may reach this disk at any time anyway."""

    def at_once(self, calls: Sequence[Callable[[], None]]) -> None:
        for call in calls:
            call()

    def _sync_fails(self) -> bool:
        if self.sync_failures_begin_after is not None:
            self.fail_sync |= self.sync_failures_begin_after == 0
            self.sync_failures_begin_after -= 1
        return self.fail_sync

    def heal(self) -> None:
        """Syncs work again."""
        self.fail_sync, self.sync_failures_begin_after = False, None

    def _sync(self, name: str, handle: int) -> None:
        with self._mutex:
            path, inode = self._of(handle)
            self._enter(name, path)
            if self._sync_fails():
                inode.fail()
                raise OSError(errno.EIO, "Input/output error", path)
            inode.sync()

    def fsync_directory(self, path: str) -> None:
        with self._mutex:
            self._enter("fsync_directory", path)
            if self._sync_fails():
                raise OSError(errno.EIO, "Input/output error", path)
            kept = {name: inode for name, inode in self._durable_files.items() if _parent(name) != path}
            now = {name: inode for name, inode in self._files.items() if _parent(name) == path}
            self._durable_files = kept | now
            self._durable_folders |= {folder for folder in self._folders if _parent(folder) == path}

    def rename(self, old: str, new: str) -> None:
        with self._mutex:
            self._enter("rename", old)
            self._files[new] = self._files.pop(old)

    def unlink(self, path: str) -> None:
        with self._mutex:
            self._enter("unlink", path)
            if path not in self._files:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            del self._files[path]

    def mkdir(self, path: str) -> None:
        with self._mutex:
            self._enter("mkdir", path)
            if path in self._folders:
                raise FileExistsError(errno.EEXIST, "exists", path)
            self._folders.add(path)

    def listdir(self, path: str) -> list[str]:
        with self._mutex:
            self._enter("listdir", path)
            if path not in self._folders:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            names = [*self._files, *(folder for folder in self._folders if folder != "/")]
            return sorted(name.rpartition("/")[2] for name in names if _parent(name) == path)

    def exists(self, path: str) -> bool:
        with self._mutex:
            self._enter("exists", path)
            return path in self._files or path in self._folders

    def is_directory(self, path: str) -> bool:
        with self._mutex:
            self._enter("is_directory", path)
            return path in self._folders

    def is_at(self, path: str, lock: int) -> bool:
        with self._mutex:
            self._enter("is_at", path)
            return path in self._folders and self._locks[lock][0] == path

    def file_size(self, path: str) -> int:
        with self._mutex:
            self._enter("file_size", path)
            if path not in self._files:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            return len(self._files[path].now)

    def free_bytes(self, path: str) -> int:
        with self._mutex:
            return 1 << 40 if self.capacity_bytes is None else max(0, self.capacity_bytes - self._used())

    def lock(self, path: str, shared: bool) -> int:
        with self._mutex:
            self._enter("lock", path)
            if any(held == path and not (shared and also) for held, also in self._locks.values()):
                raise BlockingIOError(errno.EAGAIN, "locked", path)
            self._next_handle += 1
            self._locks[self._next_handle] = (path, shared)
            return self._next_handle

    def unneeded(self, handle: int, size: int, offset: int) -> None:
        """There is no page cache."""

    def now_ms(self) -> int:
        with self._mutex:
            self.clock_ms += 7
            return self.clock_ms


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _parents(path: str) -> list[str]:
    """All folders above ``path``, the root first."""
    found: list[str] = []
    while path != "/":
        path = _parent(path)
        found.insert(0, path)
    return found
