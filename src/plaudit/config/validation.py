"""What a config must satisfy beyond its schema: the parts' own keys, and combinations that cannot work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from typing import Any, Literal, TypeAlias

from plaudit.config.guard_expressions import check_names, parse_guard
from plaudit.config.schema import Config
from plaudit.config.structured import Locate, Where, fill, written
from plaudit.errors import ConfigError, RegistryError

ConfigType: TypeAlias = Callable[[str], "type | None"]
"""A registry's `config_type`: from a name to its config dataclass, or `None` where it takes any keys."""

Tree: TypeAlias = Mapping[str, Any]

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
    # The env first: the other registries import torch, and a wrong key should not wait for that.
    cls = _config_type(registries, "env", "id", config.env.id, locate)
    uses: tuple[Literal["train", "eval"], ...] = ("train", "eval")
    for use in uses:
        cfg = env_cfg(config, use)
        parts[f"env.{use}"] = fill(cls, cfg, "env.cfg", _env_locate(config, use, locate)) if cls else cfg
    for section, name in (("policy", config.policy.name), ("algorithm", config.algorithm.name)):
        cfg = getattr(config, section).cfg
        cls = _config_type(registries, section, "name", name, locate)
        parts[section] = fill(cls, cfg, f"{section}.cfg", locate) if cls else cfg
    return parts


def check_reward_model(block: Tree, registries: Mapping[str, ConfigType], locate: Locate) -> None:
    """Fits the keys of `reward.model` to the config dataclass of its `model_type`, where its registry is given.

    Args:
        block: The section. Without a `model_type` the registry is asked for the name "".
        registries: `config_type` of the registry, under `reward.model`.
        locate: Tells where a key came from.
    """
    cls = _config_type(registries, "reward.model", "model_type", str(block.get("model_type", "")), locate)
    if cls is not None:
        fill(cls, block, "reward.model", locate)


def resolve(config: Config, parts: Parts) -> Config:
    """The config with every value of its parts in it, defaults included, as `check_parts` has filled them."""

    def full(key: str, cfg: dict[str, Any]) -> dict[str, Any]:
        return written(parts[key], cfg) if is_dataclass(parts[key]) else cfg

    env = config.env
    filled = full("env.train", env_cfg(config, "train")), full("env.eval", env_cfg(config, "eval"))
    return replace(
        config,
        env=replace(env, cfg=_beneath(env.cfg, (env.train, env.eval), filled)),
        policy=replace(config.policy, cfg=full("policy", config.policy.cfg)),
        algorithm=replace(config.algorithm, cfg=full("algorithm", config.algorithm.cfg)),
    )


def check_combinations(config: Config, parts: Parts, locate: Locate, *, trains: bool = True) -> None:
    """Raises a `ConfigError` for values that are valid alone and cannot work together.

    Without `trains` the config is for collecting, which trains only if its actors say so.
    """

    def fail(key: str, problem: str) -> ConfigError:
        return Where(key, locate).error(problem)

    for network in ("actor", "critic"):
        if config.policy.name == "actor_critic" and getattr(config.policy, network) is None:
            raise fail(f"policy.{network}", "missing required value; actor_critic needs a network here.")
    if config.runtime.stop_at is not None and config.runtime.eval_freq == 0:
        raise fail("runtime.stop_at", "needs evaluations during training, but runtime.eval_freq is 0.")
    _check_mode(config, fail)
    if trains or config.reward.data_collection.actors[0].kind == "training":
        _check_batch(config, parts, locate)
    _check_images(config, parts, fail)
    _check_cameras(config, parts, fail)
    _check_learned_reward(config, parts, fail)


def _check_mode(config: Config, fail: Callable[[str, str], ConfigError]) -> None:
    """Whether what is trained can be learned while acting goes on."""
    if config.runtime.mode == "sync":
        return
    name, audit = config.algorithm.name, config.reward.audit
    if name != "sac":
        raise fail(
            "runtime.mode", f"async is for algorithm.name sac, which learns from a replay; {name} cannot: use sync."
        )
    if config.reward.use_reward_model and audit.enabled and audit.on_alarm == "refresh":
        raise fail(
            "reward.audit.on_alarm",
            "refresh stops everything until the model is fitted and all rewards are given again, which "
            "runtime.mode=async does not: use warn or stop, or runtime.mode=sync.",
        )


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
    blocks = {"actor": config.policy.actor, "critic": config.policy.critic}
    types = {f"policy.{name}.type": block.type for name, block in blocks.items() if block is not None}
    for key, kind in types.items():
        if mode == "state" and kind == "cnn":
            raise fail(key, "'cnn' needs images, but env.cfg.obs_mode is 'state'. Use 'mlp'.")
        # One of two may be an mlp, which sees the numbers beside the images; the other then learns from the images.
        if mode == "rgb" and "cnn" not in types.values():
            raise fail(key, "'mlp' cannot read images, but env.cfg.obs_mode is 'rgb'. Use 'cnn'.")
    if config.policy.name == "sac" and set(types.values()) == {"mlp", "cnn"}:
        blind = next(key for key, kind in types.items() if kind == "mlp")
        raise fail(blind, "'mlp' cannot stand beside 'cnn': in sac, actor and critics are shown the same. Use 'cnn'.")
    if mode == "state" and _get(parts["algorithm"], "image_shift"):
        raise fail("algorithm.cfg.image_shift", "moves images, but env.cfg.obs_mode is 'state'. Set it to 0.")
    if _get(parts["policy"], "encoder") == "resnet10" and "cnn" not in types.values():
        raise fail("policy.cfg.encoder", "is for networks of type 'cnn', but actor and critic are 'mlp'.")


def _check_cameras(config: Config, parts: Parts, fail: Callable[[str, str], ConfigError]) -> None:
    """Whether the env has the cameras that are to be collected, where its config can tell."""
    part, cameras = parts["env.train"], config.reward.data_collection.image_keys
    if cameras is None or not is_dataclass(part) or isinstance(part, type) or not hasattr(part, "cameras"):
        return
    try:
        replace(part, cameras=cameras)
    except ValueError as error:
        raise fail("reward.data_collection.image_keys", f"{str(error).partition(': ')[2]}.") from None


def _check_learned_reward(config: Config, parts: Parts, fail: Callable[[str, str], ConfigError]) -> None:
    """Whether the pieces of stage 3 fit together, and no ground truth reaches what learns unless it is named."""
    reward = config.reward
    if not reward.use_reward_model:
        if "model_" in config.runtime.best_metric:
            raise fail("runtime.best_metric", "is for training on a reward model; set reward.use_reward_model=true.")
        return
    if reward.checkpoint_path is None:
        raise fail("reward.checkpoint_path", "must name a reward model, such as the folder of a plaudit fit.")
    if reward.terminate_on_success and reward.collect_data:
        raise fail("reward.terminate_on_success", "cannot end episodes that reward.collect_data is collecting.")
    for use in ("train", "eval"):
        part, overlay = parts[f"env.{use}"], getattr(config.env, use)
        for name, ends in (("terminate_on_success", True), ("ignore_terminations", False)):  # Ours, and ManiSkill's.
            if _get(part, name) is ends and not reward.env_success_ends:
                raise fail(
                    f"env.{use if name in overlay else 'cfg'}.{name}",
                    "ends episodes by the env's own verdict, which a learned reward is to replace. Set it to "
                    f"{str(not ends).lower()}; reward.terminate_on_success ends them by the model's. If it is meant: "
                    "reward.env_success_ends=true.",
                )
    known = getattr(parts["env.train"], "readings", None)
    if known is not None:
        try:
            check_names([parse_guard(text) for text in reward.guards], known)
        except ValueError as error:
            raise fail("reward.guards", str(error)) from None


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


def _beneath(base: Tree, overlays: tuple[Tree, Tree], filled: tuple[Tree, Tree]) -> dict[str, Any]:
    """`base` with all defaults in it, taken from what it was `filled` to under each of the two overlays.

    It is not filled by itself, because alone it need not be valid: a required key may stand in the overlays only.
    """
    result: dict[str, Any] = {}
    for key in dict.fromkeys([*filled[0], *filled[1], *base]):
        bare = [whole[key] for whole, over in zip(filled, overlays, strict=True) if key in whole and key not in over]
        if bare:
            result[key] = bare[0]
        elif all(isinstance(tree.get(key), Mapping) for tree in (base, *overlays, *filled)):
            (over_a, over_b), (whole_a, whole_b) = overlays, filled
            result[key] = _beneath(base[key], (over_a[key], over_b[key]), (whole_a[key], whole_b[key]))
        elif key in base:
            result[key] = base[key]
    return result


def _get(part: Any, key: str) -> Any:
    return part.get(key) if isinstance(part, Mapping) else getattr(part, key, None)
