"""Aggregates of frames are those of Polars over all rows, through batches, restores and rescaling."""

from __future__ import annotations

import math
from datetime import date
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from tests.property.examples import examples
from tests.property.tasks import PARALLELISM, Tasks

from crosscut.contracts.frame_aggregates import Results, aggregate_of
from crosscut.errors import UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.frame_rows import FrameRows

pl = pytest.importorskip("polars", reason="pip install 'crosscut[polars]'")

SCHEMA = {
    "k": pl.Int64, "t": pl.String, "i": pl.Int64, "u": pl.UInt8, "f": pl.Float64, "s": pl.String,
    "b": pl.Boolean, "d": pl.Date, "at": pl.Datetime("ns", "Europe/Berlin"),
}  # fmt: skip
WHOLE = some.integers(-1000, 1000).map(lambda n: n / 8)
ROWS = some.lists(
    some.tuples(
        some.none() | some.integers(-2, 2) | some.integers(-(1 << 63), (1 << 63) - 1),
        some.none() | some.sampled_from(["", "a", "é"]),
        some.none() | some.integers(-10, 10) | some.integers(-(1 << 55), 1 << 55),
        some.none() | some.integers(0, 255),
        some.none() | WHOLE,
        some.none() | some.text("aé𝄞", max_size=2),
        some.none() | some.booleans(),
        some.none() | some.dates(),
        some.none() | some.integers(-(10**18), 10**18),
    ),
    max_size=40,
)

AGGREGATES: dict[str, Any] = {
    "len": pl.len(),
    "count": pl.col("i").count(),
    "sum": pl.col("i").sum(),
    "sum of two": (pl.col("i") + pl.col("u")).sum(),
    "sum of small": pl.col("u").sum(),
    "sum of floats": pl.col("f").sum(),
    "sum of flags": pl.col("b").sum(),
    "mean": pl.col("u").mean(),
    "mean of floats": pl.col("f").mean(),
    "var": pl.col("f").var(),
    **{
        f"{kind} {name}": getattr(pl.col(name), kind)()
        for kind in ("min", "max", "first", "last")
        for name in SCHEMA
    },
    "min of a condition": pl.when(pl.col("b")).then(pl.col("i")).min(),
}  # fmt: skip


def frame_of(rows: list[tuple[Any, ...]]) -> Any:
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in SCHEMA]
    found = [
        pl.Series(name, column, dtype=pl.Int64)
        .cast(pl.Datetime("ns", "UTC"))
        .dt.convert_time_zone("Europe/Berlin")
        if name == "at"
        else pl.Series(name, column, dtype=kind)
        for (name, kind), column in zip(SCHEMA.items(), columns, strict=True)
    ]
    return pl.DataFrame(found)


class _Ended:
    """Ends a frame in a sink of records, which have no nanoseconds."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def named(self, uid: str) -> _Ended:
        self._frame.named(uid)
        return self

    def sink(self, sink: Any) -> None:
        self._frame.select(next(iter(self._frame.schema))).sink(sink)


class FrameTasks(Tasks):
    """The tasks of an aggregation, each with the rows of its keys."""

    def __init__(
        self, keys: tuple[str, ...], aggregates: dict[str, Any], emit: Any, parallelism: int
    ) -> None:
        self._keys = keys
        super().__init__(
            lambda stream: _Ended(stream.frame(SCHEMA).key_by(*keys).agg(emit=emit, **aggregates)),
            parallelism,
            is_timed=False,
        )

    def rows(self, frame: Any) -> list[Any]:
        """Return the frames that come of a batch."""
        given = FrameRows(frame, self._keys)
        emitted = []
        for owner, mine in given.by_owner(lambda keys: list(map(self._owner, keys))):
            made = self.operators[owner].process(Batch(mine)).records
            emitted += [made.frame] if isinstance(made, FrameRows) else []
        return emitted

    def results(self) -> list[Any]:
        """Return the frames that are emitted at the end."""
        batches = [batch.records for task in self.operators for batch, _ in task.end("")]
        return [rows.frame for rows in batches if isinstance(rows, FrameRows)]


def newest(frames: list[Any], keys: tuple[str, ...], schema: Any) -> Any:
    """Return the last row of each key."""
    found = pl.concat(frames) if frames else pl.DataFrame(schema=schema)
    return found.unique(list(keys), keep="last", maintain_order=True)


@given(
    ROWS,
    some.lists(some.integers(0, 40), max_size=5),
    some.lists(some.sampled_from(sorted(AGGREGATES)), min_size=1, max_size=5, unique=True),
    some.sampled_from([("k",), ("t",), ("b",), ("k", "t"), ("t", "u", "b")]),
    some.booleans(),
    PARALLELISM,
    some.lists(some.none() | PARALLELISM, min_size=6, max_size=6),
)
@settings(max_examples=examples(150, few=60))
def test_aggregates_are_those_of_polars_through_batches_restores_and_rescaling(
    rows: list[tuple[Any, ...]],
    cuts: list[int],
    chosen: list[str],
    keys: tuple[str, ...],
    is_final: bool,
    parallelism: int,
    restores: list[int | None],
) -> None:
    every = frame_of(rows)
    aggregates = {f"a{number}": AGGREGATES[name] for number, name in enumerate(chosen)}
    tasks = FrameTasks(keys, aggregates, "final" if is_final else "batch", parallelism)
    schema = tasks._node.spec.schema  # type: ignore[union-attr]
    ends = sorted({*(min(cut, len(rows)) for cut in cuts), len(rows)})
    emitted: list[Any] = []
    for start, end, restore in zip([0, *ends], ends, restores, strict=False):
        emitted += tasks.rows(every.slice(start, end - start))
        if restore is not None:
            tasks.restore(restore)
    assert not (emitted and is_final)
    emitted += tasks.results()
    assert not emitted or pl.concat(emitted).schema == schema
    found = newest(emitted, keys, schema)
    expected = every.group_by(keys, maintain_order=True).agg(**aggregates)
    assert found.height == expected.height
    if is_final:
        assert sum(one.height for one in emitted) == expected.height, "a final result comes once"
    found, expected = found.sort(keys), expected.sort(keys)
    assert found.select(keys).equals(expected.select(keys))
    for name in aggregates:
        one, other = found[name], expected[name]
        if one.dtype.is_float():
            assert one.is_null().equals(other.is_null())
            pairs = zip(one.drop_nulls(), other.drop_nulls(), strict=True)
            assert all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-7) for a, b in pairs), (one, other)
        else:
            assert one.to_list() == other.to_list(), AGGREGATES[chosen[int(name[1:])]]


@given(some.lists(some.lists(some.floats() | some.none(), max_size=4), max_size=4))
def test_least_and_greatest_leave_nan_and_null_out_as_polars_does(batches: list[list[float | None]]) -> None:
    aggregates = {"low": pl.col("f").min(), "high": pl.col("f").max()}
    tasks = FrameTasks(("k",), aggregates, "final", 1)

    def made(values: list[float | None]) -> Any:
        return frame_of([(1, None, None, None, value, None, None, None, None) for value in values])

    for values in batches:
        tasks.rows(made(values))
    every = made([value for values in batches for value in values])
    expected = every.group_by("k").agg(**aggregates)
    found = tasks.results()
    assert (pl.concat(found) if found else expected.clear()).equals(expected)


def test_each_aggregate_goes_on_from_batch_to_batch_and_in_other_tasks() -> None:
    """Keys come in many batches, of which some have only nulls, or NaN, for a key."""
    random = Random(11)

    def value(kinds: list[Any]) -> Any:
        return random.choice([None, *kinds])

    def row(batch: int) -> tuple[Any, ...]:
        has_none = batch % 3 == 0
        return (
            random.randrange(3),
            value(["a", "b"]),
            None if has_none else value([-7, 0, 5, 1 << 50]),
            None if has_none else value([0, 255]),
            None if has_none else value([-1.5, 0.0, 2.25, float("nan") if batch % 3 == 1 else 8.0]),
            value(["", "é", "x"]),
            value([True, False]),
            value([date(2020, 1, 1), date(1950, 2, 3)]),
            value([-(10**17), 10**17 + 1]),
        )

    batches = [[row(batch) for _ in range(5)] for batch in range(24)]
    # Nulls alone come first for some keys, and last for others.
    every = frame_of([one for rows in batches for one in rows])
    aggregates = {f"a{number}": one for number, one in enumerate(AGGREGATES.values())}
    without_nan = {name: one for name, one in aggregates.items() if "var" not in str(one)}
    finite = {"v": pl.when(pl.col("f").is_finite()).then(pl.col("f")).var()}
    for chosen in (without_nan, finite):
        tasks = FrameTasks(("k",), chosen, "final", 2)
        for number, rows in enumerate(batches):
            tasks.rows(frame_of(rows))
            if number % 5 == 4:
                tasks.restore(1 + number % 3)
        found = pl.concat(tasks.results()).sort("k")
        expected = every.group_by("k").agg(**chosen).sort("k")
        for name in chosen:
            pairs = zip(found[name], expected[name], strict=True)
            assert all(are_alike(one, other) for one, other in pairs), (
                chosen[name],
                found[name],
                expected[name],
            )


def are_alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (one != one and other != other) or math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


@pytest.mark.parametrize(
    "batches",
    [
        [[float("nan")], [1.0]],
        [[1.0], [float("nan")]],
        [[float("nan")], [None]],
        [[None], [float("nan")], [None]],
        [[None], [2.0, None], [1.0, 3.0]],
        [[None], [None]],
    ],
)
def test_nan_and_null_count_for_nothing_beside_a_number(batches: list[list[float | None]]) -> None:
    chosen = {"low": pl.col("f").min(), "high": pl.col("f").max(), "v": pl.col("f").count()}
    tasks = FrameTasks(("k",), chosen, "final", 1)
    rows = [[(1, None, None, None, value, None, None, None, None) for value in values] for values in batches]
    for one in rows:
        tasks.rows(frame_of(one))
    every = frame_of([one for some_rows in rows for one in some_rows])
    expected = every.group_by("k").agg(**chosen).with_columns(pl.col("v").cast(pl.Int64))
    assert pl.concat(tasks.results()).equals(expected)


def test_a_sum_that_is_beyond_its_column_is_an_error_and_one_that_was_for_a_while_is_exact() -> None:
    big = (1 << 63) - 1
    row: Any = (7, None, big, None, None, None, None, None, None)
    back: Any = (7, None, -big, None, None, None, None, None, None)
    final = FrameTasks(("k",), {"total": pl.col("i").sum()}, "final", 1)
    for rows in ([row] * 5, [row], [back] * 5):
        final.rows(frame_of(rows))
    assert final.results()[0].rows() == [(7, big)]
    running = FrameTasks(("k",), {"total": pl.col("i").sum()}, "batch", 1)
    assert running.rows(frame_of([row]))[0].rows() == [(7, big)]
    with pytest.raises(UserCodeError, match=rf"sum 'total' of key 7 is {2 * big}, beyond the range of Int64"):
        running.rows(frame_of([row]))
    within = FrameTasks(("k",), {"total": pl.col("i").sum()}, "batch", 1)
    with pytest.raises(UserCodeError, match=f"is {2 * big}, beyond"):
        within.rows(frame_of([row, row]))


def test_a_sum_that_is_cast_keeps_the_exact_sum_and_says_it_in_a_wider_column() -> None:
    big = (1 << 63) - 1
    row: Any = (7, None, big, None, None, None, None, None, None)
    total = pl.col("i").sum()
    for dtype, expected in ((pl.Int128, 3 * big), (pl.Float64, float(3 * big))):
        tasks = FrameTasks(("k",), {"total": total.cast(dtype)}, "final", 1)
        tasks.rows(frame_of([row] * 2))
        tasks.restore(2)
        tasks.rows(frame_of([row]))
        (made,) = tasks.results()
        assert made.rows() == [(7, expected)] and made.schema["total"] == dtype
    running = FrameTasks(("k",), {"total": total}, "batch", 1)
    with pytest.raises(UserCodeError, match=r"sum\(\)\.cast\(pl\.Int128\).*can go on from its checkpoint"):
        running.rows(frame_of([row] * 2))


def test_aggregates_refuse_rows_in_flight_of_an_earlier_version_of_the_flow() -> None:
    tasks = FrameTasks(("k",), {"total": pl.col("i").sum()}, "batch", 1)
    with pytest.raises(UserCodeError, match=r"the rows have the columns \(k: Int64\), expected .*in flight"):
        tasks.rows(pl.DataFrame({"k": [1]}))


def test_an_aggregate_that_raises_names_the_first_row_that_it_raises_for() -> None:
    aggregates = {"total": pl.col("s").cast(pl.Int64).sum()}
    tasks = FrameTasks(("k",), aggregates, "batch", 1)
    empty = dict.fromkeys(SCHEMA)
    rows: list[Any] = [
        tuple({**empty, "k": number, "s": "x" if number == 5 else "1"}.values()) for number in range(9)
    ]
    with pytest.raises(UserCodeError, match="InvalidOperationError") as caught:
        tasks.rows(frame_of(rows))
    assert "'k': 5" in caught.value.record


def test_a_key_is_of_the_type_of_its_column_however_its_state_has_it() -> None:
    """A backend may give back 1 for True and for 1.0: they are one key."""
    (flag,) = (aggregate_of(pl.len(), pl.Schema(SCHEMA)),)
    made = Results([flag], {"b": pl.Boolean(), "f": pl.Float64()}).of(
        [(1, 1), (None, None), (0, 2)], [(5,)] * 3
    )
    assert made.rows() == [(True, 1.0, 5), (None, None, 5), (False, 2.0, 5)]


def test_keys_of_floats_are_those_of_whole_numbers_and_null_is_one() -> None:
    tasks = FrameTasks(("f",), {"n": pl.len()}, "final", 2)
    nothing: Any = (None,) * 4
    for values in ([0.0, -0.0, 2.0], [None, 0.0], [None, 2.0]):
        tasks.rows(frame_of([(*nothing, value, *nothing) for value in values]))
        tasks.restore(3)
    found = pl.concat(tasks.results())
    assert sorted(found.rows(), key=str) == [(0.0, 3), (2.0, 2), (None, 2)]
