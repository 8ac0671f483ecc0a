"""One table of keyed state in memory, whose keys never go away: each has a slot, a number of its own.

The newest values are in one list, by slot. What a barrier froze is kept by undoing: the first change of a
value after a barrier notes the old one. So a completed checkpoint is forgotten rather than merged into
anything, and to find a value takes one look-up of its key. In layers (`crosscut.state.table`) it takes three,
in dicts that no cache holds, and one more to merge it.

A part names a key when it has got its slot, and from then on by that: a part of changes holds the new
keys, arrays of slots and values, and now and then a slice of the table (`crosscut.state.slot_parts`). Slots
are given in order and are the same for every reader of the parts of one history. A roll-back takes those away
that were given after the checkpoint.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, filterfalse, repeat, starmap
from typing import Any, NamedTuple, NoReturn

from crosscut.errors import InternalError, StateError
from crosscut.foundation.ids import CheckpointId
from crosscut.state.encoding import (
    DELETED,
    Extent,
    NewKeys,
    SlotRows,
    check_all_known,
    check_slots,
    encode_extent,
    encode_new_keys,
    encode_slots,
    grow_keys,
    owned_copy,
    take_in_keys,
    unstorable,
)
from crosscut.state.layers import Layer, can_be_changed
from crosscut.state.memory import SLOT_BYTES, Held
from crosscut.state.slot_changes import Changes, Past, values_at
from crosscut.state.slot_parts import Choice, SlotPart, SlotParts, choose
from crosscut.state.table import Table

SLOTS_PER_BLOCK = 1_000
"""Rows that are encoded or forgotten in one step."""

_SAMPLE_STEP = 7_919

_ABSENT: Any = object()
_NONE = CheckpointId(0)


class NoFirstValueError(Exception):
    """A key has no value, since the function that makes the first one raised, which is the cause of this.

    Attributes:
        key: Of those that are new, the first one without a value.
    """

    def __init__(self, key: Any) -> None:
        super().__init__(key)
        self.key = key


class _Index(dict[Any, int]):
    """Slots by key: a key that has none gets the next one.

    Attributes:
        names: The keys by slot.
    """

    __slots__ = ("names",)

    def __init__(self) -> None:
        super().__init__()
        self.names: list[Any] = []

    def __missing__(self, key: Any) -> int:
        slot = self[key] = len(self.names)
        self.names.append(key)
        return slot

    def cut(self, count: int) -> None:
        """Keep the first `count` keys."""
        for key in self.names[count:]:
            del self[key]
        del self.names[count:]


class _Plan(NamedTuple):
    """What a part of changes is made of, settled when its state is frozen: see `Table.plan_part`.

    Attributes:
        known: How many keys older parts have.
        slots: Of changed values, in several lists.
        slice: These slots are written as well, with their keys.
    """

    since: CheckpointId
    known: int
    slots: list[Sequence[int]]
    slice: range


class SlotTable(Table):
    """See `Table`, whose layers it has not. There is no `delete`, and no time to live."""

    def __init__(self, initial: Callable[[], Any]) -> None:
        # Not that of `Table`: nothing that it keeps is of use here.
        self.initial = initial
        self._index = _Index()
        self._values: list[Any] = []
        # 1: not changed since the last barrier.
        self._unchanged = bytearray()
        self._changes = Changes()
        # Oldest first.
        self._frozen: list[tuple[CheckpointId, Changes]] = []  # type: ignore[assignment]
        # The oldest state that a roll-back can go to.
        self._base_id = _NONE
        self._base_count = 0
        self._parts: SlotParts = SlotParts()
        self._plans: dict[CheckpointId, _Plan] = {}
        self._given_from = 0
        self._sampled = 0
        # Of slots.
        self._recorded = None
        self.expiry = None

    def __len__(self) -> int:
        return len(self._values)

    # What operators do.

    @property
    def values(self) -> Layer:  # type: ignore[override]
        raise InternalError("values by slot are asked for with `to_change`")

    def fetch(self, rows: Iterable[Any], *, to_change: bool = False) -> None:
        """See `Table.fetch`: all are at hand."""

    def to_change(self, keys: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        """See `Table.to_change`: the rows are slots."""
        index = self._index
        self._given_from = known = len(index.names)
        slots = list(map(index.__getitem__, keys))
        new_count = len(index.names) - known
        if new_count:
            self._unchanged += bytes(new_count)
        try:
            # If all have changed, there is nothing to look for.
            if len(self._changes.slots) < known:
                self._own(slots)
            if new_count:
                # After what has changed, so that `changed_only` finds them at the end.
                self._begin(range(known, known + new_count))
        except BaseException:
            # A user's function, or a value's own __reduce__: no key is without a value.
            self._cut(known)
            raise
        if self._recorded is not None:
            self._recorded.update(dict.fromkeys(slots))
        return slots, self._values

    def changed_only(self, rows: Sequence[Any]) -> None:
        """See `Table.changed_only`."""
        count = max(self._given_from, max(rows, default=-1) + 1)
        if unused := len(self._values) - count:
            del self._changes.slots[-unused:], self._changes.olds[-unused:]
            self._cut(count)

    def _begin(self, slots: range) -> None:
        """Give keys that have just got their slots a value."""
        try:
            self._values.extend(starmap(self.initial, repeat((), len(slots))))
        except BaseException as error:
            raise NoFirstValueError(self._index.names[len(self._values)]) from error
        self._changes.note(slots, [None] * len(slots))

    def _cut(self, count: int) -> None:
        """Keep the first `count` keys."""
        self._index.cut(count)
        del self._values[count:], self._unchanged[count:]
        if self._recorded:
            self._recorded = {slot: None for slot in self._recorded if slot < count}

    def _own(self, slots: Sequence[int]) -> None:
        """The values in `slots` are going to change, some in place."""
        first, olds = self._note(slots)
        if can_be_changed(olds):
            # The old ones stay as they are.
            for slot, old in zip(first, olds, strict=True):
                try:
                    self._values[slot] = owned_copy(old)
                except Exception as error:  # A value's own __reduce__ may raise anything.
                    self._take_back(first[first.index(slot) :])
                    raise unstorable("", self._index.names[slot], old, error) from error

    def _take_back(self, slots: Sequence[int]) -> None:
        """These, noted last, do not change after all.

        Else the next change of one would be made in place, in the value that a roll-back goes to.
        """
        del self._changes.slots[-len(slots) :], self._changes.olds[-len(slots) :]
        for slot in slots:
            self._unchanged[slot] = 1

    def _note(self, slots: Sequence[int]) -> tuple[list[int], list[Any]]:
        """Note and return those that have not changed since the last barrier, with their values."""
        unchanged = self._unchanged
        first: list[int] = []
        append = first.append
        for slot in slots:
            if unchanged[slot]:
                unchanged[slot] = 0
                append(slot)
        olds = values_at(first, self._values)
        self._changes.note(first, olds)
        return first, olds

    def get(self, key: Any, default: Any = None) -> Any:
        """See `Table.get`."""
        slot = self._index.get(key)
        if slot is None:
            return default
        if can_be_changed((self._values[slot],)):
            self._own((slot,))
            if self._recorded is not None:
                self._recorded[slot] = None
        return self._values[slot]

    def own(self, key: Any, default: Any = None) -> Any:
        """See `Table.own`."""
        slot = self._index.get(key)
        return default if slot is None else owned_copy(self._values[slot])

    def put(self, key: Any, value: Any) -> None:
        """See `Table.put`."""
        slot = self._index.get(key)
        if slot is not None:
            self._note((slot,))
            self._values[slot] = value
        else:
            slot = self._index[key]
            self._values.append(value)
            self._unchanged.append(0)
            self._changes.note((slot,), [None])
        if self._recorded is not None:
            self._recorded[slot] = None

    def delete(self, key: Any) -> NoReturn:
        """Keys never go away."""
        raise InternalError(f"the value of {key!r:.100} can't be deleted: its table keeps its keys")

    def expire_after(self, ttl_ms: int) -> NoReturn:
        """Keys never go away."""
        raise InternalError("values can't expire where keys are kept")

    def has(self, key: Any) -> bool:
        """See `Table.has`."""
        return key in self._index

    def items(self) -> Iterator[tuple[Any, Any]]:
        """See `Table.items`."""
        return zip(self._index.names, self._values, strict=True)

    def peek(self, key: Any) -> Any:
        """See `Table.peek`."""
        slot = self._index.get(key)
        return _ABSENT if slot is None else self._values[slot]

    # Changes, for a log.

    def record(self, rows: Iterable[Any]) -> NoReturn:
        """Its values are asked for with `to_change` only."""
        raise InternalError("values by slot are asked for with `to_change`")

    def changed(self) -> tuple[list[Any], list[Any]]:
        """See `Table.changed`.

        Rows are named by their keys: another table gives them other slots if it was restored from the parts
        of several tasks.
        """
        slots = list(self._recorded or ())
        return values_at(slots, self._index.names), values_at(slots, self._values)

    def replay(self, rows: list[Any], values: list[Any]) -> None:
        """See `Table.replay`."""
        if any(value is DELETED for value in values):
            raise StateError("a log takes values away that never go away: it is of another operator")
        for row, value in zip(rows, values, strict=True):
            self.put(row, value)

    # How much memory it takes.

    @property
    def held(self) -> Held:
        """See `Table.held`."""
        changes = [self._changes, *(one for _, one in self._frozen)]
        lists: list[Any] = [self._index, self._index.names, self._values, self._unchanged]
        lists += [each for one in changes for each in (one.slots, one.olds)]
        lists += [one.rows for one in self._parts.known()]
        rows = len(self._values)
        structures = sum(map(sys.getsizeof, lists)) + SLOT_BYTES * rows
        # Those that are new since the base had no value before.
        olds = sum(len(one.olds) for one in changes) - (rows - self._base_count)
        return Held(structures, rows, rows + max(0, olds))

    def sample(self, count: int) -> tuple[list[Any], list[Any]]:
        """See `Table.sample`; they are of anywhere."""
        self._sampled += 1
        step = max(1, len(self._values) // count)
        # Others each time.
        some = range(self._sampled * _SAMPLE_STEP % step, len(self._values), step)[:count]
        return values_at(some, self._index.names), values_at(some, self._values)

    # At barriers.

    @property
    def at_hand(self) -> tuple[CheckpointId, ...]:
        """See `Table.at_hand`."""
        ids = (self._base_id, *(n for n, _ in self._frozen))
        return tuple(n for n in ids if n >= self._parts.completed)

    @property
    def part_rows(self) -> list[int] | None:
        """See `Table.part_rows`."""
        parts = self._parts.of(self._parts.completed)
        return None if parts is None else [one.row_count for one in parts]

    @property
    def changed_rows(self) -> int:
        """See `Table.changed_rows`."""
        return self._changed_after(self._parts.completed)

    def _changed_after(self, checkpoint_id: CheckpointId) -> int:
        return sum(len(one.slots) for n, one in self._frozen if n > checkpoint_id)

    def next_base(self, on: CheckpointId) -> CheckpointId:
        """Return the checkpoint that the part of what is frozen holds the changes since; 0: it is a full one.

        Args:
            on: The newest completed checkpoint; `complete` may not have been told of it yet.
        """
        return self._choose(on).since

    def _choose(self, on: CheckpointId) -> Choice:
        return choose(self._parts.of(on) or (), on, self._changed_after(on), self._frozen[-1][1].key_count)

    def freeze(self, checkpoint_id: CheckpointId) -> None:
        """See `Table.freeze`; nothing is looked at, but a byte a key is set."""
        self._changes.key_count = len(self._values)
        self._frozen.append((checkpoint_id, self._changes))
        self._begin_changes()

    def _begin_changes(self) -> None:
        self._changes = Changes()
        self._unchanged = bytearray(b"\1") * len(self._values)

    def plan_part(self, checkpoint_id: CheckpointId, since: CheckpointId, on: CheckpointId) -> None:
        """See `Table.plan_part`."""
        slots: list[Sequence[int]] = [
            one.slots for n, one in reversed(self._frozen) if since < n <= checkpoint_id
        ]
        slots += [one.rows for one in self._parts.after(since, on)]
        older = [one.key_count for one in self._parts.of(on) or () if one.checkpoint_id <= since]
        choice = self._choose(on)
        also = choice.slice if choice.since == since else range(0)
        self._plans[checkpoint_id] = _Plan(since, older[-1] if older else 0, slots, also)

    def blocks(
        self, name: str, checkpoint_id: CheckpointId, since: CheckpointId, *, is_named: bool = False
    ) -> Iterator[bytes]:
        """See `Table.blocks`."""
        names = self._index.names
        key_count = next(one.key_count for n, one in self._frozen if n == checkpoint_id)
        plan = _Plan(_NONE, 0, [], range(0))
        if since:
            if checkpoint_id not in self._plans or self._plans[checkpoint_id].since != since:
                self.plan_part(checkpoint_id, since, self._parts.completed)
            plan = self._plans.pop(checkpoint_id)
        yield encode_extent(Extent(name, plan.known, key_count, plan.slice))
        for some in chain(_blocks(plan.slice), _blocks(range(plan.known, key_count))):
            yield encode_new_keys(name, some.start, names[some.start : some.stop])
        written: array[int] = array("I")
        past = Past(self._values, lambda: self._changes_after(checkpoint_id))
        if since:
            for slots in _once(plan.slots, key_count):
                numbers = array("I", slots)
                written.extend(numbers)
                yield encode_slots(name, numbers, past.values(slots), names)
        for some in _blocks(plan.slice if since else range(key_count)):
            yield encode_slots(name, some, past.values(some), names)
        self._parts.add(SlotPart(checkpoint_id, since, written, plan.known, key_count, plan.slice))

    def _changes_after(self, checkpoint_id: CheckpointId) -> list[Changes]:
        return [*(one for n, one in self._frozen if n > checkpoint_id), self._changes]

    def note_complete(self, checkpoint_id: CheckpointId) -> None:
        """See `Table.note_complete`."""
        if checkpoint_id > self._parts.completed:
            self._parts.complete(checkpoint_id)
            self._plans = {n: one for n, one in self._plans.items() if n > checkpoint_id}

    def complete(self, checkpoint_id: CheckpointId) -> Iterator[None]:
        """See `Table.complete`; there is nothing to fold, only to forget."""
        self.note_complete(checkpoint_id)
        done = [(n, one) for n, one in self._frozen if n <= self._parts.completed]
        if done:
            del self._frozen[: len(done)]
            self._base_id, self._base_count = done[-1][0], done[-1][1].key_count
        for _, one in done:
            # Many at once would take long, and these objects are not shared.
            while one.olds:
                del one.olds[-SLOTS_PER_BLOCK:]
                yield

    def roll_back(self, checkpoint_id: CheckpointId) -> None:
        """See `Table.roll_back`; takes longer for more changes since that checkpoint, not for more rows."""
        values = self._values
        for newer in reversed(self._changes_after(checkpoint_id)):
            # Not strict: were there no memory for the last ones, they have not changed either.
            for slot, old in zip(newer.slots, newer.olds, strict=False):
                values[slot] = old
        for _ in self.complete(checkpoint_id):
            pass
        self._frozen.clear()
        self._parts.drop_newer()
        self._plans.clear()
        self._cut(self._base_count)
        self._begin_changes()
        self.take_changed()

    # At a restore.

    def begin_part(self, checkpoint_id: CheckpointId) -> None:
        """See `Table.begin_part`."""
        self._parts.begin(SlotPart(checkpoint_id, _NONE, array("I")))

    def load(self, keys: list[Any], values: list[Any]) -> None:
        """Take in rows of parts that name them by keys: the slots are not those that other parts speak of."""
        if any(value is DELETED for value in values):
            raise StateError("a part takes values away that never go away: it is of another operator")
        self._parts.forget()
        slots = list(map(self._index.__getitem__, keys))
        self._values += [None] * (len(self._index.names) - len(self._values))
        for slot, value in zip(slots, values, strict=True):
            self._values[slot] = value

    def load_extent(self, block: Extent) -> None:
        """Note what the part that has begun has."""
        self._values += [None] * grow_keys(self._index.names, block)
        part = self._parts.begun
        if part is not None:
            part.known, part.key_count, part.slice = block.known, block.key_count, block.slice

    def load_keys(self, block: NewKeys) -> None:
        """Take in keys of the part that has begun."""
        # By way of a small dict, as in `take_in`.
        self._index.update(take_in_keys(self._index.names, block.first, block.keys, block.table))

    def load_slots(self, block: SlotRows) -> None:
        """Take in values of the part that has begun."""
        slots, names = block.slots, self._index.names
        check_slots(slots, names, block.table)
        part = self._parts.begun
        if part is not None and part.known and not isinstance(slots, range):
            part.rows.extend(slots)
        found = block.values(names)
        if isinstance(slots, range):
            self._values[slots.start : slots.stop] = found
        else:
            values = self._values
            for slot, value in zip(slots, found, strict=True):
                values[slot] = value

    def end_loading(self, checkpoint_id: CheckpointId) -> None:
        """See `Table.end_loading`."""
        if len(self._index) != len(self._index.names):
            check_all_known(self._index.names, "")
            raise StateError(f"the parts of checkpoint {checkpoint_id} give one key two slots")
        self._parts.drop_unneeded()
        self._base_id = self._parts.completed = checkpoint_id
        self._base_count = len(self._values)
        self._begin_changes()


def _blocks(slots: range) -> Iterator[range]:
    for first in slots[::SLOTS_PER_BLOCK]:
        yield range(first, min(first + SLOTS_PER_BLOCK, slots.stop))


def _once(several: list[Sequence[int]], count: int) -> Iterator[Sequence[int]]:
    """Yield the slots of several lists, each once; there are `count` slots."""
    seen = bytearray(count) if len(several) > 1 else b""
    for slots in several:
        for first in range(0, len(slots), SLOTS_PER_BLOCK):
            some = list(slots[first : first + SLOTS_PER_BLOCK])
            if isinstance(seen, bytearray):
                # Once each, in order: a part that was loaded may name a slot twice.
                some = list(dict.fromkeys(filterfalse(seen.__getitem__, some)))
                for slot in some:
                    seen[slot] = 1
            if some:
                yield some
