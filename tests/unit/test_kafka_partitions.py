"""Which partitions a Kafka source knows: with brokers that are made up, for what real ones do too seldom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import crosscut as cc
from crosscut.connectors.kafka.source import KafkaSource
from crosscut.connectors.kafka.topics import Topics


class Cluster:
    """Topic "orders", which gets a partition more each time that somebody has asked for the partitions."""

    def __init__(self) -> None:
        self.count = 2

    def list_topics(self, topic: str, timeout: float) -> Any:
        found = dict.fromkeys(range(self.count))
        self.count += 1
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=found)})

    def get_watermark_offsets(self, at: Any, timeout: float) -> tuple[int, int]:
        return 3, 10

    def close(self) -> None:
        pass


def test_a_partition_that_comes_during_the_first_look_is_found_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("confluent_kafka")
    cluster = Cluster()
    monkeypatch.setattr(KafkaSource, "_consumer", lambda self: cluster)
    monkeypatch.setattr(Topics, "_described", lambda self, topic: ("id", cluster.count))
    source = cc.kafka.source("localhost:1", "orders", start="latest")
    assert isinstance(source, cc.DynamicSource)
    first = source.discover(None)
    assert [(one.split_id, one.start) for one in first.splits] == [("orders-0", 10), ("orders-1", 10)]
    second = source.discover(first.known)
    assert [(one.split_id, one.start) for one in second.splits] == [("orders-2", 0)], "from its beginning"
    assert not source.discover(second.known).splits
