"""Feed order: a subscriber that begins after a mark is fed mark + 1, mark + 2, ..., and it is the log it is fed."""

from __future__ import annotations

from tests.protocol import checkers as shared
from tests.simulation.checkers.outcome import Outcome
from tests.simulation.history import Violation

__all__ = ["check"]


def check(outcome: Outcome) -> None:
    for feed in outcome.history.feeds:
        try:
            shared.check_feed_is_dense(feed.mark, [transaction_id for transaction_id, _ in feed.entries])
        except shared.Violation as error:
            raise Violation("feed_order", f"{feed.client}, partition {feed.partition_id}: {error}") from error
        req_ids, payloads = outcome.req_ids[feed.partition_id], outcome.payloads[feed.partition_id]
        for transaction_id, who in feed.entries:
            if transaction_id >= len(req_ids):
                raise Violation("feed_order", f"{feed.client} was fed {transaction_id}, which is not in the log")
            req_id = str(tuple(req_ids[transaction_id]))
            if who not in (req_id, f"{req_id} {payloads[transaction_id].uid}"):
                raise Violation("feed_order", f"{feed.client} was fed {who} as {transaction_id}, the log has {req_id}")
