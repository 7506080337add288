"""Which frames are hard: those that a fit was wrong about, or unsure of, when it last saw them.

Most frames are easy after a few hundred steps and have little left to teach; what a model still gets wrong is at the
edge of success. So a share of each batch is drawn in proportion to the losses that frames had (online hard example
mining, by lot).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.episodes.dataset import FrameDataset
from plaudit.episodes.episode import UNKNOWN
from plaudit.rewards.sampling import Rows

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
class Look:
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
        self._looks: tuple[Look, ...] = (self._look(0),)

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

    def _at(self, step: int) -> Look:
        """The look that counts at a step."""
        return next((look for look in reversed(self._looks) if look.step + AHEAD <= step), self._looks[0])

    def _look(self, step: int, weights: NDArray[np.float32] | None = None) -> Look:
        """A look at the losses as they are now, or with weights of before."""
        if weights is None:
            weights = np.nan_to_num(np.minimum(self._losses, CAP), nan=0.0)
        sums = [np.cumsum(weights[rows], dtype=np.float64) for rows in self.groups]
        # Where nothing was seen yet, or nothing is hard, all are alike.
        return Look(step, weights, [one if one[-1] > 0 else np.arange(1.0, len(one) + 1) for one in sums])
