"""Draws picture.svg, the picture of the README: `python docs/picture.py`."""

from __future__ import annotations

from pathlib import Path

WIDTH, HEIGHT = 860, 372
ROWS = (112, 242)
"""The middle of each worker, from above."""

READERS, COUNTERS, FILES = 150, 520, 704
"""Left edges of the tasks of both vertices, and of the output."""

TASK_WIDTH, TASK_HEIGHT = 132, 62
BARRIERS = {(0, 0): 0.56, (0, 1): 0.30, (1, 0): 0.30, (1, 1): 0.56}
"""How far barrier 17 has come on the channel between two tasks."""

STYLE = """
  .paper { fill: #ffffff } .worker { fill: #f1f4f8; stroke: #c5ced9 } .task { fill: #ffffff; stroke: #44546a }
  .channel { stroke: #8a97a8; fill: none } .barrier { stroke: #c2410c; stroke-width: 5 }
  .cut { stroke: #c2410c; fill: none; stroke-dasharray: 7 5; stroke-width: 1.6 }
  .inside { fill: #2563a8; stroke: #2563a8 } .outside { fill: #ffffff; stroke: #2563a8 }
  .final { fill: #dbe8f6; stroke: #2563a8 } .staged { fill: none; stroke: #2563a8; stroke-dasharray: 4 3 }
  text { font: 14px system-ui, sans-serif; fill: #1f2937 }
  .small { font-size: 12px; fill: #55606e } .red { fill: #c2410c }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } .worker { fill: #161d27; stroke: #364152 }
    .task { fill: #0d1117; stroke: #9fb0c5 }
    .channel { stroke: #6b7889 } .barrier, .cut { stroke: #fb923c } .red { fill: #fb923c }
    .inside { fill: #7cb3ec; stroke: #7cb3ec } .outside { fill: #0d1117; stroke: #7cb3ec }
    .final { fill: #1b3350; stroke: #7cb3ec } .staged { stroke: #7cb3ec }
    text { fill: #e6edf3 } .small { fill: #9aa7b5 }
  }
"""

Point = tuple[float, float]


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" class="{kind}"/>'


def line(start: Point, end: Point, kind: str) -> str:
    return f'<line x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}" class="{kind}"/>'


def dot(place: Point, kind: str) -> str:
    return f'<circle cx="{place[0]:g}" cy="{place[1]:g}" r="4.5" class="{kind}"/>'


def along(start: Point, end: Point, part: float) -> Point:
    return round(start[0] + part * (end[0] - start[0]), 1), round(start[1] + part * (end[1] - start[1]), 1)


def ends_of(source: int, target: int) -> tuple[Point, Point]:
    return (READERS + TASK_WIDTH, ROWS[source]), (COUNTERS, ROWS[target])


def worker(index: int) -> list[str]:
    middle = ROWS[index]
    top = middle - TASK_HEIGHT / 2
    shapes = [
        box(READERS - 18, top - 27, COUNTERS + TASK_WIDTH - READERS + 36, TASK_HEIGHT + 40, "worker"),
        text(READERS - 4, top - 9, f"worker {index}, a Spark task", "small", "start"),
        text(62, middle - 6, f"split {index}"),
        text(62, middle + 12, "files, Kafka, ...", "small"),
        line((112, middle), (READERS, middle), "channel"),
    ]
    for x, name, words in (
        (READERS, f"lines[{index}]", "source, flat_map"),
        (COUNTERS, f"counts[{index}]", "count: state"),
    ):
        shapes.append(box(x, top, TASK_WIDTH, TASK_HEIGHT, "task"))
        shapes.append(text(x + TASK_WIDTH / 2, middle - 4, name))
        shapes.append(text(x + TASK_WIDTH / 2, middle + 15, words, "small"))
    shapes.append(line((COUNTERS + TASK_WIDTH, middle), (FILES, middle), "channel"))
    shapes.append(box(FILES, middle - 27, 74, 22, "final"))
    shapes.append(box(FILES, middle + 5, 74, 22, "staged"))
    shapes.append(text(FILES + 82, middle - 11, "committed", "small", "start"))
    shapes.append(text(FILES + 82, middle + 21, "staged", "small", "start"))
    return shapes


def channel(source: int, target: int) -> list[str]:
    start, end = ends_of(source, target)
    barrier_at = BARRIERS[source, target]
    shapes = [line(start, end, "channel")]
    for part in (0.12, 0.2, 0.42, 0.66, 0.74, 0.86):
        if abs(part - barrier_at) > 0.05:
            shapes.append(dot(along(start, end, part), "inside" if part > barrier_at else "outside"))
    x, y = along(start, end, barrier_at)
    shapes.append(line((x, y - 12), (x, y + 12), "barrier"))
    return shapes


def cut() -> list[str]:
    points = [along(*ends_of(*ends), BARRIERS[ends]) for ends in ((0, 0), (0, 1), (1, 0), (1, 1))]
    (top_x, top_y), upper, lower, (bottom_x, bottom_y) = points
    path = (
        f"M {top_x + 44:g} 40 C {top_x + 30:g} 70, {top_x + 14:g} {top_y - 14:g}, {top_x:g} {top_y:g} "
        f"S {upper[0] + 6:g} {upper[1] - 22:g}, {upper[0]:g} {upper[1]:g} "
        f"L {lower[0]:g} {lower[1]:g} "
        f"C {lower[0] + 6:g} {lower[1] + 22:g}, {bottom_x - 14:g} {bottom_y - 14:g}, "
        f"{bottom_x:g} {bottom_y:g} "
        f"S {bottom_x + 30:g} 284, {bottom_x + 44:g} 314"
    )
    return [
        f'<path d="{path}" class="cut"/>',
        text(top_x + 44, 30, "checkpoint 17: a consistent cut", "red"),
    ]


def svg() -> str:
    """Return the picture."""
    shapes = [box(0, 0, WIDTH, HEIGHT, "paper"), *worker(0), *worker(1)]
    for ends in BARRIERS:
        shapes += channel(*ends)
    shapes += cut()
    first = "To the right of the line is what checkpoint 17 holds: positions, state, staged output."
    then = "It is complete when its entry in the job log is durable. Only then is its output committed."
    shapes += [text(WIDTH / 2, 334, first, "small"), text(WIDTH / 2, 353, then, "small")]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    title = "<title>Two workers, the channels between their tasks, and a checkpoint that cuts them</title>"
    return "\n".join([head, title, f"<style>{STYLE}</style>", *shapes, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(svg(), encoding="utf-8")
