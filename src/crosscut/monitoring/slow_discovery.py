"""How far dynamic sources are with their search for splits: who does not answer, and who is not asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from crosscut.foundation.ids import VertexId
from crosscut.protocol.splits.discovery import DiscoveryState

SLOW_S = 5.0
"""How long a call of `discover` takes before that is said."""


@dataclass(frozen=True, slots=True)
class DiscoveryStatus:
    """The search for splits of one source.

    Attributes:
        unread_splits: Those that have not ended, as far as the newest checkpoint tells.
        unanswered_seconds: How long the call of `discover` that is under way takes already; 0.0: none is.
        is_held: The source is not asked, since too much of what it has found is not read yet.
    """

    source: VertexId
    unread_splits: int
    unanswered_seconds: float
    is_held: bool


@dataclass(slots=True)
class _Known:
    search: DiscoveryState
    since_ns: int = 0
    is_slow_logged: bool = False
    is_held_logged: bool = False


class SplitSearches:
    """Since when which source has not answered, by the clock of the driver."""

    def __init__(self) -> None:
        self._known: dict[VertexId, _Known] = {}

    def note(self, now_ns: int, searches: Iterable[DiscoveryState]) -> list[str]:
        """Note how the searches stand; return lines for people, once for each call and each pause."""
        texts = []
        for one in searches:
            known = self._known.setdefault(one.source, _Known(one))
            if one.call and (known.search.call != one.call or not known.since_ns):
                known.since_ns, known.is_slow_logged = now_ns, False
            known.search = one
            known.is_held_logged = known.is_held_logged and one.is_held
            seconds = self._unanswered_seconds(known, now_ns)
            if seconds >= SLOW_S and not known.is_slow_logged:
                known.is_slow_logged = True
                texts.append(
                    f"source {one.source!r} has not said for {seconds:.0f} s which splits have come: its "
                    f"discover() has not returned; the job goes on with those that it has, and fails over "
                    f"after start_timeout"
                )
            if one.is_held and not known.is_held_logged:
                known.is_held_logged = True
                texts.append(
                    f"source {one.source!r} finds splits faster than they are read: {one.unread_count:,} "
                    f"have not ended, {one.unread_bytes:,} bytes of each checkpoint; it is asked for others "
                    f"when there are fewer"
                )
        return texts

    def status(self, now_ns: int) -> tuple[DiscoveryStatus, ...]:
        """Return how each search stands."""
        return tuple(
            DiscoveryStatus(
                source,
                one.search.unread_count,
                round(self._unanswered_seconds(one, now_ns), 1),
                one.search.is_held,
            )
            for source, one in sorted(self._known.items())
        )

    def _unanswered_seconds(self, known: _Known, now_ns: int) -> float:
        return (now_ns - known.since_ns) / 1e9 if known.search.call else 0.0
