"""What a config must satisfy beyond its schema: the parts' own keys, and combinations that cannot work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from plaudit.config.convert import Locate, Where, fill
from plaudit.config.schema import Config
from plaudit.errors import ConfigError, RegistryError

ConfigType: TypeAlias = Callable[[str], "type | None"]
"""A registry's `config_type`: from a name to its config dataclass, or `None` where it takes any keys."""

Parts: TypeAlias = Mapping[str, Any]
"""The parts' own configs: `env.train`, `env.eval`, `policy`, `algorithm`; a plain dict where any keys go."""


def env_cfg(config: Config, use: Literal["train", "eval"]) -> dict[str, Any]:
    """`env.cfg` with the keys of `env.train` or `env.eval` laid over it."""
    return _overlay(config.env.cfg, getattr(config.env, use))


def check_parts(config: Config, registries: Mapping[str, ConfigType], locate: Locate) -> dict[str, Any]:
    """Fits each part's keys to the config dataclass of the part that is named.

    Args:
        config: The config.
        registries: `config_type` of the registries for `env`, `policy` and `algorithm`; one left out is not checked.
        locate: Tells where a key came from.

    Returns:
        The filled dataclasses, under the keys of `Parts`.
    """
    parts: dict[str, Any] = {}
    for section, name in (("policy", config.policy.name), ("algorithm", config.algorithm.name)):
        cfg = getattr(config, section).cfg
        cls = _config_type(registries, section, "name", name, locate)
        parts[section] = fill(cls, cfg, f"{section}.cfg", locate) if cls else cfg
    cls = _config_type(registries, "env", "id", config.env.id, locate)
    for use in ("train", "eval"):
        cfg = _overlay(config.env.cfg, getattr(config.env, use))
        parts[f"env.{use}"] = fill(cls, cfg, "env.cfg", _env_locate(config, use, locate)) if cls else cfg
    return parts


def check_combinations(config: Config, parts: Parts, locate: Locate) -> None:
    """Raises a `ConfigError` for values that are valid alone and cannot work together."""

    def fail(key: str, problem: str) -> ConfigError:
        return Where(key, locate).error(problem)

    for network in ("actor", "critic"):
        if config.policy.name == "actor_critic" and getattr(config.policy, network) is None:
            raise fail(f"policy.{network}", "missing required value; actor_critic needs a network here.")
    if config.runtime.stop_at is not None and config.runtime.eval_freq == 0:
        raise fail("runtime.stop_at", "needs evaluations during training, but runtime.eval_freq is 0.")
    _check_batch(config, parts, locate)
    _check_images(config, parts, fail)


def _check_batch(config: Config, parts: Parts, locate: Locate) -> None:
    num_envs, batch = _get(parts["env.train"], "num_envs"), _get(parts["algorithm"], "batch_size")
    if config.algorithm.name != "ppo" or not isinstance(num_envs, int) or not isinstance(batch, int):
        return
    samples = num_envs * config.runtime.rollout_steps
    if batch > samples:
        # The user may have changed any of the three, so the message names where the first factor is from too.
        source, key = locate("env.train.num_envs" if "num_envs" in config.env.train else "env.cfg.num_envs")
        raise Where("algorithm.cfg.batch_size", locate).error(
            f"{batch} is more than one rollout has: {key} x runtime.rollout_steps = "
            f"{num_envs} x {config.runtime.rollout_steps} = {samples} ({key} from {source})."
        )


def _check_images(config: Config, parts: Parts, fail: Callable[[str, str], ConfigError]) -> None:
    mode, eval_mode = (_get(parts[f"env.{use}"], "obs_mode") for use in ("train", "eval"))
    if mode != eval_mode:
        raise fail("env.eval.obs_mode", f"'{eval_mode}' differs from training's '{mode}'; the policy sees one kind.")
    for network in ("actor", "critic"):
        block = getattr(config.policy, network)
        if block is None:
            continue
        if mode == "rgb" and block.type == "mlp":
            raise fail(f"policy.{network}.type", "'mlp' cannot read images, but env.cfg.obs_mode is 'rgb'. Use 'cnn'.")
        if mode == "state" and block.type == "cnn":
            raise fail(f"policy.{network}.type", "'cnn' needs images, but env.cfg.obs_mode is 'state'. Use 'mlp'.")


def _config_type(
    registries: Mapping[str, ConfigType], section: str, key: str, name: str, locate: Locate
) -> type | None:
    if section not in registries:
        return None
    try:
        return registries[section](name)
    except RegistryError as error:
        raise Where(f"{section}.{key}", locate).error(str(error)) from None


def _env_locate(config: Config, use: str, locate: Locate) -> Locate:
    """Names keys of the overlay as the user wrote them: `env.train.x`, not `env.cfg.x`."""
    overlay = getattr(config.env, use)

    def located(key: str) -> tuple[str | None, str]:
        name = key.removeprefix("env.cfg.")
        return locate(f"env.{use}.{name}" if name.split(".")[0].split("[")[0] in overlay else key)

    return located


def _overlay(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _overlay(merged[key], value) if both else value
    return merged


def _get(part: Any, key: str) -> Any:
    return part.get(key) if isinstance(part, Mapping) else getattr(part, key, None)
