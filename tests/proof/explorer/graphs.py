"""The small graphs: tasks, channels, and the way of every record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from crosscut.foundation.ids import ChannelId, TaskId, VertexId
from crosscut.graph.components import loops_of
from crosscut.graph.specs import Edge
from crosscut.protocol.checkpoint.termination import Component

RECORD_BITS = 4
"""A multiset of records is one number: so many bits for how often each is in it."""


def once(record: int) -> int:
    """Return the multiset that holds `record` once."""
    return 1 << RECORD_BITS * record


def times(records: int, record: int) -> int:
    """Return how often `record` is in the multiset `records`."""
    return records >> RECORD_BITS * record & (1 << RECORD_BITS) - 1


@dataclass(frozen=True)
class Graph:
    """One task a worker, so that every task gets its messages, and dies, in its own time.

    Attributes:
        channels: From and to by task number, and whether it is a back edge.
        counts: Tasks that say nothing before the end of their input, and then all that they got.
        holds: Tasks that let a record on when its time has come; where there are any, sources say watermarks.
        routes: For each record, the channels that it takes, from its source to where it leaves.
        origins: For each record, its source.
    """

    name: str
    tasks: tuple[TaskId, ...]
    channels: tuple[tuple[int, int, bool], ...]
    sinks: frozenset[int]
    counts: frozenset[int]
    holds: frozenset[int]
    routes: tuple[tuple[int, ...], ...]
    origins: tuple[int, ...]

    @property
    def sources(self) -> tuple[int, ...]:
        """Tasks without inputs."""
        return tuple(one for one in range(len(self.tasks)) if not self.inputs(one))

    @property
    def loops(self) -> tuple[Component, ...]:
        """What goes round together."""
        names = [one.vertex for one in self.tasks]
        return loops_of(
            [
                Edge(index, names[source], names[target], "forward", back_edge=is_back)
                for index, (source, target, is_back) in enumerate(self.channels)
            ]
        )

    def inputs(self, task: int) -> tuple[int, ...]:
        """Return the channels that `task` reads from."""
        return tuple(i for i, (_, target, _) in enumerate(self.channels) if target == task)

    def outputs(self, task: int) -> tuple[int, ...]:
        """Return the channels that `task` writes to."""
        return tuple(i for i, (source, _, _) in enumerate(self.channels) if source == task)

    def channel(self, index: int) -> ChannelId:
        """Return the id of a channel."""
        source, target, _ = self.channels[index]
        return ChannelId(index, self.tasks[source], self.tasks[target])

    def records_of(self, source: int) -> tuple[int, ...]:
        """Return what `source` reads, in order."""
        return tuple(one for one, origin in enumerate(self.origins) if origin == source)

    def visits(self, record: int, hops: int, task: int) -> int:
        """Return how often `record` has been at `task` after so many hops."""
        return sum(1 for one in self.routes[record][:hops] if self.channels[one][1] == task)

    def record_name(self, record: int) -> str:
        """Return what people may call `record`: its source and its number there."""
        origin = self.origins[record]
        return f"{self.tasks[origin].vertex}{self.records_of(origin).index(record)}"


def _graph(
    name: str,
    tasks: tuple[str, ...],
    channels: tuple[str, ...],
    sinks: tuple[str, ...],
    records: int,
    route: Callable[[str, int], str],
    counts: tuple[str, ...] = (),
    holds: tuple[str, ...] = (),
) -> Graph:
    number = {one: i for i, one in enumerate(tasks)}
    ends = [(*one.strip("*").split(">"), one.endswith("*")) for one in channels]
    links = tuple((number[str(a)], number[str(b)], bool(back)) for a, b, back in ends)
    by_ends = {(source, target): i for i, (source, target, _) in enumerate(links)}
    sources = [one for one in tasks if all(target != number[one] for _, target, _ in links)]
    routes, origins = [], []
    for source in sources:
        for record in range(records):
            way = [number[one] for one in (source, *route(source, record).split())]
            routes.append(tuple(by_ends[a, b] for a, b in pairwise(way)))
            origins.append(number[source])
    ids = tuple(TaskId(VertexId(one), i) for i, one in enumerate(tasks))
    inside, silent, patient = (frozenset(number[one] for one in names) for names in (sinks, counts, holds))
    return Graph(name, ids, links, inside, silent, patient, tuple(routes), tuple(origins))


def graph(name: str, records: int) -> Graph:
    """Return one of `GRAPHS` with so many records a source. A `*` marks a back edge."""
    match name:
        case "chain":
            return _graph(name, ("a", "map", "z"), ("a>map", "map>z"), ("z",), records, lambda *_: "map z")
        case "join":
            return _graph(name, ("a", "b", "z"), ("a>z", "b>z"), ("z",), records, lambda *_: "z")
        case "diamond":
            channels: tuple[str, ...] = ("a>l", "a>r", "l>z", "r>z")
            return _graph(
                name, ("a", "l", "r", "z"), channels, ("z",), records, lambda _, i: ("l z", "r z")[i % 2]
            )
        case "shortcut":
            # The smallest graph in which one way to a task may be ahead of the other.
            channels = ("a>l", "a>z", "l>z")
            return _graph(name, ("a", "l", "z"), channels, ("z",), records, lambda _, i: ("l z", "z")[i % 2])
        case "two sinks":
            return _graph(
                name, ("a", "y", "z"), ("a>y", "a>z"), ("y", "z"), records, lambda _, i: "yz"[i % 2]
            )
        case "loop":
            channels = ("a>head", "head>head*", "head>z")
            return _graph(
                name, ("a", "head", "z"), channels, ("z",), records, lambda _, i: "head " * (2 - i % 2) + "z"
            )
        case "ring":
            # Two heads of one loop: each gets barriers that the other was first to forward.
            channels = ("a>x", "b>y", "x>y*", "y>x*")
            return _graph(
                name,
                ("a", "b", "x", "y"),
                channels,
                ("x", "y"),
                records,
                lambda source, _: "x y" if source == "a" else "y x",
            )
        case "count, loop, count":
            channels = ("a>c", "c>head", "head>head*", "head>z")
            return _graph(
                name,
                ("a", "c", "head", "z"),
                channels,
                ("z",),
                records,
                lambda _, i: "c " + "head " * (2 - i % 2) + "z",
                counts=("c", "z"),
            )
        case "loop, count, loop":
            channels = ("a>head", "head>head*", "head>c", "c>again", "again>again*", "again>z")
            return _graph(
                name,
                ("a", "head", "c", "again", "z"),
                channels,
                ("z",),
                records,
                lambda _, i: "head " * (1 + i % 2) + "c " + "again " * (2 - i % 2) + "z",
                counts=("c",),
            )
        case "loop with a count":
            # It stands in the body, and leads out of it.
            channels = ("a>head", "head>body", "body>head*", "body>z", "head>c", "c>z")
            return _graph(
                name,
                ("a", "head", "body", "c", "z"),
                channels,
                ("z",),
                records,
                lambda _, i: ("head body head c z", "head body z")[i % 2],
                counts=("c",),
            )
        case "edge":
            return _graph(name, ("a", "z"), ("a>z",), ("z",), records, lambda *_: "z")
        case "timed chain":
            channels = ("a>h", "h>z")
            return _graph(name, ("a", "h", "z"), channels, ("z",), records, lambda *_: "h z", holds=("h",))
        case "timed join":
            channels = ("a>z", "b>z")
            return _graph(name, ("a", "b", "z"), channels, ("z",), records, lambda *_: "z", holds=("z",))
        case _:
            raise ValueError(f"no graph {name!r}: expected one of {', '.join((*GRAPHS, *TIMED))}")


GRAPHS = (
    "edge",
    "chain",
    "join",
    "shortcut",
    "diamond",
    "two sinks",
    "loop",
    "ring",
    "count, loop, count",
    "loop, count, loop",
    "loop with a count",
)

TIMED = ("timed chain", "timed join")
"""Those with event time."""
