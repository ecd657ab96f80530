"""The copy of stdin that a command keeps which reads it more than once: where there is no room for it, it says so."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from waltz_ray.errors import DiskFull

__all__ = ["room_for_stdin"]

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def room_for_stdin() -> Iterator[None]:
    """Around what makes the copy, before anything is appended. DiskFull: it would else be taken for the output's."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise DiskFull(
            f"stdin is copied to a temporary file in {tempfile.gettempdir()}, which has no room for it "
            f"({error.strerror}); make room there, or name another directory with TMPDIR; nothing was appended"
        ) from error
