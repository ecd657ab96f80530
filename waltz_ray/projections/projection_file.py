"""One LMDB file that is a cache of the log: whose it is, who has it open, and when it cannot be believed.

Data and mark change in one transaction, and nothing is ever synced: what a process wrote before it was killed is in the
file all the same, because the kernel has it. After the *machine* has gone down the file may be any mixture. So a record
beside it names the boot in which it is being written, and says whether it was closed (and synced) since:

::

    <name>.lmdb   the tables
    <name>.json   identity, boot, clean: replaced as a whole; "clean": false is on the disk before the first write
    <name>.lock   flock, as long as somebody has it open; never removed

A file of another identity (cluster, partition, version of the fold ...), of an earlier boot and not clean, or which
LMDB does not take, is removed and begun anew: that costs time, never data. So is one in which LMDB comes upon a page
that is none of its own, after it was opened: it is removed when it is closed. So is one that cannot be synced then:
what the kernel did not write it may show until it forgets it, and then what was there before. What LMDB cannot see is
not seen (it has no checksums): bits of a value that have turned over on the disk. Nothing here knows what is in the
tables.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from waltz_ray.errors import ProjectionFailed, StorageLocked

__all__ = ["ProjectionFile", "boot_id", "remove_projections"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_FIRST_MAP_BYTES = 64 << 20
_SUFFIXES = (".lmdb", ".json", ".json.new", ".lock")
_META = b"meta"
_IDENTITY = b"identity"

_DAMAGES = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.PanicError,
    lmdb.BadTxnError,  # of a transaction that has met one of the others
    lmdb.CursorFullError,
    lmdb.PageFullError,
    lmdb.IncompatibleError,
)
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT)
"""They say nothing about a file that cannot be opened because of them."""


def boot_id() -> str:
    """Names the time that this machine has been up."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def remove_projections(directory: Path) -> None:
    """All in ``directory``, which nobody has open nor will; and that, if nothing else is in it. Idempotent. OSError."""
    if not directory.is_dir():
        return
    for path in [*directory.iterdir()]:
        if path.name.endswith(_SUFFIXES):
            path.unlink()
    if not any(directory.iterdir()):
        directory.rmdir()


class ProjectionFile:
    """``path`` ends in ``.lmdb``; ``databases`` are the names of its tables. For one thread.

    StorageLocked if somebody has it open, ProjectionFailed if its disk does not take it.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, str | int], databases: Iterable[bytes], boot: str | None = None
    ) -> None:
        self.path = path
        self._identity = dict(identity)
        self._names = tuple(databases)
        self._reading: lmdb.Transaction | None = None
        self._damaged = False
        try:
            self._boot = boot_id() if boot is None else boot
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._lock = self._locked()
            try:
                self._begin()
            except BaseException:
                os.close(self._lock)
                raise
        except (OSError, lmdb.Error) as error:
            raise ProjectionFailed(f"projection {path} cannot be opened: {error}; look after that disk") from error

    # ---- use

    def database(self, name: bytes) -> Any:
        """What LMDB calls a table; ``b"meta"`` is there for marks."""
        return self._databases[name]

    def reading(self) -> lmdb.Transaction:
        """A transaction to look at what there is, until the next ``write``."""
        if self._reading is None:
            self._reading = self._environment.begin()
        return self._reading

    def write(self, change: Callable[[lmdb.Transaction], T]) -> T:
        """``change`` in one transaction, all of it or nothing; it may be called again, with another transaction, after
        the file was made larger. ProjectionFailed if the disk does not take it."""
        self._end_reading()
        try:
            while True:
                try:
                    with self._environment.begin(write=True) as transaction:
                        return change(transaction)
                except lmdb.MapFullError:
                    self._environment.set_mapsize(2 * self._environment.info()["map_size"])
        except _DAMAGES as error:
            raise self.damaged(error) from error
        except lmdb.Error as error:
            raise ProjectionFailed(
                f"projection {self.path} cannot be written: {error}; it stays as it was: make room on that disk"
            ) from error

    def damaged(self, error: lmdb.Error) -> ProjectionFailed:
        """What to raise for an error of reading. Nothing in the file is believed any more: ``close`` removes it."""
        self._damaged = True
        return ProjectionFailed(
            f"projection {self.path} is damaged: {error}; it is removed and folded anew, from the log"
        )

    def empty(self) -> None:
        """Forget everything. ProjectionFailed if the disk does not take that: then it can only be closed."""
        self._end_reading()
        self._environment.close()
        try:
            self.path.unlink(missing_ok=True)
            self._open()
        except (OSError, lmdb.Error) as error:
            raise ProjectionFailed(
                f"projection {self.path} cannot be begun anew: {error}; look after that disk"
            ) from error

    def close(self) -> None:
        """Sync, and say that it may be believed after the machine has gone down, too. One that cannot be synced is
        removed: nothing that was written since the last sync is known to be on the disk."""
        self._end_reading()
        try:
            if self._damaged:
                self._environment.close()
                self._remove("it is damaged")
                return
            try:
                self._environment.sync(True)
            except lmdb.Error as error:  # the kernel drops what it could not write, and shows it for a while as written
                self._environment.close()
                self._remove(f"it could not be synced: {error}; look after that disk")
                return
            os.truncate(self.path, max(self.path.stat().st_size, self._wanted_bytes()))
            self._environment.close()
            self._say(clean=True)
        except (OSError, lmdb.Error) as error:
            _log.warning("projection %s could not be synced: %s; after a power cut it is folded anew", self.path, error)
        finally:
            self._environment.close()  # whatever was met: no second time if it is
            os.close(self._lock)

    # ---- opening

    def _locked(self) -> int:
        handle = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise StorageLocked(
                f"projection {self.path} is open already, here or in another process; end that"
            ) from None
        return handle

    def _begin(self) -> None:
        problem = self._problem() if self.path.exists() else ""
        if problem:
            self._remove(problem)
        self._say(clean=False)
        try:
            self._open()
        except (lmdb.Error, _NotOursError) as error:
            if getattr(error, "code", 0) in _SHORTAGES:
                raise
            self._remove(str(error))
            self._open()

    def _problem(self) -> str:
        """Why the file cannot be believed, by what lies beside it. OSError: it cannot be read just now."""
        try:
            said = json.loads(self._beside.read_text())
            identity, boot, clean = said["identity"], said["boot"], said["clean"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, OSError) and error.errno in _SHORTAGES:
                raise
            return "nothing says whose it is"
        if identity != self._identity:
            return f"it is of {identity}, not {self._identity}"
        if boot != self._boot and not clean:
            return "the machine has gone down while it was written"
        return ""

    def _open(self) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        self._environment = lmdb.open(
            str(self.path),
            map_size=max(_FIRST_MAP_BYTES, 2 * size),
            subdir=False,
            mode=0o600,
            lock=False,  # one process, one thread, and no reading transaction while it writes
            sync=False,
            metasync=False,
            meminit=False,
            max_dbs=len(self._names) + 1,
        )
        try:
            if size and self._wanted_bytes() > size:
                raise _NotOursError(f"it has {size} bytes of {self._wanted_bytes()}")
            self._databases = {name: self._environment.open_db(name) for name in (_META, *self._names)}
            wanted = json.dumps(self._identity, sort_keys=True).encode()
            with self._environment.begin(write=True) as transaction:
                found = transaction.get(_IDENTITY, db=self._databases[_META])
                if found is None and not size:
                    transaction.put(_IDENTITY, wanted, db=self._databases[_META])
                elif found != wanted:
                    raise _NotOursError("another's tables are in it")
        except BaseException:
            self._environment.close()
            raise

    def _wanted_bytes(self) -> int:
        page: int = self._environment.stat()["psize"]
        last: int = self._environment.info()["last_pgno"]
        return (last + 1) * page

    def _remove(self, why: str) -> None:
        _log.warning("projection %s is begun anew, from the log: %s", self.path, why)
        self.path.unlink(missing_ok=True)

    @property
    def _beside(self) -> Path:
        return self.path.with_suffix(".json")

    def _say(self, clean: bool) -> None:
        """What lies beside it, on the disk when this returns."""
        new = self._beside.with_suffix(".json.new")
        text = json.dumps({"identity": self._identity, "boot": self._boot, "clean": clean})
        with open(new, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._beside)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._reading.abort()
            self._reading = None


class _NotOursError(Exception):
    """What is in the file is not what its name says."""
