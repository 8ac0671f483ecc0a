"""Schemas of frames, and what goes between records, Arrow and the columns of a frame.

A schema is a `polars.Schema`. Polars is imported where a flow has a frame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from crosscut.contracts.arrow_checks import as_mapping, check_values, type_by_name
from crosscut.contracts.connectors import Source
from crosscut.errors import FlowError
from crosscut.foundation.fields import Field
from crosscut.foundation.frame_rows import schema_text

BatchFormat = Literal["polars", "arrow", "pandas"]
"""What `map_batches` gives to a function."""


class FrameSource(Source[Any]):
    """A source that can give the columns of its records."""

    @abstractmethod
    def frame_schema(self) -> Any:
        """Return the names and types of its columns, as a `pyarrow.Schema`.

        Called on the Spark driver when the flow is written without a schema.

        Raises:
            ConnectorError: There is nothing to read it from.
        """

    @abstractmethod
    def in_frames(self, columns: Sequence[str]) -> Source[Any]:
        """Return the same source, whose readers return `FrameRows` in place of lists of records.

        Positions and splits stay those of the records.

        Args:
            columns: Those that are needed; none: all that there are.

        Raises:
            ConnectorError: The source was told to leave one of them out.
        """


class TakesFrames(ABC):
    """A sink whose writers can take columns."""

    @abstractmethod
    def takes_frame(self, schema: Any) -> bool:
        """Return whether writers take `FrameRows` of these columns as they are, for lists of dicts.

        Args:
            schema: A `polars.Schema`.

        Raises:
            ConnectorError: It can't take these columns at all.
        """


def schemas(given: Any) -> tuple[Any, Any]:
    """Return a schema as a `polars.Schema` and as a `pyarrow.Schema`.

    Args:
        given: One of both, or names with types of Polars or names of Arrow's types, such as "int64".

    Raises:
        FlowError: A library is missing, or it describes no schema.
    """
    polars, arrow = _libraries()
    if not hasattr(polars.lit(1).meta, "is_row_separable"):
        raise FlowError(
            f"frames need Polars 2.0 or newer, which says of an expression whether it looks at other rows; "
            f"found {polars.__version__}: pip install -U 'polars>=2', on the workers too"
        )
    if isinstance(given, arrow.Schema):
        arrow_schema = given
    elif isinstance(given, Mapping):
        arrow_schema = arrow.schema([_arrow_field(polars, arrow, name, kind) for name, kind in given.items()])
    else:
        raise FlowError(
            f"schema={given!r:.200}: expected names and types, as in {{'word': 'string', 'count': 'int64'}}, "
            f"a polars.Schema or a pyarrow.Schema"
        )
    names = arrow_schema.names
    if not names or not all(isinstance(name, str) and name and "\0" not in name for name in names):
        raise FlowError(f"schema: columns {names}: expected at least one, and names that are not empty")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise FlowError(f"schema: several columns are called {', '.join(twice)}; give each its own name")
    check_names(names)
    try:
        return polars.from_arrow(arrow_schema.empty_table()).schema, arrow_schema
    except polars_errors() as error:
        raise FlowError(f"schema: Polars can't hold it: {error}; choose other types") from error


def is_same_type(kind: Any, field: Any) -> bool:
    """Return whether a column of a frame has the type of an Arrow field; units and layout may differ.

    Args:
        kind: The Polars type of the column.
        field: A `pyarrow.Field`.
    """
    polars, arrow = _libraries()
    schema = arrow.schema([field])
    try:
        if polars.from_arrow(schema.empty_table()).dtypes != [kind]:
            return False
        polars.DataFrame(schema={field.name: kind}).to_arrow().cast(schema)
    except polars_errors():
        return False
    return True


def check_names(names: Sequence[str]) -> None:
    """Refuse names of columns that Polars takes for patterns of names.

    Raises:
        FlowError: One is such a name.
    """
    for name in names:
        if name == "*" or (name.startswith("^") and name.endswith("$")):
            raise FlowError(
                f"Polars takes the column name {name!r} for a pattern of names: choose another name"
            )


def polars_errors() -> tuple[type[BaseException], ...]:
    """Return the classes of what an expression may raise: a panic of Polars is no `Exception`."""
    polars, _ = _libraries()
    return (Exception, polars.exceptions.PanicException)


def _arrow_field(polars: Any, arrow: Any, name: object, kind: Any) -> Any:
    """Return the Arrow field of a column. Its metadata has the categories of an Enum."""
    if isinstance(kind, arrow.DataType):
        return arrow.field(name, kind)
    if isinstance(kind, str):
        if (found := type_by_name(arrow, kind)) is not None:
            return arrow.field(name, found)
    elif isinstance(name, str):
        try:
            empty = polars.DataFrame(schema={name: kind})
            field = empty.to_arrow().schema.field(0)
            again = polars.from_arrow(arrow.schema([field]).empty_table()).schema
        except polars_errors():
            pass
        else:
            if again != empty.schema:
                raise FlowError(
                    f"schema: column {name!r} of type {kind!r:.100} would become {again[name]} in Arrow; "
                    f"choose another type"
                )
            return field
    raise FlowError(
        f"schema: {kind!r:.100} is not a type for {name!r}; expected a type of Polars or pyarrow, or the "
        f"name of one such as 'int64' or 'string'"
    )


def _libraries() -> tuple[Any, Any]:
    try:
        import polars
        import pyarrow
    except ImportError as error:
        raise FlowError(
            f"frames need Polars and pyarrow, and one can't be imported ({error}): install them with pip "
            f"install 'crosscut[polars]', on the workers too"
        ) from error
    return polars, pyarrow


class RowColumns:
    """Makes columns of records: the fields that the schema names, of mappings and of other objects.

    A value that would become another one in its column is refused.
    """

    def __init__(self, arrow_schema: Any) -> None:
        polars, arrow = _libraries()
        self._fields = [Field(name) for name in arrow_schema.names]
        kinds = polars.from_arrow(arrow_schema.empty_table()).schema
        # Polars 2.1 panics at some forms of an Enum in Arrow, and replaces unknown texts with null. So it
        # gets the texts, and casts them.
        self._enums = {name: kind for name, kind in kinds.items() if "Enum(" in repr(kind)}
        self._arrow_schema = arrow.schema(
            [
                arrow.field(one.name, _without_dictionaries(arrow, one.type), one.nullable)
                if one.name in self._enums
                else one
                for one in arrow_schema
            ]
        )

    def of(self, records: Sequence[Any]) -> Any:
        """Return a `polars.DataFrame` of records.

        Raises:
            KeyError, AttributeError: One lacks a field.
            ValueError, TypeError, OverflowError: A value does not fit.
        """
        polars, arrow = _libraries()
        arrays = []
        for field, column in zip(self._fields, self._arrow_schema, strict=True):
            values = list(map(field, records))
            try:
                check_values(arrow, values, column.type)
                array = arrow.array(values, column.type)
                if column.name in self._enums:
                    _check_categories(polars, values, self._enums[column.name])
            except (ValueError, TypeError, OverflowError) as error:
                raise ValueError(f"column {column.name!r}: {error}") from error
            if not column.nullable and array.null_count:
                raise ValueError(f"column {column.name!r} does not accept None")
            arrays.append(array)
        frame = polars.from_arrow(arrow.Table.from_arrays(arrays, schema=self._arrow_schema))
        return frame.cast(self._enums) if self._enums else frame


def _without_dictionaries(arrow: Any, kind: Any) -> Any:
    """Return the Arrow type of the same values, each stored where it stands."""
    types = arrow.types
    if types.is_dictionary(kind):
        return kind.value_type
    if types.is_struct(kind):
        return arrow.struct([one.with_type(_without_dictionaries(arrow, one.type)) for one in kind])
    if types.is_fixed_size_list(kind):
        return arrow.list_(_without_dictionaries(arrow, kind.value_type), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        return arrow.large_list(_without_dictionaries(arrow, kind.value_type))
    return kind


def _check_categories(polars: Any, values: Iterable[Any], kind: Any) -> None:
    """Refuse texts that are no categories of an Enum: Polars would replace them with null.

    Raises:
        ValueError: There is one.
    """
    found = [value for value in values if value is not None]
    if isinstance(kind, polars.Enum):
        known = frozenset(kind.categories)
        for value in found:
            if value not in known:
                raise ValueError(f"{value!r:.100} is no category of {kind!r:.500}")
    elif isinstance(kind, polars.List | polars.Array):
        _check_categories(polars, (item for value in found for item in value), kind.inner)
    elif isinstance(kind, polars.Struct):
        rows = [as_mapping(value, kind.fields) for value in found]
        for field in kind.fields:
            _check_categories(polars, (row.get(field.name) for row in rows), field.dtype)


def conformed(frame: Any, schema: Any, arrow_schema: Any, *, is_closed: bool) -> Any:
    """Return the columns of `frame` that the schema has, in its order.

    Args:
        is_closed: There may be no others.

    Raises:
        FlowError: One is missing or of another type, or has a null that it may not have, or there are more
            where there may be no others.
    """
    expected, found = schema, frame.schema
    problems = [f"no column {name!r}" for name in expected if name not in found]
    problems += [
        f"{name!r} of type {found[name]}, expected {kind}"
        for name, kind in expected.items()
        if name in found and found[name] != kind
    ]
    if is_closed:
        problems += [
            f"a column {name!r} that its first file does not have" for name in found if name not in expected
        ]
    if problems:
        raise FlowError(
            f"the source gave {'; '.join(problems)}. The schema of the frame is "
            f"({schema_text(expected)}); write all files alike, or call frame(schema) with the columns that "
            f"all of them have"
        )
    if list(found) != list(expected):
        frame = frame.select(list(expected))
    for column in arrow_schema:
        if not column.nullable and frame[column.name].null_count():
            raise FlowError(f"column {column.name!r} has a null, and its schema says that it has none")
    return frame


def unlike_records(schema: Any) -> str:
    """Return why records can't hold what is in the columns, "" if they can."""
    maps = [name for name, kind in schema.items() if "Map(" in repr(kind)]
    if maps:
        return (
            f"column {maps[0]!r} of type {schema[maps[0]]}: a dict holds each key once, and a map may "
            f"have it twice; leave the column out with drop"
        )
    fine = [name for name, kind in schema.items() if "'ns'" in repr(kind)]
    if not fine:
        return ""
    return (
        f"column {fine[0]!r} of type {schema[fine[0]]} has nanoseconds, and times of Python end at "
        f"microseconds: cast it first, as in with_columns(pl.col({fine[0]!r}).dt.cast_time_unit('us'))"
    )


class BatchFunction:
    """A function of the user of whole batches, as one of `polars.DataFrame`.

    Args:
        function: Takes and returns a batch in the format, or returns any of the three.
    """

    def __init__(self, function: Callable[[Any], Any], form: BatchFormat) -> None:
        self._function = function
        self._form = form

    def __call__(self, frame: Any) -> Any:
        polars, arrow = _libraries()
        given = frame
        if self._form == "arrow":
            given = frame.to_arrow()
        elif self._form == "pandas":
            given = frame.to_pandas()
        made = self._function(given)
        if isinstance(made, polars.DataFrame):
            return made
        if isinstance(made, arrow.Table | arrow.RecordBatch):
            return polars.from_arrow(made)
        if type(made).__module__.partition(".")[0] == "pandas":
            return polars.from_pandas(made)
        raise TypeError(
            f"the function returned a {type(made).__name__}; expected a polars.DataFrame, a pyarrow.Table, a "
            f"pyarrow.RecordBatch or a pandas.DataFrame"
        )
