"""Avro and Protobuf with a schema registry: a small real one, over HTTP."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import crosscut as cc
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
        with pytest.raises(ValueError, match="id of a schema"):
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
