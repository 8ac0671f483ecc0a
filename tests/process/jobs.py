"""The jobs that process tests run, and the oracle: what a failure-free run would have put out.

Every record is numbered and has a key. A keyed aggregate numbers the records of each key and adds up
their numbers, and each update goes to the sink together with the record's number. From the committed
files alone one can then tell whether a record was lost or counted twice, in the state or in the output
(the running sum is both), whether one overtook another, and whether a file holds half a transaction.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from passed_settings import settings_of
from pyspark import SparkContext

import crosscut as cc
from crosscut.contracts.connectors import JSON, EndOfSplit, SplitReader, Wait
from crosscut.graph.specs import SourceSpec
from crosscut.host.failpoints import VARIABLE, Plan, parsed
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.store.checkpoint_store import open_store

EXAMPLES = Path(__file__).parents[2] / "examples"
KEYS = 499
"""Enough for the state of a task to be stored in files, not in the manifest."""
DEADLINE_S = 180.0
"""For whatever a test waits for. Nothing is measured by it: it ends a test that would wait for ever, also on
a machine that has ten times as much to do as it can."""
PATIENT: dict[str, Any] = {"heartbeat_timeout": "60s", "start_timeout": DEADLINE_S}
"""Settings of a job that loses nobody but whom a test kills, however long the machine stands still."""
LIMIT_MAX_S = 60.0
MANY_RESTARTS = cc.Restart(failures=1_000, delay_step="20ms", delay_max="50ms")
"""For short time limits, which a busy machine misses now and then."""


def limit_s(seconds: float) -> float:
    """Return a time limit that a test is to see exceeded: `seconds` on a machine with nothing else to do.

    It grows with what waits for a core, up to a minute: what keeps within the limit on an idle machine has to
    keep within it on any, or others than those that a test has stopped are taken for dead.
    """
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return round(max(seconds, min(LIMIT_MAX_S, seconds * waiting)), 1)


HELD_RATE = 1_000
"""Records a second that a split gives before its gate is opened: 30,000 in two splits last 15 s."""

Record = tuple[str, int]


def record(number: int) -> Record:
    return f"key-{number % KEYS}", number


def example(name: str) -> ModuleType:
    """Import an example as users' modules are: found on the path, not installed."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def key_of(one: Record) -> str:
    return one[0]


def nothing() -> tuple[int, int, int]:
    return 0, 0, 0


def added(so_far: tuple[int, int, int], one: Record) -> tuple[int, int, int]:
    """(how many records of this key so far, the sum of their numbers, the number of this one)."""
    return so_far[0] + 1, so_far[1] + one[1], one[1]


@dataclass(frozen=True)
class Once:
    """True for the first call in all processes of the job, or of all runs on the same directory."""

    marker: Path

    def __call__(self) -> bool:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True


@dataclass(frozen=True)
class NumberedJob:
    """A job on `directory`: numbered records, a shuffle, a running count, files.

    Attributes:
        hook: Called with each record on the source's side of the shuffle; returns the record.
        keyed_hook: Called with each record in the keyed task; may do anything but change it.
        record: The record of each number.
        branches: Sources that are merged by a union; the last one has a tenth of the records.
        held: So many of the branches trickle and don't end until `open_gate`: the job can't end before,
            however fast or slow the machine.
    """

    directory: Path
    count: int = 30_000
    rate: float | None = 12_000
    parallelism: int = 2
    hook: Callable[[Record], Record] | None = None
    keyed_hook: Callable[[Record], object] | None = None
    branches: int = 1
    held: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    record: Callable[[int], Record] = record

    @property
    def checkpoint_dir(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def out(self) -> Path:
        return self.directory / "out"

    def counts(self) -> list[int]:
        """How many records each branch has; their numbers follow each other."""
        if self.branches == 1:
            return [self.count]
        return [self.count] * (self.branches - 1) + [self.count // 10]

    def flow(self) -> cc.Flow:
        flow = cc.Flow("numbered")
        streams = []
        first = 0
        for branch, count in enumerate(self.counts()):
            source = cc.generate(
                _numbers_from(first, self.record), count=count, rate=None if self.held else self.rate
            )
            if branch < self.held:
                source = Held(source, self.directory / "gate", HELD_RATE)
            streams.append(flow.source(source).named(f"numbers-{branch}"))
            first += count
        stream = streams[0] if len(streams) == 1 else streams[0].union(*streams[1:])
        if self.hook is not None:
            stream = stream.map(self.hook)
        add = added if self.keyed_hook is None else _adding_with(self.keyed_hook)
        stream.key_by(key_of).aggregate(nothing, add).named("sums").sink(self.sink())
        return flow

    def sink(self) -> cc.Sink:
        return cc.files.write_jsonl(self.out)

    def open_gate(self) -> None:
        """Let the rest of the records go as fast as they can."""
        (self.directory / "gate").touch()

    def all_settings(self) -> cc.Settings:
        chosen: dict[str, Any] = {
            "parallelism": self.parallelism,
            "checkpoint_dir": str(self.checkpoint_dir),
            "checkpoint_interval": "100ms",
            **PATIENT,
            "restart": cc.Restart(failures=10, delay_step="50ms", delay_max="200ms"),
        }
        return cc.Settings(**(chosen | self.settings))

    def start(self, spark: Any = None) -> Any:
        return self.flow().start(self.all_settings(), spark=spark)

    # The oracle.

    def check_nothing_is_visible_too_early(self) -> None:
        """I3, I9: every visible file was staged in a checkpoint whose log entry is durable."""
        visible = {path.name for path in self.out.glob("part-*")} if self.out.exists() else set()
        if not visible:
            return
        # Read after the files: what is new in the log can't accuse the innocent. Of a checkpoint that it does
        # not hold any more it is known that a newer one, which authorises the same and more, is complete.
        completed = self.completed()
        allowed = {handle["final"] for entry in completed for handle in pending_handles(entry)}
        oldest = min((entry.checkpoint_id for entry in completed), default=0)
        older = {name for name in visible if int(name.split("-")[2]) < oldest}
        assert visible - older <= {name.rpartition("/")[2] for name in allowed}

    def completed(self) -> list[CheckpointCompleted]:
        """Return the completed checkpoints that are left in the job log, oldest first."""
        if not self.checkpoint_dir.exists():
            return []
        entries = open_store(str(self.checkpoint_dir), create=False).entries()
        return [entry for _, entry in entries if isinstance(entry, CheckpointCompleted)]

    def check_ids_only_grow(self) -> None:
        """I6, along the whole job log."""
        entries = [entry for _, entry in open_store(str(self.checkpoint_dir), create=False).entries()]
        epochs = [entry.epoch for entry in entries]
        assert epochs == sorted(epochs)
        ids = [entry.checkpoint_id for entry in entries if isinstance(entry, CheckpointCompleted)]
        assert ids == sorted(set(ids))

    def check_output_is_exact(self) -> None:
        """I1, I2, I4, I5: what is committed is what a run without failures commits."""
        self.check_nothing_is_visible_too_early()
        self.check_ids_only_grow()
        self.check_records_are_exact()

    def check_records_are_exact(self) -> None:
        """I1, I2, I4, I5, without a look at checkpoints: the output may be of several jobs."""
        found: dict[str, list[list[int]]] = defaultdict(list)
        # By checkpoint, then task: at another parallelism a key may have another task.
        for path in sorted(self.out.glob("part-*"), key=lambda one: (one.name.split("-")[2], one.name)):
            for line in path.read_text().splitlines():
                key, update = json.loads(line)
                found[key].append(update)
        wanted = defaultdict(set)
        for number in range(sum(self.counts())):
            wanted[self.record(number)[0]].add(number)
        assert found.keys() == wanted.keys()
        for key, updates in found.items():
            numbers = [number for _, _, number in updates]
            assert len(numbers) == len(set(numbers)), f"{key}: records counted twice"
            assert set(numbers) == wanted[key], f"{key}: records lost or invented"
            assert [position for position, _, _ in updates] == list(range(1, len(updates) + 1)), key
            running = 0
            for _, total, number in updates:
                running += number
                assert total == running, f"{key}: the state does not belong to the output"
            for split in self._split_of_each(numbers):
                assert split == sorted(split), f"{key}: records overtook each other"

    def check_nothing_is_left_over(self) -> None:
        """I11: no staged file, one ledger a task, no part that no retained checkpoint refers to, no temporary
        file."""
        left = [path for path in self.out.rglob("*") if path.is_file() and path.parent != self.out]
        assert len(left) <= self.parallelism
        assert [path for path in left if path.suffix != ".ledger"] == []
        assert [path for path in self.out.glob("*") if not path.name.startswith(("part-", ".crosscut"))] == []
        entries = self.completed()[-self.all_settings().retain :]
        snapshots = [one.snapshot for entry in entries for one in entry.snapshots]
        kept = {part.path for one in snapshots for part in (*one.parts, *one.log)} - {""}
        stored = {
            str(path.relative_to(self.checkpoint_dir))
            for path in (self.checkpoint_dir / "parts").rglob("*")
            if path.is_file()
        }
        assert stored <= kept
        log = [path for path in (self.checkpoint_dir / "log").rglob("*") if path.is_file()]
        assert [path for path in log if path.suffix != ".json"] == []

    def _split_of_each(self, numbers: list[int]) -> list[list[int]]:
        splits: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number in numbers:
            first = 0
            for count in self.counts():
                if number < first + count:
                    break
                first += count
            splits[first, (number - first) % self.parallelism].append(number)
        return list(splits.values())


def _numbers_from(first: int, record: Callable[[int], Record]) -> Callable[[int], Record]:
    def numbered(index: int) -> Record:
        return record(first + index)

    return numbered


def _adding_with(hook: Callable[[Record], object]) -> Callable[[tuple[int, int, int], Record], Any]:
    def add(so_far: tuple[int, int, int], one: Record) -> tuple[int, int, int]:
        hook(one)
        return added(so_far, one)

    return add


def log_files(checkpoint_dir: Path) -> list[Path]:
    """Return the files of a job log, the oldest first: a head is called like the directory of its segment."""
    log = checkpoint_dir / "log"
    return sorted(log.rglob("*.json"), key=lambda path: path.relative_to(log).with_suffix("").parts)


def pending_handles(entry: CheckpointCompleted) -> list[Any]:
    return [pending.handle for one in entry.snapshots for pending in one.snapshot.pending]


def snapshot_of_tree(directory: Path) -> dict[str, bytes | None]:
    """Return every file's bytes, and None for directories, by relative path."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


# Waiting, and processes.


def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Wait until `condition()` is true and return its value."""
    pause = threading.Event()
    ends_s = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < ends_s, f"waited {deadline_s:g} s for {what}"
        pause.wait(0.01)
    return found


def state_of(pid: int) -> str:
    """Return the state letter of a process: "R", "S", "T" (stopped), "Z", or "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_gone(pid: int) -> bool:
    return state_of(pid) in ("", "Z")


def hosts_tasks(pid: int) -> bool:
    """Tell whether a process still runs an event loop with the job's code in it.

    Spark keeps idle Python processes for later Spark tasks, also those that were workers: what must
    not survive is the worker in it, and that has a loop. A client of S3 has another one, until Spark ends the
    idle process after a minute.
    """
    try:
        opened = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
        clients = Path(f"/proc/{pid}/environ").read_bytes().count(b"AWS_ENDPOINT_URL=")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return sum("eventpoll" in name for name in opened) > clients


def children_of(pid: int) -> list[int]:
    """Return the processes below `pid`, at any depth; those that are gone meanwhile have none."""
    found = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []
    for task in tasks:
        try:
            direct = [int(text) for text in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in direct:
            found += [child, *children_of(child)]
    return found


def lose(job: Any, started: Any, *indexes: int) -> None:
    """SIGKILL workers of a job once it runs, and wait until it runs with others in their place."""

    # In this phase it has all of its workers. Asked for one after the other, the two may be of two moments.
    seen = until(lambda: (seen := job.report()).phase == "running" and seen, f"{job!r} to run")
    started.watch(job)
    for index in indexes:
        os.kill(seen.workers[index].pid, signal.SIGKILL)
    until(lambda: (now := job.report()).phase == "running" and now.restarts > seen.restarts, "the recovery")


@dataclass(frozen=True)
class Armed:
    """Failpoints for jobs that start while it is in the environment."""

    directory: Path
    traps: tuple[str, ...]

    @property
    def value(self) -> str:
        self.directory.mkdir(parents=True, exist_ok=True)
        return ";".join((str(self.directory), *self.traps))

    @property
    def fired(self) -> set[str]:
        """The traps that were carried out."""
        marks = {path.name for path in self.directory.iterdir()}
        return {
            trap for position, trap in enumerate(self.traps) if f"{position}-{trap.split(':')[0]}" in marks
        }

    def all_fired(self) -> bool:
        return self.fired == set(self.traps)

    @property
    def plan(self) -> Plan:
        """The same for a single worker, whose plan a test makes by itself."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return parsed(self.value)

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: self.value}


# Sources that wait.


@dataclass(frozen=True)
class Held(cc.Source):
    """Reads `source` slowly, and not to its end, until a gate is opened: the job can't end before.

    So a test that has to meet a job in the middle does, however fast or slow the machine is.
    """

    source: cc.Source
    gate: Path
    rate: float | None

    def splits(self, parallelism: int) -> Sequence[cc.Split]:
        return self.source.splits(parallelism)

    def reader(self, split: cc.Split, position: JSON) -> SplitReader:
        return _HeldReader(self.source.reader(split, position), self.gate, self.rate)


class _HeldReader(SplitReader):
    INTERVAL_S = 0.01

    def __init__(self, reader: SplitReader, gate: Path, rate: float | None) -> None:
        self._reader = reader
        self._gate = gate
        self._rows = None if rate is None else max(1, int(rate * self.INTERVAL_S))
        self._due_s = 0.0
        self._is_open = False

    @property
    def position(self) -> JSON:
        return self._reader.position

    def read(self, limit: int) -> list[Any] | Wait | EndOfSplit:
        self._is_open = self._is_open or self._gate.exists()
        if self._is_open:
            return self._reader.read(limit)
        now_s = time.monotonic()
        if now_s < self._due_s:
            return Wait((self._due_s - now_s) * 1_000)
        if self._rows is not None:
            self._due_s = now_s + self.INTERVAL_S
        found = self._reader.read(min(limit, self._rows or limit))
        return Wait(self.INTERVAL_S * 1_000) if isinstance(found, EndOfSplit) else found

    def close(self) -> None:
        self._reader.close()


def hold(flow: cc.Flow, gate: Path, rate: float | None) -> None:
    """Have every source of a flow wait for `gate`; before, each split gives `rate` records a second."""
    for operator in flow._draft._operators:
        if isinstance(operator.spec, SourceSpec):
            operator.spec = SourceSpec(Held(operator.spec.source, gate, rate))


# Hooks: what user code may do to a worker.


@dataclass(frozen=True)
class KillBehindCheckpoint:
    """SIGKILL the process at a record above `number`, once a checkpoint is complete."""

    once: Once
    log: Path
    number: int

    def __call__(self, one: Record) -> Record:
        if one[1] >= self.number and (self.log / f"{1:020d}" / f"{2:020d}.json").exists() and self.once():
            os.kill(os.getpid(), signal.SIGKILL)
        return one


def shaken(one: Record) -> Record:
    """Not deterministic: takes a different time each run, so batches and interleavings differ."""
    if random.random() < 0.0005:
        sum(range(random.randrange(20_000)))
    return one


# A driver of its own: `python jobs.py DIRECTORY COUNT RATE [SETTINGS [ours|theirs]]`.


def driver_main(directory: str, count: str, rate: str, settings: str, whose: str = "") -> None:
    """Run a job and report on standard output: one JSON object a line.

    Args:
        whose: If given, whose SparkContext it is; and nothing is done but to wait.
    """
    context = None
    if whose == "theirs":
        os.environ["PYSPARK_PYTHON"] = sys.executable
        context = SparkContext("local[4,4]", "theirs")
    given = settings_of(settings)
    held, branches = given.pop("held", 0), given.pop("branches", 1)
    hook = shaken if given.pop("shaken", False) else None
    if (failures := given.pop("failures", None)) is not None:
        given["restart"] = cc.Restart(failures=failures, delay_step="50ms", delay_max="200ms")
    numbered = NumberedJob(
        Path(directory),
        count=int(count),
        rate=float(rate),
        held=held,
        branches=branches,
        hook=hook,
        settings=given,
    )

    def report(**found: Any) -> None:
        print(json.dumps(found), flush=True)

    job = numbered.start(context)
    try:
        reported: list[int] = []
        while not job.wait(None if whose else 0.05):
            pids = [one.pid for one in job.workers()]
            if pids != reported:
                report(pids=pids)
                reported = pids
        report(status=job.status)
    except cc.CrosscutError as error:
        report(status=job.status, error=str(error), kind=type(error).__name__)
    except KeyboardInterrupt:
        report(status=job.status, interrupted=True, checkpoints=len(job.checkpoints()))


if __name__ == "__main__":
    driver_main(*sys.argv[1:])
