"""Types and values of frames: none is replaced by another one, and an error names the row."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import pytest
from tests.frames import operators_of, passed_through, source

import crosscut as cc
from crosscut.connectors.files.parquet_sink import ParquetFiles
from crosscut.errors import ConnectorError, FlowError, UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.frame_rows import FrameRows
from crosscut.operators.sink import SinkOperator

pl = pytest.importorskip("polars", reason="pip install 'crosscut[polars]'")
arrow = pytest.importorskip("pyarrow", reason="pip install 'crosscut[polars]'")

LEVEL = pl.Enum(["low", "high"])


def frame(schema: Any) -> Any:
    return source(cc.Flow("shop")).frame(schema)


def test_an_enum_stays_one_with_its_categories() -> None:
    schema = {"e": LEVEL, "l": pl.List(LEVEL), "r": pl.Struct({"e": LEVEL}), "a": pl.Array(LEVEL, 1)}
    made = frame(schema)
    assert made.schema == schema
    rows = [{"e": "high", "l": ["low", None], "r": {"e": "high"}, "a": ["low"]}, dict.fromkeys(schema)]
    (found,) = passed_through(made.filter(pl.col("e").is_null() | (pl.col("e") > "low")), [rows])
    assert list(found) == rows
    (nothing,) = passed_through(frame(schema), [[dict.fromkeys(schema)]])
    for one in (found, nothing):
        again = pickle.loads(pickle.dumps(one))
        assert again == one and again.frame.schema == schema
    (codes,) = passed_through(frame({"e": LEVEL}).select(pl.col("e").to_physical()), [[{"e": "high"}]])
    assert list(codes) == [{"e": 1}]


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (LEVEL, "other"),
        (pl.List(LEVEL), ["low", "other"]),
        (pl.Struct({"e": LEVEL}), {"e": "other"}),
        (pl.Array(LEVEL, 1), ["other"]),
    ],
)
def test_a_text_that_is_no_category_is_refused(kind: Any, bad: Any) -> None:
    with pytest.raises(UserCodeError, match="column 'e': 'other' is no category of") as caught:
        passed_through(frame({"e": kind}), [[{"e": None}, {"e": bad}]])
    assert "other" in caught.value.record


def test_a_type_that_arrow_would_replace_is_refused_by_name() -> None:
    with pytest.raises(FlowError, match="column 'o' of type Object would become Binary in Arrow"):
        frame({"o": pl.Object})


def test_types_have_the_same_names_as_in_parquet() -> None:
    names = {"at": "timestamp[us, tz=UTC]", "local": "timestamp[ms, tz=Europe/Berlin]"}
    made = frame(names)
    assert made.schema == {"at": pl.Datetime("us", "UTC"), "local": pl.Datetime("ms", "Europe/Berlin")}
    made.sink(cc.files.write_parquet("out", names))
    with pytest.raises(FlowError, match="not a type for 'at'"):
        frame({"at": "timestamp[xy, tz=UTC]"})


@pytest.mark.parametrize("name", ["*", "^a.*$", "^a$"])
def test_a_column_name_that_polars_takes_for_a_pattern_is_refused(name: str) -> None:
    with pytest.raises(FlowError, match="for a pattern of names"):
        frame({name: "int64", "ab": "int64"})
    with pytest.raises(FlowError, match="for a pattern of names"):
        frame({"ab": "int64"}).rename({"ab": name})
    with pytest.raises(FlowError, match="for a pattern of names"):
        frame({"ab": "int64"}).key_by("ab").agg(pl.len().alias(name))


def test_names_of_columns_that_are_no_texts_are_told() -> None:
    with pytest.raises(FlowError, match="is not a column"):
        frame({"a": "int64"}).drop(["a"])


NESTED: dict[str, Any] = {
    "itself": lambda column: column,
    "list": pl.concat_list,
    "struct": pl.struct,
    "array": lambda column: pl.concat_list(column).list.to_array(1),
    "list of structs": lambda column: pl.concat_list(pl.struct(column)),
}


@pytest.mark.parametrize("name", NESTED)
def test_times_of_day_with_nanoseconds_are_refused_wherever_they_are(name: str) -> None:
    made = frame({"n": "int64"}).select(t=NESTED[name](pl.col("n").cast(pl.Time))).rows()
    (found,) = passed_through(made, [[{"n": 1_000}, {"n": None}]])
    assert repr(time(0, 0, 0, 1)) in repr(found)
    with pytest.raises(UserCodeError, match="column 't' has times of day with nanoseconds"):
        passed_through(made, [[{"n": 1_000}, {"n": 1_001}]])


def test_a_value_that_python_has_none_for_is_named_with_its_row_in_records_and_sinks() -> None:

    def far_dates() -> Any:
        return frame({"n": "int64"}).select("n", d=pl.col("n").cast(pl.Int32).cast(pl.Date))

    rows = [{"n": 1}, {"n": 10**8}, {"n": 2}]
    with pytest.raises(UserCodeError, match="'4-rows' raised PanicException: out-of-range date") as caught:
        passed_through(far_dates().rows(), [rows])
    assert "100000000" in caught.value.record

    class Writer:
        takes_frames = False

        def write(self, records: list[Any]) -> None:
            raise AssertionError(records)

    (found,) = passed_through(far_dates(), [rows])
    writer: Any = Writer()
    with pytest.raises(UserCodeError, match="'out' raised PanicException") as caught:
        SinkOperator("out", writer).process(Batch(found))
    assert "100000000" in caught.value.record


def test_a_panic_of_polars_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def panics(*_: Any, **__: Any) -> Any:
        raise pl.exceptions.PanicException("unreachable code")

    made = frame({"n": "int64"}).with_columns(
        x=pl.col("n").map_elements(lambda n: panics() if n == 5 else n, return_dtype=pl.Int64)
    )
    with monkeypatch.context() as patched:
        patched.setattr(pl.DataFrame, "with_columns", panics)
        with pytest.raises(FlowError, match="with_columns': PanicException: unreachable code"):
            frame({"n": "int64"}).with_columns(pl.col("n") + 1)
    (step,) = operators_of(made)[1:]
    function = step._function  # type: ignore[attr-defined]
    step._function = lambda rows: panics() if 5 in rows["n"] else function(rows)  # type: ignore[attr-defined]
    with pytest.raises(UserCodeError, match="'3-with_columns' raised PanicException") as caught:
        step.process(Batch(FrameRows(pl.DataFrame({"n": [1, 2, 5, 3]}))))
    assert caught.value.record == "{'n': 5}"


def test_rows_in_flight_of_an_earlier_version_of_the_flow_are_told() -> None:
    """An operator checks the columns of rows that a checkpoint has restored."""
    made = frame({"n": "int64"})
    old = Batch(FrameRows(pl.DataFrame({"n": ["1"]})))
    (keep,) = operators_of(made.filter(pl.col("n") > 0))[1:]
    with pytest.raises(UserCodeError, match=r"columns \(n: String\), expected \(n: Int64\).*in flight"):
        keep.process(old)
    keys = operators_of(frame({"n": "int64"}).key_by("n"))[-1]
    with pytest.raises(UserCodeError, match=r"columns \(n: String\), expected \(n: Int64\).*in flight"):
        keys.process(old)


# Parquet.


def test_a_frame_of_columns_that_a_source_leaves_out_is_refused_when_it_is_written() -> None:
    stream = cc.Flow("shop").source(cc.files.read_parquet("in/*.parquet", columns=["b"]))
    with pytest.raises(FlowError, match=r"read_parquet\(columns=\['b'\]\) does not read a"):
        stream.frame({"a": "int64"})
    with pytest.raises(FlowError, match=r"does not read a"):
        stream.frame({"a": "int64", "b": "int64"})
    assert stream.frame({"b": "int64"}).schema == {"b": pl.Int64}


SAME: dict[str, tuple[Any, Any]] = {
    "list": (arrow.list_(arrow.int64()), [1, 2]),
    "struct": (arrow.struct([("a", arrow.string())]), {"a": "x"}),
    "list of structs": (arrow.list_(arrow.struct([("a", arrow.binary())])), [{"a": b"x"}]),
    "array": (arrow.list_(arrow.int64(), 2), [1, 2]),
    "time in microseconds": (arrow.time64("us"), time(1, 2, 3, 4)),
    "time in milliseconds": (arrow.time32("ms"), time(1, 2, 3)),
    "seconds": (arrow.timestamp("s", "UTC"), datetime(2020, 1, 1, tzinfo=UTC)),
    "dictionary": (arrow.dictionary(arrow.int32(), arrow.string()), "x"),
    "bytes of one length": (arrow.binary(2), b"xy"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_parquet_takes_every_type_that_a_frame_has_from_it(name: str, tmp_path: Path) -> None:
    kind, value = SAME[name]
    schema = arrow.schema([("v", kind)])
    made, sink = frame(schema), cc.files.write_parquet(tmp_path, schema)
    made.sink(sink)
    (rows,) = passed_through(frame(schema), [[{"v": value}, {"v": None}]])
    assert isinstance(sink, ParquetFiles)
    encoder = sink.encoder()
    data = encoder.add(rows) + encoder.finish()
    (tmp_path / "one.parquet").write_bytes(data)
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(tmp_path / "one.parquet").to_pylist() == [{"v": value}, {"v": None}]


def test_a_value_that_is_finer_than_its_column_in_parquet_is_refused(tmp_path: Path) -> None:
    sink = cc.files.write_parquet(tmp_path, {"t": "time64[us]"})
    assert isinstance(sink, ParquetFiles)
    fine = pl.DataFrame({"t": [1_001]}).select(pl.col("t").cast(pl.Time))
    with pytest.raises(ConnectorError, match=r"a value does not fit its column.*would lose data"):
        sink.encoder().add(FrameRows(fine))


def test_a_type_that_parquet_has_and_polars_can_not_hold_is_told(tmp_path: Path) -> None:
    import pyarrow.parquet

    wide = arrow.table({"d": arrow.array([1], arrow.decimal256(50, 2))})
    pyarrow.parquet.write_table(wide, tmp_path / "one.parquet")
    from crosscut.testing.sources import read_source

    found: Any = cc.files.read_parquet(f"{tmp_path}/*.parquet")
    with pytest.raises(ConnectorError, match="Polars can't hold the rows from row 0 on"):
        list(read_source(found.in_frames(())))


# The state of aggregates.


def fingerprint(keys: tuple[str, ...], schema: Any = None, **aggregates: Any) -> str:
    flow = cc.Flow("totals")
    made = source(flow).frame(schema or {"a": "string", "b": "string", "n": "int64"}, name="frame")
    aggregates = aggregates or {"n": pl.col("n").sum()}
    kept = made.key_by(*keys, name="key").agg(name="totals", emit="final", **aggregates)
    kept.sink(cc.collect(Path("x")), name="out")
    return flow.compile(2, 128).fingerprint


def test_state_of_other_keys_is_refused() -> None:
    numbers = {"a": "int64", "b": "string", "n": "int64"}
    found = [
        fingerprint(("a",)),
        fingerprint(("b",)),
        fingerprint(("a", "b")),
        fingerprint(("b", "a")),
        fingerprint(("a",), numbers),
    ]
    assert len(set(found)) == len(found)
    assert fingerprint(("a", "b")) == found[2]


def test_a_sum_goes_on_in_a_wider_column_with_the_same_state() -> None:
    total = pl.col("n").sum()
    assert fingerprint(("a",), n=total) == fingerprint(("a",), n=total.cast(pl.Int128))
    assert fingerprint(("a",), n=total) == fingerprint(("a",), n=total.cast(pl.Float64))
    assert fingerprint(("a",), n=total) != fingerprint(("a",), n=pl.col("n").cast(pl.Float64).sum())
    with pytest.raises(FlowError, match="not an aggregate that can be kept"):
        fingerprint(("a",), n=total.cast(pl.Int32))
    with pytest.raises(FlowError, match="not an aggregate that can be kept"):
        fingerprint(("a",), n=pl.col("n").max().cast(pl.Float64))
