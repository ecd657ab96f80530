"""Codecs: what is read is what was written, what a format does not have is refused, and the bytes are the format's."""

from __future__ import annotations

import enum
import json
import math
import pickle
import subprocess
import sys
import uuid
from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone
from typing import Any, ClassVar, cast

import msgspec
import pydantic
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.client.conftest import PATIENCE_S, MakeClient, Recorder
from tests.client.fake_server import FakeDirectory, FakeServer
from waltz_ray.client import AsyncWaltzClient, Transaction, TransactionBuilder, TransactionContext, WaltzClient
from waltz_ray.client.codecs import (
    ZSTD_MAGIC,
    BytesCodec,
    Codec,
    JsonCodec,
    MsgpackCodec,
    TypedCodec,
    ZstdCodec,
    encoded,
)
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.errors import DecodingFailed, InvalidInput


@dataclass
class Leg:
    tail: str
    delay_min: float | None = None


class Plane(pydantic.BaseModel):
    tail: str
    seats: int


class Booking(pydantic.BaseModel):
    flight_no: int = pydantic.Field(alias="flightNo")
    seat: str = pydantic.Field(alias="seatName", default="")
    plane: Plane | None = pydantic.Field(serialization_alias="aircraft", default=None)


class Rest(pydantic.BaseModel):
    begins: datetime


@dataclass
class LongLeg(Leg):
    meals: int = 0


@dataclass
class Hidden:
    a: int
    _b: int


class Seat(msgspec.Struct):
    row: int
    price: float | None = None


class Window(Seat):
    view: str = ""


class Colour(enum.Enum):
    RED = "red"
    NONE = math.nan


def at_offset(seconds: float) -> datetime:
    return datetime(1930, 1, 1, tzinfo=timezone(timedelta(seconds=seconds)))


TEXTS = st.text(st.characters(codec="utf-8"))
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(JSON_VALUES)
def test_json_and_msgpack_read_what_they_wrote(value: Any) -> None:
    codecs: list[Codec] = [JsonCodec(), MsgpackCodec(), ZstdCodec(JsonCodec(), at_least_bytes=1)]
    for codec in codecs:
        assert codec.decode(encoded(codec, value)) == value
    assert json.loads(encoded(JsonCodec(), value)) == value, "any JSON reader reads it"


@given(st.binary(max_size=300) | st.binary(max_size=20).map(lambda rest: ZSTD_MAGIC + rest))
def test_bytes_are_read_as_they_were_whatever_they_begin_with(data: bytes) -> None:
    codec = ZstdCodec()
    assert codec.decode(encoded(codec, data)) == data


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (TypedCodec(Leg), Leg("N14228", 1.5)),
        (TypedCodec(Leg, "msgpack"), Leg("N14228", None)),
        (TypedCodec(Plane), Plane(tail="N1", seats=3)),
        (TypedCodec(Plane, "msgpack"), Plane(tail="N1", seats=3)),
        (TypedCodec(Booking), Booking(flightNo=7, seatName="3A", plane=Plane(tail="N1", seats=3))),
        (TypedCodec(Booking, "msgpack"), Booking(flightNo=7)),
        (TypedCodec(Rest), Rest(begins=at_offset(-3600))),
        (TypedCodec(Hidden), Hidden(1, 2)),
        (TypedCodec(datetime), at_offset(5400)),
        (TypedCodec(datetime, "msgpack"), at_offset(0)),
        (TypedCodec(LongLeg), LongLeg("a", None, 3)),
        (TypedCodec(Seat), Seat(3)),
        (TypedCodec(list[Leg]), [Leg("a"), Leg("b")]),
        (TypedCodec(Leg | int), 3),
        (ZstdCodec(TypedCodec(Leg)), Leg("x" * 1000)),
        (MsgpackCodec(), {"at": datetime(2013, 1, 1, tzinfo=timezone.utc), "raw": b"\x00", "x": math.inf}),
    ],
    ids=repr,
)
def test_typed_values_come_back_as_their_type(codec: Codec, value: Any) -> None:
    data = encoded(codec, value)
    again = pickle.loads(pickle.dumps(codec)).decode(data)
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize("number", ["9" * 23, "-" + "9" * 19, "18446744073709551616", "12345678901234567890.5"])
def test_json_reads_long_numbers_as_the_standard_library_does(number: str) -> None:
    again = JsonCodec().decode(number.encode())
    assert again == json.loads(number)
    assert type(again) is type(json.loads(number))


@pytest.mark.parametrize(
    ("codec", "value", "message"),
    [
        (None, {"a": 1}, "data must be bytes, not dict; encode it, or give connect"),
        (BytesCodec(), "text", "data must be bytes, not str"),
        (JsonCodec(), b"bytes", "JsonCodec cannot encode bytes"),
        (JsonCodec(), 1 << 64, "JsonCodec cannot encode int: Integer exceeds 64-bit range"),
        (JsonCodec(), {1: 2}, "JsonCodec cannot encode dict"),
        (JsonCodec(), {"a": [1.0, math.nan]}, "JSON does not have nan"),
        (JsonCodec(), Leg("a", -math.inf), "JSON does not have -inf"),
        (TypedCodec(Leg), Leg("a", math.nan), "JSON does not have nan"),
        (TypedCodec(Seat), Seat(1, math.nan), "JSON does not have nan"),
        (TypedCodec(Leg), {"tail": "a"}, "codec is for Leg, not for dict"),
        (TypedCodec(Seat), Seat(cast("int", "3A")), "could not read .* again: .*int"),
        (TypedCodec(Leg, "msgpack"), Leg(cast("str", 3)), "could not read .* again: Expected `str`"),
        (TypedCodec(int), True, "could not read True again: Expected `int`, got `bool`"),
        (TypedCodec(list[int], "msgpack"), ["a"], r"could not read \['a'\] again: Expected `int`"),
        (ZstdCodec(JsonCodec()), {"a": math.inf}, "JSON does not have inf"),
        (JsonCodec(), {"a": Colour.NONE}, "JSON does not have nan"),
        (JsonCodec(), [Leg("a"), {"b": Hidden(1, 2)}], "JsonCodec does not write Hidden._b"),
        (JsonCodec(), {"at": at_offset(30)}, r"JSON does not have 1930-01-01 00:00:00\+00:00:30: its offset"),
        (TypedCodec(datetime), at_offset(30), r"JSON does not have 1930-01-01 00:00:00\+00:00:30"),
        (TypedCodec(datetime), at_offset(-3599), r"JSON does not have 1930-01-01 00:00:00-00:59:59"),
        (TypedCodec(list[time]), [at_offset(30).timetz()], r"JSON does not have 00:00:00\+00:00:30"),
        (TypedCodec(Rest), Rest(begins=at_offset(30)), r"JSON does not have 1930-01-01 00:00:00\+00:00:30"),
        (TypedCodec(Leg), LongLeg("a", None, 3), "codec is for Leg, not for its subclass LongLeg"),
        (TypedCodec(Leg | int), LongLeg("a"), "codec is for Leg, not for its subclass LongLeg"),
        (TypedCodec(Seat, "msgpack"), Window(3), "codec is for Seat, not for its subclass Window"),
        (MsgpackCodec(), 1 << 64, "MsgpackCodec cannot encode int"),
        (ZstdCodec(), bytes((64 << 20) + 1), "67108865 bytes cannot be compressed, 67108864 are the most"),
    ],
    ids=lambda each: f"{each!r:.80}",
)
def test_what_cannot_be_written_as_it_is_is_refused(codec: Codec | None, value: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        encoded(codec, value)


def test_a_model_is_written_by_its_names_and_read_by_aliases_too() -> None:
    codec, booking = TypedCodec(Booking), Booking(flightNo=7, seatName="3A")
    data = encoded(codec, booking)
    assert json.loads(data) == {"flight_no": 7, "seat": "3A", "plane": None}
    assert codec.decode(data) == codec.decode(b'{"flightNo": 7, "seatName": "3A"}') == booking


def test_json_writes_what_has_an_obvious_text() -> None:
    number = uuid.UUID(int=7)
    data = encoded(JsonCodec(), {"id": number, "c": Colour.RED, "leg": Leg("a"), "none": None})
    assert json.loads(data) == {"id": str(number), "c": "red", "leg": {"tail": "a", "delay_min": None}, "none": None}


def test_zstd_is_one_frame_and_only_where_it_is_shorter() -> None:
    codec = ZstdCodec(level=19)
    long, short = encoded(codec, b"x" * 1000), encoded(codec, b"x" * 50)
    assert short == b"x" * 50
    assert len(long) < 50
    assert long.startswith(ZSTD_MAGIC)
    assert zstandard.ZstdDecompressor().decompress(long) == b"x" * 1000, "any zstd reads it"
    assert codec.decode(b"y" * 500) == b"y" * 500, "of a client that does not compress"
    bomb = zstandard.ZstdCompressor().compress(bytes(70 << 20))
    with pytest.raises(ValueError, match="are the most"):
        codec.decode(bomb)
    with pytest.raises(InvalidInput, match="writes 'json' or 'msgpack'"):
        TypedCodec(Leg, "xml")  # type: ignore[arg-type]


# ---- in a client


class Submits(TransactionContext):
    def __init__(self, **attributes: Any) -> None:
        self.attributes = attributes

    def partition_id(self, partitions: int) -> int:
        return 0

    def execute(self, builder: TransactionBuilder) -> bool:
        for name, value in self.attributes.items():
            setattr(builder, name, value)
        return True


class Values(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []

    def apply_transaction(self, transaction: Transaction) -> None:
        self.values.append(transaction.value)
        super().apply_transaction(transaction)


def test_a_client_appends_and_reads_values(server: FakeServer, directory: FakeDirectory) -> None:
    callbacks = Values()
    with WaltzClient(directory, TcpTransport(), callbacks, codec=JsonCodec()) as client:
        client.append(0, {"n": 0}).result(PATIENCE_S)
        client.append_many(0, [{"n": 1}, [2]]).result(PATIENCE_S)
        assert client.submit(Submits(value={"n": 3})).result(PATIENCE_S)
        assert client.submit(Submits(data=b'{"n": 4}')).result(PATIENCE_S)
        callbacks.wait_for(lambda: len(callbacks.values) == 5)
        expected = [{"n": 0}, {"n": 1}, [2], {"n": 3}, {"n": 4}]
        assert [one.value for one in client.feed(0)] == callbacks.values == expected
        assert [one.data for one in client.feed(0)] == server.logs[0].data()
        assert server.logs[0].data()[:2] == [b'{"n":0}', b'{"n":1}']
        with client.feed(0, 1, follow=True) as follower:
            transaction = next(follower)
        assert transaction.value == pickle.loads(pickle.dumps(transaction)).value == {"n": 1}
        with pytest.raises(InvalidInput, match="JsonCodec cannot encode bytes"):
            client.append(0, b"{}")
        with pytest.raises(InvalidInput, match=r"set both builder\.data and builder\.value"):
            client.submit(Submits(data=b"x", value=1)).result(PATIENCE_S)


@dataclass
class FindsServer:
    """Finds this process's only server again, as a client does that has travelled."""

    places: ClassVar[list[FakeDirectory]] = []

    def __call__(self) -> tuple[FakeDirectory, TcpTransport]:
        return self.places[0], TcpTransport()


def test_a_client_that_travels_takes_its_codec_along(server: FakeServer, directory: FakeDirectory) -> None:
    FindsServer.places[:] = [directory]
    first = WaltzClient(directory, TcpTransport(), find=FindsServer(), codec=TypedCodec(Leg))
    with first as client, pickle.loads(pickle.dumps(client)) as other:
        other.append(0, Leg("a")).result(PATIENCE_S)
        assert next(other.feed(0)).value == Leg("a")


async def both_ways(directory: FakeDirectory) -> list[Any]:
    async with AsyncWaltzClient(directory, TcpTransport(), codec=TypedCodec(Leg)) as client:
        await client.append(1, Leg("a", 2))
        await client.append_many(1, [Leg("b")])
        return [one.value async for one in client.feed(1)]


def test_a_client_for_coroutines_does_so_too(server: FakeServer, directory: FakeDirectory) -> None:
    import asyncio

    assert asyncio.run(both_ways(directory)) == [Leg("a", 2), Leg("b")]


def test_what_cannot_be_decoded_is_named_and_its_bytes_are_there(
    server: FakeServer, directory: FakeDirectory, make_client: MakeClient
) -> None:
    plain = make_client()
    plain.append(0, b"{", header=7).result(PATIENCE_S)
    assert next(plain.feed(0)).value == b"{"
    with WaltzClient(directory, TcpTransport(), codec=JsonCodec()) as client:
        [transaction] = client.feed(0)
        with pytest.raises(DecodingFailed, match=r"partition 0, transaction 0, header 7: .* JsonCodec: ") as caught:
            _ = transaction.value
        assert (caught.value.partition_id, caught.value.transaction_id, caught.value.header) == (0, 0, 7)
        assert transaction.data == b"{"


def test_waltz_ray_does_not_import_the_libraries_of_codecs() -> None:
    code = "import sys, waltz_ray; print([n for n in ('orjson', 'msgspec', 'zstandard') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from waltz_ray.client.codecs import _library

    _library.cache_clear()
    monkeypatch.setitem(sys.modules, "orjson", None)
    with pytest.raises(InvalidInput, match=r"needs orjson: pip install 'waltz-ray\[codecs\]'"):
        encoded(JsonCodec(), 1)
    _library.cache_clear()
