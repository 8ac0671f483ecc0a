"""CSV, JSON lines and text, in and out: what can't be read or written is named."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import crosscut as cc
from crosscut.connectors.files.csv_sink import CsvFiles
from crosscut.connectors.files.file_encoders import Packed, Plain
from crosscut.connectors.files.text_sink import TextFiles
from crosscut.errors import ConnectorError, CrosscutError, SettingsError
from crosscut.testing.sources import read_source, read_split


@dataclass
class Word:
    text: str
    count: int


def encoded(sink: Any, *records: Any) -> str:
    encoder = sink.encoder()
    return str((encoder.add(list(records)) + encoder.finish()).decode())


def csv_files(*columns: str, **options: Any) -> CsvFiles:
    sink = cc.files.write_csv("out", list(columns), **options)
    assert isinstance(sink, CsvFiles)
    return sink


# CSV out.


def test_rows_come_from_tuples_dicts_dataclasses_and_functions() -> None:
    sink = csv_files("text", "count")
    assert encoded(sink, ("a", 1), {"count": 2, "text": "b", "more": 0}, Word("c", 3)) == (
        "text,count\na,1\nb,2\nc,3\n"
    )
    assert encoded(csv_files("n", row=lambda record: [record * 2], header=False), 1, 2) == "2\n4\n"


def test_values_have_one_form_in_csv() -> None:
    sink = csv_files("a", "b", "c", "d", "e", header=False)
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    record = (None, True, Decimal("1.50"), moment, 1e300)
    assert encoded(sink, record) == ",true,1.50,2026-01-02T03:04:05+00:00,1e+300\n"
    assert encoded(csv_files("a", "b", header=False, delimiter=";"), ("x;y", 'say "no"')) == (
        '"x;y";"say ""no"""\n'
    )
    assert encoded(csv_files("a", "b", header=False), ("x\ry", "\n")) == '"x\ry","\n"\n'


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ((b"raw", 1), "b'raw' of type bytes in row"),
        (([1], 1), "of type list in row"),
        (("a",), "it has 1 values"),
        ({"text": "a"}, "it has no count"),
        (("\ud800", 1), "is not valid Unicode"),
    ],
)
def test_a_record_that_is_no_row_of_csv_is_named_and_leaves_nothing(record: Any, words: str) -> None:
    encoder = csv_files("text", "count").encoder()
    with pytest.raises(ConnectorError, match=words):
        encoder.add([("good", 1), record])
    assert encoder.add([("a", 1)]) == b"text,count\na,1\n"


@pytest.mark.parametrize(
    "make",
    [
        lambda: cc.files.write_csv("out", []),
        lambda: cc.files.write_csv("out", "text"),
        lambda: cc.files.write_csv("out", ["a", "a"]),
        lambda: cc.files.write_csv("out", ["a"], delimiter="ab"),
        lambda: cc.files.write_csv("out", ["a"], row="a"),  # type: ignore[arg-type]
        lambda: cc.files.write_csv("ftp://host/out", ["a"]),
        lambda: cc.files.write_text("out", compression="zip"),  # type: ignore[arg-type]
        lambda: cc.files.read_csv("*.csv", columns=[]),
        lambda: cc.files.read_csv("*.csv", delimiter=""),
        lambda: cc.files.read_csv("*.csv", encoding="utf-16"),
        lambda: cc.files.read_csv("*.csv", types={"a": "int"}),  # type: ignore[dict-item]
        lambda: cc.files.read_csv("*.csv", columns=["a"], types={"b": int}),
        lambda: cc.files.read_jsonl("memory://x"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_at_once(make: Callable[[], Any]) -> None:
    with pytest.raises(CrosscutError, match=r"expected|twice|there is no column|not supported"):
        make()


# Text and packed files out.


@pytest.mark.parametrize("record", ["two\nlines", "ends with\r", 7, None, "\ud800"])
def test_a_record_that_is_no_line_of_text_is_named(record: Any) -> None:
    sink = cc.files.write_text("out")
    assert isinstance(sink, TextFiles)
    with pytest.raises(ConnectorError, match=r"is not a line for text|is not valid Unicode"):
        sink.encoder().add(["good", record])


def test_what_can_not_be_written_leaves_a_packed_file_as_it_was() -> None:
    def encode(records: list[Any]) -> bytes:
        if None in records:
            raise ConnectorError("no")
        return b"".join(records)

    encoder = Packed(Plain(encode), "gzip")
    data = encoder.add([b"a" * 1000])
    with pytest.raises(ConnectorError):
        encoder.add([b"b", None])
    data += encoder.add([b"c"]) + encoder.finish()
    assert gzip.decompress(data) == b"a" * 1000 + b"c"


# In.


def rows_of(directory: Path, content: bytes, **options: Any) -> list[Any]:
    (directory / "in.csv").write_bytes(content)
    return read_source(cc.files.read_csv(directory / "*.csv", **options))


def test_columns_come_from_the_header_or_from_the_user(tmp_path: Path) -> None:
    assert rows_of(tmp_path, b"a;b\n1;x\n\n2;y", delimiter=";", types={"a": int}) == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    assert rows_of(tmp_path, b"1,x\n", columns=["a", "b"]) == [{"a": "1", "b": "x"}]
    assert rows_of(tmp_path, b"\xef\xbb\xbfa,b\n1,x\n", encoding="utf-8-sig") == [{"a": "1", "b": "x"}]
    assert rows_of(tmp_path, b"a,b\n") == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a,b\n1\n", "it has 1 fields, and there are 2 columns"),
        (b"a,b\n1,x\n2,x,y\n", "it has 3 fields"),
        (b'a,b\n1,"never\nclosed\n', "row at byte 4, .* it has a quote that is never closed"),
        (b"a,a\n1,2\n", "as a header it has a name twice"),
        (b"b,c\n1,2\n", "as a header it lacks a"),
        (b"a,b\none,x\n", "column 'a': ValueError: invalid literal"),
        (b'a,b\n1,"x"y\n', "expected after"),
    ],
)
def test_a_file_that_is_no_csv_is_named_with_the_row(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(ConnectorError, match=words) as refused:
        rows_of(tmp_path, content, types={"a": int})
    assert "in.csv" in str(refused.value)


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(
        ConnectorError, match=r"in\.jsonl: the line at byte 9, '\{\"a\": ', can't be read as JSON"
    ):
        read_source(cc.files.read_jsonl(tmp_path / "*.jsonl"))


def test_what_a_sink_writes_a_source_reads(tmp_path: Path) -> None:
    records = [{"text": 'a,"b"\n\rü' * (i % 4), "count": i} for i in range(100)]
    for name, sink in (
        ("csv", csv_files("text", "count")),
        ("jsonl.gz", cc.files.write_jsonl("out", compression="gzip")),
    ):
        encoder = sink._encoder()  # type: ignore[attr-defined]
        (tmp_path / f"part.{name}").write_bytes(
            encoder.add(records[:50]) + encoder.add(records[50:]) + encoder.finish()
        )
    assert read_source(cc.files.read_csv(tmp_path / "part.csv", types={"count": int})) == records
    assert read_source(cc.files.read_jsonl(tmp_path / "part.jsonl.gz")) == records


zstd_packed = pytest.importorskip("zstandard", reason="pip install 'crosscut[zstd]'").compress
ZSTD = zstd_packed(b"line\n" * 1_000)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("in.txt.gz", b"not packed at all", "Not a gzipped file"),
        ("in.txt.gz", gzip.compress(b"line\n" * 1000, mtime=0)[:-20], "EOFError"),
        ("in.txt.xz", b"not packed at all", "LZMAError"),
        ("in.txt.7z", b"whatever", "packed in a way that can't be read"),
        ("in.txt.zst", b"whatever", "damaged"),
        ("in.txt.zst", ZSTD[:-4], "ends in the middle of a frame"),
        ("in.txt.zst", ZSTD + ZSTD[:5], "ends in the middle of a frame"),
    ],
)
def test_a_packed_file_that_can_not_be_read_is_named(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConnectorError, match=words) as refused:
        read_source(cc.files.read_text(tmp_path / "in.*"))
    assert name in str(refused.value)


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
def test_a_packed_file_that_has_become_shorter_is_not_taken_for_read(tmp_path: Path, suffix: str) -> None:
    """I12: cut where one part of it ends and the next begins, it is whole as far as anybody can tell."""
    pack: dict[str, Callable[[bytes], bytes]] = {
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "xz": lzma.compress,
        "zst": zstd_packed,
    }
    part = pack[suffix](b"line\n" * 20)
    path = tmp_path / f"in.txt.{suffix}"
    path.write_bytes(part + part)
    source = cc.files.read_text(path)
    (split,) = source.splits(1)
    reader = source.reader(split, 0)
    found: list[str] = []
    while len(found) < 30:
        lines = reader.read(30 - len(found))
        found += lines if isinstance(lines, list) else []
    position = reader.position
    reader.close()
    path.write_bytes(part)
    with pytest.raises(ConnectorError, match=r"has 100 bytes, expected at least 149: it was cut or replaced"):
        source.reader(split, position)


def test_secrets_in_a_url_are_not_shown() -> None:
    source = cc.files.read_csv("nosuch://user:opensesame@host/in/*.csv")
    assert "opensesame" not in source.describe()
    with pytest.raises(ConnectorError, match="nosuch") as refused:
        source.splits(1)
    assert "opensesame" not in str(refused.value)


def test_an_encoding_is_checked_before_a_file_is_looked_for() -> None:
    with pytest.raises(SettingsError, match=r"read_csv\(encoding='utf-16'\)"):
        cc.files.read_csv("*.csv", encoding="utf-16")


# Parquet.


def parquet_of(directory: Path, schema: Any, *batches: list[Any], **options: Any) -> Path:
    pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")
    sink = cc.files.write_parquet(directory, schema, **options)
    encoder = sink._encoder()  # type: ignore[attr-defined]
    path = directory / "part.parquet"
    path.write_bytes(b"".join([encoder.add(batch) for batch in batches]) + encoder.finish())
    return path


def test_rows_of_parquet_come_back_as_they_were_written(tmp_path: Path) -> None:
    schema = {"text": "string", "count": "int64", "at": "timestamp[us, tz=UTC]", "raw": "binary"}
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    rows = [{"text": f"ü{i}", "count": None if i % 3 else i, "at": moment, "raw": b"x"} for i in range(100)]
    parquet_of(tmp_path, schema, rows[:30], rows[30:], codec="zstd")
    assert read_source(cc.files.read_parquet(tmp_path / "*.parquet")) == rows
    some = cc.files.read_parquet(tmp_path / "*.parquet", columns=["count"])
    assert read_source(some) == [{"count": row["count"]} for row in rows]


def test_many_rows_become_several_row_groups(tmp_path: Path) -> None:
    library = pytest.importorskip("pyarrow.parquet", reason="pip install 'crosscut[parquet]'")
    batches = [[(i * 1_000 + j,) for j in range(1_000)] for i in range(40)]
    path = parquet_of(tmp_path, {"n": "int64"}, *batches)
    found = library.ParquetFile(path)
    assert (found.metadata.num_row_groups, found.metadata.num_rows) == (3, 40_000)
    assert found.read()["n"].to_pylist() == list(range(40_000))


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (("a", "1"), r"row \('a', '1'\) does not fit the schema \(text: string, count: int64\)"),
        (("a", 1.5), "does not fit the schema"),
        (("a", 2**70), "does not fit the schema"),
        ((1, 1), "does not fit the schema"),
        (("a",), "it has 1 values"),
    ],
)
def test_a_record_that_is_no_row_of_parquet_is_named_and_leaves_nothing(
    tmp_path: Path, record: Any, words: str
) -> None:
    pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")
    sink = cc.files.write_parquet(tmp_path, {"text": "string", "count": "int64"})
    encoder = sink._encoder()  # type: ignore[attr-defined]
    with pytest.raises(ConnectorError, match=words):
        encoder.add([("good", 1), record])
    data = encoder.add([("a", 1)]) + encoder.finish()
    (tmp_path / "part.parquet").write_bytes(data)
    assert read_source(cc.files.read_parquet(tmp_path / "*.parquet")) == [{"text": "a", "count": 1}]


def kinds_and_values() -> list[Any]:
    arrow = pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")
    noon = datetime(2026, 1, 2, 12, 0, 0, 5)
    return [
        (arrow.int32(), [1, None, -5], [1.5, Decimal(1)]),
        (arrow.timestamp("us"), [noon], [noon.replace(tzinfo=UTC), 0.9, Decimal(1)]),
        (arrow.timestamp("us", tz="UTC"), [noon.replace(tzinfo=UTC)], [noon, 0.9]),
        (arrow.timestamp("ms"), [noon.replace(microsecond=7_000)], [noon]),
        (arrow.date32(), [noon.date()], [noon, 7]),
        (arrow.time32("s"), [noon.time().replace(microsecond=0)], [noon.time()]),
        (arrow.time64("us"), [noon.time()], [noon.time().replace(tzinfo=UTC), -1, 86_400_000_000, 1.5]),
        (arrow.duration("s"), [timedelta(seconds=5)], [timedelta(milliseconds=5), 1.5]),
        (arrow.list_(arrow.int64()), [[1], [], None], [[1.5]]),
        (arrow.struct([("a", arrow.int64())]), [{"a": 1}, {"a": None}], [{"a": 1.5}, {"a": 1, "b": 2}]),
        (arrow.map_(arrow.string(), arrow.int8()), [[("a", 1)]], [[("a", 1.5)], {"a": 1.5}]),
        (arrow.string(), ["a"], [b"\xff", 1]),
        (arrow.float64(), [0.1], [2**60 + 1, "1"]),
        (arrow.float32(), [0.5, float("inf")], [1e300]),
        (arrow.float16(), [0.5], [70_000.0, 2**40]),
    ]


def test_a_value_that_a_column_would_change_is_refused(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")
    for kind, good, bad in kinds_and_values():
        schema = arrow.schema([("value", kind)])
        path = parquet_of(tmp_path, schema, [(value,) for value in good])
        assert [row["value"] for row in read_source(cc.files.read_parquet(path))] == good, kind
        for value in bad:
            with pytest.raises(ConnectorError, match="does not fit the schema"):
                parquet_of(tmp_path, schema, [(good[0],), (value,)])


def test_a_missing_value_within_another_is_refused_before_it_is_written(tmp_path: Path) -> None:
    """P6. pyarrow finds it when the row group is written: at prepare, without a record."""
    arrow = pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")
    whole = arrow.field("whole", arrow.int64(), nullable=False)
    for kind, good, bad in [
        (arrow.list_(whole), [1], [1, None]),
        (arrow.struct([whole]), {"whole": 1}, {"whole": None}),
        (arrow.struct([arrow.field("all", arrow.list_(whole))]), {"all": [1]}, {"all": [None]}),
        (arrow.map_(arrow.string(), whole), [("a", 1)], [("a", None)]),
    ]:
        parquet_of(tmp_path, arrow.schema([("value", kind)]), [(good,), (None,)])
        with pytest.raises(ConnectorError, match=r"does not fit the schema .* does not accept None"):
            parquet_of(tmp_path, arrow.schema([("value", kind)]), [(good,), (bad,)])


def test_a_type_that_parquet_has_no_form_for_is_refused_at_once() -> None:
    """P6."""
    arrow = pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")
    for kind in (arrow.month_day_nano_interval(), arrow.struct([])):
        with pytest.raises(ConnectorError, match="Parquet has no form for column 'b' of type"):
            cc.files.write_parquet("out", arrow.schema([("a", arrow.int64()), ("b", kind)]))


def test_a_schema_of_pyarrow_may_say_what_must_not_be_missing(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")
    schema = arrow.schema([arrow.field("tags", arrow.list_(arrow.string()), nullable=False)])
    parquet_of(tmp_path, schema, [{"tags": ["a", "b"]}, {"tags": []}])
    assert read_source(cc.files.read_parquet(tmp_path / "*")) == [{"tags": ["a", "b"]}, {"tags": []}]
    with pytest.raises(ConnectorError, match="column 'tags' does not accept None"):
        parquet_of(tmp_path, schema, [{"tags": None}])


def test_what_is_no_parquet_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")
    (tmp_path / "in.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(ConnectorError, match=r"can't read .*in\.parquet"):
        cc.files.read_parquet(tmp_path / "*.parquet").splits(1)
    path = parquet_of(tmp_path, {"n": "int64"}, [(1,), (2,)])
    (tmp_path / "in.parquet").unlink()
    with pytest.raises(ConnectorError, match="has no column word; it has n"):
        cc.files.read_parquet(path, columns=["word"]).splits(1)
    source = cc.files.read_parquet(path)
    (split,) = source.splits(1)
    parquet_of(tmp_path, {"n": "int64"}, [(1,)])
    with pytest.raises(ConnectorError, match="has fewer than 2 rows"):
        read_split(source, split)


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        ({}, {}),
        ({"a": "integer"}, {}),
        ({"a": int}, {}),
        (["a"], {}),
        ({"a": "int64"}, {"codec": "lz77"}),
        ({"a": "int64"}, {"row": 1}),
    ],
)
def test_a_schema_that_makes_no_sense_is_refused_at_once(schema: Any, options: Any) -> None:
    pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")
    with pytest.raises(ConnectorError, match="expected"):
        cc.files.write_parquet("out", schema, **options)
