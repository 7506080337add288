"""A model that reads a probability off the brightness of a picture, and an env whose pictures show where it is."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from plaudit.config.reward_schema import RewardConfig
from plaudit.envs.base import Frames, Obs, Outcome, Reading, TaskEnv
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.reward_models.config import RewardModelConfig
from plaudit.reward_models.evaluation.success_decision import Decision
from plaudit.reward_models.evaluation.threshold import Choice
from plaudit.reward_models.model import RewardModel, register_reward_model
from plaudit.rewards.reward_function import RewardManager

SIZE = (4, 6)


@register_reward_model("test/brightness", override=True)
class Brightness(RewardModel):
    """A picture of brightness 128 + v has the logit v / 16, and head i says i - (heads - 1) / 2 more than that."""

    config: RewardModelConfig

    def __init__(self, config: RewardModelConfig) -> None:
        super().__init__(config, nn.Identity())
        self.scale = nn.Parameter(torch.tensor(1 / 16))

    def encode(self, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack([images[name].mean((1, 2, 3)) for name in self.cameras], 1).mean(1) * 255

    def decide(self, features: torch.Tensor) -> torch.Tensor:
        offsets = torch.arange(self.heads) - (self.heads - 1) / 2
        return ((features - 128) * self.scale)[:, None] + offsets


def brightness(threshold: float = 0.5, **changes: Any) -> RewardArtifact:
    """An artifact of that model, which is nowhere on the disk."""
    keys = {"model_type": "test/brightness", "image_size": (3, *SIZE), **changes}
    model = Brightness(RewardModelConfig(**keys))
    choice = Choice(Decision(threshold), 0.01, 0, 10, 1.0, "")
    return RewardArtifact(model.config, model.state_dict(), choice=choice)


def manager(artifact: RewardArtifact | None = None, readings: Any = None, **settings: Any) -> RewardManager:
    """A pipeline around it; torch scores, which needs no export."""
    return RewardManager(artifact or brightness(), RewardConfig(backend="torch", **settings), readings=readings)


def pictures(logits: Any) -> torch.Tensor:
    """Pictures (..., H, W, 3) of which `Brightness` has these logits, rounded to sixteenths."""
    values = (128 + 16 * torch.as_tensor(logits, dtype=torch.float32)).round().clamp(0, 255).to(torch.uint8)
    return values[..., None, None, None].expand(*values.shape, *SIZE, 3).contiguous()


class Slider(TaskEnv):
    """A point on a line from -1 to 1 that an action moves by up to 0.25; its picture's logit is 4 times its place.

    The state is twice the place, and the time. Truth: reward is the place, success beyond 0.5. With `poison` both are
    nonsense, as far from the truth as can be. Episodes start at random and last `length` steps.
    """

    can_save_state = True

    def __init__(self, num_envs: int = 4, length: int = 5, *, poison: bool = False, ends: bool = False) -> None:
        super().__init__(SimpleNamespace(num_envs=num_envs))
        self.num_envs, self.max_episode_steps = num_envs, length
        self.poison, self.ends = poison, ends
        self.cameras = ("base_camera",)
        self.readings = {"place": Reading(0, 2.0)}
        self.observation_space = gym.spaces.Dict({"state": gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)})
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.place = torch.zeros(num_envs)
        self.random = torch.Generator()
        self.drawn = 0

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        if seed is not None:
            self.random.manual_seed(seed)
        self.place[ids] = torch.rand(len(ids), generator=self.random) - 0.75

    def advance(self, action: torch.Tensor) -> Outcome:
        self.place = (self.place + 0.25 * action[:, 0].clamp(-1, 1)).clamp(-1, 1)
        reward, success = self.place.clone(), self.place > 0.5
        terminated = success & self.ends
        if self.poison:
            reward, success = 100.0 - 1000 * reward, ~success
        return Outcome(reward, terminated, success)

    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        state = torch.stack([2 * self.place, self.clock.float() if len(self.clock) else self.place * 0], 1)
        return {"state": state if ids is None else state[ids]}

    def render(self, ids: torch.Tensor | None = None) -> Frames:
        places = self.place if ids is None else self.place[ids]
        self.drawn += len(places)
        return {"base_camera": pictures(4 * places)}

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place.clone(), "clock": self.clock.clone(), "random": self.random.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        self.place, self.clock = state["place"].clone(), state["clock"].clone()
        self.random.set_state(state["random"])
        return self.observe()


class Broken(Slider):
    """An env whose camera gives floats, those of one env no numbers."""

    def render(self, ids: torch.Tensor | None = None) -> Frames:
        frames = super().render(ids)["base_camera"] / 255
        rows = torch.arange(self.num_envs) if ids is None else ids
        frames[rows == 2] = torch.nan
        return {"base_camera": frames}
