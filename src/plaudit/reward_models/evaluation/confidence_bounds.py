"""95 % bounds of rates: how far the truth may be from what a limited number of episodes shows."""

from __future__ import annotations

import functools
import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bounds: TypeAlias = tuple[float, float]
"""Low and high."""

LEVEL = 0.95
_TINY = 1e-300


@functools.lru_cache(maxsize=1024)  # An audit asks in every iteration, mostly for the same.
def rate_bounds(events: float, trials: float) -> Bounds:
    """Two-sided 95 % bounds of a rate by Clopper and Pearson (1934).

    They hold at least 95 % of the time whatever the rate. Wilson's are narrower, but for the rates that matter here, a
    few in a hundred and below, their upper end is too low more often than they say: 0 of 100 allows up to 3.6 %.

    Args:
        events: How often it happened. Need not be whole: see `clustered_bounds`.
        trials: How often it could have; with none, nothing is known.
    """
    if trials <= 0:
        return 0.0, 1.0
    tail = (1.0 - LEVEL) / 2
    low = 0.0 if events <= 0 else beta_quantile(tail, events, trials - events + 1)
    high = 1.0 if events >= trials else beta_quantile(1.0 - tail, events + 1, trials - events)
    return low, high


def clustered_bounds(rate: float, influence: NDArray[np.float64], episodes: int, frames: int) -> Bounds:
    """95 % bounds of a rate over frames, of which those of one episode are much alike and count for less than they are.

    Clopper and Pearson's with the number of independent frames that would vary as much as the episodes do (Korn and
    Graubard, 1998). Where all frames or none are right nothing varies: then each episode counts as one frame.

    Args:
        rate: The estimate.
        influence: (episodes,), by how much each episode moves the estimate; sums to 0.
        episodes: How many have such frames.
        frames: How many such frames there are.
    """
    if math.isnan(rate):
        return 0.0, 1.0
    variance = float(np.square(influence).sum()) * episodes / max(episodes - 1, 1)
    spread = rate * (1.0 - rate)
    effective = spread / variance if variance > 0 and spread > 0 else float(episodes)
    effective = min(max(effective, 1.0), float(frames))
    return rate_bounds(rate * effective, effective)


def episodes_needed(target: float) -> float:
    """How many episodes without a single false positive show, with 95 % confidence, a rate of at most `target`.

    "At most" is a one-sided claim, so all 5 % are on that side: 299 for 1 %, about three divided by the target.
    """
    return math.inf if target <= 0 else float(math.ceil(math.log(1.0 - LEVEL) / math.log1p(-target)))


def beta_quantile(share: float, a: float, b: float) -> float:
    """The x below which `share` of the beta distribution with parameters a and b lies, by bisection."""
    low, high = 0.0, 1.0
    while high - low > 1e-12 * high + 1e-16:
        middle = (low + high) / 2
        if beta_cumulative(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def beta_cumulative(x: float, a: float, b: float) -> float:
    """The share of the beta distribution below x: the regularised incomplete beta function."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1) / (a + b + 2):  # The fraction converges fast on the other side only.
        return 1.0 - beta_cumulative(1.0 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(front) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function (DLMF 8.17.22), evaluated by Lentz's method."""
    value, upper, lower = 1.0, 1.0, 0.0
    for step in range(1, 100_000):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        lower = 1.0 / _nonzero(1.0 + term * lower)
        upper = _nonzero(1.0 + term / upper)
        value *= lower * upper
        if abs(lower * upper - 1.0) < 1e-15:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
