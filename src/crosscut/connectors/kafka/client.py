"""Making clients of librdkafka, and what their errors mean."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.secrets import revealed
from crosscut.errors import ConnectorError
from crosscut.foundation.urls import shown_repr

TIMEOUT_S = 15.0
"""For an answer of the brokers to one question, before it counts as a failure."""

LEADER_POLL_S = 0.1

PARTITIONER = "murmur2_random"
"""As Java's producers: a key goes to the partition where theirs is."""

_log = logging.getLogger("crosscut.kafka")

_LOADING = "Coordinator load in progress"
"""A broker that has just started, or taken a partition over, says so for a moment. The client asks again."""


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a message is for people who do not debug: a healthy cluster says some of them, too."""
    return _LOADING not in record.getMessage() or _log.isEnabledFor(logging.DEBUG)


_log.addFilter(_is_news)


class TopicNotFound(ConnectorError):
    """There is no topic of that name, as far as this user may see. `topic` is its name."""


def library() -> Any:
    """Return confluent_kafka.

    Raises:
        ConnectorError: It is not installed.
    """
    return required("confluent_kafka", "kafka")


class ClientErrors:
    """What brokers say to a client on their own account. Called in the thread that polls the client.

    Attributes:
        refusal: The last of it that asking again does not mend: wrong credentials, say.
    """

    def __init__(self, servers: str) -> None:
        self.refusal: Any = None
        self._servers = servers

    def __call__(self, error: Any) -> None:
        """Take an error of the library."""
        _log.warning("Kafka at %s: %s", self._servers, error.str())
        if permanent(error):
            self.refusal = error


def configuration(servers: str, options: Mapping[str, object], **ours: object) -> dict[str, object]:
    """Return what a client is made with; what the connector depends on can't be overridden.

    Args:
        ours: Options of the connector, with "_" for ".".
    """
    chosen = {name.replace("_", "."): value for name, value in ours.items()}
    return {
        **revealed(options),
        **chosen,
        "bootstrap.servers": servers,
        # A mistyped name is no new topic; of producers and administrators the library's default makes one.
        "allow.auto.create.topics": False,
        # What the library would write to standard error; handed over where the client is polled.
        "logger": _log,
        # Called in the thread that uses the client; a lost broker is tried again by the library.
        "error_cb": ClientErrors(servers),
    }


def checked_options(
    options: Mapping[str, object] | None, ours: frozenset[str], what: str
) -> dict[str, object]:
    """Return `options` if they leave alone what the connector sets itself.

    Raises:
        ConnectorError: They don't, or are no options.
    """
    found = dict(options or {})
    if not all(isinstance(name, str) for name in found):
        raise ConnectorError(
            f"options of {what}: expected names of librdkafka's settings, found {list(found)}"
        )
    if taken := sorted(ours & found.keys()):
        raise ConnectorError(
            f"options of {what} set {', '.join(taken)}, on which its guarantee rests: leave them out"
        )
    return found


def checked_servers(servers: object) -> str:
    """Return `servers` as librdkafka takes them: "host:port,host:port".

    Raises:
        ConnectorError: They are something else.
    """
    if isinstance(servers, str):
        servers = [one.strip() for one in servers.split(",")]
    if not isinstance(servers, list | tuple) or not all(
        isinstance(one, str) and one and "@" not in one for one in servers
    ):
        raise ConnectorError(
            f"servers={shown_repr(servers)}: expected 'host:port', several of them with commas, or a list; "
            f"user and password go into options="
        )
    return ",".join(servers)


def partitions_of(client: Any, servers: str, topic: str, errors: object = None) -> list[int]:
    """Return the partitions of `topic`.

    Args:
        errors: The `error_cb` that the client was made with.

    Raises:
        ConnectorError: There is no such topic, or no broker that answers.
    """
    try:
        found = client.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
    except library().KafkaException as error:
        client.poll(0)
        if isinstance(errors, ClientErrors) and errors.refusal is not None:
            reason = errors.refusal
            raise refused(
                f"Kafka at {servers} refuses to describe topic {topic!r}: {reason.str()}; check the options",
                reason,
                topic=topic,
            ) from error
        raise ConnectorError(
            f"no Kafka broker at {servers} has answered within {TIMEOUT_S:g} s ({error.args[0].str()}): is "
            f"it running, and does it advertise an address that can be reached from here?"
        ) from error
    if found.error is not None:
        raise refused(
            f"topic {topic!r} at {servers}: {found.error.str()}; create it, or check name and rights",
            found.error,
            topic=topic,
        )
    return sorted(found.partitions)


def bounds_of(consumer: Any, at: Any) -> tuple[int, int]:
    """Return the first offset of a partition, and the one after its last message.

    A topic that was just created, or whose broker has just started or was lost, has no leader for a moment,
    which is waited for.

    Raises:
        KafkaException: The cluster does not answer, or refuses.
    """
    codes = library().KafkaError
    passing = (codes.NOT_LEADER_FOR_PARTITION, codes.LEADER_NOT_AVAILABLE)
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            low, high = consumer.get_watermark_offsets(at, timeout=TIMEOUT_S)
            return low, high
        except library().KafkaException as error:
            if error.args[0].code() not in passing or time.monotonic() > deadline_s:
                raise
        # In a thread, until the deadline above; the client tells nothing when a leader is elected.
        time.sleep(LEADER_POLL_S)


def refused(message: str, error: Any, **ids: object) -> ConnectorError:
    """Return the error that says `message`, permanent if asking again can't mend what the library says."""
    codes = library().KafkaError
    is_unknown = error.code() in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC)
    found = TopicNotFound(message, **ids) if is_unknown else ConnectorError(message, **ids)
    found.is_permanent = permanent(error)
    return found


def permanent(error: Any) -> bool:
    """Whether asking again does not mend an error of the library: names, rights and limits."""
    codes = library().KafkaError
    return error.code() in (
        codes.UNKNOWN_TOPIC_OR_PART,
        codes._UNKNOWN_TOPIC,
        codes._UNKNOWN_PARTITION,
        codes.TOPIC_EXCEPTION,
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        codes.SASL_AUTHENTICATION_FAILED,
        codes.UNSUPPORTED_SASL_MECHANISM,
        codes._AUTHENTICATION,
        codes.INVALID_TRANSACTION_TIMEOUT,
        codes.INVALID_REPLICATION_FACTOR,
        codes.POLICY_VIOLATION,
        codes.MSG_SIZE_TOO_LARGE,
        codes.INVALID_RECORD,
    )
