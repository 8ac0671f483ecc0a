"""The conversations: what stands on the stage, what happens, and from where to where it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

from tests.conversations.recording import Line, recorded
from tests.conversations.stage import Stage, Times, stage

from crosscut.flow.stream import Stream
from crosscut.foundation.keys import key_group, owner_of_group
from crosscut.testing.simulator.options import FaultKind, Moment, PlannedFault
from crosscut.testing.simulator.simulated_job import MAX_PARALLELISM

Source = Callable[[str], Stream]
Sink = Callable[[Stream], object]


@dataclass(frozen=True)
class Script:
    """One conversation.

    Attributes:
        title: Of the text.
        about: What to look for.
        play: Sets the stage; what happens on it is planned already.
        begins: What the first line says, "": from the beginning.
        ends: What the last line says, "": to the end.
        hides: Tasks that have nothing to do with it.
        shows_records: Whether records are shown on their way.
    """

    title: str
    about: str
    play: Callable[[], Stage]
    begins: str = ""
    ends: str = ""
    hides: tuple[str, ...] = ()
    shows_records: bool = True

    def lines(self) -> list[Line]:
        """Play it, and return what is shown of it."""
        on = self.play()
        with recorded(on) as recording:
            on.run()
        return recording.lines


FIRST = [
    letter
    for letter in ascii_lowercase
    if owner_of_group(key_group(letter, MAX_PARALLELISM), MAX_PARALLELISM, 2) == 0
]
"""Letters that belong to counts[0], if there are two of them."""


def counts(source: Source, sink: Sink) -> None:
    sink(source("letters").key_by(str).count().named("counts"))


def countdown(source: Source, sink: Sink) -> None:
    """Numbers go round, one less each time, until they are 0."""

    def step(loop: Stream) -> tuple[Stream, Stream]:
        less = loop.named("loop").map(lambda n: n - 1)
        return less.filter(bool).named("again"), less.filter(lambda n: n == 0).named("done")

    sink(source("numbers").iterate(step))


def one_worker(*faults: PlannedFault, **changed: Any) -> Stage:
    """A job of one worker whose user wants a checkpoint after 40 ms, when a and b are counted."""
    letters = {"s0": [(20, "a"), (30, "b"), (60, "a"), (800, None)]}
    on = stage(counts, {"letters": letters}, faults, **{"parallelism": 1, **changed})
    on.after_ms(40, on.want_checkpoint)
    return on


def two_workers(*faults: PlannedFault, **changed: Any) -> Stage:
    """A job of two workers; what worker 1 sends worker 0 is on its way for 31 ms."""
    one, two, *others = FIRST
    letters: Mapping[str, Times] = {
        "s0": [(50, one), (104, two), (110, one), (800, None)],
        "s1": [(50, others[0]), (95, others[1]), (97, others[2]), (99, others[3]), (800, None)],
    }
    on = stage(counts, {"letters": letters}, faults, **changed)
    on.after_ms(48, lambda: on.slow_way(1, 0, 30))
    on.after_ms(100, on.want_checkpoint)
    return on


def loop() -> Stage:
    on = stage(countdown, {"numbers": {"s0": [(50, 9), (300, None)]}}, parallelism=1)
    on.worker_us = 1_000
    on.after_ms(52, on.want_checkpoint)
    return on


def ends() -> Stage:
    return stage(counts, {"letters": {"s0": [(20, "a"), (60, None)]}}, parallelism=1)


def loop_ends() -> Stage:
    return stage(countdown, {"numbers": {"s0": [(20, 1), (60, None)]}}, parallelism=1)


def aborts() -> Stage:
    on = one_worker(PlannedFault(38, "refuse a part"))
    on.after_ms(70, on.want_checkpoint)
    return on


def stops() -> Stage:
    on = one_worker()
    on.after_ms(70, lambda: on.drivers[-1].stop())
    return on


def at(ms: int, kind: FaultKind, choice: int = 0) -> PlannedFault:
    return PlannedFault(ms, kind, choice)


def when(moment: Moment, kind: FaultKind) -> PlannedFault:
    return PlannedFault(0, kind, 0, moment)


ASKED = "the user wants"

SCRIPTS: Mapping[str, Script] = {
    "start": Script(
        "A job starts",
        "The driver claims an epoch in the job log before it says a word to anybody. No source reads "
        "before all are ready.",
        lambda: two_workers(),
        ends="all are ready",
    ),
    "checkpoint": Script(
        "A checkpoint",
        "letters -> counts, one task each. That entry 1/1 is durable is the completion: nobody is told "
        "before, and no reader sees any output before.",
        one_worker,
        ASKED,
        "has committed all",
    ),
    "alignment": Script(
        "Alignment",
        'letters -> counts on two workers, snapshots="aligned". What letters[1] sends counts[0] is on '
        "its way for 31 ms. counts[0] has barrier 1 of letters[0] at once, and then takes nothing "
        "from there until it has that of letters[1], too: "
        f"{FIRST[1]} and the second {FIRST[0]} wait, since they come "
        "after the barrier. (counts[1] is left out.)",
        two_workers,
        ASKED,
        "counts[0] has committed all",
        hides=("counts[1]",),
    ),
    "overtaking": Script(
        "A barrier overtakes",
        'The same with snapshots="unaligned", and a channel that takes two letters at a time. No '
        "input is ever blocked. What the barrier overtakes in the output of letters[1], and what "
        "comes in before it from there, is in a log.",
        lambda: two_workers(snapshots="unaligned", channel_bytes=30),
        ASKED,
        "counts[0] has committed all",
        hides=("counts[1]",),
    ),
    "late-barrier": Script(
        "An alignment that takes too long",
        'The same with snapshots="aligned, unaligned after 10 ms".',
        lambda: two_workers(snapshots="switching"),
        ASKED,
        "counts[0] has committed all",
        hides=("counts[1]",),
    ),
    "halting": Script(
        "Everything stands still",
        'letters -> counts, one task each, snapshots="halting".',
        lambda: one_worker(snapshots="halting"),
        ASKED,
        "has committed all",
    ),
    "loop": Script(
        "A loop",
        'numbers -> loop -> again -> loop, snapshots="aligned". A number is on its way around when '
        "the checkpoint begins. The head of the loop doesn't wait for barrier 1 on its back edge: it "
        "freezes its state, and logs what comes around before the barrier does.",
        loop,
        ASKED,
        "here is checkpoint 1",
    ),
    "end-of-a-loop": Script(
        "A loop ends",
        "All input has been read. Checkpoint 1 shows that nothing can enter the loop any more and "
        "nothing is in it: so it is closed, and a later checkpoint is the final one.",
        loop_ends,
        "has read all",
        "the job has finished",
        shows_records=False,
    ),
    "end-of-input": Script(
        "A job finishes",
        "A final checkpoint is like any other. The job has finished when it is committed, and the log "
        "says so.",
        ends,
        "end of input",
        "the job has finished",
    ),
    "stop": Script(
        "A request to stop",
        "A last checkpoint is taken and committed. The next start goes on from there.",
        stops,
        "job to stop",
        "the job has stopped",
    ),
    "refused-part": Script(
        "A checkpoint is given up",
        "The store refuses the part of counts. Its output up to barrier 1 stays staged: those records "
        "come before every later barrier, too. So checkpoint 2 commits both transactions.",
        aborts,
        ASKED,
        "has committed all",
    ),
    "lost-worker": Script(
        "A lost worker",
        "Worker 0 dies in the middle of checkpoint 1. The epoch is over: worker 1 stops, and both go "
        "back to the beginning, since no checkpoint is complete. (Records on their way and the tasks "
        "of worker 1 are left out.)",
        lambda: two_workers(at(110, "kill a worker", 2)),
        ASKED,
        "all are ready",
        hides=("letters[1]", "counts[1]"),
        shows_records=False,
    ),
    "commit-after-failover": Script(
        "A commit is made up for",
        "Checkpoint 1 is complete, and the worker dies before it has committed. The restore commits "
        "first: handles of the output are in the manifest.",
        lambda: one_worker(when("commit.told", "kill a worker")),
        "entry 1/1:",
        "all are ready",
    ),
    "driver-dies": Script(
        "A driver dies after its append",
        "Nobody was told that checkpoint 1 is complete; the log says so. The next driver claims an "
        "epoch, then acts on what it has read.",
        lambda: one_worker(when("driver.appended", "kill the driver")),
        ASKED,
        "all are ready",
    ),
    "no-answer": Script(
        "An append without an answer",
        "Uncertain is not failed: the driver reads the entry before it says anything.",
        lambda: one_worker(at(38, "apply a log append without an answer")),
        "entry 1/1:",
        "commit",
    ),
    "zombie-driver": Script(
        "A driver that was believed dead",
        "Driver 1 stands still when the last acknowledgement is on its way to it, and driver 2 takes "
        "the job over, with a worker 0 of its own. Driver 1 goes on 230 ms later, and appends; its "
        "entry exists. Whoever finds that has been taken over. (Records on their way are left out.)",
        lambda: one_worker(at(44, "pause the driver and start another", 2)),
        ASKED,
        "been taken over",
        shows_records=False,
    ),
    "zombie-worker": Script(
        "A worker that was believed dead",
        "Worker 1 stands still for half a second: too long. Spark starts another attempt, and both "
        "workers go back to checkpoint 1. The old worker 1 hears of nothing, and can change nothing: "
        "nobody takes a word of epoch 1 any more. (Records on their way are left out.)",
        lambda: two_workers(at(150, "pause a worker", 5)),
        "pause a worker",
        "has lost the coordinator",
        shows_records=False,
    ),
}
