"""A failure that no restart mends says so: the job ends after three attempts instead of eleven."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

import crosscut as cc
from crosscut.connectors.http.event_source import HttpEvents, _EventReader
from crosscut.connectors.http.event_stream import EVENT_BYTES_MAX, Event, EventParser
from crosscut.connectors.nats.source import NatsSource
from crosscut.connectors.postgres.changes.catalogue import check_slot
from crosscut.contracts.connectors import Split
from crosscut.errors import ConnectorError


@dataclass
class Payment:
    amount: int


def events(decode: Any, *, replays: bool = False) -> HttpEvents:
    source = cc.http.events("http://localhost/", replays=replays, decode=decode)
    assert isinstance(source, HttpEvents)
    return source


@pytest.mark.parametrize("data", ['{"a": NaN}', "[-Infinity]", "[" * 300 + "]" * 300, "{", ""])
def test_an_event_that_is_no_json_is_refused_for_good(data: str) -> None:
    with pytest.raises(ConnectorError, match="can't be decoded") as caught:
        events("json").record(Event(data, id="1"))
    assert caught.value.is_permanent


def test_an_event_that_is_not_of_its_class_is_refused_for_good() -> None:
    with pytest.raises(ConnectorError, match="can't be decoded") as caught:
        events(cc.json(list[Payment])).record(Event('"a"', id="1"))
    assert caught.value.is_permanent


def test_a_function_of_the_user_may_need_a_service_that_is_down() -> None:
    def decode(event: Event) -> Any:
        raise OSError("no answer")

    with pytest.raises(ConnectorError, match="no answer") as caught:
        events(decode).record(Event("1", id="1"))
    assert not caught.value.is_permanent


def test_integers_of_an_event_are_exact() -> None:
    assert events("json").record(Event(f"[{2**70}]", id="1")) == [2**70]


def test_an_event_without_an_id_is_refused_for_good() -> None:
    reader = _EventReader(events("text", replays=True), "")
    with pytest.raises(ConnectorError, match="no id of its own") as caught:
        asyncio.run(reader._take(Event("a")))
    assert caught.value.is_permanent


EURO = "\u20ac".encode()


@pytest.mark.parametrize("piece", [b"data: " + EURO * (EVENT_BYTES_MAX // 3 + 1), b"data: " + EURO + b"\n"])
def test_the_size_of_an_event_is_counted_in_bytes(piece: bytes) -> None:
    parser = EventParser()
    count = EVENT_BYTES_MAX // 4 if piece.endswith(b"\n") else 1
    with pytest.raises(ConnectorError, match="larger than") as caught:
        parser.feed(piece * (count + 1))
    assert caught.value.is_permanent
    parser = EventParser()
    assert parser.feed(piece[:600] + b"\n\n")


class Answers:
    """A connection of psycopg's, whose query returns one row."""

    def __init__(self, row: Any) -> None:
        self._row = row

    def execute(self, query: str, parameters: Any) -> Any:
        return SimpleNamespace(fetchone=lambda: self._row)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (None, "no longer exists"),
        (("wal2json", True, "reserved", "0/1"), "of plugin 'wal2json'"),
        (("pgoutput", True, "lost", "0/1"), "has lost changes"),
        (("pgoutput", True, "reserved", "0/9"), "those between are lost"),
    ],
)
def test_a_slot_without_the_changes_that_are_to_be_read_is_refused_for_good(row: Any, reason: str) -> None:
    with pytest.raises(ConnectorError, match=reason) as caught:
        check_slot(Answers(row), "s", 5)
    assert caught.value.is_permanent


def test_a_nats_stream_that_was_made_anew_is_refused_for_good() -> None:
    source = cc.nats.source("nats://localhost:1", "ORDERS")
    assert isinstance(source, NatsSource)
    reader: Any = source.reader(Split("ORDERS/>", 900, {"subject": ">", "stop": None}), 900)
    config = SimpleNamespace(retention=None)
    state = SimpleNamespace(first_seq=1, last_seq=7)

    async def stream_info(name: str) -> Any:
        return SimpleNamespace(config=config, state=state)

    try:
        with pytest.raises(ConnectorError, match="recreated") as caught:
            asyncio.run(reader._check_there(SimpleNamespace(stream_info=stream_info)))
    finally:
        reader.close()
    assert caught.value.is_permanent
