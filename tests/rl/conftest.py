"""Small things that the tests of `rl` share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rl_helpers import MakeTrainer, make_policy

from plaudit.config.algorithm_schema import PPOConfig
from plaudit.config.schema import RuntimeConfig
from plaudit.envs import VecEnv, build_env
from plaudit.rl import RunFolder, Trainer, build_algo


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Two torch threads are slower than one on nets of this size, and the random numbers begin anew."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def make_trainer(tmp_path: Path) -> MakeTrainer:
    """Builds a trainer on a probe env, with a run folder where `run` is true."""

    def make(
        env: Any = "probe/ObsActionReward",
        *,
        num_envs: int = 16,
        ppo: dict[str, Any] | None = None,
        policy: dict[str, Any] | None = None,
        run: bool | RunFolder = False,
        evaluates: bool | VecEnv = False,
        listeners: Any = (),
        **settings: Any,
    ) -> Trainer:
        torch.manual_seed(1)
        made = build_env(env, {"num_envs": num_envs}) if isinstance(env, str) else env
        actor_critic = make_policy(made, **(policy or {}))
        algorithm = build_algo("ppo", PPOConfig(**{"learning_rate": 3e-3, "gamma": 0.9, **(ppo or {})}), actor_critic)
        folder = RunFolder.create(tmp_path, "test") if run is True else (run or None)
        values = {"iterations": 4, "rollout_steps": 8, "eval_freq": 0, "eval_episodes": 32, **settings}
        eval_env = build_env(env, {"num_envs": num_envs}) if evaluates is True else (evaluates or None)
        return Trainer(
            actor_critic,
            made,
            algorithm,
            settings=RuntimeConfig(**values),
            run=folder,
            eval_env=eval_env,
            listeners=listeners,
        )

    return make
