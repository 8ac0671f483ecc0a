"""Streams as a source. A position is the sequence of the next message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from crosscut.connectors.ahead import ReaderAhead
from crosscut.connectors.extras import required
from crosscut.connectors.files.typed_json import TypedJson
from crosscut.connectors.nats.client import Servers, closed, failures, is_permanent, run
from crosscut.connectors.nats.messages import Decoding, Message, decoder
from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.errors import ConnectorError
from crosscut.foundation.suggestions import checks_options

PATIENCE_S = 60.0
"""For servers that do not answer."""

LAG_S = 15.0
"""An older answer of the server says nothing about the lag."""

_BATCH = 500
_FIRST_BATCH = 16
"""Not more, before it is known how large messages are."""

_BATCH_BYTES = 16 * 1024 * 1024
"""A larger batch is followed by a smaller one."""

_WAITING_BYTES = 32 * 1024 * 1024
"""Bound on the messages that the library buffers until they are fetched. It drops those that exceed it."""

_FETCH_S = 0.5
_RETRY_S = 0.2
_FORGOTTEN_AFTER_S = 60.0


@checks_options("nats.source")
def source(
    servers: str | Sequence[str],
    stream: str,
    *,
    subjects: Sequence[str] = (),
    start: Literal["earliest", "latest"] = "earliest",
    stop: Literal["latest"] | None = None,
    decode: Decoding | TypedJson[Any] | Callable[[Message], Any] = "bytes",
    options: Mapping[str, Any] | None = None,
) -> Source:
    """Return a source of the messages of a JetStream stream, each once, in the order of the stream.

    Nothing is acknowledged or removed: positions are in the job's snapshots, and the server keeps no more
    than a consumer in memory, which goes with the connection. So the stream must keep messages by limits, not
    by work queue or interest.

    Args:
        servers: "nats://host:4222", several with commas, or a list.
        stream: Its name; it must be there.
        subjects: Each is a split of its own, with its messages only: for several tasks. They should not
            overlap, or a message comes more than once. Default: one split of all.
        start: Where a job without a checkpoint begins.
        stop: "latest": end at the newest message there is when the job starts for the first time. None:
            never.
        decode: What records are: the data as "bytes", "text" or "json", or of a class with
            `crosscut.json(Payment)`, each "message" as a `crosscut.nats.Message`, or a function of one.
        options: More arguments of `nats.connect`, such as user and password. `crosscut.environment("NAME")`
            as a value keeps a secret out of the program.

    Raises:
        ConnectorError: An argument is not as described. Later: no server answers for a minute, the stream
            is not there, or messages that are still to be read are gone (which names them).

    Examples:
        >>> import crosscut as cc
        >>> orders = cc.nats.source("nats://localhost:4222", "ORDERS", decode="json")
    """
    names = tuple(subjects) if not isinstance(subjects, str) else (subjects,)
    if not isinstance(stream, str) or not stream:
        raise ConnectorError(f"stream={stream!r}: expected the name of a stream")
    if not all(isinstance(one, str) and one for one in names) or len(set(names)) < len(names):
        raise ConnectorError(f"subjects={subjects!r}: expected different subjects, such as ['orders.eu']")
    if start not in ("earliest", "latest"):
        raise ConnectorError(f"start={start!r}: expected 'earliest' or 'latest'")
    if stop not in (None, "latest"):
        raise ConnectorError(f"stop={stop!r}: expected 'latest' or None")
    decoder(decode)
    return NatsSource(Servers(servers, options), stream, names or (">",), start, stop, decode)


@dataclass(frozen=True, eq=False)
class NatsSource(Source):
    """See `source`."""

    servers: Servers
    stream: str
    subjects: tuple[str, ...]
    start: str
    stop: str | None
    decode: Decoding | TypedJson[Any] | Callable[[Message], Any]

    open_splits_max = 100_000

    def __repr__(self) -> str:
        return f"crosscut.nats.source({self.servers.shown!r}, {self.stream!r})"

    def describe(self) -> str:
        """Say which stream this is, not where: servers move."""
        return f"NATS stream {self.stream}"

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Ask the stream where it begins and ends."""
        try:
            first, last = run(self._ends())
        except failures() as error:
            raise ConnectorError(
                f"{self.describe()} at {self.servers.shown}: {self.servers.redacted(error)}",
                is_permanent=is_permanent(error),
            ) from None
        begin = first if self.start == "earliest" else last + 1
        stop = last if self.stop else None
        return [
            Split(f"{self.stream}/{subject}", begin, {"subject": subject, "stop": stop})
            for subject in self.subjects
        ]

    def reader(self, split: Split, position: JSON) -> SplitReader:
        """Read on at the message with the sequence `position`."""
        match split.detail, position:
            case {"subject": str(subject), "stop": None | int() as stop}, int(sequence):
                return _StreamReader(self, subject, sequence, stop)
            case _:
                raise ConnectorError(
                    f"split {split.split_id!r} at position {position!r:.80} is not of a NATS stream; is the "
                    f"checkpoint of another source?",
                    split_id=split.split_id,
                )

    async def _ends(self) -> tuple[int, int]:
        connection = await self.servers.connected()
        try:
            return await self.ends(connection.jetstream())
        finally:
            await closed(connection)

    async def ends(self, stream: Any) -> tuple[int, int]:
        """Return the sequences of the oldest and the newest message; newest < oldest if there is none.

        Raises:
            ConnectorError: The stream is not there, or does not keep its messages.
        """
        api = required("nats.js.api", "nats")
        try:
            info = await stream.stream_info(self.stream)
        except required("nats.js.errors", "nats").NotFoundError:
            raise ConnectorError(
                f"{self.describe()} does not exist at {self.servers.shown}: create it, as with 'nats "
                f"stream add'",
                is_permanent=True,
            ) from None
        if info.config.retention not in (None, api.RetentionPolicy.LIMITS):
            raise ConnectorError(
                f"{self.describe()} keeps messages only until others have taken them "
                f"(retention {str(info.config.retention)!r}), so they can't be read again: expected "
                f"'limits'",
                is_permanent=True,
            )
        return max(1, info.state.first_seq), info.state.last_seq


class _StreamReader(ReaderAhead[Any]):
    def __init__(self, source: NatsSource, subject: str, sequence: int, stop: int | None) -> None:
        super().__init__(sequence)
        self._source = source
        self._subject = subject
        self._next = sequence
        self._stop = stop
        # Messages that the server has and has not sent, as far as it has said; None: it has not yet.
        self._pending: int | None = None
        # When the server answered last, and since when it has kept this reader waiting.
        self._answered_s = self._waiting_since_s = time.monotonic()
        self._batch = min(_FIRST_BATCH, _BATCH)
        # How many messages the server had sent to the consumer of this connection, as it said last.
        self._sent_count = 0
        self._decode = decoder(source.decode)
        self._where = f"{source.describe()} at {source.servers.shown}"

    @property
    def lag(self) -> int | None:
        pending = self._pending
        if pending is None or time.monotonic() - self._answered_s > LAG_S:
            return None
        return pending + self.buffered_count

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        found = super().read(limit)
        # Without an answer it is unknown whether anything waits: not yet, or not while the server is gone.
        return Wait(found.delay_ms, is_coming=self._pending is None) if isinstance(found, Wait) else found

    async def fill(self) -> None:
        self._waiting_since_s = time.monotonic()
        while self._stop is None or self._next <= self._stop:
            try:
                await self._read_on()
                return
            except failures() as error:
                self._pending = None
                reason = self._source.servers.redacted(error)
                if is_permanent(error):
                    raise ConnectorError(f"{self._where}: {reason}", is_permanent=True) from None
                silent_s = time.monotonic() - self._waiting_since_s
                if silent_s > PATIENCE_S:
                    raise ConnectorError(
                        f"{self._where}: nothing could be read for {silent_s:.0f} s: {reason}"
                    ) from None
            await asyncio.sleep(_RETRY_S)

    async def _read_on(self) -> None:
        """Read over one connection, until the end of the split or a failure."""
        api = required("nats.js.api", "nats")
        connection = await self._source.servers.connected()
        try:
            stream = connection.jetstream()
            await self._check_there(stream)
            config = api.ConsumerConfig(
                ack_policy=api.AckPolicy.NONE,
                deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self._next,
                inactive_threshold=_FORGOTTEN_AFTER_S,
                mem_storage=True,
            )
            consumer = await stream.pull_subscribe(
                self._subject,
                stream=self._source.stream,
                config=config,
                pending_bytes_limit=max(_WAITING_BYTES, 2 * connection.max_payload),
            )
            read_count = pending = self._sent_count = 0
            while self._stop is None or self._next <= self._stop:
                if self._stop is not None and not pending and await self._skip(stream, consumer, read_count):
                    continue
                try:
                    found = await consumer.fetch(self._batch, timeout=_FETCH_S)
                except TimeoutError:
                    # The library's own is one of them; it lets some of asyncio out, too.
                    found = []
                if not found:
                    # They came before that answer did, and would have been fetched now.
                    self._check_none_lost(has_all=self._sent_count <= read_count)
                    await self._skip(stream, consumer, read_count)
                elif found[-1].metadata.sequence.stream - self._next >= len(found):
                    # Some are left out: of other subjects, deleted by somebody, or gone.
                    await self._check_there(stream)
                # Also if it says that there is no message: none may be published for hours.
                self._answered_s = self._waiting_since_s = time.monotonic()
                size_bytes = sum(len(one.data) for one in found)
                if size_bytes > _BATCH_BYTES:
                    self._batch = max(1, len(found) // 2)
                try:
                    for message in found:
                        read_count += 1
                        self._check_none_lost(has_all=message.metadata.sequence.consumer == read_count)
                        pending = message.metadata.num_pending
                        if not await self._take(message):
                            return
                finally:
                    # The job may have left no room for hours; the server is not to blame for that.
                    self._waiting_since_s = time.monotonic()
                if size_bytes < _BATCH_BYTES // 4:
                    self._batch = min(_BATCH, 2 * self._batch)
        finally:
            await closed(connection)

    async def _take(self, found: Any) -> bool:
        """Hand on a message; return whether there may be more."""
        meta = found.metadata
        sequence = meta.sequence.stream
        if self._stop is not None and sequence > self._stop:
            self._next = self._stop + 1
            return False
        stored = int(meta.timestamp.timestamp() * 1_000)
        message = Message(found.subject, found.data, dict(found.headers or {}), sequence, stored)
        try:
            record = self._decode(message)
        except Exception as error:
            raise ConnectorError(
                f"{self._where}: message {sequence} of subject {found.subject!r} can't be decoded by "
                f"decode={self._source.decode!r}: {type(error).__name__}: {error}",
                # A function may need a service that is down.
                is_permanent=isinstance(self._source.decode, str | TypedJson),
            ) from error
        self._next = sequence + 1
        headers_bytes = sum(len(name) + len(value) for name, value in message.headers.items())
        await self.put(record, self._next, len(found.data) + headers_bytes)
        # Only now: it is counted twice for a moment, and never not at all.
        self._pending = meta.num_pending
        return True

    async def _skip(self, stream: Any, consumer: Any, read_count: int) -> bool:
        """Move on over messages of other subjects, if there is none of ours before the end.

        Returns whether it has moved.
        """
        _, last = await self._source.ends(stream)
        info = await consumer.consumer_info()
        self._sent_count = info.delivered.consumer_seq
        if info.delivered.consumer_seq == read_count:
            self._pending = info.num_pending
        if info.num_pending == 0 and info.delivered.consumer_seq == read_count and last >= self._next:
            # None of ours may be left because they are gone: a purge, a limit.
            await self._check_there(stream)
            self._next = last + 1
            await self.move(self._next)
            return True
        return False

    def _check_none_lost(self, *, has_all: bool) -> None:
        """Begin anew, with smaller batches, where the library has dropped what exceeded its buffer.

        Raises:
            nats.errors.Error: It has.
        """
        if not has_all:
            self._batch = max(1, self._batch // 2)
            raise required("nats.errors", "nats").Error("a message was lost on its way")

    async def _check_there(self, stream: Any) -> None:
        """Refuse to read on over messages that are gone.

        Raises:
            ConnectorError: They are, or the stream was made anew.
        """
        first, last = await self._source.ends(stream)
        if first > self._next:
            which = (
                "" if self._subject == ">" else f", those of subject {self._subject!r} perhaps among them,"
            )
            raise ConnectorError(
                f"{self._where}: messages {self._next} to {first - 1}{which} were removed by a limit of "
                f"the stream or a purge before they were read; start a new job that continues at {first}",
                is_permanent=True,
            )
        if last + 1 < self._next:
            raise ConnectorError(
                f"{self._where} ends at message {last}, before {self._next}, which this job has read up to: "
                f"the stream was recreated or has lost messages; start a new job to read it from the first",
                is_permanent=True,
            )
