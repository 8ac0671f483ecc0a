"""Groups of names that lead to each other, such as the vertices of a loop."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def grouped(targets: Mapping[Name, Sequence[Name]]) -> Iterator[tuple[Name, ...]]:
    """Yield what `targets` leads from and to in groups, each after all that lead to it.

    Two names are in one group if each leads to the other; the order in a group is that of `targets`.
    """
    after = {name: reached(targets, name) for name in targets}
    first = {
        name: next((one for one in targets if one in after[name] and name in after[one]), name)
        for name in targets
    }
    order: TopologicalSorter[Name] = TopologicalSorter(dict.fromkeys(first.values(), ()))
    for name, found in targets.items():
        for target in found:
            if first[target] != first[name]:
                order.add(first[target], first[name])
    for group in order.static_order():
        yield tuple(name for name, one in first.items() if one == group)


def reached(targets: Mapping[Name, Iterable[Name]], start: Name) -> set[Name]:
    """Return all that `targets` leads to from `start`."""
    found: set[Name] = set()
    waiting = [start]
    while waiting:
        for target in targets[waiting.pop()]:
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found
