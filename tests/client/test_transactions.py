"""Transactions of a feed are made when they are looked at, and look like a list of all of them."""

from __future__ import annotations

import numpy as np
import pytest

from waltz_ray.client.feeds import FeedFrame, Origin, Transactions
from waltz_ray.protocol.messages.client import FeedBatch
from waltz_ray.protocol.records import RecordBatch, build_records
from waltz_ray.protocol.times import TimeMarks


def records(first_id: int, count: int) -> RecordBatch:
    numbers = np.arange(first_id, first_id + count, dtype=np.int32)
    datas = [b"%d" % number for number in numbers.tolist()]
    lengths = np.array([len(data) for data in datas], dtype=np.int32)
    columns = (numbers, numbers * 10, lengths, np.zeros(count, dtype=np.uint32))
    return build_records(3, first_id, 7, 1, columns, datas)


def no_fetch(partition_id: int, transaction_id: int) -> bytes:
    raise AssertionError("the data came with the feed")


def no_times(partition_id: int, first_id: int, end_id: int) -> TimeMarks:
    raise AssertionError("nobody has asked for a time")


def test_several_frames_look_like_one_list() -> None:
    # The second frame repeats what the first one had, the third is of no use: a feed that is read again does that.
    feeds = [(records(5, 4), 4), (records(7, 5), 8), (records(6, 3), 11)]
    transactions = Transactions([FeedFrame(batch, after, Origin(no_fetch, no_times)) for batch, after in feeds])
    ids = list(range(5, 12))
    assert len(transactions) == 7
    assert transactions.last_id == 11
    assert [one.transaction_id for one in transactions] == ids
    assert [transactions[i].transaction_id for i in range(7)] == ids
    assert [transactions[i].transaction_id for i in range(-7, 0)] == ids
    assert [one.transaction_id for one in transactions[2:6:2]] == [7, 9]
    assert [(one.header, one.data, one.req_id.client_id) for one in transactions] == [
        (10 * i, b"%d" % i, 7) for i in ids
    ]
    for outside in (7, -8):
        with pytest.raises(IndexError):
            transactions[outside]
    rest = transactions.after(8)
    assert [one.transaction_id for one in rest] == [9, 10, 11]
    assert len(transactions) == 7, "the whole is left as it was"
    assert not transactions.after(11)
    assert not Transactions([])


def test_data_is_fetched_once() -> None:
    fetched: list[int] = []

    def fetch(partition_id: int, transaction_id: int) -> bytes:
        fetched.append(transaction_id)
        return b"data of %d" % transaction_id

    column = np.arange(4, dtype=np.int32)
    transactions = Transactions(
        [FeedFrame(FeedBatch(3, 10, column, column, column, column), 9, Origin(fetch, no_times))]
    )
    assert transactions[2].data == b"data of 12"
    assert transactions[2].data == b"data of 12"
    assert transactions[2].req_id.sequence_number == 2
    assert fetched == [12]
