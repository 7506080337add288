"""Bounds of rates against printed tables and numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from score_samples import FEW

from plaudit.reward_models.evaluation.confidence_bounds import (
    beta_cumulative,
    beta_quantile,
    clustered_bounds,
    episodes_needed,
    rate_bounds,
)


@pytest.mark.parametrize(
    ("events", "trials", "low", "high"),
    [
        (0, 100, 0.0, 0.0362),
        (1, 100, 0.0003, 0.0545),
        (5, 100, 0.0164, 0.1128),
        (50, 100, 0.3983, 0.6017),
        (100, 100, 0.9638, 1.0),
        (0, 10, 0.0, 0.3085),
        (3, 300, 0.0021, 0.0289),
        (1, 1, 0.025, 1.0),
        (0, 0, 0.0, 1.0),
    ],
)
def test_clopper_pearson(events: int, trials: int, low: float, high: float) -> None:
    assert rate_bounds(events, trials) == pytest.approx((low, high), abs=5e-5)


def test_beta_distribution() -> None:
    assert beta_cumulative(0.3, 1, 1) == pytest.approx(0.3)  # Even.
    assert beta_cumulative(0.5, 2, 3) == pytest.approx(11 / 16)  # The integral of 12 x (1 - x)².
    assert beta_cumulative(0.2, 3.5, 1) == pytest.approx(0.2**3.5)
    assert beta_cumulative(0.0, 2, 3) == 0 and beta_cumulative(1.0, 2, 3) == 1
    assert beta_quantile(11 / 16, 2, 3) == pytest.approx(0.5)
    # 200,000 trials: a normal distribution with mean 1/2 and deviation 1/2 / sqrt(200,000), 1.96 of which are 95 %.
    assert beta_quantile(0.975, 100_000, 100_000) == pytest.approx(0.5 + 1.95996 * 0.5 / math.sqrt(200_000), abs=1e-7)


@FEW
@given(st.integers(0, 400), st.integers(0, 400))
def test_bounds_hold_the_estimate_and_mirror(events: int, others: int) -> None:
    trials = events + others
    low, high = rate_bounds(events, trials)
    assert 0 <= low <= high <= 1
    if trials:
        assert low <= events / trials <= high
    assert rate_bounds(others, trials) == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_frames_of_an_episode_count_for_less() -> None:
    # Four episodes of two frames, of which two are right in both and two in none. Each moves the rate of 1/2 by
    # (2 - 1) / 8 or (0 - 1) / 8; the variance is 4/3 · 4 / 64 = 1/12, that of three independent frames.
    influence = np.array([1, 1, -1, -1]) / 8
    assert clustered_bounds(0.5, influence, 4, 8) == pytest.approx(rate_bounds(1.5, 3))
    # One right in each episode: they do not vary at all, but eight frames are not more than eight.
    assert clustered_bounds(0.5, np.full(4, 1e-9), 4, 8) == pytest.approx(rate_bounds(4, 8))
    # All right: each episode counts as one frame.
    assert clustered_bounds(1.0, np.zeros(4), 4, 8) == pytest.approx(rate_bounds(4, 4))
    assert clustered_bounds(math.nan, np.zeros(4), 0, 0) == (0, 1)


@pytest.mark.parametrize(("target", "episodes"), [(0.1, 29), (0.05, 59), (0.02, 149), (0.01, 299), (0.001, 2995)])
def test_episodes_needed(target: float, episodes: int) -> None:
    assert episodes_needed(target) == episodes
    assert (1 - target) ** episodes <= 0.05 < (1 - target) ** (episodes - 1)  # That none of them shows a fault.


def test_no_number_shows_a_rate_of_nothing() -> None:
    assert episodes_needed(0) == math.inf
