"""State as bytes: the format of a part, and copies of values.

A part is the magic `XCS6` and a series of blocks. A block is two lengths (8 bytes each, big-endian), a
pickle (protocol 5) of the first length, the head, and data of the second one. There are four kinds:

* `("rows", table, is_named, keys)`, and a pickle of the values, a list as long as the keys. So a value that
  can't be read is named by its table and key. In a table of named rows each of the keys is a pair
  `(key, name)`. The value `DELETED` takes a row away.
* `("extent", table, known, key_count, first, end)`, without data, before all others of a table whose keys
  have slots: parts before it give `known` keys theirs, and with this one there are `key_count`. It has
  the keys and values of all slots from `known` on, and of a slice, those from `first` to before `end`. So
  the newest parts whose extents leave no slot out are enough.
* `("keys", table, first)`, and a pickle of keys: they have the slots from `first` on.
* `("slots", table, slots, form)`, and the values of keys that this part or another one of the same task gives
  these slots. `slots` is a range, or numbers of 4 bytes. The form `i`, `q` or `d` is an array of signed
  integers of 4 or 8 bytes or of floating-point numbers of 8 bytes; the form `p` is a pickle of a list. All
  numbers are little-endian.

Later blocks override earlier ones, in one part too. Parts are not divided by key group, so a snapshot costs
no hash per key (docs/decisions/0003). `XCS4` is read as well: there all blocks are rows, and their heads are
`(table, is_named, keys)`.

A pickle can run any code of its author. Parts are read only after their SHA-256 matched the one in
the job log: by workers, which run the user's code anyway, and on the driver for the flow's own
invariants, if it states any (rules S7, S8).
"""

from __future__ import annotations

import copyreg
import pickle  # noqa: S403 - see above
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from crosscut.errors import StateError
from crosscut.foundation.unpickling import loader
from crosscut.state.given_keys import all_plain

MAGIC = b"XCS6"
_MAGIC_OF_ROWS = b"XCS4"
_LENGTHS = struct.Struct(">QQ")
_KEYS_SHOWN = 3
_PICKLED = "p"

ATOMIC = frozenset({int, float, complex, bool, str, bytes, type(None)})
"""Types whose values are immutable."""


class _Deleted:
    """The value of a key that is gone, where an older layer or part may still have one."""

    def __reduce__(self) -> str:
        return "DELETED"

    def __repr__(self) -> str:
        return "DELETED"


DELETED: Any = _Deleted()


class _Unknown:
    """Stands for a key in whose place parts that are still to be read have one."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Any = _Unknown()


class Block(NamedTuple):
    """Some rows of one table.

    Attributes:
        is_named: The keys are pairs `(key, name)`, each of which belongs to its key.
    """

    table: str
    is_named: bool
    keys: list[Any]
    values: list[Any]


class Extent(NamedTuple):
    """What a part has of a table whose keys have slots, besides changes.

    Attributes:
        known: How many keys older parts give slots. It has all keys after these.
        key_count: How many keys there are with this part.
        slice: It has all of these slots, too.
    """

    table: str
    known: int
    key_count: int
    slice: range


class NewKeys(NamedTuple):
    """Keys of one table, which have the slots from `first` on."""

    table: str
    first: int
    keys: list[Any]


class SlotRows(NamedTuple):
    """Values of keys that stand elsewhere.

    Attributes:
        slots: Of the keys.
        data: The values, in that form.
    """

    table: str
    slots: Sequence[int]
    form: str
    data: memoryview

    def values(self, keys: Sequence[Any]) -> Sequence[Any]:
        """Return the values.

        Args:
            keys: Those of the table by slot.

        Raises:
            StateError: One can't be decoded.
        """
        if self.form == _PICKLED:
            return _values(self.data, self.table, [keys[slot] for slot in self.slots[:_KEYS_SHOWN]])
        return _unpacked(self.form, self.data)


def encode_block(table: str, keys: list[Any], values: list[Any], *, is_named: bool = False) -> bytes:
    """Return a block of rows.

    Raises:
        StateError: A value can't be pickled; the message names its key.
    """
    try:
        return _block(("rows", table, is_named, keys), pickle.dumps(values, protocol=5))
    except Exception as error:  # A value's own __reduce__ may raise anything.
        raise _unstorable(table, keys, values, error) from error


def encode_extent(extent: Extent) -> bytes:
    """Return the block of an extent."""
    table, known, key_count, some = extent
    return _block(("extent", table, known, key_count, some.start, some.stop), b"")


def encode_new_keys(table: str, first: int, keys: list[Any]) -> bytes:
    """Return a block of keys that have the slots from `first` on."""
    return _block(("keys", table, first), pickle.dumps(keys, protocol=5))


def encode_slots(table: str, slots: Sequence[int], values: list[Any], keys: Sequence[Any]) -> bytes:
    """Return a block of values of keys that have slots.

    Args:
        keys: Those of the table by slot, for errors.

    Raises:
        StateError: A value can't be pickled; the message names its key.
    """
    where = slots if isinstance(slots, range) else _packed("I", slots)
    kinds = set(map(type, values))
    # Not what is equal to a number, like a bool: each comes back as what it was.
    forms = "iq" if kinds == {int} else "d" if kinds == {float} else ""
    for form in forms:
        try:
            return _block(("slots", table, where, form), _packed(form, values))
        except OverflowError:
            # The next one is wider.
            continue
    try:
        return _block(("slots", table, where, _PICKLED), pickle.dumps(values, protocol=5))
    except Exception as error:  # As above.
        raise _unstorable(table, [keys[slot] for slot in slots], values, error) from error


def _block(head: tuple[Any, ...], data: bytes) -> bytes:
    head_bytes = pickle.dumps(head, protocol=5)
    return _LENGTHS.pack(len(head_bytes), len(data)) + head_bytes + data


def _packed(form: str, numbers: Iterable[Any]) -> bytes:
    return _in_order(array(form, numbers)).tobytes()


def _unpacked(form: str, data: bytes | memoryview) -> array[Any]:
    numbers = array(form)
    numbers.frombytes(data)
    return _in_order(numbers)


def _in_order(numbers: array[Any]) -> array[Any]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def decode_part(data: bytes) -> Iterator[Block | Extent | NewKeys | SlotRows]:
    """Yield the blocks, in order.

    Raises:
        StateError: `data` is no part, or a value's class can't be loaded here.
    """
    magic = data[: len(MAGIC)]
    if magic not in (MAGIC, _MAGIC_OF_ROWS):
        raise StateError(
            f"a part of {len(data)} bytes starts with {magic!r}: expected {MAGIC!r}; parts of another "
            f"format were written by another version of Crosscut"
        )
    offset = len(MAGIC)
    while offset < len(data):
        start = offset + _LENGTHS.size
        head_length, rest = _LENGTHS.unpack_from(data, offset) if start <= len(data) else (0, 0)
        offset = start + head_length + rest
        if start > len(data) or offset > len(data):
            raise StateError(f"a part of {len(data)} bytes ends in the middle of a block: it was cut short")
        head = loaded(memoryview(data)[start : start + head_length])
        body = memoryview(data)[start + head_length : offset]
        match head if magic == MAGIC else ("rows", *head):
            case ("rows", table, is_named, keys):
                yield Block(table, is_named, keys, _values(body, table, keys))
            case ("extent", table, known, key_count, first, end):
                yield Extent(table, known, key_count, range(first, end))
            case ("keys", table, first):
                yield NewKeys(table, first, loaded(body))
            case ("slots", table, slots, form):
                numbers = slots if isinstance(slots, range) else _unpacked("I", slots)
                yield SlotRows(table, numbers, form, body)
            case _:
                raise StateError(f"a part has a block of the kind {head[0]!r:.100}, which is unknown here")


def _values(data: memoryview, table: str, keys: list[Any]) -> list[Any]:
    which = ", ".join(f"{key!r:.120}" for key in keys[:_KEYS_SHOWN])
    others = f" or {len(keys) - _KEYS_SHOWN} others" if len(keys) > _KEYS_SHOWN else ""
    values: list[Any] = loaded(data, f"state {table!r} of one of the keys {which}{others}")
    return values


class PartReader:
    """Reads the parts of one task, the oldest first, and names rows by their keys.

    It remembers the keys that have slots, which other parts refer to. `end` has to follow.
    """

    def __init__(self) -> None:
        self._keys: dict[str, list[Any]] = {}
        self._has_unknown = False

    def blocks(self, data: bytes) -> Iterator[Block]:
        """Yield the rows of the next part, in order.

        Raises:
            StateError: As in `decode_part`; or a part before it has not been read.
        """
        for block in decode_part(data):
            match block:
                case Block():
                    yield block
                case Extent(table, known):
                    if not known:
                        # A whole part begins.
                        self._keys[table] = []
                    keys = self._keys.setdefault(table, [])
                    self._has_unknown |= known > len(keys)
                    grow_keys(keys, block)
                case NewKeys(table, first, new):
                    take_in_keys(self._keys.setdefault(table, []), first, new, table)
                case SlotRows(table, slots):
                    keys = self._keys.get(table, [])
                    check_slots(slots, keys, table)
                    named, values = [keys[slot] for slot in slots], list(block.values(keys))
                    if self._has_unknown:
                        # Their keys come with a newer part, which has their values too.
                        is_known = [key is not UNKNOWN for key in named]
                        named, values = list(compress(named, is_known)), list(compress(values, is_known))
                    yield Block(table, False, named, values)

    def end(self) -> None:
        """All parts are read.

        Raises:
            StateError: A part is missing.
        """
        for table, keys in self._keys.items():
            check_all_known(keys, table)


def grow_keys(keys: list[Any], extent: Extent) -> int:
    """Have a slot for each key that there is with a part; return how many there are more."""
    count = max(0, extent.key_count - len(keys))
    keys += [UNKNOWN] * count
    return count


def take_in_keys(keys: list[Any], first: int, new: list[Any], table: str) -> dict[Any, int]:
    """Add keys to those of a table by slot, and return those that it had not, with their slots.

    Raises:
        StateError: There is a gap before them, or other keys have their slots.
    """
    if first > len(keys):
        raise _unread(table, first - 1)
    end = first + len(new)
    there = keys[first:end]
    there += [UNKNOWN] * (len(new) - len(there))
    if there == new:
        return {}
    added = dict(zip(new, range(first, end), strict=True))
    if there.count(UNKNOWN) != len(new):
        for key, other in zip(new, there, strict=True):
            if other is not UNKNOWN:
                if key != other:
                    raise StateError(f"a part gives other keys the slots from {first} on of state {table!r}")
                del added[key]
    keys[first:end] = new
    return added


def check_slots(slots: Sequence[int], keys: Sequence[Any], table: str) -> None:
    """Make sure that each slot has a key.

    Raises:
        StateError: It has none.
    """
    if len(slots) and (highest := max(slots)) >= len(keys):
        raise _unread(table, highest)


def check_all_known(keys: list[Any], table: str) -> None:
    """Make sure that all parts which give keys their slots have been read.

    Raises:
        StateError: One has not.
    """
    if UNKNOWN in keys:
        raise _unread(table, keys.index(UNKNOWN))


def _unread(table: str, slot: int) -> StateError:
    return StateError(
        f"parts refer to key number {slot} of state {table!r}, and which that is they do not say: one of the "
        f"parts has not been read"
    )


def contents(parts: Iterable[bytes]) -> dict[str, dict[Any, Any]]:
    """Return what `parts` of one task, oldest first, add up to: the values of each table by key.

    The value of a key of named rows is a dict of values by name.

    Raises:
        StateError: As in `decode_part`.
    """
    reader = PartReader()
    tables = merged(block for part in parts for block in reader.blocks(part))
    reader.end()
    return tables


def merged(blocks: Iterable[Block]) -> dict[str, dict[Any, Any]]:
    """Return what `blocks` add up to, the oldest first; see `contents`."""
    tables: dict[str, dict[Any, Any]] = {}
    named: set[str] = set()
    unusual: set[str] = set()
    for block in blocks:
        if block.table not in unusual and not all_plain(block.keys):
            unusual.add(block.table)
        rows = tables.setdefault(block.table, {})
        take_in(rows, block.keys, block.values, replaces_keys=block.table in unusual)
        if block.is_named:
            named.add(block.table)
    for table in named:
        by_key: dict[Any, dict[Any, Any]] = {}
        for (key, name), value in tables[table].items():
            by_key.setdefault(key, {})[name] = value
        tables[table] = by_key
    return tables


def take_in(into: dict[Any, Any], keys: list[Any], values: list[Any], *, replaces_keys: bool = True) -> None:
    """Set newer values in a plain dict, and remove deleted ones.

    Args:
        replaces_keys: See `update`.
    """
    # By way of a small dict, which knows the hashes: that takes less time where `into` is large.
    update(into, dict(zip(keys, values, strict=True)), replaces_keys=replaces_keys)
    # By type: values may have an == of their own.
    if _Deleted in map(type, values):
        for key, value in zip(keys, values, strict=True):
            if value is DELETED:
                into.pop(key, None)


def update(into: dict[Any, Any], newer: dict[Any, Any], *, replaces_keys: bool) -> None:
    """Set newer values in a dict.

    Args:
        replaces_keys: The keys of `newer` count as well, where others are equal: see
            `crosscut.state.given_keys`.
    """
    if replaces_keys:
        for key in newer:
            into.pop(key, None)
    into.update(newer)


def owned_copy(value: Any) -> Any:
    """Return `value` if it is immutable, else a copy that the caller may change."""
    kind = type(value)
    if kind in ATOMIC:
        return value
    # Common containers of such values: a shallow copy is a whole one, at a tenth of what pickle costs.
    if kind is tuple:
        # A loop: most have few items, and each value of an aggregate comes by here.
        for one in value:
            if type(one) not in ATOMIC:
                break
        else:
            return value
    elif kind is list or kind is set:
        if ATOMIC.issuperset(map(type, value)):
            return value.copy()
    elif (
        kind is dict and ATOMIC.issuperset(map(type, value.values())) and ATOMIC.issuperset(map(type, value))
    ):
        return value.copy()
    else:
        # An object with such attributes is mutable, too.
        is_plain = _PLAIN_KINDS.get(kind)
        if is_plain is None:
            is_plain = _PLAIN_KINDS[kind] = _is_plain(kind)
        if is_plain and ATOMIC.issuperset(map(type, vars(value).values())):
            one = object.__new__(kind)
            vars(one).update(vars(value))
            return one
    return loaded(pickle.dumps(value, protocol=5))


_PLAIN_KINDS: WeakKeyDictionary[type, bool] = WeakKeyDictionary()
_PICKLES_BY = (
    "__new__",
    "__reduce_ex__",
    "__reduce__",
    "__getstate__",
    "__setstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
)


def _is_plain(kind: type) -> bool:
    """Return whether pickle would take of an object of this class its attributes, and nothing else."""
    return (
        kind not in copyreg.dispatch_table
        and all(getattr(kind, name, None) is getattr(object, name, None) for name in _PICKLES_BY)
        and kind.__dictoffset__ != 0
        and not any("__slots__" in vars(base) for base in kind.__mro__)
    )


def loaded(data: bytes | memoryview, what: str = "state") -> Any:
    """Return what a pickle of our own state holds.

    Args:
        what: It is, for errors.

    Raises:
        StateError: A value's class can't be loaded here.
    """
    try:
        return loader()(data)
    except StateError as error:
        # That only data is loaded here: as it says.
        raise type(error)(f"{what} can't be decoded: {error}") from error
    except Exception as error:  # A value's own __setstate__ may raise anything.
        raise StateError(
            f"{what} can't be decoded: {type(error).__name__}: {error}; the classes of keyed state must be "
            f"importable, in a version that accepts what an earlier one stored",
            # The bytes and the code of a job stay as they are.
            damaged=not isinstance(error, (OSError, MemoryError)),
        ) from error


def unstorable(table: str, key: Any, value: Any, error: Exception) -> StateError:
    """Return the error that says that a value can't be pickled."""
    where = f" in {table!r}" if table else ""
    return StateError(
        f"the state of key {key!r:.120}{where}, of type {type(value).__qualname__}, can't be stored: "
        f"{type(error).__name__}: {error}; keep plain values in state"
    )


def _unstorable(table: str, keys: list[Any], values: list[Any], error: Exception) -> StateError:
    for key, value in zip(keys, values, strict=True):
        try:
            pickle.dumps(value, protocol=5)
        except Exception as cause:  # noqa: BLE001 - as in encode_block: the same value raises again
            return unstorable(table, key, value, cause)
    where = f" in {table!r}" if table else ""
    return StateError(f"state{where} can't be stored: {type(error).__name__}: {error}")
