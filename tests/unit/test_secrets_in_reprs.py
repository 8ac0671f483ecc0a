"""S12: a source or sink shows no credentials, nor does the error about an argument that has some."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import LongType, StructField, StructType
from tests.unit.test_public_names import connectors

import crosscut as cc
from crosscut.connectors.files.input_files import FileSource
from crosscut.contracts.settings import Settings
from crosscut.errors import CrosscutError

SECRET = "s3cr3t-pw"
STORE = f"s3://key:{SECRET}@bucket/a"
SERVER = f"key:{SECRET}@host:4222"
CONNINFO = f"postgresql://key:{SECRET}@host/shop"
WEB = f"https://key:{SECRET}@host/a?token={SECRET}"
OPTIONS = {"password": SECRET, "path": STORE}
SCHEMA = {"id": "int64"}
STRUCT = StructType([StructField("id", LongType())])


class Streaming(DataSource):
    """One that reads and writes, of which nothing is asked."""

    def reader(self, schema: Any) -> Any:
        raise NotImplementedError

    def streamReader(self, schema: Any) -> Any:
        raise NotImplementedError

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        raise NotImplementedError


def files(function: Callable[..., Any], *more: Any, **options: Any) -> list[Callable[[], Any]]:
    return [lambda: function(STORE, *more, **options)]


MADE: dict[str, list[Callable[[], Any]]] = {
    "collect": [lambda: cc.collect(STORE)],
    "socket": [lambda: cc.socket(f"tcp://{SERVER}"), lambda: cc.socket(SERVER), lambda: cc.socket(STORE)],
    "delta.sink": [lambda: cc.delta.sink(STORE, SCHEMA, storage_options={"secret": SECRET})],
    "iceberg.sink": [
        lambda: cc.iceberg.sink("a.b", SCHEMA, catalog={"uri": CONNINFO, "s3.secret-access-key": SECRET}),
        lambda: cc.iceberg.sink(STORE + ".", SCHEMA),
    ],
    "files.read_csv": files(cc.files.read_csv),
    "files.read_jsonl": files(cc.files.read_jsonl),
    "files.read_parquet": files(cc.files.read_parquet),
    "files.read_text": files(cc.files.read_text),
    "files.watch": [
        lambda: cc.files.watch(cc.files.read_text(STORE)),
        lambda: cc.files.watch(cc.files.write_text(STORE)),  # type: ignore[arg-type]
        lambda: cc.files.watch(STORE),  # type: ignore[arg-type]
        lambda: cc.files.watch([STORE]),  # type: ignore[arg-type]
        lambda: cc.files.watch(cc.files.read_text(STORE), every=-1),
    ],
    "files.write_csv": files(cc.files.write_csv, ["id"]),
    "files.write_jsonl": files(cc.files.write_jsonl),
    "files.write_parquet": files(cc.files.write_parquet, SCHEMA),
    "files.write_text": files(cc.files.write_text),
    "http.events": [lambda: cc.http.events(WEB, replays=True), lambda: cc.http.events(SERVER, replays=True)],
    "http.sink": [
        lambda: cc.http.sink(WEB, honours_keys=True, headers={"Authorization": SECRET}),
        lambda: cc.http.sink(SERVER, honours_keys=True),
    ],
    "kafka.sink": [
        lambda: cc.kafka.sink("host:9092", "a", options={"sasl.password": SECRET}),
        lambda: cc.kafka.sink(SERVER, "a"),
        lambda: cc.kafka.sink([f"SASL_SSL://{SERVER}"], "a"),
    ],
    "kafka.source": [
        lambda: cc.kafka.source("host:9092", "a", options={"sasl.password": SECRET}),
        lambda: cc.kafka.source(f"SASL_SSL://{SERVER}", "a"),
    ],
    "nats.sink": [lambda: cc.nats.sink(f"nats://{SERVER}", "a", "b", options={"password": SECRET})],
    "nats.source": [lambda: cc.nats.source([f"nats://{SERVER}"], "a", options={"password": SECRET})],
    "postgres.changes": [lambda: cc.postgres.changes(CONNINFO, "a", "b")],
    "postgres.sink": [lambda: cc.postgres.sink(CONNINFO, "a", ["id"])],
    "postgres.source": [lambda: cc.postgres.source(CONNINFO, "a", "id")],
    "postgres.upsert": [lambda: cc.postgres.upsert(CONNINFO, "a", ["id"], key="id")],
    "spark.sink": [lambda: cc.spark.sink(Streaming, OPTIONS, STRUCT)],
    "spark.source": [
        lambda: cc.spark.source(Streaming, OPTIONS, STRUCT, read="batch"),
        lambda: cc.spark.source(Streaming, OPTIONS, STRUCT, read="stream"),
        lambda: cc.spark.source(Streaming, OPTIONS, STRUCT, read="stream", parallel=True),
        lambda: cc.spark.source(Streaming, f"path={STORE}", STRUCT),  # type: ignore[arg-type]
    ],
    "spark.stream": [lambda: cc.spark.stream("kafka", OPTIONS)],
    "spark.table": [lambda: cc.spark.table(STORE, STRUCT)],
    "sqlite.sink": [lambda: cc.sqlite.sink(STORE, "a", ["id"])],
}
WITHOUT_A_PLACE = {"generate", "items", "printing", "stdin", "spark.dataframe"}


def test_each_connector_that_takes_a_place_is_here() -> None:
    assert set(MADE) == set(connectors()) - WITHOUT_A_PLACE


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(one, id=f"{name}-{number}")
        for name, all_of in MADE.items()
        for number, one in enumerate(all_of)
    ],
)
def test_no_connector_shows_credentials(make: Callable[[], Any]) -> None:
    try:
        found = make()
    except CrosscutError as error:
        shown = [str(error), repr(error), repr(error.ids)]
    else:
        parts = [getattr(found, name, "") for name in ("files", "of", "_of", "_options", "_stream_read")]
        shown = [repr(found), str(found), found.describe(), *map(repr, parts)]
    for text in shown:
        assert SECRET not in text


def test_a_file_source_or_sink_shows_where_it_is() -> None:
    source = cc.files.read_text(STORE)
    assert isinstance(source, FileSource)
    assert repr(source) == "Lines('s3://***@bucket/a')"
    assert repr(source.files) == "InputFiles('s3://***@bucket/a')"
    assert repr(cc.files.write_jsonl(STORE)) == "JsonLines('s3://***@bucket/a')"


@pytest.mark.parametrize(
    ("sink", "record"),
    [
        (cc.files.write_jsonl(STORE), {1}),
        (cc.files.write_jsonl(STORE), float("nan")),
        (cc.files.write_text(STORE), 5),
        (cc.files.write_text(STORE), "\ud800"),
        (cc.files.write_csv(STORE, ["a"]), ([],)),
        (cc.files.write_csv(STORE, ["a"]), ("\ud800",)),
        (cc.files.write_csv(STORE, ["a"]), {"b": 1}),
        (cc.files.write_parquet(STORE, SCHEMA), (1.5,)),
        (cc.files.write_parquet(STORE, SCHEMA), {"b": 1}),
    ],
    ids=repr,
)
def test_the_error_about_a_record_shows_no_credentials(sink: Any, record: Any) -> None:
    encoder = sink.encoder()
    with pytest.raises(CrosscutError, match=re.escape("s3://***@bucket/a")) as failed:
        encoder.add([record])
        encoder.finish()
    assert SECRET not in str(failed.value)


@pytest.mark.parametrize(
    "sink",
    [
        cc.files.write_jsonl(STORE, partition_by="a"),
        cc.files.write_csv(STORE, ["a", "b"], partition_by="a"),
        cc.files.write_parquet(STORE, {"a": "string", "b": "int64"}, partition_by="a"),
    ],
    ids=repr,
)
def test_the_error_about_a_record_that_names_no_directory_shows_no_credentials(sink: Any) -> None:
    divide = sink.divider()
    with pytest.raises(CrosscutError, match=re.escape("s3://***@bucket/a")) as failed:
        divide([{"b": 1}])
    assert SECRET not in str(failed.value)


@pytest.mark.parametrize("url", [WEB, SERVER, f"ftp://{SERVER}"])
def test_a_wrong_address_of_the_page_shows_no_credentials(url: str) -> None:
    with pytest.raises(CrosscutError, match="web_url=") as failed:
        Settings(checkpoint_dir="a", web_url=url)
    assert SECRET not in str(failed.value)


def test_a_table_to_look_up_shows_no_credentials() -> None:
    assert SECRET not in repr(cc.lookup(STORE, key="id"))
