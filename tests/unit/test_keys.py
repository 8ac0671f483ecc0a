"""Keys: what may be one, the pinned hash (H2), and who owns which group."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import pytest

from crosscut.errors import FlowError
from crosscut.foundation.keys import (
    QUICK_KEYS_MAX,
    KeyRouter,
    encoded_key,
    groups_of_task,
    key_group,
    owner_of_group,
    stable_hash,
)

# State on disk is found by these: a change makes every checkpoint of every job unreadable.
GOLDEN = [
    (None, 0xCBAA0F6724AE8B0A),
    (0, 0xBE8B156DCBECA2CC),
    (1, 0x4E35152451C59A81),
    (-1, 0xF1CAC4CB98473BDC),
    (127, 0xEFB07DEDFC53F004),
    (128, 0x2E8E13B3A9656612),
    (-128, 0xC07D58CF4049A64B),
    (-129, 0x84D3AFF2AB79EBD4),
    (18446744073709551616, 0x176ECE316C71D2DD),
    ("", 0x9E27DAD7CF6DB2E4),
    ("a", 0x289F3AF3C4A8FDAD),
    ("\xe9", 0x11FB384536555AB0),
    ("\ud800", 0xC3FBC4A96F541E89),
    (b"", 0x851CFEF87CDC97EC),
    (b"a", 0x284EC88D258534EB),
    ((), 0xE9A0043CE300CCEB),
    (("a", 1), 0x81D6FB4D0A328B08),
    ((None, (True, b"x")), 0x7A5DB077DE417F89),
]


class Text(str):
    __slots__ = ()


class Point(NamedTuple):
    x: int
    y: Any


class Colour(IntEnum):
    RED = 1


NOT_KEYS = [1.5, [1], {"a": 1}, {1}, object(), Decimal("1.5"), 1.5j, bytearray(b"a"), frozenset((1,))]
NAN = float("nan")
SAME = [
    (True, 1),
    (1.0, 1),
    (-0.0, 0),
    (Decimal(1), 1),
    (Colour.RED, 1),
    (Text("a"), "a"),
    (Point(1, 2.0), (1, 2)),
    ((1.0, ("x", True)), (1, ("x", 1))),
    (2.0**70, 1 << 70),
]


@pytest.mark.parametrize(("key", "expected"), GOLDEN)
def test_the_hash_of_a_key_never_changes(key: Any, expected: int) -> None:
    """H2."""
    assert stable_hash(key) == expected


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_the_hash_is_the_same_in_a_process_with_another_hash_seed(seed: str) -> None:
    """H2."""
    keys = [key for key, _ in GOLDEN]
    program = (
        f"from crosscut.foundation.keys import stable_hash; print([stable_hash(key) for key in {keys!a}])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert printed.strip() == str([expected for _, expected in GOLDEN])


def test_the_encoding_is_kind_length_and_content() -> None:
    assert encoded_key("é") == b"s\0\0\0\x02\xc3\xa9"
    assert encoded_key(b"ab") == b"b\0\0\0\x02ab"
    assert encoded_key(-1) == b"i\0\0\0\x01\xff"
    assert encoded_key((None, 128)) == b"t\0\0\0\x02ni\0\0\0\x02\0\x80"


def test_true_and_one_are_one_key_also_within_tuples() -> None:
    assert encoded_key(True) == encoded_key(1)
    assert encoded_key((False, ("a", True))) == encoded_key((0, ("a", 1)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a", b"a"),
        ("1", 1),
        (None, ()),
        (None, "n"),
        ((1,), 1),
        (("a", "b"), ("ab",)),
        (("a", ("b", "c")), (("a", "b"), "c")),
        ("\ud800\udc00", "\U00010000"),
    ],
)
def test_keys_that_look_alike_have_different_encodings(one: Any, other: Any) -> None:
    assert encoded_key(one) != encoded_key(other)


@pytest.mark.parametrize("value", NOT_KEYS, ids=lambda value: type(value).__name__)
def test_anything_else_is_refused_with_what_to_do(value: Any) -> None:
    for candidate in (value, ("a", (value,))):
        with pytest.raises(FlowError) as caught:
            stable_hash(candidate)
        assert str(caught.value).endswith(
            f"of type {type(value).__name__} can't be a key: expected int, str, bytes, bool, None or a tuple "
            f"of those, which hash alike in every process; return one of them from key_by"
        )


@pytest.mark.parametrize("value", [NAN, (1, NAN), Decimal("NaN")], ids=repr)
def test_nan_is_refused_since_it_equals_nothing(value: Any) -> None:
    with pytest.raises(FlowError, match=r"can't be a key: .*; NaN equals nothing, not even itself"):
        stable_hash(value)
    with pytest.raises(FlowError, match="NaN equals nothing"):
        KeyRouter(128, 4).owners([1, value])


@pytest.mark.parametrize(("key", "same"), SAME, ids=repr)
def test_what_equals_a_key_is_that_key_whichever_comes_first(key: Any, same: Any) -> None:
    """Each dict of the job takes them for one; if they went to two tasks, each would count a part."""
    assert key == same and hash(key) == hash(same)
    assert encoded_key(key) == encoded_key(same)
    assert KeyRouter(128, 64).owners([key, same]) == KeyRouter(128, 64).owners([same, key])


def test_the_refusal_of_a_huge_value_is_short() -> None:
    with pytest.raises(FlowError) as caught:
        stable_hash(["x" * 1_000_000])
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", NOT_KEYS, ids=lambda value: type(value).__name__)
def test_the_router_refuses_them_in_a_batch_even_if_python_can_not_hash_them(value: Any) -> None:
    router = KeyRouter(128, 4)
    with pytest.raises(FlowError, match="can't be a key"):
        router.owners(["seen", value])


def test_the_router_forgets_rather_than_grow_without_bound() -> None:
    router = KeyRouter(128, 4, keys_max=10)
    for key in range(1_000):
        assert router[key] == owner_of_group(key_group(key, 128), 128, 4)
        assert len(router) <= 10


def test_a_full_router_says_the_same_of_keys_that_it_computes_and_tries_its_cache_again() -> None:
    router = KeyRouter(128, 4, keys_max=10)
    router.owners(list(range(10)))

    def expected(keys: list[Any]) -> list[int]:
        return [owner_of_group(key_group(key, 128), 128, 4) for key in keys]

    looked_up: list[bool] = []
    for first in range(0, 400, 4):
        keys: list[Any] = [first, f"{first}", (first, None), b"x"]
        before = router._computed_batches
        assert router.owners(keys) == expected(keys)
        looked_up.append(not before)
        assert len(router) == 10
    assert (looked_up.count(True), looked_up.index(True, 1)) == (2, 65)
    with pytest.raises(FlowError, match="can't be a key"):
        router.owners(["seen", []])
    seen = list(range(10))
    for _ in range(100):
        assert router.owners(seen) == expected(seen)
    assert not router._computed_batches, "keys that are all in the cache are looked up"


@pytest.mark.parametrize("make", [str, int], ids=["texts", "numbers"])
def test_a_router_remembers_no_more_keys_than_are_found_sooner_than_computed(
    make: Callable[[int], Any],
) -> None:
    """A look-up in a dict of millions waits for memory several times: the hash is there before that."""
    router = KeyRouter(128, 4)
    for first in range(0, QUICK_KEYS_MAX + 50_000, 10_000):
        keys = [make(number) for number in range(first, first + 10_000)]
        owners = router.owners(keys)
    assert QUICK_KEYS_MAX <= len(router) < QUICK_KEYS_MAX + 10_000
    assert owners == [owner_of_group(key_group(key, 128), 128, 4) for key in keys]
    router.owners([("a", number) for number in range(10_000)])
    assert len(router) >= QUICK_KEYS_MAX + 10_000, "others take longer to encode than to look up"


def test_groups_are_contiguous_ranges_in_the_order_of_the_tasks() -> None:
    assert [groups_of_task(i, 128, 3) for i in range(3)] == [range(0, 43), range(43, 86), range(86, 128)]


def test_a_text_that_is_an_enum_too_goes_where_the_text_goes() -> None:
    class Kind(str, Enum):  # noqa: UP042 - what many have; StrEnum says its value of itself
        BID = "bid"

    assert encoded_key(Kind.BID) == encoded_key("bid")
    assert KeyRouter(128, 5).owners([Kind.BID]) == KeyRouter(128, 5).owners(["bid"])
