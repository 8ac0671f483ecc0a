"""Folds that are begun before their shuffle: what a batch has of each key, as one accumulator.

See `crosscut.graph.combining`. What is held here is in no snapshot: all of it is sent before a batch ends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, assert_never

from crosscut.contracts.columns import Column, Field, Rows
from crosscut.errors import FlowError, InternalError, UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.keys import encoded_key, encoded_keys
from crosscut.foundation.timestamps import TIMESTAMP_MAX
from crosscut.graph.specs import AggregateSpec, CombinedFold, CountSpec, SumSpec
from crosscut.operators.operator import Operator, user_code_error
from crosscut.operators.stateless import KeyBy

KEYS_MAX = 500_000
"""So many are held; then all are sent."""

RECORDS_MAX = 250_000
"""So many are in accumulators that may be lists or sets of them; then all are sent. What a batch has of a key
may fit neither into memory nor into a frame (`crosscut.wire.frames.BATCH_BYTES_MAX`)."""

WORTHWHILE = 2
"""Records a key, when so many are held. With fewer it costs more to find keys than it saves to send less."""


COLUMNS_MAX = 16
"""So many columns wait to be longer: of so many splits that are read in turn."""


class Combine(Operator):
    """Holds an accumulator for each key, until there are too many, or too much in them, or the batch ends.

    Args:
        uid: Of the fold.
        key_by_uid: Of the operator that made the keys, to be named if one is no key.
        held: Where accumulators are kept; empty.
        keys_max: How many.
        records_max: Of how many records; None: accumulators don't grow with them.
    """

    def __init__(
        self,
        uid: str,
        key_by_uid: str,
        held: dict[Any, Any],
        keys_max: int = KEYS_MAX,
        records_max: int | None = None,
    ) -> None:
        super().__init__(uid)
        self._key_by_uid = key_by_uid
        self._held = held
        self._keys_max = keys_max
        self._records_max = records_max
        self._has_timestamps = False
        # Since all was sent last.
        self._records = 0

    def process(self, batch: Batch) -> Batch:
        keys = batch.keys
        if keys is None:
            raise InternalError(f"operator {self.uid!r} got records without keys")
        self._has_timestamps = batch.timestamps is not None
        try:
            sent = self._add(batch, keys)
        except (TypeError, UserCodeError):
            # No dict takes a list as a key.
            self._check(keys)
            raise
        if sent is not None:
            return self._timed(sent)
        self._records += len(batch)
        has_many_keys = len(self._held) >= self._keys_max
        if not has_many_keys and (self._records_max is None or self._records < self._records_max):
            return Batch([])
        if has_many_keys and self._records < WORTHWHILE * len(self._held):
            # From now on each slice for itself: hardly anything is combined, and nothing is held.
            self._keys_max = 0
        return self.take_held()

    @abstractmethod
    def _add(self, batch: Batch, keys: list[Any]) -> Batch | None:
        """Fold the records into what is held; return what goes on in place of that, if they can't be."""

    def take_held(self) -> Batch:
        """Return the accumulators, each with its key; none is held any more."""
        keys, values = list(self._held), list(self._held.values())
        self._held.clear()
        self._records = 0
        self._check(keys)
        return self._timed(Batch(values, keys))

    def _timed(self, made: Batch) -> Batch:
        """Give accumulators timestamps where records have some: what goes through a channel all has, or none.

        Which ones is nothing to the fold. It speaks when the input has ended, and what it says has this one.
        """
        if self._has_timestamps:
            made.timestamps = [TIMESTAMP_MAX] * len(made)
        return made

    def end(self, after: str) -> Iterator[tuple[Batch, str]]:
        held = self.take_held()
        if held.records:
            yield held, ""

    def _check(self, keys: list[Any]) -> None:
        """Name the operator that made the keys, if one of them is none."""
        try:
            encoded_keys(keys)
        except FlowError:
            for key in keys:
                try:
                    encoded_key(key)
                except FlowError as error:
                    raise user_code_error(self._key_by_uid, error, key) from error


class ColumnKeys(KeyBy):
    """Keys that are a column of what the source has read; for a count, which wants nothing else."""

    def __init__(self, uid: str, function: Callable[[Any], Any], field: Field) -> None:
        super().__init__(uid, function, keys_only=True)
        self._field = field

    def process(self, batch: Batch) -> Batch:
        if not isinstance(batch.records, Rows):
            # The rest of rows of which objects were made.
            return super().process(batch)
        column = batch.records.column(self._field)
        return Batch(column, column) if column is not None else super().process(Batch(batch.records.made()))


class CombinedCount(Combine):
    """How many records each key has."""

    def __init__(self, uid: str, key_by_uid: str, keys_max: int = KEYS_MAX) -> None:
        self._counts: Counter[Any] = Counter()
        super().__init__(uid, key_by_uid, self._counts, keys_max)
        # Not counted yet: a long column is counted in less time than its pieces. Those of several splits,
        # which are read in turn, come to their ends side by side.
        self._columns: list[Column] = []

    def _add(self, batch: Batch, keys: list[Any]) -> None:
        if not isinstance(keys, Column):
            self._counts.update(keys)
            return
        whole = next((one for one in self._columns if one.goes_on_as(keys)), keys)
        if whole is keys:
            self._columns.append(keys)
        if whole.is_at_its_end:
            # By identity: as lists they are all empty.
            self._columns = [one for one in self._columns if one is not whole]
            self._count(whole)
        elif len(self._columns) > COLUMNS_MAX:
            self._count(self._columns.pop(0))

    def _count(self, column: Column) -> None:
        counts = self._counts
        for key, count in column.counted():
            counts[key] += count

    def take_held(self) -> Batch:
        columns, self._columns = self._columns, []
        for column in columns:
            self._count(column)
        return super().take_held()


class CombinedSum(Combine):
    """What `function` says of the records of each key, added up.

    Integers only: what else can be added may come to something else in another order, as fractions do in
    their last digits. Once there is anything else, each value goes on by itself.
    """

    def __init__(
        self, uid: str, key_by_uid: str, function: Callable[[Any], Any], keys_max: int = KEYS_MAX
    ) -> None:
        self._sums: defaultdict[Any, int] = defaultdict(int)
        super().__init__(uid, key_by_uid, self._sums, keys_max)
        self._function = function
        self._is_exact = True

    def _add(self, batch: Batch, keys: list[Any]) -> Batch | None:
        with self.over(batch) as remaining:
            function = self._function
            values = [function(record) for record in remaining]
        self._is_exact = self._is_exact and set(map(type, values)) <= {int}
        if not self._is_exact:
            before = self.take_held()
            return Batch([*before.records, *values], [*(before.keys or ()), *keys])
        sums = self._sums
        for key, value in zip(keys, values, strict=True):
            sums[key] += value
        return None


class CombinedAggregate(Combine):
    """The accumulator that the records of each key make."""

    def __init__(
        self,
        uid: str,
        key_by_uid: str,
        initial: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        keys_max: int = KEYS_MAX,
        records_max: int = RECORDS_MAX,
    ) -> None:
        self._values: defaultdict[Any, Any] = defaultdict(initial)
        super().__init__(uid, key_by_uid, self._values, keys_max, records_max)
        self._add_one = add

    def _add(self, batch: Batch, keys: list[Any]) -> None:
        values, add = self._values, self._add_one
        with self.over(batch) as remaining:
            for key, record in zip(keys, remaining, strict=True):
                values[key] = add(values[key], record)


def combining(uid: str, key_by_uid: str, fold: CombinedFold) -> Combine:
    """Return the operator that begins `fold`."""
    match fold:
        case CountSpec():
            return CombinedCount(uid, key_by_uid)
        case SumSpec(function):
            return CombinedSum(uid, key_by_uid, function)
        case AggregateSpec(initial, add):
            return CombinedAggregate(uid, key_by_uid, initial, add)
        case _:
            assert_never(fold)
