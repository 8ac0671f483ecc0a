"""Every example with a loop when everything stops for each snapshot, on workers that are killed.

The flows, the kills and the oracles are those of `test_loops`. Loops halt in simulated worlds, too;
`make prove` runs all of the examples on real workers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_loops as loops
from proving import proven

HALTING = "halting"


@pytest.mark.parametrize(
    "exact",
    [
        proven(loops.test_collatz_lengths_are_exact_although_workers_are_killed),
        proven(loops.test_connected_components_of_an_edge_list_are_right_although_workers_are_killed),
        proven(loops.test_tokens_go_round_the_ring_exactly_as_often_as_they_should),
        loops.test_no_money_is_made_or_lost_on_any_cut_although_workers_are_killed,
    ],
    ids=["collatz", "components", "token ring", "bank"],
)
def test_an_example_with_a_loop_is_exact_under_halting_snapshots(
    tmp_path: Path, started: Any, exact: Callable[[Path, Any, str], None]
) -> None:
    """G1, G2, G4, I1, I2."""
    exact(tmp_path, started, HALTING)


@pytest.mark.parametrize("flow_of", [proven(loops.two_loops), loops.nested_loops])
def test_several_loops_are_exact_under_halting_snapshots(
    tmp_path: Path, started: Any, flow_of: Callable[[int, Any], Any]
) -> None:
    """G1, G2, G4, I1, I2: each task stands still with what is in its loops, and goes on with it."""
    loops.test_two_loops_in_a_row_and_one_in_another_let_everything_out_once(
        tmp_path, started, flow_of, HALTING
    )
