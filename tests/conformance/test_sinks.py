"""Every sink of ours conforms, and the suite finds sinks that do not.

Scenarios F1, F2, F4, F6, F8, C1 and invariants I1, I2, I3 are in the suite itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crosscut.connectors.collect import Collect, collect
from crosscut.connectors.jsonl import jsonl
from crosscut.ids import CheckpointId
from crosscut.interfaces import JSON, CommitPermit, Sink, SinkContext, SinkWriter
from crosscut.testing.sinks import SINK_CHECKS, SinkTarget, check_random_lives

Check = Callable[[SinkTarget], None]


def jsonl_target(directory: Path) -> SinkTarget:
    def visible() -> list[Any]:
        files = sorted(directory.glob("**/*.jsonl"))
        return [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]

    return SinkTarget(jsonl(directory), visible, lambda i: {"number": i, "text": "ü\u2028" * (i % 3)})


def collect_target(directory: Path) -> SinkTarget:
    directory.chmod(0o700)
    sink: Collect = collect(directory)
    return SinkTarget(sink, sink.records, lambda i: (i, frozenset({i})))


@pytest.mark.parametrize("make", [jsonl_target, collect_target])
@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_our_sinks_conform(check: Check, make: Callable[[Path], SinkTarget], tmp_path: Path) -> None:
    check(make(tmp_path))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_visible_output_is_the_committed_prefix_in_any_life(seed: int, tmp_path: Path) -> None:
    directory = tmp_path / str(seed)
    check_random_lives(jsonl_target(directory), seed)


@dataclass
class Shelf:
    """Where a sink in memory keeps things: by logical task."""

    staged: dict[int, list[Any]]
    owners: dict[int, tuple[Any, int]]
    committed: dict[int, list[Any]]


SHELVES: dict[int, Shelf] = defaultdict(lambda: Shelf({}, {}, {}))
NUMBERS = count()


@dataclass(frozen=True)
class PlantedBugSink(Sink):
    """A correct sink in memory, except for one bug."""

    shelf: int
    bug: str

    def writer(self, context: SinkContext) -> SinkWriter:
        return PlantedBugWriter(SHELVES[self.shelf], self.bug, context)


class PlantedBugWriter(SinkWriter):
    def __init__(self, shelf: Shelf, bug: str, context: SinkContext) -> None:
        self.shelf = shelf
        self.bug = bug
        self.owner: tuple[object, ...] = (context.lineage, context.sink_uid, context.task)
        if bug == "sweeps other tasks":
            self.owner = (context.lineage, context.sink_uid, context.task.vertex)
        if bug == "sweeps other sinks":
            self.owner = (context.lineage, "", context.task)
        if bug == "sweeps other lineages":
            self.owner = ("", context.sink_uid, context.task)
        self.epoch = context.epoch
        self.records: list[Any] = []

    def recover(self, permit: CommitPermit | None, handles: Sequence[JSON]) -> None:
        if self.bug == "aborts before it commits":
            self.sweep()
        if permit is not None and self.bug != "no commit on restore":
            self.commit(permit, handles)
        self.sweep()

    def sweep(self) -> None:
        for number, (owner, epoch) in list(self.shelf.owners.items()):
            if owner == self.owner and epoch < self.epoch:
                self.shelf.staged.pop(number, None)

    def write(self, records: list[Any]) -> None:
        if self.bug == "keeps the caller's list" and not self.records:
            self.records = records
        else:
            self.records = self.records + records

    def rotate(self, checkpoint_id: CheckpointId) -> Any | None:
        records = self.records
        if not records and self.bug != "empty transactions":
            return None
        if self.bug != "cuts at prepare":
            self.records = []
        return records

    def prepare(self, transaction: Any) -> JSON:
        number = next(NUMBERS)
        if self.bug == "cuts at prepare":
            transaction, self.records = self.records, []
        self.shelf.staged[number] = list(transaction)
        self.shelf.owners[number] = (self.owner, self.epoch)
        if self.bug == "visible when prepared":
            self.shelf.committed[number] = self.shelf.staged[number]
        return number

    def commit(self, permit: CommitPermit, handles: Sequence[JSON]) -> None:
        for handle in handles[-1:] if self.bug == "commits its own only" else handles:
            assert isinstance(handle, int)
            place = next(NUMBERS) if self.bug == "commits twice" else handle
            if self.bug == "commits the staged again":
                self.shelf.committed[place] = self.shelf.staged.get(handle, [])
            elif handle in self.shelf.staged:
                self.shelf.committed[place] = self.shelf.staged[handle]
            if self.bug != "commits twice":
                self.shelf.staged.pop(handle, None)

    def close(self) -> None:
        if self.bug == "forgets what is prepared":
            self.shelf.staged.clear()


def planted(bug: str) -> SinkTarget:
    shelf = next(NUMBERS)
    return SinkTarget(
        PlantedBugSink(shelf, bug),
        lambda: [record for _, part in sorted(SHELVES[shelf].committed.items()) for record in part],
    )


@pytest.mark.parametrize(
    "bug",
    [
        "visible when prepared",
        "commits twice",
        "commits the staged again",
        "commits its own only",
        "no commit on restore",
        "aborts before it commits",
        "sweeps other tasks",
        "sweeps other sinks",
        "sweeps other lineages",
        "cuts at prepare",
        "keeps the caller's list",
        "empty transactions",
        "forgets what is prepared",
    ],
)
def test_the_suite_finds_planted_bugs(bug: str) -> None:
    failed = []
    for check in SINK_CHECKS:
        check(planted("none"))
        try:
            check(planted(bug))
        except AssertionError:
            failed.append(check.__name__)
    assert failed, f"no check found the sink that {bug}"
