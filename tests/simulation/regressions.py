"""Seeds that once found something, with what it was. They are run with every test run.

A seed stands for a history only as long as nothing that draws from the seed changes; what each found is told once more,
as small as possible, in ``test_found.py``.
"""

from __future__ import annotations

__all__ = ["REGRESSIONS"]

REGRESSIONS: dict[int, str] = {
    0x4A8: "a replica link whose connection broke without notice before its HELLO waited for it for ever",
    0x4EE: "a replica that started on a full disk never tried again; a session that was opening did not see that a "
    "lost replica had been replaced",
    0x5DF: "a segment whose index and header had both rotted: each read failed, and nobody was told to cut it away",
    0x1478: "a checker blamed an answer that was decided before its records were cut, in a turn of several partitions",
    0x18AF3: "a process killed between making a folder and syncing its name: the next start took the name for durable, "
    "and power lost later took the partition with it",
    0x1903A: "a leader that was told of its lost session after it had been elected again never led again",
    0x2000007E: "a connection that could not be had, and that nobody waited for any more, was logged as a bug",
    0x2000019: "a checker knew nothing of a record that was committed by a session's beginning and dropped by nobody",
    0x21073008: "an actor that heard of three owners of a slot at once acted on the first one, itself, with the mark "
    "of all: the log took its release of what another one had",
    0x3005101F: "what a native consumer had read before its group was set back, said late over a connection it had "
    "given up, was confirmed when it had registered again: what comes again was passed over",
}
