"""Spellings of what a fit is told, in the dialects that it is documented in: from their keys to ours."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from plaudit.config.trees import NOTHING, get_key, laid, respelt, without

logger = logging.getLogger("plaudit")

TRAINING = "reward.training"

SEED_000 = {
    "reward_training.enabled": f"{TRAINING}.enabled",
    "reward_training.only": f"{TRAINING}.only",
    "reward_training.data_path": f"{TRAINING}.data.path",
    "reward_training.epochs": f"{TRAINING}.num_epochs",
    "reward_training.micro_batch_size": f"{TRAINING}.micro_batch_size",
    "reward_training.global_batch_size": f"{TRAINING}.global_batch_size",
    "reward_training.lr": f"{TRAINING}.optim.lr",
    "reward_training.save_dir": f"{TRAINING}.save_dir",
}

SEED_002 = {
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

SEED_003 = {
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

UNUSED = ("reward.data.num_workers", "runner.task_type")
"""Keys that have nothing to do here: a fit reads ahead by itself, and is always of the same kind."""

CONVERTED: dict[str, Callable[[Any], Any]] = {
    "reward.data.image_key": lambda camera: [camera],
    "runner.logger.log_path": lambda folder: f"{folder}/checkpoints",
}
"""Where the value is another too."""


def reward_fit(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """Seeds 000 (`reward_training.*`), 002 (`data.*`, `actor.*`, `runner.*`) and 003 (`reward.*`, `runner.*`)."""
    place = get_key(tree, "reward_training.save_dir")
    if place not in (None, NOTHING):
        tree = laid(tree, f"{TRAINING}.output_checkpoint", f"{place}/reward_model_best.pt")
    theirs = any(get_key(tree, key) is not NOTHING for key in SEED_003 if key.startswith("reward."))
    if theirs and isinstance(get_key(tree, "reward.model"), dict):
        tree = laid(tree, "reward.model.model_type", "binary_classifier")  # Theirs, and not our small one.
    tree = respelt(tree, {**SEED_000, **SEED_002, **SEED_003}, CONVERTED, source)
    for key in UNUSED:
        if get_key(tree, key) is not NOTHING:
            logger.warning("%s: '%s' is not used.", source, key)
            tree = without(tree, key)
    return tree
