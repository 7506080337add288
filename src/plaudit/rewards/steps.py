"""From what a model says of frames to rewards, in steps that keep nothing: calibrate, guard, decide, map, combine.

Arrays are (T, N): T steps of N envs, in time order. What one call must know of the one before is passed in and out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plaudit.config.guards import Guard
from plaudit.config.rewards import RewardConfig
from plaudit.envs.base import Reading
from plaudit.rewards.calibration import Calibration
from plaudit.rewards.firing import Decision

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Rule:
    """How probabilities become verdicts while envs run.

    Attributes:
        decision: Threshold, hold, mode and release.
        window: Of so many last frames `decision.hold` have to be over the threshold; `None` for as many as the hold.
    """

    decision: Decision
    window: int | None = None

    @property
    def frames(self) -> int:
        """How many last frames of an episode count."""
        return self.window or self.decision.hold


class Memory(NamedTuple):
    """What `decide` must know of the episodes that go on.

    Attributes:
        over: bool (N, frames - 1), whether the frames before this one were over the threshold, the oldest first.
        on: bool (N,), whether the verdict at the frame before this one was success.
    """

    over: Bools
    on: Bools

    @classmethod
    def fresh(cls, count: int, rule: Rule) -> Memory:
        """Of `count` envs whose episodes have just begun."""
        return cls(np.zeros((count, rule.frames - 1), bool), np.zeros(count, bool))


def calibrate(scores: NDArray[np.floating[Any]], calibration: Calibration, penalty: float = 0.0) -> Floats:
    """Probabilities of success (...,) from logits and their spread, (..., 2); NaN where the scores are.

    Args:
        scores: Logit, and standard deviation over the ensemble's heads.
        calibration: The artifact's.
        penalty: How many of those deviations are taken off the logit, so that only what the heads agree on counts.
    """
    wide = scores.astype(np.float64)
    return calibration.probabilities(wide[..., 0] - penalty * wide[..., 1])


def guard(
    probabilities: Floats, state: NDArray[Any] | None, guards: Sequence[Guard], readings: Mapping[str, Reading]
) -> Floats:
    """The probabilities, but 0 where a guard is not kept; NaN stays, where the model was not asked.

    Args:
        probabilities: (T, N).
        state: (T, N, d), of the same instants; `None` where there are no guards.
        guards: All must be kept.
        readings: Where in `state` their quantities are.
    """
    kept = probabilities
    for one in guards:
        assert state is not None, "whoever has guards gives the state"
        reading = readings[one.name]
        # In the state's own precision, so that a bound that a quantity just reaches is reached.
        values = state[..., reading.index] / np.asarray(reading.scale, state.dtype)
        kept = np.where(one.allows(values) | np.isnan(kept), kept, 0.0)
    return kept


def decide(probabilities: Floats, done: Bools, rule: Rule, memory: Memory) -> tuple[Bools, Memory]:
    """Whether each frame is a success, (T, N), and what the next call must know.

    Args:
        probabilities: (T, N); NaN where the model was not asked, which is no success and counts for no hold.
        done: bool (T, N), whether the episode ended with that step: the next frame is of another one.
        rule: How.
        memory: What the call before gave, or `Memory.fresh`.
    """
    decision = rule.decision
    over = probabilities > decision.threshold
    if rule.frames == 1 and decision.release is None:
        return over, Memory(memory.over, over[-1] & ~done[-1] if len(over) else memory.on)
    verdicts = np.zeros_like(over)
    before, on = memory
    for t, asked in enumerate(~np.isnan(probabilities)):
        counted = np.concatenate([before, over[t][:, None]], axis=1)
        now = counted.sum(1) >= decision.hold
        if decision.release is not None:
            now |= on & (probabilities[t] > decision.release)
        verdicts[t] = now & asked
        on = np.where(asked, now, on) & ~done[t]
        before = np.where(asked[:, None], counted[:, 1:], before) & ~done[t][:, None]
    return verdicts, Memory(before, on)


def map_rewards(probabilities: Floats, verdicts: Bools, settings: RewardConfig) -> Floats:
    """What the model's word is worth, (T, N); 0 where it was not asked."""
    low, high = settings.fail_reward, settings.success_reward
    share = verdicts if settings.reward_type == "binary" else probabilities
    return np.where(np.isnan(probabilities), 0.0, low + share * (high - low))


def combine(worth: Floats, env_reward: NDArray[np.floating[Any]], settings: RewardConfig) -> NDArray[np.float32]:
    """The rewards to learn from, (T, N), of the model's and the env's own."""
    own = settings.reward_weight * worth
    if settings.combine_mode == "add":
        own = env_reward + own
    if settings.combine_mode == "weighted":
        own = settings.env_reward_weight * env_reward + own
    return own.astype(np.float32)


def asked(done: Bools, age: NDArray[np.int64], settings: RewardConfig) -> Bools:
    """Of which steps the model is asked: an episode's last, and with per_step every `reward_interval`-th.

    Args:
        done: bool, whether the episode ended with that step.
        age: How many steps it had then, of the same shape.
        settings: Say when.
    """
    if settings.reward_mode == "terminal":
        return done
    due: Bools = done | (age % settings.reward_interval == 0)
    return due
