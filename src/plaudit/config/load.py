"""From a recipe, a file and overrides to one checked `Config`, and back to a file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plaudit.config.checks import ConfigType, check_combinations, check_parts, check_reward_model, resolve
from plaudit.config.convert import Where, fill, to_dict
from plaudit.config.files import compose, display_name, find_recipe, merge, nest
from plaudit.config.overrides import apply_overrides
from plaudit.config.resolvers import register_resolvers
from plaudit.config.schema import Config, FitConfig
from plaudit.config.sources import COMMAND_LINE, Sources
from plaudit.config.trees import NOTHING, get_key
from plaudit.errors import ConfigError
from plaudit.files import whole_file

UNUSED_BY_ONE_STAGE = ("run",)
UNUSED_BY_A_FIT = ("env", "policy", "algorithm", "cluster", *UNUSED_BY_ONE_STAGE)

TO_BE_FITTED = "best_model"
"""Stands for a reward model that is to be fitted first."""

HEADER = "# Resolved by Plaudit; run it again with: plaudit {} "
"""How a config begins that a command has saved."""


def load_config(
    recipe: str | Path | None,
    overrides: Sequence[str] = (),
    *,
    config_file: str | Path | None = None,
    registries: Mapping[str, ConfigType] | None = None,
    prepare: Callable[[Config], None] | None = None,
    trains: bool = True,
) -> Config:
    """Composes, overrides, resolves and checks a config, before anything is built or written.

    The parts' own keys (`env.cfg`, `policy.cfg`, `algorithm.cfg`) hold every value, defaults included, where a registry
    names their config dataclass.

    Args:
        recipe: A shipped recipe's name, or a path to a .yaml, .yml or .json file.
        overrides: Changes in Hydra's grammar, such as `runtime.seed=2`.
        config_file: A file that is laid over the recipe, or stands alone.
        registries: `config_type` of the registries for `env`, `policy`, `algorithm` and `reward.model`. The keys of
            each part are checked where its registry is given.
        prepare: Called before the parts are checked, to register what the config asks for.
        trains: Whether it is to train; otherwise, to collect.
    """
    tree, sources = _read(named_files(recipe, config_file), overrides)
    return check_config(tree, sources, registries, prepare, trains)


def check_config(
    tree: Mapping[str, Any],
    sources: Sources,
    registries: Mapping[str, ConfigType] | None = None,
    prepare: Callable[[Config], None] | None = None,
    trains: bool = True,
) -> Config:
    """A config from what was read; the last three arguments are those of `load_config`."""
    used = {key: value for key, value in tree.items() if key not in UNUSED_BY_ONE_STAGE}
    config = fill(Config, used, "", sources)
    if prepare is not None:
        prepare(config)
    parts = check_parts(config, registries or {}, sources)
    check_combinations(config, parts, sources, trains=trains)
    check_reward_model(config.reward.model, registries or {}, sources)
    return resolve(config, parts)


def load_training_configs(
    recipe: str | Path | None,
    overrides: Sequence[str] = (),
    *,
    config_file: str | Path | None = None,
    registries: Mapping[str, ConfigType] | None = None,
    prepare: Callable[[Config | FitConfig], None] | None = None,
) -> tuple[FitConfig | None, Config | None]:
    """As `load_config`, for a training that may want a reward model fitted first (`reward.training.enabled`).

    Returns:
        What to fit, if anything is, and what to train then, which is nothing with `reward.training.only`. The
        `reward.checkpoint_path` of the latter is a place-holder for what the fit gives.
    """
    tree, sources = _read(named_files(recipe, config_file), overrides)
    wanted = get_key(tree, "reward.training.enabled")
    if wanted in (False, NOTHING):
        return None, check_config(tree, sources, registries, prepare)
    fit = check_fit_config(tree, sources, registries, prepare)
    if fit.reward.training.only:
        return fit, None
    trained = merge(tree, nest("reward.checkpoint_path", TO_BE_FITTED))
    return fit, check_config(trained, sources, registries, prepare)


def load_fit_config(
    recipe: str | Path | None,
    overrides: Sequence[str] = (),
    *,
    config_file: str | Path | None = None,
    data: str | Path | None = None,
    registries: Mapping[str, ConfigType] | None = None,
    prepare: Callable[[FitConfig], None] | None = None,
) -> FitConfig:
    """As `load_config`, for a fit: what the recipe says of envs and policies is passed over, and there need be none.

    Args:
        recipe: A shipped recipe's name, or a path to a .yaml, .yml or .json file.
        overrides: Changes in Hydra's grammar, such as `reward.training.num_epochs=5`.
        config_file: A file that is laid over the recipe, or stands alone.
        data: The data set, in place of the one that these name.
        registries: `config_type` of the registry for `reward.model`, whose keys are checked where it is given.
        prepare: Called before the model's keys are checked, to register what the config asks for.
    """
    paths = [find_recipe(recipe)] if recipe is not None else []
    paths += [Path(config_file)] if config_file is not None else []
    place = {} if data is None else nest("reward.training.data.path", str(data))
    tree, sources = _read(paths, overrides, place)
    return check_fit_config(tree, sources, registries, prepare)


def check_fit_config(
    tree: Mapping[str, Any],
    sources: Sources,
    registries: Mapping[str, ConfigType] | None = None,
    prepare: Callable[[FitConfig], None] | None = None,
) -> FitConfig:
    """The config of a fit from what was read; the last two arguments are those of `load_fit_config`."""
    used = {key: value for key, value in tree.items() if key not in UNUSED_BY_A_FIT}
    config = fill(FitConfig, used, "", sources)
    if prepare is not None:
        prepare(config)
    check_reward_model(config.reward.model, registries or {}, sources)
    return config


def named_files(recipe: str | Path | None, config_file: str | Path | None) -> list[Path]:
    """The recipe and the file that is laid over it, of which there must be one at least."""
    paths = [find_recipe(recipe)] if recipe is not None else []
    paths += [Path(config_file)] if config_file is not None else []
    if not paths:
        raise ConfigError("no config given: name a recipe (see 'plaudit recipes') or a file with --config.")
    return paths


def to_yaml(config: Config | FitConfig | Mapping[str, Any]) -> str:
    """A config, or plain data, as YAML text that is read back to an equal one."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(_escape(to_dict(config))))


def save_config(config: Config | FitConfig | Mapping[str, Any], path: str | Path, command: str = "train") -> None:
    """Writes a config so that at any instant the file is whole: the old one or the new one.

    Args:
        config: The config.
        path: Where to.
        command: The command that runs it again, which the file says at its top.
    """
    first = HEADER.format(command) + shlex.quote(str(Path(path).absolute()))
    with whole_file(path) as temporary:
        temporary.write_text(f"{first}\n{to_yaml(config)}", encoding="utf-8")


def is_saved_config(path: str | Path, command: str) -> bool:
    """Whether there is a file that `save_config` wrote for a command, and not a user by hand."""
    path = Path(path)
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(HEADER.format(command))


def _read(
    paths: Sequence[Path], overrides: Sequence[str], given: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Sources]:
    """Everything merged and resolved, and who set what; `given` is laid over all else, as it is."""
    sources = Sources(display_name(paths[-1]) if paths else COMMAND_LINE)
    tree = apply_overrides(merge({}, *[compose(path, sources) for path in paths]), overrides, sources)
    tree = merge(tree, _escape(dict(given or {})))
    sources.record(given or {}, COMMAND_LINE)
    return interpolated(tree, sources), sources


def interpolated(tree: dict[str, Any], sources: Sources) -> dict[str, Any]:
    """The tree with every `${...}` replaced by what it stands for; an error names the key and who set it."""
    from omegaconf.errors import OmegaConfBaseException

    register_resolvers()
    try:
        return merge(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise Where(error.full_key or "", sources).error(f"{str(error).splitlines()[0].rstrip('.')}.") from None


def _escape(value: Any) -> Any:
    """Texts that look like an interpolation, written so that they are read back as they are."""
    if isinstance(value, dict):
        return {key: _escape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escape(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value
