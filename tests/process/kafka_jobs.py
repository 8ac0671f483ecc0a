"""A job from topic to topic that counts by key, here or in its own process, and what its output has to be.

As a program: `python kafka_jobs.py SERVERS TOPIC OUT FLOW SETTINGS`, FLOW in JSON, SETTINGS as
`passed_settings` makes them. It reports each event as a JSON line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from jobs import DEADLINE_S, children_of, is_gone, until
from passed_settings import as_argument, settings_of

import crosscut as cc

if TYPE_CHECKING:
    from crosscut.testing.kafka import KafkaBroker


def numbers(broker: KafkaBroker, topic: str, first: int, count: int) -> None:
    broker.produce(topic, [(b"k%d" % (i % 17), b"%d" % i) for i in range(first, first + count)])


def read_pairs(broker: KafkaBroker, topic: str) -> list[tuple[str, int]]:
    return [tuple(orjson.loads(one.value())) for one in broker.consume(topic)]


def counting(
    servers: str,
    topic: str,
    out: str,
    slow: Path | None = None,
    slow_s: float = 0.004,
    conninfo: str = "",
    **source: Any,
) -> cc.Flow:
    """Count by key; each update goes out, so that the committed topic tells of every loss and repeat.

    Args:
        slow: While there is this file, each record takes `slow_s`.
        conninfo: Updates go to the table `updates` of this Postgres server, too.
    """

    def key_of(message: Any) -> str:
        if slow is not None and slow.exists():
            time.sleep(slow_s)
        return str(message.key.decode())

    flow = cc.Flow("counting")
    counts = (
        flow.source(cc.kafka.source(servers, topic, decode="message", **source))
        .named("in")
        .key_by(key_of)
        .count()
        .named("counts")
    )
    counts.sink(cc.kafka.sink(servers, out, key=lambda pair: pair[0])).named("out")
    if conninfo:
        counts.sink(cc.postgres.sink(conninfo, "updates", {"k": "text", "n": "bigint"})).named("table")
    return flow


def described(servers: str, topic: str, out: str, slow: str = "", **rest: Any) -> cc.Flow:
    """Return the flow that arguments in JSON describe."""
    return counting(servers, topic, out, Path(slow) if slow else None, **rest)


def check_prefix(broker: KafkaBroker, out: str) -> int:
    """Every key counts 1, 2, 3, ... in order: nothing lost, twice, early or overtaken; return how many."""
    seen: dict[str, int] = defaultdict(int)
    pairs = read_pairs(broker, out)
    for key, count in pairs:
        assert count == seen[key] + 1, f"key {key}: {count} after {seen[key]}"
        seen[key] = count
    return len(pairs)


class Feed:
    """A topic in which what is sent to another one has to be counted."""

    def __init__(self, broker: KafkaBroker, name: str) -> None:
        self.topic, self.out = f"{name}-in", f"{name}-out"
        broker.create_topic(self.topic, 3)
        broker.create_topic(self.out, 2)
        self.sent = 0
        self._broker = broker

    def send(self, count: int) -> None:
        numbers(self._broker, self.topic, self.sent, count)
        self.sent += count

    def is_counted(self) -> bool:
        return check_prefix(self._broker, self.out) == self.sent


class KafkaDriver:
    """The job in a process of its own, which can be killed."""

    def __init__(
        self,
        broker: KafkaBroker,
        topic: str,
        out: str,
        environment: dict[str, str],
        flow: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        arguments = [broker.servers, topic, out, json.dumps(flow or {}), as_argument(settings)]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.events: list[dict[str, Any]] = []
        self.family: set[int] = set()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.events.append(json.loads(line))
            # As long as somebody can say who they are.
            self.family.update(children_of(self._process.pid))

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> int:
        """Wait for its end, and that of all that it has started; return its code."""
        code = self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        until(lambda: all(map(is_gone, self.family)), f"processes {self.family} to end")
        return code

    def kill(self) -> None:
        if not self.has_ended:
            self._process.kill()
        self.wait()


def main(servers: str, topic: str, out: str, flow: str, settings: str) -> None:
    def tell(event: cc.events.JobEvent) -> None:
        print(json.dumps({"event": type(event).__name__, "engine": getattr(event, "engine", "")}), flush=True)

    job = described(servers, topic, out, **json.loads(flow)).start(cc.Settings(**settings_of(settings)))
    job.on_event(tell)
    job.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
