"""State of a savepoint or a checkpoint as a Spark DataFrame: the executors read it, each task by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from crosscut.errors import SettingsError
from crosscut.foundation.data_pickles import only_data
from crosscut.foundation.urls import check_for_spark
from crosscut.savepoints.tables import FileOfTask, PartsOfTask, StateRow, StoredState
from crosscut.savepoints.values import from_text

_AS_TEXT = "key_group INT, key STRING, name STRING, value STRING"
_COLUMNS = tuple(column.split()[0] for column in _AS_TEXT.split(", "))


def state_frame(spark: Any, stored: StoredState, schema: Any, *, trust: bool) -> DataFrame:
    """Return the rows of `stored`, which are read when Spark needs them; see `read_state`.

    Raises:
        SettingsError: `spark` is no SparkSession, `schema` has other columns, or the URL has credentials.
    """
    if not isinstance(spark, SparkSession):
        raise SettingsError(f"spark={spark!r:.100}: expected a SparkSession")
    columns = _schema_of(_AS_TEXT if schema is None else schema)
    names = columns.fieldNames()
    if not names or (strange := sorted(set(names) - set(_COLUMNS))):
        raise SettingsError(
            f"schema has the columns {', '.join(strange if names else ('none',))}: expected some of "
            f"{', '.join(_COLUMNS)}"
        )
    for task in stored.tasks:
        check_for_spark(task.url, "path")
    read = _RowReader(stored.state, tuple(names), None if schema is None else from_text, trust=trust)
    tasks = spark.sparkContext.parallelize(stored.tasks, max(len(stored.tasks), 1))
    return spark.createDataFrame(tasks.flatMap(read), columns)


def _schema_of(schema: Any) -> StructType:
    if isinstance(schema, str):
        schema = StructType.fromDDL(schema)
    if not isinstance(schema, StructType):
        raise SettingsError(
            f"schema={schema!r:.100}: expected a StructType, or DDL such as 'key STRING, value BIGINT'"
        )
    return schema


class _RowReader:
    """What an executor does with a task.

    Args:
        decoded: Makes of the text of a key, name or value what is to be in its column; None: the text itself.
        trust: Unpickle everything.
    """

    def __init__(
        self,
        state: str | None,
        names: Sequence[str],
        decoded: Callable[[str], Any] | None,
        *,
        trust: bool = False,
    ) -> None:
        self._state = state
        self._names = names
        self._decoded = decoded
        self._trust = trust

    def __call__(self, task: FileOfTask | PartsOfTask) -> Iterator[tuple[Any, ...]]:
        with nullcontext() if self._trust else only_data():
            for row in task.rows():
                if row.state == self._state:
                    yield tuple(self._cell(row, name) for name in self._names)

    def _cell(self, row: StateRow, name: str) -> Any:
        cell = getattr(row, name)
        return cell if self._decoded is None or not isinstance(cell, str) else self._decoded(cell)
