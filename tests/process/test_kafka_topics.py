"""Kafka topics that are not what a job takes them for: mistyped, forgetful, made anew, small, compacted.

On a real broker that makes topics by itself as soon as somebody names one.
"""

from __future__ import annotations

import datetime
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest
from jobs import DEADLINE_S, until
from proving import proven

import crosscut as cc
from crosscut.connectors.kafka import watch
from crosscut.connectors.kafka.client import library
from crosscut.connectors.kafka.limits import topic_settings
from crosscut.contracts.connectors import (
    JSON,
    CommitPermit,
    Sink,
    SinkContext,
    SinkWriter,
    Source,
    Split,
)
from crosscut.contracts.refused_records import SinkWithDeadLetters
from crosscut.errors import ConnectorError, HistoryError, RefusedRecordError
from crosscut.foundation.ids import CheckpointId
from crosscut.host.copies import ForkedCopies
from crosscut.operators.probing import Probing, ProbingTime, decoding_trial
from crosscut.testing.sink_refusals import (
    check_a_refused_record_never_gets_past_prepare,
    check_prepared_records_can_be_shown,
    check_the_others_are_written_if_refused_records_are_set_aside,
)
from crosscut.testing.sink_stalls import check_a_system_that_never_answers_is_an_error
from crosscut.testing.sinks import SinkTarget, open_writer, permit, stage
from crosscut.testing.sources import next_batch, read_source

pytest.importorskip("confluent_kafka", reason="pip install 'crosscut[kafka]'")
pytest.importorskip("msgspec", reason="pip install 'crosscut[kafka]'")

from crosscut.testing.kafka import KafkaBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    settings = {"auto.create.topics.enable": "true", "transaction.max.timeout.ms": "120000"}
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), settings) as one:
        yield one


def new(broker: KafkaBroker, **settings: str) -> str:
    name = f"topic-{random.SystemRandom().randrange(2**32)}"
    broker.create_topic(name, 1, **settings)
    return name


def texts(broker: KafkaBroker, topic: str) -> list[Any]:
    return [orjson.loads(one.value()) for one in broker.consume(topic)]


def refusal(source_or_sink: Any) -> ConnectorError:
    """Return why it can't work, which no second attempt changes."""
    with pytest.raises(ConnectorError) as failed:
        source_or_sink.splits(1) if isinstance(source_or_sink, Source) else source_or_sink.check()
    return failed.value


@pytest.mark.parametrize("guarantee", ["exactly once", "at least once"])
def test_a_mistyped_name_is_an_error_and_no_new_topic(broker: KafkaBroker, guarantee: Any) -> None:
    """B7, C24."""
    sink = cc.kafka.sink(broker.servers, "mistyped-out", guarantee=guarantee)
    bounded = cc.kafka.source(broker.servers, "mistyped-in", stop="latest")
    for one in (sink, bounded, cc.kafka.source(broker.servers, "mistyped-in")):
        error = refusal(one)
        assert "'mistyped-" in str(error) and error.is_permanent
    # A writer whose topic is gone does not make it either.
    topic = new(broker)
    soon = {"topic.metadata.propagation.max.ms": 1_000}
    writer = open_writer(cc.kafka.sink(broker.servers, topic, guarantee=guarantee, options=soon), 1)
    broker.delete_topic(topic)
    with pytest.raises(ConnectorError):
        writer.commit(permit(1), [stage(writer, ["lost"], 1)])
    writer.close()
    for name in ("mistyped-out", "mistyped-in", topic):
        assert not broker.has_topic(name)


def exits_at_bad(message: cc.kafka.Message) -> bytes | None:
    if message.value == b"bad":
        os._exit(3)
    return message.value


@pytest.mark.parametrize("malformed", ["skip", "fail", lambda message, error: f"{message.offset}: {error}"])
def test_a_message_whose_decoding_ends_the_process_is_malformed(broker: KafkaBroker, malformed: Any) -> None:
    """K1: it is found in a copy of the process, beside the threads and connections of a consumer."""
    topic = new(broker)
    broker.produce(topic, [(None, text) for text in (b"bad", b"a", b"b", b"bad", b"c", b"bad")])
    source = cc.kafka.source(broker.servers, topic, stop="latest", decode=exits_at_bad, malformed=malformed)
    (split,) = source.splits(1)
    reader = source.reader(split, split.start)
    reader.try_decoding(decoding_trial(Probing(ProbingTime(ForkedCopies(DEADLINE_S), 3), 3), "in"))
    try:
        if malformed == "fail":
            with pytest.raises(ConnectorError, match=r"message 0 of .* ends its process \(exit status 3\)"):
                next_batch(reader, 10)
            return
        found: list[Any] = []
        while len(found) < (3 if malformed == "skip" else 6):
            found += next_batch(reader, 10)
    finally:
        reader.close()
    if malformed == "skip":
        assert found == [b"a", b"b", b"c"]
    else:
        assert found == ["0: exit status 3", b"a", b"b", "3: exit status 3", b"c", "5: exit status 3"]


def test_topics_of_a_pattern_are_found_while_the_source_is_read(broker: KafkaBroker) -> None:
    prefix = f"pattern-{random.SystemRandom().randrange(2**32)}"
    source = cc.kafka.source(broker.servers, re.compile(f"{prefix}-.*"), decode="text")
    assert isinstance(source, cc.DynamicSource)
    first = source.discover(None)
    assert not first.splits and not first.is_last
    for name in (f"{prefix}-a", f"other-{prefix}-a"):
        broker.create_topic(name, 1)
        broker.produce(name, [(None, b"old"), (None, name.encode())])
    broker.delete_records(f"{prefix}-a", 0, 1)
    until(lambda: source.discover(first.known).splits, "the topic to be found", DEADLINE_S)
    second = source.discover(first.known)
    (split,) = second.splits
    assert (split.split_id, split.start) == (f"{prefix}-a-0", 1), "from the earliest message there is"
    reader = source.reader(split, split.start)
    assert next_batch(reader, 10) == [f"{prefix}-a"]
    reader.close()
    broker.create_topic(f"{prefix}-b", 2)
    until(lambda: source.discover(second.known).splits, "the topic to be found", DEADLINE_S)
    third = source.discover(second.known)
    assert {one.split_id for one in third.splits} == {f"{prefix}-b-0", f"{prefix}-b-1"}
    bounded = cc.kafka.source(broker.servers, re.compile(f"{prefix}-b"), stop="latest")
    assert read_source(bounded) == []
    broker.delete_topic(f"{prefix}-a")
    with pytest.raises(ConnectorError, match=rf"{prefix}-a.*was it deleted"):
        until(lambda: source.discover(third.known).splits, "an error", DEADLINE_S)


def test_offsets_of_a_partition_that_the_topic_does_not_have_are_refused(broker: KafkaBroker) -> None:
    topic = new(broker)
    options: Any
    for options in ({"start": {topic: {1: 0}}}, {"stop": {topic: {0: 0, 1: 5}}}):
        error = refusal(cc.kafka.source(broker.servers, topic, **options))
        assert f"partition 1 of topic '{topic}'" in str(error) and error.is_permanent
    assert cc.kafka.source(broker.servers, topic, start={topic: {0: 0}}, stop={topic: {0: 0}}).splits(1)


@pytest.mark.parametrize("guarantee", ["exactly once", "at least once"])
def test_headers_and_timestamps_are_those_that_the_sink_gives(broker: KafkaBroker, guarantee: Any) -> None:
    topic = new(broker)
    sink = cc.kafka.sink(
        broker.servers,
        topic,
        value=lambda one: one[0],
        headers=lambda one: one[1],
        timestamp=lambda one: one[2],
        guarantee=guarantee,
    )
    sink.check()
    writer = open_writer(sink, 1)
    when = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    records = [("a", {"tenant": "x"}, 1_000), ("b", None, when), ("c", [("t", b"1"), ("t", None)], 1)]
    handle = stage(writer, records, 1)
    if guarantee == "exactly once":
        assert [one["headers"] for one in writer.pending_records([handle])] == [
            [("tenant", b"x")],
            [],
            [("t", b"1"), ("t", None)],
        ]
    writer.commit(permit(1), [handle])
    writer.close()
    found = read_source(cc.kafka.source(broker.servers, topic, stop="latest", decode="message"))
    assert [(one.value, one.headers, one.timestamp_ms) for one in found] == [
        (b'"a"', (("tenant", b"x"),), 1_000),
        (b'"b"', (), 1_767_225_600_000),
        (b'"c"', (("t", b"1"), ("t", None)), 1),
    ]


def test_a_timestamp_that_the_topic_would_refuse_is_refused_before_the_commit(broker: KafkaBroker) -> None:
    """P6: a record far in the future by its record, a topic that takes no old ones by its setting."""
    topic = new(broker)
    sink = cc.kafka.sink(broker.servers, topic, timestamp=lambda one: one)
    sink.check()
    writer = open_writer(sink, 1)
    with pytest.raises(RefusedRecordError, match=r"4000000000000 is refused.*after\.max\.ms"):
        writer.write([4_000_000_000_000])
    writer.close()
    only_new = new(broker, **{"message.timestamp.before.max.ms": "60000"})
    error = refusal(cc.kafka.sink(broker.servers, only_new, timestamp=lambda one: one))
    assert "older than 60000 ms" in str(error) and error.is_permanent
    cc.kafka.sink(broker.servers, only_new).check()
    by_broker = new(
        broker, **{"message.timestamp.before.max.ms": "60000", "message.timestamp.type": "LogAppendTime"}
    )
    cc.kafka.sink(broker.servers, by_broker, timestamp=lambda one: one).check()


def test_the_topic_of_markers_is_made_compacted_and_one_that_forgets_is_refused(broker: KafkaBroker) -> None:
    """B7, P7: also by a writer, whose driver has looked before somebody changed it."""
    topic, markers = new(broker), f"markers-{random.SystemRandom().randrange(2**32)}"
    cc.kafka.sink(broker.servers, topic, marker_topic=markers).check()
    writer = open_writer(cc.kafka.sink(broker.servers, topic, marker_topic=markers), 1)
    writer.commit(permit(1), [stage(writer, ["a"], 1)])
    writer.close()
    for policy in ("delete", "compact,delete"):
        forgetful = new(broker, **{"cleanup.policy": policy})
        sink = cc.kafka.sink(broker.servers, topic, marker_topic=forgetful)
        message = f"cleanup.policy='{policy}', which deletes markers"
        with pytest.raises(ConnectorError, match=message):
            sink.check()
        with pytest.raises(ConnectorError, match=message):
            open_writer(sink, 1)
    # Made by somebody else, with one partition.
    sink = cc.kafka.sink(broker.servers, topic, marker_topic=new(broker, cleanup_policy="compact"))
    sink.check()


def test_markers_that_are_gone_end_the_job(broker: KafkaBroker) -> None:
    """P7: there is something to commit, or to lose, and nobody knows whether it is there already."""
    topic, markers = new(broker), new(broker, cleanup_policy="compact")
    sink = cc.kafka.sink(broker.servers, topic, marker_topic=markers)
    writer = open_writer(sink, 1)
    handle = stage(writer, ["a"], 1)
    writer.commit(permit(1), [handle])
    writer.close()
    broker.delete_topic(markers)
    with pytest.raises(HistoryError, match="is missing"):
        open_writer(sink, 2, restore=1, handles=[handle])
    with pytest.raises(HistoryError, match="remembers nothing"):
        open_writer(sink, 3, restore=1, committed=1)
    assert texts(broker, topic) == ["a"]


def read_some(source: Source, split: Split, position: Any) -> list[Any]:
    reader = source.reader(split, position)
    try:
        found: list[Any] = []
        while batch := next_batch(reader, 100):
            found += batch
        return found
    finally:
        reader.close()


@pytest.mark.parametrize("stop", ["latest", None])
def test_a_topic_that_was_made_anew_is_not_read_on(broker: KafkaBroker, stop: Any) -> None:
    """B8, P7: a bounded job, which looks for no partitions, is resumed on another topic of that name."""
    topic = new(broker)
    broker.produce(topic, [(None, b"old %d" % i) for i in range(30)])
    source = cc.kafka.source(broker.servers, topic, stop=stop, decode="text")
    (split,) = source.splits(1)
    if stop is not None:
        assert read_some(source, split, 10) == [f"old {i}" for i in range(10, 30)]
    broker.delete_topic(topic)
    broker.create_topic(topic, 1)
    broker.produce(topic, [(None, b"new %d" % i) for i in range(30)])
    for _ in range(2):
        # As in another process.
        watch._verified.clear()
        again = cc.kafka.source(broker.servers, topic, stop=stop, decode="text")
        with pytest.raises(ConnectorError, match="was deleted and recreated"):
            read_some(again, split, 10)
    (split,) = cc.kafka.source(broker.servers, topic, stop="latest").splits(1)
    bounded = cc.kafka.source(broker.servers, topic, stop="latest", decode="text")
    assert read_source(bounded) == [f"new {i}" for i in range(30)]
    # Of a checkpoint of an older release the identity is not known.
    assert isinstance(split.detail, dict)
    nameless = Split(split.split_id, 0, {k: v for k, v in split.detail.items() if k != "id"})
    assert len(read_some(bounded, nameless, 0)) == 30


def test_a_topic_that_was_just_made_is_waited_for(broker: KafkaBroker) -> None:
    """Not all brokers know of it at once."""
    name = f"topic-{random.SystemRandom().randrange(2**32)}"
    client = broker.admin()
    with pytest.raises(library().KafkaException):
        topic_settings(client, name, 0.0)
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(topic_settings, client, name, 100.0)
        broker.create_topic(name, cleanup_policy="compact")
        assert (found.result() or {})["cleanup.policy"] == "compact"


def test_lag_is_known_while_brokers_answer(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new(broker)
    broker.produce(topic, [(None, b"%d" % i) for i in range(30)])
    source = cc.kafka.source(broker.servers, topic, decode="text")
    (split,) = source.splits(1)
    reader: Any = source.reader(split, 0)
    assert next_batch(reader, 10) == [str(i) for i in range(10)]
    assert reader.lag == 20
    # However short ago they have answered, it was too long ago.
    monkeypatch.setattr(watch, "PROBE_S", -1.0)
    assert reader.lag is None
    reader.close()


@pytest.mark.parametrize("guarantee", ["exactly once", "at least once"])
def test_many_small_messages_go_to_a_topic_that_takes_no_large_batches(
    broker: KafkaBroker, guarantee: Any
) -> None:
    """C20: the library puts a megabyte into each batch, and brokers refuse a batch as a whole, for good."""
    topic = new(broker, max_message_bytes="2000")
    sink = cc.kafka.sink(broker.servers, topic, guarantee=guarantee)
    writer = open_writer(sink, 1)
    records = ["x" * 200 + str(i) for i in range(500)]
    writer.commit(permit(1), [stage(writer, records, 1)])
    writer.close()
    assert texts(broker, topic) == records


@pytest.mark.parametrize(
    "check",
    [
        check_a_refused_record_never_gets_past_prepare,
        check_the_others_are_written_if_refused_records_are_set_aside,
        check_prepared_records_can_be_shown,
    ],
)
@pytest.mark.parametrize(
    "refused", ["too large", "too large though compressed", "without a key", "not to be encoded"]
)
def test_a_record_that_the_topic_refuses_gets_no_further(
    broker: KafkaBroker, check: Any, refused: str
) -> None:
    """P6, C20."""
    topic = new(broker, max_message_bytes="2000", cleanup_policy="compact,delete")
    sink = cc.kafka.sink(
        broker.servers,
        topic,
        key=lambda record: None if record == "none" else "key",
        options={"compression.type": "gzip" if "compressed" in refused else "none"},
    )
    kinds = {
        "too large": lambda i: "x" * (2_000 + i),
        "too large though compressed": lambda i: random.Random(i).randbytes(4_000).hex(),
        "without a key": lambda i: "none",
        "not to be encoded": lambda i: {1j * i},
    }
    target = SinkTarget(
        sink,
        lambda: texts(broker, topic),
        refused=kinds[refused],
        shown=lambda message: orjson.loads(message["value"]),
    )
    check(target)


def test_what_would_be_refused_at_every_commit_is_refused_before_a_job_starts(broker: KafkaBroker) -> None:
    """C20, C25: a compacted topic and no keys; a transaction that is longer than brokers allow."""
    compacted = new(broker, cleanup_policy="compact")
    assert "accepts no message without a key" in str(refusal(cc.kafka.sink(broker.servers, compacted)))
    topic = new(broker)
    long = cc.kafka.sink(broker.servers, topic, options={"transaction.timeout.ms": 600_000})
    assert "the brokers at" in str(refusal(long)) and "allow 120000" in str(refusal(long))
    with pytest.raises(ConnectorError, match="could not be taken over"):
        open_writer(long, 1)
    fitting = cc.kafka.sink(broker.servers, topic, options={"transaction.timeout.ms": 110_000})
    fitting.check()
    writer = open_writer(fitting, 1)
    writer.commit(permit(1), [stage(writer, ["a"], 1)])
    writer.close()
    assert texts(broker, topic) == ["a"]
    with pytest.raises(RefusedRecordError, match="can't be encoded"):
        open_writer(fitting, 2, restore=1).write([{1, 2}])


@pytest.mark.parametrize("slow", [False, proven(True)])
def test_brokers_that_never_answer_are_an_error(broker: KafkaBroker, slow: bool) -> None:
    """P8: silent, or slow for ever. Its library has deadlines for whole requests."""
    topic = new(broker)
    with broker.proxy() as proxy:

        def stall() -> Callable[[], None]:
            proxy.stall(slow=slow)
            return proxy.flow

        sink = cc.kafka.sink(proxy.address, topic, options={"transaction.timeout.ms": 10_000})
        check_a_system_that_never_answers_is_an_error(
            SinkTarget(sink, lambda: texts(broker, topic), stalls=[stall])
        )


class RefusesAtCommit(SinkWriter):
    """Its system answers only when everything is there for all to see, and refuses all."""

    def __init__(self) -> None:
        self.open: list[Any] = []

    def write(self, records: list[Any]) -> None:
        self.open += records

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        records, self.open = self.open, []
        return records or None

    def prepare(self, transaction: Any) -> JSON:
        return {"records": transaction}

    def recover(self, permit: CommitPermit | None, handles: Sequence[Any]) -> None:
        for handle in handles:
            for record in handle["records"]:
                self.refuse(record, "answered 422")

    def commit(self, permit: CommitPermit, handles: Sequence[Any]) -> None:
        self.recover(permit, handles)


class Hook(Sink[Any]):
    def writer(self, context: SinkContext) -> SinkWriter:
        return RefusesAtCommit()


def test_letters_of_a_restored_checkpoint_reach_their_topic(broker: KafkaBroker) -> None:
    """P6, F1: the process died after its checkpoint was complete, before its system was asked."""
    topic = new(broker)
    letters = cc.kafka.sink(broker.servers, topic, value=lambda letter: letter.record)
    sink = SinkWithDeadLetters(Hook(), letters)
    uid = "u" * 64
    writer = open_writer(sink, 1, sink_uid=uid)
    handle = stage(writer, ["a"], 1)
    writer.close()
    writer = open_writer(sink, 2, restore=1, handles=[handle], sink_uid=uid)
    assert texts(broker, topic) == ["a"]
    writer.commit(permit(2, 2), [stage(writer, ["b"], 2)])
    handle = stage(writer, ["c"], 3)
    writer.close()
    open_writer(sink, 3, restore=3, handles=[handle], sink_uid=uid).close()
    assert texts(broker, topic) == ["a", "b", "c"]


def test_a_source_whose_brokers_fall_silent_says_so(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C22, P8: the library itself waits for as long as it takes."""
    topic = new(broker)
    broker.produce(topic, [(None, b"%d" % i) for i in range(10)])
    with broker.proxy() as proxy:
        source = cc.kafka.source(proxy.address, topic, decode="text")
        (split,) = source.splits(1)
        reader = source.reader(split, 0)
        assert next_batch(reader, 20) == [str(i) for i in range(10)]
        proxy.stall(slow=False)
        # Only now: a broker that is slow is not silent.
        monkeypatch.setattr(watch, "SILENCE_S", 2.0)
        monkeypatch.setattr(watch, "PROBE_S", 0.5)
        monkeypatch.setattr("crosscut.connectors.kafka.topics.TIMEOUT_S", 1.0)
        with pytest.raises(ConnectorError, match="has answered for"):
            while True:
                next_batch(reader, 1)
        assert reader.lag is None
        proxy.flow()
        reader.close()


def test_a_bounded_job_reads_from_an_offset_to_an_offset_or_to_a_time(broker: KafkaBroker) -> None:
    topic = new(broker)

    def read(**options: Any) -> list[Any]:
        source = cc.kafka.source(broker.servers, topic, **{"decode": "text", "stop": "latest", **options})
        (split,) = source.splits(1)
        return read_some(source, split, split.start)

    broker.produce(topic, [(None, b"%d" % number) for number in range(5)])
    newest = max(one.timestamp_ms for one in read(decode="message"))
    noon = datetime.datetime.fromtimestamp((newest + 1) / 1_000, datetime.UTC)
    while datetime.datetime.now(datetime.UTC) <= noon:
        pass
    broker.produce(topic, [(None, b"%d" % number) for number in range(5, 9)])
    assert read(start={topic: {0: 2}}, stop={topic: {0: 7}}) == ["2", "3", "4", "5", "6"]
    assert read(stop=noon) == ["0", "1", "2", "3", "4"]
    assert read(start=noon) == ["5", "6", "7", "8"]
    assert read(start={topic: {0: 9}}) == []
