"""What a browser needs that has a page open for an hour, and how long the page takes to load.

There is no job, but what is seen of one in which much happens: a checkpoint, a dead letter and a line that is
logged each ten seconds, a failover with a traceback each half minute. The page asks for the next second as
soon as it has shown the last one. Needs playwright and a Chromium of the system (`chromium`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from tests.crowd import Eventful

from crosscut.web.page import Page

HOUR = 3_600
LOADS = 5
TIMEOUT_MS = 600_000
HASTE = """
const wait = window.setTimeout.bind(window);
window.setTimeout = (call, ms, ...more) => wait(call, ms === 1000 ? 0 : ms, ...more);
"""
"""The page asks once a second. Nothing else in it waits for so long."""
FIRST_SEEN = """
new MutationObserver((_, observer) => {
  if (!document.querySelector("#graph .vertex")) return;
  observer.disconnect();
  requestAnimationFrame(() => wait(() => { window.seenAtMs = performance.now(); }, 0));
}).observe(document, { childList: true, subtree: true });
"""
"""When the first picture with the graph in it was drawn, since the browser was told to open the page."""


def open_page(browser: Any, link: str) -> Any:
    """Return a page that asks as fast as it is answered."""
    page = browser.new_page(viewport={"width": 1_300, "height": 900})
    page.set_default_timeout(TIMEOUT_MS)
    page.add_init_script(HASTE + FIRST_SEEN)
    page.goto(link)
    page.wait_for_function("() => window.seenAtMs > 0")
    return page


def watched(browser: Any, crowd: Eventful, seconds: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Yield what the page of a job holds on to, after so many seconds of the job each."""
    # Each look finds another document.
    served = Page(crowd.document, None, None, clock_s=partial(next, itertools.count()))
    try:
        page = open_page(browser, served.link)
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable")
        # A table of tasks, and the way of a barrier, are shown all the time.
        page.click("#graph .vertex >> nth=2")
        for second in seconds:
            page.wait_for_function("at => document.body.dataset.at >= at", arg=crowd.at_ms(second))
            for _ in range(2):
                devtools.send("HeapProfiler.collectGarbage")
            metrics = {
                one["name"]: one["value"] for one in devtools.send("Performance.getMetrics")["metrics"]
            }
            yield {
                "seconds": second,
                "tasks": len(crowd.tasks),
                "heap_mb": round(metrics["JSHeapUsedSize"] / 1e6, 2),
                "nodes": int(metrics["Nodes"]),
                "listeners": int(metrics["JSEventListeners"]),
            }
        page.close()
    finally:
        served.close()


def loads(browser: Any, crowd: Eventful) -> dict[str, Any]:
    """Return how long the page of a job takes until its graph is to be seen, each time in another context."""
    served = Page(crowd.document, None, None)
    took_ms = []
    try:
        for _ in range(LOADS):
            page = open_page(browser, served.link)
            took_ms.append(page.evaluate("window.seenAtMs"))
            page.close()
    finally:
        served.close()
    return {
        "benchmark": "load",
        "tasks": len(crowd.tasks),
        "median_ms": round(statistics.median(took_ms)),
        "most_ms": round(max(took_ms)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parallelism", type=int, nargs="+", default=[2, 100], help="of each of 4 vertices")
    parser.add_argument("--seconds", type=int, nargs="+", default=[60, 600, 1_800, HOUR])
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for parallelism in options.parallelism:
            crowd = Eventful(parallelism)
            print(json.dumps(loads(browser, crowd)), flush=True)
            for one in watched(browser, crowd, options.seconds):
                print(json.dumps({"benchmark": "hour", **one}), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
