"""A disk that a run can die on, before or after any change; names that were not synced are lost with it."""

from __future__ import annotations

from pathlib import Path

from waltz_spark.offset_log import OffsetFiles

__all__ = ["CrashingFiles", "Killed"]


class Killed(BaseException):
    """The process is gone: nobody may handle this."""


class CrashingFiles(OffsetFiles):
    """Dies at the ``at``-th change (from 0; -1 = never): ``after`` or before it. ``steps`` says what was done.

    A power failure, not a mere kill: a rename whose directory was not synced is undone, content that was not synced
    is never there (``Files.write`` syncs it).
    """

    def __init__(self, at: int = -1, after: bool = False) -> None:
        self._at, self._after = at, after
        self.steps: list[str] = []
        self._unsynced: list[tuple[Path, bytes | None]] = []

    def left_unsynced(self, path: Path) -> None:
        """By a process that was killed before it synced this new name."""
        self._unsynced.append((path, None))

    def _step(self, name: str, after: bool) -> None:
        if not after:
            self.steps.append(name)
        if len(self.steps) - 1 == self._at and after is self._after:
            self.die()

    def die(self) -> None:
        for path, before in reversed(self._unsynced):
            if path.is_dir():
                continue  # a directory's content is the sink's own affair
            if before is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(before)
        raise Killed

    def write(self, path: Path, data: bytes) -> None:
        self._step(f"write {path.name}", False)
        super().write(path, data)
        self._step("", True)

    def rename(self, source: Path, target: Path) -> None:
        self._step(f"rename {target.name}", False)
        if source.is_file():
            self._unsynced.append((target, target.read_bytes() if target.exists() else None))
        super().rename(source, target)
        self._step("", True)

    def sync_directory(self, path: Path) -> None:
        self._step(f"sync {path.name}", False)
        super().sync_directory(path)
        self._unsynced = [each for each in self._unsynced if each[0].parent != path]
        self._step("", True)

    def remove(self, path: Path) -> None:
        self._step(f"remove {path.name}", False)
        super().remove(path)
        self._step("", True)
