"""``python -m waltz_ray``: the ``waltz`` command."""

from __future__ import annotations

from waltz_ray.cli import main

if __name__ == "__main__":
    main()
