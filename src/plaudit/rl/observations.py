"""Observations as policies see them: the one tensor of a one-key dict, or the dict itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import gymnasium as gym
import torch

from plaudit.envs.base import Step, VecEnv
from plaudit.errors import ConfigError
from plaudit.rl.reward_source import RolloutRewards, settle

PolicyObs: TypeAlias = torch.Tensor | dict[str, torch.Tensor]
"""`(n, d)` for an env with one vector, else key to `(n, ...)`."""

ObsDim: TypeAlias = int | dict[str, tuple[int, ...]]
"""Length of the one vector, else key to the shape of one observation; the key of an only one is empty."""


def flat(obs: PolicyObs) -> PolicyObs:
    """The tensor of a one-key dict; anything else as it is."""
    if isinstance(obs, dict) and len(obs) == 1:
        return next(iter(obs.values()))
    return obs


def flat_space(space: gym.Space[Any]) -> gym.Space[Any]:
    """The space of `flat(obs)`."""
    if isinstance(space, gym.spaces.Dict) and len(space.spaces) == 1:
        return next(iter(space.spaces.values()))
    return space


def obs_dim(space: gym.Space[Any]) -> ObsDim:
    """What `initialize_buffer` is told of an observation space."""
    space = flat_space(space)
    if isinstance(space, gym.spaces.Dict):
        return {key: tuple(part.shape or ()) for key, part in space.spaces.items()}
    shape = tuple(space.shape or ())
    return shape[0] if len(shape) == 1 else {"": shape}


def check_same_spaces(env: VecEnv, eval_env: VecEnv) -> None:
    """Raises a `ConfigError` that names what the training and the evaluation env have in different shapes."""
    ours, theirs = _shapes(env), _shapes(eval_env)
    for name in ours | theirs:
        if ours.get(name) != theirs.get(name):
            raise ConfigError(
                f"{name} has shape {ours.get(name, 'none')} in the training env, but {theirs.get(name, 'none')} in the "
                "evaluation env; one policy acts in both, so they must be the same (see env.train and env.eval)."
            )


def _shapes(env: VecEnv) -> dict[str, tuple[int, ...] | None]:
    """What goes through a policy, and its shape in one env."""
    space: gym.Space[Any] = env.observation_space
    parts = space.spaces if isinstance(space, gym.spaces.Dict) else {"": space}
    return {f"observation '{key}'": part.shape for key, part in parts.items()} | {"action": env.action_space.shape}


def map_obs(function: Callable[[torch.Tensor], torch.Tensor], obs: PolicyObs) -> PolicyObs:
    """Applies `function` to each tensor of an observation."""
    if isinstance(obs, dict):
        return {key: function(value) for key, value in obs.items()}
    return function(obs)


def cat_obs(parts: list[PolicyObs]) -> PolicyObs:
    """Joins observations along their batch dimension."""
    first = parts[0]
    if isinstance(first, dict):
        return {key: torch.cat([cast(dict[str, torch.Tensor], part)[key] for part in parts]) for key in first}
    return torch.cat(cast(list[torch.Tensor], parts))


class FlatView:
    """An env whose observations are `flat`, so that an algorithm and its policy see the same thing everywhere.

    Everything else (`num_envs`, `observation_space`, `request_frames` …) is the env's own.

    Attributes:
        obs: The observations to act on next.
        steps: Steps taken through this view.
        settled: Rewards that were given afterwards, where they were.
    """

    def __init__(self, env: VecEnv, obs: PolicyObs) -> None:
        self.env, self.obs = env, obs
        self.steps = 0
        self.settled: RolloutRewards | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, seed: int | None = None) -> tuple[PolicyObs, dict[str, Any]]:
        """As `VecEnv.reset`, with flat observations."""
        obs, info = self.env.reset(seed)
        self.obs = flat(obs)
        return self.obs, info

    def step(self, action: torch.Tensor) -> Step:
        """As `VecEnv.step`, with flat `obs` and `final_obs`."""
        step = self.env.step(action)
        self.obs = flat(step.obs)
        self.steps += 1
        step.obs = cast(Any, self.obs)
        if step.final_obs is not None:
            step.final_obs = cast(Any, flat(step.final_obs))
        return step

    def settle(self) -> RolloutRewards | None:
        """As `Relabelled.settle`, of any env."""
        self.settled = settle(self.env)
        return self.settled
