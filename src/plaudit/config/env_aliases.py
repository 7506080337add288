"""Spellings of envs in the dialect of seed 000, whose envs are ManiSkill's: from theirs to ours."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from plaudit.config.trees import NOTHING, get_key, laid, without
from plaudit.errors import ConfigError

logger = logging.getLogger("plaudit")

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
