"""The topics of the sink, and how records become their messages: what the sink shares with its writers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from reprlib import repr as shortened
from typing import Any, NamedTuple

from crosscut.connectors.extras import ExtraMissing, required
from crosscut.connectors.kafka.client import PARTITIONER, configuration, library
from crosscut.connectors.kafka.limits import TopicLimits, topic_limits
from crosscut.connectors.kafka.marker import Markers
from crosscut.connectors.kafka.records import (
    Encoding,
    Outgoing,
    SchemaUnavailable,
    encoder,
    header_pairs,
    without_refused,
)
from crosscut.foundation.timestamps import Moment, as_timestamp

COMMIT_TIMEOUT_MS = 60_000
"""For one transaction, from its first message to its commit, unless `transaction.timeout.ms` says another."""

BATCH_BYTES = 1_000_000
"""The library's own `batch.size`."""

SHOWN_TOPICS = 3
"""So many are named in messages."""

LARGEST_BYTES = 1_000_000
"""Of a message, as brokers and librdkafka have it by default, less what goes around it."""


GivenHeaders = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] | None


def _rereadable(headers: object) -> object:
    """Return headers that can be read again, as when another record of the batch is refused."""
    if isinstance(headers, Mapping | str | bytes) or not isinstance(headers, Iterable):
        return headers
    return list(headers)


class _Given(NamedTuple):
    """What the functions of the user gave for each record; a column is empty if there is no function."""

    keys: list[Any]
    values: list[Any]
    headers: list[Any]
    times: list[Any]


@dataclass(frozen=True, eq=False)
class SinkTopics:
    """One topic or several; the arguments of `crosscut.kafka.sink`.

    Attributes:
        topics: Their names.
        choose: Takes a record, returns the name of its topic; None: there is one topic.
    """

    servers: str
    topics: tuple[str, ...]
    choose: Callable[[Any], str] | None
    key: Callable[[Any], Any] | None
    value: Callable[[Any], Any] | None
    encode_key: Encoding | Callable[[Any], bytes | None]
    encode_value: Encoding | Callable[[Any], bytes | None]
    is_exact: bool
    marker_topic: str
    options: dict[str, object]
    headers: Callable[[Any], GivenHeaders] | None = None
    timestamp: Callable[[Any], int | Moment | None] | None = None
    # What `check` has found out of each topic, for workers, which get it with the description.
    _limits: dict[str, TopicLimits] = field(default_factory=dict, init=False, repr=False)

    @property
    def names(self) -> str:
        """The topics, as people call them."""
        shown = ", ".join(map(repr, self.topics[:SHOWN_TOPICS]))
        more = len(self.topics) - SHOWN_TOPICS
        return f"topic{'s' if len(self.topics) > 1 else ''} {shown}{f' and {more} more' if more > 0 else ''}"

    @property
    def location(self) -> str:
        """Where the output goes, as people call it."""
        return f"{self.names} at {self.servers}"

    @property
    def timeout_ms(self) -> int:
        """How long a transaction may be open."""
        found = self.options.get("transaction.timeout.ms", COMMIT_TIMEOUT_MS)
        return found if isinstance(found, int) else COMMIT_TIMEOUT_MS

    def limits(self, topic: str) -> TopicLimits:
        """Return what a topic was found to take; nothing is known before `check` or `find_limits`."""
        return self._limits.get(topic, TopicLimits())

    def find_limits(self) -> None:
        """Ask what the topics take, unless that is known.

        Raises:
            KafkaException: The cluster does not answer.
        """
        unknown = [topic for topic in self.topics if topic not in self._limits]
        if unknown:
            options = configuration(self.servers, self.options)
            admin = required("confluent_kafka.admin", "kafka").AdminClient(options)
            self._limits.update({topic: topic_limits(admin, topic) for topic in unknown})

    def markers(self, task: str, owner: Mapping[str, object] | None = None) -> Markers:
        """Return the markers of a task."""
        return Markers(self.servers, self.options, self.marker_topic, task, owner or {})

    def producer(self, **ours: object) -> Any:
        """Return a producer whose batches all topics take: the library neither asks nor splits them."""
        settings: dict[str, object] = {"partitioner": PARTITIONER, **self.options}
        known = [self.limits(topic).message_bytes for topic in self.topics]
        chosen = settings.get("batch.size", BATCH_BYTES)
        if isinstance(chosen, int):
            settings["batch.size"] = max(1, min([chosen, *(one for one in known if one is not None)]))
        return library().Producer(configuration(self.servers, settings, enable_idempotence=True, **ours))

    def by_topic(
        self, records: list[Any], refuse: Callable[[Any, str], None]
    ) -> Iterator[tuple[str, list[Any]]]:
        """Yield each topic that some of the records are for, and these in order.

        `refuse` is called with each record that is for none of the topics, and why.
        """
        if self.choose is None:
            if records:
                yield self.topics[0], records
            return
        chosen: dict[str, list[Any]] = {topic: [] for topic in self.topics}
        for record in records:
            topic: object = self.choose(record)
            if isinstance(topic, str) and topic in chosen:
                chosen[topic].append(record)
            else:
                refuse(
                    record,
                    f"topic= returned {shortened(topic)}, which is none of its topics ({', '.join(chosen)}): "
                    f"declare it in topics=, or return another one",
                )
        yield from ((topic, found) for topic, found in chosen.items() if found)

    def messages(self, topic: str, records: list[Any], refuse: Callable[[Any, str], None]) -> Outgoing:
        """Return `records` as messages; `refuse` is called with each that `topic` does not take, and why."""
        to_key, to_value = self.key, self.value
        keys = [None] * len(records) if to_key is None else list(map(to_key, records))
        values = records if to_value is None else list(map(to_value, records))
        headers = [] if self.headers is None else [_rereadable(self.headers(one)) for one in records]
        times = [] if self.timestamp is None else list(map(self.timestamp, records))
        given = _Given(keys, values, headers, times)
        try:
            messages = self._encoded(given)
        except (SchemaUnavailable, ExtraMissing):
            raise
        except Exception:  # noqa: BLE001 - of an encoding: it is found out which record it is
            records, messages = self._encoded_singly(topic, records, given, refuse)
        found = self.options.get("message.max.bytes", LARGEST_BYTES)
        largest = found if isinstance(found, int) else LARGEST_BYTES
        limits, compressed_largest, codec = self.limits(topic), None, self._codec
        if codec != "none":
            compressed_largest = limits.message_bytes
        elif limits.message_bytes is not None:
            largest = min(largest, limits.message_bytes)
        latest_ms = None
        if times and limits.future_ms is not None:
            latest_ms = time.time_ns() // 1_000_000 + limits.future_ms
        return without_refused(
            messages,
            records,
            topic,
            largest,
            refuse,
            needs_keys=limits.needs_keys,
            latest_ms=latest_ms,
            compressed=None if compressed_largest is None else (compressed_largest, codec),
        )

    @property
    def _codec(self) -> str:
        """How the library compresses batches."""
        names = ("compression.type", "compression.codec")
        found = (str(self.options.get(name, "none")) for name in names)
        return next((one for one in found if one != "none"), "none")

    def _encoded(self, given: _Given) -> Outgoing:
        encode_key = encoder(self.encode_key, "encode_key")
        encode_value = encoder(self.encode_value, "encode_value")
        return Outgoing(
            given.keys if self.key is None else encode_key(given.keys),
            encode_value(given.values),
            list(map(header_pairs, given.headers)),
            [None if time is None else as_timestamp(time) for time in given.times],
        )

    def _encoded_singly(
        self, topic: str, records: list[Any], given: _Given, refuse: Callable[[Any, str], None]
    ) -> tuple[list[Any], Outgoing]:
        taken: list[Any] = []
        found = Outgoing([], [])
        for index, record in enumerate(records):
            try:
                one = self._encoded(_Given(*(column[index : index + 1] for column in given)))
            except (SchemaUnavailable, ExtraMissing):
                raise
            except Exception as error:  # noqa: BLE001 - whatever an encoding raises, it is for this record
                refuse(record, f"it can't be encoded for topic {topic!r}: {type(error).__name__}: {error}")
                continue
            taken.append(record)
            found.extend(one)
        return taken, found
