"""From one NATS stream to another and to an HTTP receiver, while workers are killed at their commits."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
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


class Post(BaseHTTPRequestHandler):
    server: Receiver

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.setdefault(self.headers["Idempotency-Key"], body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as one:
        thread = threading.Thread(target=one.serve_forever, args=(0.05,))
        thread.start()
        yield one
        one.shutdown()
        thread.join()


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

        def all_fired() -> bool:
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

        def posts() -> list[Any]:
            return [update for body in list(receiver.bodies.values()) for update in body]

        for what, found in (("messages", out), ("posts", posts)):

            def are_all_there(found: Any = found) -> bool:
                started.watch(job)
                return len(found()) >= published

            until(are_all_there, f"all {what}", DEADLINE_S)
            assert by_key(found()) == expected, what
        job.cancel()
        assert by_key(out()) == by_key(posts()) == expected
