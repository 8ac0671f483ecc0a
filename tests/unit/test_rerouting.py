"""Records on their way, when the parallelism changes: each has one owner, those of a key stay in order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.errors import StateError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, TaskId, VertexId
from crosscut.foundation.keys import key_group, owner_of_group
from crosscut.graph.specs import Edge, JobGraph, Partitioning
from crosscut.task.items import LoggedBatch
from crosscut.task.rerouting import rerouted
from crosscut.wire.batches import decode_batch, encode_batch

GROUPS = 12
A, B = VertexId("a"), VertexId("b")


def graph_of(how: Partitioning, parallelism: int) -> JobGraph:
    return JobGraph("flow", (), (Edge(0, "a", "b", how),), parallelism, GROUPS, "")


def owner(key: Any, parallelism: int) -> int:
    return owner_of_group(key_group(key, GROUPS), GROUPS, parallelism)


def logged(source: int, target: int, batch: Batch, *, by_sender: bool = False) -> LoggedBatch:
    channel = ChannelId(0, TaskId(A, source), TaskId(B, target))
    return LoggedBatch(channel, encode_batch(batch), len(batch), by_sender)


def found_by(
    how: Partitioning, parallelism: int, logs: list[list[LoggedBatch]], before: int = 1
) -> list[list[LoggedBatch]]:
    graph = graph_of(how, parallelism)

    def of_task(index: int) -> list[LoggedBatch]:
        found = rerouted(logs, TaskId(B, index), graph, lambda key: owner(key, parallelism), before)
        return [one for _, mine in found for one in mine]

    return [of_task(index) for index in range(parallelism)]


def records_of(all_logged: list[LoggedBatch]) -> list[Any]:
    return [record for one in all_logged for record in decode_batch(one.data).records]


@given(
    before=st.integers(1, 4),
    after=st.integers(1, 5),
    sent=st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.integers(0, 9), min_size=1, max_size=5), st.booleans()),
        max_size=12,
    ),
)
def test_each_record_of_a_shuffle_comes_to_the_owner_of_its_key_in_the_order_of_its_sender(
    before: int, after: int, sent: list[tuple[int, list[int], bool]]
) -> None:
    """H1: what a receiver had comes before what the sender still had."""
    receivers: list[list[LoggedBatch]] = [[] for _ in range(before)]
    senders: list[list[LoggedBatch]] = [[] for _ in range(before)]
    order: dict[tuple[int, int], list[Any]] = {}
    # What has left a sender's output, and then what had not.
    for number, (source, keys, by_sender) in enumerate(sorted(sent, key=lambda one: one[2])):
        source %= before
        for target in range(before):
            mine = [key for key in keys if owner(key, before) == target]
            if not mine:
                continue
            records = [(source, key, number, place) for place, key in enumerate(mine)]
            for record in records:
                order.setdefault((source, record[1]), []).append(record)
            one = logged(source, target, Batch(records, mine), by_sender=by_sender)
            (senders[source] if by_sender else receivers[target]).append(one)
    found = found_by("hash", after, [*receivers, *senders])
    everything = Counter(record for records in order.values() for record in records)
    assert Counter(record for mine in found for record in records_of(mine)) == everything
    for index, mine in enumerate(found):
        for one in mine:
            batch = decode_batch(one.data)
            assert batch.keys is not None and all(owner(key, after) == index for key in batch.keys)
        for (source, key), records in order.items():
            if owner(key, after) == index:
                assert [one for one in records_of(mine) if one[:2] == (source, key)] == records


@pytest.mark.parametrize("how", ["forward", "rebalance"])
@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (1, 4), (4, 1)])
def test_without_keys_it_comes_to_who_takes_the_receiver_over(
    how: Partitioning, before: int, after: int
) -> None:
    logs = [[logged(index, index, Batch([index, "rest"]))] for index in range(before)]
    found = found_by(how, after, logs)
    assert Counter(map(str, (r for mine in found for r in records_of(mine)))) == Counter(
        map(str, [*range(before), *["rest"] * before])
    )
    assert [records_of(mine)[::2] for mine in found] == [
        [old for old in range(before) if old % after == index] for index in range(after)
    ]


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (1, 4), (4, 1)])
def test_each_task_has_the_copies_of_one_task_of_what_is_broadcast(before: int, after: int) -> None:
    """H1: a task that is new has them, too, and none has those of two."""
    logs = [[logged(index, index, Batch([index, "rest"]))] for index in range(before)]
    found = found_by("broadcast", after, logs, before)
    assert [records_of(mine) for mine in found] == [[index % before, "rest"] for index in range(after)]


def test_keys_that_are_their_own_records_stay_so() -> None:
    keys = list(range(6))
    found = found_by("hash", 2, [[logged(0, 0, Batch(keys, keys))]])
    for mine in found:
        for one in mine:
            batch = decode_batch(one.data)
            assert batch.keys is batch.records


def test_a_key_of_another_type_goes_where_the_key_goes_that_it_equals() -> None:
    found = found_by("hash", 3, [[logged(0, 0, Batch(["r"], [1.0]))]])
    assert [bool(mine) for mine in found] == [owner(1, 3) == index for index in range(3)]


def test_a_record_is_late_or_not_as_it_was_at_the_task_it_was_on_its_way_to() -> None:
    """Whose receiver had heard of the lowest watermark comes first; what senders promised is left out."""
    keys = list(range(12))
    logs = [
        [
            logged(0, target, Batch(mine, mine, [10 * key for key in mine], watermark=99))
            for target in range(3)
            if (mine := [key for key in keys if owner(key, 3) == target])
        ]
    ]
    found = list(rerouted(logs, TaskId(B, 0), graph_of("hash", 1), lambda key: 0, 3, (7, None, 3)))
    assert [floor for floor, _ in found] == [None, 3, 7]
    for (_, mine), target in zip(found, (1, 2, 0), strict=True):
        for one in mine:
            batch = decode_batch(one.data)
            assert all(owner(key, 3) == target for key in batch.records)
            assert batch.timestamps == [10 * key for key in batch.records] and not batch.has_news


def test_what_was_on_its_way_to_another_vertex_is_left_alone() -> None:
    channel = ChannelId(0, TaskId(B, 0), TaskId(VertexId("c"), 0))
    other = LoggedBatch(channel, encode_batch(Batch([1])), 1, by_sender=True)
    assert found_by("rebalance", 2, [[other]]) == [[], []]


def test_an_edge_that_is_not_there_is_named() -> None:
    channel = ChannelId(1, TaskId(A, 0), TaskId(B, 0))
    strange = LoggedBatch(channel, encode_batch(Batch([1])), 1, by_sender=False)
    with pytest.raises(StateError, match=r"1 records were on their way in a\[0\]->b\[0\]#1"):
        found_by("rebalance", 2, [[strange]])
