"""JSON out and in, the same for all connectors: numbers are exact, or the record is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from functools import cached_property
from itertools import product
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.connectors.files.json_decoding import json_value, json_values
from crosscut.connectors.files.json_values import all_dumped, dumped
from crosscut.connectors.files.jsonl import encoded_lines
from crosscut.connectors.kafka.records import decoder as kafka_decoder
from crosscut.connectors.kafka.records import encoder as kafka_encoder
from crosscut.connectors.nats.messages import Message
from crosscut.connectors.nats.messages import decoder as nats_decoder
from crosscut.connectors.nats.messages import encoder as nats_encoder
from crosscut.errors import ConnectorError

Encode = Callable[[Any], bytes]


def by_kafka(value: Any) -> bytes:
    (data,) = kafka_encoder("json", "encode_value")([value])
    assert data is not None
    return data


ENCODERS: list[Encode] = [
    dumped,
    lambda value: encoded_lines([value], "out").rstrip(b"\n"),
    by_kafka,
    nats_encoder("json"),
]


@dataclass
class Point:
    x: float


@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize(
    "value",
    [2**64, -(2**63) - 1, 10**400, {"a": [2**70, None, 0.1]}, -0.0, 5e-324, {1: "a"}, "\ud800", [None]],
)
def test_values_are_written_exactly(encode: Encode, value: Any) -> None:
    """P10."""
    expected = {"1": "a"} if value == {1: "a"} else value
    assert repr(json.loads(encode(value))) == repr(expected)


@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize(
    "time_of_day", [time(12, 30), time(12, 30, 1, 5), time(23, 59, 59, 999_999)], ids=str
)
@pytest.mark.parametrize(
    ("year", "zone"),
    [
        *product(
            (1, 1850, 1971, 1999, 2026),
            (ZoneInfo("Europe/Berlin"), ZoneInfo("America/St_Johns"), UTC, None),
        ),
        *product(
            (1, 1999, 2000, 2020),
            (
                timezone(timedelta(hours=1, seconds=7)),
                timezone(timedelta(minutes=-1, seconds=-1)),
                timezone(timedelta(seconds=7)),
                timezone(timedelta(seconds=-7)),
                timezone(timedelta(microseconds=7)),
                timezone(timedelta(hours=-1)),
            ),
        ),
    ],
    ids=str,
)
def test_datetimes_keep_the_seconds_of_their_offset(
    encode: Encode, year: int, zone: Any, time_of_day: time
) -> None:
    """P10: local mean time has them; orjson cuts them."""
    found = datetime.combine(date(year, 6, 1), time_of_day, zone)
    value = [{"at": found, "day": date(year, 6, 1), "time": time_of_day}, Point(0.5), None]
    assert json.loads(encode(value)) == [
        {"at": found.isoformat(), "day": f"{year:04}-06-01", "time": time_of_day.isoformat()},
        {"x": 0.5},
        None,
    ]


@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "NaN"),
        ({"a": [float("inf"), None]}, "infinity"),
        ([Point(float("-inf"))], "infinity"),
        ({1: "a", "1": "b"}, "keys become the same text"),
        ([2**70, {None: 1, "null": 2}], "keys become the same text"),
        ({1}, "not JSON serializable"),
        ([2**70, float("nan")], "not JSON compliant"),
    ],
)
def test_a_value_that_json_would_change_is_refused(encode: Encode, value: Any, reason: str) -> None:
    """P10."""
    with pytest.raises((ValueError, ConnectorError), match=reason):
        encode(value)


def test_one_value_of_many_is_named() -> None:
    for bad in (float("nan"), {2}):
        with pytest.raises(ConnectorError, match=r"bad.* can't be JSON") as failed:
            all_dumped([None, {"good": None}, {"bad": bad}])
        assert failed.value.is_permanent and "bad" in failed.value.ids["record"]
    assert all_dumped([None, 2**70, {"a": None}]) == [None, b"1180591620717411303424", b'{"a":null}']


def of_kafka(data: str) -> Any:
    library = pytest.importorskip("confluent_kafka", reason="pip install 'crosscut[kafka]'")
    _, record = kafka_decoder("json")([library.Message("a"), library.Message("a", value=data.encode())])
    return record


DECODERS: list[Callable[[str], Any]] = [
    json_value,
    lambda data: json_values(["1", data])[1],
    lambda data: json_values([b"1", data.encode()])[1],
    of_kafka,
    lambda data: nats_decoder("json")(Message("a", data.encode(), {}, 1, 0)),
]


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    "data",
    [
        "123456789012345678901234567890",
        "-9223372036854775809",
        "18446744073709551616",
        '{"a": [1234567890123456789012, 0.1], "b": "12345678901234567890123"}',
        "1e300",
        "0.1234567890123456789012345",
        "-0.0",
    ],
)
def test_integers_are_read_exactly(decode: Callable[[str], Any], data: str) -> None:
    """P10."""
    assert repr(decode(data)) == repr(json.loads(data))


@pytest.mark.parametrize("decode", DECODERS)
def test_what_is_no_json_or_too_long_is_refused(decode: Callable[[str], Any]) -> None:
    for data in ("NaN", "[12345678901234567890123, NaN]", "1" * 5_000, "1234567890123456789012 x"):
        with pytest.raises(ValueError, match=r"JSON|unexpected|limit|infinity|character"):
            decode(data)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@given(st.lists(VALUES, max_size=5))
def test_values_come_back_as_they_went_out(values: list[Any]) -> None:
    data = [b"null" if one is None else one for one in all_dumped(values)]
    assert repr(json_values(data)) == repr(values)


@dataclass
class Document:
    id: int
    _rev: Any
    kind: ClassVar[str] = "k"
    extra: InitVar[int] = 0
    _: KW_ONLY
    __private: int = 3
    made: list[int] = field(default_factory=list, init=False)

    @cached_property
    def shown(self) -> str:
        return f"document {self.id}"


@dataclass(frozen=True, slots=True)
class Slots:
    _id: int
    name: Any


class Undecorated(Document):
    pass


def used(document: Document) -> Document:
    assert document.shown
    document.later = 1  # type: ignore[attr-defined]
    return document


FIELDS = {"id": 1, "_rev": 2, "_Document__private": 3, "made": []}


@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Document(1, 2), FIELDS),
        (used(Document(1, 2)), FIELDS),
        (used(Undecorated(1, 2)), FIELDS),
        ([{"a": used(Document(1, 2))}], [{"a": FIELDS}]),
        (Slots(1, used(Document(1, 2))), {"_id": 1, "name": FIELDS}),
        (Document(1, Slots(2**70, None)), FIELDS | {"_rev": {"_id": 2**70, "name": None}}),
        (
            Document(1, datetime(1950, 1, 1, tzinfo=timezone(timedelta(seconds=61)))),
            FIELDS | {"_rev": "1950-01-01T00:00:00+00:01:01"},
        ),
    ],
    ids=repr,
)
def test_a_dataclass_is_an_object_of_its_fields(encode: Encode, value: Any, expected: Any) -> None:
    assert json.loads(encode(value)) == expected


@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize("inner", [float("nan"), {1: "a", "1": "b"}, object()], ids=["nan", "keys", "object"])
def test_what_a_field_holds_is_refused_as_anywhere(encode: Encode, inner: Any) -> None:
    with pytest.raises((ValueError, ConnectorError)):
        encode(Document(1, Slots(1, inner)))


@pytest.mark.parametrize("encode", ENCODERS)
def test_a_dataclass_that_lacks_a_field_is_refused(encode: Encode) -> None:
    document = used(Document(1, 2))
    del document._rev
    with pytest.raises((ValueError, ConnectorError), match="_rev"):
        encode(document)
