"""A file sink that dies at any call of the system, zombies, copies, and readers who take files away.

Before each of its calls a writer may die, and readers, zombies or copies may do something. The oracle is the
list of records: what readers have taken, and what they would find now, is a prefix of it, in order.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dying import Killed, Machine, Process
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.examples import examples

from crosscut.connectors.files import ledger, stage, staged_files, targets
from crosscut.connectors.files.committed_output import committed_output
from crosscut.connectors.files.file_encoders import Plain
from crosscut.connectors.files.partitions import ONE_FILE, Layout, undivided
from crosscut.connectors.files.stage import Stage
from crosscut.connectors.files.staged_files import StagedFiles
from crosscut.connectors.files.staged_names import STAGE_DIRECTORY, Handle, Published
from crosscut.contracts.connectors import JSON, CommitPermit, SinkContext
from crosscut.errors import ConnectorError, HistoryError
from crosscut.foundation.ids import CheckpointId, Epoch, Lineage, TaskId, VertexId

LINEAGE = Lineage("lineage")
TASK = TaskId(VertexId("v"), 0)


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    found = Machine()
    with pytest.MonkeyPatch.context() as patch:
        for module in (ledger, stage, staged_files, targets):
            patch.setattr(module, "os", found.os)
        yield found


@pytest.fixture(autouse=True)
def nothing_is_left_open(machine: Machine) -> Iterator[None]:
    """What a sink leaves open, the collector would find in some other test."""
    before = staged_and_open()
    yield
    assert staged_and_open() == before


def staged_and_open() -> list[str]:
    """Return what this process has open of some sink, also of those that other tests have made."""
    open_now = [opened_at(descriptor) for descriptor in os.listdir("/proc/self/fd")]
    return sorted(path for path in open_now if f"/{STAGE_DIRECTORY}/{LINEAGE}/" in path)


def opened_at(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        # The one that has listed them.
        return ""


def by_parity(records: list[int]) -> list[tuple[str, list[int]]]:
    """Divide records into directories, two levels of them."""
    parts: dict[str, list[int]] = {}
    for record in records:
        parts.setdefault(f"odd={record % 2}/last={record % 4}", []).append(record)
    return list(parts.items())


MANY_FILES = Layout(("odd", "last"), roll_bytes=6)
"""A few records a file, in several directories."""


def text_of(records: list[int]) -> bytes:
    return "".join(f"{record}\n" for record in records).encode()


@dataclass
class Log:
    """All that a job log would know of one task."""

    epoch: int = 0
    restored: int = 0
    written: int = 0
    next_id: int = 1
    handles: tuple[JSON, ...] = ()


@dataclass
class World:
    """One output directory, its readers, and the jobs that write there, until it is left.

    Attributes:
        layout: Of all files there.
    """

    machine: Machine
    directory: Path
    seed: int
    taken: list[list[int]] = field(default_factory=list)
    writers: list[StagedFiles] = field(default_factory=list)
    layout: Layout = ONE_FILE

    def __post_init__(self) -> None:
        self.choices = random.Random(self.seed)
        if self.choices.random() < 0.2:
            self.layout = MANY_FILES

    def writer(self, context: SinkContext) -> StagedFiles:
        divide = by_parity if self.layout is MANY_FILES else undivided
        new = StagedFiles(str(self.directory), "txt", partial(Plain, text_of), context, self.layout, divide)
        self.writers.append(new)
        return new

    def read(self) -> None:
        """A reader takes everything away, one file after the other, and perhaps directories, too."""
        for path in sorted(self.directory.glob("odd=*/*/*.txt" if self.layout is MANY_FILES else "*.txt")):
            self.taken.append([int(line) for line in path.read_text().split()])
            path.unlink()
        if self.choices.random() < 0.2:
            for above in sorted(self.directory.glob("odd=*/*"), reverse=True):
                above.rmdir()
            for above in self.directory.glob("odd=*"):
                above.rmdir()

    def maybe_read(self) -> None:
        if self.choices.random() < 0.3:
            self.read()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        """Close what the dead have left open, as their system would."""
        for writer in self.writers:
            writer.close()

    def output(self) -> list[int]:
        """Everything that readers have ever got, in the order of the records in each file."""
        self.read()
        found = [record for part in sorted(self.taken) for record in part]
        return found if self.layout is ONE_FILE else sorted(found)


@dataclass
class Job:
    """A driver and its worker: writes numbers from 0 on, and knows what its log knows."""

    world: World
    log: Log
    driver: str
    writer: StagedFiles | None = None
    written: int = 0
    pending: list[JSON] = field(default_factory=list)
    process: Process = field(default_factory=Process)

    def start(self, process: Process, *, is_new_driver: bool = True) -> None:
        """Claim an epoch, and recover. A new driver looks at the sink first; a failover does not."""
        found = committed_output(str(self.world.directory), "txt") if is_new_driver else ()
        self.log.epoch = max([self.log.epoch, *(one.epoch for one in found)]) + 1
        self.process = process
        context = SinkContext(LINEAGE, Epoch(self.log.epoch), TASK, "out", driver=self.driver)
        self.writer = self.world.writer(context)
        self.written, self.pending = self.log.written, []
        permit = self.permit() if self.log.restored else None
        with self.world.machine.as_process(process):
            self.writer.recover(permit, list(self.log.handles))

    def permit(self) -> CommitPermit:
        return CommitPermit(LINEAGE, Epoch(self.log.epoch), CheckpointId(self.log.restored))

    def checkpoint(self, *, is_completed: bool = True) -> None:
        """Write a few records, and take a checkpoint, which may be aborted behind its barrier."""
        assert self.writer is not None
        # As in a job, a copy has no ids of its own.
        n = self.log.next_id
        self.log.next_id += 1
        with self.world.machine.as_process(self.process):
            size = self.world.choices.randint(1, 3)
            for _ in range(self.world.choices.randint(1, 2)):
                self.writer.write(list(range(self.written, self.written + size)))
                self.written += size
            transaction = self.writer.rotate(CheckpointId(n))
            self.pending.append(self.writer.prepare(transaction))
        if is_completed:
            self.log.restored, self.log.written = n, self.written
            self.log.handles = tuple(self.pending)

    def commit(self, *, is_answered: bool = True) -> None:
        assert self.writer is not None
        if not self.log.restored:
            return
        with self.world.machine.as_process(self.process):
            self.writer.commit(self.permit(), list(self.log.handles))
        if is_answered:
            self.pending = [one for one in self.pending if one not in self.log.handles]


def live(job: Job, process: Process, choices: random.Random) -> None:
    """One life of a job, until it dies or has done enough."""
    job.start(process)
    for _ in range(choices.randint(1, 4)):
        job.checkpoint(is_completed=choices.random() < 0.8)
        if choices.random() < 0.8:
            job.commit(is_answered=choices.random() < 0.7)


ANY_SEED = st.integers(0, 2**32)
OPTIONS = settings(
    max_examples=examples(150, few=50),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def live_through_crashes(world: World) -> None:
    """Crashes between any two calls of the system; readers who take files at any moment; zombies that commit
    once more, in the middle of what their successor does.

    Raises:
        AssertionError, ConnectorError: Something is lost, visible twice, or refused though nothing is wrong.
    """
    choices, seed = world.choices, world.seed
    log = Log()
    zombies: list[tuple[StagedFiles, CommitPermit, list[JSON]]] = []

    def between() -> None:
        world.maybe_read()
        if zombies and choices.random() < 0.05:
            writer, permit, handles = choices.choice(zombies)
            try:
                writer.commit(permit, handles)
            except ConnectorError:
                # It has been refused, which is as good as not to be seen.
                return

    for _ in range(choices.randint(2, 8)):
        job = Job(world, log, f"driver-{choices.randint(1, 2)}")
        process = Process(choices.choice((None, choices.randint(0, 250))), between)
        with suppress(Killed):
            live(job, process, choices)
        # It may not be dead, but only thought to be.
        if not process.is_dead and job.writer is not None and log.restored:
            zombies.append((job.writer, job.permit(), list(log.handles)))
    job = Job(world, log, "last")
    job.start(Process())
    assert world.output() == list(range(log.written)), f"seed {seed}"
    left = [path.suffix for path in (world.directory / ".crosscut").rglob("*") if path.is_file()]
    assert left == [".ledger"], f"seed {seed}: {left}"


def run_two_copies(world: World) -> None:
    """A copy of a job's log is run; each of the two does something in the middle of what the other does.

    Raises:
        AssertionError: Something is visible twice.
    """
    choices, seed = world.choices, world.seed
    original = Job(world, Log(), "original")
    live(original, Process(between=world.maybe_read), choices)
    copy = Job(world, Log(**vars(original.log)), "copy")
    jobs = [original, copy]
    ended: set[str] = set()
    busy: set[str] = set()

    def act(job: Job) -> None:
        """Something that a driver does, which its process may be in the middle of already."""
        if job.driver in ended or job.driver in busy:
            return
        busy.add(job.driver)
        try:
            if job.writer is None or choices.random() < 0.2:
                is_new_driver = job.writer is None and choices.random() < 0.5
                job.start(Process(between=lambda: between(job)), is_new_driver=is_new_driver)
            elif choices.random() < 0.5:
                job.checkpoint()
            else:
                job.commit()
        except HistoryError:
            # A commit that is refused leads to a failover, which is refused, and the user starts again.
            job.writer = None
        except ConnectorError as error:
            # What it had staged was removed by the other one, before that was refused.
            assert "output is lost" in str(error)
            ended.add(job.driver)
        finally:
            busy.discard(job.driver)

    def between(job: Job) -> None:
        world.maybe_read()
        if choices.random() < 0.1:
            act(copy if job is original else original)

    for _ in range(choices.randint(5, 25)):
        act(choices.choice(jobs))
    output = world.output()
    assert len(output) == len(set(output)), f"seed {seed}: {output}"
    going_on = 0
    for job in jobs:
        try:
            job.start(Process())
        except HistoryError:
            continue
        except ConnectorError as error:
            assert "output is lost" in str(error), f"seed {seed}: {error}"
            ended.add(job.driver)
            continue
        going_on += 1
        assert world.output() == list(range(job.log.written)), f"seed {seed}"
    assert going_on or ended, f"seed {seed}: neither of the two is able to go on"


@OPTIONS
@given(seed=ANY_SEED)
def test_whatever_dies_wherever_readers_get_every_record_once(
    seed: int, machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """N3, F1, F4, F6, C1."""
    with World(machine, tmp_path_factory.mktemp("world"), seed) as world:
        live_through_crashes(world)


@OPTIONS
@given(seed=ANY_SEED)
def test_of_two_copies_of_one_log_nothing_is_written_twice(
    seed: int, machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """N1."""
    with World(machine, tmp_path_factory.mktemp("world"), seed) as world:
        run_two_copies(world)


# Planted bugs.

SEEDS = range(300)


def never_published(known: Published, checkpoint_id: CheckpointId) -> bool:
    return False


def published_by_link(here: Stage, name: str, target: int, final: str) -> None:
    """The staged name goes after the final one has been given."""
    source = here._descriptor
    staged_files.os.link(name, final, src_dir_fd=source, dst_dir_fd=target)
    staged_files.os.unlink(name, dir_fd=source)


def noted_afterwards(writer: StagedFiles, target: int, place: Any, handles: list[Handle]) -> None:
    """The ledger hears of what is published when it has been."""
    late: list[Published] = []
    note = place.ledger.write
    place.ledger.write = late.append
    try:
        CORRECT(writer, target, place, handles)
    finally:
        del place.ledger.write
    for known in late:
        note(known)


CORRECT = StagedFiles._publish_in


def looked_at_nobody(*_: Any) -> list[Any]:
    return []


def any_handles(known: Published, handles: list[Handle], *_: object) -> bool:
    return True


def checked_at_the_start_only(writer: StagedFiles, permit: Any, others: Any, handles: Any = None) -> None:
    if handles is not None:
        CORRECT_CHECK(writer, permit, others, handles)


CORRECT_CHECK = StagedFiles._check_history


@pytest.mark.parametrize(
    ("where", "name", "bug", "lives"),
    [
        (Published, "__contains__", never_published, live_through_crashes),
        (Stage, "publish", published_by_link, live_through_crashes),
        (StagedFiles, "_publish_in", noted_afterwards, live_through_crashes),
        (StagedFiles, "_others", looked_at_nobody, live_through_crashes),
        (StagedFiles, "_others", looked_at_nobody, run_two_copies),
        (StagedFiles, "_check_history", checked_at_the_start_only, run_two_copies),
        (Published, "leads_to", any_handles, run_two_copies),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_a_planted_bug_is_found(
    where: type,
    name: str,
    bug: Any,
    lives: Callable[[World], None],
    machine: Machine,
    tmp_path: Path,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, bug)
        for seed in SEEDS:
            (tmp_path / str(seed)).mkdir()
            try:
                with World(machine, tmp_path / str(seed), seed) as world:
                    lives(world)
            except (AssertionError, ConnectorError):
                return
    pytest.fail(f"no seed finds it: {bug.__doc__ or bug.__name__}")
