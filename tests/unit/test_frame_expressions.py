"""Expressions of frames: one that looks at other rows is refused, however it is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.frames import frame_from, passed_through, source

import crosscut as cc
from crosscut.errors import FlowError

pl = pytest.importorskip("polars", reason="pip install 'crosscut[polars]'")
cs = pytest.importorskip("polars.selectors", reason="pip install 'crosscut[polars]'")

SCHEMA = {
    "id": pl.Int64,
    "x": pl.Float64,
    "y": pl.Float64,
    "other": pl.Int64,
    "flag": pl.Boolean,
    "word": pl.String,
    "list": pl.List(pl.Int64),
    "array": pl.Array(pl.Int64, 2),
    "struct": pl.Struct({"a": pl.Int64}),
    "enum": pl.Enum(["low", "high"]),
    "category": pl.Categorical,
    "binary": pl.Binary,
}


def frame(schema: Any = SCHEMA) -> Any:
    return source(cc.Flow("shop")).frame(schema)


def parsed() -> Any:
    """Return numbers that a Python function has made, of which Polars knows little."""
    return pl.col("word").map_elements(lambda one: float(json.loads(one)), return_dtype=pl.Float64)


AROUND: dict[str, Callable[[], Any]] = {
    "running sum of a function": lambda: parsed().cum_sum(),
    "share of a function": lambda: parsed() / parsed().sum(),
    "row before a function": lambda: parsed().shift(),
    "rank of a function": lambda: parsed().rank(),
    "function of a sum": lambda: pl.col("id").sum().map_elements(lambda one: one, return_dtype=pl.Int64),
    "function of whole batches": lambda: pl.col("id").map_batches(lambda s: s - 1, return_dtype=pl.Int64),
    "function of several columns": lambda: pl.map_batches(["id"], lambda s: s[0], return_dtype=pl.Int64),
    "running sum of decoded JSON": lambda: (
        pl.col("word").str.json_decode(pl.Struct({"v": pl.Int64})).struct.field("v").cum_sum()
    ),
    "running sum after list.eval": lambda: (
        pl.col("list").list.eval(pl.element() * 2).list.sum().cum_sum()
    ),
    "running sum after arr.eval": lambda: (
        pl.col("array").arr.eval(pl.element() * 2).arr.sum().cum_sum()
    ),
    "running sum after with_fields": lambda: (
        pl.col("struct").struct.with_fields(pl.field("a") * 2).struct.field("a").cum_sum()
    ),
    "sum of a field": lambda: pl.col("struct").struct.with_fields(pl.field("a") / pl.field("a").sum()),
    "running sum of a field": lambda: pl.col("struct").struct.with_fields(pl.field("a").cum_sum()),
    "function of a field": lambda: pl.col("struct").struct.with_fields(
        pl.field("a").map_batches(lambda s: s - s.min(), return_dtype=pl.Int64)
    ),
    "maximum of a selector": lambda: cs.float().fill_nan(cs.float().max()),
    "mean of a selector": lambda: pl.when(cs.float() > 50).then(cs.float().mean()).otherwise(cs.float()),
    "minimum of several columns": lambda: pl.when(pl.col("x", "y") > 50).then(pl.col("x", "y").min()),
    "rank of several columns": lambda: pl.when(pl.col("x", "y") > 50).then(pl.col("x", "y").rank()),
    "minimum of a pattern": lambda: pl.when(pl.col("^[xy]$") > 50).then(pl.col("^[xy]$").min()),
    "row before of all columns": lambda: pl.all().forward_fill(),
    "row before of several columns": lambda: pl.col("x", "y").forward_fill(),
    "row before of an Enum": lambda: pl.col(pl.Enum(["low", "high"])).forward_fill(),
    "row before of a Categorical": lambda: cs.categorical().forward_fill(),
    "row before of an Array": lambda: cs.array().forward_fill(),
    "row before of a Struct": lambda: cs.struct().forward_fill(),
    "date without format": lambda: pl.col("word").str.to_date(strict=False),
    "date of a selector without format": lambda: cs.string().str.to_date(strict=False),
    "time of a type without format": lambda: pl.col(pl.String).str.to_datetime(strict=False),
    "sum of a field's name": lambda: pl.col("struct").struct.field("*").sum(),
    "in another column": lambda: pl.col("id").is_in(pl.col("other")),
    "replaced by another column": lambda: pl.col("id").replace(pl.col("other"), pl.col("id")),
    "replaced strictly": lambda: pl.col("id").replace_strict(pl.col("other"), pl.col("id")),
    "promised order": lambda: pl.col("id").set_sorted(),
    "SQL average": lambda: pl.sql_expr("id - avg(id)"),
    "number of a Categorical": lambda: pl.col("category").to_physical(),
    "cast of a Categorical": lambda: pl.col("category").cast(pl.UInt32),
    "cast of a selected Categorical": lambda: cs.categorical().cast(pl.UInt32),
    "number of a text as Categorical": lambda: pl.col("word").cast(pl.Categorical).to_physical(),
    "cast of a Categorical to the type of a column": lambda: pl.col("category").cast(pl.dtype_of("id")),
    "hash of a Categorical": lambda: pl.col("category").hash(),
}  # fmt: skip


@pytest.mark.parametrize("name", AROUND)
def test_an_expression_that_looks_at_other_rows_is_refused_however_it_is_written(name: str) -> None:
    with pytest.raises(FlowError, match="from that row alone"):
        frame().select(AROUND[name]())
    with pytest.raises(FlowError, match="agg': "):
        frame().key_by("id").agg(new=AROUND[name]().count())


@pytest.mark.parametrize(
    "changes",
    [
        lambda: pl.col("list").explode(),
        lambda: pl.col("list").explode(empty_as_null=False),
        lambda: pl.col("list").list.explode().sum(),
        lambda: pl.col("array").arr.explode(),
        lambda: pl.col("id") + pl.col("other").drop_nulls(),
        lambda: pl.col("id") * pl.col("other").filter(pl.col("flag")),
        lambda: pl.col("id").append(pl.col("other")),
        lambda: pl.col("id").is_in(pl.col("list").explode()),
        lambda: pl.col("x", "y").drop_nulls(),
    ],
)
def test_an_expression_that_changes_the_number_of_rows_is_refused_everywhere(changes: Any) -> None:
    """Also where the numbers happen to match, or one row is left and is repeated."""
    said = "from that row alone|can't be checked"
    for write in (
        lambda: frame().select("id", changes().alias("n")),
        lambda: frame().select(changes()),
        lambda: frame().with_columns(changes()),
        lambda: frame().filter(changes() > 0),
        lambda: frame().key_by("id").agg(n=changes().sum()),
    ):
        with pytest.raises(
            FlowError, match=f"{said}|duplicate output name|several columns|multiple expressions"
        ):
            write()


def test_a_filter_of_fewer_rows_is_refused() -> None:
    """Of one flag that is left, Polars keeps or drops the whole batch."""
    with pytest.raises(FlowError, match="changes the number of rows"):
        frame().filter(pl.col("flag").drop_nulls())


FINE: dict[str, Callable[[], Any]] = {
    "function": parsed,
    "function in an expression": lambda: parsed() * 2 + pl.col("x"),
    "function of batches by row": lambda: pl.col("id").map_batches(
        lambda s: s + 1, return_dtype=pl.Int64, is_elementwise=True
    ),
    "list.eval": lambda: pl.col("list").list.eval(pl.element().rank()),
    "list.filter": lambda: pl.col("list").list.filter(pl.element() > 1),
    "list.agg": lambda: pl.col("list").list.agg(pl.element().sum()),
    "arr.eval": lambda: pl.col("array").arr.eval(pl.element() + 1),
    "cast in a list": lambda: pl.col("list").list.eval(pl.element().cast(pl.UInt32)),
    "with_fields": lambda: pl.col("struct").struct.with_fields(b=pl.field("a") * 2),
    "sum of a field in a list": lambda: pl.concat_list("struct").list.eval(
        pl.element().struct.with_fields(b=pl.field("a").sum())
    ),
    "all fields": lambda: pl.col("struct").struct.field("*"),
    "selector": lambda: cs.float().fill_nan(0.0),
    "several columns": lambda: pl.when(pl.col("x", "y") > 1).then(pl.col("x", "y")),
    "pattern": lambda: pl.col("^[xy]$") * 2,
    "all": lambda: pl.all(),
    "date with format": lambda: cs.string().str.to_date("%Y-%m-%d", strict=False),
    "in a list of values": lambda: pl.col("id").is_in([1, 2]),
    "in a series": lambda: pl.col("id").is_in(pl.Series([1, 2])),
    "replaced values": lambda: pl.col("id").replace({1: 2}),
    "replaced values of a list": lambda: pl.col("id").replace([1, 2], [3, 4]),
    "replaced with default": lambda: pl.col("id").replace_strict({1: 2}, default=pl.col("other")),
    "in a column of lists": lambda: pl.col("id").is_in(pl.col("list")),
    "number of an Enum": lambda: pl.col("enum").to_physical(),
    "text of a Categorical": lambda: pl.col("category").cast(pl.String),
    "hash": lambda: pl.col("word").hash(),
    "SQL": lambda: pl.sql_expr("id * 2 + other AS z"),
    "mapped name": lambda: pl.col("id").name.map(str.upper),
    "formatted": lambda: pl.format("{}-{}", "id", "word"),
}


@pytest.mark.parametrize("name", FINE)
def test_an_expression_of_single_rows_is_taken_however_it_is_written(name: str) -> None:
    made = frame().select(FINE[name]())
    rows = [
        {
            "id": number,
            "x": float(number),
            "y": float("nan"),
            "other": 3 - number,
            "flag": number > 1,
            "word": str(number),
            "list": [number, 1],
            "array": [number, 2],
            "struct": {"a": number},
            "enum": "high" if number % 2 else "low",
            "category": "abc"[number % 3],
            "binary": b"x",
        }
        for number in range(1, 6)
    ]
    (whole,) = passed_through(made, [rows])
    single = frame_from(passed_through(made, [[row] for row in rows]), made.schema)
    assert whole.frame.equals(single)


def test_generators_of_expressions_are_read_once() -> None:
    names = ["id", "other"]
    made = frame({"id": "int64", "other": "int64"}).with_columns(pl.col(one) * 10 for one in names)
    (found,) = passed_through(made, [[{"id": 1, "other": 2}]])
    assert list(found) == [{"id": 10, "other": 20}]
    with pytest.raises(FlowError, match="from that row alone"):
        frame().select(pl.col(one).cum_sum() for one in names)
    kept = frame().key_by("word").agg(pl.col(one).sum() for one in names)
    assert list(kept.schema) == ["word", "id", "other"]


def test_a_column_called_name_is_made_with_alias() -> None:
    for write in (
        lambda: frame().select("id", name=pl.col("word")),
        lambda: frame().key_by("id").agg(name=pl.len()),
    ):
        with pytest.raises(FlowError, match=r"name= names the operator.*use \.alias\('name'\)"):
            write()
    assert list(frame().select(pl.col("word").alias("name")).schema) == ["name"]


def test_an_expression_that_can_not_be_checked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(self: Any) -> bool:
        raise pl.exceptions.ComputeError("who knows")

    made = frame()
    monkeypatch.setattr(type(pl.lit(1).meta), "is_row_separable", raises)
    with pytest.raises(FlowError, match=r"can't be checked to compute each row.*ComputeError: who knows"):
        made.select(pl.col("id") + 1)
