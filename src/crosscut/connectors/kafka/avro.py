"""Is it safe to decode an Avro value? fastavro recurses in C as deep as a value says, and makes as many items
of no bytes as it announces: five kilobytes end the process, eleven bytes take gigabytes. Pure.

Most schemas can't be abused so, and what they can be is found out once for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

DEPTH_MAX = 200
"""Records, arrays and maps in each other: of a schema, and of a value."""

EMPTY_MAX = 16
"""Values of no bytes in one record: a schema with more of them is not believed for nothing."""

_EMPTY_BUDGET = 1_000
"""So many of them may a value have in addition to its bytes."""

_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_VARINTS = frozenset({"int", "long", "enum"})
_TEXTS = frozenset({"bytes", "string"})
_VARINT_BYTES_MAX = 10

Schema = Any
"""A schema as JSON, or as fastavro parses it: names are full names."""


def check_depth(schema: Schema) -> None:
    """Raise ValueError if a schema is nested too deeply to be parsed. It may be any JSON."""
    level: list[Schema] = [schema]
    # A level of a schema is one of JSON for the type, one for the list of fields, one for the field.
    for _ in range(3 * DEPTH_MAX):
        level = [inner for one in level for inner in _inner(one)]
        if not level:
            return
    raise ValueError(f"the schema is nested more than {DEPTH_MAX} levels deep")


def _inner(one: object) -> Iterator[object]:
    if isinstance(one, dict):
        yield from (value for value in one.values() if isinstance(value, dict | list))
    elif isinstance(one, list):
        yield from (value for value in one if isinstance(value, dict | list))


class ValueCheck:
    """Checks values of one schema before they are decoded.

    Args:
        schema: As fastavro has parsed it.

    Attributes:
        is_needed: A value may be nested without end, or be much larger than its bytes.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._named: dict[str, Schema] = {}
        self._collect(schema)
        self.is_needed = False
        # For each name how many values of no bytes it has at least; None while it is looked at.
        self._empty: dict[str, int | None] = {}
        self._look_at(schema)

    def __call__(self, data: memoryview) -> None:
        """Raise ValueError if a value is too deep, or has more values of no bytes than it has bytes."""
        if self.is_needed:
            _Walk(data, self._named).walk(self._schema, 0)

    def _collect(self, schema: Schema) -> None:
        if isinstance(schema, dict) and schema.get("type") in _NAMED:
            self._named[str(schema.get("name", ""))] = schema
        for inner in _parts(schema):
            self._collect(inner)

    def _look_at(self, schema: Schema) -> int:
        """Look at a schema, once for each name; return how many values of no bytes it has at least."""
        schema = _resolved(schema, self._named)
        name = _name_of(schema)
        if name in self._empty:
            found = self._empty[name]
            if found is None:
                self.is_needed = True
                return 0
            return found
        if name:
            self._empty[name] = None
        kind = schema.get("type") if isinstance(schema, dict) else schema
        of_parts = [self._look_at(one) for one in _parts(schema)]
        if kind == "null" or (kind == "fixed" and not schema["size"]):
            empty = 1
        elif kind in ("record", "error"):
            # One without fields is a value, too.
            empty = sum(of_parts) or int(not of_parts)
        else:
            # A union, an array or a map takes a byte at least, and then comes what it has.
            empty = 0
            if kind == "array" and any(of_parts):
                self.is_needed = True
        if empty > EMPTY_MAX:
            self.is_needed = True
        if name:
            self._empty[name] = empty
        return empty


_NAMED = ("record", "error", "enum", "fixed")


def _resolved(schema: Schema, named: Mapping[str, Schema]) -> Schema:
    """Return the schema that a name or a wrapper stands for."""
    while True:
        if isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
            schema = schema["type"]
        elif isinstance(schema, dict) and schema.get("type") in named:
            schema = named[schema["type"]]
        elif isinstance(schema, str) and schema in named:
            schema = named[schema]
        else:
            return schema


def _name_of(schema: Schema) -> str:
    if isinstance(schema, dict) and schema.get("type") in _NAMED:
        return str(schema.get("name", ""))
    return schema if isinstance(schema, str) and schema not in _PRIMITIVE else ""


_PRIMITIVE = frozenset({*_SIZES, *_TEXTS, "int", "long"})


def _parts(schema: Schema) -> list[Schema]:
    """Return the schemas that one consists of."""
    match schema:
        case list(branches):
            return branches
        case {"type": "array", "items": items}:
            return [items]
        case {"type": "map", "values": values}:
            return [values]
        case {"type": "record" | "error", "fields": list(fields)}:
            return [one["type"] for one in fields]
        case {"type": dict() | list() as inner}:
            return [inner]
        case _:
            return []


class _Walk:
    """One value, which is skipped as a decoder would read it."""

    def __init__(self, data: memoryview, named: Mapping[str, Schema]) -> None:
        self._data = data
        self._at = 0
        self._named = named
        self._empty_left = _EMPTY_BUDGET + len(data)

    def walk(self, schema: Schema, depth: int) -> None:
        schema = _resolved(schema, self._named)
        while isinstance(schema, list):
            branch = self._varint()
            if not 0 <= branch < len(schema):
                raise ValueError(f"it names branch {branch} of a union of {len(schema)}")
            schema = _resolved(schema[branch], self._named)
        kind = schema.get("type") if isinstance(schema, dict) else schema
        if kind == "null":
            self._count_empty()
        elif kind in _SIZES:
            self._skip(_SIZES[kind])
        elif kind in _VARINTS:
            self._varint()
        elif kind in _TEXTS:
            self._skip(self._varint())
        elif kind == "fixed":
            self._count_empty()
            self._skip(schema["size"])
        elif depth >= DEPTH_MAX:
            raise ValueError(f"it is nested more than {DEPTH_MAX} levels deep")
        elif kind in ("record", "error"):
            self._count_empty()
            for field in schema["fields"]:
                self.walk(field["type"], depth + 1)
        elif kind in ("array", "map"):
            self._blocks(schema, depth, is_map=kind == "map")
        else:
            raise ValueError(f"its schema has the unknown type {kind!r}")

    def _blocks(self, schema: Schema, depth: int, *, is_map: bool) -> None:
        items = schema["values" if is_map else "items"]
        while count := self._varint():
            if count < 0:
                count = -count
                self._varint()
            left = len(self._data) - self._at
            if count > left:
                raise ValueError(f"it announces {count} items, and {left} bytes are left")
            for _ in range(count):
                if is_map:
                    self._skip(self._varint())
                self.walk(items, depth + 1)

    def _count_empty(self) -> None:
        """Count what takes no bytes, or may take none: values that are paid for by nothing."""
        self._empty_left -= 1
        if self._empty_left < 0:
            raise ValueError(f"it has more values than bytes, which are {len(self._data)}")

    def _skip(self, size: int) -> None:
        if not 0 <= size <= len(self._data) - self._at:
            raise ValueError(f"it announces {size} bytes, and {len(self._data) - self._at} are left")
        self._at += size

    def _varint(self) -> int:
        number = shift = 0
        for at in range(self._at, min(self._at + _VARINT_BYTES_MAX, len(self._data))):
            byte = self._data[at]
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                self._at = at + 1
                return (number >> 1) ^ -(number & 1)
        raise ValueError("it contains an unterminated number")
