"""From a config to envs whose rewards a fitted model gives."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plaudit.config.convert import fill
from plaudit.config.schema import Config
from plaudit.envs.registry import env_config_type
from plaudit.errors import PlauditError

if TYPE_CHECKING:
    import torch

    from plaudit.envs.base import VecEnv
    from plaudit.rewards.artifact import RewardArtifact
    from plaudit.rewards.pipeline import RewardManager

logger = logging.getLogger("plaudit")


def load_reward(config: Config) -> RewardArtifact | None:
    """The reward model that a config trains on, checked against what it says of it; `None` where it trains on none."""
    if not config.reward.use_reward_model:
        return None
    from plaudit.rewards.artifact import RewardArtifact

    return RewardArtifact.load(Path(config.reward.checkpoint_path or "").expanduser(), config.reward.model)


def with_reward_cameras(config: Config, keys: Mapping[str, Any], artifact: RewardArtifact) -> dict[str, Any]:
    """`env.cfg` of an env that renders what the model looks at, and in its size, where it has keys for that.

    Where the pictures are observations too, they stay as the policy knows them. What the env does not have is left to
    `check_cameras` to complain about.
    """
    if keys.get("obs_mode") == "rgb":
        return dict(keys)
    ours = {"cameras": list(artifact.cameras), "camera_size": list(artifact.image_size)}
    changed = {**keys, **{key: value for key, value in ours.items() if key in keys}}
    try:
        kind = env_config_type(config.env.id)
        if kind is not None:
            fill(kind, changed, "env.cfg")
    except PlauditError:
        return dict(keys)
    return changed


def build_manager(config: Config, artifact: RewardArtifact, env: VecEnv, device: torch.device) -> RewardManager:
    """The reward pipeline for an env, whose cameras are checked first; says what is learned from."""
    from plaudit.rewards.env import check_cameras
    from plaudit.rewards.pipeline import RewardManager

    check_cameras(env, artifact)
    manager = RewardManager(
        artifact, config.reward, readings=env.readings, device=device, threads=config.runtime.threads
    )
    keys, rule = config.reward, manager.rule
    logger.info(
        "rewards come from '%s' (%s): %s, %s, threshold %.3f, scored by %s.",
        artifact.path,
        artifact.id[:12],
        keys.reward_mode,
        keys.reward_type,
        rule.decision.threshold,
        manager.engine.backend,
    )
    if keys.combine_mode != "replace":
        logger.info("combine_mode %s: the env's own reward is part of what is learned from.", keys.combine_mode)
    metric = config.runtime.best_metric.removeprefix("eval/")
    if metric in ("success_once", "success_at_end"):
        logger.info("runtime.best_metric %s: ground truth picks the best checkpoint.", metric)
    return manager


def bare(env: VecEnv) -> VecEnv:
    """The env in a `RewardedEnv`, for whoever asks for no rewards; any other as it is."""
    from plaudit.rewards.env import RewardedEnv

    return env.env if isinstance(env, RewardedEnv) else env


def describe(manager: RewardManager) -> dict[str, Any]:
    """The reward model of a run, for its result."""
    artifact = manager.artifact
    return {"path": str(artifact.path), "id": artifact.id, "threshold": manager.rule.decision.threshold}
