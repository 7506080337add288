"""Select which frames of an episode are kept, and find idle steps."""

from __future__ import annotations

import dataclasses
import heapq
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import UNKNOWN, Episode

P = TypeVar("P")

Labels: TypeAlias = NDArray[np.int8]


def importance(before: Labels, now: Labels, after: Labels, *, last: bool = False) -> NDArray[np.float64]:
    """How much frames matter, (n,): the last frame of an episode most, then those beside a frame with another label,
    then the others; those without a label least, and among them again the last one most.

    Args:
        before: Labels of the instants before them, int8 (n,); their own where there is none.
        now: Their own.
        after: Those of the instants after them.
        last: Whether they are the last ones of their episodes.
    """
    if last:
        return np.where(now == UNKNOWN, 1.0, 4.0)
    change = (before != now) | (after != now)
    return np.where(now == UNKNOWN, 0.0, np.where(change, 3.0, 2.0))


def is_whole(id: str, share: float) -> bool:
    """Whether all frames of an episode are kept, drawn from its id with a chance of `share`."""
    return zlib.crc32(f"{id} whole".encode()) < share * 2**32


class Selection(Generic[P]):
    """The frames of one episode that are kept so far: the most important ones, and by lot among equals.

    The lot is drawn from the episode's id. A frame that is pushed out would not be among the `count` best of the whole
    episode either, so that no more than `count` are ever held.

    Args:
        id: The episode's id.
        count: How many frames are kept; `None` keeps all.

    Attributes:
        offered: How many instants were offered.
    """

    def __init__(self, id: str, count: int | None) -> None:
        self.count = count
        self.offered = 0
        self._random = np.random.default_rng(zlib.crc32(id.encode()))
        self._held: list[tuple[float, int, P]] = []

    def offer(self, instant: int, importance: float, take: Callable[[], P]) -> None:
        """Takes the picture of the next instant if it is wanted. Every instant must be offered, in order.

        Args:
            instant: Which one.
            importance: What the function of this name says.
            take: Gives the picture; not called where it is not wanted.
        """
        rank = importance + float(self._random.random())
        self.offered += 1
        if self.count is None or len(self._held) < self.count:
            heapq.heappush(self._held, (rank, instant, take()))
        elif rank > self._held[0][0]:
            heapq.heapreplace(self._held, (rank, instant, take()))

    @property
    def held(self) -> list[tuple[float, int, P]]:
        """Rank, instant and picture of what is held now, in no order."""
        return list(self._held)

    def restore(self, offered: int, held: Sequence[tuple[float, int, P]]) -> None:
        """Goes on, in a new selection of the same id, from where another one was after so many offers."""
        self._random.random(offered)
        self.offered, self._held = offered, heapq.nlargest(self.count or len(held), held, key=lambda one: one[0])
        heapq.heapify(self._held)

    def pictures(self) -> dict[int, P]:
        """Instant to picture, ascending."""
        return {instant: picture for _, instant, picture in sorted(self._held, key=lambda held: held[1])}


STILL = 1e-5
"""An action whose absolute values add up to less moves nothing."""


def still_steps(episode: Episode) -> NDArray[np.bool_]:
    """Which actions move nothing, (T,); none where the actions are not known."""
    if episode.actions is None:
        return np.zeros(episode.length, bool)
    still: NDArray[np.bool_] = np.abs(episode.actions).sum(1, dtype=np.float64) < STILL
    return still


def repeats(episode: Episode, *, keep_last: bool = True) -> NDArray[np.bool_]:
    """Which frames repeat the one before them, (n,): all actions between the two move nothing.

    Instant t is after t actions, so it is the frame *after* a still action that is a repeat. A frame with another label
    than the one before it is never one, nor the last frame where `keep_last`.
    """
    moves = np.concatenate([[0], np.cumsum(~still_steps(episode))])
    moved = moves[episode.frame_index]
    result = np.zeros(len(episode), bool)
    result[1:] = (np.diff(moved) == 0) & (np.diff(episode.labels) == 0)
    if keep_last:
        result[-1] = False
    return result


def without_still_steps(episode: Episode) -> Episode:
    """The episode as if its still steps had never been: action, frame, state and reward after it taken out.

    A step whose frame changes the label is kept, and so is the last step, which says how the episode ended.
    """
    index = episode.frame_index
    keep = ~still_steps(episode)
    keep[-1:] = True
    changed = index[1:][np.diff(episode.labels) != 0]
    keep[changed - 1] = True
    if keep.all():
        return episode
    instants = np.concatenate([[True], keep])
    moved = np.cumsum(instants) - 1
    rows = np.diff(moved[index], prepend=-1) > 0  # Of frames that now share an instant, the first.
    state = episode.state
    if state is not None:
        state = state[instants if len(state) == episode.length + 1 else keep]

    steps: dict[str, Any] = {}
    for name in ("actions", "rewards", "terminated", "truncated"):
        values = getattr(episode, name)
        steps[name] = None if values is None else values[keep]
    return dataclasses.replace(
        episode,
        frames={camera: pixels[rows] for camera, pixels in episode.frames.items()},
        labels=episode.labels[rows],
        frame_index=moved[index[rows]].astype(np.int32),
        flags={name: values[rows] for name, values in episode.flags.items()},
        length=int(keep.sum()),
        state=state,
        **steps,
    )
