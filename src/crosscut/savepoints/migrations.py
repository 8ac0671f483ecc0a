"""What a user's functions make of old state: `Settings(migrate_state=...)`.

migrate_state={"totals": with_currency}                          an operator with one state
migrate_state={"sessions": {"seen": as_set, "spent": in_cents}}  a process, state by state
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from crosscut.contracts.process import EVENT_TIMERS, PROCESSING_TIMERS
from crosscut.contracts.settings import Migration
from crosscut.errors import StateError

_TIMERS = frozenset({EVENT_TIMERS, PROCESSING_TIMERS})
Given = Mapping[str, Migration | Mapping[str, Migration]]


class Migrations:
    """Functions by operator and state.

    Args:
        given: By uid: a function, for an operator that has one state, or functions by the name of the state.
    """

    def __init__(self, given: Given | None = None) -> None:
        self._given: Mapping[str, Any] = {} if given is None else given

    def covers(self, uid: str, state: str) -> bool:
        """Whether there is a function for this state."""
        return self._of(uid, state) is not None

    def problem(self, states: Iterable[tuple[str, str]]) -> str:
        """Return what is named and is not there, or is there and not named, "" if nothing.

        Args:
            states: Operator and name of each state that a savepoint has rows of.
        """
        found: dict[str, set[str]] = {}
        for uid, state in states:
            if state not in _TIMERS:
                found.setdefault(uid, set()).add(state)
        problems = []
        for uid, functions in sorted(self._given.items()):
            names = sorted(found.get(uid, ()))
            has = f"it has {', '.join(map(repr, names))}"
            if not names:
                known = ", ".join(map(repr, sorted(found))) or "no operator"
                problems.append(
                    f"migrate_state names {uid!r}, of which the savepoint has no state; of {known}"
                )
            elif isinstance(functions, Mapping):
                for state in sorted(set(functions) - set(names)):
                    problems.append(f"migrate_state names state {state!r} of {uid!r}, and {has}")
            elif len(names) > 1:
                problems.append(
                    f"migrate_state has one function for {uid!r}, which has several states: say for which, "
                    f"as in {{{uid!r}: {{{names[0]!r}: function}}}}; {has}"
                )
        return "; ".join(problems)

    def applied(self, uid: str, state: str, key: Any, value: Any) -> Any:
        """Return the value as it has to be.

        Raises:
            StateError: The user's function has failed.
        """
        function = self._of(uid, state)
        if function is None:
            return value
        try:
            return function(key, value)
        except Exception as error:  # The function is the user's.
            of = f", state {state!r}," if state else ""
            raise StateError(
                f"the migration of {uid!r}{of} raised {type(error).__name__}: {error}, for key {key!r:.100} "
                f"with value {value!r:.200}"
            ) from error

    def _of(self, uid: str, state: str) -> Migration | None:
        functions = self._given.get(uid)
        if isinstance(functions, Mapping):
            functions = functions.get(state)
        elif state in _TIMERS:
            return None
        found: Migration | None = functions
        return found


NO_MIGRATIONS = Migrations()
