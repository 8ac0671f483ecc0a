"""Jobs whose workers have logs: processes are killed, and each committed group shows once."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drivers import Driver
from jobs import Armed, NumberedJob, Record, lose, shaken, until
from proving import proven

import crosscut as cc
from crosscut.errors import AuthenticityError, CrosscutError, SettingsError
from crosscut.foundation.ids import Epoch
from crosscut.protocol.log.segments import claims_in
from crosscut.store.checkpoint_store import open_store
from crosscut.store.log_key import VARIABLE, LogKey, unit_log_key
from crosscut.store.mounts import check_is_local
from crosscut.store.unit_log_format import UnitName, decode_entry


@pytest.fixture(params=["files", "objects"])
def logged(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Settings of a job with logs of this kind."""
    if request.param == "files":
        try:
            check_is_local(str(tmp_path))
        except SettingsError as error:
            pytest.skip(str(error))
    return {"snapshots": cc.Logged(log=request.param)}


class LoggedJob(NumberedJob):
    """Nothing of it is in checkpoints."""

    def check_nothing_is_visible_too_early(self) -> None: ...

    def check_ids_only_grow(self) -> None: ...

    def lines(self) -> int:
        found = self.out.glob("part-*") if self.out.exists() else ()
        return sum(path.read_bytes().count(b"\n") for path in found)


def finish(numbered: LoggedJob, job: Any, started: Any) -> None:
    numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    assert job.status == "finished"
    numbered.check_output_is_exact()
    assert numbered.completed() == []


def test_output_is_visible_while_the_job_runs_and_exact_after_kills(
    tmp_path: Path, started: Any, logged: dict[str, Any]
) -> None:
    """Three times a worker is killed, once both: no record is lost, doubled or overtaken."""
    numbered = LoggedJob(tmp_path, count=20_000, held=True, hook=shaken, settings=logged)
    job = started(numbered)
    until(numbered.lines, "the first output")
    for victims in ((0,), (1,), (0, 1)):
        before = numbered.lines()
        lose(job, started, *victims)
        until(lambda before=before: numbered.lines() > before, "output after a kill")  # type: ignore[misc]
    finish(numbered, job, started)
    assert job.report().restarts >= 3


@pytest.mark.parametrize(
    "place",
    [
        proven("unit.append"),  # the group is nowhere
        "unit.appended",  # it is durable, and nobody knows
        "commit.before",  # ... and its output is staged
        proven("commit.after"),  # ... and visible, which nobody knows
        proven("restore.claimed"),
    ],
)
def test_a_worker_killed_at_a_group_changes_nothing(
    tmp_path: Path, started: Any, arm: Callable[..., Armed], place: str, logged: dict[str, Any]
) -> None:
    nth = 1 if place == "restore.claimed" else 5
    armed = arm(f"{place}:kill:{nth}:0", f"{place}:kill:{nth + 4}:1")
    numbered = LoggedJob(tmp_path, count=20_000, held=True, hook=shaken, settings=logged)
    job = started(numbered)
    if place != "restore.claimed":
        until(armed.all_fired, "the kills")
    finish(numbered, job, started)


def test_the_next_driver_goes_on_from_the_logs(
    tmp_path: Path, drive: Callable[..., Driver], started: Any, logged: dict[str, Any]
) -> None:
    numbered = LoggedJob(tmp_path, count=20_000, held=True, hook=shaken, settings=logged)
    driver = drive(numbered, None, **logged)
    until(lambda: numbered.lines() > 500, "output of the first driver")
    driver.kill()
    driver.family_is_gone()
    seen = numbered.lines()
    job = started(numbered)
    until(lambda: numbered.lines() > seen, "output of the second driver")
    finish(numbered, job, started)


def test_a_long_log_becomes_a_snapshot(
    tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch, logged: dict[str, Any]
) -> None:
    """The tail stays short, and what follows a kill is exact all the same."""
    from crosscut.driver import job_spec
    from crosscut.protocol.unit_log.spec import UnitLogSpec

    def short(kind: Any, interval_ms: int) -> UnitLogSpec:
        return UnitLogSpec(kind, interval_ms, tail_groups_max=5)

    monkeypatch.setattr(job_spec, "UnitLogSpec", short)
    numbered = LoggedJob(tmp_path, count=20_000, held=True, settings=logged)
    job = started(numbered)

    def segments() -> int:
        return len([*(numbered.checkpoint_dir / "units" / "0").glob("*")])

    for _ in range(2):
        before = segments()
        until(lambda before=before: segments() >= before + 4, "snapshots")  # type: ignore[misc]
        lose(job, started, 0)
    finish(numbered, job, started)
    parts = [path for path in (numbered.checkpoint_dir / "parts").rglob("*") if path.is_file()]
    assert parts, "the state is large enough to be in files"


def test_a_directory_goes_on_with_the_logs_that_it_has(
    tmp_path: Path, started: Any, logged: dict[str, Any]
) -> None:
    """So does a job that has finished: it is known by the logs that it had."""
    numbered = LoggedJob(tmp_path, count=20_000, held=True, settings=logged)
    job = started(numbered)
    until(numbered.lines, "output")
    job.stop()
    until(lambda: job.status != "running", "the stop")
    started.finish(job, lambda: None)
    unnamed = LoggedJob(tmp_path, count=20_000, held=True, settings={"snapshots": "logged"})
    job = started(unnamed)
    finish(unnamed, job, started)
    has_files = [*numbered.checkpoint_dir.glob("units/*/*.head")] != []
    assert has_files == (logged["snapshots"].log == "files")
    assert unnamed.start(started.spark).status == "finished"


def test_logs_are_signed_if_the_job_log_is(
    tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch, logged: dict[str, Any]
) -> None:
    """Each worker has the keys of its own log, of this epoch and those before: it goes on after a kill."""
    monkeypatch.setenv(VARIABLE, "k" * 40)
    numbered = LoggedJob(tmp_path, count=20_000, held=True, hook=shaken, settings=logged)
    job = started(numbered)
    until(numbered.lines, "output")
    lose(job, started, 0)
    before = numbered.lines()
    until(lambda: numbered.lines() > before, "output after a kill")
    numbered.open_gate()
    started.finish(job, numbered.check_nothing_is_visible_too_early)
    numbered.check_output_is_exact()
    key = LogKey("k" * 40)
    store = open_store(str(numbered.checkpoint_dir), key=key)
    lineage = claims_in(entry for _, entry in store.entries())[-1].lineage
    epochs = set()
    for unit in (0, 1):
        directory = numbered.checkpoint_dir / "units" / str(unit)
        heads = [*directory.glob("*.head"), *directory.glob(f"*/{0:020d}")]
        assert heads
        for path in heads:
            name, keys = UnitName(lineage, unit), unit_log_key(key.unit_keys(lineage, unit, Epoch(9)))
            epochs.add(decode_entry(path.read_bytes(), name, keys).entry.incarnation.epoch)
            others = unit_log_key(key.unit_keys(lineage, 1 - unit, Epoch(9)))
            with pytest.raises(AuthenticityError):
                decode_entry(path.read_bytes(), name, others)
    assert {1, 2} <= epochs


# Code that says something else each time.


class Tagged(cc.KeyedProcess[Record, Any]):
    """Gives each record of a key a number, and a tag by chance: nobody may see two tags of one record."""

    count = cc.ValueState(default=0)
    tag = cc.ValueState(default="")

    def on_record(self, record: Record, ctx: cc.Context) -> Any:
        before = self.tag.get()
        self.tag.set(f"{random.getrandbits(64):x}")
        self.count.set(self.count.get() + 1)
        yield ctx.key, self.count.get(), before, self.tag.get(), record[1]


class TaggedJob(LoggedJob):
    def flow(self) -> cc.Flow:
        flow = cc.Flow("tagged")
        source = cc.generate(lambda number: (f"key-{number % 50}", number), count=self.count, rate=2_000)
        tagged = flow.source(source).map(_by_chance).key_by(lambda one: one[0]).process(Tagged())
        # Another shuffle: what has left the first tasks is a fact to the second ones.
        tagged.rebalance().map(lambda one: one).sink(self.sink())
        return flow

    def chains(self) -> dict[str, list[list[Any]]]:
        found: dict[str, list[list[Any]]] = {}
        for path in self.out.glob("part-*"):
            for line in path.read_text().splitlines():
                one = json.loads(line)
                found.setdefault(one[0], []).append(one)
        return {key: sorted(rows, key=lambda row: int(row[1])) for key, rows in found.items()}


def _by_chance(one: Record) -> Record:
    if random.random() < 0.001:
        sum(range(random.randrange(50_000)))
    return one


def test_what_was_seen_of_code_by_chance_stays_true(
    tmp_path: Path, started: Any, logged: dict[str, Any]
) -> None:
    """Each record names the tag before it: in the output these make one chain for each key."""
    numbered = TaggedJob(tmp_path, count=12_000, settings=logged)
    job = started(numbered)
    until(numbered.lines, "the first output")
    for victim in (0, 1):
        if job.report().phase != "running":
            break
        os.kill(job.report().workers[victim].pid, signal.SIGKILL)
        started.watch(job)
        until(lambda: job.report().restarts > victim or job.status == "finished", "the recovery")  # noqa: B023
    started.finish(job, lambda: None)
    assert job.status == "finished"
    chains = numbered.chains()
    assert sum(map(len, chains.values())) == 12_000
    for key, rows in chains.items():
        assert [row[1] for row in rows] == list(range(1, len(rows) + 1)), key
        assert [row[2] for row in rows] == ["", *(row[3] for row in rows[:-1])], key
    numbers = sorted(row[4] for rows in chains.values() for row in rows)
    assert numbers == list(range(12_000))


def test_a_directory_with_logs_is_refused_to_other_jobs(
    tmp_path: Path, started: Any, logged: dict[str, Any]
) -> None:
    numbered = LoggedJob(tmp_path, count=100, settings=logged)
    job = started(numbered)
    until(numbered.lines, "output")
    job.stop()
    until(lambda: job.status != "running", "the stop")
    started.finish(job, lambda: None)
    (found,) = {"files", "objects"} - {logged["snapshots"].log}
    other_log: dict[str, Any] = {"snapshots": cc.Logged(log=found)}
    others = ({"snapshots": "aligned"}, {**logged, "parallelism": 3}, other_log)
    for other in others:
        with pytest.raises(CrosscutError, match="logs of 2 workers"):
            LoggedJob(tmp_path, count=100, settings=other).start(started.spark)
