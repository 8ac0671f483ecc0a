"""Parquet in: every value comes out as it was written, or its file, column and row are named."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crosscut as cc
from crosscut.connectors.files import parquet_limits
from crosscut.connectors.files.parquet_limits import BATCH_BYTES_MAX, rows_at_once, start_of
from crosscut.connectors.files.parquet_pages import pages_of
from crosscut.errors import ConnectorError
from crosscut.testing.sources import next_batch, read_source

arrow = pytest.importorskip("pyarrow", reason="pip install 'crosscut[parquet]'")
parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'crosscut[parquet]'")

MOMENTS = [
    datetime(9999, 12, 31, 23, 59, 59, 999_999),
    datetime(1, 1, 1),
    datetime(1900, 1, 1, 0, 0, 0, 1),
    None,
]


def written(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    parquet.write_table(arrow.table(columns), path, **options)
    return path


def test_times_of_int96_come_out_in_microseconds_at_any_depth(tmp_path: Path) -> None:
    """P10. Spark writes INT96 by default; nanoseconds would end in 2262 and begin again in 1677."""
    columns = {
        "at": arrow.array(MOMENTS, arrow.timestamp("us")),
        "all": arrow.array([[one] for one in MOMENTS], arrow.list_(arrow.timestamp("us"))),
    }
    path = written(
        tmp_path / "spark.parquet", columns, use_deprecated_int96_timestamps=True, store_schema=False
    )
    assert read_source(cc.files.read_parquet(path)) == [{"at": one, "all": [one]} for one in MOMENTS]


def in_nanoseconds(count: int) -> dict[str, Any]:
    zone = arrow.timestamp("ns", tz="UTC")
    plain = arrow.timestamp("ns")
    return {
        "at": arrow.array([None, count], plain),
        "zoned": arrow.array([count, count], zone),
        "time": arrow.array([count, count], arrow.time64("ns")),
        "lasted": arrow.array([count, count], arrow.duration("ns")),
        "often": arrow.array([count, count], plain).dictionary_encode(),
        "several": arrow.array([[], [{"at": count}]], arrow.list_(arrow.struct([("at", plain)]))),
        "large": arrow.array([[], [count]], arrow.large_list(plain)),
        "pair": arrow.array([None, [count, None]], arrow.list_(plain, 2)),
        "named": arrow.array([[], [("a", count)]], arrow.map_(arrow.string(), plain)),
    }


def test_nanoseconds_become_microseconds_where_nothing_is_lost(tmp_path: Path) -> None:
    """P10. The types are Python's own, whether or not pandas is installed."""
    path = written(tmp_path / "whole.parquet", in_nanoseconds(5_000))
    at, lasted = datetime(1970, 1, 1, 0, 0, 0, 5), timedelta(microseconds=5)
    zoned, clock = at.replace(tzinfo=UTC), time(0, 0, 0, 5)
    same = {"zoned": zoned, "time": clock, "lasted": lasted, "often": at}
    found = read_source(cc.files.read_parquet(path))
    assert found == [
        {"at": None, **same, "several": [], "large": [], "pair": None, "named": []},
        {"at": at, **same, "several": [{"at": at}], "large": [at], "pair": [at, None], "named": [("a", at)]},
    ]
    assert [type(found[0][name]) for name in ("zoned", "lasted")] == [datetime, timedelta]


@pytest.mark.parametrize("name", in_nanoseconds(5_001))
def test_a_part_of_a_microsecond_is_refused_with_file_column_and_row(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "parts.parquet", {name: in_nanoseconds(5_001)[name]})
    row = 1 if name in ("at", "several", "large", "pair", "named") else 0
    with pytest.raises(ConnectorError, match=rf"parts\.parquet: column '{name}' .*row {row}") as caught:
        read_source(cc.files.read_parquet(path))
    assert "pandas" not in str(caught.value)


@pytest.mark.parametrize(
    "column",
    [
        arrow.array([0, 2**60], arrow.timestamp("us")),
        arrow.array([0, -(2**60)], arrow.timestamp("us")),
        arrow.array([0, 2**60], arrow.timestamp("us", tz="UTC")),
        arrow.array([0, 2**30], arrow.date32()),
        arrow.array([b"good", b"\xff"], arrow.binary()).view(arrow.string()),
    ],
)
def test_a_value_that_python_has_none_for_is_refused_with_file_column_and_row(
    tmp_path: Path, column: Any
) -> None:
    """P10."""
    path = written(tmp_path / "far.parquet", {"good": arrow.array([1, 2]), "bad": column})
    with pytest.raises(ConnectorError, match=r"far\.parquet: column 'bad' .*row 1"):
        read_source(cc.files.read_parquet(path))
    some = cc.files.read_parquet(path, columns=["good"])
    assert read_source(some) == [{"good": 1}, {"good": 2}]


def test_the_row_that_is_named_is_counted_in_the_file(tmp_path: Path) -> None:
    days = arrow.array([date(2026, 1, 1)] * 9_999, arrow.date32())
    column = arrow.concat_arrays([days, arrow.array([2**30], arrow.date32())])
    path = written(tmp_path / "long.parquet", {"day": column}, row_group_size=4_000)
    with pytest.raises(ConnectorError, match="row 9999, value 1073741824"):
        read_source(cc.files.read_parquet(path))


def rows_of_first_group(path: Path, columns: list[str] | None = None) -> int:
    with path.open("rb", buffering=0) as raw:
        return rows_at_once(parquet.ParquetFile(raw), raw, 0, columns, 4_096, str(path))


LONG = ["x" * 200_000] * 400


@pytest.mark.parametrize(
    "column",
    [
        arrow.array(["", *LONG]),
        arrow.array([None, *LONG], arrow.large_binary()),
        arrow.array([[], *([one] for one in LONG)]),
        arrow.array([[], *([(one, one[:1])] for one in LONG)], arrow.map_(arrow.string(), arrow.string())),
        arrow.array([[], *([("a", one)] for one in LONG)], arrow.map_(arrow.string(), arrow.string())),
        arrow.array([{"a": {"b": [one]}} for one in LONG]),
    ],
)
def test_long_values_of_a_dictionary_are_not_decoded_for_many_rows_at_once(
    tmp_path: Path, column: Any
) -> None:
    """P8. A few hundred bytes, and 80 MB of rows; it might be any number."""
    path = written(tmp_path / "small.parquet", {"a": column, "n": range(len(column))}, compression="zstd")
    assert path.stat().st_size < 50_000
    assert 1 <= rows_of_first_group(path) <= BATCH_BYTES_MAX // 200_000
    assert rows_of_first_group(path, ["n"]) == 4_096
    source = cc.files.read_parquet(path)
    reader = source.reader(source.splits(1)[0], 390)
    found: list[Any] = []
    while batch := next_batch(reader, 5):
        found += batch
    reader.close()
    assert found == arrow.table({"a": column, "n": range(len(column))}).slice(390).to_pylist()


def test_ordinary_rows_are_decoded_by_thousands(tmp_path: Path) -> None:
    columns = {
        "text": arrow.array([f"text {n % 5_000}" for n in range(10_000)]),
        "words": arrow.array([[f"a{n}", "b"] for n in range(10_000)]),
        "raw": arrow.array([n.to_bytes(8, "big") for n in range(10_000)], arrow.binary(8)),
        "vector": arrow.array([[0.5] * 20] * 10_000),
    }
    assert rows_of_first_group(written(tmp_path / "in.parquet", columns)) == 4_096
    large = arrow.array([bytes([n]) * 1_000_000 for n in range(100)])
    assert rows_of_first_group(written(tmp_path / "large.parquet", {"a": large}, use_dictionary=False)) == 67


def test_a_row_that_is_too_large_is_refused_with_the_file_and_the_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8."""
    monkeypatch.setattr(parquet_limits, "ROW_BYTES_MAX", 1_000_000)
    zeros = arrow.repeat(0, 200_000)

    lists = arrow.ListArray.from_arrays(arrow.array([0, len(zeros)], arrow.int32()), zeros)
    path = written(tmp_path / "small.parquet", {"a": lists, "n": [1]})
    with pytest.raises(
        ConnectorError, match=r"small\.parquet: row group 0, column 'a.*': rows of about 1.6e\+06"
    ):
        read_source(cc.files.read_parquet(path))
    assert read_source(cc.files.read_parquet(path, columns=["n"])) == [{"n": 1}]


PAGED = {
    "text": arrow.array([f"{n % 7_000} {'x' * (n % 50)}" for n in range(20_000)]),
    "all": arrow.array([[n, None] for n in range(20_000)]),
    "long": arrow.array(["a" * 3_000, "b" * 3_000] * 10_000),
}


@pytest.mark.parametrize(
    "options", [{}, {"data_page_version": "2.0"}, {"write_page_index": True, "write_page_checksum": True}]
)
def test_the_pages_of_a_file_have_the_sizes_that_their_headers_say(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """The footer counts the headers in."""
    path = written(tmp_path / "in.parquet", PAGED, compression="zstd", row_group_size=9_000, **options)
    with path.open("rb", buffering=0) as raw:
        metadata = parquet.ParquetFile(raw).metadata
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for chunk in map(group.column, range(metadata.num_columns)):
                pages = list(pages_of(raw, start_of(chunk), chunk.total_compressed_size))
                assert [one.is_dictionary for one in pages] == [True] + [False] * (len(pages) - 1)
                sizes = [one.unpacked_bytes for one in pages]
                headers = chunk.total_uncompressed_size - sum(sizes)
                assert 10 * len(sizes) < headers < 15_000 * len(sizes)


def test_a_page_that_is_too_large_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8. Rows are small, and the footer might say anything."""
    options = {"use_dictionary": False, "data_page_size": 1 << 30, "compression": "zstd"}
    path = written(tmp_path / "in.parquet", {"a": ["x" * 2_000] * 2_000, "n": range(2_000)}, **options)
    assert len(read_source(cc.files.read_parquet(path))) == 2_000
    monkeypatch.setattr(parquet_limits, "PAGE_BYTES_MAX", 1_000_000)
    with pytest.raises(ConnectorError, match=r"in\.parquet: row group 0, column 'a': a page of 4\d+ bytes"):
        read_source(cc.files.read_parquet(path))
    assert len(read_source(cc.files.read_parquet(path, columns=["n"]))) == 2_000


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_beginnings_that_values_share_are_counted_in_each_of_them(tmp_path: Path, version: str) -> None:
    """P8. 463 bytes became 1.2 GB; here they become 300 MB."""
    texts = ["x" * 300_000] * 1_000
    options: dict[str, Any] = {
        "use_dictionary": False,
        "column_encoding": {"a": "DELTA_BYTE_ARRAY"},
        "compression": "zstd",
    }
    path = written(tmp_path / "in.parquet", {"a": texts}, data_page_version=version, **options)
    assert path.stat().st_size < 1_000
    assert rows_of_first_group(path) < 300
    # Lists of ordinary values are not refused for what they could be.
    options["column_encoding"] = {"a.list.element": "DELTA_BYTE_ARRAY"}
    many = written(tmp_path / "many.parquet", {"a": [["some text"] * 500] * 100}, **options)
    assert len(read_source(cc.files.read_parquet(many))) == 100


def test_pages_are_looked_at_from_where_they_are_read_whatever_the_footer_says_of_a_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow takes no dictionary behind the first page of data."""
    texts = ["a" * 60_000] * 3
    path = written(tmp_path / "in.parquet", {"a": texts}, compression="zstd")
    chunk = parquet.ParquetFile(path).metadata.row_group(0).column(0)
    dictionary, first = chunk.dictionary_page_offset, chunk.data_page_offset
    assert dictionary == 4
    assert first < 64
    data = path.read_bytes()
    said = bytes((0x26, 2 * first, 0x26, 2 * dictionary))
    assert data.count(said) == 1
    path.write_bytes(data.replace(said, bytes((0x26, 2 * dictionary, 0x26, 2 * first))))
    assert read_source(cc.files.read_parquet(path)) == [{"a": one} for one in texts]
    monkeypatch.setattr(parquet_limits, "PAGE_BYTES_MAX", 50_000)
    with pytest.raises(ConnectorError, match=r"in\.parquet: row group 0, column 'a': a page of 60004 bytes"):
        read_source(cc.files.read_parquet(path))


def test_a_dictionary_that_the_footer_does_not_tell_of_is_found(tmp_path: Path) -> None:
    """P8. Older writers did not tell of it, and neither does whoever wants a reader to run out of memory."""
    path = written(tmp_path / "in.parquet", {"a": ["x" * 1_000_000] * 1_000}, compression="zstd")
    chunk = parquet.ParquetFile(path).metadata.row_group(0).column(0)
    data = path.read_bytes()
    # Thrift: a byte says how far it is from one field to the next, and of which type that is.
    said = bytes((0x26, *varint(2 * chunk.data_page_offset), 0x26, 2 * chunk.dictionary_page_offset))
    before, behind = data.split(said)
    assert before.count(bytes((0x35, 0x00, 0x06, 0x10))) == 1
    before = before.replace(bytes((0x35, 0x00, 0x06, 0x10)), bytes((0x35, 0x00, 0x06, 0x00)))
    changed = before + bytes((0x26, 2 * chunk.dictionary_page_offset, behind[0] + 0x20)) + behind[1:]
    footer_bytes = int.from_bytes(data[-8:-4], "little") - (len(data) - len(changed))
    path.write_bytes(changed[:-8] + footer_bytes.to_bytes(4, "little") + changed[-4:])
    found = parquet.ParquetFile(path)
    chunk = found.metadata.row_group(0).column(0)
    assert not chunk.has_dictionary_page
    assert "RLE_DICTIONARY" not in chunk.encodings
    assert next(found.iter_batches(1)).num_rows == 1
    assert rows_of_first_group(path) <= BATCH_BYTES_MAX // 1_000_000


def varint(number: int) -> list[int]:
    return [number] if number < 128 else [number & 127 | 128, *varint(number >> 7)]


@given(data=st.binary(max_size=60))
def test_what_is_no_page_is_an_error(data: bytes) -> None:
    try:
        pages = list(pages_of(io.BytesIO(data), 0, len(data)))
    except ValueError:
        return
    assert all(page.unpacked_bytes >= 0 for page in pages)


def test_a_column_name_used_twice_is_refused(tmp_path: Path) -> None:
    """P10. A row is a dict, so one of the two would be lost."""
    table = arrow.table([arrow.array([1]), arrow.array([2]), arrow.array([3])], names=["a", "b", "a"])
    parquet.write_table(table, tmp_path / "twice.parquet")
    with pytest.raises(ConnectorError, match=r"twice\.parquet has several columns called a"):
        read_source(cc.files.read_parquet(tmp_path / "*.parquet"))
    assert read_source(cc.files.read_parquet(tmp_path / "*.parquet", columns=["b"])) == [{"b": 2}]
