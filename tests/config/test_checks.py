"""Combinations of keys that are valid alone."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from plaudit.config.reward_schema import ActorConfig, AuditConfig, DataCollectionConfig, RewardConfig
from plaudit.config.schema import AlgorithmConfig, Config, EnvConfig, NetworkConfig, PolicyConfig, RuntimeConfig
from plaudit.config.validation import check_combinations
from plaudit.errors import ConfigError

PARTS: dict[str, Any] = {"env.train": {}, "env.eval": {}, "policy": {}, "algorithm": {}}


def check(mode: Any, on_alarm: Any) -> None:
    """Of SAC on a reward model."""
    reward = RewardConfig(
        use_reward_model=True, checkpoint_path="somewhere", audit=AuditConfig(enabled=True, on_alarm=on_alarm)
    )
    config = Config(
        EnvConfig("PushCube"), RuntimeConfig(mode=mode), PolicyConfig("sac"), AlgorithmConfig("sac"), reward
    )
    check_combinations(config, PARTS, lambda key: ("the file", key))


def test_a_model_cannot_be_refreshed_while_acting_and_learning_go_on() -> None:
    check("sync", "refresh")
    check("async", "warn")
    with pytest.raises(ConfigError, match=r"reward.audit.on_alarm: refresh .*use warn or stop, or runtime.mode=sync"):
        check("async", "refresh")


@pytest.mark.parametrize(
    ("trains", "actor", "refused"), [(True, "random", True), (False, "random", False), (False, "training", True)]
)
def test_a_batch_larger_than_a_rollout_matters_only_to_training(trains: bool, actor: Any, refused: bool) -> None:
    reward = RewardConfig(data_collection=DataCollectionConfig(actors=(ActorConfig(kind=actor),)))
    network = NetworkConfig("mlp")
    config = Config(
        EnvConfig("PushCube"),
        RuntimeConfig(rollout_steps=16),
        PolicyConfig("actor_critic", actor=network, critic=network),
        AlgorithmConfig("ppo"),
        reward,
    )
    parts = {**PARTS, "env.train": {"num_envs": 2}, "algorithm": {"batch_size": 33}}
    with pytest.raises(ConfigError, match="batch_size: 33 is more") if refused else nullcontext():
        check_combinations(config, parts, lambda key: ("the file", key), trains=trains)
