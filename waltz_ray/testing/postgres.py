"""A real PostgreSQL for a test, without root or a package manager: its programs come with the wheel ``pgserver``.

There is none for Python 3.13; one that is installed will do, too. It lives in a directory of its own, listens on a
socket in there, and syncs nothing.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waltz_ray.errors import ConfigError

__all__ = ["LocalPostgres", "installed_places", "local_postgres", "postgres_user", "programs_in", "run_program"]

_NEEDED = ("postgres", "initdb", "pg_ctl", "createdb")
_ADVICE = "install one, or, up to Python 3.12, pip install pgserver"
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
        run_program([self.binaries / "createdb", "-h", self.directory, "-U", "waltz", name], {})
        return f"postgresql+psycopg://waltz@/{name}?host={self.directory}"


@contextmanager
def local_postgres() -> Iterator[LocalPostgres]:
    """Run a PostgreSQL meanwhile; it is gone at the end. ConfigError if there are no programs, or they fail."""
    binaries, user = _binaries(), postgres_user()
    with tempfile.TemporaryDirectory(prefix="waltz-pg-") as directory:
        data = Path(directory) / "data"
        if user:
            os.chown(directory, user["user"], -1)
        run_program([binaries / "initdb", "-D", data, "-A", "trust", "-U", "waltz", "-E", "UTF8", "--no-sync"], user)
        with open(data / "postgresql.conf", "a") as settings:
            settings.write(_SETTINGS.format(directory=directory))
        run_program([binaries / "pg_ctl", "-D", data, "-l", Path(directory) / "log", "-w", "start"], user)
        try:
            yield LocalPostgres(binaries, directory)
        finally:
            run_program([binaries / "pg_ctl", "-D", data, "-m", "fast", "-w", "stop"], user)


def _binaries() -> Path:
    """The wheel's, else those that are installed."""
    wheel = importlib.util.find_spec("pgserver")
    places = [Path(wheel.origin).parent / "pginstall/bin"] if wheel is not None and wheel.origin is not None else []
    return programs_in([*places, *installed_places()], _NEEDED, _ADVICE)


def installed_places() -> list[Path]:
    """Where programs of PostgreSQL may be installed: Debian's, the newest first, then those on the path."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_number, reverse=True)
    on_path = shutil.which("postgres")
    return [*debian, Path("/usr/local/bin"), *([Path(on_path).resolve().parent] if on_path else [])]


def _number(path: Path) -> float:
    try:
        return float(path.parent.name)
    except ValueError:
        return 0.0


def programs_in(places: Iterable[Path], needed: Sequence[str], advice: str) -> Path:
    """The first of ``places`` that has all the programs ``needed``. ConfigError with ``advice`` if none has."""
    for place in places:
        if all((place / name).exists() for name in needed):
            return place
    raise ConfigError(f"there is no PostgreSQL here ({', '.join(needed)}); {advice}")


def postgres_user() -> dict[str, Any]:
    """For ``subprocess``: who runs it. It refuses to run as root; ConfigError if this is root and nobody else is."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise ConfigError("PostgreSQL does not run as root, and there is no user postgres or nobody; run this as a user")


def run_program(command: Sequence[str | Path], user: Mapping[str, Any]) -> str:
    """Run one of its programs; what it prints. ConfigError, with what it said, if it fails."""
    # Nothing is read from a pipe: a server that it starts would keep it open.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            check=False,
            **user,
        )
        output.seek(0)
        said = output.read().decode(errors="replace").strip()
    if done.returncode:
        raise ConfigError(f"{Path(command[0]).name} failed: {' '.join(said.splitlines()[-2:]) or 'it says nothing'}")
    return said
