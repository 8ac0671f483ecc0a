"""What is said, and what is decided, in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import assert_never

from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, TaskId
from crosscut.protocol import effects as do
from crosscut.protocol import events as on
from crosscut.protocol import messages as say
from crosscut.protocol.log import entries
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.protocol.snapshots import Snapshot
from crosscut.task.items import Barrier, EndOfInput, Item


class Words:
    """Finds words. With one worker a task is called by its vertex alone."""

    def __init__(self, parallelism: int) -> None:
        self._has_indices = parallelism > 1

    def task(self, task: TaskId) -> str:
        return str(task) if self._has_indices else str(task.vertex)

    def source(self, channel: ChannelId) -> str:
        return self.task(channel.source)

    def sources(self, channels: Iterable[ChannelId]) -> str:
        return _listed([self.source(one) for one in channels])

    # In channels.

    def item(self, item: Item) -> str:
        match item:
            case Batch():
                return ", ".join(map(_record, item.records))
            case Barrier(n):
                return f"barrier {n}"
            case EndOfInput():
                return "end of input"
            case _:
                assert_never(item)

    # Snapshot protocol of one task.

    def task_event(self, event: on.TaskEvent) -> str:
        match event:
            case on.BarrierArrived(channel, n):
                return f"barrier {n} from {self.source(channel)}"
            case on.BarrierAnnounced(channel, n):
                return f"barrier {n} has come in from {self.source(channel)}, in its turn"
            case on.BarrierDeparted(n):
                return f"barrier {n} has left on every output"
            case on.CheckpointTriggered(n):
                return f"checkpoint {n} begins at this source"
            case on.CheckpointAborted(n):
                return f"checkpoint {n} is given up"
            case on.AlignmentTimedOut(n):
                return f"barrier {n} is late"
            case on.SnapshotStored(n):
                return f"snapshot {n} is durable"
            case on.SnapshotFailed(n, reason):
                return f"snapshot {n} could not be stored ({_reason(reason)})"
            case on.CaptureAllowed(n):
                return f"everybody stands still for {n}"
            case on.SourcesResumed(n):
                return f"checkpoint {n} is complete: it goes on"
            case _:
                assert_never(event)

    def task_effects(self, effects: Sequence[do.TaskEffect], *, has_outputs: bool) -> list[str]:
        """Return what a task does because of one event."""
        # At a sink a barrier goes nowhere.
        left_out = () if has_outputs else (do.ForwardBarrier, do.OvertakeWithBarrier)
        shown = [one for one in effects if not isinstance(one, left_out)]
        return [text for one in shown if (text := self._task_effect(one))]

    def channel(
        self, protocol: SnapshotProtocol, event: on.BarrierArrived, done: list[str], *, was_logged: bool
    ) -> list[str]:
        """Return `done` with what becomes of the channel of a barrier, as the machine says when it is asked.

        Args:
            was_logged: Whether the channel was or has been logged for this checkpoint.
        """
        n, source = event.checkpoint_id, self.source(event.channel)
        if protocol.aligning == n and protocol.is_blocked(event.channel):
            return [*done, f"takes nothing more from {source} for now"]
        if was_logged and n not in protocol.logging(event.channel):
            stored = [text for text in done if text == f"stores snapshot {n}"]
            return [*(text for text in done if text not in stored), f"the log of {source} is whole", *stored]
        return done

    def _task_effect(self, effect: do.TaskEffect) -> str:
        match effect:
            case do.UnblockChannels(channels):
                return "takes from all again" if len(channels) > 1 else ""
            case do.CaptureState():
                return "freezes its state"
            case do.ForwardBarrier(n):
                return f"sends barrier {n} on"
            case do.OvertakeWithBarrier(n):
                return f"sends barrier {n} ahead of all that waits"
            case do.ExpediteBarrier(n):
                return f"moves barrier {n} ahead of what it waits behind"
            case do.StartLog(_, channels):
                return f"logs what is on its way from {self.sources(channels)}" if channels else ""
            case do.StartAlignmentTimer():
                return "starts a timer"
            case do.StoreSnapshot(n):
                return f"stores snapshot {n}"
            case do.DiscardSnapshot(n):
                return f"drops its snapshot {n}"
            case do.AcknowledgeSnapshot(n):
                return f"acknowledges {n}"
            case do.DeclineCheckpoint(n):
                return f"declines {n}"
            case do.ReportQuiet(n):
                return f"stands still for {n}"
            case _:
                assert_never(effect)

    # Committer of one sink task.

    def committer_event(self, event: on.CommitterEvent) -> str:
        match event:
            case on.TransactionPrepared(n):
                return f"output up to barrier {n} is staged"
            case on.CommitAuthorised(n):
                return f"checkpoint {n} is complete"
            case on.CommitSucceeded():
                return "readers see it"
            case on.CommitAttemptFailed(reason):
                return f"the commit has failed, or not ({_reason(reason)})"
            case _:
                assert_never(event)

    def committer_effect(self, effect: do.CommitterEffect) -> str:
        match effect:
            case do.CommitTransactions(permit, handles, delay_ms):
                later = f" in {delay_ms} ms" if delay_ms else ""
                what = f"the output of {_listed([_transaction(str(one)) for one in handles])}"
                return f"commits {what if handles else 'nothing'}{later}, permitted by {permit.checkpoint_id}"
            case do.AnnounceCommitted(n):
                return f"tells the driver that all up to {n} is committed"
            case do.FailTask(reason):
                return f"fails: {_reason(reason)}"
            case _:
                assert_never(effect)

    # Worker to driver.

    def to_driver(self, message: say.WorkerMessage) -> str:
        match message:
            case say.RegisterWorker(worker, attempt):
                return f"here is worker {worker}, attempt {attempt}"
            case say.WorkerFailed(_, _, cause):
                return f"can't start: {_reason(cause.message)}"
            case say.WorkerReady():
                return "ready: restored, connected"
            case say.RecordsFlowing():
                return "records flow"
            case say.UnitFinished():
                return "there is no more output in the log than what is visible"
            case say.UnitProgressed():
                return "the log has grown"
            case say.TaskFailed(_, task, cause):
                return f"{self.task(task)} has failed: {_reason(cause.message)}"
            case say.SnapshotAcknowledged(_, n, task, snapshot):
                return f"snapshot {n} of {self.task(task)} is durable{_snapshot(snapshot)}"
            case say.SnapshotDeclined(_, n, task, reason):
                return f"no snapshot {n} of {self.task(task)}: {_reason(reason)}"
            case say.TaskQuiet(_, n, task):
                return f"{self.task(task)} stands still for {n}"
            case say.SourceDrained(_, task):
                return f"{self.task(task)} has read all"
            case say.TransactionsCommitted(_, n, task):
                return f"{self.task(task)} has committed all up to {n}"
            case say.WorkerHeartbeat():
                return ""
            case _:
                assert_never(message)

    # Driver to worker.

    def to_worker(self, message: say.CoordinatorMessage) -> str:
        match message:
            case say.DeployTasks(epoch, _, _, restore):
                return f"epoch {epoch}: restore " + (f"checkpoint {restore}" if restore else "the beginning")
            case say.StartTasks():
                return "all are ready: go"
            case say.HaltTasks(epoch):
                return f"epoch {epoch} is over: stop"
            case say.TriggerCheckpoint(_, n):
                return f"begin checkpoint {n}"
            case say.AbortCheckpoint(_, n):
                return f"give checkpoint {n} up"
            case say.CaptureSnapshots(_, n):
                return f"everybody stands still for {n}: freeze your state"
            case say.ResumeSources(_, n):
                return f"{n} is complete: go on"
            case say.CommitCheckpoint(_, n):
                return f"checkpoint {n} is complete: commit"
            case say.CloseLoops(_, heads):
                return f"nothing can come around any more: the loop at {_listed(list(heads))} has ended"
            case say.PauseSources(_, is_paused):
                return "sources pause" if is_paused else "sources read on"
            case say.CoordinatorHeartbeat():
                return ""
            case say.StandBy():
                return "stand by"
            case say.ShutDown(reason):
                return f"exit: {_reason(reason)}"
            case _:
                assert_never(message)

    # The driver and the rest of the world.

    def job_event(self, event: on.JobEvent) -> str:
        """Return what has happened to the driver, "" if it is not worth a word."""
        match event:
            case on.LogTailRead(entries):
                found = _listed([_entry(one) for _, one in entries]) if entries else "nothing"
                return f"the log holds: {found}"
            case on.EntryAppended(index):
                return f"entry {index} is durable"
            case on.EntryTaken(index):
                return f"entry {index} exists already"
            case on.EntryUncertain(index):
                return f"no answer: entry {index} may be there, or not, or come later"
            case on.EntryRefused(index, reason):
                return f"entry {index} is refused ({_reason(reason)})"
            case on.EntryRead(index, entry):
                return f"entry {index}: {_entry(entry) if entry is not None else 'does not exist'}"
            case on.LinkClosed(_, reason):
                return f"a control link is closed ({_reason(reason)})"
            case on.WorkersEnded(reason):
                return f"Spark has ended the workers ({_reason(reason)})"
            case on.StopRequested():
                return "the user wants the job to stop"
            case on.RestartRequested():
                return "the user wants the job to restart"
            case on.CancelRequested():
                return "the user cancels the job"
            case on.CheckpointRequested():
                return "the user wants a checkpoint"
            case on.TimerFired(timer) if timer.kind in ("checkpoint-timeout", "restart", "retry-append"):
                return f"the timer {timer.kind!r} fires"
            case _:
                return ""

    def job_effect(self, effect: do.JobEffect) -> tuple[str, str]:
        """Return what the driver does, and to whom; "" if it is not worth a word."""
        match effect:
            case do.ReadLogTail():
                return "job log", "what is at your end?"
            case do.AppendEntry(index, entry):
                return "job log", f"entry {index}: {_entry(entry)}"
            case do.ReadEntry(index):
                return "job log", f"what is entry {index}?"
            case do.SubmitWorkers():
                return "Spark", "run the workers"
            case do.ReplaceWorker(worker):
                return "Spark", f"another attempt of worker {worker}"
            case do.AnswerRequest(_, completed, reason):
                done = (
                    f"here is checkpoint {completed.checkpoint_id}" if completed else f"no: {_reason(reason)}"
                )
                return "user", done
            case do.EndJob(outcome, cause):
                why = f": {_reason(cause.message)}" if cause and outcome != "fenced" else ""
                return "user", f"the job has {_ENDED[outcome]}{why}"
            case _:
                return "", ""


_ENDED: dict[do.Outcome, str] = {
    "finished": "finished",
    "stopped": "stopped",
    "cancelled": "been cancelled",
    "failed": "failed",
    "fenced": "been taken over",
}


def _record(record: object) -> str:
    return " ".join(map(_record, record)) if isinstance(record, tuple) else str(record)


def _transaction(handle: str) -> str:
    # uid/task/epoch/checkpoint
    return f"barrier {handle.rsplit('/', 1)[1]}"


def _reason(text: str) -> str:
    """Return what a reader needs of an error: no path that is another one each time, no advice."""
    return re.sub(r"in-memory/parts/\S+-[0-9a-f]{16}", "a part", text).split(";")[0]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "nobody"


def _snapshot(snapshot: Snapshot) -> str:
    said = []
    if snapshot.in_flight:
        what = "a record that was" if snapshot.in_flight == 1 else f"{snapshot.in_flight} records that were"
        said.append(f"with {what} on the way")
    if snapshot.drained:
        said.append("nothing comes out any more")
    return f" ({', '.join(said)})" if said else ""


def _entry(entry: entries.LogEntry) -> str:
    match entry:
        case entries.EpochClaimed(epoch, _, driver):
            return f"epoch {epoch} belongs to {driver}"
        case entries.CheckpointCompleted(_, n, _, is_final):
            return f"{'the final ' * is_final}checkpoint {n} is complete"
        case entries.JobFinished(_, n):
            return f"the job has finished with {n}"
        case entries.SegmentOpened(claim):
            return f"a segment, of epoch {claim.epoch}, which belongs to {claim.driver}"
        case entries.SegmentClosed(_, driver):
            return f"{driver} has closed the segment"
        case _:
            assert_never(entry)
