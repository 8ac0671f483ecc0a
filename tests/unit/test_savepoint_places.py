"""Savepoints wherever fsspec reaches, signed if there is a key; and what functions make of old state."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem

import crosscut as cc
from crosscut.cli.commands import program
from crosscut.contracts.connected_process import Begins
from crosscut.driver.cuts import newest_values
from crosscut.errors import (
    AuthenticityError,
    CheckpointError,
    FlowError,
    SettingsError,
    StateError,
    StoreError,
)
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, LogIndex, TaskId, VertexId
from crosscut.foundation.keys import key_group, owner_of_group
from crosscut.graph.identity import identity_of
from crosscut.graph.specs import JobGraph
from crosscut.operators.building import build, keyed_state
from crosscut.protocol.log.entries import CheckpointCompleted, EpochClaimed, SegmentOpened
from crosscut.protocol.snapshots import Snapshot, TaskSnapshot
from crosscut.savepoints.folder import UNFINISHED, check_free, new_folder
from crosscut.savepoints.manifest import MANIFEST, opened
from crosscut.savepoints.migrations import Migrations
from crosscut.savepoints.starting import begin_with
from crosscut.savepoints.tables import as_savepoint
from crosscut.savepoints.writing import write_savepoint
from crosscut.state.encoding import contents
from crosscut.store.checkpoint_store import CheckpointStore, open_store
from crosscut.store.log_key import VARIABLE

N = CheckpointId(7)
KEY, OTHER_KEY = "k" * 32, "a secret of somebody else, and long"
VISITS = [("ann", 3), ("bob", 5), ("ann", 4), ("eve", 1)]


class Visits(cc.KeyedProcess[tuple[str, int], None]):
    last = cc.ValueState[int]()
    pages = cc.ListState[int]()

    def on_record(self, record: tuple[str, int], ctx: cc.Context) -> None:
        self.last.set(record[1])
        self.pages.append(record[1])
        ctx.set_timer(1_000)

    def on_timer(self, time: int, ctx: cc.Context) -> None: ...


class Everywhere(cc.StreamProcess[int, None]):
    seen = cc.UnionState[int]()

    def on_record(self, record: int, ctx: cc.Context) -> None:
        self.seen.append(record)


def visits_graph(parallelism: int = 2) -> JobGraph:
    flow = cc.Flow("visits")
    clicks = flow.source(cc.items(VISITS)).named("clicks").assign_timestamps(lambda one: 0)
    clicks.key_by(lambda one: one[0]).process(Visits()).named("visits").sink(cc.collect()).named("out")
    return flow.compile(parallelism, 16)


def everywhere_graph(parallelism: int = 2) -> JobGraph:
    flow = cc.Flow("everywhere")
    numbers = flow.source(cc.items([1])).named("numbers").rebalance()
    numbers.process(Everywhere()).named("everywhere").sink(cc.collect()).named("out")
    return flow.compile(parallelism, 16)


def job_in(store: CheckpointStore, graph: JobGraph, uid: str, batches: Mapping[int, Batch]) -> Any:
    """Write a job into `store`, in whose only checkpoint the tasks of `uid` have processed `batches`."""
    nodes = [(vertex.vertex_id, node) for vertex in graph.vertices for node in vertex.chain]
    ((where, node),) = ((vertex, node) for vertex, node in nodes if node.uid == uid)
    snapshots = []
    for vertex in graph.vertices:
        for index in range(graph.parallelism):
            task = TaskId(VertexId(vertex.vertex_id), index)
            parts = ()
            if vertex.vertex_id == where:
                state = keyed_state(node)
                assert state is not None
                operator = build(node, state, None, (), Begins(0, index))
                assert operator is not None
                operator.process(batches.get(index, Batch([])))
                state.freeze(N)
                parts = (store.write_part(N, task, Epoch(1), state.encoded(N, CheckpointId(0))),)
            positions: Any = [] if vertex.source is not None else None
            snapshots.append(TaskSnapshot(task, Snapshot(parts=parts, positions=positions)))
    checkpoint = CheckpointCompleted(Epoch(1), N, tuple(snapshots))
    claim = EpochClaimed(
        Epoch(1), Lineage("old"), "driver", graph.fingerprint, graph.parallelism, graph.max_parallelism,
        CheckpointId(1), identity_of(graph),
    )  # fmt: skip
    store.append(LogIndex(1, 0), SegmentOpened(claim, None))
    store.append(LogIndex(1, 1), checkpoint)
    return checkpoint, claim


def visits_by_task(graph: JobGraph) -> dict[int, Batch]:
    found = {}
    for index in range(graph.parallelism):
        mine = [
            one
            for one in VISITS
            if owner_of_group(key_group(one[0], graph.max_parallelism), graph.max_parallelism, 2) == index
        ]
        found[index] = Batch(mine, [key for key, _ in mine], [0] * len(mine))
    return found


def savepoint_at(path: str | Path, tmp_path: Path) -> str | Path:
    store, graph = open_store(str(tmp_path / "job")), visits_graph()
    checkpoint, claim = job_in(store, graph, "visits", visits_by_task(graph))
    write_savepoint(path, checkpoint, claim, store.read_part)
    return path


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    savepoint_at(tmp_path / "savepoint", tmp_path)
    return tmp_path / "savepoint"


@pytest.fixture(params=["file", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/elsewhere"
        return
    if request.param == "s3":
        server = request.getfixturevalue("s3")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield f"{server.bucket()}/savepoints/monday"
        return
    url = f"memory://{secrets.token_hex(8)}/savepoints/monday"
    yield url
    files = MemoryFileSystem()
    if files.exists(url):
        files.rm(url, recursive=True)


def begun(savepoint: Any, tmp_path: Path, graph: JobGraph, **how: Any) -> CheckpointStore:
    store = open_store(str(tmp_path / "begun"))
    begin_with(opened(savepoint), store, graph, discover=lambda graph: (), look=list, **how)
    return store


def state_in(store: CheckpointStore, uid: str, state: str) -> dict[int, dict[Any, Any]]:
    """Return the rows of each task in the first checkpoint of `store`."""
    (checkpoint,) = [entry for _, entry in store.tail(1) if isinstance(entry, CheckpointCompleted)]
    return {
        one.task.index: contents(map(store.read_part, one.snapshot.parts)).get(state, {})
        for one in checkpoint.snapshots
        if one.task.vertex == uid
    }


def together(found: Mapping[int, dict[Any, Any]]) -> dict[Any, Any]:
    return {key: value for rows in found.values() for key, value in rows.items()}


LAST = {"ann": 4, "bob": 5, "eve": 1}


def told(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(program, ["checkpoints", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


# Where they are.


def test_a_savepoint_is_written_read_restored_and_looked_at_by_its_url(url: str, tmp_path: Path) -> None:
    assert savepoint_at(url, tmp_path) == url
    frame = cc.read_state(url, "visits", "last")
    assert dict(zip(frame["key"], frame["value"], strict=True)) == LAST
    assert together(state_in(begun(url, tmp_path, visits_graph(3)), "visits", "last")) == LAST
    assert "savepoint of flow visits, checkpoint 7" in told("show", url)
    assert "whole: 2 files, 9 rows" in told("verify", url)
    assert [line.split()[2:6] for line in told("diff", url, tmp_path / "job").splitlines()[1:]] == [
        ["timers", "0", "0", "0"], ["0", "0", "0", "3"], ["0", "0", "0", "3"],
    ]  # fmt: skip
    assert "sealed" in told("seal", url)
    for again in (lambda: savepoint_at(url, tmp_path / "again"), lambda: check_free(url)):
        with pytest.raises(StoreError, match="is there already, and not empty"):
            again()
    check_free(f"{url}-2")


def test_what_was_changed_elsewhere_is_named_whoever_reads_it(url: str, tmp_path: Path) -> None:
    savepoint_at(url, tmp_path)
    file = opened(url).manifest.state_files("visits")[0].path
    with fsspec.open(f"{url}/{file}", "ab") as stream:
        stream.write(b"!")
    for read in (
        lambda: cc.read_state(url, "visits", "last"),
        lambda: begun(url, tmp_path, visits_graph()),
        lambda: list(as_savepoint(url, tmp_path / "copy").rows_of(opened(url).manifest.files[0], ["key"])),
    ):
        with pytest.raises(
            StoreError, match=f"was changed after it was written: {file} has .*seal_savepoint"
        ):
            read()
    assert f"was changed after it was written: {file}" in told("verify", url, code=2)
    assert not list(open_store(str(tmp_path / "begun")).tail(1))
    cc.seal_savepoint(url)
    assert "whole" in told("verify", url)


def test_nothing_is_left_of_a_savepoint_that_fails_midway(url: str, tmp_path: Path) -> None:
    store, graph = open_store(str(tmp_path / "job")), visits_graph()
    checkpoint, claim = job_in(store, graph, "visits", visits_by_task(graph))
    parts = [part for one in checkpoint.snapshots for part in one.snapshot.parts]

    def read(part: Any) -> bytes:
        if part == parts[1]:
            raise StoreError("the disk is gone")
        return store.read_part(part)

    with pytest.raises(StoreError, match="the disk is gone"):
        write_savepoint(url, checkpoint, claim, read)
    files, root = fsspec.core.url_to_fs(url)
    assert not files.exists(root) or files.find(root) == []
    write_savepoint(url, checkpoint, claim, store.read_part)


def test_two_that_write_to_one_place_do_not_mix_their_files(url: str, tmp_path: Path) -> None:
    store, graph = open_store(str(tmp_path / "job")), visits_graph()
    checkpoint, claim = job_in(store, graph, "visits", visits_by_task(graph))
    refused = []

    def meanwhile(part: Any) -> bytes:
        if not refused:
            with pytest.raises(StoreError, match="is there already") as error:
                write_savepoint(url, checkpoint, claim, store.read_part)
            refused.append(error)
        return store.read_part(part)

    write_savepoint(url, checkpoint, claim, meanwhile)
    assert refused and "whole" in told("verify", url)
    files, root = fsspec.core.url_to_fs(url)
    assert not files.exists(f"{root}/{UNFINISHED}")


def test_what_a_program_that_died_has_left_is_for_the_same_job_alone_to_go_on_with(
    url: str, tmp_path: Path
) -> None:
    store, graph = open_store(str(tmp_path / "job")), visits_graph()
    checkpoint, claim = job_in(store, graph, "visits", visits_by_task(graph))
    claim = replace(claim, lineage=Lineage("a lineage with blanks"))
    folder, _ = new_folder(url, claim.lineage)
    folder.write_new("state/visits/9.parquet", (b"half of a f",))
    with pytest.raises(StoreError, match="not finished: unless a program is still at it, remove "):
        write_savepoint(url, checkpoint, claim, store.read_part)
    with pytest.raises(StoreError, match="not finished"):
        write_savepoint(url, checkpoint, replace(claim, lineage="another"), store.read_part, goes_on=True)
    check_free(url, unless_of={claim.lineage})
    with pytest.raises(StoreError, match="not finished"):
        check_free(url, unless_of={"another"})
    write_savepoint(url, checkpoint, claim, store.read_part, goes_on=True)
    assert "whole: 2 files" in told("verify", url)
    # What is finished stays what it is.
    with pytest.raises(StoreError, match=r"not empty: a savepoint needs a directory of its own$"):
        write_savepoint(url, checkpoint, claim, store.read_part, goes_on=True)


def test_who_was_taken_for_dead_does_not_touch_what_the_next_one_writes(url: str, tmp_path: Path) -> None:
    store, graph = open_store(str(tmp_path / "job")), visits_graph()
    checkpoint, claim = job_in(store, graph, "visits", visits_by_task(graph))
    is_first = [True]

    def meanwhile(part: Any) -> bytes:
        if is_first.pop() if is_first else False:
            write_savepoint(url, checkpoint, claim, store.read_part, goes_on=True)
        return store.read_part(part)

    with pytest.raises(StoreError):
        write_savepoint(url, checkpoint, claim, meanwhile)
    assert "whole: 2 files" in told("verify", url)


def test_what_is_nowhere_is_said_to_be_nowhere(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"memory://nowhere is no savepoint: it has no manifest.json"):
        opened("memory://nowhere")
    with pytest.raises(StoreError, match="neither a savepoint nor a checkpoint_dir"):
        cc.read_state("memory://nowhere@3", "visits")
    with pytest.raises(SettingsError, match="can't be opened: ValueError"):
        opened("gopher://nowhere")
    with pytest.raises(SettingsError, match="a Path can't hold a URL; give it as a str"):
        savepoint_at(Path("s3://bucket/monday"), tmp_path)


def test_the_credentials_of_a_url_are_in_no_setting_that_is_shown() -> None:
    """S12."""
    assert "t0p-secret" not in repr(cc.Settings(restore_from="s3://bob:t0p-secret@host/bucket/monday"))


def test_a_start_reads_the_files_of_each_operator_no_more_than_twice(
    savepoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for which states they have, and once for the rows: not once more for each operator of the flow."""
    read: list[str] = []
    found = opened(savepoint)
    plain = found.folder.read

    def noted(path: str) -> bytes:
        read.append(path)
        return plain(path)

    monkeypatch.setattr(found.folder, "read", noted)
    store = open_store(str(tmp_path / "begun"))
    begin_with(found, store, visits_graph(), discover=lambda graph: (), look=list)
    assert sorted(read) == sorted(2 * [file.path for file in found.manifest.files])


def test_rows_that_were_moved_into_the_file_of_another_operator_are_not_lost_in_silence(
    savepoint: Path, tmp_path: Path
) -> None:
    import polars

    file = savepoint / "state" / "visits" / "0.parquet"
    polars.read_parquet(file).with_columns(polars.lit("others").alias("operator")).write_parquet(file)
    cc.seal_savepoint(savepoint)
    with pytest.raises(StoreError, match="has rows of operator 'others'"):
        begun(savepoint, tmp_path, visits_graph())


@pytest.mark.parametrize(
    ("column", "text", "problem"),
    [
        ("value", "4,5", "for key .*: '4,5' is no value of a savepoint"),
        ("value", None, "for key .*: None is no value of a savepoint"),
        ("key", "1.5", "for key '1.5': 1.5 of type float can't be a key"),
        ("key", '"ann"', "two rows for 'ann' in state 'last' of 'visits', .* take one of them away"),
    ],
)
def test_a_row_that_was_edited_into_nonsense_is_named(
    column: str, text: str | None, problem: str, savepoint: Path, tmp_path: Path
) -> None:
    import polars

    for file in (savepoint / "state").rglob("*.parquet"):
        frame = polars.read_parquet(file)
        changed = frame.with_columns(
            polars.when(polars.col("state") == "last")
            .then(polars.lit(text, dtype=polars.String))
            .otherwise(polars.col(column))
            .alias(column)
        )
        changed.write_parquet(file)
    cc.seal_savepoint(savepoint)
    with pytest.raises(StateError, match=problem):
        begun(savepoint, tmp_path, visits_graph())


# Signed.


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, KEY)
    savepoint_at(tmp_path / "signed", tmp_path)
    return tmp_path / "signed"


def edited(savepoint: Path, **fields: Any) -> None:
    manifest = json.loads((savepoint / MANIFEST).read_text())
    (savepoint / MANIFEST).write_text(json.dumps(manifest | fields))


def test_with_a_key_a_manifest_is_signed_and_every_change_of_it_is_found(
    signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dict(cc.read_state(signed, "visits", "last").select("key", "value").rows()) == LAST
    edited(signed)  # laid out anew, and the same
    assert opened(signed)
    edited(signed, parallelism=1)
    for read in (
        lambda: begun(signed, tmp_path, visits_graph()),
        lambda: cc.read_state(signed, "visits", "last"),
        lambda: cc.seal_savepoint(signed),
    ):
        with pytest.raises(AuthenticityError, match="somebody without the key has changed it"):
            read()
    # Who has no key believes job logs that are not signed, too.
    monkeypatch.delenv(VARIABLE)
    assert opened(signed).manifest.parallelism == 1


def test_with_a_key_no_file_is_read_that_the_manifest_does_not_vouch_for(
    signed: Path, tmp_path: Path
) -> None:
    """S8: a value may be a pickle."""
    import polars

    file = signed / "state" / "visits" / "0.parquet"
    harm = '{"$pickle":"Y29zCnN5c3RlbQooUydleGl0IDEnCnRSLg=="}'
    polars.read_parquet(file).with_columns(polars.lit(harm).alias("value")).write_parquet(file)
    with pytest.raises(StoreError, match=r"was changed after it was written: state/visits/0\.parquet"):
        begun(signed, tmp_path, visits_graph())
    # Who changes the digest as well has no signature for it.
    manifest = json.loads((signed / MANIFEST).read_text())
    for one in manifest["files"]:
        if one["path"].endswith("0.parquet"):
            one["sha256"] = "0" * 64
    (signed / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(AuthenticityError, match="somebody without the key"):
        begun(signed, tmp_path, visits_graph())


def test_what_another_key_or_none_has_signed_is_taken_once_it_was_sealed(
    savepoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    with pytest.raises(AuthenticityError, match=f"is not signed, and {VARIABLE} is set.*checkpoints seal"):
        opened(savepoint)
    cc.seal_savepoint(savepoint)
    assert opened(savepoint)
    monkeypatch.setenv(VARIABLE, OTHER_KEY)
    with pytest.raises(AuthenticityError, match=r"was signed with key .* sign it anew with"):
        opened(savepoint)
    told("seal", savepoint)
    assert opened(savepoint)


# What becomes of old state.


def test_each_state_of_a_process_has_a_migration_of_its_own(savepoint: Path, tmp_path: Path) -> None:
    in_cents = {"visits": {"last": lambda key, value: value * 100}}
    store = begun(savepoint, tmp_path, visits_graph(), migrations=Migrations(in_cents))
    assert together(state_in(store, "visits", "last")) == {key: 100 * n for key, n in LAST.items()}
    assert together(state_in(store, "visits", "pages")) == {"ann": [3, 4], "bob": [5], "eve": [1]}


def test_one_function_for_several_states_is_refused_and_they_are_named(
    savepoint: Path, tmp_path: Path
) -> None:
    def refused(given: Any) -> str:
        with pytest.raises(StoreError) as error:
            begun(savepoint, tmp_path, visits_graph(), migrations=Migrations(given))
        return str(error.value)

    assert "several states: say for which, as in {'visits': {'last': function}}; it has 'last', 'pages'" in (
        refused({"visits": lambda key, value: value})
    )
    assert "names state 'lost' of 'visits', and it has" in refused({"visits": {"lost": lambda k, v: v}})
    with pytest.raises(StateError, match=r"migration of 'visits', state 'last', raised ZeroDivisionError"):
        broken = {"visits": {"last": lambda key, value: value / 0}}
        begun(savepoint, tmp_path, visits_graph(), migrations=Migrations(broken))


def test_migrations_that_are_no_functions_are_refused_at_once() -> None:
    for wrong in ({"visits": {}}, {"visits": 3}, [("visits", str)], {"visits": {"last": "str"}}):
        with pytest.raises(SettingsError, match="expected for each uid a function, or functions by"):
            cc.Settings(migrate_state=wrong)  # type: ignore[arg-type]


def test_a_union_state_is_each_tasks_own_at_the_same_parallelism_as_after_any_start(tmp_path: Path) -> None:
    store, graph = open_store(str(tmp_path / "job")), everywhere_graph()
    batches = {0: Batch([1, 2]), 1: Batch([3])}
    checkpoint, claim = job_in(store, graph, "everywhere", batches)
    write_savepoint(tmp_path / "savepoint", checkpoint, claim, store.read_part)
    found = state_in(begun(tmp_path / "savepoint", tmp_path, graph), "everywhere", "seen")
    assert {index: sorted(rows.values()) for index, rows in found.items()} == {0: [1, 2], 1: [3]}


# State, looked at.


def test_state_is_shown_as_a_table_with_what_is_left_out(savepoint: Path, tmp_path: Path) -> None:
    for path in (savepoint, tmp_path / "job", f"{tmp_path / 'job'}@7"):
        lines = [line.split() for line in told("state", path, "visits", "--state", "last").splitlines()]
        assert lines[0] == ["state", "key", "value"]
        assert sorted(lines[1:]) == [["last", f'"{key}"', str(n)] for key, n in sorted(LAST.items())]
    shown = told("state", savepoint, "visits", "--limit", 2)
    assert len(shown.splitlines()) == 5 and "7 more of 9 rows; --limit, or --json for all" in shown


def test_state_is_told_in_lines_of_json_of_one_key_or_of_all(savepoint: Path) -> None:
    lines = told("state", savepoint, "visits", "--json").splitlines()
    assert len(lines) == 9
    of_ann = told("state", savepoint, "visits", "--json", "--key", "ann").splitlines()
    group = key_group("ann", 16)
    assert sorted(map(json.loads, of_ann), key=lambda row: str(row["state"])) == [
        {"state": "event timers", "key_group": group, "key": "ann", "name": 1000, "value": 0},
        {"state": "last", "key_group": group, "key": "ann", "value": 4},
        {"state": "pages", "key_group": group, "key": "ann", "value": [3, 4]},
    ]
    assert told("state", savepoint, "visits", "--json", "--key", '"ann"', "--limit", 1).count("\n") == 1


def test_what_is_not_there_is_told_with_what_there_is(savepoint: Path, tmp_path: Path) -> None:
    assert "without an operator 'visit'; it has 'clicks', " in told("state", savepoint, "visit", code=2)
    assert "has no state 'first'; it has 'event timers', 'last', 'pages'" in (
        told("state", savepoint, "visits", "--state", "first", code=2)
    )
    assert "operator 'visits' has no state of key zoe" in told("state", savepoint, "visits", "--key", "zoe")
    assert "operator 'clicks' has no state" in told("state", savepoint, "clicks")


def test_a_job_is_asked_for_the_values_of_its_newest_checkpoint(tmp_path: Path) -> None:
    store, graph = open_store(str(tmp_path / "job")), visits_graph()
    with pytest.raises(CheckpointError, match="no completed checkpoint yet"):
        newest_values(store, graph, "visits", "last")
    checkpoint, _ = job_in(store, graph, "visits", visits_by_task(graph))
    assert newest_values(store, graph, "visits", "last") == LAST
    assert newest_values(store, graph, "visits", "pages")["ann"] == [3, 4]
    assert newest_values(store, graph, "visits", "event timers")["ann"] == {1000: 0}
    with pytest.raises(FlowError, match="has no state ''"):
        newest_values(store, graph, "visits", "")
    # Retention has taken the parts of the one that was the newest when it was asked.
    gone = replace(
        checkpoint,
        checkpoint_id=CheckpointId(6),
        snapshots=tuple(map(without_its_parts, checkpoint.snapshots)),
    )
    late = Late(store, [gone])
    assert newest_values(late, graph, "visits", "last") == LAST  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="missing"):
        newest_values(Late(store, [gone] * 99), graph, "visits", "last")  # type: ignore[arg-type]


def without_its_parts(one: TaskSnapshot) -> TaskSnapshot:
    parts = tuple(replace(part, path="parts/6/gone", inline="") for part in one.snapshot.parts)
    return replace(one, snapshot=replace(one.snapshot, parts=parts))


class Late:
    """A store whose newest checkpoint was another one when it was first asked."""

    def __init__(self, store: CheckpointStore, before: list[CheckpointCompleted]) -> None:
        self._store, self._before = store, before
        self.read_part = store.read_part

    def tail(self, checkpoints: int) -> list[Any]:
        found = self._store.tail(checkpoints)
        return [(LogIndex(1, 1), self._before.pop(0))] if self._before else found
