"""Env ids to envs: our registry, Gymnasium's registry beside it, and `build_env`.

Importing this module imports neither torch nor a simulator: envs are named by `module:Class` until they are built.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium
from gymnasium.envs.registration import EnvSpec

from plaudit.envs.config import GymConfig
from plaudit.envs.gym.ids import find_spec
from plaudit.envs.maniskill.config import ManiSkillConfig
from plaudit.errors import ConfigError, RegistryError
from plaudit.registry import Entry, Registry

if TYPE_CHECKING:
    import torch

    from plaudit.envs.base import VecEnv

GYM_PREFIX = "gym:"
"""Ids that start so are envs of Gymnasium's registry, reached through `plaudit.envs.gym.adapter`."""

MANISKILL_PREFIX = "maniskill:"
"""Ids that start so are tasks of ManiSkill 3, reached through `plaudit.envs.maniskill.adapter`."""

SINGLE_ENTRY = "plaudit.envs.gymnasium_api:make_single"
VECTOR_ENTRY = "plaudit.envs.gymnasium_api:make_vector"

E = TypeVar("E", bound="type[VecEnv]")

ENVS: Registry[Any] = Registry("env")


def register_env(env_id: str, *, max_episode_steps: int | None = None, override: bool = False) -> Callable[[E], E]:
    """Registers a `VecEnv` subclass here and in Gymnasium's registry.

    The class is constructed as `cls(cfg, device=device)`. Its config dataclass is the one that it names in an
    annotation, `cfg: MyConfig`; without one, `cfg` is a namespace of whatever keys the user gave.

    Args:
        env_id: What `env.id` and `gymnasium.make` call it.
        max_episode_steps: Steps after which its episodes are truncated, unless `cfg` says `episode_length`.
        override: Whether an env of this id may be replaced.
    """
    if max_episode_steps is not None and max_episode_steps < 1:
        raise RegistryError(f"env '{env_id}': max_episode_steps must be 1 or more, not {max_episode_steps}.")

    def decorate(cls: E) -> E:
        from plaudit.envs.base import VecEnv

        if not (inspect.isclass(cls) and issubclass(cls, VecEnv)):
            raise RegistryError(f"env '{env_id}' must be a subclass of plaudit.envs.VecEnv, not {cls!r}.")
        about = (inspect.getdoc(cls) or "").split("\n")[0]
        _add(env_id, cls, max_episode_steps=max_episode_steps, override=override, about=about)
        return cls

    return decorate


def _add(
    env_id: str,
    target: Any,
    *,
    config: Any = None,
    max_episode_steps: int | None = None,
    override: bool = False,
    about: str = "",
) -> None:
    """Adds one env to both registries. Gymnasium first: it may refuse the id."""
    for prefix, owner in ((GYM_PREFIX, "Gymnasium"), (MANISKILL_PREFIX, "ManiSkill")):
        if env_id.startswith(prefix):
            raise RegistryError(f"env '{env_id}': ids that start with '{prefix}' belong to {owner}'s envs.")
    if env_id not in ENVS.names() or override:
        _add_to_gymnasium(env_id, override)
    ENVS.add(env_id, target, config=config, override=override, max_episode_steps=max_episode_steps, about=about)


def _add_to_gymnasium(env_id: str, override: bool) -> None:
    """Makes `gymnasium.make(env_id)` and `make_vec` give views of our env."""
    theirs = gymnasium.registry.get(env_id)
    if theirs is not None and theirs.entry_point != SINGLE_ENTRY and not override:
        raise RegistryError(
            f"env '{env_id}' is already in Gymnasium's registry; choose another id or pass override=True."
        )
    try:
        # No max_episode_steps for Gymnasium: its TimeLimit would cut episodes that `episode_length` makes longer.
        spec = EnvSpec(env_id, entry_point=SINGLE_ENTRY, vector_entry_point=VECTOR_ENTRY, kwargs={"env_id": env_id})
    except gymnasium.error.Error as error:
        raise RegistryError(f"env '{env_id}' cannot be added to Gymnasium's registry: {error}") from error
    # Gymnasium does not let a `PickCube` and a `PickCube-v1` stand side by side, and the latter is ManiSkill's. It
    # tells them by their name, not by the id that they are found under.
    spec.name = f"plaudit {spec.name}"
    gymnasium.registry[env_id] = spec


def env_config_type(env_id: str) -> type | None:
    """The dataclass that `env.cfg` of this id fills in, or `None` where it takes any keys.

    The limit that an env was registered with is the default of its `episode_length`.
    """
    if env_id.startswith(GYM_PREFIX):
        find_spec(env_id.removeprefix(GYM_PREFIX))
        return GymConfig
    if env_id.startswith(MANISKILL_PREFIX):
        return ManiSkillConfig
    limit, config_type = _entry(env_id).options.get("max_episode_steps"), ENVS.config_type(env_id)
    return config_type if limit is None else _limited(config_type, limit)


def build_env(
    env_id: str,
    cfg: Any = None,
    device: torch.device | str = "cpu",
    *,
    threads: int | None = None,
    where: str = "env.cfg",
) -> VecEnv:
    """Builds an env from its id and its own keys.

    Args:
        env_id: A registered id such as `PushCube`, or one of Gymnasium's after `gym:`, or of ManiSkill's after
            `maniskill:`.
        cfg: The env's own keys as a mapping, or its config dataclass filled in.
        device: Where its tensors live.
        threads: CPU threads for simulation and rendering, for envs whose constructor takes them; `None` leaves the
            env's default.
        where: What a message calls `cfg`.
    """
    if env_id.startswith(GYM_PREFIX):
        from plaudit.envs.gym.adapter import GymVecEnv

        return GymVecEnv(env_id.removeprefix(GYM_PREFIX), _convert(GymConfig, _keys(cfg, where), where), device)
    if env_id.startswith(MANISKILL_PREFIX):
        from plaudit.envs.maniskill.adapter import ManiSkillEnv

        keys = _convert(ManiSkillConfig, _keys(cfg, where), where)
        return ManiSkillEnv(env_id.removeprefix(MANISKILL_PREFIX), keys, device, threads or 0)
    limit = _entry(env_id).options.get("max_episode_steps")
    config_type = ENVS.config_type(env_id)
    config = _convert(config_type, _with_limit(config_type, _keys(cfg, where), limit), where)
    cls = ENVS.get(env_id)
    options = {} if threads is None or "threads" not in inspect.signature(cls).parameters else {"threads": threads}
    env: VecEnv = cls(config, device=device, **options)
    _apply_limit(env_id, env, config, limit)
    return env


def _entry(env_id: str) -> Entry:
    """What is registered under an id. Of one that looks like another library's, the error says how those are called."""
    if env_id not in ENVS.names() and re.search(r"-v\d+$", env_id):
        name = env_id.rpartition(":")[2]
        raise RegistryError(
            f"unknown env '{env_id}'. ManiSkill's and Gymnasium's have a prefix: {MANISKILL_PREFIX}{name} or "
            f"{GYM_PREFIX}{name}. Ours: {', '.join(ENVS.names())}."
        )
    return ENVS.entry(env_id)


def _keys(cfg: Any, where: str) -> Any:
    """`cfg` as a dict of keys, or as it is where it is a config object already."""
    if cfg is None or isinstance(cfg, Mapping):
        return dict(cfg or {})
    if dataclasses.is_dataclass(cfg) or isinstance(cfg, SimpleNamespace):
        return cfg
    raise ConfigError(f"{where}: expected a mapping of the env's own keys, not {type(cfg).__name__} ({cfg!r}).")


def _with_limit(config_type: type | None, cfg: Any, limit: int | None) -> Any:
    """The registration's limit as `episode_length`, where the config has that key and the user left it out."""
    if limit is None or config_type is None or not isinstance(cfg, dict):
        return cfg
    fields = {field.name for field in dataclasses.fields(config_type)}
    return {"episode_length": limit, **cfg} if "episode_length" in fields else cfg


@functools.cache
def _limited(config_type: type | None, limit: int) -> type | None:
    """`config_type` with another default for `episode_length`, where it has that key."""
    fields = {field.name: field for field in dataclasses.fields(config_type)} if config_type is not None else {}
    if config_type is None or "episode_length" not in fields:
        return config_type
    body = {
        "__module__": config_type.__module__,
        "__doc__": config_type.__doc__,
        "__annotations__": {"episode_length": fields["episode_length"].type},
        # By keyword, so that fields without a default may follow it.
        "episode_length": dataclasses.field(default=limit, kw_only=True),
    }
    frozen = config_type.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=frozen)(type(config_type.__name__, (config_type,), body))


def _convert(config_type: type | None, cfg: Any, where: str) -> Any:
    """The config object that the env's constructor takes."""
    if not isinstance(cfg, dict):
        return cfg
    if config_type is None:
        return SimpleNamespace(**cfg)
    from plaudit.config.structured import fill

    return fill(config_type, cfg, where)


def _apply_limit(env_id: str, env: VecEnv, config: Any, limit: int | None) -> None:
    """Makes sure that episodes are as long as the config or, failing that, the registration says."""
    from plaudit.envs.base import TaskEnv

    wanted = getattr(config, "episode_length", None)
    wanted = limit if wanted is None else wanted
    if wanted is None or env.max_episode_steps == wanted:
        return
    if isinstance(env, TaskEnv):
        env.max_episode_steps = wanted
    elif limit is not None:
        raise RegistryError(
            f"env '{env_id}' should end its episodes after {wanted} steps, but {type(env).__name__} says "
            f"max_episode_steps={env.max_episode_steps} and keeps its own clock. Derive it from plaudit.envs.TaskEnv, "
            f"or give its config an 'episode_length' key and set max_episode_steps from that."
        )


def _register_builtins() -> None:
    """The envs that come with the package."""
    push = "Push a cube into a goal disc on the table."
    tasks = {
        "PushCube": ("push_cube:PushCube", "PushCubeConfig", push),
        "PushCubeRL": ("push_cube:PushCube", "PushCubeConfig", push),
        "PickCube": ("pick_cube:PickCube", "PickCubeConfig", "Grasp a cube and hold it at a goal in the air."),
        "PegInsertion": ("peg_insertion:PegInsertion", "PegInsertionConfig", "Insert the held peg into a hole."),
    }
    for name, (target, config, about) in tasks.items():
        _add(name, f"plaudit.envs.mujoco.{target}", config=f"plaudit.envs.mujoco.config:{config}", about=about)
    probes = ("ConstantValue", "ObsValue", "Discount", "ActionReward", "ObsActionReward", "PictureAction", "Timeout")
    for name in probes:
        about = "A probe whose value and best action are known."
        _add(f"probe/{name}", f"plaudit.envs.probe_envs:{name}", config="plaudit.envs.config:ProbeConfig", about=about)


_register_builtins()
