"""A soak over Kafka: millions of records under kills, and a reader that judges all that is committed.

    python tests/process/kafka_soak.py --records 5000000 --seed 1

Numbered records of 1,000 keys go to a topic while a job reads it, deals them out at random (anew in each
attempt), counts them by key, and writes each count with the sum of the numbers to another topic, exactly
once. Workers are killed and stopped, and the broker is killed and started again, at moments that nobody has
chosen. All the time a consumer with `read_committed` reads what there is:

* *lost* or *duplicate*: a count of a key that is not one more than the one before, or in the end a wrong sum;
* *out of order*: a count below one that was there before;
* *early*: more updates than the newest complete checkpoint has records.

It prints a line of JSON every ten seconds, and the verdict at the end; the exit code is 1 if it is not clean.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import orjson

import crosscut as cc
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.store.checkpoint_store import open_store
from crosscut.testing.kafka import KafkaBroker

KEYS = 1_000
PARTITIONS = 4
END_DEADLINE_S = 1_800.0


class PassOn(cc.KeyedProcess):
    def on_record(self, record: Any, ctx: cc.Context) -> Iterator[Any]:
        yield record


def number_of(value: bytes) -> int:
    return int(value)


def anywhere(number: int) -> int:
    return random.SystemRandom().randrange(64)


def key_of(number: int) -> int:
    return number % KEYS


def added(state: tuple[int, int], number: int) -> tuple[int, int]:
    return state[0] + 1, state[1] + number


def soaked(broker: KafkaBroker) -> cc.Flow:
    flow = cc.Flow("kafka-soak")
    (
        flow.source(cc.kafka.source(broker.servers, "numbers"))
        .named("numbers")
        .map(number_of)
        .named("parsed")
        .key_by(anywhere)
        .process(PassOn())
        .named("anywhere")
        .key_by(key_of)
        .aggregate((0, 0), added)
        .named("counts")
        .sink(cc.kafka.sink(broker.servers, "counts", key=lambda pair: str(pair[0])))
        .named("out")
    )
    return flow


def completed_records(directory: str) -> int:
    """Return how many records the newest complete checkpoint has read, as the job log says."""
    entries = [entry for _, entry in open_store(directory, create=False).tail()]
    newest = next(one for one in reversed(entries) if isinstance(one, CheckpointCompleted))
    return sum(one.snapshot.records_in for one in newest.snapshots if one.task.vertex == "numbers")


class Judge:
    """Reads what is committed, all the time."""

    def __init__(self, broker: KafkaBroker, checkpoints: str) -> None:
        self._checkpoints = checkpoints
        self._consumer = ck.Consumer(
            {
                "bootstrap.servers": broker.servers,
                "group.id": "judge",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._consumer.assign([ck.TopicPartition("counts", one, 0) for one in range(PARTITIONS)])
        self._newest: dict[int, tuple[int, int]] = {}
        self.found: Counter[str] = Counter(lost=0, duplicate=0, early=0)
        self.found["out of order"] = 0
        self.read = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            messages = [one for one in self._consumer.consume(10_000, timeout=0.2) if one.error() is None]
            for message in messages:
                key, (count, total) = orjson.loads(message.value())
                before = self._newest.get(key, (0, 0))[0]
                if count == before + 1:
                    self._newest[key] = count, total
                elif count > before + 1:
                    self.found["lost"] += count - before - 1
                    self._newest[key] = count, total
                elif count == before:
                    self.found["duplicate"] += 1
                else:
                    self.found["out of order"] += 1
            self.read += len(messages)
            # In this order: what was complete when it was read is still complete.
            if messages and self.read > (complete := completed_records(self._checkpoints)):
                self.found["early"] += self.read - complete

    def end(self, count: int) -> None:
        """Stop, and compare the sums."""
        self._is_over.set()
        self._thread.join()
        self._consumer.close()
        totals = [0] * KEYS
        for number in range(count):
            totals[number % KEYS] += number
        wrong = [key for key, total in enumerate(totals) if self._newest.get(key, (0, 0))[1] != total]
        self.found["wrong sums"] = len(wrong)


def feed(broker: KafkaBroker, count: int, sent: list[int], is_over: threading.Event) -> None:
    producer = ck.Producer(
        {
            "bootstrap.servers": broker.servers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "log_level": 0,
            "message.timeout.ms": 0,
            "partitioner": "murmur2_random",
        }
    )
    for number in range(count):
        while not is_over.is_set():
            try:
                producer.produce("numbers", b"%d" % number, b"%d" % (number % KEYS))
                break
            except BufferError:
                producer.poll(0.05)
        sent[0] = number + 1
    producer.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=8.0, help="seconds between two faults, about")
    options = parser.parse_args()
    choices = random.Random(options.seed)
    faults: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="crosscut-soak-") as place:
        broker = KafkaBroker(Path(place) / "kafka")
        with broker:
            broker.create_topic("numbers", PARTITIONS)
            broker.create_topic("counts", PARTITIONS)
            settings = cc.Settings(
                parallelism=2,
                checkpoint_dir=f"{place}/checkpoints",
                checkpoint_interval="500ms",
                heartbeat_timeout="5s",
                restart=cc.Restart(failures=1_000_000, same_record=1_000_000),
            )
            job = soaked(broker).start(settings)
            judge = Judge(broker, f"{place}/checkpoints")
            is_over = threading.Event()
            sent = [0]
            feeding = threading.Thread(target=feed, args=(broker, options.records, sent, is_over))
            feeding.start()
            began_s = told_s = fault_s = time.monotonic()
            read = 0
            try:
                while judge.read < options.records:
                    time.sleep(0.2)
                    now_s = time.monotonic()
                    if job.status in ("failed", "finished", "fenced"):
                        print(f"the job has ended: {job.status}", file=sys.stderr)
                        break
                    if now_s - told_s > 10:
                        told_s = now_s
                        said = {"sent": sent[0], "read": judge.read, "faults": dict(faults), **judge.found}
                        print(json.dumps(said), flush=True)
                    if now_s - began_s > END_DEADLINE_S:
                        print("it takes too long", file=sys.stderr)
                        break
                    # On a slow machine, too, something has to come between two faults.
                    is_due = now_s - fault_s > options.every * (0.5 + choices.random()) and judge.read > read
                    if is_due and suffer(choices, broker, job, faults):
                        fault_s, read = time.monotonic(), judge.read
            finally:
                is_over.set()
                feeding.join()
                # What is committed twice comes late.
                time.sleep(3)
                judge.end(options.records)
                job.cancel()
            verdict = {
                "records": options.records,
                "read": judge.read,
                "seconds": round(time.monotonic() - began_s),
                "faults": dict(faults),
                "restarts": job.progress()["restarts"],
                "load": os.getloadavg()[0],
                **judge.found,
            }
            print(json.dumps(verdict), flush=True)
    sys.exit(int(any(judge.found.values()) or judge.read != options.records))


def suffer(choices: random.Random, broker: KafkaBroker, job: Any, faults: Counter[str]) -> bool:
    """Let something fail; return whether there was anybody to fail."""
    kind = choices.choice(("worker", "worker", "worker", "all workers", "pause", "broker"))
    pids = [one.pid for one in job.workers()]
    if kind == "broker":
        broker.kill()
        broker.start()
    elif not pids or job.status != "running":
        return False
    elif kind == "pause":
        pid = choices.choice(pids)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(choices.choice((1.0, 8.0)))
            os.kill(pid, signal.SIGCONT)
    else:
        for pid in pids if kind == "all workers" else [choices.choice(pids)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    faults[kind] += 1
    return True


if __name__ == "__main__":
    main()
