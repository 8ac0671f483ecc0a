"""An input queue that spills, against a deque; and what it takes of memory and disk."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.errors import SpillError, WireError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, CheckpointId, TaskId, VertexId
from crosscut.task import channel_log
from crosscut.task import inputs as queues
from crosscut.task.channel_log import SnapshotLog, SpilledBlocks, decoded_log, encoded_log, release_log
from crosscut.task.inputs import InputQueue
from crosscut.task.items import Barrier, EndOfInput, Item, LoggedBatch
from crosscut.wire.batches import decode_batch, encode_batch
from crosscut.worker import spill_files
from crosscut.worker.spill_files import DiskSpace

CHANNEL = ChannelId(0, TaskId(VertexId("before"), 0), TaskId(VertexId("here"), 1))


@pytest.fixture(autouse=True, scope="module")
def _short_segments() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queues, "SEGMENT_BYTES", 100)
        yield


def plain(item: Item) -> object:
    """Batches come back from disk as equal ones, not as the same."""
    return (item.records, item.keys) if isinstance(item, Batch) else item


def batch(number: int) -> Batch:
    return Batch([number, str(number)], [number, number])


def barrier(number: int) -> Barrier:
    return Barrier(CheckpointId(number))


def filled(count: int, space: DiskSpace | None = None) -> InputQueue:
    queue = InputQueue(CHANNEL, space or DiskSpace())
    for number in range(count):
        queue.append(batch(number))
    return queue


def logged_in_front_of(queue: InputQueue, one: Barrier) -> list[object]:
    """Return the batches that a snapshot holds of it, as they come back."""
    log = SnapshotLog()
    for waiting in queue.in_front_of(one):
        if isinstance(waiting, SpilledBlocks):
            log.add_blocks(waiting)
        else:
            log.add(CHANNEL, waiting, by_sender=False)
    entries = log.take()
    found = decoded_log(b"".join(encoded_log(entries)))
    release_log(entries)
    assert sum(entry.rows for entry in entries) == sum(entry.rows for entry in found)
    assert all(entry.channel == CHANNEL and not entry.by_sender for entry in found)
    return [plain(decode_batch(entry.data)) for entry in found]


def records_in_front_of(oracle: deque[Item], one: Barrier) -> list[object]:
    items = takewhile(lambda item: item != one, oracle)
    return [plain(item) for item in items if isinstance(item, Batch)]


def taken(queue: InputQueue) -> list[object]:
    return [plain(queue.popleft()) for _ in range(len(queue))]


steps = st.lists(
    st.one_of(
        st.just("append"),
        st.just("append"),
        st.just("barrier"),
        st.just("end"),
        st.just("popleft"),
        st.just("popleft"),
        st.just("put back"),
        st.just("remove"),
        st.just("spill"),
        st.just("spill"),
    ),
    max_size=80,
)


@given(steps, st.data())
def test_it_does_whatever_a_deque_does_wherever_its_items_are(script: list[str], data: st.DataObject) -> None:
    queue, oracle = InputQueue(CHANNEL, DiskSpace()), deque[Item]()
    for number, step in enumerate(script):
        match step:
            case "append" | "barrier" | "end":
                item: Item = (
                    batch(number)
                    if step == "append"
                    else EndOfInput() if step == "end" else barrier(number)
                )  # fmt: skip
                queue.append(item)
                oracle.append(item)
            case "popleft" if oracle:
                assert plain(queue.popleft()) == plain(oracle.popleft())
            case "put back" if oracle:
                queue.appendleft(queue.popleft())
            case "remove" if barriers := [one for one in oracle if isinstance(one, Barrier)]:
                one = data.draw(st.sampled_from(barriers))
                queue.remove(one)
                oracle.remove(one)
            case "spill":
                assert queue.spill()
                assert queue.in_memory <= 1, "only what was put back may stay"
            case _:
                pass
        assert len(queue) == len(oracle)
        assert bool(queue) == bool(oracle)
        for one in (barrier(-1), *(item for item in oracle if isinstance(item, Barrier))):
            assert logged_in_front_of(queue, one) == records_in_front_of(oracle, one)
            assert (one in queue) == (one in oracle)
        assert queue.rows == sum(len(one) for one in oracle if isinstance(one, Batch))
    while oracle:
        assert plain(queue.popleft()) == plain(oracle.popleft())
    assert not queue._segments, "an empty queue keeps no file"


def test_what_was_spilled_comes_back_in_order_before_anything_newer() -> None:
    queue = filled(3)
    queue.spill()
    queue.append(batch(3))
    queue.spill()
    queue.append(barrier(4))
    queue.append(EndOfInput())
    assert queue.in_memory == 2
    assert taken(queue) == [*(plain(batch(number)) for number in range(4)), barrier(4), EndOfInput()]


def test_memory_holds_one_item_at_a_time_however_much_is_on_disk() -> None:
    """16 MB go through the queue, 100 KB at a time; the test allows 1 MB for all that is in memory."""
    queue = InputQueue(CHANNEL, DiskSpace())
    tracemalloc.start()
    try:
        for number in range(160):
            queue.append(Batch([bytes([number]) * 100_000]))
            queue.spill()
        assert queue.spilled_bytes > 16_000_000
        for number in range(160):
            item = queue.popleft()
            assert isinstance(item, Batch) and item.records[0][:1] == bytes([number])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000


def test_disk_is_given_back_file_by_file_as_it_is_read() -> None:
    """A queue that is never quite empty must not grow for ever."""
    space = DiskSpace()
    queue = InputQueue(CHANNEL, space)
    most_bytes = 0
    for number in range(1_000):
        queue.append(batch(number))
        queue.spill()
        if number >= 10:
            queue.popleft()
        most_bytes = max(most_bytes, space.taken_bytes)
    assert queue.spilled_bytes > 20 * most_bytes
    taken(queue)
    assert space.taken_bytes == 0


def test_a_queue_that_is_not_spilled_never_touches_the_disk() -> None:
    queue = InputQueue(CHANNEL, DiskSpace("/no/such/directory"))
    for number in range(20):
        queue.append(batch(number))
    taken(queue)
    assert queue.spill(), "there is nothing to spill"
    assert queue.spilled_bytes == 0


def test_a_space_that_is_used_up_takes_no_more_until_something_is_given_back() -> None:
    space = DiskSpace(bytes_max=1)
    one, other = filled(2, space), filled(2, space)
    assert one.spill()
    assert not other.spill()
    assert (other.in_memory, other.spilled_bytes) == (2, 0)
    taken(one)
    assert other.spill()
    other.close()


def test_closing_gives_the_space_back() -> None:
    space = DiskSpace()
    queue = filled(5, space)
    queue.spill()
    assert space.taken_bytes == queue.spilled_bytes > 0
    queue.close()
    assert space.taken_bytes == 0


def test_the_files_have_no_name(tmp_path: Path) -> None:
    """So a process that is killed leaves nothing behind."""
    space = DiskSpace(str(tmp_path))
    queue = filled(5, space)
    queue.spill()
    assert list(tmp_path.iterdir()) == []
    (file,) = space.files
    assert os.fstat(file._file.fileno()).st_size == queue.spilled_bytes
    queue.close()


def test_a_full_disk_is_an_error_that_names_the_directory_and_leaves_the_queue_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = filled(2, DiskSpace(str(tmp_path)))
    queue.spill()
    queue.append(batch(2))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spill_files.os, "pwrite", full)
    with pytest.raises(SpillError, match="No space left on device") as failed:
        queue.spill()
    assert str(tmp_path) in str(failed.value)
    assert "set spill_dir to another directory" in str(failed.value)
    assert queue.in_memory == 1
    assert taken(queue) == [plain(batch(number)) for number in range(3)]


def test_a_directory_that_is_not_there_is_named_too() -> None:
    with pytest.raises(SpillError, match=r"can't make a file in /no/such/directory.*spill_dir"):
        filled(1, DiskSpace("/no/such/directory")).spill()


def test_a_record_that_can_not_be_pickled_is_named_and_stays() -> None:
    queue = filled(1)
    queue.append(Batch([lambda: None]))
    with pytest.raises(WireError, match="lambda"):
        queue.spill()
    assert queue.in_memory == 2
    queue.close()


def test_an_empty_queue_has_nothing_to_give() -> None:
    with pytest.raises(IndexError):
        InputQueue(CHANNEL).popleft()


def test_what_a_log_refers_to_stays_though_the_queue_has_been_read_and_closed() -> None:
    space = DiskSpace()
    queue = filled(20, space)
    queue.spill()
    (blocks,) = queue.in_front_of(barrier(1))
    assert isinstance(blocks, SpilledBlocks)
    taken(queue)
    queue.close()
    assert space.taken_bytes > 0
    found = decoded_log(b"".join(encoded_log([blocks])))
    assert [plain(decode_batch(one.data)) for one in found] == [plain(batch(n)) for n in range(20)]
    release_log([blocks])
    assert space.taken_bytes == 0


def test_closing_a_space_gives_back_what_somebody_still_holds() -> None:
    space = DiskSpace()
    queue = filled(20, space)
    queue.spill()
    held = list(queue.in_front_of(barrier(1)))
    space.close()
    assert (space.taken_bytes, space.files) == (0, {})
    queue.close()
    release_log(one for one in held if isinstance(one, SpilledBlocks))
    assert space.taken_bytes == 0


def test_a_log_that_is_too_long_for_memory_goes_to_disk_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_log, "MEMORY_BYTES_MAX", 200)
    space = DiskSpace()
    queue = filled(5, space)
    queue.spill()
    log = SnapshotLog(space)
    for number in range(10):
        log.add(CHANNEL, batch(number), by_sender=True)
    for blocks in queue.in_front_of(barrier(1)):
        assert isinstance(blocks, SpilledBlocks)
        log.add_blocks(blocks)
    for number in range(10):
        log.add(CHANNEL, batch(number), by_sender=False)
    queue.close()
    entries = log.take()
    in_memory = [one for one in entries if not isinstance(one, SpilledBlocks)]
    assert 0 < sum(len(one.data) for one in in_memory) <= 200
    assert len(entries) == len(in_memory) + 3, "the log's own file, the queue's, and its own again"
    found = decoded_log(b"".join(encoded_log(entries)))
    expected = (
        [(n, True) for n in range(10)] + [(n, False) for n in range(5)] + [(n, False) for n in range(10)]
    )
    assert [(plain(decode_batch(one.data)), one.by_sender) for one in found] == [
        (plain(batch(number)), by_sender) for number, by_sender in expected
    ]
    release_log(entries)
    assert space.taken_bytes == 0


def test_what_is_restored_goes_to_disk_when_it_is_too_long_for_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queues, "MEMORY_BYTES_MAX", 200)
    restored = [LoggedBatch(CHANNEL, encode_batch(batch(n)), 2, by_sender=False) for n in range(10)]
    space, full = DiskSpace(), DiskSpace(bytes_max=0)
    for one in (space, full, None):
        queue = InputQueue(CHANNEL, one)
        for logged in restored:
            queue.restore(logged)
        queue.append(batch(10))
        assert (queue.rows, len(queue)) == (22, 11)
        assert bool(queue.spilled_bytes) == (one is space)
        assert queue.in_memory < 10 or one is not space
        assert taken(queue) == [plain(batch(number)) for number in range(11)]
    assert space.taken_bytes == 0


def test_partial_batches_that_wait_are_taken_as_full_ones() -> None:
    """A sink behind a shuffle, whose sender is stopped again and again, still gets full batches."""
    queue = InputQueue(CHANNEL, DiskSpace(), batch_rows=100)
    for first in range(0, 600, 60):
        queue.append(Batch(list(range(first, first + 60))))
    sizes, numbers = [], []
    while queue:
        item = queue.take(90)
        assert isinstance(item, Batch)
        sizes.append(len(item))
        numbers += item.records
    assert numbers == list(range(600))
    assert all(0.75 * 90 <= rows <= 90 for rows in sizes[:-1]), sizes


def test_no_batch_is_made_across_a_barrier_and_none_is_read_from_disk_for_it() -> None:
    space = DiskSpace()
    queue = InputQueue(CHANNEL, space, batch_rows=100)
    for item in (batch(0), barrier(1), batch(1)):
        queue.append(item)
    assert [plain(queue.take(100)) for _ in range(3)] == [plain(batch(0)), barrier(1), plain(batch(1))]
    for number in range(3):
        queue.append(batch(number))
        queue.spill()
    assert [plain(queue.take(100)) for _ in range(3)] == [plain(batch(number)) for number in range(3)]
    assert space.taken_bytes == 0


def test_a_batch_that_is_nearly_full_is_taken_as_it_is() -> None:
    queue = InputQueue(CHANNEL, batch_rows=100)
    for rows in (90, 90):
        queue.append(Batch([0] * rows))
    first = queue.take(100)
    assert isinstance(first, Batch) and len(first) == 90


def test_partial_batches_are_not_cut_that_are_little_longer_than_a_full_one_together() -> None:
    queue = InputQueue(CHANNEL, batch_rows=100)
    for _ in range(4):
        queue.append(Batch([0] * 60))
    taken = queue.take(100, 125), queue.take(100, 110)
    # What is too long is cut, and the rest is first in turn.
    assert [len(one) for one in taken if isinstance(one, Batch)] == [120, 100]
    assert queue.rows == 20
