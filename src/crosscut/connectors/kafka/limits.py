"""What a topic takes, and for how long a transaction may be open: asked before anything is written."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.kafka.client import TIMEOUT_S, library
from crosscut.connectors.kafka.topics import GONE_AFTER_S

_ASK_AGAIN_S = 0.1

_ANY_TIME_MS = 2**62
"""Brokers say 2 ** 63 - 1 where they accept any time."""

_OVERHEAD_BYTES = 100
"""Of a batch with one message, beside key and value."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """What a topic takes.

    Attributes:
        batch_bytes: `max.message.bytes` of the topic, which is of a batch; None: it is not known.
        needs_keys: The topic is compacted, so a message without a key is refused.
        future_ms: How far the timestamp of a message may be in the future; None: at any time.
        past_ms: The same for the past.
    """

    batch_bytes: int | None = None
    needs_keys: bool = False
    future_ms: int | None = None
    past_ms: int | None = None

    @property
    def message_bytes(self) -> int | None:
        """How large key and value of a message may be together."""
        return None if self.batch_bytes is None else max(0, self.batch_bytes - _OVERHEAD_BYTES)


def policies(settings: dict[str, str]) -> set[str]:
    """Return the cleanup policies of a topic."""
    return {one.strip() for one in settings.get("cleanup.policy", "").split(",") if one.strip()}


def topic_limits(client: Any, topic: str) -> TopicLimits:
    """Ask for the limits of a topic; nothing is known of one whose settings may not be read.

    Raises:
        KafkaException: The cluster does not answer.
    """
    settings = topic_settings(client, topic)
    if settings is None:
        return TopicLimits()
    largest = settings.get("max.message.bytes", "")
    takes_ours = settings.get("message.timestamp.type", "CreateTime") == "CreateTime"
    return TopicLimits(
        int(largest) if largest.isdigit() else None,
        "compact" in policies(settings),
        _farthest_ms(settings, "after") if takes_ours else None,
        _farthest_ms(settings, "before") if takes_ours else None,
    )


def _farthest_ms(settings: dict[str, str], direction: str) -> int | None:
    # Before Kafka 3.6 there was one setting for both directions.
    names = (f"message.timestamp.{direction}.max.ms", "message.timestamp.difference.max.ms")
    found = [int(text) for name in names if (text := settings.get(name, "")).isdigit()]
    least = min(found, default=_ANY_TIME_MS)
    return None if least >= _ANY_TIME_MS else least


def topic_settings(client: Any, topic: str, patience_s: float = GONE_AFTER_S) -> dict[str, str] | None:
    """Return the settings of a topic; None if this user may not read them, or the cluster tells nobody.

    Args:
        client: An AdminClient.
        patience_s: For a topic that was just made: not all brokers know of it at once.

    Raises:
        KafkaException: The cluster does not answer, or refuses for another reason.
    """
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            return _settings(client, "TOPIC", topic)
        except library().KafkaException as error:
            is_unknown = error.args[0].code() == library().KafkaError.UNKNOWN_TOPIC_OR_PART
            if not is_unknown or time.monotonic() > deadline_s:
                raise
        time.sleep(_ASK_AGAIN_S)


def transaction_ms_max(client: Any) -> int | None:
    """Return for how long the brokers let a transaction be open; None if this user may not know.

    Raises:
        KafkaException: The cluster does not answer.
    """
    (broker, *_) = client.list_topics(timeout=TIMEOUT_S).brokers
    settings = _settings(client, "BROKER", str(broker)) or {}
    longest = settings.get("transaction.max.timeout.ms", "")
    return int(longest) if longest.isdigit() else None


def _settings(client: Any, kind: str, name: str) -> dict[str, str] | None:
    admin = required("confluent_kafka.admin", "kafka")
    of = admin.ConfigResource(getattr(admin.ResourceType, kind), name)
    try:
        found = client.describe_configs([of], request_timeout=TIMEOUT_S)[of].result()
    except library().KafkaException as error:
        codes, code = library().KafkaError, error.args[0].code()
        if code in (
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes.CLUSTER_AUTHORIZATION_FAILED,
            codes.UNSUPPORTED_VERSION,
            codes._UNSUPPORTED_FEATURE,
        ):
            return None
        raise
    return {name: entry.value for name, entry in found.items() if entry.value is not None}
