"""``python -m waltz_spark.streams run | status | recover``: the same as ``waltz streams``."""

from __future__ import annotations

import sys

from waltz_ray.cli import main

if __name__ == "__main__":
    main(["streams", *sys.argv[1:]])
