"""What is usual in a data set, from some of its episodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import EpisodeSource
from plaudit.data.image_hashing import PerceptualHash, Thumbnails, thumbnails
from plaudit.errors import DataError

EPISODES, FRAMES = 48, 6
"""How many are looked at, and how many frames of each."""

LARGE = 90
"""The percentile of an episode's steps that is a large one."""


@dataclass(frozen=True)
class Usual:
    """What is usual.

    Attributes:
        hash: Tells pictures of the first camera apart; `None` where nothing can be read.
        steps: How far each number of the state goes in a large step, (k,); `None` where no state is known.
    """

    hash: PerceptualHash | None
    steps: NDArray[np.float64] | None


def sample(source: EpisodeSource) -> Usual:
    """Looks at episodes from all over a data set."""
    pictures: list[Thumbnails] = []
    steps: list[NDArray[np.float64]] = []
    for index in np.unique(np.linspace(0, len(source) - 1, EPISODES).round().astype(int)).tolist():
        try:
            episode = source[index]
        except DataError:
            continue  # The examination itself reads it again, and says what is wrong with it.
        rows = np.unique(np.linspace(0, len(episode) - 1, FRAMES).round().astype(int))
        small = thumbnails(episode.frames[episode.cameras[0]][rows])
        if not pictures or small.shape[1:] == pictures[0].shape[1:]:
            pictures.append(small)
        if episode.state is not None:
            moves = np.abs(np.diff(episode.state[np.isfinite(episode.state).all(1)], axis=0))
            if len(moves) and (not steps or moves.shape[1] == len(steps[0])):
                steps.append(np.percentile(moves, LARGE, axis=0))
    hash = PerceptualHash(np.concatenate(pictures)) if pictures else None
    return Usual(hash, np.median(steps, axis=0) if steps else None)
