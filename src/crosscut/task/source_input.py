"""A source task's way in: its splits in turn, but for those that wait for slower ones of their group."""

from __future__ import annotations

from collections.abc import Callable

from crosscut.contracts.connectors import JSON, Wait
from crosscut.errors import CrosscutError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import CheckpointId, TaskId
from crosscut.operators.connector_errors import connector_code_error, raise_named
from crosscut.operators.operator import shortened
from crosscut.operators.probing import Probing, decoding_trial
from crosscut.protocol.messages import AlignSources, SourceReached
from crosscut.protocol.splits.alignment import AlignedSplits
from crosscut.task.chain import Chain
from crosscut.task.splits import SplitQueue, splits_from_json


class SourceInput:
    """What a source task reads next, and what its chain hears of the splits.

    Args:
        uid: The source's name in errors.
        aligned: Which splits wait for slower ones; None: the source is in no group.

    Attributes:
        wait_ms: For so long there is nothing to read.
        held: The splits that wait for slower ones.
    """

    def __init__(
        self, task_id: TaskId, splits: SplitQueue, uid: str, aligned: AlignedSplits | None, chain: Chain
    ) -> None:
        self._task_id = task_id
        self._splits = splits
        self._uid = uid
        self._aligned = aligned
        self._chain = chain
        self.wait_ms = 0.0
        self.held: frozenset[str] = frozenset()
        # Those that had nothing to read at a time, since the group was told how far the task is.
        self._quiet: set[str] = set()

    @property
    def is_drained(self) -> bool:
        """Whether every split has ended, and no other will come."""
        return self._splits.is_drained

    @property
    def empty_split(self) -> str:
        """A split whose reader gives nothing but empty lists, "" if there is none."""
        return self._splits.empty_split

    @property
    def lag(self) -> int | None:
        """Records that are known to wait in the open splits; None: no reader can tell."""
        return self._splits.lag

    @property
    def reached(self) -> SourceReached | None:
        """How far the task is, for its group; None: it is in none."""
        if self._aligned is None:
            return None
        known = self._chain.awaited(self._splits.open_ids)
        if self._aligned.only_counts_busy:
            known = {split: watermark for split, watermark in known.items() if split not in self._quiet}
        return SourceReached(self._task_id, min(known.values(), default=None))

    def note_reached_sent(self) -> None:
        """The group has been told how far the task is: which splits are quiet is seen anew."""
        self._quiet.clear()

    def read(self, rows_max: int, *, is_first: bool) -> Batch | None:
        """Return records of one split; None: there are none for `wait_ms`.

        Args:
            is_first: The task has read no record before.
        """
        held = self._hold()
        try:
            found = self._splits.read(rows_max, held)
        except CrosscutError as error:
            raise_named("source", self._uid, error)
        except BaseException as error:  # A source may call the user's functions, as `generate` does.
            message = f"operator {self._uid!r} raised {type(error).__name__}: {error}"
            positions = shortened(self._splits.positions())
            raise connector_code_error(message, self._uid, error, positions, is_first=is_first) from error
        origin = "" if isinstance(found, Wait) else self._splits.origin
        if self._aligned is not None:
            self._quiet.update(self._splits.just_waiting)
        self._chain.note_splits(origin, self._splits.just_ended, self._splits.just_waiting)
        if isinstance(found, Wait):
            # One that others have waited for may just have ended, or fallen idle.
            self.wait_ms = found.delay_ms if self._hold() == held else 0.0
            return None
        self.wait_ms = 0.0
        return Batch(found)

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Give `wake` to the readers: it ends `wait_ms`."""
        self._splits.wake_by(wake)

    def probe(self, probing: Probing | None) -> None:
        """Have what a copy of the process can try of the source tried there; None: no more."""
        self._splits.try_decoding(decoding_trial(probing, self._uid) if probing is not None else None)

    def align(self, news: AlignSources) -> bool:
        """The coordinator says how far groups are; return whether a split needs to wait no longer."""
        if self._aligned is None:
            return False
        self._aligned.apply(self._task_id, news)
        before = self.held
        return not before <= self._hold()

    def _hold(self) -> frozenset[str]:
        if self._aligned is not None:
            self.held = self._aligned.held(self._chain.awaited(self._splits.open_ids))
        return self.held

    def assign(self, rows: JSON, since: CheckpointId, *, is_last: bool) -> None:
        """The coordinator gives splits that have been found; after the last, there are no others."""
        splits = splits_from_json(rows)
        self._splits.add(splits, since, is_last=is_last)
        self._chain.splits_came([split.split_id for split, _ in splits], is_last=is_last)
        self.wait_ms = 0.0

    def freeze(self, checkpoint_id: CheckpointId) -> JSON:
        """Return the positions that belong to a checkpoint, and remember them until it is complete."""
        return self._splits.freeze(checkpoint_id)

    def acknowledge(self, checkpoint_id: CheckpointId) -> None:
        """Tell the readers that `checkpoint_id` is complete."""
        self._splits.acknowledge(checkpoint_id)

    @property
    def splits(self) -> SplitQueue:
        """The splits themselves, for what is logged of them."""
        return self._splits

    def close(self) -> None:
        """Close every reader; the first error is raised after all were tried."""
        self._splits.close()
