"""An audit trail in a file, each transaction once: ``python examples/audit_trail.py [cluster] [partition] [file]``.

The cursor is the file itself: each line carries its transaction's ID, and the last whole line says where to go on.
Killed at any moment it leaves a line too few, or a torn one that the next start cuts off; never a line twice. Of two
processes with one file the second is turned away.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from waltz_ray import Transaction, WaltzClient, connect
from waltz_ray.errors import WaltzError


def line_of(transaction: Transaction) -> bytes:
    """What is written of one."""
    data = base64.b64encode(transaction.data).decode()
    entry = {"id": transaction.transaction_id, "by": transaction.req_id.client_id, "header": transaction.header}
    return json.dumps(entry | {"data": data}).encode() + b"\n"


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """The file, ready to be written to, and its cursor: the ID of the last transaction in it, -1 = none.

    BlockingIOError if somebody else writes to it."""
    with open(path, "ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the file is closed, or its process has ended
        file.seek(0)
        last_id, end = -1, 0
        for line in file:
            if not line.endswith(b"\n"):
                break  # torn
            last_id, end = int(json.loads(line)["id"]), end + len(line)
        file.truncate(end)
        yield file, last_id


def follow(client: WaltzClient, partition_id: int, path: Path, until: int | None = None) -> int:
    """Write what is and will be committed, for ever or up to transaction ``until``; the cursor then."""
    with opened(path) as (file, cursor):
        if until is not None and cursor >= until:
            return cursor
        with client.feed(partition_id, cursor + 1, follow=True) as feed:
            for transaction in feed:
                file.write(line_of(transaction))
                file.flush()  # os.fsync(file.fileno()) as well, if it has to outlive the machine's power
                cursor = transaction.transaction_id
                if cursor == until:
                    break
    return cursor


def main(cluster: str | None = None, partition_id: str = "0", path: str = "audit.jsonl") -> None:
    with connect(cluster) as client:
        print(f"process {os.getpid()} follows partition {partition_id} into {path}; end it with ^C")
        follow(client, int(partition_id), Path(path))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        print()
    except BlockingIOError:
        sys.exit("error: another process writes to this file")
    except WaltzError as error:
        sys.exit(f"error: {error}")
