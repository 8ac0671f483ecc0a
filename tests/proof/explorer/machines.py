"""Protocol machines as numbers: every state that a machine ever had, and what each event makes of it.

A machine is run once for each pair of state and event, on a copy; after that, a step is a look-up.
So the search runs the real code, and yet at the speed of a table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import repeat
from typing import Any, Generic, TypeVar

IGNORED = frozenset(
    {
        "dropped",
        "failures",
        "restart_count",
        "checkpoints_failed",
        "_silent_ticks",
        "_permanent_in_a_row",
        "_since_ms",
        "_newest_ms",
        "waited_ms",
        "_failures_seen",
        "_failures_in_a_row",
        "_claim_attempts",
        "takeover",
        "failed_count",
        "_last_failure",
        "_holders_seen",
        "_number",
        "_told_up_to",
        "_last_host",
        "since_ms",
    }
)
"""Counters, which only people read, or which only limit failures: the search has limits of its own. And who
has been told of whose address: there are none in it."""

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
            # What is frozen for mypy alone has a hash of its fields instead.
            said = of.__dataclass_params__  # type: ignore[attr-defined]
            kind = _Kind.FIXED if said.frozen or said.unsafe_hash else _Kind.MACHINE
        elif hasattr(value, "__dict__") and not isinstance(value, Enum | type):
            kind = _Kind.MACHINE
        else:
            kind = _Kind.FIXED
        _KINDS[of] = kind
    return kind


_FIXED: set[type] = set()
"""The types whose values can't change, as far as any have been seen: most attributes are of one."""


def _is_fixed(value: object) -> bool:
    of = type(value)
    if of in _FIXED:
        return True
    if _kind_of(value) is not _Kind.FIXED:
        return False
    _FIXED.add(of)
    return True


_PLAIN = frozenset({int, str, bool, type(None)})
"""Types whose values stand for themselves in what is frozen."""

_SLOTS: dict[type, tuple[str, ...]] = {}


def _slots_of(value: Any) -> tuple[str, ...]:
    """Return the names of the attributes of a dataclass with slots."""
    of = type(value)
    names = _SLOTS.get(of)
    if names is None:
        names = _SLOTS[of] = tuple(one.name for one in fields(value))
    return names


def copied(value: Any, known: dict[int, Any] | None = None) -> Any:
    """Return a copy of a machine, or of anything that one is made of; what can't change is shared.

    So are the counters in `IGNORED`.

    Args:
        known: Copies by the identity of the original: machines that share a part do so afterwards.
    """
    if _is_fixed(value):
        return value
    known = {} if known is None else known
    found = known.get(id(value))
    if found is not None:
        return found
    match _kind_of(value):
        case _Kind.MAPPING:
            fresh = known[id(value)] = value.copy()
            for key, one in value.items():
                if type(one) not in _FIXED:
                    fresh[key] = copied(one, known)
        case _Kind.SEQUENCE:
            fresh = known[id(value)] = type(value)(copied(one, known) for one in value)
        case _Kind.SET:
            fresh = known[id(value)] = set(value)
        case _:
            fresh = known[id(value)] = object.__new__(type(value))
            if hasattr(value, "__dict__"):
                inside = fresh.__dict__
                inside.update(value.__dict__)
                for name, one in value.__dict__.items():
                    if type(one) not in _FIXED and name not in IGNORED:
                        inside[name] = copied(one, known)
            else:
                for name in _slots_of(value):
                    one = getattr(value, name)
                    setattr(fresh, name, one if type(one) in _FIXED else copied(one, known))
    return fresh


class Freezer:
    """Makes one hashable value of what a machine remembers, but its counters.

    What can't change is shared by the copies of a machine, so it is hashed when it is first seen and
    known by identity from then on.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        # The value as well, so that its identity is not used again.
        self._known: dict[int, tuple[Hashable, tuple[int]]] = {}

    def frozen(self, value: Any) -> Hashable:
        """Return `value` as one hashable value."""
        of = type(value)
        if of in _PLAIN:
            return value  # type: ignore[no-any-return]
        kind = _KINDS.get(of) or _kind_of(value)
        if kind is _Kind.FIXED:
            return self._fixed(value)
        # Most of what is inside is plain: no call for each.
        frozen = self.frozen
        if kind is _Kind.MACHINE:
            if hasattr(value, "__dict__"):
                inside = [
                    one if type(one) in _PLAIN else frozen(one)
                    for name, one in value.__dict__.items()
                    if name not in IGNORED
                ]
            else:
                attributes = map(getattr, repeat(value), _slots_of(value))
                inside = [one if type(one) in _PLAIN else frozen(one) for one in attributes]
            return (of, *inside)
        if kind is _Kind.MAPPING:
            return frozenset(
                [
                    (self._fixed(key), one if type(one) in _PLAIN else frozen(one))
                    for key, one in value.items()
                ]
            )
        if kind is _Kind.SEQUENCE:
            return tuple([one if type(one) in _PLAIN else frozen(one) for one in value])
        return frozenset([self._fixed(one) for one in value])

    def _fixed(self, value: Any) -> tuple[int]:
        known = self._known.get(id(value))
        if known is None:
            number = self._numbers.setdefault(value, len(self._numbers))
            known = self._known[id(value)] = (value, (number,))
        return known[1]


class MachineTable:
    """All states of machines of one kind, and their steps as far as anybody has asked for them."""

    def __init__(self) -> None:
        self.machines: list[Any] = []
        self._numbers: dict[Hashable, int] = {}
        self._steps: dict[tuple[int, Hashable], tuple[int, tuple[Any, ...]]] = {}
        self._freezer = Freezer()

    def number(self, machine: Any) -> int:
        """Return the number of the state of `machine`, which nobody may change from now on."""
        key = self._freezer.frozen(machine)
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
