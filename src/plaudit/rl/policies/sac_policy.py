"""The policy that SAC trains: a tanh-squashed Gaussian actor, and an ensemble of critics."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch

from plaudit.config.algorithm_schema import SACPolicyConfig
from plaudit.config.schema import NetworkConfig
from plaudit.errors import ConfigError
from plaudit.rl.networks.ensemble import Ensemble
from plaudit.rl.networks.image_encoder import ImageEncoder
from plaudit.rl.observations import ObsDim, PolicyObs
from plaudit.rl.policies import distributions as squashed
from plaudit.rl.policies.base import Policy, both_networks
from plaudit.rl.policies.box_policy import BoxPolicy, build_encoder, cameras_of, join, split_space

FIRST_ACTION, FIRST_VALUE = 0.01, 0.1
"""Gains of the last layers at the start: all actions are about as likely, and hardly anything is valued."""


class SACPolicy(BoxPolicy):
    """Actor and critics are given the same: vectors, and what one encoder sees in all cameras.

    Args:
        obs_space: A vector `Box`, or a `Dict` of vectors and cameras (H, W, channels).
        action_space: A vector `Box` with finite bounds.
        device: Where the policy lives.
        config: Of the encoder, and the first noise.
        actor: Features (n, d) to means and logarithms of standard deviations, (1, n, 2 action_dim).
        critics: Features and actions (n, d + action_dim) to values, (E, n, 1).
        encoder: Cameras to features, or `None`.
    """

    config: SACPolicyConfig

    def __init__(
        self,
        obs_space: gym.Space[Any],
        action_space: gym.spaces.Box,
        device: torch.device,
        config: SACPolicyConfig,
        actor: Ensemble,
        critics: Ensemble,
        encoder: ImageEncoder | None = None,
    ) -> None:
        super().__init__(obs_space, action_space, device, config)
        if not self.bounded:
            raise ConfigError("policy.name 'sac' needs an action space with finite bounds; use actor_critic.")
        self.actor, self.critics, self.encoder = actor, critics, encoder
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
        # The encoder learns from the critics alone, and a replay that keeps pictures is large.
        if cameras and not actor.type == critic.type == "cnn":
            raise ConfigError(
                f"policy.name 'sac' must look where the env observes cameras ({', '.join(cameras)}): set both "
                "policy.actor.type and policy.critic.type to cnn, or observe none with env.cfg.obs_mode=state."
            )
        encoder = build_encoder(cameras, config) if "cnn" in (actor.type, critic.type) else None
        size = sum(vectors.values()) + (0 if encoder is None else encoder.features)
        actions = action_space.shape[0]
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
        return cls(obs_space, action_space, device, config, make_actor, critics, encoder)

    @torch.no_grad()
    def on_pretrained_loaded(self) -> None:
        if self.config.resume_log_std is not None:  # For all observations alike, until it is learned.
            actions = len(self.reach)
            self.actor.weights[-1][..., actions:] = 0.0
            self.actor.biases[-1][..., actions:] = self.config.resume_log_std

    def act(self, obs: PolicyObs, deterministic: bool = False, noise: torch.Tensor | None = None) -> torch.Tensor:
        return self._chosen(self.actor(self.features(obs))[0], deterministic, noise)

    def get_action(
        self, obs: PolicyObs, deterministic: bool = False, noise: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        features = self.features(obs)
        outputs = self.actor(features)[0]
        action = self._chosen(outputs, deterministic, noise)
        return action, self._log_prob(outputs, action), self._values(features, action).mean(0)

    def get_value(self, obs: PolicyObs) -> torch.Tensor:
        """What the critics together think of the action that the actor likes best."""
        features = self.features(obs)
        best = self._chosen(self.actor(features)[0], True, None)
        return self._values(features, best).mean(0)

    def get_q(self, obs: PolicyObs, actions: torch.Tensor) -> torch.Tensor:
        """Every critic's value of some actions, (E, n)."""
        return self._values(self.features(obs), actions)

    def evaluate_actions(
        self, obs: PolicyObs, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As the contract has it; the entropy is that of one draw, since there is no closed form."""
        features = self.features(obs)
        outputs = self.actor(features)[0]
        drawn = squashed.draw(outputs, torch.randn_like(actions))
        value = self._values(features, actions).mean(0)
        return self._log_prob(outputs, actions), self.log_volume - drawn.log_prob, value

    def log_prob(self, obs: PolicyObs, actions: torch.Tensor) -> torch.Tensor:
        return self._log_prob(self.actor(self.features(obs))[0], actions)

    def features(self, obs: PolicyObs) -> torch.Tensor:
        """What actor and critics are given of observations, (n, d): vectors, then what the encoder sees."""
        vector = self.vector(obs) if self.vectors else None
        return join(vector, None if self.encoder is None else self.encoder(cameras_of(obs)))

    @property
    def frozen(self) -> bool:
        """Whether there is an encoder, and it stays as it is."""
        return self.encoder is not None and self.encoder.frozen

    @torch.no_grad()
    def digest(self, obs: PolicyObs) -> PolicyObs:
        """Observations with what a frozen encoder makes of pictures in their place; everything here takes those too."""
        assert self.encoder is not None and self.encoder.frozen
        digested = self.encoder.digest(cameras_of(obs))
        return {**obs, **digested} if isinstance(obs, dict) else digested[""]

    def digested(self, dims: ObsDim) -> ObsDim:
        """The shapes of what `digest` gives, for those of observations."""
        assert self.encoder is not None and isinstance(dims, dict)
        return dims | {name: (tower.places,) for name, tower in self.encoder.by_camera.items()}

    def _chosen(self, outputs: torch.Tensor, deterministic: bool, noise: torch.Tensor | None) -> torch.Tensor:
        """Actions in the space's units, by what the actor has put out."""
        mean, raw = outputs.chunk(2, -1)
        if deterministic:
            return self.to_space(mean.tanh())
        spread = raw.clamp(*squashed.LOG_STD).exp() * (torch.randn_like(mean) if noise is None else noise)
        return self.to_space((mean + spread).tanh())

    def _log_prob(self, outputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Log density (n,) of actions in the space's units."""
        before = self.to_unit(actions).clamp(-squashed.ALMOST_ONE, squashed.ALMOST_ONE).atanh()
        return squashed.log_prob(outputs, before) - self.log_volume

    def _values(self, features: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Every critic's value of actions in the space's units, (E, n)."""
        values: torch.Tensor = self.critics(torch.cat([features, self.to_unit(actions)], -1))
        return values.squeeze(-1)
