"""A job that runs in a world, and how its output is judged."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crosscut.graph.specs import JobGraph
from crosscut.testing.simulator.kept import LeftBehind
from crosscut.testing.simulator.sinks import SimulatedSink
from crosscut.testing.simulator.sources import ReplayedSource

MAX_PARALLELISM = 16


def _whole(record: Any) -> Iterable[Any]:
    return (record,)


def _no_lane(sink_uid: str, record: Any) -> tuple[Any, Any] | None:
    return None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """How the output of a job is compared, whatever the order of its records.

    Attributes:
        tokens: What an output record says that does not depend on the order of arrival.
        lane: In which order a task of a sink must see it: (lane, rank); ranks grow within a lane.
        survives_duplicates: With records processed twice, no token is lost, some are added.
        is_punctual: No record is late: the sources keep to the out-of-orderness that was said of them.
    """

    tokens: Callable[[Any], Iterable[Any]] = _whole
    lane: Callable[[str, Any], tuple[Any, Any] | None] = _no_lane
    survives_duplicates: bool = True
    is_punctual: bool = False


@dataclass(frozen=True)
class SimulatedJob:
    """A compiled graph whose sources and sinks are doubles, and how its output is judged.

    Attributes:
        is_comparable: The output is the same, as a bag of tokens, in every order of arrival.
        expected: What each sink has to get, by uid. None: what a sequential run of `graph` gives it.
        copy: Returns the graph as a process has it that has just started: its functions share nothing with
            those of another. None: they are shared.
        is_same_anywhere: The output does not depend on the parallelism, although something is broadcast.
        ignores_tasks: What processes say does not depend on what they keep in states of a task.
        left_behind: What there has to be in the end beside the output.
        known_by: Jobs of which this is the same have the same sequential run; None: no other has it.
    """

    graph: JobGraph
    sources: tuple[ReplayedSource, ...]
    sinks: tuple[SimulatedSink, ...]
    judged_as: Judgement
    is_comparable: bool = True
    expected: Mapping[str, Sequence[Any]] | None = None
    copy: Callable[[], JobGraph] | None = None
    is_same_anywhere: bool = False
    ignores_tasks: bool = False
    left_behind: LeftBehind = field(default_factory=LeftBehind)
    known_by: Hashable = None

    @property
    def may_rescale(self) -> bool:
        """Whether the output at another parallelism is the same."""
        return self.is_same_anywhere or not any(edge.partitioning == "broadcast" for edge in self.graph.edges)

    def graph_of_process(self) -> JobGraph:
        """Return the graph for one more process."""
        return self.copy() if self.copy is not None else self.graph
