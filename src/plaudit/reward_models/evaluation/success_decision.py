"""When a model fires: its probability over the threshold, for so many frames in a row, until it is released.

What a policy is rewarded for is this decision, and not the probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from plaudit.errors import ConfigError
from plaudit.reward_models.evaluation.scores import Scores

RewardMode = Literal["per_step", "terminal"]
"""Whether a model is asked at every step, or only at an episode's last one."""


@dataclass(frozen=True)
class Decision:
    """How probabilities become decisions. What cannot work is a `ConfigError`.

    Attributes:
        threshold: Fires when the probability is above it, not when it is equal.
        hold: In so many frames in a row.
        mode: When the model is asked.
        release: Once it fires, it goes on until the probability is no longer above this; `None` for the threshold.
    """

    threshold: float = 0.5
    hold: int = 1
    mode: RewardMode = "per_step"
    release: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ConfigError(f"the threshold is a probability, 0 to 1, not {self.threshold:g}.")
        if self.hold < 1:
            raise ConfigError(f"hold must be at least 1 frame, not {self.hold}.")
        if self.mode not in get_args(RewardMode):
            raise ConfigError(f"reward_mode must be one of {', '.join(get_args(RewardMode))}, not {self.mode!r}.")
        if self.release is not None and not 0 <= self.release <= self.threshold:
            raise ConfigError(f"release must lie within 0 and the threshold, {self.threshold:g}, not {self.release:g}.")
        if self.mode == "terminal" and (self.hold > 1 or self.release is not None):
            raise ConfigError("reward_mode 'terminal' looks at one frame only: it has no hold and no release.")


def asked(scores: Scores, mode: RewardMode) -> NDArray[np.bool_]:
    """The frames at which a decision is made, (n,): all of them, or each episode's last.

    "Last" means the last that was scored: where an episode ends with frames without a label, or that are not stored,
    a live model is asked later.
    """
    if mode == "per_step":
        return np.ones(len(scores), bool)
    last = np.zeros(len(scores), bool)
    last[scores.ends] = True
    return last


def held(values: NDArray[np.float64], scores: Scores, hold: int) -> NDArray[np.float64]:
    """The least of each frame and the `hold` - 1 before it in its episode, (n,); minus infinity where there are fewer.

    A model with a hold fires where this is over the threshold, so that all that is known of thresholds without a hold
    is true of these values with one. "Before" means stored before: where frames are few of the instants, and where
    frames without a label were left out, a hold spans more time than as many steps of a robot do.
    """
    least = values.copy()
    for back in range(1, min(hold, len(values))):
        np.minimum(least[back:], values[:-back], out=least[back:])
    position = np.arange(len(values)) - np.repeat(scores.starts, np.diff(scores.starts, append=len(values)))
    least[position < hold - 1] = -np.inf
    return least


def fires(probabilities: NDArray[np.float64], scores: Scores, decision: Decision) -> NDArray[np.bool_]:
    """Whether the model fires at each frame, (n,), given their calibrated probabilities, (n,)."""
    on = (held(probabilities, scores, decision.hold) > decision.threshold) & asked(scores, decision.mode)
    if decision.release is None:
        return on
    row = np.arange(len(scores))
    off = probabilities <= decision.release
    off[scores.starts] |= ~on[scores.starts]
    turned_on = np.maximum.accumulate(np.where(on, row, -1))
    turned_off = np.maximum.accumulate(np.where(off, row, -1))
    return turned_on > turned_off
