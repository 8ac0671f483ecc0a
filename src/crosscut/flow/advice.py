"""What to write instead of a method that a stream of this kind has not."""

from __future__ import annotations

import re

from crosscut.flow.keyed_stream import KeyedStream
from crosscut.flow.split_stream import Split
from crosscut.flow.stream import Stream
from crosscut.flow.tail import StreamEnd, Tail
from crosscut.foundation.suggestions import did_you_mean


def instead(kind: type[Tail], name: str) -> str:
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
    return ""


_OF_SPARK = {
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


def meant(kind: type, name: str) -> str:
    """Return a suggestion for the unknown method `name`, to append to an error; "" if there is none."""
    if name in _OF_SPARK:
        return f"; what Spark calls {name} is .{_OF_SPARK[name]} here"
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return did_you_mean(plain, [one for one in dir(kind) if not one.startswith("_")])
