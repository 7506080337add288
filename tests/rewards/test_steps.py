"""The algebra of rewards, against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from score_samples import FEW, make_scores

from plaudit.config.guard_expressions import parse_guard
from plaudit.config.reward_schema import RewardConfig
from plaudit.envs.base import Reading
from plaudit.reward_models.evaluation.calibration import Calibration
from plaudit.reward_models.evaluation.success_decision import Decision, fires
from plaudit.rewards.reward_function import Memory, Rule, asked, calibrate, combine, decide, guard, map_rewards

# Three steps of two envs; the first env's episode ends with the second step, the other's with the third.
P = np.array([[0.9, 0.2], [0.4, 0.8], [0.6, 0.7]])
DONE = np.array([[False, False], [True, False], [False, True]])
ENV = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def verdicts(mode: str) -> Any:
    p = P if mode == "per_step" else np.where(DONE, P, np.nan)
    rule = Rule(Decision(0.5, mode=mode))  # type: ignore[arg-type]
    return p, decide(p, DONE, rule, Memory.fresh(2, rule))[0]


# By hand, with threshold 0.5: success is at (0, 0), (1, 1), (2, 0) and (2, 1); terminal asks at (1, 0) and (2, 1) only.
# Continuous is fail + p (success - fail): with -1 and 3 it is 4 p - 1.
MAPPED = {
    ("per_step", "binary", 1.0, 0.0): [[1, 0], [0, 1], [1, 1]],
    ("per_step", "binary", 3.0, -1.0): [[3, -1], [-1, 3], [3, 3]],
    ("per_step", "continuous", 1.0, 0.0): [[0.9, 0.2], [0.4, 0.8], [0.6, 0.7]],
    ("per_step", "continuous", 3.0, -1.0): [[2.6, -0.2], [0.6, 2.2], [1.4, 1.8]],
    ("terminal", "binary", 1.0, 0.0): [[0, 0], [0, 0], [0, 1]],
    ("terminal", "binary", 3.0, -1.0): [[0, 0], [-1, 0], [0, 3]],
    ("terminal", "continuous", 1.0, 0.0): [[0, 0], [0.4, 0], [0, 0.7]],
    ("terminal", "continuous", 3.0, -1.0): [[0, 0], [0.6, 0], [0, 1.8]],
}

# replace: w m. add: r + w m. weighted: e r + w m.
COMBINED = {
    ("replace", 1.0, 0.0): lambda m: m,
    ("replace", 10.0, 0.0): lambda m: 10 * m,
    ("add", 1.0, 0.0): lambda m: ENV + m,
    ("add", 0.5, 0.0): lambda m: ENV + 0.5 * m,
    ("weighted", 10.0, 0.0): lambda m: 10 * m,
    ("weighted", 2.0, 0.25): lambda m: 0.25 * ENV + 2 * m,
}


@pytest.mark.parametrize("combination", COMBINED)
@pytest.mark.parametrize("mapping", MAPPED)
def test_every_combination(mapping: Any, combination: Any) -> None:
    mode, kind, high, low = mapping
    how, weight, env_weight = combination
    settings = RewardConfig(
        reward_mode=mode,
        reward_type=kind,
        success_reward=high,
        fail_reward=low,
        combine_mode=how,
        reward_weight=weight,
        env_reward_weight=env_weight,
    )
    p, verdict = verdicts(mode)
    worth = map_rewards(p, verdict, settings)
    assert worth == pytest.approx(np.array(MAPPED[mapping]))
    rewards = combine(worth, ENV, settings)
    assert rewards.dtype == np.float32
    assert rewards == pytest.approx(COMBINED[combination](np.array(MAPPED[mapping])), rel=1e-6)


def test_of_which_steps_the_model_is_asked() -> None:
    age, done = np.array([[1, 2, 3, 4, 5]]), np.array([[False, False, False, False, True]])
    for settings, expected in (
        ({}, [1, 1, 1, 1, 1]),
        ({"reward_interval": 2}, [0, 1, 0, 1, 1]),
        ({"reward_interval": 3}, [0, 0, 1, 0, 1]),
        ({"reward_mode": "terminal"}, [0, 0, 0, 0, 1]),
    ):
        assert asked(done, age, RewardConfig(**settings)).astype(int).tolist() == [expected]  # type: ignore[arg-type]


def test_equal_to_the_threshold_is_no_success() -> None:
    rule = Rule(Decision(0.6))
    assert decide(P, DONE, rule, Memory.fresh(2, rule))[0].tolist() == [[True, False], [False, True], [False, True]]


def test_calibrate_by_hand() -> None:
    scores = np.array([[[2.0, 0.5], [np.nan, np.nan]]], np.float32)
    # 2 / 4 + 1 = 1.5, and with two deviations less (2 - 2 x 0.5) / 4 + 1 = 1.25.
    for penalty, logit in ((0.0, 1.5), (2.0, 1.25)):
        found = calibrate(scores, Calibration(temperature=4.0, bias=1.0), penalty)
        assert found[0, 0] == pytest.approx(1 / (1 + math.exp(-logit)))
        assert np.isnan(found[0, 1])


def test_guards_by_hand() -> None:
    # The state holds 20 times the gripper's width and the height itself.
    readings = {"gripper_width": Reading(0, 20.0), "height": Reading(1)}
    state = np.array([[[0.4, 0.0], [0.1, 1.0]], [[0.2, 0.5], [0.4, 0.5]]], np.float32)
    p = np.array([[0.9, 0.8], [0.7, 0.6]])
    wide = [parse_guard("gripper_width > 0.01")]
    assert guard(p, state, wide, readings).tolist() == [[0.9, 0.0], [0.0, 0.6]]
    least = [parse_guard("gripper_width >= 0.01")]
    assert guard(p, state, least, readings).tolist() == [[0.9, 0.0], [0.7, 0.6]]
    both = [*least, parse_guard("height<5e-1")]
    assert guard(p, state, both, readings).tolist() == [[0.9, 0.0], [0.0, 0.0]]
    assert guard(p, None, [], {}) is p
    found = guard(np.array([[0.9, np.nan], [np.nan, 0.6]]), state, wide, readings)
    assert np.isnan(found).tolist() == [[False, True], [True, False]]


def run(p: list[float], done: list[int], rule: Rule, split: int = 0) -> list[int]:
    """Verdicts on one env, in two calls where `split` says so."""
    memory, found = Memory.fresh(1, rule), []
    values, ends = np.array(p)[:, None], np.array(done, bool)[:, None]
    for part in (slice(0, split), slice(split, None)):
        some, memory = decide(values[part], ends[part], rule, memory)
        found += some[:, 0].astype(int).tolist()
    return found


SEEN = [0.9, 0.9, 0.9, 0.4, 0.9, 0.9, 0.2, 0.9, 0.9]
ENDS = [0, 0, 0, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("split", range(9))
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(Decision(0.5)), [1, 1, 1, 0, 1, 1, 0, 1, 1]),
        # Two in a row; the episode that begins with 0.2 does not remember the one before.
        (Rule(Decision(0.5, hold=2)), [0, 1, 1, 0, 0, 1, 0, 0, 1]),
        (Rule(Decision(0.5, hold=3)), [0, 0, 1, 0, 0, 0, 0, 0, 0]),
        # Two of the last three.
        (Rule(Decision(0.5, hold=2), window=3), [0, 1, 1, 1, 1, 1, 0, 0, 1]),
        # Once on, 0.4 does not end it; the end of the episode does.
        (Rule(Decision(0.5, hold=3, release=0.3)), [0, 0, 1, 1, 1, 1, 0, 0, 0]),
        (Rule(Decision(0.5, release=0.3)), [1, 1, 1, 1, 1, 1, 0, 1, 1]),
    ],
)
def test_hold_and_hysteresis_by_hand(rule: Rule, expected: list[int], split: int) -> None:
    assert run(SEEN, ENDS, rule, split) == expected


def test_frames_that_are_not_asked_of_count_for_no_hold() -> None:
    # Asked at every second step: 0.9, 0.9, 0.4, 0.9; on after two in a row, and kept on by 0.4.
    seen = [math.nan, 0.9, math.nan, 0.9, math.nan, 0.4, math.nan, 0.9]
    assert run(seen, [0] * 8, Rule(Decision(0.5, hold=2))) == [0, 0, 0, 1, 0, 0, 0, 0]
    assert run(seen, [0] * 8, Rule(Decision(0.5, hold=2, release=0.3))) == [0, 0, 0, 1, 0, 1, 0, 1]


@FEW
@given(
    st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=6), min_size=1, max_size=5),
    st.integers(1, 4),
    st.sampled_from([None, 0.2, 0.5]),
)
def test_live_verdicts_are_those_of_the_fit(episodes: list[list[float]], hold: int, release: float | None) -> None:
    decision = Decision(0.5, hold=hold, release=release)
    scores = make_scores(*[(p, [0] * len(p)) for p in episodes])
    flat = [value for p in episodes for value in p]
    ends = [int(i == len(p) - 1) for p in episodes for i in range(len(p))]
    assert run(flat, ends, Rule(decision)) == fires(np.array(flat), scores, decision).astype(int).tolist()
