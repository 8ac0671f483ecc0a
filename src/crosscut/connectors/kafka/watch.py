"""Finds out what a client that waits for messages can't tell: whether its topics are still the same ones,
whether brokers answer, and whether they have messages that it does not get."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Event, Lock, Thread

from crosscut.connectors.kafka.topics import Topics, Unreachable
from crosscut.errors import ConnectorError

SILENCE_S = 60.0
"""After so long without a word of the brokers, or without messages that they have, the source fails over."""

PROBE_S = 10.0
"""A client that is silent for so long is checked, and so is lag that is older."""

VERIFIED_S = 10.0
"""For so long a process takes a topic for the one that it was, from one micro-batch to the next: each of them
has a client of its own. As often as that a driver looks at the topics of an endless source."""

_RETRY_S = 0.5
_PARTITIONS_MAX = 500

RegisteredAttempt = tuple[str, int]

_verified: dict[tuple[str, str, str], float] = {}
"""When a topic with an identity was last found to be the same, by servers, topic and identity."""


class Watch:
    """Runs in a thread of its own, over a client of its own, made when it is needed.

    Args:
        readers: Returns for each partition the offset to come, and whether its reader has nothing and is
            asked for more: one that is not asked, since others are behind, waits for nothing.
        reads_committed: Only messages of transactions that are committed count.

    Attributes:
        failure: Why reading has to begin anew, over another client; None: it need not.
    """

    def __init__(
        self,
        servers: str,
        options: Mapping[str, object],
        readers: Callable[[], dict[RegisteredAttempt, tuple[int, bool]]],
        *,
        reads_committed: bool,
    ) -> None:
        self.failure: ConnectorError | None = None
        self._servers = servers
        self._options = options
        self._readers = readers
        self._reads_committed = reads_committed
        self._topics: Topics | None = None
        self._lock = Lock()
        self._to_verify: dict[str, str] = {}
        self._found: dict[tuple[str, str, str], float] = {}
        self._ends: dict[RegisteredAttempt, int] = {}
        self._response_s = time.monotonic()
        # Since when a reader has waited for an offset that the brokers have.
        self._missing: dict[RegisteredAttempt, tuple[int, float]] = {}
        self._is_closed = Event()
        self._is_asked = Event()
        self._thread = Thread(target=self._run, name="crosscut-kafka-watch", daemon=True)

    # For the task.

    def verify(self, topic: str, identity: str) -> None:
        """Have it found out whether a topic is still the one with this identity."""
        found_s = _verified.get((self._servers, topic, identity))
        if found_s is not None and time.monotonic() - found_s < VERIFIED_S:
            return
        with self._lock:
            self._to_verify[topic] = identity
        self._is_asked.set()

    def is_verified(self, topic: str) -> bool:
        """Whether messages of a topic may be handed on."""
        return topic not in self._to_verify

    def begin(self) -> None:
        """Begin to watch."""
        if self._thread.ident is None:
            self._thread.start()

    def note_response(self) -> None:
        """Note that brokers have sent something."""
        self._response_s = time.monotonic()

    @property
    def is_responsive(self) -> bool:
        """Whether what is known of the ends of partitions is recent."""
        return time.monotonic() - self._response_s <= 2 * PROBE_S

    def end_of(self, place: RegisteredAttempt) -> int:
        """Return the end of a partition as it was found last, -1 if it was not."""
        return self._ends.get(place, -1)

    def close(self, *, remember: bool) -> None:
        """End the thread, soon, without waiting for it.

        Args:
            remember: Reading is about to go on over another client, after a micro-batch. Not after a failure,
                which may come from a topic that was made anew.
        """
        if remember and self.failure is None:
            _verified.update(self._found)
        self._is_closed.set()
        self._is_asked.set()

    # In the thread.

    def _run(self) -> None:
        while not self._is_closed.is_set() and self.failure is None:
            try:
                pause_s = self._look()
            except ConnectorError as error:
                self.failure = error
            except Exception as error:  # noqa: BLE001 - the last frame of the thread: a reader raises it
                self.failure = ConnectorError(
                    f"Kafka at {self._servers} can't be watched: {type(error).__name__}: {error}"
                )
            else:
                self._is_asked.wait(pause_s)
                self._is_asked.clear()

    def _look(self) -> float:
        """Look once; return after how many seconds to look again.

        Raises:
            ConnectorError: Reading has to begin anew.
        """
        if self._to_verify:
            try:
                self._verify_all()
            except Unreachable as error:
                self._check_silence(str(error))
                return _RETRY_S
        readers = self._readers()
        is_asked = any(is_asked for _, is_asked in readers.values())
        silent_s = time.monotonic() - self._response_s
        if not self._missing and silent_s < PROBE_S:
            return max(_RETRY_S, PROBE_S - silent_s)
        if readers:
            try:
                self._probe(readers)
            except Unreachable as error:
                if is_asked:
                    self._check_silence(str(error))
                return _RETRY_S
        return PROBE_S

    def _asking(self) -> Topics:
        if self._topics is None:
            self._topics = Topics(self._servers, self._options)
        return self._topics

    def _verify_all(self) -> None:
        for topic, identity in list(self._to_verify.items()):
            self._asking().check_same(topic, identity)
            self._found[self._servers, topic, identity] = time.monotonic()
            self.note_response()
            with self._lock:
                del self._to_verify[topic]

    def _check_silence(self, reason: str) -> None:
        silent_s = time.monotonic() - self._response_s
        if silent_s > SILENCE_S:
            raise ConnectorError(
                f"no broker at {self._servers} has answered for {silent_s:.0f} s ({reason}): reading "
                f"restarts over another connection"
            )

    def _probe(self, readers: Mapping[RegisteredAttempt, tuple[int, bool]]) -> None:
        """Compare what readers wait for with what the brokers have.

        Raises:
            Unreachable: They don't answer.
            ConnectorError: They have had messages for long that have not come.
        """
        places = sorted(readers)
        for first in range(0, len(places), _PARTITIONS_MAX):
            self._ends |= self._asking().ends(
                places[first : first + _PARTITIONS_MAX], reads_committed=self._reads_committed
            )
        self.note_response()
        now_s = time.monotonic()
        missing: dict[RegisteredAttempt, tuple[int, float]] = {}
        for place, (offset, is_asked) in readers.items():
            if is_asked and self._ends.get(place, -1) > offset:
                before = self._missing.get(place)
                missing[place] = before if before is not None and before[0] == offset else (offset, now_s)
        self._missing = missing
        for (topic, partition), (offset, since_s) in missing.items():
            if now_s - since_s > SILENCE_S:
                raise ConnectorError(
                    f"messages {offset} to {self._ends[topic, partition] - 1} of partition {partition} of "
                    f"topic {topic!r} at {self._servers} have not arrived for {now_s - since_s:.0f} s, "
                    f"though "
                    f"the brokers have them: reading restarts over another connection",
                    topic=topic,
                )
