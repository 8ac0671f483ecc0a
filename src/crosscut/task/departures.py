"""What leaves a task: the buffers of its outputs, what goes out now, and what channels do not take yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from crosscut.batch import Batch
from crosscut.graph.specs import SideOutput
from crosscut.ids import ChannelId, CheckpointId
from crosscut.task.items import Barrier, EndOfInput, Item
from crosscut.task.outputs import Output

Log = Callable[[ChannelId, Batch], None]
"""Has a snapshot hold a batch that a barrier overtakes."""


class Departures:
    """The way out of one task, in order from the operators to the channels.

    Args:
        outputs: Where records are buffered first.
        first: What leaves before anything else: a snapshot has held it.

    Attributes:
        outbox: What is to be handed over now.
        unsent: What could not be handed over yet, because the channel takes no more for now.
    """

    def __init__(self, outputs: Sequence[Output], first: Iterable[tuple[ChannelId, Item]] = ()) -> None:
        self.outputs = outputs
        self._by_side: dict[SideOutput | None, list[Output]] = {}
        for output in outputs:
            self._by_side.setdefault(output.side, []).append(output)
        self.outbox: list[tuple[ChannelId, Item]] = list(first)
        self.unsent: dict[ChannelId, deque[Item]] = {
            channel: deque() for output in outputs for channel in output.channels
        }

    @property
    def has_buffered(self) -> bool:
        """Whether records wait in the output buffers."""
        return any(output.has_buffered for output in self.outputs)

    def lead_on(self, side: SideOutput | None) -> bool:
        """Return whether somebody reads what leaves there."""
        return side in self._by_side

    def add(self, batch: Batch, side: SideOutput | None = None) -> None:
        """Send a batch, on each output for `side`, once its buffers are full."""
        for output in self._by_side[side]:
            if output.add(batch):
                self.outbox += output.take()

    def flush(self) -> None:
        """Send what waits in the output buffers."""
        for output in self.outputs:
            if output.has_buffered:
                self.outbox += output.take()

    def send_to_all(self, item: Barrier | EndOfInput) -> None:
        """Send `item` on every channel, behind all records."""
        self.flush()
        self.outbox += [(channel, item) for output in self.outputs for channel in output.channels]

    def gone(self, checkpoint_ids: Iterable[CheckpointId]) -> list[CheckpointId]:
        """Return those whose barriers wait in no channel. The outbox has to be empty."""
        waiting = {item for items in self.unsent.values() for item in items if isinstance(item, Barrier)}
        return [n for n in checkpoint_ids if Barrier(n) not in waiting]

    def overtake(self, n: CheckpointId, log: Log) -> None:
        """Send barrier n ahead of everything that has not left yet."""
        self.flush()
        outbox, self.outbox = self.outbox, []
        leaving: dict[ChannelId, list[Item]] = {}
        for channel, item in outbox:
            leaving.setdefault(channel, []).append(item)
        for channel, waiting in self.unsent.items():
            items = _led_by_barrier(n, channel, [*waiting, *leaving.get(channel, ())], log)
            if waiting:
                waiting.clear()
                waiting.extend(items)
            else:
                self.outbox += [(channel, item) for item in items]

    def expedite(self, n: CheckpointId, log: Log) -> None:
        """Move barrier n ahead of what it was sent behind and still waits behind."""
        barrier = Barrier(n)
        for channel, waiting in self.unsent.items():
            if barrier in waiting:
                items = list(waiting)
                position = items.index(barrier)
                waiting.clear()
                waiting.extend(_led_by_barrier(n, channel, items[:position], log))
                waiting.extend(items[position + 1 :])


def _led_by_barrier(n: CheckpointId, channel: ChannelId, items: list[Item], log: Log) -> list[Item]:
    """Log `items`, and return them behind barrier n."""
    for item in items:
        if isinstance(item, Batch):
            log(channel, item)
    # It stays behind older barriers, which have overtaken the same records.
    older = sum(1 for _ in takewhile(lambda item: isinstance(item, Barrier), items))
    return [*items[:older], Barrier(n), *items[older:]]
