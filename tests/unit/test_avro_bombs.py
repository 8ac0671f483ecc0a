"""Avro values and schemas that are made to end a worker: refused as malformed, like any message (P8)."""

from __future__ import annotations

import io
import itertools
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from crosscut.connectors.kafka.avro import DEPTH_MAX, ValueCheck, check_depth

fastavro = pytest.importorskip("fastavro", reason="pip install 'crosscut[avro]'")

LIST = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "value", "type": "long"}, {"name": "next", "type": ["null", "Node"]}],
}


def checked(schema: Any, data: bytes) -> Any:
    """Decode as a source does."""
    check_depth(schema)
    parsed = fastavro.parse_schema(schema)
    ValueCheck(parsed)(memoryview(data))
    return fastavro.schemaless_reader(io.BytesIO(data), parsed, None)


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def chain(length: int) -> Any:
    found: Any = None
    for value in range(length):
        found = {"value": value, "next": found}
    return found


def test_a_value_that_is_nested_without_end_is_refused_and_not_recursed_into() -> None:
    """D32: five kilobytes, after which there is no process."""
    assert checked(LIST, written(LIST, chain(DEPTH_MAX))) == chain(DEPTH_MAX)
    for depth in (DEPTH_MAX + 1, 2_500, 1_000_000):
        with pytest.raises(ValueError, match="nested more than 200 levels deep"):
            checked(LIST, b"\0\x02" * (depth - 1) + b"\0\0")
    maps = {"type": "record", "name": "M", "fields": [{"name": "m", "type": {"type": "map", "values": "M"}}]}
    with pytest.raises(ValueError, match="nested more than 200 levels deep"):
        checked(maps, b"\x02\x02k" * 5_000 + b"\0" * 5_000)


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "record", "name": "E", "fields": []},
        {"type": "record", "name": "N", "fields": [{"name": "a", "type": "null"}] * 1},
    ],
)
def test_items_of_no_bytes_are_bounded_by_the_bytes_that_are_left(items: Any) -> None:
    """D32: eleven bytes, for which 2.3 GB were taken."""
    schema = {"type": "array", "items": items}
    few = checked(schema, written(schema, []))
    assert few == []
    count = bytes([0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F])
    with pytest.raises(ValueError, match="items, and 1 bytes are left"):
        checked(schema, count + b"\0")
    negative = bytes([0xFD, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F])
    with pytest.raises(ValueError, match="items, and 1 bytes are left"):
        checked(schema, negative + b"\0" + b"\0")


def test_a_schema_that_doubles_at_each_level_is_looked_at_once_and_its_value_refused() -> None:
    """Forty names, a million million values, and no bytes at all."""
    names = [f"R{i}" for i in range(40)]
    schema: Any = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "null"}]}
    for before, name in itertools.pairwise(names):
        schema = {
            "type": "record",
            "name": name,
            "fields": [{"name": "a", "type": schema}, {"name": "b", "type": before}],
        }
    with pytest.raises(ValueError, match="more values than bytes"):
        checked(schema, b"")


def test_a_schema_that_is_too_deep_is_refused_before_it_is_parsed() -> None:
    schema: Any = "long"
    for _ in range(100_000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ValueError, match="the schema is nested more than 200 levels deep"):
        check_depth(schema)
    fine: Any = "long"
    for _ in range(DEPTH_MAX):
        fine = {"type": "array", "items": fine}
    check_depth(fine)


def test_schemas_that_can_not_be_abused_cost_nothing() -> None:
    fields = [
        {"name": f"f{i}", "type": kind}
        for i, kind in enumerate(
            [
                "long",
                ["null", "string"],
                {"type": "array", "items": ["null", "long"]},
                {"type": "map", "values": "bytes"},
                {"type": "enum", "name": "E", "symbols": ["A"]},
                {"type": "int", "logicalType": "date"},
                {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "double"}]},
                ["null", "Inner"],
            ]
        )
    ]
    parsed = fastavro.parse_schema({"type": "record", "name": "Order", "namespace": "shop", "fields": fields})
    assert not ValueCheck(parsed).is_needed
    assert ValueCheck(fastavro.parse_schema(LIST)).is_needed


TREE = {
    "type": "record",
    "name": "Tree",
    "namespace": "a.b",
    "fields": [
        {"name": "number", "type": ["null", "int", "double", "boolean"]},
        {"name": "text", "type": {"type": "string"}},
        {"name": "data", "type": {"type": "fixed", "name": "Two", "size": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["X", "Y"]}},
        {"name": "branches", "type": {"type": "array", "items": "Tree"}},
        {"name": "named", "type": {"type": "map", "values": ["null", "a.b.Tree"]}},
    ],
}


def trees() -> some.SearchStrategy[Any]:
    def tree(inner: some.SearchStrategy[Any]) -> some.SearchStrategy[Any]:
        return some.fixed_dictionaries(
            {
                "number": some.none() | some.integers(-(2**31), 2**31 - 1) | some.booleans(),
                "text": some.text(max_size=300),
                "data": some.binary(min_size=2, max_size=2),
                "kind": some.sampled_from("XY"),
                "branches": some.lists(inner, max_size=3),
                "named": some.dictionaries(some.text(max_size=5), some.none() | inner, max_size=3),
            }
        )

    leaf = {"number": None, "text": "", "data": b"ab", "kind": "X", "branches": [], "named": {}}
    return some.recursive(some.just(leaf), tree, max_leaves=8)


@given(trees())
def test_every_value_that_was_written_passes(value: Any) -> None:
    assert checked(TREE, written(TREE, value)) == value


@given(some.binary(max_size=60))
def test_any_bytes_are_refused_wherever_fastavro_would_refuse_them(data: bytes) -> None:
    """What passes is decoded, or refused by fastavro for what the check does not look at."""
    parsed = fastavro.parse_schema(TREE)
    try:
        ValueCheck(parsed)(memoryview(data))
    except ValueError:
        return
    with suppress(UnicodeDecodeError, IndexError, EOFError, ValueError):
        fastavro.schemaless_reader(io.BytesIO(data), parsed, None)
