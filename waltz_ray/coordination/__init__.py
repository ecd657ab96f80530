"""ZooKeeper through kazoo, its in-memory twin, the typed nodes of a cluster, and the embedded server."""
