"""The mark beside the data with nothing but ``sqlite3``: ``python examples/plain_sqlite.py [cluster] [database]``.

Callbacks run on a thread of the client's, so the connection is opened with ``check_same_thread=False``; they are never
called by two threads at a time, so it needs no lock as long as only they use it. Who else reads opens a connection.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing

from waltz_ray import Callbacks, Transaction, connect
from waltz_ray.errors import WaltzError


class WordCount(Callbacks):
    """How often each word was appended, in ``path``."""

    def __init__(self, path: str) -> None:
        # isolation_level=None: transactions begin and end where we say so.
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")  # others may read meanwhile
        self._database.execute("CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, count INTEGER NOT NULL)")
        self._database.execute("CREATE TABLE IF NOT EXISTS marks (partition_id INTEGER PRIMARY KEY, mark INTEGER)")

    def client_high_water_mark(self, partition_id: int) -> int:
        row = self._database.execute("SELECT mark FROM marks WHERE partition_id = ?", [partition_id]).fetchone()
        return -1 if row is None else int(row[0])

    def apply_transaction(self, transaction: Transaction) -> None:
        self.apply_transactions(transaction.partition_id, [transaction])

    def apply_transactions(self, partition_id: int, transactions: Sequence[Transaction]) -> None:
        """Many in one transaction: one sync of the disk for all of them."""
        # Others may have appended what is no text. Raised here, it would come again for ever, and nothing behind it.
        words = [(word,) for transaction in transactions for word in transaction.data.decode(errors="replace").split()]
        with self._database:  # rolls back what raises
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(
                "INSERT INTO words VALUES (?, 1) ON CONFLICT (word) DO UPDATE SET count = count + 1", words
            )
            mark = transactions[-1].transaction_id
            self._database.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", [partition_id, mark])

    def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        print(f"transaction {partition_id}/{transaction_id} comes again: {error!r}", file=sys.stderr)

    def close(self) -> None:
        """After the client."""
        self._database.close()


def main(cluster: str | None = None, path: str = "words.db") -> None:
    words = WordCount(path)
    with connect(cluster, callbacks=words) as client:
        client.wait_ready(30)
        appended = [client.append(0, line.encode()) for line in sys.stdin]
        last_id = max((append.result() for append in appended), default=-1)
        client.wait_applied(0, last_id)  # a future's result only says that it is committed
    words.close()
    with closing(sqlite3.connect(path)) as database:
        for word, count in database.execute("SELECT word, count FROM words ORDER BY count DESC LIMIT 10"):
            print(count, word)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except WaltzError as error:
        sys.exit(f"error: {error}")
