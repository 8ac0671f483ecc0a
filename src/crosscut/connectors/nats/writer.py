"""The writer of the sink: it holds records in the snapshot, and commits them in atomic batches."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from reprlib import repr as shortened
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.loop_thread import LoopThread
from crosscut.connectors.nats.client import closed, failures, is_permanent
from crosscut.connectors.nats.destination import Destination
from crosscut.connectors.nats.marker import Marker
from crosscut.connectors.nats.messages import encoder, is_subject, packed, unpacked
from crosscut.contracts.connectors import JSON, CommitPermit, SinkContext, SinkWriter
from crosscut.errors import ConnectorError, HistoryError
from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.log.history import check_history, check_not_set_back

BATCH_MESSAGES = 999
"""The server takes a thousand at once, and one of them is the marker."""

CALL_TIMEOUT_S = 60.0

_BATCH_BYTES = 8 * 1024 * 1024
_STREAM_HEADER_BYTES = 200
_HEADER_BYTES = 1_024
"""Of the largest message, for what is said of the batch."""

_WRONG_LAST_SEQUENCE = 10_071
_FENCE_ATTEMPTS = 5


class NatsWriter(SinkWriter):
    """Holds records in the snapshot; commits in atomic batches, each with the marker in it."""

    def __init__(self, sink: Destination, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        task = context.task
        self._owner = (str(context.lineage), context.sink_uid, str(task.vertex), task.index)
        digest = blake2b(json.dumps([sink.target, *self._owner]).encode(), digest_size=16).hexdigest()
        self._marker_subject = f"{sink.markers}.{digest}"
        self._encode = encoder(sink.encode)
        # Packed as they come: what orjson returns keeps some kilobytes, however short it is.
        self._open: list[bytes] = []
        self._open_count = 0
        self._restored: CommitPermit | None = None
        self._loop: LoopThread | None = None
        self._connection: Any = None
        self._largest_bytes: int | None = None
        # The marker as this process has written or read it last; None: ask again.
        self._marker: Marker | None = None
        self._permit: CommitPermit | None = None
        # Up to there the server has confirmed the commit to this writer.
        self._confirmed = CheckpointId(0)

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self._restored = self._permit = permit
        pending = [self._checked(handle) for handle in handles]
        self._run(self._fenced, bool(pending))
        self._commit(pending)

    def write(self, records: list[Any]) -> None:
        sink = self._sink
        messages: list[tuple[str, bytes]] = []
        for record in records:
            subject = sink.subject(record) if callable(sink.subject) else sink.subject
            if not is_subject(subject):
                self.refuse(record, f"{sink.where}: {subject!r} is no subject")
                continue
            try:
                data = self._encode(record if sink.value is None else sink.value(record))
            except Exception as error:  # noqa: BLE001 - whatever an encoding raises, it is for this record
                reason = f"it can't be encoded by encode={sink.encode!r}: {type(error).__name__}: {error}"
                self.refuse(record, f"{sink.where}: {reason}")
                continue
            if not isinstance(data, bytes):
                self.refuse(record, f"{sink.where}: encode returned {shortened(data)}, expected bytes")
                continue
            if self._largest_bytes is not None and len(data) > self._largest_bytes:
                self.refuse(
                    record,
                    f"{sink.where}: it has {len(data)} bytes, and the server takes at most "
                    f"{self._largest_bytes} (max_payload, or max_msg_size of the stream)",
                )
                continue
            messages.append((subject, data))
        if messages:
            self._open.append(packed(messages))
            self._open_count += len(messages)

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        if not self._open:
            return None
        transaction = checkpoint_id, self._open_count, self._open
        self._open, self._open_count = [], 0
        return transaction

    def prepare(self, transaction: Any) -> JSON:
        checkpoint_id, count, pieces = transaction
        self._context.held.keep(checkpoint_id, b"".join(pieces))
        return {"checkpoint": checkpoint_id, "messages": count}

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        self._permit = permit
        self._commit([self._checked(handle) for handle in handles])

    def pending_records(self, handles: Sequence[JSON]) -> Iterator[dict[str, str | bytes]]:
        """Yield the messages: subject and data."""
        for checkpoint_id, _ in map(self._checked, handles):
            for subject, data in unpacked(self._context.held.data(checkpoint_id)):
                yield {"subject": subject, "data": data}

    def close(self) -> None:
        self._disconnect()
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def _commit(self, pending: Sequence[tuple[CheckpointId, int]]) -> None:
        for checkpoint_id, count in pending:
            marker = self._marker
            if marker is None:
                marker = self._run(self._read, True)
            if checkpoint_id <= marker.checkpoint_id:
                continue
            messages = unpacked(self._context.held.data(checkpoint_id))
            if len(messages) != count:
                raise ConnectorError(
                    f"{self._sink.where}: {len(messages)} messages are held for checkpoint {checkpoint_id}, "
                    f"expected {count}"
                )
            while not self._run(self._published, checkpoint_id, messages):
                pass

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a coroutine over the connection, which is given up after any failure."""
        if self._loop is None:
            self._loop = LoopThread("crosscut-nats", CALL_TIMEOUT_S)
        try:
            return self._loop.run(function(*arguments))
        except BaseException as error:
            # Stored or not: the next attempt asks the marker, over a connection of its own.
            self._marker = None
            self._disconnect()
            if isinstance(error, failures()):
                failed = ConnectorError(f"{self._sink.where}: {self._sink.servers.redacted(error)}")
                failed.is_permanent = is_permanent(error)
                raise failed from None
            raise

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._loop is not None:
            try:
                self._loop.run(closed(connection))
            except failures():
                # It is given up in any case.
                pass

    # All below runs in the loop.

    async def _connected(self) -> Any:
        if self._connection is None or self._connection.is_closed:
            self._connection = await self._sink.servers.connected()
            self._largest_bytes = self._connection.max_payload - _HEADER_BYTES
            info = await self._connection.jetstream().stream_info(self._sink.stream)
            if (largest := info.config.max_msg_size or -1) > 0:
                # Of messages with their headers.
                headers_bytes = _STREAM_HEADER_BYTES + len(self._sink.stream)
                self._largest_bytes = min(self._largest_bytes, max(0, largest - headers_bytes))
        return self._connection

    async def _read(self, has_pending: bool) -> Marker:
        """Read the marker, and refuse what contradicts it."""
        stream = (await self._connected()).jetstream()
        try:
            message = await stream.get_last_msg(self._sink.stream, self._marker_subject)
        except required("nats.js.errors", "nats").NotFoundError:
            check_not_set_back(
                self._context, self._permit, CheckpointId(0), self._sink.where, confirmed=self._confirmed
            )
            if has_pending:
                # The epoch that has made these has had one: what it said is not guessed at.
                raise HistoryError(
                    f"{self._sink.where}: messages are to be committed, and the marker that records "
                    f"whether they already are, the last message of subject {self._marker_subject}, is "
                    f"missing; nothing was published. Was it removed by a limit of the stream? Start over "
                    f"with another checkpoint_dir",
                    location=self._sink.where,
                ) from None
            self._marker = Marker(self._sink.target, self._owner, 0, "", 0, 0, 0, 0)
            return self._marker
        self._marker = Marker.parsed(message.data, message.seq, self._sink.where)
        there = CheckpointId(self._marker.checkpoint_id)
        check_not_set_back(self._context, self._permit, there, self._sink.where, confirmed=self._confirmed)
        check_history(self._context, self._restored, [self._marker.output(self._sink.where)])
        return self._marker

    async def _fenced(self, has_pending: bool) -> None:
        """Write a marker of this epoch: the server refuses every batch that goes by an older one."""
        for _ in range(_FENCE_ATTEMPTS):
            marker = await self._read(has_pending)
            if await self._stored([], marker.checkpoint_id, marker.partial, marker.sent):
                return
        raise ConnectorError(f"{self._sink.where}: another program moves the marker {self._marker_subject}")

    async def _published(self, checkpoint_id: int, messages: list[tuple[str, bytes]]) -> bool:
        """Publish the next batch of a checkpoint; return whether all of it is there."""
        marker = self._marker or await self._read(True)
        if marker.checkpoint_id >= checkpoint_id:
            return True
        sent = marker.sent if marker.partial == checkpoint_id else 0
        batch: list[tuple[str, bytes]] = []
        size_bytes = 0
        for one in messages[sent : sent + BATCH_MESSAGES]:
            size_bytes += len(one[1])
            if batch and size_bytes > _BATCH_BYTES:
                break
            batch.append(one)
        sent += len(batch)
        is_last = sent == len(messages)
        if is_last:
            stored = await self._stored(batch, checkpoint_id, 0, 0)
        else:
            stored = await self._stored(batch, marker.checkpoint_id, checkpoint_id, sent)
        if not stored:
            # An answer was lost, or another epoch has begun: reading the marker tells.
            self._marker = None
        return is_last and stored

    async def _stored(
        self, messages: list[tuple[str, bytes]], checkpoint_id: int, partial: int, sent: int
    ) -> bool:
        """Store messages with the next marker, all or none; return False if the marker is another by now."""
        before, context = self._marker, self._context
        assert before is not None
        marker = Marker(
            self._sink.target, self._owner, context.epoch, context.driver, checkpoint_id, partial, sent, 0
        )
        connection = await self._connected()
        batch = {"Nats-Batch-Id": secrets.token_hex(16)}
        for number, (subject, data) in enumerate(messages, 1):
            headers = {**batch, "Nats-Batch-Sequence": str(number), "Nats-Expected-Stream": self._sink.stream}
            if number == 1:
                # Only this one is answered, before the last: is a batch taken at all?
                _checked_answer((await connection.request(subject, data, 30, headers=headers)).data)
            else:
                await connection.publish(subject, data, headers=headers)
        headers = {
            "Nats-Expected-Stream": self._sink.stream,
            "Nats-Expected-Last-Subject-Sequence": str(before.sequence),
        }
        if messages:
            headers |= {**batch, "Nats-Batch-Sequence": str(len(messages) + 1), "Nats-Batch-Commit": "1"}
        answer = await connection.request(self._marker_subject, marker.encoded(), 30, headers=headers)
        sequence = _checked_answer(answer.data)
        if sequence is None:
            return False
        self._confirmed = CheckpointId(checkpoint_id)
        self._marker = Marker(
            marker.target, marker.owner, marker.epoch, marker.driver, checkpoint_id, partial, sent, sequence
        )
        return True

    def _checked(self, handle: JSON) -> tuple[CheckpointId, int]:
        match handle:
            case {"checkpoint": int(n), "messages": int(count), **rest} if not rest and n > 0:
                return CheckpointId(n), count
            case _:
                raise ConnectorError(f"{self._sink.where}: {handle!r:.200} is not a transaction of this sink")


def _checked_answer(data: bytes) -> int | None:
    """Return the sequence of the last message that was stored, 0 for none yet, None if the marker has moved.

    Raises:
        nats.errors.Error: The server refuses.
    """
    if not data:
        return 0
    match json.loads(data):
        case {"error": {"err_code": int(code)}} if code == _WRONG_LAST_SEQUENCE:
            return None
        case {"seq": int(sequence), **rest} if "error" not in rest:
            return sequence
        case other:
            raise required("nats.errors", "nats").Error(f"the server answers {other}")
