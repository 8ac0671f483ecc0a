"""What processes keep, in drawn worlds: planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.proof.worlds.drawn import drawn_options
from tests.proof.worlds.shrinking import live, report

from crosscut.operators import connected
from crosscut.operators.cells import TimedCells
from crosscut.state import slot_parts, slots
from crosscut.state.encoding import Extent
from crosscut.state.keyed import KeyedState
from crosscut.state.timers import Timers


def rows_called_as_older_ones(patch: pytest.MonkeyPatch) -> None:
    """A restored task calls new items of its lists as older ones are called."""
    patch.setattr(connected, "begin_lists", lambda *arguments: None)


def state_of_tasks_left_out(patch: pytest.MonkeyPatch) -> None:
    """What is the same in all tasks is in no snapshot."""
    plain = KeyedState.encoded

    def encoded(self: KeyedState, *arguments: Any) -> Iterator[bytes]:
        tables, self.tables = self.tables, {n: t for n, t in self.tables.items() if n not in self.alike}
        yield from plain(self, *arguments)
        self.tables = tables

    patch.setattr(KeyedState, "encoded", encoded)


def nothing_expires(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimedCells, "_has_expired", lambda self, written: False)


def deleted_timers_fire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Timers, "delete", lambda self, key, time: None)


KEPT: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, str]] = {
    rows_called_as_older_ones: ("source 8,8 0; remember 0; sink 1", "lacks in 'dealt'"),
    state_of_tasks_left_out: ("source 8,8 0; key_by 0 number 3; rules 1 0 silent; sink 2", "in 'rules'"),
    nothing_expires: ("timed_source 30 0; key_by 0 number 9; mortal 1 event time; sink 2", "I2"),
    deleted_timers_fire: ("timed_source 8,8 0; key_by 0 one 1; hold 1 both times 5; sink 2", "I2"),
}


@pytest.mark.parametrize("plant", KEPT)
def test_a_bug_in_what_processes_keep_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    flow, failure = KEPT[plant]
    worlds = (replace(drawn_options(seed, ("aligned", "unaligned")), flow=flow) for seed in range(40))
    assert any(failure in live(options).failure for options in worlds)


def test_tables_that_are_stored_a_slice_at_a_time_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_parts, "SLICE_ROWS_MIN", 1)
    slices = []
    plain = slots.encode_extent

    def encode_extent(extent: Extent) -> bytes:
        slices.append(extent.slice)
        return plain(extent)

    monkeypatch.setattr(slots, "encode_extent", encode_extent)
    flow = "source 40,40 0; key_by 0 number 9; count 1 updates; sink 2"
    for seed in range(100, 140):
        life = live(replace(drawn_options(seed, ("aligned", "unaligned")), flow=flow))
        assert not life.failure, report(life)
        if seed > 105 and any(one.start for one in slices):
            break
    assert any(one.start for one in slices)
