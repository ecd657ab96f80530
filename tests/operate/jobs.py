"""Ray jobs of the tests, on a Ray of this machine with its dashboard."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waltz_ray.actors import local_ray
from waltz_ray.finding import cluster_file, ray_lookup

__all__ = ["ROOT", "Ray", "ray_with_dashboard"]

ROOT = Path(__file__).resolve().parents[2]


class Ray:
    """``submit`` and ``waltz`` are processes of their own, as an operator starts them."""

    def __init__(self, address: str, dashboard: str) -> None:
        self.address, self.dashboard = address, f"http://{dashboard}"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "WALTZ_"))}
        self._environment = own | {"PATH": path, "RAY_API_SERVER_ADDRESS": self.dashboard}

    def submit(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A job, until it has ended; its output."""
        return self._run(["ray", "job", "submit", "--working-dir", ".", "--", *command])

    def waltz(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run(["waltz", *arguments], RAY_ADDRESS=self.address)

    def _run(self, command: list[str], **more: str) -> subprocess.CompletedProcess[str]:
        environment = self._environment | more
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False
        )


@contextmanager
def ray_with_dashboard(directory: Path) -> Iterator[Ray]:
    """A Ray that is not the clusters' own; it ends with the block, and what is left of clusters in ``directory``."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    before = os.environ["PATH"]
    os.environ["PATH"] = path  # of the jobs, whose ``python`` is this one
    try:
        head = local_ray.start(directory / "head", dashboard=True)
    finally:
        os.environ["PATH"] = before
    try:
        yield Ray(head.address, head.dashboard)
    finally:
        ray_lookup.leave()
        local_ray.stop(head)
        for each in directory.iterdir():
            known = cluster_file.read(each) if each.is_dir() else None
            if known is not None and known.embedded:
                _end_zookeeper(each / "zookeeper")


def _end_zookeeper(directory: Path) -> None:
    from waltz_ray.coordination.embedded import EmbeddedZooKeeper

    EmbeddedZooKeeper(directory).stop()
