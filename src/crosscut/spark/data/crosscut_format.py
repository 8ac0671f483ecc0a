"""What jobs have as DataFrames: the data source `crosscut` of `crosscut.spark.register`."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from crosscut.errors import ConnectorError, SettingsError
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.suggestions import checks_options
from crosscut.foundation.urls import check_for_spark
from crosscut.savepoints.tables import FileOfTask, PartsOfTask, state_at
from crosscut.spark.cluster.session import spark_session
from crosscut.spark.cluster.workers import python_of_this_program
from crosscut.spark.data.key_verification import DriversKey, drivers_key
from crosscut.spark.data.output_files import OutputOf, check_columns, output_at, rows_of, schema_of
from crosscut.spark.data.state_rows import COLUMNS, inferred, typed
from crosscut.store.log_key import log_key

FORMAT = "crosscut"


@checks_options("spark.register")
def register(spark: SparkSession) -> None:
    """Register the data source `crosscut` with a SparkSession, for `spark.read` and `spark.readStream`.

    Options of `spark.read.format("crosscut")`:

    * `path`: a checkpoint_dir or a savepoint; also as the argument of `load`.
    * `uid`: of an operator with state, or of a file sink.
    * `state`: of a process: which of its states.
    * `checkpoint`: which of the retained ones; default: the newest. Output is read up to there; one that is
      newer than what is all visible is refused.

    State has the columns `key_group`, `key`, `name` and `value`; types are found out from the first rows of
    each task, or given with `.schema(...)`, which may leave columns out. What is no number, text, boolean,
    time or bytes, or not always, is JSON text. Each task of the job is a partition: a range of key groups.

    Output is that of `crosscut.files.write_jsonl`, `write_text` and `write_parquet`: what is committed. JSON
    is one column `value` with a line, unless `.schema(...)` names the fields. `spark.readStream` follows it:
    each checkpoint is read once, when all of its output is visible, in the order of checkpoints.

    Raises:
        SettingsError: `spark` is no SparkSession of this program.

    Examples:
        >>> import crosscut as cc
        >>> cc.spark.register(spark)  # doctest: +SKIP
        >>> read = spark.read.format("crosscut").option("uid", "visits")  # doctest: +SKIP
        >>> frame = read.load("checkpoints")  # doctest: +SKIP
    """
    if not isinstance(spark, SparkSession) or not hasattr(spark, "_jsparkSession"):
        raise SettingsError(f"register({spark!r:.100}): expected a SparkSession of this program")
    with python_of_this_program(spark.sparkContext):
        spark.dataSource.register(_source_with(drivers_key(log_key())))


def _source_with(key: DriversKey | None) -> type[CrosscutDataSource]:
    """Return the data source for Spark's own processes, which verify with `key`."""
    if key is None:
        return CrosscutDataSource

    # Made here, so that it travels by value, with the key that stands for ours.
    return type("VerifyingCrosscutDataSource", (CrosscutDataSource,), {"key": key, "__module__": "__main__"})


def frame(url: str, uid: str, state: str = "") -> DataFrame:
    """Return state of an operator, or the output of a sink, of the job with its checkpoints at `url`."""
    check_for_spark(url, "checkpoint_dir")
    spark, _ = spark_session(1, "crosscut")
    register(spark)
    reader = spark.read.format(FORMAT).option("uid", uid)
    return (reader.option("state", state) if state else reader).load(url)


class CrosscutDataSource(DataSource):
    """See `register`.

    Attributes:
        key: Verifies job logs and savepoints; None: that of the environment does, if there is one.
    """

    key: DriversKey | None = None

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        known = {"path", "uid", "state", "checkpoint"}
        if strange := sorted(set(map(str.lower, options)) - known):
            raise ConnectorError(
                f"format crosscut has no option {', '.join(strange)}; it has {', '.join(sorted(known))}"
            )
        if missing := [name for name in ("path", "uid") if not options.get(name)]:
            raise ConnectorError(f"format crosscut needs the option {' and '.join(missing)}")
        check_for_spark(options["path"], "path")
        number = options.get("checkpoint")
        if number is not None and not (number.isascii() and number.isdecimal() and int(number) > 0):
            raise ConnectorError(f"option checkpoint={number!r}: expected the number of a checkpoint")
        self.checkpoint = None if number is None else CheckpointId(int(number))

    @classmethod
    def name(cls) -> str:
        """What it is called in `format`."""
        return FORMAT

    def output(self) -> OutputOf | None:
        """Return where the output is, None if `uid` is no sink's."""
        return output_at(self.options["path"], self.options["uid"], self.key)

    def tasks(self) -> Sequence[FileOfTask | PartsOfTask]:
        """Return the tasks with state."""
        path = self.options["path"]
        where = path if self.checkpoint is None else f"{path}@{self.checkpoint}"
        return state_at(where, self.options["uid"], self._state, self.key).tasks

    @property
    def _state(self) -> str:
        return self.options.get("state") or ""

    def schema(self) -> StructType:
        """Find the types out."""
        output = self.output()
        return schema_of(output) if output is not None else inferred(self.tasks(), self._state)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read state, or what is committed."""
        output = self.output()
        if output is None:
            return StateReader(self.tasks(), self._state, schema)
        check_columns(output, schema)
        newest = output.newest_there()
        if self.checkpoint is not None and self.checkpoint > newest:
            raise ConnectorError(
                f"option checkpoint={self.checkpoint}: the newest checkpoint whose output of sink "
                f"{output.uid!r} is completely visible is {newest or 'none'}; use that or an older one, "
                f"or wait"
            )
        return OutputReader(output, schema, newest if self.checkpoint is None else self.checkpoint)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Follow what is committed."""
        output = self.output()
        if output is None:
            raise ConnectorError(
                f"{self.options['uid']!r} is not a file sink: state can be read with spark.read, "
                f"checkpoint by "
                f"checkpoint, and only output can be followed"
            )
        if self.checkpoint is not None:
            raise ConnectorError(
                f"option checkpoint={self.checkpoint} is for spark.read: a stream follows all checkpoints, "
                f"from the first one on"
            )
        check_columns(output, schema)
        return OutputStreamReader(output, schema)


class StateReader(DataSourceReader):
    """A partition is one task of the job."""

    def __init__(self, tasks: Sequence[FileOfTask | PartsOfTask], state: str, schema: StructType) -> None:
        if strange := sorted(set(schema.fieldNames()) - set(COLUMNS)):
            raise ConnectorError(f"state has no column {', '.join(strange)}; it has {', '.join(COLUMNS)}")
        self._tasks = tasks
        self._state = state
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        return [InputPartition(one) for one in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Read one task."""
        if partition is not None:
            yield from typed(partition.value, self._state, self._schema)


class OutputReader(DataSourceReader):
    """A partition is some committed files."""

    def __init__(self, output: OutputOf, schema: StructType, through: CheckpointId) -> None:
        self._output = output
        self._schema = schema
        self._through = through

    def partitions(self) -> Sequence[InputPartition]:
        """Return the files, of all checkpoints up to the newest one that is all visible."""
        return [InputPartition(paths) for paths in self._output.files(CheckpointId(0), self._through)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read some files."""
        if partition is not None:
            yield from rows_of(self._output, partition.value, self._schema)


class OutputStreamReader(DataSourceStreamReader):
    """An offset is a checkpoint whose output is all visible."""

    def __init__(self, output: OutputOf, schema: StructType) -> None:
        self._output = output
        self._schema = schema

    def initialOffset(self) -> dict[str, int]:
        """Begin before the first checkpoint."""
        return {"checkpoint": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        """Return the newest that is all visible."""
        after = CheckpointId(start["checkpoint"])
        return {"checkpoint": max(after, self._output.newest(after))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the files of the checkpoints after `start`, up to `end`."""
        after, through = CheckpointId(start["checkpoint"]), CheckpointId(end["checkpoint"])
        return [InputPartition(paths) for paths in self._output.files(after, through)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read some files."""
        yield from rows_of(self._output, partition.value, self._schema)
