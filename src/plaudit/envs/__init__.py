"""Envs: the contract, the registry, and what is behind them. torch is imported when a name that needs it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from plaudit.envs.registry import build_env, env_config_type, register_env

if TYPE_CHECKING:
    from plaudit.envs.base import Outcome, Step, TaskEnv, VecEnv

__all__ = ["Outcome", "Step", "TaskEnv", "VecEnv", "build_env", "env_config_type", "register_env"]


def __getattr__(name: str) -> Any:
    if name in ("Outcome", "Step", "TaskEnv", "VecEnv"):
        return getattr(importlib.import_module("plaudit.envs.base"), name)
    raise AttributeError(f"module 'plaudit.envs' has no attribute '{name}'")
