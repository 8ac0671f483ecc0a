"""An entry of a unit's log is read back equal, or refused with a named error."""

from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proof.unit_log.stored import CHANNEL, OTHER, UNIT, closed, group, head, snapshot

from crosscut.contracts.connectors import JSON
from crosscut.errors import AuthenticityError, InternalError, StateError, StoreError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, LogIndex
from crosscut.protocol.messages import DeployTasks
from crosscut.protocol.unit_log.entries import (
    GroupCommitted,
    GroupContent,
    Incarnation,
    NumberedRecords,
    SentRecords,
    UnitEntry,
)
from crosscut.store import unit_log_format
from crosscut.store.log_key import LogKey, UnitLogKey, unit_log_key
from crosscut.store.unit_log_format import (
    NO_ENTRY,
    StoredEntry,
    TornError,
    UnitName,
    decode_entry,
    encode_entry,
)
from crosscut.wire.control import COORDINATOR_MESSAGES, decode_control, encode_control

INDEX = LogIndex(3, 5)
BEFORE = sha256(b"the entry before").digest()
KEY = LogKey("k" * 32).unit_key("lineage", 1, [Epoch(1), Epoch(2)])
ENTRIES: list[UnitEntry] = [
    head(1),
    head(2, LogIndex(7, 3), snapshot(LogIndex(7, 2))),
    group(1, 1),
    closed(2),
    GroupCommitted(Incarnation(Epoch(1), 1), (), (), GroupContent()),
]


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_is_read_back_equal(entry: UnitEntry, key: UnitLogKey | None) -> None:
    data, digest = encode_entry(UNIT, INDEX, entry, BEFORE, key)
    expected = StoredEntry(INDEX, entry, BEFORE, digest, len(data))
    assert decode_entry(data, UNIT, key, index=INDEX) == expected
    assert decode_entry(b"xyz" + data + b"abc", UNIT, key, offset=3) == expected
    assert encode_entry(UNIT, INDEX, entry, BEFORE, key) == (data, digest)


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_cut_or_damaged_anywhere_is_refused(entry: UnitEntry, key: UnitLogKey | None) -> None:
    data, _ = encode_entry(UNIT, INDEX, entry, BEFORE, key)
    for length in range(len(data)):
        for rest in (b"", bytes(len(data) - length)):
            with pytest.raises(StoreError):
                decode_entry(data[:length] + rest, UNIT, key, index=INDEX)
        with pytest.raises(TornError):
            decode_entry(data[:length], UNIT, key)
    for position in range(len(data)):
        for change in (1, 0x80):
            damaged = bytearray(data)
            damaged[position] ^= change
            with pytest.raises(StoreError):
                decode_entry(bytes(damaged), UNIT, key, index=INDEX)
    with pytest.raises(TornError):
        decode_entry(data + b"\0", UNIT, key, index=INDEX)


def with_right_digest(content: bytes) -> bytes:
    return content + sha256(content).digest()


@pytest.mark.parametrize("entry", ENTRIES)
def test_any_content_with_a_right_digest_is_an_entry_or_a_named_error(entry: UnitEntry) -> None:
    """A digest proves that the bytes are as written, and not that this release has written them."""
    content = encode_entry(UNIT, INDEX, entry, BEFORE)[0][:-32]
    for position in range(len(content)):
        for value in (0, 1, 0x7F, 0xFF):
            damaged = bytearray(content)
            damaged[position] = value
            with suppress(StoreError):
                decode_entry(with_right_digest(bytes(damaged)), UNIT, index=INDEX)


@given(st.binary(max_size=300))
def test_any_bytes_after_a_header_are_an_entry_or_a_named_error(data: bytes) -> None:
    begin = encode_entry(UNIT, INDEX, group(1, 1), BEFORE)[0][: 4 + 2 + 2]
    for one in (data, begin + data):
        with suppress(StoreError):
            decode_entry(one, UNIT)


@pytest.mark.parametrize("index", [LogIndex(3, 6), LogIndex(2, 5), LogIndex(3, 0)])
def test_an_entry_in_the_place_of_another_is_refused(index: LogIndex) -> None:
    data, _ = encode_entry(UNIT, INDEX, group(1, 1), BEFORE)
    with pytest.raises(StoreError, match="it holds entry 3/5"):
        decode_entry(data, UNIT, index=index)


@pytest.mark.parametrize("unit", [UnitName(Lineage("lineage"), 2), UnitName(Lineage("other"), 1)])
def test_an_entry_of_another_unit_is_refused(unit: UnitName) -> None:
    data, _ = encode_entry(UNIT, INDEX, group(1, 1), BEFORE)
    with pytest.raises(StoreError, match="it is of unit 1 of job lineage, expected unit"):
        decode_entry(data, unit, index=INDEX)


def test_an_entry_of_another_format_is_refused_as_such() -> None:
    data, _ = encode_entry(UNIT, INDEX, group(1, 1), BEFORE)
    with pytest.raises(StoreError, match="expected format 1, found 9") as caught:
        decode_entry(data[:4] + b"\0\x09" + b"whatever else it is", UNIT)
    assert caught.value.ids["format"] == 9 and not isinstance(caught.value, TornError)


def test_no_length_is_believed_beyond_the_bytes_that_are_there() -> None:
    many = b"\xff\xff\xff\xff"
    for tag in (30, 50):
        sections = unit_log_format._SECTION.pack(tag, 4) + many
        with pytest.raises(StoreError, match="are announced"):
            decode_entry(with_body(sections), UNIT)
    with pytest.raises(StoreError, match="are announced"):
        decode_entry(with_body(unit_log_format._SECTION.pack(30, 1 << 62)), UNIT)


def with_body(body: bytes) -> bytes:
    """Return a group without content, with `body` in place of its sections."""
    data, _ = encode_entry(UNIT, INDEX, ENTRIES[-1], BEFORE)
    header = data[:-32]
    size = (len(data) + len(body)).to_bytes(8, "big")
    return with_right_digest(header[:8] + size + header[16:] + body)


@pytest.mark.parametrize(
    "sections",
    [
        [(31, b"x")],
        [(30, b""), (30, b"")],
        [(50, b""), (30, b"")],
        [(10, bytes(16))],
        [(70, b"{")],
        [(70, b"[" * 100_000)],
        [(70, b'{"type":"GroupValues","splits":["a"],"positions":[],"sink":null}')],
        [(70, b'{"type":"Part"}')],
        [(30, bytes(5))],
    ],
)
def test_sections_that_this_release_does_not_write_are_refused(sections: list[tuple[int, bytes]]) -> None:
    body = b"".join(unit_log_format._SECTION.pack(tag, len(data)) + data for tag, data in sections)
    with pytest.raises(StoreError):
        decode_entry(with_body(body), UNIT)


# Keys.


def test_what_was_signed_with_another_key_or_none_is_refused() -> None:
    entry = group(1, 1)
    signed, _ = encode_entry(UNIT, INDEX, entry, BEFORE, KEY)
    unsigned, _ = encode_entry(UNIT, INDEX, entry, BEFORE)
    other = LogKey("o" * 32).unit_key("lineage", 1, [Epoch(1)])
    with pytest.raises(AuthenticityError, match="this process has none"):
        decode_entry(signed, UNIT)
    with pytest.raises(AuthenticityError, match="without a key"):
        decode_entry(unsigned, UNIT, KEY)
    with pytest.raises(AuthenticityError, match=f"with key {KEY.key_id}, and CROSSCUT_LOG_KEY is key"):
        decode_entry(signed, UNIT, other)
    forged = signed[:-32] + sha256(b"a guess").digest()
    with pytest.raises(AuthenticityError, match="was not written with that key"):
        decode_entry(forged, UNIT, KEY)


def test_the_key_of_a_unit_and_epoch_signs_for_no_other() -> None:
    key, digest = LogKey("k" * 32), sha256(b"x").digest()
    macs = {
        (lineage, unit, epoch): key.unit_key(lineage, unit, [Epoch(epoch)]).mac(Epoch(epoch), digest)
        for lineage in ("a", "b")
        for unit in (0, 1)
        for epoch in (1, 2)
    }
    assert len(set(macs.values())) == 8
    assert not key.unit_key("a", 0, [Epoch(2)]).has_made(macs["a", 0, 1], Epoch(1), digest)
    with pytest.raises(InternalError, match="has no key for it"):
        key.unit_key("a", 0, [Epoch(2)]).mac(Epoch(3), digest)


def test_the_keys_of_a_worker_come_with_its_deployment() -> None:
    """They are those that the log is signed with, for its own epoch and all before, and shown nowhere."""
    key, digest = LogKey("k" * 32), b"d" * 32
    sent = key.unit_keys("lineage", 1, Epoch(2))
    deploy = DeployTasks(Epoch(2), Lineage("lineage"), (), CheckpointId(0), (), (), unit_keys=sent)
    received = decode_control(encode_control(deploy), COORDINATOR_MESSAGES)
    assert received == deploy and isinstance(received, DeployTasks)
    own = unit_log_key(received.unit_keys)
    assert own is not None and own.key_id == key.key_id
    for epoch in (Epoch(1), Epoch(2)):
        assert own.mac(epoch, digest) == KEY.mac(epoch, digest)
    with pytest.raises(InternalError, match="epoch 3 was to be signed"):
        own.mac(Epoch(3), digest)
    assert not any(one in repr(deploy) for one in sent.keys)
    assert unit_log_key(None) is None


def test_a_key_of_a_unit_shows_nothing_of_itself() -> None:
    assert repr(KEY) == f"UnitLogKey({LogKey('k' * 32).key_id})"
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(KEY)


# What can't be written.


@pytest.mark.parametrize("position", [float("nan"), (1, 2), b"x", 1 << 70])
def test_a_position_that_is_not_json_can_not_be_written(position: JSON) -> None:
    entry = replace(group(1, 1), content=GroupContent(positions=(("split", position),)))
    with pytest.raises(StateError):
        encode_entry(UNIT, INDEX, entry, NO_ENTRY)


@pytest.mark.parametrize("first", [-1, 1 << 64])
def test_a_number_out_of_range_can_not_be_written(first: int) -> None:
    sent = (
        SentRecords(CHANNEL, NumberedRecords(first, 1, b"")),
        SentRecords(OTHER, NumberedRecords(1, 1, b"")),
    )
    with pytest.raises(StateError, match="entry 3/5 of unit 1 of job lineage can't be written"):
        encode_entry(UNIT, INDEX, replace(group(1, 1), sent=sent), NO_ENTRY)


def test_an_entry_that_is_too_long_can_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_log_format, "ENTRY_BYTES_MAX", 200)
    with pytest.raises(StateError, match="at most 200 are possible; lower channel_bytes"):
        encode_entry(UNIT, INDEX, group(1, 1), NO_ENTRY)
