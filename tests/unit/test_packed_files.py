"""Packed files: unpacked in pieces of bounded size, whatever they say of themselves."""

from __future__ import annotations

import io
import lzma
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import crosscut as cc
from crosscut.connectors.files.packed_file import BLOCK_BYTES, PackedFile, XzFile
from crosscut.connectors.files.zstd import ZstdFile
from crosscut.errors import ConnectorError
from crosscut.testing.sources import read_source

zstandard = pytest.importorskip("zstandard", reason="pip install 'crosscut[zstd]'")

SKIPPABLE = b"\x50\x2a\x4d\x18" + (300).to_bytes(4, "little") + b"?" * 300


def zstd(data: bytes, *, checksum: bool, size: bool) -> bytes:
    packed: bytes = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=size).compress(data)
    return packed


def pieces(file: PackedFile) -> list[bytes]:
    found = []
    while (piece := file.more()) is not None:
        found.append(piece)
    return found


CONTENT = (
    st.binary(max_size=300)
    | st.integers(0, 400_000).map(bytes)
    | st.integers(0, 9).map(lambda seed: b"".join(b"%d %d\n" % (seed, i * i) for i in range(30_000)))
)


@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(st.tuples(CONTENT, st.booleans(), st.booleans()), min_size=1, max_size=3),
    skips=st.booleans(),
)
def test_frames_of_zstandard_come_out_whole_and_in_small_pieces(
    parts: list[tuple[bytes, bool, bool]], skips: bool
) -> None:
    """P8."""
    between = SKIPPABLE if skips else b""
    packed = (
        between.join(zstd(data, checksum=checksum, size=size) for data, checksum, size in parts) + between
    )
    found = pieces(ZstdFile(io.BytesIO(packed)))
    assert b"".join(found) == b"".join(data for data, _, _ in parts)
    assert max(map(len, found), default=0) <= BLOCK_BYTES
    for cut in {1, len(packed) // 2, len(packed) - 1} - {0}:
        try:
            less = b"".join(pieces(ZstdFile(io.BytesIO(packed[:cut]))))
        except EOFError:
            continue
        # A file that was cut between two frames is whole.
        assert len(less) < len(b"".join(found)) or packed[cut:].strip(b"?") == b"" or skips


@pytest.mark.parametrize("make", ["zstd", "xz"])
def test_a_small_file_of_much_content_takes_little_memory(make: str) -> None:
    """P8. A few kilobytes of 256 MiB; two gigabytes are the same, and take longer."""
    size = 256 * 1024 * 1024
    if make == "zstd":
        block = (BLOCK_BYTES << 3 | 1 << 1).to_bytes(3, "little") + b"x"
        packed = b"\x28\xb5\x2f\xfd\x00\x58" + block * (size // BLOCK_BYTES) + b"\x01\x00\x00"
        file: PackedFile = ZstdFile(io.BytesIO(packed))
    else:
        packed = lzma.compress(b"x" * 1_000_000) * (size // 1_000_000)
        file = XzFile(io.BytesIO(packed))
    assert len(packed) < size / 1_000
    total = 0
    while (piece := file.more()) is not None:
        assert len(piece) <= BLOCK_BYTES
        total += len(piece)
    assert total >= size - 1_000_000


def test_an_xz_file_has_as_much_memory_as_the_strongest_level_needs_and_no_more(tmp_path: Path) -> None:
    """P8."""
    (tmp_path / "most.txt.xz").write_bytes(
        lzma.compress(b"a\nb\n", preset=9 | lzma.PRESET_EXTREME) + bytes(8)
    )
    assert read_source(cc.files.read_text(tmp_path / "most.txt.xz")) == ["a", "b"]
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 512 * 1024 * 1024}]
    (tmp_path / "huge.txt.xz").write_bytes(lzma.compress(b"a\n", filters=filters))
    with pytest.raises(ConnectorError, match=r"huge\.txt\.xz: LZMAError: Memory usage limit"):
        read_source(cc.files.read_text(tmp_path / "huge.txt.xz"))


def test_a_window_above_128_mib_is_refused(tmp_path: Path) -> None:
    """P8. As the zstd command does without --long."""
    (tmp_path / "in.txt.zst").write_bytes(b"\x28\xb5\x2f\xfd\x00\x90" + b"\x01\x00\x00")
    with pytest.raises(ConnectorError, match=r"in\.txt\.zst: .*damaged: .*memory"):
        read_source(cc.files.read_text(tmp_path / "in.txt.zst"))


def test_what_follows_a_frame_is_named(tmp_path: Path) -> None:
    (tmp_path / "in.txt.zst").write_bytes(zstd(b"a\n", checksum=True, size=True) + b"more")
    with pytest.raises(ConnectorError, match="is no frame of Zstandard"):
        read_source(cc.files.read_text(tmp_path / "in.txt.zst"))
