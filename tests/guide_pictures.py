"""The pictures of the page in the guide: a job that has something to show, and what is to be seen of it.

`pytest --rewrite-pictures tests/process/test_page.py` takes them anew, in about a minute. Otherwise that test
takes them as soon as there is anything on them, and keeps none.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crosscut as cc

GUIDE = Path(__file__).parents[1] / "docs" / "guide"
BYTES_MAX = 150_000
BYTES_MIN = 5_000
"""An empty one of this size is smaller."""

RATE = 6_000
FLOW = """
import time

import crosscut as cc


def checked(number):
    if number == fails_at and not failed.exists():
        failed.touch()
        raise ValueError(f"payment {number}: no such account")
    return number, f"for order {number}" * 20


def account_of(payment):
    return payment[0] % 500


class Ledger(cc.KeyedProcess):
    total = cc.ValueState(default=0)

    def on_record(self, payment, ctx):
        ends_ns = time.monotonic_ns() + 200_000
        while time.monotonic_ns() < ends_ns:
            pass
        self.total.set(self.total.get() + 1)
        yield self.total.get()


flow = cc.Flow("payments")
numbers = flow.source(cc.generate(lambda number: number, rate=rate)).named("payments")
payments = numbers.map(checked).named("check")
totals = payments.key_by(account_of).process(Ledger()).named("ledger")
totals.rebalance().sink(cc.files.write_jsonl(out)).named("totals")
"""
"""Compiled under a name of its own: what it raises is to be seen, and no path of this machine."""


def payments(directory: Path, *, fails_at: int) -> cc.Flow:
    """Return a flow with a bottleneck, which fails once, at one of its records."""
    names = {
        "__name__": "payments",
        "fails_at": fails_at,
        "failed": directory / "failed",
        "rate": RATE,
        "out": directory / "out",
    }
    exec(compile(FLOW, "payments.py", "exec", dont_inherit=True), names)  # noqa: S102 - our own text
    flow = names["flow"]
    assert isinstance(flow, cc.Flow)
    return flow


def settings(directory: Path) -> cc.Settings:
    """Return the settings of the job."""
    return cc.Settings(
        parallelism=2,
        checkpoint_dir=directory / "checkpoints",
        checkpoint_interval="2s",
        engine=cc.Continuous(channel_bytes=65_536),
        restart=cc.Restart(delay_step="50ms"),
        web=True,
        web_port=0,
    )


def _at(page: Any, section: str) -> None:
    page.evaluate("(id) => document.getElementById(id).scrollIntoView()", section)


def _barrier(page: Any) -> None:
    page.click("#tab-checkpoints")
    page.click("#checkpoints tr:not(.failed) button >> nth=0")
    page.wait_for_selector("#moment")
    _at(page, "tabs")


def _errors(page: Any) -> None:
    page.click("#tab-log")
    # It is unfolded already if the job has not recovered yet.
    page.evaluate("document.querySelector('#errors details').open = true")
    page.wait_for_selector("#errors pre")
    _at(page, "tabs")


def _narrow(page: Any) -> None:
    page.click("#tab-graph")
    page.evaluate("scrollTo(0, 0)")


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        bring: Makes the page show it.
        shows: What must then be within it, as selectors.
        is_dark: It is taken as a browser shows it that prefers dark colours.
    """

    name: str
    width: int
    height: int
    bring: Callable[[Any], None]
    shows: tuple[str, ...]
    is_dark: bool = False

    def take(self, page: Any, directory: Path) -> None:
        """Take it, into `directory`."""
        page.set_viewport_size({"width": self.width, "height": self.height})
        page.emulate_media(color_scheme="dark" if self.is_dark else "light")
        page.evaluate("scrollTo(0, 0)")
        self.bring(page)
        for selector in self.shows:
            box = page.locator(selector).first.bounding_box()
            assert box is not None, selector
            assert box["x"] < self.width and 0 <= box["y"] < self.height, (self.name, selector, box)
        page.screenshot(path=directory / self.name)

    def check(self, directory: Path) -> None:
        """Check what stands in `directory`: that it is of its size, small, and not empty."""
        data = (directory / self.name).read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n", self.name
        assert struct.unpack(">II", data[16:24]) == (self.width, self.height), self.name
        assert BYTES_MIN < len(data) < BYTES_MAX, (self.name, len(data))


PICTURES = (
    Picture("page.png", 1_200, 900, lambda page: None, ("#name", "#graph .bottleneck", "#plots polyline")),
    Picture(
        "page-dark.png",
        1_200,
        900,
        lambda page: None,
        ("#name", "#graph .bottleneck", "#plots polyline"),
        True,
    ),
    Picture("page-barrier.png", 1_200, 560, _barrier, ("#way h3", "#moment", "#checkpoints tbody tr")),
    Picture("page-failover.png", 1_200, 380, _errors, ("#errors summary", "#errors pre")),
    Picture("page-narrow.png", 390, 780, _narrow, ("#name", "#facts")),
)


def named_in(text: str) -> set[str]:
    """Return the pictures of pixels that a page of the guide shows."""
    return set(re.findall(r"!\[[^]]*\]\(([^)]+\.(?:png|jpg|jpeg|gif|webp))\)", text))
