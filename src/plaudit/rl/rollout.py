"""What the trainer sees of a rollout: every step is checked, and counted once its rewards are known."""

from __future__ import annotations

from typing import Any

import torch

from plaudit.errors import PlauditError
from plaudit.rl.episode_stats import TrainingStats
from plaudit.rl.finite_checks import check_finite, check_step
from plaudit.rl.observations import FlatView, PolicyObs

COUNTED = ("success", "env_reward", "rewards", "metrics")
"""Entries of a step's info that statistics are made of."""


class RolloutWatch:
    """The `StepCallback` of one rollout.

    Args:
        stats: Where steps are counted.
        deferred: Whether rewards are told for the whole rollout together.
        where: Words that say which rollout this is.
    """

    def __init__(self, stats: TrainingStats, deferred: bool, where: str) -> None:
        self.stats, self.deferred, self.where = stats, deferred, where
        self.told = 0
        self._later: list[tuple[torch.Tensor, dict[str, Any]]] = []

    def __call__(
        self,
        obs: PolicyObs,
        actions: torch.Tensor,
        reward: torch.Tensor,
        done: torch.Tensor,
        info: dict[str, Any],
        next_obs: PolicyObs,
    ) -> None:
        self.told += 1
        check_step(next_obs, reward, done, info.get("final_obs"), f"step {self.told} of {self.where}")
        if self.deferred:
            self._later.append((done, {name: info.get(name) for name in COUNTED}))
        else:
            self.stats.add(reward, done, info)

    def finish(self, view: FlatView, who: str, *, must_step: bool) -> None:
        """Counts what was left, and sees that the algorithm called `who` has told of every step.

        Args:
            view: The envs of the rollout.
            who: For messages.
            must_step: Whether there must have been a step.
        """
        if self.told < max(view.steps, must_step):
            raise PlauditError(
                f"{who}.collect_rollout took {view.steps} steps and called on_step_callback {self.told} times; it must "
                "call it after each step, with (obs, actions, reward, done, info, next_obs)."
            )
        if self.deferred and view.settled is None:
            raise PlauditError(
                f"{who} has relabels = True, but collect_rollout did not call plaudit.rl.reward_source.settle(env) "
                "for the rewards of its steps."
            )
        for number, (done, info) in enumerate(self._later):
            assert view.settled is not None
            reward = view.settled.reward[number]
            check_finite(reward, "reward", f"step {number + 1} of {self.where}")
            self.stats.add(reward, done, {**info, "verdict": view.settled.verdict[number]})
