"""An entry file is told from a torn, damaged or misplaced one before anything is parsed."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.errors import StoreError
from crosscut.store import entries
from crosscut.store.entries import decode_entry, encode_entry
from crosscut.testing.stores import checkpoint, claim

ENTRY = checkpoint(3, 17)
DATA = encode_entry(ENTRY, 5)


def test_an_entry_is_read_back_and_is_one_json_document() -> None:
    assert decode_entry(DATA, 5) == ENTRY
    assert json.loads(DATA)["index"] == 5
    assert json.loads(DATA)["entry"]["checkpoint_id"] == 17


def test_the_same_entry_has_the_same_bytes_every_time() -> None:
    assert encode_entry(checkpoint(3, 17), 5) == DATA


def test_an_entry_cut_at_any_length_is_refused() -> None:
    """D1."""
    for length in range(len(DATA)):
        with pytest.raises(StoreError):
            decode_entry(DATA[:length], 5)


def test_an_entry_with_a_zero_filled_tail_is_refused() -> None:
    """D1: also where the file has grown, with nothing missing."""
    for length in range(len(DATA)):
        with pytest.raises(StoreError):
            decode_entry(DATA[:length] + bytes(len(DATA) - length), 5)
    with pytest.raises(StoreError):
        decode_entry(DATA + b"\0", 5)


def test_an_entry_with_any_one_bit_flipped_is_refused() -> None:
    """D6."""
    for position in range(len(DATA)):
        for bit in range(8):
            damaged = bytearray(DATA)
            damaged[position] ^= 1 << bit
            with pytest.raises(StoreError):
                decode_entry(bytes(damaged), 5)


def test_an_entry_in_the_place_of_another_is_refused() -> None:
    """D6."""
    with pytest.raises(StoreError, match="it holds entry 5"):
        decode_entry(DATA, 6)


def test_an_entry_of_another_format_is_refused_as_such() -> None:
    """H3: a later release must be able to tell its own entries from ours."""
    body = DATA[DATA.index(b'"entry":') + 8 : -2]
    digest = entries._digest(9, 5, body)
    newer = b'{"format":9,"index":5,"sha256":"%s","entry":%s}\n' % (digest.encode(), body)
    with pytest.raises(StoreError, match="written by another release"):
        decode_entry(newer, 5)


@given(st.binary() | st.binary().map(lambda data: DATA[:40] + data) | st.just(encode_entry(claim(1), 5)))
def test_any_bytes_are_an_entry_or_the_named_error(data: bytes) -> None:
    with suppress(StoreError):
        assert encode_entry(decode_entry(data, 5), 5) == data


@pytest.mark.parametrize("body", [b"{" * 100_000 + b"}", b'{"a":' * 100_000 + b"{}" + b"}" * 100_000, b"{1}"])
def test_a_sealed_body_that_is_no_json_is_refused(body: bytes) -> None:
    data = b'{"format":%d,"index":5,"sha256":"%s","entry":%s}\n' % (
        entries.FORMAT,
        entries._digest(entries.FORMAT, 5, body).encode(),
        body,
    )
    with pytest.raises(StoreError):
        decode_entry(data, 5)
