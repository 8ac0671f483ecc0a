"""A record that ends its process: who looks for it, what convicts it, and what becomes of it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest

import crosscut as cc
from crosscut.contracts.dead_letters import DEAD_LETTERS, DeadLetter
from crosscut.contracts.decoding import ProcessDiedError, TriedDecoding
from crosscut.driver.untried import untried_in_copies
from crosscut.errors import UserCodeError
from crosscut.foundation.batch import Batch
from crosscut.foundation.ids import WorkerIndex
from crosscut.graph.specs import SideOutput
from crosscut.host.copies import ForkedCopies
from crosscut.net.causes import failure_cause
from crosscut.operators.dead_letters import Attempts, mapping
from crosscut.operators.operator import Operator
from crosscut.operators.probing import (
    AT_ONCE_MS,
    Copies,
    Deadly,
    Died,
    Probing,
    ProbingTime,
    Tried,
    decoding_trial,
)
from crosscut.operators.sides import Sides
from crosscut.operators.stateless import Filter, Map
from crosscut.protocol.job.deaths import CHECKPOINTS, SPARK_TASK_DIED, checkpoints_to_probe, deaths_of
from crosscut.protocol.job.restarts import Failures, GiveUp, RestartPolicy
from crosscut.protocol.messages import FailureCause
from crosscut.task.chain import Chain

CRASH = Died("SIGSEGV", "in parse")


def lost(worker: int) -> FailureCause:
    return FailureCause("WorkerLost", "is lost", worker=WorkerIndex(worker))


RAISED = FailureCause("ValueError", "bad", "parse", "'x'")
ENDED_BY_SPARK = FailureCause(SPARK_TASK_DIED, "Spark ended the batch")
SILENT = FailureCause("WorkerLost", "silent for more than heartbeat_timeout=10 s")


# Who probes, and for how long.


@pytest.mark.parametrize(
    ("failures", "deaths"),
    [
        ([], 0),
        ([lost(1)], 0),
        ([lost(0), lost(0)], 0),
        ([lost(1), SILENT], 0),
        ([lost(1), lost(1)], 2),
        ([lost(1), RAISED, lost(1)], 2),
        ([lost(1), lost(0), lost(1), lost(1)], 3),
        ([lost(0), lost(2), lost(3)], 2),
        ([lost(0), lost(2), RAISED], 0),
        ([ENDED_BY_SPARK, ENDED_BY_SPARK], 2),
        ([ENDED_BY_SPARK, lost(1)], 2),
        ([ENDED_BY_SPARK, lost(0)], 0),
    ],
    ids=str,
)
def test_a_worker_probes_after_two_deaths_and_all_do_after_three_in_a_row(
    failures: list[FailureCause], deaths: int
) -> None:
    assert deaths_of(WorkerIndex(1), failures) == deaths


def test_a_worker_probes_for_twice_as_many_checkpoints_after_each_further_death() -> None:
    assert [checkpoints_to_probe(deaths) for deaths in range(5)] == [
        0,
        0,
        CHECKPOINTS,
        2 * CHECKPOINTS,
        4 * CHECKPOINTS,
    ]
    assert checkpoints_to_probe(1_000_000) == checkpoints_to_probe(1_000)


@pytest.mark.parametrize(("same_record_max", "deaths"), [(3, 2), (1, 2), (0, 0)])
def test_nobody_probes_if_the_same_record_is_like_any_other_failure(
    same_record_max: int, deaths: int
) -> None:
    failures = Failures(RestartPolicy(10, 300_000, 0, 100, 1_000, same_record_max))
    for _ in range(2):
        failures.failover(lost(1), is_restoring=False)
    assert failures.deaths(WorkerIndex(1)) == deaths


def test_deaths_that_have_left_the_window_do_not_count() -> None:
    failures = Failures(RestartPolicy(10, 300_000, 0, 100, 1_000, 3))
    for _ in range(2):
        failures.failover(lost(1), is_restoring=False)
    failures.forget_oldest()
    assert failures.deaths(WorkerIndex(1)) == 0


# What convicts a record.


class Told(Copies):
    """Copies that die as they are told; they process nothing."""

    def __init__(self, *answers: Tried) -> None:
        self.answers = list(answers)
        self.tried: list[list[Any]] = []

    def attempt(self, operator: Operator, batch: Batch) -> Tried:
        self.tried.append(batch.records)
        return self.answers.pop(0)

    def attempt_due(self, operator: Operator, watermark: int | None) -> Tried:
        self.tried.append([watermark])
        return self.answers.pop(0)

    def now_ms(self) -> int:
        return 0


def probing_with(copies: Copies, deaths: int) -> Probing:
    return Probing(ProbingTime(copies, deaths), deaths)


PARSE = Map("parse", lambda record: record)


def test_what_a_copy_survives_is_processed_at_once() -> None:
    copies = Told(Tried(3))
    assert probing_with(copies, 2).look(PARSE, Batch([1, 2, 3])) == 3
    assert copies.tried == [[1, 2, 3]]


def test_records_before_the_death_of_a_copy_are_processed_first() -> None:
    """Else the state that the suspect meets would not be the one that it has to meet."""
    copies = Told(Tried(2, CRASH))
    assert probing_with(copies, 2).look(PARSE, Batch([1, 2, 3])) == 2


def test_a_record_is_deadly_if_two_copies_die_of_it_and_others_pass() -> None:
    copies = Told(Tried(2, CRASH), Tried(0, CRASH), Tried(0, CRASH))
    probing = probing_with(copies, 2)
    assert probing.look(PARSE, Batch([1, 2, 3, 4])) == 2
    assert probing.look(PARSE, Batch([3, 4])) == Deadly(3, CRASH)
    assert copies.tried == [[1, 2, 3, 4], [3, 4], [3]]


def test_a_copy_that_somebody_kills_accuses_no_record() -> None:
    copies = Told(Tried(0, Died("SIGKILL")), Tried(1))
    assert probing_with(copies, 2).look(PARSE, Batch([1, 2])) == 1


def test_copies_that_are_killed_accuse_a_record_only_if_the_next_one_is_not_killed_as_well() -> None:
    """On a machine without memory the system kills each copy."""
    killed = Tried(0, Died("SIGKILL"))
    for after, found in ((killed, 1), (Tried(1), Deadly(2, Died("SIGKILL")))):
        probing = probing_with(Told(Tried(1, Died("SIGKILL")), killed, killed, after), 3)
        assert probing.look(PARSE, Batch([1, 2, 3])) == 1
        assert probing.look(PARSE, Batch([2, 3])) == found
    assert probing_with(Told(killed, killed), 3).look(PARSE, Batch([1])) == 1


def test_the_first_record_is_deadly_only_if_another_one_passes() -> None:
    copies = Told(Tried(0, CRASH), Tried(0, CRASH), Tried(1))
    assert probing_with(copies, 2).look(PARSE, Batch([1, 2])) == Deadly(1, CRASH)
    assert copies.tried == [[1, 2], [1], [2]]


def test_an_operator_whose_copies_always_die_is_not_probed_any_more() -> None:
    """A library that can't be used after a fork: the records are as good as any."""
    copies = Told(Tried(0, CRASH), Tried(0, CRASH), Tried(0, CRASH))
    probing = probing_with(copies, 2)
    assert probing.look(PARSE, Batch([1, 2])) == 1
    assert probing.look(PARSE, Batch([2, 3])) == 2
    assert copies.answers == []


def test_after_a_third_death_a_record_without_company_is_deadly() -> None:
    """A slow source: each time the record is the only one since the checkpoint."""
    copies = Told(Tried(0, CRASH), Tried(0, CRASH), Tried(0, CRASH), Tried(0, CRASH))
    assert probing_with(copies, 2).look(PARSE, Batch([1])) == 1
    assert probing_with(copies, 3).look(PARSE, Batch([1])) == Deadly(1, CRASH)


def test_a_copy_that_does_not_answer_is_not_asked_again() -> None:
    copies = Told(Tried(0))
    probing = probing_with(copies, 2)
    assert probing.look(PARSE, Batch([1, 2])) == 2
    assert probing.look(PARSE, Batch([3])) == 1


def test_what_a_copy_would_share_is_never_tried() -> None:
    operator = Map("parse", lambda record: record)
    operator.runs_in_copies = False
    assert probing_with(Told(), 2).look(operator, Batch([1, 2])) == 2


@pytest.mark.parametrize(
    ("answers", "deaths", "convicts"),
    [
        ([Tried(1)], 3, False),
        ([Tried(0)], 3, False),
        ([Tried(0, CRASH), Tried(0, CRASH)], 3, True),
        ([Tried(0, CRASH), Tried(1)], 3, False),
        ([Tried(0, Died("SIGKILL")), Tried(0, Died("SIGKILL"))], 3, False),
        ([Tried(0, CRASH), Tried(0, CRASH)], 2, False),
    ],
)
def test_what_is_due_is_deadly_if_two_copies_die_of_it_where_copies_are_known_to_work(
    answers: list[Tried], deaths: int, convicts: bool
) -> None:
    copies = Told(*answers)
    found = probing_with(copies, deaths).look_at_due(PARSE, 7)
    assert found == (CRASH if convicts else None)
    assert copies.tried == [[7]] * len(answers)


def test_a_record_that_passes_is_a_witness_for_what_is_due() -> None:
    copies = Told(Tried(2), Tried(0, CRASH), Tried(0, CRASH))
    probing = probing_with(copies, 2)
    assert probing.look(PARSE, Batch([1, 2])) == 2
    assert probing.look_at_due(PARSE, 7) == CRASH


def test_no_copy_is_asked_for_what_is_due_where_copies_do_not_answer() -> None:
    copies = Told(Tried(0))
    probing = probing_with(copies, 3)
    assert [probing.look_at_due(PARSE, 7), probing.look_at_due(PARSE, 8)] == [None, None]
    assert copies.tried == [[7]]


# What is said where no record is found.


@pytest.mark.parametrize("one", [lost(1), ENDED_BY_SPARK])
@pytest.mark.parametrize("same_record_max", [0, 3])
def test_a_job_whose_workers_die_without_a_record_says_what_was_not_tried(
    one: FailureCause, same_record_max: int
) -> None:
    policy = RestartPolicy(3, 300_000, 0, 100, 1_000, same_record_max, untried="source 'in', sink 'out'")
    failures = Failures(policy)
    for cause in (RAISED, one, one):
        failures.note(cause)
    _, decision = failures.note(one)
    assert isinstance(decision, GiveUp)
    assert ("don't try source 'in', sink 'out'" in decision.shown.message) is (same_record_max > 0)
    assert decision.cause == (one if same_record_max else RAISED)


def test_other_failures_say_nothing_of_it() -> None:
    failures = Failures(RestartPolicy(2, 300_000, 0, 100, 1_000, 3, untried="source 'in'"))
    for cause in (lost(1), lost(1)):
        failures.note(cause)
    _, decision = failures.note(SILENT)
    assert isinstance(decision, GiveUp)
    assert "source 'in'" not in decision.shown.message


def test_what_no_copy_tries_is_named() -> None:
    flow = cc.Flow("all")
    numbers = flow.source(cc.items([1])).named("in").map(abs).map_async(called).named("asked")
    numbers.key_by(abs).count().named("counts").sink(cc.collect()).named("out")
    graph = flow.compile(2, 16)
    assert untried_in_copies(graph, state_is_in_memory=True) == "source 'in', map_async 'asked', sink 'out'"
    on_disk = "source 'in', map_async 'asked', count 'counts' with its state on disk, sink 'out'"
    assert untried_in_copies(graph, state_is_in_memory=False) == on_disk


async def called(one: int) -> int:
    return one


# How much time it may take.


class Slow(Copies):
    """Copies that are through with a batch after `took_ms`, or die of it."""

    def __init__(self, took_ms: int, died: Died | None = None) -> None:
        self.took_ms = took_ms
        self.died = died
        self.clock_ms = 1_000_000
        self.attempts = 0

    def attempt(self, operator: Operator, batch: Batch) -> Tried:
        self.clock_ms += self.took_ms
        self.attempts += 1
        return Tried(0 if self.died else len(batch), self.died)

    def attempt_due(self, operator: Operator, watermark: int | None) -> Tried:
        return Tried(1)

    def now_ms(self) -> int:
        return self.clock_ms


@pytest.mark.parametrize(("deaths", "share"), [(2, 1 / 2), (3, 3 / 4), (4, 7 / 8)])
def test_copies_have_a_share_of_the_time_that_grows_with_the_deaths(deaths: int, share: float) -> None:
    copies = Slow(10)
    probing = probing_with(copies, deaths)
    began_ms = copies.clock_ms
    while copies.clock_ms < began_ms + 1_000_000:
        assert probing.look(PARSE, Batch([1])) == 1
        # The worker's own work on the batch.
        copies.clock_ms += 1
    spent_ms = copies.attempts * copies.took_ms
    assert abs(spent_ms - AT_ONCE_MS - share * 1_000_000) <= 2 * copies.took_ms


def test_every_batch_is_tried_where_time_is_left() -> None:
    copies = Slow(10)
    probing = probing_with(copies, 2)
    for _ in range(10_000):
        probing.look(PARSE, Batch([1]))
        copies.clock_ms += 10
    assert copies.attempts == 10_000


def test_the_tasks_of_a_worker_share_its_time() -> None:
    copies = Slow(2 * AT_ONCE_MS + 10)
    time = ProbingTime(copies, 2)
    one, other = Probing(time, 2), Probing(time, 2)
    assert one.look(PARSE, Batch([1])) == other.look(PARSE, Batch([1, 2])) - 1 == 1
    assert copies.attempts == 1


def test_a_suspicion_is_followed_up_though_the_time_is_used_up() -> None:
    copies = Slow(10 * AT_ONCE_MS, CRASH)
    assert probing_with(copies, 3).look(PARSE, Batch([1])) == Deadly(1, CRASH)
    assert copies.attempts == 2


# What becomes of it, in a chain.


class Deaths(Copies):
    """Copies that die of the records of which `is_deadly` is true, and are through with `pace` others."""

    def __init__(self, is_deadly: Callable[[Any], bool], pace: int = 1_000) -> None:
        self.is_deadly = is_deadly
        self.pace = pace

    def attempt(self, operator: Operator, batch: Batch) -> Tried:
        for passed, record in enumerate(batch.records):
            if operator.uid == "parse" and self.is_deadly(record):
                return Tried(passed, CRASH)
            if passed == self.pace:
                return Tried(passed)
        return Tried(len(batch))

    def attempt_due(self, operator: Operator, watermark: int | None) -> Tried:
        return Tried(1)

    def now_ms(self) -> int:
        return 0


class Site:
    def __init__(self, copies: Copies, *operators: Operator) -> None:
        self.out: list[tuple[Any, int | None]] = []
        self.watermarks: list[int] = []
        self.letters: list[tuple[DeadLetter, int | None]] = []
        self.chain = Chain(operators, self._emit, self._aside, has_event_time=True)
        self.chain.probing = probing_with(copies, 3)

    def _emit(self, batch: Batch) -> None:
        self.out += zip(batch.records, batch.timestamps or [None] * len(batch), strict=True)
        if batch.watermark is not None:
            assert not self.chain.is_halfway, "a watermark overtakes records"
            self.watermarks.append(batch.watermark)

    def _aside(self, batch: Batch, side: SideOutput) -> None:
        self.letters += zip(batch.records, batch.timestamps or [None] * len(batch), strict=True)

    def take(self, batch: Batch) -> None:
        rest: Batch | None = batch
        while rest is not None or self.chain.is_midway:
            self.chain.begin(1_000)
            if self.chain.is_midway:
                self.chain.go_on()
            elif rest is not None:
                rest = self.chain.process(rest)


def batch_of(count: int) -> Batch:
    return Batch(list(range(count)), None, [100 + number for number in range(count)], 1_000)


@pytest.mark.parametrize("deadly", [{0}, {4}, {9}, {3, 4, 5}, {0, 9}, set(range(1, 10)), set()], ids=str)
@pytest.mark.parametrize("pace", [1, 2, 1_000])
def test_deadly_records_are_set_aside_and_all_others_go_on_in_order(deadly: set[int], pace: int) -> None:
    parse = Attempts("parse", mapping(lambda record: -record), Sides("parse", [DEAD_LETTERS]))
    site = Site(
        Deaths(deadly.__contains__, pace), Map("plus", lambda n: n), parse, Filter("all", lambda _: True)
    )
    site.take(batch_of(10))
    kept = [number for number in range(10) if number not in deadly]
    assert site.out == [(-number, 100 + number) for number in kept]
    assert [(one.record, at) for one, at in site.letters] == [(n, 100 + n) for n in sorted(deadly)]
    assert {(one.error, one.operator, one.traceback) for one, _ in site.letters} <= {
        ("ProcessDiedError: SIGSEGV", "parse", "in parse")
    }
    assert site.watermarks == [1_000]
    assert site.chain.counts()[1] == len(deadly)


def test_without_dead_letters_the_record_is_named_and_no_restart_is_of_use() -> None:
    site = Site(Deaths({4}.__contains__), Map("parse", lambda record: record))
    with pytest.raises(UserCodeError) as caught:
        site.take(batch_of(10))
    assert [record for record, _ in site.out] == [0, 1, 2, 3]
    cause = failure_cause(caught.value)
    assert (cause.operator, cause.record, cause.traceback) == ("parse", "4", "in parse")
    assert "operator 'parse' ends its process (SIGSEGV)" in cause.message
    failures = Failures(RestartPolicy(2, 300_000, 0, 100, 1_000, 3))
    for _ in range(2):
        failures.failover(lost(1), is_restoring=False)
    _, decision = failures.failover(cause, is_restoring=False)
    assert isinstance(decision, GiveUp) and decision.cause == cause


# Real copies.


def at(number: int, harm: Callable[[], Any]) -> Map:
    def function(record: int) -> int:
        if record == number:
            harm()
        return record

    return Map("m", function)


def raise_oddly() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def copies() -> ForkedCopies:
    return ForkedCopies(heartbeat_timeout_s=600)


@pytest.mark.parametrize(
    ("harm", "how"),
    [
        (lambda: os._exit(0), "exit status 0"),
        (lambda: os._exit(3), "exit status 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
        (lambda: ctypes.string_at(0), "SIGSEGV"),
        (os.abort, "SIGABRT"),
    ],
)
def test_a_copy_says_at_which_record_it_died_and_how(
    copies: ForkedCopies, harm: Callable[[], Any], how: str
) -> None:
    tried = copies.attempt(at(2, harm), Batch([0, 1, 2, 3]))
    assert tried.died is not None
    assert (tried.passed, tried.died.how) == (2, how)
    if how in ("SIGSEGV", "SIGABRT"):
        assert "test_probing.py" in tried.died.trace
        assert "stateless.py" not in tried.died.trace


class Windows(Map):
    """Dies of what is due."""

    def advance(self, watermark: int | None) -> Batch | None:
        if watermark == 7:
            ctypes.string_at(0)
        return None


def test_a_copy_dies_of_what_is_due(copies: ForkedCopies) -> None:
    operator = Windows("windows", abs)
    assert copies.attempt_due(operator, 6) == Tried(1)
    tried = copies.attempt_due(operator, 7)
    assert tried.died is not None
    assert (tried.passed, tried.died.how) == (0, "SIGSEGV")
    assert "in advance" in tried.died.trace


@pytest.mark.parametrize(("harm", "passed"), [(raise_oddly, 3), (lambda: 1 / 0, 3), (lambda: None, 4)])
def test_what_only_raises_is_left_to_the_worker(
    copies: ForkedCopies, harm: Callable[[], Any], passed: int
) -> None:
    assert copies.attempt(at(2, harm), Batch([0, 1, 2, 3])) == Tried(passed)


def test_nothing_changes_here_while_a_copy_works(copies: ForkedCopies, capfd: Any) -> None:
    seen: list[int] = []

    def note(record: int) -> int:
        seen.append(record)
        print(record)
        return record

    assert copies.attempt(Map("m", note), Batch([1, 2, 3])) == Tried(3)
    assert seen == []
    assert capfd.readouterr() == ("", "")


def test_a_copy_that_hangs_is_ended() -> None:
    copies = ForkedCopies(heartbeat_timeout_s=8)
    before = children()
    assert copies.attempt(at(2, threading.Event().wait), Batch([0, 1, 2])) == Tried(2)
    assert children() <= before


def children() -> set[str]:
    """Return the child processes that this one has, also those that nobody has waited for."""
    command = ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line for line in shown.splitlines() if line.split()[1] != "ps"}


def test_a_copy_takes_no_other_record_when_its_time_is_up() -> None:
    copies = ForkedCopies(heartbeat_timeout_s=10)
    tried = copies.attempt(Map("m", lambda _: threading.Event().wait(0.4)), Batch(list(range(100))))
    assert tried.died is None and 1 <= tried.passed < 100


# Decoding, before there is an operator.


def test_decoding_goes_on_behind_an_item_that_ends_the_process() -> None:
    """K1: what copies survive is decoded, and each deadly item is named in its turn."""
    copies = Told(
        Tried(1, CRASH), Tried(0, CRASH), Tried(0, CRASH), Tried(1, CRASH), Tried(0, CRASH), Tried(0, CRASH)
    )
    found = ["1", "bad", "2", "bad"]
    decode = TriedDecoding(int, decoding_trial(probing_with(copies, 2), "lines"), found)
    decoded: list[Any] = []
    for item in found:
        try:
            decoded.append(decode(item))
        except ProcessDiedError as error:
            decoded.append((str(error), error.trace))
    assert decoded == [1, ("SIGSEGV", "in parse"), 2, ("SIGSEGV", "in parse")]
    assert copies.tried == [found, found[1:], ["bad"], ["2", "bad"], ["bad"], ["bad"]]


def test_an_exception_of_decoding_is_passed_on_and_costs_no_copy() -> None:
    copies = Told(Tried(3))
    decode = TriedDecoding(int, decoding_trial(probing_with(copies, 2), "lines"), ["1", "x", "2"])
    assert decode("1") == 1
    with pytest.raises(ValueError, match="invalid literal"):
        decode("x")
    assert decode("2") == 2
    assert copies.tried == [["1", "x", "2"]]
