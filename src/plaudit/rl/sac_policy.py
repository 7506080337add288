"""The policy that SAC trains: a tanh-squashed Gaussian actor, and an ensemble of critics."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from plaudit.config.algorithms import SACPolicyConfig
from plaudit.config.schema import NetworkConfig
from plaudit.errors import ConfigError
from plaudit.rl import squashed
from plaudit.rl.actor_critic import ALMOST_ONE, split_space
from plaudit.rl.ensemble import Ensemble
from plaudit.rl.obs import PolicyObs
from plaudit.rl.policy import Policy, both_networks

FIRST_ACTION, FIRST_VALUE = 0.01, 0.1
"""Gains of the last layers at the start: all actions are about as likely, and hardly anything is valued."""


class SACPolicy(Policy):
    """Actions and values live in units in which the action space is [-1, 1]; actions leave in the space's own.

    Args:
        obs_space: A vector `Box`, or a `Dict` of vectors.
        action_space: A vector `Box` with finite bounds.
        device: Where the policy lives.
        actor: Observations (n, d) to means and logarithms of standard deviations, (1, n, 2 action_dim).
        critics: Observations and actions (n, d + action_dim) to values, (E, n, 1).
    """

    centre: torch.Tensor
    reach: torch.Tensor

    def __init__(
        self,
        obs_space: gym.Space[Any],
        action_space: gym.spaces.Box,
        device: torch.device,
        actor: Ensemble,
        critics: Ensemble,
    ) -> None:
        super().__init__()
        self.device = torch.device(device)
        self.vectors, _ = split_space(obs_space)
        self.actor, self.critics = actor, critics
        low, high = torch.as_tensor(action_space.low), torch.as_tensor(action_space.high)
        self.register_buffer("centre", ((low + high) / 2).float(), persistent=False)
        self.register_buffer("reach", ((high - low) / 2).float(), persistent=False)
        self.unit = bool((self.centre == 0).all() and (self.reach == 1).all())
        self.to(self.device)

    @classmethod
    def build(
        cls,
        obs_space: gym.Space[Any],
        action_space: gym.spaces.Box,
        device: torch.device,
        config: SACPolicyConfig,
        actor: NetworkConfig | None,
        critic: NetworkConfig | None,
    ) -> Policy:
        """Makes the networks that the blocks `actor` and `critic` describe, and the policy around them."""
        actor, critic = both_networks("sac", actor, critic)
        vectors, cameras = split_space(obs_space)
        if cameras:
            raise ConfigError(
                f"policy.name 'sac' reads vectors, but the env observes the cameras {', '.join(cameras)}; use "
                "env.cfg.obs_mode=state."
            )
        if not np.isfinite([action_space.low, action_space.high]).all():
            raise ConfigError("policy.name 'sac' needs an action space with finite bounds; use actor_critic.")
        size, actions = sum(vectors.values()), action_space.shape[0]
        make_actor = Ensemble(
            1, size, actor.hidden_sizes, 2 * actions, actor.activation, config.actor_layer_norm, FIRST_ACTION
        )
        critics = Ensemble(
            config.num_critics,
            size + actions,
            critic.hidden_sizes,
            1,
            critic.activation,
            config.critic_layer_norm,
            FIRST_VALUE,
        )
        return cls(obs_space, action_space, device, make_actor, critics)

    def act(self, obs: PolicyObs, deterministic: bool = False, noise: torch.Tensor | None = None) -> torch.Tensor:
        """Actions (n, action_dim) alone, without what critics think of them: for whoever only acts."""
        outputs = self.actor(self.vector(obs))[0]
        mean, raw = outputs.chunk(2, -1)
        if deterministic:
            return self.to_space(mean.tanh())
        spread = raw.clamp(*squashed.LOG_STD).exp() * (torch.randn_like(mean) if noise is None else noise)
        return self.to_space((mean + spread).tanh())

    def get_action(
        self, obs: PolicyObs, deterministic: bool = False, noise: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        action = self.act(obs, deterministic, noise)
        log_prob, _, value = self.evaluate_actions(obs, action)
        return action, log_prob, value

    def get_value(self, obs: PolicyObs) -> torch.Tensor:
        """What the critics together think of the action that the actor likes best."""
        return self.get_q(obs, self.act(obs, deterministic=True)).mean(0)

    def get_q(self, obs: PolicyObs, actions: torch.Tensor) -> torch.Tensor:
        """Every critic's value of some actions, (E, n)."""
        values: torch.Tensor = self.critics(torch.cat([self.vector(obs), self.to_unit(actions)], -1))
        return values.squeeze(-1)

    def evaluate_actions(
        self, obs: PolicyObs, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As the contract has it; the entropy is that of one draw, since there is no closed form."""
        outputs = self.actor(self.vector(obs))[0]
        volume = self.reach.log().sum()
        before = self.to_unit(actions).clamp(-ALMOST_ONE, ALMOST_ONE).atanh()
        drawn = squashed.draw(outputs, torch.randn_like(before))
        value = self.get_q(obs, actions).mean(0)
        return squashed.log_prob(outputs, before) - volume, volume - drawn.log_prob, value

    def vector(self, obs: PolicyObs) -> torch.Tensor:
        """All vector observations side by side, (n, d)."""
        if isinstance(obs, torch.Tensor):
            return obs
        return torch.cat([obs[key] for key in self.vectors], -1)

    def to_space(self, action: torch.Tensor) -> torch.Tensor:
        """From [-1, 1] to the action space's units."""
        return action if self.unit else self.centre + self.reach * action

    def to_unit(self, action: torch.Tensor) -> torch.Tensor:
        """From the action space's units to [-1, 1]."""
        return action if self.unit else (action - self.centre) / self.reach
