"""Reinforcement learning: `Trainer`, algorithms, policies, buffers. Everything is imported when first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plaudit.rl.algorithms import ALGORITHMS, BaseAlgorithm, build_algo, register_algo
    from plaudit.rl.algorithms.ppo import PPO
    from plaudit.rl.buffers.rollout_buffer import RolloutBuffer
    from plaudit.rl.evaluation import EvalResult
    from plaudit.rl.loggers import Callback
    from plaudit.rl.policies.actor_critic import ActorCritic
    from plaudit.rl.policies.base import POLICIES, Policy, build_policy, register_policy
    from plaudit.rl.run_dir import RunFolder
    from plaudit.rl.trainer import Trainer

__all__ = [
    "ALGORITHMS",
    "POLICIES",
    "PPO",
    "ActorCritic",
    "BaseAlgorithm",
    "Callback",
    "EvalResult",
    "Policy",
    "RolloutBuffer",
    "RunFolder",
    "Trainer",
    "build_algo",
    "build_policy",
    "register_algo",
    "register_policy",
]

_HOMES = {
    "ALGORITHMS": "algorithms",
    "ActorCritic": "policies.actor_critic",
    "BaseAlgorithm": "algorithms",
    "EvalResult": "evaluation",
    "Callback": "loggers",
    "POLICIES": "policies.base",
    "PPO": "algorithms.ppo",
    "Policy": "policies.base",
    "RolloutBuffer": "buffers.rollout_buffer",
    "RunFolder": "run_dir",
    "Trainer": "trainer",
    "build_algo": "algorithms",
    "build_policy": "policies.base",
    "register_algo": "algorithms",
    "register_policy": "policies.base",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'plaudit.rl' has no attribute '{name}'")
    return getattr(importlib.import_module(f"plaudit.rl.{_HOMES[name]}"), name)
