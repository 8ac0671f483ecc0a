"""Drawn flows in batches, at changing parallelism (P3). `tests.proof.drawn_batches` runs more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.proof import drawn_batches
from tests.proof.drawn_batches import drawn_description, main, run_rescaled
from tests.proof.flows.steps import Aggregate, Broadcast, Count, Loop, MapAsync, Source, Sum, Union

from crosscut.contracts.connectors import JSON
from crosscut.protocol.splits import rescaling
from crosscut.task.chain import Chain

FOUND_IT = (124, 137)
"""Seeds whose output was wrong when what had ended was told by key group everywhere."""

BEFORE_1970 = 1172
"""Its watermark begins before 1970: a process that took none for one of 1969 found that time went back."""


@pytest.mark.parametrize("seed", [*range(8), *FOUND_IT, BEFORE_1970])
def test_a_flow_that_changes_its_parallelism_between_batches_loses_nothing(tmp_path: Path, seed: int) -> None:
    """P3."""
    assert run_rescaled(seed, tmp_path) == ""


@pytest.mark.parametrize("seed", FOUND_IT)
def test_what_has_ended_by_key_group_everywhere_is_found(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: tasks that are dealt splits anew go on from those that had the same keys, and one that
    has ended sends nothing of what comes again."""
    plain_said, plain_end = rescaling._final_progress, Chain.end

    def by_key_group(*arguments: Any, **_: bool) -> tuple[bool, JSON]:
        return plain_said(*arguments, is_keyed=True, is_dealt=False)

    def keeps_held(self: Chain, *, is_emitted: bool) -> Iterator[None]:
        return iter(()) if is_emitted else plain_end(self)

    monkeypatch.setattr(rescaling, "_final_progress", by_key_group)
    monkeypatch.setattr(Chain, "end", keeps_held)
    assert ": sink " in run_rescaled(seed, tmp_path)


def test_what_is_hard_is_drawn() -> None:
    """Final folds behind unions and calls, and splits of which some have ended long before others."""
    seen: Counter[str] = Counter()
    for seed in range(200):
        steps = drawn_description(seed).steps
        assert not any(isinstance(one, Loop | Broadcast) for one in steps)
        folds = any(isinstance(one, Count | Sum | Aggregate) and one.emit == "final" for one in steps)
        for kind in (Union, MapAsync):
            seen[kind.__name__] += folds and any(isinstance(one, kind) for one in steps)
        lengths = [split for one in steps if isinstance(one, Source) for split in one.splits]
        seen["uneven"] += max(lengths) >= 10 * (1 + min(lengths))
    assert min(seen.values()) > 20, seen


def test_the_command_says_which_jobs_were_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--jobs", "1"]) == 0
    assert capsys.readouterr().out == "1 jobs, seeds 0 on: 0 wrong\n"
    monkeypatch.setattr(drawn_batches, "run_rescaled", lambda seed, directory: "wrong" * (seed == 6))
    assert main(["--jobs", "2", "--first", "5"]) == 1
    assert capsys.readouterr().out == "seed 6: wrong\n2 jobs, seeds 5 on: 1 wrong\n"
