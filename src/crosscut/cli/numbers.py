"""A job in numbers, for the terminal: its vertices, who waits for whom, what lags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

_COLUMNS = ("vertex", "in/s", "out/s", "busy", "blocked", "queued", "rows", "lag", "delay", "latency")
_BLOCKED_MIN = 0.1
_FRESH_S = 15.0

Vertices = Iterable[Mapping[str, Any]]
"""As `JobMetrics.as_dict` gives them."""


def vertex_table(vertices: Vertices) -> Table:
    """Return a row for each vertex: rates, back pressure, lag, latency (99 %); the bottleneck is marked."""
    table = Table(box=None, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "vertex" else "right", header_style="dim")
    for one in vertices:
        delay_ms, lag = one["watermark_delay_ms"], one["lag"]
        cells = (
            _name(one) + (" (bottleneck)" if one["is_bottleneck"] else ""),
            f"{one['records_in_per_second']:,.0f}",
            f"{one['records_out_per_second']:,.0f}",
            f"{one['busy']:.0%}",
            f"{one['blocked']:.0%}",
            f"{one['queued_records']:,}",
            f"{one['state_rows']:,}",
            "" if lag is None else f"{lag:,}",
            "" if delay_ms is None else f"{delay_ms / 1e3:,.1f} s",
            "" if (latency_ms := _latency_ms([one])) is None else _duration(latency_ms),
        )
        style = "bold red" if one["is_bottleneck"] else ""
        table.add_row(*(Text(cell, style=style) for cell in cells))
    return table


def _name(vertex: Mapping[str, Any]) -> str:
    # The status of an older release has none.
    return printable(vertex.get("name") or vertex["vertex"])


def vertex_line(vertices: Vertices) -> str:
    """Return in one line what is worth a word: bottleneck, back pressure, lag, latency; "" if nothing is."""
    vertices = list(vertices)
    texts = []
    for one in vertices:
        if one["is_bottleneck"]:
            texts.append(f"bottleneck {_name(one)} (busy {one['busy']:.0%})")
        # The status of an older release has none.
        for hot in one.get("hot_keys", ()):
            texts.append(f"hot key {printable(hot['key'])} at {_name(one)} ({hot['share']:.0%})")
        if one["blocked"] >= _BLOCKED_MIN:
            texts.append(f"{_name(one)} blocked {one['blocked']:.0%}")
        if one["lag"]:
            texts.append(f"lag {one['lag']:,} at {_name(one)}")
    latency_ms = _latency_ms(one for one in vertices if one["is_sink"])
    if latency_ms is not None:
        texts.append(f"latency {_duration(latency_ms)} (99 %)")
    return "  ".join(texts)


def overview(job: Mapping[str, Any], age_s: float = 0.0) -> Group:
    """Return what `crosscut top` shows of a job that was seen so long ago, if that matters."""
    summary, checkpoints = job["summary"], job["checkpoints"]
    completed = [one for one in checkpoints if one["outcome"] == "completed"]
    where = f"{printable(job['status'])}, epoch {summary['epoch']}"
    head = Text(f"{printable(job['name'])}: {where}", style="bold")
    if age_s >= _FRESH_S:
        head.append(f", no news for {age_s:,.0f} s (driver gone?)", style="red")
    lines = [
        f"records {summary['records_read']:,}, {len(summary['workers'])} of {job['parallelism']} workers, "
        f"{summary['restarts']} restarts",
        f"checkpoints {summary['checkpoints_completed']} completed, {summary['checkpoints_failed']} failed",
    ]
    if completed:
        last = completed[-1]
        steps = ("alignment", "freeze", "store", "append")
        split = ", ".join(f"{step} {last[f'{step}_ms']:,.1f}" for step in steps)
        lines.append(f"the last: {last['duration_ms']:,.0f} ms ({split}), {last['state_bytes']:,} bytes")
    latency_ms = _latency_ms(one for one in job["vertices"] if one["is_sink"])
    if latency_ms is not None:
        lines.append(f"latency from source to sink: 99 % within {_duration(latency_ms)}")
    if job["errors"]:
        lines.append(f"last error: {printable(job['errors'][-1]['cause']['message'])[:200]}")
    return Group(head, *(Text(line) for line in lines), vertex_table(job["vertices"]))


def _latency_ms(vertices: Vertices) -> float | None:
    """Return what 99 of 100 records stay within, from a source to any of `vertices`; None: not known."""
    # A record of an earlier release has none.
    return max((each["p99_ms"] for one in vertices for each in one.get("latencies", ())), default=None)


def _duration(ms: float) -> str:
    return f"{ms:,.1f} ms" if ms < 10 else f"{ms:,.0f} ms" if ms < 1_000 else f"{ms / 1e3:,.1f} s"


def printable(text: object) -> str:
    """Return `text` without what a terminal would take for an order: it may come from a file of anybody's."""
    return "".join(one if one.isprintable() else "?" for one in str(text))
