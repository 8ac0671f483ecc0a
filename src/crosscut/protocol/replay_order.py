"""Order per key after a start at another parallelism: which inputs of a task may deliver, and when.

A checkpoint may hold channel records. At another parallelism they may take another way than the records
that follow them: another task reads their split or owns their key, and what was in a channel that is not by
key goes to the task that takes over from its receiver. So two records of a key that left one task in order
may reach the next owner of the key over two channels, between which there is no order.

Of two such records the older one is further down the graph. So channel records are processed by
generations, the furthest first. The depth of a vertex is the length of the longest way to it from a source
(back edges aside). The channel records of a vertex with depth d are generation d. What sources read from
now on is generation 0.

* A task of depth d takes its own channel records first: generation d.
* Then it takes generations d-1, d-2, ... 1 from its inputs. Generation g can come from senders of depth g
  or more. From each of them the task takes what precedes the next marker, then nothing until the others have
  sent theirs.
* After each generation the task sends a marker on all outputs, after everything that came of it.
* After generation 1 all inputs may deliver.

A channel that may not deliver waits only for tasks further up, as in an alignment, so no task waits for
itself. Back edges wait until the end. They always have room on disk, and what comes around has no order
with what comes in.
"""

from __future__ import annotations

from collections.abc import Mapping

from crosscut.errors import ProtocolError
from crosscut.foundation.ids import ChannelId


class ReplayOrder:
    """Which inputs of one task may deliver, from the start until it has taken all older generations.

    Args:
        sections: How many sections of the task's own channel records each input holds, the same for all; a
            marker ends one. The first section of all inputs is taken before the second one of any.
        depth: Of the task's vertex; 0: the task exchanges no markers with others.
        sender_depths: Of the vertex that sends on each input that is no back edge.
    """

    def __init__(self, sections: Mapping[ChannelId, int], depth: int, sender_depths: Mapping[ChannelId, int]):
        self._sections = dict(sections)
        self._sender_depths = sender_depths
        self._generation = depth
        self._owing: set[ChannelId] = set()
        if any(sender >= max(depth, 1) for sender in sender_depths.values()):
            raise ProtocolError(f"a vertex of depth {depth} has inputs of depths {sender_depths}")

    @property
    def is_over(self) -> bool:
        """Whether all inputs may deliver."""
        return not self._sections and not self._generation

    @property
    def has_own(self) -> bool:
        """Whether own channel records are still to be taken."""
        return bool(self._sections)

    @property
    def is_generation_taken(self) -> bool:
        """Whether a marker is to be sent once all that was taken has gone on: then call `begin_next`."""
        return bool(self._generation) and not self._sections and not self._owing

    def begin_next(self) -> None:
        """The marker after a generation was sent."""
        if not self.is_generation_taken:
            raise ProtocolError(f"generation {self._generation} has not been taken")
        self._generation -= 1
        if self._generation:
            self._owing = {
                channel for channel, depth in self._sender_depths.items() if depth >= self._generation
            }

    def may_deliver(self, channel: ChannelId) -> bool:
        """Whether it is the turn of `channel`."""
        if self._sections:
            return self.is_own(channel)
        return channel in self._owing or not self._generation

    def is_own(self, channel: ChannelId) -> bool:
        """Whether `channel` delivers the task's own channel records now."""
        return bool(self._sections) and next(iter(self._sections)) == channel

    def marked(self, channel: ChannelId) -> None:
        """A marker was taken from `channel`.

        Raises:
            ProtocolError: None is expected there.
        """
        if not self.may_deliver(channel):
            raise ProtocolError(f"a replay marker came on {channel} out of turn")
        if self._sections:
            left = self._sections.pop(channel) - 1
            if left:
                # The others come first, with the same section.
                self._sections[channel] = left
        else:
            self._owing.remove(channel)
