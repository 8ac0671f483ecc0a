"""One table of keyed state in memory: a value per key, frozen by layering.

The values are spread over layers: `base` holds everything up to the newest completed checkpoint, each
barrier puts one frozen layer on top of it, and a dict above all takes what changes. Freezing is one
assignment, whatever the state's size. A frozen layer is never touched again, so

* a checkpoint writes only what changed since an earlier one, at leisure;
* going back to a completed checkpoint drops the layers above it and reads nothing.

A value that user code could change in place is copied when it is first used after a freeze (copy on
access): the frozen layer keeps the original.

A table also remembers, as plain lists of keys, what each stored part that counts (`crosscut.state.parts`)
has changed: so a new part can replace several old ones, without reading them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from itertools import filterfalse, islice, repeat
from typing import Any, NamedTuple

from crosscut.foundation.ids import CheckpointId
from crosscut.state.encoding import ATOMIC, DELETED, encode_block, owned_copy, take_in, update
from crosscut.state.expiry import Expiry, ExpiryInMemory
from crosscut.state.given_keys import PLAIN, all_plain, is_plain, key_in
from crosscut.state.layers import (
    ABSENT,
    ROWS_PER_BLOCK,
    Layer,
    bring_up,
    can_be_changed,
    newest_rows,
    row_blocks,
)
from crosscut.state.memory import Held, layers_held, layers_sample
from crosscut.state.written import Written, WrittenParts

_NONE = CheckpointId(0)

FETCHES_LEFT_OUT = 64
"""When most keys of a batch have no value, those of so many further ones are not looked for at once."""


class _Plan(NamedTuple):
    """What a part of changes is made of, settled when its state is frozen: checkpoints complete before it is
    encoded, and then the layers that it needs are in the base.

    Attributes:
        tails: Keys that older parts have changed, which it replaces; those of the newest part first.
    """

    since: CheckpointId
    layers: list[dict[Any, Any]]
    tails: list[MutableSequence[Any]]


class Table:
    """One value per key, of one operator in one task.

    Args:
        initial: Makes the value of a key that has none, when `values` is asked for it.

    Attributes:
        values: The values, for operators that never delete one: a look-up of a key without a value gives it
            the initial one. Replaced by each freeze.
    """

    def __init__(self, initial: Callable[[], Any]) -> None:
        self.initial = initial
        self._base: dict[Any, Any] = {}
        self._base_id = _NONE
        # Of keys; not the base's own length while a layer is being merged into it.
        self._base_count = 0
        # Oldest first; those at or below `_completed` are being merged into the base.
        self._frozen: list[tuple[CheckpointId, Layer]] = []
        self._parts: WrittenParts[Any] = WrittenParts()
        self._planned: dict[CheckpointId, _Plan] = {}
        self.values = Layer(initial, (self._base,))
        # A key that is known to have a value: most are put right after they were read.
        self._present: Any = ABSENT
        # How many keys the last batch had, and the newest layer before it.
        self._fetched_count = self._fetched_at = 0
        self._left_out = 0
        # Whether a row has come whose key is not plain: then another key may equal that of a row.
        self._has_unusual = False
        # Rows that may have changed since `changed` was called last, in that order; None: nobody asks.
        self._recorded: dict[Any, None] | None = None
        self.expiry: Expiry | None = None

    def __len__(self) -> int:
        """Number of keys, in constant time."""
        return self._base_count + sum(layer.growth for _, layer in self._frozen) + self.values.growth

    # What operators do.

    reads_ahead = False
    """Whether rows are on a disk, so that reading them at once, with `fetch`, is worth a list of them."""

    def fetch(self, rows: Iterable[Any], *, to_change: bool = False) -> None:
        """Make rows that are going to be asked for ready.

        Args:
            to_change: All of them are going to be changed, too. If most of the last batch were not in the
                newest layer, those of this one are brought there at once: one by one takes longer.
        """
        if to_change:
            some = rows if isinstance(rows, list) else list(rows)
            if self._are_unusual(some):
                self._bring_given(some)
            at = len(self.values)
            missed_count = at - self._fetched_at
            if self._left_out:
                self._left_out -= 1
            elif 2 * missed_count > self._fetched_count:
                self._bring(some)
            self._fetched_count, self._fetched_at = len(some), at

    def to_change(self, keys: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        """Return the rows of `keys`, in order, and the values by row: those of a batch are about to change.

        Each is the caller's own: it may be changed in place. A key that had no value has the initial one as
        soon as its row is looked up.
        """
        if self._recorded is not None:
            self._recorded.update(dict.fromkeys(keys))
        return keys, self.values

    def changed_only(self, rows: Sequence[Any]) -> None:
        """Of the rows that `to_change` has returned only these, the first ones, were looked up."""

    def _bring(self, rows: list[Any]) -> None:
        """Let the newest layer have the values of `rows`, as if each had been looked up."""
        into = self.values
        missing = list(filterfalse(into.__contains__, rows))
        wanted, before = len(missing), len(into)
        for _, layer in reversed(self._frozen):
            others = list(filterfalse(layer.__contains__, missing))
            if len(others) < len(missing):
                hits = list(filter(layer.__contains__, missing))
                bring_up(into, hits, list(map(layer.get, hits)))
            missing = others
        bring_up(into, missing, list(map(self._base.get, missing, repeat(ABSENT))))
        if 2 * (len(into) - before) < wanted:
            self._left_out = FETCHES_LEFT_OUT

    def _bring_given(self, rows: Iterable[Any]) -> None:
        """Let the newest layer have those of `rows` that have a value, each under its own key."""
        for row in rows:
            if row not in self.values:
                value = self._below(row)
                if value is not ABSENT and value is not DELETED:
                    self.values[self._given(row)] = owned_copy(value)

    def _is_unusual(self, key: Any) -> bool:
        """Return whether a row may have another key that equals this one: see `given_keys`.

        Of a plain key only `_has_unusual` says so: callers ask that first, as it is nearly always False.
        """
        if not (self._has_unusual or is_plain(key)):
            self._has_unusual = True
        return self._has_unusual

    def _are_unusual(self, keys: list[Any]) -> bool:
        """Return whether that is so for one of them."""
        if not (self._has_unusual or all_plain(keys)):
            self._has_unusual = True
        return self._has_unusual

    def _given(self, key: Any) -> Any:
        """Return the key of the row that `key` finds, which has a value."""
        for layer in self._layers():
            if key in layer:
                return key_in(layer, key)
        return key

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`, which may be changed in place, or `default` if it has none."""
        value = self.values.get(key, ABSENT)
        if value is ABSENT:
            value = self._below(key)
            if value is ABSENT or value is DELETED:
                return default
            if (self._has_unusual or type(key) not in PLAIN) and self._is_unusual(key):
                # Also if it can't be changed: the caller may set another one in the newest layer.
                key = self._given(key)
            elif type(value) in ATOMIC:
                return value
            value = self.values[key] = owned_copy(value)
        elif value is DELETED:
            return default
        if self._recorded is not None and can_be_changed((value,)):
            self._recorded[key] = None
        return value

    def own(self, key: Any, default: Any = None) -> Any:
        """Return a copy of the value of `key`, or `default` if it has none.

        What `get` gives is the one that the next change is made to: a process that yields it, and is called
        again with the next record of the same batch, would change what it has said.
        """
        value = self.values.get(key, ABSENT)
        if value is ABSENT:
            value = self._below(key)
            if value is ABSENT or value is DELETED:
                return default
            if (self._has_unusual or type(key) not in PLAIN) and self._is_unusual(key):
                # The newest layer has yet to get the row's own key.
                return owned_copy(value)
        elif value is DELETED:
            return default
        self._present = key
        return value if type(value) in ATOMIC else owned_copy(value)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""
        # By identity: it is the same object in one call of a process, and costs no look-up.
        if key is not self._present:
            is_new = not self.has(key)
            if is_new:
                self.values.growth += 1
                self._row_came(key)
            self._present = key
            if (self._has_unusual or type(key) not in PLAIN) and self._is_unusual(key):
                if is_new:
                    self._drop(key)
                elif key not in self.values:
                    key = self._given(key)
        self.values[key] = value
        if self._recorded is not None:
            self._recorded[key] = None

    def _drop(self, key: Any) -> None:
        """The newest layer forgets that the value of `key` was taken away: a new row has a key of its own."""
        self.values.pop(key, None)

    def delete(self, key: Any) -> None:
        """Take the value of `key` away, if it has one."""
        value = self.values.get(key, ABSENT)
        if value is ABSENT:
            value = self._below(key)
            if value is not ABSENT and (self._has_unusual or type(key) not in PLAIN):
                # The newest layer notes the deletion under this key: a new row must not take it for its own.
                self._is_unusual(key)
        if value is ABSENT or value is DELETED:
            return
        self.values.growth -= 1
        self.values.has_deleted = True
        self.values[key] = DELETED
        self._present = ABSENT
        self._row_went(key)
        if self._recorded is not None:
            self._recorded[key] = None

    def has(self, key: Any) -> bool:
        """Tell whether `key` has a value."""
        value = self.values.get(key, ABSENT)
        if value is ABSENT:
            value = self._below(key)
        return value is not ABSENT and value is not DELETED

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield every (key, value) once; no value may change meanwhile, but `complete` may go on."""
        layers = self._layers()
        for position, layer in enumerate(layers):
            newer = layers[:position]
            # A list: folding a layer in adds keys to the base, of which `newer` holds every one.
            for key in list(layer):
                if not any(key in one for one in newer):
                    value = layer.get(key, DELETED)
                    if value is not DELETED:
                        yield key, value

    def peek(self, key: Any) -> Any:
        """Return the value of a key that has one, to be looked at only: it may belong to a checkpoint."""
        value = self.values.get(key, ABSENT)
        return self._below(key) if value is ABSENT else value

    # Changes, for a log: see `KeyedState.changes`.

    def record_changes(self) -> None:
        """Remember from now on which rows change."""
        self._recorded = {}

    def record(self, rows: Iterable[Any]) -> None:
        """These rows are going to be changed in `values`, by a caller that does without `to_change`."""
        if self._recorded is not None:
            self._recorded.update(dict.fromkeys(rows))

    @property
    def recorded_count(self) -> int:
        """How many rows `changed` would return."""
        return len(self._recorded or ())

    def changed(self) -> tuple[list[Any], list[Any]]:
        """Return the rows that may have changed since they were taken last, with their values.

        The value is `DELETED` for one that has none. Values are to be looked at only, and at once.
        """
        if not self._recorded:
            return [], []
        rows = list(self._recorded)
        values = list(map(self.values.get, rows, repeat(ABSENT)))
        # By type: values may have an == of their own.
        if type(ABSENT) in map(type, values):
            # They were frozen since, or are on disk.
            self.fetch(rows)
            values = [DELETED if (value := self.peek(row)) is ABSENT else value for row in rows]
        if self._are_unusual(rows):
            # A row may have been removed, and made again with another key that is equal.
            rows = [
                row if value is DELETED else self._given(row) for row, value in zip(rows, values, strict=True)
            ]
        return rows, values

    def take_changed(self) -> None:
        """What `changed` has returned is in the log."""
        if self._recorded:
            self._recorded = {}

    def replay(self, rows: list[Any], values: list[Any]) -> None:
        """Make changes that another table like this one has returned by `changed`."""
        self.fetch(rows)
        replaces_keys = self._are_unusual(rows)
        for row, value in zip(rows, values, strict=True):
            if value is DELETED or replaces_keys:
                self.delete(row)
            if value is not DELETED:
                self.put(row, value)
                if self.expiry is not None:
                    self.expiry.note(row, value[0])

    # How much memory it takes: see `crosscut.state.memory`.

    @property
    def held(self) -> Held:
        """What it has in memory."""
        expiry = self.expiry.size_bytes if self.expiry is not None else 0
        return layers_held(self._layers(), (one.rows for one in self._parts.known()), expiry)

    def sample(self, count: int) -> tuple[list[Any], list[Any]]:
        """Return the keys and values of about so many rows, half of them of what has changed of late."""
        return layers_sample(self._layers(), count)

    def _layers(self) -> list[dict[Any, Any]]:
        """Return them, newest first."""
        return [self.values, *(layer for _, layer in reversed(self._frozen)), self._base]

    # At barriers.

    @property
    def at_hand(self) -> tuple[CheckpointId, ...]:
        """Checkpoints that `roll_back` can go to: none older than the layer that the base is taking in."""
        return tuple(n for n in (self._base_id, *(n for n, _ in self._frozen)) if n >= self._parts.completed)

    @property
    def part_rows(self) -> list[int] | None:
        """Rows of the newest completed checkpoint's parts, oldest first; None: no part can build on them."""
        return self._parts.row_counts(self._base_count)

    @property
    def changed_rows(self) -> int:
        """Rows that a part of the changes since the newest completed checkpoint has at most."""
        return sum(len(layer) for n, layer in self._frozen if n > self._parts.completed)

    def freeze(self, checkpoint_id: CheckpointId) -> None:
        """Keep the state as it is now under `checkpoint_id`; constant time."""
        self._frozen.append((checkpoint_id, self.values))
        self._begin_layer()

    def plan_part(self, checkpoint_id: CheckpointId, since: CheckpointId, on: CheckpointId) -> None:
        """Settle what the part of `checkpoint_id`, frozen just now, holds: the changes after `since`.

        Args:
            on: The newest completed checkpoint, one of whose parts `since` is; `complete` may not have been
                told of it yet.
        """
        layers: list[dict[Any, Any]] = [
            layer for n, layer in reversed(self._frozen) if since < n <= checkpoint_id
        ]
        tails = [one.rows for one in self._parts.after(since, on)]
        self._planned[checkpoint_id] = _Plan(since, layers, tails)

    def build_part(self, checkpoint_id: CheckpointId, on: CheckpointId) -> list[CheckpointId] | None:
        """The part of `checkpoint_id` goes with those of `on` that it does not replace.

        Which these are, others remember as well: were another one taken for it here, and that a full one,
        then a later part would lack what had changed before it.

        Returns:
            The checkpoints of the older parts that go with it; None, if they are not known here.
        """
        return self._parts.build(checkpoint_id, on)

    def rows(self, checkpoint_id: CheckpointId, since: CheckpointId) -> Iterator[tuple[list[Any], list[Any]]]:
        """Yield the keys and values frozen at `checkpoint_id`, `ROWS_PER_BLOCK` at a time; later ones count.

        Args:
            since: 0 for the whole table; else only what changed after that checkpoint. More than that may
                come too.
        """
        written: list[Any] = []
        if since:
            if checkpoint_id not in self._planned or self._planned[checkpoint_id].since != since:
                self.plan_part(checkpoint_id, since, self._parts.completed)
            plan = self._planned.pop(checkpoint_id)
            for keys, values in newest_rows(plan.layers, plan.tails, self._base):
                written += keys
                yield keys, values
        else:
            # The base as it is, and what is newer after it: to look a key up takes longer than to write it.
            yield from row_blocks(self._base)
            layers = [layer for n, layer in reversed(self._frozen) if n <= checkpoint_id]
            yield from newest_rows(layers, [], self._base)
        self._parts.add(Written(checkpoint_id, since, written))

    def blocks(
        self, name: str, checkpoint_id: CheckpointId, since: CheckpointId, *, is_named: bool = False
    ) -> Iterator[bytes]:
        """Yield what `rows` does as blocks of a part.

        Args:
            name: Of the table.
            is_named: Its rows are named.
        """
        for keys, values in self.rows(checkpoint_id, since):
            yield encode_block(name, keys, values, is_named=is_named)

    def note_complete(self, checkpoint_id: CheckpointId) -> None:
        """The parts of `checkpoint_id` are those that the next one builds on."""
        if checkpoint_id > self._parts.completed:
            self._parts.complete(checkpoint_id)
            self._planned = {n: one for n, one in self._planned.items() if n > checkpoint_id}

    def complete(self, checkpoint_id: CheckpointId) -> Iterator[None]:
        """Fold everything at or below `checkpoint_id` into the base, a step at a time.

        Look-ups are right between the steps too. Must not run while `rows` does.
        """
        self.note_complete(checkpoint_id)
        while self._frozen and self._frozen[0][0] <= self._parts.completed:
            n, layer = self._frozen[0]
            if not self._base and not layer.has_deleted:
                self._base = layer
            else:
                rows = iter(layer.items())
                # A dict of them: it knows their hashes.
                while block := dict(islice(rows, ROWS_PER_BLOCK)):
                    update(self._base, block, replaces_keys=self._has_unusual)
                    if layer.has_deleted:
                        for key, value in block.items():
                            if value is DELETED:
                                del self._base[key]
                    yield
            self._frozen.pop(0)
            self._base_id, self._base_count = n, len(self._base)
            self._link_layers()

    def expire_after(self, ttl_ms: int) -> None:
        """Each value will be a pair (written at, value), which expires after so long. Set before any row."""
        self.expiry = ExpiryInMemory(ttl_ms)

    def roll_back(self, checkpoint_id: CheckpointId) -> None:
        """Go back to `checkpoint_id`, which must be `at_hand`; reads nothing."""
        dropped = [self.values, *(layer for n, layer in self._frozen if n > checkpoint_id)]
        for _ in self.complete(checkpoint_id):
            pass
        self._frozen.clear()
        self._parts.drop_newer()
        self._planned.clear()
        self._begin_layer()
        self.take_changed()
        if self.expiry is not None:
            for layer in dropped:
                for key in filter(self.has, layer):
                    self.expiry.note(key, self.peek(key)[0])

    # At a restore.

    def begin_part(self, checkpoint_id: CheckpointId) -> None:
        """Rows of the part written at `checkpoint_id` follow; parts come oldest first."""
        self._parts.begin(Written(checkpoint_id, _NONE, []))

    def load(self, keys: list[Any], values: list[Any]) -> None:
        """Take in rows of the part that has begun."""
        take_in(self._base, keys, values, replaces_keys=self._are_unusual(keys))
        self._parts.extend(keys)
        if self.expiry is not None:
            for key, value in zip(keys, values, strict=True):
                if value is not DELETED:
                    self.expiry.note(key, value[0])

    def forget_parts(self) -> None:
        """Only a share of the parts is loaded, so no part can be added to them."""
        self._parts.forget()

    def end_loading(self, checkpoint_id: CheckpointId) -> None:
        """The loaded state is that of `checkpoint_id`."""
        self._base_id = self._parts.completed = checkpoint_id
        self._base_count = len(self._base)

    def _row_came(self, key: Any) -> None:
        """Called when `key` gets a value, for tables that keep more about their rows."""

    def _row_went(self, key: Any) -> None:
        """Called when the value of `key` is taken away."""

    def _below(self, key: Any) -> Any:
        for layer in self.values.below:
            value = layer.get(key, ABSENT)
            if value is not ABSENT:
                return value
        return ABSENT

    def _begin_layer(self) -> None:
        # After a roll-back another set of keys has values.
        self._present = ABSENT
        self._fetched_at = 0
        self.values.below = ()
        self.values = Layer(self.initial, ())
        self._link_layers()

    def _link_layers(self) -> None:
        self.values.below = (*(layer for _, layer in reversed(self._frozen)), self._base)
