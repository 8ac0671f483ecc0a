"""Peers that have connected and not proven the secret: who may stay, and what is said of those refused.

Anyone who can reach a port can open connections faster than peers can prove themselves. Memory is bounded, so
somebody has to go; if that were the oldest, a flood would push out every genuine peer in the middle of
its handshake. So the one that goes is drawn by lot, in two rooms: those that have said a hello that fits are
not in the draw of those that have not, and a flood of one kind can't fill the room of the other. In a
room it hits the address that has the most, so that others are not pushed out by it.

Sans-I/O: the caller brings the randomness and the time, and closes the connections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Generic, TypeVar

Peer = TypeVar("Peer", bound=Hashable)

ROOM_MAX = 256
"""Unauthenticated peers of one kind at a time, in all."""
ADDRESS_MAX = 192
"""Of them, so many from one address."""
LINE_EVERY_S = 60.0
"""One line in the log for all that was refused in between (S13)."""


class Reason(Enum):
    """Why an unauthenticated peer was refused."""

    CROWDED = "too many at once"
    LATE = "no handshake within the deadline"
    UNPROVEN = "no proof of the secret"
    LEFT = "went away without a proof"


class _Room(Generic[Peer]):
    """Unauthenticated peers by address, in no order: one can be drawn, and removed, at once."""

    def __init__(self) -> None:
        self._by_address: dict[str, list[Peer]] = {}
        self._where: dict[Peer, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._where

    def add(self, peer: Peer, address: str) -> None:
        several = self._by_address.setdefault(address, [])
        self._where[peer] = (address, len(several))
        several.append(peer)

    def remove(self, peer: Peer) -> str:
        """Remove `peer`; return its address."""
        address, index = self._where.pop(peer)
        several = self._by_address[address]
        last = several.pop()
        if last is not peer:
            several[index] = last
            self._where[last] = (address, index)
        if not several:
            del self._by_address[address]
        return address

    def too_many(self, address: str) -> list[Peer]:
        """Return the unauthenticated peers of whom one has to go, after one from `address` has come."""
        if len(self._by_address[address]) > ADDRESS_MAX:
            return self._by_address[address]
        if len(self._where) > ROOM_MAX:
            return max(self._by_address.values(), key=len)
        return []


class Lobby(Generic[Peer]):
    """The unauthenticated peers of one listener.

    Args:
        draw: Returns a number from 0 to n - 1 for n, any of them equally likely, and none foreseeable.
    """

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw
        self._silent = _Room[Peer]()
        self._greeted = _Room[Peer]()

    def __len__(self) -> int:
        return len(self._silent) + len(self._greeted)

    def peers(self) -> list[Peer]:
        """Return everybody."""
        return [*self._silent._where, *self._greeted._where]

    def enter(self, peer: Peer, address: str) -> Peer | None:
        """Let a peer in; return the one that has to go for it, perhaps itself, and is in no room any more."""
        return self._into(self._silent, peer, address)

    def greeted(self, peer: Peer) -> Peer | None:
        """Note that `peer` has said a hello that fits; return who has to go for it, as `enter` does."""
        return self._into(self._greeted, peer, self._silent.remove(peer)) if peer in self._silent else None

    def leave(self, peer: Peer) -> None:
        """Note that `peer` has proven the secret, or is gone."""
        for room in (self._silent, self._greeted):
            if peer in room:
                room.remove(peer)

    def _into(self, room: _Room[Peer], peer: Peer, address: str) -> Peer | None:
        room.add(peer, address)
        candidates = room.too_many(address)
        if not candidates:
            return None
        goes = candidates[self._draw(len(candidates))]
        room.remove(goes)
        return goes


class Refusals:
    """Counts the unauthenticated peers that were refused, and says so from time to time.

    Attributes:
        counts: By the text of the reason, since the listener was made.

    Args:
        name: Whose listener it is.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._reported: Counter[str] = Counter()
        self._next_line_s: float | None = None
        self.counts: Counter[str] = Counter()

    def note(self, reason: Reason, address: str, now_s: float) -> str | None:
        """Count one; return the line for the log, if it is time for one.

        Args:
            now_s: A monotonic clock's reading.
        """
        self.counts[reason.value] += 1
        if self._next_line_s is not None and now_s < self._next_line_s:
            return None
        self._next_line_s = now_s + LINE_EVERY_S
        new = self.counts - self._reported
        self._reported = self.counts.copy()
        by_reason = ", ".join(f"{text}: {new[text]}" for text in sorted(new))
        return (
            f"{self._name} has refused {new.total()} connections that did not prove the job's secret "
            f"({by_reason}), the newest from {address}. The job goes on; if they don't stop, keep "
            f"others from reaching its ports. The next such line comes in {LINE_EVERY_S:g} s at the earliest"
        )
