"""Spark: what carries the workers and, as sources and sinks, its data (`crosscut.spark.dataframe`, ...).

Its names are loaded on first use: a worker, or a program that only builds a flow, does not load
pyspark's SQL because of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crosscut.spark.data.crosscut_format import register
    from crosscut.spark.data.dataframes import dataframe
    from crosscut.spark.data.python_sink import sink
    from crosscut.spark.data.python_source import source
    from crosscut.spark.data.stream_source import stream
    from crosscut.spark.data.table_sink import table

__all__ = ["dataframe", "register", "sink", "source", "stream", "table"]

_HOME = {
    "dataframe": "data.dataframes",
    "register": "data.crosscut_format",
    "sink": "data.python_sink",
    "source": "data.python_source",
    "stream": "data.stream_source",
    "table": "data.table_sink",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
