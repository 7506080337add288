"""Algorithms and their table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from plaudit.registry import Registry
from plaudit.rl.algorithms.base import BaseAlgorithm, StepCallback
from plaudit.rl.policies.base import Policy

__all__ = ["ALGORITHMS", "BaseAlgorithm", "StepCallback", "build_algo", "register_algo"]

ALGORITHMS: Registry[BaseAlgorithm] = Registry("algorithm")
ALGORITHMS.add("ppo", "plaudit.rl.algorithms.ppo:PPO", config="plaudit.config.algorithm_schema:PPOConfig")
ALGORITHMS.add("sac", "plaudit.rl.algorithms.sac:SAC", config="plaudit.config.algorithm_schema:SACConfig")
ALGORITHMS.add("bc", "plaudit.rl.algorithms.bc:BC", config="plaudit.config.algorithm_schema:BCConfig")


def register_algo(name: str, *, override: bool = False) -> Callable[[type[BaseAlgorithm]], type[BaseAlgorithm]]:
    """Registers an algorithm class, to be named in `algorithm.name`."""
    return ALGORITHMS.register(name, override=override)


def build_algo(name: str, cfg: Any, policy: Policy, device: torch.device | str = "cpu") -> BaseAlgorithm:
    """Builds an algorithm. It is given its config with `device` added to it, and the policy.

    Args:
        name: Registered name.
        cfg: Its keys as a dict, or its config dataclass.
        policy: What it trains.
        device: Where it works; single-sourced from `runtime.cuda`, so not a key of the config.
    """
    config_type = ALGORITHMS.config_type(name)
    if config_type is not None and isinstance(cfg, Mapping):
        from plaudit.config.structured import fill

        cfg = fill(config_type, dict(cfg), "algorithm.cfg")
    make: Callable[..., BaseAlgorithm] = ALGORITHMS.get(name)
    return make(with_device(cfg, str(device)), policy)


def with_device(cfg: Any, device: str) -> Any:
    """The config as an object that also has `device`: a dataclass stays one of its own class."""
    if isinstance(cfg, Mapping):
        return SimpleNamespace(**{**cfg, "device": device})
    names = [field.name for field in dataclasses.fields(cfg)]
    if "device" in names:
        return dataclasses.replace(cfg, device=device)
    cls = type(cfg)
    frozen = cls.__dataclass_params__.frozen
    extended = dataclasses.make_dataclass(
        cls.__name__, [("device", str, dataclasses.field(kw_only=True))], bases=(cls,), frozen=frozen
    )
    return extended(**{key: getattr(cfg, key) for key in names}, device=device)
