"""What ``waltz backup`` and ``restore`` show while they run: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

from waltz_ray.cli.load_progress import LoadProgress

__all__ = ["BackupProgress"]


class BackupProgress(LoadProgress):
    """On stderr. ``begin`` a part of the work, of which ``done`` says how much more there is of it."""

    def __init__(self, quiet: bool) -> None:
        super().__init__(quiet, unit="", look_every=1)
        self._count = 0

    def begin(self, what: str, total: int) -> None:
        self._count = 0
        self.stage(what, total)

    def done(self, count: int) -> None:
        self._count += count
        self.at(self._count)
