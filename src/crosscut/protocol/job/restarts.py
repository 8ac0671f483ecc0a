"""The failures of a job: how many within the window, how many in a row, and is another restart worth it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import WorkerIndex
from crosscut.protocol.effects import StartTimer
from crosscut.protocol.events import Timer
from crosscut.protocol.job.deaths import advice, deaths_of
from crosscut.protocol.messages import FailureCause


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The restart strategy in milliseconds; see `crosscut.contracts.settings.Restart`.

    Attributes:
        last_delay_ms: The least delay before the last restart that `same_record_max` allows, unless the
            failure is certain to be a mistake.
        untried: Operators that are not tried in copies of the process, in words.
    """

    failures_max: int
    window_ms: int
    delay_ms: int
    delay_step_ms: int
    delay_max_ms: int
    same_record_max: int
    untried: str = ""
    last_delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class RestartAfter:
    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The job fails, with the first cause of the series.

    Attributes:
        why: There is no other restart.
        advice: What to look at.
        may_pass: What has failed so often may have been down for long; another start may succeed.
    """

    cause: FailureCause
    why: str
    advice: str = ""
    may_pass: bool = False

    @property
    def shown(self) -> FailureCause:
        """The cause, with why there is no other restart."""
        message = f"{self.cause.message} (given up after {self.why}{self.advice})"
        is_transient = self.cause.is_transient or self.may_pass
        return replace(self.cause, message=message, is_transient=is_transient)


MISTAKES = frozenset(
    {"TypeError", "AttributeError", "NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError"}
)
"""Exceptions that say that the code is wrong, whatever goes on around it."""

IMPORTS = frozenset({"ImportError", "ModuleNotFoundError"})
"""Those that no operator need be to blame for: a worker that starts loads the modules of all of them."""


def restart(failures: Sequence[FailureCause], in_a_row: int, policy: RestartPolicy) -> RestartAfter | GiveUp:
    """Decide after a failure.

    Args:
        failures: Those within the window, the newest last; at least one.
        in_a_row: Failures since a checkpoint was last completed, this one included: the delay grows
            with them, so a job that makes progress is never slowed down.
    """
    newest = failures[-1]
    if newest.is_final:
        return GiveUp(newest, "a failure that no restart can mend")
    if len(failures) > policy.failures_max:
        return _spent(failures, f"{len(failures)} failures within {policy.window_ms / 1000:g} s", policy)
    if in_a_row > policy.failures_max:
        # However far apart: a call that hangs takes its time.
        return _spent(failures, f"{in_a_row} failures in a row, without progress", policy)
    if why := _why_no_other(failures, in_a_row, policy.same_record_max):
        return GiveUp(newest, why)
    if in_a_row <= 1:
        delay_ms = policy.delay_ms
    else:
        delay_ms = min(policy.delay_step_ms << min(in_a_row - 2, 30), policy.delay_max_ms)
    if not _is_sure(newest) and _why_no_other((*failures, newest), in_a_row + 1, policy.same_record_max):
        # A short outage would use up the restarts within a second, before it can pass.
        delay_ms = max(delay_ms, policy.last_delay_ms)
    return RestartAfter(delay_ms)


def _why_no_other(failures: Sequence[FailureCause], in_a_row: int, same_max: int) -> str:
    """Return why a failure that repeats itself allows no other restart; "" if it does."""
    if same_max == 0:
        return ""
    if same_max <= _strikes(failures):
        return f"the same record failed {same_max} times in a row"
    if same_max <= _refusals(failures):
        return f"{failures[-1].operator!r} was refused {same_max} times in a row"
    if same_max <= min(in_a_row, _mistakes(failures)):
        return f"the same mistake {same_max} times in a row, without progress"
    return ""


def _spent(failures: Sequence[FailureCause], why: str, policy: RestartPolicy) -> GiveUp:
    """Return what to say when the restart strategy allows no other restart."""
    hint = advice(failures, policy.untried) if policy.same_record_max else ""
    # Of deaths the newest: it comes after the records were tried.
    cause = failures[-1] if hint else failures[0]
    return GiveUp(cause, why, hint, may_pass=not hint and not _is_sure(cause))


def _strikes(failures: Sequence[FailureCause]) -> int:
    """Return how many failures in a row, the newest last, are the fault of one and the same record."""
    newest = failures[-1]

    def is_strike(one: FailureCause) -> bool:
        is_same = (one.kind, one.operator, one.record) == (newest.kind, newest.operator, newest.record)
        return is_same and _is_fault_of_record(one)

    return sum(1 for _ in takewhile(is_strike, reversed(failures)))


def _mistakes(failures: Sequence[FailureCause]) -> int:
    """Return how many failures in a row, the newest last, are the same kind of mistake in one operator.

    Of many tasks another one is the first to report it each time, so neither the record is the same nor the
    message, which names the task.
    """
    newest = failures[-1]

    def is_same(one: FailureCause) -> bool:
        is_it = (one.kind, one.operator) == (newest.kind, newest.operator)
        return is_it and bool(one.operator or one.kind in IMPORTS) and _is_mistake(one)

    return sum(1 for _ in takewhile(is_same, _without_ends_of_spark(failures)))


def _refusals(failures: Sequence[FailureCause]) -> int:
    """Return how many failures in a row, the newest last, one source or sink calls permanent.

    Each task has its own refused record, and a refused commit comes after a completed checkpoint: neither
    another message nor progress in between makes it something else.
    """
    newest = failures[-1]
    others = _without_ends_of_spark(failures)
    same = takewhile(lambda one: one.is_permanent and one.operator == newest.operator, others)
    return sum(1 for _ in same)


SPARK_JOB_ENDED = "SparkJobEnded"
"""The kind of the failure that Spark has ended all workers."""


def _without_ends_of_spark(failures: Sequence[FailureCause]) -> list[FailureCause]:
    """Return `failures` with the newest first, and without those that Spark made of another one.

    Where it allows an attempt only once, it ends all workers after each that could not start.
    """
    return [one for one in reversed(failures) if one.kind != SPARK_JOB_ENDED]


def _is_fault_of_record(cause: FailureCause) -> bool:
    """Tell whether the record is to blame, rather than something that its function needs.

    A job goes back to where its checkpoint was, so the record that meets a service that is down is the
    same after each restart, too. But then no other record gets through either.
    """
    if not cause.record or cause.is_from_outside:
        return False
    return not cause.is_first or _is_mistake(cause)


def _is_mistake(cause: FailureCause) -> bool:
    """Tell whether the code is wrong, whatever goes on around it."""
    return not cause.is_from_outside and (cause.is_certain or cause.kind in MISTAKES)


def _is_sure(cause: FailureCause) -> bool:
    """Tell whether no outage can be behind a failure that ends a job when it repeats itself."""
    return cause.is_permanent or cause.kind in MISTAKES or (cause.is_certain and not cause.may_heal)


def is_hopeless(cause: FailureCause) -> bool:
    """Tell whether trying the same call again is of no use."""
    return cause.is_permanent or _is_mistake(cause)


ASKED = "restart requested"
"""The kind of a cause that is no failure. No exception can be called that."""


def asked() -> FailureCause:
    """Return the cause of a restart that the user wants."""
    return FailureCause(ASKED, "a restart was asked for")


class Failures:
    """What `crosscut.protocol.job.restart` has to know, epoch after epoch."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self.failures: tuple[FailureCause, ...] = ()
        """Those within the window, the newest last; restarts that were asked for, too, which don't count."""
        self.restart_count = 0
        self.hopeless: FailureCause | None = None
        """A failure that no restart can mend, if this driver still owns the job: its next claim tells."""
        self._failures_seen = 0
        self._failures_in_a_row = 0
        self._round: frozenset[WorkerIndex] = frozenset()
        self._round_delay_ms = 0

    def note(self, cause: FailureCause) -> tuple[StartTimer, RestartAfter | GiveUp]:
        """Note a failure; return the timer that has it forgotten, and whether to restart."""
        self.failures = (*self.failures, cause)
        self._failures_seen += 1
        forget = StartTimer(Timer("forget-failure", number=self._failures_seen), self._policy.window_ms)
        if cause.kind == ASKED:
            return forget, RestartAfter(self._policy.delay_ms)
        self._failures_in_a_row += 1
        counted = [one for one in self.failures if one.kind != ASKED]
        return forget, restart(counted, self._failures_in_a_row, self._policy)

    def start_failed(
        self, worker: WorkerIndex, cause: FailureCause
    ) -> tuple[StartTimer | None, RestartAfter | GiveUp]:
        """Note that `worker` could not start; return the timer as `note`, and when it may try again.

        The workers that fail once each are one failure, however many they are: a file system that was away
        for a moment would end any large job. A round of starts is over as soon as one of them fails again.
        """
        if self._round and worker not in self._round and not cause.is_final:
            self._round |= {worker}
            return None, RestartAfter(self._round_delay_ms)
        self._round = frozenset({worker})
        forget, decision = self.note(cause)
        if isinstance(decision, RestartAfter):
            self._round_delay_ms = decision.delay_ms
        return forget, decision

    def end_round(self) -> None:
        """Note that the workers start for another reason from now on."""
        self._round = frozenset()

    def failover(
        self, cause: FailureCause, *, is_restoring: bool
    ) -> tuple[StartTimer, RestartAfter | GiveUp]:
        """Note a failure of a deployed job; return the timer as `note`, and whether to claim another epoch.

        Args:
            is_restoring: Tasks were being restored. A driver that has slept finds parts gone, and output
                newer than its checkpoint: all is well, and it is fenced. Only the owner of a job may call
                it damaged, so it claims once more.
        """
        self.end_round()
        forget, decision = self.note(cause)
        if isinstance(decision, RestartAfter):
            self.restart_count += 1
        elif cause.is_final and is_restoring:
            self.hopeless = decision.shown
            return forget, RestartAfter(0)
        return forget, decision

    def deaths(self, worker: WorkerIndex) -> int:
        """Return the deaths for which `worker` looks for a record that ends its process; 0: it does not."""
        return deaths_of(worker, self.failures) if self._policy.same_record_max else 0

    def forget_oldest(self) -> None:
        """Note that the oldest failure has left the window."""
        self.failures = self.failures[1:]

    def note_progress(self) -> None:
        """Note that a checkpoint was completed, or that the log of a worker has grown for a while."""
        self._failures_in_a_row = 0
