"""Steps and frames of a rollout that wait for a reward model: to be scored together, and to be shown to listeners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.envs.base import Frames
from plaudit.errors import DataError
from plaudit.rewards.intake import take_in
from plaudit.rewards.pipeline import RewardManager
from plaudit.rewards.watch import Shown

WAITING = 64 * 2**20
"""Bytes of frames that wait to be scored together, at most: 5,400 pictures of 64 by 64."""

SHOWN = 64 * 2**20
"""Bytes of frames that wait to be shown to listeners, at most."""


@dataclass(frozen=True, eq=False)
class Taken:
    """What the rewards of one step of all envs depend on; `scores` (N, 2) are filled in when they are known."""

    done: torch.Tensor
    reward: torch.Tensor
    success: torch.Tensor | None
    looks_done: torch.Tensor | None
    state: torch.Tensor | None
    scores: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Waiting:
    """Frames of one step that are not scored, or not shown, yet, and the envs, int64 (n,), that they are of. `last`
    where they are the last ones of episodes."""

    taken: Taken
    rows: torch.Tensor
    frames: Frames
    last: bool

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(pixels.nbytes for pixels in self.frames.values())


class Gathering:
    """The steps since rewards were last told.

    Args:
        followed: bool (N,), the envs whose pictures are kept to be shown.

    Attributes:
        steps: In the order in which they were taken.
    """

    def __init__(self, followed: torch.Tensor) -> None:
        self.steps: list[Taken] = []
        self._waiting: list[Waiting] = []
        self._kept: list[Waiting] = []
        self._followed = followed

    @property
    def full(self) -> bool:
        """Whether the frames that wait are as many as may."""
        return sum(part.size for part in self._waiting) > WAITING

    def add(self, part: Waiting) -> None:
        """Frames wait to be scored, and those of envs that somebody follows, as copies, to be shown."""
        self._waiting.append(part)
        followed = self._followed[part.rows].nonzero().squeeze(-1)
        if len(followed):
            # In one piece each: with brackets torch copies pictures number by number.
            frames = {camera: pixels.index_select(0, followed) for camera, pixels in part.frames.items()}
            self._kept.append(replace(part, rows=part.rows[followed], frames=frames))
            while sum(one.size for one in self._kept) > SHOWN:
                self._kept = _thinned(self._kept)

    def score(self, manager: RewardManager) -> None:
        """Scores all frames that wait, together."""
        if not self._waiting:
            return
        cameras = manager.artifact.cameras
        frames = {camera: torch.cat([part.frames[camera] for part in self._waiting]) for camera in cameras}
        try:
            found = manager.score(frames)
        except DataError as error:
            raise DataError(f"{_whose(frames, self._waiting)}the frames cannot be scored: {error}") from error
        start = 0
        for part in self._waiting:
            rows = part.rows.cpu().numpy()
            part.taken.scores[rows] = found[start : start + len(rows)]
            start += len(rows)
        self._waiting = []

    def shown(self, manager: RewardManager) -> list[Shown]:
        """The pictures of the envs that somebody follows, as the model sees them."""
        numbers, artifact = {id(step): number for number, step in enumerate(self.steps)}, manager.artifact
        return [
            Shown(
                numbers[id(part.taken)],
                part.rows.cpu().numpy(),
                take_in(part.frames, artifact.cameras, artifact.image_size),
            )
            for part in self._kept
        ]

    def clear(self) -> None:
        """Begins anew."""
        self.steps, self._waiting, self._kept = [], [], []


def _thinned(parts: Sequence[Waiting]) -> list[Waiting]:
    """Fewer instants of all episodes, rather than none of the later ones. How they ended goes only where that alone
    takes up most of the room.
    """
    last, others = ([part for part in parts if part.last == wanted] for wanted in (True, False))
    dropped = others[::2] if sum(part.size for part in last) <= SHOWN // 2 else [*others[::2], *last[::2]]
    gone = {id(part) for part in dropped}
    return [part for part in parts if id(part) not in gone]


def _whose(frames: Frames, waiting: Sequence[Waiting]) -> str:
    """The env and camera whose frame is broken, where that can be told."""
    rows = torch.cat([part.rows for part in waiting])
    for camera, pixels in frames.items():
        if pixels.is_floating_point() and bool((bad := ~torch.isfinite(pixels).flatten(1).all(1)).any()):
            return f"env {int(rows[bad][0])}, camera '{camera}': "
    return ""
