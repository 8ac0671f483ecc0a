"""Bytes in blocks: what a thread hashes and writes in one call."""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.store.blocks import BLOCK_BYTES, in_blocks, write_fully
from crosscut.store.checkpoint_store import CheckpointStore
from crosscut.store.files import LocalFiles

TASK = TaskId(VertexId("vertex"), 0)


@given(st.lists(st.binary(max_size=20)), st.integers(1, 30))
def test_blocks_are_the_pieces_joined_and_none_but_the_last_is_short(
    pieces: list[bytes], block_bytes: int
) -> None:
    blocks = list(in_blocks(pieces, block_bytes))
    assert b"".join(blocks) == b"".join(pieces)
    assert all(len(one) >= block_bytes for one in blocks[:-1])
    assert all(blocks)


def test_a_large_piece_is_a_block_as_it_is() -> None:
    piece = bytes(3 * BLOCK_BYTES)
    (found,) = in_blocks([piece])
    assert found is piece


def test_pieces_are_made_one_block_at_a_time() -> None:
    made = 0

    def pieces() -> Iterable[bytes]:
        nonlocal made
        for _ in range(10):
            made += 1
            yield bytes(BLOCK_BYTES // 2)

    blocks = iter(in_blocks(pieces()))
    next(blocks)
    assert made == 2


class RecordedFiles(LocalFiles):
    """A directory that notes the sizes of what it is given to write."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.sizes: list[int] = []

    def write_new(self, path: str, chunks: Iterable[bytes]) -> None:
        def noted() -> Iterable[bytes]:
            for chunk in chunks:
                self.sizes.append(len(chunk))
                yield chunk

        super().write_new(path, noted())


def test_a_part_of_many_small_chunks_is_written_in_few_large_blocks(tmp_path: Path) -> None:
    files = RecordedFiles(str(tmp_path))
    chunks = [bytes([number % 251]) * 2_600 for number in range(600)]
    part = CheckpointStore(files).write_part(CheckpointId(1), TASK, Epoch(1), iter(chunks))
    content = b"".join(chunks)
    assert (part.size_bytes, part.sha256) == (len(content), sha256(content).hexdigest())
    assert (tmp_path / part.path).read_bytes() == content
    assert len(files.sizes) == 2 == -(-len(content) // BLOCK_BYTES)


@pytest.mark.parametrize("inline_bytes", [0, 1, 100, 3 * BLOCK_BYTES])
@pytest.mark.parametrize("size_bytes", [0, 1, 99, 100, 2 * BLOCK_BYTES, 5 * BLOCK_BYTES])
def test_a_part_is_inline_if_and_only_if_it_is_shorter_than_that(
    tmp_path: Path, inline_bytes: int, size_bytes: int
) -> None:
    store = CheckpointStore(LocalFiles(str(tmp_path)), inline_bytes)
    content = os.urandom(size_bytes)
    pieces = [content[at : at + 70_001] for at in range(0, size_bytes, 70_001)]
    part = store.write_part(CheckpointId(1), TASK, Epoch(1), pieces)
    assert bool(part.inline or not (part.path or size_bytes)) == (size_bytes < inline_bytes)
    assert store.read_part(part) == content


def test_a_write_that_takes_only_a_part_goes_on_with_the_rest() -> None:
    reading, writing = os.pipe()
    # A pipe of one page takes no more at once without waiting; the reader makes room between.
    data = os.urandom(1_000_000)
    os.set_blocking(reading, False)
    received = bytearray()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            write_fully(writing, data)
        finally:
            os._exit(0)
    os.close(writing)
    os.set_blocking(reading, True)
    while piece := os.read(reading, 4_096):
        received += piece
    os.waitpid(pid, 0)
    os.close(reading)
    assert received == data
