"""Named points where a test can make a process die, stop or fail: how crashes are put where they hurt.

Nothing is armed unless the driver's environment says so. `CROSSCUT_FAILPOINTS` is
`DIRECTORY;NAME:ACTION:NTH[:WORKER];...`: the NTH time that a process passes NAME (in worker WORKER
only, if given), it does ACTION: `kill` (SIGKILL itself), `stop` (SIGSTOP itself), `raise`, or `hang`
until there is a file DIRECTORY/go. Each trap fires once over all processes: the one that creates its
file in DIRECTORY carries it out.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from crosscut.errors import InternalError, SettingsError

VARIABLE = "CROSSCUT_FAILPOINTS"

Action = Literal["kill", "stop", "raise", "hang"]

_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Trap:
    name: str
    action: Action
    nth: int
    worker: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is armed; travels from the driver to the workers."""

    directory: str
    traps: tuple[Trap, ...]


class Failpoints:
    """The plan, in one process.

    Args:
        worker: This worker's index, None on the driver.
    """

    def __init__(self, plan: Plan | None, worker: int | None) -> None:
        self._plan = plan
        self.is_armed = plan is not None
        self._worker = worker
        self._passed: Counter[str] = Counter()

    def __call__(self, name: str) -> None:
        """Pass the point called `name`."""
        if self._plan is None:
            return
        self._passed[name] += 1
        for position, trap in enumerate(self._plan.traps):
            if trap.name != name or trap.nth > self._passed[name]:
                continue
            if trap.worker is not None and trap.worker != self._worker:
                continue
            try:
                (Path(self._plan.directory) / f"{position}-{name}").touch(exist_ok=False)
            except FileExistsError:
                continue
            self._act(trap, self._plan.directory)

    def _act(self, trap: Trap, directory: str) -> None:
        match trap.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "raise":
                raise InternalError(f"failpoint {trap.name}")
            case "hang":
                go, pause = Path(directory) / "go", threading.Event()
                while not go.exists():
                    pause.wait(_LOOK_S)


def armed() -> Plan | None:
    """Return the plan that this process's environment asks for, if any."""
    text = os.environ.get(VARIABLE)
    return parsed(text) if text else None


def parsed(text: str) -> Plan:
    """Return the plan that `text` describes.

    Raises:
        SettingsError: It is not as the module says.
    """
    directory, *traps = text.split(";")
    return Plan(directory, tuple(_trap(one) for one in traps if one))


def _trap(text: str) -> Trap:
    fields = text.split(":")
    is_trap = len(fields) in (3, 4) and fields[1] in get_args(Action)
    if not is_trap or not all(number.isdecimal() for number in fields[2:]):
        raise SettingsError(f"{VARIABLE}: {text!r} is not NAME:ACTION:NTH[:WORKER]")
    worker = int(fields[3]) if len(fields) == 4 else None
    return Trap(fields[0], cast(Action, fields[1]), int(fields[2]), worker)
