"""Delta tables: what is refused, what is shown, and a table in S3."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import crosscut as cc
from crosscut.contracts.connectors import SinkContext
from crosscut.errors import ConnectorError, HistoryError, RefusedRecordError
from crosscut.foundation.ids import Epoch, Lineage, TaskId, VertexId
from crosscut.testing.s3 import S3Server
from crosscut.testing.sinks import open_writer, permit, stage

deltalake = pytest.importorskip("deltalake", reason="pip install 'crosscut[delta]'")

arrow = pytest.importorskip("pyarrow", reason="pip install 'crosscut[delta]'")

TASKS = 48
DEADLINE_S = 120.0
SCHEMA = {"id": "int64", "country": "string"}


def test_arguments_that_make_no_table_are_refused_at_once(tmp_path: Path) -> None:
    def refused(message: str, *arguments: Any, **named: Any) -> None:
        with pytest.raises(ConnectorError, match=message):
            cc.delta.sink(*arguments, **named)

    refused("expected some of the columns id, country, not all", "t", SCHEMA, partition_by="nowhere")
    refused("expected some of the columns id, country, not all", "t", SCHEMA, partition_by=["id", "country"])
    refused("is not a type for 'id'", "t", {"id": "integer"})
    refused("expected a function", "t", SCHEMA, row=1)
    refused("is not a path", "", SCHEMA)


def test_a_table_that_lacks_a_column_is_refused_before_the_job_starts(tmp_path: Path) -> None:
    cc.delta.sink(str(tmp_path), {"id": "int64"}).check()
    with pytest.raises(ConnectorError, match="has no column country; it has id"):
        cc.delta.sink(str(tmp_path), SCHEMA).check()


def test_a_row_that_does_not_fit_is_named(tmp_path: Path) -> None:
    writer = open_writer(cc.delta.sink(str(tmp_path), SCHEMA), 1)
    with pytest.raises(ConnectorError, match=r"row \(1.5, 'x'\) does not fit the schema"):
        stage(writer, [(1, "x"), (1.5, "x")], 1)


def test_an_empty_text_that_delta_would_make_none_is_refused(tmp_path: Path) -> None:
    sink = cc.delta.sink(str(tmp_path), SCHEMA, partition_by="country")
    writer = open_writer(sink, 1)
    with pytest.raises(ConnectorError, match=r"row \(2, ''\) has '' there, which Delta keeps as no value"):
        stage(writer, [(1, None), (2, "")], 1)
    writer.close()
    # The table says what it is divided by, whatever the sink says.
    writer = open_writer(cc.delta.sink(str(tmp_path), SCHEMA), 2)
    with pytest.raises(ConnectorError, match="has '' there"):
        stage(writer, [(2, "")], 1)


@pytest.mark.parametrize(
    ("there", "schema", "message"),
    [
        ({"id": [1]}, {"id": "float64"}, "column id is of type long, but schema= has double"),
        ({"id": ["a"]}, {"id": "int64"}, "column id is of type string, but schema= has long"),
        ({"id": [1], "more": [2]}, {"id": "int64"}, "has columns that are not in the schema: more"),
    ],
)
def test_a_table_that_would_change_or_refuse_each_row_is_refused_before_the_job_starts(
    tmp_path: Path, there: Any, schema: Any, message: str
) -> None:
    """I12: Delta makes 1 of 1.5 without a word, and refuses rows that lack a column too late."""
    deltalake.write_deltalake(str(tmp_path), arrow.table(there))
    with pytest.raises(ConnectorError, match=message):
        cc.delta.sink(str(tmp_path), schema).check()


def test_a_column_may_be_wider_than_the_schema(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path), arrow.table({"id": [1]}))
    writer = open_writer(cc.delta.sink(str(tmp_path), {"id": "int16"}), 1)
    writer.commit(permit(1), [stage(writer, [(2,)], 1)])
    assert sorted(_ids(str(tmp_path))) == [1, 2]


def test_rows_that_break_a_rule_of_the_table_are_refused_before_their_checkpoint_completes(
    tmp_path: Path,
) -> None:
    """P6: else the job could never go on, whatever becomes of the flow."""
    schema = arrow.schema(
        [arrow.field("id", arrow.int64()), arrow.field("text", arrow.string(), nullable=False)]
    )
    table = deltalake.DeltaTable.create(str(tmp_path), schema=schema)
    table.alter.add_constraint({"small": "id < 100"})
    sink = cc.delta.sink(str(tmp_path), {"id": "int64", "text": "string"})
    sink.check()
    writer = open_writer(sink, 1)
    with pytest.raises(RefusedRecordError, match=r"\(100, 'x'\).*id < 100(.|\n)*Invalid data found"):
        stage(writer, [(1, "x"), (100, "x")], 1)
    letters: list[Any] = []
    writer.set_aside = lambda record, _: letters.append(record)
    rows = [(1, "x"), (100, "x"), (2, None), (2, "y")]
    handle = stage(writer, rows, 1)
    assert list(writer.pending_records([handle])) == [{"id": 1, "text": "x"}, {"id": 2, "text": "y"}]
    writer.commit(permit(1), [handle, stage(writer, [(101, "z")], 2)])
    assert letters == [(100, "x"), (2, None), (101, "z")]
    assert sorted(_ids(str(tmp_path))) == [1, 2]
    writer.close()


def test_values_that_delta_keeps_as_others_where_they_divide_a_table_are_refused(tmp_path: Path) -> None:
    schema = {"id": "int64", "key": "binary", "country": "string"}
    sink = cc.delta.sink(str(tmp_path), schema, partition_by=["key", "country"])
    writer = open_writer(sink, 1)
    with pytest.raises(ConnectorError, match="has bytes there"):
        stage(writer, [(1, b"\xff", "a")], 1)
    with pytest.raises(ConnectorError, match="has '__HIVE_DEFAULT_PARTITION__' there"):
        stage(writer, [(1, None, "__HIVE_DEFAULT_PARTITION__")], 1)


def test_a_type_that_delta_has_not_is_an_error_of_the_table(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match=r"could not open it: .*Invalid data type for") as failed:
        cc.delta.sink(str(tmp_path), {"id": "duration[us]"}).check()
    assert "\n" not in str(failed.value)


def test_a_writer_of_another_table_and_other_tasks_are_no_matter(tmp_path: Path) -> None:
    """Two tasks and somebody else append at once: each looks at a version that is not the newest any more."""
    sink = cc.delta.sink(str(tmp_path), SCHEMA)
    writer, other = open_writer(sink, 1), open_writer(sink, 1, sink_uid="other")
    handles = [stage(writer, [(1, "a")], 1)]
    other.commit(permit(1), [stage(other, [(2, "b")], 1)])
    table = deltalake.DeltaTable(str(tmp_path))
    deltalake.write_deltalake(table, table.to_pyarrow_table(), mode="append")
    writer.commit(permit(1), handles)
    table.update_incremental()
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    handles.append(stage(writer, [(3, "c")], 2))
    writer.commit(permit(2), handles)
    assert sorted(_ids(str(tmp_path))) == [1, 2, 2, 3]


def test_many_tasks_commit_at_once(tmp_path: Path) -> None:
    """I10: each commit makes a version, and of all that want to make the next one only one does."""
    sink = cc.delta.sink(str(tmp_path), SCHEMA)
    sink.check()
    ready = threading.Barrier(TASKS)

    def begin(index: int) -> None:
        context = SinkContext(Lineage("a"), Epoch(1), TaskId(VertexId("v"), index), "out")
        writer: Any = sink.writer(context)
        with writer._database.transaction() as session:
            ready.wait()
            session.write_marker(context, 0)

    with ThreadPoolExecutor(TASKS) as pool:
        list(pool.map(begin, range(TASKS)))
    assert len(sink.committed()) == TASKS


def test_a_marker_that_is_gone_is_never_guessed_at(tmp_path: Path) -> None:
    """F3, I12: somebody has made the table anew while output may be committed already."""
    sink = cc.delta.sink(str(tmp_path / "lake"), SCHEMA)
    writer = open_writer(sink, 1)
    handle = stage(writer, [(1, "a")], 1)
    writer.commit(permit(1), [handle])
    writer.close()
    shutil.rmtree(tmp_path / "lake")
    with pytest.raises(ConnectorError, match="that records whether it is already committed is missing"):
        open_writer(sink, 2, restore=1, handles=[handle])
    assert _ids(str(tmp_path / "lake")) == []


def test_a_commit_that_another_epoch_has_overtaken_since_it_looked_changes_nothing(tmp_path: Path) -> None:
    """C1: at the resource itself. The zombie looks, then the successor begins, then the zombie commits."""
    sink = cc.delta.sink(str(tmp_path), SCHEMA)
    zombie = open_writer(sink, 1)
    handle = stage(zombie, [(1, "a")], 1)
    with pytest.raises(ConnectorError, match="CommitFailedError"), zombie._database.transaction() as session:  # type: ignore[attr-defined]
        assert session.marker(zombie._context).epoch == 1  # type: ignore[attr-defined]
        session.insert(zombie._context.held.data(1))  # type: ignore[attr-defined]
        session.write_marker(zombie._context, 1)  # type: ignore[attr-defined]
        open_writer(sink, 2).close()
    assert _ids(str(tmp_path)) == []
    with pytest.raises(HistoryError):
        zombie.commit(permit(1), [handle])
    assert _ids(str(tmp_path)) == []


def test_a_start_is_told_who_has_written_to_the_table(tmp_path: Path) -> None:
    """F4: else a job that begins with an older savepoint, or with nothing, writes rows a second time."""
    sink = cc.delta.sink(str(tmp_path / "lake"), SCHEMA)
    assert sink.committed() == ()
    assert not (tmp_path / "lake").exists()
    writer = open_writer(sink, 1)
    handles = [stage(writer, [(1, "a")], 1), stage(writer, [(2, "a")], 2)]
    writer.commit(permit(1), handles[:1])
    writer.commit(permit(2), handles)
    open_writer(sink, 3, driver="driver-2", restore=2, handles=handles).close()
    open_writer(sink, 1, lineage="another", sink_uid="other").close()
    table = deltalake.DeltaTable(str(tmp_path / "lake"))
    noted = deltalake.CommitProperties(custom_metadata={"crosscut": "of somebody else"})
    deltalake.write_deltalake(table, table.to_pyarrow_table(), mode="append", commit_properties=noted)
    found = sorted((one.lineage, one.epoch, one.driver, one.checkpoint_id) for one in sink.committed())
    assert found == [("another", 1, "driver-1", 0), (writer._context.lineage, 3, "driver-2", 2)]  # type: ignore[attr-defined]


def test_secrets_are_in_no_error_and_no_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """S12."""
    monkeypatch.setenv("DELTA_KEY", "hunter2hunter2")
    options = {
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": cc.environment("DELTA_KEY"),
        "AWS_ENDPOINT_URL": "http://hunter2hunter2.invalid",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "max_retries": "0",
    }
    sink = cc.delta.sink("s3://bucket/table", SCHEMA, storage_options=options)
    with pytest.raises(ConnectorError, match="could not open it") as failed:
        sink.check()
    assert "hunter2" not in f"{failed.value}{failed.value.__cause__}{sink!r}{sink.describe()}"


def test_a_table_in_s3_takes_each_checkpoint_once(s3: S3Server) -> None:
    url = f"{s3.bucket()}/lake"
    options = {**s3.environment, "AWS_ALLOW_HTTP": "true"}
    sink = cc.delta.sink(url, SCHEMA, partition_by="country", storage_options=options)
    writer = open_writer(sink, 1)
    handles = [stage(writer, [(1, "a"), (2, "b")], 1), stage(writer, [(3, "a")], 2)]
    writer.commit(permit(1), handles[:1])
    assert sorted(_ids(url, options)) == [1, 2]
    writer.commit(permit(2), handles)
    for epoch in (2, 3):
        open_writer(sink, epoch, restore=2, handles=handles).close()
    assert sorted(_ids(url, options)) == [1, 2, 3]


_WHILE_IT_IS_SILENT = """
import os, socket, threading
import crosscut as cc

with socket.create_server(("127.0.0.1", 0)) as server:
    options = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.getsockname()[1]}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    sink = cc.delta.sink("s3://bucket/lake", {"id": "int64"}, storage_options=options)
    threading.Thread(target=getattr(sink, METHOD), daemon=True).start()
    connection, _ = server.accept()
    connection.recv(1)
    print("the others go on", flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("method", ["committed", "check"])
def test_a_store_that_does_not_answer_keeps_no_other_thread_from_its_work(method: str) -> None:
    """P8: the driver could neither say what it waits for, nor be interrupted."""
    script = f"METHOD = {method!r}\n{_WHILE_IT_IS_SILENT}"
    done = subprocess.run(
        [sys.executable, "-c", script], timeout=DEADLINE_S, capture_output=True, text=True, check=True
    )
    assert done.stdout == "the others go on\n"


def _ids(location: str, options: dict[str, str] | None = None) -> list[int]:
    rows = deltalake.DeltaTable(location, storage_options=options).to_pyarrow_table().to_pylist()
    return [row["id"] for row in rows]
