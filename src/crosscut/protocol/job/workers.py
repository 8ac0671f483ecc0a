"""The workers of a job: which one holds which slot, which is on standby, which is ready, and which is silent.

Spark supplies zombies: its kills are best effort, its attempt numbers repeat, and speculation makes two
live attempts of one Spark task. One attempt is admitted for each slot; its identity is the control link
that it proved the secret on, never a number that Spark reuses.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import assert_never

from crosscut.foundation.frozen import dataclass
from crosscut.foundation.ids import AttemptId, Epoch, Lineage, WorkerIndex
from crosscut.protocol.effects import CloseLink, JobEffect, SendMessage, StartTimer, SubmitWorkers
from crosscut.protocol.events import LinkId, Timer, WorkersEnded
from crosscut.protocol.job.restarts import SPARK_JOB_ENDED
from crosscut.protocol.messages import (
    CoordinatorHeartbeat,
    CoordinatorMessage,
    DeployTasks,
    FailureCause,
    Peer,
    RegisterWorker,
    ShutDown,
    SplitAssignment,
    StandBy,
    WorkerFailed,
)
from crosscut.protocol.splits.rescaling import StateAssignment, by_worker
from crosscut.protocol.telemetry import LogLine


@dataclass(frozen=True, slots=True)
class Identity:
    """Which attempt of which worker a link has proven to be."""

    worker: WorkerIndex
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class RegisteredAttempt:
    """An attempt that registered, and the link it speaks on."""

    link: LinkId
    registration: RegisterWorker


@dataclass(frozen=True, slots=True)
class Admit:
    """The slot is free: the worker takes it."""


@dataclass(frozen=True, slots=True)
class KeepOnStandby:
    """A live worker holds the slot, so the new one waits. If the holder is a zombie that Spark has given up,
    its silence or its closed link will show it. To refuse the new worker would use up Spark's attempts."""


@dataclass(frozen=True, slots=True)
class TurnAway:
    """The worker does not belong to this job or slot, and has to exit."""

    reason: str


def admission(
    newcomer: RegisterWorker,
    parallelism: int,
    held: Mapping[WorkerIndex, RegisteredAttempt],
    standby: Mapping[WorkerIndex, RegisteredAttempt],
) -> Admit | KeepOnStandby | TurnAway:
    """Decide what happens to a worker that registers."""
    index = newcomer.worker
    if not 0 <= index < parallelism:
        return TurnAway(f"worker {index} of a job that has workers 0 to {parallelism - 1}")
    if index not in held:
        return Admit()
    if held[index].registration.attempt == newcomer.attempt:
        return TurnAway(f"attempt {newcomer.attempt} of worker {index} is registered already")
    if index in standby:
        return TurnAway(f"worker {index} is held by one live attempt, and a second one waits already")
    return KeepOnStandby()


LAST_LINES_MAX = 3
"""Lines that a worker has logged, shown when it is lost."""
LAST_LINE_CHARS_MAX = 300
"""Of each."""

LIVENESS_TICKS = 4
"""Ticks of silence after which a link counts as dead; a tick is a quarter of the timeout."""


@dataclass(frozen=True, slots=True)
class Vacated:
    """The holder of slot `index` is gone. A worker on standby for it holds it now."""

    index: WorkerIndex
    place: RegisteredAttempt

    @property
    def name(self) -> str:
        """Who it was."""
        one = self.place.registration
        return f"worker {self.index} (pid {one.pid} on {one.host})"


class WorkerRegistry:
    """The slots by worker index, with one attempt on standby for each.

    Args:
        parallelism: How many slots there are.
        heartbeat_timeout_ms: Silence after which a link counts as dead.
        dropped: Counts stale and repeated input.

    Attributes:
        held: The holder of each slot.
        standby: Who waits for it.
    """

    def __init__(
        self, parallelism: int, heartbeat_timeout_ms: int, dropped: Counter[str] | None = None
    ) -> None:
        self.parallelism = parallelism
        self._heartbeat_timeout_ms = heartbeat_timeout_ms
        self.held: dict[WorkerIndex, RegisteredAttempt] = {}
        self.standby: dict[WorkerIndex, RegisteredAttempt] = {}
        # Spark has been asked for workers, and runs them.
        self._is_submitted = False
        # Those that have restored their tasks and connected, in this epoch.
        self._ready: set[WorkerIndex] = set()
        self._proven: dict[LinkId, Identity] = {}
        # The place that each link holds or waits for: looked up for every message.
        self._wanted: dict[LinkId, WorkerIndex] = {}
        self._silent_ticks: dict[LinkId, int] = {}
        self._last_lines: dict[LinkId, tuple[LogLine, ...]] = {}
        # Holders are numbered as they come, so that each is told of those that it has not been told of.
        self._holders_seen = 0
        self._number: dict[WorkerIndex, int] = {}
        self._peers_sent_up_to: dict[LinkId, int] = {}
        # Where the holders were that are lost, for people.
        self._last_host: dict[WorkerIndex, str] = {}
        self.dropped: Counter[str] = Counter() if dropped is None else dropped

    @property
    def is_full(self) -> bool:
        """Whether every slot is held."""
        return len(self.held) == self.parallelism

    @property
    def are_all_ready(self) -> bool:
        """Whether every worker has restored its tasks and connected."""
        return len(self._ready) == self.parallelism

    def everybody(self) -> list[RegisteredAttempt]:
        """Return the holders by index, then those on standby."""
        standby = [place for _, place in sorted(self.standby.items())]
        return [place for _, place in sorted(self.held.items())] + standby

    def to_holders(self, message: CoordinatorMessage) -> list[JobEffect]:
        """Return what sends `message` to the holder of every place."""
        places = sorted(self.held.values(), key=lambda one: one.link)
        return [SendMessage(place.link, message) for place in places]

    def to_first_holder(self, message: CoordinatorMessage, to_others: CoordinatorMessage) -> list[JobEffect]:
        """Return what sends `message` to the holder of the first place, `to_others` to all others."""
        places = sorted(self.held.items(), key=lambda one: one[1].link)
        return [SendMessage(place.link, to_others if index else message) for index, place in places]

    def to_holder(self, index: WorkerIndex, message: CoordinatorMessage) -> JobEffect:
        """Return what sends `message` to the holder of one place, which is held."""
        return SendMessage(self.held[index].link, message)

    def to_everybody(self, message: CoordinatorMessage) -> list[JobEffect]:
        """Return what sends `message` to everybody, those on standby included."""
        places = sorted(self.everybody(), key=lambda one: one.link)
        return [SendMessage(place.link, message) for place in places]

    def peers_after(self, number: int) -> tuple[Peer, ...]:
        """Return where the holders with a number above `number` can be reached, by index."""
        return tuple(
            Peer(index, place.registration.host, place.registration.data_port)
            for index, place in sorted(self.held.items())
            if self._number[index] > number
        )

    def index_of(self, link: LinkId) -> WorkerIndex | None:
        """Return the place that `link` holds, if any."""
        index = self._wanted.get(link)
        return index if index in self.held and self.held[index].link == link else None

    def knows(self, link: LinkId) -> bool:
        """Whether `link` has registered and is not gone."""
        return link in self._wanted

    def opened(self, link: LinkId, proven: Identity) -> None:
        """Note who is at the other end of `link`."""
        self._proven[link] = proven

    def is_proven(self, link: LinkId, message: RegisterWorker | WorkerFailed) -> bool:
        """Whether `message` speaks of whom `link` has proven to be."""
        return self._proven.get(link) == Identity(message.worker, message.attempt)

    # Workers come.

    def submit(self) -> list[JobEffect]:
        """Ask Spark for workers, unless it runs them already."""
        if self._is_submitted:
            return []
        self._is_submitted = True
        return [SubmitWorkers()]

    def start_failed(self, link: LinkId, message: WorkerFailed, *, is_ending: bool) -> FailureCause | None:
        """Take the report of a worker that can't start; return the cause if that is a failure of the job.

        A slot that is held does not need that attempt.

        Args:
            is_ending: The job takes no other worker any more.
        """
        index = message.worker
        if not self.is_proven(link, message):
            self.dropped["failed start of somebody else"] += 1
            return None
        if is_ending or self.knows(link) or index in self.held or not 0 <= index < self.parallelism:
            self.dropped["failed start that does not matter"] += 1
            return None
        del self._proven[link]
        sent_up_to = f"worker {index} could not start: {message.cause.message}"
        return replace(message.cause, message=sent_up_to)

    def register(self, link: LinkId, newcomer: RegisterWorker) -> list[JobEffect]:
        """Give `newcomer` the slot it asks for, or keep it on standby, or turn it away."""
        if self.knows(link):
            self.dropped["repeated registration"] += 1
            return []
        if not self.is_proven(link, newcomer):
            self.dropped["registration as somebody else"] += 1
            who = f"attempt {newcomer.attempt} of worker {newcomer.worker}"
            return self._turn_away(link, f"this link has not proven to be {who}")
        decision = admission(newcomer, self.parallelism, self.held, self.standby)
        match decision:
            case Admit():
                self._hold(newcomer.worker, RegisteredAttempt(link, newcomer))
                self._wanted[link] = newcomer.worker
                return []
            case KeepOnStandby():
                self.standby[newcomer.worker] = RegisteredAttempt(link, newcomer)
                self._wanted[link] = newcomer.worker
                return [SendMessage(link, StandBy())]
            case TurnAway(reason):
                return self._turn_away(link, reason)
            case _:
                assert_never(decision)

    def _turn_away(self, link: LinkId, reason: str) -> list[JobEffect]:
        return [SendMessage(link, ShutDown(reason, failed=True)), CloseLink(link)]

    def deploy(
        self,
        epoch: Epoch,
        lineage: Lineage,
        restored: StateAssignment,
        splits: tuple[SplitAssignment, ...],
        driver: str,
        deaths: Callable[[WorkerIndex], int],
    ) -> list[JobEffect]:
        """Give every holder its tasks, with what each of them needs to restore itself; none is ready yet.

        Links keep the order of messages: no worker is told twice where a peer can be reached. Nor is any told
        of those below: of two workers the one with the lower index connects.

        Args:
            deaths: Those for which a worker tries batches in a copy of its process first.
        """
        self._ready = set()
        snapshots = by_worker(restored.snapshots, self.parallelism)
        retired = by_worker(restored.retired, self.parallelism)
        assigned: dict[int, list[SplitAssignment]] = {}
        for split in splits:
            assigned.setdefault(split.task.index, []).append(split)
        # Most have been told up to the same one, and share the new addresses.
        sent_up_to = {place.link: self._peers_sent_up_to.get(place.link, 0) for place in self.held.values()}
        peers = {number: self.peers_after(number) for number in set(sent_up_to.values())}
        self._peers_sent_up_to |= dict.fromkeys(sent_up_to, self._holders_seen)
        return [
            SendMessage(
                place.link,
                DeployTasks(
                    epoch=epoch,
                    lineage=lineage,
                    peers=_above(index, peers[sent_up_to[place.link]]),
                    restore=restored.checkpoint_id,
                    snapshots=tuple(snapshots.get(index, ())),
                    splits=tuple(assigned.get(index, ())),
                    driver=driver,
                    rescaled_from=restored.rescaled_from,
                    retired=tuple(retired.get(index, ())),
                    deaths=deaths(index),
                ),
            )
            for index, place in sorted(self.held.items())
        ]

    @property
    def missing_shown(self) -> str:
        """Which workers have not registered, or are not ready, for people."""
        absent = sorted(set(map(WorkerIndex, range(self.parallelism))) - self.held.keys())
        missing = [str(index) for index in absent] or [
            f"{index} (on {self.held[index].registration.host})"
            for index in sorted(self.held.keys() - self._ready)
        ]
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        return f"; missing: worker {', '.join(missing[:5])}{more}" if missing else ""

    def ready(self, index: WorkerIndex) -> None:
        """Note that a worker is ready."""
        self._ready.add(index)

    def too_few(self, start_timeout_ms: int, slots: int | None) -> FailureCause:
        """Return why the job can't start: not every slot is held in time."""
        known = "" if slots is None else f"; Spark has {slots} slots in all"
        lost = sorted(index for index in self._last_host if index not in self.held)
        if lost:
            shown = ", ".join(f"worker {index} was on {self._last_host[index]}" for index in lost[:5])
            known += f"; {shown}{f' and {len(lost) - 5} more' if len(lost) > 5 else ''}"
        return FailureCause(
            "WorkersError",
            f"{len(self.held)} of {self.parallelism} workers registered within "
            f"start_timeout={start_timeout_ms / 1000:g} s{known}. Each worker needs a Spark task slot for as "
            f"long as the job runs: lower parallelism, free slots, or raise start_timeout",
            is_transient=True,
        )

    def too_slow(self, start_timeout_ms: int) -> FailureCause:
        """Return why the epoch can't start: every slot is held, but not every worker was ready in time."""
        missing = sorted(self.held.keys() - self._ready)
        return FailureCause(
            "Timeout",
            f"restoring took too long: of {self.parallelism} workers, all of them registered, {missing} had "
            f"not restored their tasks and connected within another "
            f"start_timeout={start_timeout_ms / 1000:g} s; raise start_timeout if there is that much state "
            f"to load",
            is_transient=True,
        )

    # Silence.

    def start(self) -> list[JobEffect]:
        """Return the timer of the first tick."""
        return [StartTimer(Timer("liveness"), self._heartbeat_timeout_ms // LIVENESS_TICKS)]

    def beat(self, epoch: Epoch) -> list[JobEffect]:
        """Return the timer of the next tick, and a heartbeat to everybody."""
        beats = [SendMessage(place.link, CoordinatorHeartbeat(epoch)) for place in self.everybody()]
        return [*self.start(), *beats]

    def note_message(self, link: LinkId) -> None:
        """Note that `link` has said something."""
        self._silent_ticks[link] = 0

    def logged(self, link: LinkId, lines: tuple[LogLine, ...]) -> None:
        """Note what the worker at `link` has logged: its last words, if it is lost."""
        if lines:
            self._last_lines[link] = (*self._last_lines.get(link, ()), *lines)[-LAST_LINES_MAX:]

    def why_closed(self, link: LinkId, reason: str) -> str:
        """Return why a link that closed by itself is lost."""
        if self._silent_ticks.get(link, 0) < LIVENESS_TICKS - 1:
            return f"its process has ended ({reason}){self._shown_last_lines(link)}"
        return (
            f"its process has ended ({reason}) after a call had held it up for "
            f"{self._heartbeat_timeout}; its stack is on the standard error of the worker"
            f"{self._shown_last_lines(link)}"
        )

    def why_silent(self, link: LinkId) -> str:
        """Return why a link that has been silent for too long is lost."""
        return f"silent for more than {self._heartbeat_timeout}{self._shown_last_lines(link)}"

    def _shown_last_lines(self, link: LinkId) -> str:
        lines = self._last_lines.get(link, ())
        shown = "".join(f"\n  {one.logger}: {one.text[:LAST_LINE_CHARS_MAX]}" for one in lines)
        return f"; the last that it logged:{shown}" if shown else ""

    @property
    def _heartbeat_timeout(self) -> str:
        return f"heartbeat_timeout={self._heartbeat_timeout_ms / 1000:g} s"

    def tick(self) -> list[RegisteredAttempt]:
        """Note that a tick has passed; return those who have been silent for too long."""
        self._silent_ticks = {
            place.link: self._silent_ticks.get(place.link, 0) + 1 for place in self.everybody()
        }
        return [place for place in self.everybody() if self._silent_ticks[place.link] > LIVENESS_TICKS]

    def lose(self, link: LinkId) -> Vacated | None:
        """Note that `link` is gone; return the place that it held, if it held one."""
        self._silent_ticks.pop(link, None)
        self._last_lines.pop(link, None)
        self._proven.pop(link, None)
        self._peers_sent_up_to.pop(link, None)
        index = self._wanted.pop(link, None)
        if index is None:
            return None
        if self.held[index].link != link:
            del self.standby[index]
            return None
        place = self.held.pop(index)
        self._last_host[index] = place.registration.host
        if index in self.standby:
            self._hold(index, self.standby.pop(index))
        return Vacated(index, place)

    def ended(self, event: WorkersEnded) -> tuple[list[JobEffect], FailureCause]:
        """Note that Spark has ended all workers; return the failure that this is."""
        # One that still speaks has outlived its Spark job (SPARK-18761): it must not keep a
        # slot from the attempts of the next one.
        effects: list[JobEffect] = [CloseLink(place.link) for place in self.everybody()]
        self._is_submitted = False
        self.held.clear()
        self.standby.clear()
        self._wanted.clear()
        self._silent_ticks.clear()
        self._last_lines.clear()
        self._peers_sent_up_to.clear()
        if event.is_final:
            return effects, FailureCause("WorkersError", event.reason, is_final=True, is_transient=True)
        return effects, FailureCause(
            SPARK_JOB_ENDED, f"Spark ended the workers: {event.reason}", is_transient=True
        )

    def _hold(self, index: WorkerIndex, place: RegisteredAttempt) -> None:
        self.held[index] = place
        self._holders_seen += 1
        self._number[index] = self._holders_seen


def _above(index: WorkerIndex, peers: tuple[Peer, ...]) -> tuple[Peer, ...]:
    """Return those of `peers`, which are in order, that worker `index` has to connect to."""
    return peers[bisect_right(peers, index, key=lambda peer: peer.worker) :]
