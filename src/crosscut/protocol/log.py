"""What the store answers to an append: three outcomes, because "not known" is one of them."""

from __future__ import annotations

from dataclasses import dataclass

from crosscut.ids import LogIndex


@dataclass(frozen=True, slots=True)
class Appended:
    """Entry `index` is durable, and it is this one."""

    index: LogIndex


@dataclass(frozen=True, slots=True)
class Taken:
    """Entry `index` exists already. Read it: it may be an earlier attempt of our own."""

    index: LogIndex


@dataclass(frozen=True, slots=True)
class Unknown:
    """The append may or may not have been applied, now or later. Read back, never clean up."""

    index: LogIndex
    reason: str


AppendOutcome = Appended | Taken | Unknown
