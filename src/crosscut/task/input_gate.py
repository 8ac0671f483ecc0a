"""The inputs of a task, read in turn. A blocked channel has no turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import assert_never

from crosscut.errors import ProtocolError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import ChannelId
from crosscut.protocol.replay_order import ReplayOrder
from crosscut.protocol.unit_log.entries import START, ChannelPosition
from crosscut.protocol.unit_log.positions import advanced
from crosscut.task.flow_control import ReceivingEnd
from crosscut.task.inputs import InputQueue
from crosscut.task.items import Barrier, EndOfInput, Item
from crosscut.task.task_effects import TaskEffects
from crosscut.task.task_section import WaitingItem
from crosscut.wire.batches import encode_batch


class InputGate:
    """Reads the inputs of one task in turn, an item at a time.

    Args:
        is_blocked: Whether a channel may deliver nothing for now.
        channel_bytes: That each channel may have under way.
        spills_blocked: A channel that is blocked may be spilled to disk; a back edge always may.
        replay: Which inputs may deliver after a start at another parallelism; `REPLAYED` is the marker.
            None: all may.

    Attributes:
        ends: The receiving ends.
    """

    def __init__(
        self,
        inputs: Mapping[ChannelId, InputQueue],
        is_blocked: Callable[[ChannelId], bool],
        task_effects: TaskEffects,
        *,
        back_edges: frozenset[ChannelId],
        channel_bytes: int,
        spills_blocked: bool,
        replay: ReplayOrder | None = None,
    ) -> None:
        self.ends = {
            channel: ReceivingEnd(
                queue,
                channel_bytes,
                partial(is_blocked, channel) if spills_blocked else _never,
                is_back_edge=channel in back_edges,
            )
            for channel, queue in inputs.items()
        }
        self._queues = inputs
        self._is_blocked = is_blocked
        self._task_effects = task_effects
        # Channels with something to deliver, in the turn they are served.
        self._turn: deque[ChannelId] = deque(channel for channel, queue in inputs.items() if queue)
        # None once it is over.
        self._replay = replay if replay is not None and not replay.is_over else None
        # Those of them that were found blocked, until channels are unblocked: with thousands of inputs,
        # looking at them again for each item would cost the square of their number.
        self._set_aside: list[ChannelId] = []
        self._ended: set[ChannelId] = set()
        # Of channels with numbers alone.
        self._taken: dict[ChannelId, ChannelPosition] = {}

    @property
    def has_next(self) -> bool:
        """Whether a channel that may deliver has something to deliver."""
        turn, replay = self._turn, self._replay
        while turn and (
            self._is_blocked(turn[0]) or (replay is not None and not replay.may_deliver(turn[0]))
        ):
            self._set_aside.append(turn.popleft())
        return bool(turn)

    @property
    def has_barrier(self) -> bool:
        """Whether a barrier waits in a channel that is not blocked, and is to be taken before long."""
        return self._replay is None and any(
            queue.holds_barrier for channel, queue in self._queues.items() if not self._is_blocked(channel)
        )

    def begin_turn(self) -> ChannelId:
        """Return the channel whose turn it is; `has_next` has said that there is one."""
        return self._turn.popleft()

    def begin_turn_of_barrier(self) -> ChannelId | None:
        """As `begin_turn`, of a channel that is not blocked and has a barrier to deliver next, if any."""
        if self._replay is not None:
            return None
        for channel in self._turn:
            if self._queues[channel].begins_with_barrier and not self._is_blocked(channel):
                self._turn.remove(channel)
                return channel
        return None

    def end_turn(self, channel: ChannelId) -> None:
        """The item from `channel` is dealt with: if more waits there, the channel is the last in turn."""
        if self._queues[channel]:
            self._turn.append(channel)

    @property
    def is_replaying(self) -> bool:
        """Whether records that were on their way at another parallelism are still to be taken."""
        return self._replay is not None

    @property
    def is_generation_taken(self) -> bool:
        """Whether the task is to send a replay marker when all it took has gone on; see `ReplayOrder`."""
        return self._replay is not None and self._replay.is_generation_taken

    def replays_own(self, channel: ChannelId) -> bool:
        """Whether `channel` delivers the task's own channel records now."""
        return self._replay is not None and self._replay.is_own(channel)

    def note_replay_marker(self, channel: ChannelId) -> None:
        """Note that a replay marker, the end of a generation of channel records, was taken.

        Raises:
            ProtocolError: None is expected there.
        """
        if self._replay is None:
            raise ProtocolError(f"a replay marker came on {channel}, and nothing is being replayed")
        self._replay.marked(channel)
        self._let_in()

    def begin_generation(self) -> None:
        """The task has sent the replay marker after a generation."""
        if self._replay is not None:
            self._replay.begin_next()
            self._let_in()

    def _let_in(self) -> None:
        """Others may deliver now than before."""
        if self._replay is not None and self._replay.is_over:
            self._replay = None
        self.unblock()

    def take(self, channel: ChannelId, rows_max: int, whole_max: int = 0) -> Item:
        """Take the first item of `channel`, of at most `rows_max` records, or whole if it has few more.

        Raises:
            SpillError: It can't be read from disk.
        """
        return self._queues[channel].take(rows_max, whole_max)

    def put_back(self, channel: ChannelId, rest: Item) -> None:
        """Let `rest` be the first item of `channel` again."""
        self._queues[channel].appendleft(rest)

    def note_taken(self, channel: ChannelId, record: int, news_number: int) -> None:
        """The task has taken the records of `channel` up to `record`, and this news; 0: none."""
        if record or news_number:
            self._taken[channel] = advanced(self._taken.get(channel, START), record, news_number)

    @property
    def has_taken(self) -> bool:
        """Whether `take_positions` would return something."""
        return bool(self._taken)

    def take_positions(self) -> dict[ChannelId, ChannelPosition]:
        """Return how far the task has taken each channel with numbers since the last call.

        A number that is 0 is as it was.
        """
        taken, self._taken = self._taken, {}
        return taken

    def waiting(self, without: Collection[ChannelId]) -> tuple[WaitingItem, ...]:
        """Return what waits in channels from tasks of the same worker, but for those in `without`.

        Raises:
            WireError: A record can't be stored.
        """
        found = []
        for channel, queue in self._queues.items():
            if channel.source.index != channel.target.index or channel in without:
                continue
            for item in queue.items:
                match item:
                    case Batch():
                        found.append(WaitingItem(channel, encode_batch(item), len(item)))
                    case EndOfInput():
                        found.append(WaitingItem(channel, b"", 0))
                    case Barrier():
                        raise ProtocolError(f"{item} waits in {channel}, and groups have no barriers")
                    case _:
                        assert_never(item)
        return tuple(found)

    def add(self, channel: ChannelId, item: Item) -> None:
        """Let `item` wait, after everything that arrived on `channel` before."""
        queue = self._queues[channel]
        if not queue:
            self._turn.append(channel)
        queue.append(item)

    def waits(self, channel: ChannelId, barrier: Barrier) -> bool:
        """Whether `barrier` does, on `channel`."""
        return barrier in self._queues[channel]

    def take_out(self, channel: ChannelId, barrier: Barrier) -> None:
        """Take out a barrier that waits, wherever in `channel` it is."""
        queue = self._queues[channel]
        queue.remove(barrier)
        if not queue:
            (self._turn if channel in self._turn else self._set_aside).remove(channel)
            self._task_effects.emptied.append(channel)

    def unblock(self) -> None:
        """Channels that were blocked are so no more."""
        # In front: they have waited for longer.
        self._turn.extendleft(reversed(self._set_aside))
        self._set_aside.clear()

    def has_ended(self, channel: ChannelId) -> bool:
        """Whether no record may come on `channel` any more."""
        return channel in self._ended

    def end(self, channel: ChannelId) -> bool:
        """No record will come on `channel` any more; return whether that is news, and now true of all."""
        is_new = channel not in self._ended
        self._ended.add(channel)
        return is_new and len(self._ended) == len(self._queues)

    @property
    def ended(self) -> frozenset[ChannelId]:
        """The channels that have ended."""
        return frozenset(self._ended)

    @property
    def queued_rows(self) -> int:
        """Records that wait, in memory and on disk."""
        return sum(queue.rows for queue in self._queues.values())

    @property
    def spilled_bytes(self) -> int:
        """Bytes that were ever written to disk."""
        return sum(queue.spilled_bytes for queue in self._queues.values())

    def close(self) -> None:
        """Give the disk space back."""
        for queue in self._queues.values():
            queue.close()


def _never() -> bool:
    return False
