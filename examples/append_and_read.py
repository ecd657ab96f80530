"""Append to a running cluster and read it back: ``python examples/append_and_read.py [cluster]``."""

from __future__ import annotations

import sys

import waltz_ray
from waltz_ray.errors import WaltzError


def main(cluster: str | None) -> None:
    with waltz_ray.connect(cluster) as client:
        first = client.append(0, b"one record", header=1).result()
        print(f"committed as transaction {first}")

        ids = client.append_many(0, [f"record {i}".encode() for i in range(1000)]).result()
        print(f"1000 more: transactions {ids[0]} to {ids[-1]}")

        for transaction in client.read(0, first, first + 3):
            print(transaction.transaction_id, transaction.header, transaction.data.decode())


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else None)
    except KeyboardInterrupt:
        sys.exit(130)
    except WaltzError as error:
        sys.exit(f"error: {error}")
