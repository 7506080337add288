"""Charts as HTML, with SVG lines, HTML text and the numbers on hover.

The SVG stretches with the page. It holds only lines: text inside it would shrink with it and be unreadable on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Literal, TypeAlias

from plaudit.reporting.progress import compact

Colour: TypeAlias = Literal["one", "two", "three", "quiet"]
"""Colour names of the style sheet; they differ in brightness and for every kind of colour vision."""

STYLE = """
.chart { margin: 1rem 0 1.4rem; } .chart figcaption { font-weight: 600; font-size: .95rem; color: var(--ink); }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; margin: .15rem 0 .5rem; min-height: 1.32rem;
  font-size: .82rem; color: var(--soft); }
.legend span::before { content: ""; display: inline-block; width: 1.1rem; margin-right: .4rem; vertical-align: .22em;
  border-top: 2.5px solid var(--colour); }
.plot { position: relative; height: 15rem; margin: .6rem .6rem 2.6rem 3.1rem; border-bottom: 1px solid var(--axis); }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.plot path { fill: none; stroke: var(--colour); stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round;
  vector-effect: non-scaling-stroke; } .plot path.thin { stroke-width: 1.3; opacity: .5; }
.plot .rule { position: absolute; left: 0; right: 0; border-top: 1px solid var(--line); }
.plot .rule span { position: absolute; right: 100%; transform: translateY(-50%); padding-right: .5rem;
  font-size: .75rem; color: var(--soft); white-space: nowrap; }
.plot .mark { position: absolute; top: 100%; transform: translateX(-50%); padding-top: .3rem; font-size: .75rem;
  color: var(--soft); white-space: nowrap; }
.plot .axis { position: absolute; top: calc(100% + 1.35rem); right: 0; font-size: .75rem; color: var(--soft); }
.plot .dot { position: absolute; width: 8px; height: 8px; margin: -4px; border-radius: 50%;
  background: var(--colour); box-shadow: 0 0 0 2px var(--paper); }
.plot .hit { position: absolute; top: 0; bottom: 0; } .plot .hit:hover { z-index: 2; }
.plot .hit:hover::before { content: ""; position: absolute; top: 0; bottom: 0; left: var(--at);
  border-left: 1px solid var(--soft); }
.plot .hit:hover::after { content: attr(data-tip); position: absolute; bottom: 100%; left: var(--at);
  transform: translateX(var(--lean)); white-space: pre; padding: .3rem .6rem; border-radius: 6px;
  font-size: .78rem; font-style: normal; background: var(--ink); color: var(--paper); pointer-events: none; }
.one { --colour: var(--one); } .two { --colour: var(--two); } .three { --colour: var(--three); }
.quiet { --colour: var(--soft); }
.range { position: relative; display: block; height: 1.1rem; min-width: 9rem; border-radius: 4px;
  background: linear-gradient(90deg, var(--line) 1px, transparent 1px) 0 0 / 25% 100%, var(--card);
  border-right: 1px solid var(--line); }
.range b { position: absolute; top: .38rem; height: .34rem; left: 0; border-radius: 3px; background: var(--colour);
  opacity: .32; }
.range u { position: absolute; top: 0; bottom: 0; border-radius: 3px; background: var(--colour); opacity: .35; }
.range s { position: absolute; top: -.1rem; bottom: -.1rem; width: 3px; margin-left: -1.5px; border-radius: 2px;
  background: var(--colour); }
"""


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        label: Name in the legend and on hover.
        steps: Steps of the values, ascending.
        values: Values, one per step.
        colour: Colour of the line.
        thin: Whether to draw it in the background, without dots or legend; for many noisy values.
    """

    label: str
    steps: Sequence[float]
    values: Sequence[float]
    colour: Colour = "one"
    thin: bool = False


def line_chart(title: str, series: Sequence[Series], *, axis: str, share: bool = False) -> str:
    """Return a line chart over steps as HTML; empty if there are no values.

    Args:
        title: Title above the chart.
        series: The lines; later ones are drawn in front.
        axis: Name of the step axis.
        share: Whether values range from 0 to 1 and are shown in percent.
    """
    lines = [line for line in series if len(line.steps)]
    if not lines:
        return ""

    # Axis ranges: steps always start at 0; values span the ticks.
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0] if share else nice_ticks(_all(lines, "values"))
    stops = nice_ticks([0.0, *_all(lines, "steps")])
    left, right = 0.0, max(_all(lines, "steps")) or 1.0
    low, high = ticks[0], ticks[-1]

    # Positions in percent of the plot's width and height.
    def across(step: float) -> float:
        return 100 * (step - left) / (right - left)

    def up(value: float) -> float:
        return 100 * (min(max(value, low), high) - low) / (high - low)

    as_text: Callable[[float], str] = (lambda value: f"{value:.0%}") if share else compact

    # A single line needs no legend.
    bold = [line for line in lines if not line.thin]
    legend = "".join(f'<span class="{line.colour}">{escape(line.label)}</span>' for line in bold if len(bold) > 1)

    # From back to front: grid and labels, lines, dots, hover columns.
    parts = [
        *(f'<div class="rule" style="bottom:{up(tick):.2f}%"><span>{as_text(tick)}</span></div>' for tick in ticks),
        *(
            f'<span class="mark" style="left:{across(stop):.2f}%">{compact(stop)}</span>'
            for stop in stops
            if stop <= right
        ),
        f'<span class="axis">{escape(axis)}</span>',
        '<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">',
        *(_path(line, across, up) for line in lines),
        "</svg>",
        *(_dots(line, across, up) for line in bold),
        *_hits(lines, across, share),
    ]

    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption><div class="legend">{legend}</div>'
        f'<div class="plot" role="img" aria-label="{escape(_alt_text(title, lines, share))}">\n'
        + "\n".join(parts)
        + "\n</div></figure>"
    )


def interval(rate: float, low: float, high: float, colour: Colour = "one") -> str:
    """Return a rate as a bar from 0 to 100 %, with its confidence interval, as HTML."""
    return (
        f'<span class="range {colour}" title="{rate:.1%}, between {low:.1%} and {high:.1%}">'
        f'<b style="width:{100 * rate:.2f}%"></b><u style="left:{100 * low:.2f}%;width:{100 * (high - low):.2f}%"></u>'
        f'<s style="left:{100 * rate:.2f}%"></s></span>'
    )


def nice_ticks(values: Sequence[float], count: int = 5) -> list[float]:
    """Return evenly spaced round numbers that enclose all values.

    The first is at or below the smallest value, the last at or above the largest.
    """
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5

    # The smallest round step that needs no more than `count` intervals; the tolerances absorb rounding errors.
    exact = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(exact))
    step = unit * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * unit >= exact * (1 - 1e-9))

    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def _all(series: Sequence[Series], name: str) -> list[float]:
    """Return the numbers of one attribute of all series, in one list."""
    return [float(value) for line in series for value in getattr(line, name)]


def _path(line: Series, across: Callable[[float], float], up: Callable[[float], float]) -> str:
    """Return the SVG path of a line; SVG counts y downwards."""
    points = zip(line.steps, line.values, strict=True)
    coordinates = " L".join(f"{across(step):.2f} {100 - up(value):.2f}" for step, value in points)
    return f'<path class="{line.colour}{" thin" * line.thin}" d="M{coordinates}"/>'


def _dots(line: Series, across: Callable[[float], float], up: Callable[[float], float]) -> str:
    """Return the dots of a line as HTML."""
    return "".join(
        f'<i class="dot {line.colour}" style="left:{across(step):.2f}%;bottom:{up(value):.2f}%"></i>'
        for step, value in zip(line.steps, line.values, strict=True)
    )


def _hits(series: Sequence[Series], across: Callable[[float], float], share: bool) -> list[str]:
    """Return invisible columns around the steps with dots that show the numbers on hover.

    If all lines are thin, the columns are around their steps.
    """
    bold = [line for line in series if not line.thin] or list(series)

    # A column reaches half-way to the neighbouring steps, in percent of the width.
    steps = sorted({float(step) for line in bold for step in line.steps})
    places = [across(step) for step in steps]
    edges = [0.0, *((a + b) / 2 for a, b in pairwise(places)), 100.0]

    columns = []
    for step, place, start, stop in zip(steps, places, edges, edges[1:], strict=False):
        # Tooltip: the step, then every line that has a value there.
        texts = [f"step {step:,.0f}"]
        for line in bold:
            values = dict(zip(map(float, line.steps), line.values, strict=True))
            if step in values:
                texts.append(f"{line.label}: {values[step]:.1%}" if share else f"{line.label}: {values[step]:.4g}")

        # Position of the step inside its column; the tooltip leans so that it stays inside the plot.
        at = 100 * (place - start) / (stop - start) if stop > start else 0
        columns.append(
            f'<i class="hit" style="left:{start:.2f}%;width:{stop - start:.2f}%;--at:{at:.1f}%;--lean:-{place:.0f}%" '
            f'data-tip="{escape(chr(10).join(texts))}"></i>'
        )
    return columns


def _alt_text(title: str, series: Sequence[Series], share: bool) -> str:
    """Return a description of the chart for screen readers."""
    last_values = [
        f"{line.label} ends at {line.values[-1]:.1%}" if share else f"{line.label}: {line.values[-1]:.4g}"
        for line in series
    ]
    return f"{title}: {', '.join(last_values)}"
