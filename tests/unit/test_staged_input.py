"""Input that is staged in the checkpoint store: what is written and read, and how long it is kept."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    IntegerType,
    MapType,
    Row,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)
from tests.simulation.conversation import LINKS, S0, S1, TASKS, Talk, at, registration, snapshot

import crosscut as cc
from crosscut.contracts.connectors import EndOfSplit, Split
from crosscut.errors import ConnectorError, StoreError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, LogIndex, TaskId, VertexId
from crosscut.graph.identity import identity_of
from crosscut.graph.specs import JobGraph
from crosscut.protocol.checkpoint.retention import dangling, orphans, parts_of, referenced
from crosscut.protocol.effects import DeleteParts, JobEffect
from crosscut.protocol.events import (
    EntryAppended,
    LinkClosed,
    LogTailRead,
    PartsDeleted,
    PartsListed,
    SplitsDiscovered,
)
from crosscut.protocol.log.entries import CheckpointCompleted, EpochClaimed
from crosscut.protocol.messages import SnapshotAcknowledged, SplitAssignment
from crosscut.protocol.snapshots import Snapshot, TaskSnapshot
from crosscut.protocol.splits.staged import staged_files
from crosscut.savepoints.folder import folder_of
from crosscut.savepoints.manifest import opened, write_manifest
from crosscut.savepoints.starting import begin_with
from crosscut.savepoints.writing import write_savepoint
from crosscut.spark.data.arrow_records import RecordsOf
from crosscut.spark.data.dataframes import check_schema
from crosscut.store.checkpoint_store import open_store
from crosscut.task.splits import SplitQueue, split_as_json, splits_from_json

arrow = pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")

from crosscut.connectors.files.staged_rows import StagedRows, empty_split, split_of, staged  # noqa: E402

SOURCE = TaskId(VertexId("in"), 0)
A, B = "parts/0/in-0-1-aa", "parts/0/in-1-1-bb"


def split(path: str) -> Split:
    return Split(path[-2:], 0, {"staged": path, "rows": 3})


def checkpoint(n: int, *paths: str, is_final: bool = False) -> CheckpointCompleted:
    snapshot = Snapshot(positions=[split_as_json(split(path)) for path in paths])
    return CheckpointCompleted(
        Epoch(1), CheckpointId(n), (TaskSnapshot(SOURCE, snapshot),), is_final=is_final
    )


def test_a_checkpoint_refers_to_the_files_that_it_has_not_read_to_the_end() -> None:
    assert parts_of(checkpoint(1, A, B)) == {A, B}
    assert referenced([checkpoint(1, A, B), checkpoint(2, B)]) == {A, B}
    assert referenced([checkpoint(2, B), checkpoint(3)]) == {B}


def test_nobody_goes_back_behind_a_final_checkpoint() -> None:
    assert referenced([checkpoint(2, B), checkpoint(3, is_final=True)]) == frozenset()


def test_before_the_first_checkpoint_the_splits_protect_what_is_staged() -> None:
    assert orphans([A, B], [], Epoch(2), frozenset({A, B})) == ()


def test_what_others_have_staged_for_the_same_epoch_is_swept() -> None:
    """Input is staged before the claim: whoever has died meanwhile, or lost it, stages again."""
    assert orphans([A, B], [], Epoch(1), frozenset({A})) == (B,)
    assert orphans(["parts/7/in-0-1-aa"], [], Epoch(1)) == (), "a snapshot may be under way"
    assert orphans([A], [], Epoch(0)) == (), "a driver with a newer epoch has staged it"


def test_a_snapshot_does_not_dangle_for_what_is_staged() -> None:
    (one,) = checkpoint(1, A).snapshots
    assert dangling(one.snapshot, CheckpointId(1), frozenset()) == ()


def listed(talk: Talk, *paths: str) -> tuple[str, ...]:
    """Return what is deleted when these files are found in the store."""
    return deleted(talk.hear(PartsListed(paths)))


def deleted(effects: list[JobEffect]) -> tuple[str, ...]:
    return tuple(path for one in effects if isinstance(one, DeleteParts) for path in one.paths)


def test_what_is_staged_outlives_failovers_and_goes_when_no_checkpoint_has_to_read_it() -> None:
    left, ours = "parts/0/numbers-0-1-cc", tuple(f"parts/0/numbers-{i}-1-aa" for i in (0, 1))
    dealt = [
        SplitAssignment(task, [split_as_json(split(path))]) for task, path in zip((S0, S1), ours, strict=True)
    ]
    talk = Talk()
    talk.hear(LogTailRead(()), SplitsDiscovered(tuple(dealt)), EntryAppended(at(1)))
    talk.register()
    talk.ready()
    assert listed(talk, left, *ours) == (left,)
    talk.hear(PartsDeleted())
    # Nothing is complete yet: the next epoch begins with the same splits.
    talk.hear(LinkClosed(LINKS[1], "reset"), EntryAppended(at(2)))
    talk.message(1, registration(1, 5))
    talk.ready(2)
    assert listed(talk, *ours) == ()
    # The first file is read by checkpoint 1, and the second by 2; one of the two is still kept after that.
    assert deleted(acknowledged(talk, 1, at(3), split_as_json(split(ours[1])))) == (ours[0],)
    talk.hear(PartsDeleted())
    assert ours[1] not in deleted(acknowledged(talk, 2, at(4)))
    assert ours[1] in deleted(acknowledged(talk, 3, at(5)))


def acknowledged(talk: Talk, n: int, index: LogIndex, *unread: Any) -> list[JobEffect]:
    """Complete checkpoint n; the second source has still these splits."""
    talk.fire("trigger", 2)
    for task in TASKS:
        taken = snapshot(task, n, 2)
        if task in (S0, S1):
            taken = Snapshot(positions=list(unread) if task == S1 else [])
        talk.message(task.index, SnapshotAcknowledged(Epoch(2), CheckpointId(n), task, taken))
    return talk.hear(EntryAppended(index))


@pytest.mark.parametrize(
    "strange", [None, "text", [1, "x", []], [["a", 0, {"staged": 5}, 1, 0]], [["a", 0, {"staged": "/etc"}]]]
)
def test_positions_of_other_sources_name_no_file(strange: Any) -> None:
    assert list(staged_files(strange)) == []


# Files.


def batches(count: int) -> list[Any]:
    return [arrow.RecordBatch.from_pydict({"n": [i], "word": [f"w{i}"]}) for i in range(count)]


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    open_store(str(tmp_path))
    return str(tmp_path)


def source_of(store_url: str, count: int, kind: Any = "dicts", file_bytes: int = 1 << 20) -> tuple[Any, Any]:
    files = staged(
        iter(batches(count)), store_url=store_url, task=SOURCE, epoch=Epoch(1), file_bytes=file_bytes
    )
    splits = [split_of(number, part, rows) for number, (part, rows) in enumerate(files)]
    return StagedRows(store_url, RecordsOf(kind)), splits


def test_rows_come_back_from_any_position(store_url: str) -> None:
    source, (only,) = source_of(store_url, 10)
    rows = [{"n": i, "word": f"w{i}"} for i in range(10)]
    for position in range(11):
        reader = source.reader(only, position)
        found: list[Any] = []
        while not isinstance(some := reader.read(3), EndOfSplit):
            found += some if isinstance(some, list) else []
        assert (found, reader.position) == (rows[position:], 10)
        reader.close()


def test_large_partitions_become_several_files(store_url: str) -> None:
    source, splits = source_of(store_url, 10, file_bytes=1)
    assert len(splits) == 10
    queue = SplitQueue(source, [(one, one.start) for one in splits])
    found = []
    while not queue.is_drained:
        some = queue.read(100)
        found += some if isinstance(some, list) else []
    assert sorted(row["n"] for row in found) == list(range(10))


def test_a_file_that_is_not_what_was_staged_is_refused(store_url: str) -> None:
    source, (only,) = source_of(store_url, 10)
    (Path(store_url) / only.detail["staged"]).write_bytes(b"something else")
    reader = source.reader(only, 0)
    with pytest.raises(ConnectorError, match=r"expected .* bytes, found 14"):
        while True:
            reader.read(10)


def test_a_dataframe_without_rows_has_a_split_that_ends() -> None:
    assert isinstance(StagedRows("", RecordsOf("rows")).reader(empty_split(), 0).read(1), EndOfSplit)


def test_a_batch_may_be_a_record(store_url: str) -> None:
    source, (only,) = source_of(store_url, 10, "arrow")
    reader = source.reader(only, 4)
    while not isinstance(found := reader.read(100), list):
        pass
    (batch,) = found
    assert batch.column("n").to_pylist() == [4, 5, 6, 7, 8, 9]
    assert reader.position == 10


# Records.

NESTED = arrow.RecordBatch.from_arrays(
    [
        arrow.array([{"a": 1, "b": [{"c": 2}]}, None], arrow.struct(
            {"a": arrow.int64(), "b": arrow.list_(arrow.struct({"c": arrow.int64()}))}
        )),
        arrow.array([[("k", {"d": 3})], None], arrow.map_(
            arrow.string(), arrow.struct({"d": arrow.int64()})
        )),
        arrow.array(["x", None]),
    ],
    names=["s", "m", "t"],
)  # fmt: skip


def test_structs_are_rows_and_maps_are_dicts() -> None:
    first, second = RecordsOf("rows")(NESTED)
    assert first == Row(s=Row(a=1, b=[Row(c=2)]), m={"k": Row(d=3)}, t="x")
    assert first.s.b[0].c == 2
    assert second == Row(s=None, m=None, t=None)
    assert pickle.loads(pickle.dumps(first)) == first
    assert pickle.loads(pickle.dumps(first)).m["k"].d == 3


def test_with_dicts_structs_are_dicts_too() -> None:
    first, second = RecordsOf("dicts")(NESTED)
    assert first == {"s": {"a": 1, "b": [{"c": 2}]}, "m": {"k": {"d": 3}}, "t": "x"}
    assert second == {"s": None, "m": None, "t": None}


# Schemas.


def schema(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (schema(a=IntegerType(), b=VariantType()), "b variant"),
        (schema(a=schema(x=ArrayType(YearMonthIntervalType()))), r"a\.x\[\] interval year to month"),
        (schema(a=MapType(StringType(), CalendarIntervalType())), r"a\.value interval"),
        (StructType([*schema(a=IntegerType()), *schema(a=StringType())]), "more than one column 'a'"),
        (StructType([]), "no columns"),
    ],
)
def test_columns_without_a_counterpart_are_named(found: StructType, named: str) -> None:
    with pytest.raises(ConnectorError, match=named):
        check_schema(found)


def job_that_reads(
    store_url: str, positions: list[Any]
) -> tuple[JobGraph, CheckpointCompleted, EpochClaimed]:
    """A job with one source task of two, which has these splits left."""
    flow = cc.Flow("reads")
    flow.source(StagedRows(store_url, RecordsOf("dicts"))).named("in").sink(cc.collect()).named("out")
    graph = flow.compile(2, 16)
    snapshots = tuple(
        TaskSnapshot(
            TaskId(VertexId(vertex.vertex_id), index),
            Snapshot(positions=(positions if not index else []) if vertex.source else None),
        )
        for vertex in graph.vertices
        for index in range(2)
    )
    claim = EpochClaimed(
        Epoch(1), Lineage("old"), "d", graph.fingerprint, 2, 16, CheckpointId(1), identity_of(graph)
    )
    return graph, CheckpointCompleted(Epoch(1), CheckpointId(5), snapshots), claim


def test_a_savepoint_holds_what_has_still_to_be_read_and_a_job_begins_with_that(tmp_path: Path) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    store = open_store(old)
    _, (first, second, read) = source_of(old, 3, file_bytes=1)
    left = [[first.split_id, 0, first.detail, first.weight, 0], [second.split_id, 0, second.detail, 1, 1]]
    graph, complete, claim = job_that_reads(old, left)
    manifest = write_savepoint(str(tmp_path / "saved"), complete, claim, store.read_part)
    names = [one.path for one in manifest.files]
    assert len(names) == 2 and all(name.startswith("staged/") for name in names), "not what was read"
    shutil.rmtree(old)

    begun = open_store(new)
    begin_with(opened(tmp_path / "saved"), begun, graph, discover=lambda graph: (), look=list)
    (restored,) = [entry for _, entry in begun.tail(1) if isinstance(entry, CheckpointCompleted)]
    positions = [row for one in restored.snapshots for row in one.snapshot.positions or []]  # type: ignore[union-attr]
    assert [row[4] for row in positions] == [0, 1]  # type: ignore[index, call-overload]
    queue = SplitQueue(StagedRows(new, RecordsOf("dicts")), splits_from_json(positions))
    found: list[Any] = []
    while not queue.is_drained:
        some = queue.read(100)
        found += some if isinstance(some, list) else []
    assert found == [{"n": 0, "word": "w0"}], "of the second file its only row was read"
    assert read.split_id not in {row[0] for row in positions}  # type: ignore[index, call-overload]
    assert sorted(staged_files(positions)) == sorted(referenced([restored])), "retention knows of them"


def test_a_savepoint_that_has_left_staged_rows_out_is_refused_by_name(tmp_path: Path) -> None:
    old = str(tmp_path / "old")
    store = open_store(old)
    _, (only,) = source_of(old, 1)
    graph, complete, claim = job_that_reads(old, [split_as_json(only)])
    manifest = write_savepoint(str(tmp_path / "saved"), complete, claim, store.read_part)
    write_manifest(folder_of(tmp_path / "saved"), replace(manifest, files=()))
    with pytest.raises(StoreError, match="before source 'in' had read its DataFrame to the end"):
        begin_with(
            opened(tmp_path / "saved"),
            open_store(str(tmp_path / "new")),
            graph,
            discover=lambda graph: (),
            look=list,
        )
