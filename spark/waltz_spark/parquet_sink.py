"""Each batch once as a directory of Parquet files, whatever ends the run: ``<path>/batch=<n>``.

Spark writes ``.batch=<n>.tmp``, which no reader of Parquet looks at; its files are synced, and one rename makes it
visible. A replayed batch replaces what is there: a kill between rename and commit repeats the batch, whole, under its
own name. ``_waltz_stream`` says which checkpoint fills the directory: another one would number its batches anew and
replace them. So would an old copy of the same checkpoint, whose batches are of other transactions: where there are
batches behind the one that is written first it is refused.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pyspark.sql import DataFrame

from waltz_ray.errors import ForeignStorage, InvalidInput
from waltz_spark.offset_log import OffsetFiles

__all__ = ["ParquetSink"]

_OWNER = "_waltz_stream"


class ParquetSink:
    """Writes to ``path``, a directory that the driver and every executor see under this name.

    ForeignStorage if another stream writes there; InvalidInput if ``path`` is no directory.
    """

    def __init__(self, path: Path, stream_id: str, files: OffsetFiles | None = None) -> None:
        self._path = path
        self._files = files or OffsetFiles()
        if path.exists() and not path.is_dir():
            raise InvalidInput(f"{path} is no directory; name one for the batches")
        self._files.make_directories(path)
        owner = path / _OWNER
        if not owner.exists():
            if any(path.glob("batch=*")):
                raise ForeignStorage(f"{path} holds batches of nobody knows whom; name another directory")
            self._files.write_whole(owner, stream_id.encode())
        if owner.read_bytes() != stream_id.encode():
            raise ForeignStorage(f"{path} is filled by a stream with another checkpoint; name another directory")
        self._began = False

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write the batch; visible and durable when it returns. ForeignStorage: there are later ones."""
        if not self._began:
            self._check_last(batch_id)
            self._began = True
        final = self._path / f"batch={batch_id}"
        temporary, old = self._path / f".batch={batch_id}.tmp", self._path / f".batch={batch_id}.old"
        shutil.rmtree(old, ignore_errors=not old.exists())
        # Not as_uri(): Hadoop takes a path's text as it is, so %3D would be a name of its own.
        frame.write.mode("overwrite").parquet(f"file://{temporary}")
        _sync_tree(temporary, self._files)
        if final.exists():
            self._files.rename(final, old)
        self._files.rename(temporary, final)
        self._files.sync_directory(self._path)
        if old.exists():
            shutil.rmtree(old)

    def _check_last(self, batch_id: int) -> None:
        """A stream goes on with its last batch or the one behind it; what is there beyond would be there twice."""
        numbers = [path.name.removeprefix("batch=") for path in self._path.glob("batch=*")]
        last = max((int(number) for number in numbers if number.isdecimal()), default=-1)
        if last > batch_id:
            raise ForeignStorage(
                f"{self._path} has batches up to {last}, and the checkpoint goes on with batch {batch_id}: it is older,"
                f" as one that was restored; remove batch={batch_id} and those behind it, and they are written anew"
            )


def _sync_tree(directory: Path, files: OffsetFiles) -> None:
    for place, _, names in os.walk(directory):
        for name in names:
            handle = os.open(Path(place, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        files.sync_directory(Path(place))
