"""What becomes of appends that go to the server in several frames, or that the server divides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.client.test_batches import many
from waltz_ray.client.fates import Fates
from waltz_ray.client.futures import LightFuture
from waltz_ray.client.outbox import Bell, Outbox
from waltz_ray.client.requests import AppendCall, ManyAppend, Sending
from waltz_ray.client.time_limits import expire_append
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendFailed, ClientClosed, InvalidInput, LockConflict, PartlyAppended, WaltzError
from waltz_ray.protocol.client_monitor import Piece
from waltz_ray.protocol.messages.client import RejectionCode

MAX_BYTES = 1 << 20


class NoContexts:
    """There are none here."""

    def lock_failed(self, append: AppendCall, transaction_id: int) -> None:
        raise AssertionError(append, transaction_id)

    def failed(self, append: AppendCall) -> None:
        raise AssertionError(append)


class Partition:
    """The appends of one, without a server."""

    def __init__(self) -> None:
        self.outbox = Outbox(0, ClientConfig(), lambda: 0.0, Bell(lambda look: None, lambda: None))
        self.fates = Fates(0, self.outbox, NoContexts())

    def offer(self, *datas: bytes) -> ManyAppend:
        append = many([*datas])
        assert self.outbox.offer(append)
        return append

    def send(self, max_records: int) -> Piece[Sending]:
        """The next frame; all of it."""
        batch = self.outbox.take(max_records, MAX_BYTES)
        assert batch is not None
        return Piece(batch, 0, batch.count, 0)


def error_of(append: AppendCall) -> BaseException | None:
    assert isinstance(append.future, LightFuture)
    assert append.future.done()
    return append.future.exception()


Ends = Callable[[Fates, Piece[Sending]], None]


def lock_failed(fates: Fates, piece: Piece[Sending]) -> None:
    fates.lock_failed([piece], np.array([4] * piece.size))


def unknown(fates: Fates, piece: Piece[Sending]) -> None:
    fates.unknown([piece], ClientClosed("somebody else has mounted"))


def refused(fates: Fates, piece: Piece[Sending]) -> None:
    fates.refused([piece], "not allowed", RejectionCode.NOT_ALLOWED)


def failed_for_good(fates: Fates, piece: Piece[Sending]) -> None:
    for append in {one.token for one in piece.token.pieces if isinstance(one, Piece)}:
        append.retry = False
    fates.failed([piece], "not in the log")


@pytest.mark.parametrize("end", [lock_failed, unknown, refused, failed_for_good])
def test_nothing_more_is_sent_of_many_whose_error_has_been_told(end: Ends) -> None:
    """Who has heard it appends them again: they would be in the log twice."""
    partition = Partition()
    append = partition.offer(b"a", b"b", b"c", b"d")
    after = partition.offer(b"e")
    end(partition.fates, partition.send(3))
    assert isinstance(error_of(append), WaltzError)
    batch = partition.send(3).token
    assert [(piece.token, piece.start) for piece in batch.pieces_of(0, batch.count, 0)] == [(after, 0)]
    assert partition.outbox.outstanding == 1


def test_of_many_that_were_put_back_nothing_is_sent_when_another_part_has_ended_in_an_error() -> None:
    partition = Partition()
    append = partition.offer(b"a", b"b", b"c", b"d")
    first, second = partition.send(2), partition.send(2)
    partition.fates.failed([first], "the server has gone")
    assert not append.future.done()
    lock_failed(partition.fates, second)
    assert isinstance(error_of(append), PartlyAppended)
    assert partition.outbox.take(9, MAX_BYTES) is None
    partition.fates.failed([first], "told once more")
    assert partition.outbox.take(9, MAX_BYTES) is None


@pytest.mark.parametrize("end", [lock_failed, refused, failed_for_good])
def test_what_the_server_has_divided_may_be_in_the_log_in_part(end: Ends) -> None:
    """The other half has a fate of its own, which nobody waits for any more."""
    partition = Partition()
    append = partition.offer(b"a", b"b", b"c", b"d")
    batch = partition.send(4).token
    end(partition.fates, Piece(batch, 2, 2, 0))
    error = error_of(append)
    assert isinstance(error, PartlyAppended)
    assert error.transaction_ids == (-1, -1, -1, -1)


@pytest.mark.parametrize(
    ("end", "kind"), [(lock_failed, LockConflict), (refused, WaltzError), (failed_for_good, AppendFailed)]
)
def test_what_nobody_has_divided_is_not_in_the_log(end: Ends, kind: type[WaltzError]) -> None:
    partition = Partition()
    append = partition.offer(b"a", b"b", b"c", b"d")
    end(partition.fates, partition.send(4))
    assert isinstance(error_of(append), kind)
    assert not isinstance(error_of(append), PartlyAppended)


def test_too_large_is_invalid() -> None:
    partition = Partition()
    append = partition.offer(b"a")
    partition.fates.refused([partition.send(1)], "too large", RejectionCode.TOO_LARGE)
    assert isinstance(error_of(append), InvalidInput)


class TestTimeIsOver:
    def test_the_rest_is_not_sent_and_the_error_says_so_when_the_fate_of_the_others_comes(self) -> None:
        partition = Partition()
        append = partition.offer(b"a", b"b", b"c")
        piece = partition.send(2)
        assert expire_append(partition.outbox, append, 1.0) is None
        assert partition.outbox.take(9, MAX_BYTES) is None
        assert partition.fates.in_the_log([piece], np.array([5, 6])) == []
        error = error_of(append)
        assert isinstance(error, PartlyAppended)
        assert error.transaction_ids == (5, 6, -1)
        assert (partition.outbox.outstanding, partition.outbox.open_appends()) == (0, [])

    def test_the_others_are_in_the_log_already(self) -> None:
        partition = Partition()
        append = partition.offer(b"a", b"b", b"c")
        assert partition.fates.in_the_log([partition.send(2)], np.array([5, 6])) == []
        error = expire_append(partition.outbox, append, 1.0)
        assert isinstance(error, PartlyAppended)
        assert error.transaction_ids == (5, 6, -1)
        assert partition.outbox.take(9, MAX_BYTES) is None
        assert (partition.outbox.outstanding, partition.outbox.open_appends()) == (0, [])

    def test_the_others_are_not_in_the_log(self) -> None:
        partition = Partition()
        append = partition.offer(b"a", b"b", b"c")
        piece = partition.send(2)
        assert expire_append(partition.outbox, append, 1.0) is None
        partition.fates.failed([piece], "the server has gone")
        assert isinstance(error_of(append), PartlyAppended)
        assert partition.outbox.take(9, MAX_BYTES) is None
        assert partition.outbox.outstanding == 0

    def test_nothing_has_been_sent(self) -> None:
        partition = Partition()
        append = partition.offer(b"a", b"b", b"c")
        assert type(expire_append(partition.outbox, append, 1.0)) is AppendFailed
        assert partition.outbox.take(9, MAX_BYTES) is None
        assert partition.outbox.outstanding == 0

    def test_everything_is_under_way(self) -> None:
        partition = Partition()
        append = partition.offer(b"a", b"b", b"c")
        first, second = partition.send(2), partition.send(2)
        assert expire_append(partition.outbox, append, 1.0) is None
        assert partition.fates.in_the_log([first], np.array([5, 6])) == []
        assert not append.future.done()
        assert partition.fates.in_the_log([second], np.array([9])) == []
        assert isinstance(append.future, LightFuture)
        assert append.future.result().tolist() == [5, 6, 9]
