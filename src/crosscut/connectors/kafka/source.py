"""Topics as a source: a split is a partition, a position is the offset of the next record."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from crosscut.connectors.files.typed_json import TypedJson
from crosscut.connectors.kafka.client import (
    TIMEOUT_S,
    TopicNotFound,
    bounds_of,
    checked_options,
    checked_servers,
    configuration,
    library,
    partitions_of,
)
from crosscut.connectors.kafka.marker import MARKER_TOPIC
from crosscut.connectors.kafka.reader import Malformed, PartitionReader, ReadOptions, SharedConsumer
from crosscut.connectors.kafka.records import Decoding, Message, decoder
from crosscut.connectors.kafka.topics import Topics, Unreachable
from crosscut.connectors.secrets import shown
from crosscut.contracts.connectors import JSON, Source, Split, SplitReader
from crosscut.contracts.dynamic_source import Discovered, DynamicSource
from crosscut.errors import ConnectorError
from crosscut.foundation.callables import function_problem
from crosscut.foundation.durations import Duration, duration_ms
from crosscut.foundation.suggestions import checks_options
from crosscut.foundation.timestamps import as_timestamp

Offsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition, as in `{"orders": {0: 120, 1: 95}}`."""

Start = Literal["earliest", "latest", "committed"] | datetime | Offsets
Stop = Literal["latest"] | datetime | Offsets

POLL_MS = 100
"""How long a broker may keep its answer back while there is nothing to read: only then does a reader know
that. The library's own 500 ms would be the length of a micro-batch of no records."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")

_log = logging.getLogger("crosscut.kafka")

_OURS = frozenset(
    {
        "allow.auto.create.topics",
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.partition.eof",
    }
)


@checks_options("kafka.source")
def source(
    servers: str | Sequence[str],
    topics: str | Sequence[str] | re.Pattern[str],
    *,
    start: Start = "earliest",
    stop: Stop | None = None,
    decode: Decoding | TypedJson[Any] | Callable[[Message], Any] = "bytes",
    malformed: Malformed = "fail",
    group: str | None = None,
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    discover_every: Duration = "10s",
    options: Mapping[str, object] | None = None,
) -> Source:
    """Return a source that reads topics, each message once; their partitions are its splits.

    Positions are in the job's snapshots. Partitions that a topic gets while the job runs are found, and
    read from their beginning. A topic that a resumed job is given in addition begins where `start` says.
    That a topic was deleted, or made anew, is an error, never a quiet jump; a name that no topic has makes
    none. A source that hears nothing from the brokers for a minute, or does not get what they have, fails
    over.

    Args:
        servers: "host:port", several with commas, or a list.
        topics: One or more names; or, as in `re.compile("orders-.*")`, all topics whose whole name matches.
            One that comes later is found as new partitions are, and read from its earliest message. Names
            that begin with "__" are Kafka's own and never match, nor does "crosscut-markers".
        start: Where a job without a checkpoint begins: "earliest", "latest", the first message at or after
            a `datetime` with a time zone, where `group` has "committed" (the earliest, if nowhere), or at
            these offsets, as in `{"orders": {0: 120, 1: 95}}` (partitions without one: the earliest; one that
            the topic doesn't have is an error).
        stop: Where the job ends: "latest", in front of the first message at or after a `datetime` with a time
            zone, or in front of these offsets (partitions without one: "latest"). It never reads further than
            the newest message there is when it starts for the first time. None: it does not end.
        decode: What records are: the values as "bytes", "text" or "json" (None for a tombstone), or
            of a class with `crosscut.json(Payment)`, each "message" as a `crosscut.kafka.Message`, or a
            function of one.
        malformed: What becomes of a message that `decode` raises for: "fail" the job, "skip" it with a
            warning, or a function of it and the exception, which returns the record to use instead.
        group: Whose offsets are committed when a checkpoint is complete: for monitoring and for
            `start="committed"`; the job itself never reads them again.
        isolation: Whether messages of transactions that are not committed are read.
        discover_every: How often to look for new partitions, and whether the topics are still the same.
        options: More settings of librdkafka, as for security. `crosscut.environment("NAME")` as a value
            keeps a secret out of the program.

    Raises:
        ConnectorError: An argument is not as described. Later: no broker answers, a topic is not there,
            or offsets that are still to be read are gone (which names them).

    Examples:
        >>> import crosscut as cc
        >>> orders = cc.kafka.source("localhost:9092", "orders", decode="json")
    """
    chosen = _checked_topics(topics)
    _check_place("start", start, chosen, ("earliest", "latest", "committed"))
    if stop is not None:
        _check_place("stop", stop, chosen, ("latest",))
        _check_order(start, stop)
    if start == "committed" and group is None:
        raise ConnectorError("start='committed' needs group=, whose committed offsets it uses")
    if duration_ms(discover_every, "discover_every") <= 0:
        raise ConnectorError(f"discover_every={discover_every!r}: expected a duration above 0, such as '10s'")
    if malformed not in ("fail", "skip") and not callable(malformed):
        raise ConnectorError(f"malformed={malformed!r}: expected 'fail', 'skip', or a function")
    if callable(malformed) and (problem := function_problem(malformed, "message", "error")):
        raise ConnectorError(f"malformed: {problem}")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise ConnectorError(f"isolation={isolation!r}: expected 'read_committed' or 'read_uncommitted'")
    decoder(decode)
    found = checked_options(options, _OURS | {"group.id", "isolation.level"}, "the Kafka source")
    return KafkaSource(
        checked_servers(servers),
        chosen,
        start,
        stop,
        decode,
        malformed,
        group,
        isolation,
        found,
        discover_every,
    )


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which topics are read.

    Attributes:
        names: Of the topics, if there is no pattern.
        pattern: All topics are read whose whole name matches it.
    """

    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None

    def __str__(self) -> str:
        if self.pattern is None:
            return f"topics {', '.join(self.names)}"
        return f"topics that match {self.pattern.pattern!r}"

    def __contains__(self, name: object) -> bool:
        if self.pattern is None:
            return name in self.names
        if not isinstance(name, str) or name.startswith("__") or name == MARKER_TOPIC:
            # These topics do not contain records of the user.
            return False
        return bool(self.pattern.fullmatch(name))


def _checked_topics(topics: object) -> Chosen:
    """Return which topics these are.

    Raises:
        ConnectorError: They are none.
    """
    if isinstance(topics, re.Pattern) and isinstance(topics.pattern, str):
        return Chosen(pattern=topics)
    names = (topics,) if isinstance(topics, str) else tuple(topics) if isinstance(topics, Iterable) else ()
    if not names or not all(isinstance(one, str) and one for one in names) or len(set(names)) < len(names):
        raise ConnectorError(
            f"topics={topics!r}: expected the name of a topic, several different ones, or a compiled pattern"
        )
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConnectorError(
                f"topics={topics!r}: {name!r} is not a topic name, which has letters, digits, '.', '_' and "
                f"'-' only: use re.compile({name!r}) for all topics that match, or a list of several names"
            )
    return Chosen(names)


def _check_place(what: str, place: object, topics: Chosen, words: tuple[str, ...]) -> None:
    """Raise ConnectorError unless `place` says where partitions of `topics` begin or end."""
    if isinstance(place, datetime):
        if place.tzinfo is None:
            raise ConnectorError(f"{what}={place!r} has no time zone: use datetime(..., tzinfo=UTC)")
        return
    if not isinstance(place, Mapping):
        if place not in words:
            raise ConnectorError(
                f"{what}={place!r}: expected {', '.join(map(repr, words))}, a datetime, or offsets such as "
                f"{{'orders': {{0: 120}}}}"
            )
        return
    for topic, offsets in place.items():
        if topic not in topics:
            raise ConnectorError(f"{what} has offsets of topic {topic!r}, which is not among the {topics}")
        if not isinstance(offsets, Mapping) or not all(
            type(number) is int and number >= 0 for pair in offsets.items() for number in pair
        ):
            raise ConnectorError(
                f"{what}: {offsets!r:.200} of topic {topic!r}: expected offsets by partition: {{0: 120}}"
            )


def _check_order(start: Start, stop: Stop) -> None:
    """Raise ConnectorError if a partition would begin where it has already ended."""
    if isinstance(start, datetime) and isinstance(stop, datetime) and start > stop:
        raise ConnectorError(f"start={start} is later than stop={stop}")
    if not isinstance(start, Mapping) or not isinstance(stop, Mapping):
        return
    for topic, offsets in start.items():
        for partition, first in offsets.items():
            last = stop.get(topic, {}).get(partition, first)
            if first > last:
                raise ConnectorError(
                    f"start: offset {first} of partition {partition} of topic {topic!r} is beyond {last}, "
                    f"where stop= ends it"
                )


@dataclass(eq=False)
class KafkaSource(DynamicSource):
    """See `source`."""

    servers: str
    topics: Chosen
    start: Start
    stop: Stop | None
    decode: Decoding | TypedJson[Any] | Callable[[Message], Any]
    malformed: Malformed
    group: str | None
    isolation: str
    options: dict[str, object]
    discover_every: Duration = "10s"
    _shared: SharedConsumer | None = field(default=None, init=False, repr=False)
    _topics: Topics | None = field(default=None, init=False, repr=False)
    _client_errors: object = field(default=None, init=False, repr=False)
    _has_warned: bool = field(default=False, init=False, repr=False)

    # All partitions have to advance, or watermarks and joins would wait for those that never are read.
    open_splits_max = 100_000

    def __repr__(self) -> str:
        topics = self.topics.pattern or self.topics.names
        return f"crosscut.kafka.source({self.servers!r}, {topics!r}, options={shown(self.options)})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shared": None, "_topics": None, "_heard": None, "_has_warned": False}

    def describe(self) -> str:
        """Say which topics these are, not where: brokers move."""
        return str(self.topics)

    def discover(self, known: JSON) -> Discovered:
        """Ask for the partitions; for the first ones, also for the offsets to begin and stop at."""
        if self._topics is None:
            self._topics = Topics(self.servers, self.options)
        deleted: set[str] = set()
        while True:
            try:
                return self._discovered(known, deleted)
            except TopicNotFound as error:
                topic = error.ids["topic"]
                is_read = self.topics.pattern is None or (isinstance(known, dict) and topic in known)
                if is_read or topic in deleted:
                    raise
                # It was listed, and deleted before it was described: this job has read nothing of it.
                _log.info("%s; it matches the pattern, and is left out", error)
                deleted.add(topic)

    def _discovered(self, known: JSON, deleted: Collection[str]) -> Discovered:
        assert self._topics is not None
        if known is None:
            first = self._first_splits(deleted)
            splits = [split for of_topic in first.values() for split in of_topic]
            if self.stop is not None:
                # What there is to read is fixed; readers see to it that the topics stay the same.
                return Discovered(splits, is_last=True)
            # One that has come since it was asked for the partitions is found by the next call.
            counts = {topic: len(of_topic) for topic, of_topic in first.items()}
            return Discovered(splits, self._topics.described(counts))
        try:
            names = self._names(known, deleted)
        except Unreachable as error:
            _log.warning("%s at %s: %s; they are asked for again", self.topics, self.servers, error)
            return Discovered((), known)
        new, added, known = self._topics.news(names, known)
        identities = self._topics.identities({topic for topic, _ in (*new, *added)})
        splits = [_split_of(topic, partition, 0, identity=identities[topic]) for topic, partition in new]
        if added:
            # For a topic more than the job had, it begins now. One that has come and matches the pattern has
            # been written to since it was made.
            start = self.start if self.topics.pattern is None else "earliest"
            of_added: dict[str, list[int]] = {}
            for topic, partition in added:
                of_added.setdefault(topic, []).append(partition)
            self._check_partitions(of_added)
            with self._asking() as consumer:
                splits += [
                    self._split(consumer, topic, partition, identities[topic], start)
                    for topic, partition in added
                ]
        return Discovered(splits, known)

    def _names(self, known: JSON, deleted: Collection[str]) -> Sequence[str]:
        """Return the names of the topics that are read now.

        Args:
            deleted: Topics that are listed, but not there.

        Raises:
            Unreachable: They can't be asked for.
        """
        if self.topics.pattern is None:
            return self.topics.names
        assert self._topics is not None
        # One that was read and is gone is an error, as if it had been named.
        before = known if isinstance(known, dict) else {}
        matching = {name for name in self._topics.names() if name in self.topics}
        names = sorted(matching.difference(deleted).union(before))
        if not names and self.stop is None and not self._has_warned:
            self._has_warned = True
            every_s = duration_ms(self.discover_every, "discover_every") / 1_000
            _log.warning("%s has no %s yet: looking for them every %g s", self.servers, self.topics, every_s)
        return names

    def _first_splits(self, deleted: Collection[str]) -> dict[str, list[Split]]:
        assert self._topics is not None
        try:
            names = self._names(None, deleted)
        except Unreachable as error:
            raise ConnectorError(f"{self.topics} at {self.servers}: {error}") from error
        with self._asking() as consumer:
            partitions = {
                topic: partitions_of(consumer, self.servers, topic, self._client_errors) for topic in names
            }
            self._check_partitions(partitions)
            if self.topics.pattern is not None:
                self._check_matches(partitions)
            identities = self._topics.identities(names)
            return {
                topic: [self._split(consumer, topic, one, identities[topic], self.start) for one in found]
                for topic, found in partitions.items()
            }

    def _check_matches(self, found: Collection[str]) -> None:
        """Raise ConnectorError if nothing will ever match, or a topic with offsets does not exist."""
        if self.stop is not None and not found:
            raise ConnectorError(
                f"there are no {self.topics} at {self.servers}, and a job with stop= does not wait for any"
            )
        for name, place in (("start", self.start), ("stop", self.stop)):
            if isinstance(place, Mapping) and (missing := sorted(place.keys() - set(found))):
                raise ConnectorError(
                    f"{name} has offsets of topic {missing[0]!r}, which does not exist at {self.servers}",
                    topic=missing[0],
                    is_permanent=True,
                )

    def _check_partitions(self, found: Mapping[str, Sequence[int]]) -> None:
        """Raise ConnectorError if offsets are given for a partition that its topic doesn't have."""
        for name, place in (("start", self.start), ("stop", self.stop)):
            for topic, offsets in place.items() if isinstance(place, Mapping) else ():
                if topic in found and (unknown := sorted(offsets.keys() - set(found[topic]))):
                    raise ConnectorError(
                        f"{name} has an offset of partition {unknown[0]} of topic {topic!r} at "
                        f"{self.servers}, which has {len(found[topic])} partitions, numbered from 0: "
                        f"remove it",
                        topic=topic,
                        is_permanent=True,
                    )

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        """Give a consumer to ask for offsets."""
        consumer = self._consumer()
        try:
            yield consumer
        except library().KafkaException as error:
            raise ConnectorError(
                f"the offsets of {self.topics} at {self.servers} could not be read: {error.args[0].str()}"
            ) from error
        finally:
            consumer.close()

    def _split(self, consumer: Any, topic: str, partition: int, identity: str, start: Start) -> Split:
        at = library().TopicPartition(topic, partition)
        low, high = bounds_of(consumer, at)
        match start:
            case "latest":
                first = high
            case datetime():
                first = _first_since(start, consumer, at, high)
            case "committed":
                (found,) = consumer.committed([at], timeout=TIMEOUT_S)
                # If what comes next for the group is gone, the reader says so, with the range.
                first = found.offset if found.offset >= 0 else low
            case Mapping():
                # As above, if the offset is below `low`.
                first = start.get(topic, {}).get(partition, low)
                if first > high:
                    raise ConnectorError(
                        f"start: offset {first} of partition {partition} of topic {topic!r} at "
                        f"{self.servers}: the next message there will have {high}; use that or a lower one",
                        topic=topic,
                        is_permanent=True,
                    )
            case _:
                first = low
        match self.stop:
            case datetime():
                high = _first_since(self.stop, consumer, at, high)
            case Mapping():
                high = min(high, self.stop.get(topic, {}).get(partition, high))
            case "latest" | None:
                pass
        high = max(first, high) if self.stop is not None else high
        return _split_of(topic, partition, first, high, is_bounded=self.stop is not None, identity=identity)

    def reader(self, split: Split, position: JSON) -> SplitReader:
        """Read on at offset `position`, over one client for all partitions of the task."""
        match split.detail, position:
            case {"topic": str(topic), "partition": int(partition), **rest}, int(offset):
                stop = rest.get("stop")
                limit = stop if isinstance(stop, int) else math.inf
                identity = rest.get("id")
            case _:
                raise ConnectorError(
                    f"split {split} at position {position!r} is not of a Kafka source; is the checkpoint of "
                    f"another source?",
                    split_id=split.split_id,
                )
        if self._shared is None or self._shared.is_closed:
            self._shared = SharedConsumer(
                self._consumer(),
                self.servers,
                self.options,
                reads_committed=self.isolation == "read_committed",
            )
        if isinstance(identity, str):
            self._shared.verify(topic, identity)
        options = ReadOptions(self.decode, self.malformed, self.group is not None)
        return PartitionReader(options, self._shared, (topic, partition), offset, limit)

    def _consumer(self) -> Any:
        ours = self._configuration()
        self._client_errors = ours["error_cb"]
        return library().Consumer(ours)

    def _configuration(self) -> dict[str, object]:
        return configuration(
            self.servers,
            {"fetch.wait.max.ms": POLL_MS} | self.options,
            group_id=self.group or "crosscut",
            enable_auto_commit=False,
            # Never a quiet jump: lost messages are named.
            auto_offset_reset="error",
            enable_partition_eof=True,
            isolation_level=self.isolation,
        )


def _first_since(time: datetime, consumer: Any, at: Any, high: int) -> int:
    """Return the offset of the first message at or after `time`, `high` if there is none."""
    at.offset = as_timestamp(time)
    (found,) = consumer.offsets_for_times([at], timeout=TIMEOUT_S)
    return found.offset if found.offset >= 0 else high


def _split_of(
    topic: str, partition: int, first: int, high: int = 0, *, is_bounded: bool = False, identity: str = ""
) -> Split:
    detail: dict[str, JSON] = {"topic": topic, "partition": partition}
    if identity:
        # Offsets mean nothing in a topic of the same name that was made later.
        detail["id"] = identity
    if is_bounded:
        detail["stop"] = high
    return Split(f"{topic}-{partition}", first, detail, weight=max(1, high - first))
