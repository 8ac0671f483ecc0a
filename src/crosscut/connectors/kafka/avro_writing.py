"""Avro values that stay what they are: fastavro rounds, cuts and leaves out what a schema has no room for.

What a schema can't hold exactly is refused. A preparer is made once for each schema, and looks only at types
where fastavro does not refuse by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import is_
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.kafka.avro_reading import Schema, is_of_fastavro
from crosscut.connectors.kafka.avro_scalars import (
    CONTAINERS,
    LOGICAL,
    PLAIN,
    REFUSED_BY_FASTAVRO,
    SCALARS,
    TYPES,
    Prepare,
    Refused,
    RefusedField,
    enum_of,
    fixed_of,
    unchecked,
    unfit,
)

_NAMED = ("record", "error", "enum", "fixed")


def preparer(schema: Schema) -> Prepare:
    """Return what prepares values of a schema.

    Args:
        schema: As fastavro has parsed it.
    """
    prepare = _Preparers().of(schema)

    def prepared(value: Any) -> Any:
        try:
            return prepare(value)
        except Refused as error:
            raise ValueError(str(error)) from error

    return prepared


class _Preparers:
    """Those of one schema, which may name types that it has defined before.

    fastavro refuses some values by itself, and those need no check. In a union every value is checked as a
    whole, because what is refused decides which type of the union it has.
    """

    def __init__(self) -> None:
        self._schemas: dict[str, Schema] = {}
        self._made: dict[tuple[str, bool], Prepare] = {}

    def of(self, schema: Schema, *, in_union: bool = False) -> Prepare:
        """Return what prepares values of a schema.

        Args:
            in_union: It refuses every value that fastavro would refuse.
        """
        if isinstance(schema, list):
            return self._union(schema, in_union=in_union)
        if isinstance(schema, str):
            if schema not in self._schemas:
                return PLAIN[schema]
            made = self._made.get((schema, in_union))
            return self.of(self._schemas[schema], in_union=in_union) if made is None else made
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.of(kind, in_union=in_union)
        if (write := _writer_of(schema)) is not None:
            typed = f"{kind}-{schema['logicalType']}"
            if typed in LOGICAL and is_of_fastavro(write):
                prepare = LOGICAL[typed](schema)
                return self._kept(schema, _not_text(prepare) if in_union else prepare, in_union=in_union)
            return self._kept(schema, unchecked, in_union=in_union)
        match kind:
            case "record" | "error":
                return self._record(schema, in_union=in_union)
            case "array":
                return _array(self.of(schema["items"], in_union=in_union), in_union=in_union)
            case "map":
                return _map(self.of(schema["values"], in_union=in_union), in_union=in_union)
            case "enum":
                return self._kept(schema, enum_of(schema["symbols"]), in_union=in_union)
            case "fixed":
                return self._kept(schema, fixed_of(schema["size"]), in_union=in_union)
            case _:
                return self.of(kind, in_union=in_union)

    def _kept(self, schema: Schema, prepare: Prepare, *, in_union: bool) -> Prepare:
        if "name" in schema:
            self._schemas[schema["name"]] = schema
            self._made[schema["name"], in_union] = prepare
        return prepare

    def _record(self, schema: Schema, *, in_union: bool) -> Prepare:
        own_name = schema["name"]
        names = {field["name"] for field in schema["fields"]}
        checked: list[tuple[str, Prepare, Any]] = []

        def check_extra(value: Mapping[Any, Any]) -> None:
            extra = value.keys() - names
            # With it a value names its branch of a union, for fastavro.
            if "-type" in extra and value["-type"] != own_name:
                raise ValueError(f"it is of type {value['-type']!r}, not {own_name}")
            if extra := extra - {"-type"}:
                raise ValueError(f"the schema {own_name} has no field {', '.join(sorted(map(str, extra)))}")

        def prepare(value: Any) -> Any:
            if type(value) is not dict and not isinstance(value, Mapping):
                raise unfit(value, f"the fields of {own_name} as a dict")
            if not value.keys() <= names:
                check_extra(value)
            changed: dict[str, Any] | None = None
            name = ""
            try:
                for name, of_field, default in checked:
                    if name not in value:
                        # fastavro writes the default, or refuses. In a union it passes to the next type.
                        if in_union:
                            of_field(default)
                        continue
                    given = value[name]
                    found = of_field(given)
                    if found is not given:
                        changed = dict(value) if changed is None else changed
                        changed[name] = found
            except ValueError as error:
                raise RefusedField(name, error) from error
            return value if changed is None else changed

        self._kept(schema, prepare, in_union=in_union)
        for field in schema["fields"]:
            of_field = self.of(field["type"], in_union=in_union)
            if in_union or of_field not in REFUSED_BY_FASTAVRO:
                checked.append((field["name"], of_field, field.get("default")))
        return prepare

    def _union(self, schemas: list[Schema], *, in_union: bool) -> Prepare:
        if any(isinstance(one, list) for one in schemas):
            raise ValueError("the schema has a union within a union, which Avro does not allow: make it one")
        names = [self._branch_name(one) for one in schemas]
        if len(set(names)) < len(names):
            # fastavro takes such a schema, and the first of the types for both.
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the schema has a union with two types {twice}, which Avro does not allow")
        others = [name for name in names if name != "null"]
        is_choice = in_union or len(others) != 1
        branches = [
            (name, self.of(one, in_union=is_choice), self._resolved(one))
            for name, one in zip(names, schemas, strict=True)
        ]
        if any(prepare is unchecked for _, prepare, _ in branches):
            return unchecked
        if len(others) != 1:
            return _chosen(
                [(name, _kind_of(schema), _names_of(schema), made) for name, made, schema in branches]
            )
        (only,) = [(name, prepare) for name, prepare, _ in branches if name != "null"]
        if not in_union and only[1] in REFUSED_BY_FASTAVRO:
            return only[1]
        return _nullable(*only, takes_none=len(branches) > 1)

    def _branch_name(self, schema: Schema) -> str:
        """Return the name of a branch of a union, as fastavro takes it."""
        if isinstance(schema, str):
            return schema
        return str(schema["name"] if schema["type"] in _NAMED else schema["type"])

    def _resolved(self, schema: Schema) -> Schema:
        return self._schemas.get(schema, schema) if isinstance(schema, str) else schema


def _writer_of(schema: Schema) -> Any:
    """Return the function by which fastavro writes values of a logical type, None if it knows none."""
    typed = f"{schema['type']}-{schema.get('logicalType')}"
    return required("fastavro.write", "avro").LOGICAL_WRITERS.get(typed)


def _kind_of(schema: Schema) -> str:
    return str(schema["type"] if isinstance(schema, dict) else schema)


def _names_of(schema: Schema) -> frozenset[str]:
    fields = schema["fields"] if _kind_of(schema) == "record" else ()
    return frozenset(field["name"] for field in fields)


def _not_text(prepare: Prepare) -> Prepare:
    """Leave a text to another type of a union, which has one for texts if it is to hold any."""

    def prepared(value: Any) -> Any:
        found = prepare(value)
        if isinstance(value, str) and not isinstance(found, str):
            raise unfit(value, f"a {type(found).__name__}")
        return found

    return prepared


def _nullable(name: str, prepare: Prepare, *, takes_none: bool) -> Prepare:
    def nullable(value: Any) -> Any:
        if value is None and takes_none:
            return None
        if type(value) is tuple:
            given, inner = value
            return given, nullable(inner)
        found = prepare(value)
        # With the name fastavro does not look for a type: it would not know those that were chosen inside.
        return value if found is value else (name, found)

    return nullable


def _chosen(branches: list[tuple[str, str, frozenset[str], Prepare]]) -> Prepare:
    """Return what chooses the branch of a union as fastavro does, among those that hold a value exactly.

    Args:
        branches: The name, the type, the fields of a record, and what prepares values.
    """
    by_name = {name: prepare for name, _, _, prepare in branches}
    # A shorter way to the branches of the most frequent values: a refusal takes time.
    by_type = {
        own: [one for one in branches if own in TYPES.get(one[3], SCALARS) and one[1] not in CONTAINERS]
        for own in SCALARS
    }

    def chosen(value: Any) -> Any:
        if type(value) is tuple:
            name, inner = value
            if name not in by_name:
                raise ValueError(f"the union has no type {name!r}, only {', '.join(by_name)}")
            return name, by_name[name](inner)
        errors = []
        found: tuple[str, Any] | None = None
        most_fields = -1
        for name, kind, fields, prepare in by_type.get(type(value), branches):
            try:
                prepared = prepare(value)
            except ValueError as error:
                errors.append(error)
                continue
            if kind == "record":
                count = len(fields & value.keys())
                if count > most_fields:
                    found, most_fields = (name, prepared), count
            elif kind == "float" and "double" in by_name:
                found = "double", by_name["double"](value)
                break
            else:
                found = name, prepared
                break
        if found is None:
            reasons = dict.fromkeys(map(str, errors)) or [str(unfit(value, ", ".join(by_name)))]
            raise ValueError(f"no type of the union holds it: {'; '.join(reasons)}")
        return None if found[0] == "null" else found

    return chosen


def _array(of_item: Prepare, *, in_union: bool) -> Prepare:
    is_free = not in_union and of_item in REFUSED_BY_FASTAVRO

    def array(value: Any) -> Any:
        if isinstance(value, list | tuple):
            if is_free:
                return value
            found = list(map(of_item, value))
            return value if all(map(is_, found, value)) else found
        if isinstance(value, str | bytes | bytearray | memoryview | Mapping):
            # fastavro would write each character, or the keys.
            raise unfit(value, "a list")
        if in_union and isinstance(value, Iterator):
            # Each type of the union is tried, and after the first one nothing would be left.
            raise unfit(value, "a list")
        try:
            items = iter(value)
        except TypeError:
            raise unfit(value, "a list") from None
        return list(map(of_item, items))

    return array


def _map(of_value: Prepare, *, in_union: bool) -> Prepare:
    is_free = not in_union and of_value in REFUSED_BY_FASTAVRO

    def mapped(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise unfit(value, "a dict")
        if is_free:
            return value
        if in_union and not all(isinstance(key, str) for key in value):
            raise unfit(value, "a dict with keys of type str")
        found = list(map(of_value, value.values()))
        if all(map(is_, found, value.values())):
            return value
        return dict(zip(value, found, strict=True))

    return mapped
