"""One task's inputs as FIFO scripts, and an oracle of alignment that is too simple to be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from crosscut.foundation.ids import ChannelId, CheckpointId, TaskId, VertexId
from crosscut.protocol.effects import (
    AcknowledgeSnapshot,
    CaptureState,
    DeclineCheckpoint,
    ForwardBarrier,
    StoreSnapshot,
    TaskEffect,
)
from crosscut.protocol.events import BarrierArrived, CheckpointAborted, SnapshotFailed, SnapshotStored
from crosscut.protocol.snapshot.aligned import AlignedBarriers

BATCH = CheckpointId(0)
"""In a script: a batch of records. Any other number is the barrier of that checkpoint."""


def inputs(count: int) -> tuple[ChannelId, ...]:
    target = TaskId(VertexId("join"), 0)
    return tuple(ChannelId(0, TaskId(VertexId("numbers"), index), target) for index in range(count))


@dataclass
class Oracle:
    """A barrier ends every older one; a channel is blocked by its last barrier until that has ended."""

    last: list[CheckpointId]
    ended: set[CheckpointId] = field(default_factory=set)

    def barrier(self, index: int, n: CheckpointId) -> CheckpointId | None:
        """Return the checkpoint that is to be captured now."""
        self.last[index] = n
        self.ended |= {CheckpointId(older) for older in range(n)}
        if n in self.ended or set(self.last) != {n}:
            return None
        self.ended.add(n)
        return n

    def is_blocked(self, index: int) -> bool:
        return self.last[index] not in self.ended


def check_alignment(
    scripts: list[list[CheckpointId]],
    choose: Callable[[int], int],
    make: Callable[[tuple[ChannelId, ...]], AlignedBarriers] = AlignedBarriers,
) -> int:
    """Deliver the scripts in a chosen order with chosen aborts; return how many states were captured.

    Raises:
        AssertionError: The machine and the oracle disagree, or the captured state is not exactly what
            lies before the barrier on every channel.
    """
    channels = inputs(len(scripts))
    machine = make(channels)
    oracle = Oracle([CheckpointId(0)] * len(scripts), {CheckpointId(0)})
    before = [
        {n: script[:place].count(BATCH) for place, n in enumerate(script) if n != BATCH} for script in scripts
    ]
    left = [list(reversed(script)) for script in scripts]
    delivered = [0] * len(scripts)
    captured: list[CheckpointId] = []
    forwarded: list[CheckpointId] = []
    storing: list[CheckpointId] = []
    acknowledged: list[CheckpointId] = []
    aborted: set[CheckpointId] = set()
    ids = sorted({n for script in scripts for n in script if n != BATCH})

    def perform(effects: list[TaskEffect], expected: CheckpointId | None) -> None:
        found = [effect.checkpoint_id for effect in effects if isinstance(effect, CaptureState)]
        assert found == ([] if expected is None else [expected])
        for effect in effects:
            match effect:
                case CaptureState(n):
                    assert delivered == [one[n] for one in before], f"state of {n} is not its cut"
                    captured.append(n)
                case ForwardBarrier(n):
                    assert captured[-1:] == [n], "the barrier left before the state was captured"
                    forwarded.append(n)
                case StoreSnapshot(n):
                    storing.append(n)
                case AcknowledgeSnapshot(n):
                    acknowledged.append(n)
                case DeclineCheckpoint(n):
                    assert n not in acknowledged
                case _:
                    pass

    def abort(n: CheckpointId) -> None:
        oracle.ended.add(n)
        aborted.add(n)
        perform(machine.handle(CheckpointAborted(n)), None)

    while True:
        for index, channel in enumerate(channels):
            assert machine.is_blocked(channel) == oracle.is_blocked(index), f"{channel} after {oracle}"
        open_ones = [
            index for index, rest in enumerate(left) if rest and not machine.is_blocked(channels[index])
        ]
        if not open_ones:
            blocked = [n for n in oracle.last if n not in oracle.ended]
            if not any(left) and not blocked:
                break
            # What the coordinator does when its timeout fires.
            abort(blocked[0])
            continue
        match choose(8):
            case 0 if ids:
                abort(ids[choose(len(ids))])
            case 1 if storing:
                n = storing.pop(choose(len(storing)))
                was_aborted = n in aborted
                perform(machine.handle(SnapshotStored(n)), None)
                assert (n in acknowledged) != was_aborted, "acknowledged if and only if not aborted"
            case 2 if storing:
                n = storing.pop(choose(len(storing)))
                perform(machine.handle(SnapshotFailed(n, "disk full")), None)
                assert n not in acknowledged
            case _:
                index = open_ones[choose(len(open_ones))]
                n = left[index].pop()
                if n == BATCH:
                    delivered[index] += 1
                else:
                    perform(machine.handle(BarrierArrived(channels[index], n)), oracle.barrier(index, n))
    assert forwarded == captured == sorted(set(captured)), "each barrier once, in order"
    return len(captured)
