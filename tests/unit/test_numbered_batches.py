"""Batches with numbers: merged, cut, spilled and put back, each record and news keeps its number."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.bare_task import offer, task_of
from tests.unit.barriers import A, B

from crosscut.errors import InternalError, WireError
from crosscut.foundation.batch import Batch, LatencyMarker, NumberedBatch
from crosscut.operators.operator import Operator
from crosscut.operators.stateless import Map
from crosscut.protocol.unit_log.entries import ChannelPosition
from crosscut.task.inputs import InputQueue
from crosscut.task.items import EndOfInput, Item
from crosscut.wire.batches import (
    decode_batch,
    decode_numbers,
    encode_batch,
    with_numbers,
)
from crosscut.wire.frames import BATCH_BYTES_MAX, NUMBERS
from crosscut.worker.spill_files import DiskSpace


def numbered(first: int, count: int, news: int = 0) -> NumberedBatch:
    """Return a batch in which each record is its own number, and the watermark that of the news."""
    numbers = list(range(first, first + count))
    batch = Batch([*numbers], [*numbers], [*numbers], watermark=news or None)
    return NumberedBatch(batch, first, news)


def check(item: Item) -> NumberedBatch:
    """Require that a batch made by `numbered` says the truth about what it holds."""
    assert isinstance(item, NumberedBatch)
    assert item.records == item.keys == item.timestamps == [*range(item.first, item.last + 1)]
    assert item.news_number == (item.watermark or 0)
    return item


# One batch.


def test_both_parts_of_a_batch_keep_their_numbers() -> None:
    for cut in range(6):
        head, rest = map(check, numbered(4, 5, 2).split(cut))
        assert (head.first, len(head), head.news_number) == (4, cut, 0)
        assert (rest.first, len(rest), rest.news_number) == (4 + cut, 5 - cut, 2)
    batch = numbered(4, 5, 2)
    rest = check(batch.drop(2))
    assert (check(batch).last, batch.news_number) == (6, 0)
    assert (rest.first, rest.last, rest.news_number) == (7, 8, 2)


def test_news_takes_its_number_along() -> None:
    batch = numbered(4, 5, 2)
    news = batch.take_news()
    assert (check(batch).news_number, news.news_number, news.watermark) == (0, 2, 2)
    batch.keep_news(news)
    assert check(batch).news_number == 2


def test_a_mark_stays_with_the_records_that_it_follows() -> None:
    batch = numbered(1, 4)
    batch.marker = mark = LatencyMarker("source", 1)
    assert [one.marker for one in NumberedBatch(batch, 1).split(2)] == [None, mark]


def test_merged_batches_have_the_newest_news() -> None:
    batch = numbered(1, 2, 1)
    for more in (numbered(3, 0, 2), numbered(3, 3), numbered(6, 1, 3)):
        batch.extend(more)
        check(batch)
    assert (batch.first, batch.last, batch.news_number) == (1, 6, 3)


def test_news_that_came_again_has_no_place_among_the_records() -> None:
    """It is older than records that were taken before the failure."""
    batch = numbered(4, 0, 1)
    batch.extend(numbered(6, 2, 2))
    assert (check(batch).first, batch.news_number) == (6, 2)
    batch.extend(numbered(4, 0, 3))
    assert (check(batch).last, batch.news_number) == (7, 3)


def test_a_gap_and_records_without_numbers_are_never_merged() -> None:
    batch = numbered(1, 2)
    for more in (numbered(4, 1), numbered(2, 1), Batch([3])):
        with pytest.raises(InternalError, match="records up to 2 are followed by record"):
            batch.extend(more)
    assert check(batch).last == 2


# Input queues.

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 5)),
        st.tuples(st.just("take"), st.integers(1, 7)),
        st.tuples(st.just("put back"), st.integers(1, 7)),
        st.tuples(st.just("spill"), st.just(0)),
    ),
    max_size=60,
)


@given(steps, st.integers(0, 8), st.data())
def test_whatever_a_queue_does_to_batches_numbers_are_dense_and_news_never_goes_back(
    script: list[tuple[str, int]], batch_rows: int, data: st.DataObject
) -> None:
    queue = InputQueue(A, DiskSpace(), batch_rows)
    came = ChannelPosition()
    taken = ChannelPosition()

    def take(rows: int) -> None:
        nonlocal taken
        batch = check(queue.take(rows, data.draw(st.integers(0, 7))))
        assert batch.first == taken.record + 1
        assert not batch.news_number or taken.news < batch.news_number <= came.news
        taken = ChannelPosition(batch.last, batch.news_number or taken.news)

    for step, count in script:
        match step:
            case "append":
                news = data.draw(st.booleans()) or not count
                batch = numbered(came.record + 1, count, came.news + 1 if news else 0)
                queue.append(batch)
                came = ChannelPosition(came.record + count, came.news + news)
            case "take" if queue:
                take(count)
            case "put back" if queue:
                batch = check(queue.take(count))
                if len(batch) > 1:
                    # As a time budget does: the rest, with the news.
                    rest = check(batch.drop(data.draw(st.integers(1, len(batch) - 1))))
                    assert check(batch).first == taken.record + 1
                    taken = ChannelPosition(batch.last, taken.news)
                    batch = rest
                queue.appendleft(batch)
            case "spill":
                assert queue.spill()
    while queue:
        take(7)
    assert taken == came
    queue.close()


def test_records_without_numbers_stay_apart() -> None:
    queue = InputQueue(A, None, 10)
    queue.append(Batch([-1]))
    queue.append(numbered(1, 2))
    queue.append(numbered(3, 1))
    queue.append(Batch([-2]))
    assert [len(queue.take(10)) if queue else 0 for _ in range(4)] == [1, 3, 1, 0]  # type: ignore[arg-type]


# A task.


def one_by_one() -> Map:
    """Return an operator that stops after each record."""

    def stop(record: int) -> int:
        operator.time_budget.stop()
        return record

    operator = Map("one by one", stop)
    return operator


def positions(rows_max: int, *chain: Operator) -> list[dict[str, tuple[int, int]]]:
    """Return how far a task has come after each of its runs."""
    task = task_of(*chain, inputs=(A, B))
    task.rows_max = rows_max
    offer(task, A, numbered(1, 5, 1), numbered(6, 0, 2), EndOfInput(3))
    offer(task, B, [7, 8], EndOfInput())
    found = []
    while task.input_gate.has_next:
        task.run()
        taken = task.input_gate.take_positions()
        found.append({"A" if one == A else "B": (at.record, at.news) for one, at in taken.items()})
    return found


def test_a_task_says_how_far_it_has_come_and_nothing_of_channels_without_numbers() -> None:
    moves = [one for one in positions(2) if one]
    assert all(set(one) == {"A"} for one in moves)
    assert [one["A"] for one in moves] == [(2, 0), (4, 0), (5, 1), (5, 2), (0, 3)]


def test_what_a_task_puts_back_has_not_been_taken() -> None:
    """Its time is up in the middle of a batch: the rest comes again, and its news after it."""
    moves = [one["A"] for one in positions(100, one_by_one()) if one]
    assert moves == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (5, 2), (0, 3)]


# On the wire, and on disk.


@pytest.mark.parametrize(
    "batch", [numbered(1, 3), numbered(7, 2, 4), numbered(9, 0, 1), numbered(1 << 63, 1)]
)
def test_numbers_come_back(batch: NumberedBatch) -> None:
    for data in (encode_batch(batch), memoryview(encode_batch(batch))):
        assert decode_numbers(data) == (batch.first, batch.news_number)
        back = check(decode_batch(data))
        assert (back.first, back.records, back.news_number) == (batch.first, batch.records, batch.news_number)


def test_numbers_go_in_front_of_what_was_encoded_without() -> None:
    batch = numbered(5, 2, 3)
    plain = encode_batch(Batch(batch.records, batch.keys, batch.timestamps, batch.watermark))
    assert encode_batch(batch) == with_numbers(plain, 5, 3)
    assert len(encode_batch(batch)) == len(plain) + NUMBERS.size == len(plain) + 17


def test_a_batch_without_numbers_has_none_on_the_wire() -> None:
    assert encode_batch(Batch([1])) == pickle.dumps(([1], None), protocol=5)
    assert not isinstance(decode_batch(encode_batch(Batch([1]))), NumberedBatch)


def test_numbers_count_for_the_limit_of_a_batch() -> None:
    limit = len(encode_batch(numbered(1, 3)))
    encode_batch(numbered(1, 3), limit)
    with pytest.raises(WireError, match="its limit is"):
        encode_batch(numbered(1, 3), limit - 1)
    assert limit < BATCH_BYTES_MAX


PLAIN = pickle.dumps(([1], None), protocol=5)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"N", "do not begin with the numbers"),
        (with_numbers(b"", 1, 0)[:-1], "do not begin with the numbers"),
        (with_numbers(PLAIN, 0, 0), "record 0"),
        (with_numbers(PLAIN, 1, 1), "no news has the news number 1"),
        (with_numbers(encode_batch(Batch([], watermark=1)), 1, 0), "news has the news number 0"),
        (with_numbers(with_numbers(PLAIN, 1, 0), 1, 0), "numbers twice"),
        (with_numbers(b"", 1, 0), "can't be decoded"),
    ],
)
def test_other_numbers_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        decode_batch(data)
