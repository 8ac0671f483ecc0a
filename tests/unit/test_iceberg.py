"""Iceberg tables: what is refused, what is shown, and what others may do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import crosscut as cc
from crosscut.connectors.tables.iceberg import _Iceberg, _IcebergSession
from crosscut.contracts.connectors import SinkContext
from crosscut.errors import ConnectorError, HistoryError
from crosscut.foundation.ids import Epoch, Lineage, TaskId, VertexId
from crosscut.testing.sinks import open_writer, permit, stage

catalogs = pytest.importorskip("pyiceberg.catalog", reason="pip install 'crosscut[iceberg]'")
arrow = pytest.importorskip("pyarrow", reason="pip install 'crosscut[iceberg]'")
errors = pytest.importorskip("pyiceberg.exceptions", reason="pip install 'crosscut[iceberg]'")

TASKS = 6
SCHEMA = {"id": "int64", "country": "string"}


def catalog_in(directory: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}"}


def sink_in(directory: Path, schema: Any = SCHEMA, **others: Any) -> cc.Sink:
    return cc.iceberg.sink("shop.orders", schema, catalog=catalog_in(directory), **others)


def table_in(directory: Path) -> Any:
    with catalogs.load_catalog("default", **catalog_in(directory)) as catalog:
        return catalog.load_table("shop.orders")


def ids_in(directory: Path) -> list[int]:
    return sorted(table_in(directory).scan().to_arrow().column("id").to_pylist())


def files_in(directory: Path) -> set[str]:
    """The files of the table, but for the metadata that catalogs write."""
    return {str(one) for kind in ("parquet", "avro") for one in directory.rglob(f"*.{kind}")}


def named_in(directory: Path) -> set[str]:
    """Those that any snapshot names."""
    table = table_in(directory)
    found: set[str] = set()
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {one.data_file.file_path for one in manifest.fetch_manifest_entry(table.io)}
    return {one.removeprefix("file://") for one in found}


def made(directory: Path, schema: Any) -> Any:
    """A table that somebody else has made."""
    with catalogs.load_catalog("default", **catalog_in(directory)) as catalog:
        catalog.create_namespace("shop")
        return catalog.create_table("shop.orders", schema)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("orders", SCHEMA), "expected a namespace and a name"),
        (("", SCHEMA), "expected a namespace and a name"),
        ((".orders", SCHEMA), "expected a namespace and a name"),
        (("shop.orders", {"id": "integer"}), "is not a type for 'id'"),
    ],
)
def test_arguments_that_make_no_table_are_refused_at_once(arguments: Any, message: str) -> None:
    with pytest.raises(ConnectorError, match=message):
        cc.iceberg.sink(*arguments)
    with pytest.raises(ConnectorError, match="expected some of the columns id, country"):
        cc.iceberg.sink("shop.orders", SCHEMA, partition_by="nowhere")


@pytest.mark.parametrize(
    ("there", "schema", "message"),
    [
        ([("id", "int64")], SCHEMA, "has no column country; it has id"),
        ([("id", "int64"), ("more", "int64")], {"id": "int64"}, "columns that are not in the schema: more"),
        ([("id", "int32")], {"id": "int64"}, "column id is of type int32, but schema= has int64"),
        ([("id", "int64")], {"id": "float64"}, "column id is of type int64, but schema= has double"),
        ([("id", "int64")], {"id": "string"}, "column id is of type int64, but schema= has string"),
        ([("id", "timestamp[us]")], {"id": "timestamp[us, tz=UTC]"}, "column id is of type timestamp"),
    ],
)
def test_a_table_that_would_change_or_refuse_each_row_is_refused_before_the_job_starts(
    tmp_path: Path, there: Any, schema: Any, message: str
) -> None:
    """I12."""
    made(tmp_path, arrow.schema([(name, arrow.type_for_alias(kind)) for name, kind in there]))
    with pytest.raises(ConnectorError, match=message):
        sink_in(tmp_path, schema).check()


def test_a_column_that_must_have_a_value_is_one_of_the_schema_too(tmp_path: Path) -> None:
    schema = arrow.schema([arrow.field("id", arrow.int64(), nullable=False)])
    made(tmp_path, schema)
    with pytest.raises(ConnectorError, match="column id is required, but schema= allows None"):
        sink_in(tmp_path, {"id": "int64"}).check()
    sink_in(tmp_path, schema).check()


def test_a_column_may_be_wider_than_the_schema_and_a_row_that_does_not_fit_is_named(tmp_path: Path) -> None:
    made(tmp_path, arrow.schema([("id", arrow.int64())]))
    sink = sink_in(tmp_path, {"id": "int16"})
    sink.check()
    writer = open_writer(sink, 1)
    writer.commit(permit(1), [stage(writer, [(2,)], 1)])
    assert ids_in(tmp_path) == [2]
    with pytest.raises(ConnectorError, match=r"row \(1.5,\) does not fit the schema"):
        stage(writer, [(1.5,)], 2)
    writer.close()


def test_a_table_is_made_divided_and_each_commit_says_whose_it_is(tmp_path: Path) -> None:
    sink = sink_in(tmp_path, partition_by="country")
    sink.check()
    sink.check()
    writer = open_writer(sink, 1)
    handle = stage(writer, [(1, "ü/="), (2, None), (3, "")], 1)
    writer.commit(permit(1), [handle])
    table = table_in(tmp_path)
    assert [field.name for field in table.spec().fields] == ["country"]
    rows = table.scan().to_arrow().sort_by("id").to_pylist()
    assert [row["country"] for row in rows] == ["ü/=", None, ""]
    assert '"checkpoint": 1' in table.current_snapshot().summary["crosscut"]
    before = len(table.history())
    writer.commit(permit(1), [handle])
    assert len(table_in(tmp_path).history()) == before, "a repeated commit makes none"
    writer.close()


def test_what_others_commit_and_expire_is_no_matter(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    sink.check()
    writer, other = open_writer(sink, 1), open_writer(sink, 1, sink_uid="other")
    handles = [stage(writer, [(1, "a")], 1)]
    other.commit(permit(1), [stage(other, [(2, "b")], 1)])
    writer.commit(permit(1), handles)
    table = table_in(tmp_path)
    table.append(arrow.table({"id": [9], "country": ["z"]}))
    for snapshot in table.snapshots()[:-1]:
        table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    handles.append(stage(writer, [(3, "c")], 2))
    writer.commit(permit(2), handles)
    assert ids_in(tmp_path) == [1, 2, 3, 9]
    for one in (writer, other):
        one.close()


def test_many_tasks_commit_at_once_and_each_record_is_there_once(tmp_path: Path) -> None:
    """I10: each commit makes a snapshot, and of all that want to make the next one only one does."""
    sink = sink_in(tmp_path)
    sink.check()
    ready = threading.Barrier(TASKS)

    def run(index: int) -> None:
        writer = open_writer(sink, 1, task=TaskId(VertexId("v"), index))
        handle = stage(writer, [(index, "a")], 1)
        ready.wait()
        writer.commit(permit(1), [handle])
        writer.close()

    with ThreadPoolExecutor(TASKS) as pool:
        list(pool.map(run, range(TASKS)))
    assert ids_in(tmp_path) == list(range(TASKS))
    assert {one.checkpoint_id for one in sink.committed()} == {1}
    assert len(sink.committed()) == TASKS
    assert files_in(tmp_path) == named_in(tmp_path), "who was refused has left nothing"


def test_a_commit_is_decided_on_anew_when_another_one_came_first(tmp_path: Path) -> None:
    """C1: the library must not put what was decided on the old table on top of the new one."""
    sink = sink_in(tmp_path)
    sink.check()
    zombie = open_writer(sink, 1)
    handle = stage(zombie, [(1, "a")], 1)
    write_marker = _IcebergSession.write_marker
    with pytest.MonkeyPatch.context() as patch:

        def meanwhile(session: _IcebergSession, *arguments: Any) -> None:
            """A new epoch takes over, after the zombie has looked and before it commits."""
            patch.undo()
            open_writer(sink, 2, driver="b", restore=1, handles=[handle]).close()
            write_marker(session, *arguments)

        patch.setattr(_IcebergSession, "write_marker", meanwhile)
        with pytest.raises(HistoryError):
            zombie.commit(permit(1), [handle])
    assert ids_in(tmp_path) == [1]
    zombie.close()


def test_files_of_a_commit_that_was_made_after_all_stay(tmp_path: Path) -> None:
    """I8: an answer that was lost, and the same request once more, look like a refusal."""
    sink = sink_in(tmp_path)
    sink.check()
    writer = open_writer(sink, 1)
    handle = stage(writer, [(1, "a")], 1)
    commit = _IcebergSession.commit
    with pytest.MonkeyPatch.context() as patch:

        def refused_after_all(session: _IcebergSession) -> None:
            patch.undo()
            commit(session)
            raise errors.CommitFailedException("the branch has changed")

        patch.setattr(_IcebergSession, "commit", refused_after_all)
        writer.commit(permit(1), [handle])
    writer.close()
    assert ids_in(tmp_path) == [1]
    assert files_in(tmp_path) == named_in(tmp_path)


def test_files_stay_where_it_can_not_be_seen_what_has_become_of_a_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = sink_in(tmp_path)
    sink.check()
    writer = open_writer(sink, 1)
    handle = stage(writer, [(1, "a")], 1)
    commit = _IcebergSession.commit
    before = files_in(tmp_path)
    with pytest.MonkeyPatch.context() as patch:

        def refused(session: _IcebergSession) -> None:
            patch.undo()
            # It begins with a commit of its own.
            open_writer(sink, 1, task=TaskId(VertexId("v"), 1)).close()
            patch.setattr(_Iceberg, "_loaded", unreachable)
            commit(session)

        def unreachable(self: _Iceberg) -> Any:
            patch.undo()
            raise ConnectorError("the catalog is away")

        patch.setattr(_IcebergSession, "commit", refused)
        writer.commit(permit(1), [handle])
    assert ids_in(tmp_path) == [1]
    assert before < named_in(tmp_path) < files_in(tmp_path)
    assert "its files remain" in caplog.text
    writer.close()


def test_a_marker_that_is_gone_or_changed_is_never_guessed_at(tmp_path: Path) -> None:
    """F3, I12."""
    sink = sink_in(tmp_path)
    sink.check()
    writer = open_writer(sink, 1)
    handle = stage(writer, [(1, "a")], 1)
    (name,) = (name for name in table_in(tmp_path).properties if name.startswith("crosscut/"))
    with table_in(tmp_path).transaction() as change:
        change.set_properties({name: "seven"})
    with pytest.raises(ConnectorError, match="is 'seven', which no longer records how far"):
        writer.commit(permit(1), [handle])
    with table_in(tmp_path).transaction() as change:
        change.remove_properties(name)
    with pytest.raises(ConnectorError, match=r"the marker of task .* is missing; nothing was written"):
        writer.commit(permit(1), [handle])
    assert ids_in(tmp_path) == []
    writer.close()


def test_credentials_are_in_no_description_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_TOKEN", "hush-hush")
    catalog = {
        "type": "sql",
        "uri": "sqlite:////nowhere/at/all.db?password=sesame",
        "s3.secret-access-key": "open-sesame",
        "token": cc.environment("CATALOG_TOKEN"),
    }
    sink = cc.iceberg.sink("shop.orders", SCHEMA, catalog=catalog)
    with pytest.raises(ConnectorError, match="could not make it") as caught:
        sink.check()
    for text in (sink.describe(), repr(sink), str(caught.value)):
        assert "sesame" not in text and "hush" not in text


def test_a_writer_of_another_lineage_is_told_of(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    assert sink.committed() == ()
    sink.check()
    writer = sink.writer(SinkContext(Lineage("a"), Epoch(3), TaskId(VertexId("v"), 0), "out", driver="d"))
    writer.recover(None, [])
    writer.close()
    (found,) = sink.committed()
    assert (found.lineage, found.epoch, found.driver, found.checkpoint_id) == ("a", 3, "d", 0)
