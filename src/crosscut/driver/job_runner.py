"""Performs the effects of `JobRun`: makes the engine runs of a job, one after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, assert_never

from crosscut.driver.driver import CoordinatorDriver
from crosscut.driver.engine_run import EngineRun, RunContext
from crosscut.errors import InternalError
from crosscut.events import Ended, EngineSwitched
from crosscut.events import JobEvent as WatchedEvent
from crosscut.foundation.ids import CheckpointId, Epoch
from crosscut.graph.specs import JobGraph
from crosscut.monitoring.job_log_lines import LOGGER
from crosscut.monitoring.observer import PROGRESS_MAX
from crosscut.monitoring.status import JobStatus, Observations
from crosscut.protocol.effects import EndJob
from crosscut.protocol.events import CancelRequested, JobEvent, StopRequested
from crosscut.protocol.job.job_run import (
    AnnounceEnd,
    AnnounceOwned,
    AnnounceSwitch,
    CloseEngine,
    EndRequested,
    EndRun,
    EngineRunClosed,
    EngineRunEnded,
    EpochOwned,
    JobBroken,
    JobRun,
    JobStarted,
    PostToEngine,
    RunEffect,
    RunEvent,
    StartEngine,
)
from crosscut.protocol.log.recovery import Predecessor
from crosscut.protocol.messages import FailureCause
from crosscut.protocol.microbatch.engine_switch import Engines, StopEngine


class JobRunner:
    """Runs one job. Everything is called on its loop.

    Args:
        notify: Takes the events for listeners.
        owned: Called once the job owns its checkpoint directory.

    Attributes:
        machine: Decides.
        driver: That of the newest engine run; None at first.
        graph: What that runs.
        engine_count: How many engine runs there have been; changes after `driver`.
        last_status: Of the end; None before.
        error: What has ended the job, where that was raised here.
        progress_before: What engine runs before that one have reported.
        is_switching: Whether one engine makes way for the other. Any thread may read it.
    """

    def __init__(
        self, context: RunContext, notify: Callable[[WatchedEvent], None], owned: Callable[[], None]
    ) -> None:
        spec = context.spec
        self._context = context
        self._notify = notify
        self._owned = owned
        engines = None
        if (choice := spec.choice) is not None:
            engines = Engines(
                caught_up_at=choice.caught_up_at,
                behind_at=choice.behind_at,
                behind_for_ms=choice.behind_for_ms,
            )
        self.machine = JobRun(next(iter(spec.engines)), engines)
        self._failpoints = context.ports.new_failpoints()
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[EndJob] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False
        # None: it is closed, or the next one could not be made.
        self._engine: EngineRun | None = None
        self.driver: CoordinatorDriver | None = None
        self.graph: JobGraph = spec.graph
        self.error: BaseException | None = None
        self.progress_before: list[dict[str, Any]] = []
        # What engine runs hand on to the next one.
        self._seen = Observations()
        self._follows: Predecessor | None = None
        self.engine_count = 0
        self.last_status: JobStatus | None = None
        # The last event of the newest engine run: that may not be the end of the job.
        self._reported_end: Ended | None = None
        self._ended_before: Ended | None = None
        self.is_switching = False

    async def run(self) -> EndJob:
        """Run the job; return how it has ended."""
        try:
            self.handle(JobStarted())
            return await self._over
        finally:
            self._is_over = True

    def post(self, event: JobEvent) -> None:
        """Take what the user asks for."""
        if isinstance(event, StopRequested | CancelRequested):
            self.handle(EndRequested(event))
        elif self.driver is not None:
            self.driver.post(event)

    def handle(self, event: RunEvent) -> None:
        """Take an event, and perform what follows."""
        errors: list[Exception] = []
        try:
            for effect in self.machine.handle(event):
                # Each of them: the machine counts on all, and waits for their answers.
                try:
                    self._perform(effect)
                except Exception as error:  # noqa: BLE001 - whatever it is, the job must not wait for an answer
                    errors.append(error)
        except Exception as error:  # noqa: BLE001 - as for the effects
            errors.append(error)
        if self._context.spec.choice is not None:
            # One assignment: within an event another thread could see the next phase with the number before.
            self.is_switching = self.machine.is_switching or self.engine_count != self.machine.number
        for one in errors:
            self._broken(one)

    def _perform(self, effect: RunEffect) -> None:
        match effect:
            case StartEngine():
                self._begin(self._drive(self._made(effect)))
            case PostToEngine(request):
                if self.driver is not None:
                    self.driver.post(request)
            case StopEngine(why):
                LOGGER.info("job %r: switches to the other engine: %s", self._context.spec.name, why)
                self._failpoints("engine.stop")
                if self.driver is not None:
                    self.driver.post(StopRequested())
            case AnnounceOwned():
                self._owned()
            case AnnounceSwitch():
                self._announce_switch(effect)
            case AnnounceEnd(end):
                self._notify(self._ended_event(end))
            case CloseEngine(is_last):
                self._begin(self._close(is_last=is_last))
            case EndRun(end):
                if not self._over.done():
                    self._over.set_result(end)
            case _:
                assert_never(effect)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what takes time."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        cancelled = InternalError("a task of the job's event loop was cancelled from outside")
        error = cancelled if task.cancelled() else task.exception()
        # When the job has ended, the loop cancels its remaining tasks and accepts no new ones.
        if error is not None and not self._is_over:
            self._broken(error)

    def _broken(self, error: BaseException) -> None:
        if self.machine.end is None:
            self.error = error
        else:
            self._warn(error)
        self.handle(JobBroken(FailureCause(type(error).__name__, str(error))))

    def _warn(self, error: BaseException) -> None:
        """Tell of an error that does not change how the job ends."""
        LOGGER.warning(
            "job %r: some of its resources could not be closed: %s: %s",
            self._context.spec.name,
            type(error).__name__,
            error,
            exc_info=error if LOGGER.isEnabledFor(logging.DEBUG) else None,
        )

    def _made(self, effect: StartEngine) -> EngineRun:
        spec = self._context.spec.engines[effect.engine]
        engine = EngineRun(self._context, effect.number, spec, self._take, self._seen, self._follows)
        if self.driver is not None:
            # Only now: until another driver takes its place, this one still reports its own progress.
            self.progress_before = [*self.progress_before, *self.driver.progress()][-PROGRESS_MAX:]
        self._engine, self.graph, self.driver = engine, spec.graph, engine.driver
        # In this order: other threads must not take the driver before for this one.
        self.engine_count = effect.number
        return engine

    async def _drive(self, engine: EngineRun) -> None:
        await engine.start()
        if not engine.driver.ended.done():
            self.handle(EpochOwned())
            if (choice := self._context.spec.choice) is not None:
                self._look(engine, choice.look_every_ms / 1_000)
        # Shielded: others read the future, also when the loop has cancelled its tasks.
        self.handle(EngineRunEnded(await asyncio.shield(engine.driver.ended)))

    def _look(self, engine: EngineRun, every_s: float) -> None:
        """See how far behind the job is, as long as this engine run does something."""
        if engine is not self._engine or engine.driver.ended.done():
            return
        try:
            if (news := engine.lag()) is not None:
                self.handle(news)
        except Exception as error:  # noqa: BLE001 - as in `handle`
            self._broken(error)
            return
        self._loop.call_later(every_s, self._look, engine, every_s)

    async def _close(self, *, is_last: bool) -> None:
        engine, self._engine = self._engine, None
        try:
            if engine is not None:
                await self._close_run(engine, is_last=is_last)
        except Exception as error:  # noqa: BLE001 - as in `handle`
            self._broken(error)
        finally:
            self.handle(EngineRunClosed())

    async def _close_run(self, engine: EngineRun, *, is_last: bool) -> None:
        driver = engine.driver
        # First: whatever fails below, the cluster must not hold anything for this run any more.
        for error in await engine.close():
            self._warn(error)
        if is_last:
            # What has broken the job comes first.
            self.error = self.error or driver.error
            self.last_status = driver.status()
            return
        self._follows = engine.predecessor
        # Not the end of the job, which has an event of its own.
        self._ended_before, self._reported_end = self._reported_end, None
        await driver.savepoints_written(self._context.spec.savepoint_timeout_s)
        self._seen = driver.carried_on()
        self._failpoints("engine.switch")

    # For listeners.

    def _take(self, event: WatchedEvent) -> None:
        if isinstance(event, Ended):
            self._reported_end = event
        else:
            self._notify(event)

    def _ended_event(self, end: EndJob) -> Ended:
        """Return the last event of the job."""
        reported = self._reported_end
        if reported is not None and reported.outcome == end.outcome:
            return reported
        if reported is None and self.driver is not None and self.driver.status().epoch:
            # The job breaks while the engine run goes on.
            return self.driver.end_event(end)
        cause = "" if end.cause is None else end.cause.message
        if (before := reported or self._ended_before) is not None:
            return replace(before, at_ms=self._wall_ms(), outcome=end.outcome, cause=cause)
        return ended_event(self._context.spec.name, end, self._wall_ms())

    def _announce_switch(self, effect: AnnounceSwitch) -> None:
        if self.driver is None:
            return
        status = self.driver.status()
        n = status.resumes_from
        self._notify(
            EngineSwitched(
                job=self._context.spec.name,
                at_ms=self._wall_ms(),
                epoch=Epoch(status.epoch),
                engine=effect.engine,
                reason=effect.why,
                resumes_from=None if n is None else CheckpointId(n),
            )
        )

    def _wall_ms(self) -> int:
        return int(self._context.ports.clock.now().timestamp() * 1_000)


_NO_EPOCH = Epoch(0)


def ended_event(name: str, end: EndJob, at_ms: int, epoch: Epoch = _NO_EPOCH) -> Ended:
    """Return the last event of a job that no engine run has told of."""
    return Ended(
        job=name,
        at_ms=at_ms,
        epoch=epoch,
        outcome=end.outcome,
        cause="" if end.cause is None else end.cause.message,
        resumes_from=None,
    )
