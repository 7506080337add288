"""Spellings of what a fit is told, in the dialects that it is documented in: from their keys to ours."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

log = logging.getLogger("plaudit")

TRAINING = "reward.training"

SEED_000 = {
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

UNUSED = ("reward_training.enabled", "reward_training.only", "reward.data.num_workers", "runner.task_type")
"""Keys that have nothing to do here: a fit is a command of its own, and reads ahead by itself."""

CONVERTED: dict[str, Callable[[Any], Any]] = {
    "reward.data.image_key": lambda camera: [camera],
    "runner.logger.log_path": lambda folder: f"{folder}/checkpoints",
}
"""Where the value is another too."""

NOTHING: Any = object()
"""Stands for no value, as null is one."""


def reward_fit(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """Seeds 000 (`reward_training.*`), 002 (`data.*`, `actor.*`, `runner.*`) and 003 (`reward.*`, `runner.*`)."""
    place = _get(tree, "reward_training.save_dir")
    if place not in (None, NOTHING):
        tree = _laid(tree, f"{TRAINING}.output_checkpoint", f"{place}/reward_model_best.pt")
    theirs = any(_get(tree, key) is not NOTHING for key in SEED_003 if key.startswith("reward."))
    if theirs and isinstance(_get(tree, "reward.model"), dict):
        tree = _laid(tree, "reward.model.model_type", "binary_classifier")  # Theirs, and not our small one.
    for old, new in {**SEED_000, **SEED_002, **SEED_003}.items():
        value = _get(tree, old)
        if value is not NOTHING:
            log.warning("%s: '%s' is read as '%s'.", source, old, new)
            tree = _laid(_without(tree, old), new, CONVERTED.get(old, lambda same: same)(value))
        tree = _repointed(tree, old, new)
    for key in UNUSED:
        if _get(tree, key) is not NOTHING:
            log.warning("%s: '%s' is not used.", source, key)
            tree = _without(tree, key)
    return tree


def _get(tree: Any, key: str) -> Any:
    """What is under a dotted key, or `NOTHING`."""
    for name in key.split("."):
        if not isinstance(tree, Mapping) or name not in tree:
            return NOTHING
        tree = tree[name]
    return tree


def _without(tree: dict[str, Any], key: str) -> dict[str, Any]:
    """A copy without a dotted key, and without sections that are empty then."""
    head, _, rest = key.partition(".")
    left = _without(tree[head], rest) if rest else {}
    return {**{name: value for name, value in tree.items() if name != head}, **({head: left} if left else {})}


def _laid(tree: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy with a value under a dotted key, beneath what is there already."""
    head, _, rest = key.partition(".")
    there = tree.get(head)
    if rest:
        value = _laid(there if isinstance(there, Mapping) else {}, rest, value)
    elif isinstance(there, Mapping) and isinstance(value, Mapping):
        value = {**value, **there}
    elif head in tree:
        value = there
    return {**tree, head: value}


def _repointed(value: Any, old: str, new: str) -> Any:
    """All texts in a tree, with interpolations of the old key turned to the new one."""
    if isinstance(value, dict):
        return {key: _repointed(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_repointed(item, old, new) for item in value]
    return re.sub(rf"\$\{{{re.escape(old)}\}}", f"${{{new}}}", value) if isinstance(value, str) else value
