"""Event time in every state of small worlds: what is held leaves at its time; no watermark goes back."""

from __future__ import annotations

from typing import Any

import pytest
from tests.proof.explorer.bounds import Bounds, Faults
from tests.proof.explorer.conversation import conversation
from tests.proof.explorer.event_time import NOTHING_KEPT, TaskTime
from tests.proof.explorer.graphs import graph
from tests.proof.explorer.items import Content
from tests.proof.explorer.search import explore
from tests.proof.explorer.tasks import ExploredTask
from tests.proof.explorer.world import World
from tests.proof.explorer.world_tables import Make

from crosscut.protocol import effects as do
from crosscut.protocol.snapshot.choosing import ProtocolKind

WORLDS: list[tuple[str, ProtocolKind, int, int, dict[str, int]]] = [
    # Graph, protocol, records a source, periodic checkpoints, faults.
    ("timed chain", "aligned", 2, 1, {"crashes": 1}),
    ("timed chain", "aligned", 1, 1, {"drivers": 1, "zombies": 1}),
    ("timed chain", "unaligned", 1, 1, {}),
    ("timed chain", "switching", 1, 1, {}),
    ("timed chain", "halting", 1, 1, {"crashes": 1}),
    ("timed join", "aligned", 1, 1, {"crashes": 1}),
    ("timed join", "halting", 1, 1, {}),
]


LARGER: list[tuple[str, ProtocolKind, int, int, dict[str, int]]] = [
    ("timed chain", "unaligned", 1, 1, {"crashes": 1}),
    ("timed join", "unaligned", 1, 1, {}),
]
"""The largest of them, for `make prove`."""


@pytest.mark.parametrize(
    ("name", "kind", "records", "checkpoints", "faults"),
    [*WORLDS, *(pytest.param(*one, marks=pytest.mark.proof) for one in LARGER)],
    ids=lambda one: str(one).replace(" ", ""),
)
def test_every_state_of_a_small_world_with_event_time_is_sound(
    name: str, kind: ProtocolKind, records: int, checkpoints: int, faults: dict[str, int]
) -> None:
    world = World(graph(name, records), kind, Bounds(checkpoints, Faults(**faults)))
    found = explore(world)
    assert not found.violation, conversation(world, found)
    assert found.is_complete
    assert found.finished > 0


class TakesTheHighestWatermark(ExploredTask):
    def advance(self, time: TaskTime) -> None:
        known = [watermark for _, watermark in time.sides if watermark is not None]
        super().advance(time._replace(watermark=max(known, default=time.watermark)))


class PromisesTooMuch(ExploredTask):
    """A source says that nothing comes that is older than the record after the next."""

    def tell_watermark(self) -> None:
        if not self.site.inputs and self.time.watermark is not None:
            self.time = self.time._replace(watermark=self.time.watermark + 2)
        super().tell_watermark()


class ForgetsItsWatermark(ExploredTask):
    def restore(self, content: Content) -> None:
        super().restore(content)
        self.time = self.time._replace(watermark=None, sides=tuple((one, None) for one in self.site.inputs))


class LosesItsTimers(ExploredTask):
    """A snapshot holds none of the records that wait for their time."""

    def perform(self, effect: do.TaskEffect) -> None:
        super().perform(effect)
        if isinstance(effect, do.CaptureState):
            n = effect.checkpoint_id
            self.captured[n] = self.captured[n]._replace(kept=NOTHING_KEPT)


class RestoresNoTimers(ExploredTask):
    def restore(self, content: Content) -> None:
        super().restore(content)
        self.time = self.time._replace(held=0)


class FiresTwice(ExploredTask):
    """A timer that has fired stays."""

    def fire(self, records: tuple[int, ...]) -> None:
        time = self.time
        super().fire(records)
        self.time = time


class FiresAtOnce(ExploredTask):
    """What a restored task holds leaves when the task starts, and again at its time."""

    def start(self) -> None:
        super().start()
        for record in self.time.due(self.site.graph, at_the_end=True):
            self.pass_on(record, self.hop_of(record))


BUGS: dict[str, tuple[type[ExploredTask], str, str, dict[str, Any]]] = {
    "the highest watermark counts": (TakesTheHighestWatermark, "timed join", "I14", {"records": 2}),
    "a source promises too much": (PromisesTooMuch, "timed chain", "I14", {"records": 3}),
    "a restored task forgets its watermark": (ForgetsItsWatermark, "timed chain", "I14", {"crashes": 1}),
    "a snapshot holds no timers": (LosesItsTimers, "timed join", "I1", {}),
    "timers are not restored": (RestoresNoTimers, "timed join", "I1", {"crashes": 1}),
    "a timer fires twice": (FiresTwice, "timed chain", "I4", {}),
    "a timer fires when its task is restored": (FiresAtOnce, "timed join", "I2", {"crashes": 1}),
}


@pytest.mark.parametrize("name", BUGS)
def test_finds_the_planted_bug(name: str) -> None:
    task, graph_name, invariant, more = BUGS[name]
    records = more.get("records", 1)
    faults = Faults(**{fault: count for fault, count in more.items() if fault != "records"})
    world = World(graph(graph_name, records), "aligned", Bounds(1, faults), Make(task=task))
    found = explore(world)
    assert found.violation.startswith(f"{invariant}: "), conversation(world, found)
