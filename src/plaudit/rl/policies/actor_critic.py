"""The Gaussian actor-critic."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from plaudit.config.algorithm_schema import ActorCriticConfig
from plaudit.config.schema import NetworkConfig
from plaudit.errors import ConfigError
from plaudit.rl.networks.image_encoder import ImageEncoder
from plaudit.rl.networks.mlp import Normalizer, mlp
from plaudit.rl.observations import PolicyObs
from plaudit.rl.policies.base import Policy, both_networks
from plaudit.rl.policies.box_policy import BoxPolicy, build_encoder, cameras_of, join, split_space
from plaudit.rl.policies.distributions import ALMOST_ONE, LOG_2PI, gaussian_log_prob

FIRST_OUTPUT = 0.01
"""Gain of both networks' last layers at the start. Nothing is valued before anything was earned: where rewards are
rare, the policy would else begin by learning from the differences of random values, and stop exploring."""


class ActorCritic(BoxPolicy):
    """Gaussian with a mean from the actor network and a learned standard deviation, and a value from the critic.

    The Gaussian lives in units in which the action space is [-1, 1]; actions leave in the space's own units. Plain,
    the env clips them; squashed, they go through tanh. Vector observations are normalised with running statistics
    and joined. Cameras go through one image encoder that actor and critic share (images are the dear part, and one
    encoder is half the price of two); a network of type `mlp` does not see them.

    Args:
        obs_space: A vector `Box`, or a `Dict` of vectors and cameras (H, W, channels).
        action_space: A vector `Box`.
        device: Where the policy lives.
        config: Head and normalisation.
        actor: Features (n, d) to means (n, action_dim).
        critic: Features (n, d) to values (n, 1).
        encoder: Cameras to features, or `None`.
        sees: Whether (actor, critic) are given the encoder's features.
    """

    config: ActorCriticConfig
    nodes: torch.Tensor
    weights: torch.Tensor

    def __init__(
        self,
        obs_space: gym.Space[Any],
        action_space: gym.spaces.Box,
        device: torch.device,
        config: ActorCriticConfig,
        actor: nn.Module,
        critic: nn.Module,
        encoder: ImageEncoder | None = None,
        sees: tuple[bool, bool] = (False, False),
    ) -> None:
        super().__init__(obs_space, action_space, device, config)
        self.actor, self.critic, self.encoder, self.sees = actor, critic, encoder, sees
        self.log_std = nn.Parameter(torch.full(action_space.shape, config.init_log_std))
        size = sum(self.vectors.values())
        self.normalizer = Normalizer(size) if config.normalize_obs and size else None
        if config.squash and not self.bounded:
            raise ConfigError("policy.cfg.squash needs an action space with finite bounds; set it to false.")
        # Gauss-Hermite quadrature, for the mean of log |d tanh(u) / du| under the Gaussian.
        nodes, weights = np.polynomial.hermite_e.hermegauss(9)
        self.register_buffer("nodes", torch.as_tensor(nodes, dtype=torch.float32), persistent=False)
        scaled = weights / math.sqrt(2.0 * math.pi)
        self.register_buffer("weights", torch.as_tensor(scaled, dtype=torch.float32), persistent=False)
        self.to(self.device)

    @torch.no_grad()
    def on_pretrained_loaded(self) -> None:
        # The networks know the numbers as they were normalised. A clone has statistics of a few demonstrations: moved
        # to what it sees when it acts by itself, it would lose all that it can do in some rollouts, unlearned.
        if self.normalizer is not None:
            self.normalizer.freeze()
        if self.config.resume_log_std is not None:
            self.log_std.fill_(self.config.resume_log_std)

    @classmethod
    def build(
        cls,
        obs_space: gym.Space[Any],
        action_space: gym.spaces.Box,
        device: torch.device,
        config: ActorCriticConfig,
        actor: NetworkConfig | None,
        critic: NetworkConfig | None,
    ) -> Policy:
        """Makes the networks that the blocks `actor` and `critic` describe, and the policy around them."""
        actor, critic = both_networks("actor_critic", actor, critic)
        vectors, cameras = split_space(obs_space)
        sees = (actor.type == "cnn", critic.type == "cnn")
        encoder = build_encoder(cameras, config) if any(sees) else None
        networks = []
        for name, block, looks, outputs in (
            ("actor", actor, sees[0], action_space.shape[0]),
            ("critic", critic, sees[1], 1),
        ):
            inputs = sum(vectors.values()) + (encoder.features if encoder is not None and looks else 0)
            if not inputs:
                raise ConfigError(f"policy.{name}.type is 'mlp', but the env observes only cameras; use 'cnn'.")
            networks.append(mlp(inputs, block.hidden_sizes, outputs, block.activation, FIRST_OUTPUT))
        return cls(obs_space, action_space, device, config, networks[0], networks[1], encoder, sees)

    def get_action(
        self, obs: PolicyObs, deterministic: bool = False, noise: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, value = self._forward(obs)
        raw = mean
        if not deterministic:
            raw = torch.addcmul(mean, self.log_std.exp(), torch.randn_like(mean) if noise is None else noise)
        action = self._to_action(raw)
        return action, self._log_prob(mean, action), value

    def get_value(self, obs: PolicyObs) -> torch.Tensor:
        vector, image = self._features(obs, image=self.sees[1])
        value: torch.Tensor = self.critic(join(vector, image if self.sees[1] else None))
        return value.squeeze(-1)

    def evaluate_actions(
        self, obs: PolicyObs, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, value = self._forward(obs)
        return self._log_prob(mean, actions), self.entropy(mean), value

    def log_prob(self, obs: PolicyObs, actions: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = self.actor(join(*self._features(obs, image=self.sees[0])))
        return self._log_prob(mean, actions)

    @torch.no_grad()
    def learn_statistics(self, obs: PolicyObs) -> None:
        if self.normalizer is not None:
            self.normalizer.update(self.vector(obs))

    def _forward(self, obs: PolicyObs) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean (n, action_dim) and value (n,)."""
        vector, image = self._features(obs, image=any(self.sees))
        value: torch.Tensor = self.critic(join(vector, image if self.sees[1] else None))
        return self.actor(join(vector, image if self.sees[0] else None)), value.squeeze(-1)

    def _features(self, obs: PolicyObs, image: bool) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Normalised vectors (n, d), and the encoder's features where `image`."""
        vector = self.normalized(obs) if self.vectors else None
        pixels = self.encoder(cameras_of(obs)) if image and self.encoder else None
        return vector, pixels

    def normalized(self, obs: PolicyObs) -> torch.Tensor:
        """All vector observations side by side, (n, d), as the networks see them."""
        vector = self.vector(obs)
        return vector if self.normalizer is None else self.normalizer(vector)

    def _to_action(self, raw: torch.Tensor) -> torch.Tensor:
        """Gaussian's units to the action space's."""
        if self.config.squash:
            raw = raw.tanh().clamp(-ALMOST_ONE, ALMOST_ONE)
        return self.to_space(raw)

    def to_gaussian(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Actions (n, action_dim) in the Gaussian's units, and log |d action / d Gaussian|, (n,) or one number."""
        raw = self.to_unit(action)
        if not self.config.squash:
            return raw, self.log_volume
        # With a = log(1+y), b = log(1-y): atanh y = (a-b)/2 and log(1-tanh²) = a+b, exact up to the last float
        # below one, where the usual log(1 - y² + eps) is not.
        raw = raw.clamp(-ALMOST_ONE, ALMOST_ONE)
        above, below = torch.log1p(raw), torch.log1p(-raw)
        return (above - below) / 2, (above + below).sum(-1) + self.log_volume

    def _log_prob(self, mean: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Log density (n,) of actions (n, action_dim) in the action space's units."""
        raw, log_det = self.to_gaussian(action)
        return gaussian_log_prob(mean, self.log_std, raw) - log_det

    def entropy(self, mean: torch.Tensor) -> torch.Tensor:
        """Differential entropy (n,), in the action space's units."""
        gaussian = self.log_std.sum() + (self.log_volume + 0.5 * mean.shape[-1] * (1.0 + LOG_2PI))
        if not self.config.squash:
            return gaussian.expand(len(mean))
        points = mean[..., None] + self.log_std.exp()[:, None] * self.nodes
        # log(1 - tanh²u) = 2 (log 2 - u - softplus(-2u)), which does not overflow.
        log_det = 2.0 * (math.log(2.0) - points - nn.functional.softplus(-2.0 * points))
        return gaussian + (log_det @ self.weights).sum(-1)
