"""A graph for a job that begins: its sources and sinks are told what only Spark and the job know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark import SparkContext

from crosscut.connectors.files.file_sink import FileSink
from crosscut.contracts.connectors import Sink
from crosscut.contracts.refused_records import SinkWithDeadLetters
from crosscut.graph.specs import JobGraph, OperatorSpec, SinkSpec, SourceSpec, Vertex
from crosscut.spark.data.dataframes import DataFrameSource
from crosscut.spark.data.planned_source import PlannedSource
from crosscut.spark.data.python_sink import PythonSink
from crosscut.spark.data.python_source import PythonSource
from crosscut.spark.data.stream_source import StreamSource
from crosscut.store.shared_directories import SharedDirectory, local_directories


def placed(graph: JobGraph, store_url: str, context: SparkContext) -> JobGraph:
    """Return `graph` with DataFrames to be read from the checkpoint store, and data sources with schemas.

    Args:
        store_url: Of the checkpoint store, absolute.

    Raises:
        ConnectorError: The schema of a data source can't be had.
    """
    return replace(graph, vertices=tuple(_vertex(one, store_url, context) for one in graph.vertices))


def directories_to_share(graph: JobGraph, store_url: str) -> tuple[SharedDirectory, ...]:
    """Return the local directories of checkpoint store and file sinks."""
    sinks = [(one.chain[-1].uid, one.sink.sink) for one in graph.vertices if one.sink is not None]
    for uid, sink in sinks:
        if isinstance(sink, SinkWithDeadLetters):
            sinks += [(uid, sink.sink), (uid, sink.dead_letters)]
    files = [(uid, sink.directory) for uid, sink in sinks if isinstance(sink, FileSink)]
    return local_directories([("checkpoint_dir", store_url), *files])


def _vertex(vertex: Vertex, store_url: str, context: SparkContext) -> Vertex:
    chain = tuple(replace(node, spec=_spec(node.uid, node.spec, store_url, context)) for node in vertex.chain)
    return replace(vertex, chain=chain)


def _spec(uid: str, spec: OperatorSpec, store_url: str, context: SparkContext) -> OperatorSpec:
    match spec:
        case SourceSpec(DataFrameSource() as source):
            return SourceSpec(source.placed(store_url))
        case SourceSpec(StreamSource() as source):
            return SourceSpec(source.placed(store_url, uid, context))
        case SourceSpec(PythonSource() | PlannedSource() as source):
            return SourceSpec(source.resolved())
        case SinkSpec(sink):
            return SinkSpec(_resolved(sink))
        case _:
            return spec


def _resolved(sink: Sink[Any]) -> Sink[Any]:
    match sink:
        case PythonSink():
            return sink.resolved()
        case SinkWithDeadLetters(records, dead_letters):
            return SinkWithDeadLetters(_resolved(records), _resolved(dead_letters))
        case _:
            return sink
