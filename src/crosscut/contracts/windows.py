"""Windows: which records of a key are taken together, and when what they come to is said.

    clicks.key_by(user).window(cc.tumbling("1m")).count()

Times are whole milliseconds since 1970 in UTC. A window `[start, end)` holds the records whose time is at
least `start` and below `end`. It is complete when the watermark has come to its end: no older record is
expected then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

from crosscut.errors import FlowError, SettingsError
from crosscut.foundation.durations import Duration, duration_ms
from crosscut.foundation.local_days import LocalPeriods, Offsets

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class Windowed(Generic[KeyT, ValueT]):
    """What the records of a key in one window come to.

    Attributes:
        key: Of the records.
        start: Beginning of the window. Of a count or global window, which has no bounds of its own: the time
            of its earliest record.
        end: The window's end, which is not part of it. Of a count or global window: one more than the time
            of its latest record. Both are 0 if the records have no time.
        value: The result.

    Examples:
        >>> import crosscut as cc
        >>> counts = cc.Windowed("ada", 0, 60_000, 5)
        >>> counts.key, counts.value
        ('ada', 5)
    """

    key: KeyT
    start: int
    end: int
    value: ValueT

    def __reduce__(self) -> tuple[Any, ...]:
        # At half the cost of what a dataclass does for slots.
        return Windowed, (self.key, self.start, self.end, self.value)


@dataclass(frozen=True, slots=True)
class Tumbling:
    """See `tumbling`."""

    size_ms: int
    offset_ms: int = 0

    def __str__(self) -> str:
        return f"tumbling {self.size_ms} ms{_shown_offset(self.offset_ms)}"

    def starts(self, time: int) -> Sequence[int]:
        """Return where the window begins that holds `time`."""
        return (time - (time - self.offset_ms) % self.size_ms,)

    def end_of(self, start: int) -> int:
        """Return where the window ends that begins at `start`."""
        return start + self.size_ms


@dataclass(frozen=True)
class LocalDays:
    """Tumbling windows of whole days in a time zone; see `tumbling`.

    Attributes:
        offsets: Of the time zone.
    """

    days: int
    time_zone: str
    offset_ms: int
    offsets: Offsets = field(repr=False)

    @cached_property
    def _periods(self) -> LocalPeriods:
        return LocalPeriods(self.offsets, self.days, self.offset_ms)

    def __str__(self) -> str:
        days = "day" if self.days == 1 else f"{self.days} days"
        return f"tumbling {days} in {self.time_zone}{_shown_offset(self.offset_ms)}"

    def starts(self, time: int) -> Sequence[int]:
        """Return where the window begins that holds `time`."""
        return (self._periods.start_of(time),)

    def end_of(self, start: int) -> int:
        """Return where the window ends that begins at `start`."""
        return self._periods.end_of(start)


@dataclass(frozen=True, slots=True)
class Sliding:
    """See `sliding`."""

    size_ms: int
    every_ms: int
    offset_ms: int = 0

    def __str__(self) -> str:
        return f"sliding {self.size_ms} ms every {self.every_ms} ms{_shown_offset(self.offset_ms)}"

    def starts(self, time: int) -> Sequence[int]:
        """Return where the windows begin that hold `time`, the latest first."""
        last = time - (time - self.offset_ms) % self.every_ms
        return range(last, time - self.size_ms, -self.every_ms)

    def end_of(self, start: int) -> int:
        """Return where the window ends that begins at `start`."""
        return start + self.size_ms


@dataclass(frozen=True, slots=True)
class Session:
    """See `session`."""

    gap_ms: int

    def __str__(self) -> str:
        return f"session with a gap of {self.gap_ms} ms"


@dataclass(frozen=True, slots=True)
class CountWindow:
    """See `count_window`."""

    rows: int

    def __str__(self) -> str:
        return f"count of {self.rows}"


WINDOWS_MAX = 100_000
"""That a record may be in. With more, one record takes longer than a worker may be silent."""


@dataclass(frozen=True, slots=True)
class GlobalWindow:
    """See `global_window`."""

    def __str__(self) -> str:
        return "global"


Window = Tumbling | LocalDays | Sliding | Session | CountWindow | GlobalWindow


@dataclass(frozen=True, slots=True)
class OnCount:
    """See `on_count`."""

    rows: int

    def __str__(self) -> str:
        return f"on every {self.rows} records"


@dataclass(frozen=True, slots=True)
class Early:
    """See `early`."""

    every_ms: int

    def __str__(self) -> str:
        return f"early every {self.every_ms} ms"


Trigger = OnCount | Early


def sliding(size: Duration, *, every: Duration, offset: Duration = 0) -> Sliding:
    """Return windows that overlap: one of `size` begins at each multiple of `every`.

    A record is in `size / every` windows, at most 100,000, and costs as much as so many records.

    Args:
        size: A duration of at least a millisecond.
        every: A duration, at most `size`: between the windows records would be lost.
        offset: Windows begin so much later than those multiples, or earlier if it is negative. Less than
            `every` either way.

    Raises:
        FlowError: One of them is no such duration.

    Examples:
        >>> import crosscut as cc
        >>> window = cc.sliding("1h", every="5m")
    """
    size_ms = whole_ms(size, "sliding: size", at_least=1)
    every_ms = whole_ms(every, "sliding: every", at_least=1)
    if every_ms > size_ms:
        raise FlowError(
            f"sliding: every={every!r} is more than size={size!r}: records between two windows would be in "
            f"none; expected at most the size"
        )
    if (count := size_ms // every_ms) > WINDOWS_MAX:
        raise FlowError(
            f"sliding: size={size!r} and every={every!r} put each record into {count:,} windows, which costs "
            f"as much as so many records; expected at most {WINDOWS_MAX:,}: let windows begin less often, or "
            f"keep a running value in a process"
        )
    return Sliding(size_ms, every_ms, offset_in(offset, "sliding", every_ms, "every"))


def session(gap: Duration) -> Session:
    """Return windows that end when no record of the key has come for `gap`.

    A session begins with its first record and ends `gap` after its last one; a record at that very time
    begins the next one. A record that lies between two sessions may join them to one.

    Args:
        gap: A duration of at least a millisecond.

    Raises:
        FlowError: `gap` is none.

    Examples:
        >>> import crosscut as cc
        >>> window = cc.session("30m")
    """
    return Session(whole_ms(gap, "session: gap", at_least=1))


def count_window(n: int) -> CountWindow:
    """Return windows of `n` records each, in the order in which they come; their times don't matter.

    What is left when the input ends is a smaller window.

    Raises:
        FlowError: `n` is no int of at least 1.

    Examples:
        >>> import crosscut as cc
        >>> window = cc.count_window(100)
    """
    return CountWindow(_whole(n, "count_window: n"))


def global_window() -> GlobalWindow:
    """Return the one window that holds all records of a key. It ends with the input.

    Without a trigger it says nothing before that; its state stays until then.

    Examples:
        >>> import crosscut as cc
        >>> window = cc.global_window()
    """
    return GlobalWindow()


def on_count(n: int) -> OnCount:
    """Return the trigger that also says what a window has come to so far with each `n`-th record of it.

    Raises:
        FlowError: `n` is no int of at least 1.

    Examples:
        >>> import crosscut as cc
        >>> trigger = cc.on_count(100)
    """
    return OnCount(_whole(n, "on_count: n"))


def early(every: Duration) -> Early:
    """Return the trigger that also says what windows have come to so far, each time that `every` has passed.

    It passes in event time, by the watermark. Windows that have got no record meanwhile say nothing.

    Args:
        every: A duration of at least a millisecond.

    Raises:
        FlowError: `every` is none.

    Examples:
        >>> import crosscut as cc
        >>> trigger = cc.early("10s")
    """
    return Early(whole_ms(every, "early: every", at_least=1))


def whole_ms(value: Duration, name: str, *, at_least: int = 0, is_signed: bool = False) -> int:
    """Return a duration in whole milliseconds.

    Args:
        is_signed: It may be negative, such as "-5s" or -5.

    Raises:
        FlowError: It is none, or shorter than `at_least` ms, or no whole number of them.
    """
    try:
        found = duration_ms(value, name, at_least_ms=at_least, is_signed=is_signed)
    except SettingsError as error:
        raise FlowError(str(error)) from None
    if found != int(found):
        raise FlowError(f"{name}={value!r}: expected whole milliseconds")
    return int(found)


def offset_in(offset: Duration, window: str, period_ms: int, period: str) -> int:
    """Return where in each period a window begins: of 5 hours before midnight, 19 hours after it."""
    offset_ms = whole_ms(offset, f"{window}: offset", is_signed=True)
    if abs(offset_ms) >= period_ms:
        raise FlowError(f"{window}: offset={offset!r}: expected less than {period}, after which they repeat")
    return offset_ms % period_ms


def _shown_offset(offset_ms: int) -> str:
    return f" from {offset_ms} ms" if offset_ms else ""


def _whole(value: object, name: str) -> int:
    if type(value) is not int or value < 1:
        raise FlowError(f"{name}={value!r}: expected a whole number, at least 1")
    return value
