"""A soak: rounds of random kills and pauses, each under a protocol and settings of its own draw.

    python tests/process/soak.py --minutes 600 --seed 1

A round is one job on one directory. Workers, all workers at once, and the driver are killed, workers
and driver are stopped and go on, at moments that nobody has chosen; whoever finds the driver dead
starts another. Then the input may end, and the oracle of `NumberedJob` judges. All the time nothing may
be visible that no durable log entry allows. One line of JSON for each round, one at the end with the
totals. The first violation ends the soak with exit code 1; its line has the settings and the seed of
the round, and the directory stays. (The seed repeats the draw, not the machine's timing.) Ctrl-C ends
the round and says what the others have shown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from drivers import Driver
from jobs import NumberedJob, children_of, is_gone, shaken, state_of, until

from crosscut import Continuous
from crosscut.store.checkpoint_store import open_store

FAULTS = {"worker": 6, "all workers": 2, "driver": 2, "worker pauses": 2, "driver pauses": 1}
"""How often each is drawn, relative to the others."""

PROTOCOLS = ("aligned", "unaligned", "aligned, unaligned after 5ms", "halting")
PAUSE_S_MAX = 3.0
ALIVE_DEADLINE_S = 120.0
"""I10: within this long, whatever happened, workers are there again, and a held job ends."""


class Violation(AssertionError):
    """Something that must never happen has happened."""


@dataclass
class Round:
    """What was drawn for one round."""

    seed: int
    parallelism: int
    branches: int
    count: int
    is_shaken: bool
    settings: dict[str, Any]
    faults: list[tuple[str, int, float]] = field(default_factory=list)
    """What happens, after how many more checkpoints and workers to be seen, and how many seconds later."""
    free_before: int = 0
    """The input flows freely, and may end, from this fault on."""


def drawn(seed: int) -> Round:
    choices = random.Random(seed)
    snapshots = choices.choice(PROTOCOLS)
    in_flight = 1 if snapshots == "halting" else choices.choice((1, 1, 3))
    parallelism = choices.choice((2, 2, 3))
    settings = {
        "snapshots": snapshots,
        "parallelism": parallelism,
        "checkpoints_in_flight": in_flight,
        "checkpoint_interval": choices.choice(("20ms", "100ms", "400ms")),
        "engine": Continuous(channel_bytes=choices.choice((64 * 1024, 4 * 1024 * 1024))),
        "batch_rows": choices.choice((10, 1_000)),
        "heartbeat_timeout": choices.choice(("1s", "5s")),
        "failures": 1_000_000,
        "checkpoint_failures": 1_000,
    }
    fault_count = choices.randint(3, 10)
    names = choices.choices(list(FAULTS), list(FAULTS.values()), k=fault_count)
    # Some hit a recovery, most a job that has something to lose.
    moments = [
        (choices.choice((0, 1, 1, 2, 5)), min(choices.choice((0.0, 0.05, choices.expovariate(2.0))), 2.0))
        for _ in names
    ]
    return Round(
        seed=seed,
        parallelism=parallelism,
        branches=choices.choice((1, 1, 2)),
        count=choices.choice((10_000, 60_000, 200_000)),
        is_shaken=choices.random() < 0.5,
        settings=settings,
        faults=[(name, *moment) for name, moment in zip(names, moments, strict=True)],
        free_before=choices.randint(fault_count - 2, fault_count),
    )


class Soak:
    """One round on `directory`."""

    def __init__(self, one: Round, directory: Path) -> None:
        self.round = one
        self.numbered = NumberedJob(
            directory,
            count=one.count,
            rate=1e9,
            parallelism=one.parallelism,
            branches=one.branches,
            held=one.branches,
            hook=shaken if one.is_shaken else None,
            settings={"retain": 3},
        )
        self.done: Counter[str] = Counter()
        self._choices = random.Random(one.seed + 1)
        self._drivers: list[Driver] = []
        self._checked_s = 0.0
        self.checkpoints = 0

    @property
    def driver(self) -> Driver:
        return self._drivers[-1]

    def run(self) -> None:
        self._drive()
        for number, (name, more, delay_s) in enumerate(self.round.faults):
            if number == self.round.free_before:
                self.numbered.open_gate()
            wanted = self.checkpoints + more
            self._wait(
                lambda wanted=wanted: (
                    self.driver.has_ended or (self._workers() and self.checkpoints >= wanted)
                ),
                f"workers, and {more} checkpoints",
                ALIVE_DEADLINE_S,
            )
            due_s = time.monotonic() + delay_s
            self._wait(lambda due_s=due_s: time.monotonic() >= due_s, "the time", ALIVE_DEADLINE_S)
            if self.driver.has_ended and self._is_finished():
                break
            self._do(name)
        self.numbered.open_gate()
        self._wait(lambda: self.driver.has_ended, "the end of the job", ALIVE_DEADLINE_S)
        if not self._is_finished():
            raise Violation(f"the job ended with {self.driver.reports[-1:]}: {self.driver.errors[-4_000:]}")
        self.numbered.check_output_is_exact()
        is_tidy = not any("pauses" in name for name in self.done)
        if is_tidy and self.round.settings["checkpoints_in_flight"] == 1:
            # Else what a zombie has stored, or a subsumed checkpoint, waits for the next epoch's sweep.
            self.numbered.check_nothing_is_left_over()

    def end(self) -> None:
        for driver in self._drivers:
            if state_of(driver.pid) == "T":
                os.kill(driver.pid, signal.SIGCONT)
            driver.kill()
            for pid in driver.family:
                if state_of(pid) == "T":
                    os.kill(pid, signal.SIGKILL)
        for driver in self._drivers:
            driver.family_is_gone()

    def epochs(self) -> int:
        if not self.numbered.checkpoint_dir.exists():
            return 0
        entries = open_store(str(self.numbered.checkpoint_dir), create=False).entries()
        return max((entry.epoch for _, entry in entries), default=0)

    def _drive(self) -> None:
        self._drivers.append(Driver(self.numbered, **self.round.settings))

    def _is_finished(self) -> bool:
        return self.driver.wait(ALIVE_DEADLINE_S) == 0 and self.driver.reports[-1] == {"status": "finished"}

    def _workers(self) -> list[int]:
        """The workers that the driver has reported last and that are still its own."""
        if self.driver.has_ended:
            return []
        alive = set(children_of(self.driver.pid))
        return [pid for pid in self.driver.workers if pid in alive and not is_gone(pid)]

    def _do(self, name: str) -> None:
        victims = self._workers()
        if "worker" in name and not victims:
            return
        match name:
            case "worker":
                _signal(self._choices.choice(victims), signal.SIGKILL)
            case "all workers":
                for pid in victims:
                    _signal(pid, signal.SIGKILL)
            case "driver":
                self.driver.kill()
                self._check()
                self._drive()
            case "worker pauses":
                self._pause(self._choices.choice(victims))
            case _:
                self._pause(self.driver.pid)
        self.done[name] += 1

    def _pause(self, pid: int) -> None:
        _signal(pid, signal.SIGSTOP)
        ends_s = time.monotonic() + self._choices.uniform(0.05, PAUSE_S_MAX)
        self._wait(lambda: time.monotonic() >= ends_s or is_gone(pid), "the pause", ALIVE_DEADLINE_S)
        if state_of(pid) == "T":
            _signal(pid, signal.SIGCONT)

    def _wait(self, condition: Callable[[], Any], what: str, deadline_s: float) -> None:
        def holds() -> Any:
            self._check()
            return condition()

        until(holds, what, deadline_s)

    def _check(self) -> None:
        # It reads the whole log: often, but not all the time.
        if time.monotonic() - self._checked_s > 0.2:
            self.numbered.check_nothing_is_visible_too_early()
            self.checkpoints = len(self.numbered.completed())
            self._checked_s = time.monotonic()


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        # It has died of what happened before.
        return


def soak(minutes: float, seed: int, say: Callable[[dict[str, Any]], None]) -> int:
    """Run rounds until the time is over; return the exit code."""
    choices = random.Random(seed)
    ends_s = time.monotonic() + minutes * 60
    totals: Counter[str] = Counter(rounds=0)
    faults: Counter[str] = Counter()
    code = 0
    while code == 0 and (totals["rounds"] == 0 or time.monotonic() < ends_s):
        one = drawn(choices.randrange(2**32))
        directory = Path(tempfile.mkdtemp(prefix="crosscut-soak-"))
        current = Soak(one, directory)
        began_s = time.monotonic()
        line: dict[str, Any] = {"round": totals["rounds"] + 1, "drawn": asdict(one)}
        try:
            current.run()
            checked = sum(current.numbered.counts())
            seen = {
                "restarts": current.epochs() - 1,
                "checkpoints": current.checkpoints,
                "records_checked": checked,
            }
            line |= seen
            totals.update(rounds=1, **seen)
        except KeyboardInterrupt:
            code = 130
            line |= {"interrupted": True}
        except Exception:  # noqa: BLE001 - whatever it is, this round has shown it
            code = 1
            line |= {"violation": traceback.format_exc(), "directory": str(directory)}
            line |= {"reports": current.driver.reports[-5:], "seed": seed}
        finally:
            current.end()
            faults.update(current.done)
        say({**line, "faults": dict(current.done), "seconds": round(time.monotonic() - began_s, 1)})
        if code != 1:
            shutil.rmtree(directory)
    say({"totals": dict(totals), "faults": dict(faults), "seed": seed, "exit_code": code})
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="default: a random one")
    options = parser.parse_args()
    # A shell makes background processes deaf to it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    return soak(options.minutes, seed, lambda line: print(json.dumps(line), flush=True))


if __name__ == "__main__":
    sys.exit(main())
