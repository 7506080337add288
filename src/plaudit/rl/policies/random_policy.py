"""A policy that has learned nothing, for others to be compared with."""

from __future__ import annotations

import gymnasium as gym
import torch

from plaudit.rl.observations import PolicyObs
from plaudit.rl.policies.base import Policy


class UniformPolicy(Policy):
    """Every action in the range is as likely as any other, also where it is asked to be deterministic.

    Args:
        action_space: Whose range is finite; where it has no end, -1 to 1 is taken.
        device: Where actions are made.
    """

    low: torch.Tensor
    high: torch.Tensor

    def __init__(self, action_space: gym.spaces.Box, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.device = torch.device(device)
        self.register_buffer("low", torch.as_tensor(action_space.low, device=self.device).nan_to_num(neginf=-1.0))
        self.register_buffer("high", torch.as_tensor(action_space.high, device=self.device).nan_to_num(posinf=1.0))

    def get_action(
        self, obs: PolicyObs, deterministic: bool = False, noise: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        count = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        share = torch.rand(count, *self.low.shape, device=self.device)
        action = self.low + share * (self.high - self.low)
        log_prob, _, value = self.evaluate_actions(obs, action)
        return action, log_prob, value

    def get_value(self, obs: PolicyObs) -> torch.Tensor:
        return torch.zeros(len(next(iter(obs.values())) if isinstance(obs, dict) else obs), device=self.device)

    def evaluate_actions(
        self, obs: PolicyObs, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        entropy = (self.high - self.low).log().sum().expand(len(actions))
        return -entropy, entropy, self.get_value(obs)
