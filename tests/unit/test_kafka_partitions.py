"""Which partitions a Kafka source knows: with brokers that are made up, for what real ones do too seldom."""

from __future__ import annotations

import datetime
import pickle
import re
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

import crosscut as cc
from crosscut.connectors.kafka import topics
from crosscut.connectors.kafka.client import TopicNotFound, bounds_of, partitions_of
from crosscut.connectors.kafka.source import KafkaSource
from crosscut.connectors.kafka.topics import Topics
from crosscut.errors import ConnectorError
from crosscut.testing.server_process import free_port


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


def matching(
    monkeypatch: pytest.MonkeyPatch, names: set[str], pattern: str = "orders-.*", **options: Any
) -> cc.DynamicSource:
    """Return a source of a pattern; `names` are the topics of its cluster, of two partitions each."""
    pytest.importorskip("confluent_kafka")
    monkeypatch.setattr(KafkaSource, "_consumer", lambda self: Orders())
    monkeypatch.setattr(Topics, "names", lambda self: sorted(names))
    monkeypatch.setattr(Topics, "_described", lambda self, topic: (f"id of {topic}", 2))
    source = cc.kafka.source("localhost:1", re.compile(pattern), **options)
    assert isinstance(source, cc.DynamicSource)
    return source


def test_topics_that_match_a_pattern_are_read_and_found_when_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {"orders-a", "my-orders-a", "clicks"}
    source = matching(monkeypatch, names, start="latest")
    assert source.describe() == "topics that match 'orders-.*'"
    first = source.discover(None)
    assert [(one.split_id, one.start) for one in first.splits] == [("orders-a-0", 10), ("orders-a-1", 10)]
    assert not source.discover(first.known).splits
    names |= {"orders-b", "others"}
    second = source.discover(first.known)
    assert [(one.split_id, one.start) for one in second.splits] == [("orders-b-0", 3), ("orders-b-1", 3)]
    assert not source.discover(second.known).splits
    again = source.discover(first.known)
    assert again == second, "after a failure it is found again"


def test_a_pattern_that_no_topic_matches_yet_waits_unless_the_source_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: set[str] = set()
    source = matching(monkeypatch, names)
    first = source.discover(None)
    assert not first.splits and not first.is_last
    names.add("orders-a")
    assert len(source.discover(first.known).splits) == 2
    with pytest.raises(ConnectorError, match="there are no topics that match"):
        matching(monkeypatch, set(), stop="latest").discover(None)
    bounded = matching(monkeypatch, {"orders-a"}, stop="latest").discover(None)
    assert bounded.is_last and len(bounded.splits) == 2


@pytest.mark.parametrize("pattern", [".*", "__.*|crosscut-.*|a"])
def test_topics_of_kafka_and_of_markers_match_no_pattern(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    names = {"a", "__consumer_offsets", "__transaction_state", "crosscut-markers"}
    found = matching(monkeypatch, names, pattern).discover(None)
    assert [one.split_id for one in found.splits] == ["a-0", "a-1"]


def test_a_pattern_that_matches_nothing_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names: set[str] = set()
    source = matching(monkeypatch, names)
    with caplog.at_level("WARNING", logger="crosscut.kafka"):
        known = source.discover(None).known
        known = source.discover(known).known
    assert len(caplog.records) == 1
    assert "localhost:1 has no topics that match 'orders-.*' yet" in caplog.text
    again = pickle.loads(pickle.dumps(source))
    again.discover(known)
    assert len(caplog.records) == 2, "a process that resumes the job reports it too"


def test_a_topic_that_is_deleted_while_it_is_found_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    source = matching(monkeypatch, {"orders-a", "orders-b"})
    absent = {"orders-b"}

    def described(self: Topics, topic: str) -> tuple[str, int]:
        if topic in absent:
            raise TopicNotFound(f"topic {topic!r} is not there", topic=topic)
        return f"id of {topic}", 2

    monkeypatch.setattr(Topics, "_described", described)
    first = source.discover(None)
    assert {one.split_id for one in first.splits} == {"orders-a-0", "orders-a-1"}
    second = source.discover(first.known)
    assert second == cc.Discovered([], first.known)
    absent.clear()
    third = source.discover(second.known)
    assert {one.split_id for one in third.splits} == {"orders-b-0", "orders-b-1"}, "it was created again"
    absent.add("orders-a")
    with pytest.raises(TopicNotFound):
        source.discover(third.known)


def test_a_topic_that_matched_and_is_gone_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"orders-a", "orders-b"}
    source = matching(monkeypatch, names)
    first = source.discover(None)
    names.remove("orders-b")
    asked: list[str] = []

    def described(self: Topics, topic: str) -> tuple[str, int]:
        asked.append(topic)
        return f"id of {topic}", 2

    monkeypatch.setattr(Topics, "_described", described)
    source.discover(first.known)
    assert sorted(asked) == ["orders-a", "orders-b"], "which is an error, if it was deleted"


def test_brokers_that_do_not_list_topics_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    source = matching(monkeypatch, {"orders-a"})
    first = source.discover(None)

    def away(self: Topics) -> list[str]:
        raise topics.Unreachable("no broker answers")

    monkeypatch.setattr(Topics, "names", away)
    assert source.discover(first.known) == cc.Discovered((), first.known)
    with pytest.raises(ConnectorError, match="no broker answers"):
        source.discover(None)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"start": {"clicks": {0: 1}}}, "'clicks', which is not among the topics that match 'orders-"),
        ({"start": {"orders-b": {0: 4}}}, "'orders-b', which does not exist"),
        ({"stop": {"orders-b": {0: 4}}}, "'orders-b', which does not exist"),
        ({"start": {"orders-a": {2: 4}}}, "partition 2 of topic 'orders-a'"),
    ],
)
def test_offsets_beside_a_pattern_are_of_topics_that_match_it(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConnectorError, match=problem):
        matching(monkeypatch, {"orders-a"}, **options).discover(None)


@pytest.mark.parametrize("given", [[], "", ["a", "a"], [5], 5, None, re.compile(b"orders")])
def test_what_names_no_topics_is_refused(given: Any) -> None:
    with pytest.raises(ConnectorError, match="expected the name of a topic, several"):
        cc.kafka.source("localhost:1", given)


@pytest.mark.parametrize(
    "given", ["orders-.*", "^orders", "orders,clicks", ["orders", "clicks-*"], "or ders", "\u00e4"]
)
def test_a_pattern_that_is_not_compiled_is_not_taken_for_a_name(given: Any) -> None:
    name = given if isinstance(given, str) else given[-1]
    with pytest.raises(ConnectorError, match=re.escape(f"{name!r} is not a topic name")) as raised:
        cc.kafka.source("localhost:1", given)
    assert f"re.compile({name!r})" in str(raised.value)
    cc.kafka.source("localhost:1", "A-z_0.9")


def test_a_topic_that_a_broker_does_not_know_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ck = pytest.importorskip("confluent_kafka")
    error = ck.KafkaError(ck.KafkaError.UNKNOWN_TOPIC_OR_PART)
    unknown = SimpleNamespace(topics={"orders": SimpleNamespace(error=error, partitions={})})
    client = SimpleNamespace(list_topics=lambda topic, timeout: unknown)
    with pytest.raises(TopicNotFound, match="create it") as raised:
        partitions_of(client, "localhost:1", "orders")
    assert raised.value.is_permanent and raised.value.ids["topic"] == "orders"

    def describe_topics(topics: Any, request_timeout: float) -> Any:
        answer: Future[Any] = Future()
        answer.set_exception(ck.KafkaException(error))
        return {"orders": answer}

    monkeypatch.setattr(topics, "GONE_AFTER_S", 0.0)
    asking = Topics("localhost:1", {})
    monkeypatch.setattr(asking, "_client", SimpleNamespace(describe_topics=describe_topics))
    with pytest.raises(TopicNotFound, match="was it deleted"):
        asking.identities(["orders"])


NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


class Orders(Cluster):
    """Offsets 3 to 9 are there; the first message at or after noon is 7, in partition 1 there is none."""

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(
            topics={topic: SimpleNamespace(error=None, partitions=dict.fromkeys(range(2)))}
        )

    def offsets_for_times(self, asked: list[Any], timeout: float) -> list[Any]:
        (at,) = asked
        assert at.offset == NOON.timestamp() * 1_000
        return [SimpleNamespace(offset=7 if at.partition == 0 else -1)]


NO_PARTITION = {"orders": {1: 4, 2: 4}}


@pytest.mark.parametrize("options", [{"start": NO_PARTITION}, {"stop": NO_PARTITION}])
def test_offsets_of_a_partition_that_there_is_not_are_refused(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    with pytest.raises(ConnectorError, match=r"partition 2 of topic 'orders'.*has 2 partitions") as raised:
        first_splits(monkeypatch, **options)
    assert raised.value.is_permanent


def test_offsets_are_checked_too_for_a_topic_that_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("confluent_kafka")
    monkeypatch.setattr(KafkaSource, "_consumer", lambda self: Orders())
    monkeypatch.setattr(Topics, "_described", lambda self, topic: ("id", 2))
    before = cc.kafka.source("localhost:1", "orders")
    after = cc.kafka.source("localhost:1", ["orders", "more"], start={"more": {0: 4, 7: 4}})
    assert isinstance(before, cc.DynamicSource) and isinstance(after, cc.DynamicSource)
    with pytest.raises(ConnectorError, match=r"partition 7 of topic 'more'"):
        after.discover(before.discover(None).known)
    # Of one that the job has had all along, start= says nothing any more.
    known = cc.kafka.source("localhost:1", ["orders", "more"], start={"orders": {7: 4}})
    assert isinstance(known, cc.DynamicSource)
    assert len(known.discover(before.discover(None).known).splits) == 2


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        ({"orders": {0: 4, 1: 5}}, {"orders": {0: 4, 1: 4}}),
        (NOON, NOON - datetime.timedelta(seconds=1)),
    ],
)
def test_a_start_beyond_the_stop_is_refused_when_the_source_is_made(start: Any, stop: Any) -> None:
    with pytest.raises(ConnectorError, match=r"start.*stop"):
        cc.kafka.source("localhost:1", "orders", start=start, stop=stop)
    cc.kafka.source("localhost:1", "orders", start=stop, stop=start)
    cc.kafka.source("localhost:1", "orders", start=start, stop=start)


def first_splits(monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[tuple[int, int | None]]:
    """Return where each partition begins and ends."""
    pytest.importorskip("confluent_kafka")
    monkeypatch.setattr(KafkaSource, "_consumer", lambda self: Orders())
    monkeypatch.setattr(Topics, "_described", lambda self, topic: ("id", 2))
    source = cc.kafka.source("localhost:1", "orders", **options)
    assert isinstance(source, cc.DynamicSource)
    return [(one.start, one.detail.get("stop")) for one in source.discover(None).splits]  # type: ignore[union-attr, misc]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(3, None), (3, None)]),
        ({"start": {"orders": {1: 5}}}, [(3, None), (5, None)]),
        ({"start": {"orders": {0: 10}}, "stop": "latest"}, [(10, 10), (3, 10)]),
        ({"start": {"orders": {0: 1}}}, [(1, None), (3, None)]),
        ({"stop": NOON}, [(3, 7), (3, 10)]),
        ({"start": NOON, "stop": NOON}, [(7, 7), (10, 10)]),
        ({"start": "latest", "stop": NOON}, [(10, 10), (10, 10)]),
        ({"stop": {"orders": {0: 5, 1: 50}}}, [(3, 5), (3, 10)]),
    ],
)
def test_partitions_begin_and_end_at_offsets_and_times(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: Any
) -> None:
    assert first_splits(monkeypatch, **options) == expected


def test_a_time_is_asked_for_to_the_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Asked(Orders):
        def offsets_for_times(self, asked_for: list[Any], timeout: float) -> list[Any]:
            asked.extend(at.offset for at in asked_for)
            return [SimpleNamespace(offset=7)]

    pytest.importorskip("confluent_kafka")
    monkeypatch.setattr(KafkaSource, "_consumer", lambda self: Asked())
    monkeypatch.setattr(Topics, "_described", lambda self, topic: ("id", 2))
    # As seconds in a float, times 1,000, this is a little less than a whole number.
    time = datetime.datetime(2004, 5, 12, 17, 10, 26, 643_000, tzinfo=datetime.UTC)
    source = cc.kafka.source("localhost:1", "orders", start=time)
    assert isinstance(source, cc.DynamicSource)
    source.discover(None)
    assert asked == [1_084_381_826_643] * 2


def test_an_offset_that_is_not_there_yet_is_refused_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectorError, match=r"offset 11 of partition 0.*will have 10") as raised:
        first_splits(monkeypatch, start={"orders": {0: 11}})
    assert raised.value.is_permanent


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"start": "erliest"}, "start='erliest': expected 'earliest', 'latest', 'committed', a datetime, or"),
        ({"stop": "earliest"}, "stop='earliest': expected 'latest', a datetime, or offsets such as"),
        ({"stop": datetime.datetime(2026, 1, 1)}, "has no time zone"),
        (
            {"start": {"clicks": {0: 1}}},
            "start has offsets of topic 'clicks', which is not among the topics",
        ),
        ({"start": {"orders": {"0": 1}}}, "expected offsets by partition"),
        ({"stop": {"orders": {0: -1}}}, "expected offsets by partition"),
        ({"stop": {"orders": 5}}, "expected offsets by partition"),
    ],
)
def test_places_that_say_nothing_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConnectorError) as raised:
        cc.kafka.source("localhost:1", "orders", **options)
    assert problem in str(raised.value)


def looking(monkeypatch: pytest.MonkeyPatch, *answers: tuple[str, int]) -> cc.DynamicSource:
    """Return a source whose brokers say this of "orders", one after the other, and then the last again."""
    pytest.importorskip("confluent_kafka")
    left = list(answers)
    monkeypatch.setattr(topics, "_ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(Topics, "_described", lambda self, topic: left.pop(0) if left[1:] else left[0])
    source = cc.kafka.source("localhost:1", ["orders"], start="latest")
    assert isinstance(source, cc.DynamicSource)
    return source


def test_a_broker_that_knows_of_fewer_partitions_of_the_same_topic_is_not_up_to_date(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No topic loses partitions, so the job waits for a broker that has heard of all."""
    source = looking(monkeypatch, ("id", 2), ("id", 5))
    known = {"orders": ["id", 4]}
    assert source.discover(known) == cc.Discovered([], known)
    assert "knows of 2 of its 4 partitions" in caplog.text
    assert [one.split_id for one in source.discover(known).splits] == ["orders-4"]


def test_a_broker_that_knows_the_topic_of_before_is_not_believed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"orders": ["new", 4]}
    source = looking(monkeypatch, ("old", 2), ("old", 2), ("new", 4))
    assert source.discover(known) == cc.Discovered([], known)
    monkeypatch.setattr(topics, "ANEW_AFTER_S", 0.0)
    with pytest.raises(ConnectorError, match="was deleted and recreated") as caught:
        looking(monkeypatch, ("other", 4)).discover(known)
    assert caught.value.is_permanent, "no restart mends it"


def test_where_topics_have_no_identity_fewer_partitions_are_another_topic_if_it_stays_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"orders": ["A" * 22, 4]}
    source = looking(monkeypatch, ("A" * 22, 2), ("A" * 22, 4))
    assert source.discover(known) == cc.Discovered([], known)
    monkeypatch.setattr(topics, "ANEW_AFTER_S", 0.0)
    with pytest.raises(ConnectorError, match="has 2 partitions, and had 4"):
        looking(monkeypatch, ("A" * 22, 2)).discover(known)


def test_a_topic_that_a_resumed_job_is_given_in_addition_begins_where_start_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = looking(monkeypatch, ("id", 2))
    monkeypatch.setattr(KafkaSource, "_consumer", lambda self: Cluster())
    found = source.discover({})
    assert [(one.split_id, one.start) for one in found.splits] == [("orders-0", 10), ("orders-1", 10)]
    assert found.known == {"orders": ["id", 2]}


@pytest.mark.parametrize(
    "ask",
    [
        lambda at: cc.kafka.source(at, "orders").splits(1),
        lambda at: cc.kafka.sink(at, "orders").check(),
        lambda at: cc.kafka.sink(at, "orders", guarantee="at least once").check(),
    ],
    ids=["source", "sink", "sink, at least once"],
)
def test_a_broker_that_is_down_at_the_start_is_named(
    ask: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("confluent_kafka")
    monkeypatch.setattr("crosscut.connectors.kafka.client.TIMEOUT_S", 0.2)
    at = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConnectorError, match=f"no Kafka broker at {at} has answered .*is it running"):
        ask(at)


class Electing:
    """A broker that does not lead its partition yet."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def get_watermark_offsets(self, at: object, timeout: float) -> tuple[int, int]:
        if self.errors:
            raise self.errors.pop(0)
        return 3, 7


def test_a_partition_without_a_leader_is_waited_for_and_a_refusal_is_not() -> None:
    ck = pytest.importorskip("confluent_kafka")
    no_leader, not_leader, refused = (
        ck.KafkaException(ck.KafkaError(getattr(ck.KafkaError, code)))
        for code in ("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "TOPIC_AUTHORIZATION_FAILED")
    )
    assert bounds_of(Electing(no_leader, not_leader), object()) == (3, 7)
    with pytest.raises(ck.KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        bounds_of(Electing(refused), object())
