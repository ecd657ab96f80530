"""Accounts derived from the log, transfers under locks: ``python examples/bank.py [cluster]``.

Start it twice at the same time: both processes see the same balances, and no transfer overdraws an account.
The balances live in memory here, so the mark begins at -1 and every start reads the log from its beginning.
"""

from __future__ import annotations

import json
import random
import sys
import threading

from waltz_ray import Callbacks, Transaction, TransactionBuilder, TransactionContext, connect

ACCOUNTS = 5
OPENING_BALANCE = 100
PARTITION = 0


class Bank(Callbacks):
    """The state: what all transactions up to ``mark`` add up to."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.balances = dict.fromkeys(range(ACCOUNTS), OPENING_BALANCE)
        self.mark = -1

    def client_high_water_mark(self, partition_id: int) -> int:
        return self.mark

    def apply_transaction(self, transaction: Transaction) -> None:
        transfer = json.loads(transaction.data)
        with self.lock:
            self.balances[transfer["from"]] -= transfer["amount"]
            self.balances[transfer["to"]] += transfer["amount"]
            self.mark = transaction.transaction_id

    def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        print(f"transaction {partition_id}/{transaction_id} could not be applied: {error!r}", file=sys.stderr)


class Transfer(TransactionContext):
    """Moves money if it is there; decided again whenever somebody else touched one of the accounts."""

    def __init__(self, bank: Bank, source: int, target: int, amount: int) -> None:
        self.bank = bank
        self.source, self.target, self.amount = source, target, amount

    def partition_id(self, partitions: int) -> int:
        return PARTITION

    def execute(self, builder: TransactionBuilder) -> bool:
        with self.bank.lock:
            if self.bank.balances[self.source] < self.amount:
                return False
        builder.write_lock("account", self.source)
        builder.write_lock("account", self.target)
        builder.data = json.dumps({"from": self.source, "to": self.target, "amount": self.amount}).encode()
        return True


def main(cluster: str) -> None:
    bank = Bank()
    with connect(cluster, callbacks=bank, partitions=[PARTITION]) as client:
        client.wait_ready(30)
        pairs = [random.sample(range(ACCOUNTS), 2) for _ in range(200)]
        transfers = [Transfer(bank, source, target, random.randint(1, 50)) for source, target in pairs]
        outcomes = [client.submit(transfer) for transfer in transfers]
        done = sum(bool(outcome.result()) for outcome in outcomes)
        print(f"{done} transfers committed, {len(transfers) - done} lacked the money; {client.statistics()}")
        print(f"balances: {bank.balances}, together {sum(bank.balances.values())}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "waltz")
