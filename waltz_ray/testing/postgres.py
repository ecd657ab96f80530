"""A real PostgreSQL for a test, without root or a package manager: its programs come with the wheel ``pgserver``.

One that is installed will do, too. It lives in a directory of its own, listens on a socket in there, and syncs nothing.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waltz_ray.errors import ConfigError

__all__ = ["LocalPostgres", "local_postgres"]

_NEEDED = ("postgres", "initdb", "pg_ctl", "createdb")
_SETTINGS = """
listen_addresses = ''
unix_socket_directories = '{directory}'
fsync = off
max_connections = 50
shared_buffers = '32MB'
"""


@dataclass(frozen=True)
class LocalPostgres:
    """A PostgreSQL that runs. ``directory``: where its socket is."""

    binaries: Path
    directory: str

    def create_database(self, name: str) -> str:
        """Make a database; its URL for SQLAlchemy and psycopg. ConfigError if there is one of that name."""
        _call([self.binaries / "createdb", "-h", self.directory, "-U", "waltz", name])
        return f"postgresql+psycopg://waltz@/{name}?host={self.directory}"


@contextmanager
def local_postgres() -> Iterator[LocalPostgres]:
    """Run a PostgreSQL meanwhile; it is gone at the end. ConfigError if there are no programs, or they fail."""
    binaries, user = _binaries(), _user()
    with tempfile.TemporaryDirectory(prefix="waltz-pg-") as directory:
        data = Path(directory) / "data"
        if user:
            os.chown(directory, user["user"], -1)
        _call([binaries / "initdb", "-D", data, "-A", "trust", "-U", "waltz", "-E", "UTF8", "--no-sync"], user)
        with open(data / "postgresql.conf", "a") as settings:
            settings.write(_SETTINGS.format(directory=directory))
        _call([binaries / "pg_ctl", "-D", data, "-l", Path(directory) / "log", "-w", "start"], user)
        try:
            yield LocalPostgres(binaries, directory)
        finally:
            _call([binaries / "pg_ctl", "-D", data, "-m", "fast", "-w", "stop"], user)


def _binaries() -> Path:
    """The wheel's, else those on the path, else Debian's newest."""
    wheel = importlib.util.find_spec("pgserver")
    places = [Path(wheel.origin).parent / "pginstall/bin"] if wheel is not None and wheel.origin is not None else []
    on_path = shutil.which("postgres")
    places += [Path(on_path).resolve().parent] if on_path else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if all((place / name).exists() for name in _NEEDED):
            return place
    raise ConfigError(f"there is no PostgreSQL here ({', '.join(_NEEDED)}); pip install pgserver brings one")


def _user() -> dict[str, Any]:
    """For ``subprocess``: who runs it. PostgreSQL refuses to run as root; then it is the user ``nobody``."""
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam("nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _call(command: list[Any], user: dict[str, Any] | None = None) -> None:
    # Nothing is read from a pipe: the server would keep it open.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", **(user or {})
        )
        output.seek(0)
        said = output.read().decode(errors="replace").strip().splitlines()
    if done.returncode:
        raise ConfigError(f"{Path(command[0]).name} failed: {' '.join(said[-2:]) or 'it says nothing'}")
