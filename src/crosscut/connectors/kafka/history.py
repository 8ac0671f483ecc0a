"""What all tasks of all jobs have committed to a topic, for a driver that is about to start."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from crosscut.connectors.kafka.client import TIMEOUT_S, configuration, library
from crosscut.connectors.kafka.marker import decoded
from crosscut.contracts.connectors import CommittedOutput
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import Lineage, TaskId, VertexId

LOOK_TIMEOUT_S = 45.0
"""For reading the markers of all tasks."""


def committed_output(
    servers: str, options: Mapping[str, object], marker_topic: str, topics: Collection[str], location: str
) -> Sequence[CommittedOutput]:
    """Return the newest marker of every task that has ever committed to one of `topics`, in no order.

    Open transactions are not waited for: a successor of a task reads its marker again.

    Args:
        location: Where that is, as people call it.

    Raises:
        ConnectorError: They can't be read to the end, or are not ours.
        KafkaException: The cluster refuses.
    """
    ours = {"enable_auto_commit": False, "enable_partition_eof": True, "group_id": "crosscut"}
    reader = library().Consumer(configuration(servers, options, isolation_level="read_committed", **ours))
    try:
        found = reader.list_topics(marker_topic, timeout=TIMEOUT_S).topics[marker_topic]
        if found.error is not None:
            if found.error.code() == library().KafkaError.UNKNOWN_TOPIC_OR_PART:
                return ()
            raise ConnectorError(f"topic {marker_topic!r} at {servers}: {found.error.str()}")
        newest = _newest(reader, marker_topic, sorted(found.partitions), servers)
    finally:
        reader.close()
    outputs = []
    for data in newest.values():
        match decoded(data, marker_topic, servers):
            case {
                "lineage": str(lineage),
                "sink": str(uid),
                "vertex": str(vertex),
                "task": int(index),
                **rest,
            }, marker if not _targets(rest).isdisjoint(topics):
                task = TaskId(VertexId(vertex), index)
                outputs.append(
                    CommittedOutput(
                        location,
                        Lineage(lineage),
                        uid,
                        task,
                        marker.epoch,
                        marker.driver,
                        marker.checkpoint_id,
                    )
                )
            case _:
                pass  # of another topic
    return outputs


def _targets(owner: Mapping[str, object]) -> set[str]:
    """Return the topics that a marker is of: one, or those of a sink whose topic depends on the record."""
    match owner:
        case {"topic": str(topic)}:
            return {topic}
        case {"topics": [*topics]}:
            return {str(one) for one in topics}
        case _:
            return set()


def _newest(reader: Any, topic: str, partitions: list[int], servers: str) -> dict[bytes, bytes]:
    """Return the newest value of each key."""
    ck = library()
    reader.assign([ck.TopicPartition(topic, one, ck.OFFSET_BEGINNING) for one in partitions])
    newest: dict[bytes, bytes] = {}
    left = set(partitions)
    deadline_s = time.monotonic() + LOOK_TIMEOUT_S
    while left:
        if time.monotonic() > deadline_s:
            raise ConnectorError(
                f"the markers in topic {topic!r} at {servers} could not be read within {LOOK_TIMEOUT_S:g} s: "
                f"partitions {sorted(left)} are missing; are all brokers available?"
            )
        for message in reader.consume(1_000, timeout=0.1):
            error = message.error()
            if error is None:
                if message.key() is not None and message.value() is not None:
                    newest[message.key()] = message.value()
            elif error.code() == ck.KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                raise ck.KafkaException(error)
    return newest
