"""A cluster in the memory of a test: no Ray, no ZooKeeper, no disk, no socket, and the log's own rules.

::

    with InMemoryCluster(partitions=4) as cluster:
        with cluster.connect(callbacks=my_callbacks) as client:
            ...

The client, the machine of each partition, sessions, locks, feeds and the bytes between them are the real ones; only
what carries and keeps the bytes is replaced. What goes wrong, and how often, is said with ``Faults``.
"""

from waltz_ray.testing.faults import Faults
from waltz_ray.testing.in_memory import InMemoryCluster
from waltz_ray.testing.postgres import LocalPostgres, local_postgres

__all__ = ["Faults", "InMemoryCluster", "LocalPostgres", "local_postgres"]
