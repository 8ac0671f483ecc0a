"""A process with several states on real workers, one of which is killed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from jobs import PATIENT, hold, lose, until

import crosscut as cc

COUNT, KEYS = 6_000, 10
"""Both sources give every second number, so that all numbers of a key come from one of them, in order."""


class Triples(cc.KeyedProcess[int, Any]):
    """Says three numbers of a key at a time, and how many that made."""

    said = cc.ValueState[int](default=0)
    waiting = cc.ListState[int]()
    last_digits = cc.MapState[int, int]()

    def on_record(self, record: int, ctx: cc.Context) -> Iterator[Any]:
        self.waiting.append(record)
        self.last_digits[record % 10] = record
        if len(self.waiting) == 3:
            self.said.set(self.said.get() + 1)
            yield ctx.key, self.said.get(), self.waiting.get(), max(self.last_digits.values())
            self.waiting.clear()


def expected() -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for key in range(KEYS):
        numbers = [n for n in range(COUNT) if n % KEYS == key]
        for first in range(0, len(numbers) - 2, 3):
            three = numbers[first : first + 3]
            found[key].append((key, first // 3 + 1, three, three[-1]))
    return found


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_every_state_of_a_process_survives_the_loss_of_its_worker(
    started: Any, tmp_path: Path, backend: Literal["memory", "rocksdb"]
) -> None:
    out = cc.collect()
    flow = cc.Flow("triples")
    numbers = flow.source(cc.generate(lambda n: n, count=COUNT))
    numbers.key_by(lambda n: n % KEYS).process(Triples()).sink(out)
    gate = tmp_path / "gate"
    hold(flow, gate, 1_000.0)
    settings = cc.Settings(
        parallelism=2,
        checkpoint_dir=str(tmp_path / "checkpoints"),
        checkpoint_interval="100ms",
        state_backend=backend,
        state_dir=tmp_path / "state",
        restart=cc.Restart(delay_step="50ms", delay_max="200ms"),
        **PATIENT,
    )
    job = started.flow(flow, settings)
    until(lambda: job.report().checkpoints_completed >= 3, "three checkpoints")
    lose(job, started, 1)
    gate.touch()
    started.finish(job)
    found: dict[int, list[Any]] = defaultdict(list)
    for record in out.records():
        found[record[0]].append(record)
    assert found == expected()
    until(lambda: not list((tmp_path / "state").glob("*")), "workers that end to remove their files")
