"""Metrics of a binary classifier: rates at a threshold, ROC and precision-recall curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from plaudit.reward_models.evaluation.calibration import Calibration, log_loss
from plaudit.reward_models.evaluation.confidence_bounds import clustered_bounds, rate_bounds
from plaudit.reward_models.evaluation.scores import Scores
from plaudit.reward_models.evaluation.success_decision import Decision, asked, fires

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


Metrics: TypeAlias = dict[str, float]
"""Flat names to numbers. What cannot be measured is NaN; `why_missing` says why."""

Mask: TypeAlias = NDArray[np.bool_]

_NEEDS = {
    "no success frames": ("recall", "balanced_accuracy", "roc_auc", "average_precision"),
    "no failure frames": ("specificity", "balanced_accuracy", "roc_auc"),
    "the model fires nowhere": ("precision",),
    "no episode with a failure frame": ("episode_false_positive_rate",),
    "no episode without success": ("failed_episode_false_positive_rate",),
    "no episode with failure before its success": ("early_firing_rate",),
    "no episode with a success frame": ("episode_miss_rate",),
    "no episode with two frames": ("frame_stride",),
    "the model is right, or wrong, about every frame": ("disagreement_auc",),
}


def evaluate(scores: Scores, calibration: Calibration, decision: Decision) -> Metrics:
    """All that is reported of a model, from the scores of episodes on which nothing was picked.

    Rates come with 95 % bounds (`_low`, `_high`). Those of frames and episodes are of the decision, with its hold and
    release; in `terminal` mode of each episode's last frame alone. ROC AUC, average precision, Brier score, log loss
    and calibration error are of the probabilities of all frames.

    Args:
        scores: Of held-out episodes.
        calibration: From the validation split.
        decision: With the threshold from there too.
    """
    p = calibration.probabilities(scores.logits)
    fired = fires(p, scores, decision)
    success = scores.labels == 1
    masks = fired, success & asked(scores, decision.mode), ~success & asked(scores, decision.mode)
    gaps = np.diff(scores.instant)[np.diff(scores.episode) == 0]
    metrics = {
        **_frame_rates(scores, *masks),
        "roc_auc": roc_auc(scores.logits, scores.labels),
        "average_precision": average_precision(scores.logits, scores.labels) if success.any() else math.nan,
        "brier": brier(p, scores.labels),
        "log_loss": log_loss(calibration.logits(scores.logits), scores.labels),
        "ece": ece(p, scores.labels),
        **_episode_rates(scores, *masks),
        "frames": len(scores),
        "success_frames": int(success.sum()),
        "failure_frames": int((~success).sum()),
        "episodes": len(scores.starts),
        "frame_stride": float(np.median(gaps)) if len(gaps) else math.nan,
    }
    if scores.spread is not None:
        metrics["disagreement_auc"] = roc_auc(scores.spread, (p > decision.threshold) != success)
    return metrics


def why_missing(metrics: Mapping[str, float]) -> dict[str, str]:
    """Why each number that is NaN could not be measured."""
    reasons: dict[str, list[str]] = {}
    absent = {
        "no success frames": not metrics["true_positives"] + metrics["false_negatives"],
        "no failure frames": not metrics["true_negatives"] + metrics["false_positives"],
    }
    for reason, names in _NEEDS.items():
        for name in names:
            if math.isnan(metrics.get(name, 0.0)) and absent.get(reason, True):
                reasons.setdefault(name, []).append(reason)
    return {name: " and ".join(why) for name, why in reasons.items()}


def episode_mistakes(scores: Scores, fired: Mask, success: Mask, failure: Mask) -> tuple[Mask, Mask]:
    """Which episodes have a false positive at any frame, and which have successes of which none was seen, (episodes,).

    Args:
        scores: Whose frames the others are of, (n,) each.
        fired: The decisions.
        success: Frames of success at which a decision was made.
        failure: Those that are not of success.
    """
    fooled = scores.per_episode(fired & failure) > 0
    missed = (scores.per_episode(success) > 0) & (scores.per_episode(fired & success) == 0)
    return fooled, missed


def _frame_rates(scores: Scores, fired: Mask, success: Mask, failure: Mask) -> Metrics:
    """Accuracy and its kin, and the confusion that they come from."""
    right = {"true_positives": success & fired, "true_negatives": failure & ~fired}
    wrong = {"false_positives": failure & fired, "false_negatives": success & ~fired}
    metrics: Metrics = {}
    parts = {}
    for name, hits, among in (
        ("accuracy", right["true_positives"] | right["true_negatives"], success | failure),
        ("precision", right["true_positives"], fired),
        ("recall", right["true_positives"], success),
        ("specificity", right["true_negatives"], failure),
    ):
        rate, influence, episodes = parts[name] = _ratio(scores, hits, among)
        low, high = clustered_bounds(rate, influence, episodes, int(among.sum()))
        metrics |= {name: rate, f"{name}_low": low, f"{name}_high": high}
    (recall, moves, some), (specificity, moves_too, others) = parts["recall"], parts["specificity"]
    balanced = (recall + specificity) / 2
    low, high = clustered_bounds(balanced, (moves + moves_too) / 2, min(some, others), int((success | failure).sum()))
    metrics |= {"balanced_accuracy": balanced, "balanced_accuracy_low": low, "balanced_accuracy_high": high}
    return metrics | {name: int(mask.sum()) for name, mask in (right | wrong).items()}


def _ratio(scores: Scores, hits: Mask, among: Mask) -> tuple[float, NDArray[np.float64], int]:
    """The share of frames `among` which are `hits`, how each episode moves it (episodes,), and how many have any."""
    top, bottom = scores.per_episode(hits), scores.per_episode(among)
    total = int(bottom.sum())
    if not total:
        return math.nan, np.zeros(len(top)), 0
    rate = int(top.sum()) / total
    return rate, (top - rate * bottom) / total, int((bottom > 0).sum())


def _episode_rates(scores: Scores, fired: Mask, success: Mask, failure: Mask) -> Metrics:
    """Episodes with a false positive at any frame, of all, of failed and of successful ones; and missed successes."""
    fooled, missed = episode_mistakes(scores, fired, success, failure)
    could, succeeded = scores.per_episode(failure) > 0, scores.per_episode(success) > 0
    metrics: Metrics = {}
    for name, events, trials in (
        ("episode_false_positive_rate", fooled, could),
        ("failed_episode_false_positive_rate", fooled & ~succeeded, could & ~succeeded),
        ("early_firing_rate", fooled & succeeded, could & succeeded),
        ("episode_miss_rate", missed, succeeded),
    ):
        count, total = int(events.sum()), int(trials.sum())
        low, high = rate_bounds(count, total)
        metrics |= {name: count / total if total else math.nan, f"{name}_low": low, f"{name}_high": high}
    return metrics | {
        "episode_false_positives": int(fooled.sum()),
        "episodes_with_failure": int(could.sum()),
        "episode_misses": int(missed.sum()),
        "episodes_with_success": int(succeeded.sum()),
    }
