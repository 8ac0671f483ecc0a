"""Windows and joins in virtual worlds: their output is exact, and planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.proof.worlds.drawn import drawn_options
from tests.proof.worlds.shrinking import live
from tests.simulation.planted import must_break
from tests.simulation.seeds import some_of

from crosscut.flow.builtin_processes import FirstByEventTime
from crosscut.operators.joins.times import TimedRows
from crosscut.operators.windows.aligned import AlignedWindows, _Index
from crosscut.operators.windows.sessions import SessionWindows
from crosscut.state.named import NamedTable

WORLDS = 60
FLOWS = {
    "windows": (
        "timed_source 8,8 2; key_by 0 number 5; window 1 tumbling 50 count; window 1 sliding 90 aggregate; "
        "sink 2; sink 3"
    ),
    "sessions": (
        "timed_source 8,8 2; key_by 0 number 3; window 1 session 50 process; key_by 2 one 1; "
        "window 3 tumbling 90 sum; sink 4"
    ),
    "joins": (
        "timed_source 8,5 0; timed_source 8 0; key_by 0 number 2; key_by 1 number 2; "
        "join 2 3 interval outer 50; join 2 3 latest left 20; join 2 3 window outer 90; "
        "sink 4; sink 5; sink 6"
    ),
    # Early results, late records: each is counted once, however often a window speaks.
    "early and late": (
        "source 12,9 0; times 0 scattered 2; key_by 1 number 3; patient 2 8; map 3 same 1; sink 4"
    ),
    # What is alike comes on two ways, one longer than the other.
    "moments": (
        "timed_source 8,8 0; timed_source 3,8 1; rebalance 0; union 0,1,2; key_by 3 number 2; "
        "deduplicate 4 a moment; sink 5"
    ),
    # A watermark comes around after the loop has been found exhausted.
    "a loop": "timed_source 1 0; loop 0 filter and map last; rebalance 1; leave 1 2 1; sink 1",
}


@some_of(20, few=6)
@pytest.mark.parametrize("name", FLOWS)
def test_the_output_of_windows_and_joins_is_exact_in_every_world(name: str, seeds: range) -> None:
    seen = 0
    for seed in seeds:
        life = live(replace(drawn_options(seed), flow=FLOWS[name]))
        assert not life.failure, f"seed {seed}: {life.failure}"
        seen += life.seen["epoch"] > 1
    assert seen


def test_finds_late_records_that_a_window_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AlignedWindows, "_add_to_kept", lambda self, key, start, record, said: None)
    worlds = (replace(drawn_options(seed), flow=FLOWS["early and late"]) for seed in range(WORLDS))
    assert any(live(options).failure.startswith("I1: ") for options in worlds)


def forgets_all(plain: Callable[..., None]) -> Callable[..., None]:
    """One timer of a key has all that is known of it forgotten."""
    return lambda self, time, ctx: self.passed.clear()


def finds_nothing(plain: Callable[..., None]) -> Callable[..., None]:
    """A restored operator does not know of its rows."""

    def begin(self: Any, table: NamedTable) -> None:
        rows = table.items
        table.items = lambda: iter(())  # type: ignore[method-assign]
        try:
            plain(self, table)
        finally:
            table.items = rows  # type: ignore[method-assign]

    return begin


def keeps_the_row(plain: Callable[..., None]) -> Callable[..., None]:
    """What has been said stays in the state."""

    def delete(self: _Index, row: Any) -> None:
        key, start = row
        del self.keys[start][key]

    return delete


def keeps_a_joined_row(plain: Callable[..., None]) -> Callable[..., None]:
    """A record that has been given up, or sent, stays in the state."""

    def delete(self: TimedRows, key: Any, time: int) -> None:
        table, self._table = self._table, NamedTable("nowhere", lists_names=False)
        plain(self, key, time)
        self._table = table

    return delete


def forgets_the_key(plain: Callable[..., None]) -> Callable[..., None]:
    """A session that has moved is not looked at again."""
    return lambda self, key: None


PLANTED: dict[str, tuple[str, Any, str, Callable[[Any], Any]]] = {
    "restored windows are forgotten": ("windows", _Index, "__init__", finds_nothing),
    "a window that has spoken stays": ("windows", _Index, "delete", keeps_the_row),
    "a session that goes on is forgotten": (
        "sessions",
        SessionWindows,
        "_look_again",
        forgets_the_key,
    ),
    "restored records of joins are forgotten": ("joins", TimedRows, "__init__", finds_nothing),
    "a deduplicate forgets too much": ("moments", FirstByEventTime, "on_timer", forgets_all),
    "a record that has been sent stays": ("joins", TimedRows, "delete", keeps_a_joined_row),
}


@pytest.mark.parametrize("name", PLANTED)
def test_finds_the_planted_bug(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flow, target, method, planted = PLANTED[name]
    monkeypatch.setattr(target, method, planted(getattr(target, method)))
    worlds = (replace(drawn_options(seed), flow=FLOWS[flow]) for seed in range(WORLDS))
    must_break("I1|I2|I11", (live(options).failure for options in worlds))
