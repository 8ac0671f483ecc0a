"""A source of computed records: rewindable, endless or bounded, as fast as possible or paced."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from crosscut.contracts.connectors import JSON, EndOfSplit, Source, Split, SplitReader, Wait
from crosscut.errors import ConnectorError, SettingsError
from crosscut.foundation.callables import function_problem
from crosscut.foundation.suggestions import checks_options

Made = TypeVar("Made")

_BURST_S = 0.1
_CATCH_UP_S = 10.0
"""Of a reader that goes on after another one: each micro-batch has a reader of its own."""

_WAIT_MS_MIN = 0.1


@checks_options("generate")
def generate(
    function: Callable[[int], Made], count: int | None = None, rate: float | None = None
) -> Source[Made]:
    """Return a source whose record i is `function(i)`.

    There is one split per task: of P tasks, task s makes the records s, s + P, s + 2P, ...

    Args:
        function: Makes a record from its number. Called again with the same number after a failure, so
            it must return the same record then; its exceptions fail the job.
        count: Number of records in all; None: endless.
        rate: Records a second over all tasks; None: as fast as they are consumed. A source that was
            held up catches up on at most 100 ms worth of records; on at most 10 s worth from one
            micro-batch to the next, and after a restore.

    Raises:
        SettingsError: `count` is negative, `rate` is not above 0, or one of the three is of a wrong type.

    Examples:
        >>> import crosscut as cc
        >>> numbers = cc.generate(lambda i: i, count=1_000)
    """
    if not callable(function):
        raise SettingsError(f"generate({function!r}): expected a function of the record's number")
    if problem := function_problem(function, "number"):
        raise SettingsError(f"generate(function): {problem}")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
        raise SettingsError(
            f"generate(count={count!r}): expected a whole number, at least 0, or None for endless"
        )
    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf
    ):
        raise SettingsError(
            f"generate(rate={rate!r}): expected records a second, above 0, or None for no limit"
        )
    return Generate(function, count, rate)


@dataclass(frozen=True, slots=True)
class Generate(Source):
    """See `generate`.

    A position is the number of records that the split has made; with a rate, also when the next one is due
    (milliseconds since 1970).
    """

    function: Callable[[int], Any]
    count: int | None
    rate: float | None

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Return one split per task, whose records interleave."""
        return [
            Split(f"{index}-of-{parallelism}", start=0, detail={"index": index, "of": parallelism})
            for index in range(parallelism)
        ]

    def reader(self, split: Split, position: JSON) -> SplitReader:
        """Go on where `position` says, at the rate."""
        match split.detail, position:
            case {"index": int(index), "of": int(of)}, int(made):
                return _GenerateReader(self, index, of, made, None)
            case {"index": int(index), "of": int(of)}, [int(made), int(due_ms)]:
                return _GenerateReader(self, index, of, made, due_ms)
            case _:
                raise ConnectorError(
                    f"split {split} at position {position!r} is not of a generate source; is the checkpoint "
                    f"of another source?",
                    split_id=split.split_id,
                )


class _GenerateReader(SplitReader):
    def __init__(self, source: Generate, index: int, of: int, made: int, due_ms: int | None) -> None:
        self._function = source.function
        self._index = index
        self._of = of
        self._made = made
        count = source.count
        self._count = math.inf if count is None else max(0, -(-(count - index) // of))
        self._interval_s = 0.0 if source.rate is None else of / source.rate
        self._burst_s = _BURST_S
        self._since_1970_s = _since_1970_s()
        # The splits start one after the other, so that together they are as even as each of them is.
        self._due_s = time.monotonic() + self._interval_s * index / of
        if due_ms is not None:
            self._burst_s = _CATCH_UP_S
            # Nothing is late because a clock was set back.
            self._due_s = min(due_ms / 1_000 - self._since_1970_s, time.monotonic() + self._interval_s)

    @property
    def position(self) -> JSON:
        if not self._interval_s:
            return self._made
        return [self._made, round((self._since_1970_s + self._due_s) * 1_000)]

    @property
    def lag(self) -> int | None:
        if not self._interval_s:
            return None
        behind = math.floor((time.monotonic() - self._due_s) / self._interval_s) + 1
        return int(min(max(0, behind), self._count - self._made))

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        left = self._count - self._made
        if left <= 0:
            return EndOfSplit()
        size = int(min(limit, left))
        if self._interval_s:
            now_s = time.monotonic()
            self._due_s = max(self._due_s, now_s - self._burst_s)
            due_count = math.floor((now_s - self._due_s) / self._interval_s) + 1
            if due_count <= 0:
                self._burst_s = _BURST_S
                # More than 10,000 reads a second would cost more than they save in latency.
                return Wait(max((self._due_s - now_s) * 1_000.0, _WAIT_MS_MIN))
            size = min(size, due_count)
        first = self._index + self._made * self._of
        records: list[Any] = []
        try:
            records.extend(map(self._function, range(first, first + size * self._of, self._of)))
        except Exception:
            # The records before the failing one are good and go out. The next read starts with the
            # failing one and raises: `position` is then exactly where it is.
            if not records:
                raise
        if not records:
            # Raised in a function under map, it looks like the end of the numbers.
            raise ConnectorError(
                f"the function passed to generate raised StopIteration for record {first}", record=first
            )
        self._made += len(records)
        self._due_s += len(records) * self._interval_s
        return records


def _since_1970_s() -> float:
    """Return when the monotonic clock was 0: no other process has the same one."""
    return time.time() - time.monotonic()
