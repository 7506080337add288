"""From a config to envs whose rewards a fitted model gives."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
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
    from plaudit.rl.run import RunFolder
    from plaudit.stages.auditing import Auditing
    from plaudit.stages.refresh import Refresher

logger = logging.getLogger("plaudit")


def load_reward(config: Config, checkpoint: Path | None = None) -> RewardArtifact | None:
    """The reward model that a config trains on, checked against what it says of it; `None` where it trains on none.

    Args:
        config: The config.
        checkpoint: A checkpoint of that training: then what the model had become by then.
    """
    if not config.reward.use_reward_model:
        return None
    from plaudit.rewards.artifact import RewardArtifact

    if checkpoint is not None:
        from plaudit.stages.auditing import reward_at

        refreshed = reward_at(checkpoint)
        if refreshed is not None:
            return refreshed
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


def describe(env: VecEnv) -> dict[str, Any]:
    """The reward model that an env's rewards are of, for the result of a run; nothing where they are its own."""
    from plaudit.rewards.env import RewardedEnv

    if not isinstance(env, RewardedEnv):
        return {}
    artifact, rule = env.manager.artifact, env.manager.rule
    return {"reward_model": {"path": str(artifact.path), "id": artifact.id, "threshold": rule.decision.threshold}}


@dataclass(frozen=True)
class Rewarding:
    """What it takes to train on a reward model, all of it checked before anything is written.

    Attributes:
        manager: The model.
        refresher: Fits it further, where the config wants that.
    """

    manager: RewardManager
    refresher: Refresher | None

    @classmethod
    def build(cls, config: Config, artifact: RewardArtifact, env: VecEnv, device: torch.device) -> Rewarding:
        """Of a config, and of an env with the cameras that the model looks at."""
        from plaudit.stages.refresh import Refresher

        keys, manager = config.reward.audit, build_manager(config, artifact, env, device)
        refreshes = keys.enabled and keys.on_alarm == "refresh"
        return cls(manager, Refresher(config, artifact, device) if refreshes else None)

    def put_around(
        self, config: Config, env: VecEnv, eval_env: VecEnv, run: RunFolder
    ) -> tuple[VecEnv, VecEnv, Auditing | None]:
        """The envs with the model's rewards, and who audits them, if anybody is to."""
        from plaudit.rewards.env import RewardedEnv
        from plaudit.stages.auditing import Auditing, version_of

        if not config.reward.audit.enabled:
            version = version_of(self.manager.artifact, run.path)
            both = (RewardedEnv(one, self.manager, version=version) for one in (env, eval_env))
            return next(both), next(both), None
        auditing = Auditing(config, env, eval_env, self.manager, run.path, self.refresher)
        return auditing.env, auditing.eval_env, auditing
