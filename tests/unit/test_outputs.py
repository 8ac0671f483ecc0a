"""Outputs against a plain account of what was added: nothing lost, nothing doubled, order kept."""

from __future__ import annotations

from typing import Any

import pytest

from crosscut.errors import UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, TaskId, VertexId
from crosscut.foundation.keys import KeyRouter, key_group, owner_of_group
from crosscut.graph.specs import Partitioning
from crosscut.task.outputs import Output, build_output, pieces

SOURCE = TaskId(VertexId("source"), 0)
CHANNELS = tuple(ChannelId(0, SOURCE, TaskId(VertexId("target"), index)) for index in range(3))
MAX_PARALLELISM = 16


def output(partitioning: Partitioning, *, batch_rows: int = 4, task_index: int = 0) -> Output:
    return build_output(
        partitioning,
        CHANNELS[:1] if partitioning == "forward" else CHANNELS,
        batch_rows=batch_rows,
        router=KeyRouter(MAX_PARALLELISM, len(CHANNELS)),
        key_by_uid="by-key",
        task_index=task_index,
    )


def owner(key: Any) -> int:
    return owner_of_group(key_group(key, MAX_PARALLELISM), MAX_PARALLELISM, len(CHANNELS))


def taken(out: Output) -> dict[int, tuple[list[Any], list[Any] | None]]:
    """Return (records, keys) by target, and see to it that no channel got two batches."""
    batches = out.take()
    assert len({channel for channel, _ in batches}) == len(batches)
    return {channel.target.index: (batch.records, batch.keys) for channel, batch in batches}


def test_forward_sends_every_record_to_its_only_channel_in_order() -> None:
    out = output("forward")
    out.add(Batch([1, 2]))
    out.add(Batch([3]))
    assert taken(out) == {0: ([1, 2, 3], None)}


def test_broadcast_sends_every_record_to_every_channel_in_order() -> None:
    out = output("broadcast")
    out.add(Batch([1, 2]))
    out.add(Batch([3]))
    assert taken(out) == {index: ([1, 2, 3], None) for index in range(3)}


def test_rebalance_deals_batches_out_in_turn_and_each_task_begins_at_its_own_place() -> None:
    for task_index in range(5):
        out = output("rebalance", task_index=task_index)
        for number in range(4):
            out.add(Batch([number, number]))
        first = task_index % 3
        assert taken(out) == {
            first: ([0, 0, 3, 3], None),
            (first + 1) % 3: ([1, 1], None),
            (first + 2) % 3: ([2, 2], None),
        }


def test_rebalance_goes_on_where_it_was_after_its_buffers_were_taken() -> None:
    out = output("rebalance")
    out.add(Batch([1]))
    out.take()
    out.add(Batch([2]))
    assert taken(out) == {1: ([2], None)}


def test_by_key_sends_each_record_with_its_key_to_the_owner_of_the_keys_group() -> None:
    keys = ["a", "b", "c", "a", ("d", 1), None, 7, "b"]
    records = [f"record {index}" for index in range(len(keys))]
    out = output("hash")
    out.add(Batch(records[:5], keys[:5]))
    out.add(Batch(records[5:], keys[5:]))
    expected: dict[int, tuple[list[Any], list[Any]]] = {}
    for record, key in zip(records, keys, strict=True):
        some_records, some_keys = expected.setdefault(owner(key), ([], []))
        some_records.append(record)
        some_keys.append(key)
    assert len(expected) > 1
    assert taken(out) == expected


def test_by_key_without_values_sends_one_list_that_is_both() -> None:
    """That identity survives the wire and halves the work."""
    out = output("hash")
    for keys in (["a", "b"], ["a", "c"]):
        out.add(Batch(keys, keys))
    batches = out.take()
    assert all(batch.keys is batch.records for _, batch in batches)
    assert sorted(key for _, batch in batches for key in batch.records) == ["a", "a", "b", "c"]


@pytest.mark.parametrize("partitioning", ["forward", "broadcast", "rebalance", "hash"])
def test_what_was_taken_is_not_taken_again(partitioning: Partitioning) -> None:
    out = output(partitioning)
    out.add(Batch([1, 2], [1, 2]))
    assert out.buffered_rows == 2
    assert taken(out) != {}
    assert (taken(out), out.buffered_rows) == ({}, 0)


@pytest.mark.parametrize("partitioning", ["forward", "broadcast", "rebalance", "hash"])
def test_a_batch_that_was_taken_does_not_change_when_more_is_added(partitioning: Partitioning) -> None:
    out = output(partitioning)
    out.add(Batch([1, 2], [1, 2]))
    batches = [batch for _, batch in out.take()]
    before = [(list(batch.records), batch.keys and list(batch.keys)) for batch in batches]
    for number in range(6):
        out.add(Batch([number], [number]))
    assert [(batch.records, batch.keys) for batch in batches] == before


@pytest.mark.parametrize("partitioning", ["forward", "broadcast", "rebalance", "hash"])
def test_the_batch_that_was_added_stays_as_it_was(partitioning: Partitioning) -> None:
    """Several outputs of one task get the same batch."""
    out = output(partitioning)
    batch = Batch([1, 2], [1, 2])
    out.add(batch)
    out.add(Batch([3], [3]))
    assert (batch.records, batch.keys) == ([1, 2], [1, 2])


@pytest.mark.parametrize(
    ("partitioning", "rows"), [("forward", 4), ("broadcast", 4), ("rebalance", 10), ("hash", 12)]
)
def test_a_full_buffer_is_reported_when_it_becomes_full(partitioning: Partitioning, rows: int) -> None:
    """rebalance: the first of three to have 4 rows; hash: as many as fill all three."""
    out = output(partitioning)
    answers = [out.add(Batch([number], [number])) for number in range(rows)]
    assert answers == [False] * (rows - 1) + [True]


def test_a_key_that_is_none_names_the_key_by_and_its_record_and_nothing_was_added() -> None:
    out = output("hash")
    out.add(Batch(["first"], ["a"]))
    with pytest.raises(UserCodeError, match=r"1\.5 of type float can't be a key") as failure:
        out.add(Batch(["good", "bad", "ugly"], ["a", 1.5, 2.5]))
    assert (failure.value.operator, failure.value.record) == ("by-key", "'bad'")
    assert taken(out) == {owner("a"): (["first"], ["a"])}


def test_a_key_without_a_hash_names_its_record_too() -> None:
    with pytest.raises(UserCodeError, match="of type list can't be a key") as failure:
        output("hash").add(Batch(["good", "bad"], ["a", ["b"]]))
    assert (failure.value.operator, failure.value.record) == ("by-key", "'bad'")


def test_records_without_keys_cannot_go_by_key() -> None:
    with pytest.raises(TypeError, match="by-key"):
        output("hash").add(Batch(["a"]))


@pytest.mark.parametrize("is_keys_only", [True, False])
def test_a_record_that_became_very_many_leaves_in_batches_of_bounded_size(is_keys_only: bool) -> None:
    keys = [str(number) for number in range(10_500)]
    batch = Batch(keys if is_keys_only else list(range(10_500)), keys)
    cut = list(pieces(batch, 1_000))
    assert [len(piece) for piece in cut] == [1_000] * 10 + [500]
    assert [key for piece in cut for key in piece.keys or []] == keys
    assert [record for piece in cut for record in piece.records] == batch.records
    assert all((piece.keys is piece.records) == is_keys_only for piece in cut)
