"""Learning curves from a run's `metrics.jsonl`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from plaudit.errors import OutputError
from plaudit.utils.atomic_io import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.gridspec import GridSpec, SubplotSpec

Curve: TypeAlias = tuple[list[float], list[float]]
"""Steps, and the values at them."""

TRAIN_COLOUR = "#4c78a8"
EVAL_COLOUR = "#e4572e"
MOST_SMALL = 4  # Maximum number of small panels.
COLUMNS = 12  # Divisible by every number of panels in a row.


def read_curves(path: str | Path) -> dict[str, Curve]:
    """Read the curves of a metrics file by metric name.

    Each line is a JSON object of `step` and numbers. Nulls, non-finite numbers and a half-written last line are
    left out.

    Raises:
        OutputError: If a line other than the last is not JSON.
    """
    curves: dict[str, Curve] = {}
    lines = Path(path).read_text().splitlines()

    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            # A run killed during a write leaves half a line at the end.
            if number == len(lines):
                break
            raise OutputError(f"{path}, line {number}: not JSON ({error}).") from error

        for name, value in row.items():
            if name != "step" and isinstance(value, (int, float)) and math.isfinite(value):
                steps, values = curves.setdefault(name, ([], []))
                steps.append(row["step"])
                values.append(value)

    return curves


def plot_curves(
    metrics_jsonl: str | Path,
    path: str | Path,
    headline: str = "success_once",
    title: str = "",
    axis: str = "env steps",
) -> None:
    """Draw success and return, with smaller panels of training metrics below.

    Among the training metrics, losses come first.

    Args:
        metrics_jsonl: The run's `logs/metrics.jsonl`.
        path: PNG to write; parent directories are created.
        headline: Success metric to draw, without its `rollout/` or `eval/` prefix.
        title: Title of the figure.
        axis: Name of the step axis.

    Raises:
        OutputError: If the file has nothing to draw.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = read_curves(metrics_jsonl)
    large = [name for name in (headline, "return") if f"rollout/{name}" in curves or f"eval/{name}" in curves]

    # Small panels: training metrics that are not constant, losses first, then by name.
    varying = [name for name, curve in curves.items() if name.startswith("train/") and _varies(curve)]
    small = sorted(varying, key=lambda name: (not name.endswith("loss"), name))[:MOST_SMALL]
    if not large and not small:
        raise OutputError(f"{metrics_jsonl} has nothing to draw: no success, return or losses.")

    figure = Figure(figsize=(10, 6 if large and small else 4), dpi=110)
    figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
    FigureCanvasAgg(figure)

    # A row without panels is left out.
    heights = [2.2] * bool(large) + [1.0] * bool(small)
    grid = figure.add_gridspec(len(heights), COLUMNS, height_ratios=heights)
    for name, spot in _spots(grid, 0, large):
        _draw_large(figure.add_subplot(spot), name, curves, axis)
    for name, spot in _spots(grid, -1, small):
        _draw_small(figure.add_subplot(spot), name, curves[name])

    figure.suptitle(title, fontweight="bold")
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png")


def _spots(grid: GridSpec, row: int, names: list[str]) -> Iterator[tuple[str, SubplotSpec]]:
    """Yield each name with its cell, dividing one row of the grid evenly."""
    for index, name in enumerate(names):
        width = COLUMNS // len(names)
        yield name, grid[row, index * width : (index + 1) * width]


def _draw_large(axes: Axes, name: str, curves: dict[str, Curve], axis: str) -> None:
    """Draw a metric: training as a line, evaluations as joined points."""
    if f"rollout/{name}" in curves:
        axes.plot(*curves[f"rollout/{name}"], color=TRAIN_COLOUR, linewidth=1.6, label="training, recent episodes")
    if f"eval/{name}" in curves:
        steps, values = curves[f"eval/{name}"]
        last = f"{values[-1]:.1%}" if name.startswith("success") else f"{values[-1]:.3g}"
        axes.plot(steps, values, "o-", color=EVAL_COLOUR, linewidth=1.6, markersize=5, label=f"evaluation, last {last}")

    axes.set_title({"success_once": "Success (once)", "success_at_end": "Success (at the end)"}.get(name, "Return"))

    # Success rates are shown in percent, on the full range.
    if name.startswith("success"):
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")

    axes.legend(loc="best", frameon=False, fontsize=9)
    axes.set_xlabel(axis)
    _tidy(axes)


def _draw_small(axes: Axes, name: str, curve: Curve) -> None:
    """Draw a training metric in a small panel."""
    axes.plot(*curve, color="#6e7681", linewidth=1.0)
    axes.set_title(name.removeprefix("train/").replace("_", " "), fontsize=9)
    axes.tick_params(labelsize=8)
    axes.locator_params(nbins=4)
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    """Apply the common style: grid, two spines, compact step labels."""
    from plaudit.reporting.progress import compact

    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: compact(value))


def _varies(curve: Curve) -> bool:
    """Return whether a curve is not constant.

    A constant, such as a learning rate without a schedule, is not worth a panel.
    """
    return len(set(curve[1])) > 1
