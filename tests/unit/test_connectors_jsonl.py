"""JSON lines: what is written, and what is refused rather than changed."""

from __future__ import annotations

import json
import pickle
from collections import namedtuple
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.connectors.files.jsonl import encoded_lines, write_jsonl
from crosscut.errors import ConnectorError

Point = namedtuple("Point", "x y")
NAN = float("nan")


class Temperature(Enum):
    UNKNOWN = NAN
    ZERO = 0.0


@dataclass
class Reading:
    value: float | None
    day: date | None = None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(json_values, min_size=1, max_size=20))
def test_every_json_value_comes_back_from_its_own_line(records: list[Any]) -> None:
    encoded = encoded_lines(records, "out")
    assert encoded.endswith(b"\n")
    assert [json.loads(line) for line in encoded[:-1].split(b"\n")] == records


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (("word", 3), b'["word",3]\n'),
        (Point(1, (2, 3)), b"[1,[2,3]]\n"),
        (2**70, b"1180591620717411303424\n"),
        ({"n": -(2**64), "nothing": None}, b'{"n":-18446744073709551616,"nothing":null}\n'),
        (Reading(1.5, date(2024, 2, 29)), b'{"value":1.5,"day":"2024-02-29"}\n'),
        (Reading(None), b'{"value":null,"day":null}\n'),
        ([Temperature.ZERO, None], b"[0.0,null]\n"),
        ("null", b'"null"\n'),
        ("two\nlines,\n,", b'"two\\nlines,\\n,"\n'),
    ],
)
def test_other_values_are_written_as_documented(record: Any, line: bytes) -> None:
    assert encoded_lines([record], "out") == line
    assert encoded_lines(["before", record, 7], "out") == b'"before"\n' + line + b"7\n"


@pytest.mark.parametrize(
    "record",
    [
        NAN,
        [1.0, float("-inf")],
        {"deep": [{"er": NAN}], "nothing": None},
        Reading(NAN),
        [Reading(NAN, date(2024, 2, 29))],
        Temperature.UNKNOWN,
        [2**70, NAN],
    ],
)
def test_nan_and_infinity_are_refused_since_they_would_become_null(record: Any) -> None:
    with pytest.raises(ConnectorError, match=r"to out: .*(NaN|JSON compliant)"):
        encoded_lines([None, record, "null"], "out")


def nested(depth: int) -> list[Any]:
    record: list[Any] = []
    for _ in range(depth):
        record = [record]
    return record


@pytest.mark.parametrize(
    "record",
    [
        object(),
        {1, 2},
        b"bytes",
        {("a", "b"): 1},
        nested(100_000),
        orjson.Fragment(b"[1,\n2]"),
        {1: "a", "1": "b"},
        [{"inside": ({True: 1, "true": 2},)}],
    ],
    ids=["object", "set", "bytes", "tuple key", "too deep", "fragment of two lines", "same keys", "inside"],
)
def test_a_record_that_cannot_be_json_is_shown_shortened(record: Any) -> None:
    """K2."""
    with pytest.raises(ConnectorError, match="can't be written as JSON to out") as caught:
        encoded_lines(["fine", record], "out")
    assert len(str(caught.value)) < 1_000
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_the_directory_is_absolute_and_may_be_a_file_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert write_jsonl("out") == write_jsonl(tmp_path / "out") == write_jsonl(f"file://{tmp_path}/out")
    assert write_jsonl("s3://key:secret@bucket/out/").describe() == "s3://***@bucket/out"
    for url in ("ftp://host/out", "memory://out", "s3://"):
        with pytest.raises(ConnectorError, match="an object store in which a copy appears as a whole"):
            write_jsonl(url)
    with pytest.raises(ConnectorError, match="not a path"):
        write_jsonl("")


def test_check_leaves_no_trace(tmp_path: Path) -> None:
    """The job may still be refused, or be finished already."""
    (tmp_path / "old").mkdir()
    write_jsonl(tmp_path / "new").check()
    write_jsonl(tmp_path / "old").check()
    assert [p.name for p in tmp_path.rglob("*")] == ["old"]


def test_check_says_why_a_directory_cannot_be_used(tmp_path: Path) -> None:
    """D4: found on the driver, before anything starts."""
    (tmp_path / "file").touch()
    with pytest.raises(ConnectorError, match=r"\S+/file/out: Not a directory; choose a path"):
        write_jsonl(tmp_path / "file" / "out").check()
