"""Where a cluster is. One way for everybody who looks for one: ``find.find_cluster``."""
