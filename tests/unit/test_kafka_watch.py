"""What a Kafka source finds out while its client has nothing: silence, a stand-still, another topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from crosscut.connectors.kafka import watch as watch_module
from crosscut.connectors.kafka.topics import Unreachable
from crosscut.connectors.kafka.watch import PROBE_S, SILENCE_S, Watch
from crosscut.errors import ConnectorError

pytest.importorskip("confluent_kafka", reason="pip install 'crosscut[kafka]'")

PLACE = ("in", 3)


class Brokers:
    """What brokers would answer."""

    def __init__(self) -> None:
        self.end = 10
        self.identity = "id-1"
        self.is_there = True

    def ends(self, places: list[tuple[str, int]], *, reads_committed: bool) -> dict[tuple[str, int], int]:
        if not self.is_there:
            raise Unreachable("no answer")
        return dict.fromkeys(places, self.end)

    def check_same(self, topic: str, identity: str) -> None:
        if not self.is_there:
            raise Unreachable("no answer")
        if identity != self.identity:
            raise ConnectorError(f"topic {topic!r} was recreated")


class World:
    """A watch whose thread does not run: it looks when it is told to, at a time that is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(watch_module.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(watch_module, "_verified", {})
        self.brokers = Brokers()
        self.readers = {PLACE: (10, True)}
        self.watch = Watch("there:9092", {}, lambda: self.readers, reads_committed=True)
        self.watch._topics = self.brokers  # type: ignore[assignment]

    def look_for(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += min(self.watch._look(), until_s - self.now_s)
        self.watch._look()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    yield World(monkeypatch)


def test_a_quiet_topic_is_no_silence(world: World) -> None:
    """C22: nothing comes for hours, and brokers say that nothing is there."""
    world.look_for(10 * SILENCE_S)
    assert world.watch.is_responsive


def test_brokers_that_say_nothing_for_a_minute_are_given_up(world: World) -> None:
    """C22, P8."""
    world.brokers.is_there = False
    world.look_for(SILENCE_S - 1)
    with pytest.raises(ConnectorError, match=r"no broker at there:9092 has answered for 6\d s \(no answer\)"):
        world.look_for(2)


def test_messages_that_brokers_have_and_that_do_not_come_are_named(world: World) -> None:
    """C22: the client stands still, though its broker is back."""
    world.look_for(2 * PROBE_S)
    world.brokers.end = 13
    with pytest.raises(ConnectorError, match=r"messages 10 to 12 of partition 3 .* have not arrived"):
        world.look_for(SILENCE_S + 3 * PROBE_S)


def test_messages_that_come_slowly_are_no_failure(world: World) -> None:
    for offset in range(10, 30):
        world.readers = {PLACE: (offset, True)}
        world.brokers.end = offset + 5
        world.look_for(SILENCE_S / 2)


def test_who_is_not_asked_for_more_waits_for_nothing(world: World) -> None:
    """The sink is slow: what brokers have is left there, however long, even if they are down."""
    world.readers = {PLACE: (10, False)}
    world.brokers.end = 1_000
    world.look_for(10 * SILENCE_S)
    assert world.watch.end_of(PLACE) == 1_000
    world.brokers.is_there = False
    world.look_for(2 * SILENCE_S)


def test_what_was_heard_long_ago_is_not_recent(world: World) -> None:
    """C22: lag is never the last one known."""
    assert world.watch.is_responsive
    world.readers, world.brokers.is_there = {PLACE: (10, False)}, False
    world.look_for(3 * PROBE_S)
    assert not world.watch.is_responsive
    world.brokers.is_there = True
    world.look_for(PROBE_S)
    assert world.watch.is_responsive


def test_no_message_is_handed_on_before_the_topic_is_known_to_be_the_same(world: World) -> None:
    """B8, P7."""
    world.watch.verify("in", "id-1")
    assert not world.watch.is_verified("in")
    assert world.watch.is_verified("other")
    world.watch._look()
    assert world.watch.is_verified("in")
    # Each micro-batch asks again, and the process knows it for a while, if nothing has failed.
    world.watch.close(remember=False)
    again: Any = Watch("there:9092", {}, dict, reads_committed=True)
    again.verify("in", "id-1")
    assert not again.is_verified("in")
    world.watch.close(remember=True)
    again = Watch("there:9092", {}, dict, reads_committed=True)
    again.verify("in", "id-1")
    assert again.is_verified("in")
    world.now_s += 100
    again.verify("in", "id-1")
    assert not again.is_verified("in")
    world.watch.verify("in", "id-0")
    with pytest.raises(ConnectorError, match="recreated"):
        world.watch._look()
