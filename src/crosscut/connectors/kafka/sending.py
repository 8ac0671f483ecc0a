"""Messages on their way to a producer: held together, and handed over many at a time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

from crosscut.connectors.kafka.client import library
from crosscut.connectors.kafka.records import Outgoing, packed
from crosscut.errors import ConnectorError

FULL_S = 0.005
"""Who finds the producer's queue full looks again after so long."""

HELD_TOGETHER = 1_000
"""So many messages are packed at once, at least, before they are held."""


def send(
    producer: Any, topic: str, messages: Outgoing, delivered: Callable[[Any, Any], None] | None = None
) -> None:
    """Hand messages to the producer in their order, waiting while its queue is full.

    Args:
        delivered: Gets the error, if there is one, and the message once brokers have answered for it.

    Raises:
        ConnectorError: The producer refuses one; some of the others may have been sent.
    """
    if messages.headers or messages.timestamps:
        _send_singly(producer, topic, messages, delivered)
        return
    left = [{"key": key, "value": value} for key, value in zip(messages.keys, messages.values, strict=True)]
    while left:
        taken = producer.produce_batch(topic, left, on_delivery=delivered)
        left = left[taken:]
        if left:
            _check_only_full(topic, left)
            producer.poll(FULL_S)
    producer.poll(0)


def _send_singly(
    producer: Any, topic: str, messages: Outgoing, delivered: Callable[[Any, Any], None] | None
) -> None:
    """Send messages with headers or timestamps; the library takes no batches of messages with headers."""
    headers = messages.headers or repeat(None)
    timestamps = messages.timestamps or repeat(None)
    for key, value, pairs, time in zip(messages.keys, messages.values, headers, timestamps, strict=False):
        more = {} if time is None else {"timestamp": time}
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=delivered, headers=pairs or None, **more)
            except BufferError:
                producer.poll(FULL_S)
            except library().KafkaException as error:
                raise ConnectorError(
                    f"topic {topic!r}: the producer rejects a message: {error.args[0].str()}"
                ) from error
            else:
                break
    producer.poll(0)


def _check_only_full(topic: str, left: list[Any]) -> None:
    """Raise ConnectorError unless all that are `left` were refused because the queue of the producer is full.

    That it never takes one after it has refused another for this is librdkafka's word; were it broken, one of
    `left` would have no error, and messages be out of order.
    """
    full = library().KafkaError._QUEUE_FULL
    for one in left:
        error = one.pop("_error", None)
        if error is None or error.code() != full:
            reason = "a message after it was taken" if error is None else error.str()
            raise ConnectorError(f"topic {topic!r}: the producer rejects a message: {reason}")


class Held:
    """Messages between two barriers, packed as they come: thousands of objects are more than their bytes.

    Attributes:
        counts: How many there are for each topic; "" is the only topic of a sink.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._loose: dict[str, Outgoing] = {}
        self._loose_count = 0
        self._packed: list[bytes] = []

    @property
    def count(self) -> int:
        """How many there are for all topics."""
        return sum(self.counts.values())

    def add(self, messages: Outgoing, topic: str = "") -> None:
        if not messages.keys:
            return
        self._loose.setdefault(topic, Outgoing([], [])).extend(messages)
        self.counts[topic] = self.counts.get(topic, 0) + len(messages.keys)
        self._loose_count += len(messages.keys)
        # Over all topics: what is not packed is bounded, however many there are.
        if self._loose_count >= HELD_TOGETHER:
            self._pack()

    def data(self) -> bytes:
        """Return all of them, packed; those of one topic are in order."""
        self._pack()
        return b"".join(self._packed)

    def _pack(self) -> None:
        self._packed += [packed(messages, topic) for topic, messages in self._loose.items()]
        self._loose.clear()
        self._loose_count = 0
