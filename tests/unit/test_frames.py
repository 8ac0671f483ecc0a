"""Frames: what is checked when a flow is written, and what bad input is told later."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.frames import operators_of, passed_through, source
from tests.proof.batches import FaultProfile, LocalJobs, run_batches

import crosscut as cc
from crosscut.connectors.files.parquet_sink import ParquetFiles
from crosscut.errors import ConnectorError, FlowError, UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.frame_rows import FrameRows
from crosscut.foundation.ids import ChannelId, TaskId, VertexId
from crosscut.foundation.keys import KeyRouter, key_group, owner_of_group
from crosscut.graph.frames import FrameSpec
from crosscut.graph.identity import identity_of
from crosscut.graph.shipping import pack_graph, unpack_graph
from crosscut.operators.frame_aggregates import AggregateFrame
from crosscut.operators.frames import FrameKeys
from crosscut.operators.operator import shortened
from crosscut.task.frame_output import PIECE_BYTES, build_frame_output
from crosscut.task.items import LoggedBatch
from crosscut.task.rerouting import rerouted
from crosscut.testing.simulator.sources import ReplayedSource
from crosscut.testing.sources import read_source
from crosscut.wire.batches import decode_batch, encode_batch

pl = pytest.importorskip("polars", reason="pip install 'crosscut[polars]'")
arrow = pytest.importorskip("pyarrow", reason="pip install 'crosscut[polars]'")

SCHEMA = {"id": "int64", "word": "string", "price": "float64"}


def frame(schema: Any = SCHEMA) -> Any:
    return source(cc.Flow("shop")).frame(schema)


# What is checked when the flow is written.


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda f: f.select("nam"), r"3-select'.*unable to find column \"nam\".*id: Int64, word: String"),
        (lambda f: f.select(), "expected columns or expressions"),
        (lambda f: f.with_columns(pl.col("word") + 1), "arithmetic on dtypes str"),
        (lambda f: f.filter(pl.col("id")), "must be of type `Boolean`, got `Int64`"),
        (lambda f: f.filter("id"), "Boolean"),
        (lambda f: f.drop("nam"), "'nam' of type str is not a column; the frame has id: Int64"),
        (lambda f: f.drop(), "found none"),
        (lambda f: f.drop("id", "word", "price"), "no column is left"),
        (lambda f: f.rename({"id": "word"}), "duplicate"),
        (lambda f: f.rename({"nam": "x"}), "'nam' of type str is not a column"),
        (lambda f: f.rename(["x"]), "expected new names by old ones"),
        (lambda f: f.map_batches(5, SCHEMA), "function=5"),
        (lambda f: f.map_batches(lambda: 1, SCHEMA), "function: "),
        (lambda f: f.map_batches(abs, SCHEMA, format="numpy"), "expected 'polars', 'arrow' or 'pandas'"),
        (lambda f: f.map_batches(abs, {"a": "int65"}), "'int65' is not a type for 'a'"),
        (lambda f: f.sink(5), "expected a crosscut.Sink"),
        (lambda f: f.count(), "has no attribute|'count'"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_where_it_is_written(write: Callable[[Any], Any], said: str) -> None:
    with pytest.raises((FlowError, AttributeError), match=said):
        write(frame())


@pytest.mark.parametrize(
    "looks_around",
    [
        lambda: pl.col("id").sum(),
        lambda: pl.col("id") - pl.col("id").mean(),
        lambda: pl.col("id").clip(0, pl.col("id").max()),
        lambda: pl.col("id").cum_sum(),
        lambda: pl.col("id").shift(),
        lambda: pl.col("id").rank(),
        lambda: pl.col("id").sum().over("word"),
        lambda: pl.col("id").is_duplicated(),
        lambda: pl.col("id").fill_null(strategy="forward"),
        lambda: pl.col("word").str.to_date(),
        lambda: pl.len() + pl.col("id"),
        lambda: pl.col("id").map_batches(lambda column: column.cum_sum(), return_dtype=pl.Int64),
        lambda: pl.when(pl.col("id") > pl.col("id").min()).then(1).otherwise(2),
    ],
)
def test_an_expression_that_looks_at_other_rows_is_refused(looks_around: Callable[[], Any]) -> None:
    """What it says would depend on where a batch begins."""
    with pytest.raises(FlowError, match="from that row alone"):
        frame().with_columns(new=looks_around())


def test_an_expression_of_all_columns_is_tried_with_rows() -> None:
    for around in (pl.all().cum_count(), pl.col("^i.*$").reverse(), pl.exclude("word").max()):
        with pytest.raises(FlowError, match="from that row alone"):
            frame().select(around)
    assert frame().select(pl.exclude("word") * 2).schema == {"id": pl.Int64, "price": pl.Float64}


@pytest.mark.parametrize(
    "fine",
    [
        lambda: pl.col("id") * 2 + 1,
        lambda: pl.col("word").str.to_uppercase(),
        lambda: pl.col("word").str.to_date("%Y-%m-%d", strict=False),
        lambda: pl.when(pl.col("id") > 1).then(pl.lit("x")).otherwise(pl.col("word")),
        lambda: pl.col("id").is_in([1, 2]),
        lambda: pl.col("id").map_elements(int.bit_length, return_dtype=pl.Int64),
        lambda: pl.struct("id", "word"),
        lambda: pl.coalesce("word", pl.lit("none")),
        lambda: pl.lit(5),
        lambda: pl.max_horizontal("id", "price"),
    ],
)
def test_an_expression_of_single_rows_is_taken(fine: Callable[[], Any]) -> None:
    assert frame().with_columns(new=fine()).schema["new"] is not None


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (None, "the columns of 'in' are not known"),
        (5, "expected names and types"),
        ({}, "expected at least one"),
        ({"": "int64"}, "names that are not empty"),
        ({"a": "intt"}, "not a type for 'a'"),
        ({"a": object()}, "not a type for 'a'"),
    ],
)
def test_a_schema_that_is_none_is_refused(schema: Any, said: str) -> None:
    with pytest.raises(FlowError, match=said):
        source(cc.Flow("shop")).frame(schema)


def test_a_polars_that_can_not_tell_what_an_expression_looks_at_is_too_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(type(pl.lit(1).meta), "is_row_separable")
    with pytest.raises(FlowError, match=r"need Polars 2\.0 or newer.*found \d"):
        frame()


def test_types_are_those_of_polars_and_arrow_and_their_names() -> None:
    found = frame({"a": "int32", "b": pl.Int64, "c": arrow.string(), "d": pl.Datetime("us", "UTC")}).schema
    assert found == {"a": pl.Int32, "b": pl.Int64, "c": pl.String, "d": pl.Datetime("us", "UTC")}
    assert frame(found).schema == found
    assert frame(arrow.schema([("a", arrow.int8())])).schema == {"a": pl.Int8}


def test_schemas_follow_the_operators_and_explain_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    flow = cc.Flow("shop")
    made = source(flow).frame(SCHEMA, name="orders").select("id", pl.col("price") * 2, twice=pl.col("id") * 2)
    made = made.filter(pl.col("id") > 0).drop("id").rename({"twice": "n"})
    assert made.schema == {"price": pl.Float64, "n": pl.Int64}
    made.rows(name="rows").sink(cc.collect(), name="out")
    flow.explain()
    shown = capsys.readouterr().out
    assert "orders (frame, id: Int64, word: String, price: Float64)" in shown
    assert "6-rename (price: Float64, n: Int64)" in shown


def test_records_with_timestamps_make_no_frame() -> None:
    timed = source(cc.Flow("shop")).assign_timestamps(lambda record: record["at"])
    with pytest.raises(FlowError, match="on records, after rows"):
        timed.frame(SCHEMA)


def test_nanoseconds_do_not_become_records() -> None:
    fine = frame({"at": "timestamp[ns]"})
    for write in (lambda: fine.rows(), lambda: fine.sink(cc.collect())):
        with pytest.raises(FlowError, match=r"'at' of type Datetime.* has nanoseconds"):
            write()
    fine.with_columns(pl.col("at").dt.cast_time_unit("us")).rows()
    fine.sink(cc.files.write_parquet("out", {"at": "timestamp[ns]"}))


def test_maps_do_not_become_records() -> None:
    """A dict would hold one of two entries with the same key."""
    maps = frame(arrow.schema([("m", arrow.map_(arrow.string(), arrow.int64())), ("id", arrow.int64())]))
    with pytest.raises(FlowError, match="'m' of type Map"):
        maps.rows()
    maps.drop("m").rows()


def test_a_sink_with_other_columns_is_refused() -> None:
    with pytest.raises(FlowError, match="'id' of type Int64, expected int32; no column 'x'"):
        frame().sink(cc.files.write_parquet("out", {"id": "int32", "x": "string"}))


def test_the_names_of_the_methods_that_add_operators_are_their_kinds_in_the_identity() -> None:
    flow = cc.Flow("shop")
    made = source(flow).frame(SCHEMA).filter(pl.col("id") > 0).map_batches(lambda b: b, SCHEMA)
    made.rows().sink(cc.collect())
    kinds = [one.kind for one in identity_of(flow.compile(2, 128)).operators]
    assert kinds == ["source", "frame", "filter", "map_batches", "rows", "sink"]


def test_a_graph_with_frames_travels() -> None:
    flow = cc.Flow("shop")
    source(flow).frame(SCHEMA).filter(pl.col("id") > 0).rows().sink(cc.collect())
    graph = flow.compile(2, 128)
    found = unpack_graph(pack_graph(graph))
    assert found.fingerprint == graph.fingerprint
    spec = found.vertices[0].chain[1].spec
    assert isinstance(spec, FrameSpec) and spec.schema == frame().schema


# From records to columns.


@dataclass
class Order:
    id: int
    word: str
    price: float


def test_records_are_mappings_or_objects_and_may_have_other_fields() -> None:
    (found,) = passed_through(
        frame(), [[{"id": 1, "word": "a", "price": 1.5, "more": 5}, Order(2, "b", float("inf"))]]
    )
    assert list(found) == [
        {"id": 1, "word": "a", "price": 1.5},
        {"id": 2, "word": "b", "price": float("inf")},
    ]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"id": 1, "word": "a"}, "it has no 'price'"),
        ({"id": 1.5, "word": "a", "price": 1.0}, "column 'id': 1.5 is no int"),
        ({"id": 1 << 63, "word": "a", "price": 1.0}, "column 'id'"),
        ({"id": 1, "word": 5, "price": 1.0}, "column 'word'"),
        ({"id": 1, "word": b"a", "price": 1.0}, "column 'word': b'a' is no str"),
        ({"id": 1, "word": "a", "price": True}, "column 'price': True is a bool"),
        (5, "no attribute 'id'"),
    ],
)
def test_a_record_that_does_not_fit_is_named_and_so_is_what_was_expected(bad: Any, said: str) -> None:
    good = {"id": 1, "word": "a", "price": 1.0}
    with pytest.raises(UserCodeError, match=said) as caught:
        passed_through(frame(), [[good, good], [good, bad, good]])
    assert caught.value.operator == "2-frame" and caught.value.record == shortened(bad)
    assert "id: Int64, word: String, price: Float64" in str(caught.value)


def test_null_fits_unless_the_schema_says_otherwise() -> None:
    nothing = {"id": None, "word": None, "price": None}
    assert list(passed_through(frame(), [[nothing]])[0]) == [nothing]
    strict = arrow.schema([arrow.field("id", arrow.int64(), nullable=False)])
    with pytest.raises(UserCodeError, match="column 'id' does not accept None"):
        passed_through(frame(strict), [[{"id": 1}, nothing]])
    with pytest.raises(UserCodeError, match="column 'id' has a null"):
        passed_through(frame(strict), [FrameRows(pl.DataFrame({"id": [1, None]}))])


def test_values_of_all_kinds_go_in_and_out_as_they_are() -> None:
    kinds = {
        "i": (pl.Int8, -5), "u": (pl.UInt64, (1 << 64) - 1), "f": (pl.Float64, float("-inf")),
        "s": (pl.String, "é"),
        "b": (pl.Binary, b"\0"), "t": (pl.Boolean, True), "d": (pl.Date, date(1, 1, 1)),
        "at": (pl.Datetime("us"), datetime(1960, 5, 5, 1, 2, 3, 4)),
        "utc": (pl.Datetime("us", "UTC"), datetime(2020, 1, 1, tzinfo=UTC)),
        "n": (pl.Decimal(20, 3), Decimal("1.250")), "l": (pl.List(pl.Int64), [1, None]),
        "r": (pl.Struct({"x": pl.Int64}), {"x": 5}),
    }  # fmt: skip
    one = {name: value for name, (_, value) in kinds.items()}
    (found,) = passed_through(frame({name: kind for name, (kind, _) in kinds.items()}), [[one]])
    assert list(found) == [one]
    assert list(pickle.loads(pickle.dumps(found))) == [one]


# Columns that a source gives.


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": [1], "word": ["a"]}, "no column 'price'"),
        ({"id": ["1"], "word": ["a"], "price": [1.0]}, "'id' of type String, expected Int64"),
    ],
)
def test_a_schema_that_changes_in_the_middle_is_an_error(columns: Any, said: str) -> None:
    good = FrameRows(pl.DataFrame({"id": [1], "word": ["a"], "price": [1.0]}))
    with pytest.raises(UserCodeError, match=said):
        passed_through(frame(), [good, FrameRows(pl.DataFrame(columns))])


def test_columns_are_put_in_order_and_others_left_out() -> None:
    given = FrameRows(pl.DataFrame({"x": [1], "price": [1.0], "word": ["a"], "id": [5]}))
    (found,) = passed_through(frame(), [given])
    assert list(found) == [{"id": 5, "word": "a", "price": 1.0}]


def parquet(directory: Path, **files: Any) -> str:
    directory.mkdir(exist_ok=True)
    for name, one in files.items():
        one.write_parquet(directory / f"{name}.parquet")
    return str(directory / "*.parquet")


def test_parquet_says_its_own_schema_and_gives_only_the_columns_that_are_needed(tmp_path: Path) -> None:
    whole = pl.DataFrame({"a": [1, 2], "b": ["x", None], "c": [1.5, 2.5]})
    pattern = parquet(tmp_path / "in", one=whole)
    flow = cc.Flow("shop")
    stream = flow.source(cc.files.read_parquet(pattern), name="in")
    assert stream.frame().schema == whole.schema
    needed = flow.source(cc.files.read_parquet(pattern), name="needed").frame({"c": "float64"})
    needed.rows().sink(cc.collect())
    stream.frame().rows().sink(cc.collect())
    flow = cc.Flow("shop")
    flow.source(cc.files.read_parquet(pattern), name="in").frame({"c": "float64"}).rows().sink(cc.collect())
    read: Any = flow.compile(1, 128).vertices[0].source
    assert read.source.columns == ("c",)
    assert list(read_source(read.source)) == [{"c": 1.5}, {"c": 2.5}]


def test_a_source_that_records_are_read_of_too_gives_records() -> None:
    flow = cc.Flow("shop")
    both = flow.source(cc.files.read_parquet("in/*.parquet"), name="in")
    both.frame({"a": "int64"}).rows().sink(cc.collect())
    both.map(len).sink(cc.collect())
    read: Any = flow.compile(1, 128).vertices[0].source
    assert not read.source.as_frames


def test_no_file_to_read_a_schema_of_is_told_with_what_to_do(tmp_path: Path) -> None:
    stream = cc.Flow("shop").source(cc.files.read_parquet(f"{tmp_path}/*.parquet"))
    with pytest.raises(FlowError, match=r"no file matches.*Or call frame with a schema"):
        stream.frame()


# Errors while it runs.


def test_an_expression_that_raises_names_the_first_row_that_it_raises_for() -> None:
    texts = [str(number) for number in range(100)]
    texts[37] = texts[80] = "x"
    numbers = frame({"word": "string"}).with_columns(n=pl.col("word").cast(pl.Int64))
    with pytest.raises(UserCodeError) as caught:
        passed_through(numbers, [[{"word": "1"}], [{"word": one} for one in texts]])
    assert caught.value.operator == "3-with_columns" and caught.value.record == "{'word': 'x'}"
    assert "InvalidOperationError" in str(caught.value)


def test_a_function_of_batches_that_raises_or_breaks_its_promise_is_named() -> None:
    def raises(batch: Any) -> Any:
        raise ValueError("no model")

    for function, said in (
        (raises, "ValueError: no model"),
        (lambda batch: batch.rename({"id": "x"}), r"made the columns \(x: Int64.*expected \(id: Int64"),
        (lambda batch: [1, 2], "returned a list; expected a polars.DataFrame"),
    ):
        with pytest.raises(UserCodeError, match=said) as caught:
            passed_through(frame().map_batches(function, SCHEMA), [[{"id": 1, "word": "a", "price": 1.0}]])
        assert "1 rows of a frame: id: Int64" in caught.value.record


@pytest.mark.parametrize("form", ["polars", "arrow"])
def test_a_function_of_batches_takes_its_format_and_returns_any(form: Any) -> None:
    kinds: list[type] = []

    def returns(batch: Any) -> Any:
        kinds.append(type(batch))
        return batch.to_arrow() if form == "polars" else pl.from_arrow(batch)

    made = frame({"id": "int64"}).map_batches(returns, {"id": "int64"}, format=form)
    (found,) = passed_through(made, [[{"id": 1}, {"id": 2}]])
    assert list(found) == [{"id": 1}, {"id": 2}]
    assert kinds == [pl.DataFrame if form == "polars" else arrow.Table]


def test_pandas_that_is_not_installed_is_missed_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("crosscut.flow.frame.find_spec", lambda name: None)
    with pytest.raises(FlowError, match="needs pandas"):
        frame().map_batches(lambda batch: batch, SCHEMA, format="pandas")


def test_a_batch_of_which_no_row_is_left_goes_no_further() -> None:
    (found,) = passed_through(frame({"id": "int64"}).filter(pl.col("id") > 5), [[{"id": 1}]])
    assert found == [] and not isinstance(found, FrameRows)


# In batches, with attempts that are made twice and lost.


def test_parquet_becomes_parquet_and_records_in_the_micro_batch_engine(tmp_path: Path) -> None:
    random = Random(5)
    given = [
        pl.DataFrame({"id": [random.randrange(1000) for _ in range(700)], "word": ["w"] * 700})
        for _ in range(3)
    ]
    pattern = parquet(tmp_path / "in", **{f"f{index}": one for index, one in enumerate(given)})
    flow, records = cc.Flow("copies"), cc.collect()
    whole = flow.source(cc.files.read_parquet(pattern), name="in").frame()
    odd = whole.filter(pl.col("id") % 2 == 1).with_columns(half=pl.col("id") // 2)
    odd.sink(
        cc.files.write_parquet(tmp_path / "out", {"half": "int64", "word": "string", "id": "int64"}),
        name="out",
    )
    whole.filter(pl.col("id") < 10).rows().map(lambda row: row["id"]).sink(records, name="records")
    settings = cc.Settings(
        engine=cc.MicroBatch(records_max=500),
        checkpoint_dir=tmp_path / "checkpoints",
        checkpoint_interval="10ms",
        restart=cc.Restart(failures=3),
    )
    storm = FaultProfile(doubled=0.4, torn=0.2, lost=0.1)
    end, _ = run_batches(flow.compile(2, 128), settings, lambda g, url: LocalJobs(g, url, Random(3), storm))
    assert end is not None and end.cause is None
    every = pl.concat(given)
    expected = every.filter(pl.col("id") % 2 == 1).select(half=pl.col("id") // 2, word="word", id="id")
    found = pl.concat([pl.read_parquet(path) for path in (tmp_path / "out").glob("*.parquet")])
    assert found.sort("id").equals(expected.sort("id"))
    assert sorted(records.records()) == every.filter(pl.col("id") < 10)["id"].sort().to_list()


# Keys and aggregates.


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda f: f.key_by(), "expected the names of columns"),
        (lambda f: f.key_by("nam"), "'nam' of type str is not a column"),
        (lambda f: f.key_by("id", "id"), "'id' is named twice"),
        (lambda f: f.with_columns(d=pl.date(2020, 1, 1)).key_by("d"), "'d' of type Date can't be a key"),
        (lambda f: f.key_by("id").count(), "has no 'count'"),
        (lambda f: f.key_by("id").agg(), "expected aggregates"),
        (lambda f: f.key_by("id").agg(5), "5 is not a Polars expression"),
        (lambda f: f.key_by("id").agg(n=5), "5 is not a Polars expression"),
        (lambda f: f.key_by("id").agg(pl.col("price")), "not an aggregate that can be kept across batches"),
        (lambda f: f.key_by("id").agg(pl.col("price").median()), "not an aggregate that can be kept"),
        (lambda f: f.key_by("id").agg(pl.col("price").var(ddof=0)), "not an aggregate that can be kept"),
        (lambda f: f.key_by("id").agg(pl.col("price").sum() + 1), "not an aggregate that can be kept"),
        (lambda f: f.key_by("id").agg(pl.col("word").sum()), "sum 'word' of values of type String"),
        (lambda f: f.key_by("id").agg(x=pl.struct("id").first()), "first 'x' of values of type Struct"),
        (lambda f: f.key_by("id").agg(pl.col("nam").sum()), 'unable to find column "nam"'),
        (lambda f: f.key_by("id").agg(pl.col("price", "word").count()), "agg': "),
        (lambda f: f.key_by("id").agg(pl.col("id").sum()), "several columns would be called id"),
        (lambda f: f.key_by("id").agg(pl.col("price").shift().sum()), "from that row alone"),
        (lambda f: f.key_by("id").agg(pl.lit(1).sum()), "from that row alone"),
        (lambda f: f.key_by("id").agg(pl.col("price").drop_nulls().first()), "changes the number of rows"),
        (lambda f: f.key_by("id").agg(pl.len(), emit="updates"), "expected 'batch' or 'final'"),
    ],
)  # fmt: skip
def test_a_mistake_about_keys_and_aggregates_is_told_where_it_is_written(
    write: Callable[[Any], Any], said: str
) -> None:
    with pytest.raises((FlowError, AttributeError), match=re.escape(said)):
        write(frame())


def test_the_columns_of_aggregates_have_room_for_sums() -> None:
    made = frame({"k": "int8", "u": "uint8", "f": "float32", "d": "date32"}).key_by("k").agg(
        pl.len(), n=pl.col("u").count(), s=pl.col("k").sum().alias("x"), u=pl.col("u").sum(),
        f=pl.col("f").sum(),
        m=pl.col("u").mean(), low=pl.col("d").min(),
    )  # fmt: skip
    assert made.schema == {
        "k": pl.Int8, "len": pl.Int64, "n": pl.Int64, "s": pl.Int64, "u": pl.UInt64, "f": pl.Float64,
        "m": pl.Float64, "low": pl.Date,
    }  # fmt: skip


def aggregating(
    directory: Path, records: Any, *, kinds: Any = None, emit: Any = "final"
) -> tuple[cc.Flow, Any]:
    flow, out = cc.Flow("totals"), cc.collect(directory)
    stream = flow.source(records, name="in")
    keyed = stream.frame({"w": "string", "n": "int64"}, name="frame").key_by("w", name="key")
    aggregates = kinds or {"rows": pl.len(), "total": pl.col("n").sum(), "low": pl.col("n").min()}
    keyed.agg(emit=emit, name="totals", **aggregates).sink(out, name="out")
    return flow, out


def test_state_of_other_aggregates_is_refused() -> None:
    first, _ = aggregating(Path("x"), cc.items([]))
    other, _ = aggregating(Path("x"), cc.items([]), kinds={"rows": pl.len()})
    same, _ = aggregating(Path("x"), cc.items([]))
    fingerprints = [flow.compile(2, 128).fingerprint for flow in (first, other, same)]
    assert fingerprints[0] == fingerprints[2] != fingerprints[1]


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("emit", ["batch", "final"])
def test_aggregates_in_the_micro_batch_engine_are_exact(tmp_path: Path, backend: Any, emit: Any) -> None:
    if backend == "rocksdb":
        pytest.importorskip("rocksdict")
    records = [{"w": None if number % 11 == 0 else f"w{number % 7}", "n": number} for number in range(400)]
    splits = {f"s{split}": records[split::3] for split in range(3)}
    flow, out = aggregating(tmp_path / "out", ReplayedSource(splits), emit=emit)
    settings = cc.Settings(
        engine=cc.MicroBatch(records_max=60),
        parallelism=2,
        checkpoint_dir=tmp_path / "checkpoints",
        checkpoint_interval="10ms",
        restart=cc.Restart(failures=3),
        state_backend=backend,
    )
    storm = FaultProfile(doubled=0.4, torn=0.2, lost=0.1)
    end, _ = run_batches(
        flow.compile(2, 128), settings, lambda g, url: LocalJobs(g, url, Random(3), storm, backend)
    )
    assert end is not None and end.cause is None
    every = (
        pl.DataFrame(records)
        .group_by("w")
        .agg(rows=pl.len().cast(pl.Int64), total=pl.col("n").sum(), low=pl.col("n").min())
    )
    found = pl.DataFrame(out.records(), schema=every.schema)
    if emit == "final":
        assert found.height == every.height
    assert found.group_by("w").agg(pl.all().sort_by("rows").last()).sort("w").equals(every.sort("w"))


def test_rows_on_their_way_go_to_the_new_owner_of_their_key() -> None:
    """At another parallelism each task takes those whose keys it owns, from the logs of all."""
    flow, _ = aggregating(Path("x"), cc.items([]))
    graph = flow.compile(3, 128)
    edge = graph.edges[0]
    channel = ChannelId(edge.input, TaskId(VertexId(edge.source), 0), TaskId(VertexId(edge.target), 1))
    rows = FrameRows(pl.DataFrame({"w": ["a", "b", None, "c", "a"], "n": [1, 2, 3, 4, 5]}), ("w",))
    log = [LoggedBatch(channel, encode_batch(Batch(rows)), len(rows), by_sender=True)]

    def owner_of(key: Any) -> int:
        return owner_of_group(key_group(key, 128), 128, 3)

    for index in range(3):
        task = TaskId(VertexId(edge.target), index)
        found = [
            row
            for _, batches in rerouted([log], task, graph, owner_of, 2)
            for one in batches
            for row in decode_batch(one.data).records
        ]
        assert found == [row for row in rows if owner_of(row["w"]) == index]


def test_rows_of_many_bytes_leave_in_more_pieces() -> None:
    channel = ChannelId(0, TaskId(VertexId("a"), 0), TaskId(VertexId("b"), 0))
    router = KeyRouter(128, 1)
    output = build_frame_output("forward", (channel,), batch_rows=1_000, router=router, key_by_uid="")
    wide = FrameRows(pl.DataFrame({"s": ["x" * 4_000] * 10_000}))
    output.add(Batch(wide))
    taken = [batch for _, batch in output.take()]
    assert sum(map(len, taken)) == 10_000
    assert max(batch.records.frame.estimated_size() for batch in taken) <= PIECE_BYTES  # type: ignore[attr-defined]
    narrow = FrameRows(pl.DataFrame({"s": range(10_000)}))
    output = build_frame_output("forward", (channel,), batch_rows=1_000, router=router, key_by_uid="")
    output.add(Batch(narrow))
    assert len(output.take()) == 1


def test_an_output_of_columns_gives_each_channel_rows_of_its_own() -> None:
    """Whoever takes some of them away must not take them from others."""
    source_task = TaskId(VertexId("a"), 0)
    channels = tuple(ChannelId(0, source_task, TaskId(VertexId("b"), index)) for index in range(2))
    output = build_frame_output("forward", channels, batch_rows=1, router=KeyRouter(128, 2), key_by_uid="")
    given = FrameRows(pl.DataFrame({"n": [1, 2, 3]}))
    output.add(Batch(given))
    (_, one), (_, other) = output.take()
    one.drop(2)
    assert (len(one), len(other), len(given)) == (1, 3, 3)


def test_no_operator_of_columns_runs_in_a_fork() -> None:
    """The threads of Polars are not there after one."""
    made = frame().filter(pl.col("id") > 0).rows()
    assert [one.runs_in_copies for one in operators_of(made)] == [False] * 3
    assert not AggregateFrame.runs_in_copies and not FrameKeys.runs_in_copies


def test_parquet_without_nulls_names_the_row_that_has_one(tmp_path: Path) -> None:
    schema = arrow.schema([arrow.field("n", arrow.int64(), nullable=False)])
    sink = cc.files.write_parquet(tmp_path, schema)
    assert isinstance(sink, ParquetFiles)
    encoder = sink.encoder()
    encoder.add(FrameRows(pl.DataFrame({"n": [1, 2]})))
    with pytest.raises(ConnectorError, match="does not accept None"):
        encoder.add(FrameRows(pl.DataFrame({"n": [1, None]})))
