"""The scheduling priority of the data plane.

Ray starts its workers at nice 15, so that tasks do not starve the raylet. A log that answers others is no such task:
on a busy node every append would wait behind whatever runs at normal priority, on each hop of its way.
"""

from __future__ import annotations

import contextlib
import logging
import os

__all__ = ["take_normal_priority"]

log = logging.getLogger(__name__)


def take_normal_priority() -> None:
    """Nice 0 for every thread of this process, as far as the system permits (CAP_SYS_NICE, or RLIMIT_NICE).

    Where it does not: start the node's Ray with RAY_worker_niceness=0 in its environment, as ``waltz up`` does.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) <= 0 or not os.path.isdir("/proc/self/task"):
        return
    try:
        for thread_id in os.listdir("/proc/self/task"):  # on Linux every thread has a priority of its own
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.setpriority(os.PRIO_PROCESS, int(thread_id), 0)
    except PermissionError:
        log.warning(
            "this process runs at nice %d and may not change it; start Ray on this node with RAY_worker_niceness=0",
            os.getpriority(os.PRIO_PROCESS, 0),
        )
