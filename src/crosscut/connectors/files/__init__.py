"""Files as sources and sinks: `crosscut.files.lines`, `crosscut.files.jsonl`, `crosscut.files.csv`, ..."""

from __future__ import annotations

from crosscut.connectors.files.csv_sink import csv_sink as csv
from crosscut.connectors.files.csv_source import read_csv
from crosscut.connectors.files.jsonl import jsonl
from crosscut.connectors.files.jsonl_source import read_jsonl
from crosscut.connectors.files.lines import lines
from crosscut.connectors.files.merging import compact
from crosscut.connectors.files.parquet_sink import parquet
from crosscut.connectors.files.parquet_source import read_parquet
from crosscut.connectors.files.text_sink import text
from crosscut.connectors.files.watch import watch

__all__ = [
    "compact",
    "csv",
    "jsonl",
    "lines",
    "parquet",
    "read_csv",
    "read_jsonl",
    "read_parquet",
    "text",
    "watch",
]


def __dir__() -> list[str]:
    return sorted(__all__)
