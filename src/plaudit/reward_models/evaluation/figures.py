"""All figures of a model, drawn from its scores."""

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
"""Which frames of some scores, (k,)."""

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
    """Writes `roc.png`, `precision_recall.png`, `reliability.png`, `timelines.png`, `false_positives.png` and
    `false_negatives.png`, as far as the scores have what each of them shows.

    Args:
        folder: Where to; it is made.
        scores: Of held-out episodes.
        calibration: From the validation split.
        decision: With the threshold from there too.
        frames_at: Gives the pictures of some rows of the scores, uint8 (k, H, W, 3); without it there are no galleries.
        names: What the episodes are called, by their numbers in the scores.

    Returns:
        The files written.
    """
    folder = Path(folder)
    written = [
        _draw_reliability(folder, scores, calibration),
        _draw_timelines(folder, scores, calibration, decision, names),
    ]
    if 0 < scores.labels.sum() < len(scores):
        written += _draw_curves(folder, scores, calibration, decision.threshold)
    for label in (0, 1):
        if frames_at is not None and (scores.labels == label).any():
            written.append(_draw_gallery(folder, scores, calibration, decision.threshold, label, frames_at, names))
    return written


def worst_frames(scores: Scores, label: int, count: int = GALLERY) -> Rows:
    """The frames of a label that the model is most wrong about, worst first, and one for each episode.

    Frames of one episode are much alike: its worst one stands for all.
    """
    wrong = scores.logits.astype(np.float64) * (1 if label == 0 else -1)
    wrong[scores.labels != label] = -np.inf
    order = np.lexsort((-wrong, scores.episode))
    worst = order[scores.starts]  # Sorted by episode first, so that each one's worst is where it starts.
    worst = worst[np.isfinite(wrong[worst])]
    return worst[np.argsort(-wrong[worst], kind="stable")][:count]


def telling_episodes(scores: Scores, calibration: Calibration, decision: Decision, count: int = TIMELINES) -> list[int]:
    """Which episodes to look at, as positions among them: the most wrong ones for two thirds, and some usual ones."""
    p = calibration.probabilities(scores.logits)
    success, counts = scores.labels == 1, asked(scores, decision.mode)
    fooled, missed = episode_mistakes(scores, fires(p, scores, decision), success & counts, ~success & counts)
    error = np.maximum.reduceat(np.abs(p - scores.labels), scores.starts)
    worst = np.argsort(-(error + (fooled | missed)), kind="stable")
    first, rest = worst[: 2 * count // 3], np.sort(worst[2 * count // 3 :])
    if len(rest):
        rest = rest[np.unique(np.linspace(0, len(rest) - 1, count - len(first)).round().astype(int))]
    return [int(episode) for episode in (*first, *rest)]


def _draw_curves(folder: Path, scores: Scores, calibration: Calibration, threshold: float) -> list[Path]:
    """ROC, precision and recall. Both are of single frames, so the threshold is shown without its hold."""
    metrics = evaluate(scores, calibration, Decision(threshold))
    roc, precision_recall = folder / "roc.png", folder / "precision_recall.png"
    draw_roc(
        roc,
        *roc_curve(scores.logits, scores.labels),
        auc=metrics["roc_auc"],
        chosen=(1 - metrics["specificity"], metrics["recall"]),
    )
    draw_precision_recall(
        precision_recall,
        *precision_recall_curve(scores.logits, scores.labels),
        average=metrics["average_precision"],
        chosen=(metrics["recall"], metrics["precision"]),
        successes=metrics["success_frames"] / metrics["frames"],
    )
    return [roc, precision_recall]


def _draw_reliability(folder: Path, scores: Scores, calibration: Calibration) -> Path:
    p = calibration.probabilities(scores.logits)
    draw_reliability(folder / "reliability.png", *reliability(p, scores.labels), ece=ece(p, scores.labels))
    return folder / "reliability.png"


def _draw_timelines(
    folder: Path, scores: Scores, calibration: Calibration, decision: Decision, names: Sequence[str] | None
) -> Path:
    p = calibration.probabilities(scores.logits)
    fired = fires(p, scores, decision)
    tracks = []
    for episode in telling_episodes(scores, calibration, decision):
        start = int(scores.starts[episode])
        rows = slice(start, int(scores.ends[episode]) + 1)
        name = _name(scores, start, names)
        tracks.append(Track(name, scores.instant[rows], p[rows], scores.labels[rows] == 1, fired[rows]))
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
    """The worst frames of a label. Those that are wrong have a red border; where they are few, grey ones follow."""
    p = calibration.probabilities(scores.logits)
    wrong = (p > threshold) != (label == 1)
    rows = worst_frames(scores, label)
    tiles = [
        Tile(
            picture,
            (f"p {shown(p[row])}, instant {scores.instant[row]}", _name(scores, row, names)),
            BAD if wrong[row] else UNSURE,
        )
        for row, picture in zip(rows, frames_at(rows), strict=True)
    ]
    of_label = scores.labels == label
    count = f"{int((wrong & of_label).sum()):,} of {int(of_label.sum()):,}"
    if label == 0:
        name, title = "false_positives", f"Worst false positives: {count} failure frames are over {shown(threshold)}"
    else:
        name, title = (
            "false_negatives",
            f"Worst false negatives: {count} success frames are not over {shown(threshold)}",
        )
    write_sheet(folder / f"{name}.png", [Strip(title, tiles)])
    return folder / f"{name}.png"


def _name(scores: Scores, row: int, names: Sequence[str] | None) -> str:
    number = int(scores.episode[row])
    return f"episode {number}" if names is None else names[number]
