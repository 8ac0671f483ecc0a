"""The unit that travels on channels and goes through operators: records, with keys and event time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crosscut.errors import InternalError, invariant


@dataclass(frozen=True, slots=True)
class LatencyMarker:
    """Tells how long records take from a source to a task. No operator sees it.

    Attributes:
        source: The vertex that it comes from.
        sent_us: When the records were read that it follows, in microseconds since 1970.
    """

    source: str
    sent_us: int


class Batch:
    """Records that travel together, in order, and what is known of event time after them.

    Such news, a watermark or idleness, never overtakes records: it stays with the last ones when a batch is
    divided, and the newest counts when batches are merged, since a watermark may always come later. A batch
    without records may carry news alone.

    Attributes:
        records: The records.
        keys: After `key_by`: `keys[i]` is the key of `records[i]`. The same list as `records` if the
            consumer needs only keys; that identity survives the wire and halves the work.
        timestamps: With event time: `timestamps[i]` is when `records[i]` happened, in ms since 1970.
        watermark: No record older than this will come after these. None: nothing new.
        idle: Whether consumers must not wait for the next watermark until there is news again. None: nothing
            new.
        marker: The latency marker that follows the records, as the news does. Batches on disk or in a
            snapshot have none. Where two meet, the older one stays.
        input: Which input of its vertex it came on; set where it is delivered, and nowhere else.
    """

    __slots__ = ("idle", "input", "keys", "marker", "records", "timestamps", "watermark")

    def __init__(
        self,
        records: list[Any],
        keys: list[Any] | None = None,
        timestamps: list[int] | None = None,
        watermark: int | None = None,
        *,
        idle: bool | None = None,
    ) -> None:
        self.records = records
        self.keys = keys
        self.timestamps = timestamps
        self.watermark = watermark
        self.idle = idle
        self.marker: LatencyMarker | None = None
        self.input = 0

    def __len__(self) -> int:
        return len(self.records)

    @property
    def has_news(self) -> bool:
        """Whether a watermark or idleness follows the records."""
        return self.watermark is not None or self.idle is not None

    def add_news(self, watermark: int | None, *, idle: bool | None) -> None:
        """Let this follow the records, after what follows them already."""
        if watermark is not None:
            self.watermark = watermark
        if idle is not None:
            self.idle = idle

    def keep_news(self, news: Batch) -> None:
        """Let the news of `news`, which `take_news` has returned, follow the records."""
        self.add_news(news.watermark, idle=news.idle)

    def take_news(self) -> Batch:
        """Return a batch without records that carries the news of this one, which has none any more."""
        news = Batch([], watermark=self.watermark, idle=self.idle)
        self.watermark = self.idle = None
        return news

    def take_marker(self) -> LatencyMarker | None:
        """Return its marker; it has none any more."""
        marker, self.marker = self.marker, None
        return marker

    def part(self, start: int, end: int) -> Batch:
        """Return the records from `start` up to `end`, without the news and the marker."""
        records = self.records[start:end]
        timestamps = None if self.timestamps is None else self.timestamps[start:end]
        if self.keys is None:
            return Batch(records, None, timestamps)
        keys = records if self.keys is self.records else self.keys[start:end]
        return Batch(records, keys, timestamps)

    def split(self, rows: int) -> tuple[Batch, Batch]:
        """Return the first `rows` records and the rest."""
        rest = self.part(rows, len(self.records))
        rest.add_news(self.watermark, idle=self.idle)
        rest.marker = self.marker
        return self.part(0, rows), rest

    def drop(self, rows: int) -> Batch:
        """Take the last `rows` records, at least one, out of the lists themselves, and return them."""
        count = len(self.records)
        rest = self.part(count - rows, count)
        rest.add_news(self.watermark, idle=self.idle)
        self.watermark = self.idle = None
        rest.marker = self.take_marker()
        if self.keys is not None and self.keys is not self.records:
            del self.keys[-rows:]
        if self.timestamps is not None:
            del self.timestamps[-rows:]
        del self.records[-rows:]
        return rest

    def extend(self, more: Batch) -> None:
        """Add the records of `more`, which came from the same place, at the end, and its news."""
        if not self.records:
            # News alone has neither keys nor timestamps to add to.
            self.records, self.keys, self.timestamps = more.records, more.keys, more.timestamps
        elif more.records:
            self.records += more.records
            if self.keys is not None and self.keys is not self.records and more.keys is not None:
                self.keys += more.keys
            if self.timestamps is not None and more.timestamps is not None:
                self.timestamps += more.timestamps
        self.add_news(more.watermark, idle=more.idle)
        self.marker = self.marker or more.marker


class NumberedBatch(Batch):
    """A batch on a channel whose records have numbers, so that none is lost or comes twice.

    Records and news are numbered apart, from 1. Batches are merged and cut on their way, and their numbers
    with them; of the news of merged batches, only the newest is left.

    Args:
        batch: What it holds; not to be used any more.

    Attributes:
        first: Number of the first record, or of the one that comes next.
        news_number: Of the news after the records; 0: there is none.
    """

    __slots__ = ("first", "news_number")

    def __init__(self, batch: Batch, first: int, news_number: int = 0) -> None:
        super().__init__(batch.records, batch.keys, batch.timestamps, batch.watermark, idle=batch.idle)
        self.marker = batch.marker
        self.first = first
        self.news_number = news_number

    @property
    def last(self) -> int:
        """Number of the last record; `first` - 1 if there is only news."""
        return self.first + len(self.records) - 1

    def keep_news(self, news: Batch) -> None:
        super().keep_news(news)
        if isinstance(news, NumberedBatch) and news.news_number:
            self.news_number = news.news_number

    def take_news(self) -> NumberedBatch:
        number, self.news_number = self.news_number, 0
        return NumberedBatch(super().take_news(), self.last + 1, number)

    def split(self, rows: int) -> tuple[NumberedBatch, NumberedBatch]:
        head, rest = super().split(rows)
        return NumberedBatch(head, self.first), NumberedBatch(rest, self.first + rows, self.news_number)

    def drop(self, rows: int) -> NumberedBatch:
        number, self.news_number = self.news_number, 0
        rest = super().drop(rows)
        return NumberedBatch(rest, self.last + 1, number)

    def extend(self, more: Batch) -> None:
        """As `Batch.extend`; the records of `more` have the numbers that follow."""
        if not isinstance(more, NumberedBatch):
            raise InternalError(f"records up to {self.last} are followed by records without numbers")
        if more.records:
            invariant(
                not self.records or more.first == self.last + 1,
                f"records up to {self.last} are followed by record {more.first}",
            )
            # News without records may have come again: it is older than records that were taken.
            self.first = self.first if self.records else more.first
        super().extend(more)
        if more.news_number:
            self.news_number = more.news_number
