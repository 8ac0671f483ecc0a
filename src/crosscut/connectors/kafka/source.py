"""Topics as a source: a split is a partition, a position is the offset of the next record."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from crosscut.connectors.kafka.client import (
    TIMEOUT_S,
    checked_options,
    checked_servers,
    configuration,
    library,
    partitions_of,
)
from crosscut.connectors.kafka.records import Decoding, Message, decoder, message_of
from crosscut.connectors.secrets import shown
from crosscut.errors import ConnectorError
from crosscut.interfaces import JSON, EndOfSplit, Source, Split, SplitReader, Wait

Start = Literal["earliest", "latest", "committed"] | datetime
Malformed = Literal["fail", "skip"] | Callable[[Message, Exception], Any]

IDLE_MS = 2.0
"""Between two looks at a client that had nothing."""

BUFFERED_MAX = 20_000
"""Messages of all partitions of a task that wait in Python; the library has its own buffers before them."""

_OURS = frozenset({"bootstrap.servers", "enable.auto.commit", "auto.offset.reset", "enable.partition.eof"})

_log = logging.getLogger("crosscut.kafka")


def source(
    servers: str | Sequence[str],
    topics: str | Sequence[str],
    *,
    start: Start = "earliest",
    stop: Literal["latest"] | None = None,
    decode: Decoding | Callable[[Message], Any] = "bytes",
    malformed: Malformed = "fail",
    group: str | None = None,
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    options: Mapping[str, object] | None = None,
) -> Source:
    """Return a source that reads topics, each message once; their partitions are its splits.

    Positions are in the job's snapshots. Partitions that a topic gets later are found when a job
    starts without a checkpoint, not while it runs.

    Args:
        servers: "host:port", several with commas, or a list.
        topics: One or more names.
        start: Where a job without a checkpoint begins: "earliest", "latest", the first message at or after
            a `datetime` with a time zone, or where `group` has "committed" (the earliest, if nowhere).
        stop: "latest": end at the newest message there is when the job starts for the first time. None:
            never.
        decode: What records are: the values as "bytes", "text" or "json" (None for a tombstone), each
            "message" as a `crosscut.kafka.Message`, or a function of one.
        malformed: What becomes of a message that `decode` raises for: "fail" the job, "skip" it with a
            warning, or a function of it and the exception, which returns the record to use instead.
        group: Whose offsets are committed when a checkpoint is complete: for monitoring and for
            `start="committed"`; the job itself never reads them again.
        isolation: Whether messages of transactions that are not committed are read.
        options: More settings of librdkafka, as for security. `crosscut.environment("NAME")` as a value
            keeps a secret out of the program.

    Raises:
        ConnectorError: An argument is not as described. Later: no broker answers, a topic is not there,
            or offsets that are still to be read are gone (which names them).

    Examples:
        >>> import crosscut as cc
        >>> orders = cc.kafka.source("localhost:9092", "orders", decode="json")
    """
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names or not all(isinstance(one, str) and one for one in names) or len(set(names)) < len(names):
        raise ConnectorError(f"topics={topics!r}: expected the name of a topic, or several different ones")
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConnectorError(f"start={start!r} has no time zone: use datetime(..., tzinfo=UTC)")
    elif start not in ("earliest", "latest", "committed"):
        raise ConnectorError(f"start={start!r}: expected 'earliest', 'latest', 'committed' or a datetime")
    if start == "committed" and group is None:
        raise ConnectorError("start='committed' needs a group, whose committed offsets are meant")
    if stop not in (None, "latest"):
        raise ConnectorError(f"stop={stop!r}: expected 'latest' or None")
    if malformed not in ("fail", "skip") and not callable(malformed):
        raise ConnectorError(f"malformed={malformed!r}: expected 'fail', 'skip', or a function")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise ConnectorError(f"isolation={isolation!r}: expected 'read_committed' or 'read_uncommitted'")
    decoder(decode)
    found = checked_options(options, _OURS | {"group.id", "isolation.level"}, "the Kafka source")
    return KafkaSource(
        checked_servers(servers), names, start, stop, decode, malformed, group, isolation, found
    )


@dataclass(eq=False)
class KafkaSource(Source):
    """See `source`."""

    servers: str
    topics: tuple[str, ...]
    start: Start
    stop: str | None
    decode: Decoding | Callable[[Message], Any]
    malformed: Malformed
    group: str | None
    isolation: str
    options: dict[str, object]
    _shared: _SharedConsumer | None = field(default=None, init=False, repr=False)

    # All partitions have to advance, or watermarks and joins would wait for those that never are read.
    open_splits_max = 100_000

    def __repr__(self) -> str:
        return f"crosscut.kafka.source({self.servers!r}, {self.topics!r}, options={shown(self.options)})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shared": None}

    def describe(self) -> str:
        """Say which topics these are, not where: brokers move."""
        return f"topics {', '.join(self.topics)}"

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Ask the brokers for the partitions, and for the offsets to begin and to stop at."""
        consumer = self._consumer()
        try:
            return [
                self._split(consumer, topic, partition)
                for topic in self.topics
                for partition in partitions_of(consumer, self.servers, topic)
            ]
        except library().KafkaException as error:
            raise ConnectorError(
                f"the offsets of {', '.join(self.topics)} at {self.servers} could not be read: "
                f"{error.args[0].str()}"
            ) from error
        finally:
            consumer.close()

    def _split(self, consumer: Any, topic: str, partition: int) -> Split:
        at = library().TopicPartition(topic, partition)
        low, high = consumer.get_watermark_offsets(at, timeout=TIMEOUT_S)
        first = low
        if self.start == "latest":
            first = high
        elif isinstance(self.start, datetime):
            at.offset = int(self.start.timestamp() * 1_000)
            (found,) = consumer.offsets_for_times([at], timeout=TIMEOUT_S)
            first = found.offset if found.offset >= 0 else high
        elif self.start == "committed":
            (found,) = consumer.committed([at], timeout=TIMEOUT_S)
            first = max(found.offset, low)
        detail: dict[str, JSON] = {"topic": topic, "partition": partition}
        if self.stop == "latest":
            detail["stop"] = high
        return Split(f"{topic}-{partition}", first, detail, weight=max(1, high - first))

    def reader(self, split: Split, position: JSON) -> SplitReader:
        """Read on at offset `position`, over one client for all partitions of the task."""
        match split.detail, position:
            case {"topic": str(topic), "partition": int(partition), **rest}, int(offset):
                stop = rest.get("stop")
                limit = stop if isinstance(stop, int) else math.inf
            case _:
                raise ConnectorError(
                    f"split {split} at position {position!r} is not of a Kafka source; is the checkpoint of "
                    f"another source?",
                    split_id=split.split_id,
                )
        if self._shared is None or self._shared.is_closed:
            self._shared = _SharedConsumer(self._consumer(), self.servers)
        return _PartitionReader(self, self._shared, (topic, partition), offset, limit)

    def _consumer(self) -> Any:
        ours = configuration(
            self.servers,
            self.options,
            group_id=self.group or "crosscut",
            enable_auto_commit=False,
            # Never a quiet jump: lost messages are named.
            auto_offset_reset="error",
            enable_partition_eof=True,
            isolation_level=self.isolation,
        )
        return library().Consumer(ours)


class _SharedConsumer:
    """One client of the library for all partitions that a task reads: each costs threads and sockets."""

    def __init__(self, consumer: Any, servers: str) -> None:
        self.consumer = consumer
        self.servers = servers
        self.is_closed = False
        self._readers: dict[tuple[str, int], _PartitionReader] = {}
        self._buffered = 0
        self._idle_until_s = 0.0

    def add(self, reader: _PartitionReader, offset: int) -> None:
        topic, partition = reader.partition
        self._readers[reader.partition] = reader
        self.consumer.incremental_assign([library().TopicPartition(topic, partition, offset)])

    def remove(self, reader: _PartitionReader) -> None:
        topic, partition = reader.partition
        if self._readers.pop(reader.partition, None) is None:
            return
        self._buffered -= len(reader.buffer)
        if self._readers:
            self.consumer.incremental_unassign([library().TopicPartition(topic, partition)])
        else:
            self.is_closed = True
            self.consumer.close()

    def taken(self, count: int) -> None:
        """Note that a reader has taken messages from its buffer."""
        self._buffered -= count

    def fetch(self, limit: int) -> None:
        """Hand to each reader what has come for it; never waits."""
        now_s = time.monotonic()
        if self._buffered >= BUFFERED_MAX or now_s < self._idle_until_s:
            return
        found = self.consumer.consume(limit, timeout=0)
        if not found:
            self._idle_until_s = now_s + IDLE_MS / 2_000
        readers = self._readers
        for message in found:
            reader = readers.get((message.topic(), message.partition()))
            if reader is None:
                # Of a partition that has just been given back, or a failure of none in particular.
                if message.error() is not None and message.topic() is None:
                    _log.warning("Kafka at %s: %s", self.servers, message.error().str())
                continue
            if message.error() is None:
                reader.buffer.append(message)
                self._buffered += 1
            else:
                reader.note(message)


class _PartitionReader(SplitReader):
    def __init__(
        self,
        source: KafkaSource,
        shared: _SharedConsumer,
        partition: tuple[str, int],
        offset: int,
        stop: float,
    ) -> None:
        self.partition = partition
        self.buffer: deque[Any] = deque()
        self._source = source
        self._shared = shared
        self._next = offset
        self._stop = stop
        self._error: ConnectorError | None = None
        # Where the partition ended when the client last came to its end: behind markers of
        # transactions, which are no messages.
        self._end = -1
        self._decode = decoder(source.decode)
        self._acknowledges = source.group is not None
        shared.add(self, offset)

    @property
    def position(self) -> JSON:
        return self._next

    @property
    def lag(self) -> int | None:
        topic, partition = self.partition
        ck = library()
        try:
            # What the client has heard with the last messages: it asks nobody.
            _, high = self._shared.consumer.get_watermark_offsets(
                ck.TopicPartition(topic, partition), cached=True
            )
        except ck.KafkaException:
            return None
        return int(max(0, min(high, self._stop) - self._next)) if high >= 0 else None

    def note(self, event: Any) -> None:
        """Note what the client says of this partition instead of a message."""
        error, codes = event.error(), library().KafkaError
        if error.code() == codes._PARTITION_EOF:
            self._end = max(self._end, event.offset())
            return
        topic, partition = self.partition
        if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            self._error = self._offsets_gone()
        elif not error.retriable():
            self._error = ConnectorError(
                f"partition {partition} of topic {topic!r} at {self._shared.servers} can't be read at offset "
                f"{self._next}: {error.str()}; was the topic deleted, or its rights taken away?",
                topic=topic,
            )

    def _offsets_gone(self) -> ConnectorError:
        topic, partition = self.partition
        ck = library()
        try:
            low, high = self._shared.consumer.get_watermark_offsets(
                ck.TopicPartition(topic, partition), timeout=TIMEOUT_S
            )
        except ck.KafkaException as error:
            return ConnectorError(
                f"offset {self._next} of partition {partition} of topic {topic!r} is gone, and the broker "
                "does "
                f"not say what is left: {error.args[0].str()}",
                topic=topic,
            )
        place = f"partition {partition} of topic {topic!r} at {self._shared.servers}"
        if self._next < low:
            return ConnectorError(
                f"{place}: messages {self._next} to {low - 1} are gone before they were read, by retention "
                "or "
                f"deletion; restore them, or start a new job that reads on at {low}",
                topic=topic,
            )
        return ConnectorError(
            f"{place} ends at offset {high}, before {self._next}, which this job has read up to: the topic "
            f"was made anew or has lost messages; start a new job to read it from its beginning",
            topic=topic,
        )

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        buffer = self.buffer
        if not buffer:
            if self._next >= self._stop:
                return EndOfSplit()
            if self._error is not None:
                raise self._error
            self._shared.fetch(limit)
        if not buffer:
            if self._end > self._next:
                self._next = self._end
            return EndOfSplit() if self._next >= self._stop else Wait(IDLE_MS)
        if len(buffer) <= limit:
            found = list(buffer)
            buffer.clear()
        else:
            found = [buffer.popleft() for _ in range(limit)]
        self._shared.taken(len(found))
        last = found[-1].offset()
        if last >= self._stop:
            found = [one for one in found if one.offset() < self._stop]
            last = max(last, int(self._stop) - 1)
            self._shared.taken(len(buffer))
            buffer.clear()
            if not found:
                self._next = last + 1
                return EndOfSplit()
        try:
            records = self._decode(found)
        except Exception:  # noqa: BLE001 - user code or bytes of others: it is found out which message it is
            return self._decoded_singly(found)
        self._next = last + 1
        return records or Wait(0)

    def _decoded_singly(self, found: list[Any]) -> list[Any] | Wait:
        """Decode message by message; the good ones before one that fails the job go out first."""
        records: list[Any] = []
        for index, message in enumerate(found):
            try:
                records += self._decode([message])
            except Exception as error:
                match self._source.malformed:
                    case "skip":
                        _log.warning("skipped a malformed message: %s", self._malformed(message, error))
                    case "fail":
                        if not records:
                            raise self._malformed(message, error) from error
                        self.buffer.extendleft(reversed(found[index:]))
                        self._shared.taken(index - len(found))
                        break
                    case function:
                        assert callable(function)
                        records.append(function(message_of(message), error))
            self._next = message.offset() + 1
        return records or Wait(0)

    def _malformed(self, message: Any, error: Exception) -> ConnectorError:
        topic, partition = self.partition
        decode = self._source.decode
        return ConnectorError(
            f"message {message.offset()} of partition {partition} of topic {topic!r} can't be decoded by "
            f"decode={decode if isinstance(decode, str) else getattr(decode, '__name__', decode)!r}: "
            f"{type(error).__name__}: {error}; set malformed='skip' or a function to go on without it",
            topic=topic,
        )

    def acknowledge(self, position: JSON) -> None:
        if not self._acknowledges:
            return
        topic, partition = self.partition
        ck = library()
        try:
            self._shared.consumer.commit(
                offsets=[ck.TopicPartition(topic, partition, position)], asynchronous=True
            )
        except ck.KafkaException as error:
            _log.warning("offset %s of %s could not be committed for monitoring: %s", position, topic, error)

    def close(self) -> None:
        self._shared.remove(self)
