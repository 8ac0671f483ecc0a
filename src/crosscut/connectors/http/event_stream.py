"""Server-sent events: the text of a stream, and the events in it. Pure.

Source: the HTML standard, section "Server-sent events".
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from dataclasses import dataclass

from crosscut.errors import ConnectorError

EVENT_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    Attributes:
        data: Its lines of data, with newlines between them.
        event: Its kind; "message" if it says none.
        id: The last id that the stream has named, up to this event; "" if it has named none.
    """

    data: str
    event: str = "message"
    id: str = ""

    @property
    def size_bytes(self) -> int:
        """Of all its texts in UTF-8."""
        return bytes_of(self.data) + bytes_of(self.event) + bytes_of(self.id)


def bytes_of(text: str) -> int:
    """Return the size of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


class EventParser:
    """Takes the bytes of a stream in any pieces, and gives its events.

    Attributes:
        retry_ms: How long the server asks to wait before a new connection; None: it has not said.
    """

    def __init__(self, last_id: str = "") -> None:
        self.retry_ms: int | None = None
        self._decoder = getincrementaldecoder("utf-8")("replace")
        # A line that has not ended, in pieces: joined with each that comes, a long one would take for ever.
        self._line: list[str] = []
        self._line_size = 0
        self._held = ""
        self._is_begin = True
        self._id = last_id
        self._data: list[str] = []
        self._size = 0
        self._event = ""

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that are complete with `data`.

        Raises:
            ConnectorError: An event is larger than 16 MiB.
        """
        text = self._held + self._decoder.decode(data)
        if self._is_begin and text:
            self._is_begin = False
            text = text.removeprefix("\ufeff")
        # The newline that belongs to a carriage return may be in the next piece.
        self._held = "\r" if text.endswith("\r") else ""
        *ended, rest = text.removesuffix(self._held).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if ended:
            ended[0] = "".join((*self._line, ended[0]))
            self._line, self._line_size = [], 0
        self._line.append(rest)
        self._line_size += bytes_of(rest)
        events = [event for line in ended if (event := self._take(line)) is not None]
        if self._size + self._line_size > EVENT_BYTES_MAX:
            raise ConnectorError(
                f"an event of a stream is larger than {EVENT_BYTES_MAX} bytes", is_permanent=True
            )
        return events

    def _take(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "data":
                self._data.append(value)
                # With what a line takes that says nothing.
                self._size += bytes_of(value) + 1
            case "event":
                self._event = value
            case "id" if "\0" not in value:
                self._id = value
            case "retry" if value.isascii() and value.isdigit():
                self.retry_ms = int(value[:9])
            case _:
                # A comment, or what a later standard may mean.
                pass
        return None

    def _dispatch(self) -> Event | None:
        data, self._data, self._size = self._data, [], 0
        event, self._event = self._event, ""
        return Event("\n".join(data), event or "message", self._id) if data else None
