"""Asynchronous calls in virtual worlds: planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.proof.worlds.drawn import drawn_job, drawn_options
from tests.proof.worlds.shrinking import live, report
from tests.simulation.planted import must_break

from crosscut.operators.async_map import AsyncMap
from crosscut.protocol.snapshot.choosing import ProtocolKind
from crosscut.state.table import Table
from crosscut.task.calls import TaskCalls
from crosscut.testing.simulator.oracle import has_sequential_run


def calls_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A restored task makes those calls again only that come in anew."""
    plain = AsyncMap.__init__

    def forgetful(self: AsyncMap, *arguments: Any) -> None:
        plain(self, *arguments)
        self._records.clear()
        self._unasked.clear()
        self._asked.clear()
        self.requests.clear()

    patch.setattr(AsyncMap, "__init__", forgetful)


def answered_records_stay(patch: pytest.MonkeyPatch) -> None:
    """A record stays in the state when its result has gone on, and is asked for again after a failure."""
    patch.setattr(Table, "delete", lambda self, key: None)


def results_in_the_quiet(patch: pytest.MonkeyPatch) -> None:
    """Results go on while the task stands still for a snapshot."""

    def has_results(self: TaskCalls) -> bool:
        return self._operator is not None and self._operator.has_results

    patch.setattr(TaskCalls, "has_results", property(has_results))


@pytest.mark.parametrize(
    ("plant", "protocol", "invariant"),
    [
        (calls_are_forgotten, "aligned", "F5"),
        (answered_records_stay, "unaligned", "I2"),
        (results_in_the_quiet, "halting", "I1|I2"),
    ],
)
def test_a_bug_in_asynchronous_calls_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    protocol: ProtocolKind,
    invariant: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    flow = (
        "source 8,5 0; map_async 0 coroutine 2 unordered; side_output 1 0; rebalance 1; map 3 same 1; "
        "sink 4; sink 2"
    )
    worlds = (replace(drawn_options(seed, (protocol,)), flow=flow) for seed in range(60))
    must_break(invariant, (live(options).failure for options in worlds))


BEFORE_WINDOWS = (
    "timed_source 6,4 0; timed_source 4 0; map_async 0 coroutine 2 unordered; side_output 2 0; "
    "key_by 2 number 2; key_by 1 number 2; join 4 5 interval outer 50; key_by 2 number 2; "
    "window 7 session 50 process; sink 8; sink 6; sink 3"
)


def test_a_cut_with_calls_in_front_of_windows_and_joins_is_judged_as_any_other() -> None:
    """What waits for a call holds the watermark: none of it is late, in whatever order the judge goes on."""
    for seed in range(6):
        options = replace(drawn_options(seed, ("aligned", "unaligned")), flow=BEFORE_WINDOWS)
        assert has_sequential_run(drawn_job(options).graph)
        life = live(options)
        assert life.failure == "", report(life)
