"""A small policy for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from plaudit.config.algorithm_schema import ActorCriticConfig
from plaudit.config.schema import NetworkConfig
from plaudit.rl import ActorCritic, Trainer

MakeTrainer = Callable[..., Trainer]


def make_policy(
    env: Any, hidden: tuple[int, ...] = (32, 32), kind: Literal["mlp", "cnn"] = "mlp", **config: Any
) -> ActorCritic:
    """A small actor-critic for `env`."""
    net = NetworkConfig(kind, hidden)
    policy = ActorCritic.build(
        env.observation_space, env.action_space, torch.device("cpu"), ActorCriticConfig(**config), net, net
    )
    assert isinstance(policy, ActorCritic)
    return policy
