"""What workers log: who speaks, how much of it goes to the driver, what is shown of it there."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.simulation.conversation import K0, K1, LINKS, Talk

import crosscut as cc
from crosscut.errors import SettingsError
from crosscut.foundation.ids import CheckpointId, Epoch, TaskId, WorkerIndex
from crosscut.host.calls import Calls
from crosscut.monitoring.worker_logs import KEPT_MAX, WorkerLines
from crosscut.protocol.events import LinkClosed
from crosscut.protocol.messages import WorkerHeartbeat
from crosscut.protocol.telemetry import LogLine
from crosscut.worker.lines import (
    LINES_MAX,
    LINES_PER_S,
    SPEAKING,
    TEXT_CHARS_MAX,
    Lines,
    LogSettings,
    Speaking,
    logging_of,
)

E1 = Epoch(1)
USER = logging.getLogger("a.module.of.the.user")


@dataclass
class AtWork:
    """A task that is at work."""

    task_id: TaskId = K0
    newest_captured: CheckpointId = CheckpointId(7)


class Time:
    """A clock that goes when a test says so."""

    ns = 0

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def lines(time: Time, capsys: pytest.CaptureFixture[str]) -> Iterator[Lines]:
    with logging_of(WorkerIndex(0), LogSettings("a job"), time) as found:
        yield found


@pytest.fixture
def speaking() -> Iterator[None]:
    spoke = SPEAKING.set(Speaking(E1, K0, AtWork()))
    yield
    SPEAKING.reset(spoke)


def texts(lines: Lines) -> list[str]:
    return [one.text for one in lines.take()]


def test_a_line_says_which_task_was_at_work_in_which_epoch_and_after_which_barrier(
    lines: Lines, speaking: None
) -> None:
    USER.warning("no price for %r", "apples")
    USER.info("nobody asked for this")
    (line,) = lines.take()
    assert (line.text, line.level, line.logger) == ("no price for 'apples'", logging.WARNING, USER.name)
    assert (line.task, line.epoch, line.checkpoint_id) == (K0, 1, 7)
    assert lines.take() == (), "once"


def test_a_line_of_no_task_says_so(lines: Lines) -> None:
    USER.warning("a thread of a library")
    (line,) = lines.take()
    assert (line.task, line.epoch, line.checkpoint_id) == (None, 0, 0)


def test_threads_and_coroutines_that_a_task_starts_speak_for_it(lines: Lines, speaking: None) -> None:
    async def coroutine() -> None:
        USER.warning("a coroutine")

    async def started() -> None:
        await asyncio.ensure_future(coroutine())

    Calls("test").start(USER.warning, "a thread").result(60)
    asyncio.run(started())
    assert [(one.text, one.task) for one in lines.take()] == [("a thread", K0), ("a coroutine", K0)]


def test_the_end_of_a_traceback_is_part_of_a_line_however_long_it_is(lines: Lines) -> None:
    try:
        raise LookupError("x" * 10 * TEXT_CHARS_MAX + " the end")
    except LookupError:
        USER.exception("it went wrong" + "!" * 10 * TEXT_CHARS_MAX)
    (text,) = texts(lines)
    assert text.startswith("it went wrong!")
    assert text.endswith("the end")
    assert len(text) <= 2 * TEXT_CHARS_MAX + 1


def test_a_flood_is_cut_and_the_next_line_that_goes_says_how_many_were_left_out(
    lines: Lines, time: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(LINES_MAX + 50):
        USER.warning("line %d", n)
    assert texts(lines) == [f"line {n}" for n in range(LINES_MAX)]
    assert texts(lines) == []
    time.ns += 10**9
    for n in range(LINES_PER_S + 5):
        USER.warning("later %d", n)
    assert texts(lines) == [
        "50 lines were left out here: they are on standard error",
        *(f"later {n}" for n in range(LINES_PER_S)),
    ]
    assert f"line {LINES_MAX + 49}" in capsys.readouterr().err


def test_news_are_told_once_until_they_are_taken(lines: Lines) -> None:
    told: list[int] = []
    lines.follow(lambda: told.append(1))
    USER.warning("one")
    USER.warning("two")
    assert told == [1]
    lines.take()
    USER.warning("three")
    assert told == [1, 1]


def test_arguments_that_do_not_fit_harm_nobody(lines: Lines, capsys: pytest.CaptureFixture[str]) -> None:
    lines.handle(USER.makeRecord(USER.name, logging.WARNING, "", 0, "%d apples", ("no",), None))
    assert lines.take() == ()
    assert "Message: '%d apples'" in capsys.readouterr().err


def test_standard_error_shows_each_line_with_its_fields_and_the_process_is_as_it_was_after(
    time: Time, speaking: None, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    with logging_of(WorkerIndex(3), LogSettings("a job", "INFO"), time):
        USER.info("hello")
    assert (root.level, root.handlers) == before
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        f"INFO {USER.name} [job=a job worker=3 vertex={K0.vertex} task={K0} epoch=1 checkpoint=7]: hello"
    )


def test_as_json_each_line_is_one_object_whatever_is_in_it(
    time: Time, speaking: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the handler that keeps lines for a report of failures: it can't be sent half a character.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with logging_of(WorkerIndex(3), LogSettings("a job", format="json"), time):
        USER.error("two\nlines and a \udcff", extra={"job": "the user's own word"})
        try:
            raise LookupError("lost")
        except LookupError:
            USER.exception("failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "ERROR",
        "logger": USER.name,
        "message": "two\nlines and a \udcff",
        "job": "the user's own word",
        "worker": 3,
        "vertex": K0.vertex,
        "task": str(K0),
        "epoch": 1,
        "checkpoint": 7,
    }
    assert second["error"].endswith("LookupError: lost")


def line(text: str, task: TaskId | None = None) -> LogLine:
    return LogLine(1_000, logging.WARNING, "user", text, task, E1 if task else Epoch(0))


def test_the_driver_keeps_the_newest_and_says_them_with_its_own_logging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = WorkerLines("a job", are_seen=False)
    kept.note(WorkerIndex(0), [line("no price", K0)])
    kept.note(WorkerIndex(1), [line("no task")])
    assert [one.getMessage() for one in caplog.records] == [
        f"job 'a job': {K0}: user: no price",
        "job 'a job': worker 1: user: no task",
    ]
    about = vars(caplog.records[0])
    assert (about["job"], about["worker"], about["task"], about["epoch"]) == ("a job", 0, str(K0), 1)
    kept.note(WorkerIndex(0), [line(str(n), K0) for n in range(KEPT_MAX)])
    assert [one.text for one in kept.kept] == [str(n) for n in range(KEPT_MAX)]


def test_a_lost_worker_is_reported_with_the_last_that_it_logged() -> None:
    talk = Talk()
    talk.running()
    words = tuple(line(f"word {n}", K0) for n in range(4))
    talk.message(0, WorkerHeartbeat(E1, (), logged=words))
    talk.message(1, WorkerHeartbeat(E1, (), logged=(line("another worker", K1),)))
    talk.hear(LinkClosed(LINKS[0], "reset"))
    message = talk.coordinator.failures[-1].message
    assert message.endswith("the last that it logged:\n  user: word 1\n  user: word 2\n  user: word 3")


def test_lines_about_another_workers_task_are_not_believed() -> None:
    talk = Talk()
    talk.running()
    talk.message(0, WorkerHeartbeat(E1, (), logged=(line("a lie", K1),)))
    assert talk.coordinator.dropped["message about another worker's task"] == 1


@pytest.mark.parametrize("wrong", [{"log_level": "LOUD"}, {"log_format": "xml"}])
def test_levels_and_formats_that_do_not_exist_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="expected one of"):
        cc.Settings(**wrong)  # type: ignore[arg-type]
