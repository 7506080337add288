"""The truth about a reward model: what it gets right on held-out frames and, what matters to RL, in whole episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from plaudit.rewards.bounds import clustered_bounds, rate_bounds
from plaudit.rewards.calibration import Calibration, log_loss
from plaudit.rewards.curves import average_precision, brier, ece, roc_auc
from plaudit.rewards.firing import Decision, asked, fires
from plaudit.rewards.scores import Scores

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
