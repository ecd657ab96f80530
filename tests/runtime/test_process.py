"""What a process says of itself."""

from __future__ import annotations

import os
import resource

from waltz_ray.runtime.process import about_process


def test_a_process_without_a_handle_left_says_so() -> None:
    """It serves on; and who looks would take an error for no answer."""
    about_process()  # what is read once has been read
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[0] + 1, limits[1]))
    try:
        said = about_process()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(opened[0])
    assert said.open_files == said.open_files_limit == opened[0] + 1
    now = about_process()
    assert now.open_files is not None
    assert 0 < now.open_files < now.open_files_limit
