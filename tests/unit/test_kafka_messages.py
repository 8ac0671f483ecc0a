"""Messages in columns: held in a snapshot, handed to a producer, and dealt out to readers of partitions."""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

import crosscut as cc
from crosscut.connectors.kafka.compressed_size import compressed_bytes_min
from crosscut.connectors.kafka.limits import TopicLimits
from crosscut.connectors.kafka.reader import PartitionReader, ReadOptions, SharedConsumer
from crosscut.connectors.kafka.records import (
    Outgoing,
    SchemaUnavailable,
    header_pairs,
    message_of,
    packed,
    unpacked,
    without_refused,
)
from crosscut.connectors.kafka.sending import HELD_TOGETHER, Held, send
from crosscut.connectors.kafka.sink import KafkaSink
from crosscut.errors import ConnectorError

ck = pytest.importorskip("confluent_kafka", reason="pip install 'crosscut[kafka]'")
pytest.importorskip("msgspec", reason="pip install 'crosscut[kafka]'")


DATA = some.none() | some.binary(max_size=30)
MESSAGES = some.lists(some.tuples(DATA, DATA), max_size=20)


def outgoing(pairs: Sequence[tuple[bytes | None, bytes | None]]) -> Outgoing:
    return Outgoing([key for key, _ in pairs], [value for _, value in pairs])


def pairs_of(messages: Outgoing) -> list[tuple[bytes | None, bytes | None]]:
    return list(zip(messages.keys, messages.values, strict=True))


@given(some.lists(MESSAGES, max_size=5))
def test_what_is_held_comes_back_in_its_order(written: list[list[tuple[bytes | None, bytes | None]]]) -> None:
    held = Held()
    for pairs in written:
        held.add(outgoing(pairs))
    expected = [pair for pairs in written for pair in pairs]
    assert held.count == len(expected)
    found = [pair for _, messages in unpacked(held.data()) for pair in pairs_of(messages)]
    assert found == expected


PAIRS = some.lists(some.tuples(some.text(max_size=5), DATA), max_size=3)
FULL_MESSAGES = some.lists(some.tuples(DATA, DATA, PAIRS, some.integers(0, 2**50)), max_size=20)


@given(some.lists(FULL_MESSAGES, max_size=5))
def test_headers_and_timestamps_are_held_with_their_messages(written: list[list[Any]]) -> None:
    held = Held()
    for messages in written:
        columns = [[message[index] for message in messages] for index in range(4)]
        held.add(Outgoing(*columns))
    found = [
        message
        for _, one in unpacked(held.data())
        for message in zip(one.keys, one.values, one.headers, one.timestamps, strict=True)
    ]
    assert found == [message for messages in written for message in messages]


def test_the_size_of_a_header_counts_the_bytes_of_its_name() -> None:
    messages = Outgoing([None], [b""], [[("\u00e9" * 10, None)]])
    refused: list[Any] = []

    def refuse(record: Any, why: str) -> None:
        refused.append((record, why))

    assert without_refused(messages, ["r"], "t", 19, refuse) == Outgoing([], [])
    assert without_refused(messages, ["r"], "t", 20, refuse) is messages


def test_what_older_releases_have_held_is_read_and_what_has_no_headers_is_held_as_they_do() -> None:
    import msgspec

    data = msgspec.msgpack.encode(([b"k"], [b"v"]))
    older = len(data).to_bytes(4, "big") + data
    assert list(unpacked(older)) == [("", Outgoing([b"k"], [b"v"]))]
    assert packed(Outgoing([b"k"], [b"v"])) == older


@pytest.mark.parametrize(
    ("given_headers", "expected"),
    [
        (None, []),
        ({"a": b"1", "b": "\u00e9", "c": None}, [("a", b"1"), ("b", b"\xc3\xa9"), ("c", None)]),
        ([("a", b"1"), ("a", b"2")], [("a", b"1"), ("a", b"2")]),
        (iter([["a", "1"]]), [("a", b"1")]),
        ({}, []),
    ],
)
def test_headers_are_given_as_a_dict_or_as_pairs(given_headers: Any, expected: Any) -> None:
    assert header_pairs(given_headers) == expected


@pytest.mark.parametrize("found", ["ab", b"ab", 5, {"a": 5}, {1: b"x"}, ["ab"], [("a", b"1", 2)], [("a",)]])
def test_what_are_no_headers_is_refused(found: Any) -> None:
    with pytest.raises(TypeError, match="expected a dict, or pairs"):
        header_pairs(found)


def refusals(sink: Any, records: list[Any]) -> tuple[Outgoing, list[tuple[Any, str]]]:
    refused: list[tuple[Any, str]] = []
    return sink.messages("out", records, lambda record, why: refused.append((record, why))), refused


def test_a_record_whose_headers_or_timestamp_no_topic_takes_is_refused_and_no_other() -> None:
    """P6: at the commit it would be too late."""
    records = [
        {"n": 1, "at": 5, "tags": {"a": "1"}},
        {"n": 2, "at": -1, "tags": None},
        {"n": 3, "at": "soon", "tags": None},
        {"n": 8, "at": 0, "tags": None},
        {"n": 4, "at": 5, "tags": "ab"},
        {"n": 5, "at": 2**45, "tags": None},
        {"n": 6, "at": 5, "tags": {"a": "x" * 2_000}},
        {"n": 7, "at": datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC), "tags": None},
    ]
    sink: Any = cc.kafka.sink(
        "localhost:1",
        "out",
        value=lambda one: one["n"],
        headers=lambda one: one["tags"],
        timestamp=lambda one: one["at"],
    )
    sink._limits["out"] = TopicLimits(1_100, future_ms=60_000)
    found, refused = refusals(sink, records)
    assert found == Outgoing([None, None], [b"1", b"7"], [[("a", b"1")], []], [5, 1_000])
    assert [record["n"] for record, _ in refused] == [3, 4, 2, 8, 5, 6]
    reasons = {record["n"]: why for record, why in refused}
    assert (
        "after the beginning of 1970" in reasons[2]
        and "timestamp is 0" in reasons[8]
        and "message.timestamp.after.max.ms" in reasons[5]
    )
    assert "no timestamp" in reasons[3] and "headers='ab'" in reasons[4] and "bytes for topic" in reasons[6]


@pytest.mark.parametrize(
    "headers",
    [
        lambda one: iter([("n", one["n"])]),
        lambda one: zip(["n"], [one["n"]], strict=True),
        lambda one: (pair for pair in [("n", one["n"])]),
        lambda one: {"n": one["n"]}.items(),
    ],
)
def test_headers_that_can_be_read_only_once_survive_a_refused_record(headers: Any) -> None:
    sink: Any = cc.kafka.sink("localhost:1", "out", headers=headers, timestamp=lambda one: one["at"])
    records = [{"n": "a", "at": 5}, {"n": "b", "at": "soon"}, {"n": 5, "at": 5}, {"n": "c", "at": 7}]
    found, refused = refusals(sink, records)
    assert found.headers == [[("n", b"a")], [("n", b"c")]] and found.timestamps == [5, 7]
    assert [record for record, _ in refused] == records[1:3]


def test_a_record_whose_header_is_no_unicode_is_refused_and_no_other() -> None:
    sink: Any = cc.kafka.sink("localhost:1", "out", value=lambda one: 1, headers=lambda one: one)
    records = [{"a": "1"}, {"n\ud800": b"x"}, {"n": "\ud800"}]
    found, refused = refusals(sink, records)
    assert list(unpacked(packed(found))) == [("", Outgoing([None], [b"1"], [[("a", b"1")]]))]
    assert [record for record, _ in refused] == records[1:]
    assert all("UnicodeEncodeError" in why for _, why in refused)


def test_a_message_without_a_timestamp_has_the_time_at_which_it_is_sent() -> None:
    """Messages of old brokers have none, and are passed on with `lambda message: message.timestamp_ms`."""
    sink: Any = cc.kafka.sink("localhost:1", "out", timestamp=lambda one: one["at"])
    for records in ([{"at": None}, {"at": 5}], [{"at": None}, {"at": 5}, {"at": "soon"}]):
        found, refused = refusals(sink, records)
        assert found.timestamps == [None, 5]
        assert [record for record, _ in refused] == records[2:]
    assert list(unpacked(packed(found))) == [("", found)]
    producer = SmallQueue(room=7)
    send(producer, "out", found)
    assert [options.get("timestamp") for options in producer.more] == [None, 5]


def test_messages_with_headers_keep_their_order_however_often_the_queue_is_full() -> None:
    count = 25
    messages = Outgoing(
        [b"key"] * count,
        [b"%d" % number for number in range(count)],
        [[("n", b"%d" % number)] if number % 2 else [] for number in range(count)],
        list(range(count)),
    )
    producer = SmallQueue(room=7)
    send(producer, "out", messages)
    assert producer.sent == pairs_of(messages)
    assert producer.more == [
        {"headers": pairs or None, "timestamp": time}
        for pairs, time in zip(messages.headers, messages.timestamps, strict=True)
    ]
    refused = Outgoing([None], [b"2"], [[("n", b"")]])
    with pytest.raises(ConnectorError, match="topic 'out': the producer rejects a message"):
        send(SmallQueue(room=9, refused=b"2"), "out", refused)


def test_many_messages_are_held_in_parts_and_a_part_that_is_damaged_is_an_error() -> None:
    held = Held()
    for number in range(3 * HELD_TOGETHER):
        held.add(Outgoing([None], [b"%d" % number]))
    data = held.data()
    parts = [messages for _, messages in unpacked(data)]
    assert [len(one.values) for one in parts] == [HELD_TOGETHER] * 3
    assert [value for one in parts for value in one.values] == [b"%d" % n for n in range(3 * HELD_TOGETHER)]
    for damaged in (data[:-1], data[:2], packed(outgoing([(b"k", b"v")])) + b"\0\0"):
        with pytest.raises(ConnectorError, match="held for Kafka can't be read"):
            list(unpacked(damaged))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((ck.TIMESTAMP_CREATE_TIME, 5), 5),
        ((ck.TIMESTAMP_LOG_APPEND_TIME, 0), 0),
        ((ck.TIMESTAMP_CREATE_TIME, -1), None),
        ((ck.TIMESTAMP_NOT_AVAILABLE, -1), None),
    ],
)
def test_a_message_without_a_timestamp_has_none(found: tuple[int, int], expected: int | None) -> None:
    """-1 would be a time in 1969, which event time takes."""
    message = ck.Message("t", 0, 3, b"k", b"v", timestamp=found)
    assert message_of(message).timestamp_ms == expected


class SmallQueue:
    """A producer whose queue takes a few messages; brokers take them away while it is polled."""

    def __init__(self, room: int, refused: bytes | None = None) -> None:
        self.sent: list[tuple[bytes | None, bytes | None]] = []
        self.more: list[dict[str, Any]] = []
        self._room = self._left = room
        self._refused = refused

    def produce_batch(self, topic: str, messages: list[dict[str, Any]], on_delivery: Any) -> int:
        taken = 0
        for one in messages:
            if one["value"] == self._refused:
                one["_error"] = ck.KafkaError(ck.KafkaError.MSG_SIZE_TOO_LARGE)
            elif not self._left:
                one["_error"] = ck.KafkaError(ck.KafkaError._QUEUE_FULL)
            else:
                self.sent.append((one["key"], one["value"]))
                self._left -= 1
                taken += 1
        return taken

    def produce(
        self, topic: str, value: bytes | None, key: bytes | None, on_delivery: Any, **more: Any
    ) -> None:
        if value == self._refused:
            raise ck.KafkaException(ck.KafkaError(ck.KafkaError.MSG_SIZE_TOO_LARGE))
        if not self._left:
            raise BufferError("the queue is full")
        self.sent.append((key, value))
        self.more.append(more)
        self._left -= 1

    def poll(self, timeout_s: float) -> None:
        if timeout_s:
            self._left = self._room


def test_messages_keep_their_order_however_often_the_queue_of_the_producer_is_full() -> None:
    pairs = [(b"key", b"%d" % number) for number in range(25)]
    producer = SmallQueue(room=7)
    send(producer, "out", outgoing(pairs))
    assert producer.sent == pairs


def test_a_message_that_the_producer_refuses_is_an_error_and_not_left_out() -> None:
    pairs = [(None, b"%d" % number) for number in range(5)]
    with pytest.raises(ConnectorError, match="topic 'out': the producer rejects a message"):
        send(SmallQueue(room=100, refused=b"2"), "out", outgoing(pairs))


def test_the_library_takes_the_first_messages_of_a_batch_and_none_after_one_that_finds_no_room() -> None:
    """What `send` rests on; no broker is needed for it."""
    producer = ck.Producer(
        {"bootstrap.servers": "127.0.0.1:9", "queue.buffering.max.messages": 3, "log_level": 0}
    )
    batch = [{"key": None, "value": b"%d" % number} for number in range(5)]
    assert producer.produce_batch("out", batch, on_delivery=None) == 3
    assert ["_error" in one for one in batch] == [False, False, False, True, True]
    producer.purge()


@pytest.mark.parametrize(
    ("keys", "values", "reason"),
    [
        ([b"k", None], [b"v", 1], "its value is a int.* set encode_value="),
        ([b"k", "no bytes"], [b"v", b"v"], "its key is a str.* set encode_key="),
        ([b"k", b"k" * 5], [b"v", b"v" * 6], "it is 11 bytes for topic 'out', which takes 10"),
        ([b"k", None], [b"v", b"v"], "it has no key, and topic 'out' is compacted"),
    ],
)
def test_a_message_that_a_broker_can_not_take_is_refused_with_its_record(
    keys: list[Any], values: list[Any], reason: str
) -> None:
    """P6: the others go on, in order."""
    refused: list[tuple[Any, str]] = []
    found = without_refused(
        Outgoing(keys, values),
        ["first", "second"],
        "out",
        10,
        lambda record, why: refused.append((record, why)),
        needs_keys=True,
    )
    assert (found.keys, found.values) == ([keys[0]], [values[0]])
    ((record, why),) = refused
    assert record == "second" and re.match(reason, why)


def test_a_long_key_and_a_long_value_of_two_messages_are_not_too_large_together() -> None:
    messages = Outgoing([b"k" * 9, None], [b"v", b"v" * 9])
    assert without_refused(messages, ["first", "second"], "out", 10, fail) == messages


def fail(record: Any, reason: str) -> None:
    raise AssertionError(f"{record!r} is refused: {reason}")


def test_a_record_that_can_not_be_encoded_is_refused_and_no_other() -> None:
    """P6."""
    refused: list[tuple[Any, str]] = []
    sink: Any = cc.kafka.sink("localhost:1", "out")
    found = sink.messages("out", ["a", {1, 2}, "b"], lambda record, why: refused.append((record, why)))
    assert pairs_of(found) == [(None, b'"a"'), (None, b'"b"')]
    assert [record for record, _ in refused] == [{1, 2}]
    assert "can't be encoded for topic 'out'" in refused[0][1]

    def unavailable(value: Any) -> bytes:
        raise SchemaUnavailable("the schema registry does not answer")

    with pytest.raises(SchemaUnavailable):
        cc.kafka.sink("localhost:1", "out", encode_value=unavailable).messages("out", [1], fail)  # type: ignore[attr-defined]


def test_what_a_topic_takes_bounds_messages_and_batches() -> None:
    """C20: the library packs a megabyte into a batch, whatever the topic takes, and never splits it."""
    refused: list[str] = []
    sink: Any = cc.kafka.sink("localhost:1", "out", key=str, encode_value="bytes")
    sink._limits["out"] = TopicLimits(1_100, needs_keys=True)
    found = sink.messages("out", [b"v" * 100, b"v" * 1_000], lambda _, why: refused.append(why))
    assert (len(found.keys), len(refused)) == (1, 1)


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4", "snappy"])
@pytest.mark.parametrize("option", ["compression.type", "compression.codec"])
def test_a_message_that_no_compression_makes_small_enough_is_refused(codec: str, option: str) -> None:
    """C20: brokers limit what they get, so one that compresses well is taken."""
    refused: list[str] = []
    sink: Any = cc.kafka.sink("localhost:1", "out", encode_value="bytes", options={option: codec})
    sink._limits["out"] = TopicLimits(10_100)
    noise = random.Random(1).randbytes(20_000)
    found = sink.messages("out", [b"v" * 100_000, noise, b"v"], lambda _, why: refused.append(why))
    assert [len(one) for one in found.values] == [100_000, 1]
    (reason,) = refused
    assert re.match(rf"it is 20000 bytes, and no less than 1\d{{4}} with {codec}, for topic 'out'", reason)


def test_what_can_not_be_compressed_here_is_left_to_the_brokers() -> None:
    assert compressed_bytes_min(b"data", "a codec of the future") == 0


@pytest.mark.parametrize("timeout", [0, "60000", 2**31, True])
def test_a_time_for_transactions_that_is_none_is_refused(timeout: Any) -> None:
    with pytest.raises(ConnectorError, match=r"transaction.timeout.ms=.*expected an int from 1,000"):
        cc.kafka.sink("localhost:1", "out", options={"transaction.timeout.ms": timeout})


def test_records_become_keys_and_values_and_none_stays_none() -> None:
    sink = cc.kafka.sink("localhost:1", "out", key=lambda pair: pair[0], value=lambda pair: pair[1])
    assert isinstance(sink, KafkaSink)
    messages = sink.messages("out", [("a", [1]), (2, None), (None, "x")], fail)
    assert pairs_of(messages) == [(b"a", b"[1]"), (b"2", None), (None, b'"x"')]
    bare = cc.kafka.sink("localhost:1", "out", encode_value="bytes")
    assert isinstance(bare, KafkaSink)
    assert pairs_of(bare.messages("out", [b"x", None], fail)) == [(None, b"x"), (None, None)]


class Client:
    """Gives what it was told to, a few messages at a time."""

    def __init__(self, *found: Any) -> None:
        self.found = list(found)

    def incremental_assign(self, partitions: list[Any]) -> None:
        pass

    def consume(self, count: int, timeout: float) -> list[Any]:
        taken, self.found = self.found[:count], self.found[count:]
        return taken


def message(topic: str, partition: int, offset: int, error: Any = None) -> Any:
    value = f"{topic}-{partition}-{offset}".encode()
    return ck.Message(topic=topic, partition=partition, offset=offset, value=value, error=error)


def test_messages_of_several_topics_and_partitions_go_to_their_readers_in_order() -> None:
    end = ck.KafkaError(ck.KafkaError._PARTITION_EOF)
    client = Client(
        message("a", 0, 0),
        message("a", 0, 1),
        message("b", 0, 7),
        message("a", 1, 3),
        # Its end, after a marker of a transaction, which is no message.
        message("a", 1, 5, end),
        # Of a partition that was given back.
        message("a", 2, 0),
        message("b", 0, 8),
        message("a", 0, 2),
    )
    shared = SharedConsumer(client, "servers")
    reading = ReadOptions("text", "fail", has_group=False)
    first, second, third = (
        PartitionReader(reading, shared, place, start, float("inf"))
        for place, start in ((("a", 0), 0), (("a", 1), 3), (("b", 0), 7))
    )
    assert first.read(100) == ["a-0-0", "a-0-1", "a-0-2"]
    assert third.read(1) == ["b-0-7"]
    assert (third.read(10), third.position) == (["b-0-8"], 9)
    assert (second.read(10), second.position) == (["a-1-3"], 4)
    assert isinstance(second.read(10), cc.Wait)
    assert second.position == 5


class Broker:
    """Has messages of two partitions, and gives those of the first before any of the second."""

    def __init__(self, *counts: int) -> None:
        self.counts = counts
        self.assigned: dict[int, int] = {}

    def incremental_assign(self, partitions: list[Any]) -> None:
        for one in partitions:
            assert one.partition not in self.assigned
            self.assigned[one.partition] = one.offset

    def incremental_unassign(self, partitions: list[Any]) -> None:
        for one in partitions:
            del self.assigned[one.partition]

    def close(self) -> None:
        pass

    def consume(self, count: int, timeout: float) -> list[Any]:
        end = ck.KafkaError(ck.KafkaError._PARTITION_EOF)
        for partition, offset in sorted(self.assigned.items()):
            until = min(offset + count, self.counts[partition])
            found = [message("a", partition, at) for at in range(offset, until)]
            if offset < self.counts[partition] == until:
                # Its end, behind the marker of a transaction.
                found.append(message("a", partition, until + 1, end))
            self.assigned[partition] = until
            if found:
                return found
        return []


@pytest.mark.parametrize("bound", [("BUFFERED_MAX", 20), ("BUFFERED_BYTES_MAX", 100)])
@pytest.mark.parametrize("ahead_count", [60, 25])
def test_a_partition_that_is_held_takes_the_room_of_no_other(
    monkeypatch: pytest.MonkeyPatch, ahead_count: int, bound: tuple[str, int]
) -> None:
    """Splits that are ahead wait for the slowest one (`within`): it must go on, and they lose nothing.

    C26: what waits is bounded in bytes, too.
    """
    name, most = bound
    monkeypatch.setattr(f"crosscut.connectors.kafka.reader.{name}", most)
    monkeypatch.setattr("crosscut.connectors.kafka.reader.IDLE_MS", 0.0)
    broker = Broker(ahead_count, 60)
    shared = SharedConsumer(broker, "servers")
    reading = ReadOptions("text", "fail", has_group=False)
    ahead, slow = (PartitionReader(reading, shared, ("a", one), 0, float("inf")) for one in (0, 1))
    read = ahead.read(5)
    assert isinstance(read, list)

    def rest(reader: PartitionReader, count: int) -> list[str]:
        found: list[str] = []
        for _ in range(100):
            some = reader.read(5)
            found += some if isinstance(some, list) else []
            waiting = sum(len(one.buffer) for one in (ahead, slow))
            waiting_bytes = sum(len(one) for each in (ahead, slow) for one in each.buffer)
            assert (shared._buffered, shared._buffered_bytes) == (waiting, waiting_bytes)
            assert {"BUFFERED_MAX": waiting, "BUFFERED_BYTES_MAX": waiting_bytes}[name] < most + 5 * 6
        assert len(found) == count
        return found

    assert rest(slow, 60) == [f"a-1-{at}" for at in range(60)]
    assert read + rest(ahead, ahead_count - len(read)) == [f"a-0-{at}" for at in range(ahead_count)]
    slow.close()
    ahead.close()


def test_a_partition_that_is_not_fetched_can_be_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crosscut.connectors.kafka.reader.BUFFERED_MAX", 20)
    broker = Broker(60, 60)
    shared = SharedConsumer(broker, "servers")
    reading = ReadOptions("text", "fail", has_group=False)
    ahead, slow = (PartitionReader(reading, shared, ("a", one), 0, float("inf")) for one in (0, 1))
    while not isinstance(slow.read(5), list):
        pass
    assert list(broker.assigned) == [1]
    ahead.close()
    assert list(broker.assigned) == [1]
