"""The file with the cluster's secret: one line, readable by its owner only (one of root's by a group, too).

It is made once, on the node where the cluster is brought up, and lies on every node on which an actor of the cluster
runs. What it holds goes nowhere else: not to ZooKeeper, no command line, no log, no pickle (``protocol.authentication.
Secret`` refuses). Who has it may do everything to the cluster's replicas.

What a crash leaves while it is made: no file, or ``.new``, which the next attempt replaces. It is on the disk before
the cluster is made in ZooKeeper.
"""

from __future__ import annotations

import os
import stat
import threading

from waltz_ray.errors import SecretUnusable
from waltz_ray.protocol.authentication import SECRET_BYTES, Secret
from waltz_ray.small_files import alone_in, sync_directory, sync_file

__all__ = ["SecretFile", "make_secret"]

_MARK = "waltz-secret-1 "
_MOST_BYTES = 1024


def _is_there(path: str) -> bool:
    """SecretUnusable: what is there is none."""
    there = os.path.lexists(path)
    if there:
        SecretFile(path).secret()
    return there


def make_secret(path: str) -> bool:
    """Have the file there: False if it was. SecretUnusable if it cannot be made, or what is there is none."""
    directory = os.path.dirname(path) or "."
    try:
        if _is_there(path):
            return False
        with alone_in(directory):
            if _is_there(path):  # another cluster's begin was faster, and has the same
                return False
            new = f"{path}.new"
            if os.path.lexists(new):
                os.unlink(new)
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(f"{_MARK}{os.urandom(SECRET_BYTES).hex()}\n")
                sync_file(file)
            os.rename(new, path)
            sync_directory(directory)
    except OSError as error:
        raise SecretUnusable(f"the cluster's secret cannot be written to {path}: {error.strerror}") from error
    return True


class SecretFile:
    """Reads the secret when it is asked for, and again when the file has changed. For several threads."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] = ()
        self._secret: Secret | None = None

    def secret(self) -> Secret:
        """SecretUnusable, saying what to do, if there is none now. It never says what is in the file."""
        with self._lock:
            try:
                handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise SecretUnusable(
                    f"the cluster's secret {self.path} cannot be read ({error.strerror}); on the node where waltz up "
                    "ran it is made at the next waltz up, and every other node needs a copy of it there"
                ) from error
            try:
                about = os.fstat(handle)
                seen = (about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size, about.st_mode)
                if self._secret is None or seen != self._seen:
                    self._secret, self._seen = self._read(handle, about), seen
                return self._secret
            finally:
                os.close(handle)

    def _read(self, handle: int, about: os.stat_result) -> Secret:
        # As PostgreSQL has it of its keys: root may let a group read what is root's; Kubernetes mounts secrets so.
        others = 0o037 if about.st_uid == 0 != os.geteuid() else 0o077
        if stat.S_IMODE(about.st_mode) & others:
            raise SecretUnusable(
                f"the cluster's secret {self.path} can be read by others than its owner; first look who may have read "
                f"it, then: chmod 600 {self.path}"
            )
        content = os.read(handle, _MOST_BYTES).decode("ascii", errors="replace")
        try:
            mark, value = content[: len(_MARK)], content[len(_MARK) :].strip()
            if mark != _MARK:
                raise ValueError
            return Secret(bytes.fromhex(value))
        except ValueError:
            raise SecretUnusable(
                f"{self.path} does not hold a cluster's secret (one line, {_MARK.strip()!r} and {2 * SECRET_BYTES} "
                "hexadecimal digits); copy it again from the node where waltz up made it"
            ) from None
