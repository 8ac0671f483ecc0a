"""Data sources as the documentation of PySpark has them: nothing in them knows of Crosscut."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

NAME_AND_STATE = StructType([StructField("name", StringType()), StructField("state", StringType())])


class FakeReader(DataSourceReader):
    def __init__(self, schema: StructType, options: Any) -> None:
        self.schema = schema
        self.options = options

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for number in range(int(self.options.get("numRows", 3))):
            yield tuple(f"{field.name} {number}" for field in self.schema.fields)


class PartitionedReader(FakeReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(3)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for number in range(10):
            yield Row(state=f"{partition.value}", name=str(number))


@dataclass
class RangePartition(InputPartition):
    start: int
    end: int


class FakeStreamReader(DataSourceStreamReader):
    def __init__(self, schema: StructType, options: Any) -> None:
        self.current = 0

    def initialOffset(self) -> dict[str, int]:
        return {"offset": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        self.current += 2
        return {"offset": self.current}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [RangePartition(i, i + 1) for i in range(start["offset"], end["offset"])]

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to clean up."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition)
        for i in range(partition.start, partition.end):
            yield (i, str(i))


class FakeSimpleStreamReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"offset": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        first = start["offset"]
        return iter([(i, str(i)) for i in range(first, first + 2)]), {"offset": first + 2}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        return iter([(i, str(i)) for i in range(start["offset"], end["offset"])])

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to clean up."""


@dataclass
class SimpleCommitMessage(WriterCommitMessage):
    partition_id: int
    count: int


class FakeStreamWriter(DataSourceStreamWriter):
    """Counts the rows of each batch, in a file that has its number."""

    def __init__(self, options: Any) -> None:
        self.path = options["path"]

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return SimpleCommitMessage(partition_id=0, count=sum(row.number >= 0 for row in iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:
        status = {"num_partitions": len(messages), "rows": sum(one.count for one in messages)}
        with open(os.path.join(self.path, f"{batchId}.json"), "a", encoding="utf-8") as file:
            file.write(json.dumps(status) + "\n")

    def abort(self, messages: list[Any], batchId: int) -> None:
        (Path(self.path) / f"{batchId}.txt").write_text("failed", encoding="utf-8")


class FakeDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "fake"

    def schema(self) -> str:
        return "name string, state string"

    def reader(self, schema: StructType) -> DataSourceReader:
        return FakeReader(schema, self.options)


class PartitionedDataSource(FakeDataSource):
    def reader(self, schema: StructType) -> DataSourceReader:
        return PartitionedReader(schema, self.options)


NUMBERS = StructType([StructField("number", IntegerType()), StructField("word", StringType())])


class FakeStreamDataSource(DataSource):
    def schema(self) -> StructType:
        return NUMBERS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return FakeStreamReader(schema, self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return FakeStreamWriter(self.options)


class FakeSimpleDataSource(DataSource):
    def schema(self) -> StructType:
        return NUMBERS

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return FakeSimpleStreamReader()
