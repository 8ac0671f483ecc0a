"""One worker as a unit: a source, counts by key and a sink, run by the real runner over a real log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.unit.bare_task import task_of

import crosscut as cc
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import Epoch, LogIndex
from crosscut.graph.specs import CountSpec, OperatorNode
from crosscut.host.calls import StartThread
from crosscut.host.clock import Clock, SystemClock
from crosscut.host.failpoints import Failpoints
from crosscut.operators.building import build, keyed_state
from crosscut.operators.operator import Operator
from crosscut.operators.stateless import KeyBy, Map
from crosscut.protocol.messages import WorkerMessage
from crosscut.protocol.snapshots import Part
from crosscut.protocol.unit_log import effects as do
from crosscut.protocol.unit_log.appending import LogKind
from crosscut.protocol.unit_log.entries import GroupContent, Incarnation, commit_number
from crosscut.protocol.unit_log.events import GroupEnded, UnitCommitted, UnitSnapshotStored
from crosscut.protocol.unit_log.unit import Unit
from crosscut.state.keyed import KeyedState
from crosscut.store.segment_files import FileUnitLog
from crosscut.store.unit_log import UnitLogStore
from crosscut.task.splits import SplitQueue
from crosscut.worker.pool import TaskPool
from crosscut.worker.unit_runner import GroupLimits, UnitRunner

ROW_BYTES = 10
"""What a record adds to its group here."""
TIMEOUT_MS = 60_000
SYSTEM_CLOCK = SystemClock()


def expected(end: int) -> list[list[int]]:
    counts: Counter[int] = Counter()
    said = []
    for number in range(end):
        counts[number % 5] += 1
        said.append([number % 5, counts[number % 5]])
    return said


class Numbers(cc.Source[int]):
    """The numbers below `end`, as far as they have been `let` out."""

    def __init__(self, end: int, let: int | None = None) -> None:
        self.end = end
        self.let = end if let is None else let
        self.readers: list[NumbersReader] = []

    def splits(self, parallelism: int) -> list[cc.Split]:
        return [cc.Split("0", 0)]

    def reader(self, split: cc.Split, position: cc.JSON) -> NumbersReader:
        assert isinstance(position, int)
        self.readers.append(NumbersReader(self, position))
        return self.readers[-1]


class NumbersReader(cc.SplitReader[int]):
    def __init__(self, source: Numbers, position: int) -> None:
        self.source = source
        self.at = position

    @property
    def position(self) -> cc.JSON:
        return self.at

    def read(self, limit: int) -> list[int] | cc.Wait | cc.EndOfSplit:
        if self.at >= self.source.end:
            return cc.EndOfSplit()
        last = min(self.source.let, self.at + limit)
        if last <= self.at:
            return cc.Wait(1)
        found = list(range(self.at, last))
        self.at = last
        return found


class Sink:
    """Output outside of all processes, with a marker."""

    def __init__(self) -> None:
        self.visible: list[list[Any]] = []
        self.marker = 0

    def commit(self, index: LogIndex, records: list[Any]) -> None:
        if commit_number(index) > self.marker:
            self.marker = commit_number(index)
            self.visible += records


class UnitSite:
    """One incarnation of a unit: a source, counts by key, and a sink.

    Attributes:
        done: What the runner has had carried out, in order.
    """

    def __init__(
        self,
        log: UnitLogStore,
        source: Numbers,
        sink: Sink,
        number: int = 1,
        *,
        limits: GroupLimits = GroupLimits(),  # noqa: B008 - it is frozen
        start: StartThread | None = None,
        clock: Clock = SYSTEM_CLOCK,
        slow: Callable[[Operator], None] | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        kind: LogKind = "segment files" if isinstance(log, FileUnitLog) else "objects"
        self.unit = Unit(Incarnation(Epoch(1), number), (), (), timeout_ms, kind)
        self.source, self.sink = source, sink
        self.clock = clock
        self.slow = slow
        self.done: list[Any] = []
        self.errors: list[Exception] = []
        self.warnings: list[str] = []
        self.said: list[WorkerMessage] = []
        more: dict[str, Any] = {} if start is None else {"start": start, "is_thread_lasting": False}
        self.runner = UnitRunner(
            self.unit,
            log,
            limits,
            ended=self.errors.append,
            warn=self.warnings.append,
            failpoints=Failpoints(None, None),
            clock=self.clock,
            **more,
        )
        self.made: list[Any] = []
        self.frozen: dict[LogIndex, bytes] = {}
        self.is_awaited = False
        self.pool: TaskPool | None = None

    async def begin(self) -> None:
        """Claim, restore and start."""
        restore = await self.runner.claim()
        node = OperatorNode("count", CountSpec("updates"), ())
        state = keyed_state(node)
        assert state is not None
        self.state: KeyedState = state
        changes = [one.content.sections for one in restore.groups]
        if restore.snapshot is not None:
            changes.insert(0, bytes.fromhex(restore.snapshot.parts[0].inline))
        for one in changes:
            for _ in state.replaying(one):
                pass
        state.record_changes()
        count = build(node, state, None)
        assert count is not None
        position = dict(restore.positions).get("0", 0)
        self.pool = TaskPool(
            epoch=Epoch(1),
            store=None,  # type: ignore[arg-type] - nothing is stored there
            batch_rows=7,
            linger_ms=0,
            alignment_timeout_ms=0,
            sink_timeout_ms=60_000,
            failpoints=Failpoints(None, None),
            report=self.said.append,
            give_credit=lambda channel, credit: None,
            clock=self.clock,
            let_threads_run=lambda: None,
        )
        chain: list[Operator] = [KeyBy("key", lambda number: number % 5, keys_only=False), count]
        if self.slow is not None:
            chain.append(Slow(self.slow))
        chain.append(Map("made", self.make))
        splits = SplitQueue(self.source, [(cc.Split("0", 0), position)])
        self.pool.add(task_of(*chain, inputs=(), outputs=(), splits=splits, rows=7), state, None)
        self.pool.connect({})
        self.runner.begin(self.pool, self)
        self.pool.start()

    def make(self, record: Any) -> Any:
        self.made.append(list(record))
        return record

    async def end(self) -> None:
        """The process ends; what it has asked of the log is done all the same."""
        self.runner.close()
        if self.pool is not None:
            await self.pool.close()

    # As the runner sees it.

    @property
    def has_content(self) -> bool:
        return bool(self.made)

    @property
    def size_bytes(self) -> int:
        return ROW_BYTES * len(self.made)

    def end_group(self) -> GroupEnded:
        assert self.pool is not None and self.pool.is_settled
        position = self.source.readers[-1].position
        made, self.made = self.made, []
        assert self.state.recorded_rows == len({key for key, _ in made})
        return GroupEnded(GroupContent(self.state.changes(), (("0", position),), made))

    def round_over(self) -> None: ...

    def perform(self, effect: do.ChannelEffect) -> None:
        raise AssertionError(effect)

    def acknowledge_sources(self, positions: tuple[tuple[str, cc.JSON], ...]) -> None:
        self.done.append(("acknowledge", dict(positions)["0"]))

    def commit(self, effect: do.AuthoriseCommit) -> None:
        assert isinstance(effect.handle, list)
        self.sink.commit(effect.index, effect.handle)
        self.done.append(("commit", effect.index))
        self.runner.handle(UnitCommitted(effect.index))

    def freeze(self, index: LogIndex) -> None:
        copy = KeyedState(int)
        copy.record_changes()
        for key, value in self.state.items():
            copy.main.put(key, value)
        self.frozen[index] = copy.changes()

    def store(self, index: LogIndex) -> None:
        inline = self.frozen.pop(index).hex()
        self.runner.handle(UnitSnapshotStored(index, (Part("", len(inline), "", inline),)))


class Slow(Operator):
    """Passes records on; `slow` is called with it before each batch."""

    def __init__(self, slow: Callable[[Operator], None]) -> None:
        super().__init__("slow")
        self._slow = slow

    def process(self, batch: Batch) -> Batch:
        remaining = self.time_budget.through(batch)
        taken = []
        for record in remaining:
            taken.append(record)
            self._slow(self)
        return Batch(taken)
