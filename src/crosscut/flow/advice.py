"""What to write instead of a method that a stream of this kind has not."""

from __future__ import annotations

import re

from crosscut.flow.connected_streams import ConnectedStreams
from crosscut.flow.keyed_stream import KeyedStream
from crosscut.flow.split_stream import Split
from crosscut.flow.stream import Stream
from crosscut.flow.tail import Advised, StreamEnd
from crosscut.flow.windowed_stream import WindowedStream
from crosscut.foundation.suggestions import did_you_mean


def instead(kind: type[Advised], name: str) -> str:
    """Return what to write where a stream of this kind has no method of this name, "" if none has."""
    if kind is Stream and hasattr(KeyedStream, name):
        return (
            f"a value is kept for each key: give the records keys first, as in .key_by(function).{name}(...)"
        )
    if kind is KeyedStream and hasattr(Stream, name):
        return (
            f"a keyed stream has no {name}(): put {name}() in front of key_by, or end the keyed stream with "
            f"count, sum, reduce or aggregate first"
        )
    if kind is Split and (hasattr(Stream, name) or hasattr(KeyedStream, name)):
        return f"split gives several streams: go on with one of them, as in parts['name'].{name}(...)"
    if kind is StreamEnd and (hasattr(Stream, name) or hasattr(KeyedStream, name)):
        return (
            f"the stream has ended in a sink: to have it go elsewhere as well, keep the stream itself "
            f"(s = ...; s.sink(...); s.{name}(...))"
        )
    if kind is WindowedStream and (hasattr(Stream, name) or hasattr(KeyedStream, name)):
        return f"{_WINDOW_FIRST}, and then {name}(...)"
    if kind is ConnectedStreams and (hasattr(Stream, name) or hasattr(KeyedStream, name)):
        return f"{_PROCESS_FIRST}, and then {name}(...)"
    return ""


_WINDOW_FIRST = "say first what the records of a window come to, as in .count() or .process(function)"
_PROCESS_FIRST = "say first what is done with the two streams, with .process(ConnectedProcess())"

_OF_SPARK = {
    "approx_count_distinct": "key_by(function).approx_distinct(function)",
    "avg": "key_by(function).mean(function)",
    "agg": "key_by(function).aggregate(initial, add, result)",
    "distinct": "key_by(function).deduplicate(within='1h')",
    "dropDuplicates": "key_by(function).deduplicate(within='1h')",
    "dropDuplicatesWithinWatermark": "key_by(function).deduplicate(within='1h')",
    "flatMapGroupsWithState": "key_by(function).process(KeyedProcess())",
    "applyInPandasWithState": "key_by(function).process(KeyedProcess())",
    "foreach": "for_each(function)",
    "foreachBatch": "for_each_checkpoint(function)",
    "groupBy": "key_by(function)",
    "groupByKey": "key_by(function)",
    "group_by": "key_by(function)",
    "groupby": "key_by(function)",
    "join": "key_by(function).interval_join(other, '-5s', '5s'), or window_join or latest_join",
    "mapPartitions": "flat_map(function)",
    "reduceByKey": "key_by(function).reduce(function)",
    "repartition": "rebalance()",
    "select": "map(function)",
    "selectExpr": "map(function)",
    "show": "inspect(print)",
    "transformWithState": "key_by(function).process(KeyedProcess()), or transform_with_state",
    "transformWithStateInPandas": "key_by(function).process(KeyedProcess()), or transform_with_state",
    "unionAll": "union(other)",
    "unionByName": "union(other)",
    "where": "filter(function)",
    "withColumn": "map(function)",
    "withWatermark": "assign_timestamps(function, out_of_orderness='10s')",
    "write": "sink(sink)",
    "writeStream": "sink(sink)",
}
"""What DataFrames have, and what a flow has for it."""


_KEY_BY = "key_by(function)."

_OF_SPARK_IN_WINDOWS = dict.fromkeys(
    (
        "applyInPandasWithState",
        "flatMapGroupsWithState",
        "mapPartitions",
        "transformWithState",
        "transformWithStateInPandas",
    ),
    "process(function)",
)


def _method(call: str) -> str:
    return call.partition("(")[0]


def meant(kind: type, name: str) -> str:
    """Return a suggestion for the unknown method `name`, to append to an error; "" if there is none."""
    if name in _OF_SPARK:
        ours, first = _OF_SPARK[name], ""
        if kind is WindowedStream and name in _OF_SPARK_IN_WINDOWS:
            ours = _OF_SPARK_IN_WINDOWS[name]
        elif kind is not Stream and hasattr(kind, _method(ours.removeprefix(_KEY_BY))):
            # It has keys already.
            ours = ours.removeprefix(_KEY_BY)
        elif kind in (WindowedStream, ConnectedStreams):
            first = f": {_WINDOW_FIRST if kind is WindowedStream else _PROCESS_FIRST}"
        return f"; what Spark calls {name} is .{ours} here{first}"
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return did_you_mean(plain, [one for one in dir(kind) if not one.startswith("_")])
