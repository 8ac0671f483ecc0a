"""The runner of a unit in virtual processes, over a log with faults. They are killed, stopped and replaced.

Whatever happens, the output is what one process would have made, each record once and in order.
"""

from __future__ import annotations

import errno
import random
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.proof.unit_log.stored import UNIT
from tests.simulation.test_virtual_machine import Lab
from tests.unit.unit_site import ROW_BYTES, Numbers, Sink, UnitSite, expected

from crosscut.errors import StoreError, WorkersError
from crosscut.operators.operator import Operator
from crosscut.protocol.events import EntryAppended, EntryUncertain
from crosscut.protocol.unit_log.closing import GroupEnd
from crosscut.protocol.unit_log.events import CompactionRequested, UnitEvent
from crosscut.store.segment_files import FileUnitLog
from crosscut.store.unit_log import ObjectUnitLog, UnitLogStore
from crosscut.testing.simulator.clock import Action
from crosscut.testing.simulator.memory_files import Fault, MemoryFiles
from crosscut.testing.simulator.processes import Process
from crosscut.worker import unit_runner
from crosscut.worker.pool import TaskPool
from crosscut.worker.unit_runner import GroupLimits, UnitRunner

RECORDS = 300
FAULTS_US = 3_000_000
"""So long something goes wrong."""
END_US = 3_600_000_000
LIMITS = GroupLimits(group_bytes=5 * ROW_BYTES, hold_bytes=30 * ROW_BYTES, interval_ms=1)


class World(Lab):
    """One place of a worker, and its incarnations.

    Args:
        directory: For segment files; None: the log has objects.

    Attributes:
        seen: What has happened, how often.
    """

    def __init__(self, seed: int, directory: Path | None = None) -> None:
        super().__init__(seed)
        self.directory = directory
        self.logs: list[UnitLogStore] = []
        self.bad_syncs = 0
        self.draw = random.Random(seed)
        self.files, self.sink = MemoryFiles(), Sink()
        self.sites: dict[Process, UnitSite] = {}
        self.errors: list[tuple[Process, BaseException]] = []
        self.seen: Counter[str] = Counter()
        self.launch()
        self.clock.after(self.draw.randrange(20_000), self.go_wrong)

    def launch(self) -> None:
        """Start an incarnation, newer than all others."""
        number = len(self.sites) + 1
        stops = self.draw.random() < 0.5

        async def main(process: Process) -> None:
            log = self.open_log()
            site = UnitSite(
                log,
                Numbers(RECORDS),
                self.sink,
                number,
                limits=LIMITS,
                start=process.start_thread,
                clock=process,
                slow=self.stop_sometimes if stops else None,
            )
            self.sites[process] = site
            try:
                await site.begin()
            except Exception as error:  # noqa: BLE001 - looked at below
                site.errors.append(error)
            await process.loop.create_future()

        process = self.process(f"incarnation {number}", main)
        self.sites.setdefault(process, None)  # type: ignore[arg-type]

    def open_log(self) -> UnitLogStore:
        log: UnitLogStore
        if self.directory is None:
            log = ObjectUnitLog(self.files, UNIT)
        else:
            log = FileUnitLog(str(self.directory), UNIT, fsync=lambda _: None, fdatasync=self.sync)
        self.logs.append(log)
        return log

    def sync(self, descriptor: int) -> None:
        if self.bad_syncs:
            self.bad_syncs -= 1
            raise OSError(errno.EIO, "input/output error")

    def stop_sometimes(self, operator: Operator) -> None:
        """A slice is over in the middle of a batch."""
        if self.draw.random() < 0.2:
            operator.time_budget.stop()

    # What goes wrong.

    def go_wrong(self) -> None:
        if self.clock.now_us > FAULTS_US:
            self.heal()
            return
        alive = [one for one in self.sites if one.is_alive]
        kind = self.draw.choice(["kill", "stop", "replace", "fault", "compact", "continue", "fault"])
        process = self.draw.choice(alive) if alive else None
        if kind == "fault":
            fault = self.draw.choice([Fault.APPLIED, Fault.NOT_APPLIED, Fault.LATE, Fault.REFUSED])
            self.files.fail_next("put_if_absent", fault)
            self.clock.after(self.draw.randrange(500_000), self.files.arrive)
            self.bad_syncs += self.draw.random() < 0.2
            self.seen[fault.name] += 1
        elif kind == "replace" or process is None:
            self.seen["zombie" if alive else "replaced"] += 1
            self.launch()
        elif kind == "kill":
            process.die("killed", is_killed=True)
        elif kind == "stop":
            process.pause()
        elif kind == "continue":
            process.resume()
        elif (site := self.sites[process]) is not None and site.pool is not None:
            process.do(partial(site.runner.handle, CompactionRequested()))
            self.seen["compaction"] += 1
        self.clock.after(self.draw.randrange(200_000), self.go_wrong)

    def heal(self) -> None:
        self.files._faults.clear()
        self.bad_syncs = 0
        self.files.arrive()
        for process in self.sites:
            process.resume()
        self.replace_lost()

    def replace_lost(self) -> None:
        """Start another incarnation if the newest one has come to its end."""
        newest = [*self.sites][-1]
        site = self.sites[newest]
        if not newest.is_alive or (site is not None and site.errors):
            self.seen["replaced"] += 1
            self.launch()
        self.clock.after(1_000_000, self.replace_lost)

    def call(self, process: Process, work: Action, name: str) -> None:
        """Some time later, answered later still; sometimes given up long before."""
        answers: deque[Callable[[], object]] = deque()

        def delay_us() -> int:
            is_hung = self.draw.random() < 0.02 and self.clock.now_us < FAULTS_US
            self.seen["hung"] += is_hung
            return self.draw.randrange(70_000_000, 200_000_000) if is_hung else self.draw.randrange(3_000)

        def begin() -> None:
            self.seen["call of a dead process"] += not process.is_alive
            with process:
                process.answers = answers
                try:
                    work()
                finally:
                    process.answers = None
            self.clock.after(delay_us(), end)

        def end() -> None:
            while answers:
                answers.popleft()()

        self.clock.after(delay_us(), begin)

    # What has to be.

    def run(self) -> None:
        """Let it come to its end, and look at it."""
        try:
            self._run()
        finally:
            for process in self.sites:
                process.die("the world ends")
                process.loop.unwind()
            for log in self.logs:
                log.close()

    def _run(self) -> None:
        while self.clock.now_us < END_US and self.clock.tick():
            shown = len(self.sink.visible)
            assert self.sink.visible == EXPECTED[:shown]
            if shown == RECORDS and self.clock.now_us > FAULTS_US:
                break
        assert len(self.sink.visible) == RECORDS, f"{len(self.sink.visible)} records"
        assert self.reports == []
        for site in filter(None, self.sites.values()):
            for error in site.errors:
                is_outage = isinstance(error, StoreError) and error.is_transient
                assert is_outage or isinstance(error, WorkersError), error
            assert len(site.made) <= LIMITS.hold_bytes // ROW_BYTES + 7
            self.seen["fenced"] += bool(site.errors)


EXPECTED = expected(RECORDS)


def test_the_output_is_exact_in_every_world() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        world = World(seed)
        try:
            world.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen += world.seen
    wanted = {
        "zombie",
        "fenced",
        "hung",
        "compaction",
        "call of a dead process",
        "APPLIED",
        "NOT_APPLIED",
        "LATE",
    }
    assert wanted <= set(seen), seen


def test_the_output_is_exact_with_segment_files(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(20):
        world = World(seed, tmp_path / str(seed))
        try:
            world.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen += world.seen
    assert {"zombie", "fenced", "hung", "compaction"} <= set(seen), seen


def test_a_world_of_one_seed_is_always_the_same() -> None:
    ends = []
    for _ in range(2):
        world = World(3)
        world.run()
        ends.append((world.clock.now_us, world.files.calls, dict(world.seen)))
    assert ends[0] == ends[1]


# The worlds find what is wrong.


def unknown_taken_for_done(patch: pytest.MonkeyPatch) -> None:
    answered = UnitRunner._answered

    def answers(self: UnitRunner, outcome: UnitEvent | Exception) -> None:
        answered(self, EntryAppended(outcome.index) if isinstance(outcome, EntryUncertain) else outcome)

    patch.setattr(UnitRunner, "_answered", answers)


def group_with_half_a_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        unit_runner, "group_end", lambda group, *_, **__: GroupEnd.END if group.can_end else GroupEnd.GROW
    )
    patch.setattr(TaskPool, "is_settled", True)


def group_that_grows_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TaskPool, "settle", lambda self: None)


def timers_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnitRunner, "_fired", lambda self, timer: None)


def answers_lost(patch: pytest.MonkeyPatch) -> None:
    """An event that comes among effects."""

    def handle(self: UnitRunner, event: UnitEvent) -> None:
        if not self.is_over and not self._is_handling:
            self._events.append(event)
            self._guarded(lambda: None)

    patch.setattr(UnitRunner, "handle", handle)


@pytest.mark.parametrize(
    "plant",
    [
        unknown_taken_for_done,
        group_with_half_a_batch,
        group_that_grows_for_ever,
        timers_forgotten,
        answers_lost,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(60):
            World(seed).run()
