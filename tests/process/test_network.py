"""A network that cuts connections or swallows what is sent: nothing is lost, and nobody waits for ever."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import NumberedJob, limit_s, until
from network import Direction, Network
from proving import proven

import crosscut as cc
from crosscut.errors import JobFailedError


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    made = Network(monkeypatch)
    yield made
    made.end()


def has_completed(job: Any, more: int = 1) -> Callable[[], bool]:
    """Return whether `more` checkpoints are complete than when this was asked for."""
    wanted = job.report().checkpoints_completed + more
    return lambda: job.report().checkpoints_completed >= wanted


def finish(numbered: NumberedJob, job: Any, started: Any) -> None:
    numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    assert job.status == "finished"
    numbered.check_output_is_exact()


def test_a_connection_cut_within_a_frame_is_a_failover_and_half_a_frame_is_no_frame(
    tmp_path: Path, started: Any, network: Network
) -> None:
    """E1, I1, I2, I5: records, credit, a worker's words, and the coordinator's."""
    numbered = NumberedJob(tmp_path, held=True)
    job = started(numbered)
    # No frame is as short as any of these.
    for count, size_bytes in enumerate((1, 2, 5, 9), start=1):
        until(has_completed(job, 2), "checkpoints")
        control = network.control
        assert control is not None
        ends: list[Direction] = [
            # Worker 0 connects, anew in each epoch.
            network.into(job, 1).links[-1].there,
            network.into(job, 1).links[-1].back,
            control.links[0].there,
            control.links[1].back,
        ]
        cut = ends[count - 1]
        cut.cut_after(size_bytes)
        until(lambda cut=cut: cut.is_cut, "the cut")
        until(lambda count=count: len(job.report().recoveries) >= count, "the failover")
    finish(numbered, job, started)
    assert job.report().restarts == 4
    numbered.check_nothing_is_left_over()


@pytest.mark.parametrize("way", ["there", proven("back"), proven("both")])
def test_a_worker_whose_words_do_not_arrive_any_more_is_replaced(
    tmp_path: Path, started: Any, network: Network, way: str
) -> None:
    """E2, I7, I10: nothing closes; the silence is noticed. What it said meanwhile arrives too late."""
    settings = {"heartbeat_timeout": limit_s(3), "restart": cc.Restart(failures=1_000)}
    numbered = NumberedJob(tmp_path, held=True, settings=settings)
    job = started(numbered)
    until(has_completed(job, 2), "checkpoints")
    assert network.control is not None
    link = network.control.links[0]
    if way != "back":
        link.there.clog()
    if way != "there":
        link.back.clog()
    until(lambda: len(job.report().recoveries) >= 1, "the failover")
    link.there.unclog()
    link.back.unclog()
    until(has_completed(job, 2), "checkpoints of the next epoch")
    finish(numbered, job, started)
    # On a busy machine so short a timeout may cost others their place, too.
    assert job.report().restarts >= 1


@pytest.mark.parametrize("which", ["one way", proven("both ways"), proven("any, three times")])
def test_workers_that_can_not_talk_to_each_other_wait_until_they_can(
    tmp_path: Path, started: Any, network: Network, which: str
) -> None:
    """E5, E6, I7, I10: the driver sees both of them. Checkpoints time out, and nothing else happens."""
    choices = random.Random(which)
    # A commit may not take longer either, on whatever machine.
    settings = {"checkpoint_timeout": limit_s(2), "checkpoint_failures": 1_000}
    numbered = NumberedJob(tmp_path, held=True, settings=settings)
    job = started(numbered)
    until(has_completed(job, 2), "checkpoints")
    links = network.into(job, 1).links
    ways = [way for link in links for way in (link.there, link.back)]
    for _ in range(3 if which.startswith("any") else 1):
        match which:
            case "one way":
                clogged = [network.into(job, 1).links[0].there]
            case "both ways":
                clogged = ways
            case _:
                # The records of one, so that a barrier is missing, and whatever else.
                clogged = list({links[0].there, choices.choice(ways)})
        for way in clogged:
            way.clog()
        failed = job.report().checkpoints_failed
        until(lambda failed=failed: job.report().checkpoints_failed > failed, "a checkpoint to time out")
        assert job.status == "running"
        choices.shuffle(clogged)
        for way in clogged:
            way.unclog()
        until(has_completed(job, 2), "checkpoints")
    finish(numbered, job, started)
    assert job.report().restarts == 0
    numbered.check_nothing_is_left_over()


def test_workers_that_can_never_talk_to_each_other_again_end_the_job_with_the_reason(
    tmp_path: Path, started: Any, network: Network
) -> None:
    """E5, I12; the next start loses nothing."""
    numbered = NumberedJob(
        tmp_path, held=True, settings={"checkpoint_timeout": limit_s(2), "checkpoint_failures": 1}
    )
    job = started(numbered)
    until(has_completed(job, 2), "checkpoints")
    network.into(job, 1).clog()
    with pytest.raises(JobFailedError, match="2 checkpoints in a row failed"):
        started.finish(job, numbered.check_nothing_is_visible_too_early)
    again = started(NumberedJob(tmp_path, held=True))
    until(has_completed(again), "a checkpoint")
    finish(numbered, again, started)


def test_a_failover_while_workers_can_not_talk_to_each_other_succeeds_when_they_can(
    tmp_path: Path, started: Any, network: Network
) -> None:
    """E5, A5, I10: the connections of the next epoch hang in their handshakes."""
    numbered = NumberedJob(tmp_path, held=True, settings={"start_timeout": limit_s(20)})
    job = started(numbered)
    until(has_completed(job, 2), "checkpoints")
    survivor = network.into(job, 1)
    survivor.clog()
    os.kill(started.watch(job)[0], signal.SIGKILL)
    until(lambda: job.report().restarts >= 2, "a second attempt")
    survivor.unclog()
    until(has_completed(job, 2), "checkpoints")
    finish(numbered, job, started)
