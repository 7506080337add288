"""A scripted policy that a user names, for an env that comes without one."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plaudit.envs.gym.observations import row
from plaudit.errors import ConfigError
from plaudit.registry import load


class Expert:
    """Acts by what each env observes, as the env itself gives it.

    Args:
        target: `module:attribute`, a function from one env's observation to its action, or a class (made without
            arguments) or an object whose `get_action` is one.
        env_id: What messages call the env.
    """

    def __init__(self, target: str, env_id: str) -> None:
        self.target, self.env_id = target, env_id
        found: Any
        try:
            found = load(target)
            found = found() if inspect.isclass(found) else found
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise ConfigError(
                f"env.cfg.expert: '{target}' must be module:attribute, and importable (name your own module in "
                f"runtime.imports too): {error}."
            ) from error
        self._act = getattr(found, "get_action", found)
        if not callable(self._act):
            raise ConfigError(f"env.cfg.expert: '{target}' is neither a function nor has a get_action: {found!r}.")

    def __call__(self, obs: Any, num_envs: int, space: gymnasium.spaces.Box) -> NDArray[np.float32]:
        """Actions (num_envs, action_dim) for a batch of observations."""
        actions = [np.asarray(self._act(row(obs, index)), np.float32) for index in range(num_envs)]
        if actions[0].shape != space.shape:
            raise ConfigError(
                f"env.cfg.expert: '{self.target}' gives actions of shape {actions[0].shape}, but gym:{self.env_id} "
                f"takes {space.shape}."
            )
        return np.stack(actions)
