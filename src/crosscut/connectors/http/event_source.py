"""Server-sent events as a source. A position is the id of the last event."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Any, Literal

from crosscut.connectors.ahead import ReaderAhead
from crosscut.connectors.extras import required
from crosscut.connectors.files.decode_functions import decode_problem
from crosscut.connectors.files.json_decoding import json_value
from crosscut.connectors.files.typed_json import TypedJson
from crosscut.connectors.http.event_stream import Event, EventParser
from crosscut.connectors.http.requests import (
    MAY_PASS,
    Address,
    Headers,
    checked_headers,
    checked_url,
    library,
    pieces,
)
from crosscut.connectors.secrets import Environment, revealed
from crosscut.contracts.connectors import JSON, Source, Split, SplitReader
from crosscut.errors import ConnectorError
from crosscut.foundation.suggestions import checks_options

CONNECT_TIMEOUT_S = 15.0
SILENCE_S = 60.0
"""After so long without a byte the connection is taken for dead; servers send comments meanwhile."""

PATIENCE_S = 60.0
"""For a server that does not answer, or says that it can't just now."""

_RETRY_MS = 1_000
_RETRY_MS_MAX = 10_000

_log = logging.getLogger("crosscut.http")


@checks_options("http.events")
def events(
    url: str | Environment,
    *,
    replays: bool,
    decode: Literal["text", "json", "event"] | TypedJson[Any] | Callable[[Event], Any] = "text",
    headers: Headers | None = None,
) -> Source:
    """Return an endless source of the server-sent events of a URL.

    A server *replays* if it sends all events after the one that the header `Last-Event-ID` names: then each
    event is read once, whatever fails. Of a server that does not, events are lost that come while nobody
    is connected, and a failure loses those after the last checkpoint; `flow.explain()` says so.

    The source ends when the server answers 204, as the standard has it.

    Args:
        url: Of the stream. A path is shown to people; of a URL with a secret in it make
            `crosscut.environment("NAME")`.
        replays: See above. It is taken at your word; each event must have an id of its own then.
        decode: What records are: the data of an event as "text" or "json", or of a class with
            `crosscut.json(Payment)`, the "event" as a `crosscut.http.Event`, or a function of one.
        headers: More headers of the request. `crosscut.environment("NAME")` as a value keeps a secret out of
            the program.

    Raises:
        ConnectorError: An argument is not as described. Later: the server refuses, is not there for a
            minute, sends something else, or an event that can't be decoded.

    Examples:
        >>> import crosscut as cc
        >>> prices = cc.http.events("http://localhost:8000/prices", replays=True, decode="json")
    """
    if decode not in ("text", "json", "event") and not callable(decode):
        raise ConnectorError(
            f"decode={decode!r}: expected 'text', 'json', 'event', crosscut.json(class) or a function"
        )
    if (
        not isinstance(decode, str | TypedJson)
        and callable(decode)
        and (problem := decode_problem(decode, "event"))
    ):
        raise ConnectorError(f"decode={shortened(decode)}: {problem}")
    return HttpEvents(checked_url(url), bool(replays), decode, checked_headers(headers))


@dataclass(frozen=True, eq=False)
class HttpEvents(Source):
    """See `events`."""

    url: str | Environment
    replays: bool
    decode: Literal["text", "json", "event"] | TypedJson[Any] | Callable[[Event], Any]
    headers: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"crosscut.http.events({Address(self.url).shown!r})"

    @property
    def is_replayable(self) -> bool:
        """See `events`."""
        return self.replays

    def describe(self) -> str:
        """Return the URL, without secrets."""
        return f"events of {Address(self.url).shown}"

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Return the only one: nothing is asked yet."""
        required("httpx", "http")
        Address(self.url).value()
        return [Split("events", "")]

    def reader(self, split: Split, position: JSON) -> SplitReader:
        """Read on after the event with the id `position`."""
        if not isinstance(position, str):
            raise ConnectorError(f"{position!r:.80} is not an event id; is the checkpoint of another source?")
        return _EventReader(self, position)

    def record(self, event: Event) -> Any:
        """Return the record of an event.

        Raises:
            ConnectorError: It can't be decoded.
        """
        try:
            match self.decode:
                case "text":
                    return event.data
                case "json":
                    return json_value(event.data)
                case "event":
                    return event
                case TypedJson() as decode:
                    return decode(event.data)
                case function:
                    return function(event)
        except Exception as error:
            raise ConnectorError(
                f"{self.describe()}: event {event.id!r} can't be decoded by decode={self.decode!r}: "
                f"{type(error).__name__}: {error}: {event.data[:200]!r}",
                # A function may need a service that is down.
                is_permanent=isinstance(self.decode, str | TypedJson),
            ) from error


class _EventReader(ReaderAhead[Any]):
    def __init__(self, source: HttpEvents, last_id: str) -> None:
        super().__init__(last_id)
        self._source = source
        self._last_id = last_id
        self._address = Address(source.url)
        self._redacted = self._address.redacted
        self._was_answered = False

    async def fill(self) -> None:
        httpx = library()
        retry_ms, failing_since_s = _RETRY_MS, time.monotonic()
        timeout = httpx.Timeout(CONNECT_TIMEOUT_S, read=SILENCE_S)
        async with httpx.AsyncClient(timeout=timeout) as client:
            while True:
                parser, self._was_answered = EventParser(self._last_id), False
                try:
                    if await self._has_ended_for_good(client, parser):
                        return
                    failed = "the server has ended the stream"
                except httpx.ReadTimeout:
                    failed = f"nothing has come for {SILENCE_S:g} s, so it connects anew"
                    _log.warning("%s: %s", self._source.describe(), failed)
                except httpx.HTTPError as error:
                    failed = self._redacted(f"{type(error).__name__}: {error}")
                if self._was_answered:
                    # Quiet for long, or ended: nothing is wrong with that.
                    failing_since_s = time.monotonic()
                if time.monotonic() - failing_since_s > PATIENCE_S:
                    raise ConnectorError(
                        f"{self._source.describe()}: it has been failing for {PATIENCE_S:g} s: {failed}"
                    )
                if not self._source.replays:
                    _log.warning("%s: %s; events may be lost", self._source.describe(), failed)
                if parser.retry_ms is not None:
                    retry_ms = min(parser.retry_ms, _RETRY_MS_MAX)
                await asyncio.sleep(retry_ms / 1_000)

    async def _has_ended_for_good(self, client: Any, parser: EventParser) -> bool:
        """Read one connection to its end."""
        source = self._source
        headers = {**revealed(source.headers), "Accept": "text/event-stream", "Cache-Control": "no-store"}
        headers["Accept-Encoding"] = "identity"
        if self._last_id:
            headers["Last-Event-ID"] = self._last_id.encode()
        async with client.stream("GET", self._address.value(), headers=headers) as response:
            if response.status_code == 204:
                return True
            if response.status_code in (*MAY_PASS, 500, 502, 503, 504):
                response.raise_for_status()
            kind = response.headers.get("content-type", "")
            if response.status_code != 200 or not kind.startswith("text/event-stream"):
                refused = ConnectorError(
                    f"{source.describe()}: the server answers {response.status_code} of type {kind!r}: "
                    f"expected 200 and 'text/event-stream'"
                )
                refused.is_permanent = True
                raise refused
            self._was_answered = True
            async for data in pieces(response):
                for event in parser.feed(data):
                    await self._take(event)
        return False

    async def _take(self, event: Event) -> None:
        source = self._source
        if source.replays and event.id in ("", self._last_id):
            raise ConnectorError(
                f"{source.describe()}: an event has no id of its own (after {self._last_id!r}), so reading "
                f"can't go on after it: set replays=False if the server does not replay: "
                f"{event.data[:200]!r}",
                is_permanent=True,
            )
        record = source.record(event)
        self._last_id = event.id
        await self.put(record, event.id, event.size_bytes)
