"""``net`` stands below everybody who uses it: of ours it knows frames and errors only."""

from __future__ import annotations

from pathlib import Path

import waltz_ray.net
from tests.test_layers import imports_of

MAY = ("waltz_ray.wire.framing", "waltz_ray.errors", "waltz_ray.net")


def test_net_knows_frames_and_errors_only() -> None:
    for path in sorted(Path(waltz_ray.net.__file__).parent.glob("*.py")):
        ours = [name for name in imports_of(path) if name.startswith("waltz_ray")]
        assert [name for name in ours if not name.startswith(MAY)] == [], path.name
