"""An entry file is told from a torn, damaged or misplaced one before anything is parsed."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proof.stores import at, checkpoint, claim

from crosscut.contracts.codec import from_json, to_json
from crosscut.contracts.connectors import JSON
from crosscut.errors import StoreError
from crosscut.foundation.ids import Epoch
from crosscut.protocol.log.entries import LogEntry
from crosscut.protocol.snapshots import Snapshot
from crosscut.store import entries
from crosscut.store.entries import Sealed, content_of, decode_file, encode_file, entry_of

PLACE = at(5, segment=3)
ENTRY = checkpoint(3, 17)


def file_of(entry: LogEntry) -> bytes:
    return encode_file(Sealed(PLACE, entry.epoch, 0, "ab" * 32, content_of(entry)))[0]


DATA = file_of(ENTRY)


def with_body(body: bytes, form: int = entries.FORMAT) -> bytes:
    """Return a file with a right digest around any body."""
    head = DATA[: DATA.index(b'"sha256":"') + 10].replace(b'"format":2', b'"format":%d' % form)
    return head + entries._digest(head, body).encode() + b'","key":"","mac":"","entry":' + body + b"}\n"


def test_an_entry_is_read_back_and_is_one_json_document() -> None:
    sealed, digest = decode_file(DATA, PLACE)
    assert sealed == Sealed(PLACE, Epoch(3), 0, "ab" * 32, content_of(ENTRY))
    assert entry_of(sealed.content) == ENTRY
    document = json.loads(DATA)
    assert (document["segment"], document["number"], document["sha256"]) == (3, 5, digest)
    assert document["entry"]["checkpoint_id"] == 17


def test_the_same_entry_has_the_same_bytes_every_time() -> None:
    assert file_of(checkpoint(3, 17)) == DATA
    assert with_body(DATA[DATA.index(b'"entry":') + 8 : -2]) == DATA


def test_an_entry_cut_at_any_length_is_refused() -> None:
    """D1."""
    for length in range(len(DATA)):
        with pytest.raises(StoreError):
            decode_file(DATA[:length], PLACE)


def test_an_entry_with_a_zero_filled_tail_is_refused() -> None:
    """D1: also where the file has grown, with nothing missing."""
    for length in range(len(DATA)):
        with pytest.raises(StoreError):
            decode_file(DATA[:length] + bytes(len(DATA) - length), PLACE)
    with pytest.raises(StoreError):
        decode_file(DATA + b"\0", PLACE)


def test_an_entry_with_any_one_bit_flipped_is_refused() -> None:
    """D6."""
    for position in range(len(DATA)):
        for bit in range(8):
            damaged = bytearray(DATA)
            damaged[position] ^= 1 << bit
            with pytest.raises(StoreError):
                decode_file(bytes(damaged), PLACE)


@pytest.mark.parametrize("place", [at(6, 3), at(5, 2), at(0, 3)])
def test_an_entry_in_the_place_of_another_is_refused(place: entries.LogIndex) -> None:
    """D6."""
    with pytest.raises(StoreError, match="it holds entry 3/5"):
        decode_file(DATA, place)


@pytest.mark.parametrize(
    "data", [with_body(b"{}", form=9), b'{"format":1,"index":5,"sha256":"' + b"0" * 64 + b'","entry":{}}\n']
)
def test_an_entry_of_another_format_is_refused_as_such(data: bytes) -> None:
    """H3: whatever else another release writes."""
    with pytest.raises(StoreError, match="expected format 2, found") as caught:
        decode_file(data, PLACE)
    assert caught.value.ids["format"] in (1, 9)


@given(st.binary() | st.binary().map(lambda data: DATA[:40] + data) | st.just(file_of(claim(1))))
def test_any_bytes_are_an_entry_or_the_named_error(data: bytes) -> None:
    with suppress(StoreError):
        assert encode_file(decode_file(data, PLACE)[0])[0] == data


@pytest.mark.parametrize("body", [b"{" * 100_000 + b"}", b'{"a":' * 100_000 + b"{}" + b"}" * 100_000, b"{1}"])
def test_a_sealed_body_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(StoreError, match="not JSON"):
        decode_file(with_body(body), PLACE)


@pytest.mark.parametrize("content", [{}, {"type": "Nothing"}, [], ["=", 1], None, 7])
def test_a_content_that_is_no_entry_is_refused(content: JSON) -> None:
    with pytest.raises(StoreError, match="not what was expected"):
        entry_of(content)


def test_a_snapshot_that_an_earlier_release_has_written_is_read() -> None:
    """It lacks fields that have come since, and no others."""
    snapshot = Snapshot(records_in=7)
    data = to_json(snapshot)
    assert isinstance(data, dict)
    older = {name: value for name, value in data.items() if name not in Snapshot.ADDED}
    assert from_json(older, (Snapshot,), StoreError) == snapshot
    assert from_json({**older, "fields": {"a:B": ["c"]}}, (Snapshot,), StoreError).fields == {"a:B": ["c"]}
    with pytest.raises(StoreError, match="missing fields \\['records_in'\\]"):
        from_json(
            {name: value for name, value in older.items() if name != "records_in"}, (Snapshot,), StoreError
        )
