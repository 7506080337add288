"""Who watches a learned reward at work: whatever listener is added, and the meter that every run has."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plaudit.config.reward_schema import RewardConfig
from plaudit.data.episode import Frames
from plaudit.envs.base import Step
from plaudit.rewards.reward_function import Bools, RewardBatch

logger = logging.getLogger("plaudit")


@dataclass(frozen=True, eq=False)
class Shown:
    """Pictures of one step, of some of the envs that the model was asked of.

    Attributes:
        step: Which step of the T.
        envs: int64 (n,), of which envs.
        frames: By camera, uint8 (n, H, W, 3).
    """

    step: int
    envs: NDArray[np.int64]
    frames: dict[str, Frames]


@dataclass(frozen=True, eq=False)
class ScoredSteps:
    """T steps of N envs with all that is known of them, truth included; for whoever watches, and for no learner.

    Attributes:
        judged: What the model makes of them.
        scores: float32 (T, N, 2), its logit and its heads' spread; NaN where it was not asked.
        done: bool (T, N), whether the episode ended with that step.
        env_reward: float32 (T, N), the env's own.
        success: bool (T, N), ground truth; `None` where there is none.
        looks_done: bool (T, N), whether a picture looks like success, where that is not the same; else `None`.
        shown: Pictures of the envs that a listener follows, in time order.
    """

    judged: RewardBatch
    scores: NDArray[np.float32]
    done: Bools
    env_reward: NDArray[np.float32]
    success: Bools | None
    looks_done: Bools | None = None
    shown: Sequence[Shown] = ()


class RewardListener:
    """Is told what a model says of the envs' steps, beside the truth. Does nothing until a subclass says otherwise.

    Attributes:
        follows: int64 (n,), the envs whose pictures it wants to see.
    """

    follows: NDArray[np.int64] = np.zeros(0, np.int64)

    def on_reset(self) -> None:
        """New episodes begin in all envs; those that went on are broken off."""

    def on_rewards(self, seen: ScoredSteps) -> None:
        """Some steps have got their rewards."""

    def report(self) -> dict[str, float]:
        """Numbers for the log."""
        return {}


class RewardMeter(RewardListener):
    """Numbers for the log, of the steps since the last `flush`; and a word where there is nothing to learn from.

    Args:
        settings: What the rewards are made with.
    """

    def __init__(self, settings: RewardConfig) -> None:
        self.settings = settings
        self._warned: set[str] = set()
        self._clear()

    def _clear(self) -> None:
        self._steps = self._asked = self._count = 0
        self._seconds = {"compute_model_rewards": 0.0, "render_frames": 0.0}
        self._sums = {"rewards": 0.0, "model_reward": 0.0, "env_reward": 0.0}
        self._least, self._most, self._likeliest, self._threshold = np.inf, -np.inf, 0.0, 0.0

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Counts the time inside as `compute_model_rewards` or `render_frames`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[what] += time.perf_counter() - started

    def on_rewards(self, seen: ScoredSteps) -> None:
        judged = seen.judged
        for name, values in (("rewards", judged.reward), ("env_reward", seen.env_reward)):
            self._sums[name] += float(values.sum(dtype=np.float64))
        self._sums["model_reward"] += float(judged.model_reward.sum())
        self._steps += len(seen.done)
        self._count += seen.done.size
        asked = ~np.isnan(judged.probability)
        self._asked += int(asked.sum())
        self._least = min(self._least, float(judged.model_reward[asked].min(initial=np.inf)))
        self._most = max(self._most, float(judged.model_reward[asked].max(initial=-np.inf)))
        self._threshold = judged.threshold
        self._likeliest = max(self._likeliest, float(judged.probability[asked].max(initial=0.0)))

    def flush(self) -> dict[str, float]:
        """Means over the steps of each env, milliseconds for a step of all envs, and seconds of them all."""
        if not self._steps:
            return {}
        found = {f"rollout/{name}": total / self._count for name, total in self._sums.items()}
        found |= {f"time/{name}": 1e3 * seconds / self._steps for name, seconds in self._seconds.items()}
        found["time/compute_model_rewards_iteration"] = self._seconds["compute_model_rewards"]
        found["rollout/scored_frames"] = float(self._asked)
        if self._asked and self._least == self._most:
            self._say_constant()
        self._clear()
        return found

    def _say_constant(self) -> None:
        """Warn once that all rewards of an iteration were equal, and say what may help."""
        keys = self.settings
        higher = self._most >= keys.success_reward
        fewer = (
            "Success is everywhere: raise reward.reward_threshold, add a guard or a hold, or fit with more failures."
        )
        more = (
            "Start from a policy that succeeds now and then (runtime.resume), lower reward.reward_threshold, "
            "or use reward.reward_type=continuous"
            + (", or reward.reward_mode=per_step." if keys.reward_mode == "terminal" else ".")
        )
        self._once(
            "constant",
            f"the learned reward was {self._most:g} at all {self._asked:,} frames that the model was asked of in an "
            f"iteration (highest probability {self._likeliest:.3f}, threshold {self._threshold:.3f}), so there was "
            f"nothing to learn from. If that goes on: look at what it sees with reward.debug_save_dir. "
            f"{fewer if higher else more}",
        )

    def watch_termination(self, step: Step) -> None:
        """Says, once, where an env ends episodes by its own success, though the settings do not allow that."""
        if step.success is None or self.settings.env_success_ends or "ended" in self._warned:
            return
        if bool((step.terminated & step.success).any()):
            self._once(
                "ended",
                "the env ended an episode at its own success: ground truth, which a policy on a learned reward is not "
                "to have. Let the env go on at success, or set reward.env_success_ends=true to say that it is meant.",
            )

    def _once(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning(message)
