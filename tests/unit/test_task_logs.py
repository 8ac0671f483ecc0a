"""What a task does for a protocol that logs: logs, replay, overtaking, the look into the queues, loops."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import pytest
from tests.unit import bare_task
from tests.unit.bare_task import EPOCH, X, Y, asked, offer, output, said, sent
from tests.unit.barriers import HERE, N1, N2, A, B, L

from crosscut.connectors.simple.generate import generate
from crosscut.errors import ProtocolError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, VertexId
from crosscut.operators.operator import Operator
from crosscut.operators.stateless import Map
from crosscut.protocol.messages import SnapshotAcknowledged, SnapshotDeclined
from crosscut.protocol.replay_order import ReplayOrder
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.protocol.snapshot.stop_the_world import StopTheWorldBarriers
from crosscut.protocol.snapshot.switching import AlignedThenUnaligned
from crosscut.protocol.snapshot.unaligned import UnalignedBarriers
from crosscut.protocol.snapshots import Part, Snapshot
from crosscut.task import channel_log
from crosscut.task import inputs as queues
from crosscut.task.channel_log import SLICE_BYTES, SpilledBlocks, decoded_log, encoded_log, release_log
from crosscut.task.inputs import InputQueue
from crosscut.task.items import REPLAYED, Barrier, EndOfInput, LoggedBatch
from crosscut.task.requests import CancelStore, StoreFrozen, WaitForAlignment
from crosscut.task.spilling import SpillSpace
from crosscut.task.splits import SplitQueue
from crosscut.task.task import Task
from crosscut.wire.batches import decode_batch, encode_batch
from crosscut.worker.spill_files import DiskFile, DiskSpace

END = EndOfInput()
LOG_PART = Part("parts/1/here-0-4-ab", 9, "00")


def task_of(
    protocol: type[SnapshotProtocol],
    *chain: Operator,
    inputs: tuple[ChannelId, ...] = (A, L),
    outputs: tuple[ChannelId, ...] = (X, Y),
    replay: Sequence[LoggedBatch] = (),
    space: SpillSpace | None = None,
    **others: Any,
) -> Task:
    space = space or DiskSpace()
    waiting = {one: InputQueue(one, space) for one in inputs}
    for one in replay:
        if not one.by_sender:
            waiting[one.channel].restore(one)
    return bare_task.task_of(
        *chain,
        protocol=protocol,
        inputs=inputs,
        queues=waiting,
        outputs=[output(*outputs)],
        unsent=[one for one in replay if one.by_sender],
        log_space=space,
        **others,
    )


def logged(channel: ChannelId, *records: Any, by_sender: bool = False) -> LoggedBatch:
    return LoggedBatch(channel, encode_batch(Batch(list(records))), len(records), by_sender)


def work(task: Task) -> None:
    while task.has_work:
        task.run()


def stored_logs(task: Task) -> dict[int, list[tuple[ChannelId, list[Any], bool]]]:
    """Return the log of each snapshot that is to be stored now: (channel, records, by the sender)."""
    found = {}
    for job in asked(task):
        if isinstance(job, StoreFrozen):
            log = decoded_log(b"".join(encoded_log(job.frozen.log)))
            release_log(job.frozen.log)
            found[int(job.frozen.checkpoint_id)] = [
                (one.channel, decode_batch(one.data).records, one.by_sender) for one in log
            ]
    return found


def wait_in_front_of(task: Task, channel: ChannelId) -> list[Any]:
    queue = task.input_gate.ends[channel].queue
    items = [queue.popleft() for _ in range(len(queue))]
    for item in items:
        queue.append(item)
    return [item.records if isinstance(item, Batch) else item for item in items]


# Logs of back edges.


def test_what_arrives_on_a_back_edge_between_capture_and_return_is_logged_and_processed_as_usual() -> None:
    task = task_of(AlignedBarriers)
    offer(task, L, [1])
    work(task)
    offer(task, A, Barrier(N1))
    work(task)
    offer(task, L, [2])
    work(task)
    offer(task, L, [3], Barrier(N1), [4])
    work(task)
    task.output_buffers.flush()
    assert stored_logs(task) == {1: [(L, [2], False), (L, [3], False)]}
    assert sent(task) == [
        (X, [1]), (Y, [1]), (X, Barrier(N1)), (Y, Barrier(N1)), (X, [2, 3, 4]), (Y, [2, 3, 4]),
    ]  # fmt: skip


def test_what_waits_in_a_back_edge_at_the_capture_is_logged() -> None:
    task = task_of(AlignedBarriers)
    offer(task, A, Barrier(N1))
    offer(task, L, [1], [2])
    task.run()
    offer(task, L, Barrier(N1))
    assert stored_logs(task) == {1: [(L, [1], False), (L, [2], False)]}


def test_a_barrier_that_waits_behind_it_has_come_back_and_is_not_delivered_again() -> None:
    task = task_of(UnalignedBarriers, inputs=(A, B))
    switching = task_of(AlignedThenUnaligned, inputs=(A, B))
    for one in (task, switching):
        offer(one, A, [1], Barrier(N1), [2])
        offer(one, B, [3], Barrier(N1))
    assert asked(switching) == [WaitForAlignment(N1)]
    switching.snapshots.alignment_timed_out(N1)
    assert stored_logs(switching) == {1: [(A, [1], False), (B, [3], False)]}
    assert wait_in_front_of(switching, A) == [[1], [2]]
    assert wait_in_front_of(switching, B) == [[3]]
    assert stored_logs(task) == {1: [(A, [1], False), (B, [3], False)]}


def test_records_are_logged_as_they_were_when_they_arrived() -> None:
    def spoil(record: list[int]) -> list[int]:
        record.append(0)
        return record

    task = task_of(AlignedBarriers, Map("spoil", spoil))
    offer(task, A, Barrier(N1))
    work(task)
    offer(task, L, [[7]])
    work(task)
    offer(task, L, Barrier(N1))
    assert stored_logs(task) == {1: [(L, [[7]], False)]}


def test_two_logs_at_once_hold_what_arrives_once_each() -> None:
    task = task_of(AlignedBarriers)
    offer(task, A, Barrier(N1))
    work(task)
    offer(task, L, [1])
    work(task)
    offer(task, A, Barrier(N2))
    work(task)
    offer(task, L, [2], Barrier(N1), [3], Barrier(N2), [4])
    assert stored_logs(task) == {
        1: [(L, [1], False), (L, [2], False)],
        2: [(L, [2], False), (L, [3], False)],
    }


class CountedSpace(DiskSpace):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []

    def new_file(self) -> DiskFile:
        file = super().new_file()
        plain = file.read

        def read(at: int, count: int) -> bytes:
            self.reads.append(count)
            return plain(at, count)

        file.read = read  # type: ignore[method-assign]
        return file


def test_a_backlog_on_disk_is_logged_by_reference_and_copied_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16 MB wait in the back edge: the capture reads, decodes and encodes nothing of it."""
    space = CountedSpace()
    task = task_of(AlignedBarriers, space=space)
    for number in range(160):
        offer(task, L, [bytes([number]) * 100_000])
        assert task.input_gate.ends[L].spill()

    def refused(*_: Any) -> Any:
        raise AssertionError("a batch is decoded or encoded")

    with monkeypatch.context() as patch:
        for module in (queues, channel_log):
            patch.setattr(module, "encode_batch", refused)
        patch.setattr(queues, "decode_batch", refused)
        offer(task, A, Barrier(N1))
        task.input_gate._turn.rotate()
        tracemalloc.start()
        task.run()
        offer(task, L, Barrier(N1))
        (stored,) = asked(task)
        assert isinstance(stored, StoreFrozen)
        assert space.reads == []
        (entry,) = stored.frozen.log
        assert isinstance(entry, SpilledBlocks)
        digest, size_bytes = sha256(), 0
        for piece in encoded_log(stored.frozen.log):
            digest.update(piece)
            size_bytes += len(piece)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert size_bytes > 16_000_000
    assert max(space.reads) <= SLICE_BYTES
    assert len(space.reads) == -(-(entry.end - entry.start) // SLICE_BYTES)
    assert peak_bytes < 3 * SLICE_BYTES
    # It is what would have been logged one by one.
    found = [decode_batch(one.data).records for one in decoded_log(b"".join(encoded_log(stored.frozen.log)))]
    assert found == [[bytes([number]) * 100_000] for number in range(160)]
    space.close()


def test_a_log_that_is_aborted_lets_go_of_the_backlog() -> None:
    space = DiskSpace()
    task = task_of(AlignedBarriers, space=space)
    offer(task, L, [1], [2])
    assert task.input_gate.ends[L].spill()
    offer(task, A, Barrier(N1))
    task.input_gate._turn.rotate()
    task.run()
    task.snapshots.abort(N1)
    work(task)
    assert space.taken_bytes == 0
    assert asked(task) == [CancelStore(N1)]


def test_an_aborted_log_is_forgotten() -> None:
    task = task_of(AlignedBarriers)
    offer(task, A, Barrier(N1))
    work(task)
    offer(task, L, [1])
    task.snapshots.abort(N1)
    offer(task, L, Barrier(N1))
    work(task)
    assert asked(task) == [CancelStore(N1)]
    assert said(task) == []


def test_a_superseded_log_is_declined() -> None:
    task = task_of(AlignedBarriers)
    offer(task, A, Barrier(N1))
    work(task)
    offer(task, L, [1], Barrier(N2))
    work(task)
    assert asked(task) == [CancelStore(N1)]
    assert said(task) == [SnapshotDeclined(EPOCH, N1, HERE, f"superseded by barrier 2 on {L}")]


# Acknowledgements.


def test_the_acknowledgement_says_where_the_log_is_and_how_many_records_it_holds() -> None:
    task = task_of(AlignedBarriers)
    offer(task, A, Barrier(N1))
    work(task)
    offer(task, L, [1, 2], [3], Barrier(N1))
    task.snapshots.stored(N1, None, 5, LOG_PART)
    assert said(task) == [
        SnapshotAcknowledged(EPOCH, N1, HERE, Snapshot(log=(LOG_PART,), in_flight=3, freeze_us=5))
    ]


def test_a_task_that_has_ended_is_not_drained_while_the_barrier_overtakes_what_it_said() -> None:
    task = task_of(UnalignedBarriers, inputs=(A,), outputs=(X,))
    offer(task, A, END)
    work(task)
    task.output_buffers.ends[X].waiting.extend([Batch([1]), END])
    task.task_effects.outbox.clear()
    offer(task, A, Barrier(N1))
    task.snapshots.stored(N1, None, 0, LOG_PART)
    assert said(task)[0].snapshot == Snapshot(log=(LOG_PART,), in_flight=1, ended=True)


def test_a_restored_task_that_had_ended_is_not_drained_before_the_end_has_come_again() -> None:
    """At least once: records may come again, and go on from it."""
    task = task_of(AlignedBarriers, inputs=(A,), restored=Snapshot(ended=True))
    offer(task, A, Barrier(N1), END, Barrier(N2))
    work(task)
    for n in (N1, N2):
        task.snapshots.stored(n, None, 0)
    assert [one.snapshot for one in said(task)] == [
        Snapshot(ended=True, at_rest=True),
        Snapshot(ended=True, at_rest=True, drained=True),
    ]


def test_a_barrier_that_overtakes_the_end_of_input_finds_nobody_drained() -> None:
    """Nothing is logged, and yet the task still has its results to say."""
    task = task_of(UnalignedBarriers, inputs=(A,))
    offer(task, A, END, Barrier(N1))
    task.snapshots.stored(N1, None, 0)
    assert said(task)[0].snapshot == Snapshot(at_rest=True)


# Replay.


def test_the_log_is_replayed_in_order_before_any_new_input() -> None:
    task = task_of(AlignedBarriers, replay=[logged(L, 1), logged(L, 2, 3)], outputs=(X,))
    offer(task, L, [4])
    work(task)
    task.output_buffers.flush()
    assert sent(task) == [(X, [1, 2, 3, 4])]


def test_what_the_sender_has_to_send_again_leaves_before_anything_else_and_is_not_processed() -> None:
    task = task_of(
        UnalignedBarriers,
        Map("negative", lambda number: -number),
        inputs=(A,),
        replay=[logged(X, 1, by_sender=True), logged(A, 2), logged(Y, 3, by_sender=True)],
    )
    work(task)
    task.output_buffers.flush()
    assert sent(task) == [(X, [1]), (Y, [3]), (X, [-2]), (Y, [-2])]


@pytest.mark.parametrize("processed_first", [False, True])
def test_a_checkpoint_during_the_replay_holds_what_is_not_processed_yet_once(processed_first: bool) -> None:
    task = task_of(AlignedBarriers, replay=[logged(L, 1), logged(L, 2)])
    if processed_first:
        task.run()
    offer(task, L, [3])
    offer(task, A, Barrier(N1))
    # The barrier is served in turn with the replay: what is left of it then is in the log.
    while not sent(task):
        task.run()
    offer(task, L, [4], Barrier(N1))
    (log,) = stored_logs(task).values()
    rest = [records for _, records, _ in log]
    assert rest == [[n] for n in range(5 - len(rest), 5)]
    assert all(channel == L and not by_sender for channel, _, by_sender in log)


def test_an_unaligned_checkpoint_before_anything_was_replayed_holds_all_of_it_once() -> None:
    replay = [logged(A, 1), logged(A, 2), logged(X, 9, by_sender=True)]
    task = task_of(UnalignedBarriers, inputs=(A,), replay=replay)
    offer(task, A, [3], Barrier(N1))
    assert stored_logs(task) == {
        1: [(X, [9], True), (A, [1], False), (A, [2], False), (A, [3], False)],
    }
    assert sent(task) == [(X, Barrier(N1)), (X, [9]), (Y, Barrier(N1))]


def test_replayed_records_keep_their_keys() -> None:
    one = LoggedBatch(A, encode_batch(Batch(["r"], ["k"])), 1, by_sender=False)
    task = task_of(AlignedBarriers, inputs=(A,), replay=[one])
    (item,) = task.input_gate.ends[A].queue._head
    assert isinstance(item, Batch)
    assert (item.records, item.keys) == (["r"], ["k"])


# Overtaking.


def clogged(*items: Any) -> Task:
    """Return a task whose output X takes nothing more, with `items` waiting there."""
    task = task_of(UnalignedBarriers, inputs=(A,), outputs=(X, Y))
    task.output_buffers.ends[X].waiting.extend(
        Batch(item) if isinstance(item, list) else item for item in items
    )
    return task


def waiting(task: Task, channel: ChannelId) -> list[Any]:
    return [
        item.records if isinstance(item, Batch) else item
        for item in task.output_buffers.ends[channel].waiting
    ]


def test_the_barrier_gets_ahead_of_what_a_channel_has_not_taken_and_that_is_logged() -> None:
    task = clogged([1], [2])
    offer(task, A, Barrier(N1))
    assert sent(task) == [(Y, Barrier(N1))]
    assert waiting(task, X) == [Barrier(N1), [1], [2]]
    assert stored_logs(task) == {1: [(X, [1], True), (X, [2], True)]}


def test_it_stays_behind_older_barriers_that_overtook_the_same_records() -> None:
    task = clogged([1])
    offer(task, A, Barrier(N1), Barrier(N2))
    assert waiting(task, X) == [Barrier(N1), Barrier(N2), [1]]
    assert stored_logs(task) == {1: [(X, [1], True)], 2: [(X, [1], True)]}


def test_it_gets_ahead_of_what_waits_in_the_output_buffers_too() -> None:
    task = task_of(UnalignedBarriers, inputs=(A,))
    offer(task, A, [1])
    work(task)
    assert task.output_buffers.has_buffered
    offer(task, A, Barrier(N1))
    assert sent(task) == [(X, Barrier(N1)), (X, [1]), (Y, Barrier(N1)), (Y, [1])]
    assert stored_logs(task) == {1: [(X, [1], True), (Y, [1], True)]}


def test_what_is_produced_after_the_barrier_stays_behind_it() -> None:
    task = clogged([1])
    offer(task, A, Barrier(N1), [2])
    work(task)
    task.output_buffers.flush()
    assert waiting(task, X) == [Barrier(N1), [1]]
    assert sent(task) == [(Y, Barrier(N1)), (X, [2]), (Y, [2])]


def test_the_end_of_input_is_overtaken_and_not_logged() -> None:
    """A task that has ended says so again after a restore."""
    task = clogged(END)
    offer(task, A, Barrier(N1))
    assert waiting(task, X) == [Barrier(N1), END]
    assert stored_logs(task) == {1: []}


# A barrier that was forwarded, and does not get away.


def stuck(*items: Any, protocol: type[SnapshotProtocol] = AlignedThenUnaligned) -> Task:
    """Return a task that has captured for 1, whose output X takes nothing: `items` wait there first."""
    task = task_of(protocol, inputs=(A,), outputs=(X, Y))
    task.output_buffers.ends[X].waiting.extend(
        Batch(item) if isinstance(item, list) else item for item in items
    )
    offer(task, A, Barrier(N1))
    work(task)
    hand_over(task)
    return task


def hand_over(task: Task) -> None:
    """X takes nothing, Y takes all."""
    outbox, task.task_effects.outbox = task.task_effects.outbox, []
    task.output_buffers.ends[X].waiting.extend(item for channel, item in outbox if channel == X)
    task.snapshots.note_sent()


def test_the_snapshot_is_stored_when_the_barrier_has_left_on_every_output() -> None:
    task = stuck([1])
    assert asked(task) == [WaitForAlignment(N1)]
    task.output_buffers.ends[X].waiting.popleft()
    assert not task.snapshots.note_sent()
    task.output_buffers.ends[X].waiting.popleft()
    assert task.snapshots.note_sent()
    assert stored_logs(task) == {1: []}
    assert not task.snapshots.note_sent()


def test_a_barrier_that_is_stuck_gets_ahead_of_what_it_was_sent_behind_and_that_is_logged() -> None:
    task = stuck([1], [2])
    offer(task, A, [3])
    work(task)
    task.output_buffers.flush()
    hand_over(task)
    task.snapshots.alignment_timed_out(N1)
    assert waiting(task, X) == [Barrier(N1), [1], [2], [3]]
    assert stored_logs(task) == {1: [(X, [1], True), (X, [2], True)]}
    assert sent(task) == []


def test_it_gets_ahead_where_it_still_waits_only() -> None:
    task = stuck()
    task.output_buffers.ends[X].waiting.clear()
    task.output_buffers.ends[X].waiting.append(Batch([9]))
    task.output_buffers.ends[Y].waiting.extend([Batch([1]), Barrier(N1)])
    task.snapshots.alignment_timed_out(N1)
    assert waiting(task, X) == [[9]]
    assert waiting(task, Y) == [Barrier(N1), [1]]


def test_it_stays_behind_older_barriers_that_were_expedited_before() -> None:
    task = stuck([1])
    offer(task, A, [2], Barrier(N2))
    work(task)
    hand_over(task)
    task.snapshots.alignment_timed_out(N1)
    task.snapshots.alignment_timed_out(N2)
    assert waiting(task, X) == [Barrier(N1), Barrier(N2), [1], [2]]
    assert stored_logs(task) == {1: [(X, [1], True)], 2: [(X, [1], True), (X, [2], True)]}


def test_a_source_expedites_its_barrier_too() -> None:
    splits = SplitQueue(generate(lambda number: number, 3), [])
    task = bare_task.task_of(inputs=(), protocol=AlignedThenUnaligned, splits=splits, rows=9)
    task.output_buffers.ends[X].waiting.append(Batch([1]))
    task.snapshots.trigger(N1)
    hand_over(task)
    assert asked(task) == [WaitForAlignment(N1)]
    task.snapshots.alignment_timed_out(N1)
    assert waiting(task, X) == [Barrier(N1), [1]]
    assert [job.frozen.log for job in asked(task)] == [(logged(X, 1, by_sender=True),)]


# Unaligned inputs.


def test_an_unaligned_barrier_counts_on_arrival_and_what_waits_before_it_is_logged() -> None:
    task = task_of(UnalignedBarriers, inputs=(A, B))
    offer(task, A, [1], Barrier(N1), [2])
    assert wait_in_front_of(task, A) == [[1], [2]]
    assert stored_logs(task) == {}
    offer(task, B, [3])
    work(task)
    offer(task, B, [4], Barrier(N1))
    assert stored_logs(task) == {1: [(A, [1], False), (B, [3], False), (B, [4], False)]}


def test_an_unaligned_barrier_that_comes_back_on_a_back_edge_ends_its_log() -> None:
    task = task_of(UnalignedBarriers)
    offer(task, L, [1])
    offer(task, A, Barrier(N1))
    offer(task, L, [2], Barrier(N1), [3])
    assert stored_logs(task) == {1: [(L, [1], False), (L, [2], False)]}


def test_a_switch_that_takes_the_last_barrier_out_of_a_queue_says_that_there_is_room() -> None:
    """Nobody else would: the queue is never read empty, so its sender would wait for credit for ever."""
    task = task_of(AlignedThenUnaligned, inputs=(A, B))
    offer(task, A, [1], Barrier(N1))
    offer(task, B, [2])
    assert task.run() == A and task.input_gate.ends[A].queue.in_memory == 1
    task.snapshots.alignment_timed_out(N1)
    assert task.task_effects.emptied == [A]


def test_a_switch_leaves_what_came_behind_the_barrier_out_of_the_log() -> None:
    task = task_of(AlignedThenUnaligned, inputs=(A, B))
    offer(task, A, Barrier(N1), [1])
    work(task)
    offer(task, B, [2])
    task.snapshots.alignment_timed_out(N1)
    assert stored_logs(task) == {}
    offer(task, B, Barrier(N1))
    assert stored_logs(task) == {1: [(B, [2], False)]}
    work(task)
    task.output_buffers.flush()
    assert sent(task) == [(X, Barrier(N1)), (Y, Barrier(N1)), (X, [1, 2]), (Y, [1, 2])]


@pytest.mark.parametrize("waiting", [[], [1, 2]])
def test_a_task_that_stands_still_takes_the_barrier_out_that_came_back_meanwhile(waiting: list[int]) -> None:
    task = task_of(StopTheWorldBarriers)
    offer(task, A, Barrier(N1))
    work(task)
    offer(task, L, *([waiting] if waiting else []), Barrier(N1))
    assert not task.has_work
    task.snapshots.capture(N1)
    assert stored_logs(task) == {1: [(L, waiting, False)] if waiting else []}
    task.snapshots.resume(N1)
    offer(task, A, [3])
    work(task)
    task.output_buffers.flush()
    assert sent(task)[2:] == [(X, [*waiting, 3]), (Y, [*waiting, 3])]


# Spilling.


def test_a_blocked_input_is_spilled_if_the_settings_say_so_and_no_other_regular_one() -> None:
    task = task_of(AlignedBarriers, inputs=(A, B), spills_blocked=True)
    offer(task, A, Barrier(N1), [1], [2])
    offer(task, B, [3])
    assert not task.input_gate.ends[A].spill(), "its barrier has not been delivered"
    work(task)
    assert task.input_gate.ends[A].spill()
    assert not task.input_gate.ends[B].spill()
    assert (task.input_gate.ends[A].queue.in_memory, task.statistics().queued_records) == (0, 2)
    assert task.statistics().spilled_bytes > 0
    offer(task, B, Barrier(N1))
    work(task)
    task.output_buffers.flush()
    assert sent(task) == [
        (X, [3]), (Y, [3]), (X, Barrier(N1)), (Y, Barrier(N1)), (X, [1, 2]), (Y, [1, 2]),
    ]  # fmt: skip


def test_a_blocked_input_stays_in_memory_unless_the_settings_say_so() -> None:
    task = task_of(AlignedBarriers, inputs=(A, B))
    offer(task, A, Barrier(N1), [1])
    work(task)
    assert not task.input_gate.ends[A].spill()
    assert task.input_gate.ends[A].queue.in_memory == 1


def test_a_back_edge_may_always_be_spilled() -> None:
    task = task_of(AlignedBarriers)
    offer(task, L, [1])
    assert task.input_gate.ends[L].spill()
    assert wait_in_front_of(task, L) == [[1]]
    task.close()


def test_what_is_on_disk_belongs_to_the_log_of_a_checkpoint_that_switches() -> None:
    """Spilled behind barrier 1, still there in front of barrier 2, which then becomes unaligned."""
    task = task_of(AlignedThenUnaligned, inputs=(A, B), spills_blocked=True)
    offer(task, A, Barrier(N1), [1], [2], Barrier(N2), [3])
    work(task)
    assert task.input_gate.ends[A].spill()
    offer(task, A, [4])
    offer(task, B, Barrier(N1))
    task.run()
    assert sent(task) == [(X, Barrier(N1)), (Y, Barrier(N1))]
    assert task.snapshots.note_sent()
    assert stored_logs(task) == {1: []}
    task.snapshots.alignment_timed_out(N2)
    offer(task, B, [5], Barrier(N2))
    assert stored_logs(task) == {2: [(A, [1], False), (A, [2], False), (B, [5], False)]}
    assert wait_in_front_of(task, A) == [[1], [2], [3], [4]]
    work(task)
    task.output_buffers.flush()
    assert [records for channel, records in sent(task) if channel == X] == [
        Barrier(N2), [1, 5, 2, 3, 4]
    ]  # fmt: skip


# The end of loops.


def test_close_loops_ends_the_back_edges_and_so_the_task() -> None:
    task = task_of(AlignedBarriers)
    offer(task, A, END)
    work(task)
    assert sent(task) == []
    task.close_loops([HERE.vertex])
    work(task)
    assert sent(task) == [(X, END), (Y, END)]


def test_the_loops_of_other_heads_concern_nobody_else() -> None:
    task = task_of(AlignedBarriers)
    offer(task, A, END)
    work(task)
    task.close_loops([VertexId("elsewhere")])
    assert not task.has_work


def test_to_close_a_loop_twice_is_to_close_it_once() -> None:
    task = task_of(AlignedBarriers)
    offer(task, A, END)
    task.close_loops([HERE.vertex])
    work(task)
    task.close_loops([HERE.vertex])
    work(task)
    assert sent(task) == [(X, END), (Y, END)]


def test_a_record_behind_the_end_of_its_channel_is_an_error_and_not_lost() -> None:
    """I12: what is behind the loop has had its end of input."""
    task = task_of(AlignedBarriers)
    task.close_loops([HERE.vertex])
    work(task)
    offer(task, L, [1, 2])
    with pytest.raises(ProtocolError, match="2 records came on"):
        work(task)


def test_the_end_that_then_comes_around_the_loop_is_not_a_second_end() -> None:
    task = task_of(AlignedBarriers)
    offer(task, A, END)
    task.close_loops([HERE.vertex])
    offer(task, L, END)
    work(task)
    assert sent(task) == [(X, END), (Y, END)]


def test_close_loops_means_nothing_to_a_task_without_back_edges() -> None:
    task = task_of(AlignedBarriers, inputs=(A, B))
    task.close_loops([HERE.vertex])
    assert not task.has_work


# What was on its way at another parallelism comes first.


def rescaled_task(records: Sequence[Any]) -> tuple[Task, list[Any]]:
    taken: list[Any] = []
    queues_of = {one: InputQueue(one, DiskSpace(), 100) for one in (A, B)}
    queues_of[B].restore(logged(B, *records))
    queues_of[B].append(REPLAYED)
    task = bare_task.task_of(
        Map("taken", lambda record: taken.append(record) or record),
        protocol=UnalignedBarriers,
        queues=queues_of,
        outputs=[],
        rows=1,
        replay=ReplayOrder({B: 1}, 0, {}),
    )
    return task, taken


def test_what_was_on_its_way_at_another_parallelism_is_taken_before_anything_that_comes() -> None:
    """I5: its successor may come from somebody else, who has taken over the split."""
    task, taken = rescaled_task(records=["old 1", "old 2", "old 3"])
    offer(task, A, ["new of a"])
    offer(task, B, ["new of b"])
    work(task)
    assert taken == ["old 1", "old 2", "old 3", "new of a", "new of b"]


def test_a_snapshot_waits_until_that_is_taken() -> None:
    task, taken = rescaled_task(records=["old 1", "old 2"])
    offer(task, A, Barrier(N1))
    assert stored_logs(task) == {}
    task.run()
    assert taken == ["old 1"] and stored_logs(task) == {}
    work(task)
    offer(task, B, ["new of b"], Barrier(N1))
    assert stored_logs(task) == {1: [(B, ["new of b"], False)]}
    assert taken == ["old 1", "old 2"]
