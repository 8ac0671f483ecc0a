"""Kafka topics as sources and sinks: `crosscut.kafka.source`, `crosscut.kafka.sink`.

Needs the extra `crosscut[kafka]` (confluent-kafka, msgspec) where a job is started and in its workers;
importing this module does not.
"""

from __future__ import annotations

from crosscut.connectors.kafka.records import Message
from crosscut.connectors.kafka.registry import SchemaRegistry
from crosscut.connectors.kafka.sink import sink
from crosscut.connectors.kafka.source import source

__all__ = ["Message", "SchemaRegistry", "sink", "source"]
