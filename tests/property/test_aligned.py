"""Alignment against an oracle, over random interleavings, aborts and lost barriers."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.examples import examples
from tests.simulation.alignment import BATCH, check_alignment
from tests.simulation.planted_barriers import CountsBarriers, IgnoresNewerBarriers, NeverBlocks

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import CheckpointId
from crosscut.protocol.snapshot.aligned import AlignedBarriers


@st.composite
def scripts(draw: st.DrawFn) -> list[list[CheckpointId]]:
    """Up to four channels with the barriers 1 to N in order, some of them lost on the way.

    A barrier is lost on a channel if the task upstream gave its own alignment up.
    """
    channels = draw(st.integers(1, 4))
    checkpoints = draw(st.integers(0, 4))
    made = []
    for _ in range(channels):
        script: list[CheckpointId] = []
        for n in range(1, checkpoints + 1):
            script += [BATCH] * draw(st.integers(0, 2))
            if draw(st.integers(0, 5)):
                script.append(CheckpointId(n))
        made.append(script + [BATCH] * draw(st.integers(0, 1)))
    return made


@settings(max_examples=examples(1_000, few=300))
@given(scripts(), st.data())
def test_every_captured_state_is_exactly_what_lies_before_the_barrier(
    one: list[list[CheckpointId]], data: st.DataObject
) -> None:
    """A2, E3."""
    check_alignment(one, lambda count: data.draw(st.integers(0, count - 1)))


@given(st.integers(1, 4), st.integers(1, 4))
def test_without_aborts_and_losses_every_checkpoint_is_captured(channels: int, checkpoints: int) -> None:
    one = [[BATCH, *(CheckpointId(n) for n in range(1, checkpoints + 1))] for _ in range(channels)]
    assert check_alignment(one, lambda count: count - 1) == checkpoints


@pytest.mark.parametrize("planted", [NeverBlocks, CountsBarriers, IgnoresNewerBarriers])
def test_the_oracle_disagrees_with(planted: type[AlignedBarriers]) -> None:
    def disagrees(seed: int) -> bool:
        choices = Random(seed)
        scripts = [
            [
                one
                for n in (1, 2, 3)
                for one in ([BATCH] * choices.randrange(3) + [CheckpointId(n)] * (choices.random() < 0.8))
            ]
            for _ in range(3)
        ]
        try:
            check_alignment(scripts, choices.randrange, planted)
        except (AssertionError, ProtocolError):
            return True
        return False

    assert any(disagrees(seed) for seed in range(200))
