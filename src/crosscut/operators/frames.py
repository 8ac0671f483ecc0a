"""Operators of frames: one call for a batch of rows.

They run in no copy of the process: the threads of Polars are not there after a fork.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from crosscut.contracts.frames import RowColumns, conformed, polars_errors
from crosscut.errors import FlowError, InternalError, UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.frame_rows import FrameRows, as_records, row_to_show, schema_text
from crosscut.graph.frames import FrameKeyBySpec, FrameMapSpec, FrameRowsSpec, FrameSpec
from crosscut.operators.operator import Operator, user_code_error


def frame_operator(uid: str, spec: FrameSpec | FrameMapSpec | FrameRowsSpec | FrameKeyBySpec) -> Operator:
    """Return the running operator."""
    match spec:
        case FrameSpec():
            return ToFrame(uid, spec)
        case FrameMapSpec():
            return FrameMap(uid, spec)
        case FrameRowsSpec():
            return FrameToRows(uid)
        case FrameKeyBySpec(columns):
            return FrameKeys(uid, columns, spec.schema)
        case _:
            assert_never(spec)


class ToFrame(Operator):
    """Makes columns of records; of columns that a source has read, those of the schema."""

    runs_in_copies = False

    def __init__(self, uid: str, spec: FrameSpec) -> None:
        super().__init__(uid)
        self._spec = spec
        self._columns = RowColumns(spec.arrow_schema)

    def process(self, batch: Batch) -> Batch:
        self.time_budget.step()
        records = batch.records
        if isinstance(records, FrameRows):
            try:
                spec = self._spec
                frame = conformed(records.frame, spec.schema, spec.arrow_schema, is_closed=spec.is_closed)
            except FlowError as error:
                raise self._blamed(error, records) from error
        else:
            try:
                frame = self._columns.of(records)
            except polars_errors() as error:
                raise self._misfit(records, error) from error
        self.taken_count += len(batch)
        return Batch(FrameRows(frame))

    def _misfit(self, records: list[Any], error: BaseException) -> UserCodeError:
        """Return the error that names the first record that does not fit."""
        for record in records:
            try:
                self._columns.of([record])
            except polars_errors() as found:
                return self._blamed(_unfit(self._spec, found), record)
        return self._blamed(_unfit(self._spec, error), records[0])

    def _blamed(self, error: Exception, record: Any) -> UserCodeError:
        return user_code_error(self.uid, error, record, is_first=not self.taken_count)


def _unfit(spec: FrameSpec, error: BaseException) -> FlowError:
    why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    return FlowError(
        f"a record does not fit the schema of the frame ({schema_text(spec.schema)}): {why}; map it to one "
        f"that does, or change the schema"
    )


class FrameMap(Operator):
    """Replaces the columns of each batch by what a function makes of them."""

    runs_in_copies = False

    def __init__(self, uid: str, spec: FrameMapSpec) -> None:
        super().__init__(uid)
        self._spec = spec
        self._function = spec.function

    def process(self, batch: Batch) -> Batch:
        rows = frame_of(self.uid, batch, self._spec.reads)
        self.time_budget.step()
        try:
            made = self._made(rows.frame)
        except BaseException as error:
            raise self._blamed(rows, error) from error
        self.taken_count += len(batch)
        return Batch(FrameRows(made)) if made.height else Batch([])

    def _made(self, frame: Any) -> Any:
        made = self._function(frame)
        if made.schema != self._spec.schema:
            raise FlowError(
                f"{self._spec.kind} made the columns ({schema_text(made.schema)}); expected "
                f"({schema_text(self._spec.schema)}), the schema that it has in the flow: cast them to that"
            )
        return made

    def _blamed(self, rows: FrameRows, error: BaseException) -> UserCodeError:
        """Return the error that names the first row for which it is raised, if rows are independent."""
        is_first = not self.taken_count
        if not self._spec.is_by_row:
            return user_code_error(self.uid, error, rows, is_first=is_first)
        return row_error(self.uid, rows, self._made, error, is_first=is_first)


class FrameToRows(Operator):
    """Makes records of columns."""

    runs_in_copies = False

    def process(self, batch: Batch) -> Batch:
        rows = frame_of(self.uid, batch)
        self.time_budget.step()
        records = records_of(self.uid, rows, is_first=not self.taken_count)
        self.taken_count += len(batch)
        return Batch(records)


class FrameKeys(Operator):
    """Says which columns are the key; the hash edge after it routes by them."""

    runs_in_copies = False

    def __init__(self, uid: str, columns: tuple[str, ...], schema: Any) -> None:
        super().__init__(uid)
        self._columns = columns
        self._schema = schema

    def process(self, batch: Batch) -> Batch:
        self.time_budget.step()
        self.taken_count += len(batch)
        return Batch(frame_of(self.uid, batch, self._schema).with_keys(self._columns))


def records_of(uid: str, rows: FrameRows, *, is_first: bool) -> list[Any]:
    """Return rows as dicts.

    Raises:
        UserCodeError: Python has no value for what a row holds. Names the row.
    """
    try:
        return as_records(rows.frame)
    except polars_errors() as error:
        raise row_error(uid, rows, as_records, error, is_first=is_first) from error


def row_error(
    uid: str, rows: FrameRows, call: Callable[[Any], Any], error: BaseException, *, is_first: bool
) -> UserCodeError:
    """Return the error of the first row for which `call` raises, where rows are independent.

    Args:
        error: What it raised for all `rows`.
        is_first: The operator has not processed any rows before.
    """
    errors = polars_errors()
    if not isinstance(error, errors):
        return user_code_error(uid, error, rows, is_first=is_first)
    frame, start, end = rows.frame, 0, len(rows)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            call(frame.slice(start, middle - start))
        except errors as found:
            end, error = middle, found
        else:
            start = middle
    row = row_to_show(frame, start, errors)
    return user_code_error(uid, error, row, is_first=is_first and not start)


def frame_of(uid: str, batch: Batch, reads: Any = None) -> FrameRows:
    """Return the rows of a batch that operator `uid` got.

    Args:
        reads: The schema that they must have; None: any.

    Raises:
        UserCodeError: They have another schema: they were in flight in an earlier version of the flow.
        InternalError: They are records.
    """
    rows = batch.records
    if not isinstance(rows, FrameRows):
        kind = type(rows).__name__
        raise InternalError(f"operator {uid!r} got a {kind} of records, expected rows of a frame")
    if reads is not None and rows.frame.schema != reads:
        problem = FlowError(
            f"the rows have the columns ({schema_text(rows.frame.schema)}), expected ({schema_text(reads)}): "
            f"the checkpoint has them in flight from an earlier version of the flow. Start that version "
            f"again and stop it with a savepoint of aligned snapshots, or start from the beginning"
        )
        raise user_code_error(uid, problem, rows)
    return rows
