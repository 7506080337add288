"""Storage of one rollout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from plaudit.rl.observations import ObsDim, PolicyObs, map_obs


class RolloutBuffer:
    """Steps of all envs, in time order, with whatever the algorithm adds to them. A full buffer starts anew.

    Args:
        num_steps: Steps of a rollout.
        num_envs: Envs that step together.
        obs_dim: Length of the observation vector, or key to shape where there is more than one observation.
        action_dim: Length of the action vector.
        device: Where the rollout is kept.

    Attributes:
        obs: (num_steps, num_envs, obs_dim), or a dict of such; images stay uint8.
        actions: (num_steps, num_envs, action_dim).
        rewards, dones, values, logprobs: (num_steps, num_envs).
    """

    obs: PolicyObs

    def __init__(
        self, num_steps: int, num_envs: int, obs_dim: ObsDim, action_dim: int, device: torch.device | str
    ) -> None:
        self.num_steps, self.num_envs = num_steps, num_envs
        self.obs_dim, self.action_dim = obs_dim, action_dim
        self.device = torch.device(device)
        self.step = 0
        self._obs_ready = False
        self._extras: dict[str, torch.Tensor] = {}
        self.actions = self._zeros(action_dim)
        self.rewards, self.values, self.logprobs = self._zeros(), self._zeros(), self._zeros()
        self.dones = self._zeros(dtype=torch.bool)

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(self.num_steps, self.num_envs, *shape, dtype=dtype, device=self.device)

    def add(
        self,
        obs: PolicyObs,
        action: torch.Tensor,
        reward: torch.Tensor,
        done: torch.Tensor,
        value: torch.Tensor,
        logprob: torch.Tensor,
    ) -> None:
        """Writes one step of all envs: obs (n, ...), action (n, action_dim), the others (n,)."""
        if not self._obs_ready:
            # The first observation says of what type each part is: images are kept as uint8.
            self.obs = map_obs(lambda part: self._zeros(*part.shape[1:], dtype=part.dtype), obs)
            self._obs_ready = True
        if self.full:
            self.clear()
        if isinstance(self.obs, dict) and isinstance(obs, dict):
            for key, part in self.obs.items():
                part[self.step] = obs[key]
        elif isinstance(self.obs, torch.Tensor) and isinstance(obs, torch.Tensor):
            self.obs[self.step] = obs
        self.actions[self.step] = action
        self.rewards[self.step] = reward
        self.dones[self.step] = done
        self.values[self.step] = value
        self.logprobs[self.step] = logprob
        self.step += 1

    @property
    def full(self) -> bool:
        """Whether all `num_steps` are there."""
        return self.step == self.num_steps

    def clear(self) -> None:
        """Forgets the steps and the extras."""
        self.step = 0
        self._extras = {}

    def set_extras(self, extras: dict[str, torch.Tensor]) -> None:
        """Attaches tensors (num_steps, num_envs, ...), such as advantages and returns, that minibatches carry too."""
        for name, value in extras.items():
            if tuple(value.shape[:2]) != (self.step, self.num_envs):
                raise ValueError(
                    f"extra '{name}' has shape {tuple(value.shape)}, but must begin with {(self.step, self.num_envs)} "
                    "(num_steps, num_envs)."
                )
        self._extras = extras

    def flat_obs(self) -> PolicyObs:
        """The observations of all steps as one batch, (num_steps * num_envs, ...)."""
        return map_obs(lambda part: part[: self.step].flatten(0, 1), self.obs)

    def flatten(self) -> dict[str, Any]:
        """All steps as one batch: every entry of a minibatch, in time order."""
        parts = {
            "actions": self.actions,
            "rewards": self.rewards,
            "dones": self.dones,
            "values": self.values,
            "logprobs": self.logprobs,
            **self._extras,
        }
        return {"obs": self.flat_obs(), **{name: part[: self.step].flatten(0, 1) for name, part in parts.items()}}

    def iterate_minibatches(self, batch_size: int) -> Iterator[dict[str, Any]]:
        """One shuffled pass over the rollout: dicts with obs, actions, rewards, dones, values, logprobs, extras."""
        return shuffled_minibatches(self.flatten(), batch_size)


def shuffled_minibatches(batch: dict[str, Any], batch_size: int) -> Iterator[dict[str, Any]]:
    """Splits a batch at random. It is gathered once, so that the minibatches are views and cost nothing.

    Args:
        batch: Tensors (n, ...), or dicts of such.
        batch_size: Samples in a minibatch; the last one may have fewer.
    """
    first = batch["actions"]
    order = torch.randperm(len(first), device=first.device)
    columns = [_pieces(part, order, batch_size) for part in batch.values()]
    for row in zip(*columns, strict=True):
        yield dict(zip(batch, row, strict=True))


def _pieces(part: Any, order: torch.Tensor, size: int) -> list[Any]:
    """One entry of a batch, reordered and cut."""
    if isinstance(part, dict):
        columns = [_pieces(value, order, size) for value in part.values()]
        return [dict(zip(part, row, strict=True)) for row in zip(*columns, strict=True)]
    pieces: list[Any] = list(part.index_select(0, order).split(size))
    return pieces
