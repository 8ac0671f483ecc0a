"""How much memory keyed state takes: its own structures exactly, its rows by a sample.

A walk over all rows would stop the records, and what the process has resident is of everything in it. So
some rows are looked at now and then, and all count as these do.
"""

from __future__ import annotations

from crosscut.state.keyed import KeyedState
from crosscut.state.memory import mean_bytes

ROWS_SAMPLED = 16
EVERY_NS = 5_000_000_000
"""Rows are looked at no more often."""


class StateMemory:
    """The memory of one task's state, measured anew now and then.

    Args:
        state: None: the task has none.
    """

    def __init__(self, state: KeyedState | None) -> None:
        self._state = state
        self._due_ns: int | None = None
        self._outside_bytes = 0
        # Of each table: bytes of a key and of a value.
        self._rows: dict[str, tuple[float, float]] = {}

    def size_bytes(self, now_ns: int) -> int:
        """Return about how many bytes the state takes, at a reading of the clock; 0 if there is none."""
        state = self._state
        if state is None:
            return 0
        if self._due_ns is None or now_ns >= self._due_ns:
            self._due_ns = now_ns + EVERY_NS
            self._outside_bytes = state.outside_bytes
            for name, table in state.tables.items():
                keys, values = table.sample(ROWS_SAMPLED)
                if keys:
                    found = mean_bytes(keys, is_shared=False), mean_bytes(values)
                    known = self._rows.get(name, found)
                    self._rows[name] = _nearer(known[0], found[0]), _nearer(known[1], found[1])
        total = float(self._outside_bytes)
        for name, table in state.tables.items():
            held = table.held
            key, value = self._rows.get(name, (0.0, 0.0))
            total += held.structure_bytes + key * held.key_count + value * held.value_count
        return round(total)


def _nearer(known: float, found: float) -> float:
    """Rows may differ much: what was seen before counts as well."""
    return known + (found - known) / 4
