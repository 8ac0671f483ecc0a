"""Writes down what is said on a stage: who says what to whom, and what each decides.

A message is written down when it is heard. Heartbeats, positions, sizes and hashes are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.conversations.stage import Stage
from tests.conversations.words import Words

from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId, TaskId
from crosscut.protocol import effects as do
from crosscut.protocol import events as on
from crosscut.protocol.job.coordinator import Coordinator
from crosscut.protocol.snapshot.commit import Committer
from crosscut.protocol.snapshot.snapshotting import SnapshotProtocol
from crosscut.task.chain import Chain
from crosscut.task.task import Task
from crosscut.testing.simulator.processes import Process
from crosscut.testing.simulator.sinks import Resource
from crosscut.testing.simulator.worker import WorkerProcess
from crosscut.worker.worker import Worker


@dataclass(frozen=True)
class Line:
    """One thing that is said or done.

    Attributes:
        told: To whom, "" if it is said to nobody.
        task: Which task it is about, "" if none.
        is_record: It is about records on their way.
    """

    ms: int
    who: str
    told: str
    text: str
    task: str = ""
    is_record: bool = False


class Recording:
    """All that is said on a stage."""

    def __init__(self, stage: Stage) -> None:
        self.lines: list[Line] = []
        self._stage = stage
        self._words = Words(stage.options.parallelism)
        self._task_of: dict[int, TaskId] = {}
        self._kept: list[object] = []
        self._senders: set[TaskId] = set()
        self._sources: set[TaskId] = set()
        self._links: dict[tuple[str, int], str] = {}

    def _add(self, who: str, text: str, told: str = "", task: str = "", *, is_record: bool = False) -> None:
        if text:
            ms = self._stage.clock.now_us // 1_000
            self.lines.append(Line(ms, who, told, text, task, is_record))

    @property
    def _speaker(self) -> str:
        return _name(self._stage.running)

    # The driver.

    def coordinator_started(self, effects: list[Any]) -> None:
        self._add(self._speaker, "starts")
        self._effects(effects)

    def coordinator_heard(self, event: on.JobEvent, effects: list[Any], before: Any, after: Any) -> None:
        driver = self._speaker
        match event:
            case on.LinkOpened(link, worker, _):
                self._links[driver, link] = f"worker {worker}"
            case on.MessageReceived(link, message):
                worker_name = self._links.get((driver, link), "a worker")
                self._add(worker_name, self._words.to_driver(message), driver)
            case on.LinkClosed(link, reason):
                self._add(driver, f"has lost {self._links.get((driver, link), 'a worker')} ({reason})")
            case _:
                self._add(driver, self._words.job_event(event))
        self._effects(effects)
        if before is not after:
            self._add(driver, f"is {after.name}: {after.value}")

    def _effects(self, effects: list[Any]) -> None:
        for effect in effects:
            told, text = self._words.job_effect(effect)
            self._add(self._speaker, text, told)

    # Workers.

    def worker_heard(self, message: Any) -> None:
        worker = self._stage.running
        if isinstance(worker, WorkerProcess):
            self._add(worker.driver.name, self._words.to_worker(message), self._speaker)

    def task_made(self, task: Task) -> None:
        if task.output_buffers.outputs:
            self._senders.add(task.task_id)
        if task.is_source:
            self._sources.add(task.task_id)
        for part in (task._protocol, task._committer, task.chain):
            if part is not None:
                self._task_of[id(part)] = task.task_id
                # An id is one object's for as long as that lives.
                self._kept.append(part)

    def offered(self, task: Task, channel: ChannelId, item: Any) -> None:
        name, text = self._words.task(task.task_id), self._words.item(item)
        self._add(self._words.source(channel), text, name, name, is_record=isinstance(item, Batch))

    def taken(self, chain: Chain, batch: Batch) -> None:
        task = self._task_of.get(id(chain))
        if task is None or not batch.records:
            return
        name, text = self._words.task(task), self._words.item(batch)
        if task in self._sources:
            self._add(name, f"reads {text}", task=name, is_record=True)
            return
        newest = next(one for one in reversed(self.lines) if one.task == name)
        if newest.text != text:
            # It has waited.
            self._add(name, f"takes {text}", task=name, is_record=True)

    def task_heard(
        self,
        protocol: SnapshotProtocol,
        event: on.TaskEvent,
        effects: list[Any],
        drops: str,
        logged: set[int],
    ) -> None:
        task = self._task_of[id(protocol)]
        done = self._words.task_effects(effects, has_outputs=task in self._senders)
        if isinstance(event, on.BarrierArrived):
            logged |= {
                one.checkpoint_id
                for one in effects
                if isinstance(one, do.StartLog) and event.channel in one.channels
            }
            done = self._words.channel(protocol, event, done, was_logged=event.checkpoint_id in logged)
        name = self._words.task(task)
        if drops and isinstance(event, on.AlignmentTimedOut):
            # It was not late; nobody stops a timer.
            return
        if drops:
            done.append(f"drops it ({drops})")
        if done or not isinstance(event, on.BarrierDeparted | on.CheckpointAborted | on.SourcesResumed):
            said = "; ".join(done) or "waits for the others"
            self._add(name, f"{self._words.task_event(event)}: {said}", task=name)

    def committer_heard(self, committer: Committer, event: on.CommitterEvent, effects: list[Any]) -> None:
        name = self._words.task(self._task_of[id(committer)])
        done = "; ".join(self._words.committer_effect(one) for one in effects)
        self._add(name, self._words.committer_event(event) + (f": {done}" if done else ""), task=name)

    # The rest of the world.

    def became_visible(self, records: list[Any]) -> None:
        text = ", ".join(" ".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in records)
        self._add("sink", f"readers see {text}")

    def noted(self, text: str, detail: object) -> None:
        # Who is killed says so.
        if text.startswith("fault: ") and "kill" not in text:
            self._add("what goes wrong", text.removeprefix("fault: "))
        for begin in ("worker", "driver"):
            if text.startswith(begin) and text.endswith(" ends"):
                self._add(text.removesuffix(" ends").split(" (")[0], f"is dead ({detail})")


def _name(process: Process | None) -> str:
    return process.name.split(" (")[0] if process is not None else "somebody"


@contextmanager
def recorded(stage: Stage) -> Iterator[Recording]:
    """Write down what is said while this is entered."""
    recording = Recording(stage)
    with pytest.MonkeyPatch.context() as patch:

        def after(kind: type, name: str, listen: Callable[..., None]) -> None:
            plain = getattr(kind, name)

            def method(self: Any, *arguments: Any, **named: Any) -> Any:
                result = plain(self, *arguments, **named)
                listen(self, result, *arguments)
                return result

            patch.setattr(kind, name, method)

        def before(kind: type, name: str, listen: Callable[..., None]) -> None:
            plain = getattr(kind, name)

            def method(self: Any, *arguments: Any, **named: Any) -> Any:
                listen(self, *arguments)
                return plain(self, *arguments, **named)

            patch.setattr(kind, name, method)

        plain_job = Coordinator.handle

        def job_handle(self: Coordinator, event: on.JobEvent) -> list[Any]:
            phase = self.phase
            effects = plain_job(self, event)
            recording.coordinator_heard(event, effects, phase, self.phase)
            return effects

        patch.setattr(Coordinator, "handle", job_handle)

        plain_task = SnapshotProtocol.handle

        def task_handle(self: SnapshotProtocol, event: on.TaskEvent) -> list[Any]:
            drops = self.dropped.copy()
            logged = set(self.logging(event.channel)) if isinstance(event, on.BarrierArrived) else set()
            effects = plain_task(self, event)
            recording.task_heard(self, event, effects, "".join(self.dropped - drops), logged)
            return effects

        patch.setattr(SnapshotProtocol, "handle", task_handle)
        after(Coordinator, "start", lambda _, effects: recording.coordinator_started(effects))
        after(Committer, "handle", lambda it, effects, event: recording.committer_heard(it, event, effects))
        after(Task, "__init__", lambda it, *_: recording.task_made(it))
        before(Worker, "_receive", lambda _, message: recording.worker_heard(message))
        before(Task, "offer", recording.offered)
        before(Chain, "process", recording.taken)
        plain_commit = Resource.commit

        def commit(self: Resource, *arguments: Any) -> None:
            known = len(self.committed)
            plain_commit(self, *arguments)
            for _, records in list(self.committed.values())[known:]:
                recording.became_visible(records)

        patch.setattr(Resource, "commit", commit)
        plain_note = stage.note

        def note(text: str, detail: object = None) -> None:
            recording.noted(text, detail)
            plain_note(text, detail)

        patch.setattr(stage, "note", note)
        yield recording
