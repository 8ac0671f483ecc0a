"""What the demo measured, as a table, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from crosscut.cli.demo.word_count import Kill, Result

_DIFFERENCES_SHOWN = 5


def print_result(result: Result, console: Console) -> None:
    """Print what was measured and the verdict."""
    console.print()
    console.print(_table(result))
    console.print()
    for line, style in _verdict(result):
        console.print(Text(line, style=style))
    if result.kept is not None:
        console.print(Text(f"output, checkpoints and text are in {result.kept}"))


def _table(result: Result) -> Table:
    status, seconds = result.status, result.running_s
    checkpoints = status.checkpoints
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_column("")
    row = table.add_row
    row("text", f"{result.bytes / 1e6:,.1f} MB", f"{result.lines:,} lines")
    row("words", f"{result.words:,}", f"{result.distinct_words:,} different ones")
    row("start", f"{result.started_s:.1f} s", "Java, Spark and workers, until records flow")
    row("run", f"{seconds:.1f} s", "from the first record to the last commit, failures included")
    row("lines a second", f"{result.lines / seconds:,.0f}", "")
    row("words a second", f"{result.words / seconds:,.0f}", "each counted, and its update written")
    row(
        "", f"{result.words / result.plain_s:,.0f}", "plain Python, one process: final counts only, in memory"
    )
    row("checkpoints", f"{status.checkpoints_completed}", f"{status.checkpoints_failed} failed")
    if checkpoints:
        row("  state", *_range([one.state_bytes for one in checkpoints], decimal))
        row("  written", *_range([one.new_bytes for one in checkpoints], decimal))
        row("  duration", *_range([one.duration_ms for one in checkpoints], lambda ms: f"{ms:.0f} ms"))
        row(
            "  records stopped",
            *_range([one.freeze_us for one in checkpoints], lambda us: f"{us / 1e3:.1f} ms"),
        )
    for kill in result.kills:
        row(
            "kill",
            _recovery(kill),
            f"until records flow again after SIGKILL of pid {kill.pid}{_noticed(kill)}",
        )
    row("committed", f"{result.committed:,}", "updates, in files that are final once they can be seen")
    return table


def _range(values: Sequence[int], shown: Callable[[int], str]) -> tuple[str, str]:
    return shown(int(median(values))), f"median; {shown(min(values))} to {shown(max(values))}"


def _recovery(kill: Kill) -> str:
    return "not seen" if kill.flowing_s is None else f"{kill.flowing_s:.2f} s"


def _noticed(kill: Kill) -> str:
    if kill.recovery is None:
        return ""
    return f", noticed in {(kill.recovery.noticed_ns - kill.killed_ns) / 1e6:.0f} ms"


def _verdict(result: Result) -> list[tuple[str, str]]:
    if result.differences:
        more = len(result.differences) - _DIFFERENCES_SHOWN
        return [
            (f"DIFFERENT: {len(result.differences):,} of {result.distinct_words:,} words", "bold red"),
            *((f"  {one}", "red") for one in result.differences[:_DIFFERENCES_SHOWN]),
            *([(f"  and {more:,} more", "red")] if more > 0 else []),
        ]
    exact = f"every word has its updates 1, 2, ... n, each exactly once, {result.words:,} in all"
    if not result.is_exact:
        killed, asked = len(result.kills), result.request.kills
        return [
            (f"identical: {exact}", "bold"),
            (
                f"INCOMPLETE: the input was read before more than {killed} of {asked} kills were due; give "
                f"it more text, or a shorter checkpoint interval",
                "bold red",
            ),
        ]
    return [(f"identical: {exact}", "bold green")]
