"""Combinations of keys that are valid alone."""

from __future__ import annotations

from typing import Any

import pytest

from plaudit.config.checks import check_combinations
from plaudit.config.rewards import AuditConfig, RewardConfig
from plaudit.config.schema import AlgorithmConfig, Config, EnvConfig, PolicyConfig, RuntimeConfig
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
