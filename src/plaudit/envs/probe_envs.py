"""Tiny envs with known answers, so that "does it learn" is a test of seconds (after SB3's identity_env).

Each tests one ability on top of the one before: a constant value, a value that depends on the observation,
discounting, an action, an action that depends on the observation, one that also depends on a picture, and bootstrapping
at a truncation.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from plaudit.envs.base import Frames, Obs, Outcome, TaskEnv
from plaudit.envs.config import ProbeConfig
from plaudit.envs.episode_rng import episode_uniforms


class Probe(TaskEnv):
    """What the probe envs share: one number observed, one number as action, episodes from a hash, saved state."""

    cfg: ProbeConfig
    can_save_state = True

    def __init__(self, cfg: ProbeConfig, device: torch.device | str = "cpu") -> None:
        super().__init__(cfg, device)
        self.num_envs = cfg.num_envs
        self.observation_space = gym.spaces.Dict({"state": gym.spaces.Box(-1.0, 1.0, (1,), np.float32)})
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.seed = 0
        self.episodes = torch.zeros(self.num_envs, dtype=torch.int64)
        self.value = torch.zeros(self.num_envs)

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        ids = ids.cpu()
        if seed is not None:
            self.seed = seed
            self.episodes[ids] = 0
        random = episode_uniforms(self.seed, ids.numpy(), self.episodes[ids].numpy(), 1)[:, 0]
        self.value[ids] = self.first(torch.from_numpy(random).float())
        self.episodes[ids] += 1

    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        value = self.value if ids is None else self.value[ids.cpu()]
        return {"state": value.unsqueeze(-1).to(self.device, copy=True)}

    def state_dict(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "episodes": self.episodes.clone(),
            "value": self.value.clone(),
            "clock": self.clock.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        self.seed = int(state["seed"])
        self.episodes = state["episodes"].clone()
        self.value = state["value"].clone()
        self.clock = state["clock"].clone()
        return self.observe()

    def outcome(self, reward: torch.Tensor, ends: bool | torch.Tensor, success: torch.Tensor | None = None) -> Outcome:
        """An `Outcome` on the env's device; `ends` may be one bool for all."""
        terminated = torch.as_tensor(ends).expand(self.num_envs).clone()
        return Outcome(
            reward=reward.to(self.device),
            terminated=terminated.to(self.device),
            success=None if success is None else success.to(self.device),
        )

    def first(self, random: torch.Tensor) -> torch.Tensor:
        """First observations, float32 (n,), from random float32 (n,) in [0, 1]; 0 unless a probe says otherwise."""
        return torch.zeros_like(random)

    @abstractmethod
    def true_value(self, state: torch.Tensor, gamma: float) -> torch.Tensor:
        """Value of the best policy, float32 (n,), for observations float32 (n, 1)."""


class ConstantValue(Probe):
    """Observation 0, one step, reward 1: can the critic learn a number at all?"""

    def advance(self, action: torch.Tensor) -> Outcome:
        return self.outcome(torch.ones(self.num_envs), True)

    def true_value(self, state: torch.Tensor, gamma: float) -> torch.Tensor:
        return torch.ones(len(state))


class ObsValue(Probe):
    """Observation ±1, one step, reward equal to it: does the critic look at the observation?"""

    def first(self, random: torch.Tensor) -> torch.Tensor:
        return torch.where(random < 0.5, -1.0, 1.0)

    def advance(self, action: torch.Tensor) -> Outcome:
        return self.outcome(self.value.clone(), True)

    def true_value(self, state: torch.Tensor, gamma: float) -> torch.Tensor:
        return state.squeeze(-1).clone()


class Discount(Probe):
    """Observation 0, then 1; reward 1 at the end: is the future discounted, V(0) = gamma?"""

    def advance(self, action: torch.Tensor) -> Outcome:
        ends = self.value == 1.0
        self.value = torch.ones(self.num_envs)
        return self.outcome(ends.float(), ends)

    def true_value(self, state: torch.Tensor, gamma: float) -> torch.Tensor:
        return torch.where(state.squeeze(-1) == 1.0, 1.0, gamma)


class ActionReward(Probe):
    """Observation 0, one step, reward -(a - 0.5)²: does the actor find the best action?"""

    tolerance = 0.1

    def best_action(self, state: torch.Tensor) -> torch.Tensor:
        """The action with the highest reward, float32 (n, 1), for observations float32 (n, 1)."""
        return torch.full_like(state, 0.5)

    def advance(self, action: torch.Tensor) -> Outcome:
        error = (action.clamp(-1.0, 1.0).cpu() - self.best_action(self.value.unsqueeze(-1))).squeeze(-1)
        return self.outcome(-(error**2), True, error.abs() < self.tolerance)

    def true_value(self, state: torch.Tensor, gamma: float) -> torch.Tensor:
        return torch.zeros(len(state))


class ObsActionReward(ActionReward):
    """Observation o in [-1, 1], one step, reward -(a - 0.5·o)²: does the actor look at the observation?"""

    def first(self, random: torch.Tensor) -> torch.Tensor:
        return random * 2.0 - 1.0

    def best_action(self, state: torch.Tensor) -> torch.Tensor:
        return state * 0.5


class PictureAction(ObsActionReward):
    """A light at height h in a picture, and a sign s observed beside it; one step, reward -(a - 0.4·(h + s))²: does the
    actor look at both? With v in [-1, 1] the sign is that of v, and the height is 2·|v| - 1.
    """

    cameras = ("camera",)
    pixels = 16

    def __init__(self, cfg: ProbeConfig, device: torch.device | str = "cpu") -> None:
        super().__init__(cfg, device)
        picture = gym.spaces.Box(0, 255, (self.pixels, self.pixels, 3), np.uint8)
        self.observation_space = gym.spaces.Dict({**self.observation_space.spaces, "camera": picture})

    def best_action(self, state: torch.Tensor) -> torch.Tensor:
        return 0.4 * (2.0 * state.abs() - 1.0 + state.sign())

    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        return self.show(self.value if ids is None else self.value[ids.cpu()])

    def show(self, value: torch.Tensor) -> Obs:
        """What is observed of some v, float32 (n,)."""
        height = value.abs() * (self.pixels - 1)
        glow = (torch.arange(self.pixels) - height[:, None]).square().mul(-0.25).exp().mul(255.0).to(torch.uint8)
        picture = glow[:, :, None, None].repeat(1, 1, self.pixels, 3)
        return {"state": value.sign()[:, None].to(self.device), "camera": picture.to(self.device)}

    def render(self, ids: torch.Tensor | None = None) -> Frames:
        return {"camera": self.observe(ids)["camera"]}


class Timeout(Probe):
    """Observation 0, reward 1 for ever, cut every few steps: V = 1/(1 - gamma) only where truncation bootstraps."""

    max_episode_steps = 5

    def advance(self, action: torch.Tensor) -> Outcome:
        return self.outcome(torch.ones(self.num_envs), False)

    def true_value(self, state: torch.Tensor, gamma: float) -> torch.Tensor:
        return torch.full((len(state),), 1.0 / (1.0 - gamma))
