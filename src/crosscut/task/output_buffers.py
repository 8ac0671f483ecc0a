"""The way out of a task: output buffers, the outbox, and items that channels do not take yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from crosscut.foundation.batch import Batch, LatencyMarker
from crosscut.foundation.ids import ChannelId, CheckpointId
from crosscut.graph.specs import SideOutput
from crosscut.task.flow_control import ROWS_MAX, SendingEnd
from crosscut.task.items import REPLAYED, Barrier, EndOfInput, Item
from crosscut.task.outputs import Output
from crosscut.task.task_effects import TaskEffects

_SHARE = 2
"""Of what its channels may hold, a task makes half at a time."""

Log = Callable[[ChannelId, Batch], None]
"""Has a snapshot hold a batch that a barrier overtakes."""


class OutputBuffers:
    """The way out of one task, in order from the operators to the channels.

    Args:
        outputs: Where records are buffered first.
        channel_bytes: That each channel may have under way.

    Attributes:
        ends: The sending ends, each with the items that its channel has not taken yet.
        rows_max: Records that the outputs should get at a time, so that no channel gets much more than it may
            hold.
        clogged: The channels that hold the task up, in the order in which they came to: a set has another one
            in every process.
    """

    def __init__(self, outputs: Sequence[Output], task_effects: TaskEffects, channel_bytes: int) -> None:
        self.outputs = outputs
        self._by_side: dict[SideOutput | None, list[Output]] = {}
        for output in outputs:
            self._by_side.setdefault(output.side, []).append(output)
        self.ends = {
            channel: SendingEnd(channel, channel_bytes) for output in outputs for channel in output.channels
        }
        self.rows_max = ROWS_MAX
        self.measure()
        self.clogged: dict[ChannelId, None] = {}
        self._task_effects = task_effects

    def look(self, channel: ChannelId) -> bool:
        """Note whether `channel` holds the task up now; return whether it did and does so no more."""
        if self.ends[channel].is_clogged:
            self.clogged[channel] = None
            return False
        return bool(self.clogged) and self.clogged.pop(channel, self) is None

    def measure(self) -> None:
        """Note how much the channels may hold; to be called when one says something new of it."""
        self.rows_max = max(1, min(map(self._room, self.outputs), default=ROWS_MAX) // _SHARE)

    def _room(self, output: Output) -> int:
        """Return the records that all channels of an output may hold."""
        each = [self.ends[channel].rows_max for channel in output.channels]
        return min(each, default=ROWS_MAX) if output.copies else sum(each)

    @property
    def has_buffered(self) -> bool:
        """Whether records wait in the output buffers."""
        for output in self.outputs:  # noqa: SIM110 - after each slice: a generator costs more than the answer
            if output.buffered_rows or output.has_buffered:
                return True
        return False

    @property
    def has_enough(self) -> bool:
        """Whether as many records wait in the output buffers as the channels should get at a time."""
        buffered = 0
        for output in self.outputs:
            buffered += output.buffered_rows
        return buffered >= self.rows_max

    def lead_on(self, side: SideOutput | None) -> bool:
        """Return whether somebody reads what leaves there."""
        return side in self._by_side

    def add(self, batch: Batch, side: SideOutput | None = None) -> None:
        """Send a batch, on each output for `side`, once its buffers are full."""
        for output in self._by_side[side]:
            if output.add(batch):
                self._task_effects.outbox += output.take()

    def add_marker(self, marker: LatencyMarker) -> None:
        """Let `marker` go on, on each output, after what was added."""
        for output in self.outputs:
            output.add_marker(marker)

    def flush(self) -> None:
        """Send the records in the output buffers."""
        for output in self.outputs:
            if output.has_buffered:
                self._task_effects.outbox += output.take()

    def send_to_all(self, item: Barrier | EndOfInput) -> None:
        """Send `item` on every channel, after all records."""
        self.flush()
        self._task_effects.outbox += [
            (channel, item) for output in self.outputs for channel in output.channels
        ]

    def gone(self, checkpoint_ids: Iterable[CheckpointId]) -> list[CheckpointId]:
        """Return those whose barriers wait in no channel. The outbox must be empty."""
        waiting = {item for end in self.ends.values() for item in end.waiting if isinstance(item, Barrier)}
        return [n for n in checkpoint_ids if Barrier(n) not in waiting]

    def overtake(self, n: CheckpointId, log: Log) -> None:
        """Send barrier n ahead of everything that has not left yet."""
        self.flush()
        outbox, self._task_effects.outbox = self._task_effects.outbox, []
        leaving: dict[ChannelId, list[Item]] = {}
        for channel, item in outbox:
            leaving.setdefault(channel, []).append(item)
        for channel, end in self.ends.items():
            waiting = end.waiting
            items = _led_by_barrier(n, channel, [*waiting, *leaving.get(channel, ())], log)
            if waiting:
                waiting.clear()
                waiting.extend(items)
            else:
                self._task_effects.outbox += [(channel, item) for item in items]

    def expedite(self, n: CheckpointId, log: Log) -> None:
        """Move barrier n ahead of the items that still wait before it."""
        barrier = Barrier(n)
        for channel, end in self.ends.items():
            waiting = end.waiting
            if barrier in waiting:
                items = list(waiting)
                position = items.index(barrier)
                waiting.clear()
                waiting.extend(_led_by_barrier(n, channel, items[:position], log))
                waiting.extend(items[position + 1 :])


def _led_by_barrier(n: CheckpointId, channel: ChannelId, items: list[Item], log: Log) -> list[Item]:
    """Log `items`, and return them with barrier n before them.

    The barrier stays after the last marker of channel records (`REPLAYED`): the receiver takes no snapshot
    before that marker, so what is in front of it belongs to no log.
    """
    first = max((place for place, item in enumerate(items, 1) if item == REPLAYED), default=0)
    replayed, items = items[:first], items[first:]
    for item in items:
        if isinstance(item, Batch):
            log(channel, item)
    # Older barriers, which have overtaken the same records, stay before it.
    older = sum(1 for _ in takewhile(lambda item: isinstance(item, Barrier), items))
    return [*replayed, *items[:older], Barrier(n), *items[older:]]
