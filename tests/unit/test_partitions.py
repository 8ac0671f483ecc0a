"""Output that is divided by columns: names of directories, and what readers of others make of them."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BooleanType, DateType, LongType, StringType, StructField, StructType

import crosscut as cc
from crosscut.connectors.files.committed_files import committed_files
from crosscut.connectors.files.committed_output import committed_output
from crosscut.connectors.files.partitions import is_partition, partition_name, values_of
from crosscut.contracts.connectors import Sink
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId
from crosscut.spark.data.output_files import OutputOf, rows_of, schema_of
from crosscut.testing.sinks import open_writer, permit, stage

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


def committed(sink: Sink, records: list[Any]) -> None:
    """Write and commit some records as one task."""
    writer = open_writer(sink, 1)
    writer.commit(permit(1), [stage(writer, records, 1)])
    writer.close()


@given(column=NAMES.filter(lambda name: not name.startswith(".")), value=NAMES)
def test_any_text_names_one_directory_and_comes_back(column: str, value: str) -> None:
    name = partition_name([column], [value], "the sink")
    assert is_partition(name) and "/" not in name
    assert values_of(name) == {column: value}


def test_names_are_those_that_spark_gives() -> None:
    assert partition_name(["day", "on"], [date(2026, 11, 22), True], "") == "day=2026-11-22/on=true"
    assert partition_name(["a"], [None], "") == "a=__HIVE_DEFAULT_PARTITION__"
    assert partition_name(["a b", "n"], ["x:y z/ü%", -7], "") == "a b=x%3Ay z%2Fü%25/n=-7"
    assert values_of("a=__HIVE_DEFAULT_PARTITION__/n=-7") == {"a": None, "n": "-7"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "'' there would be read as None"),
        ("__HIVE_DEFAULT_PARTITION__", "would be read as None"),
        (1.5, "of type float has no name there"),
        (b"x", "of type bytes has no name"),
        ("x" * 254, "has 256 bytes, and the name of a directory at most 255"),
        ("\ud800", "is not valid Unicode"),
    ],
)
def test_a_value_that_would_come_back_as_another_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ConnectorError, match=message):
        partition_name(["a"], [value], "the sink")


def test_one_and_true_are_two_directories(tmp_path: Path) -> None:
    sink = cc.files.write_jsonl(tmp_path, partition_by=["a", "b"])
    records = [{"a": one, "b": None, "n": n} for n, one in enumerate([1, True, 0, False, 1, None])]
    committed(sink, records)
    found = {
        str(path.parent.relative_to(tmp_path)): [json.loads(line) for line in path.read_text().splitlines()]
        for path in tmp_path.glob("a=*/b=*/*.jsonl")
    }
    none = "b=__HIVE_DEFAULT_PARTITION__"
    assert found == {
        f"a=1/{none}": [{"n": 0}, {"n": 4}],
        f"a=true/{none}": [{"n": 1}],
        f"a=0/{none}": [{"n": 2}],
        f"a=false/{none}": [{"n": 3}],
        f"a=__HIVE_DEFAULT_PARTITION__/{none}": [{"n": 5}],
    }


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_values_of_one_text_are_one_file_with_all_their_rows_in_order(
    tmp_path: Path, compression: Any
) -> None:
    sink = cc.files.write_csv(tmp_path, ["a", "n"], partition_by="a", compression=compression)
    committed(sink, [(1, 0), ("1", 1), (1, 2), (True, 3), ("true", 4)])
    opened = gzip.open if compression else open
    found = {}
    for path in tmp_path.glob("a=*/*"):
        assert path.parent.name not in found
        with opened(path, "rt", encoding="utf-8") as file:
            found[path.parent.name] = file.read().split()
    assert found == {"a=1": ["n", "0", "1", "2"], "a=true": ["n", "3", "4"]}


@dataclass
class Visit:
    country: str
    user: str


def test_records_of_json_lines_need_the_fields_that_divide_them(tmp_path: Path) -> None:
    sink = cc.files.write_jsonl(tmp_path, partition_by="country")
    committed(sink, [Visit("DE", "ada")])
    (path,) = tmp_path.glob("country=DE/*.jsonl")
    assert path.read_text() == '{"user":"ada"}\n'
    writer = open_writer(sink, 1, lineage="another")
    for record, message in (
        ({"user": "bob"}, "it has no country, by which the output is partitioned"),
        (["FR", "bob"], "it has no fields to partition by"),
        ({"country": ["FR"]}, r"name a directory: .*unhashable type"),
    ):
        with pytest.raises(ConnectorError, match=message):
            writer.write([record])
    writer.close()


def test_columns_that_divide_csv_are_not_in_its_files(tmp_path: Path) -> None:
    sink = cc.files.write_csv(tmp_path, ["a", "b", "c"], partition_by="b")
    committed(sink, [(1, "x", 2), (3, "y", 4), (5, "x", 6)])
    found = {
        path.parent.name: list(csv.reader(path.read_text().splitlines()))
        for path in tmp_path.glob("b=*/*.csv")
    }
    assert found == {"b=x": [["a", "c"], ["1", "2"], ["5", "6"]], "b=y": [["a", "c"], ["3", "4"]]}


def test_polars_reads_divided_parquet_and_only_what_is_committed(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars", reason="pip install 'crosscut[polars]'")
    schema = {"id": "int64", "country": "string", "day": "date32"}
    sink = cc.files.write_parquet(tmp_path, schema, partition_by=["country", "day"])
    rows = [(1, "a/b:=ü", date(2026, 1, 1)), (2, None, date(2026, 1, 2)), (3, "a/b:=ü", date(2026, 1, 1))]
    writer = open_writer(sink, 1)
    writer.commit(permit(1), [stage(writer, rows, 1)])
    stage(writer, [(4, "c", date(2026, 1, 3))], 2)
    frame = polars.scan_parquet(f"{tmp_path}/**/*.parquet", hive_partitioning=True).sort("id").collect()
    assert frame.select("id", "country", "day").rows() == rows
    writer.close()


def test_what_does_not_fit_a_column_that_divides_is_refused_by_its_type(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")
    sink = cc.files.write_parquet(tmp_path, {"id": "int64", "country": "string"}, partition_by="country")
    writer = open_writer(sink, 1)
    with pytest.raises(ConnectorError, match="does not fit the schema"):
        writer.write([(1, "DE"), (2, 3)])
    writer.close()
    with pytest.raises(ConnectorError, match="column 'at' is of type double"):
        cc.files.write_parquet(tmp_path, {"id": "int64", "at": "float64"}, partition_by="at")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partition_by": ["a", "b"]}, "expected some of the columns a, b, not all"),
        ({"partition_by": "c"}, "expected some of the columns a, b"),
        ({"partition_by": ["a", "a"]}, "a name appears twice"),
        ({"partitions_max": 0}, "partitions_max=0: expected a whole number from 1 on"),
        ({"roll_bytes": 1000}, "roll_bytes=1000: expected a whole number of bytes from 1,048,576 on"),
        ({"roll_bytes": 1e9}, "roll_bytes"),
    ],
)
def test_a_layout_that_is_none_is_refused_where_it_is_written(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConnectorError, match=message):
        cc.files.write_csv(tmp_path, ["a", "b"], **arguments)


def test_a_hidden_directory_is_never_made_of_a_column(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match="begins with a dot is hidden"):
        cc.files.write_jsonl(tmp_path, partition_by=".a")


def test_a_job_that_starts_anew_is_told_of_divided_output_without_a_ledger(tmp_path: Path) -> None:
    assert committed_output(str(tmp_path), "jsonl") == []
    (tmp_path / "k=1" / "j=2").mkdir(parents=True)
    name = "part-00001-000000000004-00000002-sink-0123456789ab.jsonl"
    (tmp_path / "k=1" / "j=2" / name).write_text("1\n")
    (found,) = committed_output(str(tmp_path), "jsonl")
    assert (found.sink_uid, found.checkpoint_id) == ("sink", 4)


def test_the_format_crosscut_has_the_columns_that_divide_output(tmp_path: Path) -> None:
    out = tmp_path / "k=1" / "out"
    rows: list[Any] = [(1, "x", True), (2, None, False), (3, "y", True)]

    def read(output: OutputOf, schema: StructType) -> list[Any]:
        files = [one.path for one in committed_files(output.directory, output.uid)]
        return sorted(
            (row for found in rows_of(output, files, schema) for row in as_tuples(found)),
            key=lambda row: str(row[0]),
        )

    def as_tuples(found: Any) -> list[tuple[Any, ...]]:
        return [found] if isinstance(found, tuple) else [tuple(row.values()) for row in found.to_pylist()]

    names = ["id", "word", "on"]
    lines = cc.files.write_jsonl(out / "lines", partition_by=["word", "on"])
    committed(lines, [dict(zip(names, row, strict=True)) for row in rows])
    output = OutputOf("", "sink", str(out / "lines"), "jsonl")
    assert schema_of(output).fieldNames() == ["value", "word", "on"]
    assert read(output, schema_of(output))[0] == ('{"id":1}', "x", "true")
    typed = StructType(
        [StructField("on", BooleanType()), StructField("id", LongType()), StructField("word", StringType())]
    )
    assert sorted(read(output, typed), key=lambda row: row[1]) == [(row[2], row[0], row[1]) for row in rows]
    with pytest.raises(ConnectorError, match=r"its directory name has on='(true|false)', which is no date"):
        read(output, StructType([StructField("on", DateType())]))

    columns = cc.files.write_parquet(
        out / "columns", {"id": "int64", "word": "string", "on": "bool"}, partition_by=["word", "on"]
    )
    committed(columns, rows)
    output = OutputOf("", "sink", str(out / "columns"), "parquet")
    assert schema_of(output).simpleString() == "struct<id:bigint,word:string,on:string>"
    assert sorted(read(output, typed), key=lambda row: row[1]) == [(row[2], row[0], row[1]) for row in rows]
    only = StructType([StructField("on", BooleanType())])
    assert sorted(read(output, only)) == [(False,), (True,), (True,)]
    assert committed_files(str(out / "columns"), "sink")[0].checkpoint_id == CheckpointId(1)
