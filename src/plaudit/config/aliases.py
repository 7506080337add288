"""Older and foreign spellings, translated to ours: one small reader per dialect, one log line per use.

A reader takes one file's (or one override's) tree before anything is merged, because the same key can mean different
things in two dialects, and gives back the tree in our spelling.
"""

from __future__ import annotations

import logging
from typing import Any

from plaudit.config.env_aliases import simulator_envs
from plaudit.config.fit_aliases import reward_fit
from plaudit.config.reward_aliases import reward_training
from plaudit.config.sources import COMMAND_LINE
from plaudit.errors import ConfigError

logger = logging.getLogger("plaudit")


def translate(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """`tree` in canonical spelling, by every reader in turn."""
    for reader in (embodichain, simulator_envs, reward_data, rlinf, reward_fit, reward_training):
        tree = reader(dict(tree), source)
    return tree


def embodichain(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """EmbodiChain after seed 004: `trainer` for `runtime`, and networks with a nested `network_cfg`."""
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
    """Seed 000: `reward_data_collection` at the top, which writes that seed's pickles."""
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
    """Seeds 000, 001 and 003: the targets of a collection by another name."""
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
