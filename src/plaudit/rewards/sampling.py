"""Which frames each step of a fit takes: a function of the step's number, but for those drawn by their losses."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from plaudit.rewards.hard import HardFrames

Rows = NDArray[np.int64]
"""Which frames of a data set, (n,)."""


def step_random(seed: int, step: int) -> np.random.Generator:
    """Draws what reading the frames of one step leaves to chance."""
    return np.random.default_rng([seed, 0, step])


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """Of what torch draws in one step: how pictures are varied, and what dropout leaves out.

    Args:
        seed: Of the fit.
        step: The step.
        rank: The process that draws, where several do and must not draw the same.
    """
    return int(np.random.default_rng([seed, 4, step, rank]).integers(2**62))


class Shuffles:
    """Some rows in random order, then all of them again in another, without end.

    Args:
        rows: (n,), at least one.
        seed: Of the orders.
        stream: Sets it apart from others of the same seed.
    """

    def __init__(self, rows: Rows, seed: int, stream: int) -> None:
        self.rows, self.seed, self.stream = rows, seed, stream
        self._lap = lru_cache(2)(self._shuffle)

    def take(self, start: int, stop: int) -> Rows:
        """The rows at the places from `start` up to `stop`."""
        parts = [np.zeros(0, np.int64)]
        while start < stop:
            lap, at = divmod(start, len(self.rows))
            end = min(at + stop - start, len(self.rows))
            parts.append(self._lap(lap)[at:end])
            start += end - at
        return np.concatenate(parts)

    def _shuffle(self, lap: int) -> Rows:
        return np.random.default_rng([self.seed, self.stream, lap]).permutation(self.rows)


class BatchSampler:
    """The rows of every step. An epoch takes as many frames as there are.

    Every frame is taken before any of its class is taken again, but for hard ones. With a share of successes, each
    batch has that share, to within one frame.

    Args:
        labels: int8 (n,), 1 or 0 for what may be taken.
        batch: Frames in a step; fewer where there are fewer.
        seed: Of the order.
        success_share: Share of successes among them; `None` takes all frames alike.

    Attributes:
        batch: Frames in a step.
        steps_per_epoch: Steps in an epoch.
        groups: The rows that may be taken: of failures and of successes, or of all.
        hard: Draws its share of each group's frames; `None` where all are taken in turn.
    """

    def __init__(self, labels: NDArray[np.int8], batch: int, seed: int, success_share: float | None = None) -> None:
        failures, successes = (np.flatnonzero(labels == label).astype(np.int64) for label in (0, 1))
        known = np.sort(np.concatenate([failures, successes]))
        self.batch = min(batch, len(known))
        self.steps_per_epoch = math.ceil(len(known) / self.batch)
        self.share, self.seed = success_share, seed
        self.groups = [known] if success_share is None else [failures, successes]
        self.hard: HardFrames | None = None
        self._streams = [Shuffles(rows, seed, 1 + group) for group, rows in enumerate(self.groups)]

    def __getitem__(self, step: int) -> Rows:
        """The rows of one step, (batch,)."""
        rows = [part for group in range(len(self.groups)) for part in self._take(step, group)]
        # Mixed, so that a part of the batch has its share of each too.
        return np.random.default_rng([self.seed, 3, step]).permutation(np.concatenate(rows))

    def _take(self, step: int, group: int) -> tuple[Rows, Rows]:
        """A group's rows of a step: those whose turn it is, and the hard ones."""
        start, stop = self._taken(step, group), self._taken(step + 1, group)
        if self.hard is None or step < self.hard.start:
            return self._streams[group].take(start, stop), np.zeros(0, np.int64)
        first = self._taken(self.hard.start, group)
        before, after = (math.floor((place - first) * self.hard.share) for place in (start, stop))
        return self._streams[group].take(start - before, stop - after), self.hard.draw(step, group, after - before)

    def _taken(self, step: int, group: int) -> int:
        """How many of a group all steps before one take."""
        every = step * self.batch
        if self.share is None:
            return every
        successes = math.floor(every * self.share)
        return successes if group else every - successes


def class_weights(labels: NDArray[np.int8], success_share: float) -> tuple[float, float]:
    """Weights of failures and successes that give successes this share in the loss; their mean over frames is 1."""
    successes, failures = int((labels == 1).sum()), int((labels == 0).sum())
    total = successes + failures
    return (1 - success_share) * total / failures, success_share * total / successes
