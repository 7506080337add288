"""Samplers of training frames: balanced shuffles, and hard examples by their loss."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.data.dataset import FrameDataset
from plaudit.data.episode import UNKNOWN

logger = logging.getLogger("plaudit")

SHARE = 0.75
"""Of a batch, where the config does not say and the labels can be trusted."""

CAP = 2.0
"""The largest loss that counts: what is worse than that is no more worth learning from, and may be labelled wrongly."""

WARMUP = 0.2
"""Share of a fit in which frames are only seen: before that nearly all of them are hard."""

EVERY = 50
"""Steps between looks at the losses; fewer in fits of less than thirty times as many."""

AHEAD = 2
"""Steps after which a look counts: until then batches may be read already, while the steps before are learned."""


def share_for(wanted: float | None, dataset: FrameDataset) -> float:
    """Share of a batch that is drawn by how hard frames are: the one wanted, or what suits the origin of the labels."""
    if wanted is not None:
        return wanted
    summaries = dataset.source.summaries()
    known = np.unique(dataset.episodes[dataset.labels != UNKNOWN])
    others = {str(summaries[number].label_source) for number in known} - {"simulator"}
    if others:
        logger.info(
            "easy and hard frames are drawn alike: labels are of origin %s, and where some are wrong it would be those "
            "that count most. reward.training.hard_share=%s draws hard frames more often.",
            ", ".join(sorted(others)),
            SHARE,
        )
        return 0.0
    logger.info(
        "after %.0f %% of the steps, %.0f %% of each batch are drawn by how hard frames are, since all labels are a "
        "simulator's (reward.training.hard_share).",
        100 * WARMUP,
        100 * SHARE,
    )
    return SHARE


@dataclass(frozen=True)
class LossSnapshot:
    """The losses before some step.

    Attributes:
        step: That one.
        weights: float32 (n,), how likely every frame is drawn.
        sums: float64, running sums of the weights of each group.
    """

    step: int
    weights: NDArray[np.float32]
    sums: Sequence[NDArray[np.float64]]


class HardFrames:
    """Draws frames in proportion to the loss that they had when they were last seen.

    What a step draws follows from the seed, its number, and a look at the losses that was taken some steps before. The
    last two looks are kept, so that the rows of steps that are being read, or were read before a fit was stopped, can
    be told again.

    A frame that was never seen is not drawn: the rest of each batch takes all frames in turn, and comes to it.

    Args:
        groups: Rows to draw from, such as those of each class.
        count: Frames in the data set.
        share: Share of a batch that is to be drawn here, less than 1.
        seed: Of the lots.
        total_steps: Steps of the fit.

    Attributes:
        share: As given.
        since: The step from which losses are known: 0, unless the fit goes on from a checkpoint without them.
    """

    def __init__(self, groups: Sequence[Rows], count: int, share: float, seed: int, total_steps: int) -> None:
        self.groups, self.share, self.seed = groups, share, seed
        self.since = 0
        self._every = min(EVERY, max(AHEAD, total_steps // 30))
        self._warmup = math.ceil(WARMUP * total_steps)
        self._losses = np.full(count, np.nan, np.float32)
        self._looks: tuple[LossSnapshot, ...] = (self._look(0),)

    @property
    def start(self) -> int:
        """The first step that has hard frames."""
        return self.since + self._warmup

    def note(self, step: int, rows: Rows, losses: NDArray[np.float32]) -> None:
        """Takes note of the losses (n,) that the frames of a step had, and looks at all of them where it is time to."""
        self._losses[rows] = losses
        if (step + 1) % self._every == 0:
            self._looks = (self._looks[-1], self._look(step + 1))

    def draw(self, step: int, group: int, count: int) -> Rows:
        """Some rows of a group for a step from `start` on, (count,)."""
        rows, sums = self.groups[group], self._at(step).sums[group]
        random = np.random.default_rng([self.seed, 5, group, step])
        # One from each of as many equal parts of the sum: a frame is drawn no more often by chance than it has to be.
        marks = (np.arange(count) + random.random(count)) / max(1, count) * sums[-1]
        places = np.minimum(np.searchsorted(sums, marks, side="right"), len(rows) - 1)
        drawn: Rows = rows[places]
        return drawn

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        looks = {look.step: torch.from_numpy(look.weights) for look in self._looks}
        return {"losses": torch.from_numpy(self._losses), "since": self.since, "looks": looks}

    def load(self, state: Mapping[str, Any], step: int) -> None:
        """Goes on at a step with what a checkpoint holds; with nothing, frames are seen for as long as at the start."""
        if not state:
            self.since = step
            logger.info(
                "the checkpoint has no losses of frames: hard ones are drawn from step %s on.", f"{self.start:,}"
            )
            return
        self.since = state["since"]
        self._losses = state["losses"].numpy().copy()
        self._looks = tuple(self._look(taken, weights.numpy()) for taken, weights in state["looks"].items())

    def _at(self, step: int) -> LossSnapshot:
        """The look that counts at a step."""
        return next((look for look in reversed(self._looks) if look.step + AHEAD <= step), self._looks[0])

    def _look(self, step: int, weights: NDArray[np.float32] | None = None) -> LossSnapshot:
        """A look at the losses as they are now, or with weights of before."""
        if weights is None:
            weights = np.nan_to_num(np.minimum(self._losses, CAP), nan=0.0)
        sums = [np.cumsum(weights[rows], dtype=np.float64) for rows in self.groups]
        # Where nothing was seen yet, or nothing is hard, all are alike.
        return LossSnapshot(step, weights, [one if one[-1] > 0 else np.arange(1.0, len(one) + 1) for one in sums])


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
