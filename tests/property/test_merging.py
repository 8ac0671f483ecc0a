"""Merges that die at any call of the system, with readers who list, and who take files away, at any moment.

The oracle is the list of records: nobody who lists ever sees one twice, and in the end each is there, or was
taken, once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from dying import Killed, Machine, Process
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.examples import examples

import crosscut as cc
from crosscut.connectors.files import merging
from crosscut.connectors.files import stage as stage_module
from crosscut.connectors.files.merging import merges_done
from crosscut.errors import ConnectorError
from crosscut.foundation.ids import TaskId, VertexId
from crosscut.testing.sinks import open_writer, permit, stage

COUNT = 12


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    found = Machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "os", found.os)
        patch.setattr(stage_module, "os", found.os)
        yield found


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*.jsonl") if ".crosscut" not in path.parts]


def listed(directory: Path) -> Counter[int]:
    return Counter(int(line) for path in files_in(directory) for line in path.read_text().split())


def live(machine: Machine, directory: Path, seed: int, takes: bool) -> None:
    """Commit records in small files, and merge them in several lives.

    Raises:
        AssertionError: A record is seen twice at any moment, or is not there in the end.
    """
    choices = random.Random(seed)
    writer = open_writer(cc.files.write_jsonl(directory), 1, task=TaskId(VertexId("v"), 0))
    handles = [stage(writer, [n], n + 1) for n in range(COUNT)]
    writer.commit(permit(COUNT), handles)
    writer.close()
    taken: Counter[int] = Counter()

    def between() -> None:
        seen = listed(directory)
        assert not [n for n, count in (seen + taken).items() if count > 1], f"seed {seed}: {seen}"
        with suppress(ConnectorError), merges_done(str(directory), timeout_s=0):
            assert listed(directory) + taken == Counter(range(COUNT)), f"seed {seed}: not all at once"
        if takes and choices.random() < 0.05:
            for path in choices.sample(files_in(directory), min(1, len(files_in(directory)))):
                taken.update(int(line) for line in path.read_text().split())
                path.unlink()

    for _ in range(choices.randint(1, 4)):
        process = Process(choices.choice((None, choices.randint(0, 120))), between)
        with suppress(Killed), machine.as_process(process):
            cc.files.compact(directory, older_than=0, target_bytes=choices.choice((6, 12, 1000)))
    cc.files.compact(directory, older_than=0)
    assert listed(directory) + taken == Counter(range(COUNT)), f"seed {seed}"
    left = [path.name for path in (directory / ".crosscut" / "merges").iterdir()]
    # The second one is made when the first file is moved: perhaps nothing was left to merge.
    assert "at-work.lock" in left, f"seed {seed}"
    assert set(left) <= {"at-work.lock", "moving.lock"}, f"seed {seed}"


@settings(
    max_examples=examples(40, few=15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32), takes=st.booleans())
def test_whatever_dies_wherever_nobody_sees_a_record_twice_and_none_is_lost(
    seed: int, takes: bool, machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """N3, F1."""
    live(machine, tmp_path_factory.mktemp("out"), seed, takes)


# Planted bugs.


def shown_before_the_others_go(merge: Any, directory: Any) -> bool:
    """The merged file is there while the old ones still are."""
    merge._rename(directory, "merged", merge._final)
    for number in range(len(merge._files)):
        merge._claim(directory, number)
    return True


def forgets_who_was_taken(merge: Any, directory: Any) -> bool:
    """A file that a reader has taken is merged all the same."""
    for number in range(len(merge._files)):
        merge._claim(directory, number)
    merge._rename(directory, "merged", merge._final)
    return True


def nothing_is_finished(root: Path, merges: Any) -> None:
    """What a dead run has moved away stays there."""


def nobody_waits(root: Path, merges: Any) -> bool:
    """Who reads as crosscut does looks at a half-moved merge."""
    return False


@pytest.mark.parametrize(
    ("where", "name", "bug"),
    [
        (merging._Merge, "_is_moved_in", shown_before_the_others_go),
        (merging._Merge, "_is_moved_in", forgets_who_was_taken),
        (merging, "_finish_others", nothing_is_finished),
        (merging, "_is_half_moved", nobody_waits),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_a_planted_bug_is_found(
    where: Any, name: str, bug: Callable[..., Any], machine: Machine, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, bug)
        for seed in range(100):
            try:
                live(machine, tmp_path / str(seed), seed, takes=True)
            except (AssertionError, ConnectorError):
                return
    pytest.fail(f"no seed finds it: {bug.__doc__}")
