"""Worlds whose workers have logs of their own: output is exact, each committed group shows once.

The real driver and the real workers, over a store with faults. Nothing is restored from a checkpoint: what
a worker goes on from is in its log, or nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.proof.worlds.drawn import drawn_job, drawn_options
from tests.proof.worlds.shrinking import live
from tests.simulation.exact import all_exact

from crosscut.errors import FlowError
from crosscut.graph.logged import check_logged
from crosscut.protocol.messages import UnitFinished
from crosscut.protocol.unit_log.effects import AcknowledgeInputs
from crosscut.protocol.unit_log.events import RecordsEmitted
from crosscut.protocol.unit_log.numbers import NumberedReceiver, NumberedSender
from crosscut.task.input_gate import InputGate
from crosscut.task.splits import SplitQueue
from crosscut.task.task import Task
from crosscut.testing.simulator.options import FaultKind, Options, options_of
from crosscut.worker import unit_deployment
from crosscut.worker.unit_tasks import UnitTasks

GRAPHS = (
    "chain",
    "union",
    "diamond",
    "rebalance",
    "two sinks",
    "totals",
    "detours",
    "timers",
    "time to live",
    "event time",
    "two clocks",
    "aligned sources",
)
TIMEOUT_MS_MIN = 300
"""That of the log is that of checkpoints, and the store may hang for as long in a claim of several calls."""


def logged(options: Options) -> Options:
    return replace(
        options,
        is_logged=True,
        group_interval_ms=options.seed % 3 * 5,
        tail_groups_max=(1, 2, 5, 5_000)[options.seed % 4],
        rescaled_to=(),
        savepoint_after=0,
        commits_together=False,
        stays_open=False,
        splits_every_ms=0,
        checkpoint_timeout_ms=max(options.checkpoint_timeout_ms, TIMEOUT_MS_MIN),
    )


def worlds(seeds: range, *graphs: str) -> Iterator[Options]:
    for seed in seeds:
        yield logged(options_of(seed, graphs or GRAPHS, ("aligned",)))


def drawn(seeds: range) -> Iterator[Options]:
    """Yield worlds with flows that are drawn, without those that are refused."""
    for seed in seeds:
        options = logged(drawn_options(seed, ("aligned",)))
        try:
            check_logged(drawn_job(options).graph)
        except FlowError:
            continue
        yield options


STOPS: tuple[FaultKind, ...] = ("stop the job", "fail a commit", "hang a sink", "kill a worker")


def stopped(seeds: range) -> Iterator[Options]:
    for seed in seeds:
        yield logged(options_of(seed, ("chain", "two sinks", "rebalance"), ("aligned",), kinds=STOPS))


def test_a_stop_leaves_nothing_uncommitted() -> None:
    """Or it says so: a sink may fail for longer than a stop may take."""
    seen = all_exact(stopped(range(40)))
    assert seen["job stopped"] > 5


@pytest.mark.parametrize("part", range(4))
def test_the_output_is_exact_in_every_world(part: int) -> None:
    seen = all_exact(worlds(range(40 * part, 40 * part + 40)))
    wanted = {"fault: kill a worker", "fault: kill the driver", "fault: fail a commit"}
    assert wanted <= set(seen), sorted(seen)


@pytest.mark.parametrize("part", range(2))
def test_the_output_is_exact_whatever_the_flow(part: int) -> None:
    seen = all_exact(drawn(range(75 * part, 75 * part + 75)))
    assert seen["fault: kill a worker"] and seen["job finished"] > 10


def test_a_world_of_one_seed_is_always_the_same() -> None:
    (options,) = worlds(range(5, 6))
    first, second = live(options), live(options)
    assert (first.failure, first.trace_hash) == (second.failure, second.trace_hash)


# The worlds find what is wrong.


def section_without(**changed: Any) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        cut = Task.cut_group
        patch.setattr(Task, "cut_group", lambda self, number: replace(cut(self, number), **changed))

    return plant


def items_that_wait_are_not_put_back(patch: pytest.MonkeyPatch) -> None:
    put_back = unit_deployment.put_back
    patch.setattr(
        "crosscut.worker.deployment.put_back",
        lambda task, queues: put_back(replace(task, waiting=()), queues),
    )


def positions_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InputGate, "take_positions", lambda self: {})


def records_leave_before_the_log_has_them(patch: pytest.MonkeyPatch) -> None:
    handle = NumberedSender.handle

    def at_once(self: NumberedSender, event: Any) -> Any:
        effects = handle(self, event)
        if isinstance(event, RecordsEmitted):
            self._logged = self.given
            return self._send()
        return effects

    patch.setattr(NumberedSender, "handle", at_once)


def acknowledged_when_they_arrive(patch: pytest.MonkeyPatch) -> None:
    arrived = NumberedReceiver._arrived

    def at_once(self: NumberedReceiver, event: Any) -> Any:
        effects = arrived(self, event)
        return [*effects, AcknowledgeInputs(self._channel, self.arrived)]

    patch.setattr(NumberedReceiver, "_arrived", at_once)


def commits_are_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnitTasks, "_note_committed", lambda self: None)


def a_stop_waits_for_no_commit(patch: pytest.MonkeyPatch) -> None:
    stop = UnitTasks.stop

    def at_once(self: UnitTasks) -> None:
        stop(self)
        self._report(UnitFinished(self._epoch))

    patch.setattr(UnitTasks, "stop", at_once)


def splits_are_read_from_the_start(patch: pytest.MonkeyPatch) -> None:
    changes = SplitQueue.changes
    patch.setattr(SplitQueue, "changes", lambda self: replace(changes(self), moved=()))


@pytest.mark.parametrize(
    "plant",
    [
        section_without(changes=b""),
        section_without(ended_inputs=()),
        section_without(is_end_forwarded=False),
        section_without(has_transaction=False),
        items_that_wait_are_not_put_back,
        positions_are_not_counted,
        records_leave_before_the_log_has_them,
        acknowledged_when_they_arrive,
        commits_are_not_told,
        splits_are_read_from_the_start,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(live(options).failure for options in worlds(range(60), "union", "rebalance", "totals"))


def test_a_stop_that_waits_for_no_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    a_stop_waits_for_no_commit(monkeypatch)
    found = [live(options).failure for options in stopped(range(40))]
    assert any("F5 I9: the job ends well" in str(one) for one in found)
