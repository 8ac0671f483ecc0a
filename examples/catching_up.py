"""Backfill and live records as one job: a log that was written for a year, and goes on being written.

    crosscut run examples/catching_up.py:flow --engine auto --caught-up-at 500

In the beginning 200,000 lines wait, and the job reads them in micro-batches, on all cores that Spark has.
When it has caught up, it goes over to tasks that stay, at a checkpoint, and each line is counted within
milliseconds. The counts go on: nothing is lost or counted twice at the seam.
"""

from __future__ import annotations

import crosscut as cc

PAGES = 50
WAITING = 200_000


def page_of(number: int) -> str:
    return f"/page/{number * 7919 % PAGES}"


def backlog() -> cc.Source[str]:
    """Return what had been written before anybody counted."""
    return cc.generate(page_of, count=WAITING)


def live() -> cc.Source[str]:
    """Return what is written from now on, 200 lines a second."""
    return cc.generate(page_of, rate=200)


flow = cc.Flow("visits")
(
    flow.source(backlog())
    .named("backlog")
    .union(flow.source(live()).named("live"))
    .named("lines")
    .key_by(lambda page: page)
    .named("pages")
    .count()
    .named("visits")
    .sink(cc.files.write_jsonl("visits"))
    .named("out")
)
