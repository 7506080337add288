"""Pictures that are in a data set twice: an episode that was copied, cut in two, or saved anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import Episode, EpisodeSource
from plaudit.data.image_hashing import BITS, Hashes, PerceptualHash, Thumbnails, difference, distance, thumbnails
from plaudit.data.split import TRAIN

ALIKE = 12.0
"""Grey levels by which no part of two pictures may differ if they are to be the same: more than saving anew changes,
and less than an object does that moves by a fifth of a pixel."""

FEW_BITS = BITS // 8
"""Bits by which the hashes of such pictures may differ."""

ASKED = 6
"""Frames of an episode that are looked for in the others."""

Rows = NDArray[np.intp]

FEWEST = 3
"""Frames that tell something only together: fewer may look alike by chance, and are only compared as they are."""

SHARE = 0.6
"""The part of them that another episode must have too."""


class Pair(NamedTuple):
    """Two episodes, by their numbers in the data set, and rows of them that may look the same, (k,) each."""

    first: int
    second: int
    rows: Rows
    others: Rows

    @property
    def sure(self) -> bool:
        """Whether there are enough rows to tell a copy from a coincidence."""
        return len(self.rows) >= FEWEST


@dataclass
class Fingerprints:
    """What is kept of each episode, to compare it with all others: 32 bytes for each frame.

    Args:
        hash: Hashes thumbnails of one camera.
    """

    hash: PerceptualHash
    episodes: list[int] = field(default_factory=list)
    hashes: list[Hashes] = field(default_factory=list)
    asked: list[Rows] = field(default_factory=list)

    def add(self, index: int, episode: Episode, small: Thumbnails) -> None:
        """Takes in one episode's thumbnails (n, h, w)."""
        if small.shape[1:] == self.hash.shape:
            self.episodes.append(index)
            self.hashes.append(self.hash(small))
            self.asked.append(telling(episode, small))

    def pairs(self) -> Iterator[Pair]:
        """Pairs of episodes, each once, in which most hashes are nearly the same; they may still look different.

        Episodes of too few frames are passed over.
        """
        every = np.concatenate([np.zeros((0, BITS // 64), np.uint64), *self.hashes])
        starts = np.cumsum([0, *map(len, self.hashes)])
        for i, rows in enumerate(self.asked[:-1]):
            if len(rows) < FEWEST:
                continue
            bits = distance(self.hashes[i][rows], every[starts[i + 1] :])
            edges = starts[i + 1 :] - starts[i + 1]
            common = np.logical_or.reduceat(bits <= FEW_BITS, edges[:-1], axis=1).sum(0)
            for j in np.flatnonzero(common >= SHARE * len(rows)).tolist():
                others = bits[:, edges[j] : edges[j + 1]].argmin(1)
                yield Pair(self.episodes[i], self.episodes[i + 1 + j], rows, others)

    def neighbours(self, splits: Sequence[str]) -> Iterator[Pair]:
        """For each episode of too few frames that is held out, the nearest frame of another split.

        Args:
            splits: Of each episode that was added; empty for none.
        """
        every = np.concatenate([np.zeros((0, BITS // 64), np.uint64), *self.hashes])
        owner = np.repeat(np.arange(len(self.hashes)), [len(hashes) for hashes in self.hashes])
        numbers = {name: number for number, name in enumerate(sorted(set(splits)))}
        codes = np.array([numbers[name] for name in splits], np.intp)
        for i, rows in enumerate(self.asked):
            if splits[i] in ("", TRAIN) or len(rows) >= FEWEST:
                continue
            bits = distance(self.hashes[i][rows[:1]], every)[0]
            bits[codes[owner] == codes[i]] = BITS
            nearest = int(bits.argmin())
            if bits[nearest] <= FEW_BITS and splits[owner[nearest]]:
                row = nearest - int(np.searchsorted(owner, owner[nearest]))
                yield Pair(self.episodes[i], self.episodes[owner[nearest]], rows[:1], np.array([row], np.intp))


def telling(episode: Episode, small: Thumbnails) -> Rows:
    """Up to six frames that look different from each other; not the reset, which may be the same in many episodes."""
    rows = np.flatnonzero(episode.frame_index > 0) if len(episode) > 1 else np.arange(1)
    chosen: list[int] = []
    for row in rows[np.linspace(0, len(rows) - 1, min(len(rows), 3 * ASKED)).round().astype(int)].tolist():
        if not chosen or difference(small[row : row + 1], small[chosen]).min() > ALIKE:
            chosen.append(row)
    picked = np.linspace(0, len(chosen) - 1, min(len(chosen), ASKED)).round().astype(int)
    asked: Rows = np.array(chosen, np.intp)[picked]
    return asked


def same_pictures(source: EpisodeSource, pair: Pair) -> list[int]:
    """Which rows of a pair look the same; none unless most of them do."""
    pictures = []
    for index, rows in ((pair.first, pair.rows), (pair.second, pair.others)):
        episode = source[index]
        pictures.append(thumbnails(episode.frames[episode.cameras[0]][rows]))
    same = np.flatnonzero(difference(*pictures) <= ALIKE)
    enough = max(min(FEWEST, len(pair.rows)), SHARE * len(pair.rows))
    return same.tolist() if len(same) >= enough else []
