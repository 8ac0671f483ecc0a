"""Rows of CSV: what a row is, how long it may be, and what becomes of one that can't be read."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import crosscut as cc
from crosscut.errors import ConnectorError, SettingsError
from crosscut.testing.sources import check_positions, check_restarts, read_source

PIECES = st.lists(st.sampled_from(["a", '"', '""', ",", "\n", "\r\n", ',"', '",']), max_size=24).map("".join)


def written(directory: Path, text: str | bytes, name: str = "in.csv") -> Path:
    (directory / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return directory / name


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=PIECES)
@example(text='1,5" disk\n2,ok\n3,6" disk\n')
@example(text='a"a,"b\nc",d\n')
@example(text='a",a"\n"\n",b\n')
def test_rows_are_those_of_the_csv_module(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """P10. A quote opens a field only where the field begins."""
    path = written(tmp_path_factory.mktemp("csv"), f"1,2\n{text}")
    try:
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file, strict=True) if row]
    except csv.Error:
        rows = []
    expected = [dict(zip("ab", (one.replace("\r\n", "\n") for one in row), strict=False)) for row in rows]
    source = cc.files.read_csv(path, columns=["a", "b"])
    if rows and all(len(row) == 2 for row in rows):
        assert read_source(source) == expected
        check_restarts(source)
        check_positions(source)
    else:
        with pytest.raises(ConnectorError, match=r"in\.csv: the row at byte \d+"):
            read_source(source)


def test_a_field_may_be_as_long_as_a_row(tmp_path: Path) -> None:
    """The csv module refuses fields above 131,072 characters."""
    path = written(tmp_path, f'id,t\n1,{"x" * 300_000}\n2,"{"y" * 9 + chr(10)}{"z," * 200_000}"\n')
    found = read_source(cc.files.read_csv(path))
    assert [(row["id"], len(row["t"])) for row in found] == [("1", 300_000), ("2", 400_010)]


OPEN = 'n,t\n1,a\n2,"never closed\n' + "x\n" * 2_000


def test_a_quote_that_is_never_closed_costs_no_more_than_a_row(tmp_path: Path) -> None:
    """P8."""
    source = cc.files.read_csv(written(tmp_path, OPEN), row_bytes_max=1_000)
    with pytest.raises(ConnectorError, match=r"in\.csv: the row at byte 8, .*longer than 1000 bytes"):
        read_source(source)


def kept(text: str, error: ConnectorError) -> Any:
    return text[:9], str(error).partition(": ")[2][:20]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,a\n2\n3,c\n", [1, ("2", "the row at byte 8, '"), 3]),
        ("1,a\nx,b\n3,c\n", [1, ("x,b", "the row at byte 8, '"), 3]),
        ('1,a\n2,"b"b\n3,c\n', [1, ('2,"b"b', "the row at byte 8, '"), 3]),
        (
            '1,a\n2,"b\nb"b\n3,c\n4,d,e\n',
            [1, ('2,"b\nb"b', "the row at byte 8, '"), 3, ("4,d,e", "the row at byte 21, ")],
        ),
        (f"1,a\n2,{'b' * 2_000}\n3,c\n", [1, ("2,bbbbbbb", "the line at byte 8 i"), 3]),
        (f"1,a\n2,{'b' * 400_000}", [1, ("2,bbbbbbb", "the line at byte 8 i")]),
        ('1,a\n2,"' + "b\n" * 900 + '"\n3,c\n', [1, ('2,"b\nb\nb\n', "the row at byte 8, '"), 3]),
        ('1,a\n2,"b\nb\n', [1, ('2,"b\nb', "the row at byte 8, '")]),
        ('1,a\n2,"b\n' + "b" * 2_000 + '"\n3,c\n', [1, ('2,"b', "the line at byte 13 "), 3]),
    ],
)
def test_a_row_that_can_not_be_read_becomes_what_malformed_says(
    tmp_path: Path, text: str, expected: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """P8. Exact, also through restarts: each is set aside once."""
    path = written(tmp_path, f"n,t\n{text}")
    source = cc.files.read_csv(path, types={"n": int}, malformed=kept, row_bytes_max=1_000)
    assert [row["n"] if isinstance(row, dict) else row for row in read_source(source)] == expected
    check_restarts(source)
    skipping = cc.files.read_csv(path, types={"n": int}, malformed="skip", row_bytes_max=1_000)
    with caplog.at_level(logging.WARNING, "crosscut.files"):
        caplog.clear()
        good = [row["n"] for row in read_source(skipping)]
    assert good == [one for one in expected if isinstance(one, int)]
    assert len(caplog.records) == len(expected) - len(good)
    with pytest.raises(ConnectorError, match="at byte"):
        read_source(cc.files.read_csv(path, types={"n": int}, row_bytes_max=1_000))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"n": 1}\n{"n": \n\n3\n', [{"n": 1}, ('{"n": ', "the line at byte 9, "), 3]),
        (f"1\n{'[' * 300}{']' * 300}\n3\n", [1, ("[[[[[[[[[", "the line at byte 2, "), 3]),
        (f"1\n[{'2,' * 1_000}2]\n3\n", [1, ("[2,2,2,2,", "the line at byte 2 i"), 3]),
        (f"1\n[{'2,' * 300_000}", [1, ("[2,2,2,2,", "the line at byte 2 i")]),
    ],
)
def test_a_line_that_is_no_json_becomes_what_malformed_says(
    tmp_path: Path, text: str, expected: list[Any]
) -> None:
    """P8."""
    path = written(tmp_path, text, "in.jsonl")
    source = cc.files.read_jsonl(path, malformed=kept, line_bytes_max=1_000)
    assert read_source(source) == expected
    check_restarts(source)
    good = [one for one in expected if not isinstance(one, tuple)]
    assert read_source(cc.files.read_jsonl(path, malformed="skip", line_bytes_max=1_000)) == good
    with pytest.raises(ConnectorError, match=r"in\.jsonl: the line at byte"):
        read_source(cc.files.read_jsonl(path, line_bytes_max=1_000))


@pytest.mark.parametrize("read", [cc.files.read_csv, cc.files.read_jsonl])
def test_what_malformed_can_not_be_is_refused_at_once(read: Any) -> None:
    with pytest.raises(SettingsError, match="expected 'fail', 'skip', or a function"):
        read("in/*", malformed="drop")
