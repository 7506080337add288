"""Calibration against numbers worked by hand, and where there is little to learn from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from score_samples import FEW, any_scores, logit

from plaudit.reward_models.evaluation.calibration import SURE, Calibration, fit_calibration, log_loss, sigmoid
from plaudit.reward_models.evaluation.scores import Scores


def grouped(*groups: tuple[float, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of groups: a logit, how many frames of success have it, and how many of failure."""
    logits = [np.full(good + bad, value) for value, good, bad in groups]
    labels = [np.repeat([1, 0], [good, bad]) for _, good, bad in groups]
    return np.concatenate(logits).astype(np.float32), np.concatenate(labels).astype(np.int8)


def test_sigmoid_and_loss() -> None:
    assert sigmoid(np.array([-1e6, -np.inf, 0.0, math.log(3), 1e6, np.inf])).tolist() == [0, 0, 0.5, 0.75, 1, 1]
    # p = 3/4, once right and once wrong.
    assert log_loss(np.full(2, math.log(3)), np.array([1, 0])) == pytest.approx(-(math.log(0.75) + math.log(0.25)) / 2)


def test_probabilities() -> None:
    calibration = Calibration(temperature=2, bias=-1)
    assert calibration.probabilities(np.array([2.0, 4.0])) == pytest.approx([0.5, 1 / (1 + math.exp(-1))])
    assert calibration.logits(np.array([-1e9, 1e9])).tolist() == [-SURE, SURE]
    sure = np.float32(calibration.probabilities(np.array([1e9]))[0])
    assert sure < 1  # In float32 too.


@pytest.mark.parametrize("bias", [False, True])
def test_temperature_of_a_model_that_is_too_sure(bias: bool) -> None:
    # Four frames of each class. They count as 5/6 and 1/6, so at logit 2 the mean is (3 · 5/6 + 1/6) / 4 = 2/3, which
    # is the logit ln 2; and at -2 it is 1/3.
    fitted = fit_calibration(*grouped((2, 3, 1), (-2, 1, 3)), bias=bias)
    assert fitted.temperature == pytest.approx(2 / math.log(2))
    assert fitted.bias == pytest.approx(0, abs=1e-9)


def test_bias_mends_what_balanced_training_did() -> None:
    # Half of the frames at logit 2 are successes, and a tenth of those at -2.
    logits, labels = grouped((2, 500, 500), (-2, 100, 900))
    success, failure = 601 / 602, 1 / 1402
    upper, lower = logit((success + failure) / 2), logit(0.1 * success + 0.9 * failure)
    fitted = fit_calibration(logits, labels)
    assert fitted.temperature == pytest.approx(4 / (upper - lower))
    assert fitted.bias == pytest.approx((upper + lower) / 2)
    alone = fit_calibration(logits, labels, bias=False)
    assert alone.bias == 0
    assert log_loss(fitted.logits(logits), labels) < log_loss(alone.logits(logits), labels) - 0.02


def test_without_error_the_temperature_stays_in_bounds() -> None:
    logits, labels = grouped((0.1, 50, 0), (-0.1, 0, 50))
    fitted = fit_calibration(logits, labels)
    assert fitted.temperature == pytest.approx(0.05)  # ln 51 / 0.1 = 39 times as sure would fit best.
    wider = fit_calibration(10 * logits, labels)
    assert wider.temperature == pytest.approx(1 / math.log(51))
    surest = fit_calibration(100 * logits, labels)  # As sure as the number of frames does not support, and right.
    assert surest == Calibration()


def test_the_bias_is_still_fitted_where_the_temperature_cannot_go_on() -> None:
    # 20 times as sure, the logits are 4 and 2; by symmetry the best place between them is 3.
    fitted = fit_calibration(*grouped((0.2, 50, 0), (0.1, 0, 50)))
    assert fitted.temperature == pytest.approx(0.05) and fitted.bias == pytest.approx(-3)


def test_nothing_to_learn_from() -> None:
    assert fit_calibration(*grouped((3, 5, 0), (1, 2, 0))) == Calibration()
    assert fit_calibration(*grouped((3, 0, 5))) == Calibration()
    same = fit_calibration(*grouped((0, 30, 10)))  # Equal logits say nothing but how many successes there are.
    assert same.temperature == 1 and same.bias == pytest.approx(logit(0.75 * 31 / 32 + 0.25 / 12))


def test_a_model_that_is_wrong_is_given_no_confidence() -> None:
    fitted = fit_calibration(*grouped((3, 10, 90), (-3, 90, 10)))
    assert fitted.temperature == pytest.approx(20)


@FEW
@given(any_scores(), st.booleans())
def test_never_worse_than_none(scores: Scores, bias: bool) -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        fitted = fit_calibration(scores.logits, scores.labels, bias=bias)
    assert fitted.temperature * (1 + 1e-9) >= 0.05 and fitted.temperature <= 20 * (1 + 1e-9)
    before = log_loss(Calibration().logits(scores.logits), scores.labels)
    assert log_loss(fitted.logits(scores.logits), scores.labels) <= before


@settings(FEW, max_examples=10)
@given(st.floats(0.1, 10), st.floats(-3, 3))
def test_finds_what_was_done_to_the_logits(temperature: float, bias: float) -> None:
    random = np.random.default_rng(0)
    true = random.normal(-1, 2, 4000)
    labels = (random.random(4000) < sigmoid(true)).astype(np.int8)
    straight = fit_calibration(true, labels)
    bent = fit_calibration((true - bias) * temperature, labels)
    assert bent.probabilities((true - bias) * temperature) == pytest.approx(straight.probabilities(true), abs=1e-5)
