"""Line plots as small SVG files, the same bytes for the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PLOTS = Path(__file__).parent / "plots"

PANEL_INCHES = (5.6, 3.9)
_MARKERS = "osD^vPX"


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes.

    Attributes:
        lines: Points (x, y) by label, in the order of the legend.
        dashed: Labels of lines that are a target or a reference.
        x_ticks: Label by x; none: as matplotlib sees fit.
    """

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    dashed: frozenset[str] = frozenset()
    x_scale: str = "log"
    y_scale: str = "linear"
    x_ticks: Mapping[float, str] = field(default_factory=dict)


def write_plot(name: str, panels: Sequence[Panel]) -> Path:
    """Draw `panels` next to each other, at most two in a row; return the file.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    pyplot = _pyplot()
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    width, height = PANEL_INCHES
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained"
    )
    for panel, axes in zip(panels, grid.flat, strict=False):
        _draw(panel, axes)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    path = PLOTS / f"{name}.svg"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def _draw(panel: Panel, axes: Any) -> None:
    markers = iter(_MARKERS)
    for label, points in panel.lines.items():
        x, y = zip(*points, strict=True) if points else ((), ())
        if label in panel.dashed:
            axes.plot(x, y, label=label, color="0.4", linestyle="--", linewidth=1)
        else:
            axes.plot(x, y, label=label, marker=next(markers), markersize=4.5, linewidth=1.4)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set_xscale(panel.x_scale)
    axes.set_yscale(panel.y_scale)
    if panel.x_ticks:
        axes.set_xticks(list(panel.x_ticks), list(panel.x_ticks.values()))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def check_installed() -> None:
    """Find out before a long measurement that its plot can't be drawn.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    _pyplot()


def _pyplot() -> Any:
    # Imported late: everything else of the benchmarks works without it.
    try:
        import matplotlib  # type: ignore[import-not-found, unused-ignore]
        from matplotlib import pyplot
    except ImportError as error:
        raise SystemExit(
            f"plots need matplotlib: run `make bench`, or pip install -e '.[bench]' ({error})"
        ) from error
    # Element ids are random without a salt. Text stays text: smaller, and it can be searched.
    matplotlib.rcParams.update({"svg.hashsalt": "crosscut", "svg.fonttype": "none", "font.size": 9})
    pyplot.switch_backend("svg")
    return pyplot
