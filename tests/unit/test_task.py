"""One task: what is offered to it, and the whole of what then stands in its outlets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.bare_task import EPOCH, X, Y, Z, asked, offer, output, said, sent, task_of, unread
from tests.unit.barriers import HERE, N1, N2, N3, A, B

import crosscut as cc
from crosscut.contracts.connectors import CommitPermit, SinkContext, SinkWriter, Split
from crosscut.errors import UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, Lineage, TaskId, VertexId
from crosscut.operators.keyed import Count
from crosscut.operators.operator import Operator
from crosscut.operators.sink import SinkOperator
from crosscut.operators.stateless import KeyBy, Map
from crosscut.protocol.effects import CommitTransactions
from crosscut.protocol.messages import (
    FailureCause,
    SnapshotAcknowledged,
    SnapshotDeclined,
    SourceDrained,
    TaskFailed,
    TaskStatistics,
    TransactionsCommitted,
)
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.protocol.snapshot.commit import RETRY_DELAY_MS, Committer
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.protocol.snapshot.stop_the_world import StopTheWorldBarriers
from crosscut.protocol.snapshot.switching import AlignedThenUnaligned
from crosscut.protocol.snapshot.unaligned import UnalignedBarriers
from crosscut.protocol.snapshots import KnownCommitted, Part, PendingTransaction, Snapshot
from crosscut.state.encoding import contents
from crosscut.state.keyed import MAIN, KeyedState
from crosscut.state.parts import PartChain
from crosscut.task.items import Barrier, EndOfInput
from crosscut.task.outputs import Output
from crosscut.task.requests import (
    CancelStore,
    CompleteState,
    FrozenTask,
    PrepareTransaction,
    StoreFrozen,
)
from crosscut.task.splits import SplitQueue, split_as_json
from crosscut.task.task import Task

LINEAGE = Lineage("lineage")
END = EndOfInput()


def source_of(source: cc.Source, *chain: Operator, outputs: Sequence[Output] | None = None) -> Task:
    return task_of(*chain, inputs=(), outputs=outputs, splits=unread(source), source_uid="numbers", rows=10)


def numbers(count: int) -> cc.Source:
    return cc.generate(lambda number: number, count=count)


def work(task: Task) -> list[ChannelId | None]:
    """Run until there is nothing to do; return the channels that were read from."""
    read = []
    while task.has_work:
        read.append(task.run())
    return read


def frozen(n: CheckpointId, since: int = 0, *, positions: Any = None, ended: bool = False) -> StoreFrozen:
    return StoreFrozen(FrozenTask(n, CheckpointId(since), positions, ended, is_end_forwarded=ended))


def acknowledged(n: CheckpointId, records: int = 0, **snapshot: Any) -> SnapshotAcknowledged:
    """With as many records out as in."""
    counted = {"records_in": records, "records_out": records, "at_rest": True} | snapshot
    return SnapshotAcknowledged(EPOCH, n, HERE, Snapshot(**counted))


class Tail(Operator):
    """Passes records on, and at the end says more: batches of its own."""

    def __init__(self, *last_output: list[Any]) -> None:
        super().__init__("tail")
        self.last_output = last_output
        self.told_count = 0

    def process(self, batch: Batch) -> Batch:
        return batch

    def end(self, after: str) -> Iterator[tuple[Batch, str]]:
        self.told_count += 1
        for place, words in enumerate(self.last_output, start=1):
            if place > int(after or 0):
                yield Batch(words), str(place)


# Records and barriers.


def test_records_go_through_the_chain_and_into_every_output_in_order() -> None:
    task = task_of(
        Map("double", lambda n: n * 2), Map("text", str), outputs=[output(X, Y), output(Z)], inputs=(A,)
    )
    offer(task, A, [1, 2], [3])
    assert work(task) == [A, A]
    assert sent(task) == []
    assert task.output_buffers.has_buffered
    task.output_buffers.flush()
    records = ["2", "4", "6"]
    assert sent(task) == [(X, records), (Y, records), (Z, records)]
    assert not task.output_buffers.has_buffered


def test_a_full_output_is_sent_without_being_flushed() -> None:
    task = task_of(inputs=(A,), rows=3)
    offer(task, A, [1, 2], [3, 4], [5])
    work(task)
    assert sent(task) == [(X, [1, 2, 3, 4])]


def test_a_barrier_leaves_behind_every_earlier_record_and_before_any_later_one_on_every_output() -> None:
    task = task_of(inputs=(A,), outputs=[output(X, Y), output(Z)])
    offer(task, A, [1], Barrier(N1), [2])
    work(task)
    task.output_buffers.flush()
    assert sent(task) == [
        (X, [1]), (Y, [1]), (Z, [1]),
        (X, Barrier(N1)), (Y, Barrier(N1)), (Z, Barrier(N1)),
        (X, [2]), (Y, [2]), (Z, [2]),
    ]  # fmt: skip
    assert asked(task) == [frozen(N1)]


def test_while_aligning_what_comes_behind_the_barrier_is_held_and_the_rest_is_processed() -> None:
    task = task_of()
    offer(task, A, [1], Barrier(N1), [2], [3])
    offer(task, B, [10], [20])
    assert work(task) == [A, B, A, B]
    assert task.snapshots.are_aligning
    assert task.input_gate.ends[A].queue.in_memory == 2
    assert asked(task) == []
    offer(task, B, [30], Barrier(N1), [40])
    assert work(task) == [B, B, A, B, A]
    task.output_buffers.flush()
    assert sent(task) == [(X, [1, 10, 20, 30]), (X, Barrier(N1)), (X, [2, 40, 3])]
    assert asked(task) == [frozen(N1)]
    assert not task.snapshots.are_aligning


def test_a_task_whose_only_items_are_behind_the_barrier_has_no_work() -> None:
    task = task_of()
    offer(task, A, Barrier(N1), [1])
    work(task)
    assert not task.has_work
    assert task.run() is None
    assert task.input_gate.ends[A].queue.in_memory == 1


def test_channels_are_served_in_turn() -> None:
    task = task_of()
    offer(task, A, *([n] for n in range(4)))
    offer(task, B, [10], [20])
    assert work(task) == [A, B, A, B, A, A]


class CountsQuestions(AlignedBarriers):
    """Aligned barriers, and how often they were asked for a channel."""

    asked = 0

    def is_blocked(self, channel: ChannelId) -> bool:
        self.asked += 1
        return super().is_blocked(channel)


def test_an_alignment_looks_at_each_blocked_channel_a_few_times_however_many_there_are() -> None:
    """Asking all of them for each item costs seconds per barrier with thousands of inputs."""
    inputs = tuple(ChannelId(0, TaskId(VertexId("before"), index), HERE) for index in range(100))
    protocol = CountsQuestions(inputs)
    task = task_of(inputs=inputs, protocol=lambda *_: protocol)
    for channel in inputs:
        offer(task, channel, Barrier(N1), [channel.source.index])
        work(task)
    assert work(task) == []
    task.output_buffers.flush()
    assert [item for _, item in sent(task)] == [Barrier(N1), list(range(100))]
    assert protocol.asked < 10 * len(inputs)


def test_a_newer_barrier_gives_the_older_alignment_up_and_frees_what_it_held() -> None:
    task = task_of()
    offer(task, A, Barrier(N1), [1], Barrier(N2), [2])
    offer(task, B, [10], Barrier(N2), [20])
    work(task)
    task.output_buffers.flush()
    assert sorted(sent(task)[0][1]) == [1, 10]
    assert said(task) == [
        SnapshotDeclined(EPOCH, N1, HERE, f"superseded by barrier 2 on {B}"),
    ]
    assert asked(task) == [frozen(N2)]


def test_an_aborted_alignment_frees_what_it_held_and_leaves_no_trace() -> None:
    task = task_of()
    offer(task, A, Barrier(N1), [1])
    work(task)
    task.snapshots.abort(N1)
    assert work(task) == [A]
    offer(task, B, Barrier(N1), [2])
    work(task)
    task.output_buffers.flush()
    assert (sent(task), said(task), asked(task)) == ([(X, [1, 2])], [], [])


def test_a_large_batch_is_processed_rows_max_at_a_time_and_no_barrier_gets_ahead_of_its_rest() -> None:
    task = task_of(inputs=(A,))
    task.rows_max = 2
    offer(task, A, [1, 2, 3, 4, 5], Barrier(N1), [6])
    assert task.run() == A
    assert (task.records_in, task.input_gate.ends[A].queue.in_memory) == (2, 3)
    assert work(task) == [A, A, A, A]
    task.output_buffers.flush()
    assert sent(task) == [(X, [1, 2, 3, 4, 5]), (X, Barrier(N1)), (X, [6])]


def test_a_large_batch_keeps_its_keys_when_it_is_split() -> None:
    state = KeyedState(int)
    task = task_of(Count("count", state, "updates"), inputs=(A,))
    task.rows_max = 2
    task.offer(A, Batch(["r", "s", "t"], ["k", "l", "k"]))
    keys = ["k", "l", "k"]
    task.offer(A, Batch(keys, keys))
    work(task)
    task.output_buffers.flush()
    assert sent(task) == [(X, [("k", 1), ("l", 1), ("k", 2), ("k", 3), ("l", 2), ("k", 4)])]


def test_between_two_pieces_of_a_large_batch_the_other_channel_has_its_turn() -> None:
    task = task_of()
    task.rows_max = 1
    offer(task, A, [1, 2, 3])
    offer(task, B, [10])
    assert work(task) == [A, B, A, A]


# The end of input.


def test_the_end_is_forwarded_once_when_every_input_has_ended() -> None:
    tail = Tail(["last", "words"], ["really"])
    task = task_of(tail, outputs=[output(X, Y)])
    offer(task, A, [1], END)
    work(task)
    assert sent(task) == []
    offer(task, B, [2], END)
    work(task)
    records = [1, 2, "last", "words", "really"]
    assert sent(task) == [(X, records), (Y, records), (X, END), (Y, END)]
    assert (said(task), tail.told_count) == ([], 1)


def test_what_one_operator_says_at_the_end_goes_through_those_behind_it_only() -> None:
    first, second = Tail(["first"]), Tail(["second"])
    task = task_of(first, Map("upper", lambda word: word.upper()), second, inputs=(A,))
    offer(task, A, END)
    work(task)
    assert sent(task) == [(X, ["FIRST", "second"]), (X, END)]


def test_barriers_behind_the_end_are_aligned_like_any_other() -> None:
    task = task_of(Tail(["last"]))
    offer(task, A, END, Barrier(N1))
    offer(task, B, Barrier(N1), END, Barrier(N2))
    work(task)
    offer(task, A, Barrier(N2))
    work(task)
    assert sent(task) == [(X, Barrier(N1)), (X, ["last"]), (X, END), (X, Barrier(N2))]
    assert asked(task) == [frozen(N1), frozen(N2, ended=True)]


def test_a_barrier_passes_in_the_midst_of_what_the_operators_say_and_a_restore_goes_on_there() -> None:
    task = task_of(Tail(["a"], ["b"], ["c"]), inputs=(A,))
    offer(task, A, END)
    task.run()
    offer(task, A, Barrier(N1))
    task.run()
    assert sent(task) == [(X, ["a"]), (X, Barrier(N1))]
    (asked_for,) = asked(task)
    assert asked_for == StoreFrozen(FrozenTask(N1, CheckpointId(0), None, False, final_progress=[0, "1"]))
    task.snapshots.stored(N1, None, 0)
    assert said(task) == [acknowledged(N1, 0, records_out=1, said=[0, "1"])]
    restored = task_of(Tail(["a"], ["b"], ["c"]), inputs=(A,), restored=Snapshot(said=[0, "1"]))
    offer(task, A, Barrier(N2))
    work(task)
    assert sent(task) == [(X, Barrier(N2)), (X, ["b", "c"]), (X, END)]
    offer(restored, A, END, Barrier(N2))
    work(restored)
    assert sent(restored) == [(X, ["b"]), (X, Barrier(N2)), (X, ["c"]), (X, END)]


def test_a_restored_task_that_has_not_had_its_end_again_keeps_how_far_it_had_come() -> None:
    task = task_of(Tail(["a"], ["b"]), inputs=(A,), restored=Snapshot(said=[0, "1"]))
    offer(task, A, Barrier(N1))
    work(task)
    assert asked(task) == [StoreFrozen(FrozenTask(N1, CheckpointId(0), None, False, final_progress=[0, "1"]))]


def test_a_task_that_stands_still_says_nothing_of_the_end_either() -> None:
    """The snapshot under halting barriers holds no channel: what is sent meanwhile would be in none."""
    task = task_of(Tail(["a"], ["b"]), inputs=(A,), protocol=StopTheWorldBarriers)
    offer(task, A, END)
    task.run()
    offer(task, A, Barrier(N1))
    work(task)
    assert sent(task) == [(X, ["a"]), (X, Barrier(N1))]
    assert not task.has_work
    task.snapshots.capture(N1)
    task.snapshots.resume(N1)
    work(task)
    assert sent(task) == [(X, ["b"]), (X, END)]


def test_a_snapshot_says_that_it_is_drained_once_the_operators_have_ended() -> None:
    task = task_of(inputs=(A,))
    offer(task, A, [1], Barrier(N1), END, Barrier(N2))
    work(task)
    for n in (N1, N2):
        task.snapshots.stored(n, None, freeze_us=3)
    assert said(task) == [
        acknowledged(N1, 1, freeze_us=3),
        acknowledged(N2, 1, drained=True, ended=True, freeze_us=3),
    ]


def test_operators_that_had_ended_before_the_restore_are_not_told_again() -> None:
    tail = Tail(["last"])
    task = task_of(tail, inputs=(A,), restored=Snapshot(ended=True))
    offer(task, A, END, Barrier(N1))
    work(task)
    assert sent(task) == [(X, END), (X, Barrier(N1))]
    assert tail.told_count == 0
    assert asked(task) == [frozen(N1, ended=True)]


# Sources.


def left_of(split: Split, position: int) -> Any:
    return [*split_as_json(split)[:4], position]  # type: ignore[index]


def test_a_source_reads_its_splits_and_says_once_that_it_is_drained() -> None:
    task = source_of(numbers(25), Map("text", str))
    assert set(work(task)) == {None}
    texts = [str(number) for number in range(25)]
    assert sent(task) == [(X, texts[:10]), (X, texts[10:20]), (X, texts[20:]), (X, END)]
    assert said(task) == [SourceDrained(EPOCH, HERE)]
    assert not task.has_work


def test_a_triggered_source_freezes_its_positions_and_sends_the_barrier_behind_what_it_read() -> None:
    source = numbers(25)
    (split,) = source.splits(1)
    task = source_of(source)
    task.run()
    task.snapshots.trigger(N1)
    task.run()
    assert sent(task) == [(X, list(range(10))), (X, Barrier(N1)), (X, list(range(10, 20)))]
    assert asked(task) == [frozen(N1, positions=[left_of(split, 10)])]
    task.snapshots.stored(N1, None, 0)
    assert said(task) == [acknowledged(N1, 10, positions=[left_of(split, 10)])]


def test_a_trigger_that_comes_again_is_dropped() -> None:
    task = source_of(numbers(5))
    task.snapshots.trigger(N2)
    task.snapshots.trigger(N2)
    task.snapshots.trigger(N1)
    assert sent(task) == [(X, Barrier(N2))]


def test_a_trigger_while_the_operators_are_ending_is_answered_in_the_midst_of_it() -> None:
    task = source_of(numbers(0), Tail(["a"], ["b"]))
    task.run()
    task.snapshots.trigger(N1)
    assert sent(task) == [(X, ["a"]), (X, Barrier(N1))]
    (stored,) = asked(task)
    assert stored.frozen.final_progress == [0, "1"]
    work(task)
    assert sent(task) == [(X, ["b"]), (X, END)]
    assert said(task) == [SourceDrained(EPOCH, HERE)]


@pytest.mark.parametrize("protocol", [UnalignedBarriers, AlignedThenUnaligned])
def test_a_barrier_while_the_operators_are_ending_forces_nothing_out_and_overtakes_what_has_not_left(
    protocol: type[SnapshotProtocol],
) -> None:
    """A task says a batch a run, and none while its outputs take no more: memory stays bounded."""
    task = task_of(Tail(["a"], ["b"], ["c"]), inputs=(A,), rows=1, protocol=protocol)
    offer(task, A, END)
    task.run()
    task.offer(A, Barrier(N1))
    if protocol is AlignedThenUnaligned:
        task.snapshots.alignment_timed_out(N1)
    assert sent(task) == [(X, Barrier(N1)), (X, ["a"])]
    (stored,) = (one for one in asked(task) if isinstance(one, StoreFrozen))
    assert stored.frozen.final_progress == [0, "1"]
    assert [one.rows for one in stored.frozen.log] == [1], "what it has overtaken has been said"
    assert (task.has_work, task.snapshots.are_awaited) == (True, False)
    work(task)
    assert sent(task) == [(X, ["b"]), (X, ["c"]), (X, END)]


def test_a_drained_source_goes_on_answering_triggers() -> None:
    task = source_of(numbers(3))
    work(task)
    sent(task)
    task.snapshots.trigger(N1)
    task.snapshots.trigger(N2)
    assert sent(task) == [(X, Barrier(N1)), (X, Barrier(N2))]
    assert asked(task) == [frozen(n, positions=[], ended=True) for n in (N1, N2)]


def test_a_task_that_is_no_source_ignores_triggers() -> None:
    """The coordinator tells all tasks of a worker."""
    task = task_of()
    task.snapshots.trigger(N1)
    assert (sent(task), asked(task), said(task)) == ([], [], [])


def test_a_restored_source_that_had_drained_says_so_again_but_tells_the_operators_nothing() -> None:
    tail = Tail(["last"])
    task = task_of(tail, inputs=(), splits=SplitQueue(numbers(3), []), restored=Snapshot(ended=True))
    work(task)
    assert sent(task) == [(X, END)]
    assert (said(task), tail.told_count) == ([SourceDrained(EPOCH, HERE)], 0)


def test_a_source_that_has_to_wait_says_for_how_long() -> None:
    task = source_of(cc.generate(lambda number: number, rate=0.001))
    task.run()
    assert task.wait_ms == 0.0  # The first record is due at once.
    task.run()
    assert task.wait_ms > 1_000.0
    assert task.has_work


def test_a_users_function_in_a_source_that_fails_is_a_failure_of_user_code() -> None:
    def wrong(number: int) -> int:
        return 1 // (number - 3)

    task = source_of(cc.generate(wrong, count=5))
    task.run()
    with pytest.raises(UserCodeError, match="operator 'numbers' raised ZeroDivisionError"):
        task.run()


# Keyed state.


def part(number: int, size_bytes: int = 10) -> Part:
    return Part(f"parts/{number}/here-0-4-00", size_bytes, "00")


def test_parts_build_on_the_newest_checkpoint_that_is_known_to_be_complete() -> None:
    state = KeyedState(int)
    task = task_of(Count("count", state, "updates"), inputs=(A,), state=state)

    def checkpoint(n: CheckpointId, since: int) -> tuple[Part, ...]:
        offer(task, A, Barrier(n))
        work(task)
        assert asked(task) == [frozen(n, since)]
        task.snapshots.stored(n, part(n), 0)
        (message,) = said(task)
        assert isinstance(message, SnapshotAcknowledged)
        return message.snapshot.parts

    assert checkpoint(N1, since=0) == (part(1),)
    assert checkpoint(N2, since=0) == (part(2),)  # Whether 1 is complete is not known.
    task.checkpoint_completed(N2)
    assert asked(task) == [CompleteState(N2)]
    assert checkpoint(N3, since=2) == (part(2), part(3))
    task.snapshots.abort(N3)
    assert checkpoint(CheckpointId(4), since=2) == (part(2), part(4))
    task.checkpoint_completed(CheckpointId(4))
    assert asked(task) == [CompleteState(CheckpointId(4))]
    assert checkpoint(CheckpointId(5), since=4) == (part(2), part(4), part(5))


def test_the_parts_of_the_restored_checkpoint_are_built_on() -> None:
    chain = PartChain(N1, (part(1, 100),))
    task = task_of(inputs=(A,), state=KeyedState(int), parts=chain)
    offer(task, A, Barrier(N2))
    work(task)
    assert asked(task) == [frozen(N2, since=1)]
    task.snapshots.stored(N2, part(2), 0)
    assert said(task) == [acknowledged(N2, parts=(part(1, 100), part(2)))]


def test_what_is_frozen_is_the_state_at_the_barrier() -> None:
    state = KeyedState(int)
    task = task_of(Count("count", state, "updates"), inputs=(A,), state=state)
    task.offer(A, Batch(["a", "b", "a"], ["a", "b", "a"]))
    offer(task, A, Barrier(N1))
    task.offer(A, Batch(["a"], ["a"]))
    work(task)
    stored = contents([b"".join(state.encoded(N1, CheckpointId(0)))])
    assert stored == {MAIN: {"a": 2, "b": 1}}
    assert dict(state.items()) == {"a": 3, "b": 1}


def test_an_abort_cancels_the_storing_and_what_is_stored_after_it_is_not_acknowledged() -> None:
    task = task_of(inputs=(A,), state=KeyedState(int))
    offer(task, A, Barrier(N1))
    work(task)
    task.snapshots.abort(N1)
    assert asked(task) == [frozen(N1), CancelStore(N1)]
    task.snapshots.stored(N1, part(1), 0)
    assert said(task) == []


def test_a_snapshot_that_cannot_be_stored_declines_its_checkpoint_and_no_other() -> None:
    task = task_of(inputs=(A,), state=KeyedState(int))
    offer(task, A, Barrier(N1), Barrier(N2))
    work(task)
    task.snapshots.failed(N1, "disk full")
    task.snapshots.stored(N2, part(2), 0)
    assert said(task) == [SnapshotDeclined(EPOCH, N1, HERE, "disk full"), acknowledged(N2, parts=(part(2),))]
    assert asked(task) == [frozen(N1), frozen(N2), CancelStore(N1)]


# Sinks.


def sink_acknowledged(n: CheckpointId, records: int = 0, **snapshot: Any) -> SnapshotAcknowledged:
    """As `acknowledged`, of a sink's task that has committed nothing."""
    return acknowledged(n, records, committed=KnownCommitted(), **snapshot)


def sink_task(directory: Path, attempts_max: int = 2, **restored: Any) -> tuple[Task, SinkWriter]:
    writer = cc.files.write_jsonl(directory).writer(SinkContext(LINEAGE, EPOCH, HERE, "out"))
    writer.recover(None, [])
    task = task_of(
        SinkOperator("out", writer),
        inputs=(A,),
        outputs=[],
        committer=Committer(LINEAGE, EPOCH, attempts_max),
        **restored,
    )
    return task, writer


def visible(directory: Path) -> list[str]:
    return [line for path in sorted(directory.glob("*.jsonl")) for line in path.read_text().splitlines()]


def stored(task: Task, writer: SinkWriter, n: CheckpointId) -> Any:
    """Play the runner: prepare what was frozen for `n` and tell the task; return the handle."""
    *before, store = asked(task)
    assert isinstance(store, StoreFrozen)
    assert store.frozen.checkpoint_id == n
    handle = None
    for one in before:
        assert isinstance(one, PrepareTransaction)
        handle = writer.prepare(one.transaction)
        task.transactions.prepared(n, handle)
    task.snapshots.stored(n, None, 0)
    return handle


def commit_of(n: CheckpointId, *handles: Any, delay_ms: int = 0) -> CommitTransactions:
    return CommitTransactions(CommitPermit(LINEAGE, EPOCH, n), handles, delay_ms)


def test_what_was_written_before_the_barrier_becomes_visible_when_its_checkpoint_is_complete(
    tmp_path: Path,
) -> None:
    task, writer = sink_task(tmp_path)
    offer(task, A, [1, 2], Barrier(N1), [3])
    work(task)
    handle = stored(task, writer, N1)
    assert said(task) == [sink_acknowledged(N1, 2, pending=(PendingTransaction(N1, handle),))]
    assert visible(tmp_path) == []
    task.checkpoint_completed(N1)
    (commit,) = asked(task)
    assert commit == commit_of(N1, handle)
    assert said(task) == []
    writer.commit(commit.permit, commit.handles)
    task.transactions.commit_succeeded()
    assert said(task) == [TransactionsCommitted(EPOCH, N1, HERE)]
    assert visible(tmp_path) == ["1", "2"]
    task.close()


def test_a_snapshot_says_where_the_records_of_its_pending_transactions_are_held(tmp_path: Path) -> None:
    task, writer = sink_task(tmp_path)
    offer(task, A, [1], Barrier(N1), [2], Barrier(N2))
    work(task)
    first, second = (one for one in asked(task) if isinstance(one, PrepareTransaction))
    task.transactions.prepared(N1, one := writer.prepare(first.transaction))
    task.snapshots.stored(N1, None, 0, held={N1: part(1)})
    assert said(task) == [sink_acknowledged(N1, 1, pending=(PendingTransaction(N1, one, part(1)),))]
    task.transactions.prepared(N2, two := writer.prepare(second.transaction))
    task.snapshots.stored(N2, None, 0, held={N1: part(2), N2: part(3)})
    pending = (PendingTransaction(N1, one, part(2)), PendingTransaction(N2, two, part(3)))
    assert said(task) == [sink_acknowledged(N2, 2, pending=pending)]
    task.close()


def test_a_checkpoint_with_nothing_written_is_committed_without_a_transaction(tmp_path: Path) -> None:
    task, writer = sink_task(tmp_path)
    offer(task, A, Barrier(N1))
    work(task)
    assert stored(task, writer, N1) is None
    assert said(task) == [sink_acknowledged(N1)]
    task.checkpoint_completed(N1)
    assert (asked(task), said(task)) == ([], [TransactionsCommitted(EPOCH, N1, HERE)])
    task.close()


def test_the_transaction_of_an_aborted_checkpoint_is_committed_with_the_next_one(tmp_path: Path) -> None:
    """Its records come before every later barrier."""
    task, writer = sink_task(tmp_path)
    offer(task, A, [1], Barrier(N1), [2], Barrier(N2))
    task.run()
    task.run()
    task.snapshots.abort(N1)
    prepare, _, cancel = asked(task)
    assert cancel == CancelStore(N1)
    handle = writer.prepare(prepare.transaction)
    task.transactions.prepared(N1, handle)
    task.snapshots.stored(N1, None, 0)
    assert said(task) == []
    work(task)
    later = stored(task, writer, N2)
    pending = (PendingTransaction(N1, handle), PendingTransaction(N2, later))
    assert said(task) == [sink_acknowledged(N2, 2, pending=pending)]
    task.checkpoint_completed(N2)
    assert asked(task) == [commit_of(N2, handle, later)]
    task.close()


def test_a_commit_that_fails_is_tried_again_after_a_delay_and_then_fails_the_task(tmp_path: Path) -> None:
    task, writer = sink_task(tmp_path, attempts_max=2)
    offer(task, A, [1], Barrier(N1))
    work(task)
    handle = stored(task, writer, N1)
    said(task)
    task.checkpoint_completed(N1)
    task.transactions.commit_failed("no route to host")
    assert asked(task) == [commit_of(N1, handle), commit_of(N1, handle, delay_ms=RETRY_DELAY_MS)]
    task.transactions.commit_failed("still no route to host", is_transient=True)
    (message,) = said(task)
    cause = FailureCause("CommitFailed", message.cause.message, "out", is_transient=True)
    assert message == TaskFailed(EPOCH, HERE, cause)
    assert message.cause.message.endswith("in 2 attempts, the last one: still no route to host")
    task.close()


# The rest.


def test_the_counters_tell_what_came_in_what_went_out_and_what_waits() -> None:
    state = KeyedState(int)
    chain = (KeyBy("key", lambda n: n % 2, keys_only=False),)
    task = task_of(*chain, inputs=(A, B), state=state)
    offer(task, A, [1, 2, 3], Barrier(N1), [4])
    work(task)
    offer(task, B, [5, 6])
    assert task.statistics() == TaskStatistics(
        HERE, records_in=3, records_out=3, queued_records=3, sent=(3,), barrier=N1
    )
    assert state.values["a"] == 0
    work(task)
    assert task.statistics() == TaskStatistics(
        HERE, records_in=5, records_out=5, state_keys=1, queued_records=1, sent=(5,), barrier=N1
    )


def test_the_counters_go_on_from_those_of_the_restored_snapshot(
    tmp_path: Path,
) -> None:
    """And a snapshot holds them as they were at its barrier; what a sink has written has gone out."""
    task, writer = sink_task(tmp_path, restored=Snapshot(records_in=100, records_out=50, late_records=7))
    offer(task, A, [1, 2], Barrier(N1), [3])
    work(task)
    assert task.statistics() == TaskStatistics(
        HERE, records_in=103, records_out=53, late_records=7, barrier=N1, captured=N1
    )
    handle = stored(task, writer, N1)
    pending = (PendingTransaction(N1, handle),)
    assert said(task) == [
        sink_acknowledged(N1, pending=pending, records_in=102, records_out=52, late_records=7)
    ]
    task.close()


def test_a_snapshot_counts_the_keys_of_its_state() -> None:
    state = KeyedState(int)
    task = task_of(Count("count", state, "final"), inputs=(A,), state=state)
    for keys, n in (["a", "b", "a"], N1), (["b", "c"], N2):
        task.offer(A, Batch(keys, keys))
        task.offer(A, Barrier(n))
        work(task)
        task.snapshots.stored(n, None, 0)
    found = [one.snapshot.state_keys for one in said(task) if isinstance(one, SnapshotAcknowledged)]
    assert found == [2, 3]


def test_close_closes_the_writer_although_a_reader_raises() -> None:
    class Stuck(cc.SplitReader):
        position = 0

        def read(self, limit: int) -> list[Any]:
            return [1]

        def close(self) -> None:
            raise OSError("stuck")

    class StuckSource(cc.Source):
        def splits(self, parallelism: int) -> Sequence[Split]:
            return [Split("only", 0)]

        def reader(self, split: Split, position: Any) -> cc.SplitReader:
            return Stuck()

    class Noting(cc.SinkWriter):
        is_closed = False

        def recover(self, permit: CommitPermit | None, handles: Sequence[Any]) -> None: ...
        def write(self, records: list[Any]) -> None: ...
        def rotate(self, checkpoint_id: CheckpointId) -> None: ...
        def prepare(self, transaction: Any) -> None: ...
        def commit(self, permit: CommitPermit, handles: Sequence[Any]) -> None: ...

        def close(self) -> None:
            self.is_closed = True

    writer = Noting()
    source = StuckSource()
    task = task_of(
        SinkOperator("out", writer),
        inputs=(),
        outputs=[],
        splits=unread(source),
    )
    task.run()
    with pytest.raises(OSError, match="stuck"):
        task.close()
    assert writer.is_closed
