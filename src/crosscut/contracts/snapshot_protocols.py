"""Which protocol takes the consistent snapshots of a job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from crosscut.contracts.checking import check_duration, checked_new, shows_fields
from crosscut.errors import SettingsError
from crosscut.foundation.durations import Duration, duration_ms

SnapshotKind = Literal["aligned", "unaligned", "switching", "at-least-once", "halting", "none", "logged"]
LogChoice = Literal["auto", "files", "objects"]
_SWITCHING = re.compile(r"aligned\s*,\s*unaligned\s+after\s+(.+)")


@shows_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """Aligned barriers, which may become unaligned ones.

    Attributes:
        unaligned_after: A task whose inputs have not all had the barrier after this time takes its snapshot
            as with "unaligned": the barrier overtakes what waits. None: never.

    Examples:
        >>> import crosscut as cc
        >>> settings = cc.Settings(snapshots=cc.Aligned(unaligned_after="100ms"))
    """

    unaligned_after: Duration | None = None

    if not TYPE_CHECKING:
        # Type checkers report it themselves.
        def __new__(cls, *unnamed: Any, **given: Any) -> Self:
            """Refuse unknown settings, before `__init__` does with less advice."""
            return checked_new(cls, unnamed, given, " of Aligned")

    def __post_init__(self) -> None:
        _ = self.timeout_ms

    @property
    def timeout_ms(self) -> float | None:
        """`unaligned_after` in milliseconds."""
        return None if self.unaligned_after is None else duration_ms(self.unaligned_after, "unaligned_after")


@shows_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """Each worker has a log, and no checkpoints are taken; as text "logged".

    What the tasks of a worker process between two appends is a group. One entry of the log commits it: the
    positions of sources, changes of state, records for other workers, sink output. Nothing of it leaves the
    worker before. After a failure all workers go on from the ends of their logs.

    Attributes:
        interval: How old a group becomes while there is more to do. Each one is an entry of the log, and a
            transaction of each sink that has output.
        log: What the logs are made of, in the checkpoint directory. "files": a file that grows; driver and
            workers must be on one host, and the directory on a local file system (ext4, xfs, btrfs or
            tmpfs). "objects": an object for each group, in any store that has checkpoints.
            "auto": files where they can be, else objects; a directory with logs goes on with what it has.

    Examples:
        >>> import crosscut as cc
        >>> settings = cc.Settings(snapshots=cc.Logged(interval="50ms"))
    """

    interval: Duration = "20ms"
    log: LogChoice = "auto"

    if not TYPE_CHECKING:
        # Type checkers report it themselves.
        def __new__(cls, *unnamed: Any, **given: Any) -> Self:
            """Refuse unknown settings, before `__init__` does with less advice."""
            return checked_new(cls, unnamed, given, " of Logged")

    def __post_init__(self) -> None:
        _check_interval(self.interval)
        if self.log not in get_args(LogChoice):
            raise SettingsError(f"log={self.log!r}: expected 'auto', 'files' or 'objects'")

    @property
    def interval_ms(self) -> float:
        """`interval` in milliseconds."""
        return duration_ms(self.interval, "interval")


INTERVAL_MS_MAX = 10_000
"""A group that is older holds up its tasks while the log is busy (`HOLD_MS`)."""


def _check_interval(interval: Duration) -> None:
    check_duration("interval", interval, 0)
    found_ms = duration_ms(interval, "interval")
    if 0 < found_ms < 1 or found_ms > INTERVAL_MS_MAX:
        raise SettingsError(
            f"interval={interval!r}: expected 0 (as soon as the log is free), or 1 ms to "
            f"{INTERVAL_MS_MAX // 1_000} s"
        )


def logged_of(given: object) -> Logged | None:
    """Return what the setting `snapshots` says of logs; None: workers have none."""
    if isinstance(given, Logged):
        return given
    return Logged() if given == "logged" else None


def protocol_of(given: object) -> tuple[SnapshotKind, float]:
    """Return the protocol that the setting `snapshots` names, and its alignment timeout in ms (or 0).

    Raises:
        SettingsError: It names none.
    """
    if isinstance(given, Aligned):
        return ("aligned", 0.0) if given.timeout_ms is None else ("switching", given.timeout_ms)
    if isinstance(given, Logged):
        return "logged", 0.0
    found = given if isinstance(given, str) else repr(given)
    match found:
        case "aligned" | "unaligned" | "at-least-once" | "halting" | "none" | "logged":
            return found, 0.0
        case _:
            pass
    if switching := _SWITCHING.fullmatch(found):
        return "switching", duration_ms(switching[1], "snapshots: the time after 'unaligned after'")
    raise SettingsError(
        f"snapshots={given!r}: expected 'aligned', 'unaligned', crosscut.Aligned(unaligned_after=...), as "
        f"text 'aligned, unaligned after 100ms', 'at-least-once', 'halting', 'none', 'logged' or "
        f"crosscut.Logged(...)"
    )
