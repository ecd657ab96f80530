"""A process with one pass of one service, which kills or stops itself at a point of ``commit.Hook``.

    python -m tests.spark.streams.worker '{"hosts": ..., "base": ..., "node": ..., "service": ...,
                                           "point": ..., "signal": "KILL"}'

Exit status 3: the point was never passed; 4: another run had taken over.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from waltz_spark.streams.services import StreamService

from tests.spark.streams.world import DOCUMENT, NOW, PARTS, settings_of
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import StorageError, VersionConflict, ZooKeeperUnreachable

__all__ = ["NEVER_PASSED", "SESSION_TIMEOUT_MS", "TAKEN_OVER"]

NEVER_PASSED, TAKEN_OVER = 3, 4
SESSION_TIMEOUT_MS = 1000


def main(case: dict[str, str]) -> int:
    passed = False

    def hook(point: str) -> None:
        nonlocal passed
        if point == case["point"] and not passed:
            passed = True
            os.kill(os.getpid(), signal.Signals["SIG" + case["signal"]])

    zookeeper = KazooZooKeeper(case["hosts"], SESSION_TIMEOUT_MS)
    try:
        layouts = DOCUMENT if case["layout"] == "document" else PARTS
        settings = settings_of(case["base"], case["node"], layouts, case["compact"])[case["service"]]
        with StreamService(settings, zookeeper, clock=lambda: NOW, hook=hook) as service:
            service.run_once()
    except (VersionConflict, StorageError, ZooKeeperUnreachable) as error:
        print(f"{type(error).__name__} {error}", file=sys.stderr)
        return TAKEN_OVER
    finally:
        zookeeper.close()
    return 0 if passed else NEVER_PASSED


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
