"""Figures of reward-model quality.

ROC, precision and recall, reliability, and probability over time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plaudit.errors import OutputError
from plaudit.reporting.progress import compact
from plaudit.utils.atomic_io import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = NDArray[np.floating[Any]]

# Blue and vermilion differ in brightness and for every kind of colour vision (Okabe and Ito, 2008).
MODEL = "#0072b2"
WRONG = "#d55e00"
TRUTH = "#cfe8f7"
QUIET = "#6e7681"

MOST_TIMELINES = 24
"""Maximum number of episodes in one timeline figure."""

FEW = 30
"""Number of frames in a bin below which its share of successes is mostly chance."""


@dataclass(frozen=True)
class Track:
    """Predictions of a reward model over one episode.

    Attributes:
        title: Title of the episode's panel.
        instants: Times of the frames in steps, (n,).
        probabilities: Calibrated success probabilities, (n,).
        success: Success labels, bool (n,).
        fired: Success decisions of the model, bool (n,).
    """

    title: str
    instants: NDArray[Any]
    probabilities: Numbers
    success: NDArray[np.bool_]
    fired: NDArray[np.bool_]


def draw_roc(path: str | Path, false: Numbers, true: Numbers, *, auc: float, chosen: tuple[float, float]) -> None:
    """Draw the ROC curve of frames, in full and zoomed in on few false positives.

    Args:
        path: PNG to write; parent directories are created.
        false: False-positive rates, (n,), ascending.
        true: True-positive rates, (n,).
        auc: Area under the curve, for the title.
        chosen: False-positive and true-positive rate at the chosen threshold.
    """
    figure = _figure(9.5, 4.6)
    full, corner = figure.subplots(1, 2)

    # The logarithmic axis starts at the power of ten below the smallest positive rate. It has no place for a rate
    # of 0, so a threshold without false positives is marked at its left edge.
    smallest = 10.0 ** math.floor(math.log10(max(min(_smallest_positive(false), chosen[0] or 1.0), 1e-6)))
    for axes, point in ((full, chosen), (corner, (max(chosen[0], smallest), chosen[1]))):
        axes.step(false, true, where="post", color=MODEL, linewidth=1.8)
        axes.plot(*point, "o", color=WRONG, markersize=8, clip_on=False, zorder=3, label=_threshold_label(chosen))
        axes.set(xlabel="false-positive rate of frames", ylabel="true-positive rate of frames")
        _percent(axes.xaxis)
        _percent(axes.yaxis)

    # Left panel: the whole curve and the diagonal of a random classifier.
    full.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle=":", label="chance")
    full.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    full.legend(loc="lower right", frameon=False, fontsize=9)

    # Right panel: the corner that counts, with few false positives.
    corner.set_xscale("log")
    corner.set(xlim=(smallest, 1.0), ylim=_zoom(chosen[1]))
    _percent(corner.xaxis)  # Set again, because changing the scale replaces the formatter.

    figure.suptitle(f"ROC of frames: area {auc:.4f}", fontweight="bold")
    full.set_title("in full", fontsize=9)
    corner.set_title("few false positives, logarithmic", fontsize=9)
    _finish(figure, path)


def _threshold_label(chosen: tuple[float, float]) -> str:
    """Return the legend label of the chosen threshold in the ROC figure."""
    return f"chosen threshold: {chosen[1]:.1%} true, {chosen[0]:.2%} false"


def draw_precision_recall(
    path: str | Path,
    recall: Numbers,
    precision: Numbers,
    *,
    average: float,
    chosen: tuple[float, float],
    successes: float,
) -> None:
    """Draw precision against recall of frames.

    Args:
        path: PNG to write; parent directories are created.
        recall: Recalls, (n,), ascending.
        precision: Precisions, (n,).
        average: Average precision, for the title.
        chosen: Recall and precision at the chosen threshold; a NaN precision is not drawn.
        successes: Share of frames that are successes, which is the precision of guessing.
    """
    # A second panel is worth drawing only if the zoom shows less than the full range.
    zoom = _zoom(np.nanmin(chosen))
    panels = 2 if zoom[0] > 0 else 1
    figure = _figure(1.5 + 4 * panels, 4.6)
    full, *corner = figure.subplots(1, panels, squeeze=False)[0]

    label = f"chosen threshold: recall {chosen[0]:.1%}, precision {chosen[1]:.1%}"
    for axes in (full, *corner):
        # Extend the curve to recall 0 at the first precision.
        axes.step(np.append(0.0, recall), np.append(precision[:1], precision), where="pre", color=MODEL, linewidth=1.8)
        if not math.isnan(chosen[1]):
            axes.plot(*chosen, "o", color=WRONG, markersize=8, clip_on=False, zorder=3, label=label)
        axes.set(xlabel="recall of frames", ylabel="precision of frames")
        _percent(axes.xaxis)
        _percent(axes.yaxis)

    # Left panel: the whole curve and the precision of guessing.
    full.axhline(successes, color=QUIET, linewidth=1, linestyle=":", label=f"chance: {successes:.1%}")
    full.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    full.legend(loc="lower left", frameon=False, fontsize=9)

    # Right panel, if any: the corner around the chosen threshold.
    for axes in corner:
        axes.set(xlim=zoom, ylim=zoom)
        axes.set_title("the upper right corner", fontsize=9)

    figure.suptitle(f"Precision and recall of frames: average precision {average:.4f}", fontweight="bold")
    full.set_title("in full", fontsize=9)
    _finish(figure, path)


def draw_reliability(
    path: str | Path, said: Numbers, true: Numbers, count: NDArray[np.integer[Any]], *, ece: float
) -> None:
    """Draw the reliability diagram of frames, with the number of frames per bin.

    The upper panel compares the predicted probability with the share of successes; the lower panel shows how many
    frames each point rests on.

    Args:
        path: PNG to write; parent directories are created.
        said: Mean predicted probability per bin, (bins,); the bins divide 0 to 1 evenly; NaN if a bin is empty.
        true: Share of successes per bin, (bins,).
        count: Number of frames per bin, (bins,).
        ece: Expected calibration error, for the title.
    """
    figure = _figure(5.6, 6.0)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    filled = np.flatnonzero(count)

    # Upper panel: a calibrated model lies on the diagonal; the vertical bars are the gaps to it.
    upper.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle=":", label="as often as it says")
    upper.vlines(said[filled], said[filled], true[filled], color=WRONG, linewidth=3, alpha=0.6, label="gap")
    upper.plot(said[filled], true[filled], "o-", color=MODEL, linewidth=1.4, markersize=6, label="the model")

    # Bins with few frames get hollow markers, because their share of successes is mostly chance.
    few = (count > 0) & (count < FEW)
    label = f"the model, from fewer than {FEW} frames"
    if few.any():
        upper.plot(said[few], true[few], "o", color=MODEL, markerfacecolor="white", markersize=6, label=label)

    upper.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="frames that are successes")
    upper.legend(loc="upper left", frameon=False, fontsize=9)

    # Lower panel: frames per bin on a logarithmic scale.
    centres = (np.arange(len(count)) + 0.5) / len(count)
    lower.bar(centres[filled], count[filled], width=0.9 / len(count), color=MODEL, bottom=0)
    lower.set_yscale("log")
    lower.set_ylim(0.5, count.max() * 6)  # Leaves room for the numbers above the bars.
    lower.set(xlabel="probability of success, calibrated", ylabel="frames")
    for centre, frames in zip(centres[filled], count[filled], strict=True):
        lower.annotate(
            compact(frames), (centre, frames), (0, 2), textcoords="offset points", ha="center", fontsize=7, color=QUIET
        )

    _percent(upper.yaxis)
    _percent(upper.xaxis)
    figure.suptitle(f"Reliability: calibration error {ece:.3f}, {count.sum():,} frames", fontweight="bold")
    _finish(figure, path)


def draw_timelines(path: str | Path, tracks: Sequence[Track], *, threshold: float, title: str) -> None:
    """Draw success probability over time, with one small panel per episode.

    The background is blue while the labels say success.

    Args:
        path: PNG to write; parent directories are created.
        tracks: The episodes, from 1 to `MOST_TIMELINES`.
        threshold: Decision threshold, drawn as a dashed line.
        title: Title of the figure.

    Raises:
        OutputError: If there are no episodes or too many.
    """
    if not 0 < len(tracks) <= MOST_TIMELINES:
        raise OutputError(f"cannot draw {path}: expected 1 to {MOST_TIMELINES} episodes, not {len(tracks)}.")

    # At most four panels in a row, each 2.9 inches wide unless there are fewer than three.
    columns = min(4, len(tracks))
    rows = math.ceil(len(tracks) / columns)
    figure = _figure(max(2.9 * columns, 8.5), 1.7 * rows + 1.3)
    panels = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)

    # The last row may have more panels than episodes.
    for axes, track in zip(panels, tracks, strict=False):
        _draw_track(axes, track, threshold)
    for axes in panels[len(tracks) :]:
        axes.set_axis_off()

    _add_legend(figure, threshold)
    figure.suptitle(title, fontweight="bold")
    figure.supylabel("probability of success", fontsize=9)
    _finish(figure, path)


def _draw_track(axes: Axes, track: Track, threshold: float) -> None:
    """Draw one episode: background by label, probabilities, threshold and false positives."""
    # Background of the frames that are labelled a success.
    edges = _edges(track.instants)
    for first, last in _runs(track.success):
        axes.axvspan(edges[first], edges[last], color=TRUTH, linewidth=0)

    axes.axhline(threshold, color=QUIET, linewidth=1, linestyle="--")
    axes.plot(track.instants, track.probabilities, ".-", color=MODEL, linewidth=1.1, markersize=3.5)

    # Skipped if there are no false positives: the layout would reserve room for an empty line that is not clipped.
    wrong = track.fired & ~track.success
    if wrong.any():
        axes.plot(
            track.instants[wrong],
            track.probabilities[wrong],
            "D",
            color=WRONG,
            markersize=5,
            zorder=3,
            clip_on=False,
        )

    axes.set(ylim=(-0.06, 1.06), xlim=(edges[0], edges[-1]))
    axes.set_title(shorten(track.title, 32), fontsize=8, color=WRONG if wrong.any() else "black")
    axes.tick_params(labelsize=8)
    axes.locator_params(axis="x", nbins=5, integer=True)


def _add_legend(figure: Figure, threshold: float) -> None:
    """Add one legend for all panels of a timeline figure."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure.legend(
        handles=[
            Line2D([], [], color=MODEL, marker=".", label="model, over steps"),
            Patch(color=TRUTH, label="success, by the labels"),
            Line2D([], [], color=WRONG, marker="D", linestyle="", markersize=5, label="fires and is wrong"),
            Line2D([], [], color=QUIET, linestyle="--", label=f"threshold {shown(threshold)}"),
        ],
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=9,
    )


def _edges(instants: NDArray[Any]) -> NDArray[np.float64]:
    """Return the borders half-way between instants, (n + 1,).

    A frame's background covers the times to which it is the nearest frame.
    """
    middles = (instants[1:] + instants[:-1]) / 2
    return np.concatenate([[instants[0] - 0.5], middles, [instants[-1] + 0.5]])


def _runs(truths: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the runs of `True` as half-open index ranges."""
    changes = np.flatnonzero(np.diff(np.concatenate([[False], truths, [False]])))
    return [(int(first), int(last)) for first, last in changes.reshape(-1, 2)]


def _smallest_positive(values: Numbers) -> float:
    """Return the smallest value above 0, at most 1; 1 if there is none."""
    return float(values[values > 0].min(initial=1.0))


def _figure(width: float, height: float) -> Figure:
    """Create a figure of the given size in inches that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110)
    figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
    FigureCanvasAgg(figure)
    return figure


def _percent(axis: Any) -> None:
    """Label the ticks of an axis in percent."""
    axis.set_major_formatter(lambda value, _: f"{value * 100:.4g}%")


def _zoom(value: float) -> tuple[float, float]:
    """Return axis limits from below a rate to just above 1, with the rate well inside."""
    room = next(room for room in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if 1 - value <= 0.6 * room or room == 1.0)
    return 1 - room, 1 + 0.02 * room


def shorten(text: str, most: int) -> str:
    """Shorten a text to `most` characters by an ellipsis in its middle.

    Both ends are kept, more of the end: episode names often differ in their last characters.
    """
    if len(text) <= most:
        return text
    tail = 2 * (most - 1) // 3
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def shown(probability: float) -> str:
    """Format a probability with enough digits to distinguish it from 0 and 1.

    Examples: 0.807, 0.9933, 0.999930.
    """
    distance = min(probability, 1 - probability)
    digits = 1 + math.ceil(-math.log10(distance)) if distance > 0 else 0
    return f"{probability:.{min(max(digits, 3), 8)}f}"


def _finish(figure: Figure, path: str | Path) -> None:
    """Style all axes of a figure and write it as a PNG, atomically."""
    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png")
