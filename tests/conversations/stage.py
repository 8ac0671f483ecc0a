"""A virtual world in which nothing is left to chance, so that what is said in it can be written down.

It runs the real workers and the real driver. A message takes a millisecond, a call of the store or of a
sink two; what goes wrong, and when records come in, is said by whoever sets the stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.proof.worlds.graphs import Graph

from crosscut.contracts.connectors import JSON, EndOfSplit, Split, SplitReader, Wait
from crosscut.flow.flow import Flow
from crosscut.flow.stream import Stream
from crosscut.testing.simulator.clock import Action, Clock
from crosscut.testing.simulator.options import Options, PlannedFault, options_of
from crosscut.testing.simulator.processes import Process
from crosscut.testing.simulator.simulated_job import MAX_PARALLELISM, SimulatedJob
from crosscut.testing.simulator.sinks import SimulatedSink
from crosscut.testing.simulator.sources import ReplayedSource
from crosscut.testing.simulator.worker import WorkerProcess
from crosscut.testing.simulator.world import World

MESSAGE_US = 1_000
CALL_US = 2_000

Times = Sequence[tuple[int, Any]]
"""Records, each with the millisecond from which on it can be read; at (ms, None) the split ends."""


class TimedSource(ReplayedSource):
    """Splits whose records come in at given times. Who reads them again has them at once."""

    def __init__(self, splits: Mapping[str, Times]) -> None:
        super().__init__(
            {name: [one for _, one in times if one is not None] for name, times in splits.items()}
        )
        self.times = splits
        self.clock = Clock()

    def reader(self, split: Split, position: JSON) -> SplitReader:
        return _TimedReader(self, split.split_id, int(str(position)))


class _TimedReader(SplitReader):
    def __init__(self, source: TimedSource, name: str, position: int) -> None:
        self._source = source
        self._times = source.times[name]
        self._position = position

    @property
    def position(self) -> JSON:
        return self._position

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        due_ms, record = self._times[self._position]
        wait_us = due_ms * 1_000 - self._source.clock.now_us
        if wait_us > 0:
            return Wait(wait_us / 1_000)
        if record is None:
            return EndOfSplit()
        self._position += 1
        return [record]


class Stage(World):
    """The world.

    Attributes:
        worker_us: How long a worker takes until it gets to what is ready.
    """

    def __init__(self, options: Options, job: SimulatedJob) -> None:
        super().__init__(options, job)
        self.worker_us = 1
        for source in job.sources:
            if isinstance(source, TimedSource):
                source.clock = self.clock

    def coin(self) -> bool:
        return False

    def below(self, limit: int) -> int:
        return limit - 1

    def latency_us(self) -> int:
        return MESSAGE_US

    def turn_us(self, process: Process) -> int:
        return self.worker_us if isinstance(process, WorkerProcess) else 1

    def cut(self, size: int) -> int:
        return size

    def call(self, process: Process, work: Action, name: str) -> None:
        def due() -> None:
            if process.is_paused:
                process.when_resumed(due)
            elif process.is_alive:
                with process:
                    work()

        self.clock.after(CALL_US, due)

    def after_ms(self, ms: int, action: Action) -> None:
        """Do something at a time."""
        self.clock.after(ms * 1_000, action)

    def slow_way(self, source: int, target: int, ms: int) -> None:
        """Let what one worker sends another one take so much longer, from now on."""
        for end in list(self.network.ends):
            sender, receiver = end.process, end.peer and end.peer.process
            if not (isinstance(sender, WorkerProcess) and isinstance(receiver, WorkerProcess)):
                continue
            if (sender.index, receiver.index) == (source, target):
                end.out.slow_us = ms * 1_000

    def want_checkpoint(self) -> None:
        """As `Job.checkpoint`."""
        self.drivers[-1].ask_for_checkpoint()


def stage(
    build: Callable[[Callable[[str], Stream], Callable[[Stream], object]], None],
    sources: Mapping[str, Mapping[str, Times]],
    faults: Sequence[PlannedFault] = (),
    **changed: Any,
) -> Stage:
    """Set a stage.

    Args:
        build: Builds the flow of sources, which it asks for by name, and of one sink.
        sources: What each has to read, by split.
        faults: What goes wrong. The job has to get over it, as in every simulated world.
        changed: Options of the world; by default a checkpoint is taken only when somebody asks for it.
    """
    options = replace(
        options_of(1, ("conversation",)),
        theme="", parallelism=2, snapshots="aligned", is_periodic=False, alignment_timeout_ms=10,
        batch_rows=10, channel_bytes=10_000, spill_bytes=0, linger_ms=0, is_encrypted=False, inline_bytes=0,
        commits_together=False, is_sealed=False, piece_bytes=65_536, buffer_bytes=65_536,
        retain=1, interval_ms=1_000, pause_ms=0, in_flight_max=1, checkpoint_timeout_ms=500,
        heartbeat_timeout_ms=300, spark_attempts_max=100, spark_start_ms=5, store_us=CALL_US,
        safety_ms=1_000, rescaled_to=(), faults=tuple(faults),
    )  # fmt: skip
    flow = Flow("conversation")
    made: list[TimedSource] = []
    sink = SimulatedSink()

    def source(name: str) -> Stream:
        made.append(TimedSource(sources[name]))
        return flow.source(made[-1]).named(name)

    build(source, lambda stream: stream.sink(sink).named("sink"))
    options = replace(options, **changed)
    graph = flow.compile(options.parallelism, MAX_PARALLELISM)
    return Stage(options, SimulatedJob(graph, tuple(made), (sink,), Graph(lambda *_: None)))
