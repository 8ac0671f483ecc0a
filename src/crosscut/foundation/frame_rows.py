"""Rows of a frame: the columns of some records, which travel together and are no Python objects.

Polars holds the columns, as Arrow does, and is imported when there are some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from crosscut.errors import InternalError

_OWNER = "\0owner"
"""A column that stands beside those of the user for a moment."""


class FrameRows(list[Any]):
    """Stands for a list of records, each a dict by column, and is as long. `Batch` cuts and merges it.

    It is changed as the list would be, and so are those who hold it. The columns themselves never change.

    Args:
        frame: A `polars.DataFrame`.
        key_columns: The columns that are the key, in order; none: the rows have no keys.
    """

    def __init__(self, frame: Any, key_columns: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._chunks: list[Any] = [frame]
        self._height: int = frame.height
        self.key_columns = key_columns

    @property
    def frame(self) -> Any:
        """The columns, as a `polars.DataFrame`."""
        if len(self._chunks) > 1:
            import polars

            self._chunks = [polars.concat(self._chunks, rechunk=True)]
        return self._chunks[0]

    def with_keys(self, key_columns: tuple[str, ...]) -> FrameRows:
        """Return the same rows with other keys."""
        return FrameRows(self.frame, key_columns)

    def copied(self) -> FrameRows:
        """Return the same rows, to be cut and merged by somebody else."""
        return FrameRows(self.frame, self.key_columns)

    def key_values(self) -> list[Any]:
        """Return the key of each row as the rows of a stream have it: one value, or a tuple of several."""
        return key_values(self.frame.select(self.key_columns))

    def by_owner(self, owners_of: Callable[[Sequence[Any]], list[int]]) -> list[tuple[int, FrameRows]]:
        """Divide the rows by who owns their key; they keep their order.

        Args:
            owners_of: Returns the owner of each of these keys, of which no two are equal.
        """
        if not self:
            return []
        columns = list(self.key_columns)
        different = self.frame.select(columns).unique(maintain_order=True)
        owners = owners_of(key_values(different))
        if len(set(owners)) == 1:
            return [(owners[0], self)]
        import polars

        owned = different.with_columns(polars.Series(_OWNER, owners, polars.UInt32))
        joined = self.frame.join(owned, on=columns, how="left", nulls_equal=True, maintain_order="left")
        divided = joined.partition_by(_OWNER, maintain_order=True, include_key=False, as_dict=True)
        return [(int(owner), FrameRows(frame, self.key_columns)) for (owner,), frame in divided.items()]

    def __len__(self) -> int:
        return self._height

    def __iter__(self) -> Iterator[Any]:
        return iter(as_records(self.frame))

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return self.frame.row(index, named=True)
        start, stop, step = index.indices(self._height)
        if step != 1:
            self._refuse()
        return FrameRows(self.frame.slice(start, max(0, stop - start)), self.key_columns)

    def __delitem__(self, index: Any) -> None:
        start, stop, step = index.indices(self._height) if isinstance(index, slice) else (0, 0, 0)
        if step != 1 or stop != self._height:
            self._refuse()
        self._chunks, self._height = [self.frame.slice(0, start)], start

    def __iadd__(self, more: Any) -> FrameRows:  # type: ignore[misc]
        if not isinstance(more, FrameRows):
            raise InternalError(f"rows of a frame are followed by a {type(more).__name__} of records")
        self._chunks += more._chunks
        self._height += more._height
        return self

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, FrameRows)
            and self.key_columns == other.key_columns
            and bool(self.frame.equals(other.frame))
        )

    __hash__ = None

    def __repr__(self) -> str:
        return f"<{self._height} rows of a frame: {schema_text(self.frame.schema)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return frame_rows_of, (ipc_bytes(self.frame), self.key_columns)

    def _refuse(self, *others: Any) -> NoReturn:
        raise InternalError("rows of a frame are cut and merged as a batch is, and not otherwise")

    # Of a list, they would do something to the list itself, which is empty.
    __add__: Any = _refuse
    __imul__: Any = _refuse
    __mul__: Any = _refuse
    __rmul__: Any = _refuse
    __setitem__: Any = _refuse
    __contains__: Any = _refuse
    __reversed__: Any = _refuse
    append: Any = _refuse
    clear: Any = _refuse
    copy: Any = _refuse
    count: Any = _refuse
    extend: Any = _refuse
    index: Any = _refuse
    insert: Any = _refuse
    pop: Any = _refuse
    remove: Any = _refuse
    reverse: Any = _refuse
    sort: Any = _refuse


def as_records(frame: Any) -> list[Any]:
    """Return the rows of a `polars.DataFrame` as dicts.

    Raises:
        ValueError: A time of day is not a whole number of microseconds, the resolution of Python's times.
        OverflowError: A time is outside the range of Python's times.
    """
    for name, kind in frame.schema.items():
        if "Time" in repr(kind) and _has_nanoseconds(frame[name]):
            raise ValueError(
                f"column {name!r} has times of day with nanoseconds; Python has only microseconds"
            )
    records: list[Any] = frame.to_dicts()
    return records


def row_to_show(frame: Any, index: int, errors: tuple[type[BaseException], ...]) -> dict[str, Any]:
    """Return a row of a `polars.DataFrame` as a dict for a message, with times as numbers if Python has none.

    Args:
        errors: What Polars raises for such times.
    """
    row: dict[str, Any]
    try:
        row = frame.row(index, named=True)
    except errors:
        import polars

        # Polars can't print it either.
        row = frame.slice(index, 1).select(polars.all().to_physical()).row(0, named=True)
    return row


def _has_nanoseconds(column: Any) -> bool:
    """Tell whether a column has times of day, in lists and structs too, with parts of a microsecond."""
    name = str(column.dtype.base_type())
    if name in ("List", "Array"):
        return _has_nanoseconds(column.explode())
    if name == "Struct":
        return any(map(_has_nanoseconds, column.struct.unnest().get_columns()))
    return name == "Time" and bool((column.to_physical() % 1_000 != 0).any())


def ipc_bytes(frame: Any) -> bytes:
    """Return a `polars.DataFrame` as an Arrow IPC stream."""
    data: bytes = frame.write_ipc_stream(None).getvalue()
    return data


def frame_rows_of(data: bytes, key_columns: tuple[str, ...]) -> FrameRows:
    """Return rows from what `ipc_bytes` has made of their frame."""
    import polars

    return FrameRows(polars.read_ipc_stream(data), key_columns)


def schema_text(schema: Any) -> str:
    """Return names and types, for people."""
    return ", ".join(f"{name}: {kind}" for name, kind in schema.items()) or "no columns"


def key_values(keys: Any) -> list[Any]:
    """Return the keys that the rows of a `polars.DataFrame` are, as those of records."""
    values: list[Any] = keys.to_series().to_list() if keys.width == 1 else keys.rows()
    return values
