"""JSON as classes that the user declares: what fits, what does not, and in every source that decodes."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
import typing_extensions

import crosscut as cc
from crosscut.connectors.http.event_source import HttpEvents
from crosscut.connectors.http.event_stream import Event
from crosscut.connectors.kafka import records as kafka_records
from crosscut.connectors.nats import messages as nats_messages
from crosscut.contracts.connectors import EndOfSplit, Wait
from crosscut.errors import ConnectorError, SettingsError
from crosscut.net.causes import failure_cause


@dataclasses.dataclass(frozen=True)
class Item:
    name: str


@dataclasses.dataclass(frozen=True)
class Payment:
    card: str
    amount: int
    items: list[Item] = dataclasses.field(default_factory=list)
    at: datetime.datetime | None = None


class StructPayment(msgspec.Struct):
    card: str
    amount: int


class ModelPayment(pydantic.BaseModel):
    card: str
    amount: int


class TuplePayment(NamedTuple):
    card: str
    amount: int


class DictPayment(TypedDict):
    card: str
    amount: int


GOOD = '{"card": "A", "amount": 3}'
ALL = [
    (Payment, Payment("A", 3)),
    (StructPayment, StructPayment("A", 3)),
    (ModelPayment, ModelPayment(card="A", amount=3)),
    (DictPayment, {"card": "A", "amount": 3}),
]


@pytest.mark.parametrize(("kind", "expected"), ALL)
def test_what_fits_becomes_an_object_of_the_class(kind: Any, expected: Any) -> None:
    for decode in (cc.json(kind), pickle.loads(pickle.dumps(cc.json(kind)))):
        assert decode(GOOD) == decode(GOOD.encode()) == expected


def test_named_tuples_are_arrays_and_lists_hold_classes() -> None:
    assert cc.json(TuplePayment)('["A", 3]') == TuplePayment("A", 3)
    assert cc.json(list[Payment])(f"[{GOOD}]") == [Payment("A", 3)]  # type: ignore[comparison-overlap]


def test_what_is_nested_and_dates_are_decoded_too() -> None:
    found = cc.json(Payment)(
        '{"card": "A", "amount": 3, "items": [{"name": "x"}], "at": "2026-01-01T00:00:00Z"}'
    )
    assert found.items == [Item("x")]
    assert found.at == datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize("kind", [Payment, StructPayment, ModelPayment])
def test_an_error_names_the_class_and_the_field(kind: type) -> None:
    with pytest.raises(ValueError, match=rf"it is no {kind.__name__}: .*amount"):
        cc.json(kind)('{"card": "A", "amount": "three"}')
    with pytest.raises(ValueError, match="card"):
        cc.json(kind)('{"amount": 3}')


class Anything(msgspec.Struct):
    value: Any


@pytest.mark.parametrize("kind", [Payment, ModelPayment, Anything])
@pytest.mark.parametrize("data", [b"\xff", b"{", b"", b'{"value": ' + b"[" * 300 + b"]" * 300 + b"}"])
def test_what_is_no_json_or_too_deep_is_a_value_error(kind: type, data: bytes) -> None:
    with pytest.raises(ValueError):
        cc.json(kind)(data)


@pytest.mark.parametrize("kind", [int, dict, 5, "Payment", lambda data: data, list[int]])
def test_what_declares_no_fields_is_refused_at_once(kind: Any) -> None:
    with pytest.raises(SettingsError, match="dataclass"):
        cc.json(kind)


@pydantic.dataclasses.dataclass
class Checked:
    amount: int = pydantic.Field(gt=0)


@dataclasses.dataclass
class HasModel:
    payment: ModelPayment


class DictOfModels(typing_extensions.TypedDict):
    payments: list[ModelPayment]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Checked, '{"amount": 3}', '{"amount": -3}'),
        (list[Checked], '[{"amount": 3}]', '[{"amount": -3}]'),
        (HasModel, f'{{"payment": {GOOD}}}', '{"payment": {"card": "A"}}'),
        (dict[str, HasModel], f'{{"x": {{"payment": {GOOD}}}}}', '{"x": {"payment": {"card": "A"}}}'),
        (DictOfModels, f'{{"payments": [{GOOD}]}}', '{"payments": [{"card": "A"}]}'),
        (list[ModelPayment], f"[{GOOD}]", '[{"card": "A"}]'),
    ],
)
def test_classes_of_pydantic_are_validated_wherever_they_are_nested(kind: Any, good: str, bad: str) -> None:
    for decode in (cc.json(kind), pickle.loads(pickle.dumps(cc.json(kind)))):
        assert decode(good) == pydantic.TypeAdapter(kind).validate_json(good)
        with pytest.raises(ValueError, match="amount"):
            decode(bad)


T = TypeVar("T")


class GenericStruct(msgspec.Struct, Generic[T]):
    value: T


@dataclasses.dataclass
class Page(Generic[T]):
    items: list[T]


class GenericDict(typing_extensions.TypedDict, Generic[T]):
    value: T


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (GenericStruct[int], '{"value": 1}', '{"value": "x"}'),
        (Page[int], '{"items": [1]}', '{"items": ["x"]}'),
        (GenericDict[int], '{"value": 1}', '{"value": "x"}'),
        (list[GenericStruct[int]], '[{"value": 1}]', '[{"value": "x"}]'),
        (Page[Payment], f'{{"items": [{GOOD}]}}', '{"items": [1]}'),
    ],
)
def test_generic_classes_are_decoded_with_what_they_are_generic_over(kind: Any, good: str, bad: str) -> None:
    for decode in (cc.json(kind), pickle.loads(pickle.dumps(cc.json(kind)))):
        assert decode(good) == msgspec.json.decode(good, type=kind)
        with pytest.raises(ValueError, match=r"int|object"):
            decode(bad)
    assert not [name for name in vars(Page) if "msgspec" in name], "it could not be pickled by value"


@dataclasses.dataclass
class GenericWithModel(Generic[T]):
    payment: ModelPayment
    value: T


def test_classes_of_pydantic_are_found_in_generic_ones() -> None:
    kind = GenericWithModel[Payment]
    good = f'{{"payment": {GOOD}, "value": {GOOD}}}'
    for decode in (cc.json(kind), pickle.loads(pickle.dumps(cc.json(kind)))):
        assert decode(good) == pydantic.TypeAdapter(kind).validate_json(good)
        with pytest.raises(ValueError, match="amount"):
            decode(f'{{"payment": {{"card": "A"}}, "value": {GOOD}}}')


@dataclasses.dataclass
class PageOfModels(Page[ModelPayment]):
    """Pydantic would take items of any type here."""


@dataclasses.dataclass
class SetsPathItself:
    card: str
    path: Path = dataclasses.field(default=Path("here"), init=False)


@dataclasses.dataclass
class NeedsPath:
    path: Path = dataclasses.field(init=False)


def test_a_field_that_the_class_sets_itself_may_be_of_any_type() -> None:
    assert cc.json(SetsPathItself)('{"card": "A"}') == SetsPathItself("A")
    assert cc.json(list[SetsPathItself])('[{"card": "A"}]') == [SetsPathItself("A")]  # type: ignore[comparison-overlap]
    with pytest.raises(SettingsError, match="Path"):
        cc.json(NeedsPath)


class Plain:
    card: str


@dataclasses.dataclass
class HasPlain:
    other: list[Plain | None]


class HasPath(msgspec.Struct):
    path: Path


class Mixed(enum.Enum):
    TEXT = "text"
    NUMBER = 1


@dataclasses.dataclass
class HasMixed:
    mixed: Mixed


class Undefined(pydantic.BaseModel):
    other: DefinedNowhere  # type: ignore[name-defined]  # noqa: F821


class ModelOfStruct(msgspec.Struct):
    payment: ModelPayment


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (Plain, "Plain"),
        (list[Plain], "Plain"),
        (HasPlain, r"Plain at `\$\.other`"),
        (dict[str, HasPlain], r"Plain at `\$\.other`"),
        (HasPath, r"Path at `\$\.path`"),
        (Mixed, "Mixed"),
        (PageOfModels, "ModelPayment"),
        (HasMixed, "Mixed"),
        (Undefined, "Undefined"),
        (ModelOfStruct, "ModelOfStruct"),
        (ModelPayment(card="A", amount=3), "ModelPayment"),
        (Checked(3), "Checked"),
        (Payment("A", 3), "Payment"),
        (StructPayment("A", 3), "StructPayment"),
        (TuplePayment("A", 3), "TuplePayment"),
    ],
)
def test_what_no_record_could_be_decoded_as_is_refused_at_once(kind: Any, named: str) -> None:
    with pytest.raises(SettingsError, match=f"{named}.*expected a dataclass"):
        cc.json(kind)


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Node:
    color: Color
    extra: object
    children: list[Node] = dataclasses.field(default_factory=list)


def test_enumerations_of_texts_and_fields_of_any_type_and_recursive_classes_are_decoded() -> None:
    assert cc.json(Color)('"red"') is Color.RED
    found = cc.json(Node)('{"color": "red", "extra": [1], "children": [{"color": "red", "extra": null}]}')
    assert found == Node(Color.RED, [1], [Node(Color.RED, None)])


def decodings(decode: Any) -> Iterator[Callable[[], object]]:
    yield lambda: cc.files.read_jsonl("*.jsonl", decode=decode)
    yield lambda: cc.kafka.source("localhost:1", "orders", decode=decode)
    yield lambda: cc.nats.source("nats://localhost:1", "ORDERS", decode=decode)
    yield lambda: cc.http.events("http://localhost:1/", replays=True, decode=decode)


@pytest.mark.parametrize(
    "kind",
    [
        Payment,
        StructPayment,
        ModelPayment,
        Checked,
        TuplePayment,
        DictPayment,
        list[Payment],
        list[int],
        Page[int],
        GenericDict[int],
        Item,
    ],
)
def test_a_class_as_decode_is_refused_with_what_was_meant(kind: Any) -> None:
    name = getattr(kind, "__name__", "")
    for make in decodings(kind):
        with pytest.raises((SettingsError, ConnectorError), match=rf"crosscut\.json\(.*{name}.*\)"):
            make()


async def awaited(data: object) -> object:
    return data


@pytest.mark.parametrize("function", [lambda: 1, lambda one, two: 1, awaited])
def test_a_function_that_can_not_be_called_with_what_is_decoded_is_refused(function: Any) -> None:
    for make in decodings(function):
        with pytest.raises((SettingsError, ConnectorError), match=r"decode.*(called with|async)"):
            make()


class Wrapped(Generic[T]):
    def __init__(self, data: T) -> None:
        self.data = data


class WrappedTwice(Generic[T]):
    def __init__(self, one: T, other: T) -> None:
        pass


def test_a_generic_class_without_declared_fields_is_called_as_the_class_is() -> None:
    for kind in (Wrapped, Wrapped[int], Wrapped[Payment]):
        for make in decodings(kind):
            make()
    for make in decodings(WrappedTwice[int]):
        with pytest.raises((SettingsError, ConnectorError), match="WrappedTwice takes"):
            make()


@pytest.mark.parametrize("function", [str, bool, lambda data: data, len])
def test_other_classes_and_functions_decode(function: Any) -> None:
    for make in decodings(function):
        make()


def test_classes_of_protobuf_are_referred_to_the_schema_registry() -> None:
    from google.protobuf.timestamp_pb2 import Timestamp

    decode: Any = Timestamp
    with pytest.raises(ConnectorError, match=r"protobuf\(Timestamp\)"):
        cc.kafka.source("localhost:1", "orders", decode=decode)


@pytest.mark.parametrize("kind", [Payment, ModelPayment, list[Payment]])
def test_a_class_as_encoding_is_refused(kind: Any) -> None:
    for make in (
        lambda: cc.kafka.sink("localhost:1", "orders", encode_value=kind),
        lambda: cc.kafka.sink("localhost:1", "orders", encode_key=kind),
        lambda: cc.nats.sink("nats://localhost:1", "ORDERS", "orders", encode=kind),
    ):
        with pytest.raises(ConnectorError, match=r"encode.*'json'"):
            make()


def all_of(source: Any) -> list[Any]:
    records: list[Any] = []
    for split in source.splits(1):
        with contextlib.closing(source.reader(split, split.start)) as reader:
            while not isinstance(read := reader.read(100), EndOfSplit):
                if not isinstance(read, Wait):
                    records += read
    return records


def test_lines_of_files_go_the_way_of_malformed_ones(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(f'{GOOD}\n{{"card": 5, "amount": 3}}\nno json\n\n{GOOD}\n')
    pattern = str(tmp_path / "*.jsonl")
    with pytest.raises(ConnectorError, match=r"in\.jsonl: the line at byte 27.*no Payment.*card") as raised:
        all_of(cc.files.read_jsonl(pattern, decode=cc.json(Payment)))
    assert raised.value.is_permanent
    skipping = cc.files.read_jsonl(pattern, decode=cc.json(Payment), malformed="skip")
    assert all_of(skipping) == [Payment("A", 3)] * 2
    marking = cc.files.read_jsonl(pattern, decode=cc.json(Payment), malformed=lambda text, error: text)
    assert all_of(marking) == [Payment("A", 3), '{"card": 5, "amount": 3}', "no json", Payment("A", 3)]


def test_a_function_decodes_lines_too_and_may_raise_anything(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("1\nx\n")
    pattern = str(tmp_path / "*.jsonl")
    source = cc.files.read_jsonl(pattern, decode=lambda line: {"1": 7}[line], malformed="skip")
    assert all_of(source) == [7]
    with pytest.raises(SettingsError, match="decode"):
        cc.files.read_jsonl(pattern, decode=Payment("A", 3))  # type: ignore[arg-type]


def test_what_a_function_for_lines_raises_is_seen_in_the_failure(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("1\n")

    def looked_up(line: str) -> Any:
        raise ConnectionRefusedError(f"the service for {line} is down")

    with pytest.raises(ConnectorError) as raised:
        all_of(cc.files.read_jsonl(str(tmp_path / "*.jsonl"), decode=looked_up))
    shown = "".join(traceback.format_exception(raised.value))
    assert "in looked_up" in shown and "ConnectionRefusedError: the service for 1 is down" in shown
    cause = failure_cause(raised.value)
    assert cause.is_from_outside and cause.is_transient


class Found:
    """A message of the library, as far as decoders look at it."""

    def __init__(self, data: bytes | None) -> None:
        self._data = data

    def value(self) -> bytes | None:
        return self._data


def test_kafka_decodes_values_and_leaves_tombstones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_records, "_values", lambda found: (one.value() for one in found))
    decode = kafka_records.decoder(cc.json(Payment))
    assert decode([Found(GOOD.encode()), Found(None)]) == [Payment("A", 3), None]
    with pytest.raises(ValueError, match="amount"):
        decode([Found(b'{"card": "A"}')])


def test_nats_decodes_data() -> None:
    message = nats_messages.Message("orders", GOOD.encode(), {}, 1, 0)
    assert nats_messages.decoder(cc.json(Payment))(message) == Payment("A", 3)


def test_events_of_http_are_decoded() -> None:
    source = cc.http.events("http://localhost/x", replays=True, decode=cc.json(Payment))
    assert isinstance(source, HttpEvents)
    assert source.record(Event(GOOD, "message", "1")) == Payment("A", 3)
    with pytest.raises(ConnectorError, match=r"crosscut\.json\(Payment\).*amount"):
        source.record(Event('{"card": "A"}', "message", "2"))


def test_it_is_a_function_for_map() -> None:
    flow = cc.Flow("payments")
    payments = flow.source(cc.items([GOOD])).map(cc.json(Payment), on_error="dead letters")
    payments.side_output("dead letters").sink(cc.printing())
    payments.sink(cc.printing())
    flow.compile(1, 8)


PROGRAM = """
from __future__ import annotations
import dataclasses, sys
import cloudpickle
import crosscut as cc
from datetime import datetime as When

@dataclasses.dataclass
class Inner:
    at: When

@dataclasses.dataclass
class Outer:
    inner: Inner

sys.stdout.buffer.write(cloudpickle.dumps(cc.json(Outer)))
"""
WORKER = """
import sys, pickle
decode = pickle.loads(sys.stdin.buffer.read())
print(decode('{"inner": {"at": "2026-01-01T00:00:00"}}').inner.at.year)
"""


def test_classes_of_the_program_itself_are_found_in_workers_with_annotations_that_are_text() -> None:
    pickled = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True).stdout
    shown = subprocess.run([sys.executable, "-c", WORKER], input=pickled, capture_output=True, check=True)
    assert shown.stdout.strip() == b"2026"


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(ConnectorError, match=r"pip install msgspec"):
        cc.json(Payment)
