"""A task of the explored world: the real snapshot protocol and committer, and what task/task.py does.

A task counts the records that it has seen. Everything that it is, with its queues, is one value with a
number; what it does next is computed once for each number.
"""

from __future__ import annotations

from typing import Any, assert_never

from tests.proof.explorer.event_time import WATERMARK, TaskTime, time_of
from tests.proof.explorer.frozen import Captured, CommitAsked, Deed, Frozen, PartWritten, Site, Staged
from tests.proof.explorer.graphs import RECORD_BITS, once, times
from tests.proof.explorer.items import END, Content, ensure, item_of, record_of

from crosscut.foundation.ids import CheckpointId, Epoch
from crosscut.protocol import effects as do
from crosscut.protocol import events as on
from crosscut.protocol.messages import (
    AbortCheckpoint,
    CaptureSnapshots,
    CloseLoops,
    CommitCheckpoint,
    ResumeSources,
    SnapshotAcknowledged,
    SnapshotDeclined,
    SourceDrained,
    TaskFailed,
    TaskQuiet,
    TransactionsCommitted,
    TriggerCheckpoint,
    WorkerMessage,
)
from crosscut.protocol.messages import FailureCause as Cause
from crosscut.protocol.snapshots import Part, Snapshot

COMMIT_ATTEMPTS_MAX = 3


class ExploredTask:
    """One step of one task: thawed, changed, frozen again. Planted bugs override the methods."""

    def __init__(self, site: Site, frozen: Frozen) -> None:
        self.site = site
        self.sends: list[tuple[int, int]] = []
        self.messages: list[WorkerMessage] = []
        self.deeds: list[Deed] = []
        (
            self.epoch, self.protocol, self.committer, self.is_started, self.position, self.state, self.said,
            self.ended, self.is_end_forwarded, self.ended_inputs, _, _, _, _, _, self.open, _, self.time,
            self.commit,
        ) = frozen  # fmt: skip
        self.queues = dict(zip(site.inputs, map(list, frozen.queues), strict=True))
        self.unsent = dict(zip(site.outputs, map(list, frozen.unsent), strict=True))
        self.captured = {one.n: one for one in frozen.captured}
        self.logs = {n: list(log) for n, log in frozen.logs}
        self.timers = set(frozen.timers)
        self.rotated = list(frozen.rotated)

    def frozen(self) -> Frozen:
        """Return the task as a value."""
        return Frozen(
            self.epoch,
            self.protocol,
            self.committer,
            self.is_started,
            self.position,
            self.state,
            self.said,
            self.ended,
            self.is_end_forwarded,
            self.ended_inputs,
            tuple(map(tuple, self.queues.values())),
            tuple(map(tuple, self.unsent.values())),
            tuple(self.captured[n] for n in sorted(self.captured)),
            tuple((n, tuple(self.logs[n])) for n in sorted(self.logs)),
            tuple(sorted(self.timers)),
            self.open,
            tuple(self.rotated),
            self.time,
            self.commit,
        )

    @property
    def machine(self) -> Any:
        """The snapshot protocol as it is now, to be asked, not told."""
        return self.site.protocols.machines[self.protocol]

    # What it could do by itself.

    def moves(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Return the steps that are possible now: a name, and what to call."""
        site = self.site
        if not self.is_started:
            return []
        found: list[tuple[str, tuple[Any, ...]]] = []
        if not site.inputs and not self.is_end_forwarded and not self.machine.is_halted:
            found.append(("read", ("read",)))
        for channel, queue in self.queues.items():
            if queue and not self.machine.is_blocked(site.graph.channel(channel)):
                found.append(("process", ("process", channel)))
        if not found and self.is_ending and not self.machine.is_halted:
            # What waits in an input is a barrier then, and comes first.
            found.append(("end", ("finish_end",)))
        found += [("send", ("transmit", channel)) for channel, queue in self.unsent.items() if queue]
        if self.rotated:
            found.append(("prepare", ("prepare",)))
        for n, one in self.captured.items():
            if one.log is not None and not (self.rotated and self.rotated[0][0] <= n):
                found.append(("store", ("store", n)))
        if self.commit is not None:
            found.append(("commit", ("ask_commit",)))
        found += [("alignment timeout", ("time_out", n)) for n in sorted(self.timers)]
        return found

    def read(self) -> None:
        """Read the next record of a source, or find that there is none."""
        if self.position < len(self.site.records):
            record = self.site.records[self.position]
            self.position += 1
            self.emit(self.site.graph.routes[record][0], item_of(record, 0))
            if self.site.graph.holds:
                self.time = self.time._replace(watermark=time_of(self.site.graph, record))
                self.tell_watermark()
            return
        self.end()
        self.messages.append(SourceDrained(Epoch(self.epoch), self.site.task_id))

    def process(self, channel: int) -> None:
        """Take the first item of an input."""
        item = self.queues[channel].pop(0)
        if item == END:
            bit = 1 << channel
            is_new = not self.ended_inputs & bit
            self.ended_inputs |= bit
            if is_new and self.has_all_ends:
                self.end()
            elif is_new and self.site.graph.holds:
                self.advance(self.time.ended(channel))
        elif item < 0:
            self.tell(on.BarrierArrived(self.site.graph.channel(channel), CheckpointId(-item)))
        elif item & WATERMARK:
            self.advance(self.time.heard(channel, item & ~WATERMARK))
        else:
            source = self.site.graph.channel(channel).source
            ensure(
                not self.ended_inputs >> channel & 1, f"F5: {source} sends a record after its end of input"
            )
            self.process_record(item)

    def process_record(self, item: int) -> None:
        """Count the record, and send it on, or out, or keep it until the end."""
        graph = self.site.graph
        record, hop = record_of(item)
        route = graph.routes[record]
        ensure(
            not self.is_end_forwarded,
            f"F5: {self.site.task_id} gets {graph.record_name(record)} after the end of its input",
        )
        if self.site.is_exact:
            overtaken = [
                later
                for later in range(record + 1, len(graph.routes))
                if graph.origins[later] == graph.origins[record]
                and graph.routes[later] == route
                and times(self.state, later) >= graph.visits(record, hop + 1, self.site.index)
            ]
            names = [graph.record_name(one) for one in (record, *overtaken)]
            ensure(not overtaken, f"I5: {self.site.task_id} sees {names[0]} after {names[1:]}")
        ensure(times(self.state, record) + 1 < 1 << RECORD_BITS, "a record goes round for ever")
        self.state += once(record)
        if self.site.index in graph.holds:
            watermark, time = self.time.watermark, time_of(graph, record)
            ensure(
                watermark is None or time >= watermark,
                f"I14: {graph.record_name(record)} comes to {self.site.task_id} at watermark {watermark}",
            )
            self.time = self.time.holding(record)
        elif not self.site.is_count:
            self.pass_on(record, hop)

    # Event time.

    def advance(self, time: TaskTime) -> None:
        """The task knows more of event time: say what is due, and then the watermark."""
        has_moved = time.watermark != self.time.watermark
        self.time = time
        if has_moved:
            self.fire(time.due(self.site.graph))
            self.tell_watermark()

    def fire(self, records: tuple[int, ...]) -> None:
        """The time of `records` has come."""
        self.time = self.time.without(records)
        for record in records:
            self.pass_on(record, self.hop_of(record))

    def tell_watermark(self) -> None:
        """Tell those after it of the watermark."""
        if self.time.watermark is not None:
            for channel in self.site.outputs:
                self.emit(channel, WATERMARK | self.time.watermark)

    def hop_of(self, record: int) -> int:
        """Return with which hop of its route `record` has come here."""
        route = self.site.graph.routes[record]
        return next(hop for hop, one in enumerate(route) if one in self.site.inputs)

    # Records.

    def pass_on(self, record: int, hop: int) -> None:
        """Send what has come through its `hop`-th channel on, or out."""
        route = self.site.graph.routes[record]
        if hop + 1 < len(route):
            self.emit(route[hop + 1], item_of(record, hop + 1))
        else:
            self.open += once(record)

    @property
    def has_all_ends(self) -> bool:
        return all(self.ended_inputs >> one & 1 for one in self.site.inputs)

    @property
    def is_ending(self) -> bool:
        """Whether everything has been said that is said at the end of input, and the end is to follow."""
        return self.said and not self.is_end_forwarded and bool(self.site.inputs) and self.has_all_ends

    def end(self) -> None:
        """Say what is said at the end of input, if anything is left to say; else pass the end on."""
        self.fire(self.time.due(self.site.graph, at_the_end=True))
        if self.said or not self.site.is_count or not self.state:
            self.finish_end()
            return
        for record in range(len(self.site.graph.routes)):
            for _ in range(times(self.state, record)):
                self.pass_on(record, self.hop_of(record))
        self.said = True

    def finish_end(self) -> None:
        """Everything has been said: pass the end on."""
        self.said = self.ended = True
        self.forward_end()

    def emit(self, channel: int, item: int) -> None:
        """Send after everything that was sent before."""
        if self.site.has_outboxes:
            self.unsent[channel].append(item)
        else:
            self.sends.append((channel, item))

    def transmit(self, channel: int) -> None:
        """The channel takes the next item."""
        self.sends.append((channel, self.unsent[channel].pop(0)))
        self.note_sent()

    def note_sent(self) -> None:
        """Tell of the barriers that have left on every output."""
        for n in self.machine.departing:
            if not any(-n in waiting for waiting in self.unsent.values()):
                self.tell(on.BarrierDeparted(n))

    def forward_end(self) -> None:
        self.is_end_forwarded = True
        for channel in self.site.outputs:
            self.emit(channel, END)

    def offer(self, channel: int, item: int) -> None:
        """Something has arrived on an input."""
        name = self.site.graph.channel(channel)
        if item < 0:
            if self.machine.takes_on_arrival(name, -item):
                self.tell(on.BarrierArrived(name, CheckpointId(-item)))
                return
            if self.machine.announces_barriers:
                self.tell(on.BarrierAnnounced(name, CheckpointId(-item)))
        elif item != END:
            for n in self.machine.logging(name):
                self.log(n, channel, item, by_sender=False)
        self.queues[channel].append(item)

    # Snapshots.

    def tell(self, event: on.TaskEvent) -> None:
        """Let the protocol handle `event`, and do what it asks for."""
        self.protocol, effects = self.site.protocols.step(self.protocol, event)
        for effect in effects:
            self.perform(effect)
        if not self.site.outputs:
            self.note_sent()

    def perform(self, effect: do.TaskEffect) -> None:
        """Carry out one effect, as `crosscut.task.task.Task` does."""
        match effect:
            case do.UnblockChannels():
                pass
            case do.CaptureState(n):
                self.captured[n] = Captured(
                    n,
                    self.state,
                    self.position,
                    self.said,
                    self.ended,
                    self.is_end_forwarded,
                    self.time.kept,
                    None,
                )
                if self.open:
                    self.rotated.append((n, self.open))
                    self.open = 0
            case do.ForwardBarrier(n):
                for channel in self.site.outputs:
                    self.emit(channel, -n)
            case do.OvertakeWithBarrier(n):
                for channel in self.site.outputs:
                    self.overtake(channel, n)
            case do.ExpediteBarrier(n):
                for channel in self.site.outputs:
                    self.expedite(channel, n)
            case do.StartLog(n, channels):
                for one in channels:
                    self.start_log(n, one.input)
            case do.StartAlignmentTimer(n):
                self.timers.add(n)
            case do.StoreSnapshot(n):
                self.timers.discard(n)
                log = tuple(self.logs.pop(n, ()))
                self.captured[n] = self.captured[n]._replace(log=log)
            case do.DiscardSnapshot(n):
                self.logs.pop(n, None)
                self.captured.pop(n, None)
            case do.AcknowledgeSnapshot(n):
                self.messages.append(self.acknowledgement(self.captured.pop(n)))
            case do.ReportQuiet(n):
                self.messages.append(TaskQuiet(Epoch(self.epoch), n, self.site.task_id))
            case do.DeclineCheckpoint(n, reason):
                self.messages.append(SnapshotDeclined(Epoch(self.epoch), n, self.site.task_id, reason))
            case _:
                assert_never(effect)

    def log(self, n: int, channel: int, item: int, *, by_sender: bool) -> None:
        self.logs.setdefault(n, []).append((channel, item, by_sender))

    def start_log(self, n: CheckpointId, channel: int) -> None:
        """Log what waits in front of barrier n; if that waits, it has arrived."""
        for item in list(self.queues[channel]):
            if item == -n:
                self.queues[channel].remove(item)
                self.tell(on.BarrierArrived(self.site.graph.channel(channel), n))
                break
            if 0 <= item != END:
                self.log(n, channel, item, by_sender=False)

    def overtake(self, channel: int, n: int) -> None:
        """Send barrier n ahead of what waits, and log that."""
        waiting = self.unsent[channel]
        for item in waiting:
            if 0 <= item != END:
                self.log(n, channel, item, by_sender=True)
        older = next((i for i, item in enumerate(waiting) if item >= 0), len(waiting))
        waiting.insert(older, -n)

    def expedite(self, channel: int, n: int) -> None:
        """Move barrier n ahead of what it waits behind, and log that."""
        waiting = self.unsent[channel]
        if -n in waiting:
            position = waiting.index(-n)
            self.unsent[channel] = waiting[:position]
            self.overtake(channel, n)
            self.unsent[channel] += waiting[position + 1 :]

    def path(self, n: int) -> str:
        return f"parts/{n}/{self.site.task_id.vertex}-{self.site.index}-{self.epoch}-ab"

    def handle_of(self, n: int) -> str:
        return f"{self.site.task_id.vertex}/{n}/{self.epoch}"

    def store(self, n: int) -> None:
        """Make the snapshot of n durable."""
        one = self.captured[n]
        content = Content(one.state, one.position, one.said, one.ended, one.kept, one.log or ())
        self.deeds.append(PartWritten(self.path(n), content))
        self.tell(on.SnapshotStored(CheckpointId(n)))

    def fail_to_store(self, n: int) -> None:
        self.tell(on.SnapshotFailed(CheckpointId(n), "no space"))

    def acknowledgement(self, one: Captured) -> SnapshotAcknowledged:
        committer = self.site.committers.machines[self.committer] if self.site.is_sink else None
        log = one.log or ()
        snapshot = Snapshot(
            parts=(Part(self.path(one.n), 1, "00"),),
            pending=committer.pending(one.n) if committer else (),
            drained=one.is_end_forwarded and not log,
            ended=one.ended,
            at_rest=not log,
            in_flight=len(log),
        )
        return SnapshotAcknowledged(Epoch(self.epoch), CheckpointId(one.n), self.site.task_id, snapshot)

    def time_out(self, n: int) -> None:
        """The alignment timer of n fires."""
        self.timers.discard(n)
        self.tell(on.AlignmentTimedOut(CheckpointId(n)))

    # The sink.

    def prepare(self) -> None:
        """Make the oldest transaction that was cut off durable."""
        n, records = self.rotated.pop(0)
        self.deeds.append(Staged(self.handle_of(n), records))
        self.tell_committer(on.TransactionPrepared(CheckpointId(n), self.handle_of(n)))

    def ask_commit(self) -> None:
        if self.commit is not None:
            self.deeds.append(CommitAsked(self.commit))
            self.commit = None
            self.tell_committer(on.CommitSucceeded())

    def fail_to_commit(self) -> None:
        """The commit is carried out, and its answer is lost."""
        if self.commit is not None:
            self.deeds.append(CommitAsked(self.commit))
            self.commit = None
            self.tell_committer(on.CommitAttemptFailed("time out"))

    def tell_committer(self, event: on.CommitterEvent) -> None:
        self.committer, effects = self.site.committers.step(self.committer, event)
        for effect in effects:
            match effect:
                case do.CommitTransactions():
                    self.commit = effect
                case do.AnnounceCommitted(n):
                    self.messages.append(TransactionsCommitted(Epoch(self.epoch), n, self.site.task_id))
                case do.FailTask(reason):
                    cause = Cause("CommitFailed", reason)
                    self.messages.append(TaskFailed(Epoch(self.epoch), self.site.task_id, cause))
                case _:
                    pass

    # What the coordinator says.

    def start(self) -> None:
        self.is_started = True
        self.tell_watermark()

    def receive(self, message: object) -> None:
        """Take a message of the coordinator; it is of this epoch."""
        match message:
            case TriggerCheckpoint(_, n):
                self.tell(on.CheckpointTriggered(n))
            case AbortCheckpoint(_, n):
                self.tell(on.CheckpointAborted(n))
            case CaptureSnapshots(_, n):
                self.tell(on.CaptureAllowed(n))
            case ResumeSources(_, n):
                self.tell(on.SourcesResumed(n))
            case CommitCheckpoint(_, n):
                self.tell_committer(on.CommitAuthorised(n))
            case CloseLoops(_, heads):
                for one in self.site.inputs if self.site.task_id.vertex in heads else ():
                    if self.site.graph.channels[one][2]:
                        self.offer(one, END)
            case _:
                ensure(False, f"a task can't do anything with {message!r}")

    def restore(self, content: Content) -> None:
        """Go back to what a part holds; what was on its way is so again, before anything new."""
        self.state, self.position = content.state, content.position
        self.said, self.ended = content.said, content.ended
        if self.site.graph.holds:
            self.time = TaskTime.restored(content.kept, self.site.inputs)
        for channel, item, by_sender in content.log:
            self.replay(channel, item, by_sender=by_sender)

    def replay(self, channel: int, item: int, *, by_sender: bool) -> None:
        if by_sender:
            self.emit(channel, item)
        else:
            self.offer(channel, item)
