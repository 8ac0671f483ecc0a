"""Records from and to Kafka: what a message is, and how bytes become values and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Any, Literal

import orjson

from crosscut.connectors.extras import required
from crosscut.errors import ConnectorError

Decoding = Literal["bytes", "text", "json", "message"]
Encoding = Literal["bytes", "text", "json"]
Headers = tuple[tuple[str, bytes], ...]


class SchemaUnavailable(ConnectorError):
    """A schema can't be had just now: that says nothing of the message, which must not be skipped for it."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a topic.

    Attributes:
        offset: Its place in the partition. Grows, with gaps.
        timestamp_ms: As the topic says (time of creation or of append), since 1970 in UTC; -1 if none.
        key: None if there is none.
        value: None for a tombstone.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def message_of(found: Any) -> Message:
    """Return a message of the library as ours."""
    return Message(
        found.topic(),
        found.partition(),
        found.offset(),
        found.timestamp()[1],
        found.key(),
        found.value(),
        tuple(found.headers() or ()),
    )


def decoder(decode: Decoding | Callable[[Message], Any]) -> Callable[[list[Any]], list[Any]]:
    """Return what makes records of messages of the library.

    Raises:
        ConnectorError: `decode` is none of those that there are.
    """
    match decode:
        case "bytes":
            return lambda found: [one.value() for one in found]
        case "text":
            return lambda found: [None if (data := one.value()) is None else data.decode() for one in found]
        case "json":
            loads = orjson.loads
            return lambda found: [None if (data := one.value()) is None else loads(data) for one in found]
        case "message":
            return lambda found: list(map(message_of, found))
        case _ if callable(decode):
            return lambda found: [decode(message_of(one)) for one in found]
        case _:
            raise ConnectorError(
                f"decode={decode!r}: expected 'bytes', 'text', 'json', 'message', or a function that takes a "
                f"crosscut.kafka.Message"
            )


def encoder(encode: Encoding | Callable[[Any], bytes | None], what: str) -> Callable[[Any], bytes | None]:
    """Return what makes bytes of a key or a value; None stays None.

    Raises:
        ConnectorError: `encode` is none of those that there are.
    """
    match encode:
        case "json":
            return lambda value: None if value is None else orjson.dumps(value)
        case "text":
            return lambda value: None if value is None else str(value).encode()
        case "bytes":
            return lambda value: value
        case _ if callable(encode):
            return encode
        case _:
            raise ConnectorError(
                f"{what}={encode!r}: expected 'bytes', 'text', 'json' or a function that returns bytes or "
                "None"
            )


Outgoing = tuple[str, bytes | None, bytes | None]
"""Topic, key, value."""


def packed(messages: Sequence[Outgoing]) -> bytes:
    """Return messages as data (MessagePack), to be held in a snapshot."""
    data: bytes = required("msgspec", "kafka").msgpack.encode(messages)
    return data


def unpacked(data: bytes) -> list[Outgoing]:
    """Return what `packed` was given.

    Raises:
        ConnectorError: `data` is something else.
    """
    msgspec = required("msgspec", "kafka")
    try:
        messages: list[Outgoing] = msgspec.msgpack.decode(
            data, type=list[tuple[str, bytes | None, bytes | None]]
        )
    except msgspec.MsgspecError as error:
        raise ConnectorError(f"{len(data)} bytes held for Kafka can't be read: {error}") from error
    return messages


def checked(message: Outgoing, record: Any, largest_bytes: int) -> Outgoing:
    """Return `message` if a broker can take it.

    Raises:
        ConnectorError: The key or value is not bytes, or it is too large; names the record.
    """
    topic, key, value = message
    for what, data in (("key", key), ("value", value)):
        if data is not None and type(data) is not bytes:
            raise ConnectorError(
                f"the {what} of record {shortened(record)} is a {type(data).__name__}: Kafka takes bytes; "
                "set "
                f"{what}='json' or 'text', or a function that returns bytes"
            )
    size_bytes = len(key or b"") + len(value or b"")
    if size_bytes > largest_bytes:
        raise ConnectorError(
            f"record {shortened(record)} is {size_bytes} bytes for topic {topic!r}, which takes "
            f"{largest_bytes}: "
            f"make it smaller, or raise max.message.bytes of the topic and message.max.bytes of the sink"
        )
    return message
