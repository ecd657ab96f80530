"""What a task leaves behind in Spark's Python worker, in a process of its own: it changes the whole process."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

_TASKS = """
import gc, importlib, sys, zipimport
from waltz_ray.client.readers.spark_worker import spare_the_next_task

def of_zips():
    return [path for path, each in sys.path_importer_cache.items() if isinstance(each, zipimport.zipimporter)]

class Ring:
    ended = 0
    def __init__(self):
        self.me = self
    def __del__(self):
        Ring.ended += 1

import first_of_two
assert of_zips() == [sys.argv[1]], "else the test shows nothing"
spare_the_next_task()
kept = gc.get_freeze_count()
assert kept > 1000 and len(gc.get_objects()) < 100, (kept, len(gc.get_objects()))
assert of_zips() == []
importlib.invalidate_caches()
import second_of_two
assert second_of_two.VALUE == 2, "what is in the zip can still be imported"
Ring()
spare_the_next_task()
assert gc.get_freeze_count() == kept and of_zips() == []
gc.collect()
assert Ring.ended == 1, "what a task leaves is still collected"
"""


def test_a_task_leaves_little_to_look_at(tmp_path: Path) -> None:
    modules = tmp_path / "modules.zip"
    with zipfile.ZipFile(modules, "w") as archive:
        archive.writestr("first_of_two.py", "VALUE = 1")
        archive.writestr("second_of_two.py", "VALUE = 2")
    code = f"import sys; sys.path.insert(0, sys.argv[1])\n{_TASKS}"
    done = subprocess.run([sys.executable, "-c", code, str(modules)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
