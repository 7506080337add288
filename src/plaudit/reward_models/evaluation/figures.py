"""Draw all figures of a model from its scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from plaudit.reporting.contact_sheet import BAD, UNSURE, Strip, Tile, write_sheet
from plaudit.reporting.reward_figures import (
    Track,
    draw_precision_recall,
    draw_reliability,
    draw_roc,
    draw_timelines,
    shown,
)
from plaudit.reward_models.evaluation.calibration import Calibration
from plaudit.reward_models.evaluation.metrics import (
    ece,
    episode_mistakes,
    evaluate,
    precision_recall_curve,
    reliability,
    roc_curve,
)
from plaudit.reward_models.evaluation.scores import Scores
from plaudit.reward_models.evaluation.success_decision import Decision, asked, fires

Rows: TypeAlias = NDArray[np.intp]
"""Row indices into scores, (k,)."""

TIMELINES = 12
GALLERY = 12


def draw_figures(
    folder: str | Path,
    scores: Scores,
    calibration: Calibration,
    decision: Decision,
    *,
    frames_at: Callable[[Rows], NDArray[np.uint8]] | None = None,
    names: Sequence[str] | None = None,
) -> list[Path]:
    """Write all figures that the scores have data for.

    The files are `roc.png`, `precision_recall.png`, `reliability.png`, `timelines.png`, `false_positives.png` and
    `false_negatives.png`.

    Args:
        folder: Output folder; created if it does not exist.
        scores: Scores of held-out episodes.
        calibration: Calibration fitted on the validation split.
        decision: Decision with the threshold picked on the validation split.
        frames_at: Returns the images of some rows of the scores, uint8 (k, H, W, 3); `None` draws no galleries.
        names: Episode names, indexed by the episode numbers in the scores.

    Returns:
        The files written.
    """
    folder = Path(folder)
    written = [
        _draw_reliability(folder, scores, calibration),
        _draw_timelines(folder, scores, calibration, decision, names),
    ]

    # The curves need both classes, a gallery needs frames of its class.
    if 0 < scores.labels.sum() < len(scores):
        written += _draw_curves(folder, scores, calibration, decision.threshold)
    for label in (0, 1):
        if frames_at is not None and (scores.labels == label).any():
            written.append(_draw_gallery(folder, scores, calibration, decision.threshold, label, frames_at, names))

    return written


def worst_frames(scores: Scores, label: int, count: int = GALLERY) -> Rows:
    """Return the frames of a label with the largest errors, worst first, one per episode.

    Frames of one episode are similar, so its worst frame represents all of them.
    """
    error = scores.logits.astype(np.float64) * (1 if label == 0 else -1)
    error[scores.labels != label] = -np.inf

    # Sorted by episode first, so that the worst frame of each episode is at the episode's start.
    order = np.lexsort((-error, scores.episode))
    worst = order[scores.starts]
    worst = worst[np.isfinite(error[worst])]
    return worst[np.argsort(-error[worst], kind="stable")][:count]


def telling_episodes(scores: Scores, calibration: Calibration, decision: Decision, count: int = TIMELINES) -> list[int]:
    """Select the episodes to show in the timelines, as positions among all episodes.

    Two thirds are those with the largest errors; the others are spread evenly over the remaining episodes.
    """
    # Episodes with a wrong decision come first, then by the largest error of a probability.
    p = calibration.probabilities(scores.logits)
    success = scores.labels == 1
    decided = asked(scores, decision.mode)
    false_positive, missed = episode_mistakes(scores, fires(p, scores, decision), success & decided, ~success & decided)
    error = np.maximum.reduceat(np.abs(p - scores.labels), scores.starts)
    ranking = np.argsort(-(error + (false_positive | missed)), kind="stable")

    # Fill the last third with episodes spread over the rest, in their order.
    worst = ranking[: 2 * count // 3]
    rest = np.sort(ranking[2 * count // 3 :])
    if len(rest):
        rest = rest[np.unique(np.linspace(0, len(rest) - 1, count - len(worst)).round().astype(int))]
    return [int(episode) for episode in (*worst, *rest)]


def _draw_curves(folder: Path, scores: Scores, calibration: Calibration, threshold: float) -> list[Path]:
    """Draw the ROC curve and the precision-recall curve.

    Both describe single frames, so the threshold is marked without its hold.
    """
    metrics = evaluate(scores, calibration, Decision(threshold))

    roc = folder / "roc.png"
    draw_roc(
        roc,
        *roc_curve(scores.logits, scores.labels),
        auc=metrics["roc_auc"],
        chosen=(1 - metrics["specificity"], metrics["recall"]),
    )

    precision_recall = folder / "precision_recall.png"
    draw_precision_recall(
        precision_recall,
        *precision_recall_curve(scores.logits, scores.labels),
        average=metrics["average_precision"],
        chosen=(metrics["recall"], metrics["precision"]),
        successes=metrics["success_frames"] / metrics["frames"],
    )

    return [roc, precision_recall]


def _draw_reliability(folder: Path, scores: Scores, calibration: Calibration) -> Path:
    """Draw the reliability diagram."""
    p = calibration.probabilities(scores.logits)
    draw_reliability(folder / "reliability.png", *reliability(p, scores.labels), ece=ece(p, scores.labels))
    return folder / "reliability.png"


def _draw_timelines(
    folder: Path, scores: Scores, calibration: Calibration, decision: Decision, names: Sequence[str] | None
) -> Path:
    """Draw probabilities, labels and decisions over time for selected episodes."""
    p = calibration.probabilities(scores.logits)
    fired = fires(p, scores, decision)

    tracks = []
    for episode in telling_episodes(scores, calibration, decision):
        start = int(scores.starts[episode])
        rows = slice(start, int(scores.ends[episode]) + 1)
        name = _name(scores, start, names)
        tracks.append(Track(name, scores.instant[rows], p[rows], scores.labels[rows] == 1, fired[rows]))

    # The title counts all episodes, not only those shown.
    metrics = evaluate(scores, calibration, decision)
    title = (
        f"False positives in {metrics['episode_false_positives']:,} of {metrics['episodes_with_failure']:,} episodes, "
        f"{metrics['episode_misses']:,} of {metrics['episodes_with_success']:,} successes missed"
    )
    if decision.hold > 1:
        title += f" (hold {decision.hold})"

    draw_timelines(folder / "timelines.png", tracks, threshold=decision.threshold, title=title)
    return folder / "timelines.png"


def _draw_gallery(
    folder: Path,
    scores: Scores,
    calibration: Calibration,
    threshold: float,
    label: int,
    frames_at: Callable[[Rows], NDArray[np.uint8]],
    names: Sequence[str] | None,
) -> Path:
    """Draw the worst frames of a label.

    Misclassified frames have a red border; if there are few of them, correct frames with a grey border follow.
    """
    p = calibration.probabilities(scores.logits)
    wrong = (p > threshold) != (label == 1)

    rows = worst_frames(scores, label)
    tiles = [
        Tile(
            image,
            (f"p {shown(p[row])}, instant {scores.instant[row]}", _name(scores, row, names)),
            BAD if wrong[row] else UNSURE,
        )
        for row, image in zip(rows, frames_at(rows), strict=True)
    ]

    of_label = scores.labels == label
    count = f"{int((wrong & of_label).sum()):,} of {int(of_label.sum()):,}"
    if label == 0:
        name = "false_positives"
        title = f"Worst false positives: {count} failure frames are over {shown(threshold)}"
    else:
        name = "false_negatives"
        title = f"Worst false negatives: {count} success frames are not over {shown(threshold)}"

    write_sheet(folder / f"{name}.png", [Strip(title, tiles)])
    return folder / f"{name}.png"


def _name(scores: Scores, row: int, names: Sequence[str] | None) -> str:
    """Return the name of the episode that a row belongs to."""
    number = int(scores.episode[row])
    return f"episode {number}" if names is None else names[number]
