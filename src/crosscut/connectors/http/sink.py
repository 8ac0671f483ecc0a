"""Requests as a sink: made when their checkpoint is complete, each with a key that a repeat has, too."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Any

from crosscut.connectors.extras import required
from crosscut.connectors.files.json_values import dumped
from crosscut.connectors.files.rows import checked_row
from crosscut.connectors.http.requests import (
    MAY_PASS,
    Address,
    Headers,
    bounded_body,
    checked_headers,
    checked_url,
    library,
    without_values,
)
from crosscut.connectors.loop_thread import LoopThread
from crosscut.connectors.secrets import Environment, revealed
from crosscut.contracts.connectors import JSON, CommitPermit, Guarantee, Sink, SinkContext, SinkWriter
from crosscut.errors import ConnectorError
from crosscut.foundation.durations import Duration, duration_ms
from crosscut.foundation.ids import CheckpointId
from crosscut.foundation.suggestions import checks_options

REFUSES_RECORDS = frozenset({400, 409, 413, 422})
"""Answers that are about the records of a request; others of 4xx are about the receiver, or who may post."""

ANSWER_BYTES = 65_536
"""How much of a response is read; the rest is discarded."""

NOTED_EVERY_S = 1.0
"""How long requests may take before the answered ones are noted."""


@checks_options("http.sink")
def sink(
    url: str | Environment,
    *,
    honours_keys: bool,
    value: Callable[[Any], Any] | None = None,
    batch_records: int = 500,
    headers: Headers | None = None,
    key_header: str = "Idempotency-Key",
    timeout: Duration = "30s",
) -> Sink:
    """Return a sink that posts records to a URL, as JSON.

    Records are held in the snapshot until their checkpoint is complete, then they are posted in order. Each
    request has a key, made of the job, the task, the checkpoint and its number, which is the same if it
    has to be made again; and its body is the same, too. If the receiver *honours keys*, that is, does nothing
    for a key that it has seen, then each record has its effect exactly once. Else records may come again
    after a failure; `flow.explain()` says which.

    The number of answered requests is noted in the checkpoint directory after each second of posting. A task
    that restarts posts again what was answered since the last note, and the request that had no answer.

    A receiver must remember keys for as long as a job may stand still before it goes on.

    Args:
        url: Where to post. What is not answered with 2xx has failed, and is tried again. A path is shown to
            people and kept in the job log; of a URL with a secret in it make `crosscut.environment("NAME")`.
            Redirects are not followed. With 400, 409, 413 or 422 the receiver refuses records: a request of
            several is divided until it is known which ones, so each request has to take effect as a whole or
            not at all. Other answers of 4xx, but 408, 425 and 429, refuse everything: the third one in a row
            ends the job.
        honours_keys: See above. It is taken at your word.
        value: Takes a record, returns what becomes JSON. Default: the record itself.
        batch_records: How many records a request has at most, as a JSON array. 1: each has a request of its
            own, whose body is that record.
        headers: More headers. `crosscut.environment("NAME")` as a value keeps a secret out of the program.
        key_header: Which header has the key. Beside it `Crosscut-Epoch` tells a newer attempt from an older.
        timeout: For one request, from its beginning to the end of the answer.

    Raises:
        ConnectorError: An argument is not as described. Later: the receiver refuses, or a record can't be
            JSON.
        SettingsError: `timeout` is no duration.

    Examples:
        >>> import crosscut as cc
        >>> hook = cc.http.sink("https://example.com/hook", honours_keys=True)
    """
    checked_row(value)
    if type(batch_records) is not int or batch_records < 1:
        raise ConnectorError(f"batch_records={batch_records!r}: expected an int of at least 1")
    checked_headers({key_header: ""})
    return HttpSink(
        checked_url(url),
        bool(honours_keys),
        value,
        batch_records,
        checked_headers(headers),
        key_header,
        duration_ms(timeout, "timeout"),
    )


@dataclass(frozen=True, eq=False)
class HttpSink(Sink):
    """See `sink`."""

    url: str | Environment
    honours_keys: bool
    value: Callable[[Any], Any] | None
    batch_records: int
    headers: Mapping[str, Any]
    key_header: str
    timeout_ms: float

    def __repr__(self) -> str:
        return f"crosscut.http.sink({Address(self.url).shown!r})"

    @property
    def guarantee(self) -> Guarantee:
        """See `sink`."""
        return "exactly once" if self.honours_keys else "at least once"

    @property
    def shows_at_once(self) -> bool:
        """No: records wait in the snapshot, and are posted by the commit."""
        return False

    def describe(self) -> str:
        """Return the URL, without secrets."""
        return f"posts to {Address(self.url).shown}"

    def check(self) -> None:
        """Raise ConnectorError if the library or a secret is missing; nothing is posted."""
        required("httpx", "http")
        revealed(self.headers)
        Address(self.url).value()

    def writer(self, context: SinkContext) -> SinkWriter:
        """Make the writer of one task for one epoch."""
        return _HttpWriter(self, context)


class _HttpWriter(SinkWriter):
    def __init__(self, sink: HttpSink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._address = Address(sink.url)
        self._redacted = self._address.redacted
        self._open: list[bytes] = []
        self._committed = CheckpointId(0)
        # Of the checkpoint that is being posted: so many of its requests have been answered.
        self._answered: tuple[int, int] = 0, 0
        # Parts of the request that is being posted which are answered for, or refused for good.
        self._delivered: set[str] = set()
        # Requests took so long since the last note.
        self._unnoted_s = 0.0
        self._client: Any = None
        self._loop: LoopThread | None = None

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        self._go_on(handles)
        self._commit(handles)

    def write(self, records: list[Any]) -> None:
        value = self._sink.value
        for record in records:
            body = record if value is None else value(record)
            try:
                data = dumped(body)
            except (TypeError, ValueError) as error:
                reason = f"it can't be JSON: {error}; set value= to a function that returns what can"
                self.refuse(record, reason)
                continue
            # Copied: what orjson returns keeps some kilobytes, however short it is.
            self._open.append(bytes(memoryview(data)))

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        if not self._open:
            return None
        records, self._open = self._open, []
        return checkpoint_id, records

    def prepare(self, transaction: Any) -> JSON:
        checkpoint_id, records = transaction
        bodies = list(_bodies(records, self._sink.batch_records))
        # JSON has no newlines outside of texts, and escapes those inside.
        self._context.held.keep(checkpoint_id, b"\n".join(bodies))
        context, task = self._context, self._context.task
        # A later commit uses the same keys. A job that goes on from an older copy of its checkpoint
        # directory makes others: to post twice is better than to have new records ignored.
        key = f"{context.lineage}-{context.sink_uid}-{task.vertex}-{task.index}-{checkpoint_id}"
        return {"checkpoint": checkpoint_id, "requests": len(bodies), "key": f"{key}-{context.epoch}"}

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        self._commit(handles)

    def pending_records(self, handles: Sequence[JSON]) -> Iterator[JSON]:
        """Yield the records, as they are posted."""
        for checkpoint_id, *_ in map(self._checked, handles):
            for body in self._context.held.data(checkpoint_id).split(b"\n"):
                yield from self._records(body)

    def close(self) -> None:
        client, self._client = self._client, None
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                if client is not None:
                    with suppress(TimeoutError, OSError):
                        loop.run(client.aclose())
            finally:
                loop.close()

    def _go_on(self, handles: Sequence[JSON]) -> None:
        """Leave out what another writer of this task has posted, as far as it is noted."""
        match self._context.progress.noted():
            case {"key": str(noted), "sha256": str(digest), "answered": int(answered)}:
                pass
            case _:
                return
        committed = CheckpointId(0)
        for checkpoint_id, count, key in map(self._checked, handles):
            # A directory from a backup may have the note of another transaction with this key.
            if key == noted and digest == sha256(self._context.held.data(checkpoint_id)).hexdigest():
                # Posted in order: all older ones are answered.
                self._committed = committed
                self._answered = checkpoint_id, min(max(answered, 0), count)
                return
            committed = checkpoint_id

    def _commit(self, handles: Sequence[JSON]) -> None:
        for checkpoint_id, count, key in [self._checked(handle) for handle in handles]:
            if checkpoint_id <= self._committed:
                continue
            data = self._context.held.data(checkpoint_id)
            bodies = data.split(b"\n")
            if len(bodies) != count:
                raise ConnectorError(
                    f"{self._sink.describe()}: {len(bodies)} requests are held for checkpoint "
                    f"{checkpoint_id}, expected {count}"
                )
            began, answered = self._answered
            for number in range(answered if began == checkpoint_id else 0, count):
                began_s = time.monotonic()
                self._deliver(bodies[number], f"{key}-{number}")
                self._answered = checkpoint_id, number + 1
                self._delivered.clear()
                self._unnoted_s += time.monotonic() - began_s
                if self._unnoted_s >= NOTED_EVERY_S:
                    note: JSON = {"key": key, "sha256": sha256(data).hexdigest(), "answered": number + 1}
                    self._context.progress.note(note)
                    self._unnoted_s = 0.0
            self._committed = checkpoint_id

    def _deliver(self, body: bytes, key: str) -> None:
        """Post a request; divide one that is refused, until it is known which records are.

        Each part has a key of its own, which is the same whenever it is made.
        """
        if key in self._delivered:
            return
        reason = self._post(body, key)
        if reason:
            records = self._records(body)
            if len(records) == 1:
                self.refuse(records[0], reason)
            else:
                middle = len(records) // 2
                for half, name in ((records[:middle], "a"), (records[middle:], "b")):
                    self._deliver(dumped(half), f"{key}{name}")
        self._delivered.add(key)

    def _records(self, body: bytes) -> list[Any]:
        """Return the records of a request."""
        # Of our own making, so no deeper than its records are: the batch adds a level to them.
        found: Any = json.loads(body)
        return [found] if self._sink.batch_records == 1 else list(found)

    def _post(self, body: bytes, key: str) -> str:
        """Post a request; return why its records are refused, "" if they are not.

        Raises:
            ConnectorError: It has no answer, or another one.
        """
        sink, httpx = self._sink, library()
        headers = {
            "Content-Type": "application/json",
            **revealed(sink.headers),
            sink.key_header: key,
            "Crosscut-Epoch": str(self._context.epoch),
        }
        if self._loop is None:
            self._loop = LoopThread("crosscut-http", sink.timeout_ms / 1_000)
        try:
            status, response = self._loop.run(self._answer(body, headers))
        except (httpx.HTTPError, TimeoutError) as error:
            text = self._redacted(f"{type(error).__name__}: {error}")
            raise ConnectorError(f"{sink.describe()}: request {key} has no answer: {text}") from None
        if 200 <= status < 300:
            return ""
        reason = (
            f"{sink.describe()}: request {key} was answered {status}: "
            f"{self._redacted(without_values(response, sink.headers))[:200]!r}"
        )
        if status in REFUSES_RECORDS:
            return reason
        failed = ConnectorError(reason)
        failed.is_permanent = 300 <= status < 500 and status not in MAY_PASS
        raise failed

    async def _answer(self, body: bytes, headers: dict[str, Any]) -> tuple[int, str]:
        """Post; return the status, and what is said with it unless that is success."""
        if self._client is None:
            self._client = library().AsyncClient(timeout=self._sink.timeout_ms / 1_000)
        url = self._address.value()
        async with self._client.stream("POST", url, content=body, headers=headers) as answer:
            data = await bounded_body(answer, ANSWER_BYTES)
        return answer.status_code, data.decode(errors="replace")

    def _checked(self, handle: JSON) -> tuple[CheckpointId, int, str]:
        match handle:
            case {"checkpoint": int(n), "requests": int(count), "key": str(key), **rest} if (
                not rest and n > 0
            ):
                return CheckpointId(n), count, key
            case _:
                raise ConnectorError(f"{handle!r:.200} is no transaction of {self._sink.describe()}")


def _bodies(records: Sequence[bytes], batch_records: int) -> Any:
    if batch_records == 1:
        yield from records
        return
    left = iter(records)
    while batch := list(islice(left, batch_records)):
        yield b"[" + b",".join(batch) + b"]"
