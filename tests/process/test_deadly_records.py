"""P7: a record that ends the process of its worker is found in a copy of it, named, or set aside."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, NumberedJob, Record, lose, until
from proving import proven

import crosscut as cc
from crosscut.errors import JobFailedError

BAD = 4_000
BAD_RECORD = ("key-8", BAD)
FEW_RESTARTS = cc.Restart(failures=3, delay_step="20ms", delay_max="50ms")
COUNT = 10_000


def exits_at_once() -> None:
    os._exit(3)


def crashes() -> None:
    ctypes.string_at(0)


HARMS = {"exit status 3": exits_at_once, "SIGSEGV": crashes}


@dataclass(frozen=True)
class Deadly:
    """Passes records on, and ends the process at some numbers."""

    harm: Callable[[], None]
    numbers: frozenset[int] = frozenset({BAD})

    def __call__(self, one: Record) -> Record:
        if one[1] in self.numbers:
            self.harm()
        return one


def numbered(number: int) -> Record:
    return f"key-{number % 499}", number


def failure(job: Any, started: Any) -> str:
    with pytest.raises(JobFailedError) as caught:
        started.finish(job, deadline_s=DEADLINE_S)
    return str(caught.value)


@pytest.mark.parametrize(
    ("place", "how"),
    [
        ("hook", "SIGSEGV"),
        proven("hook", "exit status 3"),
        proven("keyed_hook", "SIGSEGV"),
        ("keyed_hook", "exit status 3"),
    ],
)
def test_the_record_that_always_ends_the_process_is_named(
    tmp_path: Path, started: Any, how: str, place: str
) -> None:
    hooks: dict[str, Any] = {place: Deadly(HARMS[how])}
    job = NumberedJob(tmp_path, settings={"restart": FEW_RESTARTS}, **hooks)
    handle = started(job)
    text = failure(handle, started)
    operator = "2-map" if place == "hook" else "sums"
    assert f"operator {operator!r} ends its process ({how}) at a record" in text
    assert f"record: {BAD_RECORD!r}" in text
    assert "no restart can mend" in text
    if how == "SIGSEGV":
        assert "in crashes" in text, "the user's own line"
        assert "stateless.py" not in text, "none of ours"
    # More than one, where a busy machine completes a checkpoint in front of the record meanwhile.
    assert handle.report().restarts >= 2
    job.check_nothing_is_visible_too_early()


def with_letters(stream: Any, place: str, harm: Deadly) -> Any:
    if place == "map":
        found = stream.map(harm, on_error="dead letters").named("parsed")
    else:
        found = (
            stream.key_by(lambda one: one[0]).process(Passing(harm), on_error="dead letters").named("parsed")
        )
    return found


class Passing(cc.KeyedProcess[Any, Any]):
    """Passes records on, with how many their key has had, unless that ends the process."""

    count = cc.ValueState(default=0)

    def __init__(self, harm: Deadly) -> None:
        self.harm = harm

    def on_record(self, record: Record, ctx: Any) -> Any:
        self.count.set(self.count.get() + 1)
        yield self.harm(record)


def lines(directory: Path) -> list[Any]:
    paths = sorted(directory.glob("part-*"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("how", "place", "engine"),
    [
        ("SIGSEGV", "map", "continuous"),
        proven("exit status 3", "map", "continuous"),
        proven("SIGSEGV", "process", "continuous"),
        ("exit status 3", "process", "continuous"),
        ("exit status 3", "process", "micro-batch"),
    ],
)
def test_records_that_end_the_process_become_dead_letters_and_the_job_goes_on(
    tmp_path: Path, started: Any, how: str, place: str, engine: str
) -> None:
    """I1, I2: each of them is there exactly once, as is every other record."""
    bad = frozenset({1_000, BAD, BAD + 1, COUNT - 1})
    flow = cc.Flow("letters")
    stream = flow.source(cc.generate(numbered, count=COUNT, rate=8_000))
    parsed = with_letters(stream, place, Deadly(HARMS[how], bad))
    parsed.sink(cc.files.write_jsonl(tmp_path / "out"))
    letters = parsed.side_output("dead letters")
    letters.map(lambda one: [one.record, one.error]).sink(cc.files.write_jsonl(tmp_path / "dead"))
    job = started(Written(flow, tmp_path, engine))
    started.finish(job)
    assert sorted(one[1] for one in lines(tmp_path / "out")) == [n for n in range(COUNT) if n not in bad]
    found = sorted(lines(tmp_path / "dead"), key=lambda one: one[0][1])
    assert found == [[list(numbered(n)), f"ProcessDiedError: {how}"] for n in sorted(bad)]
    assert job.report().restarts >= (2 if engine == "continuous" else 0)


class Alarming(cc.KeyedProcess[Any, Any]):
    """Passes records on, and ends the process in a timer that a bad one has set."""

    def __init__(self, harm: Deadly) -> None:
        self.harm = harm

    def on_record(self, record: Record, ctx: Any) -> Any:
        if record[1] in self.harm.numbers:
            ctx.set_timer(record[1] + 10)
        yield record

    def on_timer(self, time: int, ctx: Any) -> Any:
        self.harm.harm()
        return ()


def test_a_timer_that_ends_the_process_is_named(tmp_path: Path, started: Any) -> None:
    flow = cc.Flow("alarming")
    stream = flow.source(cc.generate(numbered, count=COUNT, rate=8_000)).assign_timestamps(lambda one: one[1])
    alarming = stream.key_by(lambda one: one[0]).process(Alarming(Deadly(crashes))).named("alarming")
    alarming.sink(cc.files.write_jsonl(tmp_path / "out"))
    text = failure(started(Written(flow, tmp_path)), started)
    assert "operator 'alarming' ends its process (SIGSEGV) at a timer or window that is due" in text
    assert "in on_timer" in text


@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_a_job_whose_source_ends_the_process_fails_and_names_what_no_copy_tries(
    tmp_path: Path, started: Any, engine: str
) -> None:
    """Where Spark would try the batch a million times."""
    flow = cc.Flow("deadly-source")
    source = cc.generate(numbered_deadly, count=COUNT)
    flow.source(source).named("numbers").sink(cc.files.write_jsonl(tmp_path / "out")).named("lines")
    text = failure(started(Written(flow, tmp_path, engine, restarts=3)), started)
    assert "don't try source 'numbers', sink 'lines'" in text
    assert lines(tmp_path / "out") == []


def numbered_deadly(number: int) -> Record:
    return Deadly(exits_at_once)(numbered(number))


def deadly_line(line: str) -> int:
    number = int(line)
    if number in BAD_LINES:
        HARMS["exit status 3" if number % 2 else "SIGSEGV"]()
    return number


BAD_LINES = frozenset({0, 1_000, 1_001, 2_999})


def written_lines(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{n}\n" for n in range(3_000)))
    return path


@pytest.mark.parametrize("engine", ["continuous", proven("micro-batch")])
def test_lines_whose_decoding_ends_the_process_become_dead_letters(
    tmp_path: Path, started: Any, engine: str
) -> None:
    """K1, I1, I2: each of them is there exactly once, as is every other line."""
    flow = cc.Flow("deadly-lines")
    source = cc.files.read_jsonl(
        written_lines(tmp_path), decode=deadly_line, malformed=lambda line, error: [line, str(error)]
    )
    both = flow.source(source).named("lines")
    both.sink(cc.files.write_jsonl(tmp_path / "out"))
    started.finish(started(Written(flow, tmp_path, engine)))
    found = lines(tmp_path / "out")
    assert sorted(n for n in found if isinstance(n, int)) == sorted(set(range(3_000)) - BAD_LINES)
    letters = sorted((one for one in found if isinstance(one, list)), key=lambda one: int(one[0]))
    assert [int(line) for line, _ in letters] == sorted(BAD_LINES)
    for (line, error), how in zip(
        letters, ["SIGSEGV", "SIGSEGV", "exit status 3", "exit status 3"], strict=True
    ):
        assert f"'{line}', ends its process ({how}) when it is decoded" in error


def test_the_line_whose_decoding_ends_the_process_is_named(tmp_path: Path, started: Any) -> None:
    flow = cc.Flow("deadly-lines")
    source = cc.files.read_jsonl(written_lines(tmp_path), decode=deadly_line)
    flow.source(source).named("lines").sink(cc.files.write_jsonl(tmp_path / "out"))
    text = failure(started(Written(flow, tmp_path)), started)
    assert "source 'lines'" in text
    assert "the line at byte 0, '0', ends its process (SIGSEGV) when it is decoded" in text
    assert "no restart can mend" in text


def test_in_micro_batches_the_record_is_named(tmp_path: Path, started: Any) -> None:
    settings = {"restart": FEW_RESTARTS, "engine": "micro-batch"}
    job = NumberedJob(tmp_path, settings=settings, keyed_hook=Deadly(crashes))
    handle = started(job)
    text = failure(handle, started)
    assert "operator 'sums' ends its process (SIGSEGV) at a record" in text
    assert f"record: {BAD_RECORD!r}" in text
    assert "in crashes" in text
    assert handle.report().restarts == 0, "Spark has made the attempts"
    job.check_nothing_is_visible_too_early()


@dataclass(frozen=True)
class Written:
    """A flow that a test has written itself, with the settings of all tests."""

    flow: cc.Flow
    directory: Path
    engine: str = "continuous"
    restarts: int = 20

    def start(self, spark: Any) -> Any:
        restart = cc.Restart(failures=self.restarts, delay_step="20ms", delay_max="50ms")
        settings = NumberedJob(self.directory, settings={"restart": restart, "engine": self.engine})
        return self.flow.start(settings.all_settings(), spark=spark)


def test_workers_that_others_kill_accuse_no_record(tmp_path: Path, started: Any) -> None:
    """I1, I2: the workers look for a record, find none, and the output is what it has to be."""
    job = NumberedJob(tmp_path, held=True, count=20_000)
    handle = started(job)
    for _ in range(3):
        until(handle.checkpoints, "a checkpoint")
        lose(handle, started, 0)
    job.open_gate()
    started.finish(handle, job.check_nothing_is_visible_too_early)
    assert handle.report().restarts >= 3
    job.check_output_is_exact()
    job.check_nothing_is_left_over()
