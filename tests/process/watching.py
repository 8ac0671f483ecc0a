"""Reads what a job has made visible, again and again while it runs, and judges it: the history so far."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from jobs import NumberedJob, pending_handles

import crosscut as cc
from crosscut.protocol.log.entries import CheckpointCompleted

LOOK_EVERY_S = 0.1
"""It reads the whole job log: often, but not all the time."""

Update = tuple[int, int, int]


class Watcher:
    """What readers have seen of the output of one job, under whichever engines and drivers.

    Args:
        drawn: Sinks beside that of `numbered`, and all that each of them may ever get, by `repr`.

    Attributes:
        looks: How often it has looked at output that was there.
        newest: The newest checkpoint that is in the job log.
        shown: What each drawn sink had when it was looked at last.
    """

    def __init__(self, numbered: NumberedJob, drawn: Mapping[Path, Counter[str]] | None = None) -> None:
        self._numbered = numbered
        self._drawn = dict(drawn or {})
        self._read: dict[Path, list[tuple[str, Update]]] = {}
        self.shown: dict[Path, Counter[str]] = {out: Counter() for out in self._drawn}
        self._looked_s = 0.0
        self.looks = 0
        self.newest = 0

    def look(self) -> None:
        """Judge what is visible now, unless it was looked at a moment ago."""
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            self.judge()
            self._looked_s = time.monotonic()

    def judge(self) -> None:
        """Raise AssertionError if anything is visible that must not be, or is not and has been."""
        outs = [self._numbered.out, *self._drawn]
        # All that was visible before any of these is visible to whoever looks after them.
        seen = {path for out in outs for path in out.glob("part-*")}
        found = {path for out in outs for path in out.glob("part-*")}
        completed = self._numbered.completed()
        assert seen <= found, f"{seen - found} could be read, and can't any more"
        assert self._read.keys() <= found, f"{self._read.keys() - found} could be read, and can't any more"
        _check_is_allowed(found, completed)
        self.newest = max([self.newest, *(one.checkpoint_id for one in completed)])
        self.looks += bool(found)
        of_numbered = {path for path in found if path.parent == self._numbered.out}
        for path in of_numbered - self._read.keys():
            lines = path.read_text().splitlines()
            self._read[path] = [(key, tuple(update)) for key, update in map(json.loads, lines)]
        check_is_beginning(
            *({path: self._read[path] for path in paths & of_numbered} for paths in (seen, found))
        )
        for out, expected in self._drawn.items():
            shown = Counter(map(repr, cc.collect(out).records())) if out.exists() else Counter()
            assert shown <= expected, f"{out}: {shown - expected} should never be there"
            assert self.shown[out] <= shown, f"{out}: {self.shown[out] - shown} could be read before"
            self.shown[out] = shown


def _check_is_allowed(visible: set[Path], completed: list[CheckpointCompleted]) -> None:
    """I3, I9: every visible file was staged in a checkpoint whose log entry is durable.

    The log is read after the files: what is new in it can't accuse the innocent. Of a checkpoint that it does
    not hold any more it is known that a newer one, which authorises the same and more, is complete.
    """
    allowed = {handle["final"].rpartition("/")[2] for one in completed for handle in pending_handles(one)}
    oldest = min((one.checkpoint_id for one in completed), default=0)
    early = {path for path in visible if int(path.name.split("-")[2]) >= oldest and path.name not in allowed}
    assert not early, f"{early} are visible, and no entry of the log has them"


def check_is_beginning(
    seen: Mapping[Path, list[tuple[str, Update]]], found: Mapping[Path, list[tuple[str, Update]]]
) -> None:
    """I1, I2, I4: of each key the updates are the first ones, each once, and each from the one before.

    Args:
        seen: What could be read some time ago.
        found: What could be read since. Who lists a directory may miss what comes meanwhile, and find what
            comes after that.
    """
    newest: Counter[str] = Counter()
    for updates in seen.values():
        for key, (position, _, _) in updates:
            newest[key] = max(newest[key], position)
    by_key: dict[str, list[Update]] = defaultdict(list)
    for updates in found.values():
        for key, update in updates:
            by_key[key].append(update)
    for key, updates in by_key.items():
        updates.sort()
        positions = [position for position, _, _ in updates]
        numbers = [number for _, _, number in updates]
        assert len(set(positions)) == len(positions), f"{key}: updates {positions} are visible twice"
        assert len(set(numbers)) == len(numbers), f"{key}: records {numbers} were counted twice"
        first = positions[: newest[key]]
        assert first == list(range(1, newest[key] + 1)), f"{key}: of updates {positions} some are missing"
        running = 0
        for _, total, number in updates[: len(first)]:
            running += number
            assert total == running, f"{key}: the state does not belong to the output"
