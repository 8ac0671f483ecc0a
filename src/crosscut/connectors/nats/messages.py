"""What is read from a stream, and what is held for one."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Any, Literal

from crosscut.connectors.files.decode_functions import decode_problem, encode_problem
from crosscut.connectors.files.json_decoding import json_value
from crosscut.connectors.files.json_values import dumped
from crosscut.connectors.files.typed_json import TypedJson
from crosscut.errors import ConnectorError

Decoding = Literal["bytes", "text", "json", "message"]
Encoding = Literal["bytes", "text", "json"]


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a stream.

    Attributes:
        subject: What it was published to.
        data: Its bytes.
        headers: By name.
        sequence: Its place in the stream.
        time: When it was stored, in milliseconds since 1970.
    """

    subject: str
    data: bytes
    headers: Mapping[str, str]
    sequence: int
    time: int


def decoder(decode: Decoding | TypedJson[Any] | Callable[[Message], Any]) -> Callable[[Message], Any]:
    """Return the function that makes records.

    Raises:
        ConnectorError: There is none of that name.
    """
    match decode:
        case "bytes":
            return lambda message: message.data
        case "text":
            return lambda message: message.data.decode()
        case "json":
            return lambda message: json_value(message.data)
        case "message":
            return lambda message: message
        case TypedJson():
            return lambda message: decode(message.data)
        case _ if callable(decode):
            if problem := decode_problem(decode, "message"):
                raise ConnectorError(f"decode={shortened(decode)}: {problem}")
            return decode
        case _:
            raise ConnectorError(
                f"decode={decode!r}: expected 'bytes', 'text', 'json', 'message', crosscut.json(class) or a "
                f"function"
            )


def encoder(encode: Encoding | Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return the function that makes bytes of records.

    Raises:
        ConnectorError: There is none of that name.
    """
    match encode:
        case "bytes":
            return bytes
        case "text":
            return lambda record: str(record).encode()
        case "json":
            return dumped
        case _ if callable(encode):
            if problem := encode_problem(encode):
                raise ConnectorError(f"encode={shortened(encode)}: {problem}")
            return encode
        case _:
            raise ConnectorError(f"encode={encode!r}: expected 'bytes', 'text', 'json' or a function")


def is_subject(subject: object) -> bool:
    """Return whether something can be published to."""
    return isinstance(subject, str) and bool(subject) and not set(subject) & set(" *>\r\n\t\0")


def packed(messages: Iterable[tuple[str, bytes]]) -> bytes:
    """Return subjects and bytes as data."""
    pieces = []
    for subject, data in messages:
        name = subject.encode()
        pieces += [struct.pack(">II", len(name), len(data)), name, data]
    return b"".join(pieces)


def unpacked(data: bytes) -> list[tuple[str, bytes]]:
    """Return what `packed` was given.

    Raises:
        ConnectorError: It is something else.
    """
    found, at = [], 0
    try:
        while at < len(data):
            name_bytes, data_bytes = struct.unpack_from(">II", data, at)
            start, at = at + 8, at + 8 + name_bytes + data_bytes
            if at > len(data):
                raise ValueError(f"{at} bytes are announced, {len(data)} are there")
            found.append((data[start : start + name_bytes].decode(), data[start + name_bytes : at]))
    except (struct.error, ValueError) as error:
        raise ConnectorError(f"messages held for NATS can't be read: {error}") from error
    return found
