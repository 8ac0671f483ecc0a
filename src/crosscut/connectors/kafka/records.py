"""Records from and to Kafka: what a message is, and how bytes become values and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from reprlib import repr as shortened
from typing import Any, Literal, cast

from crosscut.connectors.extras import required
from crosscut.connectors.files.decode_functions import decode_problem, encode_problem
from crosscut.connectors.files.json_decoding import json_value, json_values
from crosscut.connectors.files.json_values import all_dumped
from crosscut.connectors.files.typed_json import TypedJson
from crosscut.connectors.kafka.compressed_size import compressed_bytes_min
from crosscut.errors import ConnectorError

Decoding = Literal["bytes", "text", "json", "message"]
Encoding = Literal["bytes", "text", "json"]
Headers = tuple[tuple[str, bytes | None], ...]

_LENGTH_BYTES = 4
_KINDS = frozenset({bytes, type(None)})


class SchemaUnavailable(ConnectorError):
    """A schema can't be had just now: that says nothing of the message, which must not be skipped for it."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a topic.

    Attributes:
        offset: Its place in the partition. Grows, with gaps.
        timestamp_ms: As the topic says (time of creation or of append), since 1970 in UTC; None if there is
            none.
        key: None if there is none.
        value: None for a tombstone.
        headers: Pairs of names, which may come twice, and values, which may be None.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def message_of(found: Any) -> Message:
    """Return a message of the library as ours."""
    # -1 says that there is none. Kafka knows no times before 1970.
    _, timestamp_ms = found.timestamp()
    return Message(
        found.topic(),
        found.partition(),
        found.offset(),
        timestamp_ms if timestamp_ms >= 0 else None,
        found.key(),
        found.value(),
        tuple(found.headers() or ()),
    )


def decoder(decode: Decoding | TypedJson[Any] | Callable[[Message], Any]) -> Callable[[list[Any]], list[Any]]:
    """Return what makes records of messages of the library.

    Raises:
        ConnectorError: `decode` is none of those that there are.
    """
    match decode:
        case "bytes":
            return lambda found: list(_values(found))
        case "text":
            return lambda found: [None if data is None else data.decode() for data in _values(found)]
        case "json":
            return _json_records
        case "message":
            return lambda found: list(map(message_of, found))
        case TypedJson():
            return lambda found: [None if data is None else decode(data) for data in _values(found)]
        case _ if callable(decode):
            if problem := _protobuf_problem(decode) or decode_problem(decode, "message"):
                raise ConnectorError(f"decode={shortened(decode)}: {problem}")
            return lambda found: [decode(message_of(one)) for one in found]
        case _:
            raise ConnectorError(
                f"decode={decode!r}: expected 'bytes', 'text', 'json', 'message', crosscut.json(class), or a "
                f"function that takes a crosscut.kafka.Message"
            )


def _protobuf_problem(decode: Any) -> str:
    if not hasattr(decode, "FromString"):
        return ""
    name = decode.__name__
    return (
        f"a class of Protobuf is not called: use the schema registry's decode=registry.protobuf({name}), or "
        f"lambda message: {name}.FromString(message.value)"
    )


def _json_records(found: list[Any]) -> list[Any]:
    values = list(_values(found))
    if None not in values:
        return json_values(cast(list[bytes], values))
    return [None if data is None else json_value(data) for data in values]


def _values(found: list[Any]) -> Iterator[bytes | None]:
    # In one loop that is not Python's: there are hundreds of thousands a second.
    return map(required("confluent_kafka", "kafka").Message.value, found)


Column = list[bytes | None]
HeaderPairs = list[tuple[str, bytes | None]]


def header_pairs(found: object) -> HeaderPairs:
    """Return the headers of a message, as a function of the user gives them.

    Raises:
        TypeError: They are none.
        UnicodeEncodeError: A name or a text has a lone surrogate.
    """
    pairs = found.items() if isinstance(found, Mapping) else () if found is None else found
    if isinstance(pairs, Iterable) and not isinstance(pairs, str | bytes):
        made: HeaderPairs = []
        for pair in pairs:
            match pair:
                case (str(name), bytes() | None as value):
                    # A name that is no Unicode would fail only when the snapshot is packed.
                    name.encode()
                    made.append((name, value))
                case (str(name), str(text)):
                    name.encode()
                    made.append((name, text.encode()))
                case _:
                    break
        else:
            return made
    raise TypeError(
        f"headers={shortened(found)}: expected a dict, or pairs, of names and values that are bytes, str or "
        f"None"
    )


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Messages for one topic, in order: as many keys as values.

    Columns and no tuples, so that what is done with all of them is done in few calls.

    Attributes:
        headers: Of each message; empty if none has any.
        timestamps: Of each message, in milliseconds since 1970, or None if the producer gives it; empty if it
            gives all of them.
    """

    keys: Column
    values: Column
    headers: list[HeaderPairs] = field(default_factory=list)
    timestamps: list[int | None] = field(default_factory=list)

    def extend(self, more: Outgoing) -> None:
        """Add messages, which have headers and timestamps if these have."""
        self.keys.extend(more.keys)
        self.values.extend(more.values)
        self.headers.extend(more.headers)
        self.timestamps.extend(more.timestamps)

    def chosen(self, indexes: Sequence[int]) -> Outgoing:
        """Return those of the messages."""
        return Outgoing(*([column[index] for index in indexes if column] for column in self._columns))

    @property
    def _columns(self) -> tuple[list[Any], ...]:
        return self.keys, self.values, self.headers, self.timestamps


def encoder(encode: Encoding | Callable[[Any], bytes | None], what: str) -> Callable[[list[Any]], Column]:
    """Return what makes bytes of keys or values; None stays None.

    Raises:
        ConnectorError: `encode` is none of those that there are.
    """
    match encode:
        case "json":
            return all_dumped
        case "text":
            return lambda values: [None if value is None else str(value).encode() for value in values]
        case "bytes":
            return lambda values: values
        case _ if callable(encode):
            if problem := encode_problem(encode):
                raise ConnectorError(f"{what}={shortened(encode)}: {problem}")
            return lambda values: list(map(encode, values))
        case _:
            raise ConnectorError(
                f"{what}={encode!r}: expected 'bytes', 'text', 'json' or a function that returns bytes or "
                "None"
            )


def packed(messages: Outgoing, topic: str = "") -> bytes:
    """Return messages as data that can stand before other such data, to be held in a snapshot.

    Args:
        topic: Which topic they are for, if the sink has several.
    """
    columns: tuple[object, ...] = (messages.keys, messages.values)
    if messages.headers or messages.timestamps or topic:
        # Without them it stays as older releases have written and can read it.
        columns += (messages.headers, messages.timestamps)
    if topic:
        columns += (topic,)
    data: bytes = required("msgspec", "kafka").msgpack.encode(columns)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def unpacked(data: bytes) -> Iterator[tuple[str, Outgoing]]:
    """Yield topic and messages of each call of `packed` that made a part of `data`.

    Raises:
        ConnectorError: `data` is something else.
    """
    msgspec = required("msgspec", "kafka")
    decode = msgspec.msgpack.Decoder(_held_columns()).decode
    view, at = memoryview(data), 0
    while at < len(view):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(view[at:begin], "big")
        try:
            found = decode(view[begin:at])
        except msgspec.MsgspecError as error:
            raise ConnectorError(f"{len(data)} bytes held for Kafka can't be read: {error}") from error
        yield found.topic, Outgoing(found.keys, found.values, found.headers, found.timestamps)


@cache
def _held_columns() -> Any:
    """Return the class as which msgspec decodes the columns that are held."""
    msgspec = required("msgspec", "kafka")
    columns = [
        ("keys", list[bytes | None]),
        ("values", list[bytes | None]),
        ("headers", list[list[tuple[str, bytes | None]]], msgspec.field(default_factory=list)),
        ("timestamps", list[int | None], msgspec.field(default_factory=list)),
        ("topic", str, ""),
    ]
    return msgspec.defstruct("HeldColumns", columns, array_like=True)


def without_refused(
    messages: Outgoing,
    records: Sequence[Any],
    topic: str,
    largest_bytes: int,
    refuse: Callable[[Any, str], None],
    *,
    needs_keys: bool = False,
    latest_ms: int | None = None,
    compressed: tuple[int, str] | None = None,
) -> Outgoing:
    """Return the messages that brokers take; `refuse` is called with each of the others' record, and why.

    Args:
        records: What the messages were made of.
        largest_bytes: How large key, value and headers may be together.
        needs_keys: The topic is compacted.
        latest_ms: A timestamp may be no later; None: any time.
        compressed: How large a message may be once it is compressed, and how that is done.
    """
    keys, values = messages.keys, messages.values
    if (
        _KINDS.issuperset(map(type, keys))
        and _KINDS.issuperset(map(type, values))
        and _largest(keys) + _largest(values) + max(map(_bytes_of, messages.headers), default=0)
        <= (largest_bytes if compressed is None else min(largest_bytes, compressed[0]))
        and not (needs_keys and None in keys)
        and not any(_timestamp_refusal(time, topic, latest_ms) for time in messages.timestamps)
    ):
        return messages
    taken = []
    headers: Iterable[HeaderPairs] = messages.headers or repeat([])
    timestamps: Iterable[int | None] = messages.timestamps or repeat(None)
    for index, (record, key, value, pairs, time) in enumerate(
        zip(records, keys, values, headers, timestamps, strict=False)
    ):
        reason = _refusal(key, value, pairs, topic, largest_bytes, compressed, needs_keys=needs_keys)
        if reason := reason or _timestamp_refusal(time, topic, latest_ms):
            refuse(record, reason)
        else:
            taken.append(index)
    return messages.chosen(taken)


def _refusal(
    key: object,
    value: object,
    headers: HeaderPairs,
    topic: str,
    largest_bytes: int,
    compressed: tuple[int, str] | None,
    *,
    needs_keys: bool,
) -> str:
    """Return why brokers don't take a message, "" if they do."""
    for what, data in (("key", key), ("value", value)):
        if not isinstance(data, bytes | None):
            return (
                f"its {what} is a {type(data).__name__}: Kafka takes bytes; set encode_{what}='json' or "
                f"'text', or a function that returns bytes"
            )
    assert isinstance(key, bytes | None) and isinstance(value, bytes | None)
    size_bytes = len(key or b"") + len(value or b"") + _bytes_of(headers)
    if size_bytes > largest_bytes:
        return (
            f"it is {size_bytes} bytes for topic {topic!r}, which takes {largest_bytes}: make it smaller, or "
            f"raise max.message.bytes of the topic and message.max.bytes of the sink"
        )
    if compressed is not None and size_bytes > compressed[0]:
        limit_bytes, codec = compressed
        names = (name.encode() + (data or b"") for name, data in headers)
        least_bytes = compressed_bytes_min(b"".join((key or b"", value or b"", *names)), codec)
        if least_bytes > limit_bytes:
            return (
                f"it is {size_bytes} bytes, and no less than {least_bytes} with {codec}, for topic "
                f"{topic!r}, which takes {limit_bytes}: make it smaller, or raise max.message.bytes of it"
            )
    if needs_keys and key is None:
        return f"it has no key, and topic {topic!r} is compacted: return one from key="
    return ""


def _timestamp_refusal(time: int | None, topic: str, latest_ms: int | None) -> str:
    """Return why brokers don't take a timestamp, "" if they do."""
    if time is None:
        return ""
    if time <= 0:
        # librdkafka takes 0 for the time at which it sends.
        return f"its timestamp is {time}: Kafka takes times after the beginning of 1970"
    if latest_ms is not None and time > latest_ms:
        return (
            f"its timestamp is {time}, in the future by more than message.timestamp.after.max.ms of topic "
            f"{topic!r} allows"
        )
    return ""


def _bytes_of(headers: HeaderPairs) -> int:
    return sum(len(name.encode()) + len(value or b"") for name, value in headers)


def _largest(column: Column) -> int:
    return max(map(len, filter(None, column)), default=0)
