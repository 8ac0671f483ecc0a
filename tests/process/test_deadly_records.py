"""P7: a record that ends the process of its worker is found in a copy of it, named, or set aside."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs import DEADLINE_S, NumberedJob, Record, until

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


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("place", ["hook", "keyed_hook"])
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
    assert handle.progress()["restarts"] == 2
    job.check_nothing_is_visible_too_early()
