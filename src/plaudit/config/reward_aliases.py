"""Spellings of what training on a reward model is told, in the dialects of seeds 000 to 003: from theirs to ours."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from plaudit.config.sources import COMMAND_LINE
from plaudit.config.trees import NOTHING, get_key, laid, respelt, without

logger = logging.getLogger("plaudit")

SEED_000 = {
    "runner.resume_dir": "runtime.resume",
    "reward.mode": "reward.combine_mode",
    "reward.resnet": "reward.model",
}

SEEDS_001_AND_003 = {"reward.reward_model": "reward.model"}

SEED_002 = {
    "reward.use_negative_reward": "reward.fail_reward",
    "reward.model.checkpoint_path": "reward.checkpoint_path",
    "reward.model.reward_type": "reward.reward_type",
    "reward.model.precision": "reward.precision",
    "reward.model.debug_save_dir": "reward.debug_save_dir",
}
"""After the others: in their sections are keys that are not the model's own, too."""

UNUSED = {
    "reward.group_name": "one process serves the rewards",
    "reward.reward_model_type": "the checkpoint says which model it is",
    "cluster": "everything runs in this process",
}

CONVERTED: dict[str, Callable[[Any], Any]] = {
    "reward.use_negative_reward": lambda negative: -1.0 if negative else 0.0,
}
"""Where the value is another too."""


def reward_training(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """Seeds 000 (`reward.resnet`, `runner.resume_dir`), 001, 003 (`reward.reward_model`) and 002 (`reward.model`)."""
    section = get_key(tree, "reward.reward_model")
    if isinstance(section, Mapping) and source != COMMAND_LINE:
        tree = laid(tree, "reward.model.model_type", "binary_classifier")  # Theirs, and not our small one.
    tree = respelt(tree, {**SEED_000, **SEEDS_001_AND_003, **SEED_002}, CONVERTED, source)
    for key, why in UNUSED.items():
        if get_key(tree, key) is not NOTHING:
            logger.warning("%s: '%s' is not used: %s.", source, key, why)
            tree = without(tree, key)
    return tree
