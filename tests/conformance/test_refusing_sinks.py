"""A sink with a place for refused records conforms as the sink alone does: none lost, none twice (P6)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest

import crosscut as cc
from crosscut.connectors.files.jsonl import write_jsonl
from crosscut.contracts.connectors import (
    HAS_NO_RECORDS,
    JSON,
    CommitPermit,
    CommittedOutput,
    Sink,
    SinkContext,
    SinkWriter,
)
from crosscut.contracts.refused_records import SinkWithDeadLetters
from crosscut.errors import ConnectorError, FlowError, RefusedRecordError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId
from crosscut.graph.identity import identity_of
from crosscut.testing.sink_refusals import (
    check_a_refused_record_never_gets_past_prepare,
    check_prepared_records_can_be_shown,
    check_the_others_are_written_if_refused_records_are_set_aside,
)
from crosscut.testing.sink_targets import LINEAGE, unrecovered_writer
from crosscut.testing.sinks import SINK_CHECKS, SinkTarget, open_writer, permit, stage

Check = Callable[[SinkTarget], None]


@dataclass(frozen=True)
class Refusing(Sink[Any]):
    """Writes to `sink`, but refuses one record in four when it is written, and one when it is prepared."""

    sink: Sink[Any]

    def writer(self, context: SinkContext) -> SinkWriter:
        return RefusingWriter(self.sink.writer(context))

    def committed(self) -> Sequence[CommittedOutput]:
        return self.sink.committed()


class RefusingWriter(SinkWriter):
    def __init__(self, inner: SinkWriter) -> None:
        self.inner = inner
        self.open: list[Any] = []

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self.inner.recover(permit, [one for one in handles if one != "all refused"])

    def begin_attempt(self, handles: Sequence[JSON]) -> None:
        self.inner.begin_attempt([one for one in handles if one != "all refused"])

    def write(self, records: list[Any]) -> None:
        for record in records:
            if record["number"] % 4 == 1:
                self.refuse(record, "odd")
            else:
                self.open.append(record)

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        if not self.open:
            return None
        records, self.open = self.open, []
        return checkpoint_id, records

    def prepare(self, transaction: Any) -> JSON:
        checkpoint_id, records = transaction
        taken = []
        for record in records:
            if record["number"] % 4 == 3:
                self.refuse(record, "found out late")
            else:
                taken.append(record)
        if not taken:
            return "all refused"
        self.inner.write(taken)
        return self.inner.prepare(self.inner.rotate(checkpoint_id))

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        self.inner.commit(permit, [one for one in handles if one != "all refused"])

    def abort(self, handles: Sequence[JSON]) -> None:
        self.inner.abort([one for one in handles if one != "all refused"])

    def sweep(self) -> None:
        self.inner.sweep()

    def close(self) -> None:
        self.inner.close()


def lines(directory: Path) -> list[Any]:
    return [
        orjson.loads(line)
        for file in sorted(directory.glob("*.jsonl"))
        for line in file.read_bytes().splitlines()
    ]


def files_target(directory: Path) -> SinkTarget:
    good, bad = directory / "good", directory / "bad"

    def visible() -> list[Any]:
        found = [*lines(good), *(one["record"] for one in lines(bad))]
        return sorted(found, key=lambda one: one["number"])

    return SinkTarget(
        SinkWithDeadLetters(Refusing(write_jsonl(good)), write_jsonl(bad)), visible, lambda i: {"number": i}
    )


def refused_number(letter: cc.DeadLetter) -> tuple[int]:
    return (letter.record["number"],)


def tables_target(directory: Path) -> SinkTarget:
    """Both hold their records in the snapshot."""
    database = directory / "rows.db"

    def visible() -> list[Any]:
        with sqlite3.connect(database) as connection:
            tables = [
                name for (name,) in connection.execute("select name from sqlite_master where type='table'")
            ]
            numbers = [
                number
                for table in ("good", "bad")
                if table in tables
                for (number,) in connection.execute(f"select number from {table}")
            ]
        return [{"number": one} for one in sorted(numbers)]

    good = cc.sqlite.sink(database, "good", {"number": "integer"})
    bad = cc.sqlite.sink(database, "bad", {"number": "integer"}, row=refused_number)
    return SinkTarget(SinkWithDeadLetters(Refusing(good), bad), visible, lambda i: {"number": i})


@pytest.mark.parametrize("make", [files_target, tables_target])
@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_records_and_dead_letters_conform_together(
    check: Check, make: Callable[[Path], SinkTarget], tmp_path: Path
) -> None:
    check(make(tmp_path))


def test_without_a_place_for_them_a_refused_record_fails_before_its_checkpoint_is_complete(
    tmp_path: Path,
) -> None:
    sink = Refusing(write_jsonl(tmp_path))
    writer = open_writer(sink, 1)
    with pytest.raises(RefusedRecordError, match=r"record \{'number': 1\} is refused: odd"):
        writer.write([{"number": 1}])
    writer.write([{"number": 3}])
    transaction = writer.rotate(CheckpointId(1))
    with pytest.raises(RefusedRecordError, match=r"record \{'number': 3\} is refused: found out late"):
        writer.prepare(transaction)
    writer.close()


def test_a_letter_names_record_reason_and_sink(tmp_path: Path) -> None:
    sink = SinkWithDeadLetters(Refusing(write_jsonl(tmp_path / "good")), write_jsonl(tmp_path / "bad"))
    writer = open_writer(sink, 1, sink_uid="orders")
    writer.commit(permit(1), [stage(writer, [{"number": 1}], 1)])
    writer.close()
    (letter,) = lines(tmp_path / "bad")
    assert (letter["record"], letter["error"], letter["operator"]) == ({"number": 1}, "odd", "orders")


def test_a_record_that_the_dead_letters_can_not_hold_either_is_written_as_its_repr(tmp_path: Path) -> None:
    sink = SinkWithDeadLetters(Refusing(write_jsonl(tmp_path / "good")), write_jsonl(tmp_path / "bad"))
    writer = open_writer(sink, 1)
    writer.commit(permit(1), [stage(writer, [{"number": 1, "what": object}], 1)])
    writer.close()
    (letter,) = lines(tmp_path / "bad")
    assert letter["record"] == "{'number': 1, 'what': <class 'object'>}"


def test_a_job_that_has_run_without_dead_letters_goes_on_with_them(tmp_path: Path) -> None:
    """The way out for a job whose sink refuses a record: what it has staged is committed as it is."""
    good = write_jsonl(tmp_path / "good")
    writer = open_writer(good, 1)
    handle = stage(writer, [{"number": 0}], 1)
    writer.close()
    sink = SinkWithDeadLetters(Refusing(good), write_jsonl(tmp_path / "bad"))
    successor = open_writer(sink, 2, restore=1, handles=[handle])
    successor.commit(permit(2, 2), [stage(successor, [{"number": 1}, {"number": 2}], 2)])
    successor.close()
    assert [one["number"] for one in lines(tmp_path / "good")] == [0, 2]
    assert [one["record"]["number"] for one in lines(tmp_path / "bad")] == [1]


def test_in_all_that_a_job_knows_it_by_a_sink_with_dead_letters_is_the_sink(tmp_path: Path) -> None:
    def identity(**dead_letters: Any) -> Any:
        flow = cc.Flow("orders")
        flow.source(cc.items([1])).sink(write_jsonl(tmp_path / "good"), **dead_letters)
        return identity_of(flow.compile(1, 8))

    assert identity() == identity(dead_letters=write_jsonl(tmp_path / "bad"))


def test_a_sink_that_can_not_be_part_of_the_same_commit_is_refused_when_the_flow_is_built(
    tmp_path: Path,
) -> None:
    stream = cc.Flow("orders").source(cc.items([1]))
    with pytest.raises(FlowError, match=r"dead_letters: expected a crosscut\.Sink"):
        stream.sink(write_jsonl(tmp_path), dead_letters="bad")  # type: ignore[arg-type]


class AtCommit(RefusingWriter):
    """Its system answers only when the records are there for all to see, as a webhook does."""

    posted: ClassVar[list[Any]] = []
    fails: ClassVar[bool] = False

    def __init__(self) -> None:
        self.open: list[Any] = []
        self.answered: list[Any] = []

    def write(self, records: list[Any]) -> None:
        self.open += records

    def prepare(self, transaction: Any) -> JSON:
        n, records = transaction
        return {"n": n, "records": records}

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self.post(handles)

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        self.post(handles)

    def post(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            for record in handle["records"]:
                if record in self.answered:
                    continue
                self.answered.append(record)
                if record["number"] % 4 == 1:
                    self.refuse(record, "answered 422")
                else:
                    self.posted.append(record)
        if handles and self.fails:
            raise ConnectorError("no answer")

    def close(self) -> None: ...


@dataclass(frozen=True)
class Hook(Sink[Any]):
    def writer(self, context: SinkContext) -> SinkWriter:
        return AtCommit()


def test_what_is_refused_at_commit_becomes_a_letter_too_and_the_job_goes_on(tmp_path: Path) -> None:
    AtCommit.posted, AtCommit.fails = [], False
    sink = SinkWithDeadLetters(Hook(), write_jsonl(tmp_path))
    writer = open_writer(sink, 1)
    writer.commit(permit(1), [stage(writer, [{"number": 0}, {"number": 1}], 1)])
    second = stage(writer, [{"number": 5}, {"number": 6}], 2)
    writer.close()
    # The second one is refused while it is committed again, after a failure.
    open_writer(sink, 2, restore=2, handles=[second]).close()
    assert [one["number"] for one in AtCommit.posted] == [0, 6]
    assert [one["record"]["number"] for one in lines(tmp_path)] == [1, 5]


def test_a_commit_that_fails_after_a_refusal_keeps_the_letter_for_the_next_attempt(tmp_path: Path) -> None:
    AtCommit.posted, AtCommit.fails = [], True
    writer = open_writer(SinkWithDeadLetters(Hook(), write_jsonl(tmp_path)), 1)
    handle = stage(writer, [{"number": 1}], 1)
    with pytest.raises(ConnectorError, match="no answer"):
        writer.commit(permit(1), [handle])
    assert lines(tmp_path) == [], "the outcome of the commit is not known yet"
    AtCommit.fails = False
    writer.commit(permit(1), [handle])
    writer.close()
    assert [one["record"]["number"] for one in lines(tmp_path)] == [1]


def letters_in_table(database: Path) -> list[int]:
    with sqlite3.connect(database) as connection:
        return [number for (number,) in connection.execute("select number from bad order by number")]


def test_letters_of_a_restored_checkpoint_are_written_although_its_marker_is_there(tmp_path: Path) -> None:
    """P6, F1: the process died after its checkpoint was complete, before any of it was posted."""
    AtCommit.posted, AtCommit.fails = [], False
    database = tmp_path / "rows.db"
    bad = cc.sqlite.sink(database, "bad", {"number": "integer"}, row=refused_number)
    sink = SinkWithDeadLetters(Hook(), bad)
    writer = open_writer(sink, 1)
    handle = stage(writer, [{"number": 0}, {"number": 1}], 1)
    writer.close()
    writer = open_writer(sink, 2, restore=1, handles=[handle])
    assert letters_in_table(database) == [1]
    later = stage(writer, [{"number": 5}], 2)
    writer.commit(permit(2, 2), [later])
    third = stage(writer, [{"number": 9}], 3)
    writer.close()
    # And again, in an epoch that finds the markers of those before.
    open_writer(sink, 3, restore=3, handles=[third]).close()
    assert letters_in_table(database) == [1, 5, 9]


class FailsOnce(Sink[Any]):
    """Its first commit fails, after it has staged."""

    def __init__(self, sink: Sink[Any]) -> None:
        self.sink = sink
        self.fails = True

    def writer(self, context: SinkContext) -> SinkWriter:
        writer = self.sink.writer(context)
        commit = writer.commit

        def failing(permit: CommitPermit, handles: Sequence[JSON]) -> None:
            fails, self.fails = self.fails and bool(handles), False if handles else self.fails
            commit(permit, handles)
            if fails:
                raise ConnectorError("the answer is lost")

        writer.commit = failing  # type: ignore[method-assign]
        return writer


def test_letters_of_a_commit_whose_answer_is_lost_are_not_written_twice(tmp_path: Path) -> None:
    AtCommit.posted, AtCommit.fails = [], False
    context = SinkContext(Lineage(LINEAGE), Epoch(1), TaskId(VertexId("v"), 0), "out")
    writer = SinkWithDeadLetters(Hook(), FailsOnce(write_jsonl(tmp_path))).writer(context)
    writer.recover(None, [])
    handle = stage(writer, [{"number": 1}], 1)
    with pytest.raises(ConnectorError, match="the answer is lost"):
        writer.commit(permit(1), [handle])
    writer.commit(permit(1), [handle])
    writer.close()
    assert [one["record"]["number"] for one in lines(tmp_path)] == [1]


def test_a_sink_with_the_longest_uid_has_dead_letters(tmp_path: Path) -> None:
    """P6: letters have writers of their own, whose uids are no longer, and differ."""
    AtCommit.posted, AtCommit.fails = [], False
    uids = ["a" * 63 + "b", "a" * 63 + "c"]
    for uid in uids:
        writer = open_writer(SinkWithDeadLetters(Hook(), write_jsonl(tmp_path)), 1, sink_uid=uid)
        writer.commit(permit(1), [stage(writer, [{"number": 1}], 1)])
        writer.close()
        sink = SinkWithDeadLetters(Refusing(write_jsonl(tmp_path / "good")), write_jsonl(tmp_path))
        writer = open_writer(sink, 1, sink_uid=uid)
        writer.commit(permit(1), [stage(writer, [{"number": 3}], 1)])
        writer.close()
    assert sorted((one["operator"], one["record"]["number"]) for one in lines(tmp_path)) == [
        (uid, number) for uid in uids for number in (1, 3)
    ]


class AtOnce(SinkWriter):
    """Shows everything in `write`, so it never has a transaction."""

    def __init__(self, shown: list[Any]) -> None:
        self.shown = shown

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        assert not handles

    def begin_attempt(self, handles: Sequence[JSON]) -> None: ...

    def write(self, records: list[Any]) -> None:
        self.shown += records

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        return None

    def prepare(self, transaction: Any) -> JSON:
        raise AssertionError("there is no transaction")

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        assert not handles


def test_letters_may_go_to_a_sink_that_never_has_a_transaction(tmp_path: Path) -> None:
    AtCommit.posted, AtCommit.fails = [], False
    shown: list[Any] = []

    class Showing(Sink[Any]):
        def writer(self, context: SinkContext) -> SinkWriter:
            return AtOnce(shown)

    context = SinkContext(Lineage(LINEAGE), Epoch(1), TaskId(VertexId("v"), 0), "out")
    for sink in (Refusing(write_jsonl(tmp_path)), Hook()):
        writer = SinkWithDeadLetters(sink, Showing()).writer(context)
        writer.recover(None, [])
        writer.commit(permit(1), [stage(writer, [{"number": 1}], 1)])
        writer.close()
        writer = SinkWithDeadLetters(sink, Showing()).writer(replace(context, epoch=Epoch(2)))
        writer.recover(permit(1, 2), [])
        writer.close()
    assert [one.record["number"] for one in shown] == [1, 1]


def test_an_export_shows_prepared_letters_too(tmp_path: Path) -> None:
    """P6: what is dropped is gone with its letters."""
    sink = SinkWithDeadLetters(Refusing(write_jsonl(tmp_path / "good")), write_jsonl(tmp_path / "bad"))
    writer = open_writer(sink, 1)
    handles = [stage(writer, [{"number": 0}, {"number": 1}], 1), stage(writer, [{"number": 5}], 2)]
    writer.close()
    looking = SinkWithDeadLetters(write_jsonl(tmp_path / "good"), write_jsonl(tmp_path / "bad"))
    found = list(unrecovered_writer(looking, 1).pending_records(handles))
    assert [one.get("dead letter", one)["records"] for one in found] == [1, 1, 1]
    assert ["dead letter" in one for one in found] == [False, True, True]


def refusing_target(directory: Path) -> SinkTarget:
    return SinkTarget(
        Refusing(write_jsonl(directory)),
        lambda: lines(directory),
        lambda i: {"number": 4 * i},
        refused=lambda i: {"number": 4 * i + 1 + 2 * (i % 2)},
    )


@pytest.mark.parametrize(
    "check",
    [
        check_a_refused_record_never_gets_past_prepare,
        check_the_others_are_written_if_refused_records_are_set_aside,
    ],
)
def test_the_suite_takes_a_sink_that_refuses_early_and_finds_one_that_does_not(
    check: Check, tmp_path: Path
) -> None:
    check(refusing_target(tmp_path / "refusing"))
    plain = replace(refusing_target(tmp_path / "plain"), sink=write_jsonl(tmp_path / "plain"))
    with pytest.raises(AssertionError):
        check(plain)


def test_the_suite_finds_a_sink_that_shows_other_records_than_it_has_prepared(tmp_path: Path) -> None:
    shown = replace(refusing_target(tmp_path), sink=Shown(write_jsonl(tmp_path)), shown=lambda record: record)
    with pytest.raises(AssertionError, match="shown"):
        check_prepared_records_can_be_shown(shown)


@dataclass(frozen=True)
class Shown(Sink[Any]):
    sink: Sink[Any]

    def writer(self, context: SinkContext) -> SinkWriter:
        writer = self.sink.writer(context)
        writer.pending_records = lambda handles: handles  # type: ignore[method-assign]
        return writer


def test_what_is_known_to_be_committed_is_said_of_the_records_and_not_of_the_letters(tmp_path: Path) -> None:
    """P7: most transactions have no letters, so a marker of letters that is older is no loss."""
    permits: dict[str, list[CommitPermit | None]] = {"good": [], "bad": []}

    class Noting(Sink[Any]):
        def __init__(self, name: str) -> None:
            self.name = name
            self.sink = write_jsonl(tmp_path / name)

        def writer(self, context: SinkContext) -> SinkWriter:
            writer = Refusing(self.sink).writer(context)
            recover, commit = writer.recover, writer.commit

            def noted(call: Callable[..., None]) -> Callable[..., None]:
                def noting(permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
                    permits[self.name].append(permit)
                    call(permit, handles)

                return noting

            writer.recover, writer.commit = noted(recover), noted(commit)  # type: ignore[method-assign]
            return writer

    context = SinkContext(Lineage(LINEAGE), Epoch(1), TaskId(VertexId("v"), 0), "out")
    writer = SinkWithDeadLetters(Noting("good"), write_jsonl(tmp_path / "bad")).writer(context)
    writer.recover(permit(1, committed=1), [])
    only_letters = stage(writer, [{"number": 1}], 2)
    assert isinstance(only_letters, dict) and HAS_NO_RECORDS in only_letters
    with_records = stage(writer, [{"number": 2}, {"number": 5}], 3)
    assert isinstance(with_records, dict) and HAS_NO_RECORDS not in with_records
    writer.commit(permit(3, committed=1), [only_letters, with_records])
    writer.close()
    assert [one.committed for one in permits["good"] if one is not None] == [1, 1]
    permits["good"].clear()
    writer = SinkWithDeadLetters(write_jsonl(tmp_path / "others"), Noting("bad")).writer(context)
    writer.recover(permit(3, committed=3), [])
    writer.commit(permit(4, committed=3), [])
    writer.close()
    assert [one.committed for one in permits["bad"] if one is not None] == [0, 0]


def test_a_file_sink_shows_where_its_staged_files_are(tmp_path: Path) -> None:
    writer = open_writer(write_jsonl(tmp_path), 1)
    handle = stage(writer, [{"number": 1}, {"number": 2}], 1)
    writer.close()
    looking = unrecovered_writer(write_jsonl(tmp_path), 1)
    (file,) = looking.pending_records([handle])
    assert file["records"] == 2
    assert [orjson.loads(one) for one in Path(file["staged"]).read_bytes().splitlines()] == [
        {"number": 1},
        {"number": 2},
    ]
    open_writer(write_jsonl(tmp_path), 2, restore=1, handles=[handle]).close()
    assert Path(file["final"]).exists()
