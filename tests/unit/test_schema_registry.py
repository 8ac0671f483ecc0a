"""Avro and Protobuf with a schema registry: a small real one, over HTTP."""

from __future__ import annotations

import itertools
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import crosscut as cc
from crosscut.connectors.kafka import registry as registry_module
from crosscut.connectors.kafka.records import Message, SchemaUnavailable
from crosscut.errors import ConnectorError
from crosscut.testing.schema_registry import SchemaRegistryServer

pytest.importorskip("fastavro", reason="pip install 'crosscut[avro]'")
pytest.importorskip("google.protobuf", reason="pip install 'crosscut[protobuf]'")

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "customer", "type": ["null", "string"]}],
}
AUTH = "me:hunter2"


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer(AUTH) as one:
        yield one


@pytest.fixture
def registry(server: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch) -> cc.kafka.SchemaRegistry:
    monkeypatch.setenv("REGISTRY_AUTH", AUTH)
    return cc.kafka.SchemaRegistry(server.url, auth=cc.environment("REGISTRY_AUTH"))


def message(value: bytes | None) -> Message:
    return Message("orders", 0, 0, -1, None, value)


def protobuf_classes() -> tuple[Any, Any, Any]:
    """The classes of a file with two messages, the second with one inside, as protoc makes them."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file: Any = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    parcel = file.message_type.add(name="Parcel")
    parcel.nested_type.add(name="Size").field.add(name="width", number=1, type=3, label=1)
    pool: Any = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("shop.Order", "shop.Parcel", "shop.Parcel.Size")
    one, two, three = (message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names)
    return one, two, three


def test_avro_goes_round_and_each_schema_is_asked_for_once(
    server: SchemaRegistryServer, registry: cc.kafka.SchemaRegistry
) -> None:
    encode = registry.avro_encoder("orders-value", ORDER)
    decode = pickle.loads(pickle.dumps(cc.kafka.SchemaRegistry(server.url, registry.auth).avro()))
    orders = [{"id": 1, "customer": "ada"}, {"id": -(2**40), "customer": None}]
    values = [encode(one) for one in orders]
    assert [decode(message(value)) for value in values] == orders
    assert values[0] is not None and values[0][:5] == b"\0" + (100_000).to_bytes(4, "big")
    assert server.requests == ["/subjects/orders-value/versions", "/schemas/ids/100000"]
    assert (encode(None), decode(message(None))) == (None, None)


def test_protobuf_goes_round_also_where_a_message_is_not_the_first_of_its_file(
    registry: cc.kafka.SchemaRegistry,
) -> None:
    order, parcel, size = protobuf_classes()
    for kind, content, path in (
        (order, {"id": 7}, b"\0"),
        (parcel, {}, b"\x02\x02"),
        (size, {"width": 3}, b"\x04\x02\0"),
    ):
        encode, decode = registry.protobuf_encoder("shop-value", kind), registry.protobuf(kind)
        value = encode(kind(**content))
        assert value is not None and value[5:].startswith(path)
        assert decode(message(value)) == kind(**content)
        assert (encode(None), decode(message(None))) == (None, None)
    value = registry.protobuf_encoder("shop-value", size)(size(width=1))
    with pytest.raises(ValueError, match=r"it is message \[1, 0\] of its file, and Order is \[0\]"):
        registry.protobuf(order)(message(value))
    with pytest.raises(ConnectorError, match="a Parcel is to be written as Order"):
        registry.protobuf_encoder("shop-value", order)(parcel())


@pytest.mark.parametrize("value", [b"", b"\0\0\0", b"{}", b"\x01\0\0\0\x01data"])
def test_what_has_no_schema_is_malformed(registry: cc.kafka.SchemaRegistry, value: bytes) -> None:
    for decode in (registry.avro(), registry.protobuf(protobuf_classes()[0])):
        with pytest.raises(ValueError, match="schema id"):
            decode(message(value))


@pytest.mark.parametrize("path", [b"", b"\x01\x02", b"\x80", b"\xff\xff\xff\xff\xff\xff"])
def test_a_path_that_can_not_be_read_is_malformed(registry: cc.kafka.SchemaRegistry, path: bytes) -> None:
    with pytest.raises(ValueError, match=r"path of the message|it is message"):
        registry.protobuf(protobuf_classes()[0])(message(b"\0\0\0\0\x01" + path))


def test_a_registry_that_can_not_say_is_no_reason_to_skip_a_message(
    server: SchemaRegistryServer, registry: cc.kafka.SchemaRegistry
) -> None:
    value = registry.avro_encoder("orders-value", ORDER)({"id": 1, "customer": None})
    server.is_down = True
    with pytest.raises(SchemaUnavailable, match=r"refuses schemas/ids/100000 of .*: 503"):
        registry.avro()(message(value))
    server.is_down = False
    assert registry.avro()(message(value)) == {"id": 1, "customer": None}
    with pytest.raises(SchemaUnavailable, match=r"404 .*Schema not found"):
        registry.avro()(message(b"\0\0\0\0\x05data"))
    away = cc.kafka.SchemaRegistry("http://127.0.0.1:9")
    with pytest.raises(SchemaUnavailable, match="does not answer"):
        away.avro()(message(value))
    stranger = cc.kafka.SchemaRegistry(server.url, auth="me:wrong")
    with pytest.raises(SchemaUnavailable, match="401") as found:
        stranger.avro()(message(value))
    assert "wrong" not in str(found.value)
    assert "wrong" not in repr(stranger)


@pytest.mark.parametrize("url", ["localhost:8081", "ftp://host", "http://", "file:///etc/passwd"])
def test_a_registry_needs_an_address(url: str) -> None:
    with pytest.raises(ConnectorError, match="expected 'http://host:port'"):
        cc.kafka.SchemaRegistry(url)


def test_a_password_in_the_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConnectorError, match="has a password in it") as found:
        cc.kafka.SchemaRegistry("http://me:hunter2@localhost:8081")
    assert "hunter2" not in str(found.value)


class Misbehaving:
    """A server of HTTP that answers with what it is told to, in pieces, and notes what it is asked."""

    def __init__(self, *pieces: bytes, pause_s: float = 0.0) -> None:
        self.asked = b""
        self._pieces, self._pause_s = pieces, pause_s
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Misbehaving:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection = self._listening.accept()[0]
                with connection, suppress(OSError):
                    self.asked += connection.recv(65_536)
                    for piece in itertools.chain(self._pieces):
                        connection.sendall(piece)
                        if self._is_over.wait(self._pause_s):
                            return


def test_a_redirect_is_not_followed_and_nobody_else_gets_the_password(server: SchemaRegistryServer) -> None:
    """D36, P8."""
    with Misbehaving(b"") as thief:
        head = f"HTTP/1.1 307 Go\r\nLocation: {thief.url}/schemas/ids/1\r\nContent-Length: 0\r\n\r\n"
        with Misbehaving(head.encode()) as registry:
            schemas = cc.kafka.SchemaRegistry(registry.url, auth="me:secret")
            with pytest.raises(SchemaUnavailable, match=r"307, a redirect to .* is not followed"):
                schemas.schema(1)
            assert b"Authorization" in registry.asked
        assert thief.asked == b""


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_registry_that_never_comes_to_an_end_has_one_deadline(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: slow for ever, in the head and in the body: each byte comes well before a time-out of reads."""
    monkeypatch.setattr(registry_module, "TIMEOUT_S", 0.5)
    message = r"does not answer: no whole answer within 0\.5 s"
    with (
        Misbehaving(head, *[b"x"] * 10_000, pause_s=0.05) as slow,
        pytest.raises(SchemaUnavailable, match=message),
    ):
        cc.kafka.SchemaRegistry(slow.url).schema(1)


def test_a_handshake_of_tls_that_never_comes_to_an_end_has_the_same_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P8. A record of 16 KiB, one byte at a time."""
    monkeypatch.setattr(registry_module, "TIMEOUT_S", 0.5)
    with (
        Misbehaving(b"\x16\x03\x03\x40\x00", *[b"x"] * 100, pause_s=0.05) as slow,
        pytest.raises(SchemaUnavailable, match=r"does not answer: no whole answer within 0\.5 s"),
    ):
        cc.kafka.SchemaRegistry(slow.url.replace("http:", "https:")).schema(1)


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """P8."""
    monkeypatch.setattr(registry_module, "ANSWER_BYTES_MAX", 100_000)
    with (
        Misbehaving(b"HTTP/1.1 200 OK\r\n\r\n", *[b" " * 65_536] * 10_000) as endless,
        pytest.raises(SchemaUnavailable, match="with more than 100000 bytes"),
    ):
        cc.kafka.SchemaRegistry(endless.url).schema(1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>", "something else than JSON"),
        (b"[" * 100_000, "something else than JSON"),
        (b"[]", "without 'schema'"),
        (b'{"schema": 7}', "without 'schema'"),
    ],
)
def test_an_answer_that_is_no_schema_is_an_error(body: bytes, message: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    with Misbehaving(head, body) as other, pytest.raises(SchemaUnavailable, match=message):
        cc.kafka.SchemaRegistry(other.url).schema(1)


def test_a_bomb_in_a_topic_is_malformed(
    server: SchemaRegistryServer, registry: cc.kafka.SchemaRegistry
) -> None:
    """D32, by way of a source's decoder."""
    schema = {"type": "array", "items": "null"}
    value = registry.avro_encoder("nulls-value", schema)([])
    assert value is not None and registry.avro()(message(value)) == []
    with pytest.raises(ValueError, match="items, and 1 bytes are left"):
        registry.avro()(message(value[:5] + b"\xfe\xff\xff\xff\x0f\0"))
