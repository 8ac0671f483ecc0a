"""Event time in virtual worlds: no record in bounds is ever late, no watermark goes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from crosscut.batch import Batch
from crosscut.operators.timestamps import AssignTimestamps
from crosscut.operators.watermarks import CombinedWatermark
from crosscut.task.chain import Chain
from crosscut.task.outputs import Output
from crosscut.testing.simulator.options import options_of
from crosscut.testing.simulator.shrink import live, shrunk

WORLDS = 80
SEEDS_MAX = 200
GRAPH = ("event time",)


def test_no_record_is_late_and_no_watermark_goes_back_in_any_world() -> None:
    seen: Counter[str] = Counter()
    for seed in range(WORLDS):
        options = options_of(seed, GRAPH)
        life = live(options)
        seen += life.seen
        if life.failure:
            pytest.fail(shrunk(options, life).report(), pytrace=False)
    assert seen["epoch"] > 1.5 * WORLDS
    assert seen["job finished"] > WORLDS // 2
    assert seen["watermark passed"] > 10 * WORLDS
    assert seen["watermark restored"] > WORLDS // 10


def waits_for_the_first(self: CombinedWatermark[Any]) -> int | None:
    """The highest watermark counts instead of the lowest."""
    return max((one for one in self._sides.values() if one is not None), default=None)


def forgets_where_it_was(plain: Callable[..., None]) -> Callable[..., None]:
    def begin(self: CombinedWatermark[Any], sides: Any, watermark: int | None = None) -> None:
        plain(self, dict.fromkeys(sides), None)

    return begin


def says_news_first(self: Output, taken: Any, news: Batch) -> Any:
    """A watermark goes ahead of the records that it follows."""
    return [(channel, Batch([], watermark=news.watermark)) for channel in self.channels] + list(taken)


def leaves_news_with_the_first_part(plain: Callable[..., Any]) -> Callable[..., Any]:
    def split(self: Batch, rows: int) -> tuple[Batch, Batch]:
        head, rest = plain(self, rows)
        head.add_news(rest.watermark, idle=rest.idle)
        rest.take_news()
        return head, rest

    return split


def promises_more_than_was_said(plain: Callable[..., None]) -> Callable[..., None]:
    def begin(
        self: AssignTimestamps, uid: str, function: Any, out_of_orderness_ms: int, *others: Any
    ) -> None:
        plain(self, uid, function, 0, *others)

    return begin


def restores_old_watermarks(plain: Callable[..., None]) -> Callable[..., None]:
    """A restored task goes on from an older watermark than its snapshot has."""

    def restore(self: Chain, watermark: int | None, assigned: Any, splits: Any, *, is_new: bool) -> None:
        older = {uid: [None, {}] for uid in assigned} if assigned else assigned
        plain(self, watermark, older, splits, is_new=is_new)

    return restore


PLANTED: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "the highest watermark counts": (CombinedWatermark, "_lowest", lambda _: waits_for_the_first),
    "a restored task forgets its watermark": (CombinedWatermark, "__init__", forgets_where_it_was),
    "a watermark goes ahead of records": (Output, "_with_news", lambda _: says_news_first),
    "the first part of a batch has its watermark": (Batch, "split", leaves_news_with_the_first_part),
    "a source promises more than was said": (AssignTimestamps, "__init__", promises_more_than_was_said),
    "sources begin with no watermark": (Chain, "restore", restores_old_watermarks),
}


@pytest.mark.parametrize("name", PLANTED)
def test_finds_the_planted_bug(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, method, planted = PLANTED[name]
    monkeypatch.setattr(target, method, planted(getattr(target, method)))
    failures = (live(options_of(seed, GRAPH)).failure for seed in range(SEEDS_MAX))
    assert any(failure.startswith("I14: ") for failure in failures)
