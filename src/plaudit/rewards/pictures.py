"""Frames as pictures for people: those that are successes, and those that a model takes for successes or failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.episodes.dataset import FrameDataset
from plaudit.episodes.episode import SUCCESS
from plaudit.files import whole_file
from plaudit.rewards.calibration import Calibration
from plaudit.rewards.feeds import Feed
from plaudit.rewards.firing import Decision, fires
from plaudit.rewards.scores import Scores

MOST_DECIDED = 1000
"""Pictures that `write_decided` writes, at most, spread over all."""

BATCH = 256


def pictures(dataset: FrameDataset, rows: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
    """Some frames of a data set, uint8 (k, H, W, 3), the cameras side by side."""
    frames = [frame.numpy() for frame in dataset.batch(rows)["frames"].values()]
    height = max(frame.shape[1] for frame in frames)
    padded = [np.pad(frame, ((0, 0), (0, height - frame.shape[1]), (0, 0), (0, 0))) for frame in frames]
    return np.concatenate(padded, axis=2)


def write_positives(folder: Path, dataset: FrameDataset) -> int:
    """Writes all success frames as `{folder}_{traj_id}_frame{idx:03d}.png`, where folder is positive or negative.

    Returns:
        How many there are.
    """
    summaries = dataset.source.summaries()
    rows = np.flatnonzero(dataset.labels == SUCCESS)
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        for row, picture in zip(some, pictures(dataset, some), strict=True):
            summary = summaries[dataset.episodes[row]]
            kind = "positive" if summary.positive else "negative"
            name = f"{kind}_{summary.id.removeprefix(f'{kind}-')}_frame{dataset.rows[row]:03d}.png"
            _save(folder / name, picture)
    return len(rows)


def write_decided(folder: Path, feed: Feed, scores: Scores, calibration: Calibration, decision: Decision) -> int:
    """Writes frames as `resnet_success/{id:06d}_prob{p:.4f}.png` or `resnet_fail/...`, by what the model says of them.

    Args:
        folder: Where to.
        feed: The frames.
        scores: Of them.
        calibration: Makes probabilities of them.
        decision: Makes decisions of those.

    Returns:
        How many were written.
    """
    p = calibration.probabilities(scores.logits)
    fired = fires(p, scores, decision)
    chosen = np.unique(np.linspace(0, len(scores) - 1, min(len(scores), MOST_DECIDED)).round().astype(np.int64))
    for start in range(0, len(chosen), BATCH):
        some = chosen[start : start + BATCH]
        for row, picture in zip(some, pictures(feed.dataset, feed.rows[some]), strict=True):
            kind = "resnet_success" if fired[row] else "resnet_fail"
            _save(folder / kind / f"{row:06d}_prob{p[row]:.4f}.png", picture)
    return len(chosen)


def _save(path: Path, picture: NDArray[np.uint8]) -> None:
    from PIL import Image

    with whole_file(path) as temporary:
        Image.fromarray(np.ascontiguousarray(picture)).save(temporary, format="PNG")
