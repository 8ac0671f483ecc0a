"""Flow: where a user's dataflow starts, and how it is compiled, explained and run."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from crosscut.contracts.connectors import Source
from crosscut.contracts.invariants import Invariant, OnBroken, Predicate
from crosscut.contracts.settings import Settings, settings_with
from crosscut.contracts.snapshot_protocols import Aligned, Logged
from crosscut.errors import FlowError
from crosscut.flow.draft import Draft
from crosscut.flow.stream import Stream
from crosscut.foundation.callables import function_problem
from crosscut.graph.compile import compiled
from crosscut.graph.explain import explained
from crosscut.graph.logged import explained_logs
from crosscut.graph.shipped_imports import refuse_start
from crosscut.graph.specs import JobGraph, SourceSpec

if TYPE_CHECKING:
    from crosscut.spark.cluster.job import Job


Record = TypeVar("Record")


class Flow:
    """A dataflow: sources, operators, sinks. Nothing runs until `start`.

    Args:
        name: 1 to 64 letters, digits, `_`, `-` or inner dots.

    Raises:
        FlowError: The name is not usable.

    Examples:
        >>> import crosscut as cc
        >>> flow = cc.Flow("word-count")
        >>> words = flow.source(cc.files.read_text("corpus/*.txt")).flat_map(str.split)
        >>> end = words.key_by(lambda word: word).count().sink(cc.files.write_jsonl("out"))
    """

    def __init__(self, name: str) -> None:
        self._draft = Draft(name)
        self._invariants: dict[str, Invariant] = {}

    @property
    def name(self) -> str:
        """The name that was given."""
        return self._draft.name

    def source(self, source: Source[Record], *, name: str | None = None) -> Stream[Record]:
        """Return the stream of all records of `source`.

        Args:
            source: Where the records come from.
            name: Names the source, as `named` does.

        Raises:
            FlowError: `source` is not a crosscut.Source.

        Examples:
            >>> import crosscut as cc
            >>> numbers = cc.Flow("numbers").source(cc.generate(lambda i: i, count=10), name="numbers")
        """
        if not isinstance(source, Source):
            label = self._draft.label("source")
            raise FlowError(
                f"flow {self.name!r}, operator {label!r}: expected a crosscut.Source, "
                f"found an object of type {type(source).__name__}",
                operator=label,
            )
        return Stream(self._draft, self._draft.add("source", SourceSpec(source), name=name))

    def invariant(self, name: str, predicate: Predicate, on_broken: OnBroken = "report") -> None:
        """State what must be true of every consistent cut of the running job.

        The predicate gets the cut of a completed checkpoint, a `crosscut.Cut`, in a thread of the
        driver; it never delays checkpoints or records. If it returns something false or raises, the
        invariant is broken: `job.report().invariants` and a warning in the journal name the checkpoint.

        Args:
            name: Unique within the flow; for people.
            predicate: Stays on the driver. If it takes longer than the checkpoint interval, only the newest
                cut is evaluated next.
            on_broken: "report", or "stop" to end the job as failed. Output up to the broken cut has been
                committed by then.

        Raises:
            FlowError: An argument is not as described.

        Examples:
            >>> import crosscut as cc
            >>> flow = cc.Flow("orders")
            >>> flow.invariant("no debts", lambda cut: min(cut.values("balance").values(), default=0) >= 0)
        """
        problem = ""
        if not isinstance(name, str) or not name:
            problem = "expected a name"
        elif name in self._invariants:
            problem = "another one has that name; names are unique within the flow"
        elif not callable(predicate):
            problem = (
                f"the predicate is an object of type {type(predicate).__name__}: expected a function of a cut"
            )
        elif problem := function_problem(predicate, "cut"):
            problem = f"the predicate: {problem}"
        elif on_broken not in get_args(OnBroken):
            problem = f"on_broken={on_broken!r}: expected 'report' or 'stop'"
        if problem:
            raise FlowError(f"flow {self.name!r}, invariant {name!r}: {problem}")
        self._invariants[name] = Invariant(name, predicate, on_broken)

    @property
    def invariants(self) -> tuple[Invariant, ...]:
        """What was stated with `invariant`, in order."""
        return tuple(self._invariants.values())

    def compile(self, parallelism: int, max_parallelism: int) -> JobGraph:
        """Return the graph that would run. The flow can be added to and compiled again.

        Raises:
            FlowError: The flow is not complete; the message names the operator.
            SettingsError: The numbers are out of range or contradict each other.
        """
        Settings(parallelism=parallelism, max_parallelism=max_parallelism)
        # A graph is written down: a default is a number like any other there.
        return compiled(self.name, self._draft.nodes(), int(parallelism), max_parallelism)

    def explain(
        self,
        parallelism: int = 2,
        max_parallelism: int = 128,
        snapshots: str | Aligned | Logged = "aligned",
    ) -> None:
        """Print vertices, channels, key groups and back edges of the compiled graph.

        Args:
            snapshots: As in `Settings`; with "logged" also what the logs of the workers do with the flow, or
                why it can't run with them.

        Raises:
            FlowError: The flow is not complete.
            SettingsError: The numbers are out of range or contradict each other.
        """
        graph = self.compile(parallelism, max_parallelism)
        print(explained(graph))
        if (logged := Settings(snapshots=snapshots).logged) is not None:
            print(f"\n{explained_logs(graph, logged)}")

    def start(self, settings: Settings | None = None, spark: Any = None, **changed: Any) -> Job:
        """Start the flow on Spark and return its job at once.

        Args:
            settings: Default: `Settings()`.
            spark: A SparkSession. Default: the active one, or a new local one.
            changed: Settings that are others than in `settings`, as in `flow.start(parallelism=2)`. The name
                of the engine that `settings` has keeps the settings of that engine.

        Raises:
            FlowError: The flow is not complete, or holds something that can't be sent to workers.
            SettingsError: The settings do not fit the cluster.
        """
        refuse_start()
        # Only here is pyspark needed: a flow can be written, explained and simulated without it.
        from crosscut.spark.cluster.starting import start_job

        return start_job(self, settings_with(settings, changed), spark)

    def __repr__(self) -> str:
        return f"<Flow {self.name!r}>"

    def _repr_html_(self) -> str:
        """Return the graph as a picture, for notebooks; or what is still missing."""
        from crosscut.graph.drawing import svg_of

        try:
            return svg_of(self.compile(2, 128))
        except FlowError as error:
            return f"<p>{escape(repr(self))}: {escape(str(error))}</p>"
