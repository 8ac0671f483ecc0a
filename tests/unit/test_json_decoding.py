"""JSON in, the same for every decoder: what is nested too deeply is refused, and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscut.connectors.files import json_decoding
from crosscut.connectors.files.json_decoding import DEPTH_MAX, json_value, json_values
from crosscut.connectors.files.typed_json import TypedJson
from crosscut.connectors.http.event_source import HttpEvents
from crosscut.connectors.http.event_stream import Event
from crosscut.connectors.kafka.marker import decoded as kafka_marker
from crosscut.connectors.kafka.records import decoder as kafka_decoder
from crosscut.connectors.nats.marker import Marker as NatsMarker
from crosscut.connectors.nats.messages import Message
from crosscut.connectors.nats.messages import decoder as nats_decoder
from crosscut.errors import ConnectorError


def nested(depth: int, *, objects: bool = False, text: str = "") -> str:
    start, end = ('{"a":', "}") if objects else ("[", "]")
    return f"[{json.dumps(text)}, {start * (depth - 1)}1{end * (depth - 1)}]"


def of_kafka(data: str) -> Any:
    library = pytest.importorskip("confluent_kafka", reason="pip install 'crosscut[kafka]'")
    nothing, record = kafka_decoder("json")([library.Message("a"), library.Message("a", value=data.encode())])
    assert nothing is None
    return record


def of_nats(data: str) -> Any:
    return nats_decoder("json")(Message("a", data.encode(), {}, 1, 0))


def of_http(data: str) -> Any:
    return HttpEvents("http://localhost/", False, "json", {}).record(Event(data, id="1"))


@pytest.mark.parametrize(
    "decode", [json_value, lambda data: json_values([data])[0], of_kafka, of_nats, of_http]
)
@pytest.mark.parametrize("objects", [False, True])
def test_the_limit_is_200_levels(decode: Callable[[str], Any], objects: bool) -> None:
    """P8."""
    for text in ("", "[" * 300, "[]" * 300):
        data = nested(DEPTH_MAX, objects=objects, text=text)
        assert decode(data) == json.loads(data)
        with pytest.raises((ValueError, ConnectorError), match="200 levels deep"):
            decode(nested(DEPTH_MAX + 1, objects=objects, text=text))
    with pytest.raises((ValueError, ConnectorError)):
        decode("[" * 100_000)


VALUES = st.recursive(
    st.none() | st.integers(-5, 5) | st.text('[]{}"a', max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("[{a", max_size=2), inner, max_size=3)
    ),
)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(value=VALUES, limit=st.integers(1, 4))
def test_depth_is_counted_as_by_walking_through_the_value(value: Any, limit: int) -> None:
    data = json.dumps(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_decoding, "DEPTH_MAX", limit)
        patch.setattr(json_decoding, "_DEEP_LENGTH", 2 * (limit + 1))
        if depth_of(value) > limit:
            with pytest.raises(ValueError, match=f"more than {limit} levels"):
                json_value(data)
        else:
            assert json_values([data, data.encode()]) == [value, value]


@dataclass
class Anything:
    a: Any


@pytest.mark.parametrize(
    ("before", "after"), [("]", "["), ("[", "]"), ('\\"]', "\\\\["), ('\\\\\\"]', '[\\"')]
)
@pytest.mark.parametrize("depth", [DEPTH_MAX, DEPTH_MAX + 1, 900])
def test_brackets_within_texts_hide_no_level_and_add_none(before: str, after: str, depth: int) -> None:
    """P8: closing ones in texts made up for those that stand around them."""
    inside = f'["{before}",' * (depth - 1) + "1" + f',"{after}"]' * (depth - 1)
    data = f'{{"a": {inside}}}'
    typed = TypedJson(Anything)
    for decode in (json_value, typed, lambda one: json_values([one])[0]):
        for each in (data, data.encode()):
            if depth > DEPTH_MAX:
                with pytest.raises(ValueError, match="200 levels deep"):
                    decode(each)
            else:
                decode(each)


def test_a_marker_that_is_nested_too_deeply_is_damaged() -> None:
    data = b"[" * 100_000
    with pytest.raises(ConnectorError, match="is not a marker"):
        kafka_marker(data, "markers", "localhost")
    with pytest.raises(ConnectorError, match="is not a marker"):
        NatsMarker.parsed(data, 1, "stream")
