"""How well scores rank frames, and whether probabilities come true: over all thresholds, without a decision."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.floating[Any]]
Labels: TypeAlias = NDArray[Any]
Curve: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]

BINS = 15
"""Of equal width, as in most of the literature since Guo et al. (2017), so that numbers can be compared."""


def roc_curve(values: Values, labels: Labels) -> Curve:
    """False-positive and true-positive rates of frames, from the highest threshold to the lowest, (0, 0) first.

    A point for each distinct value: equal values fire together. All NaN where there is one class only.
    """
    right, wrong = _fired(values, labels)
    return _share(np.append(0, wrong)), _share(np.append(0, right))


def precision_recall_curve(values: Values, labels: Labels) -> Curve:
    """Recall and precision of frames, from the highest threshold to the lowest; a point for each distinct value."""
    right, wrong = _fired(values, labels)
    return _share(right), right / (right + wrong)


def roc_auc(values: Values, labels: Labels) -> float:
    """Chance that a frame of success scores higher than one of failure; an equal score is half a win."""
    false, true = roc_curve(values, labels)
    return float(np.sum(np.diff(false) * (true[1:] + true[:-1]) / 2))


def average_precision(values: Values, labels: Labels) -> float:
    """The mean precision over recall, each precision counting for the recall that it adds; nothing is interpolated."""
    recall, precision = precision_recall_curve(values, labels)
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def brier(probabilities: Values, labels: Labels) -> float:
    """Mean squared distance of probability and label."""
    return float(np.mean((probabilities - labels) ** 2))


def reliability(
    probabilities: Values, labels: Labels
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Mean probability and share of successes in each bin, NaN where it is empty, and the bins' frames; (`BINS`,) each.

    Bins are half open, [0, 1/15) first, and the last holds 1.
    """
    place = np.minimum((probabilities * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(place, minlength=BINS)
    sums = [np.bincount(place, weights, BINS) for weights in (probabilities, labels)]
    said, true = (np.divide(total, count, out=np.full(BINS, math.nan), where=count > 0) for total in sums)
    return said, true, count


def ece(probabilities: Values, labels: Labels) -> float:
    """Expected calibration error: how far probability and share of successes lie apart in a bin, averaged over frames.

    Bins are of the probability of success, not of the likelier class, so that being too sure of successes cannot make
    up for being too unsure of failures.
    """
    said, true, count = reliability(probabilities, labels)
    return float(np.nansum(np.abs(said - true) * count) / count.sum())


def _fired(values: Values, labels: Labels) -> Curve:
    """How many frames of success and of failure are at or above each distinct value, descending."""
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    last = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    right = np.cumsum(labels[order] == 1)[last].astype(np.float64)
    return right, last + 1.0 - right


def _share(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    return counts / counts[-1] if counts[-1] else np.full(len(counts), math.nan)
