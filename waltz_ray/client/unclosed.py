"""What was dropped and not closed says so, as files and sockets of Python do."""

from __future__ import annotations

import os
import sys
import warnings

__all__ = ["warn_unclosed"]


def warn_unclosed(source: object, what: str, process: int) -> None:
    """Called by ``__del__`` of ``what`` is open since it was begun in ``process``: a ResourceWarning.

    Nothing is closed: that would wait, and a garbage collection may come anywhere, also on the thread that would be
    waited for; and what was made of it may be in use. In a forked child it is the parent's.
    """
    if process != os.getpid() or sys.is_finalizing():
        return
    text = f"unclosed {what}: what it has open stays so until the process ends; use `with`, or close it"
    warnings.warn(text, ResourceWarning, stacklevel=3, source=source)
