"""Kafka with a real broker: what is committed is read once, in order, whatever is killed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from jobs import DEADLINE_S, PATIENT, Armed, lose, until
from proving import proven

import crosscut as cc
from crosscut.errors import ConnectorError, CrosscutError, HistoryError
from crosscut.foundation.ids import CheckpointId
from crosscut.testing.sinks import SINK_CHECKS, SinkTarget, open_writer, permit, stage
from crosscut.testing.sources import check_source, read_source

pytest.importorskip("confluent_kafka", reason="pip install 'crosscut[kafka]'")
pytest.importorskip("msgspec", reason="pip install 'crosscut[kafka]'")

from kafka_jobs import check_prefix, counting, numbers, read_pairs

from crosscut.testing.kafka import KafkaBroker
from crosscut.testing.proxy import TcpProxy, Way
from crosscut.testing.schema_registry import SchemaRegistryServer


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as one:
        yield one


@pytest.fixture
def topic(broker: KafkaBroker, request: pytest.FixtureRequest) -> str:
    name = f"t{abs(hash(request.node.name)):x}-in"
    broker.create_topic(name, 3)
    return name


@pytest.fixture
def out(broker: KafkaBroker, topic: str) -> str:
    broker.create_topic(f"{topic}-out", 2)
    return f"{topic}-out"


def settings_in(tmp_path: Path, **others: Any) -> cc.Settings:
    given: dict[str, Any] = {"parallelism": 2, "checkpoint_interval": "100ms", **PATIENT}
    return cc.Settings(checkpoint_dir=tmp_path / "checkpoints", **(given | others))


def stop(job: Any) -> None:
    """Stop with a last checkpoint, which takes a job that is not in the middle of a restart."""
    until(lambda: job.status == "running", "the job to run", DEADLINE_S)
    assert job.stop()


# The random lives make some hundred writers, each of which has a producer to take over: minutes.
CHECKS = [
    check for check in SINK_CHECKS if check.__name__ not in ("check_random_lives", "check_order_is_kept")
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_sink_conforms(check: Callable[[SinkTarget], None], broker: KafkaBroker) -> None:
    """F1, F2, F4, F6, F8, C1, I1, I2, I3, on a real broker."""
    name = f"{check.__name__}-{random.SystemRandom().randrange(2**32)}"
    broker.create_topic(name, 1)

    def visible() -> list[Any]:
        return [orjson.loads(one.value()) for one in broker.consume(name)]

    sink = cc.kafka.sink(broker.servers, name)
    check(SinkTarget(sink, visible, backup=broker.backup, shown=lambda one: orjson.loads(one["value"])))


def test_a_source_conforms_and_reads_what_is_committed_only(broker: KafkaBroker, topic: str) -> None:
    numbers(broker, topic, 0, 300)
    writer = open_writer(cc.kafka.sink(broker.servers, topic), 1)
    handle = stage(writer, [1_000, 1_001], 1)
    bounded = cc.kafka.source(broker.servers, topic, stop="latest", decode="json")
    assert sorted(read_source(bounded)) == list(range(300))
    writer.commit(permit(1), [handle])
    writer.close()
    assert sorted(read_source(bounded)) == [*range(300), 1_000, 1_001]
    check_source(bounded)
    message = read_source(cc.kafka.source(broker.servers, topic, stop="latest", decode="message"))[0]
    assert (message.topic, message.offset, message.key) == (topic, 0, b"k%d" % (int(message.value) % 17))
    assert message.timestamp_ms is not None
    assert message.timestamp_ms > 0


@pytest.mark.parametrize(
    "traps",
    [
        ("commit.before:kill:2:0", "commit.after:kill:3:1"),
        # As in test_end_to_end.py.
        proven(("snapshot.stored:kill:2:1", "commit.told:kill:2:0")),
    ],
)
def test_topic_to_topic_is_exact_under_kills_at_every_point_of_a_commit(
    broker: KafkaBroker, topic: str, out: str, started: Any, arm: Any, tmp_path: Path, traps: tuple[str, ...]
) -> None:
    """B2, B3, F1, F2, I1, I2, I3, I5."""
    armed: Armed = arm(*traps)
    settings = settings_in(tmp_path)
    job = started.flow(counting(broker.servers, topic, out), settings)
    sent = 0

    def feed() -> bool:
        nonlocal sent
        # Not faster than they are counted: all of them are read again and again here.
        if check_prefix(broker, out) > sent - 1_000:
            numbers(broker, topic, sent, 500)
            sent += 500
        return bool(armed.all_fired())

    until(feed, "every kill to have happened", DEADLINE_S)
    until(lambda: check_prefix(broker, out) == sent, f"{sent} updates", DEADLINE_S)
    assert job.report().restarts >= 1
    stop(job)
    assert check_prefix(broker, out) == sent
    eager = Counter(one.key() for one in broker.consume(topic))
    assert dict(read_pairs(broker, out)) == {key.decode(): count for key, count in eager.items()}


def test_partitions_that_come_while_a_job_runs_are_read_from_their_beginning_whoever_is_killed(
    broker: KafkaBroker, topic: str, out: str, started: Any, arm: Any, tmp_path: Path
) -> None:
    """I1, I2, I3: workers die when they are given the first of them, and when these are in a checkpoint."""
    armed: Armed = arm("splits.assigned:kill:1:0", "snapshot.stored:kill:4:1")
    settings = settings_in(tmp_path, checkpoint_interval="200ms")
    # They are older than the job's first look at them: "latest" is for what is there when it starts.
    flow = counting(broker.servers, topic, out, start="latest", discover_every="200ms")
    job = started.flow(flow, settings)
    until(lambda: job.status == "running", "the job to run", DEADLINE_S)
    sent = 0
    for count in (5, 6):
        broker.add_partitions(topic, count)
        numbers(broker, topic, sent, 600)
        sent += 600
        until(lambda: check_prefix(broker, out) == sent, f"{sent} updates", DEADLINE_S)  # noqa: B023
    until(armed.all_fired, "every kill to have happened", DEADLINE_S)
    numbers(broker, topic, sent, 600)
    sent += 600
    until(lambda: check_prefix(broker, out) == sent, f"{sent} updates", DEADLINE_S)
    stop(job)
    assert check_prefix(broker, out) == sent


def test_a_topic_that_is_deleted_or_made_anew_is_an_error_and_a_broker_that_is_away_is_none(
    broker: KafkaBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: another topic of the same name has the same offsets, and other messages."""
    source = cc.kafka.source(broker.servers, topic)
    assert isinstance(source, cc.DynamicSource)
    known = source.discover(None).known
    assert source.discover(known) == cc.Discovered([], known)
    broker.delete_topic(topic)
    monkeypatch.setattr("crosscut.connectors.kafka.topics.GONE_AFTER_S", 0.1)
    with pytest.raises(ConnectorError, match=f"topic '{topic}' at .* does not exist: was it deleted"):
        source.discover(known)
    broker.create_topic(topic, 3)
    monkeypatch.setattr("crosscut.connectors.kafka.topics.GONE_AFTER_S", DEADLINE_S)
    with pytest.raises(ConnectorError, match="was deleted and recreated"):
        source.discover(known)
    away = cc.kafka.source("127.0.0.1:9", topic)
    assert isinstance(away, cc.DynamicSource)
    monkeypatch.setattr("crosscut.connectors.kafka.topics.TIMEOUT_S", 0.5)
    assert away.discover(known) == cc.Discovered([], known)


def test_a_broker_that_dies_and_comes_back_costs_time_only(tmp_path: Path, started: Any, topic: str) -> None:
    """F1: its death leaves commits without a known outcome."""
    with KafkaBroker(tmp_path / "kafka") as own:
        own.create_topic(topic, 2)
        own.create_topic("out", 2)
        settings = settings_in(tmp_path, restart=cc.Restart(failures=100))
        numbers(own, topic, 0, 2_000)
        job = started.flow(counting(own.servers, topic, "out"), settings)
        until(lambda: check_prefix(own, "out") > 0, "the first output", DEADLINE_S)
        own.kill()
        own.start()
        numbers(own, topic, 2_000, 2_000)
        until(lambda: check_prefix(own, "out") == 4_000, "all of the output", DEADLINE_S)
        stop(job)
        assert check_prefix(own, "out") == 4_000


END_TRANSACTION = (26).to_bytes(2, "big")
"""Which request it is, after the four bytes of its length."""


def test_connections_that_are_cut_at_any_byte_cost_time_only(
    broker: KafkaBroker, topic: str, out: str, started: Any, tmp_path: Path
) -> None:
    """F1, F2, D7: a commit that is not heard, one whose answer is not, and anything in between."""
    committing: list[int] = []

    def before_a_commit(way: Way, data: bytes, connection: int) -> int | None:
        return 0 if way == "to server" and data[4:6] == END_TRANSACTION else None

    def after_a_commit(way: Way, data: bytes, connection: int) -> int | None:
        if way == "to server" and data[4:6] == END_TRANSACTION:
            committing.append(connection)
        return 0 if way == "to client" and connection in committing else None

    choices = random.Random(11)
    cuts: list[Callable[[TcpProxy], None]] = [
        lambda proxy: proxy.cut_when(before_a_commit),
        lambda proxy: proxy.cut_when(after_a_commit),
        *(lambda proxy: proxy.cut_after(choices.randrange(20_000)) for _ in range(6)),
    ]
    settings = settings_in(tmp_path, restart=cc.Restart(failures=100))
    with broker.proxy() as proxy:
        flow = counting(proxy.address, topic, out)
        job = started.flow(flow, settings)
        sent = 0
        for cut in cuts:
            cut(proxy)
            numbers(broker, topic, sent, 500)
            sent += 500
            until(lambda: check_prefix(broker, out) == sent, f"{sent} updates", DEADLINE_S)  # noqa: B023
            until(lambda: not proxy.is_armed, "the cut", DEADLINE_S)
        assert proxy.cuts >= len(cuts)
        stop(job)
    assert check_prefix(broker, out) == sent


def test_a_zombie_that_wakes_up_commits_nothing(broker: KafkaBroker, out: str) -> None:
    """C1, I7: at the resource, by the producer's own fence and by the epoch in the marker."""
    sink = cc.kafka.sink(broker.servers, out)
    zombie = open_writer(sink, 1)
    first = stage(zombie, [1], 1)
    successor = open_writer(sink, 2, restore=1, handles=[first])
    second = stage(zombie, [2], 2)
    for expected in ("fenced", "zombie"):
        with pytest.raises(ConnectorError, match=expected):
            zombie.commit(permit(2), [second])
    with pytest.raises(ConnectorError, match="newer instance"):
        successor.commit(permit(2, 2), [stage(successor, [3], 2)])
    successor.commit(permit(2, 2), [{"checkpoint": 2, "topic": out, "messages": 1}])
    assert sorted(orjson.loads(one.value()) for one in broker.consume(out)) == [1, 3]


def test_a_log_that_has_lost_entries_is_seen_before_anything_is_written(
    broker: KafkaBroker, out: str
) -> None:
    """N1: the topic knows of a newer checkpoint than the job."""
    sink = cc.kafka.sink(broker.servers, out)
    writer = open_writer(sink, 1)
    for n in (1, 2):
        writer.commit(permit(n), [stage(writer, [n], n)])
    with pytest.raises(HistoryError, match="The job log has lost entries"):
        open_writer(sink, 2, restore=1, handles=[])
    assert len(broker.consume(out)) == 2


def test_a_marker_that_is_gone_is_never_guessed_at(broker: KafkaBroker, out: str) -> None:
    """F3, I12: somebody has deleted them while output may be committed already."""
    sink = cc.kafka.sink(broker.servers, out)
    writer = open_writer(sink, 1)
    handle = stage(writer, [1], 1)
    writer.close()
    sink = cc.kafka.sink(broker.servers, out, marker_topic=f"{out}-other-markers")
    with pytest.raises(HistoryError, match="which records what is committed, is missing"):
        open_writer(sink, 2, restore=1, handles=[handle])
    assert broker.consume(out) == []


def test_offsets_that_are_gone_are_named_with_the_range_that_is_lost(broker: KafkaBroker, topic: str) -> None:
    """I12: retention was faster than the job."""
    numbers(broker, topic, 0, 100)
    source = cc.kafka.source(broker.servers, topic, stop="latest", decode="json")
    split = max(source.splits(1), key=lambda one: one.weight)
    assert isinstance(split.detail, dict)
    partition = split.detail["partition"]
    broker.delete_records(topic, partition, 5)
    reader = source.reader(split, 2)
    with pytest.raises(ConnectorError, match="messages 2 to 4 were removed by retention or deletion"):
        until(lambda: isinstance(reader.read(10), list), "a record", DEADLINE_S)
    reader.close()
    endless = cc.kafka.source(broker.servers, topic, decode="json")
    reader = endless.reader(next(one for one in endless.splits(1) if one.split_id == split.split_id), 10_000)
    with pytest.raises(ConnectorError, match="was recreated or has lost messages"):
        until(lambda: isinstance(reader.read(10), list), "a record", DEADLINE_S)
    reader.close()


def test_what_can_not_be_decoded_fails_is_skipped_or_replaced(broker: KafkaBroker, topic: str) -> None:
    """K1."""
    broker.produce(topic, [(b"k", b"1"), (b"k", b"{oops"), (b"k", b"3")])

    def read(malformed: Any) -> list[Any]:
        source = cc.kafka.source(broker.servers, topic, stop="latest", decode="json", malformed=malformed)
        check_source(source)
        return read_source(source)

    assert read("skip") == [1, 3]
    assert read(lambda message, error: (message.offset, type(error).__name__)) == [
        1,
        (1, "JSONDecodeError"),
        3,
    ]
    source = cc.kafka.source(broker.servers, topic, stop="latest", decode="json")
    with pytest.raises(
        ConnectorError, match=f"message 1 of partition . of topic '{topic}' can't be decoded"
    ) as failed:
        read_source(source)
    assert failed.value.is_permanent


def test_avro_goes_through_a_topic_and_is_never_skipped_because_a_registry_is_away(
    broker: KafkaBroker, topic: str, out: str
) -> None:
    pytest.importorskip("fastavro", reason="pip install 'crosscut[avro]'")
    away = cc.kafka.SchemaRegistry("http://127.0.0.1:9")
    broker.produce(topic, [(None, b"\0\0\0\0\x01data"), (None, b"no schema")])
    source = cc.kafka.source(broker.servers, topic, stop="latest", decode=away.avro(), malformed="skip")
    with pytest.raises(ConnectorError, match="does not answer"):
        read_source(source)
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    with SchemaRegistryServer() as server:
        registry = cc.kafka.SchemaRegistry(server.url)
        sink = cc.kafka.sink(broker.servers, out, encode_value=registry.avro_encoder("orders", order))
        writer = open_writer(sink, 1)
        writer.commit(permit(1), [stage(writer, [{"id": 1}, {"id": 2}], 1)])
        writer.close()
        found = read_source(
            cc.kafka.source(broker.servers, out, stop="latest", decode=registry.avro(), malformed="fail")
        )
    assert sorted(one["id"] for one in found) == [1, 2]


def test_where_a_job_begins(broker: KafkaBroker, topic: str) -> None:
    numbers(broker, topic, 0, 50)

    def remaining(**arguments: Any) -> int:
        return len(read_source(cc.kafka.source(broker.servers, topic, stop="latest", **arguments)))

    assert (remaining(), remaining(start="latest")) == (50, 0)
    grouped = cc.kafka.source(broker.servers, topic, start="committed", group=f"{topic}-g", stop="latest")
    assert len(read_source(grouped)) == 50
    for split in grouped.splits(1):
        reader = grouped.reader(split, split.start)
        reader.acknowledge(split.detail["stop"])  # type: ignore[index,call-overload]
        reader.close()
    until(lambda: read_source(grouped) == [], "the offsets to be committed", DEADLINE_S)
    (first, *_) = sorted(
        message.timestamp_ms or 0
        for message in read_source(cc.kafka.source(broker.servers, topic, stop="latest", decode="message"))
    )
    at = datetime.fromtimestamp(first / 1_000, UTC)
    assert (remaining(start=at), remaining(start=at + timedelta(days=1))) == (50, 0)
    # What the group has not read, and is gone, is no reason to begin further on without a word.
    late = cc.kafka.source(broker.servers, topic, start="committed", group=f"{topic}-late", stop="latest")
    split = max(late.splits(1), key=lambda one: one.weight)
    reader = late.reader(split, split.start)
    reader.acknowledge(2)
    reader.close()
    until(lambda: any(one.start == 2 for one in late.splits(1)), "the offset to be committed", DEADLINE_S)
    assert isinstance(split.detail, dict)
    broker.delete_records(topic, split.detail["partition"], 5)
    with pytest.raises(ConnectorError, match="messages 2 to 4 were removed by retention or deletion"):
        read_source(late)


def test_a_job_commits_the_offsets_of_its_group_for_monitoring(
    broker: KafkaBroker, topic: str, out: str, started: Any, tmp_path: Path
) -> None:
    numbers(broker, topic, 0, 200)
    settings = settings_in(tmp_path)
    job = started.flow(counting(broker.servers, topic, out, group=f"{topic}-lag"), settings)
    left = cc.kafka.source(broker.servers, topic, start="committed", group=f"{topic}-lag", stop="latest")
    until(lambda: read_source(left) == [], "the group to have no lag", DEADLINE_S)
    job.stop()


def test_at_least_once_is_sent_before_its_checkpoint(broker: KafkaBroker, out: str) -> None:
    writer = open_writer(cc.kafka.sink(broker.servers, out, guarantee="at least once"), 1)
    writer.write([1, 2])
    transaction = writer.rotate(CheckpointId(1))
    writer.prepare(transaction)
    assert len(broker.consume(out)) == 2
    assert writer.rotate(CheckpointId(2)) is None
    writer.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda at: cc.kafka.source(at, "absent").splits(1), "topic 'absent'"),
        (lambda at: cc.kafka.sink(at, "absent").check(), "topic 'absent'"),
        (lambda at: cc.kafka.sink(at, "x", options={"acks": "0"}), "on which its guarantee rests"),
        (lambda at: cc.kafka.source(at, []), "expected the name of a topic"),
        (lambda at: cc.kafka.source(at, "x", start="now"), "start='now'"),
        (lambda at: cc.kafka.source(at, "x", decode="xml"), "decode='xml'"),
    ],
)
def test_bad_arguments_say_what_to_do(broker: KafkaBroker, make: Callable[[str], Any], message: str) -> None:
    with pytest.raises(CrosscutError, match=message):
        make(broker.servers)


def test_a_record_that_is_too_large_or_no_bytes_is_named(broker: KafkaBroker, out: str) -> None:
    writer = open_writer(cc.kafka.sink(broker.servers, out), 1)
    with pytest.raises(ConnectorError, match="make it smaller"):
        writer.write(["x" * 2_000_000])
    plain = open_writer(cc.kafka.sink(broker.servers, out, encode_value="bytes"), 2)
    with pytest.raises(ConnectorError, match="Kafka takes bytes"):
        plain.write([1])
    for one in (writer, plain):
        one.close()


def test_secrets_are_never_shown(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """S12."""
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    options = {"sasl.password": cc.environment("KAFKA_PASSWORD"), "ssl.key.password": "hunter3"}
    for one in (
        cc.kafka.source(broker.servers, "t", options=options),
        cc.kafka.sink(broker.servers, "t", options=options),
    ):
        assert "hunter" not in repr(one)
        assert "$KAFKA_PASSWORD" in repr(one)


@pytest.mark.proof
def test_a_worker_killed_at_random_moments_loses_and_repeats_nothing(
    broker: KafkaBroker, topic: str, out: str, started: Any, tmp_path: Path
) -> None:
    """I1, I2, I3, I5, with routing that is not deterministic: each attempt deals the records out anew.

    In `make test` test_end_to_end.py has such routing, and kills at chosen moments.
    """
    flow = cc.Flow("random-routes")
    (
        flow.source(cc.kafka.source(broker.servers, topic, decode="json"))
        .key_by(lambda number: random.SystemRandom().randrange(50))
        .aggregate(lambda: 0, lambda _, number: number)
        .sink(cc.kafka.sink(broker.servers, out))
    )
    settings = settings_in(tmp_path)
    job = started.flow(flow, settings)
    sent = killed = 0
    choices = random.Random(7)

    def feed() -> bool:
        nonlocal sent, killed
        found = Counter(number for _, number in read_pairs(broker, out))
        if found.total() > sent - 800:
            numbers(broker, topic, sent, 400)
            sent += 400
        assert not [number for number, times in found.items() if times > 1]
        if found:
            lose(job, started, choices.randrange(2))
            killed += 1
        return killed >= 4

    until(feed, "four kills", DEADLINE_S)
    until(lambda: len(read_pairs(broker, out)) == sent, f"{sent} records", DEADLINE_S)
    stop(job)
    assert sorted(number for _, number in read_pairs(broker, out)) == list(range(sent))
