"""ManiSkill's keys are checked without ManiSkill."""

from __future__ import annotations

from typing import Any

import pytest

from plaudit.envs import VecEnv, env_config_type, register_env
from plaudit.envs.maniskill.config import ManiSkillConfig
from plaudit.errors import ConfigError, RegistryError
from plaudit.pipelines import load


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_envs": 0}, "num_envs: must be at least 1"),
        ({"max_episode_steps": 0}, "max_episode_steps: must be at least 1"),
        ({"workers": -1}, "workers: must not be negative"),
        ({"worker_timeout": 0.0}, "worker_timeout: must be greater than 0"),
        ({"camera_size": (64, 4)}, "camera_size: must be"),
        ({"cameras": (), "obs_mode": "rgb"}, "cameras: obs_mode 'rgb' with frames 'none' needs at least one"),
        ({"cameras": (), "frames": "terminal"}, "cameras: obs_mode 'state' with frames 'terminal' needs at least one"),
        ({"kwargs": {"sim_backend": "gpu"}}, "kwargs: 'sim_backend' is decided by keys of env.cfg itself"),
    ],
)
def test_impossible_keys(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ManiSkillConfig(**keys)


def test_what_is_null_is_left_to_the_task() -> None:
    assert ManiSkillConfig(kwargs={"robot_uids": None, "a": 0}).kwargs == {"a": 0}


def test_any_task_has_these_keys_and_its_name_is_not_ours_to_give() -> None:
    assert env_config_type("maniskill:PickCube-v1") is ManiSkillConfig
    with pytest.raises(RegistryError, match="belong to ManiSkill's envs"):
        register_env("maniskill:Mine")(type("Mine", (VecEnv,), {}))


def test_a_typo_names_the_key() -> None:
    with pytest.raises(ConfigError, match=r"env\.cfg\.control_mod.*Did you mean 'control_mode'"):
        load("push_cube", ["env.id=maniskill:PushCube-v1", "~env.cfg", "+env.cfg.control_mod=x"])


def test_the_envs_own_verdict_may_not_end_what_a_model_judges() -> None:
    recipe = ["env.id=maniskill:PushCube-v1", "env.cfg={ignore_terminations: false}", "reward.checkpoint_path=x"]
    with pytest.raises(
        ConfigError, match=r"env\.cfg\.ignore_terminations: ends episodes by the env's own verdict.*true;"
    ):
        load("push_cube", [*recipe, "reward.use_reward_model=true"])
