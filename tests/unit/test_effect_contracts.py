"""Each effect states what is durable before it, what answers it, and what follows if it is lost."""

from __future__ import annotations

import re
from inspect import getdoc
from typing import get_args

import pytest

from crosscut.protocol import effects, events, messages
from crosscut.protocol.job import job_run
from crosscut.protocol.microbatch import effects as batch_effects
from crosscut.protocol.microbatch import engine_switch
from crosscut.protocol.microbatch import events as batch_events
from crosscut.protocol.unit_log import effects as unit_effects
from crosscut.protocol.unit_log import events as unit_events
from crosscut.protocol.worker import lifecycle

EFFECTS = [
    *get_args(effects.TaskEffect),
    *get_args(effects.CommitterEffect),
    *get_args(effects.JobEffect),
    *get_args(batch_effects.BatchEffect),
    *get_args(lifecycle.WorkerEffect),
    *get_args(job_run.RunEffect),
    *get_args(engine_switch.EngineEffect),
    *get_args(unit_effects.UnitEffect),
]
ANSWERS = {
    one.__name__
    for kinds in (
        events.TaskEvent,
        events.CommitterEvent,
        events.JobEvent,
        batch_events.BatchEvent,
        messages.WorkerMessage,
        lifecycle.WorkerEvent,
        job_run.RunEvent,
        engine_switch.EngineEvent,
        unit_events.UnitEvent,
    )
    for one in get_args(kinds)
}
CONTRACT = re.compile(r"^After: (\S.*)\nAnswer: (\S.*)\nLost: (\S.*(?:\n    .*)*)", re.M)


def faults(kind: type) -> list[str]:
    """Return what is wrong with the contract of an effect."""
    found = CONTRACT.search(getdoc(kind) or "")
    if found is None:
        return ["it states no contract"]
    answer = found[2]
    named = re.findall(r"\b[A-Z]\w+", answer)
    timers = re.findall(r"timer ([\w-]+)", answer)
    wrong = [f"there is no {one}" for one in named if one not in ANSWERS]
    wrong += [f"there is no timer {one}" for one in timers if one not in get_args(events.TimerKind)]
    if not named and not answer.startswith("nothing"):
        wrong.append("it names no answer")
    return wrong


@pytest.mark.parametrize("kind", EFFECTS, ids=lambda kind: kind.__name__)
def test_an_effect_states_its_contract_and_what_answers_it_exists(kind: type) -> None:
    assert faults(kind) == []


class Silent:
    """Do something."""


class Dreaming:
    """Do something.

    After: -
    Answer: SplitsDreamt; timer dream
    Lost: nothing
    """


def test_a_contract_that_is_missing_or_names_no_event_is_found() -> None:
    assert faults(Silent) == ["it states no contract"]
    assert faults(Dreaming) == ["there is no SplitsDreamt", "there is no timer dream"]
