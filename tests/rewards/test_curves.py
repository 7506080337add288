"""Ranking and calibration, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from score_samples import FEW, any_scores

from plaudit.reward_models.evaluation import metrics as curves
from plaudit.reward_models.evaluation.scores import Scores

VALUES, LABELS = np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])


def test_ranking() -> None:
    # Descending 0.8 (success), 0.4, 0.35 (success), 0.1. Of the four pairs, only 0.35 and 0.4 are the wrong way round.
    assert curves.roc_auc(VALUES, LABELS) == 3 / 4
    # Precision 1 at recall 1/2, and 2/3 at recall 1.
    assert curves.average_precision(VALUES, LABELS) == pytest.approx(1 / 2 * 1 + 1 / 2 * 2 / 3)
    false, true = curves.roc_curve(VALUES, LABELS)
    assert false.tolist() == [0, 0, 0.5, 0.5, 1] and true.tolist() == [0, 0.5, 0.5, 1, 1]


def test_equal_scores_fire_together() -> None:
    # Pairs: 1 wins over 0 and halves with 1; 2 wins twice.
    assert curves.roc_auc(np.array([0, 1, 1, 2]), LABELS) == 3.5 / 4
    assert curves.roc_auc(np.ones(4), LABELS) == 0.5
    assert curves.average_precision(np.ones(4), LABELS) == 0.5
    assert len(curves.roc_curve(np.ones(4), LABELS)[0]) == 2


def test_one_class_has_no_rank() -> None:
    assert math.isnan(curves.roc_auc(VALUES, np.ones(4)))
    assert math.isnan(curves.roc_auc(VALUES, np.zeros(4)))
    assert curves.average_precision(VALUES, np.ones(4)) == 1


def test_calibration_error() -> None:
    # First bin: 0.05 said, none true. Last: 0.95 and 1 said, one of two true. |0.05| · 2/4 + |0.975 - 0.5| · 2/4.
    p, labels = np.array([0.05, 0.05, 0.95, 1.0]), np.array([0, 0, 1, 0])
    said, true, count = curves.reliability(p, labels)
    assert count.tolist() == [2] + 13 * [0] + [2]
    assert said[[0, -1]] == pytest.approx([0.05, 0.975]) and true[[0, -1]].tolist() == [0, 0.5]
    assert np.isnan(said[1:-1]).all()
    assert curves.ece(p, labels) == pytest.approx(0.05 / 2 + 0.475 / 2)
    assert curves.brier(p, labels) == pytest.approx((2 * 0.05**2 + 0.05**2 + 1) / 4)


def test_bins_are_half_open() -> None:
    assert curves.reliability(np.array([0.0, 1 / 15, 14 / 15]), np.zeros(3))[2].tolist() == [1, 1] + 12 * [0] + [1]


def test_errors_of_both_classes_do_not_make_up_for_each_other() -> None:
    # As "80 % sure and right 80 % of the time" this would be perfect.
    p, labels = np.array([0.8] * 5 + [0.2] * 5), np.array([1] * 5 + [0] * 3 + [1] * 2)
    assert curves.ece(p, labels) == pytest.approx((0.2 + 0.2) / 2)


@FEW
@given(any_scores())
def test_rank_does_not_change_with_the_scale(scores: Scores) -> None:
    squeezed = np.arctan(scores.logits.astype(np.float64) / 3) * 7
    for metric in (curves.roc_auc, curves.average_precision):
        assert metric(squeezed, scores.labels) == pytest.approx(metric(scores.logits, scores.labels), nan_ok=True)


@FEW
@given(any_scores())
def test_rank_is_the_share_of_pairs_won(scores: Scores) -> None:
    good, bad = scores.logits[scores.labels == 1], scores.logits[scores.labels == 0]
    if len(good) and len(bad):
        pairs = good[:, None] - bad[None, :]
        assert curves.roc_auc(scores.logits, scores.labels) == pytest.approx(((pairs > 0) + (pairs == 0) / 2).mean())
