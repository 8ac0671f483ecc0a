"""The page of a running job in a real browser, with what hurts it: a worker that dies, user code that raises,
names and errors full of markup, a narrow screen, a wrong token, the end of the job."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import urllib.request
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench import hour
from click.testing import CliRunner
from jobs import DEADLINE_S, PATIENT, Once, example, until
from pyspark import SparkContext
from tests import guide_pictures
from tests.crowd import Crowd, Eventful
from tests.reverse_proxy import ReverseProxy
from tests.unit.watched import WALL_MS

import crosscut as cc
from crosscut.cli.commands import program
from crosscut.web.job_list import JobList
from crosscut.web.page import Page
from crosscut.web.record import read_record

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MARKUP = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
DEADLINE_MS = DEADLINE_S * 1_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install --no-install-recommends chromium, as .ci/run does")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        # As root there is no sandbox; the only page it opens is our own.
        one = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield one
        one.close()


@dataclass(frozen=True)
class Raises:
    """Raises once, at a record far from the first."""

    once: Once

    def __call__(self, number: int) -> int:
        if number % 1_000 == 999 and self.once():
            raise ValueError(MARKUP)
        return number


def refuses_some(total: int) -> int:
    if total % 7 == 0:
        raise ValueError(MARKUP)
    return total


def ignored(total: int) -> None:
    """Nobody needs it."""


@pytest.fixture
def proxy() -> Iterator[ReverseProxy]:
    with ReverseProxy("/jobs/payments/", keeps_path=False, keeps_host=True) as one:
        yield one


class Payments(cc.KeyedProcess[int, int]):
    total = cc.ValueState(default=0)

    def on_record(self, record: int, ctx: cc.Context) -> Any:
        ctx.metrics.counter("payments").add()
        self.total.set(self.total.get() + record)
        yield self.total.get()


def document_of(job: Any, path: str = "api/job") -> Any:
    token = job.page.partition("#")[2]
    address = job._seeing.page.address
    request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        content = answer.read()
    return json.loads(content) if path == "api/job" else content.decode()


def opened(browser: Any, link: str, problems: list[str], script: str = "", **size: int) -> Any:
    page = browser.new_page(viewport={"width": 1_300, "height": 900, **size})
    if script:
        page.add_init_script(script)
    page.set_default_timeout(DEADLINE_MS)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console",
        lambda message: problems.append(message.text) if "Content Security Policy" in message.text else None,
    )
    page.goto(link)
    return page


def in_thread(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run `work` on an event loop of its own: the browser's has this thread."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: asyncio.run(work())).result(DEADLINE_S)


def under_spark_ui(spark: SparkContext, job: Any) -> str:
    return f"{spark.uiWebUrl}/crosscut/payments/#{job.page.partition('#')[2]}"


def top_of(directory: Path) -> str:
    result = CliRunner().invoke(program, ["top", "--once", str(directory)])
    assert result.exit_code == 0
    return result.output


def row_texts(page: Any, table: str) -> list[str]:
    # At once: rows are made anew while one looks.
    found: list[str] = page.evaluate(
        "(id) => [...document.querySelectorAll(`#${id} tbody tr`)].map((row) => row.innerText)", table
    )
    return found


def test_a_browser_sees_a_job_live_and_does_it_no_harm(
    tmp_path: Path, started: Any, browser: Any, proxy: ReverseProxy
) -> None:
    directory = tmp_path / "<b>checkpoints</b>"
    flow = cc.Flow("payments")
    numbers = flow.source(cc.generate(lambda number: number, rate=3_000)).named("numbers")
    checked = numbers.map(Raises(Once(tmp_path / "raised"))).named("check")
    paid = checked.key_by(lambda number: number % 50).process(Payments()).named("payments")
    paid.sink(cc.files.write_jsonl(tmp_path / "out")).named("out")
    refused = paid.map(refuses_some, on_error="dead letters").named("refuse")
    refused.side_output("dead letters").map(repr).sink(cc.files.write_text(tmp_path / "letters"))
    refused.for_each(ignored)
    settings = cc.Settings(
        parallelism=2,
        checkpoint_dir=directory,
        checkpoint_interval="300ms",
        **PATIENT,
        web=True,
        web_port=0,
        web_url=proxy.url,
        web_in_spark_ui=True,
    )
    job = started.flow(flow, settings)
    # The browser comes through the proxy, under its path and name, all the time.
    proxy.target = job._seeing.page.port
    assert job.page.startswith(proxy.url)
    told: list[Any] = []
    job.on_event(told.append)
    ended_meanwhile: list[bool] = []

    def looks_at_the_end(event: cc.events.JobEvent) -> None:
        if isinstance(event, cc.events.Ended):
            until(job._run._loop.is_closed, "the end of the driver's loop")
            job.metrics()
            ended_meanwhile.append(job._run.ended.is_set())

    job.on_event(looks_at_the_end)
    problems: list[str] = []
    try:
        page = opened(browser, job.page, problems)
        page.wait_for_selector("#graph .vertex")

        # Live: rates on edges, user code that raises with its traceback.
        until(lambda: not page.text_content("#graph svg .rate").startswith("0"), "rates on edges")
        page.click("#tab-checkpoints")
        until(lambda: len(row_texts(page, "checkpoints")) > 2, "checkpoints")
        until(lambda: "ValueError" in page.inner_text("#last-error"), "the last error above the tabs")
        page.click("#last-error button")
        page.wait_for_selector("#errors summary")
        if not page.is_visible("#errors pre"):
            page.click("#errors summary")
        assert "ValueError" in page.inner_text("#errors pre")
        assert MARKUP in page.inner_text("#errors pre")

        until(
            lambda: page.get_attribute("#last-error", "class") == "past",
            "the error to be one from which the job has recovered",
        )
        assert page.query_selector_all("#graph .failing") == []

        # A kill is seen, with its cause, and so is a scrape meanwhile.
        until(lambda: job.metrics().failovers[-1].flowing_ms is not None, "records to flow again")
        until(lambda: len(started.watch(job)) == 2, "two workers")
        os.kill(started.watch(job)[1], signal.SIGKILL)
        until(lambda: len(job.metrics().failovers) == 2, "the failover")
        counted = 'crosscut_restarts_total{job="payments"} 2.0'
        until(lambda: counted in document_of(job, "metrics"), "a scrape, which may be of a moment ago")
        page.click("#tab-checkpoints")
        until(lambda: len(row_texts(page, "failovers")) == 2, "the page to show it")
        assert "is lost" in row_texts(page, "failovers")[0]
        until(lambda: job.metrics().failovers[-1].flowing_ms is not None, "records to flow again")

        # The keyboard: from tab to tab, and a vertex.
        page.focus("#tab-checkpoints")
        page.keyboard.press("ArrowLeft")
        assert page.is_visible("#panel-graph") and page.is_hidden("#panel-checkpoints")
        page.focus("#graph .vertex >> nth=1")
        page.keyboard.press("Enter")
        page.wait_for_selector("#tasks tbody tr")
        assert len(row_texts(page, "tasks")) == 2

        # Marks have come by, from the source to wherever its records go.
        until(lambda: "from numbers half within" in page.inner_text("#latencies"), "a mark")
        assert {each.source for one in job.metrics().vertices for each in one.latencies} == {"numbers"}
        until(lambda: "latency from source to sink: 99 %" in top_of(directory), "the same in a terminal")

        # Dead letters, as text.
        page.click("#tab-log")
        until(lambda: len(row_texts(page, "letters")) > 2, "dead letters")
        newest_letter = row_texts(page, "letters")[0].split("\t")
        assert (newest_letter[2], newest_letter[5]) == ("refuse", f"ValueError: {MARKUP}")
        assert int(newest_letter[3]) % 7 == 0

        # The way of a barrier, at any moment of it, with the keyboard.
        page.click("#tab-checkpoints")
        page.click("#checkpoints tr:not(.failed) button >> nth=1")
        page.focus("#moment")
        page.keyboard.press("Home")
        vertices = len(job.metrics().vertices)
        assert page.text_content("#cells").count("0 durable of 2") == vertices
        page.keyboard.press("End")
        assert page.text_content("#cells").count("2 come, 2 frozen, 2 durable of 2") == vertices

        # A restart that is asked for: the same as a failover, without a failure.
        failures = len(job.metrics().errors)
        page.once("dialog", lambda dialog: dialog.accept())
        page.click("#restart")
        until(lambda: len(job.metrics().failovers) == 3, "the restart")
        until(lambda: job.metrics().failovers[-1].flowing_ms is not None, "records to flow again")
        assert job.metrics().failovers[-1].cause.message == "a restart was asked for"
        assert len(job.metrics().errors) == failures
        until(lambda: len(row_texts(page, "failovers")) == 3, "the page to show it")

        # State, of all keys and of one.
        page.click("#tab-state")
        page.wait_for_selector("#looking:not([hidden])")
        page.select_option("#look-uid", "payments")
        page.click("#look button")
        until(lambda: len(row_texts(page, "state")) == 50, "a row for each key")
        page.fill("#look-key", "7")
        page.press("#look-key", "Enter")
        until(lambda: [row.split("\t")[1] for row in row_texts(page, "state")] == ["7"], "that of one key")

        # The same under Spark's own pages, where one may act, too; found without the last `/` of its address.
        in_ui = opened(browser, under_spark_ui(started.spark, job).replace("/#", "#"), problems)
        in_ui.wait_for_selector("#graph .vertex")
        in_ui.click("#checkpoint")
        until(
            lambda: in_ui.inner_text("#said").endswith("is complete"), "a checkpoint that is asked for there"
        )
        in_ui.close()

        narrow = opened(browser, job.page, problems, width=360)
        narrow.wait_for_selector("#graph .vertex")
        first, second = (one.bounding_box() for one in narrow.query_selector_all(".vertex")[:2])
        assert first["y"] + first["height"] < second["y"], "from top to bottom"
        for tab in narrow.query_selector_all("[role=tab]"):
            tab.click()
            assert narrow.evaluate("document.documentElement.scrollWidth") <= 360
        narrow.close()

        # Without the token there is nothing to see.
        stranger = opened(browser, job.page.partition("#")[0] + "#guessed", [])
        stranger.wait_for_selector("#notice:not([hidden])")
        assert "token" in stranger.inner_text("#notice")
        assert stranger.inner_text("#graph") == ""
        stranger.close()

        # Whoever gives up waiting for the job stops nothing; a notebook shows it, and not its token.
        async def gives_up() -> None:
            waiting = asyncio.ensure_future(awaited())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert waiting.cancelled()

        async def awaited() -> Any:
            return await job

        in_thread(gives_up)
        assert job.status == "running"
        shown = job._repr_html_()
        assert "<td>payments</td>" in shown
        assert "&lt;script&gt;" not in shown, "the last error is that of the kill"
        assert job.page.partition("#")[2] not in shown

        # Stop, from the page.
        page.on("dialog", lambda dialog: dialog.accept())
        page.click("#stop")
        assert job.wait(DEADLINE_S)
        until(lambda: page.inner_text("#headline").startswith("stopped"), "the page to show the end")
        assert page.is_hidden("#actions")

        # What it shows is what the job says.
        found = document_of(job)["job"]
        assert page.inner_text("#name") == "payments" == found["name"]
        facts = page.evaluate(
            "() => Object.fromEntries([...document.querySelectorAll('#facts dl div')].map((one) => "
            "[one.querySelector('dt').textContent, one.querySelector('dd').textContent]))"
        )
        assert facts["completed"] == str(found["summary"]["checkpoints_completed"])
        assert facts["restarts"] == str(found["summary"]["restarts"])
        assert page.inner_text("#status") == "stopped"
        page.click("#tab-graph")
        assert page.inner_text("#totals").startswith("stopped after ")
        assert len(row_texts(page, "vertex-totals")) == len(found["vertices"])
        page.click("#tab-checkpoints")
        assert len(row_texts(page, "checkpoints")) == len(found["checkpoints"])
        newest = row_texts(page, "checkpoints")[0].split("\t")
        assert newest[0].strip() == str(found["checkpoints"][-1]["checkpoint_id"])
        assert f"{found['checkpoints'][-1]['last']['vertex']}[" in "".join(newest)
        page.click("#tab-settings")
        settings_shown = dict(row.split("\t")[:2] for row in row_texts(page, "settings"))
        assert settings_shown["checkpoint_dir"] == str(directory)
        assert set(settings_shown) == set(found["settings"])
        own = [row.split("\t")[0] for row in row_texts(page, "settings")][:3]
        assert set(own) <= {
            "parallelism",
            "checkpoint_dir",
            "checkpoint_interval",
            *PATIENT,
            "web_port",
            "web_url",
        }, "those that differ from the default come first"
        names = [one.text_content() for one in page.query_selector_all("#graph .vertex .title")]
        assert names == [one["vertex"] for one in found["vertices"]]
        page.click("#tab-tasks")
        (payments,) = row_texts(page, "user")
        assert payments.startswith("payments\tpayments\tcounter\t")

        # Nothing of it has become markup.
        assert page.evaluate("window.hacked") is None
        assert page.query_selector_all("img, b, main script") == []
        assert problems == []
        page.close()

        # The record in the checkpoint directory shows the same, and does nothing.
        kept = Page(lambda: read_record(str(directory)), None, None)
        try:
            history = opened(browser, kept.link, problems)
            history.wait_for_selector("#graph .vertex")
            history.click("#tab-checkpoints")
            assert len(row_texts(history, "checkpoints")) == len(found["checkpoints"])
            assert history.inner_text("#headline").startswith("stopped")
            assert history.is_hidden("#actions")
            history.close()
        finally:
            kept.close()

        # So does the list of the jobs of its store.
        jobs = JobList(str(directory.parent))
        try:
            listed = opened(browser, jobs.link, problems)
            listed.wait_for_selector("#jobs a")
            (line,) = row_texts(listed, "jobs")
            assert line.split("\t")[:3] == [directory.name, "payments", "stopped"]
            listed.click("#jobs a")
            listed.wait_for_selector("#graph .vertex")
            assert listed.inner_text("#status") == "stopped"
            listed.close()
        finally:
            jobs.close()
        assert problems == []
    finally:
        job.close_page()

    assert in_thread(awaited) is job
    assert ended_meanwhile == [False], "nobody who looks at a job then waits for its end"

    # The listeners were told the same story.
    often = (cc.events.CheckpointCompleted, cc.events.Progressed)
    kinds = [type(one).__name__ for one in told if not isinstance(one, often)]
    assert [one for one in kinds if one != "CheckpointFailed"] == [
        "Started",
        "FailedOver",
        "Recovered",
        "FailedOver",
        "Recovered",
        "FailedOver",
        "Recovered",
        "Ended",
    ]
    raised = next(one for one in told if isinstance(one, cc.events.FailedOver))
    assert (raised.kind, raised.operator) == ("ValueError", "check")
    assert "in __call__" in raised.traceback

    # And the counts are those of the records.
    metrics = job.metrics()
    numbers_out, payments_in = metrics.vertices[0].records_out, metrics.vertices[1].records_in
    assert metrics.edges[0].records == numbers_out > 0
    # Which is more can't be said: what the killed worker did after its last report is counted nowhere.
    assert payments_in > 0
    assert metrics.status == "stopped"


# A loop.

ANSWERED = """
window.answered = {};
const asked = window.fetch;
window.fetch = async (path, options) => {
  const answer = await asked(path, options);
  if (path === "api/job" && answer.ok) {
    const found = await answer.clone().json();
    window.answered[found.job.at_ms] = found;
  }
  return answer;
};
"""
"""Keeps what the page is told: what it shows of it can then be looked at in the same moment."""

GRAPH = """() => {
  const svg = document.querySelector("#graph svg");
  const point = ({ x, y }) => [x, y];
  return {
    said: window.answered[document.body.dataset.at],
    size: [svg.clientWidth, svg.clientHeight],
    rates: [...svg.querySelectorAll(".rate")].map((one) => one.textContent),
    boxes: Object.fromEntries([...svg.querySelectorAll(".vertex")].map((one) => {
      const { e: x, f: y } = one.transform.baseVal[0].matrix;
      const { width, height } = one.querySelector(".box").getBBox();
      return [one.querySelector(".title").textContent, [x, y, x + width, y + height]];
    })),
    plots: [...document.querySelectorAll("#plots polyline")].map((one) => one.points.numberOfItems),
    lines: [...svg.querySelectorAll(".edge")].map((one) => ({
      title: one.querySelector("title").textContent,
      dashed: getComputedStyle(one).strokeDasharray !== "none",
      from: point(one.getPointAtLength(0)),
      to: point(one.getPointAtLength(one.getTotalLength())),
      bottom: one.getBBox().y + one.getBBox().height,
    })),
  };
}"""
SHOWN = """async (rates) => {
  const { count } = await import(new URL("elements.js", location.href).href);
  return rates.map((one) => `${count(one)}/s`);
}"""


def test_a_loop_is_drawn_with_its_back_edge_and_the_records_that_go_round_on_it(
    tmp_path: Path, started: Any, browser: Any
) -> None:
    flow = example("collatz").lengths(10**9, cc.files.write_jsonl(tmp_path / "out"), rate=200)
    settings = cc.Settings(
        parallelism=2,
        checkpoint_dir=tmp_path / "checkpoints",
        checkpoint_interval="300ms",
        **PATIENT,
        web=True,
        web_port=0,
    )
    job = started.flow(flow, settings)
    problems: list[str] = []
    page = opened(browser, job.page, problems, ANSWERED)

    def drawn() -> Any:
        graph = page.evaluate(GRAPH)
        return graph["said"]["series"]["at_ms"][1:] and graph["rates"][back] != "0/s" and graph

    try:
        page.wait_for_selector("#graph .vertex")
        edges = document_of(job)["job"]["edges"]
        (back,) = [place for place, one in enumerate(edges) if one["is_back_edge"]]
        assert (edges[back]["source"], edges[back]["target"]) == ("again", "loop")

        # What is drawn is what the answer held that it was drawn from.
        graph = until(drawn, "records on the back edge, and plots")
        said, series = graph["said"]["job"], graph["said"]["series"]
        rates = [one["records_per_second"] for one in said["edges"]]
        assert graph["rates"] == page.evaluate(SHOWN, rates)
        assert rates[back] > 0
        assert graph["plots"][0] == len(series["at_ms"]), "a point for each that the answer has"

        # It leads from the right of the one to the left of the other, and is seen below both.
        titles = [one["title"] for one in graph["lines"]]
        assert titles[back] == "again to loop, a back edge"
        assert [one["dashed"] for one in graph["lines"]] == [one["is_back_edge"] for one in edges]
        for edge, line in zip(edges, graph["lines"], strict=True):
            source, target = graph["boxes"][edge["source"]], graph["boxes"][edge["target"]]
            assert line["from"] == pytest.approx([source[2], (source[1] + source[3]) / 2], abs=0.5)
            assert line["to"] == pytest.approx([target[0], (target[1] + target[3]) / 2], abs=0.5)
        again, loop = graph["boxes"]["again"], graph["boxes"]["loop"]
        assert loop[2] < again[0], "it goes back"
        assert max(again[3], loop[3]) < graph["lines"][back]["bottom"] < graph["size"][1]

        # Its barrier comes to each task, round the loop as well.
        page.click("#tab-checkpoints")
        until(lambda: len(row_texts(page, "checkpoints")) > 2, "checkpoints")
        page.click("#checkpoints tr:not(.failed) button >> nth=1")
        page.focus("#moment")
        page.keyboard.press("End")
        durable = "2 come, 2 frozen, 2 durable of 2"
        assert page.text_content("#cells").count(durable) == len(graph["boxes"]) == 5

        # A savepoint that is asked for holds what goes round; the workers are those that the job has.
        page.fill("#savepoint-path", str(tmp_path / "savepoint"))
        page.click("#savepoint")
        until(lambda: "the savepoint is written" in page.inner_text("#said"), "the savepoint")
        assert cc.read_state(tmp_path / "savepoint", "by-digit").height > 0
        page.click("#tab-tasks")
        pids = [row.split("\t")[2] for row in row_texts(page, "workers")]
        assert pids == [str(one.pid) for one in job.workers()]

        # Stop, and keep the last checkpoint as a savepoint.
        page.on("dialog", lambda dialog: dialog.accept())
        page.fill("#savepoint-path", str(tmp_path / "last"))
        page.click("#stop-with-savepoint")
        until(lambda: "its savepoint is in" in page.inner_text("#said"), "the end and its savepoint")
        assert job.status == "stopped"
        assert cc.read_state(tmp_path / "last", "by-digit").height > 0
        assert problems == []
    finally:
        page.close()
        job.cancel()
        job.close_page()


# The pictures of the guide.


def test_the_pictures_of_the_guide_are_taken_of_a_job(
    tmp_path: Path, started: Any, browser: Any, request: pytest.FixtureRequest
) -> None:
    is_for_good = request.config.getoption("--rewrite-pictures")
    # Its plots need a while to have something on them; whether there is a picture at all is seen at once.
    seconds, fails_at = (60, 20 * guide_pictures.RATE) if is_for_good else (3, guide_pictures.RATE)
    flow = guide_pictures.payments(tmp_path, fails_at=fails_at)
    job = started.flow(flow, guide_pictures.settings(tmp_path))
    problems: list[str] = []
    page = opened(browser, job.page, problems)
    try:
        until(lambda: len(document_of(job)["series"]["at_ms"]) > seconds, "points in the plots")
        page.wait_for_selector("#failovers tbody td:nth-child(8)", state="attached")
        page.wait_for_selector("#graph .bottleneck")
        page.wait_for_selector("#checkpoints tbody tr:not(.failed) button", state="attached")
        where = guide_pictures.GUIDE if is_for_good else tmp_path
        for picture in guide_pictures.PICTURES:
            picture.take(page, where)
            picture.check(where)
        assert problems == []
    finally:
        page.close()
        job.cancel()
        job.close_page()


# A page of 400 tasks.

PARALLELISM = 100
LOOKS = 12
MEBIBYTE = 1024 * 1024
OVERLAPS = """(chosen) => {
  const found = [...document.querySelectorAll(chosen)].filter((one) => one.getClientRects().length);
  const boxes = found.map((one) => one.getBoundingClientRect());
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => meet(a, b))).length;
}"""


def test_a_page_that_is_open_for_long_holds_on_to_nothing_that_is_gone(browser: Any) -> None:
    """The hour itself takes some minutes: `python -m bench.hour`."""
    early, late = hour.watched(browser, Eventful(2), (60, 240))
    assert late["heap_mb"] < 50, late
    assert late["listeners"] <= early["listeners"] + 10, (early, late)
    # Six failovers with their tracebacks, and rows of tables, have come meanwhile; the rest was replaced.
    assert late["nodes"] <= 2 * early["nodes"], (early, late)


def test_a_page_of_400_tasks_shows_them_all_and_stays_small(browser: Any) -> None:
    crowd = Crowd()
    # Each look finds another document.
    served = Page(crowd.document, None, None, clock_s=partial(next, itertools.count()))
    problems: list[str] = []
    try:
        page = browser.new_page(viewport={"width": 1_300, "height": 900})
        page.set_default_timeout(DEADLINE_MS)
        page.on("pageerror", lambda error: problems.append(str(error)))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.clock.install()
        page.goto(served.link)
        page.wait_for_selector("#graph .vertex")
        loaded = len(asked)
        assert loaded <= 13, "what it takes to load is counted, not timed"
        assert len(page.query_selector_all("#graph .vertex")) == 4

        # The barrier under way, as far as each task is.
        page.click("#tab-checkpoints")
        assert page.inner_text("#way h3") == "Barrier 101 on its way"
        ways = page.evaluate("() => [...document.querySelectorAll('#cells g')].map((one) => one.ariaLabel)")
        assert [one.partition(": ")[2] for one in ways] == [
            "100 come, 100 frozen, 100 durable of 100",
            "100 come, 100 frozen, 100 durable of 100",
            "100 come, 50 frozen, 0 durable of 100",
            "0 come, 0 frozen, 0 durable of 100",
        ]
        drawn = page.evaluate(
            "() => [...document.querySelectorAll('#cells rect')].map((one) => one.classList[0])"
        )
        assert Counter(drawn) == {"stored": 200, "frozen": 50, "arrived": 50, "ahead": 100}

        page.click("#tab-graph")
        page.click("#graph .vertex >> nth=2")
        page.wait_for_selector("#tasks tbody tr")
        assert len(row_texts(page, "tasks")) == PARALLELISM
        page.click("#tab-checkpoints")
        page.click("#checkpoints button >> nth=1")
        assert "Barrier 100 from task to task" in page.inner_text("#way h3")
        assert len(page.query_selector_all("#cells rect")) == 400

        # Nothing overlaps, on wide screens and on narrow ones.
        for width in (1_300, 360):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            for tab in page.query_selector_all("[role=tab]"):
                tab.click()
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                for chosen in (
                    "#graph .vertex",
                    "#graph .rate",
                    "#cells rect",
                    "main section",
                    "#way > *",
                    "header > *",
                    "#tabs > *",
                    "#facts > section",
                    "#plots figure",
                    "#actions > *",
                ):
                    assert page.evaluate(OVERLAPS, chosen) == 0, (width, chosen)

        # However long it is looked at: each answer replaces what was shown of the one before.
        nodes = page.evaluate("document.querySelectorAll('*').length")
        for _ in range(LOOKS):
            with page.expect_response("**/api/job"):
                page.clock.run_for(1_000)
        page.wait_for_function("second => document.body.dataset.at >= second", arg=WALL_MS + 1_000 * LOOKS)
        assert page.evaluate("document.querySelectorAll('*').length") <= nodes + 50
        session = page.context.new_cdp_session(page)
        session.send("HeapProfiler.collectGarbage")
        used = session.send("Runtime.getHeapUsage")["usedSize"]
        assert used < 50 * MEBIBYTE, used
        assert problems == []
        page.close()
    finally:
        served.close()
