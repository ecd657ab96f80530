"""Small files: those that people write, read whole; those that we write, whose they are and durable."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from waltz_ray.errors import InvalidInput

__all__ = [
    "MOST_FILE_BYTES",
    "alone_in",
    "make_directories",
    "nobody_types",
    "others_read",
    "read_small_file",
    "replace_small_file",
    "sync_directory",
    "sync_file",
]

MOST_FILE_BYTES = 1 << 20
"""As much as ZooKeeper keeps in a node; none of these files comes near it. A device never ends."""

_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.ENOTSUP)


def read_small_file(path: str | os.PathLike[str]) -> bytes:
    """All of it. InvalidInput if it cannot be read, or is too long to be what was meant."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{os.fspath(path)} cannot be read: {error.strerror}") from error
    if len(data) > MOST_FILE_BYTES:
        raise InvalidInput(f"{os.fspath(path)} has more than {MOST_FILE_BYTES} bytes; is this the right file?")
    return data


def others_read(about: os.stat_result) -> bool:
    """Whether others than its owner may read a file that has to be secret, or write it. What root has put there for
    another user's process, as Kubernetes does, is root's matter."""
    given_by_root = about.st_uid == 0 != os.geteuid()
    return not given_by_root and bool(stat.S_IMODE(about.st_mode) & 0o077)


def nobody_types() -> str:
    """The password of a key. OpenSSL would ask the terminal, if there is one, and the whole process would wait."""
    raise OSError(errno.EINVAL, "the key is encrypted, and nobody is there to type its password: store it without one")


def opener(mode: int) -> Callable[[str, int], int]:
    """For ``open``: a new file has at most that mode, also where the umask would leave it to everybody to write."""

    def opened(path: str, flags: int) -> int:
        return os.open(path, flags, mode)

    return opened


def replace_small_file(path: Path, text: str, mode: int) -> None:
    """``text`` in place of what is there, atomically, and durable when this returns. ``mode`` as in ``opener``.
    OSError."""
    temporary = path.with_suffix(".new")
    with open(temporary, "w", opener=opener(mode)) as file:
        file.write(text)
        sync_file(file)
    temporary.replace(path)
    sync_directory(path.parent)


def make_directories(path: str | os.PathLike[str], mode: int) -> None:
    """The directory is there; the names of those that had to be made for it, with at most ``mode``, survive a loss of
    power when this returns. OSError."""
    if os.path.isdir(path):
        return
    parent = Path(path).parent
    make_directories(parent, mode)
    try:
        os.mkdir(path, mode)
    except FileExistsError:  # somebody else was faster
        if not os.path.isdir(path):
            raise
    with contextlib.suppress(PermissionError):  # there are directories in which we may make something, and not look
        sync_directory(parent)


@contextmanager
def alone_in(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Who else does this there is waited for; ends with the process. Where a file system locks no directories, as NFS,
    nobody waits. OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(handle)


def sync_file(file: IO[Any]) -> None:
    """What was written into it stays, not yet its name. OSError."""
    file.flush()
    os.fsync(file.fileno())


def sync_directory(directory: str | os.PathLike[str]) -> None:
    """What was renamed in it stays so. OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
