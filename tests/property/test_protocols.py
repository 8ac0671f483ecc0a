"""Every snapshot protocol on small graphs, over random FIFO interleavings, against the definition of a cut.

The world knows nothing of alignment or logs. It notes what every channel had been given and had delivered
when the two tasks at its ends captured their state, and what the protocols had the drivers log. The cut is
consistent if on every channel

    delivered before the receiver's capture + logged  =  sent before the sender's capture

record for record, in order. For at-least-once it must begin with that: more is a duplicate, less a loss.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import assert_never

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import ChannelId, CheckpointId, TaskId, VertexId
from crosscut.protocol.effects import (
    AcknowledgeSnapshot,
    CaptureState,
    DeclineCheckpoint,
    DiscardSnapshot,
    ExpediteBarrier,
    ForwardBarrier,
    OvertakeWithBarrier,
    ReportQuiet,
    StartAlignmentTimer,
    StartLog,
    StoreSnapshot,
    TaskEffect,
    UnblockChannels,
)
from crosscut.protocol.events import (
    AlignmentTimedOut,
    BarrierAnnounced,
    BarrierArrived,
    BarrierDeparted,
    CaptureAllowed,
    CheckpointAborted,
    CheckpointTriggered,
    SnapshotStored,
    SourcesResumed,
    TaskEvent,
)
from crosscut.protocol.snapshot.aligned import AlignedBarriers
from crosscut.protocol.snapshot.at_least_once import AtLeastOnceBarriers
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.protocol.snapshot.stop_the_world import StopTheWorldBarriers
from crosscut.protocol.snapshot.switching import AlignedThenUnaligned
from crosscut.protocol.snapshot.unaligned import UnalignedBarriers

Make = Callable[[tuple[ChannelId, ...], frozenset[ChannelId]], SnapshotProtocol]
EXACT: list[Make] = [AlignedBarriers, UnalignedBarriers, AlignedThenUnaligned, StopTheWorldBarriers]
PROTOCOLS = [*EXACT, AtLeastOnceBarriers]
STEPS_MAX = 20_000


def task(name: str, index: int = 0) -> TaskId:
    return TaskId(VertexId(name), index)


def between(edge: int, sources: Iterable[TaskId], targets: Iterable[TaskId]) -> list[ChannelId]:
    targets = list(targets)
    return [ChannelId(edge, source, target) for source in sources for target in targets]


def pair(name: str) -> list[TaskId]:
    return [task(name, 0), task(name, 1)]


S, H, B, K = pair("seeds"), pair("head"), pair("body"), pair("out")
SHAPES: dict[str, tuple[list[ChannelId], list[ChannelId]]] = {
    # (regular channels, back edges)
    "chain": (between(0, S[:1], H[:1]) + between(1, H[:1], K[:1]), []),
    "shuffle": (between(0, S, H) + between(1, H, K), []),
    "diamond": (between(0, S[:1], H) + between(1, H, K[:1]), []),
    "loop": (
        between(0, S[:1], H[:1]) + between(1, H[:1], B[:1]) + between(3, B[:1], K[:1]),
        between(2, B[:1], H[:1]),
    ),
    "shuffled loop": (between(0, S, H) + between(1, H, B) + between(3, B, K), between(2, B, H)),
    # A body task hears of one head only, so its barrier may come back to the other before that has captured.
    "crossed loop": (
        between(0, S, H) + [ChannelId(1, head, body) for head, body in zip(H, B, strict=True)],
        between(2, B, H),
    ),
    "loop of one task": (between(0, S, H[:1]) + between(1, H[:1], K), between(2, H[:1], H[:1])),
}


@dataclass
class Channel:
    """Where an item may be: not taken by the connection yet, on its way, or in the input queue.

    A record is a number above 0; barrier n is -n.
    """

    unsent: deque[int] = field(default_factory=deque)
    wire: deque[int] = field(default_factory=deque)
    queue: deque[int] = field(default_factory=deque)
    sent: list[int] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)


class World:
    def __init__(
        self, seed: int, make: Make, shape: str, *, checkpoints: int, at_once: int, aborts: bool
    ) -> None:
        self.dice = random.Random(seed)
        regular, closing = SHAPES[shape]
        self.channels = {channel: Channel() for channel in regular + closing}
        self.tasks = sorted({end for one in self.channels for end in (one.source, one.target)})
        self.inputs = {one: tuple(c for c in self.channels if c.target == one) for one in self.tasks}
        self.outputs = {one: [c for c in self.channels if c.source == one] for one in self.tasks}
        self.machines = {
            one: make(self.inputs[one], frozenset(closing) & frozenset(self.inputs[one]))
            for one in self.tasks
        }
        self.sources = [one for one in self.tasks if not self.inputs[one]]
        self.rest = dict.fromkeys(self.sources, self.dice.randint(0, 12))
        # Nothing runs while one is taken halting, so there is no second one.
        at_once = 1 if make is StopTheWorldBarriers else at_once
        self.triggers_left, self.at_once, self.aborts = checkpoints, at_once, aborts
        self.next_record = self.next_id = 1
        # What the coordinator has said and the task has not heard yet, and what a task waits for.
        self.words: dict[TaskId, deque[TaskEvent]] = defaultdict(deque)
        self.timers: list[tuple[TaskId, CheckpointId]] = []
        # What is logged for them from now on is in no snapshot.
        self.sealed: set[tuple[TaskId, CheckpointId]] = set()
        self.storing: list[tuple[TaskId, CheckpointId]] = []
        self.under_way: dict[CheckpointId, set[TaskId]] = {}
        self.quiet: dict[CheckpointId, set[TaskId]] = defaultdict(set)
        self.complete: list[CheckpointId] = []
        self.declined: set[CheckpointId] = set()
        self.timed_out: set[CheckpointId] = set()
        self.sent_before: dict[tuple[CheckpointId, ChannelId], list[int]] = {}
        self.delivered_before: dict[tuple[CheckpointId, ChannelId], list[int]] = {}
        self.received_log: dict[tuple[CheckpointId, ChannelId], list[int]] = defaultdict(list)
        self.overtaken_log: dict[tuple[CheckpointId, ChannelId], list[int]] = defaultdict(list)
        # Records that a barrier has overtaken after it had been forwarded behind them.
        self.expedited = 0

    def run(self) -> World:
        for _ in range(STEPS_MAX):
            moves = list(self.moves())
            if not moves:
                break
            self.dice.choice(moves)()
        assert not any(one.unsent or one.wire or one.queue for one in self.channels.values()), "stuck"
        # The coordinator's timeout. A switched barrier may overtake an older one, which then never ends.
        self.timed_out = set(self.under_way)
        return self

    def moves(self) -> Iterable[Callable[[], None]]:
        if self.triggers_left and len(self.under_way) < self.at_once:
            yield self.trigger
        if self.aborts and self.under_way and self.dice.random() < 0.1:
            yield self.abort
        for one in self.sources:
            if self.rest[one] and not self.machines[one].is_halted:
                yield lambda one=one: self.read(one)  # type: ignore[misc]
        for one, words in self.words.items():
            if words:
                yield lambda one=one: self.handle(one, self.words[one].popleft())  # type: ignore[misc]
        for timer in self.timers:
            yield lambda timer=timer: self.time_out(timer)  # type: ignore[misc]
        for snapshot in self.storing:
            yield lambda snapshot=snapshot: self.stored(snapshot)  # type: ignore[misc]
        for channel, state in self.channels.items():
            if state.unsent:
                yield lambda channel=channel: self.send(channel)  # type: ignore[misc]
            if state.wire:
                yield lambda channel=channel: self.arrive(channel)  # type: ignore[misc]
            if state.queue and not self.machines[channel.target].is_blocked(channel):
                yield lambda channel=channel: self.deliver(channel)  # type: ignore[misc]

    # The coordinator.

    def trigger(self) -> None:
        n = CheckpointId(self.next_id)
        self.next_id += 1
        self.triggers_left -= 1
        self.under_way[n] = set()
        for one in self.sources:
            self.words[one].append(CheckpointTriggered(n))

    def abort(self) -> None:
        self.give_up(self.dice.choice(sorted(self.under_way)))

    def give_up(self, n: CheckpointId) -> None:
        if self.under_way.pop(n, None) is not None:
            self.tell_all(CheckpointAborted(n))

    def tell_all(self, word: TaskEvent) -> None:
        for one in self.tasks:
            self.words[one].append(word)

    # The drivers.

    def read(self, source: TaskId) -> None:
        self.rest[source] -= 1
        self.emit(source)

    def emit(self, one: TaskId) -> None:
        if self.outputs[one]:
            state = self.channels[self.dice.choice(self.outputs[one])]
            state.unsent.append(self.next_record)
            state.sent.append(self.next_record)
            self.next_record += 1

    def send(self, channel: ChannelId) -> None:
        state = self.channels[channel]
        state.wire.append(state.unsent.popleft())
        self.note_sent(channel.source)

    def note_sent(self, one: TaskId) -> None:
        for n in self.machines[one].departing:
            if not any(-n in self.channels[channel].unsent for channel in self.outputs[one]):
                self.handle(one, BarrierDeparted(n))

    def arrive(self, channel: ChannelId) -> None:
        state, machine = self.channels[channel], self.machines[channel.target]
        item = state.wire.popleft()
        if item < 0:
            n = CheckpointId(-item)
            if machine.takes_on_arrival(channel, n):
                self.handle(channel.target, BarrierArrived(channel, n))
                return
            if machine.announces_barriers:
                self.handle(channel.target, BarrierAnnounced(channel, n))
        else:
            for n in machine.logging(channel):
                self.received_log[n, channel].append(item)
        state.queue.append(item)

    def deliver(self, channel: ChannelId) -> None:
        state = self.channels[channel]
        item = state.queue.popleft()
        if item < 0:
            self.handle(channel.target, BarrierArrived(channel, CheckpointId(-item)))
            return
        state.delivered.append(item)
        if self.dice.random() < 0.8:
            self.emit(channel.target)

    def time_out(self, timer: tuple[TaskId, CheckpointId]) -> None:
        self.timers.remove(timer)
        self.handle(timer[0], AlignmentTimedOut(timer[1]))

    def stored(self, snapshot: tuple[TaskId, CheckpointId]) -> None:
        self.storing.remove(snapshot)
        self.handle(snapshot[0], SnapshotStored(snapshot[1]))

    def handle(self, one: TaskId, event: TaskEvent) -> None:
        self.perform(one, self.machines[one].handle(event))
        if not self.outputs[one]:
            self.note_sent(one)

    def perform(self, one: TaskId, effects: list[TaskEffect]) -> None:
        for effect in effects:
            match effect:
                case CaptureState(n):
                    for channel in self.outputs[one]:
                        self.sent_before[n, channel] = list(self.channels[channel].sent)
                    for channel in self.inputs[one]:
                        self.delivered_before[n, channel] = list(self.channels[channel].delivered)
                case ForwardBarrier(n):
                    for channel in self.outputs[one]:
                        self.channels[channel].unsent.append(-n)
                case OvertakeWithBarrier(n):
                    for channel in self.outputs[one]:
                        unsent = self.channels[channel].unsent
                        self.overtaken_log[n, channel] += [item for item in unsent if item > 0]
                        older = next((at for at, item in enumerate(unsent) if item > 0), len(unsent))
                        unsent.insert(older, -n)
                case ExpediteBarrier(n):
                    for channel in self.outputs[one]:
                        self.expedite(n, channel)
                case StartLog(n, channels):
                    for channel in channels:
                        self.log_queue(n, channel)
                case StoreSnapshot(n):
                    self.storing.append((one, n))
                    self.sealed.add((one, n))
                case AcknowledgeSnapshot(n):
                    self.acknowledged(one, n)
                case DeclineCheckpoint(n):
                    self.declined.add(n)
                    self.give_up(n)
                case StartAlignmentTimer(n):
                    self.timers.append((one, n))
                case ReportQuiet(n):
                    self.quiet[n].add(one)
                    if self.quiet[n] == set(self.tasks) and n in self.under_way:
                        self.tell_all(CaptureAllowed(n))
                case UnblockChannels() | DiscardSnapshot():
                    pass
                case _:
                    assert_never(effect)

    def expedite(self, n: CheckpointId, channel: ChannelId) -> None:
        unsent = self.channels[channel].unsent
        if -n in unsent:
            position = unsent.index(-n)
            passed = [item for at, item in enumerate(unsent) if at < position]
            if (channel.source, n) not in self.sealed:
                self.overtaken_log[n, channel] += [item for item in passed if item > 0]
            unsent.remove(-n)
            unsent.insert(next((at for at, item in enumerate(passed) if item > 0), len(passed)), -n)
            self.expedited += sum(item > 0 for item in passed)

    def log_queue(self, n: CheckpointId, channel: ChannelId) -> None:
        queue = self.channels[channel].queue
        for item in list(queue):
            if item == -n:
                queue.remove(item)
                self.handle(channel.target, BarrierArrived(channel, n))
                return
            if item > 0:
                self.received_log[n, channel].append(item)

    def acknowledged(self, one: TaskId, n: CheckpointId) -> None:
        if n not in self.under_way:
            return
        self.under_way[n].add(one)
        if self.under_way[n] == set(self.tasks):
            del self.under_way[n]
            self.complete.append(n)
            if self.quiet[n]:
                self.tell_all(SourcesResumed(n))

    # The oracle.

    def restored(self, n: CheckpointId, channel: ChannelId) -> list[int]:
        """What the receiver has seen, or will see again, after a restore of n."""
        logged = self.received_log[n, channel] + self.overtaken_log[n, channel]
        return self.delivered_before[n, channel] + logged

    def check_cuts(self) -> None:
        for n in self.complete:
            for channel in self.channels:
                assert self.restored(n, channel) == self.sent_before[n, channel], f"cut {n} at {channel}"

    def duplicates(self) -> int:
        found = 0
        for n in self.complete:
            for channel in self.channels:
                sent, restored = self.sent_before[n, channel], self.restored(n, channel)
                assert restored[: len(sent)] == sent, f"cut {n} loses records of {channel}"
                found += len(restored) - len(sent)
        return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", EXACT)
@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 32), at_once=st.integers(1, 3), aborts=st.booleans())
def test_every_completed_checkpoint_is_a_consistent_cut(
    make: Make, shape: str, seed: int, at_once: int, aborts: bool
) -> None:
    world = World(seed, make, shape, checkpoints=5, at_once=at_once, aborts=aborts).run()
    world.check_cuts()
    assert not world.timed_out or (make is AlignedThenUnaligned and at_once > 1)


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 32), at_once=st.integers(1, 3), aborts=st.booleans())
def test_at_least_once_loses_nothing(shape: str, seed: int, at_once: int, aborts: bool) -> None:
    world = World(seed, AtLeastOnceBarriers, shape, checkpoints=5, at_once=at_once, aborts=aborts).run()
    world.duplicates()
    assert not world.timed_out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", PROTOCOLS)
def test_without_aborts_every_checkpoint_completes_in_order(make: Make, shape: str) -> None:
    for seed in range(50):
        world = World(seed, make, shape, checkpoints=4, at_once=1, aborts=False).run()
        assert world.complete == [1, 2, 3, 4], f"seed {seed}"
        assert world.declined == set()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", EXACT)
def test_several_at_once_complete_too_as_long_as_nothing_is_aborted(make: Make, shape: str) -> None:
    for seed in range(50):
        world = World(seed, make, shape, checkpoints=4, at_once=4, aborts=False).run()
        assert 4 in world.complete, f"seed {seed}"
        if make is not AlignedThenUnaligned:
            assert sorted(world.complete) == [1, 2, 3, 4], f"seed {seed}"


def test_at_least_once_duplicates_where_inputs_meet_and_nowhere_else() -> None:
    def duplicates(shape: str) -> int:
        make, seeds = AtLeastOnceBarriers, range(50)
        return sum(
            World(seed, make, shape, checkpoints=3, at_once=1, aborts=False).run().duplicates()
            for seed in seeds
        )

    assert duplicates("chain") == 0
    assert duplicates("shuffle") > 0


def test_channels_hold_records_in_every_way_that_there_is() -> None:
    """A world in which nothing is ever logged or overtaken would prove nothing of logs."""
    received = overtaken = 0
    for seed in range(50):
        world = World(seed, UnalignedBarriers, "shuffled loop", checkpoints=4, at_once=2, aborts=False).run()
        received += sum(map(len, world.received_log.values()))
        overtaken += sum(map(len, world.overtaken_log.values()))
    assert received > 0
    assert overtaken > 0
    looped = [
        World(s, AlignedBarriers, "loop", checkpoints=4, at_once=2, aborts=False).run() for s in range(50)
    ]
    assert any(any(one.received_log.values()) for one in looped)


def test_barriers_are_expedited_and_records_overtaken_by_that() -> None:
    worlds = [
        World(s, AlignedThenUnaligned, "shuffle", checkpoints=4, at_once=2, aborts=False).run()
        for s in range(50)
    ]
    assert any(one.expedited for one in worlds)


class LogsNothing(AlignedBarriers):
    def logging(self, channel: ChannelId) -> tuple[CheckpointId, ...]:
        return ()


class NeverBlocksABackEdge(AlignedBarriers):
    """The paper's algorithm 2 to the letter, which is made for one instance of the loop's head."""

    def is_blocked(self, channel: ChannelId) -> bool:
        return super().is_blocked(channel) and channel not in self._back_edges


class ForwardsBehindItsOutput(UnalignedBarriers):
    """Logs what its barrier did not overtake."""

    def _forward(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        return [ForwardBarrier(checkpoint_id)]

    def logging(self, channel: ChannelId) -> tuple[CheckpointId, ...]:
        return ()


class StoresBeforeItsBarrierHasLeft(AlignedThenUnaligned):
    """What the barrier overtakes afterwards is in no snapshot."""

    def _store(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        return AlignedBarriers._store(self, checkpoint_id)

    def _departed(self, checkpoint_id: CheckpointId) -> list[TaskEffect]:
        self._departing.remove(checkpoint_id)
        return []


@pytest.mark.parametrize(
    ("planted", "shape"),
    [
        (LogsNothing, "loop"),
        (NeverBlocksABackEdge, "crossed loop"),
        (ForwardsBehindItsOutput, "shuffle"),
        (StoresBeforeItsBarrierHasLeft, "shuffle"),
        (AtLeastOnceBarriers, "shuffle"),
    ],
)
def test_the_oracle_finds(planted: Make, shape: str) -> None:
    def is_found(seed: int) -> bool:
        try:
            World(seed, planted, shape, checkpoints=4, at_once=1, aborts=False).run().check_cuts()
        except (AssertionError, ProtocolError):
            return True
        return False

    assert any(is_found(seed) for seed in range(200))
