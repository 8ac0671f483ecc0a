"""What a task knows of time: the watermarks of its inputs, and the clock."""

from __future__ import annotations

from collections.abc import Iterable

from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId
from crosscut.operators.watermarks import CombinedWatermark
from crosscut.protocol.snapshots import Snapshot
from crosscut.task.chain import Chain


class ProcessingTime:
    """A clock that goes on where the snapshot was, and never goes back.

    A task that goes on where the clock is slow, or was set back, is ahead of it from then on: with a clock
    that stood still instead, timers would wait for as long as the clocks differ.

    Args:
        floor_ms: What the restored snapshot says; 0: there is none.
    """

    def __init__(self, floor_ms: int) -> None:
        self._floor_ms = floor_ms
        self._ahead_ms: int | None = None
        self.now_ms = floor_ms

    def forward_news(self, clock_ms: int) -> int:
        """Return what time it is, now that the machine's clock says `clock_ms`."""
        if self._ahead_ms is None:
            self._ahead_ms = max(0, self._floor_ms - clock_ms)
        self.now_ms = max(self.now_ms, clock_ms + self._ahead_ms)
        return self.now_ms


class TaskTime:
    """Event time and processing time of one task: whatever it hears of either, it tells its chain.

    Args:
        channels: The inputs, but for back edges: what goes round comes from what came in, and never holds
            the watermark up.
        restored: The snapshot that the task goes on from; None: from none.
        has_event_time: Records that leave have timestamps.

    Attributes:
        uses_clock: Operators go by the clock.
    """

    def __init__(
        self, chain: Chain, channels: Iterable[ChannelId], restored: Snapshot | None, *, has_event_time: bool
    ) -> None:
        watermark = restored.watermark if restored is not None else None
        self.uses_clock = chain.uses_clock
        self._chain = chain
        self._watermarks = CombinedWatermark(dict.fromkeys(channels, watermark), watermark)
        self._clock = ProcessingTime(restored.now_ms if restored is not None else 0)
        self._has_event_time = has_event_time

    @property
    def watermark(self) -> int | None:
        """That of the inputs together."""
        return self._watermarks.watermark

    @property
    def now_ms(self) -> int:
        """What the clock has last said; 0 if no operator goes by it."""
        return self._clock.now_ms if self.uses_clock else 0

    @property
    def alarm_in_ms(self) -> int | None:
        """How long it is until something is due by the clock."""
        alarm_ms = self._chain.next_alarm_ms
        return None if alarm_ms is None else max(0, alarm_ms - self._clock.now_ms)

    def set_clock(self, clock_ms: int) -> None:
        """The machine's clock says `clock_ms`."""
        self._chain.set_clock(self._clock.forward_news(clock_ms))

    def note_news(self, channel: ChannelId, news: Batch) -> None:
        """An input has said something of event time."""
        self._chain.forward_news(self._watermarks.update(channel, news.watermark, idle=news.idle))

    def ended(self, channel: ChannelId) -> None:
        """An input has come to its end."""
        self._chain.forward_news(self._watermarks.ended(channel))

    def leaving(self) -> tuple[int | None, str]:
        """Return the watermark that leaves the task, and who holds it up."""
        assigned = self._chain.last_assigned if self._has_event_time else None
        if assigned is not None:
            return assigned
        holder = self._watermarks.holder if self._has_event_time else None
        return self._watermarks.watermark, str(holder.source) if holder is not None else ""
