"""Avro and Protobuf with a schema registry, in the wire format of Confluent's.

A message is a zero byte, the id of its schema in four bytes, for Protobuf the path of the message in its
file, and then the data. A schema is asked for once in each process: an id never means another one.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from crosscut.connectors.extras import ExtraMissing, required
from crosscut.connectors.files.bounded_request import answer_to
from crosscut.connectors.kafka.avro import ValueCheck, check_depth
from crosscut.connectors.kafka.avro_reading import with_exact_readers
from crosscut.connectors.kafka.avro_scalars import Prepare
from crosscut.connectors.kafka.avro_writing import preparer
from crosscut.connectors.kafka.records import Message, SchemaUnavailable
from crosscut.connectors.secrets import Environment
from crosscut.errors import ConnectorError

TIMEOUT_S = 5.0
"""For one answer of the registry, all of it: a task stands still meanwhile, once for each schema."""

ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""Of one answer: schemas are some kilobytes."""

_HEAD = struct.Struct(">bI")
_MAGIC = 0

Decoded = TypeVar("Decoded")


@dataclass(frozen=True, eq=False)
class SchemaRegistry:
    """A schema registry, to be asked by decoders of `crosscut.kafka.source` and encoders of `sink`.

    Args:
        url: As "http://host:port". No password in it.
        auth: "user:password" for basic authentication; `crosscut.environment("NAME")` keeps it out of
            the program.

    Raises:
        ConnectorError: `url` is not one, or has a password in it.

    Examples:
        >>> import crosscut as cc
        >>> schemas = cc.kafka.SchemaRegistry("http://schemas:8081")
        >>> orders = cc.kafka.source("localhost:9092", "orders", decode=schemas.avro())
    """

    url: str
    auth: str | Environment | None = field(default=None, repr=False)
    _found: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConnectorError(
                "SchemaRegistry(url): expected 'http://host:port' or 'https://...'", is_permanent=True
            )
        if parts.password is not None:
            raise ConnectorError(
                "SchemaRegistry(url) has a password in it: give auth=crosscut.environment(...)",
                is_permanent=True,
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": {}}

    def avro(self) -> Callable[[Message], Any]:
        """Return a decoder: records are what fastavro makes of the value, by the schema of its writer.

        A tombstone stays None. A decimal with more digits than its schema allows, and a message with bytes
        after its value, can't be decoded. Needs `crosscut[avro]`.

        Raises:
            ConnectorError: It is not installed.
        """
        required("fastavro", "avro")
        return _AvroDecoder(self)

    def avro_encoder(self, subject: str, schema: dict[str, Any]) -> Callable[[Any], bytes | None]:
        """Return an encoder for `encode_value`. It registers `schema` under `subject`, with its first record.

        It refuses what the schema has no room for, instead of a change: fields that it does not have, a
        float for a `long`, a time without a zone for a `timestamp`, microseconds for milliseconds.

        Args:
            subject: As "orders-value".
            schema: As fastavro takes it. Whether it fits to those before, the registry says.

        Raises:
            ConnectorError: `crosscut[avro]` is not installed, or `schema` is none.
        """
        try:
            required("fastavro", "avro").parse_schema(json.loads(json.dumps(schema)))
        except ExtraMissing:
            raise
        except Exception as error:
            raise ConnectorError(
                f"avro_encoder: {schema!r:.200} is not an Avro schema: {type(error).__name__}: {error}",
                is_permanent=True,
            ) from error
        return _AvroEncoder(self, subject, schema)

    def protobuf(self, kind: type[Decoded]) -> Callable[[Message], Decoded | None]:
        """Return a decoder: records are messages of `kind`, a class that protoc has made.

        A tombstone stays None. A message of another kind can't be decoded. Needs `crosscut[protobuf]`.
        """
        return _ProtobufDecoder(kind)

    def protobuf_encoder(self, subject: str, kind: type[Any]) -> Callable[[Any], bytes | None]:
        """Return an encoder of messages of `kind`. It registers the file of the class, which imports none."""
        return _ProtobufEncoder(self, subject, kind)

    def schema(self, schema_id: int) -> str:
        """Return a schema by its id.

        Raises:
            SchemaUnavailable: The registry does not answer, or has none of that id.
        """
        if schema_id not in self._found:
            self._found[schema_id] = self._asked(f"schemas/ids/{schema_id}", "schema", str)
        found: str = self._found[schema_id]
        return found

    def registered(self, subject: str, schema: str, kind: str) -> int:
        """Return the id of a schema, which is registered if it is new.

        Raises:
            SchemaUnavailable: The registry does not answer, or refuses the schema.
        """
        key = (subject, schema)
        if key not in self._found:
            body = {"schema": schema} if kind == "AVRO" else {"schema": schema, "schemaType": kind}
            self._found[key] = self._asked(f"subjects/{quote(subject, safe='')}/versions", "id", int, body)
        found: int = self._found[key]
        return found

    def _asked(self, path: str, wanted: str, of: type, body: dict[str, Any] | None = None) -> Any:
        url = f"{self.url.rstrip('/')}/{path}"
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        if self.auth is not None:
            auth = self.auth.value() if isinstance(self.auth, Environment) else self.auth
            headers["Authorization"] = "Basic " + base64.b64encode(auth.encode()).decode()
        try:
            answer = answer_to(
                url, headers=headers, body=data, timeout_s=TIMEOUT_S, bytes_max=ANSWER_BYTES_MAX
            )
        except (HTTPException, OSError, ValueError) as error:
            raise SchemaUnavailable(f"the schema registry at {self.url} does not answer: {error}") from error
        reason = answer.body[:500].decode(errors="replace")
        if answer.location:
            raise SchemaUnavailable(
                f"the schema registry at {self.url} answers {path} with {answer.status}, a redirect to "
                f"{answer.location[:200]!r}, which is not followed, since that server would be told the "
                f"password: give its address as url if it is the right one"
            )
        if answer.status != 200:
            raise SchemaUnavailable(
                f"the schema registry refuses {path} of {self.url}: {answer.status} {reason}"
            )
        if not answer.is_whole:
            raise SchemaUnavailable(
                f"the schema registry at {self.url} answers {path} with more than {ANSWER_BYTES_MAX} bytes"
            )
        try:
            found = json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            raise SchemaUnavailable(
                f"the schema registry at {self.url} answers {path} with something else than JSON: {reason!r}"
            ) from error
        if not isinstance(found, dict) or not isinstance(found.get(wanted), of):
            raise SchemaUnavailable(
                f"the schema registry at {self.url} answers {path} without {wanted!r}: {reason!r}"
            )
        return found[wanted]


def _split(value: bytes) -> tuple[int, memoryview]:
    if len(value) < _HEAD.size:
        raise ValueError(f"{len(value)} bytes are too short for a schema id")
    magic, schema_id = _HEAD.unpack_from(value)
    if magic != _MAGIC:
        raise ValueError(f"it starts with byte {magic}, not with 0 and a schema id")
    return schema_id, memoryview(value)[_HEAD.size :]


class _AvroDecoder:
    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._parsed: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parsed": {}}

    def __call__(self, message: Message) -> Any:
        if message.value is None:
            return None
        schema_id, data = _split(message.value)
        fastavro = required("fastavro", "avro")
        found = self._parsed.get(schema_id)
        if found is None:
            schema = _loaded(self._registry.schema(schema_id), schema_id)
            parsed = fastavro.parse_schema(with_exact_readers(schema))
            found = self._parsed[schema_id] = parsed, ValueCheck(parsed)
        parsed, check = found
        check(data)
        stream = io.BytesIO(data)
        value = fastavro.schemaless_reader(stream, parsed, None)
        if stream.tell() != len(data):
            raise ValueError(f"{len(data) - stream.tell()} bytes follow the value")
        return value


def _loaded(text: str, schema_id: int) -> Any:
    """Return a schema as JSON that may be parsed.

    Raises:
        ValueError: It is nested too deeply, or no JSON.
    """
    try:
        schema = json.loads(text)
        check_depth(schema)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"schema {schema_id} can't be used: {error}") from error
    return schema


class _AvroEncoder:
    def __init__(self, registry: SchemaRegistry, subject: str, schema: dict[str, Any]) -> None:
        self._registry = registry
        self._subject = subject
        self._schema = schema
        self._text = json.dumps(schema)
        self._parsed: Any = None
        self._prepare: Prepare | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parsed": None, "_prepare": None}

    def __call__(self, value: Any) -> bytes | None:
        if value is None:
            return None
        fastavro = required("fastavro", "avro")
        if self._prepare is None:
            self._parsed = fastavro.parse_schema(self._schema)
            self._prepare = preparer(self._parsed)
        prepared = self._prepare(value)
        schema_id = self._registry.registered(self._subject, self._text, "AVRO")
        data = io.BytesIO(_HEAD.pack(_MAGIC, schema_id))
        data.seek(_HEAD.size)
        fastavro.schemaless_writer(data, self._parsed, prepared)
        return data.getvalue()


class _ProtobufDecoder:
    def __init__(self, kind: type[Any]) -> None:
        self._kind = _checked(kind)
        self._path = _path_of(kind)

    def __call__(self, message: Message) -> Any:
        if message.value is None:
            return None
        _, data = _split(message.value)
        path, begin = _read_path(data)
        if path != self._path:
            raise ValueError(f"it is message {path} of its file, and {self._kind.__name__} is {self._path}")
        found = self._kind()
        found.ParseFromString(bytes(data[begin:]))
        return found


class _ProtobufEncoder:
    def __init__(self, registry: SchemaRegistry, subject: str, kind: type[Any]) -> None:
        self._registry = registry
        self._subject = subject
        self._kind = _checked(kind)
        self._path = _written_path(_path_of(kind))
        self._text = base64.b64encode(kind.DESCRIPTOR.file.serialized_pb).decode()

    def __call__(self, value: Any) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, self._kind):
            raise ConnectorError(f"a {type(value).__name__} is to be written as {self._kind.__name__}")
        schema_id = self._registry.registered(self._subject, self._text, "PROTOBUF")
        data: bytes = value.SerializeToString()
        return _HEAD.pack(_MAGIC, schema_id) + self._path + data


def _checked(kind: Any) -> type[Any]:
    """Return `kind` if it is a class of messages.

    Raises:
        ConnectorError: It is something else.
    """
    if isinstance(kind, type) and hasattr(kind, "DESCRIPTOR") and hasattr(kind, "FromString"):
        return kind
    raise ConnectorError(f"protobuf: {kind!r:.200}: expected a class generated by protoc", is_permanent=True)


def _path_of(kind: Any) -> list[int]:
    """Return where a message stands in its file: its place there, or in the message around it, and so on."""
    path = []
    message = kind.DESCRIPTOR
    while (around := message.containing_type) is not None:
        path.append([one.full_name for one in around.nested_types].index(message.full_name))
        message = around
    file = required("google.protobuf.descriptor_pb2", "protobuf").FileDescriptorProto()
    message.file.CopyToProto(file)
    path.append([one.name for one in file.message_type].index(message.name))
    return path[::-1]


def _written_path(path: list[int]) -> bytes:
    # The first message of a file, by far the most frequent, is a single zero.
    return b"\0" if path == [0] else b"".join(map(_written, (len(path), *path)))


def _written(number: int) -> bytes:
    number <<= 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _read_path(data: memoryview) -> tuple[list[int], int]:
    count, begin = _read(data, 0)
    if count == 0:
        return [0], begin
    path = []
    for _ in range(count):
        number, begin = _read(data, begin)
        path.append(number)
    return path, begin


def _read(data: memoryview, begin: int) -> tuple[int, int]:
    number = shift = 0
    for position in range(begin, min(begin + 5, len(data))):
        byte = data[position]
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if number & 1:
                break
            return number >> 1, position + 1
    raise ValueError("the path of the message in its file can't be read")
