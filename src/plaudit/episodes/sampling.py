"""Which frames of an episode are kept, where not all are."""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Sequence
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
