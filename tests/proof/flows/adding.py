"""Puts steps into a drawn flow whose functions raise in folds and keys, and processors of PySpark."""

from __future__ import annotations

import random
from typing import get_args

from tests.proof.flows.added_steps import (
    TRIAL_EMITS,
    KeyName,
    RowStateName,
    Stray,
    Transform,
    Trial,
    TrialName,
)
from tests.proof.flows.description import Description
from tests.proof.flows.steps import Filter, FlatMap, KeyBy, Map, Source, Step, Union
from tests.proof.flows.timing import put_in

from crosscut.errors import FlowError
from crosscut.graph.specs import Emit

_ATTEMPTS_MAX = 10


def with_another(description: Description, dice: random.Random) -> Description:
    """Return the flow with such a step in it; as it is, if no place is found for one."""
    places = [
        number
        for number, step in enumerate(description.steps)
        if isinstance(step, Source | Map | Filter | FlatMap | Union)
    ]
    for _ in range(_ATTEMPTS_MAX):
        try:
            return Description(put_in(description.steps, {dice.choice(places): _drawn(dice)}))
        except FlowError:
            # Numbers alone were expected there, or which record has which time is no longer determined.
            continue
    return description


def _drawn(dice: random.Random) -> list[Step]:
    key: KeyName = dice.choice(get_args(KeyName))
    modulus, other = dice.choice((1, 2, 3, 5)), dice.choice((2, 3, 5))
    match dice.choice(("trial", "stray", "transform")):
        case "trial":
            fold: TrialName = dice.choice(get_args(TrialName))
            emit: Emit = TRIAL_EMITS[fold] if fold in TRIAL_EMITS else dice.choice(get_args(Emit))
            return [KeyBy(0, key, modulus), Trial(0, fold, other, emit)]
        case "stray":
            return [Stray(0, key, modulus, other)]
        case _:
            state: RowStateName = dice.choice(get_args(RowStateName))
            return [Transform(0, key, modulus, state)]
