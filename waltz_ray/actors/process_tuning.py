"""What a process of the data plane sets for itself: its priority and its garbage collector.

Ray starts its workers at nice 15, so that tasks do not starve the raylet. A log that answers others is no such task:
on a busy node every append would wait behind whatever runs at normal priority, on each hop of its way.

Python's garbage collector looks at every container that is alive whenever enough have been made. A worker of Ray has
some 200,000 of them before it does anything, and a batch of thousands of records makes thousands of views at once,
which are freed without its help.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os

__all__ = ["quieten_garbage_collector", "take_normal_priority"]

log = logging.getLogger(__name__)

_CONTAINERS_BETWEEN = 35_000  # made and not freed; Python's default is 700


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


def quieten_garbage_collector() -> None:
    """Never look again at what is alive now, and at the rest fifty times less often. For a process that has started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_CONTAINERS_BETWEEN, 10, 10)
