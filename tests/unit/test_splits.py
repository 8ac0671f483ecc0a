"""The splits of a source task: read in turn, some open at a time, positions of exactly what is left."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.errors import ConnectorError, UserCodeError
from crosscut.foundation.ids import CheckpointId, TaskId, VertexId
from crosscut.net.causes import failure_cause
from crosscut.protocol.messages import SplitAssignment
from crosscut.task import splits as splits_module
from crosscut.task.splits import (
    EMPTY_READS_MIN,
    LAG_MAX,
    SplitQueue,
    check_shares,
    checked_splits,
    split_as_json,
    splits_from_json,
)
from crosscut.wire.frames import CONTROL_LIMITS, FrameType


@dataclass
class Scripted(Source):
    """Splits that say what their script says: a record, a Wait, or the end once it is over.

    A position is the number of lines of the script that were read.
    """

    scripts: dict[str, list[Any]]
    endless: bool = False
    opened: list[tuple[str, JSON]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(name, 0, {"of": name}, 3) for name in self.scripts]

    def reader(self, split: Split, position: JSON) -> SplitReader:
        assert isinstance(position, int)
        self.opened.append((split.split_id, position))
        return ScriptedReader(self, split.split_id, position)

    @property
    def open_count(self) -> int:
        return len(self.opened) - len(self.closed)


class ScriptedReader(SplitReader):
    def __init__(self, source: Scripted, name: str, position: int) -> None:
        self._source = source
        self._name = name
        self._at = position

    @property
    def position(self) -> JSON:
        return self._at

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        script = self._source.scripts[self._name]
        if self._at == len(script):
            return Wait(5.0) if self._source.endless else EndOfSplit()
        if isinstance(script[self._at], Wait):
            self._at += 1
            return script[self._at - 1]
        records: list[Any] = []
        while self._at < len(script) and len(records) < limit and not isinstance(script[self._at], Wait):
            records.append(script[self._at])
            self._at += 1
        return records

    def close(self) -> None:
        self._source.closed.append(self._name)


def queue_of(source: Scripted) -> SplitQueue:
    return SplitQueue(source, [(split, split.start) for split in source.splits(1)])


def positions(queue: SplitQueue) -> dict[str, JSON]:
    return {split.split_id: position for split, position in splits_from_json(queue.positions())}


def drained(queue: SplitQueue, limit: int = 10) -> list[Any]:
    """Read until the queue is drained, and return what each read gave."""
    answers: list[Any] = []
    while not queue.is_drained:
        answers.append(queue.read(limit))
    return answers


def test_splits_are_read_in_turn_at_most_limit_records_at_a_time() -> None:
    queue = queue_of(Scripted({"a": [1, 2, 3], "b": [10, 20]}))
    assert drained(queue, 2) == [[1, 2], [10, 20], [3], Wait(0)]


def test_without_splits_it_is_drained_from_the_start() -> None:
    queue = SplitQueue(Scripted({}), [])
    assert queue.is_drained
    assert (queue.read(10), queue.positions()) == (Wait(0), [])


def test_many_splits_are_all_read_with_few_of_them_open() -> None:
    source = Scripted({f"split {number}": [number] for number in range(50)})
    queue, records = queue_of(source), []
    while not queue.is_drained:
        found = queue.read(10)
        records += found if isinstance(found, list) else []
        assert source.open_count <= source.open_splits_max
    assert sorted(records) == list(range(50))
    assert sorted(source.closed) == sorted(source.scripts)


def test_empty_splits_cost_no_read_of_their_own() -> None:
    source = Scripted({f"split {number}": [] for number in range(20)} | {"last": [1]})
    assert queue_of(source).read(10) == [1]


def test_when_all_splits_wait_the_shortest_wait_is_returned() -> None:
    queue = queue_of(Scripted({"a": [Wait(7.0), 1], "b": [Wait(3.0), 2], "c": [Wait(5.0)]}))
    assert queue.read(10) == Wait(3.0)
    assert [queue.read(10), queue.read(10)] == [[1], [2]]


def test_a_split_with_records_is_read_although_others_wait() -> None:
    queue = queue_of(Scripted({"a": [Wait(7.0)], "b": [2]}))
    assert queue.read(10) == [2]


def test_endless_splits_that_have_nothing_do_not_keep_others_from_being_read() -> None:
    source = Scripted({f"split {number}": [number] for number in range(20)}, endless=True)
    queue = queue_of(source)
    records = [record for _ in range(40) if isinstance(found := queue.read(1), list) for record in found]
    assert sorted(records) == list(range(20))
    assert queue.read(1) == Wait(5.0)


def test_positions_are_those_of_the_unfinished_splits_opened_or_not() -> None:
    source = Scripted({name: [name, name] for name in "abcdef"})
    queue = queue_of(source)
    queue.read(1)  # of a
    queue.read(2)  # all of b
    for _ in range(3):
        queue.read(1)  # of c, d, a
    assert positions(queue) == {"a": 2, "b": 2, "c": 1, "d": 1, "e": 0, "f": 0}
    queue.read(1)  # of c: only now b turns out to be over, and e is opened
    assert positions(queue) == {"a": 2, "c": 2, "d": 1, "e": 0, "f": 0}


@pytest.mark.parametrize("reads", range(12))
def test_a_queue_made_from_the_positions_reads_exactly_the_rest(reads: int) -> None:
    scripts = {"a": [1, Wait(1.0), 2, 3], "b": [], "c": [10], "d": [20, 30], "e": [40], "f": [50]}
    source = Scripted(scripts)
    queue, before = queue_of(source), []
    for _ in range(reads):
        found = queue.read(1)
        before += found if isinstance(found, list) else []
    restored = SplitQueue(source, splits_from_json(queue.positions()))
    after = [one for found in drained(restored, 1) if isinstance(found, list) for one in found]
    assert sorted(before + after) == [1, 2, 3, 10, 20, 30, 40, 50]


def test_close_closes_every_open_reader_once() -> None:
    source = Scripted({name: [1, 2] for name in "abcdef"})
    queue = queue_of(source)
    queue.read(1)
    queue.close()
    queue.close()
    assert sorted(source.closed) == ["a", "b", "c", "d"]


def test_a_reader_that_returns_something_else_is_named() -> None:
    class Wrong(ScriptedReader):
        def read(self, limit: int) -> Any:
            return (1, 2)

    class WrongSource(Scripted):
        def reader(self, split: Split, position: JSON) -> SplitReader:
            return Wrong(self, split.split_id, 0)

    with pytest.raises(ConnectorError, match="split 'a' returned a tuple: expected a list of records"):
        queue_of(WrongSource({"a": []})).read(1)


def test_a_reader_that_returns_an_empty_list_is_asked_again_later() -> None:
    class Hesitant(ScriptedReader):
        def read(self, limit: int) -> Any:
            return []

    class HesitantSource(Scripted):
        def reader(self, split: Split, position: JSON) -> SplitReader:
            return Hesitant(self, split.split_id, 0)

    queue = queue_of(HesitantSource({"a": []}))
    assert queue.read(1) == Wait(1.0)
    assert not queue.is_drained


def test_a_reader_that_gives_nothing_but_empty_lists_is_named_until_it_gives_something() -> None:
    class Slow(ScriptedReader):
        reads = 0

        def read(self, limit: int) -> Any:
            self.reads += 1
            return [] if self.reads % (EMPTY_READS_MIN + 2) else [1]

    class SlowSource(Scripted):
        def reader(self, split: Split, position: JSON) -> SplitReader:
            return Slow(self, split.split_id, 0) if split.split_id == "b" else super().reader(split, position)

    queue = queue_of(SlowSource({"a": [], "b": []}, endless=True))
    for _ in range(EMPTY_READS_MIN):
        assert queue.empty_split == ""
        queue.read(1)
    assert queue.empty_split == "b"
    queue.read(1)
    assert queue.read(1) == [1]
    assert queue.empty_split == ""


class Unopenable(Scripted):
    error: BaseException

    def reader(self, split: Split, position: JSON) -> SplitReader:
        if split.split_id == "b":
            raise self.error
        return super().reader(split, position)


def unopenable(error: BaseException) -> Unopenable:
    source = Unopenable({"a": [], "b": [1]})
    source.error = error
    return source


def test_a_reader_that_the_users_code_can_not_open_names_its_split_and_no_record() -> None:
    queue = SplitQueue(unopenable(KeyError("offset")), [(Split("b", 0), 17)], "numbers")
    with pytest.raises(UserCodeError) as caught:
        queue.read(1)
    cause = failure_cause(caught.value)
    assert cause.message == "source 'numbers': split 'b' can't be opened at position 17: KeyError: 'offset'"
    assert (cause.kind, cause.operator, cause.record) == ("KeyError", "numbers", "")
    assert "in reader\n    raise self.error" in cause.traceback


def test_a_reader_that_can_not_be_opened_names_its_split_beside_the_connectors_own_words() -> None:
    source = unopenable(ConnectorError("file x is gone", path="x"))
    queue = SplitQueue(source, [(split, split.start) for split in source.splits(1)], "lines")
    message = "source 'lines': split 'b' can't be opened: file x is gone"
    with pytest.raises(ConnectorError, match=message) as caught:
        queue.read(1)
    assert caught.value.ids == {"path": "x"}
    # What could not be opened is not read, so it is not lost either.
    assert positions(queue) == {"a": 0, "b": 0}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "splits() returned None: expected a list of crosscut.Split"),
        (["a"], "returned 'a' as a split: expected crosscut.Split"),
        ([], "source 'lines' has found nothing to read"),
        ([Split("a", 0), Split("b", 0), Split("a", 5)], "more than one split with the id 'a': an id is"),
        ([Split(str(n % 5), n) for n in range(10)], "with the id '0', '1', '2' and 2 more: an id is"),
    ],
)
def test_what_no_job_can_go_by_is_said_before_it_starts(found: object, message: str) -> None:
    with pytest.raises(ConnectorError, match=re.escape(message)):
        checked_splits(found, "lines")


def test_splits_with_ids_of_their_own_are_taken_as_they_are() -> None:
    found = (Split("a", 0), Split("b", 0))
    assert checked_splits(found, "lines") == list(found)


def test_a_split_becomes_json_and_comes_back_with_its_start_as_position() -> None:
    split = Split("a", {"offset": 3}, ["detail"], 5)
    assert splits_from_json([split_as_json(split)]) == [(split, {"offset": 3})]
    assert splits_from_json(None) == []


@pytest.mark.parametrize("data", [[1], ["abcd"], [["a", 0, None, 1]], 5, [["a", 0, None, 1, 0, 0]]])
def test_positions_that_are_none_are_refused(data: JSON) -> None:
    with pytest.raises(ConnectorError, match="source positions are not readable"):
        splits_from_json(data)


@dataclass
class Listening(Scripted):
    """Notes what it is told of completed checkpoints."""

    heard: list[tuple[str, JSON]] = field(default_factory=list)

    def reader(self, split: Split, position: JSON) -> SplitReader:
        assert isinstance(position, int)
        self.opened.append((split.split_id, position))
        return ListeningReader(self, split.split_id, position)


class ListeningReader(ScriptedReader):
    def acknowledge(self, position: JSON) -> None:
        assert isinstance(self._source, Listening)
        self._source.heard.append((self._name, position))


def test_a_reader_hears_of_what_a_completed_checkpoint_holds_and_never_of_more() -> None:
    source = Listening({"a": [1, 2, 3, 4], "b": [5]}, endless=True)
    queue = queue_of(source)
    queue.read(2)
    queue.freeze(CheckpointId(1))
    queue.read(1)
    queue.read(2)
    queue.freeze(CheckpointId(2))
    assert source.heard == []
    queue.acknowledge(CheckpointId(1))
    assert sorted(source.heard) == [("a", 2), ("b", 0)]
    queue.acknowledge(CheckpointId(2))
    assert sorted(source.heard[2:]) == [("a", 4), ("b", 1)]
    queue.acknowledge(CheckpointId(2))
    assert len(source.heard) == 4


def test_an_aborted_checkpoint_is_never_acknowledged_and_a_closed_reader_hears_nothing() -> None:
    source = Listening({"a": [1, 2], "b": [3, 4]})
    queue = queue_of(source)
    queue.read(1)
    queue.freeze(CheckpointId(1))
    queue.read(2)
    queue.freeze(CheckpointId(2))
    drained(queue)
    queue.acknowledge(CheckpointId(2))
    assert source.heard == []
    queue.acknowledge(CheckpointId(1))
    assert source.heard == []


def test_more_splits_than_fit_into_one_message_are_refused_with_number_and_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(splits_module, "SHARE_BYTES_MAX", 500)
    share: list[JSON] = [split_as_json(Split(f"file-{index}", 0)) for index in range(30)]
    of_both = [SplitAssignment(TaskId(VertexId(vertex), 1), share[:15]) for vertex in ("left", "right")]
    for assignments in ([SplitAssignment(TaskId(VertexId("lines"), 1), share)], of_both):
        with pytest.raises(ConnectorError) as caught:
            check_shares(assignments)
        text = str(caught.value)
        assert text.startswith("worker 1 would get 30 splits") and "at most 500 bytes fit" in text
        fitting = int(text.partition("which is about ")[2].split()[0])
        check_shares([SplitAssignment(TaskId(VertexId("lines"), 0), share[:fitting])])


def test_what_a_share_may_take_leaves_room_in_the_message() -> None:
    assert CONTROL_LIMITS[FrameType.CONTROL] > splits_module.SHARE_BYTES_MAX


@pytest.mark.parametrize(
    ("told", "lag"), [([3, 4], 7), ([10**30, 1], LAG_MAX), ([-5], 0), ([None, "many"], None), ([], None)]
)
def test_a_lag_is_what_readers_know_and_never_more_than_a_report_can_hold(
    monkeypatch: pytest.MonkeyPatch, told: list[Any], lag: int | None
) -> None:
    """What a worker can't report is no reason to take it for lost."""
    queue = queue_of(Scripted({str(index): ["a", "b"] for index in range(len(told))}))
    for _ in told:
        queue.read(1)
    found = iter(told)
    monkeypatch.setattr(ScriptedReader, "lag", property(lambda reader: next(found)))
    assert queue.lag == lag


# Positions that are changed in place.


@dataclass
class InPlace(Source):
    """One split of numbers, whose reader keeps the position that it is given and changes it."""

    acknowledged: list[JSON] = field(default_factory=list)

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split("numbers", {"at": 0})]

    def reader(self, split: Split, position: JSON) -> SplitReader:
        assert isinstance(position, dict)
        return InPlaceReader(self, position)


class InPlaceReader(SplitReader):
    def __init__(self, source: InPlace, position: dict[str, Any]) -> None:
        self._source = source
        self._position = position

    @property
    def position(self) -> JSON:
        return self._position

    def read(self, limit: int) -> list[Any]:
        self._position["at"] += 1
        return [self._position["at"]]

    def acknowledge(self, position: JSON) -> None:
        self._source.acknowledged.append(position)


def test_a_position_that_a_reader_changes_in_place_is_the_one_of_its_moment() -> None:
    source = InPlace()
    (split,) = source.splits(1)
    queue = SplitQueue(source, [(split, split.start)], "numbers")
    queue.record_changes(are_logged=True)
    assert queue.read(1) == [1]
    first = CheckpointId(1)
    frozen = queue.freeze(first)
    assert queue.changes().moved == (("numbers", {"at": 1}),)
    assert queue.read(1) == [2]
    assert queue.changes().moved == (("numbers", {"at": 2}),)
    assert frozen == [["numbers", {"at": 0}, None, 1, {"at": 1}]]
    assert split.start == {"at": 0}
    queue.acknowledge(first)
    assert source.acknowledged == [{"at": 1}]
