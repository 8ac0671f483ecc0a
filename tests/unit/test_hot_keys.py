"""Keys that have much of a task's input are named, from a sample of its records."""

from __future__ import annotations

import random

import pytest
from tests.unit.bare_task import A, offer, task_of

from crosscut.foundation.batch import Batch
from crosscut.task.hot_keys import CAPACITY, GAP_ROWS, SAMPLE_MAX, HotKeys


def fed(keys: list[str], batch_rows: int) -> HotKeys:
    """Return a sample of the keys, which came in batches."""
    hot = HotKeys()
    for start in range(0, len(keys), batch_rows):
        rows = len(keys[start : start + batch_rows])
        if rows > hot.rows_to_next:
            hot.look_at(keys[start : start + batch_rows], rows)
        else:
            hot.rows_to_next -= rows
    return hot


@pytest.mark.parametrize("batch_rows", [1, 7, 500, 10_000])
def test_a_key_with_most_of_the_records_is_named_with_its_share(batch_rows: int) -> None:
    chance = random.Random(batch_rows)
    keys = ["hot" if chance.random() < 0.9 else f"key {chance.randrange(5_000)}" for _ in range(300_000)]
    (found,) = fed(keys, batch_rows).shown()
    assert found.key == "'hot'"
    # At least so much of the sample, less what the counters of the others take away.
    assert 0.9 - 2 / CAPACITY - 0.05 < found.share < 0.95


@pytest.mark.parametrize("count", [10, 50, 100_000])
def test_keys_that_are_alike_are_not_named(count: int) -> None:
    chance = random.Random(count)
    assert fed([f"key {chance.randrange(count)}" for _ in range(200_000)], 1_000).shown() == ()


def test_an_input_that_repeats_itself_deceives_no_sample() -> None:
    assert fed([f"key {number % GAP_ROWS}" for number in range(200_000)], 1_000).shown() == ()


def test_a_key_that_was_hot_is_forgotten_when_others_come() -> None:
    rows = 3 * SAMPLE_MAX * GAP_ROWS
    chance = random.Random(3)
    before, after = ["old"] * rows, [chance.choice(["new", "other"]) for _ in range(rows)]
    assert {one.key for one in fed(before + after, 200).shown()} == {"'new'", "'other'"}


def test_a_few_records_name_no_key() -> None:
    assert fed(["hot"] * 90, 10).shown() == ()


def test_a_task_reports_its_hot_keys_and_one_without_keys_has_none() -> None:
    task = task_of(inputs=(A,), rows=1_000)
    for _ in range(40):
        offer(task, A, Batch(list(range(1_000)), ["hot"] * 900 + [f"key {number}" for number in range(100)]))
        task.run()
    (found,) = task.statistics().hot_keys
    assert found.key == "'hot'" and found.share > 0.7
    task = task_of(inputs=(A,), rows=1_000)
    for _ in range(40):
        offer(task, A, Batch([1] * 1_000))
        task.run()
    assert task.statistics().hot_keys == ()
