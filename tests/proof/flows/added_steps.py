"""Steps that are put into a flow after the rest of it was drawn: see `adding`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from crosscut.graph.specs import Emit

KeyName = Literal["number", "text", "bytes", "bool", "one", "with energy", "nested with energy"]
TrialName = Literal["sum", "reduce", "aggregate", "result"]
TRIAL_EMITS: dict[TrialName, Emit] = {"result": "final", "reduce": "updates"}
"""What these have to emit: else the order of the records would say which of them are dead letters."""
RowStateName = Literal["value", "list", "map", "timers", "event timers"]


@dataclass(frozen=True, slots=True)
class Trial:
    """Counts the records of each key in a fold that raises for multiples of `modulus`.

    "result" raises for such counts, when the input has ended. "reduce" isn't called for the first record of a
    key: the stream has that one as if it had raised. What is made of the dead letters is part of the stream.
    """

    keyed: int
    fold: TrialName
    modulus: int
    emit: Emit


@dataclass(frozen=True, slots=True)
class Stray:
    """Counts the records of each key, where multiples of `unfit` have none.

    What is made of these, which are dead letters of the `key_by`, is part of the stream.
    """

    stream: int
    key: KeyName
    modulus: int
    unfit: int

    @property
    def emit(self) -> Emit:
        return "updates"


@dataclass(frozen=True, slots=True)
class Transform:
    """A StatefulProcessor of PySpark for the rows that a map makes of records.

    It counts the records of each key in a state of one kind. With timers it keeps each record until one
    fires, and lets it go on.
    """

    stream: int
    key: KeyName
    modulus: int
    state: RowStateName

    @property
    def emit(self) -> Emit:
        return "updates"
