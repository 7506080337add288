"""Stand-ins for what the config does not know: an env's keys, and the stages that the CLI calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from plaudit.config.algorithm_schema import ActorCriticConfig, PPOConfig
from plaudit.config.loader import load_config
from plaudit.config.schema import Config
from plaudit.registry import Registry


@dataclass(frozen=True)
class TaskConfig:
    """`env.cfg` of the stand-in env: EmbodiChain's RL tutorial's keys."""

    num_envs: int = 1  # How many.
    obs_mode: Literal["state", "rgb"] = "state"
    episode_length: int = 50
    action_scale: float = 0.05
    success_threshold: float = 0.1


@pytest.fixture
def registries() -> dict[str, Callable[[str], type | None]]:
    """`config_type` of three small registries, as `stages` hands them to `load_config`."""
    envs, policies, algorithms = Registry[Any]("env"), Registry[Any]("policy"), Registry[Any]("algorithm")
    for name in ("PushCube", "PushCubeRL", "PickCube"):
        envs.add(name, object, config=TaskConfig)
    policies.add("actor_critic", object, config=ActorCriticConfig)
    policies.add("vla", object)
    algorithms.add("ppo", object, config=PPOConfig)
    return {"env": envs.config_type, "policy": policies.config_type, "algorithm": algorithms.config_type}


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch, registries: dict[str, Any]) -> ModuleType:
    """A `plaudit.pipelines` that loads for real and, in place of training, makes the run's folder."""
    module = ModuleType("plaudit.pipelines")

    def load(recipe: str | None, overrides: list[str], config_file: Path | None) -> tuple[None, Config]:
        return None, load_config(recipe, overrides, config_file=config_file, registries=registries)

    def train(fitted: None, config: Config, *, quiet: bool) -> dict[str, Any]:
        run = Path(config.runtime.output_dir) / config.runtime.exp_name
        run.mkdir(parents=True)
        return {"run": run}

    vars(module).update(load_training=load, fit_and_train=train)
    monkeypatch.setitem(sys.modules, "plaudit.pipelines", module)
    return module
