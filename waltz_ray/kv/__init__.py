"""The key/value layer (OpenCluster): an application of the log. docs/opencluster.md."""
