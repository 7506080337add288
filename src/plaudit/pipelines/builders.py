"""Build seeds, threads, envs, policies, algorithms and learned rewards from a config."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import platform
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plaudit import __version__
from plaudit.config.loader import load_config, load_fit_config, load_training_configs
from plaudit.config.run_config import Plan, load_plan
from plaudit.config.schema import Config, FitConfig
from plaudit.config.structured import fill
from plaudit.config.validation import env_cfg
from plaudit.envs.registry import MANISKILL_PREFIX, build_env, env_config_type
from plaudit.errors import CheckpointError, ConfigError, PlauditError, nearest
from plaudit.utils.realtime import keep_freed_memory
from plaudit.utils.threads import claim_threads

if TYPE_CHECKING:
    import torch

    from plaudit.envs.base import VecEnv
    from plaudit.pipelines.audit import Auditing
    from plaudit.pipelines.refresh import Refresher
    from plaudit.reward_models.artifact import RewardArtifact
    from plaudit.rewards.reward_function import RewardManager
    from plaudit.rl import Policy
    from plaudit.rl.run_dir import RunFolder

logger = logging.getLogger("plaudit")


def load_reward(config: Config, checkpoint: Path | None = None) -> RewardArtifact | None:
    """The reward model that a config trains on, checked against what it says of it; `None` where it trains on none.

    Args:
        config: The config.
        checkpoint: A checkpoint of that training: then what the model had become by then.
    """
    if not config.reward.use_reward_model:
        return None
    from plaudit.reward_models.artifact import RewardArtifact

    if checkpoint is not None:
        from plaudit.pipelines.audit import reward_at

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
    from plaudit.rewards.reward_env import check_cameras
    from plaudit.rewards.reward_function import RewardManager

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
    from plaudit.rewards.reward_env import RewardedEnv

    return env.env if isinstance(env, RewardedEnv) else env


def describe(env: VecEnv) -> dict[str, Any]:
    """The reward model that an env's rewards are of, for the result of a run; nothing where they are its own."""
    from plaudit.rewards.reward_env import RewardedEnv

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
        from plaudit.pipelines.refresh import Refresher

        keys, manager = config.reward.audit, build_manager(config, artifact, env, device)
        refreshes = keys.enabled and keys.on_alarm == "refresh"
        return cls(manager, Refresher(config, artifact, device) if refreshes else None)

    def put_around(
        self, config: Config, env: VecEnv, eval_env: VecEnv, run: RunFolder
    ) -> tuple[VecEnv, VecEnv, Auditing | None]:
        """The envs with the model's rewards, and who audits them, if anybody is to."""
        from plaudit.pipelines.audit import Auditing, version_of
        from plaudit.rewards.reward_env import RewardedEnv

        if not config.reward.audit.enabled:
            version = version_of(self.manager.artifact, run.path)
            both = (RewardedEnv(one, self.manager, version=version) for one in (env, eval_env))
            return next(both), next(both), None
        auditing = Auditing(config, env, eval_env, self.manager, run.path, self.refresher)
        return auditing.env, auditing.eval_env, auditing


@dataclass(frozen=True)
class StageDir:
    """Where a stage works that is part of a run.

    Attributes:
        folder: Its own; what an earlier try has left there is gone on with.
        command: What goes on with the whole run.
    """

    folder: Path
    command: str


def load(
    recipe: str | Path | None, overrides: Sequence[str] = (), config_file: Path | None = None, *, trains: bool = True
) -> Config:
    """A recipe, a file and overrides as a config of which every key has been checked; to collect where not `trains`."""
    return load_config(
        recipe,
        overrides,
        config_file=config_file,
        registries=_registries(),
        prepare=import_users_modules,
        trains=trains,
    )


def load_training(
    recipe: str | Path | None, overrides: Sequence[str] = (), config_file: Path | None = None
) -> tuple[FitConfig | None, Config | None]:
    """As `load`, for `fit_and_train`: what is fitted first, if anything is, and what is trained then."""
    return load_training_configs(
        recipe, overrides, config_file=config_file, registries=_registries(), prepare=import_users_modules
    )


def load_run(recipe: str | Path | None, overrides: Sequence[str] = (), config_file: Path | None = None) -> Plan:
    """A recipe, a file and overrides as the configs of all stages of a run, of which every key has been checked."""
    return load_plan(recipe, overrides, config_file=config_file, registries=_registries(), prepare=import_users_modules)


def _registries() -> dict[str, Callable[[str], type | None]]:
    """From names to config dataclasses, for each part that has keys of its own."""

    def policy_type(name: str) -> type | None:
        from plaudit.rl.policies.base import POLICIES

        return POLICIES.config_type(name)

    def algorithm_type(name: str) -> type | None:
        from plaudit.rl.algorithms import ALGORITHMS

        return ALGORITHMS.config_type(name)

    return {
        "env": env_config_type,
        "policy": policy_type,
        "algorithm": algorithm_type,
        "reward.model": _reward_model_type,
    }


def load_fit(
    recipe: str | Path | None,
    overrides: Sequence[str] = (),
    config_file: Path | None = None,
    data: Path | None = None,
) -> FitConfig:
    """What a fit takes of a recipe, a file and overrides, every key checked; `data` names the data set itself."""
    return load_fit_config(
        recipe,
        overrides,
        config_file=config_file,
        data=data,
        registries={"reward.model": _reward_model_type},
        prepare=import_users_modules,
    )


def _reward_model_type(name: str) -> type | None:
    from plaudit.reward_models.config import DEFAULT_MODEL
    from plaudit.reward_models.model import REWARD_MODELS

    return REWARD_MODELS.config_type(name or str(DEFAULT_MODEL["model_type"]))


def import_users_modules(config: Config | FitConfig) -> None:
    """Imports what `runtime.imports` names, so that the user's own envs, policies and algorithms are registered."""
    look_here()
    for module in config.runtime.imports:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"runtime.imports: cannot import '{module}': {error}.") from error


def look_here() -> None:
    """Has modules in the folder that one runs in found, last: it may hold files that are called like packages."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def check_env(env_id: str) -> None:
    """Raises an error where there is no such ManiSkill task, as far as that can be told: its own config type is that of
    all of them, and to make it takes long. Of other envs the config type tells.
    """
    look_here()
    task = env_id.removeprefix(MANISKILL_PREFIX)
    if task != env_id and importlib.util.find_spec("mani_skill") is not None:
        from plaudit.envs.maniskill.simulation import find_task

        find_task(task)


def set_up(config: Config | FitConfig, torch_threads: int = 1, kernel_threads: int = 0) -> torch.device:
    """Threads, memory, seeds and the device, which `runtime.cuda` alone decides."""
    claim_threads(torch_threads, kernel_threads)
    keep_freed_memory()
    import numpy as np
    import torch

    random.seed(config.runtime.seed)
    np.random.seed(config.runtime.seed)
    torch.manual_seed(config.runtime.seed)
    if config.runtime.cuda and not torch.cuda.is_available():
        logger.info("runtime.cuda is true, but there is no GPU: using the CPU.")
    return torch.device("cuda" if config.runtime.cuda and torch.cuda.is_available() else "cpu")


def build_envs_for(
    config: Config, use: str, device: torch.device, stack: ExitStack, artifact: RewardArtifact | None = None
) -> VecEnv:
    """The envs for `train` or `eval`, closed when `stack` is; with a reward model, of the cameras that it looks at."""
    keys = env_cfg(config, "train" if use == "train" else "eval")
    if use == "train" and config.reward.collect_data:
        env = build_collecting_env(config, keys, device)
    else:
        changed = keys if artifact is None else with_reward_cameras(config, keys, artifact)
        looked_at = "" if artifact is None else f"the reward model '{artifact.path}' cannot look:"
        env = _build_with(config, changed, keys, looked_at, device)
    stack.callback(env.close)
    if use == "train" and not config.runtime.headless:
        env.open_viewer()
    return env


def build_collecting_env(config: Config, keys: dict[str, Any], device: torch.device) -> VecEnv:
    """Envs with `env.cfg` as in `keys`, which render what is to be collected."""
    return _build_with(config, _with_cameras(config, keys), keys, "reward.data_collection.image_keys:", device)


def _build_with(
    config: Config, changed: dict[str, Any], keys: dict[str, Any], who: str, device: torch.device
) -> VecEnv:
    """Envs with `env.cfg` as in `changed`. Where that has other cameras than `keys`, of which one is not there, the
    message says `who` wanted it.
    """
    try:
        return build_env(config.env.id, changed, device, threads=config.runtime.threads)
    except ConfigError as error:
        if changed.get("cameras") == keys.get("cameras"):
            raise
        raise ConfigError(str(error).replace("env.cfg.cameras:", who)) from error


def _with_cameras(config: Config, keys: dict[str, Any]) -> dict[str, Any]:
    """`env.cfg` of an env that renders what is to be collected, where it has keys for that.

    Where the pictures are observations too, they stay as the policy knows them.
    """
    wanted = config.reward.data_collection
    # Whoever collects asks for the frames that are kept; more would be drawn for nobody.
    keys = {**keys, "frames": "none"} if "frames" in keys else keys
    if keys.get("obs_mode") == "rgb":
        return keys
    changes: dict[str, Any] = {}
    if wanted.image_keys is not None and "cameras" in keys:
        changes["cameras"] = list(wanted.image_keys)
    if wanted.image_size is not None and "camera_size" in keys:
        changes["camera_size"] = list(wanted.image_size[1:])
    return {**keys, **changes}


def build_learner(config: Config, env: VecEnv, device: torch.device) -> tuple[Policy, Any]:
    """The policy and the algorithm that a config describes, for the spaces of `env`."""
    from plaudit.rl import build_algo, build_policy

    policy = build_policy(config.policy, env.observation_space, env.action_space, device)
    return policy, build_algo(config.algorithm.name, config.algorithm.cfg, policy, device)


def load_policy(policy: Policy, path: Path) -> None:
    """Puts the weights of a checkpoint into `policy`."""
    from plaudit.rl import checkpoint

    checkpoint.load_policy(policy, checkpoint.load(path)["policy"], path)


def run_folder(path: Path) -> Path:
    """The run that a path belongs to: its folder, its checkpoints' folder, or one of its checkpoints."""
    if not path.exists():
        there = [str(p) for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
        raise CheckpointError(f"no run or checkpoint at '{path}'.{nearest(str(path), there) if there else ''}")
    whole = path.resolve()
    for folder in (whole, *whole.parents[:2]):
        if (folder / "config.yaml").is_file():
            return folder
    raise CheckpointError(f"'{path}' is not a run: there is no config.yaml in it. Runs are made by plaudit train.")


def checkpoint_of(path: Path) -> Path:
    """The checkpoint that a path means: itself, or of a run the best one, or the latest where there is no best yet."""
    from plaudit.rl.run_dir import RunFolder

    run = RunFolder(run_folder(path))
    if path.is_file():
        return path
    return run.best if run.best.exists() else run.latest


def versions() -> dict[str, str]:
    """Of what a result depends on."""
    import numpy
    import torch

    return {
        "plaudit": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # Theirs is a class of its own, which not everybody may unpickle.
        "numpy": numpy.__version__,
    }
