"""The spilling queue of a back edge against a deque."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crosscut.runtime.queues as queues
from crosscut.batch import Batch
from crosscut.ids import CheckpointId
from crosscut.runtime.items import Barrier, EndOfInput, Item
from crosscut.runtime.queues import SpillingQueue


@pytest.fixture(autouse=True, scope="module")
def _little_memory() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queues, "MEMORY_ITEMS_MAX", 3)
        yield


def plain(item: Item) -> object:
    """Batches come back from disk as equal ones, not as the same."""
    return (item.records, item.keys) if isinstance(item, Batch) else item


def batch(number: int) -> Batch:
    return Batch([number, str(number)], [number, number])


def barrier(number: int) -> Barrier:
    return Barrier(CheckpointId(number))


items = st.one_of(st.integers(0, 99).map(batch), st.integers(1, 3).map(barrier), st.just(EndOfInput()))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), items),
        st.tuples(st.just("append"), items),
        st.tuples(st.just("popleft"), st.none()),
        st.tuples(st.just("put back"), st.none()),
        st.tuples(st.just("remove"), st.integers(1, 3).map(barrier)),
    ),
    max_size=60,
)


@given(steps)
def test_it_does_whatever_a_deque_does(script: list[tuple[str, Item | None]]) -> None:
    spilling, oracle = SpillingQueue(), deque[Item]()
    for step, item in script:
        match step:
            case "append" if item is not None:
                spilling.append(item)
                oracle.append(item)
            case "popleft" if oracle:
                assert plain(spilling.popleft()) == plain(oracle.popleft())
            case "put back" if oracle:
                spilling.appendleft(spilling.popleft())
            case "remove" if item in oracle:
                assert item is not None
                spilling.remove(item)
                oracle.remove(item)
            case _:
                pass
        assert len(spilling) == len(oracle)
        assert bool(spilling) == bool(oracle)
        assert [plain(one) for one in spilling] == [plain(one) for one in oracle]
    while oracle:
        assert plain(spilling.popleft()) == plain(oracle.popleft())
    spilling.close()


def test_what_does_not_fit_into_memory_is_on_disk_and_the_disk_is_given_back() -> None:
    queue = SpillingQueue()
    for number in range(50):
        queue.append(batch(number))
    file = queue._file
    assert file is not None
    assert len(queue._head) == 3
    assert file.seek(0, 2) > 0
    assert [queue.popleft().records[0] for _ in range(50)] == list(range(50))  # type: ignore[union-attr]
    assert file.seek(0, 2) == 0
    queue.close()
    assert file.closed


def test_a_short_queue_never_touches_the_disk() -> None:
    queue = SpillingQueue()
    for _ in range(20):
        queue.append(batch(1))
        queue.append(barrier(1))
        queue.popleft()
        queue.popleft()
    assert queue._file is None
    queue.close()


def test_an_empty_queue_has_nothing_to_give() -> None:
    with pytest.raises(IndexError):
        SpillingQueue().popleft()


def test_looking_through_the_queue_does_not_move_it() -> None:
    queue = SpillingQueue()
    for number in range(10):
        queue.append(batch(number))
    assert len(list(queue)) == len(list(queue)) == len(queue) == 10
    queue.append(batch(10))
    assert [queue.popleft().records[0] for _ in range(11)] == list(range(11))  # type: ignore[union-attr]
    queue.close()
