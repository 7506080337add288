"""A small SAC for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from plaudit.config.schema import RuntimeConfig
from plaudit.envs import build_env
from plaudit.rl import RunFolder, Trainer, build_algo, build_policy
from plaudit.rl.algorithms.sac import SAC
from plaudit.rl.policies.sac_policy import SACPolicy

Keys = dict[str, Any]


def make_sac(env: Any, sac: Keys | None = None, policy: Keys | None = None, hidden: int = 32, **net: Any) -> SAC:
    """SAC, and a policy with two hidden layers, for `env`."""
    network = {"type": "mlp", "hidden_sizes": [hidden, hidden], "activation": "relu", **net}
    block = {"name": "sac", "cfg": policy or {}, "actor": network, "critic": network}
    made = build_policy(block, env.observation_space, env.action_space)
    assert isinstance(made, SACPolicy)
    keys = {"learning_rate": 3e-3, "gamma": 0.9, "learning_starts": 64, "capacity": 5000, "batch_size": 64}
    algorithm = build_algo("sac", {**keys, **(sac or {})}, made)
    assert isinstance(algorithm, SAC)
    return algorithm


def make_trainer(
    env: Any = "probe/ObsActionReward",
    *,
    num_envs: int = 4,
    run: Path | None = None,
    sac: Keys | None = None,
    policy: Keys | None = None,
    net: Keys | None = None,
    seed: int = 1,
    listeners: Any = (),
    **settings: Any,
) -> Trainer:
    """A trainer on a probe env, or on the env given."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    made = build_env(env, {"num_envs": num_envs}) if isinstance(env, str) else env
    algorithm = make_sac(made, sac, policy, **(net or {}))
    values = {"iterations": 30, "rollout_steps": 8, "eval_freq": 0, **settings}
    folder = None if run is None else RunFolder.open(run)
    return Trainer(algorithm.policy, made, algorithm, settings=RuntimeConfig(**values), run=folder, listeners=listeners)


def sac_of(trainer: Trainer) -> SAC:
    """The trainer's algorithm."""
    assert isinstance(trainer.algorithm, SAC)
    return trainer.algorithm
