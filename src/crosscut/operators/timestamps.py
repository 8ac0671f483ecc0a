"""assign_timestamps: when each record happened, and which ones will not come any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from crosscut.contracts.connectors import JSON
from crosscut.errors import StateError
from crosscut.foundation.batch import Batch
from crosscut.foundation.timestamps import TIMESTAMP_MAX, TIMESTAMP_MIN, as_timestamp
from crosscut.graph.specs import WatermarkHold
from crosscut.operators.operator import Operator, user_code_error
from crosscut.operators.watermarks import CombinedWatermark

_INT = {int}
_FIRST = "the first split"
"""What a source waits for that has had none: shown to people as who holds the watermark up."""


class AssignTimestamps(Operator):
    """Gives each record a timestamp. Its watermark stays `out_of_orderness_ms` below the newest of them.

    In the chain of a source each split has a watermark of its own: one that is read ahead does not make the
    records of the others late. Splits that are still to be read hold the watermark up.

    Attributes:
        origin: Where the next records come from: a split, or "" for all that is not a source.
    """

    passes_watermarks = False

    def __init__(
        self,
        uid: str,
        function: Callable[[Any], Any],
        out_of_orderness_ms: int,
        idle_after_ms: int | None = None,
        hold: WatermarkHold | None = None,
    ) -> None:
        super().__init__(uid)
        self._hold = hold
        self.uses_clock = idle_after_ms is not None
        self._idle_after_ms = idle_after_ms
        # Since when nothing has come of those that are asked; splits that wait to be read are not.
        self._silent_since: dict[str, int] = {}
        # In batches, where each has an operator of its own: since when none has brought anything.
        self._quiet_since: dict[str, int] = {}
        # Those of which something has come.
        self._active: set[str] = set()
        # When records of `origin` were read last.
        self._read_ms = 0
        self._function = function
        self._out_of_orderness_ms = out_of_orderness_ms
        self.origin = ""
        self._combined: CombinedWatermark[str] = CombinedWatermark({"": None})
        self._is_source = False
        # It has no split, nor may any task of the source: what comes first may be older than all else.
        self._awaits_first = False
        self._news: Batch | None = None

    @property
    def watermark(self) -> int | None:
        """What it has said last."""
        return self._combined.watermark

    def awaited(self, splits: Iterable[str]) -> dict[str, int]:
        """Return the watermarks of those splits that have one and are not idle."""
        return self._combined.awaited(splits)

    @property
    def holder(self) -> str:
        """The split that holds the watermark up, "" if there is none."""
        found = self._combined.holder
        return _FIRST if self._awaits_first and found == "" else found or ""

    def begin(self, splits: Iterable[str], saved: JSON, *, is_open: bool = False) -> None:
        """Wait for these splits, none of them for what is no source.

        Args:
            saved: What `saved` was in the restored snapshot; None: there is none.
            is_open: It is a source that may be given others. Without splits it holds the watermark, until
                `came` says that the source has had one, or nothing has come for so long.

        Raises:
            StateError: It is something else.
        """
        known: dict[str, Any] = {}
        quiet: dict[str, Any] = {}
        watermark: int | None = None
        match saved:
            case None:
                pass
            case [int() | None as watermark, dict() as known]:
                pass
            case [int() | None as watermark, dict() as known, dict() as quiet]:
                pass
            case _:
                raise StateError(
                    f"a snapshot says of the watermark of operator {self.uid!r} {saved!r:.100}: expected "
                    f"[watermark, watermark of each split, since when each has been quiet]"
                )
        self._quiet_since, self._active = dict(quiet), set()
        sides = {split: known.get(split) for split in splits}
        self._awaits_first = not sides and is_open
        if not sides:
            sides = {"": None if is_open else known.get("")}
        if self._hold is not None and self._hold.at_ms is not None:
            # The next operator is told of it, as of any watermark in a snapshot.
            watermark = self._hold.at_ms if watermark is None else max(watermark, self._hold.at_ms)
            sides = dict.fromkeys(sides, watermark)
        self._combined = CombinedWatermark(sides, watermark, is_open=is_open)
        self._is_source = is_open or "" not in sides

    def came(self, splits: Iterable[str], *, is_last: bool) -> None:
        """Wait for these splits as well, which have been found; none: other tasks of the source have some."""
        self._add_news(self._combined.came(splits, is_last=is_last))
        if self._awaits_first:
            self._awaits_first = False
            self.end_of("")

    @property
    def saved(self) -> JSON:
        """What a snapshot holds of it."""
        sides: dict[str, JSON] = {
            one: watermark for one, watermark in self._combined.sides.items() if watermark is not None
        }
        if not self._quiet_since:
            return [self._combined.watermark, sides]
        return [self._combined.watermark, sides, dict(self._quiet_since)]

    def waits_for(self, split: str) -> None:
        """It was asked, and there is nothing to read there now."""
        if self._idle_after_ms is None:
            return
        since = self._silent_since.setdefault(split, self.time_budget.now_ms)
        # Only a split that has just been read is idle: none was, while the operators after it were slow.
        if since + self._idle_after_ms <= self.time_budget.now_ms and self._combined.may_fall_idle(split):
            self._add_news(self._combined.update(split, None, idle=True))

    def reads(self, split: str) -> None:
        """Records of a split were read, and come next; those in front of this operator may leave none."""
        self.origin = split
        if self._idle_after_ms is not None:
            self._read_ms = self.time_budget.now_ms
            self._silent_since.setdefault(split, self._read_ms)

    def look_back(self) -> None:
        """All that was read last has come, as far as it does: note whether nothing has for so long."""
        since = self._silent_since.get(self.origin)
        if since is None or self._idle_after_ms is None or not self._is_source:
            return
        # By the time at which it was read: what comes after may have been slow since.
        if since + self._idle_after_ms <= self._read_ms and self._combined.may_fall_idle(self.origin):
            self._add_news(self._combined.update(self.origin, None, idle=True))

    @property
    def next_alarm_ms(self) -> int | None:
        """When `look` is to be called: without splits, nothing else says that no record has come."""
        if self._idle_after_ms is None or self._polls_splits or self._combined.is_idle:
            return None
        since = self._silent_since.get("")
        return self.time_budget.now_ms if since is None else since + self._idle_after_ms

    @property
    def _polls_splits(self) -> bool:
        """Whether its splits are asked, and say that they have nothing."""
        return self._is_source and not self._awaits_first

    def look(self, *, is_fed: bool) -> None:
        """Note, in what reads no split, whether nothing has come for so long.

        Args:
            is_fed: Records wait in the inputs, since what comes after is slow, or for their calls.
        """
        if self._idle_after_ms is None or self._polls_splits:
            return
        if is_fed:
            self._silent_since[""] = self.time_budget.now_ms
        else:
            self.waits_for("")

    def batch_ends(self, empty: Iterable[str]) -> None:
        """A batch has all its records: note which splits have brought none for so long, over all batches.

        Only at its end: before, those that are read over a connection of this batch have not had their say.

        Args:
            empty: Splits that have nothing to read; what is no source has none.
        """
        if self._idle_after_ms is None:
            return
        now_ms = self.time_budget.now_ms
        for split in empty if self._polls_splits else ("",):
            if split in self._active:
                continue
            since = self._quiet_since.setdefault(split, self._silent_since.get(split, now_ms))
            if since + self._idle_after_ms <= now_ms and self._combined.may_fall_idle(split):
                self._add_news(self._combined.update(split, None, idle=True))

    def end_of(self, split: str) -> None:
        """Nothing more comes from there."""
        self._silent_since.pop(split, None)
        self._quiet_since.pop(split, None)
        self._add_news(self._combined.ended(split))

    def take_news(self) -> Batch | None:
        """Return the watermark, if it has moved since it was last said."""
        news, self._news = self._news, None
        return news

    def process(self, batch: Batch) -> Batch:
        remaining = self.time_budget.through(batch)
        try:
            function = self._function
            timestamps = [function(record) for record in remaining]
        except BaseException as error:
            raise self.blamed(error, batch.records, remaining) from error
        if not timestamps:
            # The slice was over before the first of them.
            return Batch([])
        is_plain = set(map(type, timestamps)) == _INT
        if not is_plain or min(timestamps) < TIMESTAMP_MIN or max(timestamps) > TIMESTAMP_MAX:
            timestamps = self._converted(timestamps, batch.records)
        self.taken_count += len(batch)
        return self._stamped(Batch(batch.records, batch.keys, timestamps), timestamps)

    def _stamped(self, made: Batch, timestamps: list[int]) -> Batch:
        """Return `made`, whose records have these times, with the watermark after them."""
        if self._hold is not None:
            return made
        # A watermark is a time as well.
        watermark = max(TIMESTAMP_MIN, max(timestamps) - self._out_of_orderness_ms)
        self._silent_since.pop(self.origin, None)
        if self._idle_after_ms is not None:
            self._active.add(self.origin)
            self._quiet_since.pop(self.origin, None)
        if not self._is_source:
            self._silent_since[""] = self.time_budget.now_ms
        idle = None if self._idle_after_ms is None else False
        self._add_news(self._combined.update(self.origin, watermark, idle=idle))
        if (news := self.take_news()) is not None:
            made.add_news(news.watermark, idle=news.idle)
        return made

    def _converted(self, found: list[Any], records: list[Any]) -> list[int]:
        timestamps = []
        for value, record in zip(found, records, strict=True):
            try:
                timestamps.append(as_timestamp(value))
            except (TypeError, ValueError) as error:
                # Its function has returned: whatever it may have asked was there, so the record is to blame.
                raise user_code_error(self.uid, error, record, is_first=False) from error
        return timestamps

    def _add_news(self, news: Batch | None) -> None:
        if news is None:
            return
        if self._news is None:
            self._news = news
        else:
            self._news.extend(news)
