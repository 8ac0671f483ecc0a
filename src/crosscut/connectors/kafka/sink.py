"""Topics as a sink: exactly once by held records and one short transaction a checkpoint, or at least once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from crosscut.connectors.extras import required
from crosscut.connectors.kafka.client import (
    checked_options,
    checked_servers,
    configuration,
    library,
    partitions_of,
    refused,
)
from crosscut.connectors.kafka.eager import EagerWriter
from crosscut.connectors.kafka.history import committed_output
from crosscut.connectors.kafka.limits import TopicLimits, topic_limits, transaction_ms_max
from crosscut.connectors.kafka.marker import MARKER_TOPIC, Marker, committed_up_to
from crosscut.connectors.kafka.records import (
    Encoding,
    encoder,
    unpacked,
)
from crosscut.connectors.kafka.sending import Held, send
from crosscut.connectors.kafka.sink_topics import COMMIT_TIMEOUT_MS, GivenHeaders, SinkTopics
from crosscut.connectors.secrets import shown
from crosscut.contracts.connectors import (
    JSON,
    CommitPermit,
    CommittedOutput,
    Guarantee,
    Sink,
    SinkContext,
    SinkWriter,
)
from crosscut.errors import ConnectorError
from crosscut.foundation.callables import function_problem
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.suggestions import checks_options
from crosscut.protocol.log.history import check_history

_TIMEOUT_MS_MAX = 2**31 - 1

_OURS = frozenset(
    {"bootstrap.servers", "transactional.id", "enable.idempotence", "acks", "allow.auto.create.topics"}
)


@checks_options("kafka.sink")
def sink(
    servers: str | Sequence[str],
    topic: str | Callable[[Any], str],
    *,
    topics: Sequence[str] | None = None,
    key: Callable[[Any], Any] | None = None,
    value: Callable[[Any], Any] | None = None,
    encode_key: Encoding | Callable[[Any], bytes | None] = "text",
    encode_value: Encoding | Callable[[Any], bytes | None] = "json",
    headers: Callable[[Any], GivenHeaders] | None = None,
    timestamp: Callable[[Any], int | datetime | None] | None = None,
    guarantee: Literal["exactly once", "at least once"] = "exactly once",
    marker_topic: str = MARKER_TOPIC,
    options: Mapping[str, object] | None = None,
) -> Sink:
    """Return a sink that writes records to a topic, or each to one of several topics.

    With "exactly once", a consumer with `isolation.level=read_committed` sees each record once, in order
    for each key, after the checkpoint that it belongs to. Until then records are held in the snapshot,
    in memory too; the commit is one short transaction, so none is ever open for long, and no
    `transaction.timeout.ms` can lose anything. With "at least once" a record is sent at once, by an
    idempotent producer, and may come again after a failure.

    Args:
        servers: "host:port", several with commas, or a list.
        topic: Its name; it must exist. Or a function that takes a record and returns the name of its topic,
            one of `topics`. A record that its topic does not take, since it is too large or has no key for a
            compacted topic, is refused before its checkpoint completes.
        topics: All names that the function `topic` may return; all must exist. A record for any other topic
            is refused. One transaction writes a checkpoint to all of them.
        key: Takes a record, returns its key; messages of one key stay in order. Default: no key.
        value: Takes a record, returns the value. Default: the record.
        encode_key: "text", "json", "bytes", or a function that returns bytes or None.
        encode_value: As `encode_key`.
        headers: Takes a record, returns the headers of its message: a dict, or pairs if a name comes twice,
            with values that are bytes, str or None. Default: none.
        timestamp: Takes a record, returns the timestamp of its message, in milliseconds since 1970 or as a
            `datetime` with a time zone; None: when it is sent. Default: when it is sent.
        guarantee: See above.
        marker_topic: Where each transaction notes which checkpoint it was for, in a record of its own. Made,
            compacted, if it is not there; several jobs may share it. One that forgets messages is refused.
        options: More settings of librdkafka, as for security or compression. `crosscut.environment("NAME")`
            as a value keeps a secret out of the program. With `transaction.timeout.ms` (default 60,000) large
            checkpoints get more time to be committed; the brokers' `transaction.max.timeout.ms` is its limit.

    Raises:
        ConnectorError: An argument is not as described. Later: no broker answers, the topic is not
            there, a record can't be encoded or is too large.

    Examples:
        >>> import crosscut as cc
        >>> out = cc.kafka.sink("localhost:9092", "counts", key=lambda pair: pair[0])
        >>> by_country = cc.kafka.sink(
        ...     "localhost:9092",
        ...     topic=lambda order: f"orders-{order['country']}",
        ...     topics=["orders-de", "orders-fr"],
        ... )
    """
    declared = _declared(topic, topics, marker_topic)
    if guarantee not in ("exactly once", "at least once"):
        raise ConnectorError(f"guarantee={guarantee!r}: expected 'exactly once' or 'at least once'")
    choose = topic if callable(topic) else None
    functions = (
        ("topic", choose),
        ("key", key),
        ("value", value),
        ("headers", headers),
        ("timestamp", timestamp),
    )
    for name, function in functions:
        if function is not None and not callable(function):
            raise ConnectorError(f"{name}={function!r}: expected a function that takes a record, or None")
        if function is not None and (problem := function_problem(function, "record")):
            raise ConnectorError(f"{name}: {problem}")
    encoder(encode_key, "encode_key")
    encoder(encode_value, "encode_value")
    found = checked_options(options, _OURS, "the Kafka sink")
    timeout_ms = found.get("transaction.timeout.ms", COMMIT_TIMEOUT_MS)
    if type(timeout_ms) is not int or not 1_000 <= timeout_ms <= _TIMEOUT_MS_MAX:
        raise ConnectorError(
            f"options: transaction.timeout.ms={timeout_ms!r}: expected an int from 1,000 to "
            f"{_TIMEOUT_MS_MAX:,}"
        )
    is_exact = guarantee == "exactly once"
    return KafkaSink(
        checked_servers(servers),
        declared,
        choose,
        key,
        value,
        encode_key,
        encode_value,
        is_exact,
        marker_topic,
        found,
        headers,
        timestamp,
    )


def _declared(topic: object, topics: object, marker_topic: str) -> tuple[str, ...]:
    """Return the names of all topics that are written to.

    Raises:
        ConnectorError: The two arguments don't say which.
    """
    if callable(topic):
        if isinstance(topics, str) or not isinstance(topics, Iterable):
            raise ConnectorError(
                f"topic= is a function, and topics={topics!r}: declare the names that it may return, as in "
                f"topics=['orders-de', 'orders-fr']; the sink checks these topics before the job starts"
            )
        declared = tuple(topics)
        if not declared or not all(isinstance(one, str) and one for one in declared):
            raise ConnectorError(f"topics={topics!r}: expected the names of topics")
        if len(set(declared)) < len(declared):
            raise ConnectorError(f"topics={topics!r}: a name comes twice")
    else:
        if not isinstance(topic, str) or not topic:
            raise ConnectorError(
                f"topic={topic!r}: expected the name of a topic, or a function that takes a record and "
                f"returns one of topics="
            )
        if topics is not None:
            raise ConnectorError(
                f"topics={topics!r}: topic={topic!r} is the only topic; leave topics= out, or pass a "
                f"function as topic="
            )
        declared = (topic,)
    if marker_topic in declared:
        raise ConnectorError(f"topic {marker_topic!r} is for markers: choose another topic or marker_topic=")
    return declared


@dataclass(frozen=True, eq=False)
class KafkaSink(SinkTopics, Sink):
    """See `sink`."""

    def __repr__(self) -> str:
        topic = repr(self.topics[0]) if self.choose is None else f"topics={list(self.topics)}"
        return f"crosscut.kafka.sink({self.servers!r}, {topic}, options={shown(self.options)})"

    @property
    def guarantee(self) -> Guarantee:
        """See `sink`."""
        return "exactly once" if self.is_exact else "at least once"

    def describe(self) -> str:
        """Say which topic this is, not where: brokers move; nor which topics: some may be added."""
        topic = f"topic {self.topics[0]}" if self.choose is None else "topic by record"
        return f"{topic}, markers in {self.marker_topic}"

    def check(self) -> None:
        """Raise ConnectorError if no broker answers, or one would refuse every commit."""
        options = configuration(self.servers, self.options)
        admin = required("confluent_kafka.admin", "kafka").AdminClient(options)
        for topic in self.topics:
            partitions_of(admin, self.servers, topic, options["error_cb"])
        required("msgspec", "kafka")
        try:
            limits = {topic: topic_limits(admin, topic) for topic in self.topics}
            longest_ms = transaction_ms_max(admin) if self.is_exact else None
            if self.is_exact:
                self.markers("check").ensure_topic()
        except library().KafkaException as error:
            reason = error.args[0]
            raise refused(
                f"{self.location} can't be described: {reason.str()}", reason, topic=", ".join(self.topics)
            ) from error
        for topic, of_topic in limits.items():
            self._check_limits(topic, of_topic)
        if longest_ms is not None and self.timeout_ms > longest_ms:
            raise ConnectorError(
                f"the transactions of {self.names} have transaction.timeout.ms={self.timeout_ms}, "
                f"and the brokers at {self.servers} allow {longest_ms} (transaction.max.timeout.ms): set "
                f"options={{'transaction.timeout.ms': {longest_ms}}}, or raise the brokers' limit",
                topic=", ".join(self.topics),
                is_permanent=True,
            )
        self._limits.update(limits)

    def _check_limits(self, topic: str, limits: TopicLimits) -> None:
        if limits.needs_keys and self.key is None:
            raise ConnectorError(
                f"topic {topic!r} at {self.servers} is compacted and accepts no message without a key: "
                f"set key= to a function that returns one",
                topic=topic,
                is_permanent=True,
            )
        if self.timestamp is not None and limits.past_ms is not None:
            raise ConnectorError(
                f"topic {topic!r} at {self.servers} refuses messages older than {limits.past_ms} ms "
                f"(message.timestamp.before.max.ms), so a commit after a long outage would be refused: unset "
                f"that, or leave timestamp= out",
                topic=topic,
                is_permanent=True,
            )

    def committed(self) -> Sequence[CommittedOutput]:
        """Return what the markers say of these topics; nothing is remembered with "at least once"."""
        if not self.is_exact:
            return ()
        try:
            return committed_output(self.servers, self.options, self.marker_topic, self.topics, self.location)
        except library().KafkaException as error:
            raise ConnectorError(
                f"the markers of {self.location} can't be read: {error.args[0].str()}"
            ) from error

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        return TransactionalWriter(self, context) if self.is_exact else EagerWriter(self)


class _Transaction(NamedTuple):
    """What is held for a checkpoint.

    Attributes:
        counts: How many messages for each topic; "" is the only topic of the sink.
    """

    checkpoint_id: CheckpointId
    counts: Mapping[str, int]


class TransactionalWriter(SinkWriter):
    """Holds records in the snapshot; commits in one transaction, with the marker in it."""

    def __init__(self, sink: KafkaSink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        task = context.task
        # Stable over epochs: the producer of a new epoch fences that of an older one by it.
        # No topic is called "*"; the names of several are not part of it, so some may be added.
        suffix = sink.topics[0] if sink.choose is None else "*"
        self._name = f"crosscut-{context.lineage}-{context.sink_uid}-{task.vertex}-{task.index}-{suffix}"
        self._location = sink.location
        self._where = f"{self._location}, sink {context.sink_uid!r}, task {task}"
        self._open = Held()
        self._restored: CommitPermit | None = None
        self._producer: Any = None
        owner = {
            **({"topic": sink.topics[0]} if sink.choose is None else {"topics": list(sink.topics)}),
            "lineage": context.lineage,
            "sink": context.sink_uid,
            "vertex": task.vertex,
            "task": task.index,
        }
        self._markers = sink.markers(self._name, owner)
        self._marker_partition = 0
        self._committed = CheckpointId(0)

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self._restored = permit
        pending = self._transactions(handles)
        found = self._connect(permit, has_pending=bool(pending))
        restored = permit.checkpoint_id if permit is not None else CheckpointId(0)
        self._commit([one for one in pending if one.checkpoint_id > found], restored)

    def begin_attempt(self, handles: Sequence[JSON]) -> None:
        """Nothing is staged but what the snapshot holds, so attempts don't see each other."""

    def write(self, records: list[Any]) -> None:
        sink = self._sink
        for topic, chosen in sink.by_topic(records, self.refuse):
            held_as = "" if sink.choose is None else topic
            self._open.add(sink.messages(topic, chosen, self.refuse), held_as)

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        if not self._open.count:
            return None
        held, self._open = self._open, Held()
        return checkpoint_id, held

    def prepare(self, transaction: Any) -> JSON:
        checkpoint_id, held = transaction
        self._context.held.keep(checkpoint_id, held.data())
        if self._sink.choose is None:
            return {"checkpoint": checkpoint_id, "topic": self._sink.topics[0], "messages": held.count}
        return {"checkpoint": checkpoint_id, "topics": dict(held.counts)}

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        pending = self._transactions(handles)
        if self._producer is None:
            self._committed = self._connect(permit, has_pending=bool(pending))
        left = [one for one in pending if one.checkpoint_id > self._committed]
        if left:
            self._commit(left, left[-1].checkpoint_id)

    def pending_records(self, handles: Sequence[JSON]) -> Iterator[dict[str, Any]]:
        """Yield the messages: key and value, and topic, headers and timestamp if the sink gives them."""
        for pending in self._transactions(handles):
            for topic, messages in unpacked(self._context.held.data(pending.checkpoint_id)):
                for index, (key, value) in enumerate(zip(messages.keys, messages.values, strict=True)):
                    message: dict[str, Any] = {"topic": topic} if topic else {}
                    message |= {"key": key, "value": value}
                    if messages.headers:
                        message["headers"] = messages.headers[index]
                    if messages.timestamps:
                        message["timestamp"] = messages.timestamps[index]
                    yield message

    def close(self) -> None:
        self._disconnect()

    def _transactions(self, handles: Sequence[JSON]) -> list[_Transaction]:
        found = []
        sink = self._sink
        for handle in handles:
            match handle:
                case {"checkpoint": int(n), "topic": str(topic), "messages": int(count)} if (
                    sink.choose is None and topic == sink.topics[0]
                ):
                    found.append(_Transaction(CheckpointId(n), {"": count}))
                case {"checkpoint": int(n), "topics": dict(counts)} if sink.choose is not None:
                    found.append(
                        _Transaction(
                            CheckpointId(n),
                            {topic: count for topic, count in counts.items() if isinstance(count, int)},
                        )
                    )
                case _:
                    raise ConnectorError(
                        f"{self._where}: {handle!r:.200} is not a transaction of this sink; was its topic "
                        "changed?"
                    )
        return found

    def _connect(self, permit: CommitPermit | None, *, has_pending: bool) -> CheckpointId:
        """Take the producer over from its last owner, and read what is committed."""
        sink = self._sink
        try:
            self._markers.ensure_topic()
            sink.find_limits()
            self._producer = sink.producer(
                transactional_id=self._name,
                transaction_timeout_ms=sink.timeout_ms,
                # The transaction as a whole says whether all were delivered.
                delivery_report_only_error=True,
            )
            self._producer.init_transactions(sink.timeout_ms / 1_000)
            self._marker_partition = self._markers.partition(self._producer)
            marker = self._markers.read()
        except library().KafkaException as error:
            self._disconnect()
            raise self._failed("the transactions could not be taken over", error) from error
        try:
            found = committed_up_to(
                marker,
                self._context,
                permit,
                has_pending=has_pending,
                confirmed=self._committed,
                location=self._location,
            )
            if marker is not None:
                self._check_history(marker)
            return found
        except ConnectorError:
            self._disconnect()
            raise

    def _check_history(self, marker: Marker) -> None:
        context, epoch, driver = self._context, marker.epoch, marker.driver
        check_history(
            context,
            self._restored,
            [
                CommittedOutput(
                    self._location,
                    context.lineage,
                    context.sink_uid,
                    context.task,
                    epoch,
                    driver,
                    marker.checkpoint_id,
                )
            ],
        )

    def _commit(self, transactions: Sequence[_Transaction], up_to: CheckpointId) -> None:
        """Commit, in one transaction, what is held, and the marker that says so."""
        producer, context = self._producer, self._context
        if producer is None:
            raise ConnectorError(f"{self._where}: not connected")
        self._check_declared(transactions)
        try:
            producer.begin_transaction()
            for checkpoint_id, counts in transactions:
                found: dict[str, int] = {}
                for topic, messages in unpacked(context.held.data(checkpoint_id)):
                    send(producer, topic or self._sink.topics[0], messages)
                    found[topic] = found.get(topic, 0) + len(messages.keys)
                if found != counts:
                    raise ConnectorError(
                        f"{self._where}: {sum(found.values())} messages are held for checkpoint "
                        f"{checkpoint_id}, expected {sum(counts.values())}"
                    )
            topic, key, value = self._markers.message(Marker(context.epoch, up_to, context.driver))
            producer.produce(topic, value, key, self._marker_partition)
            producer.commit_transaction(self._sink.timeout_ms / 1_000)
        except library().KafkaException as error:
            # Committed or not: only the marker tells, and only to a producer that has fenced this one.
            self._disconnect()
            raise self._failed(
                f"the commit up to checkpoint {up_to} has failed or is unknown", error
            ) from error
        except BaseException:
            self._disconnect()
            raise
        self._committed = up_to

    def _check_declared(self, transactions: Sequence[_Transaction]) -> None:
        """Raise ConnectorError if messages are held for a topic of which this sink has not been told.

        Its limits are unknown, so the producer might make batches that it refuses.
        """
        for checkpoint_id, counts in transactions:
            missing = sorted(counts.keys() - {"", *self._sink.topics})
            if missing:
                raise ConnectorError(
                    f"{self._where}: messages for topic {missing[0]!r} are held in checkpoint "
                    f"{checkpoint_id}, and topics= no longer contains it: declare it until this "
                    f"checkpoint is committed",
                    topic=missing[0],
                    is_permanent=True,
                )

    def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()

    def _failed(self, what: str, error: Any) -> ConnectorError:
        return refused(f"{self._where}: {what}: {error.args[0].str()}", error.args[0])
