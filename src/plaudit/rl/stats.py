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
        self.returns = torch.zeros(num_envs, device=device)
        self.lengths = torch.zeros(num_envs, device=device)
        self.once = torch.zeros(num_envs, dtype=torch.bool, device=device)

    def add(
        self, reward: torch.Tensor, done: torch.Tensor, success: torch.Tensor | None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Takes one step; returns the indices of the envs that ended, (k,), and their episodes' numbers, (k,) each."""
        self.returns += reward
        self.lengths += 1.0
        if success is not None:
            self.once |= success
        ended = done.nonzero().squeeze(-1)
        if not len(ended):
            return ended, {}
        episodes = {"return": self.returns[ended], "length": self.lengths[ended]}
        if success is not None:
            episodes["success_once"] = self.once[ended].float()
            episodes["success_at_end"] = success[ended].float()
        self.returns[ended] = 0.0
        self.lengths[ended] = 0.0
        self.once[ended] = False
        return ended, episodes

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The running episodes."""
        return {"returns": self.returns, "lengths": self.lengths, "once": self.once}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Puts back what `state_dict` gave."""
        self.returns.copy_(state["returns"])
        self.lengths.copy_(state["lengths"])
        self.once.copy_(state["once"])


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
        ended, episodes = self.tracker.add(reward, done, info.get("success"))
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
