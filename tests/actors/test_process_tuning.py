"""The data plane does not run at Ray's low priority, and does not look through Ray's heap for garbage."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import logging, os, sys, threading
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from waltz_ray.actors.process_tuning import take_normal_priority
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


def test_the_garbage_of_before_is_not_looked_at_again_and_new_cycles_still_go() -> None:
    code = """
import gc, weakref
from waltz_ray.actors.process_tuning import quieten_garbage_collector
quieten_garbage_collector()
quieten_garbage_collector()  # a replica that starts again in its process
assert gc.get_freeze_count() > 1000 and len(gc.get_objects()) < 1000
class Cycle: pass
one = Cycle(); one.me = one; gone = weakref.ref(one); del one
many = [[] for _ in range(gc.get_threshold()[0] + 1000)]
assert gone() is None
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
