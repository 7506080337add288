"""Translate the config keys of RLinf's guides and EmbodiChain's tutorial to ours, with one log line per use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from plaudit.compat.key_rename import NOTHING, get_key, laid, respelt, without
from plaudit.errors import ConfigError
from plaudit.utils.provenance import COMMAND_LINE

logger = logging.getLogger("plaudit")


def translate(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """`tree` in canonical spelling, by every reader in turn."""
    for reader in (embodichain, simulator_envs, reward_data, rlinf, reward_fit, reward_training):
        tree = reader(dict(tree), source)
    return tree


def embodichain(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """Translate EmbodiChain's `trainer` section and its nested `network_cfg`."""
    if isinstance(tree.get("trainer"), dict):
        tree["runtime"] = {**(tree.get("runtime") or {}), **_trainer(dict(tree.pop("trainer")), source)}
    policy = tree.get("policy")
    if isinstance(policy, dict):
        tree["policy"] = {key: _network(value, f"policy.{key}", source) for key, value in policy.items()}
    return tree


def _trainer(section: dict[str, Any], source: str) -> dict[str, Any]:
    for key in ("gym_config", "events"):
        if key in section:
            raise ConfigError(
                f"{source}: trainer.{key}: not supported; describe the env itself in env.id and env.cfg instead."
            )
    _notice(source, "trainer", "runtime")
    if isinstance(section.get("device"), str):
        section["cuda"] = section.pop("device").startswith("cuda")
        _notice(source, "trainer.device", "runtime.cuda")
    return section


def _network(section: Any, key: str, source: str) -> Any:
    if not (isinstance(section, dict) and isinstance(section.get("network_cfg"), dict)):
        return section
    _notice(source, f"{key}.network_cfg.*", f"{key}.*")
    return {**{k: v for k, v in section.items() if k != "network_cfg"}, **section["network_cfg"]}


def reward_data(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """Translate the top-level `reward_data_collection` of RLinf's ResNet guide, which writes episode pickles."""
    section = tree.pop("reward_data_collection", None)
    if isinstance(section, dict):
        _notice(source, "reward_data_collection", "reward.data_collection")
        reward = dict(tree.get("reward") or {})
        if "enabled" in section or source != COMMAND_LINE:
            # One key on the command line is laid over a config that may name another format, which it must not undo.
            section = {"format": "episode_pkl", **section}
        if "enabled" in section:
            reward["collect_data"] = section.pop("enabled")
        reward["data_collection"] = {**section, **(reward.get("data_collection") or {})}
        tree["reward"] = reward
    return tree


def rlinf(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """Translate the collection targets of RLinf's ResNet and workflow guides."""
    reward = tree.get("reward")
    if not isinstance(reward, dict):
        return tree
    reward = dict(reward)
    if "data_collection" in reward:
        targets = {"target_success": "max_positive_trajectories", "target_failure": "max_negative_trajectories"}
        reward["data_collection"] = _renamed(reward["data_collection"], targets, "reward.data_collection", source)
    return {**tree, "reward": reward}


def _renamed(section: Any, names: dict[str, str], where: str, source: str) -> Any:
    """A section whose keys are called by their new names; anything that is not a section as it is."""
    if not isinstance(section, dict):
        return section
    for key in section.keys() & names.keys():
        _notice(source, f"{where}.{key}", f"{where}.{names[key]}")
    return {names.get(key, key): value for key, value in section.items()}


def _notice(source: str, old: str, new: str) -> None:
    logger.warning("%s: '%s' is read as '%s'.", source, old, new)


USES = ("train", "eval")

FRAMES = {"episode_end": "terminal"}
"""Their words for which frames are rendered, where ours are others."""

PREFIX = "maniskill:"
"""What the ids of their simulator's tasks begin with here."""


def simulator_envs(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """`env.train.reward_render_mode`, and `env.train.init_params`, which are what their simulator is made with."""
    for where in (f"env.{use}" for use in USES):
        mode = get_key(tree, f"{where}.reward_render_mode")
        if mode is not NOTHING:
            logger.warning("%s: '%s.reward_render_mode' is read as '%s.frames'.", source, where, where)
            tree = without(tree, f"{where}.reward_render_mode")
            tree = laid(tree, f"{where}.frames", FRAMES.get(mode, mode) if isinstance(mode, str) else mode)
        params = get_key(tree, f"{where}.init_params")
        if isinstance(params, Mapping):
            tree = _made_with(without(tree, f"{where}.init_params"), params, where, source)
    return tree


def _made_with(tree: dict[str, Any], params: Mapping[str, Any], where: str, source: str) -> dict[str, Any]:
    """The tree with the keys of `init_params` where they belong: beside the env's others, but for the id."""
    keys = dict(params)
    logger.warning("%s: '%s.init_params' is read as '%s'.", source, where, where)
    if keys.pop("render_mode", NOTHING) is not NOTHING:
        logger.warning("%s: '%s.init_params.render_mode' is not used: frames are drawn where wanted.", source, where)
    task = keys.pop("id", None)
    if task is not None:
        ours = PREFIX + str(task).removeprefix(PREFIX)
        logger.warning("%s: '%s.init_params.id' is read as 'env.id', that of training and evaluation.", source, where)
        tree = laid(tree, "env.id", ours)
        if get_key(tree, "env.id") != ours:
            raise ConfigError(
                f"{source}: {where}.init_params.id: '{task}', but env.id is '{get_key(tree, 'env.id')}'. Training and "
                "evaluation have the same env; only its keys may differ."
            )
    return laid(tree, where, keys) if keys else tree


TRAINING = "reward.training"

RESNET_GUIDE_FIT = {
    "reward_training.enabled": f"{TRAINING}.enabled",
    "reward_training.only": f"{TRAINING}.only",
    "reward_training.data_path": f"{TRAINING}.data.path",
    "reward_training.epochs": f"{TRAINING}.num_epochs",
    "reward_training.micro_batch_size": f"{TRAINING}.micro_batch_size",
    "reward_training.global_batch_size": f"{TRAINING}.global_batch_size",
    "reward_training.lr": f"{TRAINING}.optim.lr",
    "reward_training.save_dir": f"{TRAINING}.save_dir",
}

REAL_WORLD_GUIDE_FIT = {
    "data.data_path": f"{TRAINING}.data.path",
    "data.num_samples_per_episode": f"{TRAINING}.data.num_samples_per_episode",
    "data.fail_success_ratio": f"{TRAINING}.data.fail_success_ratio",
    "data.debug_save_dir": f"{TRAINING}.debug_save_dir",
    "actor.global_batch_size": f"{TRAINING}.global_batch_size",
    "actor.micro_batch_size": f"{TRAINING}.micro_batch_size",
    "actor.optim": f"{TRAINING}.optim",
    "actor.model": "reward.model",
    "runner.max_epochs": f"{TRAINING}.num_epochs",
    "runner.max_steps": f"{TRAINING}.max_steps",
    "runner.val_check_interval": f"{TRAINING}.val_check_interval",
    "runner.save_interval": f"{TRAINING}.save_interval",
    "runner.early_stop.patience": f"{TRAINING}.patience",
    "runner.logger.log_path": f"{TRAINING}.save_dir",
}

HYDRA_GUIDE_FIT = {
    "reward.training_backend": f"{TRAINING}.training_backend",
    "reward.gpu_id": f"{TRAINING}.gpu_id",
    "reward.global_batch_size": f"{TRAINING}.global_batch_size",
    "reward.micro_batch_size": f"{TRAINING}.micro_batch_size",
    "reward.num_epochs": f"{TRAINING}.num_epochs",
    "reward.log_interval": f"{TRAINING}.log_interval",
    "reward.save_interval": f"{TRAINING}.save_interval",
    "reward.save_dir": f"{TRAINING}.save_dir",
    "reward.optim": f"{TRAINING}.optim",
    "reward.lr_sched.type": f"{TRAINING}.optim.lr_schedule",
    "reward.lr_sched.lr_scheduler": f"{TRAINING}.optim.lr_schedule",
    "reward.lr_sched.warmup_steps": f"{TRAINING}.optim.warmup_steps",
    "reward.lr_sched.lr_warmup_steps": f"{TRAINING}.optim.warmup_steps",
    "reward.lr_sched": f"{TRAINING}.optim.lr_schedule",
    "reward.data.positive_dir": f"{TRAINING}.data.positive_dir",
    "reward.data.negative_dir": f"{TRAINING}.data.negative_dir",
    "reward.data.image_key": "reward.model.image_keys",
    "runner.output_dir": "runtime.output_dir",
    "runner.experiment_name": "runtime.exp_name",
}

UNUSED_FIT_KEYS = ("reward.data.num_workers", "runner.task_type")
"""Keys that have nothing to do here: a fit reads ahead by itself, and is always of the same kind."""

CONVERTED_FIT_VALUES: dict[str, Callable[[Any], Any]] = {
    "reward.data.image_key": lambda camera: [camera],
    "runner.logger.log_path": lambda folder: f"{folder}/checkpoints",
}
"""Where the value is another too."""


def reward_fit(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """Translate the fit sections of RLinf's guides.

    ResNet: `reward_training.*`. Real-world: `data.*`, `actor.*`, `runner.*`. Hydra workflow: `reward.*`, `runner.*`.
    """
    place = get_key(tree, "reward_training.save_dir")
    if place not in (None, NOTHING):
        tree = laid(tree, f"{TRAINING}.output_checkpoint", f"{place}/reward_model_best.pt")
    theirs = any(get_key(tree, key) is not NOTHING for key in HYDRA_GUIDE_FIT if key.startswith("reward."))
    if theirs and isinstance(get_key(tree, "reward.model"), dict):
        tree = laid(tree, "reward.model.model_type", "binary_classifier")  # Theirs, and not our small one.
    tree = respelt(tree, {**RESNET_GUIDE_FIT, **REAL_WORLD_GUIDE_FIT, **HYDRA_GUIDE_FIT}, CONVERTED_FIT_VALUES, source)
    for key in UNUSED_FIT_KEYS:
        if get_key(tree, key) is not NOTHING:
            logger.warning("%s: '%s' is not used.", source, key)
            tree = without(tree, key)
    return tree


RESNET_GUIDE_REWARD = {
    "runner.resume_dir": "runtime.resume",
    "reward.mode": "reward.combine_mode",
    "reward.resnet": "reward.model",
}

WORKFLOW_GUIDES_REWARD = {"reward.reward_model": "reward.model"}

REAL_WORLD_GUIDE_REWARD = {
    "reward.use_negative_reward": "reward.fail_reward",
    "reward.model.checkpoint_path": "reward.checkpoint_path",
    "reward.model.reward_type": "reward.reward_type",
    "reward.model.precision": "reward.precision",
    "reward.model.debug_save_dir": "reward.debug_save_dir",
}
"""After the others: in their sections are keys that are not the model's own, too."""

UNUSED_REWARD_KEYS = {
    "reward.group_name": "one process serves the rewards",
    "reward.reward_model_type": "the checkpoint says which model it is",
    "cluster": "everything runs in this process",
}

CONVERTED_REWARD_VALUES: dict[str, Callable[[Any], Any]] = {
    "reward.use_negative_reward": lambda negative: -1.0 if negative else 0.0,
}
"""Where the value is another too."""


def reward_training(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """Translate the reward sections of RLinf's guides.

    ResNet: `reward.resnet`, `runner.resume_dir`. Workflow: `reward.reward_model`. Real-world: `reward.model`.
    """
    section = get_key(tree, "reward.reward_model")
    if isinstance(section, Mapping) and source != COMMAND_LINE:
        tree = laid(tree, "reward.model.model_type", "binary_classifier")  # Theirs, and not our small one.
    tree = respelt(
        tree,
        {**RESNET_GUIDE_REWARD, **WORKFLOW_GUIDES_REWARD, **REAL_WORLD_GUIDE_REWARD},
        CONVERTED_REWARD_VALUES,
        source,
    )
    for key, why in UNUSED_REWARD_KEYS.items():
        if get_key(tree, key) is not NOTHING:
            logger.warning("%s: '%s' is not used: %s.", source, key, why)
            tree = without(tree, key)
    return tree
