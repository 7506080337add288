"""What a fit leaves behind: the artifact, one file with the weights, figures, pictures, and a table for people."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plaudit.config.structured import to_dict
from plaudit.data.episode import SUCCESS
from plaudit.data.split import TEST, VAL
from plaudit.pipelines.fit_components import Parts
from plaudit.reporting.progress import show_table

if TYPE_CHECKING:
    from plaudit.reward_models.artifact import RewardArtifact, Sample
    from plaudit.reward_models.evaluation.metrics import Metrics
    from plaudit.reward_models.evaluation.scores import Scores
    from plaudit.reward_models.evaluation.validation import Aim, ValidationResult
    from plaudit.reward_models.training.batches import Feed
    from plaudit.reward_models.training.trainer import Fit

logger = logging.getLogger("plaudit")

SAMPLED = 64
"""Frames of each class that the artifact keeps."""

TOLD = {
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "precision": "precision",
    "recall": "recall",
    "episode_false_positive_rate": "episodes with a false positive",
    "early_firing_rate": "successful episodes that fire early",
    "episode_miss_rate": "successful episodes that never fire",
    "roc_auc": "area under the ROC curve",
    "average_precision": "average precision",
    "ece": "calibration error",
}
"""What the table at the end shows, and in which words."""


def visualise(parts: Parts) -> None:
    """Writes all success frames as pictures."""
    from plaudit.reward_models.evaluation.prediction_images import write_positives

    folder = Path(parts.config.reward.training.vis_output_dir)
    count = sum(write_positives(folder, frames) for frames in parts.data.values())
    logger.info("%s success frames: %s", f"{count:,}", folder)


def finish(parts: Parts, work: Fit, feeds: dict[str, Feed], folder: Path) -> dict[str, Any]:
    """Calibration and threshold by the validation split, the truth by the test split, and all that is written of it.

    Args:
        parts: What was fitted.
        work: The fit, which is over.
        feeds: What it read.
        folder: Where `best_model/` goes.

    Returns:
        What a script wants to know.
    """
    from plaudit.reward_models.artifact import BEST

    artifact, verdict = write_artifact(parts, work, feeds, folder / BEST)
    _write_decided(parts, *_shown(feeds, artifact), verdict)
    result: dict[str, Any] = {
        "artifact": str(artifact.path),
        "artifact_id": artifact.id,
        "threshold": artifact.decision.threshold,
        "temperature": artifact.calibration.temperature,
        "bias": artifact.calibration.bias,
        "measured_on": artifact.measured_on,
        "metrics": dict(artifact.metrics),
        "validation": verdict.metrics,
        "note": verdict.choice.note,
    }
    if parts.config.reward.training.output_checkpoint is not None:
        result["checkpoint"] = _write_checkpoint(parts, work, verdict)
    _tell(artifact, verdict)
    return result


def write_artifact(
    parts: Parts,
    work: Fit,
    feeds: dict[str, Feed],
    path: Path,
    *,
    judged: Callable[[Scores, Aim], ValidationResult] | None = None,
    about: dict[str, Any] | None = None,
) -> tuple[RewardArtifact, ValidationResult]:
    """The artifact of a fit that is over, at `path`, and what the validation split says of it.

    Args:
        parts: What was fitted.
        work: The fit.
        feeds: What it read, and `test` where there is such a split.
        path: The artifact's folder.
        judged: Calibrates and picks a threshold; `None` for `assess.reward_fingerprint`.
        about: What else it says of its data.
    """
    from plaudit.reward_models.artifact import RewardArtifact
    from plaudit.reward_models.evaluation.scores import score
    from plaudit.reward_models.evaluation.validation import validate

    validation = score(parts.model, feeds[VAL])
    verdict = (judged or validate)(validation, parts.aim)
    test = score(parts.model, feeds[TEST]) if TEST in feeds else None
    shown = (feeds[VAL], validation) if test is None else (feeds[TEST], test)
    artifact = RewardArtifact.create(
        path,
        parts.model,
        calibration=verdict.calibration,
        choice=verdict.choice,
        validation=validation,
        test=test,
        sample=_sample(feeds[VAL]),
        label_sources=_label_sources(parts),
        data={**_about_data(parts, work), **(about or {})},
        training=_about_training(parts, work),
        figures=(lambda place: _draw(place, *shown, verdict)) if parts.config.reward.training.figures else None,
    )
    return artifact, verdict


def _shown(feeds: dict[str, Feed], artifact: RewardArtifact) -> tuple[Feed, Scores]:
    """The frames that its metrics are of, and their scores."""
    if artifact.test is not None:
        return feeds[TEST], artifact.test
    assert artifact.validation is not None
    return feeds[VAL], artifact.validation


def _sample(feed: Feed) -> Sample:
    """A few frames of each class, spread over all of them."""
    from plaudit.reward_models.artifact import Sample

    labels = feed.dataset.labels[feed.rows]
    some = []
    for label in (0, 1):
        rows = feed.rows[labels == label]
        some.append(rows[np.unique(np.linspace(0, len(rows) - 1, SAMPLED).round().astype(np.int64))])
    rows = np.sort(np.concatenate(some))
    frames = {camera: pixels.numpy() for camera, pixels in feed.dataset.batch(rows)["frames"].items()}
    return Sample(frames, feed.dataset.labels[rows])


def _label_sources(parts: Parts) -> dict[str, int]:
    """Frames, of all splits, by who gave their label."""
    counts: Counter[str] = Counter()
    for frames in parts.data.values():
        summaries = frames.source.summaries()
        counts.update(summaries[number].label_source for number in frames.episodes)
    return dict(counts)


def _about_data(parts: Parts, work: Fit) -> dict[str, Any]:
    """What the model was fitted to, without paths, which mean nothing elsewhere."""
    splits = {}
    for name, frames in parts.data.items():
        episodes, success = len(np.unique(frames.episodes)), int((frames.labels == SUCCESS).sum())
        splits[name] = {"episodes": episodes, "frames": len(frames), "success_frames": success}
    return {**splits, "split": to_dict(parts.split), "train_fingerprint": work.data}


def _about_training(parts: Parts, work: Fit) -> dict[str, Any]:
    settings = to_dict(parts.config.reward.training)
    places = ("data", "save_dir", "cache_dir", "output_checkpoint", "vis_output_dir", "debug_save_dir")
    return {
        "seed": parts.config.runtime.seed,
        "steps": work.step,
        "epochs": work.epoch,
        "best_step": None if work.best is None else work.best.step,
        "seconds": work.seconds,
        "settings": {key: value for key, value in settings.items() if key not in places},
    }


def _draw(folder: Path, feed: Feed, scores: Scores, verdict: ValidationResult) -> None:
    from plaudit.reward_models.evaluation.figures import draw_figures
    from plaudit.reward_models.evaluation.prediction_images import pictures

    draw_figures(
        folder,
        scores,
        verdict.calibration,
        verdict.choice.decision,
        frames_at=lambda rows: pictures(feed.dataset, feed.rows[rows]),
        names=[summary.id for summary in feed.dataset.source.summaries()],
    )


def _write_decided(parts: Parts, feed: Feed, scores: Scores, verdict: ValidationResult) -> None:
    from plaudit.reward_models.evaluation.prediction_images import write_decided

    folder = parts.config.reward.training.debug_save_dir
    if folder is not None:
        count = write_decided(Path(folder), feed, scores, verdict.calibration, verdict.choice.decision.threshold)
        logger.info("%s frames, by what the model says of them: %s", f"{count:,}", folder)


def _write_checkpoint(parts: Parts, work: Fit, verdict: ValidationResult) -> str:
    """The best weights as one file."""
    from plaudit.reward_models.artifact import save_single

    path = Path(str(parts.config.reward.training.output_checkpoint))
    state = work.state()  # Without what only a fit that goes on needs.
    keys = ("epoch", "model_state_dict", "optimizer_state_dict", "train_loss", "train_acc", "reward_model")
    save_single(path, {key: state[key] for key in keys}, verdict.calibration, verdict.choice)
    logger.info("the best weights as one file: %s", path)
    return str(path)


def _tell(artifact: RewardArtifact, verdict: ValidationResult) -> None:
    """The outcome as a table: of test episodes, or where there are none of those that the threshold was picked on."""
    choice = verdict.choice
    if artifact.measured_on != TEST:
        logger.warning("there is no test split: these numbers are of the validation split, and too good.")
    rows = [[words, *cells(name, artifact.metrics)] for name, words in TOLD.items()]
    show_table([f"{artifact.measured_on} episodes", "value", "95 % bounds"], rows, right=["value", "95 % bounds"])
    logger.info(
        "threshold %.4f, for false positives in at most %.3g %% of episodes; on the validation split in %d of %d, with "
        "a recall of %.1f %%.",
        choice.decision.threshold,
        100 * choice.target,
        choice.false_positives,
        choice.episodes,
        100 * choice.recall,
    )
    if choice.note:
        logger.warning("%s", choice.note)
    logger.info("reward model: %s", artifact.path)


def cells(name: str, metrics: Metrics) -> list[str]:
    """One metric and its bounds in words; where it could not be measured, why."""
    from plaudit.reward_models.evaluation.metrics import why_missing

    value, low, high = (metrics.get(key, math.nan) for key in (name, f"{name}_low", f"{name}_high"))
    if math.isnan(value):
        return ["", why_missing(metrics).get(name, "")]
    if math.isnan(low):
        return [f"{value:.4f}", ""]
    return [f"{value:.2%}", f"{low:.1%} – {high:.1%}"]
