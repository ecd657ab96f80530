"""Topics: the message queue on the log that speaks TubeMQ's protocol."""
