"""Jobs that go on at another parallelism, or begin with a savepoint: every state of a small one.

A source, whose splits have watermarks of their own, is read by a keyed vertex that sets a timer for each
record and gives it out when that fires. At any moment the whole job may die, and go on from its newest
complete checkpoint with another number of tasks; or its savepoint begins another job.

**Real**: the snapshot protocol of each task, all of `protocol.job.rescaling`, `task.rerouting`, the owners of
keys, watermarks and their combination. **Model**: a task, in small; a checkpoint is complete when all tasks
have captured, at once, and its output committed with it. The life of a checkpoint is for the other worlds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.proof.explorer.items import Violation, ensure
from tests.proof.explorer.rescaled_start import RestoredJobs
from tests.proof.explorer.rescaled_state import (
    KEYED,
    READ,
    TIMES,
    Content,
    Item,
    Keeper,
    Rows,
    State,
    owner_of,
    read_back,
    repeated,
    replaced,
)

from crosscut.contracts.connectors import JSON
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId, TaskId
from crosscut.operators.watermarks import CombinedWatermark
from crosscut.protocol import effects as do
from crosscut.protocol import events as on
from crosscut.protocol.snapshots import Part, Snapshot


class RescaledWorld(RestoredJobs):
    """What can happen next in such a job."""

    # What can happen next.

    def is_finished(self, state: State) -> bool:
        """Whether all has been read and given out."""
        return (
            all(one.has_ended for one in state.readers)
            and not any(state.queues)
            and not any(one.replay for one in state.keepers)
        )

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every step that is possible, and where it leads.

        Raises:
            Violation: Something that must never happen has.
        """
        count = state.parallelism
        for i, reader in enumerate(state.readers):
            for split, position in reader.positions:
                yield f"read[{i}] reads {split} at {position}", self._read(state, i, split)
            if not reader.positions and not reader.has_ended:
                yield f"read[{i}] ends", self._end(state, i)
        for i, keeper in enumerate(state.keepers):
            if keeper.replay:
                yield f"keyed[{i}] takes {keeper.replay[0]}, which was on its way", self._replayed(state, i)
                continue
            machine = self.protocols.machines[keeper.protocol]
            for source in range(count):
                queue = state.queues[self.queue(count, source, i)]
                if queue and not machine.is_blocked(self.channel(source, i)):
                    yield f"keyed[{i}] takes {queue[0]} from read[{source}]", self._taken(state, i, source)
        under_way = len({n for n, _ in state.snapshots})
        is_ready = not any(one.replay for one in state.keepers)
        newest = self.restored(state.complete)
        open_count = state.triggered - (newest.entry.checkpoint_id if newest is not None else 0)
        if is_ready and state.checkpoints and max(open_count, under_way) < self.bounds.in_flight:
            yield f"checkpoint {state.triggered + 1} is triggered", self._trigger(state)
        if state.savepoints and newest is not None and state.savepoint is None:
            kept = state._replace(savepoint=(state.complete, state.visible), savepoints=state.savepoints - 1)
            yield f"checkpoint {newest.entry.checkpoint_id} becomes a savepoint", kept
        if state.to_come:
            then, *rest = state.to_come
            again = (state.checkpoints, state.triggered, state.savepoint, state.savepoints)
            yield (
                f"all die; the job goes on at parallelism {then}",
                self.begun(then, tuple(rest), state.complete, state.visible, *again),
            )
            if state.savepoint is not None:
                which, visible = state.savepoint
                yield (
                    f"another job begins with the savepoint, at parallelism {then}",
                    self.begun(then, tuple(rest), which, visible, *again),
                )
        if self.is_finished(state):
            given = sorted((*state.visible, *(one for keeper in state.keepers for one in keeper.out)))
            for record in range(len(self.records)):
                ensure(record in given, f"I1: {self.records[record]} is lost from the output at the end")
            ensure(not repeated(given), f"I2: {repeated(given)} are in the output more than once")

    # Sources.

    def _read(self, state: State, i: int, split: str) -> State:
        reader = state.readers[i]
        positions = dict(reader.positions)
        records, at = self.by_split[split], positions[split]
        times = self.times(list(positions), {TIMES: read_back(reader.assigned)})
        sent: list[Item] = []
        if at < len(records):
            times.origin = split
            made = times.process(Batch([records[at]]))
            positions[split] += 1
            sent = [("record", records[at])]
            watermark = made.watermark
        else:
            del positions[split]
            times.end_of(split)
            news = times.take_news()
            watermark = news.watermark if news is not None else None
        reader = reader._replace(positions=tuple(positions.items()), assigned=self.kept(times))
        state = state._replace(readers=replaced(state.readers, i, reader))
        for item in sent:
            state = self._send(state, i, owner_of(self.records[item[1]], state.parallelism), item)
        if watermark is not None:
            for target in range(state.parallelism):
                state = self._send(state, i, target, ("watermark", watermark))
        return state

    def _end(self, state: State, i: int) -> State:
        state = state._replace(readers=replaced(state.readers, i, state.readers[i]._replace(has_ended=True)))
        for target in range(state.parallelism):
            state = self._send(state, i, target, ("end", 0))
        return state

    def _trigger(self, state: State) -> State:
        n = CheckpointId(state.triggered + 1)
        state = state._replace(triggered=n, checkpoints=state.checkpoints - 1)
        for i, reader in enumerate(state.readers):
            protocol, effects = self.protocols.step(reader.protocol, on.CheckpointTriggered(n))
            state = state._replace(readers=replaced(state.readers, i, reader._replace(protocol=protocol)))
            for effect in effects:
                match effect:
                    case do.StoreSnapshot():
                        state = self._captured(state, n, self._content_of_reader(state, i, n))
                        protocol, _ = self.protocols.step(state.readers[i].protocol, on.SnapshotStored(n))
                        now = state.readers[i]._replace(protocol=protocol)
                        state = state._replace(readers=replaced(state.readers, i, now))
                    case do.ForwardBarrier() | do.OvertakeWithBarrier():
                        for target in range(state.parallelism):
                            state = self._send(state, i, target, ("barrier", n))
                    case _:
                        pass
        return self._completed(state)

    def _content_of_reader(self, state: State, i: int, n: int) -> Content:
        reader = state.readers[i]
        rows: list[JSON] = [[split, 0, None, 1, at] for split, at in reader.positions]
        saved = read_back(reader.assigned)
        snapshot = Snapshot(positions=rows, assigned={TIMES: saved})
        return Content(n, TaskId(READ, i), snapshot, Rows(), saved[0], (), ())

    # Channels.

    def _send(self, state: State, source: int, target: int, item: Item) -> State:
        """Something arrives at a keyed task: at once, after what is there."""
        at = self.queue(state.parallelism, source, target)
        queue = state.queues[at]
        keeper = state.keepers[target]
        machine = self.protocols.machines[keeper.protocol]
        channel = self.channel(source, target)
        what, number = item
        if what == "barrier" and machine.takes_on_arrival(channel, number):
            return self._tell(state, target, on.BarrierArrived(channel, CheckpointId(number)))
        if what == "record" and machine.logging(channel):
            logs = tuple((n, source, number) for n in machine.logging(channel))
            now = keeper._replace(logs=(*keeper.logs, *logs))
            state = state._replace(keepers=replaced(state.keepers, target, now))
        if what == "watermark" and queue and queue[-1][0] == "watermark":
            queue = queue[:-1]
        return state._replace(queues=replaced(state.queues, at, (*queue, item)))

    # Keyed tasks.

    def _replayed(self, state: State, i: int) -> State:
        keeper = state.keepers[i]
        (what, number), *rest = keeper.replay
        keeper = keeper._replace(replay=tuple(rest))
        if what == "record":
            keeper = self._processed(keeper, i, number)
        else:
            keeper = self._told(keeper, number)
        if not rest:
            keeper = self._told(keeper, keeper.watermark)
        return state._replace(keepers=replaced(state.keepers, i, keeper))

    def _taken(self, state: State, i: int, source: int) -> State:
        at = self.queue(state.parallelism, source, i)
        (what, number), *rest = state.queues[at]
        state = state._replace(queues=replaced(state.queues, at, tuple(rest)))
        keeper = state.keepers[i]
        match what:
            case "record":
                keeper = self._processed(keeper, i, number)
            case "watermark" | "end":
                combined = CombinedWatermark(dict(keeper.sides), keeper.watermark)
                if what == "end":
                    combined.ended(source)
                else:
                    combined.heard(source, number)
                sides = tuple(combined.sides.items())
                keeper = keeper._replace(watermark=combined.watermark, sides=sides)
                # The end of all input is the end of time.
                keeper = self._told(keeper, keeper.watermark if sides else len(self.records) + 1)
            case _:
                event = on.BarrierArrived(self.channel(source, i), CheckpointId(number))
                return self._tell(state, i, event)
        return state._replace(keepers=replaced(state.keepers, i, keeper))

    def _processed(self, keeper: Keeper, i: int, record: int) -> Keeper:
        one, rows = self.records[record], keeper.rows
        ensure(record not in rows.seen, f"I2: keyed[{i}] gets {one} again")
        ensure(
            keeper.told is None or one.time >= keeper.told,
            f"I14: {one} comes to keyed[{i}] at watermark {keeper.told}",
        )
        return keeper._replace(rows=Rows(rows.seen | {record}, rows.waiting | {record}))

    def _told(self, keeper: Keeper, watermark: int | None) -> Keeper:
        """The operators hear of a watermark: timers fire."""
        if watermark is None or (keeper.told is not None and watermark <= keeper.told):
            return keeper
        due = {one for one in keeper.rows.waiting if self.records[one].time <= watermark}
        rows = keeper.rows._replace(waiting=keeper.rows.waiting - due)
        return keeper._replace(told=watermark, rows=rows, out=tuple(sorted((*keeper.out, *due))))

    def _tell(self, state: State, i: int, event: on.TaskEvent) -> State:
        """The snapshot protocol of a keyed task handles an event."""
        keeper = state.keepers[i]
        protocol, effects = self.protocols.step(keeper.protocol, event)
        state = state._replace(keepers=replaced(state.keepers, i, keeper._replace(protocol=protocol)))
        for effect in effects:
            keeper = state.keepers[i]
            match effect:
                case do.CaptureState(n):
                    snapshot = Snapshot(
                        parts=(Part(f"{n}/{i}", 1, "00"),), watermark=keeper.watermark, at_rest=True
                    )
                    content = Content(n, TaskId(KEYED, i), snapshot, keeper.rows, keeper.told, (), keeper.out)
                    captured = (*keeper.captured, (n, self.number_of(content)))
                    keeper = keeper._replace(captured=captured, out=())
                    state = state._replace(keepers=replaced(state.keepers, i, keeper))
                case do.StartLog(n, channels):
                    waiting = tuple(
                        (n, channel.source.index, number)
                        for channel in channels
                        for what, number in state.queues[
                            self.queue(state.parallelism, channel.source.index, i)
                        ]
                        if what == "record"
                    )
                    keeper = keeper._replace(logs=(*keeper.logs, *waiting))
                    state = state._replace(keepers=replaced(state.keepers, i, keeper))
                case do.StoreSnapshot(n):
                    content = self.contents[dict(keeper.captured)[n]]
                    log = tuple((source, record) for m, source, record in keeper.logs if m == n)
                    keeper = keeper._replace(
                        captured=tuple(one for one in keeper.captured if one[0] != n),
                        logs=tuple(one for one in keeper.logs if one[0] != n),
                    )
                    state = state._replace(keepers=replaced(state.keepers, i, keeper))
                    state = self._captured(state, n, content._replace(log=log))
                    state = self._tell(state, i, on.SnapshotStored(n))
                case _:
                    pass
        return self._completed(state)

    # Checkpoints.

    def _captured(self, state: State, n: int, content: Content) -> State:
        found = (n, self.number_of(content))
        return state._replace(snapshots=tuple(sorted((*state.snapshots, found))))

    def _completed(self, state: State) -> State:
        """Complete the oldest checkpoint, if all of its snapshots are there."""
        newest = self.restored(state.complete)
        n = min((one for one, _ in state.snapshots), default=0)
        numbers = tuple(one for m, one in state.snapshots if m == n)
        if n == 0 or len(numbers) < 2 * state.parallelism:
            return state
        ensure(newest is None or n > newest.entry.checkpoint_id, f"I6: checkpoint {n} completes again")
        given = (one for number in numbers for one in self.contents[number].out)
        visible = tuple(sorted((*state.visible, *given)))
        ensure(not repeated(visible), f"I2: {repeated(visible)} are in the output more than once")
        return state._replace(
            snapshots=tuple(one for one in state.snapshots if one[0] != n),
            complete=self.completes.number(numbers),
            visible=visible,
        )


@dataclass
class Found:
    """What came of a search; `steps` lead to what is broken."""

    states: int = 0
    finished: int = 0
    violation: str = ""
    steps: tuple[str, ...] = ()


def explore(world: RescaledWorld) -> Found:
    """Visit every state, nearest first, until something breaks."""
    found = Found()
    first = world.first()
    parents: dict[State, tuple[State, str] | None] = {first: None}
    order = [first]
    for state in order:
        step = ""
        try:
            has_more = False
            for step, after in world.successors(state):
                has_more = True
                if after not in parents:
                    parents[after] = (state, step)
                    order.append(after)
            finished = world.is_finished(state)
            ensure(has_more or finished, "I10: nothing can happen any more: a deadlock")
            found.finished += finished
        except Violation as violation:
            steps = [] if not step else [f"then, after {step!r} or what follows"]
            at: State | None = state
            while at is not None and (link := parents[at]) is not None:
                steps.append(link[1])
                at = link[0]
            found.violation, found.steps = str(violation), tuple(reversed(steps))
            break
    found.states = len(order)
    return found
