"""Dataclasses that are frozen for mypy, and cost little to make.

`dataclass(frozen=True)` of the standard library sets each field by a call: one of eighteen fields takes
sixteen times as long to make as one that may be changed. Events, effects and messages are made for every
barrier and heartbeat, and by code that mypy checks: it finds any change to one. What users get is frozen at
run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses

    def dataclass(*, slots, frozen=False, order=False):
        """Return what makes a dataclass: with `frozen`, one that is compared and hashed by its fields."""

        def make(kind):
            is_hashed = frozen and "__hash__" not in kind.__dict__
            return dataclasses.dataclass(kind, slots=slots, order=order, unsafe_hash=is_hashed)

        return make
