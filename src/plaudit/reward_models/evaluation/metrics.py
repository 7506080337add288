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
"""Number of calibration bins of equal width, as in most of the literature since Guo et al. (2017), to be comparable."""


def roc_curve(values: Values, labels: Labels) -> Curve:
    """Return the false-positive and true-positive rates of frames.

    Points run from the highest threshold to the lowest, (0, 0) first, one for each distinct value: equal values fire
    together. A rate is all NaN if its class has no frames.
    """
    true_positives, false_positives = _positive_counts(values, labels)
    return _normalised(np.append(0, false_positives)), _normalised(np.append(0, true_positives))


def precision_recall_curve(values: Values, labels: Labels) -> Curve:
    """Return the recall and precision of frames.

    Points run from the highest threshold to the lowest, one for each distinct value.
    """
    true_positives, false_positives = _positive_counts(values, labels)
    return _normalised(true_positives), true_positives / (true_positives + false_positives)


def roc_auc(values: Values, labels: Labels) -> float:
    """Return the area under the ROC curve.

    It is the probability that a success frame scores higher than a failure frame; ties count one half.
    """
    false_rate, true_rate = roc_curve(values, labels)
    return float(np.sum(np.diff(false_rate) * (true_rate[1:] + true_rate[:-1]) / 2))


def average_precision(values: Values, labels: Labels) -> float:
    """Return the average precision, each precision weighted by the recall it adds; no interpolation."""
    recall, precision = precision_recall_curve(values, labels)
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def brier(probabilities: Values, labels: Labels) -> float:
    """Return the Brier score: the mean squared difference of probability and label."""
    return float(np.mean((probabilities - labels) ** 2))


def reliability(
    probabilities: Values, labels: Labels
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return mean probability, share of successes and frame count of each bin.

    All three are (`BINS`,); the first two are NaN for empty bins. Bins are half open, [0, 1/15) first, and the last one
    includes 1.
    """
    bins = np.minimum((probabilities * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(bins, minlength=BINS)
    sums = [np.bincount(bins, weights, BINS) for weights in (probabilities, labels)]
    predicted, actual = (np.divide(total, count, out=np.full(BINS, math.nan), where=count > 0) for total in sums)
    return predicted, actual, count


def ece(probabilities: Values, labels: Labels) -> float:
    """Return the expected calibration error.

    It is the absolute difference of mean probability and share of successes in a bin, averaged over frames. Bins are of
    the probability of success, not of the likelier class, so that overconfidence in successes cannot cancel
    underconfidence in failures.
    """
    predicted, actual, count = reliability(probabilities, labels)
    return float(np.nansum(np.abs(predicted - actual) * count) / count.sum())


def _positive_counts(values: Values, labels: Labels) -> Curve:
    """Count the success and failure frames at or above each distinct value, descending."""
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    last = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    true_positives = np.cumsum(labels[order] == 1)[last].astype(np.float64)
    return true_positives, last + 1.0 - true_positives


def _normalised(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide cumulative counts by the last one; all NaN if that is 0."""
    return counts / counts[-1] if counts[-1] else np.full(len(counts), math.nan)


Metrics: TypeAlias = dict[str, float]
"""Metric name to number, flat. Metrics that cannot be measured are NaN; `why_missing` gives the reasons."""

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
    """Compute all reported metrics of a model from the scores of held-out episodes.

    The episodes must not have been used to select anything. Rates come with 95 % bounds (`_low`, `_high`). Rates of
    frames and episodes describe the decision, with its hold and release; in `terminal` mode they describe only each
    episode's last frame. ROC AUC, average precision, Brier score, log loss and calibration error describe the
    probabilities of all frames.

    Args:
        scores: Scores of held-out episodes.
        calibration: Calibration fitted on the validation split.
        decision: Decision with the threshold picked on the validation split.
    """
    # Rates count only the frames at which a decision is made.
    p = calibration.probabilities(scores.logits)
    fired = fires(p, scores, decision)
    success = scores.labels == 1
    decided = asked(scores, decision.mode)
    masks = (fired, success & decided, ~success & decided)

    # Instants between neighbouring frames of the same episode.
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

    # Disagreement between heads as a detector of wrong frames.
    if scores.spread is not None:
        metrics["disagreement_auc"] = roc_auc(scores.spread, (p > decision.threshold) != success)
    return metrics


def why_missing(metrics: Mapping[str, float]) -> dict[str, str]:
    """Return the reason for each metric that is NaN."""
    reasons: dict[str, list[str]] = {}
    absent = {
        "no success frames": not metrics["true_positives"] + metrics["false_negatives"],
        "no failure frames": not metrics["true_negatives"] + metrics["false_positives"],
    }

    # A reason applies unless the counts show that the frames do exist.
    for reason, names in _NEEDS.items():
        for name in names:
            if math.isnan(metrics.get(name, 0.0)) and absent.get(reason, True):
                reasons.setdefault(name, []).append(reason)

    return {name: " and ".join(causes) for name, causes in reasons.items()}


def episode_mistakes(scores: Scores, fired: Mask, success: Mask, failure: Mask) -> tuple[Mask, Mask]:
    """Return the masks of episodes with a false positive and with a missed success.

    An episode has a false positive if the model fires at any failure frame, and a missed success if it has success
    frames and the model fires at none of them. Both masks are (episodes,).

    Args:
        scores: Scores of the frames that the masks below, (n,) each, refer to.
        fired: Frames at which the model fires.
        success: Success frames at which a decision was made.
        failure: Other frames at which a decision was made.
    """
    false_positive = scores.per_episode(fired & failure) > 0
    missed = (scores.per_episode(success) > 0) & (scores.per_episode(fired & success) == 0)
    return false_positive, missed


def _frame_rates(scores: Scores, fired: Mask, success: Mask, failure: Mask) -> Metrics:
    """Compute accuracy, precision, recall and specificity, with bounds, and the confusion matrix."""
    correct = {"true_positives": success & fired, "true_negatives": failure & ~fired}
    incorrect = {"false_positives": failure & fired, "false_negatives": success & ~fired}
    metrics: Metrics = {}
    ratios = {}

    for name, hits, among in (
        ("accuracy", correct["true_positives"] | correct["true_negatives"], success | failure),
        ("precision", correct["true_positives"], fired),
        ("recall", correct["true_positives"], success),
        ("specificity", correct["true_negatives"], failure),
    ):
        rate, influence, episodes = ratios[name] = _ratio(scores, hits, among)
        low, high = clustered_bounds(rate, influence, episodes, int(among.sum()))
        metrics |= {name: rate, f"{name}_low": low, f"{name}_high": high}

    # Balanced accuracy is the mean of recall and specificity; so is each episode's influence on it.
    recall, recall_influence, recall_episodes = ratios["recall"]
    specificity, specificity_influence, specificity_episodes = ratios["specificity"]
    balanced = (recall + specificity) / 2
    influence = (recall_influence + specificity_influence) / 2
    episodes = min(recall_episodes, specificity_episodes)
    low, high = clustered_bounds(balanced, influence, episodes, int((success | failure).sum()))
    metrics |= {"balanced_accuracy": balanced, "balanced_accuracy_low": low, "balanced_accuracy_high": high}

    return metrics | {name: int(mask.sum()) for name, mask in (correct | incorrect).items()}


def _ratio(scores: Scores, hits: Mask, among: Mask) -> tuple[float, NDArray[np.float64], int]:
    """Compute the share of `hits` in the frames `among`.

    Returns:
        The share, each episode's influence on it (episodes,), and the number of episodes with frames in `among`.
    """
    numerator = scores.per_episode(hits)
    denominator = scores.per_episode(among)
    total = int(denominator.sum())
    if not total:
        return math.nan, np.zeros(len(numerator)), 0
    rate = int(numerator.sum()) / total
    return rate, (numerator - rate * denominator) / total, int((denominator > 0).sum())


def _episode_rates(scores: Scores, fired: Mask, success: Mask, failure: Mask) -> Metrics:
    """Compute rates of episodes with a false positive and with a missed success.

    False positives are counted over all episodes, over failed ones, and over successful ones (firing early).
    """
    false_positive, missed = episode_mistakes(scores, fired, success, failure)
    has_failure = scores.per_episode(failure) > 0
    succeeded = scores.per_episode(success) > 0
    metrics: Metrics = {}

    # Episodes are independent, so these bounds need no correction for clusters.
    for name, events, trials in (
        ("episode_false_positive_rate", false_positive, has_failure),
        ("failed_episode_false_positive_rate", false_positive & ~succeeded, has_failure & ~succeeded),
        ("early_firing_rate", false_positive & succeeded, has_failure & succeeded),
        ("episode_miss_rate", missed, succeeded),
    ):
        count = int(events.sum())
        total = int(trials.sum())
        low, high = rate_bounds(count, total)
        metrics |= {name: count / total if total else math.nan, f"{name}_low": low, f"{name}_high": high}

    return metrics | {
        "episode_false_positives": int(false_positive.sum()),
        "episodes_with_failure": int(has_failure.sum()),
        "episode_misses": int(missed.sum()),
        "episodes_with_success": int(succeeded.sum()),
    }
