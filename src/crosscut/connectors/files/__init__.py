"""Files as sources and sinks: `crosscut.files.read_text`, `crosscut.files.write_jsonl`, ..."""

from __future__ import annotations

from crosscut.connectors.files.csv_sink import write_csv
from crosscut.connectors.files.csv_source import read_csv
from crosscut.connectors.files.jsonl import write_jsonl
from crosscut.connectors.files.jsonl_source import read_jsonl
from crosscut.connectors.files.lines import read_text
from crosscut.connectors.files.merging import compact
from crosscut.connectors.files.parquet_sink import write_parquet
from crosscut.connectors.files.parquet_source import read_parquet
from crosscut.connectors.files.text_sink import write_text
from crosscut.connectors.files.watch import watch

# As they were called first, for programs that call them so.
csv, jsonl, lines, parquet, text = write_csv, write_jsonl, read_text, write_parquet, write_text

__all__ = [
    "compact",
    "read_csv",
    "read_jsonl",
    "read_parquet",
    "read_text",
    "watch",
    "write_csv",
    "write_jsonl",
    "write_parquet",
    "write_text",
]


def __dir__() -> list[str]:
    return sorted(__all__)
