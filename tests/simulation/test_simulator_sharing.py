"""Worlds that live in several processes: the same ones, in the same order, and none is lost."""

from __future__ import annotations

import gc
import os
import pickle
import signal
from collections import Counter
from dataclasses import replace
from multiprocessing import active_children

import pytest
from tests.proof.simulate import DrawnSimulation
from tests.proof.worlds.shrinking import live

from crosscut.errors import InternalError
from crosscut.testing.simulator.options import options_of
from crosscut.testing.simulator.sharing import WORLDS_PER_PROCESS_MIN, shared

ENOUGH = range(100, 100 + 4 * WORLDS_PER_PROCESS_MIN)


def test_results_come_in_order_each_once_from_other_processes() -> None:
    found = list(shared(lambda number: (number, os.getpid()), ENOUGH, jobs=3))
    assert [number for number, _ in found] == list(ENOUGH)
    assert len({pid for _, pid in found} - {os.getpid()}) == len({pid for _, pid in found}) <= 3
    assert not active_children()


class Client:
    """Has threads, as it were: only the process that made it survives its end."""

    def __init__(self) -> None:
        self.made_in = os.getpid()
        self.itself = self

    def __del__(self) -> None:
        if os.getpid() != self.made_in:
            os.kill(os.getpid(), signal.SIGKILL)


def test_what_nobody_needs_any_more_is_tidied_up_before_processes_are_copied() -> None:
    def work(number: int) -> int:
        gc.collect()
        return number

    gc.disable()
    try:
        Client()
        assert list(shared(work, ENOUGH, jobs=2)) == list(ENOUGH)
    finally:
        gc.enable()


def test_for_few_numbers_no_process_is_started() -> None:
    few = range(2 * WORLDS_PER_PROCESS_MIN - 1)
    assert list(shared(lambda number: (number, os.getpid()), few, jobs=3)) == [(n, os.getpid()) for n in few]


def test_whoever_stops_listening_leaves_no_process_behind() -> None:
    lives = shared(lambda number: number, ENOUGH, jobs=2)
    assert next(lives) == ENOUGH[0]
    lives.close()  # type: ignore[attr-defined]
    assert not active_children()


def test_a_process_that_dies_is_told_with_its_world() -> None:
    def work(number: int) -> int:
        if number == ENOUGH[7]:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    with pytest.raises(InternalError, match=rf"world of seed {ENOUGH[7]} has died: exit code -9"):
        list(shared(work, ENOUGH, jobs=2))
    assert not active_children()


def test_worlds_are_the_same_in_one_process_and_in_two() -> None:
    def told(jobs: int) -> tuple[list[tuple[str, int, str]], Counter[str]]:
        simulation = DrawnSimulation(size="small")
        lives = simulation.lives(0, 2 * WORLDS_PER_PROCESS_MIN, jobs)
        return [(one.trace_hash, one.step_count, one.failure) for one in lives], simulation.seen

    assert told(2) == told(1)


def test_records_of_classes_that_cannot_travel_are_told_as_people_see_them() -> None:
    class Mine:
        def __repr__(self) -> str:
            return "mine"

    one, other = Mine(), Mine()
    life = live(options_of(0, ("chain",), size="small"))
    lost = replace(life, repeated=(Counter({("sink", one): 2, ("sink", other): 1}), Counter()))
    travelled = pickle.loads(pickle.dumps(lost.printable()))
    assert repr(travelled.repeated) == "(Counter({('sink', mine): 3}), Counter())"
