"""Frames with their labels as a torch `Dataset`. The one module of this package that imports torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from plaudit.episodes.episode import EpisodeSource, Summary
from plaudit.episodes.reading import frame_reader
from plaudit.episodes.split import Split
from plaudit.episodes.store import EpisodeStore
from plaudit.errors import DataError, nearest

logger = logging.getLogger("plaudit")


class FrameDataset(Dataset[dict[str, Any]]):
    """Every frame of a data set, or those that a split uses.

    An item is a dict: `frames` (camera to uint8 (H, W, 3)), `label` (1, 0 or -1), `episode` (its index in the source),
    `frame` (its instant) and `source` (who gave the label). A frame of a store is read alone, about ten microseconds;
    other layouts read the episode. Works in the workers of a `DataLoader`, forked or spawned.

    Args:
        data: Episodes, or a split of them.
        cameras: Which ones, in this order; `None` for all.

    Attributes:
        labels: int8 (n,), of all frames.
        episodes: int32 (n,), which episode of the source each frame is in.
        rows: int32 (n,), which of that episode's frames it is.
        sizes: Camera to (height, width).
    """

    def __init__(self, data: EpisodeSource | Split, cameras: Sequence[str] | None = None) -> None:
        if isinstance(data, Split):
            self.source, index, summaries, rows = data.source, data.index, data.summaries, data.rows
        else:
            self.source, summaries = data, data.summaries()
            index = np.arange(len(summaries))
            rows = [np.arange(len(summary.labels), dtype=np.int32) for summary in summaries]
        self.sizes = _sizes(summaries, cameras, str(self.source.path))
        self.rows = np.concatenate([np.zeros(0, np.int32), *rows])
        self.episodes = np.repeat(index, [len(row) for row in rows]).astype(np.int32)
        labels = [summary.labels[row] for summary, row in zip(summaries, rows, strict=True)]
        self.labels = np.concatenate([np.zeros(0, np.int8), *labels])
        self._said = {int(i): summary.label_source for i, summary in zip(index, summaries, strict=True)}
        self._shapes = [(*size, 3) for size in self.sizes.values()]
        self._reader = frame_reader(self.source, list(self.sizes))
        if not isinstance(self.source, EpisodeStore):
            logger.info(
                "'%s' (format %s) has no access to single frames; plaudit convert makes a store of it, which has.",
                self.source.path,
                self.source.format,
            )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        episode = self.episodes.item(index)
        pixels = [np.empty(shape, np.uint8) for shape in self._shapes]
        instant = self._reader.read(episode, self.rows.item(index), pixels)
        return {
            "frames": dict(zip(self.sizes, map(torch.from_numpy, pixels), strict=True)),
            "label": self.labels.item(index),
            "episode": episode,
            "frame": instant,
            "source": self._said[episode],
        }

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Many items at once, which a `DataLoader` makes use of."""
        batch = self.batch(indices)
        frames, label, episode, instant = (batch[key] for key in ("frames", "label", "episode", "frame"))
        return [
            {
                "frames": {camera: pixels[i] for camera, pixels in frames.items()},
                "label": int(label[i]),
                "episode": int(episode[i]),
                "frame": int(instant[i]),
                "source": batch["source"][i],
            }
            for i in range(len(indices))
        ]

    def batch(self, indices: Sequence[int] | np.ndarray[Any, Any] | torch.Tensor) -> dict[str, Any]:
        """Many items as one: `frames` camera to uint8 (n, H, W, 3); the numbers int64 (n,); `source` a list."""
        wanted = np.asarray(indices, np.int64)
        if len(wanted) and not (-len(self) <= wanted.min() and wanted.max() < len(self)):
            raise IndexError(f"there are {len(self)} frames, but the batch asks for {wanted.min()}..{wanted.max()}")
        wanted = wanted % max(1, len(self))
        episodes, rows = self.episodes[wanted], self.rows[wanted]
        frames = [np.empty((len(wanted), *shape), np.uint8) for shape in self._shapes]
        spots, where, which = list(zip(*frames, strict=True)), episodes.tolist(), rows.tolist()
        instants = [0] * len(wanted)
        for i in np.lexsort((rows, episodes)).tolist():  # In the order of the disk.
            instants[i] = self._reader.read(where[i], which[i], spots[i])
        return {
            "frames": dict(zip(self.sizes, map(torch.from_numpy, frames), strict=True)),
            "label": torch.from_numpy(self.labels[wanted].astype(np.int64)),
            "episode": torch.from_numpy(episodes.astype(np.int64)),
            "frame": torch.tensor(instants),
            "source": [self._said[episode] for episode in where],
        }


def _sizes(summaries: Sequence[Summary], cameras: Sequence[str] | None, where: str) -> dict[str, tuple[int, int]]:
    """Camera to (height, width), which must be the same in every episode."""
    if not summaries:
        return {}
    first = summaries[0]
    found = {}
    for camera in sorted(first.cameras) if cameras is None else cameras:
        for summary in summaries:
            if camera not in summary.cameras:
                known = nearest(camera, summary.cameras)
                raise DataError(f"{where}: episode '{summary.id}' has no camera '{camera}'.{known}")
            if summary.cameras[camera] != first.cameras[camera]:
                ours, theirs = ("×".join(map(str, s.cameras[camera])) for s in (first, summary))
                raise DataError(
                    f"{where}: camera '{camera}' is {ours} pixels in episode '{first.id}', but {theirs} in "
                    f"'{summary.id}'. plaudit doctor lists them all; remove or convert one kind."
                )
        found[camera] = first.cameras[camera]
    return found
