"""What is said of a job in the log of its program, after what its coordinator was told."""

from __future__ import annotations

import re
from dataclasses import replace
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.conversation import CAUSE, LINKS, Talk, at, claim, completed, registration

from crosscut.foundation.ids import AttemptId, CheckpointId, Epoch, LogIndex, WorkerIndex
from crosscut.monitoring.job_log_lines import CODES, Journal, Line
from crosscut.protocol.effects import EndJob, JobEffect
from crosscut.protocol.events import (
    CancelRequested,
    ClockRead,
    EntryAppended,
    EntryRead,
    EntryRefused,
    EntryTaken,
    JobEvent,
    LinkClosed,
    LogTailRead,
    StopRequested,
    WorkersEnded,
)
from crosscut.protocol.log.entries import JobFinished, SegmentClosed, SegmentOpened
from crosscut.protocol.log.identity import Claimant
from crosscut.protocol.messages import FailureCause, SnapshotDeclined, WorkerFailed, WorkerReady
from crosscut.protocol.snapshots import TaskSnapshot

FIRST_HEAD = SegmentOpened(claim(), None)


class Told(Talk):
    """A conversation that is written down as the driver does it."""

    def __init__(self, **terms: Any) -> None:
        super().__init__(**terms)
        self._journal = Journal(self.coordinator._terms)
        self._lines: list[Line] = []
        self.codes: list[str] = []

    def hear(self, *events: JobEvent) -> list[JobEffect]:
        effects: list[JobEffect] = []
        for event in events:
            effects = super().hear(event)
            self._lines += self._journal.note(self.coordinator, effects)
            for effect in effects:
                if isinstance(effect, EndJob):
                    self._lines += self._journal.ended(self.coordinator, effect)
        return effects

    @property
    def new(self) -> list[tuple[int, str]]:
        """What was said since this was looked at last."""
        lines, self._lines = self._lines, []
        self.codes += [line.code for line in lines]
        return [(line.level, line.text) for line in lines]


def read(n: int, records: int) -> Any:
    """Checkpoint n, in which each task has taken so many records."""
    entry = completed(n)
    snapshots = tuple(
        TaskSnapshot(one.task, replace(one.snapshot, records_in=records)) for one in entry.snapshots
    )
    return replace(entry, snapshots=snapshots)


def test_a_first_start_and_its_end_are_a_line_each() -> None:
    talk = Told()
    talk.running()
    talk.complete(1, 2, drained=True)
    talk.committed(1)
    talk.hear(EntryAppended(at(3)))
    assert talk.new == [
        (INFO, "started: epoch 1, 2 workers"),
        (INFO, "finished: everything is processed and committed, with checkpoint 1 (0 records read)"),
    ]


def test_a_resumed_job_says_where_it_goes_on() -> None:
    talk = Told()
    talk.hear(LogTailRead(((at(1), FIRST_HEAD), (at(2), read(1, 1_000)))))
    talk.hear(EntryAppended(at(3)), EntryAppended(LogIndex(2, 0)))
    talk.register()
    talk.ready(2)
    assert talk.new == [(INFO, "resumed from checkpoint 1 (2,000 records read): epoch 2, 2 workers")]


def test_a_job_that_has_finished_before_says_so() -> None:
    talk = Told()
    finished = JobFinished(completed(1).epoch, CheckpointId(1))
    talk.hear(LogTailRead(((at(1), FIRST_HEAD), (at(2), completed(1)), (at(3), finished))))
    assert talk.new == [(INFO, "it has finished before: there is nothing to do")]


def test_a_restart_has_its_cause_the_record_the_delay_and_where_it_goes_back_to() -> None:
    talk = Told()
    talk.running()
    talk.hear(LinkClosed(LINKS[1], "reset"), EntryAppended(at(2)))
    talk.message(1, registration(1, 3))
    talk.ready(2)
    talk.fire("trigger", 2)
    talk.acknowledge(1, 2)
    talk.hear(EntryAppended(at(3)))
    talk.failed(2)
    assert talk.new == [
        (INFO, "started: epoch 1, 2 workers"),
        (
            WARNING,
            "restart 1, back to the beginning: worker 1 (pid 2 on localhost) is lost: its process has ended "
            "(reset)",
        ),
        (INFO, "goes on from the beginning: epoch 2"),
        (WARNING, "restart 2, back to checkpoint 1: task out[0] failed: bad record, record: 'x'"),
    ]
    talk.hear(EntryAppended(at(4)))
    talk.ready(3)
    talk.failed(3, replace(CAUSE, message="another one"))
    assert talk.new == [
        (INFO, "goes on from checkpoint 1 (0 records read): epoch 3"),
        (WARNING, "restart 3 in 0.1 s, back to checkpoint 1: task out[0] failed: another one, record: 'x'"),
    ]


def test_a_worker_that_can_not_start_is_said_and_is_no_restart() -> None:
    talk = Told()
    talk.gathering()
    talk.comes(21, WorkerFailed(WorkerIndex(0), AttemptId(1), FailureCause("ImportError", "no module")))
    assert talk.new == [(WARNING, "worker 0 could not start: no module")]


def test_a_checkpoint_that_fails_is_said_with_its_reason() -> None:
    talk = Told()
    talk.running()
    assert talk.new == [(INFO, "started: epoch 1, 2 workers")]
    for n in (1, 2):
        talk.fire("trigger")
        talk.message(
            0, SnapshotDeclined(claim().epoch, CheckpointId(n), read(1, 0).snapshots[0].task, "full")
        )
    text = "checkpoint {} has failed: task numbers[0] declined: full"
    assert talk.new == [(WARNING, text.format(1)), (WARNING, text.format(2))]


@pytest.mark.parametrize("are_batches", [False, True])
def test_a_slow_checkpoint_is_said_once_until_it_is_twice_as_slow_or_was_quick(*, are_batches: bool) -> None:
    """Of what may hang it is said before the end. A batch takes as long as its records do."""
    talk = Told(are_batches=are_batches)
    talk.running()
    assert len(talk.new) == 1
    now_ms = 0
    for n, took_ms in enumerate((9_999, 10_000, 12_000, 20_000, 1_000, 11_000), 1):
        talk.hear(ClockRead(now_ms, ""))
        talk.fire("trigger")
        now_ms += took_ms
        talk.hear(ClockRead(now_ms, ""))
        talk.acknowledge(n)
        talk.hear(EntryAppended(at(n + 1)))
        talk.committed(n)
    if are_batches:
        assert talk.new == [
            (WARNING, "checkpoint 2 was slow: it took 10.0 s"),
            (WARNING, "checkpoint 4 was slow: it took 20.0 s"),
            (WARNING, "checkpoint 6 was slow: it took 11.0 s"),
        ]
        return
    waits = "so far; no acknowledgement from numbers[0], numbers[1], out[0], out[1]"
    assert talk.new == [
        (WARNING, f"checkpoint 1 has taken 10.0 s {waits}"),
        (WARNING, f"checkpoint 4 has taken 20.0 s {waits}"),
        (WARNING, f"checkpoint 6 has taken 11.0 s {waits}"),
    ]


def test_a_log_that_hangs_is_said_while_it_hangs() -> None:
    """D3, P5: an append without an answer says nothing itself."""
    talk = Told()
    talk.running()
    talk.fire("trigger")
    talk.acknowledge(1)
    assert talk.new == [(INFO, "started: epoch 1, 2 workers")]
    talk.hear(ClockRead(8_000, ""))
    talk.fire("liveness", 0)
    text = "checkpoint 1 has taken 8.0 s so far; the job log has not said whether it holds its entry"
    assert talk.new == [(WARNING, text)]
    talk.fire("liveness", 0)
    assert talk.new == []


def test_workers_that_do_not_come_or_do_not_restore_are_named_while_they_are_waited_for() -> None:
    talk = Told()
    talk.hear(ClockRead(0, ""))
    talk.gathering()
    talk.message(0, registration(0, 1))
    talk.hear(ClockRead(8_000, ""))
    talk.fire("liveness", 0)
    assert talk.new == [(WARNING, "has waited for 8 s for workers to register; missing: worker 1")]
    talk.message(1, registration(1, 2))
    talk.message(0, WorkerReady(claim().epoch))
    talk.hear(ClockRead(15_999, ""))
    talk.fire("liveness", 0)
    text = "for workers to restore their tasks from the checkpoint store and to connect; missing: worker 1"
    assert talk.new == [(WARNING, f"has waited for 8 s {text} (on localhost)")]


def test_a_claim_that_the_store_refuses_is_said_once_until_it_is_taken() -> None:
    """D4, I15."""
    talk = Told(outage_ms=900_000)
    talk.running()
    talk.failed()
    talk.fire("restart")
    assert len(talk.new) == 2
    for _ in range(2):
        talk.hear(EntryRefused(at(2), "no space left"))
        talk.fire("retry-append", 0, 2)
        talk.hear(EntryRead(at(2), None))
    text = "the job log can't be written, and is tried again, for up to 900 s: no space left"
    assert talk.new == [(WARNING, text)]


def test_a_sink_that_can_not_keep_up_is_said_once_until_it_has_caught_up() -> None:
    talk = Told(uncommitted_max=2)
    talk.running()
    assert len(talk.new) == 1
    said = []
    for n in range(1, 6):
        talk.complete(n, n + 1)
        said.append([text for _, text in talk.new])
        if n != 1:
            talk.committed(n if n == 3 else n - 1)
    warning = (
        "the sink can't keep up: 2 completed checkpoints are uncommitted, the oldest by out[0], out[1]; "
        "no checkpoint starts and sources wait until one is"
    )
    assert said == [[], [warning], [], [], [warning]]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (CancelRequested(), (INFO, "cancelled; the next start goes on from checkpoint 1 (0 records read)")),
        (
            CancelRequested(FailureCause("StoreError", "no disk")),
            (ERROR, "failed: no disk; the next start goes on from checkpoint 1 (0 records read)"),
        ),
        (
            WorkersEnded("Spark is gone", is_final=True),
            (
                ERROR,
                "failed: Spark is gone (given up after a failure that no restart can mend); the next start "
                "goes on from checkpoint 1 (0 records read)",
            ),
        ),
    ],
)
def test_every_end_says_what_the_next_start_does(event: JobEvent, expected: tuple[int, str]) -> None:
    talk = Told()
    talk.running()
    talk.complete(1, 2)
    assert len(talk.new) == 1
    talk.hear(event)
    assert talk.new == [expected]


def test_a_stop_names_its_checkpoint_and_a_job_without_one_begins_again() -> None:
    talk = Told()
    talk.running()
    talk.hear(StopRequested())
    talk.acknowledge(1)
    talk.hear(EntryAppended(at(2)))
    talk.committed(1)
    assert talk.new[1:] == [(INFO, "stopped; the next start goes on from checkpoint 1 (0 records read)")]
    talk = Told()
    talk.running()
    talk.hear(CancelRequested())
    assert talk.new[1:] == [(INFO, "cancelled; the next start begins from the beginning")]


def test_a_stop_without_a_last_checkpoint_is_a_warning_with_its_reason() -> None:
    talk = Told()
    talk.running()
    talk.complete(1, 2)
    talk.committed(1)
    talk.hear(StopRequested())
    for n in (2, 3):
        said = SnapshotDeclined(claim().epoch, CheckpointId(n), completed(1).snapshots[0].task, "disk full")
        talk.message(0, said)
        talk.fire("trigger")
    talk.fire("checkpoint-timeout", 1, 4)
    failed = "checkpoint {} has failed: task numbers[0] declined: disk full"
    late = (
        "checkpoint 4 has failed: not whole after 60 s; no acknowledgement from numbers[0], numbers[1], "
        "out[0], out[1]"
    )
    assert talk.new[1:] == [
        (WARNING, failed.format(2)),
        (WARNING, failed.format(3)),
        (WARNING, late),
        (
            WARNING,
            f"stopped: no last checkpoint was taken: 3 checkpoints in a row failed; {late}; the next start "
            f"goes on from checkpoint 1",
        ),
    ]


def test_a_driver_that_is_fenced_says_so() -> None:
    talk = Told()
    talk.running()
    talk.fire("trigger")
    talk.acknowledge(1)
    talk.hear(EntryTaken(at(2)), EntryRead(at(2), SegmentClosed(Epoch(2), "driver 2", Claimant())))
    ((level, text),) = talk.new[1:]
    assert level == WARNING
    assert text.startswith("another driver has taken it over: ")


def test_what_could_not_even_claim_an_epoch_raises_where_it_was_started() -> None:
    talk = Told()
    talk.hear(CancelRequested(FailureCause("StoreError", "no disk")))
    assert talk.new == []


def test_each_code_is_documented_and_no_other() -> None:
    text = (Path(__file__).parents[2] / "docs/guide/seeing.md").read_text(encoding="utf-8")
    table = text.partition("| code | when |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([\w.]+)` ", table, re.MULTILINE) == list(CODES)


def test_a_line_has_the_code_of_what_has_happened() -> None:
    talk = Told()
    talk.running()
    assert talk.new and talk.codes == ["job.started"]
    talk.hear(CancelRequested())
    talk.hear(EntryAppended(at(2)))
    assert talk.new
    assert talk.codes[1:] == ["job.cancelled"] and set(talk.codes) <= set(CODES)
