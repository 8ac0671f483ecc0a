"""Files as sources and sinks: `crosscut.files.lines`, `crosscut.files.jsonl`, `crosscut.files.csv`, ..."""

from __future__ import annotations

from crosscut.connectors.csv_sink import csv_sink as csv
from crosscut.connectors.csv_source import read_csv
from crosscut.connectors.jsonl import jsonl
from crosscut.connectors.jsonl_source import read_jsonl
from crosscut.connectors.lines import lines
from crosscut.connectors.merging import compact
from crosscut.connectors.parquet_sink import parquet
from crosscut.connectors.parquet_source import read_parquet
from crosscut.connectors.text_sink import text
from crosscut.connectors.watch import watch

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
