"""Kafka to Kafka through a keyed count, a checkpoint every second: Crosscut, PySpark, Bytewax.

One broker, the same records in the same topic, one engine after the other, each with two processes or
cores. Each is a program of its own; processor time is that of all its processes, Java's among them. From
when a tenth of the records is done to nearly all; done means: visible, and never read again.

What they do is not the same. Crosscut: each update goes out, in Python, exactly once. Bytewax: each
update, in Python, at least once. PySpark, in micro-batches of `SPARK_BATCH` records at most: one update
for each key and batch, in Spark's own operators without Python, at least once.

The others have to be in an environment of their own: `pip install bytewax confluent-kafka pyspark` there, and
`--peers ENVIRONMENT/bin/python`. PySpark's connector, of the same version, comes from the Maven repository.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.kafka import PARTITIONS, SHARE, committed, fill, flow_of
from crosscut.testing.kafka import KafkaBroker

SPARK_BATCH = 200_000
ENGINES = ("crosscut", "pyspark", "bytewax")

BYTEWAX = """
import sys
from bytewax import operators as op
from bytewax.connectors.kafka import KafkaSinkMessage, operators as kafka
from bytewax.dataflow import Dataflow

servers, topic, out = {servers!r}, {topic!r}, {out!r}

def counted(state, value):
    state = (state or 0) + 1
    return state, b"%d" % state

flow = Dataflow("bench")
found = kafka.input("in", flow, brokers=[servers], topics=[topic], batch_size=1000)
keyed = op.key_on("key", found.oks, lambda message: message.value[:8].decode())
values = op.map_value("value", keyed, lambda message: message.value)
counts = op.stateful_map("counts", values, counted)
messages = op.map("messages", counts, lambda pair: KafkaSinkMessage(pair[0].encode(), pair[1]))
kafka.output("out", messages, brokers=[servers], topic=out)
"""

SPARK = """
import sys
import pyspark
from pyspark.sql import SparkSession, functions as f

servers, topic, out, directory, batch = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars.packages", f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}")
    .config("spark.sql.shuffle.partitions", 2)
    .config("spark.ui.enabled", False)
    .getOrCreate()
)
found = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", batch)
    .load()
)
counts = found.groupBy(f.substring("value", 1, 8).alias("key")).count()
(
    counts.select("key", f.col("count").cast("string").alias("value"))
    .writeStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("topic", out)
    .option("checkpointLocation", directory + "/spark")
    .outputMode("update")
    .trigger(processingTime="1 second")
    .start()
    .awaitTermination()
)
"""


def crosscut_job(servers: str, topic: str, out: str, directory: str) -> None:
    from types import SimpleNamespace

    from bench.kafka import started

    broker: Any = SimpleNamespace(servers=servers)
    started(flow_of(broker, topic, out, "exactly once"), directory).wait()


def of_spark(directory: Path) -> int:
    """Return how many records are in the batches that Spark has committed."""
    done = [int(path.name) for path in (directory / "spark" / "commits").glob("[0-9]*")]
    if not done:
        return 0
    text = (directory / "spark" / "offsets" / str(max(done))).read_text()
    return sum(json.loads(text.splitlines()[-1])[topic_of(text)].values())


def topic_of(text: str) -> str:
    return str(next(iter(json.loads(text.splitlines()[-1]))))


def cpu_s(session: int) -> float:
    """User and system time of all processes of a session, and of those that have ended in it."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measured(
    engine: str, commands: list[list[str]], count: int, done: Callable[[], int], deadline_s: float
) -> dict[str, Any]:
    """Run the processes of an engine until `count` records are done."""
    # Another environment is not to find this one's Python for its workers.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    processes = [
        subprocess.Popen(
            one,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        for one in commands
    ]
    marks: list[tuple[float, int, float]] = []
    ends_s = time.monotonic() + deadline_s
    try:
        while not marks or marks[-1][1] < SHARE[1] * count:
            if time.monotonic() > ends_s or any(one.poll() is not None for one in processes):
                return {"engine": engine, "failed": marks[-1:], "codes": [one.poll() for one in processes]}
            found = done()
            if found >= SHARE[0] * count and (not marks or found > marks[-1][1]):
                marks.append((time.monotonic(), found, sum(cpu_s(one.pid) for one in processes)))
            time.sleep(0.02)
    finally:
        for one in processes:
            end_session(one)
    (first_s, first, first_cpu_s), (last_s, last, last_cpu_s) = marks[0], marks[-1]
    return {
        "engine": engine,
        "records_per_s": round((last - first) / (last_s - first_s)),
        "records_per_cpu_s": round((last - first) / (last_cpu_s - first_cpu_s)),
        "load": os.getloadavg()[0],
    }


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill all processes of the session of `process`."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == process.pid:
                os.kill(int(path.parent.name), signal.SIGKILL)
        except OSError:
            continue
    process.wait()


def bytewax_commands(python: str, directory: Path, servers: str, topic: str, out: str) -> list[list[str]]:
    program = directory / "flow.py"
    program.write_text(BYTEWAX.format(servers=servers, topic=topic, out=out))
    recovery = directory / "recovery"
    recovery.mkdir()
    subprocess.run([python, "-m", "bytewax.recovery", str(recovery), "2"], check=True)
    ports = free_ports(2)
    run = [python, "-m", "bytewax.run", str(program)]
    addresses = ";".join(f"127.0.0.1:{port}" for port in ports)
    return [
        [*run, "-r", str(recovery), "-s", "1", "-b", "0", "-i", str(index), "-a", addresses]
        for index in range(2)
    ]


def free_ports(count: int) -> list[int]:
    import socket
    from contextlib import ExitStack, closing

    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--deadline-s", type=float, default=300)
    parser.add_argument("--peers", default="", help="the Python of an environment with the others")
    parser.add_argument("--job", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        crosscut_job(*options.job)
        return
    import confluent_kafka as ck

    trust = Path("/etc/ssl/certs/java/cacerts")
    if trust.exists():
        os.environ["JAVA_TOOL_OPTIONS"] = f"-Djavax.net.ssl.trustStore={trust}"
    with (
        tempfile.TemporaryDirectory(prefix="crosscut-bench-peers-") as place,
        KafkaBroker(Path(place) / "kafka") as broker,
    ):
        broker.create_topic("in", PARTITIONS)
        for engine in ENGINES:
            broker.create_topic(f"out-{engine}", PARTITIONS)
        fill(broker, "in", options.records)
        consumer = ck.Consumer({"bootstrap.servers": broker.servers, "group.id": "bench"})
        for engine in ENGINES if options.peers else ENGINES[:1]:
            out, directory = f"out-{engine}", Path(place) / engine
            directory.mkdir()

            def visible(out: str = out) -> int:
                return committed(consumer, out)

            done: Callable[[], int] = visible
            match engine:
                case "crosscut":
                    run = [sys.executable, "-m", "bench.kafka_peers", "--job"]
                    commands = [[*run, broker.servers, "in", out, str(directory)]]
                case "pyspark":
                    arguments = [broker.servers, "in", out, str(directory), str(SPARK_BATCH)]
                    commands = [[options.peers, "-c", SPARK, *arguments]]

                    def in_batches(directory: Path = directory) -> int:
                        return of_spark(directory)

                    done = in_batches
                case _:
                    commands = bytewax_commands(options.peers, directory, broker.servers, "in", out)
            found = measured(engine, commands, options.records, done, options.deadline_s)
            print(json.dumps(found), flush=True)
        consumer.close()


if __name__ == "__main__":
    main()
