"""Avro values that a schema can't hold exactly are refused, not rounded, cut or taken for others (P10)."""

from __future__ import annotations

import copy
import io
import itertools
import json
import time as clock
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some

import crosscut as cc
from crosscut.connectors.kafka.avro_reading import with_exact_readers
from crosscut.connectors.kafka.avro_writing import preparer
from crosscut.connectors.kafka.records import Message
from crosscut.testing.schema_registry import SchemaRegistryServer

fastavro = pytest.importorskip("fastavro", reason="pip install 'crosscut[avro]'")


@pytest.fixture(scope="module")
def registry() -> Iterator[cc.kafka.SchemaRegistry]:
    with SchemaRegistryServer() as one:
        yield cc.kafka.SchemaRegistry(one.url)


def of(kind: Any) -> Any:
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}


def record(name: str, /, **fields: Any) -> Any:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def message(value: bytes | None) -> Message:
    return Message("orders", 0, 0, -1, None, value)


def number(value: int) -> bytes:
    """As Avro writes one."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", value)
    return out.getvalue()


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
DATE = {"type": "int", "logicalType": "date"}
TIME = {"type": "int", "logicalType": "time-millis"}
TIME_US = {"type": "long", "logicalType": "time-micros"}
STAMP = {"type": "long", "logicalType": "timestamp-micros"}
STAMP_MS = {"type": "long", "logicalType": "timestamp-millis"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
LOCAL_MS = {"type": "long", "logicalType": "local-timestamp-millis"}
FIXED = {"type": "fixed", "name": "F", "size": 2}
NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
AWAY = timezone(timedelta(hours=3))


class Number(IntEnum):
    ONE = 1


# Reading.


@pytest.fixture
def decode(registry: cc.kafka.SchemaRegistry) -> Callable[[Any, bytes], Any]:
    def decoded(schema: Any, data: bytes) -> Any:
        # Whatever it says: the schema is registered, the data are another's.
        head = registry.registered("s", json.dumps(schema), "AVRO").to_bytes(5, "big")
        return registry.avro()(message(head + data))

    return decoded


@pytest.mark.parametrize("size", [100, 256 * 1024])
@pytest.mark.parametrize("precision", [4, 10_000_000])
def test_a_decimal_of_many_bytes_is_refused_before_it_is_made(
    decode: Callable[[Any, bytes], Any], size: int, precision: int
) -> None:
    """P8: 256 KB took 45 s, in which the process could not even say that it lives."""
    data = number(size) + b"\x7f" * size
    if precision > 4 and size == 100:
        assert decode(of({**DECIMAL, "precision": precision}), data)["a"] > 0
        return
    with pytest.raises(ValueError, match=rf"{size} bytes has more than (4 digits|4300 digits, though)"):
        decode(of({**DECIMAL, "precision": precision}), data)


def test_a_decimal_with_more_digits_than_its_precision_is_refused(
    decode: Callable[[Any, bytes], Any],
) -> None:
    fixed = {**DECIMAL, "type": "fixed", "name": "D", "size": 9}
    for unscaled in (9_999, -9_999, 0, 5, -1):
        wide = unscaled.to_bytes(9, "big", signed=True)
        exact = Decimal(unscaled).scaleb(-2)
        assert decode(of(DECIMAL), number(9) + wide) == {"a": exact}
        assert decode(of(fixed), wide) == {"a": exact}
    for unscaled in (10_000, -10_000, 1_234_567):
        wide = unscaled.to_bytes(9, "big", signed=True)
        for schema, data in ((DECIMAL, number(9) + wide), (fixed, wide), (["null", fixed], b"\x02" + wide)):
            with pytest.raises(ValueError, match="has more than 4 digits"):
                decode(of(schema), data)


def test_bytes_after_a_value_are_refused(decode: Callable[[Any, bytes], Any]) -> None:
    assert decode(of("long"), b"\x02") == {"a": 1}
    with pytest.raises(ValueError, match="3 bytes follow the value"):
        decode(of("long"), b"\x02xyz")


@pytest.mark.parametrize("kind", [TIME, TIME_US])
def test_a_time_of_no_day_is_refused(decode: Callable[[Any, bytes], Any], kind: Any) -> None:
    with pytest.raises(ValueError, match="is no time of a day"):
        decode(of(kind), number(-1))
    with pytest.raises(ValueError, match="is no time of a day"):
        decode(of(kind), number(86_400_000_000))
    assert decode(of(kind), number(0)) == {"a": time()}


# Writing.

REFUSED: list[tuple[Any, Any]] = [
    ("int", 2**31),
    ("int", True),
    ("long", 2**63),
    ("long", 1.5),
    ("long", 1.0),
    ("long", Decimal(1)),
    ("long", True),
    ("long", "1"),
    (["null", "long"], 1.5),
    (["null", "long"], 2**70),
    ("float", 1e300),
    ("float", 2**24 + 1),
    ("double", 2**60 + 1),
    ("double", "1.5"),
    ("double", True),
    ("double", Decimal("0.10000000000000000001")),
    ("double", Decimal("1e999")),
    ("float", Decimal("0.1")),
    ("double", 10**400),
    (["null", "double"], 2**60 + 1),
    ("boolean", 1),
    ("boolean", "no"),
    ("null", 5),
    ("string", 5),
    ("string", b"x"),
    ("string", UUID(int=1)),
    ("bytes", "x"),
    (FIXED, b"abc"),
    (FIXED, "ab"),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
    ({"type": "array", "items": "string"}, "abc"),
    ({"type": "array", "items": "string"}, {"k": 1}),
    ({"type": "array", "items": "long"}, [1, 1.5]),
    ({"type": "array", "items": "long"}, 5),
    ({"type": "array", "items": "string"}, 5),
    (["null", {"type": "array", "items": "long"}], 5),
    ({"type": "map", "values": "long"}, {"k": 1.5}),
    ({"type": "map", "values": "long"}, {1: 2}),
    ({"type": "map", "values": "long"}, [("k", 2)]),
    (DECIMAL, Decimal("1.005")),
    (DECIMAL, Decimal("123.45")),
    (DECIMAL, Decimal("1E+5")),
    (DECIMAL, Decimal("NaN")),
    (DECIMAL, 1.5),
    (DATE, NOON),
    (DATE, "2020-01-32"),
    (TIME, time(1, 0, 0, 1)),
    (TIME, time(1, tzinfo=UTC)),
    (TIME_US, time(1, tzinfo=UTC)),
    (STAMP, datetime(2020, 1, 1)),
    (STAMP_MS, datetime(2020, 1, 1)),
    (STAMP_MS, NOON.replace(microsecond=1)),
    (LOCAL, NOON),
    (LOCAL_MS, datetime(2020, 1, 1, 1, 1, 1, 1)),
    (STAMP, date(2020, 1, 1)),
    ({"type": "string", "logicalType": "uuid"}, "x"),
    (["string", "long"], 1.5),
    ([DATE, STAMP], datetime(2020, 1, 1)),
    ({**of("long"), "name": "Inner"}, {"a": 1, "lost": 2}),
    ({**of(["null", "long"]), "name": "Inner"}, {"a": 1.5}),
    ({"type": "array", "items": ["null", {**of("long"), "name": "Inner"}]}, [{"a": 1, "lost": 2}]),
]

EXACT: list[tuple[Any, Any]] = [
    ("int", -(2**31)),
    ("long", 2**63 - 1),
    ("long", Number.ONE),
    (["null", "long"], None),
    (["null", "long"], 7),
    ("float", 0.5),
    ("float", 2**24),
    ("float", float("-inf")),
    ("double", 0.1),
    ("double", 2**53),
    ("boolean", True),
    ("null", None),
    (["null", "string"], "x"),
    ("bytes", b"\0"),
    (FIXED, b"ab"),
    (["null", {"type": "enum", "name": "E", "symbols": ["A"]}], "A"),
    ({"type": "array", "items": "long"}, [1, 2]),
    ({"type": "array", "items": ["null", "double"]}, [1.5, None]),
    ({"type": "map", "values": DECIMAL}, {"k": Decimal("1.5")}),
    (DECIMAL, Decimal("1.500")),
    (DECIMAL, Decimal("-99.99")),
    (DECIMAL, Decimal("0E+1000000")),
    ({**DECIMAL, "type": "fixed", "name": "D", "size": 2}, Decimal("-1")),
    (DATE, date(1, 1, 1)),
    (TIME, time(23, 59, 59, 999_000)),
    (TIME_US, time(23, 59, 59, 999_999)),
    (STAMP, datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    (STAMP, datetime(2020, 1, 1, 12, tzinfo=AWAY)),
    (STAMP_MS, datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
    (LOCAL, datetime(9999, 12, 31, 23, 59, 59, 999_999)),
    (LOCAL_MS, datetime(2020, 1, 1)),
    ({"type": "string", "logicalType": "uuid"}, UUID(int=7)),
    ([DATE, STAMP], NOON),
    ([DATE, STAMP], date(2020, 1, 1)),
    (["float", "double"], 0.1),
    (["int", "long", "string", "boolean"], 2**40),
    (["int", "long", "string", "boolean"], True),
    (["null", {"type": "map", "values": "long"}, {"type": "array", "items": "long"}], [1]),
    (["null", {"type": "array", "items": "long"}, "long"], 5),
    (["null", {"type": "array", "items": "long"}, "string"], "x"),
    ([DATE, "string"], "2020-01-01"),
    (["null", record("Outer", a=[{"type": "array", "items": "long"}, "string"])], {"a": [1]}),
    (["null", record("Outer", a=[{"type": "enum", "name": "E", "symbols": ["A"]}, "long"])], {"a": "A"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), REFUSED, ids=repr)
def test_what_a_schema_has_no_room_for_is_refused(
    registry: cc.kafka.SchemaRegistry, kind: Any, value: Any
) -> None:
    with pytest.raises((ValueError, TypeError)) as found:
        registry.avro_encoder("s", of(kind))({"a": value})
    assert "field a" in str(found.value) or "string" in str(found.value) or "bytes" in str(found.value)


@pytest.mark.parametrize(("kind", "value"), EXACT, ids=repr)
def test_what_it_has_room_for_comes_back(registry: cc.kafka.SchemaRegistry, kind: Any, value: Any) -> None:
    record = {"a": value}
    assert registry.avro()(message(registry.avro_encoder("s", of(kind))(record))) == {"a": value}
    assert record == {"a": value}


def test_a_field_that_a_schema_does_not_have_is_refused_and_one_that_is_missing_has_its_default(
    registry: cc.kafka.SchemaRegistry,
) -> None:
    fields = [
        {"name": "a", "type": "long"},
        {"name": "b", "type": "double", "default": 1.5},
        {"name": "c", "type": ["null", "long"]},
    ]
    encode = registry.avro_encoder("s", {"type": "record", "name": "R", "fields": fields})
    assert registry.avro()(message(encode({"a": 1}))) == {"a": 1, "b": 1.5, "c": None}
    with pytest.raises(ValueError, match="the schema R has no field lost, more"):
        encode({"a": 1, "lost": 2, "more": 3})
    with pytest.raises(ValueError, match="no value and no default for a"):
        encode({})


def test_branches_of_a_union_are_chosen_as_fastavro_does(registry: cc.kafka.SchemaRegistry) -> None:
    one = {"type": "record", "name": "One", "fields": [{"name": "x", "type": ["null", "long"]}]}
    two = {"type": "record", "name": "Two", "fields": [{"name": "x", "type": ["null", "long"]},
                                                       {"name": "y", "type": ["null", "long"]}]}  # fmt: skip
    encode, decode = registry.avro_encoder("s", of([one, two])), registry.avro()
    assert decode(message(encode({"a": {"x": 1, "y": 2}}))) == {"a": {"x": 1, "y": 2}}
    assert decode(message(encode({"a": {"x": 1}}))) == {"a": {"x": 1}}
    assert decode(message(encode({"a": ("Two", {"x": 1})}))) == {"a": {"x": 1, "y": None}}
    assert decode(message(encode({"a": {"-type": "Two", "x": 1}}))) == {"a": {"x": 1, "y": None}}
    with pytest.raises(ValueError, match="no type of the union holds it: the schema One has no field z"):
        encode({"a": {"x": 1, "z": 2}})


@pytest.mark.parametrize("kind", ["long", "string", ["null", "double"]], ids=str)
def test_an_iterator_is_written_whole(registry: cc.kafka.SchemaRegistry, kind: Any) -> None:
    given = ["a", "b"] if kind == "string" else [1, 2]
    array = {"type": "array", "items": kind}
    decode = registry.avro()
    for schema in (of(array), of(["null", array])):
        encode = registry.avro_encoder("s", schema)
        assert decode(message(encode({"a": (one for one in given)}))) == {"a": given}
        assert decode(message(encode({"a": dict.fromkeys(given).keys()}))) == {"a": given}
    # Each type of a union may have to look at it.
    with pytest.raises(ValueError, match=r"field a: no type of the union .* expected a list"):
        registry.avro_encoder("s", of([array, "boolean"]))({"a": (one for one in given)})


@pytest.mark.parametrize(
    ("branches", "value"),
    [
        ([record("Full", id="long", name="string"), record("Short", id="long")], {"id": 1}),
        ([record("A", id="string"), record("B", id="bytes")], {"id": b"x"}),
        ([record("A", a="string", b="int"), record("B", a=["null", "string"], b="int")], {"a": None, "b": 1}),
        ([{"type": "array", "items": "string"}, record("A", x="bytes")], {"x": b"x"}),
        ([{"type": "map", "values": "string"}, record("A", x="bytes")], {"x": b"x"}),
    ],
    ids=str,
)  # fmt: skip
def test_a_type_of_a_union_is_chosen_by_all_fields(
    registry: cc.kafka.SchemaRegistry, branches: Any, value: Any
) -> None:
    data = registry.avro_encoder("s", of(branches))({"a": value})
    assert data is not None
    plain = io.BytesIO()
    fastavro.schemaless_writer(plain, fastavro.parse_schema(of(branches)), {"a": value})
    assert data[5:] == plain.getvalue()
    assert registry.avro()(message(data)) == {"a": value}


@pytest.mark.parametrize(
    ("branches", "reason"),
    [
        ([{"type": "array", "items": "long"}, {"type": "array", "items": "double"}], "two types array"),
        (["long", ["null", "string"]], "a union within a union"),
    ],
)
def test_unions_that_avro_does_not_allow_are_refused(
    registry: cc.kafka.SchemaRegistry, branches: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        registry.avro_encoder("s", of(branches))({"a": [1.5]})


@pytest.mark.parametrize("value", [Decimal("0.1"), Decimal.from_float(0.1)])
def test_a_decimal_that_a_double_holds_is_taken(registry: cc.kafka.SchemaRegistry, value: Decimal) -> None:
    for kind in ("double", ["null", "double"], ["string", "double"]):
        assert registry.avro()(message(registry.avro_encoder("s", of(kind))({"a": value}))) == {"a": 0.1}


def test_iso_text_is_taken_for_a_date(registry: cc.kafka.SchemaRegistry) -> None:
    for kind in (DATE, ["null", DATE]):
        encode = registry.avro_encoder("s", of(kind))
        assert registry.avro()(message(encode({"a": "2020-01-31"}))) == {"a": date(2020, 1, 31)}


PLAIN = some.sampled_from(["null", "boolean", "long", "double", "string", "bytes"])
NESTED = some.recursive(
    PLAIN,
    lambda inner: (
        some.builds(lambda one: {"type": "array", "items": one}, inner)
        | some.builds(lambda one: {"type": "map", "values": one}, inner)
        | some.builds(lambda one: one if one == "null" or isinstance(one, list) else ["null", one], inner)
        | some.builds(
            lambda fields: {"type": "record", "fields": fields},
            some.dictionaries(some.sampled_from("xyz"), some.tuples(inner, some.booleans()), max_size=3),
        )
    ),
    max_leaves=4,
)  # fmt: skip
VALUES = some.recursive(
    some.sampled_from([None, True, 0, 7, 1.5, "", "x", b"", b"x"]),
    lambda inner: (
        some.lists(inner, max_size=2) | some.dictionaries(some.sampled_from("xyz"), inner, max_size=3)
    ),
    max_leaves=4,
)


def named(schema: Any, counter: Iterator[int]) -> Any:
    """Return a schema whose records have names."""
    if isinstance(schema, list):
        return [named(one, counter) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema["type"] == "record":
        fields = [
            {"name": name, "type": named(kind, counter)}
            | ({"default": None} if has_default and isinstance(kind, list) else {})
            for name, (kind, has_default) in schema["fields"].items()
        ]
        return {"type": "record", "name": f"R{next(counter)}", "fields": fields}
    return {key: one if key == "type" else named(one, counter) for key, one in schema.items()}


def is_same(read: Any, given: Any) -> bool:
    if type(read) is not type(given):
        return False
    if isinstance(given, dict):
        return given.keys() <= read.keys() and all(is_same(read[key], given[key]) for key in given)
    if isinstance(given, list):
        return len(read) == len(given) and all(map(is_same, read, given))
    return bool(read == given)


BRANCHES = some.lists(
    NESTED.filter(lambda one: not isinstance(one, list)),
    min_size=2,
    max_size=4,
    # Avro allows each type once, but any number of records.
    unique_by=lambda one: one if isinstance(one, str) else one["type"] if "fields" not in one else str(one),
)


@given(BRANCHES, VALUES)
def test_what_fastavro_writes_exactly_is_written_in_the_same_way(kinds: list[Any], value: Any) -> None:
    counter = itertools.count()
    try:
        parsed = fastavro.parse_schema(of([named(kind, counter) for kind in kinds]))
        plain = io.BytesIO()
        fastavro.schemaless_writer(plain, parsed, {"a": value})
    except (fastavro.schema.SchemaParseException, ValueError, TypeError):
        # There is no type that holds it.
        return
    if not is_same(fastavro.schemaless_reader(io.BytesIO(plain.getvalue()), parsed, None), {"a": value}):
        return
    ours = io.BytesIO()
    fastavro.schemaless_writer(ours, parsed, preparer(parsed)({"a": value}))
    assert ours.getvalue() == plain.getvalue()


def test_schemas_may_name_themselves(registry: cc.kafka.SchemaRegistry) -> None:
    fields = [{"name": "value", "type": "long"}, {"name": "next", "type": ["null", "Node"]}]
    encode = registry.avro_encoder("s", {"type": "record", "name": "Node", "fields": fields})
    chain = {"value": 1, "next": {"value": 2, "next": None}}
    assert registry.avro()(message(encode(chain))) == chain
    with pytest.raises(ValueError, match=r"field next: field value: 1\.5 is of type float"):
        encode({"value": 1, "next": {"value": 1.5, "next": None}})


def test_a_logical_type_of_the_user_is_left_to_fastavro(
    registry: cc.kafka.SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        fastavro.write.LOGICAL_WRITERS, "long-ms", lambda value, _: int(value.total_seconds())
    )
    encode = registry.avro_encoder("s", of({"type": "long", "logicalType": "ms"}))
    assert registry.avro()(message(encode({"a": timedelta(seconds=7)}))) == {"a": 7}


def test_functions_of_the_user_for_known_logical_types_are_used(
    registry: cc.kafka.SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers, readers = fastavro.write.LOGICAL_WRITERS, fastavro.read.LOGICAL_READERS
    monkeypatch.setitem(writers, "bytes-decimal", lambda value, _: value.to_bytes(4, "big"))
    monkeypatch.setitem(readers, "bytes-decimal", lambda data, *_: int.from_bytes(data, "big"))
    encode = registry.avro_encoder("s", of({**DECIMAL, "precision": 5}))
    assert registry.avro()(message(encode({"a": 1_234_567}))) == {"a": 1_234_567}


def test_a_naive_time_does_not_depend_on_where_the_worker_is(
    registry: cc.kafka.SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, decode = registry.avro_encoder("s", of(LOCAL)), registry.avro()
    monkeypatch.setenv("TZ", "America/New_York")
    clock.tzset()
    try:
        moment = datetime(2020, 1, 1, 5)
        assert decode(message(encode({"a": moment}))) == {"a": moment}
        with pytest.raises(ValueError, match="has no time zone, and a timestamp is in UTC"):
            registry.avro_encoder("s", of(STAMP))({"a": moment})
    finally:
        monkeypatch.undo()
        clock.tzset()


@given(
    some.decimals(allow_nan=False) | some.decimals(places=2, allow_nan=False, allow_infinity=False),
    some.datetimes() | some.datetimes(timezones=some.just(UTC)),
    some.integers() | some.floats(allow_nan=False),
)
def test_any_value_comes_back_or_is_refused(amount: Decimal, moment: datetime, size: float) -> None:
    kinds = {
        "amount": {**DECIMAL, "precision": 9},
        "moment": STAMP,
        "ms": STAMP_MS,
        "n": "int",
        "d": "double",
    }
    for name, value in {"amount": amount, "moment": moment, "ms": moment, "n": size, "d": size}.items():
        schema = of(kinds[name])
        parsed = fastavro.parse_schema(schema)
        out = io.BytesIO()
        try:
            prepared = preparer(parsed)({"a": value})
        except ValueError:
            continue
        fastavro.schemaless_writer(out, parsed, prepared)
        reader = fastavro.parse_schema(with_exact_readers(copy.deepcopy(schema)))
        assert fastavro.schemaless_reader(io.BytesIO(out.getvalue()), reader, None) == {"a": value}
