"""Which frames of an episode are kept, where not all are."""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from plaudit.episodes.episode import UNKNOWN

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


class Selection(Generic[P]):
    """The frames of one episode that are kept so far: the most important ones, and by lot among equals.

    The lot is drawn from the episode's id. A frame that is pushed out would not be among the `count` best of the whole
    episode either, so that no more than `count` are ever held.

    Args:
        id: The episode's id.
        count: How many frames are kept; `None` keeps all.
    """

    def __init__(self, id: str, count: int | None) -> None:
        self.count = count
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
        if self.count is None or len(self._held) < self.count:
            heapq.heappush(self._held, (rank, instant, take()))
        elif rank > self._held[0][0]:
            heapq.heapreplace(self._held, (rank, instant, take()))

    def pictures(self) -> dict[int, P]:
        """Instant to picture, ascending."""
        return {instant: picture for _, instant, picture in sorted(self._held, key=lambda held: held[1])}
