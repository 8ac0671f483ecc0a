"""How much memory a table has: its own structures exactly, and the objects of some of its rows.

The work has a bound, however large a value is, and no code of users is called for it: not `__sizeof__`, and
none that going through an object of theirs might run.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any, NamedTuple

OBJECTS_PER_ROW = 32
CHILDREN_SAMPLED = 16
"""Of one container; the others count as these do."""
GAPS_BYTES_MAX = 1_000
"""A dict with more than that for each of its rows has mostly gaps."""
SLOT_BYTES = 32
"""A number that a key has."""

_HEADER_BYTES = 16
"""That the garbage collector, and the dict of an instance, have in front of an object each."""
_HAS_HEADER = 1 << 14
_HAS_ATTRIBUTES = 1 << 4
_GRAIN = 16
"""Memory is given out in multiples of that."""

_bases = type.__dict__["__mro__"].__get__
_names = type.__dict__["__dict__"].__get__
_flags = type.__dict__["__flags__"].__get__
_WITHOUT_CHILDREN = (str, int, float, bytes, bool, type(None))
_ELSEWHERE = (type, ModuleType, FunctionType, BuiltinFunctionType)


class Held(NamedTuple):
    """What a table has in memory.

    Attributes:
        structure_bytes: Of its dicts, lists, ...
        key_count: Keys that these refer to.
        value_count: Values, older ones that a checkpoint still needs among them.
    """

    structure_bytes: int
    key_count: int
    value_count: int


def layers_held(layers: Sequence[dict[Any, Any]], lists: Iterable[Any], more_bytes: int) -> Held:
    """Return what a table in layers has in memory, with lists and so many bytes that it has beside them."""
    rows = sum(map(len, layers))
    return Held(sum(map(sys.getsizeof, (*layers, *lists))) + more_bytes, rows, rows)


def layers_sample(layers: Sequence[dict[Any, Any]], count: int) -> tuple[list[Any], list[Any]]:
    """Return keys and values of about so many rows, half of them of the newest layer that has any.

    The others are those of the last layer that came last: at the beginning of a dict may be any number of
    gaps. Where hardly anything is left nothing is looked for.
    """
    newest = next((one for one in layers[:-1] if one), layers[-1])
    dense = [one for one in (newest, layers[-1]) if sys.getsizeof(one) < GAPS_BYTES_MAX * len(one)]
    some = [row for layer in dense for row in islice(reversed(layer.items()), count // 2)]
    return [key for key, _ in some], [value for _, value in some]


def mean_bytes(objects: list[Any], *, is_shared: bool = True) -> float:
    """Return how many bytes one of `objects` takes with all that it refers to, on the average.

    What several refer to counts in equal shares.

    Args:
        is_shared: The objects themselves may be shared as well; else each counts in full.
    """
    if not objects:
        return 0.0
    return sum(_deep(objects, i, is_shared=is_shared) for i in range(len(objects))) / len(objects)


def _deep(objects: Sequence[Any], position: int, *, is_shared: bool) -> float:
    first = _share(objects, position) if is_shared else 1.0
    # Breadth first: what a bound leaves out is far down.
    waiting = deque([(objects[position], first)])
    total, left = 0.0, OBJECTS_PER_ROW
    while waiting and left:
        left -= 1
        one, weight = waiting.popleft()
        children, count = _children(one)
        total += weight * _shallow(one, count)
        if children:
            each = weight * count / len(children)
            # All shares first: from then on there are others that refer to them.
            weights = [each * _share(children, i) for i in range(len(children))]
            waiting.extend(
                (child, weight)
                for child, weight in zip(children, weights, strict=True)
                if not issubclass(type(child), _ELSEWHERE)
            )
    return total


def _share(objects: Sequence[Any], position: int) -> float:
    """Return which part of an object is that of one who refers to it."""
    # Without the list, and the argument.
    return 1.0 / max(1, sys.getrefcount(objects[position]) - 2)


def _children(one: Any) -> tuple[list[Any], int]:
    """Return what an object refers to, or some of it, and how many that are."""
    kind = type(one)
    # Not `in`: that asks a class whether it equals another one, and a metaclass may answer.
    if any(kind is plain for plain in _WITHOUT_CHILDREN):
        return [], 0
    if issubclass(kind, list):
        return _some(list.__len__(one), lambda step: list.__getitem__(one, slice(None, None, step)))
    if issubclass(kind, tuple):
        return _some(tuple.__len__(one), lambda step: list(tuple.__getitem__(one, slice(None, None, step))))
    if issubclass(kind, dict):
        # At once: a thread of the user's may change it, and a loop in Python lets others run.
        pairs = list(islice(dict.items(one), CHILDREN_SAMPLED // 2))
        return list(chain.from_iterable(pairs)), 2 * dict.__len__(one)
    for several in (set, frozenset, deque):
        if issubclass(kind, several):
            return list(islice(several.__iter__(one), CHILDREN_SAMPLED)), several.__len__(one)
    # Goes by what the collector sees: attributes and slots, without a word of the class.
    found = [each for each in gc.get_referents(one) if each is not kind]
    return found[:CHILDREN_SAMPLED], len(found)


def _some(count: int, pick: Any) -> tuple[list[Any], int]:
    return pick(max(1, -(-count // CHILDREN_SAMPLED))), count


def _shallow(one: Any, child_count: int) -> int:
    kind = type(one)
    flags = _flags(kind)
    size = _own_bytes(one)
    if flags & _HAS_HEADER:
        size += _HEADER_BYTES
    if flags & _HAS_ATTRIBUTES:
        # References to the values, which are apart from the object.
        size += _HEADER_BYTES + _GRAIN + 8 * child_count
    return -(-size // _GRAIN) * _GRAIN


def _own_bytes(one: Any) -> int:
    """Return what the nearest `__sizeof__` that is not written in Python says."""
    return next(_answers(one), 0)


def _answers(one: Any) -> Iterator[int]:
    for base in _bases(type(one)):
        method = _names(base).get("__sizeof__")
        if type(method) is MethodDescriptorType:
            yield method(one)
