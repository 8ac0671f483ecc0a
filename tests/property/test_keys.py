"""Keys against oracles: Python's own equality, and plain enumeration."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from crosscut.foundation.keys import (
    KeyRouter,
    encoded_key,
    encoded_keys,
    groups_of_task,
    key_group,
    owner_of_group,
    stable_hash,
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.integers()
    | st.text(st.characters(exclude_categories=()), max_size=4)
    | st.sampled_from(["", "a", "n", b"", b"a", b"n"])
    | st.binary(max_size=4)
)
KEYS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
# (max_parallelism, parallelism)
SIZES = st.integers(1, 300).flatmap(lambda most: st.tuples(st.just(most), st.integers(1, most)))


@given(KEYS, KEYS)
def test_two_keys_have_one_encoding_if_and_only_if_they_are_equal(one: Any, other: Any) -> None:
    assert (encoded_key(one) == encoded_key(other)) == (one == other)


NUMBERS = st.integers() | st.sampled_from([1 << 2_039, 1 << 4_000, -(1 << 2_039)])
TEXTS = st.text(st.characters(exclude_categories=()), max_size=4) | st.sampled_from(["é" * 127, "x" * 300])


@given(st.lists(KEYS) | st.lists(TEXTS) | st.lists(NUMBERS))
def test_keys_are_encoded_at_once_as_they_are_one_by_one(keys: list[Any]) -> None:
    assert encoded_keys(keys) == [encoded_key(key) for key in keys]


@given(KEYS)
def test_the_hash_has_64_bits_and_the_group_is_in_range(key: Any) -> None:
    assert 0 <= stable_hash(key) < 2**64
    assert 0 <= key_group(key, 7) < 7


@given(SIZES)
def test_every_group_belongs_to_exactly_the_task_that_owns_it(sizes: tuple[int, int]) -> None:
    """H1: after any change of parallelism each group is at exactly one owner."""
    most, parallelism = sizes
    owned = [
        (group, index) for index in range(parallelism) for group in groups_of_task(index, most, parallelism)
    ]
    assert owned == [(group, owner_of_group(group, most, parallelism)) for group in range(most)]


@given(SIZES)
def test_no_task_has_more_than_one_group_more_than_another(sizes: tuple[int, int]) -> None:
    most, parallelism = sizes
    counts = {len(groups_of_task(index, most, parallelism)) for index in range(parallelism)}
    assert max(counts) - min(counts) <= 1


@given(SIZES, st.lists(KEYS), st.integers(1, 5))
def test_the_router_says_what_the_direct_computation_says(
    sizes: tuple[int, int], keys: list[Any], keys_max: int
) -> None:
    most, parallelism = sizes
    router = KeyRouter(most, parallelism, keys_max)
    expected = [owner_of_group(key_group(key, most), most, parallelism) for key in keys]
    assert router.owners(keys) == expected
    assert [router[key] for key in keys] == expected
    assert len(router) <= keys_max
