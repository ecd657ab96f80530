"""``python -m tests.simulation.hops``: which functions of ours one append runs through, client to disks and back.

Client, server and replicas are in one process, so that all of it is seen: everything runs, nothing fails, nobody works;
then one client appends once, and every call into ``waltz_ray`` until the append has its fate is written down. What
else happens in that moment (the feed of the others, a ping) is in it, so several seeds are looked at.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from types import FrameType
from typing import Any

from tests.simulation.clients import SimClient
from tests.simulation.world import World

_PACKAGE = "/waltz_ray/"
_SEEDS = (3, 4, 5)
_READY_S = 60.0


class _QuietWorld(World):
    """``run`` fills ``seen``: the names of functions, by file."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seen: dict[str, set[str]] = defaultdict(set)

    def _run(self) -> None:
        for index, process in enumerate(self.processes()):
            if isinstance(process, SimClient):
                process.working = False
            self.scheduler.after(0.01 * index, process.start)
        deadline = self.scheduler.now + _READY_S
        self._wait("everything runs", deadline, lambda: all(process.up for process in self.processes()))
        self._wait("a new client is served", deadline, self._newcomer())
        client = self.clients[-1]
        assert isinstance(client, SimClient)
        sys.setprofile(self._look)
        append = client.last_word(0)
        self._wait("the append has its fate", deadline, lambda: append.fate is not None)
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        path, _, file = frame.f_code.co_filename.rpartition(_PACKAGE)
        if event == "call" and path and "/tests/" not in path:  # Python 3.10 knows the short name only
            self.seen[file].add(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))


def main() -> None:
    """A line for each file, in the end the sums; of the first seed with ``--names``."""
    for seed in _SEEDS:
        world = _QuietWorld(seed)
        world.run()
        if "--names" in sys.argv and seed == _SEEDS[0]:
            for file, names in sorted(world.seen.items()):
                print(f"{file}: {' '.join(sorted(names))}")
        print(f"seed {seed}: {sum(map(len, world.seen.values()))} functions in {len(world.seen)} files")


if __name__ == "__main__":
    main()
