"""Crosscut: continuous, stateful, exactly-once dataflows in Python on an Apache Spark cluster.

import crosscut as cc

flow = cc.Flow("word-count")
(flow.source(cc.files.read_text("corpus/**/*.txt"))
     .flat_map(str.split)
     .key_by(lambda word: word)
     .count()
     .sink(cc.files.write_jsonl("out")))

job = flow.start(cc.Settings(parallelism=2))
job.wait()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from crosscut.foundation import aliases

if TYPE_CHECKING:
    from crosscut import errors, events, spark
    from crosscut.connectors import delta, files, http, iceberg, kafka, nats, postgres, sqlite
    from crosscut.connectors.files.collect import collect
    from crosscut.connectors.files.typed_json import json
    from crosscut.connectors.secrets import environment
    from crosscut.connectors.simple.generate import generate
    from crosscut.connectors.simple.items import items
    from crosscut.connectors.simple.lookup import lookup
    from crosscut.connectors.simple.printing import printing
    from crosscut.connectors.simple.socket_lines import socket, stdin
    from crosscut.contracts.connected_process import (
        BroadcastState,
        ConnectedProcess,
        SplitState,
        StreamProcess,
        UnionState,
    )
    from crosscut.contracts.connectors import (
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
    from crosscut.contracts.context import Context
    from crosscut.contracts.dead_letters import DeadLetter
    from crosscut.contracts.dynamic_source import Discovered, DynamicSource
    from crosscut.contracts.engines import Auto, Continuous, MicroBatch
    from crosscut.contracts.invariants import Cut, no_deadlock
    from crosscut.contracts.process import KeyedProcess
    from crosscut.contracts.serializers import ArrowSerializer, MsgspecSerializer, Serializer
    from crosscut.contracts.settings import Restart, Settings
    from crosscut.contracts.snapshot_protocols import Aligned, Logged
    from crosscut.contracts.state import (
        AggregatingState,
        ListState,
        MapState,
        ReducingState,
        ValueState,
    )
    from crosscut.contracts.tracing import open_telemetry
    from crosscut.contracts.windows import (
        Windowed,
        count_window,
        early,
        global_window,
        on_count,
        session,
        sliding,
    )
    from crosscut.errors import CrosscutError
    from crosscut.flow.flow import Flow
    from crosscut.flow.frame import Frame
    from crosscut.flow.keyed_frame import KeyedFrame
    from crosscut.flow.keyed_stream import KeyedStream
    from crosscut.flow.stream import Stream
    from crosscut.flow.tumbling import tumbling
    from crosscut.flow.windowed_stream import WindowedStream
    from crosscut.foundation.ids import TaskId
    from crosscut.foundation.logs import JsonLogFormatter
    from crosscut.foundation.timestamps import END_OF_TIME
    from crosscut.protocol.log.history import check_history, check_not_set_back
    from crosscut.savepoints.manifest import seal_savepoint
    from crosscut.spark.cluster.job import Job
    from crosscut.spark.data.backfill_call import backfill
    from crosscut.spark.data.read_state import read_state

aliases.install()

__version__ = "0.1.0"

__all__ = [
    "END_OF_TIME",
    "JSON",
    "AggregatingState",
    "Aligned",
    "ArrowSerializer",
    "Auto",
    "BroadcastState",
    "CommitPermit",
    "CommittedOutput",
    "ConnectedProcess",
    "Context",
    "Continuous",
    "CrosscutError",
    "Cut",
    "DeadLetter",
    "Discovered",
    "DynamicSource",
    "EndOfSplit",
    "Flow",
    "Frame",
    "HeldData",
    "Job",
    "JsonLogFormatter",
    "KeyedFrame",
    "KeyedProcess",
    "KeyedStream",
    "ListState",
    "Logged",
    "MapState",
    "MicroBatch",
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
    "json",
    "kafka",
    "lookup",
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
    "spark.data.backfill_call": "backfill",
    "spark.data.read_state": "read_state",
    "contracts.connected_process": "BroadcastState ConnectedProcess SplitState StreamProcess UnionState",
    "connectors.files.collect": "collect",
    "connectors.simple.generate": "generate",
    "connectors.simple.items": "items",
    "connectors.simple.lookup": "lookup",
    "connectors.simple.printing": "printing",
    "connectors.secrets": "environment",
    "connectors.files.typed_json": "json",
    "connectors.simple.socket_lines": "socket stdin",
    "contracts.engines": "Auto Continuous MicroBatch",
    "contracts.invariants": "Cut no_deadlock",
    "contracts.dead_letters": "DeadLetter",
    "contracts.dynamic_source": "Discovered DynamicSource",
    "errors": "CrosscutError",
    "flow.flow": "Flow",
    "flow.frame": "Frame",
    "flow.keyed_frame": "KeyedFrame",
    "flow.keyed_stream": "KeyedStream",
    "flow.stream": "Stream",
    "flow.tumbling": "tumbling",
    "flow.windowed_stream": "WindowedStream",
    "foundation.ids": "TaskId",
    "contracts.connectors": (
        "JSON CommitPermit CommittedOutput EndOfSplit HeldData Sink "
        "SinkContext SinkWriter Source Split SplitReader Wait"
    ),
    "contracts.process": "KeyedProcess",
    "foundation.logs": "JsonLogFormatter",
    "contracts.context": "Context",
    "contracts.state": "AggregatingState ListState MapState ReducingState ValueState",
    "protocol.log.history": "check_history check_not_set_back",
    "savepoints.manifest": "seal_savepoint",
    "contracts.serializers": "ArrowSerializer MsgspecSerializer Serializer",
    "contracts.settings": "Restart Settings",
    "contracts.snapshot_protocols": "Aligned Logged",
    "spark.cluster.job": "Job",
    "foundation.timestamps": "END_OF_TIME",
    "contracts.tracing": "open_telemetry",
    "contracts.windows": "Windowed count_window early global_window on_count session sliding",
}
"""Where each name is from; it is loaded when it is first asked for. So a worker that starts in place of a
lost one loads what its graph needs, and no connector besides."""

_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        found = getattr(import_module(f"crosscut.{_HOME[name]}"), name)
    elif name in __all__:
        found = import_module(f"crosscut.{aliases.PUBLIC.get(name, name)}")
    else:
        from crosscut.foundation.suggestions import did_you_mean

        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{did_you_mean(name, __all__)}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
