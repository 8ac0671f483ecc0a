"""An entry of a unit's log as bytes, and back.

    header    magic, format, kind, whether signed, length of the entry, lineage, unit, segment, number,
              incarnation, SHA-256 of the entry before, key id
    sections  each with a tag and a length; empty ones are left out
    trailer   SHA-256 of all before it; then, if the log is authenticated, the HMAC of that

All numbers are big-endian. Magic and format come first in every format, so that an entry of another release
is recognized. The header says where the entry belongs and how long it is: an entry can be an object of its
own, or one of many in a file.

The tags have gaps, so that sections can be added. A release that does not know a section refuses the entry.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from typing import TypeVar

from crosscut.contracts.codec import from_json, to_text
from crosscut.contracts.connectors import JSON
from crosscut.errors import AuthenticityError, StateError, StoreError
from crosscut.foundation.ids import ChannelId, Epoch, Lineage, LogIndex, TaskId, VertexId
from crosscut.protocol.snapshots import Part
from crosscut.protocol.unit_log.entries import (
    ChannelPosition,
    GroupCommitted,
    GroupContent,
    Incarnation,
    NumberedRecords,
    SentRecords,
    UnitEntry,
    UnitSegmentClosed,
    UnitSegmentOpened,
    UnitSnapshot,
)
from crosscut.store.log_key import VARIABLE, UnitLogKey

FORMAT = 1
MAGIC = b"\x89CUL"
ENTRY_BYTES_MAX = 1 << 30
DIGEST_BYTES = 32
NO_ENTRY = bytes(DIGEST_BYTES)
"""Stands for the digest of the entry before, in the first entry of a log."""

_START = struct.Struct(">4sH")
_HEADER = struct.Struct(">4sHBBQHIQQQQ32s8s")
_SECTION = struct.Struct(">HQ")
_COUNT = struct.Struct(">I")
_INDEX = struct.Struct(">QQ")
_CHANNEL = struct.Struct(">IHIHI")
_POSITION = struct.Struct(">QQ")
_RECORDS = struct.Struct(">QQQQ")
_NO_KEY = bytes(8)
_KINDS: dict[int, type[UnitEntry]] = {1: UnitSegmentOpened, 2: GroupCommitted, 3: UnitSegmentClosed}
_KIND_NUMBERS: dict[type[UnitEntry], int] = {kind: number for number, kind in _KINDS.items()}


class _Tag(IntEnum):
    CUT = 10
    SNAPSHOT = 20
    RECEIVED = 30
    GIVEN = 40
    SENT = 50
    TASKS = 60
    VALUES = 70


_TAGS: dict[type[UnitEntry], frozenset[_Tag]] = {
    UnitSegmentOpened: frozenset(_Tag) - {_Tag.TASKS},
    GroupCommitted: frozenset({_Tag.RECEIVED, _Tag.SENT, _Tag.TASKS, _Tag.VALUES}),
    UnitSegmentClosed: frozenset(),
}


@dataclass(frozen=True, slots=True)
class UnitName:
    """Whose log it is.

    Attributes:
        lineage: Of the job.
        number: Of the worker.
    """

    lineage: Lineage
    number: int

    def __str__(self) -> str:
        return f"unit {self.number} of job {self.lineage}"


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as it is stored.

    Attributes:
        before: Digest of the entry before; NO_ENTRY: there is none.
        digest: Of this entry.
        size_bytes: Of all of it.
    """

    index: LogIndex
    entry: UnitEntry
    before: bytes
    digest: bytes
    size_bytes: int


class TornError(StoreError):
    """The bytes are not a whole entry."""


@dataclass(frozen=True, slots=True)
class GroupValues:
    """The JSON of a group. The name stands in the log."""

    splits: tuple[str, ...]
    positions: JSON
    sink: JSON


@dataclass(frozen=True, slots=True)
class SnapshotValues:
    """The JSON of a snapshot. The name stands in the log."""

    splits: tuple[str, ...]
    positions: JSON
    owed_segments: tuple[int, ...]
    owed_numbers: tuple[int, ...]
    owed_handles: JSON
    parts: tuple[Part, ...]


def encode_entry(
    unit: UnitName, index: LogIndex, entry: UnitEntry, before: bytes, key: UnitLogKey | None = None
) -> tuple[bytes, bytes]:
    """Return the bytes of `entry`, and their digest. The same entry has the same bytes every time.

    Args:
        before: Digest of the entry before.
        key: Signs the entry.

    Raises:
        StateError: A position, sink handle or number can't be written, or the entry is too long.
    """
    lineage = unit.lineage.encode("utf-8")
    try:
        body = b"".join(_written(_sections_of(entry)))
        size = _HEADER.size + len(lineage) + len(body) + _trailer_bytes(is_signed=key is not None)
        if size > ENTRY_BYTES_MAX:
            raise StateError(
                f"entry {index} of {unit} has {size} bytes, at most {ENTRY_BYTES_MAX} are possible; lower "
                f"channel_bytes or the size of a group"
            )
        header = _HEADER.pack(
            MAGIC,
            FORMAT,
            _KIND_NUMBERS[type(entry)],
            key is not None,
            size,
            len(lineage),
            unit.number,
            index.segment,
            index.number,
            entry.incarnation.epoch,
            entry.incarnation.number,
            before,
            bytes.fromhex(key.key_id) if key is not None else _NO_KEY,
        )
    except (struct.error, UnicodeError) as error:
        raise StateError(f"entry {index} of {unit} can't be written: {error}") from error
    content = header + lineage + body
    digest = sha256(content).digest()
    mac = key.mac(entry.incarnation.epoch, digest) if key is not None else b""
    return content + digest + mac, digest


def decode_entry(
    data: bytes,
    unit: UnitName,
    key: UnitLogKey | None = None,
    *,
    index: LogIndex | None = None,
    offset: int = 0,
) -> StoredEntry:
    """Return the entry at `offset` of `data`.

    Args:
        key: Has signed it; None: it must not be signed.
        index: Where the entry should belong, if `data` is to hold nothing else.

    Raises:
        TornError: There is no whole entry.
        AuthenticityError: It was not signed with `key`.
        StoreError: It is of another format (then the error has an attribute `format`), is not where it
            belongs, or has content that this release does not write. Nothing else is ever raised, whatever
            the bytes.
    """
    size = _size_at(data, offset)
    if index is not None and offset + size != len(data):
        raise TornError(f"expected {size} bytes, found {len(data)}")
    (
        _, _, kind_number, signed, _, lineage_bytes, unit_number, segment, number, epoch, incarnation_number,
        before, key_id,
    ) = _HEADER.unpack_from(data, offset)  # fmt: skip
    end = offset + size - _trailer_bytes(is_signed=bool(signed))
    begin = offset + _HEADER.size + lineage_bytes
    digest = sha256(memoryview(data)[offset:end]).digest()
    if digest != data[end : end + DIGEST_BYTES]:
        raise TornError("the SHA-256 is that of other bytes")
    found_unit, found = data[offset + _HEADER.size : begin], LogIndex(segment, number)
    if unit_number != unit.number or found_unit != unit.lineage.encode("utf-8"):
        job = found_unit[:64].decode("utf-8", "replace")
        raise StoreError(f"it is of unit {unit_number} of job {job}, expected {unit}")
    if index is not None and found != index:
        raise StoreError(f"it holds entry {found}: an entry was moved or copied into the place of another")
    incarnation = Incarnation(Epoch(epoch), incarnation_number)
    _check_key(
        key,
        incarnation.epoch,
        digest,
        key_id.hex() if signed else "",
        data[end + DIGEST_BYTES : offset + size],
    )
    kind = _KINDS.get(kind_number)
    if kind is None:
        raise StoreError(f"kind {kind_number} is not one that this release writes")
    sections = _sections_in(data[begin:end], kind)
    return StoredEntry(found, _entry_of(kind, incarnation, sections), before, digest, size)


def index_at(data: bytes, offset: int) -> LogIndex | None:
    """Return where the entry at `offset` would belong, as its header says; None if there is no header.

    Much cheaper than to decode it.
    """
    try:
        _size_at(data, offset)
    except StoreError:
        return None
    _, _, _, _, _, _, _, segment, number, *_ = _HEADER.unpack_from(data, offset)
    return LogIndex(segment, number)


def _size_at(data: bytes, offset: int) -> int:
    """Return the size of the entry at `offset`, all of which is there.

    Raises:
        TornError: It isn't, or its lengths contradict each other.
        StoreError: It has another format.
    """
    rest = len(data) - offset
    if rest < _START.size or data[offset : offset + len(MAGIC)] != MAGIC:
        raise TornError(f"{rest} bytes that do not begin as an entry does")
    _, form = _START.unpack_from(data, offset)
    if form == 0:
        raise TornError("it is torn after its first bytes")
    if form != FORMAT:
        raise StoreError(f"expected format {FORMAT}, found {form}", format=form)
    if rest < _HEADER.size:
        raise TornError(f"{rest} bytes, fewer than a header has")
    _, _, _, signed, size, lineage_bytes, *_ = _HEADER.unpack_from(data, offset)
    least = _HEADER.size + lineage_bytes + _trailer_bytes(is_signed=bool(signed))
    if signed > 1 or not least <= size <= min(rest, ENTRY_BYTES_MAX):
        raise TornError(f"it says that it has {size} bytes, expected {least} to {min(rest, ENTRY_BYTES_MAX)}")
    return int(size)


def _trailer_bytes(*, is_signed: bool) -> int:
    return DIGEST_BYTES * 2 if is_signed else DIGEST_BYTES


def _check_key(key: UnitLogKey | None, epoch: Epoch, digest: bytes, key_id: str, mac: bytes) -> None:
    """Raise AuthenticityError unless the entry was written with `key`, or without one if that is None."""
    if key is None:
        if not key_id:
            return
        reason = f"it was written with key {key_id}, and this process has none: set {VARIABLE} to that key"
    elif not key_id:
        reason = f"it was written without a key, and {VARIABLE} is set: restore it from a backup"
    elif key_id != key.key_id:
        reason = f"it was written with key {key_id}, and {VARIABLE} is key {key.key_id}: set it to the former"
    elif not key.has_made(mac, epoch, digest):
        reason = (
            f"it names key {key_id} and epoch {epoch}, and was not written with that key, or this process "
            f"has no key of that epoch: restore it from a backup"
        )
    else:
        return
    raise AuthenticityError(reason, damaged=False)


# Sections.


def _sections_of(entry: UnitEntry) -> dict[_Tag, bytes]:
    if isinstance(entry, GroupCommitted):
        content = entry.content
        return {
            _Tag.RECEIVED: _positions(entry.received),
            _Tag.SENT: _records(entry.sent),
            _Tag.TASKS: content.sections,
            _Tag.VALUES: _group_values(content),
        }
    if isinstance(entry, UnitSegmentClosed):
        return {}
    sections = {_Tag.CUT: _INDEX.pack(entry.cut.segment, entry.cut.number)}
    snapshot = entry.snapshot
    if snapshot is not None:
        values = SnapshotValues(
            *_apart(snapshot.positions),
            tuple(index.segment for index, _ in snapshot.owed),
            tuple(index.number for index, _ in snapshot.owed),
            [handle for _, handle in snapshot.owed],
            snapshot.parts,
        )
        sections |= {
            _Tag.SNAPSHOT: _INDEX.pack(snapshot.index.segment, snapshot.index.number),
            _Tag.RECEIVED: _positions(snapshot.received),
            _Tag.GIVEN: _positions(snapshot.given),
            _Tag.SENT: _records(snapshot.kept),
            _Tag.VALUES: to_text(values).encode("ascii"),
        }
    return sections


def _group_values(content: GroupContent) -> bytes:
    if not content.positions and content.sink is None:
        return b""
    return to_text(GroupValues(*_apart(content.positions), content.sink)).encode("ascii")


def _apart(positions: tuple[tuple[str, JSON], ...]) -> tuple[tuple[str, ...], JSON]:
    return tuple(split for split, _ in positions), [position for _, position in positions]


def _written(sections: Mapping[_Tag, bytes]) -> Iterable[bytes]:
    for tag in sorted(sections):
        if content := sections[tag]:
            yield _SECTION.pack(tag, len(content))
            yield content


def _positions(positions: tuple[tuple[ChannelId, ChannelPosition], ...]) -> bytes:
    if not positions:
        return b""
    return _COUNT.pack(len(positions)) + b"".join(
        _channel(channel) + _POSITION.pack(one.record, one.news) for channel, one in positions
    )


def _records(sent: tuple[SentRecords, ...]) -> bytes:
    if not sent:
        return b""
    pieces = [_COUNT.pack(len(sent))]
    for one in sent:
        records = one.records
        pieces += (
            _channel(one.channel),
            _RECORDS.pack(records.first, records.last, records.news, len(records.payload)),
            records.payload,
        )
    return b"".join(pieces)


def _channel(channel: ChannelId) -> bytes:
    source, target = channel.source.vertex.encode("utf-8"), channel.target.vertex.encode("utf-8")
    numbers = _CHANNEL.pack(
        channel.input, len(source), channel.source.index, len(target), channel.target.index
    )
    return numbers + source + target


class _Cursor:
    """Takes values from bytes one after the other, and none beyond their end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def has_more(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise StoreError(f"{count} bytes are announced, and {len(self._data) - self._at} are left")
        self._at += count
        return self._data[self._at - count : self._at]

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def integers(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.take(form.size))

    def index(self) -> LogIndex:
        return LogIndex(*self.integers(_INDEX))

    def channel(self) -> ChannelId:
        number, source_bytes, source, target_bytes, target = self.integers(_CHANNEL)
        return ChannelId(
            number, TaskId(self._vertex(source_bytes), source), TaskId(self._vertex(target_bytes), target)
        )

    def _vertex(self, count: int) -> VertexId:
        try:
            return VertexId(self.take(count).decode("utf-8"))
        except UnicodeDecodeError as error:
            raise StoreError("the name of a vertex is not UTF-8") from error

    def positions(self) -> tuple[tuple[ChannelId, ChannelPosition], ...]:
        found: list[tuple[ChannelId, ChannelPosition]] = []
        for _ in range(self._count()):
            channel = self.channel()
            found.append((channel, ChannelPosition(*self.integers(_POSITION))))
        return tuple(found)

    def records(self) -> tuple[SentRecords, ...]:
        found: list[SentRecords] = []
        for _ in range(self._count()):
            channel = self.channel()
            first, last, news, size = self.integers(_RECORDS)
            # News alone comes after `last`.
            if not 1 <= first <= last + (news > 0):
                raise StoreError(f"{channel} has records {first} to {last} and news {news}")
            found.append(SentRecords(channel, NumberedRecords(first, last, self.take(size), news)))
        return tuple(found)

    def _count(self) -> int:
        # Without the section there are none.
        return self.integers(_COUNT)[0] if self.has_more else 0


def _sections_in(body: bytes, kind: type[UnitEntry]) -> dict[_Tag, _Cursor]:
    known = {int(tag): tag for tag in _TAGS[kind]}
    found: dict[_Tag, _Cursor] = {}
    newest = 0
    rest = _Cursor(body)
    while rest.has_more:
        number, size = rest.integers(_SECTION)
        if number <= newest or number not in known:
            raise StoreError(f"section {number} after {newest} is not one that this release writes")
        newest = number
        found[known[number]] = _Cursor(rest.take(size))
    return found


def _entry_of(kind: type[UnitEntry], incarnation: Incarnation, sections: Mapping[_Tag, _Cursor]) -> UnitEntry:
    def section(tag: _Tag) -> _Cursor:
        return sections.get(tag, _Cursor(b""))

    entry: UnitEntry
    if kind is UnitSegmentClosed:
        entry = UnitSegmentClosed(incarnation)
    elif kind is GroupCommitted:
        received, sent = section(_Tag.RECEIVED).positions(), section(_Tag.SENT).records()
        tasks, stored = section(_Tag.TASKS).rest(), section(_Tag.VALUES)
        group = _values(stored, GroupValues) if stored.has_more else GroupValues((), [], None)
        content = GroupContent(tasks, _together(group.splits, group.positions), group.sink)
        entry = GroupCommitted(incarnation, received, sent, content)
    else:
        cut = section(_Tag.CUT).index()
        snapshot = None
        if _Tag.SNAPSHOT in sections:
            values = _values(section(_Tag.VALUES), SnapshotValues)
            owed = _together(
                tuple(map(LogIndex, values.owed_segments, values.owed_numbers)), values.owed_handles
            )
            snapshot = UnitSnapshot(
                section(_Tag.SNAPSHOT).index(),
                section(_Tag.RECEIVED).positions(),
                section(_Tag.GIVEN).positions(),
                section(_Tag.SENT).records(),
                _together(values.splits, values.positions),
                owed,
                values.parts,
            )
        entry = UnitSegmentOpened(incarnation, cut, snapshot)
    for tag, cursor in sections.items():
        if cursor.has_more:
            raise StoreError(f"section {tag.value} has more bytes than it says")
    return entry


Value = TypeVar("Value", GroupValues, SnapshotValues)
Key = TypeVar("Key")


def _values(stored: _Cursor, kind: type[Value]) -> Value:
    try:
        parsed: JSON = json.loads(stored.rest())
    except (ValueError, RecursionError) as error:
        raise StoreError(f"not JSON: {type(error).__name__}") from error
    values: Value = from_json(parsed, (kind,), StoreError)
    return values


def _together(keys: tuple[Key, ...], values: JSON) -> tuple[tuple[Key, JSON], ...]:
    if not isinstance(values, list) or len(values) != len(keys):
        raise StoreError(f"expected a list of {len(keys)} values")
    return tuple(zip(keys, values, strict=True))
