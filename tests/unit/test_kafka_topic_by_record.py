"""A Kafka sink whose topic depends on the record: which topics it has, and what is held for each."""

from __future__ import annotations

from typing import Any

import pytest

import crosscut as cc
from crosscut.connectors.kafka.limits import TopicLimits
from crosscut.contracts.connectors import SinkContext
from crosscut.errors import ConnectorError, RefusedRecordError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId

pytest.importorskip("confluent_kafka", reason="pip install 'crosscut[kafka]'")
pytest.importorskip("msgspec", reason="pip install 'crosscut[kafka]'")

N = CheckpointId(1)


def by_country(order: dict[str, Any]) -> str:
    return f"orders-{order['country']}"


def sink(**others: Any) -> Any:
    return cc.kafka.sink("localhost:1", by_country, topics=["orders-de", "orders-fr"], **others)


def context() -> SinkContext:
    return SinkContext(Lineage("a"), Epoch(1), TaskId(VertexId("v"), 0), "out")


ORDERS = [{"country": country, "n": n} for n, country in enumerate(["de", "fr", "de", "xx", "fr"])]


def test_each_record_is_held_for_its_topic_in_order() -> None:
    writer = sink(value=lambda order: order["n"], headers=lambda order: {"c": order["country"]}).writer(
        context()
    )
    letters: list[tuple[Any, str]] = []
    writer.set_aside = lambda record, why: letters.append((record, why))
    writer.write(ORDERS[:2])
    writer.write(ORDERS[2:])
    handle = writer.prepare(writer.rotate(N))
    assert handle == {"checkpoint": 1, "topics": {"orders-de": 2, "orders-fr": 2}}
    found = [(one["topic"], one["value"], one["headers"]) for one in writer.pending_records([handle])]
    assert found == [
        ("orders-de", b"0", [("c", b"de")]),
        ("orders-de", b"2", [("c", b"de")]),
        ("orders-fr", b"1", [("c", b"fr")]),
        ("orders-fr", b"4", [("c", b"fr")]),
    ]
    ((record, why),) = letters
    assert record == ORDERS[3]
    assert "topic= returned 'orders-xx', which is none of its topics (orders-de, orders-fr)" in why


@pytest.mark.parametrize("found", [None, 5, b"orders-de", "", ["orders-de"]])
def test_a_record_for_no_declared_topic_is_refused_with_its_topic(found: Any) -> None:
    writer = cc.kafka.sink("localhost:1", lambda _: found, topics=["orders-de"]).writer(context())
    with pytest.raises(RefusedRecordError, match="record 'a' is refused: topic= returned"):
        writer.write(["a"])
    assert writer.rotate(N) is None


def test_each_topic_has_its_own_limits_and_the_producer_the_smallest_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[dict[str, object]] = []
    monkeypatch.setattr("confluent_kafka.Producer", made.append)
    out = sink(encode_value=lambda order: b"v" * order["n"])
    out._limits.update({"orders-de": TopicLimits(1_100), "orders-fr": TopicLimits(5_100, needs_keys=True)})
    refused: list[str] = []
    large = [{"country": country, "n": 2_000} for country in ("de", "fr")]
    for topic, records in out.by_topic(large, lambda *_: None):
        assert out.messages(topic, records, lambda _, why: refused.append(why)).keys == []
    assert "2000 bytes for topic 'orders-de', which takes 1000" in refused[0]
    assert "no key, and topic 'orders-fr' is compacted" in refused[1]
    out.producer()
    assert made[0]["batch.size"] == 1_000


def test_topics_may_be_added_to_a_job_and_one_with_held_messages_must_stay() -> None:
    """The names are part of neither the identity of the flow nor that of the producer."""
    more = cc.kafka.sink("localhost:1", by_country, topics=["orders-de", "orders-fr", "orders-it"])
    assert more.describe() == sink().describe() == "topic by record, markers in crosscut-markers"
    of_one: Any = cc.kafka.sink("localhost:1", by_country, topics=["orders-de"]).writer(context())
    of_one._producer = object()
    held = sink().writer(context())
    held.write(ORDERS[:3])
    handle = held.prepare(held.rotate(N))
    with pytest.raises(ConnectorError, match="'orders-fr' are held in checkpoint 1") as failed:
        of_one._commit(of_one._transactions([handle]), N)
    assert failed.value.is_permanent


def test_a_handle_of_one_topic_is_none_of_several_and_the_other_way_round() -> None:
    one = {"checkpoint": 1, "topic": "orders-de", "messages": 3}
    several = {"checkpoint": 1, "topics": {"orders-de": 3}}
    for out, handle in ((sink(), one), (cc.kafka.sink("localhost:1", "orders-de"), several)):
        with pytest.raises(ConnectorError, match="is not a transaction of this sink"):
            list(out.writer(context()).pending_records([handle]))


@pytest.mark.parametrize(
    ("topic", "topics", "message"),
    [
        (by_country, None, r"topic= is a function, and topics=None: declare the names"),
        (by_country, "orders-de", "topics='orders-de': declare the names"),
        (by_country, [], "expected the names of topics"),
        (by_country, ["a", 5], "expected the names of topics"),
        (by_country, ["a", "b", "a"], "a name comes twice"),
        (by_country, ["a", "crosscut-markers"], "topic 'crosscut-markers' is for markers"),
        ("crosscut-markers", None, "topic 'crosscut-markers' is for markers"),
        ("a", ["a", "b"], "topic='a' is the only topic; leave topics= out"),
        (5, None, "expected the name of a topic, or a function"),
    ],
)
def test_arguments_that_do_not_say_which_topics_are_refused(topic: Any, topics: Any, message: str) -> None:
    with pytest.raises(ConnectorError, match=message):
        cc.kafka.sink("localhost:1", topic, topics=topics)


def test_many_topics_are_named_briefly() -> None:
    many = cc.kafka.sink("localhost:1", by_country, topics=[f"t{n}" for n in range(9)])
    assert many.location == "topics 't0', 't1', 't2' and 6 more at localhost:1"  # type: ignore[attr-defined]
    assert "topics=['t0', " in repr(many)
