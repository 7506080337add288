"""Frames with their labels as a torch `Dataset`, read one by one from disk."""

from __future__ import annotations

import logging
import os
import resource
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset

from plaudit.data import serialization as tensors
from plaudit.data.episode import EpisodeSource, Frames, Summary
from plaudit.data.split import Split
from plaudit.data.store import EpisodeStore
from plaudit.errors import DataError, nearest

logger = logging.getLogger("plaudit")

MOST_FILES = 1024
"""Files of a store that stay open, and an eighth of what the system allows at most."""

MOST_EPISODES = 32
"""Episodes of other layouts that are held in memory."""


class FrameReader(Protocol):
    """Reads frames wherever they are. Safe in threads, and in processes that are forked or spawned."""

    def read(self, episode: int, row: int, out: Sequence[Frames]) -> int:
        """Reads one frame of every camera into arrays uint8 (H, W, 3), and returns its instant."""


def frame_reader(source: EpisodeSource, cameras: Sequence[str]) -> FrameReader:
    """The quickest reader for a data set."""
    return StoreReader(source, cameras) if isinstance(source, EpisodeStore) else EpisodeReader(source, cameras)


class StoreReader:
    """Frames of a store, each read from its place in the file.

    Nothing is mapped and few files stay open: a process may have only so many, and pages that are mapped count as its
    memory. What is remembered of an episode is where its frames begin and their instants, some bytes a frame.

    Args:
        store: The data set.
        cameras: Those that `read` will be asked for, in this order.
    """

    def __init__(self, store: EpisodeStore, cameras: Sequence[str]) -> None:
        self.store, self.cameras = store, tuple(cameras)
        self._paths = [os.fspath(store.file(id)) for id in store.ids]
        self._places: dict[int, tuple[array[int], tuple[int, ...]]] = {}
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._open = lru_cache(min(MOST_FILES, soft // 8 if soft > 0 else MOST_FILES))(_File)

    def read(self, episode: int, row: int, out: Sequence[Frames]) -> int:
        file = self._open(self._paths[episode])
        instants, starts = self._places.get(episode) or self._find(episode, file)
        for pixels, start in zip(out, starts, strict=True):
            size = pixels.nbytes
            if os.preadv(file.number, [pixels.data], start + row * size) != size:
                raise DataError(f"{self._paths[episode]}: was cut short while it was in use.")
        return instants[row]

    def _find(self, episode: int, file: _File) -> tuple[array[int], tuple[int, ...]]:
        """The instants of an episode's frames, and where in its file those of each camera begin."""
        places = tensors.places(self._paths[episode])
        index = places["frame_index"]
        instants = array("i", os.pread(file.number, 4 * index.shape[0], index.start))
        starts = tuple(places[tensors.FRAMES + camera].start for camera in self.cameras)
        self._places[episode] = instants, starts
        return instants, starts

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreReader, (self.store, self.cameras)


class _File:
    """An open file that closes when nobody holds it any more, so that no thread loses one that it reads from."""

    __slots__ = ("number",)

    def __init__(self, path: str) -> None:
        try:
            self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.number = -1
            raise DataError(f"{path}: cannot be read: {error.strerror}.") from None

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class EpisodeReader:
    """Frames of any data set: the episode is read as a whole, and the last few are kept.

    Args:
        source: The data set.
        cameras: Those that `read` will be asked for, in this order.
    """

    def __init__(self, source: EpisodeSource, cameras: Sequence[str]) -> None:
        self.source, self.cameras = source, tuple(cameras)
        self._read = lru_cache(MOST_EPISODES)(source.read)

    def read(self, episode: int, row: int, out: Sequence[Frames]) -> int:
        whole = self._read(episode)
        for pixels, camera in zip(out, self.cameras, strict=True):
            pixels[:] = whole.frames[camera][row]
        return int(whole.frame_index[row])

    def __reduce__(self) -> tuple[Any, ...]:
        return EpisodeReader, (self.source, self.cameras)


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
