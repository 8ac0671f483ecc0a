"""Background work in a thread: alone, beside a busy event loop and beside a busy thread.

Each kind of work is done `--rounds` times in one process that is set up like a worker's. The loop goes
round as fast as it can, in rounds of `--round-us` of Python; the thread computes and never waits. Prints a
JSON line for each kind and rival with the medians, and whether the time beside it is within twice the time
alone plus 20 ms. `--interval-us 5000` is Python's default; the loop does not pause for threads then.

The kinds that need a server (Kafka, NATS, Postgres, HTTP) run by name, or all of them with `--kinds
services`. The servers are other processes. Reading includes opening the reader, whose own thread reads ahead,
and closing it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import uvloop
from tests.proof.stores import at, checkpoint, opened

import crosscut as cc
from bench.files import SINKS
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, VertexId
from crosscut.host.interpreter_lock import WORKER_SWITCH_US, Sharing, let_threads_run, switching_within
from crosscut.state.rocksdb.database import FileContent
from crosscut.store import open_store
from crosscut.testing.kafka import KafkaBroker
from crosscut.testing.nats import NatsServer
from crosscut.testing.postgres import PostgresServer
from crosscut.testing.sinks import open_writer, permit, prepare
from crosscut.testing.sources import all_splits
from crosscut.worker.spill_files import DiskSpace

TASK = TaskId(VertexId("counts"), 0)
CHUNKS = [os.urandom(2_600) for _ in range(600)]
FILE_BYTES = 8_000_000
BLOCK, BLOCKS = os.urandom(256 * 1024), 16
LINES = 5_000
ROWS = 1_000
SLACK_MS = 20
DEFAULT_US = 5_000

Work = Callable[[], object]
"""What is done in a thread and measured."""

NextWork = Callable[[], Work]
"""Makes the work of one round; what it does itself is not measured."""


def part(directory: Path, ends: ExitStack) -> NextWork:
    """A part of many small chunks, as keyed state is encoded."""
    store, numbers = open_store(str(directory)), count(1)
    return lambda: partial(store.write_part, CheckpointId(next(numbers)), TASK, Epoch(1), CHUNKS)


def read_part(directory: Path, ends: ExitStack) -> NextWork:
    """A part that is read and verified."""
    store = open_store(str(directory))
    written = store.write_part(CheckpointId(1), TASK, Epoch(1), CHUNKS)
    return lambda: partial(store.read_part, written)


def rocksdb_file(directory: Path, ends: ExitStack) -> NextWork:
    """A file of RocksDB that becomes a part."""
    path = directory / "000001.sst"
    path.write_bytes(os.urandom(FILE_BYTES))
    store, numbers = open_store(str(directory)), count(1)
    content = FileContent(str(path))
    return lambda: partial(store.write_part, CheckpointId(next(numbers)), TASK, Epoch(1), content)


def log(directory: Path, ends: ExitStack) -> NextWork:
    """An entry of the job log, as the driver appends it."""
    store, numbers = open_store(str(directory)), count(1)
    store.append(at(0), opened(1))

    def next_work() -> Work:
        number = next(numbers)
        return partial(store.append, at(number), checkpoint(1, number))

    return next_work


def spilled(directory: Path, ends: ExitStack) -> NextWork:
    """Blocks that do not fit into memory, written and read again."""
    space = DiskSpace(str(directory))
    ends.callback(space.close)

    def work() -> None:
        file = space.new_file()
        for number in range(BLOCKS):
            file.write(number * len(BLOCK), BLOCK)
        for number in range(BLOCKS):
            file.read(number * len(BLOCK), len(BLOCK))
        file.release()

    return lambda: work


def sink(kind: str, directory: Path, ends: ExitStack) -> NextWork:
    """A transaction of a file sink that is prepared and committed."""
    make, record = SINKS[kind]
    return committing(make(str(directory / "out")), [record(number) for number in range(ROWS)], ends)


def committing(sink: cc.Sink, rows: list[Any], ends: ExitStack) -> NextWork:
    """A transaction of `rows` that is prepared and committed."""
    writer, numbers = open_writer(sink, 1), count(1)
    ends.callback(writer.close)

    def next_work() -> Work:
        number = next(numbers)
        writer.write(rows)
        transaction = writer.rotate(CheckpointId(number))
        return lambda: writer.commit(permit(number), [prepare(writer, transaction)])

    return next_work


def read_to(rows: int, reader: cc.SplitReader, woken: threading.Event) -> int:
    """Read `rows` records, or all that there are; return how many came."""
    taken = 0
    while taken < rows and not isinstance(found := reader.read(ROWS), cc.EndOfSplit):
        if isinstance(found, cc.Wait):
            woken.wait(found.delay_ms / 1_000)
            woken.clear()
        else:
            taken += len(found)
    reader.close()
    return taken


def read_ahead(directory: Path, ends: ExitStack) -> NextWork:
    """Lines that a reader's own thread takes from a connection."""
    data = b"".join(b"line %d\n" % number for number in range(LINES))

    def next_work() -> Work:
        listening = socket.create_server(("127.0.0.1", 0))

        def send() -> None:
            with listening, listening.accept()[0] as connection:
                connection.sendall(data)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        source = cc.socket(f"127.0.0.1:{listening.getsockname()[1]}")
        reader = source.reader(source.splits(1)[0], 0)
        woken = threading.Event()
        reader.wake_by(woken.set)

        def work() -> None:
            taken = read_to(LINES, reader, woken)
            sender.join()
            if taken != LINES:
                raise SystemExit(f"{taken} of {LINES} lines came")

        return work

    return next_work


def reading(source: cc.Source) -> NextWork:
    """The `LINES` records of the source's only split, which the reader's own thread takes from a server."""
    (split,) = all_splits(source, 1)

    def work() -> None:
        woken = threading.Event()
        reader = source.reader(split, split.start)
        reader.wake_by(woken.set)
        taken = read_to(LINES, reader, woken)
        if taken != LINES:
            raise SystemExit(f"{taken} of {LINES} records came")

    return lambda: work


def kafka_read(directory: Path, ends: ExitStack) -> NextWork:
    broker = ends.enter_context(KafkaBroker(directory / "kafka"))
    broker.create_topic("lines", partitions=1)
    broker.produce("lines", [(None, b"line %d" % number) for number in range(LINES)])
    return reading(cc.kafka.source(broker.servers, "lines"))


def kafka_commit(directory: Path, ends: ExitStack) -> NextWork:
    broker = ends.enter_context(KafkaBroker(directory / "kafka"))
    broker.create_topic("rows", partitions=1)
    return committing(cc.kafka.sink(broker.servers, "rows"), list(range(ROWS)), ends)


def nats_stream(ends: ExitStack) -> NatsServer:
    server = ends.enter_context(NatsServer())
    server.call(
        lambda stream: stream.add_stream(name="S", subjects=["s.>", "crosscut.S.>"], allow_atomic=True)
    )
    return server


def nats_read(directory: Path, ends: ExitStack) -> NextWork:
    server = nats_stream(ends)

    async def published(stream: Any) -> None:
        for number in range(LINES):
            await stream.publish("s.lines", b"line %d" % number)

    server.call(published)
    return reading(cc.nats.source(server.url, "S", subjects=["s.lines"]))


def nats_commit(directory: Path, ends: ExitStack) -> NextWork:
    server = nats_stream(ends)
    return committing(cc.nats.sink(server.url, "S", "s.rows"), list(range(ROWS)), ends)


def postgres_changes(directory: Path, ends: ExitStack) -> NextWork:
    """Changes of a table, which come by logical replication."""
    server = ends.enter_context(PostgresServer(wal_level="logical"))
    server.query("create table lines (id bigint primary key, text text)")
    server.query("create publication lines for table lines")
    source = cc.postgres.changes(server.conninfo, "lines", "lines", snapshot=False)
    next_work = reading(source)
    server.query(f"insert into lines select i, 'line ' || i from generate_series(1, {LINES}) i")
    return next_work


def postgres_commit(directory: Path, ends: ExitStack) -> NextWork:
    server = ends.enter_context(PostgresServer())
    server.query("create table rows (id bigint, text text)")
    sink = cc.postgres.sink(server.conninfo, "rows", ["id", "text"])
    return committing(sink, [(number, f"line {number}") for number in range(ROWS)], ends)


class _Receiver(BaseHTTPRequestHandler):
    """Takes posts and forgets them."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def receive() -> None:
    """Take posts; print the port first."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Receiver) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


def http_commit(directory: Path, ends: ExitStack) -> NextWork:
    command = [sys.executable, "-m", "bench.contention", "--receive"]
    receiver = ends.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    ends.callback(receiver.kill)
    if receiver.stdout is None:
        raise SystemExit("no output")
    url = f"http://127.0.0.1:{int(receiver.stdout.readline())}/"
    sink = cc.http.sink(url, honours_keys=True, batch_records=100)
    return committing(sink, [{"number": number} for number in range(ROWS)], ends)


KINDS: dict[str, Callable[[Path, ExitStack], NextWork]] = {
    "part": part,
    "read part": read_part,
    "rocksdb file": rocksdb_file,
    "log": log,
    "spilled": spilled,
    **{f"{kind} sink": partial(sink, kind) for kind in ("jsonl", "csv", "parquet")},
    "read ahead": read_ahead,
}

SERVICES: dict[str, Callable[[Path, ExitStack], NextWork]] = {
    "kafka read": kafka_read,
    "kafka commit": kafka_commit,
    "nats read": nats_read,
    "nats commit": nats_commit,
    "postgres changes": postgres_changes,
    "postgres commit": postgres_commit,
    "http commit": http_commit,
}
"""Those that need a server."""


def spin(until_ns: int) -> None:
    """Compute, and keep the interpreter lock unless somebody asks for it."""
    while time.perf_counter_ns() < until_ns:
        pass


def timed(work: Work) -> tuple[threading.Event, list[float]]:
    """Do it in a thread; return what is set at its end, and how many milliseconds it took."""
    is_done, took_ms = threading.Event(), list[float]()

    def run() -> None:
        began_ns = time.perf_counter_ns()
        try:
            work()
            took_ms.append((time.perf_counter_ns() - began_ns) / 1e6)
        finally:
            is_done.set()

    threading.Thread(target=run, daemon=True).start()
    return is_done, took_ms


def alone_ms(work: Work) -> float:
    """Return how long it takes when the process does nothing else."""
    is_done, took_ms = timed(work)
    is_done.wait()
    return took_ms[0]


def beside_loop_ms(work: Work, round_ns: int, pause: Callable[[], None]) -> float:
    """Return how long it takes beside a loop like that of a worker that always has something to do."""
    loop = uvloop.new_event_loop()
    sharing = Sharing(pause)

    def go() -> None:
        began_ns = time.perf_counter_ns()
        spin(began_ns + round_ns)
        now_ns = time.perf_counter_ns()
        sharing.held(began_ns, now_ns)
        sharing.round_ended(now_ns, are_at_work=True)
        if is_done.is_set():
            loop.stop()
        else:
            loop.call_soon(go)

    loop.call_soon(go)
    is_done, took_ms = timed(work)
    loop.run_forever()
    loop.close()
    return took_ms[0]


def beside_thread_ms(work: Work) -> float:
    """Return how long it takes beside a thread that computes."""
    is_over = False

    def compute() -> None:
        while not is_over:
            spin(time.perf_counter_ns() + 10_000_000)

    busy = threading.Thread(target=compute, daemon=True)
    busy.start()
    is_done, took_ms = timed(work)
    is_done.wait()
    is_over = True
    busy.join()
    return took_ms[0]


def measured(kind: str, rounds: int, rounds_us: Iterable[int], interval_us: int) -> list[dict[str, Any]]:
    """Do one kind of work beside each rival, by turns with the same alone."""
    directory = tempfile.mkdtemp(prefix="crosscut-bench-")
    pause = let_threads_run if interval_us < DEFAULT_US else lambda: None
    rivals: dict[str, Callable[[Work], float]] = {"thread": beside_thread_ms}
    for us in rounds_us:
        rivals[f"loop, rounds of {us} us"] = partial(beside_loop_ms, round_ns=us * 1_000, pause=pause)
    alone: list[float] = []
    beside: dict[str, list[float]] = {name: [] for name in rivals}
    try:
        with ExitStack() as ends, switching_within(interval_us):
            next_work = (KINDS | SERVICES)[kind](Path(directory), ends)
            for _ in range(rounds):
                for name, rival in rivals.items():
                    alone.append(alone_ms(next_work()))
                    beside[name].append(rival(next_work()))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    alone_median = statistics.median(alone)
    return [
        {
            "benchmark": "contention",
            "kind": kind,
            "beside": name,
            "interval_us": interval_us,
            "alone_ms": round(alone_median, 2),
            "ms": round(statistics.median(took), 2),
            "max_ms": round(max(took), 2),
            "is_within": statistics.median(took) <= 2 * alone_median + SLACK_MS,
            "load": os.getloadavg()[0],
        }
        for name, took in beside.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    choices = [*KINDS, *SERVICES, "services"]
    parser.add_argument("--kinds", choices=choices, nargs="+", default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--round-us", type=int, nargs="+", default=[20, 300])
    parser.add_argument("--interval-us", type=int, default=WORKER_SWITCH_US)
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.receive:
        receive()
        return
    for kind in SERVICES if options.kinds == ["services"] else options.kinds:
        for line in measured(kind, options.rounds, options.round_us, options.interval_us):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
