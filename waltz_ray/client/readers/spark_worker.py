"""What a task of ours spares the next one in Spark's Python worker.

A Python worker of Spark runs many tasks, one after the other. Between two of them PySpark collects garbage, which looks
at every object of every module that was ever imported there: 45 ms. And it forgets what Python's importers know, upon
which those of zip files read their directories again: Spark puts ``pyspark.zip`` and the jar of its core on the path,
11 ms. To read 27 MB of the log takes 25 ms (docs/performance.md, "The log in Spark").
"""

from __future__ import annotations

import gc
import sys
import zipimport

__all__ = ["spare_the_next_task"]


def spare_the_next_task() -> None:
    """To be called in each task, when it has imported what it needs. For Spark's Python workers only.

    What is alive at the first call is never looked at by the garbage collector again: modules and what they hold, which
    stay until the process ends. Importers of zip files are made anew when something is imported: each is made of the
    directory that ``zipimport`` has read already.
    """
    if not gc.get_freeze_count():
        gc.freeze()
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            sys.path_importer_cache.pop(path, None)
