"""Every state of every snapshot protocol's machine in small tasks, and every event in each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.proof.explorer.machines import MachineTable

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import ChannelId, CheckpointId, TaskId, VertexId
from crosscut.protocol import events as on
from crosscut.protocol.effects import StartAlignmentTimer, TaskEffect
from crosscut.protocol.snapshot.choosing import ProtocolKind, snapshot_protocol
from crosscut.protocol.snapshot.snapshotting import SnapshotState
from crosscut.protocol.snapshot.transitions import Happening, Outcome

Found = dict[tuple[SnapshotState, Happening], frozenset[Outcome | None]]
"""None: impossible."""

TASKS = ((0, 0, 3), (1, 0, 3), (2, 0, 2), (1, 1, 2), (1, 2, 2), (2, 1, 2))
"""Regular inputs, back edges, checkpoints."""

_NEWER = {
    Happening.BARRIER: Happening.NEWER_BARRIER,
    Happening.TRIGGERED: Happening.NEWER_TRIGGERED,
    Happening.TIMED_OUT: Happening.NEWER_TIMED_OUT,
}


def happenings(inputs: tuple[ChannelId, ...], n: CheckpointId) -> Iterator[tuple[Happening, on.TaskEvent]]:
    """Yield everything that a task can be told of checkpoint n, whether it makes sense or not."""
    for channel in inputs:
        yield Happening.BARRIER, on.BarrierArrived(channel, n)
        yield Happening.ANNOUNCED, on.BarrierAnnounced(channel, n)
    yield Happening.DEPARTED, on.BarrierDeparted(n)
    yield Happening.TRIGGERED, on.CheckpointTriggered(n)
    yield Happening.TIMED_OUT, on.AlignmentTimedOut(n)
    yield Happening.ABORTED, on.CheckpointAborted(n)
    yield Happening.STORED, on.SnapshotStored(n)
    yield Happening.FAILED, on.SnapshotFailed(n, "no space")
    yield Happening.CAPTURE_ALLOWED, on.CaptureAllowed(n)
    yield Happening.RESUMED, on.SourcesResumed(n)


def walk(kind: ProtocolKind) -> Found:
    """Return what comes of each (state, happening) in any task."""
    found: dict[tuple[SnapshotState, Happening], set[Outcome | None]] = defaultdict(set)
    for regular, back, checkpoints in TASKS:
        me = TaskId(VertexId("me"), 0)
        inputs = tuple(ChannelId(i, TaskId(VertexId("other"), i), me) for i in range(regular + back))
        _walk_task(kind, inputs, frozenset(inputs[regular:]), checkpoints, found)
    return {pair: frozenset(outcomes) for pair, outcomes in found.items()}


def _walk_task(
    kind: ProtocolKind,
    inputs: tuple[ChannelId, ...],
    back_edges: frozenset[ChannelId],
    checkpoints: int,
    found: dict[tuple[SnapshotState, Happening], set[Outcome | None]],
) -> None:
    table = MachineTable()
    ids = [CheckpointId(n) for n in range(1, checkpoints + 1)]
    told = [(n, one, event) for n in ids for one, event in happenings(inputs, n)]
    table.number(snapshot_protocol(kind, inputs, back_edges))
    states: list[tuple[SnapshotState, ...]] = []
    number = 0
    while number < len(table.machines):
        _states_up_to(table, states, ids, number)
        for n, happening, event in told:
            after, effects = number, ()
            is_possible = True
            try:
                after, effects = table.step(number, event)
            except ProtocolError:
                is_possible = False
            _states_up_to(table, states, ids, after)
            for m in ids:
                outcome = Outcome(states[after][m - 1], _named(effects, m))
                seen = happening if m == n else _NEWER.get(happening) if m < n else None
                if seen is not None:
                    found[states[number][m - 1], seen].add(outcome if is_possible else None)
                else:
                    is_untouched = outcome == Outcome(states[number][m - 1])
                    assert is_untouched, f"{kind}: what {event} does to {m} is in no table: {outcome}"
        number += 1


def _states_up_to(
    table: MachineTable, states: list[tuple[SnapshotState, ...]], ids: list[CheckpointId], number: int
) -> None:
    while len(states) <= number:
        machine = table.machines[len(states)]
        states.append(tuple(machine.state(n) for n in ids))


def _named(effects: tuple[TaskEffect, ...], n: CheckpointId) -> tuple[type[TaskEffect], ...]:
    return tuple(
        type(one)
        for one in effects
        if getattr(one, "checkpoint_id", None) == n and not isinstance(one, StartAlignmentTimer)
    )
