"""A soak over Kafka, Postgres and files: kills, pauses, cuts, and readers that judge what is committed.

    python tests/process/services_soak.py --minutes 30 --seed 1

Numbered records of 1,000 keys go to a topic while a job reads it, deals them out at random (anew in each
attempt), counts them by key, and writes each count with the sum of the numbers to another topic, to a table
and to files, exactly once. Workers are killed and stopped; the job ends and another goes on with its
checkpoints; the broker and the database are killed and started again; connections to either are cut at any
byte, refused, or hear nothing for a while. All that at moments that nobody has chosen. Meanwhile the
committed output is read, of Kafka with `read_committed`:

* *lost*, *duplicate*: a count of a key that is missing below a larger one, or there twice;
* *out of order*: a count of a key behind a larger one, in a partition;
* *early*: more updates than the job log has records of input in its newest complete checkpoint;
* in the end, *wrong sums*.

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
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import orjson
import psycopg

import crosscut as cc
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.store.checkpoint_store import open_store
from crosscut.testing.kafka import KafkaBroker
from crosscut.testing.postgres import PostgresServer
from crosscut.testing.proxy import TcpProxy

KEYS = 1_000
PARTITIONS = 4
END_DEADLINE_S = 900.0
"""So long after the last fault all of the input has been read and committed."""

Count = tuple[int, int, int]
"""Key, how many records it has had, and the sum of their numbers."""


class PassOn(cc.KeyedProcess[Any, Any]):
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


def flat(pair: tuple[int, tuple[int, int]]) -> Count:
    return (pair[0], *pair[1])


def key_text(count: Count) -> str:
    return str(count[0])


def soaked(kafka: str, conninfo: str, files: str) -> cc.Flow:
    flow = cc.Flow("services-soak")
    counts = (
        flow.source(cc.kafka.source(kafka, "numbers"))
        .named("numbers")
        .map(number_of)
        .named("parsed")
        .key_by(anywhere)
        .process(PassOn())
        .named("anywhere")
        .key_by(key_of)
        .aggregate((0, 0), added)
        .named("counts")
        .map(flat)
    )
    columns = {"key": "integer", "count": "integer", "total": "bigint"}
    counts.sink(cc.kafka.sink(kafka, "counts", key=key_text)).named("to-kafka")
    counts.sink(cc.postgres.sink(conninfo, "counts", columns)).named("to-postgres")
    counts.sink(cc.files.write_jsonl(files)).named("to-files")
    return flow


def completed_records(checkpoints: str) -> int:
    """Return how many records the newest complete checkpoint has read, as the job log says."""
    entries = [entry for _, entry in open_store(checkpoints, create=False).tail()]
    newest = next((one for one in reversed(entries) if isinstance(one, CheckpointCompleted)), None)
    if newest is None:
        return 0
    return sum(one.snapshot.records_in for one in newest.snapshots if one.task.vertex == "numbers")


class Judge(ABC):
    """Reads what one sink has committed, again and again, in a thread of its own."""

    def __init__(self, checkpoints: str) -> None:
        self._checkpoints = checkpoints
        self._counts: dict[int, set[int]] = {key: set() for key in range(KEYS)}
        self._totals = [0] * KEYS
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.found: Counter[str] = Counter({"duplicate": 0, "out of order": 0, "early": 0})
        self.read = 0
        self.error: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    @abstractmethod
    def new(self) -> Iterable[Count]:
        """Return what has been committed since the last call; nothing while the service is away."""

    def close(self) -> None:
        """Let go of the service."""

    @property
    def is_over(self) -> bool:
        """Whether all has been committed."""
        return self._is_over.is_set()

    def _run(self) -> None:
        try:
            while not self.is_over:
                self._look()
                self._is_over.wait(0.3)
            self._look()
        except Exception as error:  # noqa: BLE001 - whatever it is, the soak ends and says so
            self.error = error
        finally:
            self.close()

    def _look(self) -> None:
        for key, count, total in self.new():
            self.read += 1
            counts = self._counts[key]
            if count in counts:
                self.found["duplicate"] += 1
            counts.add(count)
            self.in_order(key, count)
            self._totals[key] = max(self._totals[key], total)
        # In this order: what was complete when it was read is still complete.
        if self.read > (complete := completed_records(self._checkpoints)):
            self.found["early"] += self.read - complete

    def in_order(self, key: int, count: int) -> None:
        """Judge a count by those before it, where the service keeps an order."""

    def end(self, records: int) -> dict[str, Any]:
        """Read the rest, and return what was found of `records`."""
        self._is_over.set()
        self._thread.join()
        expected = [0] * KEYS
        for number in range(records):
            expected[number % KEYS] += number
        lost = sum(max(counts, default=0) - len(counts) for counts in self._counts.values())
        wrong = sum(map(int.__ne__, expected, self._totals))
        error = {} if self.error is None else {"error": repr(self.error)}
        return {"read": self.read, "lost": lost, **self.found, "wrong sums": wrong, **error}


class KafkaJudge(Judge):
    def __init__(self, checkpoints: str, broker: KafkaBroker) -> None:
        super().__init__(checkpoints)
        self._newest = [0] * KEYS
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

    def new(self) -> list[Count]:
        messages = [one for one in self._consumer.consume(50_000, timeout=0.3) if one.error() is None]
        return [tuple(orjson.loads(one.value() or b"")) for one in messages]

    def in_order(self, key: int, count: int) -> None:
        if count < self._newest[key]:
            self.found["out of order"] += 1
        self._newest[key] = max(self._newest[key], count)

    def close(self) -> None:
        self._consumer.close()


class PostgresJudge(Judge):
    def __init__(self, checkpoints: str, server: PostgresServer) -> None:
        super().__init__(checkpoints)
        self._server = server

    def new(self) -> list[Count]:
        # Nothing says which rows are new, so they are counted, and judged at the end.
        # The job may end meanwhile: what was asked for decides how the answer is read.
        is_over = self.is_over
        columns = '"key", "count", total' if is_over else "count(*)"
        try:
            with psycopg.connect(self._server.conninfo, connect_timeout=5) as connection:
                rows = connection.execute(f"select {columns} from counts").fetchall()
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            return []
        self.read = 0 if is_over else rows[0][0]
        return rows if is_over else []


class FilesJudge(Judge):
    def __init__(self, checkpoints: str, directory: Path) -> None:
        super().__init__(checkpoints)
        self._directory = directory
        self._seen: set[Path] = set()

    def new(self) -> Iterator[Count]:
        for file in sorted(set(self._directory.glob("*.jsonl")) - self._seen):
            self._seen.add(file)
            for line in file.read_bytes().splitlines():
                yield tuple(orjson.loads(line))


class Feeder:
    """Sends numbers to the topic, so many a second, until it is told to end."""

    def __init__(self, broker: KafkaBroker, rate: int) -> None:
        self.sent = 0
        self._rate = rate
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._producer = ck.Producer(
            {
                "bootstrap.servers": broker.servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
                "message.timeout.ms": 0,
                "partitioner": "murmur2_random",
            }
        )
        self._thread.start()

    def _run(self) -> None:
        began_s = time.monotonic()
        while not self._is_over.wait(0.05):
            due = int((time.monotonic() - began_s) * self._rate)
            while self.sent < due:
                try:
                    self._producer.produce("numbers", b"%d" % self.sent, b"%d" % (self.sent % KEYS))
                except BufferError:
                    break
                self.sent += 1
            self._producer.poll(0)
        self._producer.flush()

    def end(self) -> int:
        """Send no more; return how many numbers the topic has once it has them all."""
        self._is_over.set()
        self._thread.join()
        return self.sent


class Soak:
    """One job at a time on one directory, the services around it, and what they suffer.

    Attributes:
        faults: How often what has happened.
        restarts: Of the jobs that have ended; see also `job`.
    """

    def __init__(self, place: str, broker: KafkaBroker, database: PostgresServer, stack: ExitStack) -> None:
        self._broker = broker
        self._database = database
        self._proxies = [
            stack.enter_context(broker.proxy()),
            stack.enter_context(TcpProxy("127.0.0.1", database.port)),
        ]
        kafka, postgres = self._proxies
        conninfo = database.conninfo.replace(f"port={database.port}", f"port={postgres.port}")
        self._flow = soaked(kafka.address, conninfo, f"{place}/output")
        self._settings = cc.Settings(
            parallelism=2,
            checkpoint_dir=f"{place}/checkpoints",
            checkpoint_interval="500ms",
            heartbeat_timeout="5s",
            restart=cc.Restart(failures=1_000_000, same_record=1_000_000),
        )
        self.faults: Counter[str] = Counter()
        self.restarts = 0
        self.job = self._flow.start(self._settings)

    def suffer(self, choices: random.Random) -> bool:
        """Let something fail; return whether there was anybody to fail."""
        kinds = {
            "worker": 4,
            "all workers": 1,
            "pause": 2,
            "job": 1,
            "broker": 1,
            "database": 1,
            "cut": 3,
            "refused": 1,
            "silence": 1,
        }
        kind = choices.choices(list(kinds), list(kinds.values()))[0]
        proxy = choices.choice(self._proxies)
        seconds = choices.choice((1.0, 8.0))
        match kind:
            case "worker" | "all workers" | "pause":
                pids = [one.pid for one in self.job.workers()]
                if not pids or self.job.status != "running":
                    return False
                self._signal(kind, pids if kind == "all workers" else [choices.choice(pids)], seconds)
            case "job":
                self.restarts += self.job.report().restarts
                self.job.cancel()
                self.job = self._flow.start(self._settings)
            case "broker":
                self._broker.kill()
                self._broker.start()
            case "database":
                self._database.kill()
                self._database.start()
            case "cut":
                proxy.cut_after(choices.randrange(200_000))
            case "refused":
                # These pauses, and that of a worker, are how long the fault lasts.
                proxy.refuse()
                time.sleep(seconds)
                proxy.allow()
            case "silence":
                proxy.stall(slow=choices.random() < 0.5)
                time.sleep(seconds)
                proxy.flow()
            case _:
                raise AssertionError(kind)
        self.faults[kind] += 1
        return True

    @staticmethod
    def _signal(kind: str, pids: list[int], seconds: float) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                if kind == "pause":
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(seconds)
                    os.kill(pid, signal.SIGCONT)
                else:
                    os.kill(pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long faults are drawn")
    parser.add_argument("--rate", type=int, default=500, help="records a second")
    parser.add_argument("--seed", type=int, default=1, help="repeats the draw, not the machine's timing")
    parser.add_argument("--every", type=float, default=8.0, help="seconds between two faults, about")
    options = parser.parse_args()
    choices = random.Random(options.seed)
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="crosscut-soak-"))
        broker = stack.enter_context(KafkaBroker(Path(place) / "kafka"))
        database = stack.enter_context(PostgresServer())
        broker.create_topic("numbers", PARTITIONS)
        broker.create_topic("counts", PARTITIONS)
        soak = Soak(place, broker, database, stack)
        stack.callback(lambda: soak.job.cancel())
        checkpoints = f"{place}/checkpoints"
        judges: dict[str, Judge] = {
            "kafka": KafkaJudge(checkpoints, broker),
            "postgres": PostgresJudge(checkpoints, database),
            "files": FilesJudge(checkpoints, Path(place) / "output"),
        }
        feeder = Feeder(broker, options.rate)
        for judge in judges.values():
            judge.start()
        began_s = time.monotonic()
        try:
            is_over = watch(soak, judges, feeder, choices, options)
        finally:
            sent = feeder.end()
            # What is committed twice comes late.
            time.sleep(3)
            verdicts = {name: judge.end(sent) for name, judge in judges.items()}
        verdict = {
            "sent": sent,
            "seconds": round(time.monotonic() - began_s),
            "faults": dict(soak.faults),
            "restarts": soak.restarts + soak.job.report().restarts,
            "load": os.getloadavg()[0],
            **verdicts,
        }
        print(json.dumps(verdict), flush=True)
    clean = {"read": sent, "lost": 0, "duplicate": 0, "out of order": 0, "early": 0, "wrong sums": 0}
    sys.exit(int(not is_over or any(one != clean for one in verdicts.values())))


def watch(
    soak: Soak,
    judges: dict[str, Judge],
    feeder: Feeder,
    choices: random.Random,
    options: argparse.Namespace,
) -> bool:
    """Draw faults for so long, then wait for the rest of the output; return whether it came."""
    began_s = told_s = fault_s = time.monotonic()
    faults_end_s = began_s + 60 * options.minutes
    sent: int | None = None
    read = 0
    while True:
        # Between two looks at services that nothing wakes it for.
        time.sleep(0.2)
        now_s = time.monotonic()
        slowest = min(one.read for one in judges.values())
        if now_s - told_s > 10:
            told_s = now_s
            each = {name: {"read": one.read, **one.found} for name, one in judges.items()}
            print(json.dumps({"sent": feeder.sent, "faults": dict(soak.faults), **each}), flush=True)
        if soak.job.status in ("failed", "finished", "fenced") or any(one.error for one in judges.values()):
            print(f"the job or a judge has ended: {soak.job!r}", file=sys.stderr)
            return False
        if now_s > faults_end_s:
            sent = sent if sent is not None else feeder.end()
            if slowest >= sent:
                return True
            if now_s > faults_end_s + END_DEADLINE_S:
                print("it takes too long", file=sys.stderr)
                return False
            continue
        # On a slow machine, too, something has to come between two faults.
        is_due = now_s - fault_s > options.every * (0.5 + choices.random()) and slowest > read
        if is_due and soak.suffer(choices):
            fault_s, read = time.monotonic(), min(one.read for one in judges.values())


if __name__ == "__main__":
    main()
