"""What to write instead of a method that a stream of this kind has not."""

from __future__ import annotations

from crosscut.flow.keyed_stream import KeyedStream
from crosscut.flow.split_stream import Split
from crosscut.flow.stream import Stream
from crosscut.flow.tail import StreamEnd, Tail


def instead(kind: type[Tail], name: str) -> str:
    """Return what to write where a stream of this kind has no method of this name, "" if none has."""
    if kind is Stream and hasattr(KeyedStream, name):
        return (
            f"a value is kept for each key: give the records keys first, as in .key_by(function).{name}(...)"
        )
    if kind is KeyedStream and hasattr(Stream, name):
        return (
            f"a keyed stream has no {name}(): put {name}() in front of key_by, or end the keyed stream with "
            f"count, sum, reduce or aggregate first"
        )
    if kind is Split and (hasattr(Stream, name) or hasattr(KeyedStream, name)):
        return f"split gives several streams: go on with one of them, as in parts['name'].{name}(...)"
    if kind is StreamEnd and (hasattr(Stream, name) or hasattr(KeyedStream, name)):
        return (
            f"the stream has ended in a sink: to have it go elsewhere as well, keep the stream itself "
            f"(s = ...; s.sink(...); s.{name}(...))"
        )
    return ""
