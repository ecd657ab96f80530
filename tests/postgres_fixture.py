"""A real PostgreSQL for tests, one per test session: import ``postgres_server`` into a conftest or a test module.

Every test uses a database of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from waltz_ray.errors import ConfigError
from waltz_ray.testing import LocalPostgres, local_postgres

__all__ = ["postgres_server"]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[LocalPostgres]:
    """Skipped, saying why, where there are no programs of PostgreSQL: never on the Python that CI has."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(local_postgres())
        except ConfigError as error:
            if "there is no PostgreSQL here" not in str(error) or sys.version_info[:2] == (3, 11):
                raise
            pytest.skip(str(error))
        yield server
