"""Frames as pictures for people: those that are successes, and those that a model takes for successes or failures."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.data.dataset import FrameDataset
from plaudit.data.episode import SUCCESS, Frames
from plaudit.reward_models.evaluation.calibration import Calibration
from plaudit.reward_models.evaluation.scores import Scores
from plaudit.reward_models.training.batches import Feed
from plaudit.utils.atomic_io import whole_file

MOST_DECIDED = 1000
"""Pictures that `write_decided` writes, at most, spread over all."""

BATCH = 256

AT_ONCE = 8
"""Frames of one batch that `DecidedPictures` writes, at most: a picture takes as long as scoring ten frames."""


def pictures(dataset: FrameDataset, rows: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
    """Some frames of a data set, uint8 (k, H, W, 3), the cameras side by side."""
    return _side_by_side([frame.numpy() for frame in dataset.batch(rows)["frames"].values()])


def _side_by_side(frames: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """One picture (k, H, W, 3) from those of several cameras."""
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


def write_decided(folder: Path, feed: Feed, scores: Scores, calibration: Calibration, threshold: float) -> int:
    """Writes frames as `resnet_success/{id:06d}_prob{p:.4f}.png` or `resnet_fail/...`, by what the model says of them.

    Of each by itself: when a decision is made (a hold, `terminal`) does not matter to what a picture looks like.

    Args:
        folder: Where to.
        feed: The frames.
        scores: Of them.
        calibration: Makes probabilities of them.
        threshold: What is above it looks like success.

    Returns:
        How many were written.
    """
    p = calibration.probabilities(scores.logits)
    chosen = np.unique(np.linspace(0, len(scores) - 1, min(len(scores), MOST_DECIDED)).round().astype(np.int64))
    for start in range(0, len(chosen), BATCH):
        some = chosen[start : start + BATCH]
        for row, picture in zip(some, pictures(feed.dataset, feed.rows[some]), strict=True):
            _save(folder / _decided_name(int(row), float(p[row]), bool(p[row] > threshold)), picture)
    return len(chosen)


class DecidedPictures:
    """Frames that are scored as time goes on, as pictures sorted and named like those of `write_decided`; the
    newest are kept.

    Args:
        folder: Where to. What is there already counts as older.
        most: Pictures kept, at most, of successes and of failures each.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most
        kinds = ("resnet_success", "resnet_fail")
        self.kept = {kind: deque(sorted((folder / kind).glob("*_prob*.png"))) for kind in kinds}
        numbers = [int(path.name.split("_")[0]) for paths in self.kept.values() for path in paths]
        self.first = max(numbers, default=-1) + 1

    def write(
        self, start: int, frames: Mapping[str, Frames], probabilities: NDArray[np.floating[Any]], threshold: float
    ) -> None:
        """Writes a few of n frames, spread over all.

        Args:
            start: How many frames were scored before these.
            frames: By camera.
            probabilities: (n,).
            threshold: What is above it looks like success.
        """
        count = len(probabilities)
        chosen = np.unique(np.linspace(0, count - 1, min(count, AT_ONCE)).round().astype(np.int64))
        shown = _side_by_side([pixels[chosen] for pixels in frames.values()])
        for row, picture in zip(chosen.tolist(), shown, strict=True):
            p = float(probabilities[row])
            path = self.folder / _decided_name(self.first + start + row, p, p > threshold)
            _save(path, picture)
            kept = self.kept[path.parent.name]
            kept.append(path)
            if len(kept) > self.most:
                kept.popleft().unlink(missing_ok=True)


def _decided_name(number: int, p: float, success: bool) -> str:
    return f"{'resnet_success' if success else 'resnet_fail'}/{number:06d}_prob{p:.4f}.png"


def _save(path: Path, picture: NDArray[np.uint8]) -> None:
    from PIL import Image

    with whole_file(path) as temporary:
        Image.fromarray(np.ascontiguousarray(picture)).save(temporary, format="PNG")
