"""Older and foreign spellings, translated to ours: one small reader per dialect, one log line per use.

A reader takes one file's (or one override's) tree before anything is merged, because the same key can mean different
things in two dialects, and gives back the tree in our spelling.
"""

from __future__ import annotations

import logging
from typing import Any

from plaudit.errors import ConfigError

log = logging.getLogger("plaudit")


def translate(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """`tree` in canonical spelling, by every reader in turn."""
    for reader in (embodichain,):
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


def _notice(source: str, old: str, new: str) -> None:
    log.warning("%s: '%s' is read as '%s'.", source, old, new)
