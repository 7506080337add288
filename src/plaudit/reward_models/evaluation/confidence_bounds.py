"""95 % confidence bounds of rates that are estimated from a limited number of episodes."""

from __future__ import annotations

import functools
import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bounds: TypeAlias = tuple[float, float]
"""Lower and upper bound."""

LEVEL = 0.95
_TINY = 1e-300


@functools.lru_cache(maxsize=1024)  # An audit calls it in every iteration, mostly with the same counts.
def rate_bounds(events: float, trials: float) -> Bounds:
    """Return the two-sided 95 % bounds of a rate by Clopper and Pearson (1934).

    Their coverage is at least 95 % for every rate. Wilson's bounds are narrower, but for the rates that matter here, a
    few per cent and below, their upper bound is too low more often than the nominal 5 %. With 0 events in 100 trials
    the upper bound is 3.6 %.

    Args:
        events: Number of events. Need not be an integer: see `clustered_bounds`.
        trials: Number of trials; with none, the bounds are 0 and 1.
    """
    if trials <= 0:
        return 0.0, 1.0
    tail = (1.0 - LEVEL) / 2
    low = 0.0 if events <= 0 else beta_quantile(tail, events, trials - events + 1)
    high = 1.0 if events >= trials else beta_quantile(1.0 - tail, events + 1, trials - events)
    return low, high


def clustered_bounds(rate: float, influence: NDArray[np.float64], episodes: int, frames: int) -> Bounds:
    """Return the 95 % bounds of a rate over frames that are correlated within episodes.

    Clopper and Pearson's bounds with the effective sample size: the number of independent frames whose estimate would
    have the same variance as that between episodes (Korn and Graubard, 1998). If all frames or none are correct, the
    variance is 0, and each episode counts as one frame.

    Args:
        rate: The estimate.
        influence: (episodes,), by how much each episode moves the estimate; sums to 0.
        episodes: Number of episodes that contain frames of the denominator.
        frames: Number of frames in the denominator.
    """
    if math.isnan(rate):
        return 0.0, 1.0

    # Effective sample size: p (1 - p) / variance, at least 1 and at most the number of frames.
    variance = float(np.square(influence).sum()) * episodes / max(episodes - 1, 1)
    spread = rate * (1.0 - rate)
    effective = spread / variance if variance > 0 and spread > 0 else float(episodes)
    effective = min(max(effective, 1.0), float(frames))
    return rate_bounds(rate * effective, effective)


def episodes_needed(target: float) -> float:
    """Return the number of episodes needed to support a rate of at most `target`.

    With so many episodes and not a single false positive, the rate is at most `target` with 95 % confidence. The claim
    is one-sided, so all 5 % are on that side: 299 episodes for 1 %, about three divided by the target.
    """
    return math.inf if target <= 0 else float(math.ceil(math.log(1.0 - LEVEL) / math.log1p(-target)))


def beta_quantile(share: float, a: float, b: float) -> float:
    """Return the quantile `share` of the beta distribution with parameters a and b, by bisection."""
    low, high = 0.0, 1.0
    while high - low > 1e-12 * high + 1e-16:
        middle = (low + high) / 2
        if beta_cumulative(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def beta_cumulative(x: float, a: float, b: float) -> float:
    """Return the beta distribution's CDF at x: the regularised incomplete beta function."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1) / (a + b + 2):  # The continued fraction converges fast only below this x, so use the symmetry.
        return 1.0 - beta_cumulative(1.0 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(front) / (a * _continued_fraction(x, a, b))


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Evaluate the incomplete beta function's continued fraction (DLMF 8.17.22) by Lentz's method."""
    value = 1.0
    upper = 1.0
    lower = 0.0

    for step in range(1, 100_000):
        # Odd and even coefficients d of the fraction 1 + d1 / (1 + d2 / (1 + ...)).
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))

        # Ratios of successive numerators and denominators; neither may be 0.
        lower = 1.0 / _nonzero(1.0 + term * lower)
        upper = _nonzero(1.0 + term / upper)
        value *= lower * upper
        if abs(lower * upper - 1.0) < 1e-15:
            break

    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
