"""An env of a moment that stands in for ManiSkill's: it takes the keys that the recipes give those."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from plaudit.envs import Outcome, TaskEnv, register_env


@dataclass(frozen=True)
class MarbleConfig:
    """Keys that the recipes give their envs."""

    num_envs: int = 4
    obs_mode: str = "state"
    control_mode: str = ""
    cameras: tuple[str, ...] = ("base_camera",)
    camera_size: tuple[int, int] = (64, 64)
    frames: str = "none"
    kwargs: dict[str, Any] = field(default_factory=dict)
    episode_length: int = 6


@register_env("guides/Marble", override=True)
class Marble(TaskEnv):
    """A marble on a line that should roll beyond 0.3; its pictures are dark but for a column at its place."""

    cfg: MarbleConfig

    def __init__(self, cfg: MarbleConfig, device: Any = "cpu") -> None:
        super().__init__(cfg, device)
        self.num_envs, self.max_episode_steps, self.cameras = cfg.num_envs, cfg.episode_length, cfg.cameras
        spaces: dict[str, gym.Space[Any]] = {"state": gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)}
        if cfg.obs_mode == "rgb":
            spaces |= {name: gym.spaces.Box(0, 255, (*cfg.camera_size, 3), np.uint8) for name in cfg.cameras}
        self.observation_space, self.action_space = gym.spaces.Dict(spaces), gym.spaces.Box(-1, 1, (1,), np.float32)
        self.place, self.random = torch.zeros(self.num_envs), torch.Generator()

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        if seed is not None:
            self.random.manual_seed(seed)
        self.place[ids] = torch.rand(len(ids), generator=self.random) - 0.5

    def advance(self, action: torch.Tensor) -> Outcome:
        self.place = (self.place + 0.3 * action[:, 0].clamp(-1, 1)).clamp(-1, 1)
        return Outcome(self.place.clone(), torch.zeros(self.num_envs, dtype=torch.bool), self.place > 0.3)

    def observe(self, ids: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        state = {"state": (self.place if ids is None else self.place[ids])[:, None].clone()}
        return {**state, **self.render(ids)} if self.cfg.obs_mode == "rgb" else state

    def render(self, ids: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        places = self.place if ids is None else self.place[ids]
        height, width = self.cfg.camera_size
        lit = (torch.linspace(-1, 1, width) - places[:, None]).abs() < 0.2
        picture = (lit[:, None, :, None] * 255).expand(-1, height, -1, 3).to(torch.uint8)
        return dict.fromkeys(self.cameras, picture.contiguous())
