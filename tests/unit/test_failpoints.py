"""Failpoints: the right process, at the right time, once over all processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
from pathlib import Path

import pytest

from crosscut.errors import InternalError, SettingsError
from crosscut.host.failpoints import VARIABLE, Failpoints, Plan, Trap, armed


def plan(directory: Path, *traps: Trap) -> Plan:
    return Plan(str(directory), traps)


def fires_at(failpoints: Failpoints, name: str, passes: int) -> list[int]:
    """Pass `name` that often; return at which times it fired."""
    fired = []
    for number in range(1, passes + 1):
        try:
            failpoints(name)
        except InternalError:
            fired.append(number)
    return fired


def test_nothing_is_armed_unless_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert armed() is None
    failpoints = Failpoints(armed(), 0)
    assert not failpoints.is_armed
    assert fires_at(failpoints, "anywhere", 3) == []


def test_the_environment_becomes_a_plan_that_travels_to_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/tmp/dir;align.partial:kill:3;commit.before:stop:1:2;")
    expected = Plan("/tmp/dir", (Trap("align.partial", "kill", 3, None), Trap("commit.before", "stop", 1, 2)))
    assert armed() == expected
    assert pickle.loads(pickle.dumps(expected)) == expected


@pytest.mark.parametrize("trap", ["name", "name:kill", "name:explode:1", "name:kill:x", "name:kill:1:a:b"])
def test_a_rule_that_is_none_is_refused(trap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"/tmp/dir;{trap}")
    with pytest.raises(SettingsError, match="is not NAME:ACTION:NTH"):
        armed()


def test_a_rule_fires_at_the_nth_time_and_never_again(tmp_path: Path) -> None:
    failpoints = Failpoints(plan(tmp_path, Trap("here", "raise", 3, None)), 0)
    assert fires_at(failpoints, "there", 5) == []
    assert fires_at(failpoints, "here", 10) == [3]


def test_a_rule_fires_in_one_process_only(tmp_path: Path) -> None:
    one = Failpoints(plan(tmp_path, Trap("here", "raise", 1, None)), 0)
    other = Failpoints(plan(tmp_path, Trap("here", "raise", 1, None)), 1)
    assert (fires_at(one, "here", 2), fires_at(other, "here", 2)) == ([1], [])


def test_a_rule_for_one_worker_leaves_the_others_and_the_driver_alone(tmp_path: Path) -> None:
    armed_plan = plan(tmp_path, Trap("here", "raise", 1, 1))
    assert fires_at(Failpoints(armed_plan, 0), "here", 3) == []
    assert fires_at(Failpoints(armed_plan, None), "here", 3) == []
    assert fires_at(Failpoints(armed_plan, 1), "here", 3) == [1]


def test_rules_at_the_same_point_fire_one_after_the_other(tmp_path: Path) -> None:
    traps = (Trap("here", "raise", 1, None), Trap("here", "raise", 3, None))
    assert fires_at(Failpoints(plan(tmp_path, *traps), 0), "here", 5) == [1, 3]


def pass_twice(armed_plan: Plan, path: str) -> None:
    failpoints = Failpoints(armed_plan, 0)
    for number in (1, 2):
        failpoints("here")
        Path(path).write_text(json.dumps(number))


def child(armed_plan: Plan, path: Path) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=pass_twice, args=(armed_plan, str(path)))
    process.start()
    return process


def test_kill_ends_the_process_at_that_very_place(tmp_path: Path) -> None:
    process = child(plan(tmp_path, Trap("here", "kill", 2, None)), tmp_path / "passed")
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert json.loads((tmp_path / "passed").read_text()) == 1


def test_stop_stops_the_process_until_it_is_continued(tmp_path: Path) -> None:
    process = child(plan(tmp_path, Trap("here", "stop", 2, None)), tmp_path / "passed")
    assert process.pid is not None
    found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert found is not None
    assert found.si_status == signal.SIGSTOP
    assert json.loads((tmp_path / "passed").read_text()) == 1
    os.kill(process.pid, signal.SIGCONT)
    process.join(60)
    assert (process.exitcode, json.loads((tmp_path / "passed").read_text())) == (0, 2)


def test_hang_waits_for_the_file_that_lets_it_go(tmp_path: Path) -> None:
    process = child(plan(tmp_path, Trap("here", "hang", 2, None)), tmp_path / "passed")
    while not (tmp_path / "0-here").exists():
        assert process.is_alive()
    assert json.loads((tmp_path / "passed").read_text()) == 1
    (tmp_path / "go").touch()
    process.join(60)
    assert (process.exitcode, json.loads((tmp_path / "passed").read_text())) == (0, 2)
