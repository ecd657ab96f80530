"""The data plane does not run at the low priority Ray gives to its workers."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import logging, os, sys, threading
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from waltz_ray.actors.priority import take_normal_priority
over = threading.Event()
os.nice(7)
thread = threading.Thread(target=over.wait)
thread.start()
take_normal_priority()
print(sorted({os.getpriority(os.PRIO_PROCESS, int(t)) for t in os.listdir("/proc/self/task")}))
over.set()
"""


def test_every_thread_gets_the_normal_priority_or_it_is_said_that_it_may_not() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    said = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60).stdout
    if os.geteuid() == 0:
        assert said.split("\n")[0] == "[0]"
    else:
        assert f"[{before + 7}]" in said
        assert "RAY_worker_niceness=0" in said
