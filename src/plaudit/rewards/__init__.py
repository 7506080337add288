"""Reward models: fitted to labelled frames, measured on held-out episodes, and kept with all that scoring needs.

Everything is imported when first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plaudit.compat.checkpoints import load_foreign
    from plaudit.compat.rlinf_worker import RewardWorker
    from plaudit.reward_models.artifact import RewardArtifact
    from plaudit.reward_models.classifiers import BinaryRewardClassifier, ResNetRewardModel
    from plaudit.reward_models.config import BinaryClassifierConfig, ResNetRewardConfig, RewardModelConfig
    from plaudit.reward_models.inference.engine import RewardEngine
    from plaudit.reward_models.model import REWARD_MODELS, RewardModel, build_reward_model, register_reward_model
    from plaudit.rewards.reward_env import RewardedEnv
    from plaudit.rewards.reward_function import RewardManager

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
    "BinaryClassifierConfig": "plaudit.reward_models.config",
    "BinaryRewardClassifier": "plaudit.reward_models.classifiers",
    "REWARD_MODELS": "plaudit.reward_models.model",
    "ResNetRewardConfig": "plaudit.reward_models.config",
    "ResNetRewardModel": "plaudit.reward_models.classifiers",
    "RewardArtifact": "plaudit.reward_models.artifact",
    "RewardEngine": "plaudit.reward_models.inference.engine",
    "RewardManager": "plaudit.rewards.reward_function",
    "RewardModel": "plaudit.reward_models.model",
    "RewardModelConfig": "plaudit.reward_models.config",
    "RewardWorker": "plaudit.compat.rlinf_worker",
    "RewardedEnv": "plaudit.rewards.reward_env",
    "build_reward_model": "plaudit.reward_models.model",
    "load_foreign": "plaudit.compat.checkpoints",
    "register_reward_model": "plaudit.reward_models.model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'plaudit.rewards' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
