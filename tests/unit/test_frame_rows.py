"""Rows of a frame stand for a list of records: a batch cuts and merges them, and pickle takes them along."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from crosscut.errors import FlowError, InternalError
from crosscut.foundation.batch import Batch, NumberedBatch
from crosscut.foundation.frame_rows import FrameRows
from crosscut.foundation.keys import KeyRouter
from crosscut.task.outputs import pieces
from crosscut.wire.batches import decode_batch, encode_batch

pl = pytest.importorskip("polars", reason="pip install 'crosscut[polars]'")

KEYS = some.none() | some.integers(-3, 3) | some.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = some.none() | some.text(max_size=3)


def rows(*numbers: int | None, key: tuple[str, ...] = ()) -> FrameRows:
    return FrameRows(pl.DataFrame({"n": list(numbers)}, schema={"n": pl.Int64}), key)


def records(*numbers: int) -> list[dict[str, int]]:
    return [{"n": number} for number in numbers]


def test_they_are_as_long_as_the_list_and_give_its_records() -> None:
    found = rows(4, 5, 6)
    assert len(found) == 3 and bool(found) and not rows()
    assert list(found) == records(4, 5, 6) and found[1] == {"n": 5}


def test_a_batch_cuts_and_merges_them_as_it_does_records() -> None:
    batch = Batch(rows(*range(10)), watermark=7)
    head, rest = batch.split(4)
    assert (list(head.records), list(rest.records)) == (records(0, 1, 2, 3), records(4, 5, 6, 7, 8, 9))
    assert (head.watermark, rest.watermark) == (None, 7)
    last = rest.drop(2)
    assert (list(rest.records), list(last.records)) == (records(4, 5, 6, 7), records(8, 9))
    head.extend(rest)
    head.extend(last)
    assert list(head.records) == records(*range(10)) and head.watermark == 7
    assert list(batch.records) == records(*range(10)), "it was cut, not changed"


def test_batches_with_numbers_keep_them() -> None:
    batch = NumberedBatch(Batch(rows(1, 2, 3)), 5)
    head, rest = batch.split(1)
    assert (head.first, head.last, rest.first, rest.last) == (5, 5, 6, 7)
    head.extend(rest)
    assert (head.first, head.last, list(head.records)) == (5, 7, records(1, 2, 3))


def test_a_huge_batch_is_cut_up() -> None:
    count = 10_000_000
    batch = Batch(FrameRows(pl.select(n=pl.int_range(count)), ("n",)))
    cut = list(pieces(batch, 64_000))
    assert sum(map(len, cut)) == count and max(map(len, cut)) == 64_000
    assert cut[3].records[0] == {"n": 192_000} and cut[3].records.key_columns == ("n",)  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_numbered", [False, True])
def test_on_the_wire_they_are_columns(is_numbered: bool) -> None:
    one = rows(1, None, 3, key=("n",))
    batch = NumberedBatch(Batch(one), 8) if is_numbered else Batch(one, watermark=3)
    data = encode_batch(batch)
    assert b"ARROW" in data or b"\xff\xff\xff\xff" in data
    found = decode_batch(data)
    assert isinstance(found.records, FrameRows) and found.records == one
    assert found.watermark == batch.watermark and type(found) is type(batch)


def test_what_would_change_the_empty_list_itself_is_refused() -> None:
    found: Any = rows(1, 2)
    for change in (
        lambda: found + found,
        lambda: found.append(1),
        lambda: found.extend([1]),
        lambda: found.sort(),
        lambda: found[::2],
        lambda: 1 in found,
        lambda: found.__iadd__([1]),
        lambda: found.__delitem__(slice(0, 1)),
    ):
        with pytest.raises(InternalError):
            change()
    assert list(found) == records(1, 2)


def test_times_that_python_does_not_have_are_refused_rather_than_cut() -> None:
    times = pl.Series("at", [1_000, 1_001], dtype=pl.Int64).cast(pl.Time).to_frame()
    assert len(list(FrameRows(times.head(1)))) == 1
    with pytest.raises(ValueError, match="nanoseconds"):
        list(FrameRows(times))


@given(some.lists(some.tuples(KEYS, TEXTS), max_size=40), some.integers(1, 5), some.booleans())
def test_each_row_goes_where_the_record_with_its_key_goes(
    keys: list[tuple[Any, Any]], parallelism: int, is_composite: bool
) -> None:
    columns = ("k", "t") if is_composite else ("k",)
    frame = pl.DataFrame(
        [(*key, index) for index, key in enumerate(keys)],
        schema={"k": pl.Int64, "t": pl.String, "i": pl.Int64},
        orient="row",
    )
    plain = keys if is_composite else [key for key, _ in keys]
    expected: dict[int, list[int]] = {}
    for index, owner in enumerate(KeyRouter(128, parallelism).owners(plain)):
        expected.setdefault(owner, []).append(index)
    made = FrameRows(frame, columns)
    found = made.by_owner(KeyRouter(128, parallelism).owners)
    assert {owner: [row["i"] for row in some_rows] for owner, some_rows in found} == expected
    assert made.key_values() == plain
    assert all(some_rows.key_columns == columns for _, some_rows in found)


@pytest.mark.parametrize("kind", ["Boolean", "Binary", "UInt64", "Int8", "String"])
def test_keys_of_each_type_go_where_their_records_go(kind: str) -> None:
    values: dict[str, list[Any]] = {
        "Boolean": [True, False, None],
        "Binary": [b"", b"\0", b"abc" * 50, None],
        "UInt64": [0, (1 << 64) - 1, None],
        "Int8": [-128, 127, -1, 0, None],
        "String": ["", "é", "x" * 300, None],
    }
    found = values[kind]
    made = FrameRows(pl.DataFrame({"k": pl.Series(found, dtype=getattr(pl, kind))}), ("k",))
    divided = made.by_owner(KeyRouter(128, 7).owners)
    owner_of = {row["k"]: owner for owner, some_rows in divided for row in some_rows}
    assert owner_of == dict(zip(found, KeyRouter(128, 7).owners(found), strict=True))


def test_a_fraction_and_nan_are_no_keys_and_minus_zero_is_zero_as_in_records() -> None:
    def owners(*values: float) -> Any:
        made = FrameRows(pl.DataFrame({"k": list(values)}), ("k",))
        return [owner for owner, _ in made.by_owner(KeyRouter(128, 7).owners)]

    assert owners(-0.0) == owners(0.0) == KeyRouter(128, 7).owners([0])
    assert owners(3.0) == KeyRouter(128, 7).owners([3])
    for value in (float("nan"), 0.5):
        with pytest.raises(FlowError, match="can't be a key"):
            owners(value)
