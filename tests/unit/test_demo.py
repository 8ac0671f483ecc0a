"""The demo's verdict finds every way in which a running count can be wrong."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from crosscut.cli.demo.corpus import write_corpus
from crosscut.cli.demo.report import print_result
from crosscut.cli.demo.verdict import (
    Difference,
    committed_updates,
    differences,
    line_count,
    word_counts,
)
from crosscut.cli.demo.word_count import Kill, Request, Result
from crosscut.cli.view import LineView
from crosscut.errors import SettingsError
from crosscut.monitoring.status import JobStatus, Recovery, WorkerStatus

EXPECTED = {"a": 3, "b": 1}
EXACT = [("a", 1), ("b", 1), ("a", 2), ("a", 3)]


def test_updates_that_count_up_to_what_is_expected_are_exact() -> None:
    assert differences(EXPECTED, EXACT) == []
    assert differences({}, []) == []


@pytest.mark.parametrize(
    ("updates", "found"),
    [
        pytest.param(EXACT[:-1], Difference("a", 3, 2, None), id="the last update is missing"),
        pytest.param([*EXACT[1:]], Difference("a", 3, 2, (1, 2)), id="the first update is missing"),
        pytest.param([*EXACT, ("a", 4)], Difference("a", 3, 4, None), id="a word counted once too often"),
        pytest.param([*EXACT, ("a", 3)], Difference("a", 3, 4, (4, 3)), id="an update written twice"),
        pytest.param(
            [("b", 1), ("a", 1), ("a", 3), ("a", 3)],
            Difference("a", 3, 3, (2, 3)),
            id="one lost and one doubled: the number of updates and the last one are right",
        ),
        pytest.param(
            [("b", 1), ("a", 2), ("a", 1), ("a", 3)], Difference("a", 3, 3, (1, 2)), id="out of order"
        ),
        pytest.param(
            [one for one in EXACT if one[0] == "a"], Difference("b", 1, 0, None), id="a word is missing"
        ),
        pytest.param([*EXACT, ("c", 1)], Difference("c", 0, 1, None), id="a word that is not in the text"),
    ],
)
def test_whatever_is_wrong_is_found(updates: list[tuple[str, int]], found: Difference) -> None:
    assert differences(EXPECTED, updates) == [found]


def test_a_difference_says_what_was_expected_and_found() -> None:
    assert str(Difference("a", 3, 4, (2, 7))) == (
        "'a': expected the updates 1 to 3, found 4 updates; where 2 should be, there is 7"
    )


def test_text_is_counted_as_the_lines_source_and_str_split_see_it(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"a b\r\na\x0cb \xff\n\xe2\x82\n\nlast")
    paths = [str(text)]
    assert line_count(paths) == 5
    assert word_counts(paths) == {"a": 2, "b": 2, "\ufffd": 2, "last": 1}


def test_only_committed_files_are_read_by_task_then_by_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".crosscut").mkdir()
    (tmp_path / ".crosscut" / "part-9.jsonl").write_text('["staged",1]\n')
    (tmp_path / "part-00000-000000000010-x.jsonl").write_text('["a",2]\n')
    (tmp_path / "part-00000-000000000009-x.jsonl").write_text('["a",1]\n')
    (tmp_path / "part-00001-000000000001-x.jsonl").write_text(json.dumps(["\u2028", 1]) + "\n")
    assert [tuple(one) for one in committed_updates(tmp_path)] == [("a", 1), ("a", 2), ("\u2028", 1)]


def test_the_corpus_has_the_size_that_was_asked_for_and_is_a_text(tmp_path: Path) -> None:
    pattern = write_corpus(tmp_path / "corpus", 5_000_000)
    files = sorted(tmp_path.glob("corpus/*.txt"))
    assert pattern == str(tmp_path / "corpus" / "*.txt")
    assert len(files) == 2
    assert 5_000_000 <= sum(one.stat().st_size for one in files) < 6_500_000
    assert word_counts(map(str, files))["def"] > 1_000


def test_a_python_without_sources_is_told_to_name_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "nothing"))
    with pytest.raises(SettingsError, match="--input"):
        write_corpus(tmp_path / "corpus")


STATUS = JobStatus(
    name="word-count-demo",
    phase="running",
    epoch=1,
    workers=(),
    checkpoints=(),
    checkpoints_completed=0,
    checkpoints_failed=0,
    checkpoint_under_way=None,
    restarts=0,
    last_failure="",
    recoveries=(),
    first_flow_ns=1,
    records_read=0,
    records_per_second=0.0,
    state_keys=2,
    queued_records=0,
    tasks=(),
    dropped={},
)


def result(wrong: list[Difference], kills: list[Kill]) -> Result:
    return Result(
        request=Request(),
        status=STATUS,
        bytes=8,
        lines=2,
        words=4,
        distinct_words=2,
        started_s=1.0,
        running_s=2.0,
        kills=kills,
        committed=4,
        differences=wrong,
        plain_s=0.1,
        kept=None,
    )


def printed(shown: Result) -> str:
    console = Console(file=StringIO(), width=200)
    print_result(shown, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


KILL = Kill(pid=123, epoch=1, killed_ns=10**9, recovery=Recovery(2, "lost", 1_004_000_000, 1_500_000_000))


def test_an_exact_output_after_a_kill_is_identical() -> None:
    exact = result([], [KILL])
    assert exact.is_exact
    text = printed(exact)
    assert "identical" in text
    assert "0.50 s" in text
    assert "noticed in 4 ms" in text


def test_any_difference_is_shown_and_is_not_exact() -> None:
    wrong = result([Difference(f"w{n}", 2, 1, None) for n in range(7)], [KILL])
    assert not wrong.is_exact
    text = printed(wrong)
    assert "identical" not in text
    assert "DIFFERENT: 7 of 2 words" in text
    assert "'w4': expected the updates 1 to 2, found 1 updates" in text
    assert "and 2 more" in text


def test_a_demo_that_could_not_kill_has_shown_nothing() -> None:
    untouched = result([], [])
    assert not untouched.is_exact
    assert "INCOMPLETE" in printed(untouched)


def test_lines_say_what_changes_and_what_the_log_warns_of() -> None:
    console = Console(file=StringIO(), width=200)
    log = logging.getLogger("crosscut.job")
    with LineView(console, total=1_000) as view:
        view.show(replace(STATUS, records_read=100, workers=(WorkerStatus(0, "127.0.0.1", 77, 1),)))
        view.show(replace(STATUS, records_read=110))
        log.info("nobody needs to know")
        log.warning("restart %s: worker 0 is lost", 1)
        log.error("the command says this itself")
        view.show(replace(STATUS, epoch=2, records_read=90))
    assert isinstance(console.file, StringIO)
    first, why, second = console.file.getvalue().splitlines()
    assert "running    epoch 1  records 100 (10%)" in first
    assert first.endswith("workers 77")
    assert why.endswith("s  restart 1: worker 0 is lost")
    assert "running    epoch 2  records 90 (9%)" in second
    assert not logging.getLogger("crosscut").handlers
