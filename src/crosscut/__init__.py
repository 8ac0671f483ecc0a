"""Crosscut: continuous, stateful, exactly-once dataflows in Python on an Apache Spark cluster.

import crosscut as cc

flow = cc.Flow("word-count")
(flow.source(cc.files.lines("corpus/**/*.txt"))
     .flat_map(str.split)
     .key_by(lambda word: word)
     .count()
     .sink(cc.files.jsonl("out")))

job = flow.start(cc.Settings(parallelism=2))
job.wait()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crosscut import delta, errors, events, files, http, iceberg, kafka, nats, postgres, spark, sqlite
    from crosscut.backfilling import backfill
    from crosscut.connected_process import (
        BroadcastState,
        ConnectedProcess,
        SplitState,
        StreamProcess,
        UnionState,
    )
    from crosscut.connectors.collect import collect
    from crosscut.connectors.generate import generate
    from crosscut.connectors.items import items
    from crosscut.connectors.printing import printing
    from crosscut.connectors.secrets import environment
    from crosscut.connectors.socket_lines import socket, stdin
    from crosscut.cuts import Cut, no_deadlock
    from crosscut.dead_letters import DeadLetter
    from crosscut.dynamic_source import Discovered, DynamicSource
    from crosscut.errors import CrosscutError
    from crosscut.flow.flow import Flow
    from crosscut.flow.keyed import KeyedStream
    from crosscut.flow.stream import Stream
    from crosscut.flow.windows import WindowedStream
    from crosscut.ids import TaskId
    from crosscut.interfaces import (
        JSON,
        CommitPermit,
        CommittedOutput,
        EndOfSplit,
        HeldData,
        Sink,
        SinkContext,
        SinkWriter,
        Source,
        Split,
        SplitReader,
        Wait,
    )
    from crosscut.keyed_process import KeyedProcess
    from crosscut.logs import JsonLogFormatter
    from crosscut.process_context import Context
    from crosscut.process_states import AggregatingState, ListState, MapState, ReducingState, ValueState
    from crosscut.protocol.job.history import check_history, check_not_set_back
    from crosscut.savepoints.manifest import seal_savepoint
    from crosscut.savepoints.tables import read_state
    from crosscut.serializers import ArrowSerializer, MsgspecSerializer, Serializer
    from crosscut.settings import Restart, Settings
    from crosscut.spark.job import Job
    from crosscut.timestamps import END_OF_TIME
    from crosscut.tracing import open_telemetry
    from crosscut.windows import (
        Windowed,
        count_window,
        early,
        global_window,
        on_count,
        session,
        sliding,
        tumbling,
    )

__version__ = "0.1.0"

__all__ = [
    "END_OF_TIME",
    "JSON",
    "AggregatingState",
    "ArrowSerializer",
    "BroadcastState",
    "CommitPermit",
    "CommittedOutput",
    "ConnectedProcess",
    "Context",
    "CrosscutError",
    "Cut",
    "DeadLetter",
    "Discovered",
    "DynamicSource",
    "EndOfSplit",
    "Flow",
    "HeldData",
    "Job",
    "JsonLogFormatter",
    "KeyedProcess",
    "KeyedStream",
    "ListState",
    "MapState",
    "MsgspecSerializer",
    "ReducingState",
    "Restart",
    "Serializer",
    "Settings",
    "Sink",
    "SinkContext",
    "SinkWriter",
    "Source",
    "Split",
    "SplitReader",
    "SplitState",
    "Stream",
    "StreamProcess",
    "TaskId",
    "UnionState",
    "ValueState",
    "Wait",
    "Windowed",
    "WindowedStream",
    "backfill",
    "check_history",
    "check_not_set_back",
    "collect",
    "count_window",
    "delta",
    "early",
    "environment",
    "errors",
    "events",
    "files",
    "generate",
    "global_window",
    "http",
    "iceberg",
    "items",
    "kafka",
    "nats",
    "no_deadlock",
    "on_count",
    "open_telemetry",
    "postgres",
    "printing",
    "read_state",
    "seal_savepoint",
    "session",
    "sliding",
    "socket",
    "spark",
    "sqlite",
    "stdin",
    "tumbling",
]

_NAMES = {
    "backfilling": "backfill",
    "connected_process": "BroadcastState ConnectedProcess SplitState StreamProcess UnionState",
    "connectors.collect": "collect",
    "connectors.generate": "generate",
    "connectors.items": "items",
    "connectors.printing": "printing",
    "connectors.secrets": "environment",
    "connectors.socket_lines": "socket stdin",
    "cuts": "Cut no_deadlock",
    "dead_letters": "DeadLetter",
    "dynamic_source": "Discovered DynamicSource",
    "errors": "CrosscutError",
    "flow.flow": "Flow",
    "flow.keyed": "KeyedStream",
    "flow.stream": "Stream",
    "flow.windows": "WindowedStream",
    "ids": "TaskId",
    "interfaces": (
        "JSON CommitPermit CommittedOutput EndOfSplit HeldData Sink "
        "SinkContext SinkWriter Source Split SplitReader Wait"
    ),
    "keyed_process": "KeyedProcess",
    "logs": "JsonLogFormatter",
    "process_context": "Context",
    "process_states": "AggregatingState ListState MapState ReducingState ValueState",
    "protocol.job.history": "check_history check_not_set_back",
    "savepoints.manifest": "seal_savepoint",
    "savepoints.tables": "read_state",
    "serializers": "ArrowSerializer MsgspecSerializer Serializer",
    "settings": "Restart Settings",
    "spark.job": "Job",
    "timestamps": "END_OF_TIME",
    "tracing": "open_telemetry",
    "windows": "Windowed count_window early global_window on_count session sliding tumbling",
}
"""Where each name is from; it is loaded when it is first asked for. So a worker that starts in place of a
lost one loads what its graph needs, and no connector besides."""

_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        found = getattr(import_module(f"crosscut.{_HOME[name]}"), name)
    elif name in __all__:
        found = import_module(f"crosscut.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
