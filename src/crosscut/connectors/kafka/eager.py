"""Messages that are sent at once, and a checkpoint that waits until brokers have answered for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from crosscut.connectors.kafka.client import library, refused
from crosscut.connectors.kafka.sending import send
from crosscut.connectors.kafka.sink_topics import SinkTopics
from crosscut.contracts.connectors import JSON, CommitPermit, SinkWriter
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import CheckpointId

ANSWERED_S = 60.0
"""For brokers to answer for what was sent before a barrier."""

LINGER_MS = 1
"""Who chooses this guarantee wants records to be seen soon. With less librdkafka's thread, which sleeps for
whole milliseconds, takes a whole core while messages wait: the broker and everybody else then lack it."""

ANSWERS_S = 0.01
"""Who waits for answers looks again after so long: another thread may have taken them."""


class Sent:
    """What was sent between two barriers, and how much of it brokers have answered for.

    Answers come in whichever thread polls the producer: that of the task, or that of `prepare`.

    Attributes:
        failure: Why a message was not delivered, "" if all were so far.
    """

    def __init__(self) -> None:
        self.failure = ""
        self._left = 0
        self._is_empty = True
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was sent."""
        return self._is_empty

    @property
    def left(self) -> int:
        """How many messages are not answered for."""
        return self._left

    def add(self, count: int) -> None:
        """Note that so many messages are being sent."""
        with self._lock:
            self._left += count
        self._is_empty = False

    def delivered(self, error: Any, _message: Any) -> None:
        """Take the answer for one of them."""
        with self._lock:
            self._left -= 1
        if error is not None and not self.failure:
            self.failure = error.str()


class EagerWriter(SinkWriter):
    """Sends at once; a checkpoint is prepared when everything before its barrier has been acknowledged.

    It does not wait for what is sent after the barrier: there may be more of it all the time.
    """

    def __init__(self, sink: SinkTopics) -> None:
        self._sink = sink
        self._producer: Any = None
        self._sent = Sent()

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        try:
            self._sink.find_limits()
        except library().KafkaException as error:
            reason = error.args[0]
            raise refused(
                f"{self._sink.location} can't be described: {reason.str()}",
                reason,
            ) from error
        self._producer = self._sink.producer(**{"linger.ms": self._sink.options.get("linger.ms", LINGER_MS)})

    def write(self, records: list[Any]) -> None:
        sent = self._sent
        self._raise_failure(sent)
        for topic, chosen in self._sink.by_topic(records, self.refuse):
            messages = self._sink.messages(topic, chosen, self.refuse)
            sent.add(len(messages.keys))
            send(self._producer, topic, messages, sent.delivered)

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        if self._sent.is_empty:
            return None
        sent, self._sent = self._sent, Sent()
        return checkpoint_id, sent

    def prepare(self, transaction: Any) -> JSON:
        checkpoint_id, sent = transaction
        deadline_s = time.monotonic() + ANSWERED_S
        while sent.left and not sent.failure and time.monotonic() < deadline_s:
            self._producer.poll(ANSWERS_S)
        self._raise_failure(sent)
        if sent.left:
            raise ConnectorError(
                f"{self._sink.location}: {sent.left} messages were not acknowledged within {ANSWERED_S:g} s"
            )
        return {"checkpoint": checkpoint_id, "sent": True}

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        """Nothing is left to be done: it has been visible since it was sent."""

    def close(self) -> None:
        if self._producer is not None:
            self._producer.purge()

    def _raise_failure(self, sent: Sent) -> None:
        if sent.failure:
            raise ConnectorError(f"{self._sink.location}: messages were not delivered: {sent.failure}")
