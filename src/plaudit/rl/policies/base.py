"""What an algorithm asks of a policy, and the table of policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import nn

from plaudit.config.schema import NetworkConfig, PolicyConfig
from plaudit.errors import ConfigError
from plaudit.registry import Registry
from plaudit.rl.observations import PolicyObs, flat_space


class Policy(nn.Module, ABC):
    """A policy with a value estimate. `obs` is `(n, d)`, or a dict where the env has more than one observation."""

    device: torch.device

    @abstractmethod
    def get_action(
        self, obs: PolicyObs, deterministic: bool = False, noise: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns (action, log_prob, value): (n, action_dim), (n,), (n,).

        `noise`, (n, action_dim), stands for the standard normal numbers that a Gaussian policy would draw. A policy
        that can do nothing with it leaves the argument out.
        """
        raise NotImplementedError

    def act(self, obs: PolicyObs, deterministic: bool = False) -> torch.Tensor:
        """Returns actions alone, (n, action_dim), for whoever only acts. A policy overrides it where `get_action` would
        compute much that is not asked for here.
        """
        return self.get_action(obs, deterministic)[0]

    @abstractmethod
    def get_value(self, obs: PolicyObs) -> torch.Tensor:
        """Returns the value estimate, (n,)."""
        raise NotImplementedError

    @abstractmethod
    def evaluate_actions(
        self, obs: PolicyObs, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns (log_prob, entropy, value), (n,) each."""
        raise NotImplementedError

    def log_prob(self, obs: PolicyObs, actions: torch.Tensor) -> torch.Tensor:
        """Returns the log density of actions alone, (n,). A policy overrides it where `evaluate_actions` would compute
        much that is not asked for here.
        """
        return self.evaluate_actions(obs, actions)[0]

    def learn_statistics(self, obs: PolicyObs) -> None:
        """Takes a rollout's observations, (n, ...), into normalisation statistics. Algorithms call it after the
        last gradient step on that rollout, so that acting and learning see the same statistics."""

    def load_pretrained(self) -> None:
        """Fills what is to start from other weights than random ones. Called where training begins, and not where the
        weights come from a checkpoint: what it once started from need not be there any more."""

    def on_pretrained_loaded(self) -> None:
        """Called where training begins with the weights of another run, after those are loaded."""

    @classmethod
    def build(
        cls,
        obs_space: gym.Space[Any],
        action_space: gym.spaces.Box,
        device: torch.device,
        config: Any,
        actor: NetworkConfig | None,
        critic: NetworkConfig | None,
    ) -> Policy:
        """Makes the policy from its config block; a policy that wants the network blocks overrides this."""
        make: Callable[..., Policy] = cls
        return make(obs_space, action_space, device, config)


def both_networks(
    name: str, actor: NetworkConfig | None, critic: NetworkConfig | None
) -> tuple[NetworkConfig, NetworkConfig]:
    """The network blocks of a policy that needs both; an error names the one that is missing."""
    if actor is None or critic is None:
        missing = "actor" if actor is None else "critic"
        raise ConfigError(f"policy.{missing} is missing: {name} needs the blocks policy.actor and policy.critic.")
    return actor, critic


POLICIES: Registry[Policy] = Registry("policy")
POLICIES.add(
    "actor_critic",
    "plaudit.rl.policies.actor_critic:ActorCritic",
    config="plaudit.config.algorithm_schema:ActorCriticConfig",
)
POLICIES.add(
    "sac", "plaudit.rl.policies.sac_policy:SACPolicy", config="plaudit.config.algorithm_schema:SACPolicyConfig"
)


def register_policy(name: str, *, override: bool = False) -> Callable[[type[Policy]], type[Policy]]:
    """Registers a policy class, to be named in `policy.name`."""
    return POLICIES.register(name, override=override)


def build_policy(
    block: PolicyConfig | Mapping[str, Any],
    obs_space: gym.Space[Any],
    action_space: gym.spaces.Box,
    device: torch.device | str = "cpu",
) -> Policy:
    """Builds the policy that a config block describes.

    Args:
        block: `name`, `cfg`, `actor`, `critic`, as a `PolicyConfig` or the JSON block itself.
        obs_space: Space of one env; of a one-key dict the policy gets the part.
        action_space: Space of one env.
        device: Where the policy lives.
    """
    from plaudit.config.structured import fill

    if not isinstance(block, PolicyConfig):
        block = fill(PolicyConfig, dict(block), "policy")
    config: Any = block.cfg
    config_type = POLICIES.config_type(block.name)
    if config_type is not None and not isinstance(config, config_type):
        config = fill(config_type, config, "policy.cfg")
    where = torch.device(device)
    policy: Policy = POLICIES.get(block.name).build(
        flat_space(obs_space), action_space, where, config, block.actor, block.critic
    )
    return policy.to(where)
