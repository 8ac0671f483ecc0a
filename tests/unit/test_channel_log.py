"""The part of a snapshot that holds what was on its way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.errors import StateError
from crosscut.foundation.ids import ChannelId, TaskId, VertexId
from crosscut.task.channel_log import (
    MAGIC,
    SLICE_BYTES,
    SpilledBlocks,
    decoded_log,
    encoded_block,
    encoded_log,
)
from crosscut.task.items import LoggedBatch

tasks = st.builds(TaskId, st.text(min_size=1, max_size=8).map(VertexId), st.integers(0, 9_999))
channels = st.builds(ChannelId, st.integers(0, 99), tasks, tasks)
logged = st.builds(LoggedBatch, channels, st.binary(max_size=50), st.integers(0, 1_000), st.booleans())
CHANNEL = ChannelId(3, TaskId(VertexId("body"), 1), TaskId(VertexId("head"), 0))


@given(st.lists(logged, max_size=5))
def test_what_is_written_is_what_is_read(log: list[LoggedBatch]) -> None:
    assert decoded_log(b"".join(encoded_log(log))) == log


def test_an_empty_log_is_its_magic() -> None:
    assert list(encoded_log([])) == [MAGIC]
    assert decoded_log(MAGIC) == []


@given(st.binary(max_size=40))
def test_anything_else_is_refused_with_a_named_error_and_nothing_but_that(data: bytes) -> None:
    for one in (data, MAGIC + data):
        try:
            decoded_log(one)
        except StateError as error:
            assert "channel log" in str(error)


@given(st.lists(logged, min_size=1, max_size=3), st.data())
def test_a_log_that_was_cut_off_is_refused(log: list[LoggedBatch], data: st.DataObject) -> None:
    whole = b"".join(encoded_log(log))
    ends = {len(b"".join(encoded_log(log[:count]))) for count in range(len(log) + 1)}
    length = data.draw(st.sampled_from(sorted(set(range(len(whole))) - ends)))
    with pytest.raises(StateError):
        decoded_log(whole[:length])


@pytest.mark.parametrize(
    "header",
    [b"[]", b"{}", b"7", b'{"input": 1, "source": ["a"], "target": ["b", 0], "rows": 1, "by_sender": true}'],
)
def test_a_header_that_is_none_is_refused(header: bytes) -> None:
    data = MAGIC + len(header).to_bytes(4) + (0).to_bytes(8) + header
    with pytest.raises(StateError, match="not readable"):
        decoded_log(data)


def test_a_log_of_something_else_says_what_it_starts_with() -> None:
    with pytest.raises(StateError, match=r"starts with b'PAR1': expected b'XCL2'"):
        decoded_log(b"PAR1....")


def test_the_order_is_kept_within_and_between_channels() -> None:
    log = [LoggedBatch(CHANNEL, bytes([n]), n, n % 2 == 0) for n in range(10)]
    assert decoded_log(b"".join(encoded_log(log))) == log


class InMemory:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def write(self, at: int, data: bytes) -> None:
        raise NotImplementedError

    def read(self, at: int, count: int) -> bytes:
        return self._data[at : at + count]

    def hold(self) -> None: ...

    def release(self) -> None: ...


@pytest.mark.parametrize(
    "sizes", [[], [1, 2, 3], [SLICE_BYTES // 3] * 10, [5, 3 * SLICE_BYTES, 7], [SLICE_BYTES]]
)
def test_every_batch_is_noted_once_in_memory_and_on_disk(sizes: list[int]) -> None:
    log = [LoggedBatch(CHANNEL, bytes([n]) * size, n, False) for n, size in enumerate(sizes)]
    data = b"".join(b"".join(encoded_block(one)) for one in log)
    noted: list[bytes] = []
    expected = b"".join(encoded_log(log, noted.append))
    assert noted == [one.data for one in log]
    # What comes before and after belongs to others.
    spilled = SpilledBlocks(InMemory(b"before" + data + b"after"), 6, 6 + len(data), 1)
    noted.clear()
    assert b"".join(encoded_log([spilled], noted.append)) == expected
    assert noted == [one.data for one in log]
