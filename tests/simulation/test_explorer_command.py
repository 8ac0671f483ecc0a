"""`python -m tests.proof.explorer`: what it prints, and how it ends."""

from __future__ import annotations

import os
import signal

import pytest
from tests.proof.explorer.__main__ import Progress, main
from tests.proof.explorer.bounds import Bounds
from tests.proof.explorer.graphs import graph
from tests.proof.explorer.search import Found, explore
from tests.proof.explorer.world import State, World

from crosscut.foundation.ids import ChannelId
from crosscut.protocol.snapshot.aligned import AlignedBarriers


def test_a_sound_world_that_was_explored_whole_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--graph", "edge", "--crashes", "1"]) == 0
    assert capsys.readouterr().out.startswith("all ")


def test_a_search_that_was_cut_off_ends_with_3_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--graph", "join", "--checkpoints", "2", "--states-max", "100"]) == 3
    assert capsys.readouterr().out.startswith("the first ")


def test_a_broken_protocol_ends_with_1_and_a_conversation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(self: AlignedBarriers, channel: ChannelId) -> bool:
        return False

    monkeypatch.setattr(AlignedBarriers, "is_blocked", never)
    assert main(["--graph", "join", "--records", "1"]) == 1
    told = capsys.readouterr().out
    assert "takes barrier 1 from" in told and "then: I4" in told


def test_an_interrupt_ends_the_search_with_what_was_found() -> None:
    progress = Progress(memory_max=1 << 62)

    def interrupt_early(_: State) -> None:
        if not progress.is_interrupted:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, progress.interrupt)
    try:
        world = World(graph("edge", 2), "unaligned", Bounds(3))
        found = explore(world, progress=progress, visit=interrupt_early)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not found.is_complete and not found.violation
    assert found.states > found.frontier > 0


def test_a_search_that_needs_too_much_memory_ends() -> None:
    assert not Progress(memory_max=1)(Found())


def test_progress_is_told_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.proof.explorer.__main__.PROGRESS_SECONDS", 0)
    assert Progress(memory_max=1 << 62)(Found(states=12_345, transitions=23_456, frontier=7, seconds=1.0))
    told = capsys.readouterr().err
    assert "12,345 states, 23,456 transitions, frontier 7" in told and "23,456 transitions/s" in told
