"""Write frames as image files for inspection: labelled successes, and frames by the model's prediction."""

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
"""Maximum number of images that `write_decided` writes, spread over all frames."""

BATCH = 256

AT_ONCE = 8
"""Maximum number of frames of one batch that `DecidedPictures` writes.

Writing an image takes as long as scoring ten frames.
"""


def pictures(dataset: FrameDataset, rows: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
    """Return frames of a data set, uint8 (k, H, W, 3), with the cameras side by side."""
    return _side_by_side([frame.numpy() for frame in dataset.batch(rows)["frames"].values()])


def _side_by_side(frames: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Join the images of several cameras horizontally to (k, H, W, 3), padded to equal height."""
    height = max(frame.shape[1] for frame in frames)
    padded = [np.pad(frame, ((0, 0), (0, height - frame.shape[1]), (0, 0), (0, 0))) for frame in frames]
    return np.concatenate(padded, axis=2)


def write_positives(folder: Path, dataset: FrameDataset) -> int:
    """Write all success frames as `{folder}_{traj_id}_frame{idx:03d}.png`.

    In the name, folder is positive or negative.

    Returns:
        The number of success frames.
    """
    summaries = dataset.source.summaries()
    rows = np.flatnonzero(dataset.labels == SUCCESS)

    # In batches, because all frames may not fit in memory.
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        for row, image in zip(batch, pictures(dataset, batch), strict=True):
            summary = summaries[dataset.episodes[row]]
            kind = "positive" if summary.positive else "negative"
            name = f"{kind}_{summary.id.removeprefix(f'{kind}-')}_frame{dataset.rows[row]:03d}.png"
            _save(folder / name, image)

    return len(rows)


def write_decided(folder: Path, feed: Feed, scores: Scores, calibration: Calibration, threshold: float) -> int:
    """Write frames sorted by the model's prediction.

    The files are `resnet_success/{id:06d}_prob{p:.4f}.png` or `resnet_fail/...`. Each frame is judged by itself: the
    timing of decisions (a hold, `terminal`) does not matter to the appearance of an image.

    Args:
        folder: Output folder.
        feed: Frames to write.
        scores: Scores of these frames.
        calibration: Maps the scores to probabilities.
        threshold: Frames with a probability above it count as successes.

    Returns:
        The number of images written.
    """
    p = calibration.probabilities(scores.logits)
    rows = np.unique(np.linspace(0, len(scores) - 1, min(len(scores), MOST_DECIDED)).round().astype(np.int64))

    # In batches, to bound the memory.
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        for row, image in zip(batch, pictures(feed.dataset, feed.rows[batch]), strict=True):
            _save(folder / _decided_name(int(row), float(p[row]), bool(p[row] > threshold)), image)

    return len(rows)


class DecidedPictures:
    """Rolling image files of the frames scored most recently.

    The images are sorted and named like those of `write_decided`.

    Args:
        folder: Output folder. Images that it already contains count as older.
        most: Maximum number of images to keep, for successes and failures each.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder = folder
        self.most = most
        kinds = ("resnet_success", "resnet_fail")
        self.kept = {kind: deque(sorted((folder / kind).glob("*_prob*.png"))) for kind in kinds}

        # Continue the numbers of the images that exist.
        numbers = [int(path.name.split("_")[0]) for paths in self.kept.values() for path in paths]
        self.first = max(numbers, default=-1) + 1

    def write(
        self, start: int, frames: Mapping[str, Frames], probabilities: NDArray[np.floating[Any]], threshold: float
    ) -> None:
        """Write at most `AT_ONCE` of n frames, spread over all of them.

        Args:
            start: Number of frames scored before these.
            frames: Camera name to frames.
            probabilities: (n,).
            threshold: Frames with a probability above it count as successes.
        """
        count = len(probabilities)
        rows = np.unique(np.linspace(0, count - 1, min(count, AT_ONCE)).round().astype(np.int64))
        images = _side_by_side([pixels[rows] for pixels in frames.values()])

        for row, image in zip(rows.tolist(), images, strict=True):
            p = float(probabilities[row])
            path = self.folder / _decided_name(self.first + start + row, p, p > threshold)
            _save(path, image)

            # Delete the oldest image of the same kind.
            paths = self.kept[path.parent.name]
            paths.append(path)
            if len(paths) > self.most:
                paths.popleft().unlink(missing_ok=True)


def _decided_name(number: int, p: float, success: bool) -> str:
    """Return the relative path of a frame's image."""
    return f"{'resnet_success' if success else 'resnet_fail'}/{number:06d}_prob{p:.4f}.png"


def _save(path: Path, image: NDArray[np.uint8]) -> None:
    """Write an image (H, W, 3) as PNG atomically."""
    from PIL import Image

    with whole_file(path) as temporary:
        Image.fromarray(np.ascontiguousarray(image)).save(temporary, format="PNG")
