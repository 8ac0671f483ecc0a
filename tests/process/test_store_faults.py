"""A checkpoint store that is slow, hangs, or does not say what it has done, under a running job."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drivers import Driver
from jobs import Armed, NumberedJob, limit_s, until

from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.store.checkpoint_store import open_store

Arm = Callable[..., Armed]


def flowed(job: Any) -> int:
    return int(job.report().records_read)


def finish(numbered: NumberedJob, job: Any, started: Any) -> None:
    numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    assert job.status == "finished"
    numbered.check_output_is_exact()


# A store that takes its time.


def test_records_flow_while_a_snapshot_takes_long_to_store(tmp_path: Path, started: Any, arm: Arm) -> None:
    """D3: a slow store makes a checkpoint long, and nothing else."""
    armed = arm("part.write:hang:3:0")
    numbered = NumberedJob(tmp_path, held=True)
    job = started(numbered)
    until(armed.all_fired, "the store to hang")
    completed, before = len(job.checkpoints()), flowed(job)
    until(lambda: flowed(job) > before + 500, "records to flow")
    assert len(job.checkpoints()) == completed
    (armed.directory / "go").touch()
    until(lambda: len(job.checkpoints()) > completed + 1, "the checkpoint and the next one")
    assert job.report().checkpoints_failed == 0
    finish(numbered, job, started)
    assert job.report().restarts == 0
    numbered.check_nothing_is_left_over()


def test_a_snapshot_that_is_never_stored_costs_its_checkpoint_and_no_other(
    tmp_path: Path, started: Any, arm: Arm
) -> None:
    """D3, I10: the checkpoint times out by itself, data keeps flowing, the next one works."""
    armed = arm("part.write:hang:3:0", "part.write:hang:3:1")
    numbered = NumberedJob(tmp_path, held=True, settings={"checkpoint_timeout": limit_s(5)})
    job = started(numbered)
    until(armed.all_fired, "the store to hang")
    before = flowed(job)
    until(lambda: job.report().checkpoints_failed >= 1, "the checkpoint to time out")
    assert flowed(job) > before
    completed = len(job.checkpoints())
    until(lambda: len(job.checkpoints()) >= completed + 2, "the next checkpoints")
    assert job.report().restarts == 0
    (armed.directory / "go").touch()
    finish(numbered, job, started)
    assert job.report().restarts == 0


# A job log that does not say what it has done. The driver is this process, and nobody else appends.


class Links:
    """`os.link` of this process: what it does at the given ones of the job log's checkpoints.

    Args:
        faults: By how many checkpoints were appended before.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, faults: dict[int, Callable[..., None]]) -> None:
        self._link = os.link
        self._faults = faults
        self._count = 0
        self.carried_out: list[str] = []
        monkeypatch.setattr(os, "link", self)

    def __call__(self, source: str, target: str) -> None:
        entry = Path(source).read_bytes()
        # Most are written as changes, and only checkpoints are.
        if b"CheckpointCompleted" in entry or b'"since":0,' not in entry:
            fault = self._faults.get(self._count)
            self._count += 1
            if fault is not None:
                fault(self._link, source, target)
                self.carried_out.append(Path(target).name)
                raise OSError(errno.EIO, os.strerror(errno.EIO), target)
        self._link(source, target)


def applied(link: Callable[..., None], source: str, target: str) -> None:
    link(source, target)


def not_applied(link: Callable[..., None], source: str, target: str) -> None:
    """Do nothing, though the caller can't know."""


class Blocked:
    """Does it in the end, when nobody waits for it any more."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.is_over = threading.Event()

    def __call__(self, link: Callable[..., None], source: str, target: str) -> None:
        self.go.wait()
        try:
            link(source, target)
        finally:
            self.is_over.set()


def check_nobody_wrote_twice(numbered: NumberedJob) -> None:
    numbered.check_ids_only_grow()
    entries = [entry for _, entry in open_store(str(numbered.checkpoint_dir), create=False).entries()]
    assert [entry.epoch for entry in entries] == [1] * len(entries)


@pytest.mark.parametrize("outcome", [applied, not_applied], ids=lambda one: one.__name__)
def test_a_log_entry_whose_outcome_is_unknown_is_read_back(
    tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch, outcome: Callable[..., None]
) -> None:
    """B4, I1, I2, I6: link(2) says EIO, and has done it, or not. No failover, no second entry, no loss."""
    links = Links(monkeypatch, {0: outcome, 3: outcome})
    numbered = NumberedJob(tmp_path, held=True)
    job = started(numbered)
    until(lambda: len(job.checkpoints()) >= 5, "checkpoints")
    assert len(links.carried_out) == 2
    assert job.report().checkpoints_failed == 0
    finish(numbered, job, started)
    assert job.report().restarts == 0
    check_nobody_wrote_twice(numbered)
    numbered.check_nothing_is_left_over()


def test_a_log_that_hangs_is_asked_again_and_what_it_says_late_changes_nothing(
    tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B4, D3: the first attempt is carried out when the second one has long been."""
    blocked = Blocked()
    links = Links(monkeypatch, {2: blocked})
    numbered = NumberedJob(tmp_path, held=True, settings={"checkpoint_timeout": limit_s(5)})
    job = started(numbered)
    try:
        until(lambda: len(job.checkpoints()) >= 5, "checkpoints before and behind it")
        assert not blocked.is_over.is_set()
    finally:
        blocked.go.set()
    until(blocked.is_over.is_set, "the first attempt")
    assert links.carried_out == [], "it found the second one there"
    finish(numbered, job, started)
    check_nobody_wrote_twice(numbered)


# Retention.


def test_a_driver_killed_while_it_deletes_old_parts_has_deleted_nothing_that_is_needed(
    tmp_path: Path, drive: Callable[..., Driver], started: Any
) -> None:
    """B6, I8, I11: some parts are deleted and some are not; the next driver sweeps the rest."""
    numbered = NumberedJob(tmp_path, held=True, settings={"retain": 1})
    armed = Armed(tmp_path / "failpoints", ("driver.delete:kill:4",))
    driver = drive(numbered, armed.environment, checkpoint_interval="100ms", retain=1)
    assert driver.wait() == -signal.SIGKILL, driver.errors
    assert armed.fired
    store = open_store(str(numbered.checkpoint_dir), create=False)
    needed = [part for one in newest(numbered).snapshots for part in one.snapshot.parts]
    assert any(part.path for part in needed), "some parts are files"
    for part in needed:
        store.read_part(part)
    left = set(store.list_parts()) - {part.path for part in needed}
    assert left, "there was more to delete"
    driver.family_is_gone()
    job = started(numbered)
    until(lambda: not left & set(store.list_parts()), "the sweep")
    finish(numbered, job, started)
    numbered.check_nothing_is_left_over()


def newest(numbered: NumberedJob) -> CheckpointCompleted:
    return numbered.completed()[-1]
