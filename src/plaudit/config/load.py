"""From a recipe, a file and overrides to one checked `Config`, and back to a file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plaudit.config.checks import ConfigType, check_combinations, check_parts, resolve
from plaudit.config.convert import Where, fill, to_dict
from plaudit.config.files import compose, display_name, find_recipe, merge
from plaudit.config.overrides import apply_overrides
from plaudit.config.schema import Config
from plaudit.config.sources import Sources
from plaudit.errors import ConfigError
from plaudit.files import whole_file


def load_config(
    recipe: str | Path | None,
    overrides: Sequence[str] = (),
    *,
    config_file: str | Path | None = None,
    registries: Mapping[str, ConfigType] | None = None,
    prepare: Callable[[Config], None] | None = None,
) -> Config:
    """Composes, overrides, resolves and checks a config, before anything is built or written.

    The parts' own keys (`env.cfg`, `policy.cfg`, `algorithm.cfg`) hold every value, defaults included, where a registry
    names their config dataclass.

    Args:
        recipe: A shipped recipe's name, or a path to a .yaml, .yml or .json file.
        overrides: Changes in Hydra's grammar, such as `runtime.seed=2`.
        config_file: A file that is laid over the recipe, or stands alone.
        registries: `config_type` of the registries for `env`, `policy` and `algorithm`. The keys of each part are
            checked where its registry is given.
        prepare: Called before the parts are checked, to register what the config asks for.
    """
    paths = [find_recipe(recipe)] if recipe is not None else []
    paths += [Path(config_file)] if config_file is not None else []
    if not paths:
        raise ConfigError("no config given: name a recipe (see 'plaudit recipes') or a file with --config.")
    tree, sources = _read(paths, overrides)
    config = fill(Config, tree, "", sources)
    if prepare is not None:
        prepare(config)
    parts = check_parts(config, registries or {}, sources)
    check_combinations(config, parts, sources)
    return resolve(config, parts)


def to_yaml(config: Config) -> str:
    """A config as YAML text that `load_config` reads back to an equal one."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(_escape(to_dict(config))))


def save_config(config: Config, path: str | Path) -> None:
    """Writes a config so that at any instant the file is whole: the old one or the new one."""
    again = f"plaudit train {shlex.quote(str(Path(path).absolute()))}"
    with whole_file(path) as temporary:
        temporary.write_text(f"# Resolved by Plaudit; run it again with: {again}\n{to_yaml(config)}", encoding="utf-8")


def _read(paths: Sequence[Path], overrides: Sequence[str]) -> tuple[dict[str, Any], Sources]:
    """Everything merged and resolved, and who set what."""
    from omegaconf.errors import OmegaConfBaseException

    sources = Sources(display_name(paths[-1]))
    tree = apply_overrides(merge(*[compose(path, sources) for path in paths]), overrides, sources)
    try:
        return merge(tree, resolve=True), sources
    except OmegaConfBaseException as error:
        raise Where(error.full_key or "", sources).error(f"{str(error).splitlines()[0].rstrip('.')}.") from None


def _escape(value: Any) -> Any:
    """Texts that look like an interpolation, written so that they are read back as they are."""
    if isinstance(value, dict):
        return {key: _escape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escape(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value
