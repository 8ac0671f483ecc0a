"""Draws pictures/*.svg: conversations that were recorded in tests, and the phases of a job, from their table.

`python docs/sequences.py` does so.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from crosscut.protocol.job.phases import TRANSITIONS, Phase, Turn

DOCS = Path(__file__).parent
CONVERSATIONS = DOCS.parent / "tests" / "conversations"
NAMES = ("checkpoint", "alignment", "loop", "overtaking", "lost-worker")

WIDTH, LEFT, RIGHT, TOP = 980, 130, 900, 40
LINE, GAP = 15, 13
"""Height of a line of text, and what is between two steps."""
CHARACTER = 6.1
"""About the width of one, at this size."""

TIME_COLUMN, WHO_COLUMN, WORDS_COLUMN = 0, 10, 42
"""Where things stand in a conversation; see tests/conversations/writing.py."""

FIRST = ("user", "job log", "driver")
"""Stand on the left."""

STYLE = """
  .paper { fill: #ffffff } .life { stroke: #c5ced9 } .arrow { stroke: #44546a; stroke-width: 1.4 }
  .barrier { stroke: #c2410c; stroke-width: 2.4 }
  .head { fill: #44546a } .head.barrier { fill: #c2410c; stroke: none }
  .dot { fill: #2563a8 } .name { font-weight: 600 }
  text { font: 12px system-ui, sans-serif; fill: #1f2937 }
  text { stroke: #ffffff; stroke-width: 4px; paint-order: stroke }
  .time { fill: #55606e } .red { fill: #c2410c }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } .life { stroke: #364152 } .arrow { stroke: #9fb0c5 } .head { fill: #9fb0c5 }
    .barrier { stroke: #fb923c } .head.barrier, .red { fill: #fb923c } .dot { fill: #7cb3ec }
    text { fill: #e6edf3; stroke: #0d1117 } .time { fill: #9aa7b5 } .red { fill: #fb923c }
  }
"""


@dataclass
class Step:
    """Something is said, by one to others, or happens at `source`."""

    time: str
    source: str
    targets: tuple[str, ...]
    words: str


def steps(conversation: str) -> tuple[str, list[Step]]:
    """Return the title of a conversation, and what happens in it."""
    title, *lines = conversation.splitlines()
    found: list[Step] = []
    for line in lines:
        who, words = line[WHO_COLUMN:WORDS_COLUMN].strip(), line[WORDS_COLUMN:].strip()
        if not line.startswith("  "):
            continue
        if who:
            source, _, others = who.partition(" -> ")
            targets = tuple(others.split(", ")) if others else ()
            found.append(Step(line[TIME_COLUMN:WHO_COLUMN].strip(), source, targets, words))
        else:
            found[-1].words += f" {words}"
    return title, found


def picture(conversation: str) -> str:
    """Return the SVG of a conversation."""
    title, told = steps(conversation)
    names = list(dict.fromkeys(name for step in told for name in (step.source, *step.targets)))
    # The driver and its log stand on the left, the tasks in the order in which they speak.
    names.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    return drawing(title, names, told)


def phases() -> str:
    """Return the SVG of the phases of a job, and what takes it from one to another."""
    told = [Step("", "CLAIMING", (), "start")]
    for (before, turn), after in TRANSITIONS.items():
        # That the end can be reached from everywhere would hide the rest; it is said in words.
        if turn is Turn.END and before not in (Phase.FINISHING, Phase.STOPPING):
            continue
        targets = () if before is after else (after.name,)
        told.append(Step("", before.name, targets, turn.value))
    return drawing("The phases of a job", [phase.name for phase in Phase], told)


def drawing(title: str, names: list[str], told: Iterable[Step]) -> str:
    """Return the SVG of what happens between those who are named, from left to right."""
    lanes = {name: LEFT + index * (RIGHT - LEFT) / (len(names) - 1) for index, name in enumerate(names)}
    parts: list[str] = []
    y = TOP + 34.0
    for step in told:
        drawn, y = _drawn(step, lanes, y)
        parts += drawn
    head = [
        f'<text x="{x:g}" y="{TOP}" class="name" text-anchor="middle">{escape(name)}</text>'
        for name, x in lanes.items()
    ]
    lives = [f'<line x1="{x:g}" y1="{TOP + 8}" x2="{x:g}" y2="{y:g}" class="life"/>' for x in lanes.values()]
    height = y + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img"'
        f' aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height:g}" class="paper"/>',
        *lives,
        *head,
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _drawn(step: Step, lanes: dict[str, float], y: float) -> tuple[list[str], float]:
    """Return how a step is drawn at `y`, and where the next one is."""
    x = lanes[step.source]
    kind = "barrier" if re.fullmatch(r"barrier \d+", step.words) else "arrow"
    parts = [_text(8, y, [step.time], "time", "start")] if step.time else []
    if not step.targets:
        is_left = x - LEFT > RIGHT - x
        room = (x - 60 if is_left else WIDTH - x) - 16
        lines = _wrapped(step.words, max(24, int(room / CHARACTER)))
        colour = "red" if "barrier" in step.words.split(":")[0] else ""
        parts.append(f'<circle cx="{x:g}" cy="{y - 4:g}" r="4" class="dot"/>')
        parts.append(_text(x - 10 if is_left else x + 10, y, lines, colour, "end" if is_left else "start"))
        return parts, y + LINE * len(lines) + GAP
    ends = [lanes[target] for target in step.targets]
    furthest = max(ends, key=lambda end: abs(end - x))
    middle = (x + furthest) / 2
    lines = _wrapped(step.words, max(18, int(2 * min(middle - 60, WIDTH - middle) / CHARACTER)))
    colour = "red" if kind == "barrier" else ""
    parts.append(_text(middle, y, lines, colour, "middle"))
    arrow = y + LINE * (len(lines) - 1) + 6
    for end in ends:
        parts.append(f'<line x1="{x:g}" y1="{arrow:g}" x2="{end:g}" y2="{arrow:g}" class="{kind}"/>')
        back = -8 if end > x else 8
        points = f"{end:g},{arrow:g} {end + back:g},{arrow - 4:g} {end + back:g},{arrow + 4:g}"
        parts.append(f'<polygon points="{points}" class="head {kind if kind == "barrier" else ""}"/>')
    return parts, arrow + LINE + GAP


def _wrapped(words: str, width: int) -> list[str]:
    return textwrap.wrap(words, width, break_on_hyphens=False, break_long_words=False)


def _text(x: float, y: float, lines: Iterable[str], kind: str, anchor: str) -> str:
    spans = "".join(
        f'<tspan x="{x:g}" dy="{LINE if index else 0}">{escape(line)}</tspan>'
        for index, line in enumerate(lines)
    )
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{spans}</text>'


def pictures() -> dict[str, str]:
    """Return the pictures, by their names."""
    told = {name: picture((CONVERSATIONS / f"{name}.txt").read_text(encoding="utf-8")) for name in NAMES}
    return {**told, "phases": phases()}


if __name__ == "__main__":
    for name, svg in pictures().items():
        (DOCS / "pictures" / f"{name}.svg").write_text(svg, encoding="utf-8")
