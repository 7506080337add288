"""Single frames of many episodes, without reading the episodes where the layout allows it."""

from __future__ import annotations

import os
import resource
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from plaudit.episodes import tensors
from plaudit.episodes.episode import EpisodeSource, Frames
from plaudit.episodes.store import EpisodeStore
from plaudit.errors import DataError

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
