"""An input queue that spills, against a deque; and what it takes of memory and disk."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crosscut.task.inputs as queues
from crosscut.batch import Batch
from crosscut.errors import SpillError, WireError
from crosscut.ids import CheckpointId
from crosscut.task.inputs import InputQueue, SpillSpace
from crosscut.task.items import Barrier, EndOfInput, Item


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


def filled(count: int, space: SpillSpace | None = None) -> InputQueue:
    queue = InputQueue(space)
    for number in range(count):
        queue.append(batch(number))
    return queue


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
    queue, oracle = InputQueue(), deque[Item]()
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
        assert [plain(one) for one in queue] == [plain(one) for one in oracle]
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
    queue = InputQueue()
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
    space = SpillSpace()
    queue = InputQueue(space)
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
    queue = InputQueue(SpillSpace("/no/such/directory"))
    for number in range(20):
        queue.append(batch(number))
    taken(queue)
    assert queue.spill(), "there is nothing to spill"
    assert queue.spilled_bytes == 0


def test_a_space_that_is_used_up_takes_no_more_until_something_is_given_back() -> None:
    space = SpillSpace(bytes_max=1)
    one, other = filled(2, space), filled(2, space)
    assert one.spill()
    assert not other.spill()
    assert (other.in_memory, other.spilled_bytes) == (2, 0)
    taken(one)
    assert other.spill()
    other.close()


def test_closing_gives_the_space_back() -> None:
    space = SpillSpace()
    queue = filled(5, space)
    queue.spill()
    assert space.taken_bytes == queue.spilled_bytes > 0
    queue.close()
    assert space.taken_bytes == 0


def test_the_files_have_no_name(tmp_path: Path) -> None:
    """So a process that is killed leaves nothing behind."""
    queue = filled(5, SpillSpace(str(tmp_path)))
    queue.spill()
    assert list(tmp_path.iterdir()) == []
    (segment,) = queue._segments
    assert os.fstat(segment._file.fileno()).st_size == queue.spilled_bytes
    queue.close()


def test_a_full_disk_is_an_error_that_names_the_directory_and_leaves_the_queue_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = filled(2, SpillSpace(str(tmp_path)))
    queue.spill()
    queue.append(batch(2))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(queues.os, "pwrite", full)
    with pytest.raises(SpillError, match="No space left on device") as failed:
        queue.spill()
    assert str(tmp_path) in str(failed.value)
    assert "set spill_dir to another directory" in str(failed.value)
    assert queue.in_memory == 1
    assert taken(queue) == [plain(batch(number)) for number in range(3)]


def test_a_directory_that_is_not_there_is_named_too() -> None:
    with pytest.raises(SpillError, match=r"can't make a file in /no/such/directory.*spill_dir"):
        filled(1, SpillSpace("/no/such/directory")).spill()


def test_a_record_that_can_not_be_pickled_is_named_and_stays() -> None:
    queue = filled(1)
    queue.append(Batch([lambda: None]))
    with pytest.raises(WireError, match="lambda"):
        queue.spill()
    assert queue.in_memory == 2
    queue.close()


def test_an_empty_queue_has_nothing_to_give() -> None:
    with pytest.raises(IndexError):
        InputQueue().popleft()


def test_looking_through_the_queue_does_not_move_it() -> None:
    queue = filled(10)
    queue.spill()
    queue.append(batch(10))
    assert len(list(queue)) == len(list(queue)) == len(queue) == 11
    assert taken(queue) == [plain(batch(number)) for number in range(11)]
