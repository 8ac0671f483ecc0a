"""Functions that options take are refused at once if they can't be called with what they get."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, cast

import pytest

import crosscut as cc
from crosscut.errors import ConnectorError, CrosscutError, FlowError, SettingsError
from crosscut.testing import ProcessHarness

SCHEMAS = cc.kafka.SchemaRegistry("http://localhost:1")


@dataclass
class Payment:
    card: str
    amount: int
    currency: str


async def awaited(*of: object) -> object:
    return of


async def yielding(*of: object) -> AsyncIterator[object]:
    yield of


class Awaited:
    async def __call__(self, *of: object) -> object:
        return of


class Yielding:
    async def __call__(self, *of: object) -> AsyncIterator[object]:
        yield of


class AwaitedObjects:
    """The class itself is no async function: it makes objects that are."""

    def __init__(self, *of: object) -> None:
        pass

    async def __call__(self) -> None:
        pass


ASYNC: list[Any] = [
    awaited,
    yielding,
    Awaited(),
    Yielding(),
    partial(awaited, 1),
    partial(yielding),
    partial(Awaited()),
    partial(partial(Yielding(), 1), 2),
    Awaited().__call__,
]


def of_two(key: object, value: object) -> object:
    return key, value


def of_one(record: object) -> object:
    return record


@wraps(of_two)
def adapted(*of: object) -> object:
    return of_two(of, of)


@wraps(of_two)
def adapted_to_one(message: object) -> object:
    return of_two(message, message)


@wraps(of_one)
def adapted_to_two(key: object, value: object) -> object:
    return of_one((key, value))


# Everything that takes a function of a record, a text, a message or a value that can't be decoded.
MAKERS: dict[str, Callable[[Any], object]] = {
    "files malformed": lambda one: cc.files.read_jsonl("*", malformed=one),
    "csv malformed": lambda one: cc.files.read_csv("*", malformed=one),
    "csv types": lambda one: cc.files.read_csv("*", types={"amount": one}),
    "kafka malformed": lambda one: cc.kafka.source("localhost:1", "t", malformed=one),
    "kafka topic": lambda one: cc.kafka.sink("localhost:1", one, topics=["t"]),
    "kafka key": lambda one: cc.kafka.sink("localhost:1", "t", key=one),
    "kafka value": lambda one: cc.kafka.sink("localhost:1", "t", value=one),
    "kafka headers": lambda one: cc.kafka.sink("localhost:1", "t", headers=one),
    "kafka timestamp": lambda one: cc.kafka.sink("localhost:1", "t", timestamp=one),
    "nats subject": lambda one: cc.nats.sink("nats://localhost:1", "S", one),
    "nats value": lambda one: cc.nats.sink("nats://localhost:1", "S", "s", value=one),
    "http value": lambda one: cc.http.sink("http://localhost:1", honours_keys=True, value=one),
    "postgres malformed": lambda one: cc.postgres.source("", "t", "k", malformed=one),
    "postgres by": lambda one: cc.postgres.lookup("", "select 1", by=one),
    "postgres join": lambda one: cc.postgres.lookup("", "select 1", by=str, join=one),
    "postgres row": lambda one: cc.postgres.sink("", "t", ["c"], row=one),
    "sqlite row": lambda one: cc.sqlite.sink("db", "t", ["c"], row=one),
    "generate": lambda one: cc.generate(one),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("function", [Payment, lambda: 1, awaited], ids=["class", "nothing", "async"])
def test_a_function_that_can_not_be_called_is_refused_when_it_is_given(
    name: str, function: Callable[..., Any]
) -> None:
    with pytest.raises((SettingsError, ConnectorError), match=r"called with|async"):
        MAKERS[name](function)


@pytest.mark.parametrize("function", ASYNC)
def test_what_gives_nothing_but_something_to_await_is_refused_everywhere(function: Any) -> None:
    stream = cc.Flow("f").source(cc.items([1]))
    for make in (
        *MAKERS.values(),
        lambda one: cc.kafka.source("localhost:1", "t", decode=one),
        lambda one: cc.files.read_jsonl("*", decode=one),
        lambda one: cc.kafka.sink("localhost:1", "t", encode_value=one),
        stream.map,
        stream.filter,
        stream.flat_map,
        stream.key_by,
        lambda one: cc.Flow("f").invariant("i", one),
        lambda one: stream.iterate(one),
    ):
        with pytest.raises(CrosscutError, match="async"):
            make(function)


def test_a_class_of_async_objects_is_called_as_a_class() -> None:
    cc.kafka.source("localhost:1", "t", decode=AwaitedObjects)


def test_an_adapter_is_judged_by_what_it_takes_itself_unless_it_takes_anything() -> None:
    decode: Any
    for decode in (adapted_to_one, partial(adapted_to_one)):
        cc.kafka.source("localhost:1", "t", decode=decode)
    for decode in (adapted_to_two, adapted):
        with pytest.raises(ConnectorError, match=r"called with \(message\).*\(key.*value"):
            cc.kafka.source("localhost:1", "t", decode=decode)


@pytest.mark.parametrize("name", MAKERS)
def test_a_function_of_any_arguments_is_accepted(name: str) -> None:
    MAKERS[name](lambda *of: of)


@pytest.mark.parametrize(
    "make",
    [
        lambda: cc.kafka.source("localhost:1", "t", start=cast(Any, "oldest")),
        lambda: cc.kafka.source("localhost:1", []),
        lambda: cc.kafka.source("localhost:1", "t", options={"group.id": 5}),
        lambda: cc.kafka.sink("localhost:1", ""),
        lambda: cc.kafka.SchemaRegistry("schemas:8081"),
        lambda: SCHEMAS.protobuf(cast(Any, dict)),
        lambda: SCHEMAS.avro_encoder("s", {}),
        lambda: cc.files.read_text(cast(Any, 5)),
        lambda: cc.files.read_jsonl(cast(Any, 5)),
        lambda: cc.files.write_csv("out", cast(Any, 5)),
        lambda: cc.nats.source(cast(Any, None), cast(Any, None)),
        lambda: cc.nats.sink("nats://localhost:1", "a b", "s"),
        lambda: cc.http.events("no url", replays=True),
        lambda: cc.http.sink("http://localhost:1", honours_keys=True, batch_records=0),
        lambda: cc.postgres.source("", "", ""),
        lambda: cc.sqlite.sink("db", "t", []),
        lambda: cc.json(cast(Any, 5)),
        lambda: cc.socket("nowhere"),
    ],
)
def test_a_refused_argument_is_no_failure_that_may_pass(make: Callable[[], object]) -> None:
    with pytest.raises(CrosscutError) as failed:
        make()
    assert not failed.value.is_transient
    assert not pickle.loads(pickle.dumps(failed.value)).is_transient


@pytest.mark.parametrize("default", [Payment, lambda key: key, awaited])
def test_a_default_of_a_value_that_can_not_be_made_is_refused(default: Any) -> None:
    with pytest.raises(FlowError, match=r"default.*(called with|async)"):
        cc.ValueState(default)
    cc.ValueState(list), cc.ValueState(0)


@pytest.mark.parametrize("kind", [Payment, dict, "Payment", None])
def test_only_a_class_of_protobuf_is_one(kind: Any) -> None:
    for make in (SCHEMAS.protobuf, lambda kind: SCHEMAS.protobuf_encoder("subject", kind)):
        with pytest.raises(ConnectorError, match="expected a class generated by protoc"):
            make(kind)


def test_a_schema_of_avro_that_is_none_is_refused() -> None:
    schema: Any = Payment
    for schema in (Payment, "string or int", {"type": "record"}, {}):
        with pytest.raises(ConnectorError, match="schema"):
            SCHEMAS.avro_encoder("subject", schema)
    SCHEMAS.avro_encoder("subject", {"type": "record", "name": "A", "fields": []})


class Quiet(cc.KeyedProcess[Any, Any]):
    def on_record(self, record: Any, ctx: cc.Context) -> list[Any]:
        return [record]


class AsyncRecords(cc.KeyedProcess[Any, Any]):
    async def on_record(self, record: Any, ctx: cc.Context) -> list[Any]:  # type: ignore[override]
        return [record]


class YieldingRecords(cc.KeyedProcess[Any, Any]):
    async def on_record(self, record: Any, ctx: cc.Context) -> AsyncIterator[Any]:  # type: ignore[override]
        yield record


class AsyncTimer(Quiet):
    async def on_timer(self, time: int, ctx: cc.Context) -> None:  # type: ignore[override]
        pass


class AsyncProcessingTimer(Quiet):
    async def on_processing_timer(self, time: int, ctx: cc.Context) -> None:  # type: ignore[override]
        pass


class AsyncOpen(Quiet):
    async def open(self) -> None:  # type: ignore[override]
        pass


class AsyncClose(Quiet):
    async def close(self) -> None:  # type: ignore[override]
        pass


@pytest.mark.parametrize(
    ("process", "method"),
    [
        (AsyncRecords(), "on_record"),
        (YieldingRecords(), "on_record"),
        (AsyncTimer(), "on_timer"),
        (AsyncProcessingTimer(), "on_processing_timer"),
        (AsyncOpen(), "open"),
        (AsyncClose(), "close"),
    ],
)
def test_a_process_with_a_method_that_nobody_awaits_is_refused(process: Any, method: str) -> None:
    keyed = cc.Flow("f").source(cc.items([1])).key_by(lambda record: record)
    for make in (keyed.process, lambda process: ProcessHarness(process)):
        with pytest.raises(FlowError, match=f"{method}: .*async"):
            make(process)


class AsyncOther(cc.ConnectedProcess[Any, Any, Any]):
    def on_record(self, record: Any, ctx: cc.Context) -> list[Any]:
        return [record]

    async def on_other(self, record: Any, ctx: cc.Context) -> list[Any]:  # type: ignore[override]
        return [record]


def test_so_is_one_that_reads_two_streams() -> None:
    flow = cc.Flow("f")
    one = flow.source(cc.items([1])).key_by(lambda record: record)
    other = flow.source(cc.items([2])).key_by(lambda record: record)
    with pytest.raises(FlowError, match=r"on_other: .*async"):
        one.connect(other).process(AsyncOther())
