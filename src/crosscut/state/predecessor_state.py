"""What a task takes over from those of another parallelism."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from crosscut.foundation.keys import OwnedKeys
from crosscut.protocol.snapshots import Part
from crosscut.state.encoding import Block
from crosscut.state.keyed import KeyedState
from crosscut.state.reading import one_of_several, stored_blocks

ReadPart = Callable[[Part], bytes]


@dataclass(frozen=True, slots=True)
class PredecessorState:
    """What a task takes over from those of another parallelism.

    Attributes:
        chains: The parts of each.
        copies: Which of them had what is the same in all tasks.
        owns: Which of their keys are the task's.
        whole: Those of which it takes every key: no key of them is asked for.
    """

    chains: tuple[tuple[Part, ...], ...]
    copies: int
    owns: OwnedKeys
    whole: frozenset[int] = frozenset()

    def blocks(self, position: int, state: KeyedState, read: ReadPart, scratch: str) -> Iterator[Block]:
        """Yield the rows for `state` out of one of the chains. Blocks.

        Args:
            scratch: See `stored_blocks`.
        """
        found = stored_blocks(self.chains[position], read, scratch)
        mine = one_of_several(found, state.shared, () if position == self.copies else state.alike)
        if position in self.whole:
            yield from mine
            return
        for block in mine:
            rows = state.owned_rows(block, self.owns)
            yield block._replace(keys=[row for row, _ in rows], values=[value for _, value in rows])
