"""The watermark of what comes from several sides: channels of a task, splits of a source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from crosscut.foundation.batch import Batch

Side = TypeVar("Side")


class CombinedWatermark(Generic[Side]):
    """The lowest watermark of all sides that are not idle. It never goes back.

    A side of which nothing is known holds it up. One that has ended does not, nor one that is idle; if all
    are idle, there is none to wait for, and the highest counts.

    Args:
        sides: The watermark of each, None if none is known.
        watermark: What the combined one has been already. At another parallelism it may be below all sides:
            each task begins with the lowest of all that there were.
        is_open: Sides may come; while there is none, nothing is waited for.

    Attributes:
        is_idle: Whether all sides are.
    """

    def __init__(
        self, sides: Mapping[Side, int | None], watermark: int | None = None, *, is_open: bool = False
    ) -> None:
        self.watermark = watermark
        self.is_idle = False
        self._is_open = is_open
        self._sides = dict(sides)
        self._idle: set[Side] = set()
        # That of the sides alone, which may be above or below what was said before.
        self._lowest_side = self._lowest()
        self._raise()

    @property
    def holder(self) -> Side | None:
        """Who holds the watermark up: one that has said nothing yet, else one of the lowest."""
        active = [(one, watermark) for one, watermark in self._sides.items() if one not in self._idle]
        silent = next((one for one, watermark in active if watermark is None), None)
        if silent is not None or not active:
            return silent
        return min(active, key=lambda one: -1 if one[1] is None else one[1])[0]

    @property
    def sides(self) -> Mapping[Side, int | None]:
        """The watermark of each side that has not ended."""
        return self._sides

    def awaited(self, sides: Iterable[Side]) -> dict[Side, int]:
        """Return the watermark of each of these sides that has said one, and has neither ended nor is idle.

        It is asked for at each read, of the few that are open: there may be many more.
        """
        known = ((one, self._sides.get(one)) for one in sides if one not in self._idle)
        return {one: watermark for one, watermark in known if watermark is not None}

    def may_fall_idle(self, side: Side) -> bool:
        """Whether it has neither ended nor is idle."""
        return side in self._sides and side not in self._idle

    def update(self, side: Side, watermark: int | None, *, idle: bool | None = None) -> Batch | None:
        """Take in news of one side; return what is news of all, None if nothing is."""
        before = self._sides[side]
        if watermark is not None and (before is None or watermark > before):
            self._sides[side] = watermark
        if idle is not None and idle != (side in self._idle):
            (self._idle.add if idle else self._idle.discard)(side)
        elif before is not None and self._lowest_side is not None and before > self._lowest_side:
            # It has not been the lowest. With many sides, looking at each for each would be their square.
            return None
        return self._news()

    def came(self, sides: Iterable[Side], *, is_last: bool) -> Batch | None:
        """Take sides of which nothing is known yet; after the last ones no others come. As `update`."""
        self._sides |= dict.fromkeys(sides)
        self._is_open = not is_last
        return self._news()

    def ended(self, side: Side) -> Batch | None:
        """No record will come from there; as `update`."""
        self._sides.pop(side, None)
        self._idle.discard(side)
        return self._news()

    def _news(self) -> Batch | None:
        self._lowest_side = self._lowest()
        has_moved = self._raise()
        was_idle = self.is_idle
        may_speak = bool(self._sides) or self._is_open
        self.is_idle = may_speak and len(self._idle) == len(self._sides)
        if not has_moved and self.is_idle == was_idle:
            return None
        idle = self.is_idle if self.is_idle != was_idle else None
        return Batch([], watermark=self.watermark if has_moved else None, idle=idle)

    def _raise(self) -> bool:
        lowest = self._lowest_side
        if lowest is None or (self.watermark is not None and lowest <= self.watermark):
            return False
        self.watermark = lowest
        return True

    def _lowest(self) -> int | None:
        if len(self._idle) == len(self._sides):
            return max((one for one in self._sides.values() if one is not None), default=None)
        lowest: int | None = None
        for side, watermark in self._sides.items():
            if side in self._idle:
                continue
            if watermark is None:
                return None
            if lowest is None or watermark < lowest:
                lowest = watermark
        return lowest
