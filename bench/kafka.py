"""Kafka to Kafka through a keyed count, exactly once, a checkpoint every second; one broker on this machine.

`rate`: records a second, of 100 bytes, that are there when the job starts: from the commit of the first
tenth of their updates to that of nearly all. A round with fewer commits between these than `--commits` is
repeated with more records, as the first and the last commit are off by up to a second each. `committed` and
`uncommitted`: records at a fixed rate, from the moment when the producer has made one to the moment when a
consumer has its update: with `read_committed`, and with `guarantee="at least once"`, which shows them before
their checkpoint. With each, `floor`: to the moment when another consumer has the record itself, which is what
broker and client take here. `relay`: the same with a loop of consumer and producer in place of the job: what
the way through Kafka twice takes here. `cores`: what the workers use meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import orjson

import crosscut as cc
from bench.latency import percentiles
from bench.rates import cpu_seconds
from bench.recovery import wait_until
from crosscut.testing.kafka import KafkaBroker

KEYS = 10_000
RECORD_BYTES = 100
PARTITIONS = 4
SHARE = (0.1, 0.95)
"""Of the records: between these the rate is measured."""
COMMITS_MIN = 16
"""Two tasks commit each checkpoint, one after the other."""
GROWTH_MAX = 8.0


def key_of(value: bytes) -> bytes:
    return value[:8]


def made_at(value: bytes) -> int:
    return int(value[8:28])


def counted(state: tuple[int, int], value: bytes) -> tuple[int, int]:
    return state[0] + 1, made_at(value)


def record(number: int, made_ns: int) -> bytes:
    return b"%08d%020d" % (number * 7_919 % KEYS, made_ns) + b"x" * (RECORD_BYTES - 28)


def producer(servers: str) -> Any:
    return ck.Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 1,
            "queue.buffering.max.messages": 1_000_000,
            "partitioner": "murmur2_random",
        }
    )


def fill(broker: KafkaBroker, topic: str, count: int) -> None:
    sender = producer(broker.servers)
    for first in range(0, count, 1_000):
        left = [{"value": record(number, 0)} for number in range(first, min(first + 1_000, count))]
        while left := left[sender.produce_batch(topic, left) :]:
            sender.poll(0.05)
    sender.flush(120)


def flow_of(broker: KafkaBroker, topic: str, out: str, guarantee: Any) -> cc.Flow:
    flow = cc.Flow("kafka-bench")
    (
        flow.source(cc.kafka.source(broker.servers, topic))
        .named("in")
        .key_by(key_of)
        .aggregate((0, 0), counted)
        .named("counts")
        .sink(
            cc.kafka.sink(
                broker.servers, out, key=lambda pair: pair[0], encode_key="bytes", value=lambda pair: pair[1],
                guarantee=guarantee,
            )
        )
        .named("out")
    )  # fmt: skip
    return flow


def started(flow: cc.Flow, directory: str) -> Any:
    return flow.start(
        cc.Settings(parallelism=2, checkpoint_dir=f"{directory}/checkpoints", checkpoint_interval="1s")
    )


def rate(broker: KafkaBroker, count: int, commits_min: int) -> dict[str, Any]:
    """Measure with at least `count` records and `commits_min` commits between the marks."""
    while True:
        found = rate_of(broker, count)
        if found["commits"] >= commits_min:
            return found
        factor = min(GROWTH_MAX, 1.25 * commits_min / max(found["commits"], 1))
        print(f"{found['commits']} commits of {commits_min}: again with {factor:.1f} times as many records",
              file=sys.stderr)  # fmt: skip
        count = int(count * factor)


def rate_of(broker: KafkaBroker, count: int) -> dict[str, Any]:
    topic, out = f"rate-{time.time_ns()}", f"rate-out-{time.time_ns()}"
    broker.create_topic(topic, PARTITIONS)
    broker.create_topic(out, PARTITIONS)
    fill(broker, topic, count)
    consumer = ck.Consumer({"bootstrap.servers": broker.servers, "group.id": out})
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    try:
        job = started(flow_of(broker, topic, out, "exactly once"), directory)
        # When, how many were there, and the processor time of the workers until then. Spark uses processes of
        # earlier rounds again, so only differences belong to this one.
        marks: list[tuple[int, int, float]] = []
        while not marks or marks[-1][1] < count:
            visible = committed(consumer, out)
            if not marks or visible > marks[-1][1]:
                marks.append((time.monotonic_ns(), visible, cpu_seconds(job)))
            time.sleep(0.02)
        job.cancel()
    finally:
        consumer.close()
        shutil.rmtree(directory, ignore_errors=True)
    inner = [mark for mark in marks if SHARE[0] * count <= mark[1] <= SHARE[1] * count]
    if len(inner) < 2:
        return {"benchmark": "kafka rate", "records": count, "commits": len(inner)}
    (first_ns, first, first_cpu_s), (last_ns, last, last_cpu_s) = inner[0], inner[-1]
    return {
        "benchmark": "kafka rate",
        "records": count,
        "commits": len(inner),
        "records_per_s": round((last - first) / ((last_ns - first_ns) / 1e9)),
        "records_per_cpu_s": round((last - first) / (last_cpu_s - first_cpu_s)),
        "load": os.getloadavg()[0],
    }


LATE_S = 60
"""So long the last result of a latency may take; then the run is worth nothing."""


def committed(consumer: Any, topic: str) -> int:
    """Return how many messages a reader of committed ones may see, with a few markers of transactions."""
    partitions = [ck.TopicPartition(topic, one) for one in range(PARTITIONS)]
    return sum(consumer.get_watermark_offsets(one, timeout=30)[1] for one in partitions)


def relay(servers: str, topic: str, out: str) -> None:
    """Send on what comes, one record after the other, until the process is killed."""
    consumer: Any = ck.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": out,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([ck.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    sender = ck.Producer({"bootstrap.servers": servers, "linger.ms": 0, "enable.idempotence": True})
    while True:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            value = message.value()
            sender.produce(out, orjson.dumps([1, made_at(value)]), key_of(value))
        sender.poll(0)


@contextmanager
def relayed(broker: KafkaBroker, topic: str, out: str) -> Iterator[Any]:
    process = subprocess.Popen([sys.executable, "-m", "bench.kafka", "--relay", broker.servers, topic, out])
    try:
        yield None
    finally:
        process.kill()
        process.wait()


@contextmanager
def running(broker: KafkaBroker, topic: str, out: str, guarantee: Any) -> Iterator[Any]:
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    try:
        job = started(flow_of(broker, topic, out, guarantee), directory)
        try:
            wait_until(job, lambda _: job.status == "running")
            yield job
        finally:
            job.cancel()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def latency(broker: KafkaBroker, a_second: int, seconds: float, warm_up: float, part: str) -> dict[str, Any]:
    topic, out = f"latency-{time.time_ns()}", f"latency-out-{time.time_ns()}"
    broker.create_topic(topic, PARTITIONS)
    broker.create_topic(out, PARTITIONS)
    is_committed = part == "committed"
    consumer: Any = ck.Consumer(
        {
            "bootstrap.servers": broker.servers,
            "group.id": out,
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if is_committed else "read_uncommitted",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([ck.TopicPartition(out, partition, 0) for partition in range(PARTITIONS)])
    direct = ck.Consumer(
        {"bootstrap.servers": broker.servers, "group.id": topic, "enable.auto.commit": False}
    )
    direct.assign([ck.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    seen: list[tuple[int, int]] = []
    floor: list[tuple[int, int]] = []
    is_over = threading.Event()

    def consume(one: Any, made_of: Callable[[bytes], int], found: list[tuple[int, int]]) -> None:
        while not is_over.is_set():
            # `consume` with a timeout waits for as many as it may return, or until the timeout is over.
            first = one.poll(0.05)
            for message in [] if first is None else [first, *one.consume(1_000, timeout=0)]:
                if message.error() is None:
                    made_ns = made_of(message.value())
                    found.append((made_ns, time.monotonic_ns() - made_ns))

    readers = [
        threading.Thread(target=consume, args=(consumer, lambda value: orjson.loads(value)[1], seen)),
        threading.Thread(target=consume, args=(direct, made_at, floor)),
    ]
    guarantee = "exactly once" if is_committed else "at least once"
    try:
        is_relay = part == "relay"
        process = relayed(broker, topic, out) if is_relay else running(broker, topic, out, guarantee)
        with process as job:
            for reader in readers:
                reader.start()
            sender = producer(broker.servers)
            begin_ns = time.monotonic_ns()
            count, warm_count = int((seconds + warm_up) * a_second), int(warm_up * a_second)
            cpu_s, since_ns = 0.0, begin_ns
            for number in range(count):
                if number == warm_count:
                    cpu_s, since_ns = cpu_seconds(job) if job else 0.0, time.monotonic_ns()
                due_ns = begin_ns + number * 1_000_000_000 // a_second
                while (left_ns := due_ns - time.monotonic_ns()) > 0:
                    sender.poll(0)
                    time.sleep(min(left_ns, 1_000_000) / 1e9)
                sender.produce(topic, record(number, time.monotonic_ns()))
            # What the workers use for this rate; the relay is no job.
            lasted_s = (time.monotonic_ns() - since_ns) / 1e9
            cores = (cpu_seconds(job) - cpu_s) / lasted_s if job else None
            sender.flush(60)
            # What comes last is not to be missing: it may have taken longest. More than all may come.
            deadline_s = time.monotonic() + LATE_S
            while min(len(seen), len(floor)) < count:
                if time.monotonic() > deadline_s:
                    raise SystemExit(f"of {count} records {len(floor)} were read, and {len(seen)} results")
                time.sleep(0.05)
    finally:
        is_over.set()
        for reader in readers:
            if reader.ident is not None:
                reader.join()
        consumer.close()
        direct.close()
    kept, at_once = (
        [took for made_ns, took in found if made_ns >= begin_ns + warm_up * 1e9] for found in (seen, floor)
    )
    return {
        "benchmark": f"kafka {part}",
        "rate": a_second,
        "records": len(kept),
        "cores": None if cores is None else round(cores, 3),
        "ms": percentiles(kept),
        "floor_ms": percentiles(at_once),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--commits", type=int, default=COMMITS_MIN, help="in a round of `rate`, at least 2")
    parser.add_argument("--parts", nargs="*", default=["rate", "committed", "uncommitted", "relay"])
    parser.add_argument("--relay", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--warm-up", type=float, default=5)
    options = parser.parse_args()
    if options.commits < 2:
        parser.error("--commits: at least 2")
    if options.relay:
        relay(*options.relay)
    with (
        tempfile.TemporaryDirectory(prefix="crosscut-bench-kafka-") as place,
        KafkaBroker(Path(place)) as broker,
    ):
        rates: list[dict[str, Any]] = []
        for _ in range(options.rounds if "rate" in options.parts else 0):
            rates.append(rate(broker, rates[-1]["records"] if rates else options.records, options.commits))
            print(json.dumps(rates[-1]), flush=True)
        if rates:
            median = statistics.median(one["records_per_s"] for one in rates)
            print(json.dumps({"benchmark": "kafka rate", "median": median}), flush=True)
        for part in ("committed", "uncommitted", "relay"):
            if part in options.parts:
                found = latency(broker, options.rate, options.seconds, options.warm_up, part)
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
