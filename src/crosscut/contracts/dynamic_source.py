"""A source whose splits come and go while the job runs: partitions that are added, tables, tenants, files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from crosscut.contracts.connectors import JSON, Source, Split
from crosscut.foundation.durations import Duration
from crosscut.foundation.type_variables import Record


@dataclass(frozen=True, slots=True)
class Discovered:
    """What `DynamicSource.discover` has found.

    Attributes:
        splits: Those that are new. None is no error.
        known: What the next call is given: enough to tell what is new then. It is part of each checkpoint, so
            keep it small: a count, a time, the largest name; a list of all names if there is nothing better.
        is_last: There will never be others: the source has ended when all its splits have.
        is_coming: Others are on their way: the source has asked for them, or is making them. In micro-batches
            with `trigger="available_now"` the job does not stop before the source says otherwise.
    """

    splits: Sequence[Split] = ()
    known: JSON = None
    is_last: bool = False
    is_coming: bool = False


class DynamicSource(Source[Record]):
    """A source that finds splits while the job runs.

    One process asks, the Spark driver; which task reads a split that was found is decided there. A split
    *goes* when its reader returns `EndOfSplit`. Each is read once, whatever is killed: what `discover` has
    returned as `known`, and the splits that it has found up to then with their positions, are one cut of each
    checkpoint. After a failure the job goes on from both; what was found since is found again.

    Event time: a source that has had no split holds the watermark, unless `idle_after` of
    `assign_timestamps` has passed: records of other streams wait for it in windows and joins. Later a new
    split holds the watermark where it is, until it has had a record or is idle. What was in
    it before it was found may be late: look often enough for the out-of-orderness that you allow.

    Attributes:
        discover_every: How long to wait between two calls of `discover`.
    """

    discover_every: Duration = "10s"

    @abstractmethod
    def discover(self, known: JSON) -> Discovered:
        """Find the splits that have come since the call that returned `known`.

        Called on the Spark driver, in a thread, one call at a time: when a job starts without a checkpoint
        (with None), then again and again, until it has said `is_last`. It may block, as long as
        `start_timeout`. It keeps nothing in the object: after a failure, perhaps in another process, it is
        called with an older `known`, and finds the same splits again, under the same ids, and perhaps more.

        So `known` has to tell what is new. An id is for one split, for ever: one that is still being read
        is left out. Until the next failure so are those that were read to their end, as far as they are
        remembered (the newest 10,000).

        What it has found and is not read to its end is part of each checkpoint: from 8 MB of it on, some
        50,000 splits, the source is called again only when newer checkpoints have less. Splits that never
        end, such as partitions, count for as long as the job lives.

        Raises:
            ConnectorError: There is something wrong that only people can mend: the job fails over, and ends
                when that does not help. If it may help to ask again later, return `known` as it was.
        """

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Return what there is at the beginning."""
        return self.discover(None).splits
