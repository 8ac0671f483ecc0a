"""Columns that are counted as they are: which functions take one, and that the results tell nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.proof.batches import FaultProfile, LocalJobs, run_batches

import crosscut as cc
from crosscut.contracts.columns import ITSELF, Column, Field, Rows, field_of
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import Epoch, TaskId, VertexId
from crosscut.graph import combining as rule
from crosscut.graph.combining import combined
from crosscut.graph.specs import SourceSpec
from crosscut.operators import combining as combining_module
from crosscut.operators.combining import ColumnKeys, CombinedCount
from crosscut.spark.data.arrow_records import RecordKind, RecordsOf
from crosscut.store.checkpoint_store import open_store

arrow = pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")

from crosscut.connectors.files.staged_rows import StagedRows, split_of, staged  # noqa: E402

STORM = FaultProfile(doubled=0.3, torn=0.2, lost=0.1)
USERS = [f"user-{number * 7 % 13}" for number in range(300)]
TABLE = arrow.table(
    {
        "user": [None if number % 50 == 3 else user for number, user in enumerate(USERS)],
        "count": [number % 7 for number in range(300)],
        "share": [number % 3 / 2 for number in range(300)],
    }
)


def documented(record: Any) -> Any:
    """Return it."""
    return record


def checked(record: Any) -> Any:
    assert record
    return record


class Called:
    def __call__(self, record: Any) -> Any:
        return record

    def method(self, record: Any) -> Any:
        return record

    def own(self) -> Any:
        return self


@pytest.mark.parametrize(
    ("function", "field"),
    [
        (lambda record: record, ITSELF),
        (documented, ITSELF),
        (lambda record: record["user"], Field("item", "user")),
        (lambda record: record[0], Field("item", 0)),
        (lambda record: record[1_000], Field("item", 1_000)),
        (lambda record: record.user, Field("attribute", "user")),
        (itemgetter("user"), Field("item", "user")),
        (itemgetter(2), Field("item", 2)),
        (attrgetter("user"), Field("attribute", "user")),
    ],
)
def test_a_function_that_takes_one_field_is_known_by_its_code(function: Any, field: Field) -> None:
    assert field_of(function) == field


@pytest.mark.parametrize(
    "function",
    [
        checked,
        str,
        Called(),
        Called().method,
        Called().own,
        lambda record: record[-1],
        lambda record: record[True],
        lambda record: record.user.name,
        lambda record: record["user"]["name"],
        lambda record: record.user(),
        lambda record: (record,),
        lambda record: "all",
        lambda record: USERS,
        lambda record: record + "",
        lambda *records: records,
        lambda record, other=None: record,
        itemgetter(0, 1),
        itemgetter(-1),
        attrgetter("user.name"),
    ],
)
def test_any_other_function_is_called(function: Any) -> None:
    assert field_of(function) is None


def rows_of(kind: RecordKind) -> Rows:
    (batch,) = TABLE.to_batches()
    records = RecordsOf(kind)
    return Rows(batch, 10, 20, records.column_of, records)


@pytest.mark.parametrize(
    ("kind", "field", "name"),
    [
        ("dicts", Field("item", "user"), "user"),
        ("tuples", Field("item", 1), "count"),
        ("rows", Field("item", "user"), "user"),
        ("rows", Field("item", 1), "count"),
        ("rows", Field("attribute", "user"), "user"),
        # A method of each tuple, and so of each row.
        ("rows", Field("attribute", "count"), None),
        ("rows", Field("attribute", "missing"), None),
        ("dicts", Field("item", 0), None),
        ("dicts", Field("attribute", "user"), None),
        ("tuples", Field("item", 3), None),
        ("tuples", ITSELF, None),
        # 0.0 and -0.0 are one key, and NaN is none.
        ("dicts", Field("item", "share"), None),
        ("arrow", ITSELF, None),
    ],
)
def test_a_field_is_a_column_only_if_it_is_what_the_record_has_there(
    kind: RecordKind, field: Field, name: str | None
) -> None:
    rows = rows_of(kind)
    column = rows.column(field)
    if name is None:
        assert column is None
    else:
        assert column is not None
        found = TABLE.column(name).to_pylist()[10:20]
        assert (len(column), list(column)) == (10, found)
        assert dict(column.counted()) == Counter(found)
        take: Callable[[Any], Any] = attrgetter(name) if field.how == "attribute" else itemgetter(field.name)
        assert list(map(take, rows)) == found


def test_columns_that_follow_each_other_are_counted_as_one() -> None:
    (batch,) = TABLE.to_batches()
    column = Column(batch, 0, 10, 20)
    assert column.goes_on_as(Column(batch, 0, 20, 25))
    assert not column.goes_on_as(Column(batch, 0, 26, 30))
    assert not column.goes_on_as(Column(batch, 1, 25, 30))
    assert not column.goes_on_as(Column(TABLE.to_batches()[0], 0, 25, 30))
    assert dict(column.counted()) == Counter(TABLE.column("user").to_pylist()[10:25])


def test_columns_of_several_splits_that_are_read_in_turn_are_counted_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(combining_module, "COLUMNS_MAX", 2)
    tables = [TABLE.slice(0, 100), TABLE.slice(100, 40), TABLE.slice(140, 70), TABLE.slice(210, 90)]
    batches = [one.to_batches()[0] for one in tables]
    count, last = CombinedCount("count", "keys"), max(one.num_rows for one in batches)
    for start in range(0, last, 10):
        for batch in batches:
            if start < batch.num_rows:
                column = Column(batch, 0, start, min(start + 10, batch.num_rows))
                assert not count.process(Batch(column, column)).records
    held = count.take_held()
    found = dict(zip(held.keys or (), held.records, strict=True))
    assert found == Counter(TABLE.column("user").to_pylist()[:300])
    assert not count.take_held().records


# Through the engine.


class Staged(StagedRows):
    """Has been staged before the job began, in three files of several groups."""

    def splits(self, parallelism: int) -> Sequence[cc.Split]:
        open_store(self.store_url)
        found = []
        for part in range(3):
            rows = TABLE.slice(100 * part, 100).to_batches(max_chunksize=30)
            files = staged(
                iter(rows), store_url=self.store_url, task=TaskId(VertexId("in"), part), epoch=Epoch(1)
            )
            found += [split_of(part, one, count) for one, count in files]
        return found


def counting(key: Callable[[Any], Any], kind: RecordKind, directory: Path) -> tuple[cc.Flow, cc.Collect]:
    flow, out = cc.Flow("counting"), cc.collect(directory / "out")
    source = Staged(str(directory / "checkpoints"), RecordsOf(kind))
    flow.source(source).named("in").key_by(key).named("keys").count(emit="final").sink(out)
    return flow, out


def ran(flow: cc.Flow, directory: Path, fault_profile: FaultProfile = STORM) -> Any:
    settings = cc.Settings(
        engine=cc.MicroBatch(records_max=70),
        checkpoint_dir=directory / "checkpoints",
        checkpoint_interval="10ms",
        restart=cc.Restart(failures=3),
    )
    end, _ = run_batches(
        flow.compile(2, 128), settings, lambda made, url: LocalJobs(made, url, Random(4), fault_profile)
    )
    assert end is not None
    return end


def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what becomes the kinds of the keys that tasks make."""
    kinds: list[str] = []
    process = ColumnKeys.process

    def noted(operator: ColumnKeys, batch: Any) -> Any:
        made = process(operator, batch)
        kinds.append(type(made.keys).__name__)
        return made

    monkeypatch.setattr(ColumnKeys, "process", noted)
    return kinds


@pytest.mark.parametrize(
    ("kind", "key", "name", "made"),
    [
        ("dicts", lambda row: row["user"], "user", "Column"),
        ("rows", lambda row: row.user, "user", "Column"),
        ("tuples", itemgetter(1), "count", "Column"),
        ("tuples", lambda row: row[0], "user", "Column"),
        # Keys that equal numbers.
        ("tuples", lambda row: row[1], "count", "Column"),
    ],
)
def test_a_column_is_counted_as_its_records_would_be_whatever_becomes_of_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: RecordKind, key: Any, name: str, made: str
) -> None:
    kinds = seen(monkeypatch)
    expected = Counter(TABLE.column(name).to_pylist())
    flow, out = counting(key, kind, tmp_path / "columns")
    assert ran(flow, tmp_path / "columns").outcome == "finished"
    assert dict(out.records()) == expected
    assert set(kinds) == {made}

    monkeypatch.setattr(rule, "field_of", lambda function: None)
    flow, out = counting(key, kind, tmp_path / "objects")
    assert ran(flow, tmp_path / "objects").outcome == "finished"
    assert dict(out.records()) == expected


def test_what_is_no_column_goes_as_objects_and_fails_as_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = seen(monkeypatch)
    flow, _ = counting(lambda row: row["missing"], "dicts", tmp_path)
    end = ran(flow, tmp_path, FaultProfile())
    assert end.outcome == "failed"
    assert (end.cause.operator, kinds) == ("keys", [])
    assert "KeyError: 'missing'" in end.cause.message

    flow, _ = counting(lambda row: row.count, "rows", tmp_path / "method")
    end = ran(flow, tmp_path / "method", FaultProfile())
    assert end.outcome == "failed"
    assert "can't be a key" in end.cause.message


def test_columns_are_asked_for_only_where_they_are_counted_and_nothing_else(tmp_path: Path) -> None:
    def gives_columns(add: Callable[[cc.Stream[Any]], cc.Stream[Any]]) -> bool:
        flow = cc.Flow("some")
        add(flow.source(StagedRows("", RecordsOf("dicts")))).sink(cc.collect())
        head = combined(flow.compile(2, 128)).vertices[0].chain[0].spec
        assert isinstance(head, SourceSpec)
        return bool(head.source.gives_columns)

    assert gives_columns(lambda rows: rows.key_by(lambda row: row["user"]).count(emit="final"))
    assert not gives_columns(lambda rows: rows.key_by(lambda row: row["user"]).count())
    assert not gives_columns(lambda rows: rows.key_by(lambda row: str(row["user"])).count(emit="final"))
    assert not gives_columns(lambda rows: rows.key_by(lambda row: row["user"]).sum(len, emit="final"))
    assert not gives_columns(
        lambda rows: rows.filter(bool).key_by(lambda row: row["user"]).count(emit="final")
    )


def test_taking_a_function_that_does_something_else_for_a_column_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shortened(row: dict[str, Any]) -> str:
        return str(row["user"])[:6]

    expected = Counter(str(user)[:6] for user in TABLE.column("user").to_pylist())
    flow, out = counting(shortened, "dicts", tmp_path / "as-it-is")
    assert ran(flow, tmp_path / "as-it-is").outcome == "finished"
    assert dict(out.records()) == expected
    monkeypatch.setattr(rule, "field_of", lambda function: Field("item", "user"))
    flow, out = counting(shortened, "dicts", tmp_path / "planted")
    assert ran(flow, tmp_path / "planted").outcome == "finished"
    assert dict(out.records()) != expected


# Files.


@pytest.mark.parametrize("gives_columns", [False, True])
def test_rows_of_several_groups_come_back_from_any_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gives_columns: bool
) -> None:
    monkeypatch.setattr("crosscut.connectors.files.staged_rows.GROUP_ROWS", 4)
    store_url = str(tmp_path)
    open_store(store_url)
    # Few texts, so that they are stored as numbers of a dictionary.
    texts = ["a long text that comes often", "another one, and as long"] * 5
    rows = iter(arrow.table({"text": texts}).to_batches(max_chunksize=3))
    ((part, count),) = staged(rows, store_url=store_url, task=TaskId(VertexId("in"), 0), epoch=Epoch(1))
    source = StagedRows(store_url, RecordsOf("values"), gives_columns=gives_columns)

    def read_from(position: int) -> Iterator[Any]:
        reader = source.reader(split_of(0, part, count), position)
        while not isinstance(some := reader.read(4), cc.EndOfSplit):
            if isinstance(some, Rows):
                assert some.column(ITSELF) is not None
            yield from some if isinstance(some, list) else ()
        assert reader.position == 10
        reader.close()

    for position in range(11):
        assert list(read_from(position)) == texts[position:]
