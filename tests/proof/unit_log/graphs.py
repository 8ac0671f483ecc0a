"""Which units the explored world has, and what their sources read."""

from __future__ import annotations

from typing import NamedTuple

from crosscut.foundation.ids import ChannelId, TaskId, VertexId


class UnitSite(NamedTuple):
    """A unit, with one task.

    Attributes:
        outputs: None: it is a sink.
        records: How many its source has.
        number: Tells its records from those of other sources.
    """

    name: str
    inputs: tuple[ChannelId, ...] = ()
    outputs: tuple[ChannelId, ...] = ()
    records: int = 0
    number: int = 0


class UnitGraph(NamedTuple):
    """Units, and the channels between them that close a cycle."""

    name: str
    sites: tuple[UnitSite, ...]
    back_edges: frozenset[ChannelId] = frozenset()

    def site(self, name: str) -> UnitSite:
        """Return the unit called `name`."""
        return next(one for one in self.sites if one.name == name)


def unit_graph(name: str, edges: str, **records: int) -> UnitGraph:
    """Return a graph; `edges` such as "S>A B>A*", with a star for a back edge."""
    channels, back_edges = [], set()
    for edge in edges.split():
        source, target = edge.rstrip("*").split(">")
        channel = ChannelId(0, TaskId(VertexId(source), 0), TaskId(VertexId(target), 0))
        channels.append(channel)
        if edge.endswith("*"):
            back_edges.add(channel)
    names = sorted({end.vertex for one in channels for end in (one.source, one.target)})
    sites = tuple(
        UnitSite(
            unit,
            tuple(one for one in channels if one.target.vertex == unit),
            tuple(one for one in channels if one.source.vertex == unit),
            records.get(unit, 0),
            number,
        )
        for number, unit in enumerate(names)
    )
    return UnitGraph(name, sites, frozenset(back_edges))


LOOP = unit_graph("two sources, two tasks, a loop and a sink", "S>A S>B T>A T>B A>K B>K B>A*", S=4, T=3)
PAIR = unit_graph("a source and a sink", "S>K", S=6)
SMALL = unit_graph("one record", "S>K", S=1)
TWO_RECORDS = unit_graph("two records", "S>K", S=2)
