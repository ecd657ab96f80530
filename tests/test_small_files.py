"""Files that people write."""

from __future__ import annotations

from pathlib import Path

import pytest
from waltz_spark.streams.configuration import read_config

from waltz_ray.deployment.file import read
from waltz_ray.errors import InvalidInput, WaltzError
from waltz_ray.security.client_rights import read_rights
from waltz_ray.small_files import MOST_FILE_BYTES, read_small_file


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"", b"\xff\x00", bytes(MOST_FILE_BYTES)):
        path.write_bytes(data)
        assert read_small_file(path) == data
    path.write_bytes(bytes(MOST_FILE_BYTES + 1))
    with pytest.raises(InvalidInput, match=f"file has more than {MOST_FILE_BYTES} bytes; is this the right file?"):
        read_small_file(path)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name, why in (("nobody", "No such file"), (".", "Is a directory"), ("loop", "Too many levels")):
        with pytest.raises(InvalidInput, match=f"cannot be read: {why}"):
            read_small_file(tmp_path / name)


@pytest.mark.parametrize("reader", [read, read_rights, read_config], ids=["deployment", "rights", "streams"])
def test_what_never_ends_is_not_read_to_its_end(reader: object) -> None:
    assert callable(reader)
    with pytest.raises(WaltzError, match="/dev/zero has more than"):
        reader(Path("/dev/zero"))
