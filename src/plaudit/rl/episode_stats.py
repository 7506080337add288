"""What is known of the training episodes: per-step means of an iteration and a window of finished episodes."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch


class EpisodeTracker:
    """Returns, lengths and successes of episodes as they run in a batch of envs.

    Args:
        num_envs: Envs that step together.
        device: Where rewards live.
    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self.returns, self.env_returns, self.lengths = (torch.zeros(num_envs, device=device) for _ in range(3))
        self.once, self.model_once = (torch.zeros(num_envs, dtype=torch.bool, device=device) for _ in range(2))

    def add(
        self,
        reward: torch.Tensor,
        done: torch.Tensor,
        success: torch.Tensor | None,
        verdict: torch.Tensor | None = None,
        env_reward: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Takes one step; returns the indices of the envs that ended, (k,), and their episodes' numbers, (k,) each.

        Args:
            reward: (num_envs,), what is learned from.
            done: bool (num_envs,).
            success: bool (num_envs,), ground truth, or `None`.
            verdict: bool (num_envs,), what a learned reward takes for success, or `None`.
            env_reward: (num_envs,), the env's own where the reward is another, or `None`.
        """
        self.returns += reward
        self.lengths += 1.0
        ended = done.nonzero().squeeze(-1)
        episodes = {"return": self.returns[ended], "length": self.lengths[ended]}
        if env_reward is not None:
            self.env_returns += env_reward
            episodes["env_return"] = self.env_returns[ended]
        for name, said, once in (("", success, self.once), ("model_", verdict, self.model_once)):
            if said is not None:
                once |= said
                episodes[f"{name}success_once"] = once[ended].float()
                episodes[f"{name}success_at_end"] = said[ended].float()
        if not len(ended):
            return ended, {}
        for running in self._running.values():
            running[ended] = 0
        return ended, episodes

    @property
    def _running(self) -> dict[str, torch.Tensor]:
        names = ("returns", "env_returns", "lengths", "once", "model_once")
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The running episodes."""
        return self._running

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Puts back what `state_dict` gave."""
        for name, running in self._running.items():
            if name in state:  # Older checkpoints know nothing of learned rewards.
                running.copy_(state[name])


class TrainingStats:
    """Means for the log: `rewards/*` and `metrics/*` over an iteration's steps, `rollout/*` over recent episodes
    (`rollout/step_reward`: the iteration's mean reward of a step). Episodes of which the env does not tell success
    count as failed as soon as it tells that of any.

    Args:
        num_envs: Envs that step together.
        device: Where rewards live.
    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self.tracker = EpisodeTracker(num_envs, device)
        self.window = max(100, num_envs)
        self.recent: dict[str, deque[float]] = {}
        self._sums: dict[str, torch.Tensor] = {}
        self._steps = 0

    def add(self, reward: torch.Tensor, done: torch.Tensor, info: dict[str, Any]) -> None:
        """Takes one step of all envs."""
        self._steps += 1
        self._accumulate("rollout/step_reward", reward)
        for group in ("rewards", "metrics"):
            for name, value in (info.get(group) or {}).items():
                self._accumulate(f"{group}/{name}", value)
        said = (info.get(name) for name in ("success", "verdict", "env_reward"))
        ended, episodes = self.tracker.add(reward, done, *said)
        if not episodes:
            return
        before = len(self.recent.get("return", ()))
        for name in self.recent | episodes:
            values = episodes[name].tolist() if name in episodes else [0.0] * len(ended)
            self.recent.setdefault(name, deque([0.0] * before, maxlen=self.window)).extend(values)

    def _accumulate(self, name: str, value: torch.Tensor) -> None:
        if name in self._sums:
            self._sums[name] += value
        else:
            self._sums[name] = value.clone()

    def flush(self) -> dict[str, float]:
        """The means since the last call, and of the window of episodes."""
        means = {name: float(total.float().mean()) / self._steps for name, total in self._sums.items()}
        self._sums, self._steps = {}, 0
        means |= {f"rollout/{name}": sum(values) / len(values) for name, values in self.recent.items()}
        return means

    def state_dict(self) -> dict[str, Any]:
        """The running episodes and the window."""
        return {
            "tracker": self.tracker.state_dict(),
            "recent": {name: list(values) for name, values in self.recent.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what `state_dict` gave."""
        self.tracker.load_state_dict(state["tracker"])
        self.recent = {name: deque(values, maxlen=self.window) for name, values in state["recent"].items()}
