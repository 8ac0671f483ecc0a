"""A task of the explorer and a real one, side by side: the same events in, the same effects out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.proof.explorer.frozen import CommitAsked, Frozen, PartWritten, Site, Staged
from tests.proof.explorer.graphs import Graph, times
from tests.proof.explorer.items import EMPTY, LINEAGE
from tests.proof.explorer.tasks import COMMIT_ATTEMPTS_MAX, ExploredTask
from tests.simulation.refined_records import Hop, Last, Records, Routed, Stage, modelled, real

from crosscut.foundation.ids import ChannelId, CheckpointId, Epoch
from crosscut.operators.operator import Operator
from crosscut.protocol import effects as do
from crosscut.protocol.messages import (
    AbortCheckpoint,
    CaptureSnapshots,
    CloseLoops,
    CommitCheckpoint,
    CoordinatorMessage,
    ResumeSources,
    SnapshotAcknowledged,
    TaskFailed,
    TriggerCheckpoint,
    WorkerMessage,
)
from crosscut.protocol.snapshot.choosing import snapshot_protocol
from crosscut.protocol.snapshot.commit import Committer
from crosscut.protocol.snapshots import Part, Snapshot
from crosscut.state.keyed import KeyedState
from crosscut.state.parts import PartChain
from crosscut.task.channel_log import decoded_log, encoded_log
from crosscut.task.inputs import InputQueue
from crosscut.task.items import LoggedBatch
from crosscut.task.plan import TaskPlan
from crosscut.task.requests import (
    CancelStore,
    CompleteState,
    FrozenTask,
    NotePause,
    PrepareTransaction,
    StoreFrozen,
    WaitForAlignment,
)
from crosscut.task.splits import SplitQueue, splits_from_json
from crosscut.task.task import Task
from crosscut.wire.batches import decode_batch

if TYPE_CHECKING:
    from tests.simulation.refined_walk import Walk

REASON = {"store": "no space", "commit": "time out"}


class Pair:
    """The model of a task, and the task. What they ask for in the background waits for the walk to do it."""

    def __init__(self, walk: Walk, site: Site, epoch: int) -> None:
        self.site = site
        self._walk = walk
        self._stored: dict[CheckpointId, FrozenTask] = {}
        self._rotated: list[PrepareTransaction] = []
        self._commit: do.CommitTransactions | None = None
        self._timers: set[CheckpointId] = set()
        self._content, snapshot = walk.restored.get(site.task_id, (EMPTY, Snapshot()))
        self.model = self._modelled(epoch)
        self.task = self._real(epoch, snapshot)
        self._sent: list[tuple[int, int]] = []

    def _modelled(self, epoch: int) -> ExploredTask:
        site = self.site
        channels = tuple(map(site.graph.channel, site.inputs))
        protocol = site.protocols.number(snapshot_protocol(self._walk.kind, channels, self._back_edges))
        committer = site.committers.number(Committer(LINEAGE, Epoch(epoch), COMMIT_ATTEMPTS_MAX))
        model = self._walk.model(site, Frozen.fresh(site, epoch, protocol, committer))
        model.restore(self._content)
        return model

    @property
    def _back_edges(self) -> frozenset[ChannelId]:
        graph = self.site.graph
        return frozenset(graph.channel(one) for one in self.site.inputs if graph.channels[one][2])

    def _real(self, epoch: int, snapshot: Snapshot) -> Task:
        site, walk = self.site, self._walk
        self.state = KeyedState(int)
        parts = [(part.checkpoint_id, walk.bytes_of[part.path]) for part in snapshot.parts]
        for _ in self.state.loading(parts, walk.restore):
            pass
        chain: list[Operator] = [Hop(site, self.state)] if site.inputs else []
        self.writer = Stage()
        chain += [Last(site.graph, self.writer)] if site.is_sink else []
        channels = tuple(map(site.graph.channel, site.inputs))
        queues = {channel: InputQueue(channel) for channel in channels}
        unsent: list[LoggedBatch] = []
        for logged in (one for part in snapshot.log for one in decoded_log(walk.bytes_of[part.path])):
            if logged.by_sender:
                unsent.append(logged)
            else:
                queues[logged.channel].restore(logged)
        splits = None
        if not site.inputs:
            source = Records(site)
            unread = [(split, split.start) for split in source.splits(1)]
            splits = SplitQueue(source, splits_from_json(snapshot.positions) if walk.restore else unread)
        return Task(
            TaskPlan(
                task_id=site.task_id,
                epoch=Epoch(epoch),
                protocol=snapshot_protocol(walk.kind, channels, self._back_edges),
                inputs=queues,
                back_edges=self._back_edges,
                chain=chain,
                outputs=[Routed(site)] if site.outputs else [],
                batch_rows=1,
                channel_bytes=1 << 20,
                splits=splits,
                state=self.state,
                committer=Committer(LINEAGE, Epoch(epoch), COMMIT_ATTEMPTS_MAX) if site.is_sink else None,
                parts=PartChain(walk.restore, snapshot.parts),
                restored=snapshot,
                unsent=unsent,
            )
        )

    # What either could do.

    def moves(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Return what the model could do by itself; both agree on it."""
        found = self.model.moves()
        runs = [action for name, action in found if name in ("read", "process", "end")]
        assert self.task.has_work == bool(runs), f"{self}: has work {self.task.has_work}, the model {runs}"
        jobs = [action for _, action in found if action[0] in ("prepare", "store", "ask_commit", "time_out")]
        own: list[tuple[Any, ...]] = [("time_out", n) for n in self._timers]
        own += [("prepare",)] if self._rotated else []
        own += [("ask_commit",)] if self._commit is not None else []
        first = self._rotated[0].checkpoint_id if self._rotated else None
        own += [("store", n) for n in self._stored if first is None or first > n]
        assert sorted(own, key=str) == sorted(jobs, key=str), f"{self}: {own}, the model {jobs}"
        # Which input the task takes from is its own choice, one of those that the model has.
        return [(name, action) for name, action in found if action not in runs] + [("run", ())] * bool(runs)

    # A step of both.

    def run(self) -> None:
        """The task does a piece of work, and the model the same one."""
        possible = [action for _, action in self.model.moves()]
        before = self.task.records_in
        channel = self.task.run()
        if channel is not None:
            action: tuple[Any, ...] = ("process", channel.input)
        elif self.site.inputs:
            action = ("finish_end",)
        else:
            action = ("read",)
            assert self.task.records_in - before == (self.model.position < len(self.site.records))
        assert action in possible, f"{self} does {action}, the model could {possible}"
        self.both(action, lambda: None)

    def act(self, action: tuple[Any, ...]) -> None:
        """Something that was asked for in the background is done, or fails."""
        task = self.task
        match action:
            case ("prepare",):
                job = self._rotated.pop(0)
                handle = self.model.handle_of(job.checkpoint_id)
                (_, modelled_records), *_ = self.model.rotated
                assert _multiset(job.transaction) == modelled_records, f"{self}: {job}"
                self.both(action, lambda: task.transactions.prepared(job.checkpoint_id, handle))
            case ("store", n):
                frozen = self._stored.pop(n)
                self.both(action, lambda: self._store(frozen))
            case ("fail_to_store", n):
                self._stored.pop(n)
                self.both(action, lambda: task.snapshots.failed(n, REASON["store"]))
            case ("ask_commit",):
                self._commit = None
                self.both(action, task.transactions.commit_succeeded)
            case ("fail_to_commit",):
                self._commit = None
                self.both(action, lambda: task.transactions.commit_failed(REASON["commit"]))
            case ("time_out", n):
                self._timers.discard(n)
                self.both(action, lambda: task.snapshots.alignment_timed_out(n))
            case ("transmit", channel):
                name = self.site.graph.channel(channel)
                assert (
                    modelled(task.output_buffers.ends[name].waiting.popleft())
                    == self.model.unsent[channel][0]
                )
                self._sent.append((channel, self.model.unsent[channel][0]))
                self.both(action, lambda: None)
            case _:
                raise AssertionError(action)

    def _store(self, frozen: FrozenTask) -> None:
        n, walk, log = frozen.checkpoint_id, self._walk, None
        state = b"".join(self.state.encoded(n, frozen.since))
        part = Part(self.model.path(n), len(state), "", "", n)
        walk.bytes_of[part.path] = state
        if frozen.log:
            log = Part(f"{part.path}.log", 1, "", "", n)
            walk.bytes_of[log.path] = b"".join(encoded_log(frozen.log))
        self.task.snapshots.stored(n, part, 0, log)

    def receive(self, message: CoordinatorMessage) -> None:
        """A word of the coordinator."""
        task = self.task
        match message:
            case TriggerCheckpoint(_, n):
                self.both(("receive", message), lambda: task.snapshots.trigger(n))
            case AbortCheckpoint(_, n):
                self.both(("receive", message), lambda: task.snapshots.abort(n))
            case CaptureSnapshots(_, n):
                self.both(("receive", message), lambda: task.snapshots.capture(n))
            case ResumeSources(_, n):
                self.both(("receive", message), lambda: task.snapshots.resume(n))
            case CommitCheckpoint(_, n):
                self.both(("receive", message), lambda: task.checkpoint_completed(n))
            case CloseLoops(_, heads):
                self.both(("receive", message), lambda: task.close_loops(heads))
            case _:
                raise AssertionError(message)

    def offer(self, channel: int, item: int) -> None:
        """Something arrives."""
        name = self.site.graph.channel(channel)
        self.both(("offer", channel, item), lambda: self.task.offer(name, real(item)))

    def start(self) -> None:
        """What was on its way is sent again, and then the task begins."""
        self.both(("start",), lambda: None)

    def both(self, action: tuple[Any, ...], tell: Any) -> None:
        """Let the model take `action`, and tell the task; what comes of it must be the same."""
        model = self.model
        concerned = action[0] != "receive" or self.site.concerns(action[1])
        if concerned:
            getattr(model, action[0])(*action[1:])
        tell()
        messages = self._drain()
        assert _told(messages) == _told(model.messages), f"{self} after {action}"
        sends, model.sends = model.sends, []
        assert _by_channel(self._sent) == _by_channel(sends), f"{self} after {action}"
        self._sent = []
        model.messages = []
        self._check_deeds(action)
        self._check_inside(action)
        for channel, item in sends:
            self._walk.pairs[self.site.graph.channels[channel][1]].offer(channel, item)
        for message in messages:
            self._walk.hear(message)

    def _drain(self) -> list[WorkerMessage]:
        """Take what stands in the task effects of the task, as the pool does."""
        task = self.task
        while True:
            jobs, task.task_effects.background_jobs = task.task_effects.background_jobs, []
            for job in jobs:
                self._take_job(job)
            outbox, task.task_effects.outbox = task.task_effects.outbox, []
            for channel, item in outbox:
                if self.site.has_outboxes:
                    task.output_buffers.ends[channel].waiting.append(item)
                else:
                    self._sent.append((channel.input, modelled(item)))
            task.emptied = []
            if not (
                task.snapshots.note_sent() or task.task_effects.background_jobs or task.task_effects.outbox
            ):
                break
        messages, task.task_effects.messages = task.task_effects.messages, []
        return messages

    def _take_job(self, job: Any) -> None:
        match job:
            case StoreFrozen(frozen):
                self._stored[frozen.checkpoint_id] = frozen
            case CancelStore(n):
                self._stored.pop(n, None)
            case PrepareTransaction():
                self._rotated.append(job)
            case WaitForAlignment(n):
                self._timers.add(n)
            case do.CommitTransactions():
                self._commit = job
            case CompleteState(n):
                for _ in self.state.complete(n):
                    pass
            case NotePause():
                pass
            case _:
                raise AssertionError(job)

    # What both are then.

    def _check_deeds(self, action: tuple[Any, ...]) -> None:
        deeds, self.model.deeds = self.model.deeds, []
        for deed in deeds:
            match deed:
                case PartWritten(path, content):
                    self._walk.contents[path] = content
                case Staged() | CommitAsked():
                    pass
        # A timer of a snapshot that is stored meanwhile finds nothing to do.
        self._timers &= self.model.timers
        assert self._timers == self.model.timers, f"{self} after {action}"
        assert self._commit == self.model.commit, f"{self} after {action}"

    def _check_inside(self, action: tuple[Any, ...]) -> None:
        model, task, graph = self.model, self.task, self.site.graph
        for channel, queue in model.queues.items():
            name = graph.channel(channel)
            found = task.input_gate.ends[name].queue.in_memory
            assert found == len(queue), f"{self} after {action}: {name}, {queue}"
        for channel, waiting in model.unsent.items():
            own = [modelled(item) for item in task.output_buffers.ends[graph.channel(channel)].waiting]
            assert own == waiting, f"{self} after {action}"
        assert dict(self.state.items()) == counts_of(model.state, graph), f"{self} after {action}"
        assert _multiset(self.writer.open) == model.open, f"{self} after {action}"
        frozen = {n for n, one in model.captured.items() if one.log is not None}
        assert self._stored.keys() <= frozen, f"{self} after {action}"
        for n, kept in self._stored.items():
            one = model.captured[n]
            assert (kept.ended, kept.is_end_forwarded) == (one.ended, one.is_end_forwarded)
            assert (kept.final_progress is not None) == (one.said and not one.ended), f"{self}: {kept}, {one}"
            log = tuple((own.channel.input, *_one(own), own.by_sender) for own in kept.log)  # type: ignore[union-attr]
            assert log == one.log, f"{self} after {action}"

    def __str__(self) -> str:
        return f"{self.site.task_id} in {self.site.graph.name}, {self._walk.kind}, seed {self._walk.seed}"


def _one(logged: Any) -> tuple[int]:
    (item,) = decode_batch(logged.data).records
    return (item,)


def _multiset(records: Sequence[int]) -> int:
    return sum(1 << 4 * record for record in records)


def counts_of(state: int, graph: Graph) -> dict[int, int]:
    """Return how often each record is in the multiset `state`."""
    return {record: times(state, record) for record in range(len(graph.routes)) if times(state, record)}


def _by_channel(sent: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for channel, item in sent:
        found.setdefault(channel, []).append(item)
    return found


def _told(messages: Sequence[WorkerMessage]) -> list[object]:
    """Return messages as far as the model has what they say."""
    return [
        _acknowledged(one) if isinstance(one, SnapshotAcknowledged) else _unnamed(one) for one in messages
    ]


def _unnamed(message: WorkerMessage) -> WorkerMessage:
    """Return a failure without the operator, which the model has no name for."""
    if not isinstance(message, TaskFailed):
        return message
    cause = message.cause
    reason = cause.message.removeprefix(f"sink {cause.operator!r}: ")
    return replace(message, cause=replace(cause, operator="", message=reason))


def _acknowledged(message: SnapshotAcknowledged) -> object:
    one = message.snapshot
    return (
        message.epoch,
        message.checkpoint_id,
        message.task,
        one.pending,
        (one.drained, one.ended, one.at_rest, one.in_flight),
        one.parts[-1].path,
    )
