"""Frames do to batches, wherever these begin, what Polars does to all rows at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from tests.frames import frame_from, passed_through, source

import crosscut as cc

pl = pytest.importorskip("polars", reason="pip install 'crosscut[polars]'")

SCHEMA = {"i": "int64", "s": "string", "f": "float64", "b": "bool"}
ROWS = some.lists(
    some.fixed_dictionaries(
        {
            "i": some.none() | some.integers(-5, 5) | some.integers(-(1 << 31), 1 << 31),
            "s": some.none() | some.text("ab é", max_size=3),
            "f": some.none() | some.floats(),
            "b": some.none() | some.booleans(),
        }
    ),
    max_size=30,
)
CUTS = some.lists(some.integers(0, 30), max_size=6)

STEPS: dict[str, Any] = {
    "select": lambda f: f.select("b", "i", "s", f=pl.col("f") * 2),
    "select of all": lambda f: f.select(pl.all()),
    "literal": lambda f: f.with_columns(c=pl.lit(5), i=pl.col("i")),
    "with_columns": lambda f: f.with_columns(i=pl.col("i") + 1, new=pl.col("s").str.len_chars()),
    "condition": lambda f: f.with_columns(f=pl.when(pl.col("i") > 0).then(pl.col("f")).otherwise(None)),
    "filter": lambda f: f.filter(pl.col("i") > 0),
    "filter of two": lambda f: f.filter(pl.col("b"), pl.col("s").is_not_null()),
    "filter of text": lambda f: f.filter(pl.col("s").str.contains("a")),
    "filter of NaN": lambda f: f.filter(pl.col("f").is_nan()),
    "drop": lambda f: f.with_columns(x=pl.col("i")).drop("x"),
    "rename": lambda f: f.rename({"i": "f", "f": "i"}).rename({"i": "f", "f": "i"}),
    "cast": lambda f: f.with_columns(s=pl.col("i").cast(pl.String)),
}


@given(ROWS, CUTS, some.lists(some.sampled_from(sorted(STEPS)), min_size=1, max_size=4))
def test_operators_of_frames_are_those_of_polars_wherever_batches_begin(
    rows: list[dict[str, Any]], cuts: list[int], steps: list[str]
) -> None:
    ends = sorted({*(min(cut, len(rows)) for cut in cuts), len(rows)})
    batches = [rows[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    made = source(cc.Flow("steps")).frame(SCHEMA)
    expected = pl.DataFrame(
        {name: [row[name] for row in rows] for name in SCHEMA},
        schema={"i": pl.Int64, "s": pl.String, "f": pl.Float64, "b": pl.Boolean},
    )
    for step in steps:
        made, expected = STEPS[step](made), STEPS[step](expected)
    assert made.schema == expected.schema
    found = frame_from(passed_through(made, batches), expected.schema)
    assert found.equals(expected), (found, expected)


@given(ROWS)
def test_rows_come_out_as_they_went_in(rows: list[dict[str, Any]]) -> None:
    (found,) = passed_through(source(cc.Flow("rows")).frame(SCHEMA).rows(), [rows])
    assert [list(row) for row in found] == [list(SCHEMA)] * len(rows)
    # As text: NaN equals nothing.
    assert [repr(sorted(row.items())) for row in found] == [repr(sorted(row.items())) for row in rows]
