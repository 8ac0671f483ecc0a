"""The text of server-sent events, in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.connectors.http.event_stream import EVENT_BYTES_MAX, Event, EventParser
from crosscut.errors import ConnectorError

_line = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=8)
_events = st.lists(
    st.tuples(st.lists(_line, min_size=1, max_size=3), _line.filter(bool) | st.none(), _line | st.none())
)


@given(_events, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(1, 20)))
def test_events_come_as_they_were_written_whatever_ends_lines_and_cuts_the_stream(
    written: list[tuple[list[str], str | None, str | None]], end: str, sizes: list[int]
) -> None:
    lines, expected, last_id = [": hello"], [], ""
    for data, event, event_id in written:
        lines += [f"event: {event}"] if event is not None else []
        lines += [f"id: {event_id}"] if event_id is not None else []
        lines += [*(f"data: {one}" for one in data), ""]
        last_id = last_id if event_id is None else event_id
        expected.append(Event("\n".join(data), event or "message", last_id))
    text = "".join(line + end for line in lines) + "data: not ended"
    parser, found, rest = EventParser(), [], ("\ufeff" + text).encode()
    for size in sizes:
        found += parser.feed(rest[:size])
        rest = rest[size:]
    found += parser.feed(rest)
    assert found == expected


def test_fields_that_say_nothing_are_ignored_and_an_event_without_data_is_none() -> None:
    parser = EventParser("before")
    assert parser.feed(b"retry: 20\nretry: soon\nunknown: 1\nevent: x\nid: a\0b\n\ndata\n\n") == [
        Event("", "message", "before")
    ]
    assert parser.retry_ms == 20


def test_an_event_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    parser = EventParser()
    with pytest.raises(ConnectorError, match="is larger than"):
        for _ in range(EVENT_BYTES_MAX // 2**20 + 1):
            parser.feed(b"data: " + b"x" * 2**20 + b"\n")
