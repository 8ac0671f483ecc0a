"""Kafka topics as sources and sinks: `crosscut.kafka.source`, `crosscut.kafka.sink`.

Needs the extra `crosscut[kafka]` (confluent-kafka, msgspec) where a job is started and in its workers;
importing this module does not.

Kafka, through librdkafka.

* `source`: splits are partitions, a position is the next offset. Offsets are committed back to the
  group, if there is one, for monitoring only.
* `sink`: librdkafka can't resume a prepared transaction, and one that is left open times out and loses
  its records. So the records are held in the snapshot, and the commit of a checkpoint is one short
  transaction with a marker in it. Nothing is open between two commits.
"""

from __future__ import annotations

from crosscut.connectors.kafka.records import Message
from crosscut.connectors.kafka.registry import SchemaRegistry
from crosscut.connectors.kafka.sink import sink
from crosscut.connectors.kafka.source import source

__all__ = ["Message", "SchemaRegistry", "sink", "source"]


def __dir__() -> list[str]:
    return sorted(__all__)
