"""Topics as a sink: exactly once by held records and one short transaction a checkpoint, or at least once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

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
from crosscut.connectors.kafka.limits import topic_limits, transaction_ms_max
from crosscut.connectors.kafka.marker import MARKER_TOPIC, Marker, committed_up_to
from crosscut.connectors.kafka.records import (
    Encoding,
    encoder,
    unpacked,
)
from crosscut.connectors.kafka.sending import Held, send
from crosscut.connectors.kafka.sink_topic import COMMIT_TIMEOUT_MS, GivenHeaders, SinkTopic
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
    topic: str,
    *,
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
    """Return a sink that writes records to a topic.

    With "exactly once", a consumer with `isolation.level=read_committed` sees each record once, in order
    for each key, after the checkpoint that it belongs to. Until then records are held in the snapshot,
    in memory too; the commit is one short transaction, so none is ever open for long, and no
    `transaction.timeout.ms` can lose anything. With "at least once" a record is sent at once, by an
    idempotent producer, and may come again after a failure.

    Args:
        servers: "host:port", several with commas, or a list.
        topic: Its name; it must exist. A record that it does not take, since it is too large or has no key
            for a compacted topic, is refused before its checkpoint completes.
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
    """
    if not isinstance(topic, str) or not topic:
        raise ConnectorError(f"topic={topic!r}: expected the name of a topic")
    if guarantee not in ("exactly once", "at least once"):
        raise ConnectorError(f"guarantee={guarantee!r}: expected 'exactly once' or 'at least once'")
    functions = (("key", key), ("value", value), ("headers", headers), ("timestamp", timestamp))
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
        topic,
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


@dataclass(frozen=True, eq=False)
class KafkaSink(SinkTopic, Sink):
    """See `sink`."""

    def __repr__(self) -> str:
        return f"crosscut.kafka.sink({self.servers!r}, {self.topic!r}, options={shown(self.options)})"

    @property
    def guarantee(self) -> Guarantee:
        """See `sink`."""
        return "exactly once" if self.is_exact else "at least once"

    def describe(self) -> str:
        """Say which topic this is, not where: brokers move."""
        return f"topic {self.topic}, markers in {self.marker_topic}"

    def check(self) -> None:
        """Raise ConnectorError if no broker answers, or one would refuse every commit."""
        options = configuration(self.servers, self.options)
        admin = required("confluent_kafka.admin", "kafka").AdminClient(options)
        partitions_of(admin, self.servers, self.topic, options["error_cb"])
        required("msgspec", "kafka")
        try:
            limits = topic_limits(admin, self.topic)
            longest_ms = transaction_ms_max(admin) if self.is_exact else None
            if self.is_exact:
                self.markers("check").ensure_topic()
        except library().KafkaException as error:
            reason = error.args[0]
            raise refused(
                f"topic {self.topic!r} at {self.servers} can't be described: {reason.str()}",
                reason,
                topic=self.topic,
            ) from error
        if limits.needs_keys and self.key is None:
            raise ConnectorError(
                f"topic {self.topic!r} at {self.servers} is compacted and takes no message without a key: "
                f"set key= to a function that returns one",
                topic=self.topic,
                is_permanent=True,
            )
        if self.timestamp is not None and limits.past_ms is not None:
            raise ConnectorError(
                f"topic {self.topic!r} at {self.servers} refuses messages older than {limits.past_ms} ms "
                f"(message.timestamp.before.max.ms), so a commit after a long outage would be refused: unset "
                f"that, or leave timestamp= out",
                topic=self.topic,
                is_permanent=True,
            )
        if longest_ms is not None and self.timeout_ms > longest_ms:
            raise ConnectorError(
                f"the transactions of topic {self.topic!r} have transaction.timeout.ms={self.timeout_ms}, "
                f"and the brokers at {self.servers} allow {longest_ms} (transaction.max.timeout.ms): set "
                f"options={{'transaction.timeout.ms': {longest_ms}}}, or raise the brokers' limit",
                topic=self.topic,
                is_permanent=True,
            )
        self._limits[:] = [limits]

    def committed(self) -> Sequence[CommittedOutput]:
        """Return what the markers say of this topic; nothing is remembered with "at least once"."""
        if not self.is_exact:
            return ()
        try:
            return committed_output(self.servers, self.options, self.marker_topic, self.topic)
        except library().KafkaException as error:
            raise ConnectorError(
                f"the markers of topic {self.topic!r} at {self.servers} can't be read: {error.args[0].str()}"
            ) from error

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        return TransactionalWriter(self, context) if self.is_exact else EagerWriter(self)


class TransactionalWriter(SinkWriter):
    """Holds records in the snapshot; commits in one transaction, with the marker in it."""

    def __init__(self, sink: KafkaSink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        task = context.task
        # Stable over epochs: the producer of a new epoch fences that of an older one by it.
        self._name = f"crosscut-{context.lineage}-{context.sink_uid}-{task.vertex}-{task.index}-{sink.topic}"
        self._location = f"topic {sink.topic!r} at {sink.servers}"
        self._where = f"{self._location}, sink {context.sink_uid!r}, task {task}"
        self._open = Held()
        self._restored: CommitPermit | None = None
        self._producer: Any = None
        owner = {
            "topic": sink.topic,
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
        self._commit([one for one in pending if one[0] > found], restored)

    def begin_attempt(self, handles: Sequence[JSON]) -> None:
        """Nothing is staged but what the snapshot holds, so attempts don't see each other."""

    def write(self, records: list[Any]) -> None:
        self._open.add(self._sink.messages(records, self.refuse))

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        if not self._open.count:
            return None
        held, self._open = self._open, Held()
        return checkpoint_id, held

    def prepare(self, transaction: Any) -> JSON:
        checkpoint_id, held = transaction
        self._context.held.keep(checkpoint_id, held.data())
        return {"checkpoint": checkpoint_id, "topic": self._sink.topic, "messages": held.count}

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        pending = self._transactions(handles)
        if self._producer is None:
            self._committed = self._connect(permit, has_pending=bool(pending))
        left = [one for one in pending if one[0] > self._committed]
        if left:
            self._commit(left, left[-1][0])

    def pending_records(self, handles: Sequence[JSON]) -> Iterator[dict[str, Any]]:
        """Yield the messages: key and value, and headers and timestamp if the sink gives them."""
        for checkpoint_id, _ in self._transactions(handles):
            for messages in unpacked(self._context.held.data(checkpoint_id)):
                for index, (key, value) in enumerate(zip(messages.keys, messages.values, strict=True)):
                    message: dict[str, Any] = {"key": key, "value": value}
                    if messages.headers:
                        message["headers"] = messages.headers[index]
                    if messages.timestamps:
                        message["timestamp"] = messages.timestamps[index]
                    yield message

    def close(self) -> None:
        self._disconnect()

    def _transactions(self, handles: Sequence[JSON]) -> list[tuple[CheckpointId, int]]:
        found = []
        for handle in handles:
            match handle:
                case {"checkpoint": int(n), "topic": str(topic), "messages": int(count)} if (
                    topic == self._sink.topic
                ):
                    found.append((CheckpointId(n), count))
                case _:
                    raise ConnectorError(
                        f"{self._where}: {handle!r:.200} is no transaction of this sink; was its topic "
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

    def _commit(self, transactions: Sequence[tuple[CheckpointId, int]], up_to: CheckpointId) -> None:
        """Commit, in one transaction, what is held, and the marker that says so."""
        producer, context = self._producer, self._context
        if producer is None:
            raise ConnectorError(f"{self._where}: not connected")
        try:
            producer.begin_transaction()
            for checkpoint_id, count in transactions:
                found = 0
                for messages in unpacked(context.held.data(checkpoint_id)):
                    send(producer, self._sink.topic, messages)
                    found += len(messages.keys)
                if found != count:
                    raise ConnectorError(
                        f"{self._where}: {found} messages are held for checkpoint {checkpoint_id}, "
                        f"expected {count}"
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

    def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()

    def _failed(self, what: str, error: Any) -> ConnectorError:
        return refused(f"{self._where}: {what}: {error.args[0].str()}", error.args[0])
