"""The printing sink: nothing that may be undone, nothing left out, and what it can't promise."""

from __future__ import annotations

import io
import sys

import pytest

from crosscut.connectors.simple.printing import printing
from crosscut.errors import ConnectorError, SettingsError
from crosscut.testing.sink_targets import SinkTarget, open_writer, permit, stage
from crosscut.testing.sinks import SINK_CHECKS

NOT_PROMISED = {
    # A line can't be taken back, and nobody can be asked whether it is there.
    "check_a_driver_that_was_overtaken_is_refused",
    "check_checkpoint_may_be_restored_twice",
    "check_commit_may_be_repeated",
    "check_dropped_output_is_never_visible_and_all_other_is",
    "check_newer_output_is_refused",
    "check_order_is_kept",
    "check_random_lives",
    "check_two_drivers_of_one_epoch_exclude_each_other",
    "check_zombie_changes_nothing",
}


@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_every_promise_of_a_sink_but_that_nothing_comes_twice(
    check: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal)
    target = SinkTarget(printing(), visible=lambda: terminal.getvalue().splitlines())
    if check.__name__ not in NOT_PROMISED:
        check(target)
        return
    with pytest.raises(AssertionError):
        check(target)


def test_lines_of_the_last_checkpoint_come_again_after_a_failure_and_no_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sink = printing("n")
    writer = open_writer(sink, 1)
    first, second = stage(writer, [1, 2], 1), stage(writer, [3], 2)
    assert capsys.readouterr().out == ""
    writer.commit(permit(1), [first])
    writer.commit(permit(1), [first])
    assert capsys.readouterr().out == "n: 1\nn: 2\n"
    writer.commit(permit(2), [first, second])
    assert capsys.readouterr().out == "n: 3\n"
    open_writer(sink, 2, restore=2, handles=[second])
    assert capsys.readouterr().out == "n: 3\n"


def test_a_record_that_has_no_text_is_an_error_with_its_cause(capsys: pytest.CaptureFixture[str]) -> None:
    class Mute:
        def __str__(self) -> str:
            raise ValueError("no words")

    with pytest.raises(ConnectorError, match="its __str__ raised ValueError: no words"):
        open_writer(printing(), 1).write([Mute()])
    writer = open_writer(printing(), 1)
    writer.commit(permit(1), [stage(writer, ["\ud800 ü"], 1)])
    assert capsys.readouterr().out == "\\ud800 ü\n"


def test_an_output_that_is_closed_is_an_error_of_the_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError("nobody reads")

    writer = open_writer(printing(), 1)
    handle = stage(writer, [1], 1)
    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(ConnectorError, match="could not be printed: nobody reads"):
        writer.commit(permit(1), [handle])


@pytest.mark.parametrize("label", [3, None, "a\nb"])
def test_a_label_is_a_text_of_one_line(label: object) -> None:
    with pytest.raises(SettingsError, match="expected a single line of text"):
        printing(label)  # type: ignore[arg-type]
