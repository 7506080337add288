"""Our batched envs as Stable-Baselines3's `VecEnv`, as lean as its interface lets it be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv as Sb3VecEnv

from plaudit.envs.base import VecEnv

Floats = NDArray[np.float32]


class Sb3Adapter(Sb3VecEnv):
    """One of our envs with vector observations, on the CPU. Arrays are views of the env's tensors.

    Args:
        env: The batched env.
        seed: Seed of every reset.
        stagger: Spread the envs over their first episode, as our trainer does.
    """

    def __init__(self, env: VecEnv, seed: int = 0, stagger: bool = True) -> None:
        self.env, self.reset_seed, self.staggered = env, seed, stagger
        space = env.observation_space
        self.key = next(iter(space.spaces))
        if len(space.spaces) != 1 or env.device.type != "cpu":
            raise ValueError("the adapter is for envs on the CPU with one vector observation.")
        super().__init__(env.num_envs, space[self.key], env.action_space)
        self._infos: list[dict[str, Any]] = [{} for _ in range(env.num_envs)]
        self._ended: list[int] = []
        self._actions = torch.zeros(0)

    def reset(self) -> Floats:
        obs, _ = self.env.reset(self.reset_seed)
        if self.staggered:
            self.env.stagger()
        return self._array(obs)

    def step_async(self, actions: Floats) -> None:
        self._actions = torch.from_numpy(actions)

    def step_wait(self) -> tuple[Floats, Floats, NDArray[np.bool_], list[dict[str, Any]]]:
        step = self.env.step(self._actions)
        for index in self._ended:
            self._infos[index] = {}
        self._ended = []
        if step.final_obs is not None:
            self._ended = step.ended.tolist()
            finals, truncated = self._array(step.final_obs), step.truncated.numpy()
            for row, index in enumerate(self._ended):
                self._infos[index] = {
                    "terminal_observation": finals[row],
                    "TimeLimit.truncated": bool(truncated[index]),
                }
        return self._array(step.obs), step.reward.numpy(), step.done.numpy(), self._infos

    def _array(self, obs: dict[str, torch.Tensor]) -> Floats:
        array: Floats = obs[self.key].numpy()
        return array

    def close(self) -> None:
        self.env.close()

    # What SB3 asks of single envs. A batch has none.

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.env, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError(f"a batched env has no '{attr_name}' of single envs to set.")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError(f"a batched env has no '{method_name}' of single envs to call.")

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Any = None
    ) -> list[bool]:
        return [False] * self.num_envs


def ppo(env: Sb3VecEnv, steps: int, hidden: Sequence[int], seed: int = 0, **options: Any) -> Any:
    """SB3's PPO with separate tanh networks, and the settings that our recipes have.

    Args:
        env: What it trains on.
        steps: Steps of each env in a rollout.
        hidden: Widths of the actor's and of the critic's hidden layers.
        seed: Seed of its networks and samples.
        options: Its constructor's keywords.
    """
    from stable_baselines3 import PPO

    nets = {
        "net_arch": {"pi": list(hidden), "vf": list(hidden)},
        "activation_fn": torch.nn.Tanh,
        "log_std_init": -0.5,
    }
    settings: dict[str, Any] = {
        "learning_rate": 1e-3,
        "n_epochs": 4,
        "batch_size": 256,
        "gamma": 0.97,
        "gae_lambda": 0.9,
    }
    return PPO("MlpPolicy", env, n_steps=steps, policy_kwargs=nets, seed=seed, device="cpu", **{**settings, **options})
