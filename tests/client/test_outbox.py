"""Who waits for room: first come, first served, and nobody is woken in vain."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from waltz_ray.client.outbox import Bell, Outbox
from waltz_ray.client.requests import AppendCall
from waltz_ray.config import ClientConfig
from waltz_ray.errors import ClientClosed, WaltzError


class Line:
    """An outbox for two appends or ten bytes, and what those who stand in line were told."""

    def __init__(self) -> None:
        config = ClientConfig(outstanding_appends=2, outstanding_bytes=10)
        self.outbox = Outbox(0, config, lambda: 0.0, Bell(lambda look: None, lambda: None))
        self.told: list[tuple[bytes, WaltzError | None]] = []
        self.appends: dict[bytes, AppendCall] = {}

    def append(self, data: bytes) -> AppendCall:
        self.appends[data] = AppendCall(data, 0, 0)
        return self.appends[data]

    def waits(self, *datas: bytes) -> None:
        for data in datas:
            self.outbox.stand_in_line(self.append(data), partial(self._tell, data))

    def _tell(self, data: bytes, error: WaltzError | None) -> None:
        self.told.append((data, error))

    def ends(self, data: bytes) -> None:
        self.outbox.free([self.appends[data]])
        self.outbox.forget([self.appends[data]])

    def taken(self) -> list[bytes]:
        told, self.told = self.told, []
        assert all(error is None for _, error in told)
        return [data for data, _ in told]


@pytest.fixture
def line() -> Line:
    line = Line()
    assert line.outbox.offer(line.append(b"a"))
    assert line.outbox.offer(line.append(b"b"))
    return line


def test_room_goes_to_who_came_first(line: Line) -> None:
    line.waits(b"c", b"d", b"e")
    assert (line.taken(), line.outbox.blocked) == ([], 3)
    line.ends(b"b")
    assert line.taken() == [b"c"]
    line.outbox.free([line.appends[b"a"], line.appends[b"c"]])
    line.outbox.forget([line.appends[b"a"], line.appends[b"c"]])
    assert line.taken() == [b"d", b"e"]
    assert [append.data for append in line.outbox.open_appends()] == [b"d", b"e"]
    assert (line.outbox.outstanding, line.outbox.waiting, line.outbox.appends) == (2, 5, 5)


def test_nobody_gets_ahead_but_the_loop(line: Line) -> None:
    line.waits(b"8 bytes.")
    line.outbox.free([line.appends[b"a"]])  # the callbacks of a future come before who stands in line
    assert not line.outbox.offer(line.append(b"late"))
    assert line.outbox.offer(line.append(b"c"), ahead=True)
    line.outbox.forget([line.appends[b"a"]])
    assert line.taken() == []
    line.ends(b"b")
    assert line.taken() == [b"8 bytes."]


def test_who_leaves_lets_others_pass(line: Line) -> None:
    line.waits(b"9 bytes..", b"d")
    line.ends(b"a")
    line.ends(b"b")
    assert line.taken() == [b"9 bytes..", b"d"]
    line.waits(b"9 more...", b"e")
    line.ends(b"d")
    assert line.taken() == []
    assert line.outbox.leave_line(line.appends[b"9 more..."])
    assert line.taken() == [b"e"]
    assert not line.outbox.leave_line(line.appends[b"e"])  # too late


def test_there_may_be_room_by_now(line: Line) -> None:
    line.ends(b"a")
    line.waits(b"c", b"d")
    assert line.taken() == [b"c"]


def test_all_are_told_of_the_end(line: Line) -> None:
    line.waits(b"c", b"d")
    line.outbox.close(ClientClosed("over"), ClientClosed("over: not sent"))
    line.waits(b"e")
    assert [data for data, error in line.told if isinstance(error, ClientClosed)] == [b"c", b"d", b"e"]
    assert len({id(error) for _, error in line.told}) == 3


def test_what_is_sent_again_keeps_its_place_however_it_comes_back() -> None:
    outbox = Outbox(0, ClientConfig(), lambda: 0.0, Bell(lambda look: None, lambda: None))
    appends = [AppendCall(b"%d" % n, 0, 0) for n in range(6)]
    for append in appends:
        assert outbox.offer(append)
    outbox.take(5, 1 << 20)
    outbox.put_back([appends[0], appends[3]])
    outbox.put_back([appends[4], appends[1]])
    outbox.put_back([])
    sending = outbox.take(10, 1 << 20)
    assert sending is not None
    assert sending.pieces == [appends[0], appends[1], appends[3], appends[4], appends[5]]


@pytest.mark.parametrize("where", ["clock", "bell"])
def test_who_is_interrupted_while_he_appends_has_appended_nothing(where: str) -> None:
    """Its room was gone for good; or the outbox had it, and nobody was ever told to send it, nor what came after it."""
    posted: list[Callable[[], object]] = []
    interrupts = [where]

    def interrupted(at: str) -> float:
        if interrupts == [at]:
            interrupts.clear()
            raise KeyboardInterrupt
        return 0.0

    def post(function: Callable[..., object], *args: object) -> None:
        interrupted("bell")
        posted.append(partial(function, *args))

    looks: list[int] = []
    outbox = Outbox(0, ClientConfig(), lambda: interrupted("clock"), Bell(post, lambda: looks.append(1)))
    append = AppendCall(b"never", 0, 0)
    with pytest.raises(KeyboardInterrupt):
        outbox.offer(append)
    for call in posted:
        call()
    assert (outbox.outstanding, outbox.waiting, outbox.open_appends()) == (0, 0, [])
    assert append.future.done() == (where == "bell")  # who waits for all that was appended may have begun to
    posted.clear()
    assert outbox.offer(AppendCall(b"after", 0, 0))
    for call in posted:
        call()
    assert (looks[-1:], outbox.outstanding, outbox.waiting) == ([1], 1, 1)
