"""State of a savepoint or a checkpoint as a DataFrame, of Polars or of Spark."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

from crosscut.errors import SettingsError, StoreError
from crosscut.foundation.data_pickles import only_data
from crosscut.savepoints.tables import StoredState, state_at, warn_of_foreign_write
from crosscut.savepoints.values import from_text


def read_state(
    path: str | os.PathLike[str],
    uid: str,
    state: str = "",
    *,
    spark: Any = None,
    schema: Any = None,
    trust: bool = False,
) -> Any:
    """Return the state of an operator as a Polars or a Spark DataFrame, one row for each key (and name).

    Its columns are `key_group`, `key`, `value`, and `name` where rows have one: entries of a MapState,
    windows, timers. In a Polars DataFrame keys and values are what the flow had, where Polars has a type for
    all of them; else they are of type Object.

    Args:
        path: Of a savepoint, or a checkpoint_dir, of which it takes the newest checkpoint; with `@7` at the
            end checkpoint 7, if it is retained. A directory, or a URL that fsspec knows.
        uid: Of the operator: its name.
        state: Of a process: which of its states.
        spark: A SparkSession, for a Spark DataFrame. It is read when Spark needs it, by the executors, each
            task of the job by itself: they must see `path`. A checkpoint must be retained until then.
        schema: Of that DataFrame, a StructType or DDL: some of `key_group`, `key`, `name` and `value`, with
            their types; what is not named is not decoded. None: all, with keys, names and values as text,
            as a savepoint has them.
        trust: Unpickle everything, which runs code that its author chose. Then the owner and mode of a
            local directory, and of all directories below it, are checked first, with a RuntimeWarning if
            other users can write there. By default they are not checked, because only data is loaded: plain
            types, data classes and the like, and the classes of this program; import the modules of other
            classes first.

    Raises:
        StoreError: There is nothing at `path`, it is damaged, or Polars or pyarrow is not installed.
        StateError: It has no such state, or a class in it can't be imported here, or is not loaded without
            `trust`.
        SettingsError: `schema` has other columns, or was given without `spark`.

    Examples:
        >>> import crosscut as cc
        >>> frame = cc.read_state("savepoints/monday", "counts")  # doctest: +SKIP
        >>> cc.read_state("savepoints/monday", "counts", spark=spark, schema="key STRING, value BIGINT")
        ... # doctest: +SKIP
    """
    if trust:
        warn_of_foreign_write(path)
    with nullcontext() if trust else only_data():
        return _frame(state_at(path, uid, state), spark, schema, trust=trust)


def _frame(found: StoredState, spark: Any, schema: Any, *, trust: bool) -> Any:
    if spark is not None:
        # pyspark takes a while to import, and a Polars DataFrame needs none of it.
        from crosscut.spark.data.state_frame import state_frame

        return state_frame(spark, found, schema, trust=trust)
    if schema is not None:
        raise SettingsError("read_state(schema=...) is for a Spark DataFrame: give it spark=, too")
    rows = list(found.rows())
    try:
        import polars
    except ImportError as error:
        raise StoreError(
            f"read_state returns a Polars DataFrame, and polars can't be imported ({error}): install it "
            f"with pip install 'crosscut[polars]', or read the Parquet files with another tool"
        ) from error
    columns: dict[str, list[Any]] = {
        "key_group": [row.key_group for row in rows],
        "key": [from_text(row.key) for row in rows],
    }
    if any(row.name is not None for row in rows):
        columns["name"] = [None if row.name is None else from_text(row.name) for row in rows]
    columns["value"] = [from_text(row.value) for row in rows]
    series = []
    for name, values in columns.items():
        try:
            series.append(polars.Series(name, values, strict=True))
        except (TypeError, ValueError, OverflowError, polars.exceptions.PolarsError):
            series.append(polars.Series(name, values, dtype=polars.Object))
    return polars.DataFrame(series)
