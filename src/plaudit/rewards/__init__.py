"""Reward models: fitted to labelled frames, measured on held-out episodes, and kept with all that scoring needs.

Everything is imported when first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plaudit.rewards.artifact import RewardArtifact
    from plaudit.rewards.classifiers import BinaryRewardClassifier, ResNetRewardModel
    from plaudit.rewards.config import BinaryClassifierConfig, ResNetRewardConfig, RewardModelConfig
    from plaudit.rewards.engine import RewardEngine
    from plaudit.rewards.env import RewardedEnv
    from plaudit.rewards.foreign import load_foreign
    from plaudit.rewards.model import REWARD_MODELS, RewardModel, build_reward_model, register_reward_model
    from plaudit.rewards.pipeline import RewardManager
    from plaudit.rewards.worker import RewardWorker

__all__ = [
    "REWARD_MODELS",
    "BinaryClassifierConfig",
    "BinaryRewardClassifier",
    "ResNetRewardConfig",
    "ResNetRewardModel",
    "RewardArtifact",
    "RewardEngine",
    "RewardManager",
    "RewardModel",
    "RewardModelConfig",
    "RewardWorker",
    "RewardedEnv",
    "build_reward_model",
    "load_foreign",
    "register_reward_model",
]

_HOMES = {
    "BinaryClassifierConfig": "config",
    "BinaryRewardClassifier": "classifiers",
    "REWARD_MODELS": "model",
    "ResNetRewardConfig": "config",
    "ResNetRewardModel": "classifiers",
    "RewardArtifact": "artifact",
    "RewardEngine": "engine",
    "RewardManager": "pipeline",
    "RewardModel": "model",
    "RewardModelConfig": "config",
    "RewardWorker": "worker",
    "RewardedEnv": "env",
    "build_reward_model": "model",
    "load_foreign": "foreign",
    "register_reward_model": "model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'plaudit.rewards' has no attribute '{name}'")
    return getattr(importlib.import_module(f"plaudit.rewards.{_HOMES[name]}"), name)
