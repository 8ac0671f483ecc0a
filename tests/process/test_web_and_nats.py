"""From one NATS stream to another and to an HTTP receiver, while workers are killed at their commits."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, PATIENT, until

import crosscut as cc
from crosscut.testing.sources import read_source

pytest.importorskip("httpx", reason="pip install 'crosscut[http]'")
pytest.importorskip("nats", reason="pip install 'crosscut[nats]'")

from crosscut.testing.nats import NatsServer

KEYS = 20


class Receiver(ThreadingHTTPServer):
    """Takes posts, each key once."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Post)
        self.bodies: dict[str, list[Any]] = {}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A worker that is killed goes away in the middle."""

    def before_answer(self) -> None:
        """Called with each post."""

    def after_answer(self, key: str) -> None:
        """Called when the post with this key is answered."""


class Patience(Receiver):
    """Answers slowly, not at all while `holds`, and at once after `hurry`.

    Attributes:
        answered: The key of each post, in the order of the answers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[str] = []
        self.hurry = threading.Event()
        self.holds = False

    def before_answer(self) -> None:
        while not self.hurry.wait(0.2) and self.holds:
            """It is still held."""

    def after_answer(self, key: str) -> None:
        self.answered.append(key)


class Post(BaseHTTPRequestHandler):
    server: Receiver

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Idempotency-Key"]
        self.server.bodies.setdefault(key, body)
        self.server.before_answer()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.server.after_answer(key)


@contextmanager
def serving(server: Receiver) -> Iterator[None]:
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield
        server.shutdown()
        thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with serving(one := Receiver()):
        yield one


@pytest.fixture
def patience() -> Iterator[Patience]:
    with serving(one := Patience()):
        yield one
        one.hurry.set()


def test_streams_and_posts_are_exact_through_kills_at_every_point_of_a_commit(
    started: Any, arm: Any, tmp_path: Path, receiver: Receiver
) -> None:
    """B2, B3, F1, I1, I2, I5: each number of a key is in both outputs once, and in order."""
    with NatsServer() as server:
        for name, subjects in (("IN", ["in.>"]), ("OUT", ["out.>", "crosscut.OUT.>"])):
            server.call(
                lambda stream, name=name, subjects=subjects: stream.add_stream(
                    name=name, subjects=subjects, allow_atomic=True
                )
            )
        armed = arm("snapshot.stored:kill:2:1", "commit.before:kill:3:0", "commit.after:kill:4:1")
        flow = cc.Flow("streams")
        source = cc.nats.source(server.url, "IN", subjects=["in.a", "in.b"], decode="json")
        counted = (
            flow.source(source).named("in").key_by(lambda n: n % KEYS).aggregate(int, lambda at, _: at + 1)
        ).named("counts")
        counted.sink(cc.nats.sink(server.url, "OUT", "out.counts")).named("out")
        url = f"http://127.0.0.1:{receiver.server_port}/"
        counted.sink(cc.http.sink(url, honours_keys=True, batch_records=50)).named("posts")
        job = started.flow(
            flow,
            cc.Settings(
                parallelism=2,
                checkpoint_dir=str(tmp_path / "checkpoints"),
                checkpoint_interval="100ms",
                **PATIENT,
                restart=cc.Restart(delay_step="50ms", delay_max="200ms"),
            ),
        )
        published = 0

        def publish(count: int) -> None:
            nonlocal published

            async def send(stream: Any) -> None:
                for number in range(published, published + count):
                    await stream.publish(f"in.{'ab'[number % 2]}", str(number).encode())

            server.call(send)
            published += count

        def posts() -> list[Any]:
            return [update for body in list(receiver.bodies.values()) for update in body]

        def all_fired() -> bool:
            # Not faster than they are counted: all of them are read again and again here.
            if len(posts()) > published - 400:
                publish(40)
            started.watch(job)
            return bool(armed.all_fired())

        until(all_fired, "every kill", DEADLINE_S)
        publish(400)
        expected = {key: list(range(1, len(range(key, published, KEYS)) + 1)) for key in range(KEYS)}

        def by_key(updates: list[Any]) -> dict[int, list[int]]:
            found: dict[int, list[int]] = {}
            for key, count in updates:
                found.setdefault(key, []).append(count)
            return found

        def out() -> list[Any]:
            updates = cc.nats.source(server.url, "OUT", subjects=["out.>"], stop="latest", decode="json")
            return read_source(updates)

        for what, found in (("messages", out), ("posts", posts)):

            def are_all_there(found: Any = found) -> bool:
                started.watch(job)
                return len(found()) >= published

            until(are_all_there, f"all {what}", DEADLINE_S)
            assert by_key(found()) == expected, what
        job.cancel()
        assert by_key(out()) == by_key(posts()) == expected


def test_a_receiver_that_cant_keep_up_slows_the_sources_and_gets_nothing_twice_that_it_has_answered(
    started: Any, tmp_path: Path, patience: Patience, caplog: pytest.LogCaptureFixture
) -> None:
    """I1, I2, I5: each post takes 200 ms, and records come four times as fast as that."""
    caplog.set_level(logging.WARNING, "crosscut.job")
    count, uncommitted_max = 3_000, 2
    flow = cc.Flow("webhook")
    numbers = flow.source(cc.generate(lambda n: n, count=count, rate=400)).named("numbers")
    url = f"http://127.0.0.1:{patience.server_port}/"
    numbers.sink(cc.http.sink(url, honours_keys=True, batch_records=10)).named("posts")
    job = started.flow(
        flow,
        cc.Settings(
            engine="continuous",
            parallelism=2,
            checkpoint_dir=str(tmp_path / "checkpoints"),
            checkpoint_interval="100ms",
            checkpoints_uncommitted=uncommitted_max,
            web=True,
            **PATIENT,
            restart=cc.Restart(delay_step="50ms", delay_max="200ms"),
        ),
    )

    def report() -> Any:
        started.watch(job)
        seen = job.report()
        assert seen.uncommitted <= uncommitted_max
        return seen

    behind = until(lambda: report().sink_behind, "the sink to be behind")
    # A sink prepares one checkpoint after it has committed the one before.
    expected = "the sink can't keep up: 1 completed checkpoint is uncommitted, the oldest by "
    assert behind.startswith(expected)
    until(lambda: expected in caplog.text, "a warning")
    assert "no checkpoint starts and sources wait until one is" in caplog.text

    # As long as no post is answered, sources wait.
    patience.holds = True
    readings = [report().records_read]

    def stands_still() -> bool:
        readings.append(report().records_read)
        return len(readings) > 50 and len(set(readings[-50:])) == 1

    until(stands_still, "the sources to wait")
    assert readings[-1] < count
    completed = report().resumes_from
    address, _, token = job.page.partition("#")
    request = urllib.request.Request(f"{address}api/job", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        assert expected in answer.read().decode()

    before = len(patience.answered)
    os.kill(job.workers()[0].pid, signal.SIGKILL)
    until(lambda: expected in report().last_failure, "the cause of the restart")
    assert report().resumes_from == completed
    # Tasks begin when the receiver has answered what they replay.
    patience.holds = False
    until(lambda: len(patience.answered) > before + 10, "posts after the restart")
    patience.hurry.set()
    started.finish(job, report)

    # Of each task, only requests of the checkpoint that was being posted are posted again.
    again: dict[str, set[str]] = defaultdict(set)
    for key, times in Counter(patience.answered).items():
        task, checkpoint, *_ = key.rsplit("-", 3)
        if times > 1:
            again[task].add(checkpoint)
    assert all(len(checkpoints) == 1 for checkpoints in again.values()), again
    assert sorted(n for body in patience.bodies.values() for n in body) == list(range(count))


def test_what_a_receiver_has_answered_is_not_posted_again_after_a_restart_or_by_another_driver(
    started: Any, tmp_path: Path, patience: Patience
) -> None:
    """C21, F1, B2: one checkpoint has all posts, and each takes 200 ms, so a second has five."""
    count, in_a_second = 50, 5
    flow = cc.Flow("webhook")
    url = f"http://127.0.0.1:{patience.server_port}/"
    hook = cc.http.sink(url, honours_keys=True, batch_records=1)
    flow.source(cc.items(range(count))).named("numbers").sink(hook).named("posts")

    def start(failures: int) -> Any:
        settings = cc.Settings(
            engine="continuous",
            parallelism=1,
            checkpoint_dir=str(tmp_path / "checkpoints"),
            checkpoint_interval="100ms",
            **PATIENT,
            restart=cc.Restart(failures=failures, delay_step="50ms", delay_max="200ms"),
        )
        return started.flow(flow, settings)

    def kill_after(answers: int) -> None:
        def are_there() -> bool:
            started.watch(job)
            return len(patience.answered) >= answers

        until(are_there, f"{answers} answers")
        os.kill(job.workers()[0].pid, signal.SIGKILL)

    job = start(failures=10)
    kill_after(12)
    kill_after(12 + in_a_second + 12)
    job.cancel()
    job = start(failures=1)
    started.finish(job)
    again = {key: times - 1 for key, times in Counter(patience.answered).items() if times > 1}
    # Of each restart: what was answered since the last note; the request under way has its answer, too.
    assert sum(again.values()) <= 3 * (in_a_second + 1), again
    assert max(again.values(), default=0) <= 2
    assert list(patience.bodies.values()) == list(range(count))
