"""Splits that come while a job runs: who decides what, in which order, and what a checkpoint knows of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.conversation import CAUSE, LINKS, S0, S1, TASKS, Talk, at, coordinator_spec, snapshot

import crosscut as cc
from crosscut.contracts.connectors import JSON, EndOfSplit, Split, SplitReader, Wait
from crosscut.driver.job_spec import assignments
from crosscut.errors import ConnectorError, ProtocolError, UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId, Epoch
from crosscut.graph.explain import explained
from crosscut.monitoring.job_log_lines import Journal
from crosscut.monitoring.slow_discovery import DiscoveryStatus, SplitSearches
from crosscut.operators.time_budget import TimeBudget
from crosscut.operators.timestamps import AssignTimestamps
from crosscut.protocol.effects import (
    AppendEntry,
    CancelTimer,
    FindSplits,
    JobEffect,
    SendMessage,
    StartTimer,
)
from crosscut.protocol.events import (
    DiscoveryFailed,
    EntryAppended,
    LogTailRead,
    SplitsDiscovered,
    SplitsFound,
    StopRequested,
    Timer,
    TimerFired,
)
from crosscut.protocol.job.phases import JobState, Phase
from crosscut.protocol.job.workers import WorkerRegistry
from crosscut.protocol.messages import (
    AssignSplits,
    SnapshotAcknowledged,
    SplitAssignment,
    TriggerCheckpoint,
)
from crosscut.protocol.snapshots import KnownSplits
from crosscut.protocol.splits import discovery as finding
from crosscut.protocol.splits.discovery import SplitDiscovery
from crosscut.task.discovery import KNOWN_BYTES_MAX, checked_discovery, found_first
from crosscut.task.splits import SplitQueue, splits_from_json
from crosscut.testing.sources import check_discovery, check_source, read_source

E1, E2 = Epoch(1), Epoch(2)
SOURCE = S0.vertex
LATER = StartTimer(Timer("find", E1, 0), 500)
TIMEOUT = StartTimer(Timer("find-timeout", E1, 0), 30_000)
ANSWERED = CancelTimer(Timer("find-timeout", E1, 0))


def row(name: str, weight: int = 1, position: JSON = 0) -> list[Any]:
    return [name, 0, None, weight, position]


def running(**terms: Any) -> Talk:
    talk = Talk(dynamic_sources=((SOURCE, 500),), **terms)
    talk.running()
    return talk


def next_epoch(talk: Talk, index: int) -> list[JobEffect]:
    """Fail over; the claim is log entry `index`."""
    talk.failed()
    talk.hear(EntryAppended(at(index)))
    return talk.ready(2)


def assigned(index: int, since: int, *names: str, is_last: bool = False, epoch: Epoch = E1) -> SendMessage:
    task = (S0, S1)[index]
    rows: JSON = [row(name) for name in names]
    return SendMessage(LINKS[index], AssignSplits(epoch, task, CheckpointId(since), rows, is_last))


def test_a_source_is_asked_after_a_while_with_what_it_has_said_last() -> None:
    talk = running()
    assert talk.fire("find") == [FindSplits(E1, SOURCE, None), TIMEOUT]
    found = SplitsFound(E1, SOURCE, [row("a")], {"count": 1})
    assert talk.hear(found) == [ANSWERED, assigned(0, 1, "a"), LATER]
    assert talk.fire("find") == [FindSplits(E1, SOURCE, {"count": 1}), TIMEOUT]


def test_each_split_goes_to_one_task_the_least_loaded_one() -> None:
    talk = running()
    talk.fire("find")
    found = SplitsFound(E1, SOURCE, [row(name) for name in "abc"], 3)
    assert talk.hear(found) == [ANSWERED, assigned(0, 1, "a", "c"), assigned(1, 1, "b"), LATER]
    talk.fire("find")
    assert assigned(1, 1, "d") in talk.hear(SplitsFound(E1, SOURCE, [row("d")], 4))


def test_that_others_are_coming_is_what_the_newest_answer_of_the_epoch_says() -> None:
    talk = running()
    assert not talk.coordinator.searches[0].is_coming
    for says in (True, False, True):
        talk.fire("find")
        talk.hear(SplitsFound(E1, SOURCE, [], 1, is_coming=says))
        assert talk.coordinator.searches[0].is_coming is says
    next_epoch(talk, 2)
    assert not talk.coordinator.searches[0].is_coming, "it is asked at once"


def test_what_has_been_read_to_its_end_weighs_nothing_any_more() -> None:
    talk = running()
    talk.fire("trigger")
    for task in TASKS:
        one = snapshot(task, 1)
        one = replace(one, positions=[row("split 0")] if task == S0 else []) if task in (S0, S1) else one
        talk.message(task.index, SnapshotAcknowledged(E1, CheckpointId(1), task, one))
    talk.hear(EntryAppended(at(2)))
    talk.fire("find")
    assert assigned(1, 2, "a") in talk.hear(SplitsFound(E1, SOURCE, [row("a")], 1))


def test_a_split_that_the_job_has_is_not_given_a_second_time() -> None:
    talk = running()
    talk.fire("find")
    assert talk.hear(SplitsFound(E1, SOURCE, [row("split 1"), row("a")], 1)) == [
        ANSWERED,
        assigned(0, 1, "a"),
        LATER,
    ]
    assert talk.coordinator.dropped["split that the job has already"] == 1


def test_a_checkpoint_of_before_the_source_was_dynamic_says_which_splits_the_job_had() -> None:
    """Asked as at the very first time it would find again what has been read to its end."""
    talk = running()
    talk.complete(1, 2)
    completed = talk.coordinator.completed
    assert completed is not None
    older = tuple(
        replace(one, snapshot=replace(one.snapshot, positions=[row("left")])) if one.task == S0 else one
        for one in completed.snapshots
    )
    talk.coordinator.checkpoints._retention.completed = replace(completed, snapshots=older, known_splits=())
    assert FindSplits(E2, SOURCE, None, frozenset({"left"})) in next_epoch(talk, 3)
    talk.fire("trigger", 2)
    talk.hear(SplitsFound(E2, SOURCE, [], "now it is known"))
    assert not entry_of(talk.acknowledge(2, 2)).known_splits, "it was triggered before"
    talk.hear(EntryAppended(at(4)))
    talk.complete(3, 5, 2)
    assert talk.coordinator.completed is not None
    assert talk.coordinator.completed.known_splits == (
        KnownSplits(SOURCE, "now it is known", has_found=True),
    )
    assert FindSplits(E2, SOURCE, "now it is known") in talk.fire("find", 2)


def test_in_such_a_job_no_split_is_read_a_second_time() -> None:
    both = [Split("a", 0), Split("b", 0)]
    assert found_first(cc.Discovered(both, 2), {"a", "b"}, "words") == cc.Discovered((), 2)
    bounded = cc.Discovered(both, is_last=True)
    assert found_first(bounded, {"b"}, "words") == cc.Discovered((), is_last=True)
    with pytest.raises(ConnectorError, match="does not have 1 that are there, such as 'b'"):
        found_first(cc.Discovered(both, 2), {"a"}, "words")


def entry_of(effects: Sequence[JobEffect]) -> Any:
    (append,) = (one for one in effects if isinstance(one, AppendEntry))
    return append.entry


def test_a_checkpoint_knows_what_was_found_before_it_was_triggered_and_nothing_else() -> None:
    talk = running()
    talk.fire("find")
    assert SendMessage(LINKS[0], TriggerCheckpoint(E1, CheckpointId(1))) in talk.fire("trigger")
    assert assigned(0, 2, "a") in talk.hear(SplitsFound(E1, SOURCE, [row("a")], 1))
    assert entry_of(talk.acknowledge(1)).known_splits == (KnownSplits(SOURCE, None, has_found=True),)
    talk.hear(EntryAppended(at(2)))
    talk.complete(2, 3)
    assert talk.coordinator.completed is not None
    assert talk.coordinator.completed.known_splits == (KnownSplits(SOURCE, 1, has_found=True),)


def test_when_there_will_be_no_others_every_task_is_told_and_nobody_is_asked_again() -> None:
    talk = running()
    talk.fire("find")
    found = SplitsFound(E1, SOURCE, [row("a")], 1, is_last=True)
    assert talk.hear(found) == [
        ANSWERED,
        assigned(0, 1, "a", is_last=True),
        assigned(1, 1, is_last=True),
    ]
    assert talk.fire("find") == []


def test_the_next_epoch_looks_at_once_from_what_its_checkpoint_knows() -> None:
    talk = running()
    talk.fire("find")
    talk.hear(SplitsFound(E1, SOURCE, [row("a")], "in the checkpoint"))
    talk.complete(1, 2)
    talk.fire("find")
    talk.hear(SplitsFound(E1, SOURCE, [row("b")], "found since"))
    effects = next_epoch(talk, 3)
    assert FindSplits(E2, SOURCE, "in the checkpoint") in effects


def test_the_next_epoch_says_again_that_there_will_be_no_others() -> None:
    talk = running()
    talk.fire("find")
    talk.hear(SplitsFound(E1, SOURCE, [], 1, is_last=True))
    talk.complete(1, 2)
    effects = next_epoch(talk, 3)
    for index in (0, 1):
        assert assigned(index, 0, is_last=True, epoch=E2) in effects


def test_an_answer_to_an_older_epoch_is_dropped_and_only_then_the_source_is_asked_again() -> None:
    talk = running()
    talk.fire("find")
    effects = next_epoch(talk, 2)
    assert not any(isinstance(one, FindSplits) for one in effects), "one call at a time"
    assert StartTimer(Timer("find-timeout", E2, 0), 30_000) in effects
    found = SplitsFound(E1, SOURCE, [row("a")], 1)
    assert FindSplits(E2, SOURCE, None) in talk.hear(found)
    assert talk.coordinator.dropped["splits found for another epoch"] == 1
    with pytest.raises(ProtocolError, match="unasked"):
        running().hear(found)


def test_a_source_that_can_not_say_fails_the_job_over_with_its_reason() -> None:
    talk = running()
    talk.fire("find")
    talk.hear(DiscoveryFailed(E1, SOURCE, CAUSE))
    assert talk.coordinator.failures[-1].message == CAUSE.message
    assert talk.coordinator.phase is not Phase.RUNNING


def test_a_source_that_does_not_answer_fails_the_job_over() -> None:
    talk = running()
    talk.fire("find")
    talk.fire("find-timeout")
    assert "has not said within start_timeout=30 s which splits have come" in (
        talk.coordinator.failures[-1].message
    )


def test_a_job_that_stops_takes_no_other_splits() -> None:
    talk = running()
    talk.fire("find")
    talk.hear(StopRequested())
    assert talk.hear(SplitsFound(E1, SOURCE, [row("a")], 1)) == []


def read_to(talk: Talk, n: int, index: int, *unread: str, epoch: Epoch = E1) -> None:
    """Complete checkpoint n, log entry `index`: the first task has `unread`, the second nothing."""
    talk.fire("trigger", epoch)
    for task in TASKS:
        one = snapshot(task, n)
        if task in (S0, S1):
            one = replace(one, positions=[row(name) for name in unread] if task == S0 else [])
        talk.message(task.index, SnapshotAcknowledged(epoch, CheckpointId(n), task, one))
    talk.hear(EntryAppended(at(index)))


def test_a_source_that_finds_more_than_is_read_is_asked_again_when_a_checkpoint_has_less_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finding, "UNREAD_BYTES_MAX", 60)
    talk = running()
    talk.fire("find")
    talk.hear(SplitsFound(E1, SOURCE, [row(name) for name in "abcdef"], 6))
    assert talk.fire("find") == [LATER]
    (search,) = talk.coordinator.searches
    assert (search.call, search.unread_count, search.is_held) == (0, 8, True)
    read_to(talk, 1, 2, "a", "c", "e", "f", "split 0")
    assert talk.fire("find") == [LATER], "half of them are more than enough"
    read_to(talk, 2, 3, "a")
    assert talk.fire("find") == [FindSplits(E1, SOURCE, 6), TIMEOUT]
    (search,) = talk.coordinator.searches
    assert (search.call, search.unread_count, search.is_held) == (2, 1, False)


def test_a_source_of_which_a_restored_checkpoint_has_enough_waits_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk = running()
    read_to(talk, 1, 2, *"abcdef")
    monkeypatch.setattr(finding, "UNREAD_BYTES_MAX", 100)
    effects = next_epoch(talk, 3)
    assert not any(isinstance(one, FindSplits) for one in effects)
    assert StartTimer(Timer("find", E2, 0), 500) in effects
    assert talk.fire("find", 2) == [StartTimer(Timer("find", E2, 0), 500)]
    (search,) = talk.coordinator.searches
    assert search.is_held and search.is_coming, "what reads all there is must not stop before it was asked"
    read_to(talk, 2, 4, "a", epoch=E2)
    talk.fire("find", 2)
    talk.hear(SplitsFound(E2, SOURCE, [], 1))
    assert not talk.coordinator.searches[0].is_coming


def test_without_checkpoints_nobody_knows_what_has_been_read_and_all_that_is_found_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finding, "UNREAD_BYTES_MAX", 10)
    look = TimerFired(Timer("find", E1, 0))
    n, job = CheckpointId(1), JobState(Phase.RUNNING, E1)
    sources, registry = [(SOURCE, 500)], WorkerRegistry(2, 1_000)
    one = SplitDiscovery(sources, 1_000, job, registry, Counter(), is_bounded=False)
    one.begin(E1, None, [], [], 2)
    assert one.handle(look, n, None)[0][0] == FindSplits(E1, SOURCE, None)
    one.handle(SplitsFound(E1, SOURCE, [], 1), n, None)
    one._searches[SOURCE].shares[0] = finding._share([row("a" * 100)])
    assert one.handle(look, n, None)[0][0] == FindSplits(E1, SOURCE, 1)
    bounded = SplitDiscovery(sources, 1_000, job, registry, Counter())
    bounded.begin(E1, None, [], [SplitAssignment(S0, [row("a" * 100)])], 2)
    assert bounded.handle(look, n, None) == ([LATER], None)


def test_only_the_newest_splits_that_have_ended_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "ENDED_IDS_MAX", 2)
    talk = running()
    talk.fire("find")
    talk.hear(SplitsFound(E1, SOURCE, [row(name) for name in "abcdef"], 6))
    read_to(talk, 1, 2, "a")
    talk.fire("find")
    (search,) = talk.coordinator._splits._searches.values()
    assert list(search.ids) == ["a", "e", "f"]
    repeated = SplitsFound(E1, SOURCE, [row(name) for name in "aef"], 6)
    assert talk.hear(repeated) == [ANSWERED, LATER], "one that is read, and the newest that have ended"


def test_answers_between_two_checkpoints_leave_one_thing_that_is_known() -> None:
    talk = running()
    for count in range(1, 50):
        talk.fire("find")
        talk.hear(SplitsFound(E1, SOURCE, [row(f"split {count}")], count))
    (search,) = talk.coordinator._splits._searches.values()
    assert len(search.known) == 2
    assert len(search.assigned) == 2, "one for each task"
    talk.complete(1, 2)
    assert talk.coordinator.completed is not None
    assert talk.coordinator.completed.known_splits == (KnownSplits(SOURCE, 49, has_found=True),)


def test_a_source_that_does_not_answer_is_seen_while_checkpoints_go_on() -> None:
    talk = running()
    searches = SplitSearches()
    second_ns = 1_000_000_000
    assert searches.note(0, talk.coordinator.searches) == []
    talk.fire("find")
    assert searches.note(second_ns, talk.coordinator.searches) == []
    talk.complete(1, 2)
    assert talk.coordinator.completed is not None
    (text,) = searches.note(7 * second_ns, talk.coordinator.searches)
    assert text.startswith("source 'numbers' has not said for 6 s which splits have come")
    assert searches.note(8 * second_ns, talk.coordinator.searches) == [], "once"
    assert searches.status(9 * second_ns) == (DiscoveryStatus(SOURCE, 2, 8.0, is_held=False),)
    talk.hear(SplitsFound(E1, SOURCE, [], 1))
    talk.fire("find")
    assert searches.note(10 * second_ns, talk.coordinator.searches) == [], "another call"
    assert searches.status(12 * second_ns)[0].unanswered_seconds == 2.0


def test_a_source_that_is_not_asked_any_more_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = running()
    searches = SplitSearches()
    monkeypatch.setattr(finding, "UNREAD_BYTES_MAX", 10)
    (text,) = searches.note(0, talk.coordinator.searches)
    assert text.startswith("source 'numbers' finds splits faster than they are read: 2 have not ended, ")
    assert searches.note(1, talk.coordinator.searches) == []
    assert searches.status(2)[0].is_held


def test_the_journal_says_which_splits_have_come() -> None:
    talk = running()
    talk.fire("find")
    effects = talk.hear(SplitsFound(E1, SOURCE, [row(name) for name in "abcde"], 1))
    (line,) = Journal(coordinator_spec()).note(talk.coordinator, effects)[-1:]
    assert line.text == "source 'numbers' has found splits: a, c, e and 2 more"


# The task.


class Letters(cc.Source):
    """Each split is a text, read letter by letter."""

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split("ab", 0)]

    def reader(self, split: Split, position: JSON) -> SplitReader:
        return _Letters(split.split_id, position)


class _Letters(SplitReader):
    def __init__(self, text: str, position: Any) -> None:
        self._text = text
        self._position = position

    @property
    def position(self) -> JSON:
        return int(self._position)

    def read(self, limit: int) -> list[Any] | EndOfSplit:
        found = list(self._text[self._position : self._position + 1])
        self._position += len(found)
        return found or EndOfSplit()


def test_splits_that_came_after_a_trigger_are_not_in_a_snapshot_that_is_taken_later() -> None:
    queue = SplitQueue(Letters(), splits_from_json([row("ab")]), is_open=True)
    queue.add(splits_from_json([row("cd")]), CheckpointId(3), is_last=False)
    assert queue.freeze(CheckpointId(2)) == [row("ab")]
    assert queue.freeze(CheckpointId(3)) == [row("ab"), row("cd")]
    assert queue.unfinished == ["ab", "cd"]


def test_a_task_has_no_more_to_read_only_when_no_other_split_will_come() -> None:
    queue = SplitQueue(Letters(), [], is_open=True)
    assert queue.read(10) == Wait(float("inf"))
    assert not queue.is_drained
    queue.add(splits_from_json([row("a")]), CheckpointId(1), is_last=True)
    assert queue.read(10) == ["a"]
    assert queue.read(10) == Wait(0)
    assert queue.is_drained


def test_a_source_that_has_had_no_split_holds_the_watermark() -> None:
    """P2: what it finds first may be older than all that other streams have had."""
    assign = AssignTimestamps("times", lambda record: record, 0)
    assign.begin([], None, is_open=True)
    assert assign.take_news() is None
    assert assign.holder == "the first split"
    assign.came(["new"], is_last=False)
    assert assign.take_news() is None
    assert assign.holder == "new"
    assign.reads("new")
    assert assign.process(a_batch([70])).watermark == 70


def test_nobody_waits_for_a_task_without_a_split_once_others_of_its_source_have_had_some() -> None:
    assign = AssignTimestamps("times", lambda record: record, 0)
    assign.begin([], None, is_open=True)
    assign.came([], is_last=False)
    news = assign.take_news()
    assert news is not None and news.idle is True
    assign.came(["new"], is_last=False)
    news = assign.take_news()
    assert news is not None and news.idle is False and news.watermark is None
    assert assign.holder == "new"


def test_nobody_waits_for_a_source_that_has_had_no_split_for_longer_than_it_is_idle_after() -> None:
    assign = AssignTimestamps("times", lambda record: record, 0, idle_after_ms=100)
    assign.time_budget = TimeBudget()
    assign.begin([], None, is_open=True)
    for now_ms in (1_000, 1_099):
        assign.time_budget.now_ms = now_ms
        assign.look(is_fed=False)
        assert assign.take_news() is None
    assert assign.next_alarm_ms == 1_100
    assign.time_budget.now_ms = 1_100
    assign.look(is_fed=False)
    news = assign.take_news()
    assert news is not None and news.idle is True
    assert assign.next_alarm_ms is None
    assign.came(["new"], is_last=False)
    news = assign.take_news()
    assert news is not None and news.idle is False, "it is waited for again"


def test_in_batches_it_is_idle_by_what_all_batches_say_of_it() -> None:
    saved: JSON = None
    for now_ms, is_idle in ((1_000, False), (1_099, False), (1_100, True)):
        assign = AssignTimestamps("times", lambda record: record, 0, idle_after_ms=100)
        assign.time_budget = TimeBudget()
        assign.time_budget.now_ms = now_ms
        assign.begin([], saved, is_open=True)
        assign.batch_ends(())
        news = assign.take_news()
        assert (news is not None and news.idle is True) is is_idle
        saved = assign.saved


def test_all_tasks_are_told_of_the_first_split_of_a_source_and_of_others_who_is_given_them() -> None:
    """P2: those that have none hold the watermark up to then."""
    none = [SplitAssignment(one, [], KnownSplits(SOURCE, None) if one == S0 else None) for one in (S0, S1)]
    talk = Talk(dynamic_sources=((SOURCE, 500),))
    talk.hear(LogTailRead(()), SplitsDiscovered(tuple(none)), EntryAppended(at(1)))
    talk.register()
    talk.ready()
    talk.fire("find")
    assert talk.hear(SplitsFound(E1, SOURCE, [], 0)) == [ANSWERED, LATER]
    talk.fire("find")
    first = talk.hear(SplitsFound(E1, SOURCE, [row("a")], 1))
    assert first == [ANSWERED, assigned(0, 1, "a"), assigned(1, 1), LATER]
    talk.fire("find")
    assert talk.hear(SplitsFound(E1, SOURCE, [row("b")], 2)) == [ANSWERED, assigned(1, 1, "b"), LATER]
    talk.complete(1, 2)
    assert talk.coordinator.completed is not None
    assert talk.coordinator.completed.known_splits == (KnownSplits(SOURCE, 2, has_found=True),)
    begun = next_epoch(talk, 3)
    assert [assigned(index, 0, epoch=E2) for index in (0, 1)] == [
        one for one in begun if isinstance(one, SendMessage) and isinstance(one.message, AssignSplits)
    ]


def test_a_new_split_holds_the_watermark_where_it_is_until_it_has_had_a_record() -> None:
    assign = AssignTimestamps("times", lambda record: record, 0)
    assign.begin(["old"], [50, {"old": 50}], is_open=True)
    assign.came(["new"], is_last=False)
    assign.origin = "old"
    assign.process(a_batch([90]))
    assert assign.watermark == 50
    assign.origin = "new"
    assign.process(a_batch([70]))
    assert assign.watermark == 70


def a_batch(records: list[Any]) -> Batch:
    return Batch(records)


# What users write.


class Growing(cc.DynamicSource):
    """The letters of words that are found one after the other."""

    def __init__(self, words: Sequence[str], *, repeats: bool = False) -> None:
        self.words = words
        self.repeats = repeats

    def discover(self, known: JSON) -> cc.Discovered:
        count = 0 if known is None or self.repeats else int(str(known))
        new = [Split(word, 0) for word in self.words[count : count + 1]]
        return cc.Discovered(new, count + len(new), is_last=count + len(new) == len(self.words))

    def reader(self, split: Split, position: JSON) -> SplitReader:
        return _Letters(split.split_id, position)


def test_a_dynamic_source_conforms_and_is_read_whole() -> None:
    check_source(Growing(["ab", "cd", "e"]))
    assert read_source(Growing(["ab", "cd", "e"])) == list("abcde")


def test_the_suite_finds_a_source_that_does_not_go_by_what_is_known() -> None:
    with pytest.raises(AssertionError, match="still knows more"):
        check_discovery(Growing(["ab", "cd"], repeats=True))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([Split("a", 0)], "expected crosscut.Discovered"),
        (cc.Discovered([Split("a", 0), Split("a", 0)]), "more than one split with the id 'a'"),
        (cc.Discovered([Split(7, 0)]), "expected text as the id"),  # type: ignore[arg-type]
        (cc.Discovered([Split("a", 0, weight="heavy")]), "a number as its weight"),  # type: ignore[arg-type]
        (cc.Discovered(["a"]), "as a split: expected crosscut.Split"),  # type: ignore[list-item]
        (cc.Discovered(known={1, 2}), "have to be JSON"),  # type: ignore[arg-type]
        (cc.Discovered(known="x" * KNOWN_BYTES_MAX), "keep a count, a time or the largest name"),
        (cc.Discovered([Split("a", 0, "x" * 100_000_000)]), "return some of them"),
        (cc.Discovered(is_last=True, is_coming=True), "never be others, and that others are coming"),
    ],
)
def test_what_a_source_says_is_checked_with_an_error_that_helps(found: Any, expected: str) -> None:
    with pytest.raises(ConnectorError, match=expected):
        checked_discovery(found, "words")


class Unlisted(Growing):
    def discover(self, known: JSON) -> cc.Discovered:
        raise KeyError("bucket")


def test_a_source_that_can_not_say_what_there_is_at_the_beginning_is_named() -> None:
    flow = cc.Flow("words")
    flow.source(Unlisted([])).named("words").sink(cc.collect())
    with pytest.raises(UserCodeError, match=r"source 'words': which splits .*KeyError: 'bucket'"):
        assignments(flow.compile(2, 8))


def test_explain_says_that_a_source_looks_for_splits() -> None:
    flow = cc.Flow("words")
    flow.source(Growing(["a"])).named("words").sink(cc.printing("out"))
    assert "words: read again from its positions after a failure; looks for new splits every 10s" in (
        explained(flow.compile(1, 8))
    )
