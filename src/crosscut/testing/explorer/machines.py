"""Protocol machines as numbers: every state that a machine ever had, and what each event makes of it.

A machine is run once for each pair of state and event, on a copy; after that, a step is a look-up.
So the search runs the real code, and yet at the speed of a table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

IGNORED = frozenset(
    {
        "dropped",
        "failures",
        "restart_count",
        "checkpoints_failed",
        "_silent_ticks",
        "_checkpoint_failures_in_a_row",
        "_failures_seen",
        "_failures_in_a_row",
        "_claim_attempts",
        "failed_count",
        "_last_failure",
    }
)
"""Counters, which only people read, or which only limit failures: the search has limits of its own."""

Value = TypeVar("Value", bound=Hashable)


class Numbers(Generic[Value]):
    """Values by small numbers, equal numbers for equal values."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[Value, int] = {}

    def __len__(self) -> int:
        return len(self.values)

    def number(self, value: Value) -> int:
        """Return the number of `value`, a new one if it is new."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


class _Kind(Enum):
    """How a value of some type is copied and frozen."""

    FIXED = "it can't change: it is shared"
    MAPPING = "a dict"
    SEQUENCE = "a list or deque"
    SET = "a set"
    MACHINE = "an object with attributes that change"


_KINDS: dict[type, _Kind] = {}


def _kind_of(value: object) -> _Kind:
    of = type(value)
    kind = _KINDS.get(of)
    if kind is None:
        if isinstance(value, dict):
            kind = _Kind.MAPPING
        elif isinstance(value, list | deque):
            kind = _Kind.SEQUENCE
        elif isinstance(value, set):
            kind = _Kind.SET
        elif is_dataclass(of):
            kind = _Kind.FIXED if of.__dataclass_params__.frozen else _Kind.MACHINE  # type: ignore[attr-defined]
        elif hasattr(value, "__dict__") and not isinstance(value, Enum | type):
            kind = _Kind.MACHINE
        else:
            kind = _Kind.FIXED
        _KINDS[of] = kind
    return kind


def _attributes(machine: object) -> dict[str, Any]:
    if is_dataclass(machine):
        return {one.name: getattr(machine, one.name) for one in fields(machine)}
    return vars(machine)


def copied(value: Any, known: dict[int, Any] | None = None) -> Any:
    """Return a copy of a machine, or of anything that one is made of; what can't change is shared.

    Args:
        known: Copies by the identity of the original: machines that share a part do so afterwards.
    """
    kind = _kind_of(value)
    if kind is _Kind.FIXED:
        return value
    known = {} if known is None else known
    found = known.get(id(value))
    if found is not None:
        return found
    match kind:
        case _Kind.MAPPING:
            fresh = known[id(value)] = value.copy()
            for key, one in value.items():
                fresh[key] = copied(one, known)
        case _Kind.SEQUENCE:
            fresh = known[id(value)] = type(value)(copied(one, known) for one in value)
        case _Kind.SET:
            fresh = known[id(value)] = set(value)
        case _:
            fresh = known[id(value)] = object.__new__(type(value))
            for name, one in _attributes(value).items():
                setattr(fresh, name, copied(one, known))
    return fresh


def frozen(value: Any) -> Hashable:
    """Return what a machine remembers as one hashable value, but its counters."""
    match _kind_of(value):
        case _Kind.FIXED:
            return value  # type: ignore[no-any-return]
        case _Kind.MAPPING:
            return frozenset([(key, frozen(one)) for key, one in value.items()])
        case _Kind.SEQUENCE:
            return tuple([frozen(one) for one in value])
        case _Kind.SET:
            return frozenset(value)
        case _Kind.MACHINE:
            attributes = _attributes(value)
            inside = [frozen(attributes[name]) for name in attributes if name not in IGNORED]
            return (type(value), *inside)


class MachineTable:
    """All states of machines of one kind, and their steps as far as anybody has asked for them."""

    def __init__(self) -> None:
        self.machines: list[Any] = []
        self._numbers: dict[Hashable, int] = {}
        self._steps: dict[tuple[int, Hashable], tuple[int, tuple[Any, ...]]] = {}

    def number(self, machine: Any) -> int:
        """Return the number of the state of `machine`, which nobody may change from now on."""
        key = frozen(machine)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.machines)
            self.machines.append(machine)
        return number

    def step(self, number: int, event: Hashable) -> tuple[int, tuple[Any, ...]]:
        """Return the state after `event`, and the effects.

        Raises:
            ProtocolError: The event is impossible.
        """
        found = self._steps.get((number, event))
        if found is None:
            machine = copied(self.machines[number])
            effects = tuple(machine.handle(event))
            found = self._steps[number, event] = (self.number(machine), effects)
        return found
