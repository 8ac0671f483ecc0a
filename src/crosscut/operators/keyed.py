"""count, sum, reduce, aggregate: one accumulator per key.

With `emit="updates"` each record gives one `(key, result)`; with `emit="final"` each key gives one,
when the input has ended. An emitted value never changes afterwards, even if the accumulator is a
mutable object that goes on changing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from crosscut.errors import InternalError
from crosscut.foundation.batch import Batch
from crosscut.graph.specs import Emit
from crosscut.operators.final_results import FinalResultOrder, Predecessors, ordinal_of
from crosscut.operators.operator import Operator, user_code_error
from crosscut.operators.sides import Sides
from crosscut.state.encoding import ATOMIC, owned_copy
from crosscut.state.keyed import KeyedState
from crosscut.state.slots import NoFirstValueError

_EMPTY = Batch([])
_KEYS_PER_STEP = 1_000
KEYS_IN_ORDER_MAX = 1_000_000
"""Keys of state on disk whose final results are put in order at a time."""


class KeyedOperator(Operator):
    """An operator with one value per key.

    Attributes:
        predecessors: Tasks that owned some of the keys before and had emitted final results; None: none.
    """

    def __init__(self, uid: str, state: KeyedState, emit: Emit, sides: Sides | None = None) -> None:
        super().__init__(uid, sides)
        self._state = state
        self._is_final_only = emit == "final"
        self.predecessors: Predecessors | None = None

    def process(self, batch: Batch) -> Batch:
        if batch.keys is None:
            raise InternalError(f"operator {self.uid!r} got records without keys")
        # Not in `over`: that what is stored can't be read is no fault of a record.
        self._state.fetch(batch.keys, to_change=True)
        return self._add(batch, batch.keys)

    @abstractmethod
    def _add(self, batch: Batch, keys: list[Any]) -> Batch:
        """Add the records to the values of `keys`, which are theirs, and return the updates to emit."""

    def _result(self, value: Any) -> Any:
        return value

    def _final_result(self, value: Any) -> Any:
        # The value may belong to a checkpoint, which whatever the user does to it must not change.
        return owned_copy(self._result(owned_copy(value)))

    def end(self, after: str) -> Iterator[tuple[Batch, str]]:
        if not self._is_final_only:
            return
        # On disk may be more keys than fit into memory: each pass over them puts a share in order.
        shares = 1 + len(self._state) // KEYS_IN_ORDER_MAX if self._state.main.reads_ahead else 1
        is_first = True
        for share in range(shares):
            order = FinalResultOrder(len(self._state) // shares, after, self.predecessors, (share, shares))
            items = self._state.items()
            while keys := [key for key, _ in islice(items, _KEYS_PER_STEP)]:
                order.add(keys)
                yield Batch([]), after
            for keys in order.buckets():
                while keys:
                    emitted = Batch(keys[: self.time_budget.rows_max])
                    self._state.fetch(emitted.records)
                    results = self._final_results(emitted, is_first=is_first)
                    # The slice may have been over before all of them were said.
                    self.time_budget.rest = None
                    if emitted.records:
                        is_first = False
                        after = ordinal_of(emitted.records[-1])
                        del keys[: len(emitted)]
                    yield Batch(results), after

    def _final_results(self, keys: Batch, *, is_first: bool) -> list[Any]:
        results: list[Any] = []
        for key in self.time_budget.through(keys):
            value = self._state.peek(key)
            try:
                results.append((key, self._final_result(value)))
            except BaseException as error:
                is_first = is_first and not results
                raise user_code_error(self.uid, error, (key, value), is_first=is_first) from error
        return results


class Count(KeyedOperator):
    def _add(self, batch: Batch, keys: list[Any]) -> Batch:
        rows, counts = self._state.to_change(keys)
        if self._is_final_only:
            for row in rows:
                counts[row] += 1
            return _EMPTY
        emitted: list[tuple[Any, int]] = []
        # In one pass: the keys of a batch are more than the nearest cache holds.
        for key, row in zip(keys, rows, strict=True):
            counts[row] = count = counts[row] + 1
            emitted.append((key, count))
        return Batch(emitted, None, batch.timestamps)


class Aggregate(KeyedOperator):
    """The general form; sum and reduce are instances of it.

    Args:
        add: Takes (accumulator, record), returns the next accumulator.
        result: Takes an accumulator, returns what is emitted; None: the accumulator itself.
    """

    def __init__(
        self,
        uid: str,
        state: KeyedState,
        emit: Emit,
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(uid, state, emit)
        self._add_one = add
        self._result_of = result

    def _result(self, value: Any) -> Any:
        return value if self._result_of is None else self._result_of(value)

    def _add(self, batch: Batch, keys: list[Any]) -> Batch:
        add, result, atomic = self._add_one, self._result_of, ATOMIC
        emitted: list[Any] = []
        append = emitted.append
        try:
            # Not in `over`: were the slice over meanwhile, no record would be taken, now and in each further
            # one.
            rows, values = self._state.to_change(keys)
        except NoFirstValueError as failed:
            remaining = iter(batch.records)
            # Up to the one that is to blame.
            deque(islice(remaining, keys.index(failed.key) + 1), maxlen=0)
            error = failed.__cause__ or failed
            raise self.blamed(error, batch.records, remaining) from error
        except BaseException as error:
            # A value can't be copied; for which record is not known.
            raise self.blamed(error, batch.records, iter(batch.records)) from error
        with self.over(batch) as remaining:
            if self._is_final_only:
                for row, record in zip(rows, remaining, strict=False):
                    values[row] = add(values[row], record)
            else:
                for row, record in zip(rows, remaining, strict=False):
                    values[row] = value = add(values[row], record)
                    if result is not None:
                        value = result(value)
                    # As in `owned_copy`, for the two most common cases: a call costs more than all of this.
                    kind = type(value)
                    if kind is tuple:
                        for one in value:
                            if type(one) not in atomic:
                                value = owned_copy(value)
                                break
                    elif kind not in atomic:
                        value = owned_copy(value)
                    append(value)
        if len(rows) > len(keys):
            # The slice was over before the rest of them were taken.
            self._state.main.changed_only(rows[: len(keys)])
        if self._is_final_only:
            return _EMPTY
        return Batch(list(zip(keys, emitted, strict=True)), None, batch.timestamps if emitted else None)


class _NothingYet:
    """The value of a key before its first record, for `reduce`: there is no neutral element."""

    def __reduce__(self) -> str:
        return "NOTHING_YET"


NOTHING_YET = _NothingYet()


def nothing_yet() -> Any:
    """Return the value of a key before its first record."""
    return NOTHING_YET


def reducing(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return `function` as an `add` whose first record is the first accumulator."""

    def add(value: Any, record: Any) -> Any:
        return owned_copy(record) if value is NOTHING_YET else function(value, record)

    return add


def summing(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Return an `add` that sums up what `function` says of each record."""

    def add(value: Any, record: Any) -> Any:
        return value + function(record)

    return add
