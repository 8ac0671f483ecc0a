"""A Kafka sink whose topic depends on the record, on a real broker: each topic is exact, also under kills."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from jobs import DEADLINE_S, PATIENT, Armed, until

import crosscut as cc
from crosscut.cli.commands import program
from crosscut.errors import ConnectorError, HistoryError
from crosscut.testing.sinks import SINK_CHECKS, SinkTarget, open_writer, permit, stage

pytest.importorskip("confluent_kafka", reason="pip install 'crosscut[kafka]'")
pytest.importorskip("msgspec", reason="pip install 'crosscut[kafka]'")

from kafka_jobs import numbers

from crosscut.testing.kafka import KafkaBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as one:
        yield one


@pytest.fixture
def topics(broker: KafkaBroker) -> list[str]:
    """Two topics, for odd and for even numbers, and one for dead letters."""
    names = [f"{kind}-{random.SystemRandom().randrange(2**32)}" for kind in ("even", "odd", "dead", "in")]
    for name in names:
        broker.create_topic(name, 2)
    return names


def values(broker: KafkaBroker, topic: str) -> list[Any]:
    return [orjson.loads(one.value()) for one in broker.consume(topic)]


def by_parity(broker: KafkaBroker, even: str, odd: str, number: Callable[[Any], int], **more: Any) -> cc.Sink:
    # All writers of these tests are of the same task of the same job.
    more = {"marker_topic": f"markers-{even}", **more}
    return cc.kafka.sink(
        broker.servers, lambda record: odd if number(record) % 2 else even, topics=[even, odd], **more
    )


# As in test_kafka.py.
CHECKS = [
    check for check in SINK_CHECKS if check.__name__ not in ("check_random_lives", "check_order_is_kept")
]


def number_of(record: str) -> int:
    return int(record.split()[-1])


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_sink_conforms(check: Callable[[SinkTarget], None], broker: KafkaBroker) -> None:
    """F1, F2, F4, F6, F8, C1, I1, I2, I3, on a real broker."""
    even, odd = (f"{check.__name__[:60]}-{random.SystemRandom().randrange(2**32)}" for _ in range(2))
    for name in (even, odd):
        broker.create_topic(name, 1)

    def visible() -> list[Any]:
        found = [values(broker, topic) for topic in (even, odd)]
        for one in found:
            assert one == sorted(one, key=number_of)
        return sorted([*found[0], *found[1]], key=number_of)

    sink = by_parity(broker, even, odd, number_of)
    check(SinkTarget(sink, visible, backup=broker.backup))


def counting(broker: KafkaBroker, even: str, odd: str, dead: str, topic: str) -> cc.Flow:
    """Count by key; odd and even counts go to their topics, those that end with 7 to an undeclared one."""

    def chosen(pair: tuple[str, int]) -> str:
        return "undeclared" if pair[1] % 10 == 7 else (even, odd)[pair[1] % 2]

    flow = cc.Flow("counting")
    (
        flow.source(cc.kafka.source(broker.servers, topic, decode="message"))
        .key_by(lambda message: message.key.decode())
        .count()
        .named("counts")
        .sink(
            cc.kafka.sink(broker.servers, chosen, topics=[even, odd], key=lambda pair: pair[0]),
            dead_letters=cc.kafka.sink(broker.servers, dead, value=lambda letter: letter.record),
        )
        .named("out")
    )
    return flow


def check_prefixes(broker: KafkaBroker, even: str, odd: str, dead: str, *_: str) -> int:
    """In each topic every key has its counts in order: nothing lost, twice or overtaken; return how many."""
    total = 0
    steps = {even: {2, 4, 6, 8, 0}, odd: {1, 3, 5, 9}, dead: {7}}
    for topic, digits in steps.items():
        found: dict[str, list[int]] = defaultdict(list)
        for key, count in values(broker, topic):
            found[key].append(count)
            total += 1
        for key, counts in found.items():
            if topic == dead:
                counts.sort()  # without a key they are in several partitions
            wanted = [n for n in range(1, counts[-1] + 1) if n % 10 in digits]
            assert counts == wanted, f"topic {topic}, key {key}: {counts}"
    return total


@pytest.mark.parametrize(
    ("engine", "traps"),
    [
        ("continuous", ("commit.before:kill:2:0", "commit.after:kill:3:1")),
        ("micro-batch", ("batch.read:kill:1:1", "batch.staged:kill:1:0")),
    ],
)
def test_each_topic_is_exact_under_kills_and_undeclared_topics_are_dead_letters(
    broker: KafkaBroker,
    topics: list[str],
    started: Any,
    arm: Any,
    tmp_path: Path,
    engine: str,
    traps: tuple[str, ...],
) -> None:
    """B2, B3, F1, F2, P6, I1, I2, I3, I5."""
    armed: Armed = arm(*traps)
    directory = tmp_path / "checkpoints"
    given: Any = {"parallelism": 2, "engine": engine, "checkpoint_interval": "100ms", **PATIENT}
    job = started.flow(counting(broker, *topics), cc.Settings(checkpoint_dir=directory, **given))
    sent = 0

    def feed() -> bool:
        nonlocal sent
        if check_prefixes(broker, *topics) > sent - 1_000:
            numbers(broker, topics[-1], sent, 500)
            sent += 500
        return bool(armed.all_fired())

    until(feed, "every kill to have happened", DEADLINE_S)
    until(lambda: check_prefixes(broker, *topics) == sent, f"{sent} counts", DEADLINE_S)
    assert values(broker, topics[2])
    until(lambda: job.status == "running", "the job to run", DEADLINE_S)
    assert job.stop()
    assert check_prefixes(broker, *topics) == sent
    shown = CliRunner().invoke(program, ["transactions", "ls", str(directory)])
    assert shown.exit_code == 0, shown.output


def test_held_messages_are_exported_with_their_topics_and_committed_by_the_next_start(
    broker: KafkaBroker, topics: list[str]
) -> None:
    even, odd = topics[:2]
    sink = by_parity(broker, even, odd, int)
    writer = open_writer(sink, 1)
    handle = stage(writer, [1, 2, 3], 1)
    assert handle == {"checkpoint": 1, "topics": {even: 1, odd: 2}}
    assert [(one["topic"], one["value"]) for one in writer.pending_records([handle])] == [
        (even, b"2"),
        (odd, b"1"),
        (odd, b"3"),
    ]
    writer.close()
    assert values(broker, even) == values(broker, odd) == []
    open_writer(sink, 2, restore=1, handles=[handle]).close()
    assert (values(broker, even), sorted(values(broker, odd))) == ([2], [1, 3])
    with pytest.raises(HistoryError, match="The job log has lost entries"):
        open_writer(sink, 3).close()


def test_output_of_another_history_is_found_in_each_of_the_topics(
    broker: KafkaBroker, topics: list[str]
) -> None:
    even, odd, other, _ = topics
    markers = {"marker_topic": f"markers-{even}"}
    writer = open_writer(by_parity(broker, even, odd, int), 1)
    writer.commit(permit(1), [stage(writer, [1, 2], 1)])
    writer.close()
    alone = open_writer(cc.kafka.sink(broker.servers, other, **markers), 1, sink_uid="another")
    alone.commit(permit(1), [stage(alone, [5], 1)])
    alone.close()
    for sink, found in (
        (by_parity(broker, even, odd, int), 1),
        (by_parity(broker, odd, other, int, **markers), 2),
        (cc.kafka.sink(broker.servers, even, **markers), 1),
        (cc.kafka.sink(broker.servers, other, **markers), 1),
    ):
        assert [one.checkpoint_id for one in sink.committed()] == [1] * found


def test_every_topic_is_looked_at_before_a_job_starts(broker: KafkaBroker, topics: list[str]) -> None:
    even, odd = topics[:2]
    by_parity(broker, even, odd, int).check()
    with pytest.raises(ConnectorError, match=r"topic 'absent'.*create it"):
        by_parity(broker, even, "absent", int).check()
    compacted = f"{even}-compacted"
    broker.create_topic(compacted, 1, cleanup_policy="compact")
    with pytest.raises(ConnectorError, match=f"topic '{compacted}' .* is compacted"):
        by_parity(broker, even, compacted, int).check()
    by_parity(broker, even, compacted, int, key=str).check()


def test_records_for_several_topics_are_sent_at_once_if_that_is_asked_for(
    broker: KafkaBroker, topics: list[str]
) -> None:
    even, odd = topics[:2]
    writer = open_writer(by_parity(broker, even, odd, int, guarantee="at least once"), 1)
    handle = stage(writer, [1, 2, 3, 4], 1)
    assert handle == {"checkpoint": 1, "sent": True}
    assert (sorted(values(broker, even)), sorted(values(broker, odd))) == ([2, 4], [1, 3])
    writer.close()
