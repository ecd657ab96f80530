"""The topics layer (TubeMQ): an application of the log. docs/tubemq.md."""
