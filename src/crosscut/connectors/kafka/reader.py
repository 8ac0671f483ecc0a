"""Reads the partitions of one task, over one client."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from crosscut.connectors.extras import ExtraMissing
from crosscut.connectors.files.typed_json import TypedJson
from crosscut.connectors.kafka.awaiting import NextMessage
from crosscut.connectors.kafka.client import TIMEOUT_S, library, refused
from crosscut.connectors.kafka.records import Decoding, Message, SchemaUnavailable, decoder, message_of
from crosscut.connectors.kafka.watch import Watch
from crosscut.contracts.connectors import JSON, EndOfSplit, SplitReader, Wait
from crosscut.contracts.decoding import DecodingTrial, ProcessDiedError, TriedDecoding
from crosscut.errors import ConnectorError, SettingsError

Malformed = Literal["fail", "skip"] | Callable[[Message, Exception], Any]

IDLE_MS = 2.0
"""Between two looks at a client that had nothing, where no thread waits for what comes next."""

AWAITED_MS = 100.0
"""The same where one does, and wakes the task up. Only who is asked can be found to have fallen idle."""

ASKED_S = 5.0
"""Who was not asked for so long waits for no messages: what comes after it is slow, or other sources are."""

BUFFERED_MAX = 20_000
"""Messages of all partitions of a task that wait in Python; the library has its own buffers before them."""

BUFFERED_BYTES_MAX = 64 * 1024 * 1024
"""The same in bytes of their values."""

SAMPLED = 64
"""Messages of a batch that are looked at to know how large it is."""

_log = logging.getLogger("crosscut.kafka")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a source wants its messages.

    Attributes:
        has_group: Offsets are committed for monitoring.
    """

    decode: Decoding | TypedJson[Any] | Callable[[Message], Any]
    malformed: Malformed
    has_group: bool


class SharedConsumer:
    """One client of the library for all partitions that a task reads: each costs threads and sockets."""

    def __init__(
        self,
        consumer: Any,
        servers: str,
        options: Mapping[str, object] | None = None,
        *,
        reads_committed: bool = True,
    ) -> None:
        self.watch = Watch(servers, options or {}, self._asked, reads_committed=reads_committed)
        self.consumer = consumer
        self.servers = servers
        self.is_closed = False
        self._readers: dict[tuple[str, int], PartitionReader] = {}
        kind = library().Message
        self._place_of, self._error_of = (kind.topic, kind.partition), kind.error
        self._buffered = self._buffered_bytes = 0
        # Who has asked since anybody took messages, while there were too many of them.
        self._in_vain: set[tuple[str, int]] = set()
        # Partitions that are not fetched until they are asked for again.
        self._set_aside: set[tuple[str, int]] = set()
        self._idle_until_s = 0.0
        self._next: NextMessage | None = None
        self._ends: dict[tuple[str, int], int] = {}

    @property
    def wait_ms(self) -> float:
        """For how long to wait where there is nothing.

        Not long while there was something for other partitions, or no room: then no thread waits.
        """
        return AWAITED_MS if self._next is not None and self._next.is_waiting else IDLE_MS

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Wait for messages in a thread, and call `wake` when one has come."""
        if self._next is None:
            self._next = NextMessage(self.consumer, wake)

    def verify(self, topic: str, identity: str) -> None:
        """Hand on no message of a topic before it is known to be the one with this identity."""
        self.watch.verify(topic, identity)

    def _asked(self) -> dict[tuple[str, int], tuple[int, bool]]:
        """Return for each partition the offset to come, and whether its reader is asked and has nothing."""
        since_s = time.monotonic() - ASKED_S
        return {
            place: (reader.next, reader.asked_s > since_s) for place, reader in tuple(self._readers.items())
        }

    def add(self, reader: PartitionReader, offset: int) -> None:
        self._readers[reader.partition] = reader
        self._assign(reader.partition, offset)

    def do(self, call: Callable[[], object]) -> None:
        """Make a call of the client, now or soon."""
        if self._next is None:
            call()
        else:
            self._next.do(call)

    def _assign(self, place: tuple[str, int], offset: int) -> None:
        self.do(lambda: self.consumer.incremental_assign([library().TopicPartition(*place, offset)]))

    def _unassign(self, place: tuple[str, int]) -> None:
        self.do(lambda: self.consumer.incremental_unassign([library().TopicPartition(*place)]))

    def end_of(self, place: tuple[str, int]) -> int | None:
        """Return the last known end of a partition, None if that is not recent; asks no broker."""
        if not self.watch.is_responsive:
            return None
        if self._next is None or not self._next.is_waiting:
            ck = library()
            try:
                _, high = self.consumer.get_watermark_offsets(ck.TopicPartition(*place), cached=True)
            except ck.KafkaException:
                return None
            self._ends[place] = high
        high = max(self._ends.get(place, -1), self.watch.end_of(place))
        return None if high < 0 else high

    def remove(self, reader: PartitionReader) -> None:
        if self._readers.pop(reader.partition, None) is None:
            return
        self.taken(reader, reader.buffer, is_all=True)
        is_assigned = reader.partition not in self._set_aside
        self._set_aside.discard(reader.partition)
        if self._readers:
            if is_assigned:
                self._unassign(reader.partition)
        else:
            self.is_closed = True
            self.watch.close(remember=self._next is None and reader.is_healthy)
            try:
                if self._next is not None:
                    self._next.close()
            finally:
                self.consumer.close()

    def taken(self, reader: PartitionReader, messages: Sequence[Any], *, is_all: bool) -> None:
        """Note that a reader has taken messages from its buffer.

        Args:
            is_all: Nothing is left there: how large these are need not be found out.
        """
        size = reader.buffered_bytes if is_all else _size_of(messages)
        reader.buffered_bytes -= size
        self._buffered -= len(messages)
        self._buffered_bytes -= size
        self._in_vain.clear()

    def given(self, reader: PartitionReader, messages: Sequence[Any]) -> None:
        """Note that a reader has got messages, or has put some back."""
        size = _size_of(messages)
        reader.buffered_bytes += size
        self._buffered += len(messages)
        self._buffered_bytes += size

    def fetch(self, limit: int, asking: PartitionReader) -> None:
        """Hand to each reader what has come for it; never waits.

        Args:
            asking: It has nothing.
        """
        self.watch.begin()
        place = asking.partition
        if place in self._set_aside:
            self._set_aside.remove(place)
            self._assign(place, asking.next)
        awaited, now_s = self._next, time.monotonic()
        if now_s < self._idle_until_s if awaited is None else awaited.is_waiting:
            return
        if self._buffered >= BUFFERED_MAX or self._buffered_bytes >= BUFFERED_BYTES_MAX:
            if place not in self._in_vain:
                self._in_vain.add(place)
                return
            # All others had their turn: who has the messages waits, perhaps for this very one.
            self._make_room()
        found = awaited.take() if awaited is not None else []
        found += self.consumer.consume(limit, timeout=0)
        if not found:
            if awaited is not None:
                awaited.wait()
            else:
                self._idle_until_s = now_s + IDLE_MS / 2_000
        if any(map(self._error_of, found)):
            found = self._without_events(found)
        if found:
            self.watch.note_response()
        # A loop over partitions and not over messages: these are hundreds of thousands a second.
        topic_of, partition_of = self._place_of
        at = 0
        for place, run in groupby(zip(map(topic_of, found), map(partition_of, found), strict=True)):
            count = len(list(run))
            # Else: of a partition that has just been given back.
            if (reader := self._readers.get(place)) is not None and place not in self._set_aside:
                some = found[at : at + count]
                reader.buffer += some
                self.given(reader, some)
            at += count

    def _make_room(self) -> None:
        """Forget all that waits; it is fetched again when it is asked for."""
        for place, reader in self._readers.items():
            if reader.buffer:
                reader.forget()
                self._set_aside.add(place)
                self._unassign(place)
        self._buffered = self._buffered_bytes = 0
        self._in_vain.clear()

    def _without_events(self, found: list[Any]) -> list[Any]:
        """Return the messages among `found`; tell readers what is said of their partitions instead."""
        messages = []
        for one in found:
            if one.error() is None:
                messages.append(one)
            elif (one.topic(), one.partition()) in self._set_aside:
                continue
            elif (reader := self._readers.get((one.topic(), one.partition()))) is not None:
                reader.note(one)
            elif one.topic() is None:
                _log.warning("Kafka at %s: %s", self.servers, one.error().str())
        return messages


def _size_of(messages: Sequence[Any]) -> int:
    """Return how large the values of messages are; of many by a sample, as there are hundreds of thousands a
    second. What it is wrong by ends where a buffer is empty."""
    count = len(messages)
    if count <= SAMPLED:
        return sum(map(len, messages))
    sample = messages[:: count // SAMPLED]
    return sum(map(len, sample)) * count // len(sample)


class PartitionReader(SplitReader):
    def __init__(
        self,
        options: ReadOptions,
        shared: SharedConsumer,
        partition: tuple[str, int],
        offset: int,
        stop: float,
    ) -> None:
        self.partition = partition
        self.buffer: deque[Any] = deque()
        self.buffered_bytes = 0
        self._options = options
        self._shared = shared
        self._next = offset
        self._stop = stop
        self._error: ConnectorError | None = None
        # Where the partition ended when the client last came to its end: after markers of
        # transactions, which are no messages.
        self._end = -1
        self._decode = decoder(options.decode)
        self._trial: DecodingTrial | None = None
        self._acknowledges = options.has_group
        # When it was last asked and had nothing; infinitely long ago while it has something.
        self.asked_s = -math.inf
        shared.add(self, offset)

    @property
    def position(self) -> JSON:
        return self._next

    @property
    def is_healthy(self) -> bool:
        """Whether the brokers have refused nothing."""
        return self._error is None

    @property
    def next(self) -> int:
        """The offset to read on at."""
        return self._next

    def forget(self) -> None:
        """Forget what has come and was not read."""
        self.buffer.clear()
        self.buffered_bytes = 0
        self._end = -1

    @property
    def lag(self) -> int | None:
        high = self._shared.end_of(self.partition)
        return None if high is None or high < 0 else int(max(0, min(high, self._stop) - self._next))

    def note(self, event: Any) -> None:
        """Note what the client says of this partition instead of a message."""
        error, codes = event.error(), library().KafkaError
        if error.code() == codes._PARTITION_EOF:
            # Other events are of the library itself, which also has some while brokers are silent.
            self._shared.watch.note_response()
            self._end = max(self._end, event.offset())
            return
        topic, partition = self.partition
        if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            self._error = self._offsets_gone()
        elif not error.retriable():
            self._error = refused(
                f"partition {partition} of topic {topic!r} at {self._shared.servers} can't be read at offset "
                f"{self._next}: {error.str()}; was the topic deleted, or its rights taken away?",
                error,
                topic=topic,
            )
            if error.code() in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION):
                # A broker that has just started says it of a topic that is there. The driver, which looks
                # at the topics too, knows better.
                self._error.is_permanent = False

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
                f"does not report which offsets are left: {error.args[0].str()}",
                topic=topic,
            )
        place = f"partition {partition} of topic {topic!r} at {self._shared.servers}"
        if self._next < low:
            return ConnectorError(
                f"{place}: messages {self._next} to {low - 1} were removed by retention or deletion "
                f"before they were read; restore them, or start a new job that continues at {low}",
                topic=topic,
                is_permanent=True,
            )
        return ConnectorError(
            f"{place} ends at offset {high}, before {self._next}, which this job has read up to: the "
            f"topic was recreated or has lost messages; start a new job to read it from its beginning",
            topic=topic,
            is_permanent=True,
        )

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        buffer = self.buffer
        if not buffer:
            if self._next >= self._stop:
                return EndOfSplit()
            if self._error is not None:
                raise self._error
            watch = self._shared.watch
            if watch.failure is not None:
                raise watch.failure
            if not watch.is_verified(self.partition[0]):
                watch.begin()
                return Wait(IDLE_MS, is_coming=True)
            self._shared.fetch(limit, self)
        if not buffer:
            self.asked_s = time.monotonic()
            if self._end > self._next:
                self._next = self._end
            return EndOfSplit() if self._next >= self._stop else Wait(self._shared.wait_ms)
        self.asked_s = -math.inf
        if len(buffer) <= limit:
            found = list(buffer)
            buffer.clear()
        else:
            found = [buffer.popleft() for _ in range(limit)]
        self._shared.taken(self, found, is_all=not buffer)
        last = found[-1].offset()
        if last >= self._stop:
            found = [one for one in found if one.offset() < self._stop]
            last = max(last, int(self._stop) - 1)
            self._shared.taken(self, buffer, is_all=True)
            buffer.clear()
            if not found:
                self._next = last + 1
                return EndOfSplit()
        if self._trial is not None:
            return self._decoded_singly(found)
        try:
            records = self._decode(found)
        except (SchemaUnavailable, ExtraMissing, SettingsError):
            raise
        except Exception:  # noqa: BLE001 - user code or bytes of others: it is found out which message it is
            return self._decoded_singly(found)
        self._next = last + 1
        return records or Wait(0)

    def _decoded_singly(self, found: list[Any]) -> list[Any] | Wait:
        """Decode message by message; the good ones before one that fails the job go out first."""
        records: list[Any] = []
        decode: Callable[[Any], list[Any]] = self._decode_one
        if self._trial is not None:
            decode = TriedDecoding(decode, self._trial, found)
        for index, message in enumerate(found):
            try:
                records += decode(message)
            except (SchemaUnavailable, ExtraMissing, SettingsError):
                raise
            except Exception as error:
                match self._options.malformed:
                    case "skip":
                        _log.warning("skipped a malformed message: %s", self._malformed(message, error))
                    case "fail":
                        if not records:
                            raise self._malformed(message, error) from error
                        self.buffer.extendleft(reversed(found[index:]))
                        self._shared.given(self, found[index:])
                        break
                    case function:
                        assert callable(function)
                        records.append(function(message_of(message), error))
            self._next = message.offset() + 1
        return records or Wait(0)

    def _decode_one(self, message: Any) -> list[Any]:
        return self._decode([message])

    def _malformed(self, message: Any, error: Exception) -> ConnectorError:
        topic, partition = self.partition
        decode = self._options.decode
        called = decode if isinstance(decode, str) else getattr(decode, "__name__", decode)
        reason = f"can't be decoded by decode={called!r}: {type(error).__name__}: {error}"
        if isinstance(error, ProcessDiedError):
            reason = f"{error.sentence} (decode={called!r})"
        return ConnectorError(
            f"message {message.offset()} of partition {partition} of topic {topic!r} {reason}; set "
            f"malformed='skip' or a function to skip the message",
            topic=topic,
            # A function may need a service that is down.
            is_permanent=isinstance(decode, str | TypedJson) or isinstance(error, ProcessDiedError),
        )

    def wake_by(self, wake: Callable[[], None]) -> None:
        self._shared.wake_by(wake)

    def try_decoding(self, trial: DecodingTrial | None) -> None:
        self._trial = trial

    def acknowledge(self, position: JSON) -> None:
        if not self._acknowledges:
            return
        topic, partition = self.partition
        ck = library()

        def commit() -> None:
            try:
                offsets = [ck.TopicPartition(topic, partition, position)]
                self._shared.consumer.commit(offsets=offsets, asynchronous=True)
            except ck.KafkaException as error:
                _log.warning(
                    "offset %s of %s could not be committed for monitoring: %s", position, topic, error
                )

        self._shared.do(commit)

    def close(self) -> None:
        self._shared.remove(self)
