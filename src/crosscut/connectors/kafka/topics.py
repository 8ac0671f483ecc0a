"""Which partitions the topics of a source have, and whether they are still the topics that they were."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from crosscut.connectors.extras import required
from crosscut.connectors.kafka.client import TIMEOUT_S, configuration, library, permanent, refused
from crosscut.contracts.connectors import JSON
from crosscut.errors import ConnectorError

GONE_AFTER_S = 5.0
"""A broker that has just started may know nothing of a topic that is there."""

ANEW_AFTER_S = 2.0
"""A broker may have missed what became of a topic since: another one is asked meanwhile."""

_ASK_AGAIN_S = 0.5
_NO_IDENTITY = "A" * 22
"""What brokers say that give topics none."""

_log = logging.getLogger("crosscut.kafka")


class Unreachable(Exception):
    """The brokers can't be asked just now; the readers hear of it from their own clients."""


class Topics:
    """Asks about topics, over one client. Used by one thread at a time."""

    def __init__(self, servers: str, options: Mapping[str, object]) -> None:
        self._servers = servers
        admin = required("confluent_kafka.admin", "kafka")
        self._client = admin.AdminClient(configuration(servers, options))

    def described(self, counts: Mapping[str, int]) -> JSON:
        """Return what is known of topics: the identity that the cluster has given each, and its partitions.

        Args:
            counts: How many partitions of each are known. There may be more by now.

        Raises:
            ConnectorError: They can't be asked for, or there is no such topic.
        """
        try:
            return {topic: [self._described(topic)[0], count] for topic, count in counts.items()}
        except Unreachable as error:
            raise ConnectorError(f"topics {', '.join(counts)} at {self._servers}: {error}") from error

    def names(self) -> list[str]:
        """Return the names of all topics that this user may see.

        Raises:
            Unreachable: They can't be asked for.
        """
        try:
            return list(self._client.list_topics(timeout=TIMEOUT_S).topics)
        except library().KafkaException as error:
            raise Unreachable(error.args[0].str()) from error

    def identities(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the identity that the cluster has given each topic, "" if it gives none.

        Raises:
            ConnectorError: They can't be asked for, or there is no such topic.
        """
        found = {}
        for topic in topics:
            try:
                identity = self._described(topic)[0]
            except Unreachable as error:
                raise ConnectorError(f"topic {topic!r} at {self._servers}: {error}", topic=topic) from error
            found[topic] = "" if identity == _NO_IDENTITY else identity
        return found

    def check_same(self, topic: str, identity: str) -> None:
        """Raise ConnectorError if a topic is not the one with this identity any more.

        Raises:
            ConnectorError: It was deleted, or made anew.
            Unreachable: It can't be asked for now.
        """
        self._described_since(topic, [identity, 0])

    def ends(self, places: Sequence[tuple[str, int]], *, reads_committed: bool) -> dict[tuple[str, int], int]:
        """Return where partitions end.

        Raises:
            Unreachable: Not all of them can be asked for now.
        """
        ck, admin = library(), required("confluent_kafka.admin", "kafka")
        newest = admin.OffsetSpec.latest()
        level = ck.IsolationLevel.READ_COMMITTED if reads_committed else ck.IsolationLevel.READ_UNCOMMITTED
        asked = {ck.TopicPartition(*place): newest for place in places}
        try:
            answers = self._client.list_offsets(asked, isolation_level=level, request_timeout=TIMEOUT_S)
            ends = {(at.topic, at.partition): int(one.result().offset) for at, one in answers.items()}
        except ck.KafkaException as error:
            raise Unreachable(error.args[0].str()) from error
        # With leaders that it knows, the library reports a time-out as offsets below 0, and no error.
        if silent := [place for place, end in ends.items() if end < 0]:
            raise Unreachable(f"the leaders of {len(silent)} partitions, such as {silent[0]}, say no offset")
        return ends

    def news(
        self, topics: Sequence[str], known: JSON
    ) -> tuple[list[tuple[str, int]], list[tuple[str, int]], JSON]:
        """Return the partitions that have come since `known`, those of added topics, and what is known now.

        Raises:
            ConnectorError: A topic was deleted or made anew.
        """
        if not isinstance(known, dict):
            raise ConnectorError(f"{known!r:.200} is not the state of a Kafka source")
        new: list[tuple[str, int]] = []
        added: list[tuple[str, int]] = []
        now: dict[str, JSON] = {}
        for topic in topics:
            before = known.get(topic)
            try:
                identity, count = self._described_since(topic, before)
            except Unreachable as error:
                _log.warning("topic %r at %s: %s; it is asked again", topic, self._servers, error)
                return [], [], known
            match before:
                case [str(), int(count_then)]:
                    new += [(topic, partition) for partition in range(count_then, count)]
                case None:
                    # The job was given one topic more.
                    added += [(topic, partition) for partition in range(count)]
                case _:
                    raise ConnectorError(f"{before!r:.200} is not the state of a Kafka topic")
            now[topic] = [identity, count]
        return new, added, now

    def _described_since(self, topic: str, before: JSON) -> tuple[str, int]:
        """Ask about a topic of which `before` is known; what does not fit to it is not believed at once."""
        deadline_s = time.monotonic() + ANEW_AFTER_S
        while True:
            now = self._described(topic)
            match before:
                case [str(identity), int(count)] if now[0] != identity or now[1] < count:
                    then = (identity, count)
                case _:
                    return now
            if now[0] == then[0] != _NO_IDENTITY:
                # It is the same topic, and no topic ever loses partitions.
                raise Unreachable(
                    f"a broker knows of {now[1]} of its {then[1]} partitions, and is not up to date"
                )
            if time.monotonic() > deadline_s:
                self._refuse(topic, then, now)
            time.sleep(_ASK_AGAIN_S)

    def _refuse(self, topic: str, then: tuple[str, int], now: tuple[str, int]) -> NoReturn:
        if then[0] != now[0]:
            raise ConnectorError(
                f"topic {topic!r} at {self._servers} was deleted and recreated (it had id {then[0]}, now "
                f"{now[0]}): what this job had not read of it is lost, and its offsets mean nothing now; "
                f"start a new job to read it from its beginning",
                topic=topic,
                is_permanent=True,
            )
        raise ConnectorError(
            f"topic {topic!r} at {self._servers} has {now[1]} partitions, and had {then[1]}: it was "
            f"recreated; start a new job to read it from its beginning",
            topic=topic,
            is_permanent=True,
        )

    def _described(self, topic: str) -> tuple[str, int]:
        ck = library()
        deadline_s = time.monotonic() + GONE_AFTER_S
        while True:
            try:
                found: Any = self._client.describe_topics(
                    ck.TopicCollection([topic]), request_timeout=TIMEOUT_S
                )[topic].result()
            except ck.KafkaException as error:
                code = error.args[0].code()
                if code == ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    if time.monotonic() > deadline_s:
                        raise refused(
                            f"topic {topic!r} at {self._servers} does not exist: was it deleted? What "
                            f"this job "
                            f"had not read of it is lost; recreate it and start a new job, or check name "
                            f"and rights",
                            error.args[0],
                            topic=topic,
                        ) from error
                elif permanent(error.args[0]):
                    raise refused(
                        f"topic {topic!r} at {self._servers}: {error.args[0].str()}; check name and rights",
                        error.args[0],
                        topic=topic,
                    ) from error
                else:
                    raise Unreachable(error.args[0].str()) from error
                time.sleep(_ASK_AGAIN_S)
                continue
            return str(found.topic_id), len(found.partitions)
