"""The codec against a round trip for every class it carries, and against any JSON there is."""

from __future__ import annotations

import dataclasses
import json
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.contracts.codec import JSON_DEPTH_MAX, from_json, to_json, to_text
from crosscut.contracts.connectors import JSON
from crosscut.errors import StateError, StoreError, WireError
from crosscut.protocol.log.entries import LogEntry
from crosscut.protocol.messages import CoordinatorMessage, WorkerMessage
from crosscut.protocol.snapshots import PendingTransaction, Snapshot

MESSAGES = get_args(LogEntry) + get_args(WorkerMessage) + get_args(CoordinatorMessage)
INTEGERS = st.integers(-(2**63), 2**64 - 1)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("type"), inner),
    max_leaves=8,
)


class JsonField:
    value: JSON


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type hint, found on a way of its own: the oracle of the codec's field rules."""
    hint = getattr(hint, "__supertype__", hint)
    if hint == get_type_hints(JsonField)["value"]:
        return JSON_VALUES
    if dataclasses.is_dataclass(hint):
        return objects(hint)
    if get_origin(hint) is tuple:
        return st.lists(values(get_args(hint)[0]), max_size=3).map(tuple)
    if get_origin(hint) is dict:
        return st.dictionaries(st.text(), values(get_args(hint)[1]), max_size=3)
    # Of a NewType it is a Union.
    if get_origin(hint) in (UnionType, Union):
        return st.one_of(*map(values, get_args(hint)))
    floats = st.floats(allow_nan=False, allow_infinity=False)
    return {int: INTEGERS, float: floats, str: st.text(), bool: st.booleans(), type(None): st.none()}[hint]


def objects(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{field.name: values(hints[field.name]) for field in dataclasses.fields(kind)})


MESSAGE = st.sampled_from(MESSAGES).flatmap(objects)


@given(MESSAGE)
def test_every_message_and_log_entry_survives_the_way_through_json_text(message: Any) -> None:
    text = json.dumps(to_json(message), allow_nan=False)
    assert from_json(json.loads(text), MESSAGES, WireError) == message


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_class_of_message_is_carried(kind: type) -> None:
    message = _smallest(kind)
    assert from_json(to_json(message), (kind,), WireError) == message


def _smallest(kind: Any) -> Any:
    empty: dict[Any, Any] = {int: 0, str: "", bool: False, tuple: (), dict: {}}

    def value(hint: Any) -> Any:
        hint = getattr(hint, "__supertype__", hint)
        if dataclasses.is_dataclass(hint):
            return _smallest(hint)
        return empty.get(get_origin(hint) or hint)

    hints = get_type_hints(kind)
    return kind(**{field.name: value(hints[field.name]) for field in dataclasses.fields(kind)})


@given(JSON_VALUES)
def test_arbitrary_json_raises_the_named_error_only(data: JSON) -> None:
    with pytest.raises(WireError):
        from_json(data, MESSAGES, WireError)


@given(MESSAGE, st.data())
def test_a_message_with_one_value_replaced_is_another_message_or_the_named_error(
    message: Any, data: st.DataObject
) -> None:
    """Nothing but the named error is raised, and what is accepted is what was said."""
    tree = json.loads(json.dumps(to_json(message)))
    places = list(_places(tree))
    holder, key = data.draw(st.sampled_from(places))
    action = data.draw(st.sampled_from(("replace", "delete", "add")))
    if action == "replace":
        holder[key] = data.draw(JSON_VALUES)
    elif action == "delete":
        del holder[key]
    elif isinstance(holder, dict):
        holder[data.draw(st.text())] = data.draw(JSON_VALUES)
    try:
        found = from_json(tree, MESSAGES, StoreError)
    except StoreError:
        return
    assert to_json(found) == tree


def _places(tree: Any) -> Any:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)


def nested(depth: int) -> JSON:
    value: JSON = []
    for _ in range(depth):
        value = [value]
    return value


def pending(handle: Any) -> PendingTransaction:
    return PendingTransaction(checkpoint_id=1, handle=handle)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "handle",
    [(1, 2), {1: 2}, b"x", float("nan"), float("inf"), 2**64, {"a": [set()]}, nested(100_000)],
    ids=["tuple", "integer key", "bytes", "nan", "infinity", "huge integer", "set", "deep"],
)
def test_a_position_or_handle_that_json_cannot_hold_is_refused_when_written(handle: Any) -> None:
    with pytest.raises(StateError, match=r"PendingTransaction\.handle"):
        to_json(pending(handle))


def test_json_may_nest_up_to_the_limit_and_no_deeper() -> None:
    assert to_json(pending(nested(JSON_DEPTH_MAX - 1)))
    tree: JSON = {"type": "PendingTransaction", "checkpoint_id": 1, "handle": nested(100_000), "held": None}
    with pytest.raises(WireError, match="levels"):
        from_json(tree, (PendingTransaction,), WireError)


@pytest.mark.parametrize(
    "checkpoint_id",
    [True, 1.0, "1", None, 2**64, -(2**63) - 1, 1 << 20_000],
    ids=lambda value: repr(value)[:20] if not isinstance(value, int) or abs(value) < 2**65 else "huge",
)
def test_an_integer_field_takes_integers_of_64_bits_only(checkpoint_id: Any) -> None:
    with pytest.raises(WireError, match=r"PendingTransaction\.checkpoint_id"):
        from_json(
            {"type": "PendingTransaction", "checkpoint_id": checkpoint_id, "handle": None, "held": None},
            (PendingTransaction,),
            WireError,
        )


def test_an_optional_integer_is_an_integer_or_nothing() -> None:
    data = to_json(Snapshot(watermark=None))
    assert isinstance(data, dict)
    assert from_json(data | {"watermark": 5}, (Snapshot,), WireError) == Snapshot(watermark=5)
    with pytest.raises(WireError, match=r"Snapshot\.watermark: expected an integer, found '5'"):
        from_json(data | {"watermark": "5"}, (Snapshot,), WireError)


def test_a_class_that_the_caller_does_not_allow_is_refused() -> None:
    with pytest.raises(WireError, match="expected EpochClaimed or"):
        from_json(to_json(pending(None)), get_args(LogEntry), WireError)


@given(MESSAGE)
def test_what_is_written_at_once_is_what_json_writes(message: Any) -> None:
    assert to_text(message) == json.dumps(to_json(message), separators=(",", ":"))


@given(MESSAGE, st.data())
def test_what_is_no_message_is_refused_in_the_same_words_when_it_is_written_at_once(
    message: Any, data: st.DataObject
) -> None:
    field = data.draw(st.sampled_from(dataclasses.fields(message) or (None,)))
    if field is None:
        return
    wrong = data.draw(st.sampled_from((b"x", (1, {2}), {1: 2}, 2**64, float("nan"), object(), 1.5, True)))
    changed = dataclasses.replace(message, **{field.name: wrong})
    try:
        expected = json.dumps(to_json(changed), separators=(",", ":"))
    except StateError as error:
        with pytest.raises(StateError) as raised:
            to_text(changed)
        assert str(raised.value) == str(error)
    else:
        assert to_text(changed) == expected
