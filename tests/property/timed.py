"""What tests of windows and joins draw: windows, records, and watermarks that only grow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from crosscut.contracts.windows import Session, Sliding, Tumbling
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.timestamps import END_OF_TIME
from crosscut.state.keyed import KeyedState

WINDOWS = st.one_of(
    st.builds(lambda size, offset: Tumbling(size, offset % size), st.integers(1, 8), st.integers(0, 7)),
    st.builds(
        lambda one, other, offset: Sliding(max(one, other), min(one, other), offset % min(one, other)),
        st.integers(1, 8),
        st.integers(1, 8),
        st.integers(0, 7),
    ),
    st.builds(Session, st.integers(1, 8)),
)


def drawn_records(most: int) -> st.SearchStrategy[Any]:
    """Draw up to `most` records: (key, time, value)."""
    one = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 30), st.integers(-9, 9))
    return st.lists(one, max_size=most)


def drawn_steps(batches: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw batches with watermarks between them: each a drawn step later than the one before."""
    drawn = st.lists(st.one_of(batches, st.integers(0, 12)), max_size=14)
    return drawn.map(lambda found: list(_with_watermarks(found)))


def _with_watermarks(steps: list[Any]) -> Iterator[Any]:
    watermark = 0
    for step in steps:
        if isinstance(step, int):
            watermark += step
            yield watermark
        else:
            yield step
    yield END_OF_TIME


def part_of(state: KeyedState, n: CheckpointId) -> bytes:
    """Return all that the state holds, as checkpoint n stores it."""
    state.freeze(n)
    return b"".join(state.encoded(n, CheckpointId(0)))


def restored(state: KeyedState, n: CheckpointId, part: bytes) -> KeyedState:
    """Return the new `state` with what `part` of checkpoint n holds."""
    for _ in state.loading([(n, part)], n):
        pass
    return state
