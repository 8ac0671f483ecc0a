"""Savepoints: what is in them, who can read them, and what another flow may begin with."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars
import pyarrow.parquet as parquet
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import crosscut as cc
from crosscut.cli.commands import program
from crosscut.contracts.connected_process import Begins
from crosscut.contracts.connectors import CommittedOutput
from crosscut.errors import HistoryError, StateError, StoreError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import (
    ChannelId,
    CheckpointId,
    Epoch,
    Lineage,
    LogIndex,
    TaskId,
    VertexId,
)
from crosscut.foundation.keys import key_group, owner_of_group
from crosscut.graph.identity import identity_of
from crosscut.graph.specs import JobGraph, OperatorNode
from crosscut.operators.async_map import AsyncMap
from crosscut.operators.building import build, keyed_state
from crosscut.operators.operator import Operator
from crosscut.protocol.checkpoint.requests import CheckpointRequests
from crosscut.protocol.effects import AnswerRequest
from crosscut.protocol.log.entries import (
    Ancestor,
    CheckpointCompleted,
    EpochClaimed,
    JobFinished,
    OpenOutput,
    SegmentOpened,
)
from crosscut.protocol.log.identity import FlowIdentity
from crosscut.protocol.log.restoring import (
    Begin,
    Content,
    GoOn,
    Refused,
    beginning,
    conflict_with_output,
    fitting,
)
from crosscut.protocol.log.segments import claims_in
from crosscut.protocol.messages import SplitAssignment
from crosscut.protocol.snapshots import KnownSplits, Part, PendingTransaction, Snapshot, TaskSnapshot
from crosscut.savepoints.folder import folder_of
from crosscut.savepoints.manifest import MANIFEST, SavepointManifest, check, opened
from crosscut.savepoints.manifest import write_manifest as write_manifest_into
from crosscut.savepoints.migrations import Migrations
from crosscut.savepoints.starting import begin_with, has_begun
from crosscut.savepoints.tables import as_savepoint, origin_of
from crosscut.savepoints.values import from_text, to_text
from crosscut.savepoints.writing import write_savepoint
from crosscut.spark.cluster.finished import status_if_finished
from crosscut.state.encoding import contents
from crosscut.state.keyed import KeyedState
from crosscut.store.checkpoint_store import CheckpointStore, open_store
from crosscut.task.channel_log import encoded_log
from crosscut.task.items import LoggedBatch
from crosscut.wire.batches import encode_batch

N = CheckpointId(7)
COUNTS = {"apple": 3, "pear": 5, "fig": 1, ("a", 1): 2, 12: 9, None: 4}


@dataclass(frozen=True)
class Point:
    x: int
    y: int


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.dictionaries(st.integers() | st.binary(), inner, max_size=4)
        | st.frozensets(st.integers() | st.text(), max_size=4)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal, with the same types, and NaN equal to NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return all(map(same, one, other)) and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@given(plain)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    text = to_text(value)
    json.loads(text)
    assert same(from_text(text), value)


def test_plain_values_are_plain_json_and_classes_are_named_as_such() -> None:
    assert to_text({"a": [1, None, 2.5, "x"]}) == '{"a":[1,null,2.5,"x"]}'
    assert to_text((1, b"x")) == '{"$tuple":[1,{"$bytes":"eA=="}]}'
    assert to_text({"$tuple": 1}) == '{"$dict":[["$tuple",1]]}'
    assert list(json.loads(to_text(Point(1, 2)))) == ["$pickle"]
    assert from_text(to_text([Point(1, 2)])) == [Point(1, 2)]


@pytest.mark.parametrize("text", ["{", '{"$bytes":"?"}', '{"$pickle":"AAAA"}', '{"$dict":[[1]]}'])
def test_text_that_is_no_value_is_named(text: str) -> None:
    with pytest.raises(StateError, match="savepoint"):
        from_text(text)


# A job of two tasks, in a store.


def flow_of(*, name: str = "fruit", kind: str = "count", out: str = "out", extra: bool = False) -> cc.Flow:
    flow = cc.Flow(name)
    keyed = flow.source(cc.items(["apple"])).named("words").key_by(str).named("keys")
    if kind == "count":
        counted = keyed.count().named("counts")
    else:
        counted = keyed.aggregate(int, lambda total, word: total + 1).named("counts")
    counted.sink(cc.files.write_jsonl(out)).named("sink")
    if extra:
        flow.source(cc.items([1, 2])).named("more").sink(cc.files.write_jsonl(f"{out}-more")).named(
            "more-sink"
        )
    return flow


def write_manifest(directory: Path, manifest: SavepointManifest) -> None:
    write_manifest_into(folder_of(directory), manifest)


def graph_of(parallelism: int = 2, **changed: Any) -> JobGraph:
    return flow_of(**changed).compile(parallelism, 16)


def claim_of(graph: JobGraph) -> EpochClaimed:
    return EpochClaimed(
        Epoch(1), Lineage("old"), "driver", graph.fingerprint, graph.parallelism, graph.max_parallelism,
        CheckpointId(1), identity_of(graph),
    )  # fmt: skip


def job_in(store: CheckpointStore, *, pending: bool = False) -> tuple[CheckpointCompleted, EpochClaimed]:
    """Write a job with a checkpoint into `store`."""
    graph = graph_of()
    snapshots = []
    for vertex in graph.vertices:
        for index in range(2):
            task = TaskId(VertexId(vertex.vertex_id), index)
            parts: tuple[Part, ...] = ()
            if vertex.vertex_id == "counts":
                state = KeyedState(int, keeps_keys=True)
                for key, count in COUNTS.items():
                    if owner_of_group(key_group(key, 16), 16, 2) == index:
                        state.main.put(key, count)
                state.freeze(N)
                parts = (store.write_part(N, task, Epoch(1), state.encoded(N, CheckpointId(0))),)
            is_sink = vertex.sink is not None
            snapshots.append(
                TaskSnapshot(
                    task,
                    Snapshot(
                        parts=parts,
                        positions=[["0-of-1", 0, None, 1, index]] if vertex.source and not index else
                        ([] if vertex.source else None),
                        pending=(PendingTransaction(N, "handle"),) if is_sink and pending else (),
                        records_in=10,
                    ),
                )
            )  # fmt: skip
    checkpoint = CheckpointCompleted(Epoch(1), N, tuple(snapshots))
    store.append(LogIndex(1, 0), SegmentOpened(claim_of(graph), None))
    store.append(LogIndex(1, 1), checkpoint)
    return checkpoint, claim_of(graph)


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    store = open_store(str(tmp_path / "job"))
    checkpoint, claim = job_in(store)
    write_savepoint(str(tmp_path / "savepoint"), checkpoint, claim, store.read_part)
    return tmp_path / "savepoint"


def begun(savepoint: Path, tmp_path: Path, graph: JobGraph | None = None, **how: Any) -> CheckpointStore:
    store = open_store(str(tmp_path / "begun"))
    look = how.pop("look", list)
    begin_with(opened(savepoint), store, graph or graph_of(3), discover=lambda graph: (), look=look, **how)
    return store


def state_in(store: CheckpointStore, uid: str = "counts") -> dict[Any, Any]:
    (checkpoint,) = [entry for _, entry in store.tail(1) if isinstance(entry, CheckpointCompleted)]
    found: dict[Any, Any] = {}
    for one in checkpoint.snapshots:
        if one.task.vertex == uid:
            state = KeyedState(int, keeps_keys=True)
            for _ in state.loading([(N, store.read_part(part)) for part in one.snapshot.parts], N):
                pass
            found |= dict(state.items())
    return found


def test_a_savepoint_is_read_by_anything_that_reads_parquet_and_json(savepoint: Path) -> None:
    frame = polars.read_parquet(savepoint / "state" / "**" / "*.parquet")
    assert frame.columns == ["key_group", "operator", "state", "key", "name", "value"]
    assert set(frame["operator"]) == {"counts"} and set(frame["state"]) == {""}
    fruit = dict(zip(frame["key"], frame["value"], strict=True))
    assert fruit['"apple"'] == "3" and fruit["12"] == "9" and fruit['{"$tuple":["a",1]}'] == "2"
    assert [key_group(from_text(key), 16) for key in frame["key"]] == list(frame["key_group"])
    manifest = json.loads((savepoint / MANIFEST).read_text())
    assert manifest["version"] == 1 and manifest["flow"]["name"] == "fruit"
    assert [(one["lineage"], one["checkpoint_id"]) for one in manifest["ancestors"]] == [("old", 7)]


def test_a_job_begins_with_it_at_the_parallelism_it_had_and_the_next_claim_may_change_that(
    savepoint: Path, tmp_path: Path
) -> None:
    store = begun(savepoint, tmp_path)
    assert state_in(store) == COUNTS
    claim, checkpoint = (entry for _, entry in store.tail(1))
    assert isinstance(checkpoint, CheckpointCompleted) and checkpoint.checkpoint_id == N + 1
    (claimed,) = claims_in([claim])
    digest = opened(savepoint).digest
    assert claimed.parallelism == 2 and claimed.ancestors == (Ancestor(Lineage("old"), N, digest),)
    assert len(digest) == 64
    positions = [one.snapshot.positions for one in checkpoint.snapshots if one.task.vertex == "words"]
    assert positions == [[["0-of-1", 0, None, 1, 0]], []]


def test_it_may_be_edited_with_polars_but_not_unawares(savepoint: Path, tmp_path: Path) -> None:
    for file in (savepoint / "state").rglob("*.parquet"):
        frame = polars.read_parquet(file)
        is_apple = polars.col("key") == '"apple"'
        changed = frame.with_columns(
            polars.when(is_apple).then(polars.lit("100")).otherwise(polars.col("value")).alias("value")
        ).filter(polars.col("key") != '"fig"')
        changed.write_parquet(file)
    with pytest.raises(StoreError, match="was changed after it was written: state/counts/"):
        begun(savepoint, tmp_path)
    cc.seal_savepoint(savepoint)
    store = begun(savepoint, tmp_path)
    assert state_in(store) == {key: n for key, n in COUNTS.items() if key != "fig"} | {"apple": 100}


def test_what_is_edited_after_a_job_has_begun_with_it_is_not_passed_over_silently(
    savepoint: Path, tmp_path: Path
) -> None:
    store = begun(savepoint, tmp_path)
    again = open_store(str(tmp_path / "nothing yet"))
    assert has_begun(origin_of(savepoint), store) and not has_begun(origin_of(savepoint), again)
    # Sealed as it is: nothing has changed.
    cc.seal_savepoint(savepoint)
    assert has_begun(origin_of(savepoint), store)
    file = next((savepoint / "state").rglob("*.parquet"))
    polars.read_parquet(file).filter(polars.col("key") != '"fig"').write_parquet(file)
    cc.seal_savepoint(savepoint)
    with pytest.raises(StoreError, match=r"as it was before it was edited .*Choose another checkpoint_dir"):
        has_begun(origin_of(savepoint), store)
    with pytest.raises(StoreError, match="before it was edited"):
        begin_with(opened(savepoint), store, graph_of(3), discover=lambda graph: (), look=list)
    # What the job was copied from may be a checkpoint, which nobody edits; older logs know no digest.
    assert has_begun(replace(origin_of(savepoint), digest=""), store)
    claim = replace(claim_of(graph_of()), ancestors=(Ancestor(Lineage("old"), N),))
    assert beginning([claim, COMPLETED], [claim], claim.ancestors, "of today") == GoOn()


def test_a_finished_job_does_not_pass_over_a_savepoint_that_was_edited_or_is_another_one(
    savepoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = begun(savepoint, tmp_path)
    ((_, _), (index, completed)) = store.tail(1)
    assert isinstance(completed, CheckpointCompleted)
    finished = JobFinished(Epoch(1), completed.checkpoint_id)
    store.append(replace(index, number=index.number + 1), finished)
    common: dict[str, Any] = {"parallelism": 2, "max_parallelism": 16, "checkpoint_dir": tmp_path / "begun"}
    settings = cc.Settings(restore_from=savepoint, **common)
    assert status_if_finished(flow_of(), settings) is not None, "it goes on with nothing"
    (savepoint / MANIFEST).rename(tmp_path / "away")
    assert status_if_finished(flow_of(), settings) is not None
    assert "can't be compared with the savepoint that the job began with: " in caplog.text
    (tmp_path / "away").rename(savepoint / MANIFEST)
    with pytest.raises(StoreError, match="did not begin with this savepoint"):
        status_if_finished(flow_of(), replace(settings, restore_from=str(tmp_path / "begun")))
    file = next((savepoint / "state").rglob("*.parquet"))
    polars.read_parquet(file).filter(polars.col("key") != '"fig"').write_parquet(file)
    cc.seal_savepoint(savepoint)
    with pytest.raises(StoreError, match=r"as it was before it was edited .*Choose another checkpoint_dir"):
        status_if_finished(flow_of(), settings)
    assert status_if_finished(flow_of(), replace(settings, restore_from=None)) is not None


def test_its_state_is_a_table(savepoint: Path, tmp_path: Path) -> None:
    for path in (savepoint, tmp_path / "job", f"{tmp_path / 'job'}@7"):
        frame = cc.read_state(path, "counts")
        assert dict(zip(frame["key"], frame["value"], strict=True)) == COUNTS
        assert frame["value"].dtype == polars.Int64 and frame["value"].sum() == sum(COUNTS.values())
    with pytest.raises(StateError, match="'nobody'; it has 'words', 'keys', 'counts', 'sink'"):
        cc.read_state(savepoint, "nobody")
    with pytest.raises(StoreError, match="no checkpoint 8"):
        cc.read_state(f"{tmp_path / 'job'}@8", "counts")


def test_a_file_that_rots_or_is_gone_is_found(savepoint: Path) -> None:
    (file, *_) = (savepoint / "state").rglob("*.parquet")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(StoreError, match="was changed after it was written"):
        check(opened(savepoint))
    file.unlink()
    with pytest.raises(StoreError, match="is missing"):
        check(opened(savepoint))


def test_a_manifest_leads_to_no_file_outside(savepoint: Path) -> None:
    """S10."""
    manifest = opened(savepoint).manifest
    write_manifest(savepoint, replace(manifest, files=(replace(manifest.files[0], path="../job/log"),)))
    with pytest.raises(StoreError, match="leads out of the savepoint"):
        check(opened(savepoint))


def test_nothing_is_left_of_a_savepoint_that_can_not_be_written(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "job"))
    checkpoint, claim = job_in(store)

    def broken(part: Part) -> bytes:
        raise StoreError("the disk is gone")

    with pytest.raises(StoreError, match="the disk is gone"):
        write_savepoint(str(tmp_path / "savepoint"), checkpoint, claim, broken)
    assert not (tmp_path / "savepoint").exists()
    (tmp_path / "savepoint").mkdir()
    (tmp_path / "savepoint" / "mine.txt").touch()
    with pytest.raises(StoreError, match="not empty"):
        write_savepoint(str(tmp_path / "savepoint"), checkpoint, claim, store.read_part)


class Waits(cc.StreamProcess[int, int]):
    items = cc.SplitState[int]()

    def on_record(self, record: int, ctx: cc.Context) -> list[int]:
        self.items.append(record)
        return self.items.get()


def test_what_comes_in_a_job_that_began_with_a_savepoint_replaces_nothing_that_was_in_it(
    tmp_path: Path,
) -> None:
    """Items and calls are named by the checkpoint that their task began with; the first job had a 1, too."""
    flow = cc.Flow("f")
    numbers = flow.source(cc.items([1])).named("numbers")
    numbers.process(Waits()).named("waits").sink(cc.collect()).named("out")
    numbers.map_async(str).named("calls").sink(cc.collect()).named("called")
    graph = flow.compile(1, 1)
    nodes = {vertex.vertex_id: vertex.chain[0] for vertex in graph.vertices}
    store, begun_with = open_store(str(tmp_path / "job")), open_store(str(tmp_path / "begun"))
    n = CheckpointId(2)

    def taking(uid: str, records: list[int], begins: Begins, parts: tuple[Part, ...] = ()) -> KeyedState:
        state = keyed_state(nodes[uid])
        assert state is not None
        loaded = [(part.checkpoint_id, begun_with.read_part(part)) for part in parts]
        for _ in state.loading(loaded, CheckpointId(begins.restored)):
            pass
        operator = build(nodes[uid], state, None, (), begins)
        assert operator is not None
        operator.process(Batch(records))
        return state

    snapshots = {uid: Snapshot(positions=[] if uid == "numbers" else None) for uid in nodes}
    for uid in ("waits", "calls"):
        state = taking(uid, [10, 11], Begins(CheckpointId(1), 0))
        state.freeze(n)
        part = store.write_part(n, TaskId(VertexId(uid), 0), Epoch(2), state.encoded(n, CheckpointId(0)))
        snapshots[uid] = Snapshot(parts=(part,))
    tasks = tuple(TaskSnapshot(TaskId(VertexId(uid), 0), one) for uid, one in snapshots.items())
    path = str(tmp_path / "savepoint")
    write_savepoint(path, CheckpointCompleted(Epoch(2), n, tasks), claim_of(graph), store.read_part)
    begin_with(opened(path), begun_with, graph, discover=lambda graph: (), look=list)
    (first,) = [entry for _, entry in begun_with.tail(1) if isinstance(entry, CheckpointCompleted)]
    parts_of = {one.task.vertex: one.snapshot.parts for one in first.snapshots}
    begins = Begins(first.checkpoint_id, 0)
    items = taking("waits", [20, 21], begins, parts_of[VertexId("waits")]).tables["items"].items()
    assert [item for _, item in sorted(items)] == [10, 11, 20, 21]
    calls = taking("calls", [20, 21], begins, parts_of[VertexId("calls")]).items()
    assert [record for _, (record, _) in sorted(calls)] == [10, 11, 20, 21]


class Limited(cc.ConnectedProcess[int, int, int]):
    limits = cc.BroadcastState[str, int]()

    def on_record(self, record: int, ctx: cc.Context) -> None: ...

    def on_other(self, record: int, ctx: cc.Context) -> None: ...


def test_each_task_has_its_own_broadcast_state_since_others_have_more_on_their_way(tmp_path: Path) -> None:
    flow = cc.Flow("f")
    numbers, rules = (flow.source(cc.items([1])).named(name) for name in ("numbers", "rules"))
    numbers.connect(rules.broadcast()).process(Limited()).named("it").sink(cc.collect()).named("out")
    graph = flow.compile(2, 16)
    (node,) = (vertex.chain[0] for vertex in graph.vertices if vertex.vertex_id == "it")
    store = open_store(str(tmp_path / "job"))
    snapshots = []
    for index, limit in enumerate((2, 1)):
        state = keyed_state(node)
        assert state is not None
        state.tables["limits"].put((None, "records"), limit)
        state.freeze(N)
        task = TaskId(VertexId("it"), index)
        part = store.write_part(N, task, Epoch(1), state.encoded(N, CheckpointId(0)))
        snapshots.append(TaskSnapshot(task, Snapshot(parts=(part,))))
        for name in ("numbers", "rules"):
            snapshots.append(TaskSnapshot(TaskId(VertexId(name), index), Snapshot(positions=[])))
    checkpoint = CheckpointCompleted(Epoch(1), N, tuple(snapshots))
    write_savepoint(str(tmp_path / "savepoint"), checkpoint, claim_of(graph), store.read_part)
    store = begun(tmp_path / "savepoint", tmp_path, graph)
    (first,) = [entry for _, entry in store.tail(1) if isinstance(entry, CheckpointCompleted)]
    found = {}
    for one in first.snapshots:
        if one.task.vertex == "it":
            ((_, data),) = [(part.checkpoint_id, store.read_part(part)) for part in one.snapshot.parts]
            found[one.task.index] = contents([data])["limits"]
    assert found == {0: {None: {"records": 2}}, 1: {None: {"records": 1}}}
    with pytest.raises(StateError, match="operator 'it' has no state ''; it has 'limits'"):
        cc.read_state(tmp_path / "savepoint", "it")


# Another flow.


def test_state_that_nobody_takes_is_dropped_only_if_the_user_says_so(savepoint: Path, tmp_path: Path) -> None:
    flow = cc.Flow("other")
    flow.source(cc.items(["apple"])).named("words").sink(cc.files.write_jsonl("out")).named("sink")
    graph = flow.compile(2, 16)
    with pytest.raises(StoreError, match=r"no operator takes the state \(6 rows\) of 'counts'"):
        begun(savepoint, tmp_path, graph)
    store = begun(savepoint, tmp_path, graph, allow_dropped_state=True)
    assert state_in(store) == {}


def test_an_operator_of_another_kind_takes_state_only_through_a_migration(
    savepoint: Path, tmp_path: Path
) -> None:
    graph = graph_of(kind="aggregate")
    with pytest.raises(StoreError, match="'counts' is a aggregate, and was a count: say with migrate_state"):
        begun(savepoint, tmp_path, graph)
    store = begun(
        savepoint, tmp_path, graph, migrations=Migrations({"counts": lambda key, value: value * 10})
    )
    assert state_in(store) == {key: 10 * n for key, n in COUNTS.items()}


def test_a_migration_that_fails_names_key_and_value(savepoint: Path, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"the migration of 'counts' raised ZeroDivisionError.* for key"):
        begun(savepoint, tmp_path, migrations=Migrations({"counts": lambda key, value: 1 / 0}))
    with pytest.raises(StoreError, match="migrate_state names 'nobody'"):
        begun(savepoint, tmp_path, migrations=Migrations({"nobody": lambda key, value: value}))


class Once(cc.KeyedProcess[int, int]):
    item = cc.ValueState[int]()
    other = cc.ValueState[int]()

    def on_record(self, record: int, ctx: cc.Context) -> None: ...


class OnceForAnHour(Once):
    item = cc.ValueState[int](ttl="1h", ttl_time="processing")


class OnceAsBytes(Once):
    item = cc.ValueState[int](serializer=cc.MsgspecSerializer(int))


@pytest.mark.parametrize(("before", "after"), [(Once, OnceForAnHour), (OnceForAnHour, OnceAsBytes)])
def test_a_state_whose_rows_hold_something_else_now_is_not_taken_unawares(
    before: type[Once], after: type[Once]
) -> None:
    """H3: with a ttl a row is a pair, with a serializer bytes."""

    def flow_with(process: type[Once]) -> FlowIdentity:
        flow = cc.Flow("f")
        keyed = flow.source(cc.items([1])).key_by(lambda n: n)
        keyed.process(process()).named("it").sink(cc.collect())
        return identity_of(flow.compile(1, 1))

    def fits(state: str, *migrated: tuple[str, str]) -> str:
        found = fitting(
            [Content("it", state, "state", 2)],
            flow_with(before),
            flow_with(after),
            allow_dropped=False,
            accepts_changes=False,
            is_migrated=lambda *one: one in migrated,
        )
        return found.refused

    assert "state 'item' (2 rows) of 'it' is a value, " in fits("item")
    assert "say with migrate_state what becomes of them" in fits("item")
    assert fits("item", ("it", "item")) == fits("other") == ""


def test_new_operators_begin_with_nothing_and_new_sources_with_their_splits(
    savepoint: Path, tmp_path: Path
) -> None:
    graph = graph_of(extra=True)
    with_more = open_store(str(tmp_path / "begun"))
    more = TaskId(VertexId("more"), 1)
    found = [SplitAssignment(more, [["all", 0, None, 1, 0]])]
    begin_with(opened(savepoint), with_more, graph, discover=lambda graph: found, look=list)
    (checkpoint,) = [entry for _, entry in with_more.tail(1) if isinstance(entry, CheckpointCompleted)]
    (taken,) = [one.snapshot for one in checkpoint.snapshots if one.task == more]
    assert taken.positions == [["all", 0, None, 1, 0]]
    assert state_in(with_more) == COUNTS


def test_what_a_source_knows_of_splits_is_not_dropped_unasked(savepoint: Path, tmp_path: Path) -> None:
    """All that it had found was read: under another name it would find and read all of it again."""
    manifest = opened(savepoint).manifest
    tasks = tuple(replace(one, snapshot=replace(one.snapshot, positions=None)) for one in manifest.tasks)
    known = KnownSplits(VertexId("words"), 7)
    write_manifest(savepoint, replace(manifest, tasks=tasks, known_splits=(known,)))
    store = begun(savepoint, tmp_path, graph_of())
    (first,) = [entry for _, entry in store.tail(1) if isinstance(entry, CheckpointCompleted)]
    assert first.known_splits == (known,)
    renamed = cc.Flow("fruit")
    renamed.source(cc.items(["apple"])).named("others").sink(cc.collect()).named("sink")
    with pytest.raises(StoreError, match="no operator takes the search for splits, which knows"):
        begin_with(
            opened(savepoint),
            open_store(str(tmp_path / "renamed")),
            renamed.compile(2, 16),
            discover=lambda graph: (),
            look=list,
        )


def test_final_results_are_said_again_at_the_end_of_a_new_source(savepoint: Path, tmp_path: Path) -> None:
    """The first job was at its end; what comes of the new source would never be said."""
    manifest = opened(savepoint).manifest
    tasks = (replace(one, snapshot=replace(one.snapshot, ended=True)) for one in manifest.tasks)
    write_manifest(savepoint, replace(manifest, tasks=tuple(tasks)))
    flow = cc.Flow("fruit")
    words = flow.source(cc.items(["apple"])).named("words")
    more = flow.source(cc.items(["pear"])).named("more")
    counts = words.union(more).named("all").key_by(str).named("keys").count(emit="final").named("counts")
    counts.sink(cc.collect()).named("sink")
    for graph, ended in ((graph_of(), True), (flow.compile(2, 16), False)):
        store = open_store(str(tmp_path / f"ended {ended}"))
        begin_with(opened(savepoint), store, graph, discover=lambda graph: (), look=list)
        (first,) = [entry for _, entry in store.tail(1) if isinstance(entry, CheckpointCompleted)]
        assert {one.snapshot.ended for one in first.snapshots if one.task.vertex == "counts"} == {ended}
        assert all(one.snapshot.ended for one in first.snapshots if one.task.vertex == "words")


def test_other_key_groups_are_no_matter_where_no_final_result_was_half_said(
    savepoint: Path, tmp_path: Path
) -> None:
    store = begun(savepoint, tmp_path, flow_of().compile(3, 40))
    assert state_in(store) == COUNTS
    manifest = opened(savepoint).manifest
    half = tuple(
        replace(one, snapshot=replace(one.snapshot, said=[0, "5"])) if one.task.vertex == "counts" else one
        for one in manifest.tasks
    )
    write_manifest(savepoint, replace(manifest, tasks=half))
    with pytest.raises(StoreError, match="final results were being said"):
        begun(savepoint, tmp_path / "again", flow_of().compile(3, 40))


def test_another_number_of_key_groups_leaves_no_key_where_its_final_result_has_been_said(
    savepoint: Path, tmp_path: Path
) -> None:
    """One task has said everything, the other has not begun: a key of that one would be taken as said."""
    manifest = opened(savepoint).manifest

    def with_ended(*ended: str) -> SavepointManifest:
        tasks = (
            replace(one, snapshot=replace(one.snapshot, ended=str(one.task) in ended))
            for one in manifest.tasks
        )
        return replace(manifest, tasks=tuple(tasks))

    write_manifest(savepoint, with_ended("counts[0]"))
    with pytest.raises(StoreError, match="final results were being said"):
        begun(savepoint, tmp_path, flow_of().compile(3, 40))
    write_manifest(savepoint, with_ended("counts[0]", "counts[1]", "words[0]"))
    assert state_in(begun(savepoint, tmp_path, flow_of().compile(3, 40))) == COUNTS


def test_another_number_of_key_groups_leaves_no_record_on_its_way_to_who_has_not_its_key_any_more(
    tmp_path: Path,
) -> None:
    """H1: at the same parallelism it would stay with the task it was on its way to."""
    store = open_store(str(tmp_path / "job"))
    checkpoint, claim = job_in(store)
    channel = ChannelId(0, TaskId(VertexId("words"), 0), TaskId(VertexId("counts"), 1))
    log = encoded_log([LoggedBatch(channel, encode_batch(Batch(["fig"], ["fig"])), 1, by_sender=False)])
    part = store.write_part(N, channel.target, Epoch(1), log)
    tasks = tuple(
        replace(one, snapshot=replace(one.snapshot, log=(part,))) if one.task == channel.target else one
        for one in checkpoint.snapshots
    )
    path = tmp_path / "savepoint"
    write_savepoint(str(path), replace(checkpoint, snapshots=tasks), claim, store.read_part)
    with pytest.raises(StoreError, match=r"records on their way to 'counts'.* by 16 key groups"):
        begun(path, tmp_path, flow_of().compile(2, 40))
    begun(path, tmp_path, flow_of().compile(3, 16))


# What is there already.


class Kept(cc.StreamProcess[int, int]):
    dealt = cc.SplitState[int]()
    everywhere = cc.UnionState[int]()

    def on_record(self, record: int, ctx: cc.Context) -> None:
        self.dealt.append(record)
        self.everywhere.append(record)


def lists_graph() -> JobGraph:
    flow = cc.Flow("lists")
    numbers = flow.source(cc.items([1])).named("numbers")
    numbers.process(Kept()).named("kept").sink(cc.collect()).named("kept-sink")
    numbers.map_async(str).named("calls").sink(cc.collect()).named("calls-sink")
    return flow.compile(1, 16)


class Restored:
    """An operator of one task, as the task of a new epoch has it."""

    def __init__(self, graph: JobGraph, uid: str, store: CheckpointStore) -> None:
        ((n, snapshots),) = [
            (entry.checkpoint_id, entry.snapshots)
            for _, entry in store.tail(1)
            if isinstance(entry, CheckpointCompleted)
        ]
        (node,) = (node for vertex in graph.vertices for node in vertex.chain if node.uid == uid)
        self.state = state_of(node)
        parts = [part for one in snapshots if one.task.vertex == uid for part in one.snapshot.parts]
        for _ in self.state.loading([(n, store.read_part(part)) for part in parts], n):
            pass
        self.operator = built(node, self.state, n)


def state_of(node: OperatorNode) -> KeyedState:
    state = keyed_state(node)
    assert state is not None
    return state


def built(node: OperatorNode, state: KeyedState, n: int) -> Operator:
    operator = build(node, state, None, (), Begins(n, 0))
    assert operator is not None
    return operator


def begun_with_rows_of_its_own(tmp_path: Path, graph: JobGraph, restored: int) -> CheckpointStore:
    """Begin with a savepoint of a job whose only task began with checkpoint `restored`."""
    old, new = (open_store(str(tmp_path / name)) for name in ("old", "new"))
    snapshots = []
    for vertex in graph.vertices:
        parts: tuple[Part, ...] = ()
        for node in vertex.chain:
            if node.uid in ("kept", "calls"):
                state = state_of(node)
                operator = built(node, state, restored)
                operator.process(Batch([10, 11, 12]))
                if isinstance(operator, AsyncMap):
                    # A call has returned, the others are under way.
                    operator.returned(operator.requests[0].call_id, "10")
                    operator.release(9)
                state.freeze(N)
                task = TaskId(VertexId(vertex.vertex_id), 0)
                parts = (old.write_part(N, task, Epoch(1), state.encoded(N, CheckpointId(0))),)
        positions: Any = [] if vertex.source else None
        snapshots.append(
            TaskSnapshot(TaskId(VertexId(vertex.vertex_id), 0), Snapshot(parts=parts, positions=positions))
        )
    checkpoint = CheckpointCompleted(Epoch(1), N, tuple(snapshots))
    write_savepoint(str(tmp_path / "savepoint"), checkpoint, claim_of(graph), old.read_part)
    begin_with(opened(tmp_path / "savepoint"), new, graph, discover=lambda graph: (), look=list)
    return new


@pytest.mark.parametrize("restored", [0, 1, 2])
def test_what_a_new_job_adds_to_lists_and_calls_takes_the_place_of_nothing_in_the_savepoint(
    tmp_path: Path, restored: int
) -> None:
    graph = lists_graph()
    store = begun_with_rows_of_its_own(tmp_path, graph, restored)
    kept = Restored(graph, "kept", store)
    kept.operator.process(Batch([20, 21]))
    for name in ("dealt", "everywhere"):
        rows = sorted(kept.state.tables[name].items())
        assert [item for _, item in rows] == [10, 11, 12, 20, 21]
    calls = Restored(graph, "calls", store)
    calls.operator.process(Batch([20, 21]))
    assert [record for _, (record, _) in sorted(calls.state.items())] == [11, 12, 20, 21]
    assert isinstance(calls.operator, AsyncMap)
    assert [one.record for one in calls.operator.requests] == [11, 12, 20, 21]


def output(n: int, lineage: str = "old") -> CommittedOutput:
    return CommittedOutput(
        "out", Lineage(lineage), "sink", TaskId(VertexId("sink"), 0), Epoch(1), "driver", CheckpointId(n)
    )


def test_output_of_the_same_history_may_be_there_up_to_the_savepoint(savepoint: Path, tmp_path: Path) -> None:
    """F4."""
    with pytest.raises(HistoryError, match="up to checkpoint 8"):
        begun(savepoint, tmp_path, look=lambda: [output(8)])
    with pytest.raises(HistoryError, match="another history"):
        begun(savepoint, tmp_path, look=lambda: [output(3, "strange")])
    begun(savepoint, tmp_path, look=lambda: [output(7)])
    assert conflict_with_output([Ancestor(Lineage("old"), N)], [output(8)], is_fresh=True) is None


def test_a_checkpoint_whose_output_may_not_be_committed_is_no_savepoint(tmp_path: Path) -> None:
    """F7: nobody would ever commit it."""
    store = open_store(str(tmp_path / "job"))
    job_in(store, pending=True)
    path = as_savepoint(tmp_path / "job", tmp_path / "copy")
    assert path.manifest.pending == tuple(OpenOutput(TaskId(VertexId("counts"), i), N) for i in range(2))
    with pytest.raises(StoreError, match=r"output of task counts\[0\], of checkpoint 7, is not known"):
        begun(tmp_path / "copy", tmp_path)
    outputs = [replace(output(7), task=TaskId(VertexId("counts"), index)) for index in range(2)]
    begun(tmp_path / "copy", tmp_path, look=lambda: outputs)


def test_a_later_start_with_the_same_savepoint_goes_on_and_another_directory_is_refused(
    savepoint: Path, tmp_path: Path
) -> None:
    store = begun(savepoint, tmp_path)
    graph = graph_of(3)
    assert begin_with(opened(savepoint), store, graph, discover=lambda graph: (), look=list) is None
    with pytest.raises(StoreError, match="holds a job already"):
        begin_with(
            opened(savepoint), open_store(str(tmp_path / "job")), graph, discover=lambda graph: (), look=list
        )


def test_a_start_that_was_cut_off_says_so() -> None:
    claim = replace(claim_of(graph_of()), ancestors=(Ancestor(Lineage("old"), N),))
    done = CheckpointCompleted(Epoch(1), CheckpointId(1), ())
    assert beginning([], [], claim.ancestors) == Begin()
    assert beginning([claim, done], [claim], claim.ancestors) == GoOn()
    cut_off = beginning([claim], [claim], claim.ancestors)
    assert isinstance(cut_off, Refused) and "cut off" in cut_off.reason


# Who waits for one.

COMPLETED = CheckpointCompleted(
    Epoch(1),
    N,
    (TaskSnapshot(TaskId(VertexId("counts"), 0), Snapshot(parts=(Part("parts/7/x", 1, "00"),))),),
)


def none_committed(n: CheckpointId) -> bool:
    return False


def test_whoever_wants_a_savepoint_hears_of_the_checkpoint_when_its_output_is_committed() -> None:
    requests = CheckpointRequests()
    requests.add(1, is_savepoint=True)
    requests.add(2, is_savepoint=False)
    assert requests.answer_all(COMPLETED) == [AnswerRequest(2, COMPLETED)]
    assert requests.due(none_committed, is_over=False) == []
    assert requests.paths == {"parts/7/x"}
    assert requests.due(lambda n: n <= N, is_over=False) == [AnswerRequest(1, COMPLETED)]
    assert requests.due(lambda n: n <= N, is_over=True) == []
    # While it is written its parts stay.
    assert requests.paths == {"parts/7/x"}
    requests.written(1)
    requests.written(1)
    assert requests.paths == frozenset()


def test_a_checkpoint_that_failed_is_told_at_once() -> None:
    requests = CheckpointRequests()
    requests.add(1, is_savepoint=True)
    requests.triggered(N)
    assert requests.failed(N, "no disk") == [AnswerRequest(1, None, "no disk")]
    assert requests.due(lambda n: True, is_over=False) == []


def test_a_job_that_ends_before_the_commit_says_so() -> None:
    requests = CheckpointRequests()
    requests.add(1, is_savepoint=True)
    requests.triggered(N)
    assert requests.completed(COMPLETED) == []
    (answer,) = requests.due(none_committed, is_over=True)
    assert isinstance(answer, AnswerRequest) and answer.completed is None and "checkpoint 7" in answer.reason
    assert requests.paths == frozenset()


def test_a_parquet_file_says_its_types(savepoint: Path) -> None:
    (file, *_) = (savepoint / "state").rglob("*.parquet")
    types = {field.name: str(field.type) for field in parquet.read_schema(file)}
    texts = dict.fromkeys(("operator", "state", "key", "name", "value"), "string")
    assert types == texts | {"key_group": "int32"}


# The command line.


def told(*arguments: object) -> str:
    result = CliRunner().invoke(program, ["checkpoints", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_line_shows_verifies_and_compares_savepoints_and_checkpoints(
    savepoint: Path, tmp_path: Path
) -> None:
    assert "savepoint of flow fruit, checkpoint 7" in told("show", savepoint)
    assert "whole: 2 files, 6 rows" in told("verify", savepoint)
    assert "whole: checkpoint 7, 2 parts" in told("verify", tmp_path / "job")
    assert told("diff", savepoint, tmp_path / "job").splitlines()[1].split() == ["counts", "0", "0", "0", "6"]
    (file, *_) = (savepoint / "state").rglob("*.parquet")
    frame = polars.read_parquet(file)
    frame.with_columns(polars.lit("77").alias("value")).head(1).write_parquet(file)
    result = CliRunner().invoke(program, ["checkpoints", "verify", str(savepoint)])
    assert result.exit_code == 2 and "was changed after it was written" in result.output
    assert "sealed" in told("seal", savepoint)
    assert "-> 77" in told("diff", f"{tmp_path / 'job'}@7", savepoint)
