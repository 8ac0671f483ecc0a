"""A job as HTML, as notebooks show it: what it looked like when the cell was run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from crosscut.monitoring.metrics import JobMetrics, VertexMetrics


def html_of(metrics: JobMetrics) -> str:
    """Return a heading and a table of the vertices; every text in it is escaped."""
    summary = metrics.summary
    facts = (
        f"{metrics.status}, epoch {summary.epoch}",
        f"{summary.records_read:,} records read",
        f"{len(summary.workers)} of {metrics.parallelism} workers",
        f"{summary.checkpoints_completed} checkpoints, {summary.checkpoints_failed} failed",
        f"{summary.restarts} restarts",
    )
    lines = [f"<div><b>{escape(metrics.name)}</b>: {escape(', '.join(facts))}"]
    if metrics.errors:
        lines.append(f"<p>last error: {escape(metrics.errors[-1].cause.message)}</p>")
    lines.append(_table(metrics.vertices))
    return "\n".join([*lines, "</div>"])


def _table(vertices: Sequence[VertexMetrics]) -> str:
    titles = ("vertex", "in/s", "out/s", "busy", "blocked", "queued", "rows", "lag")
    rows = [
        (
            (one.name or one.vertex) + (" (bottleneck)" if one.is_bottleneck else ""),
            f"{one.records_in_per_second:,.0f}",
            f"{one.records_out_per_second:,.0f}",
            f"{one.busy:.0%}",
            f"{one.blocked:.0%}",
            f"{one.queued_records:,}",
            f"{one.state_rows:,}",
            "" if one.lag is None else f"{one.lag:,}",
        )
        for one in vertices
    ]
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
