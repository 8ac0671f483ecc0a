import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from crosscut.errors import WireError
from crosscut.foundation.batch import Batch
from crosscut.foundation.text import ShortRepr
from crosscut.operators.operator import shortened
from crosscut.wire.batches import decode_batch, encode_batch


class Refusing:
    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("made by another version")

    def __getstate__(self) -> dict[str, int]:
        return {"value": 1}


def test_records_and_keys_come_back() -> None:
    batch = decode_batch(encode_batch(Batch([("a", 1), ("b", 2)], ["a", "b"])))
    assert batch.records == [("a", 1), ("b", 2)]
    assert batch.keys == ["a", "b"]
    assert len(batch) == 2


def test_a_batch_without_keys_comes_back_without() -> None:
    batch = decode_batch(memoryview(encode_batch(Batch([None, {}, 1.5]))))
    assert batch.records == [None, {}, 1.5]
    assert batch.keys is None


def test_keys_that_are_the_records_come_back_as_one_list() -> None:
    words = ["to", "be", "or"]
    batch = decode_batch(encode_batch(Batch(words, words)))
    assert batch.records is batch.keys
    assert batch.records == words


def test_a_record_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(
        WireError, match=r"record \(7, <unlocked .* of type builtins.tuple can't be sent"
    ) as caught:
        encode_batch(Batch([1, (7, threading.Lock()), 3]))
    assert caught.value.ids["record_type"] == "builtins.tuple"
    assert "lock" in caught.value.ids["record"]


def test_a_local_class_is_named_with_what_to_do() -> None:
    class Local:
        pass

    with pytest.raises(WireError, match=r"<locals>\.Local.*classes made inside a function"):
        encode_batch(Batch([Local()]))


def test_a_record_whose_own_code_fails_is_named() -> None:
    class Failing:
        def __reduce__(self) -> Any:
            raise KeyError("own code")

    with pytest.raises(WireError, match="KeyError: 'own code'"):
        encode_batch(Batch([Failing()]))


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_in_a_record_are_shortened_before_they_are_shown(kind: type[bytes | bytearray]) -> None:
    """K2: what is shown of a gigabyte would take four, and longer than a worker may be silent."""

    class Watched(kind):  # type: ignore[valid-type, misc]
        def __repr__(self) -> str:
            raise AssertionError("the whole of it is shown")

    Watched.__name__ = kind.__name__
    for shown in (ShortRepr(120).repr(("key", Watched(5_000))), shortened({"key": [Watched(5_000)]})):
        assert "key" in shown and r"b'\x00\x00" in shown and "..." in shown
        assert len(shown) < 400
    assert ShortRepr(120).repr(kind(b"ab")) == repr(kind(b"ab"))


class Named(NamedTuple):
    key: str
    value: object


@dataclass
class Held:
    key: str
    value: object
    hidden: object = field(default=None, repr=False)


@dataclass
class Discreet:
    value: object

    def __repr__(self) -> str:
        return "Discreet(***)"


@pytest.mark.parametrize("kind", [Named, Held])
def test_bytes_in_fields_are_shortened_before_they_are_shown(kind: Callable[..., Any]) -> None:
    """K2: as where it is the record, or in a list."""

    class Watched(bytes):
        def __repr__(self) -> str:
            raise AssertionError("the whole of it is shown")

    Watched.__name__ = "bytes"
    shown = ShortRepr(120).repr([kind("a", kind("b", Watched(5_000)))])
    assert shown.startswith(f"[{kind.__name__}(key='a', value={kind.__name__}(key='b', value=b'\\x00")
    assert len(shown) < 130
    assert ShortRepr(120).repr(kind("a", (1, b"b"))) == repr(kind("a", (1, b"b")))


def test_a_repr_of_the_users_own_is_shown() -> None:
    assert ShortRepr(120).repr([Discreet("secret")]) == "[Discreet(***)]"
    assert ShortRepr(120).repr(Held("a", 1, "secret")) == "Held(key='a', value=1)"


def test_a_number_of_too_many_digits_is_shown_by_its_size() -> None:
    assert ShortRepr(120).repr({"a": 1 << 20_000}) == "{'a': <int of 20001 bits>}"


def test_an_object_that_holds_itself_is_shown() -> None:
    one = Held("a", None)
    one.value = [one]
    assert len(ShortRepr(120).repr(one)) <= 120


def test_an_object_that_has_lost_a_field_is_shown() -> None:
    one = Held("a", 1)
    del one.key
    assert "Held instance" in ShortRepr(120).repr(one)


def test_the_largest_record_of_an_oversized_batch_is_named_and_shortened() -> None:
    with pytest.raises(WireError, match=r"its limit is 1000; the largest record, 50\d\d bytes") as caught:
        encode_batch(Batch(["short", b"x" * 5000, ""]), bytes_max=1000)
    assert caught.value.ids["record_type"] == "builtins.bytes"
    assert len(caught.value.ids["record"]) < 100


def test_a_record_that_refuses_its_bytes_is_a_wire_error() -> None:
    data = encode_batch(Batch([Refusing()]))
    with pytest.raises(WireError, match="RuntimeError: made by another version"):
        decode_batch(data)


def test_a_class_that_is_missing_here_is_a_wire_error() -> None:
    data = encode_batch(Batch([Refusing()])).replace(b"Refusing", b"Vanished")
    with pytest.raises(WireError, match="import the classes"):
        decode_batch(data)


@pytest.mark.parametrize(
    "content", [None, 7, [], ([1], [1], [1]), ("text", None), ([1], "k"), ([1, 2], ["one"]), ((1,), None)]
)
def test_something_else_than_a_batch_is_a_wire_error(content: object) -> None:
    with pytest.raises(WireError, match="something else"):
        decode_batch(pickle.dumps(content))
