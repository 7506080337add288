"""Load a recipe or a file with overrides into one checked `Config`, and write it back to a file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from plaudit.compat.config_dialects import translate
from plaudit.compat.key_rename import NOTHING, get_key
from plaudit.config.schema import Config, FitConfig
from plaudit.config.structured import Where, fill, to_dict
from plaudit.config.validation import ConfigType, check_combinations, check_parts, check_reward_model, resolve
from plaudit.errors import ConfigError, nearest
from plaudit.utils.atomic_io import whole_file
from plaudit.utils.provenance import COMMAND_LINE, Sources
from plaudit.utils.threads import has_gpu

SHIPPED = Path(str(files("plaudit.config"))) / "recipes"
SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Include:
    """One entry of a defaults list.

    Attributes:
        path: File to read, without suffix, relative to the file that names it. `_self_` is that file's own content.
        package: Dotted key to place it under; "" for the top.
        optional: Whether it may be missing.
    """

    path: str
    package: str = ""
    optional: bool = False


def recipe_names() -> dict[str, str]:
    """Shipped recipes and what the first comment of each says. A leading underscore marks a building block."""
    paths = sorted(p for p in SHIPPED.iterdir() if p.suffix in SUFFIXES and not p.name.startswith("_"))
    return {path.stem: _first_comment(path) for path in paths}


def find_recipe(recipe: str | Path) -> Path:
    """The file of a shipped recipe's name, or of the user's own path."""
    path = Path(recipe)
    if path.suffix in SUFFIXES or path.is_file() or len(path.parts) > 1:
        return path
    found = _with_suffix(SHIPPED / path.name)
    if found is None:
        raise ConfigError(
            f"unknown recipe '{recipe}'.{nearest(str(recipe), recipe_names())} "
            "A file of your own needs its suffix: .yaml, .yml or .json."
        )
    return found


def display_name(path: Path) -> str:
    """A file as messages call it: the user's own as given, a shipped one from `recipes/` on."""
    return str(Path("recipes") / path.relative_to(SHIPPED)) if path.is_relative_to(SHIPPED) else str(path)


def read_file(path: Path) -> dict[str, Any]:
    """A YAML or JSON file as plain dicts, interpolations unresolved, in canonical spelling."""
    name = display_name(path)
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{name}: a config file ends in .yaml, .yml or .json.")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{name}: no such file.{_nearby(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot be read: {error}.") from None
    tree = _parse_json(text, name) if path.suffix == ".json" else _parse_yaml(text, name)
    if not isinstance(tree, dict):
        raise ConfigError(f"{name}: expected a mapping at the top, got {type(tree).__name__}.")
    return tree


def compose(path: Path, sources: Sources, package: str = "", chain: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A file with everything that its defaults list names, merged in that order; `sources` learns who set what.

    Args:
        path: The file.
        sources: Filled in on the way.
        package: Dotted key that this file is placed under, for `sources`.
        chain: Files that are being composed already, to find cycles.
    """
    if path.resolve() in chain:
        loop = " -> ".join(display_name(p) for p in (*chain, path.resolve()))
        raise ConfigError(f"{display_name(path)}: defaults: these files include each other: {loop}.")
    tree = read_file(path)
    tree.pop("hydra", None)  # Hydra's own settings: where it logs, how it sweeps
    includes = _defaults(tree.pop("defaults", []), display_name(path))
    tree = translate(tree, display_name(path)) if not package else tree
    merged: dict[str, Any] = {}
    for include in includes:
        if include.path == "_self_":
            sources.record(tree, display_name(path), package)
            part = tree
        else:
            found = _find_include(include, path)
            if found is None:
                continue
            inner = ".".join(p for p in (package, include.package) if p)
            part = nest(include.package, compose(found, sources, inner, (*chain, path.resolve())))
        merged = merge(merged, part)
    return merged


def merge(*trees: dict[str, Any], resolve: bool = False) -> dict[str, Any]:
    """Plain dicts laid over each other, lists as a whole; with `resolve`, `${...}` replaced by what it stands for."""
    from omegaconf import OmegaConf

    return cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.merge(*trees), resolve=resolve))


def nest(key: str, value: Any) -> Any:
    """`value` under a dotted key: `nest("a.b", 1)` is `{"a": {"b": 1}}`."""
    for name in reversed(key.split(".") if key else []):
        value = {name: value}
    return value


def _defaults(entries: Any, name: str) -> list[Include]:
    if not isinstance(entries, list):
        raise ConfigError(f"{name}: defaults: expected a list, got {type(entries).__name__}.")
    includes = [include for entry in entries for include in _entry(entry, name)]
    if Include("_self_") not in includes:
        includes.append(Include("_self_"))  # as Hydra does: a file has the last word over what it includes
    return includes


def _entry(entry: Any, name: str) -> list[Include]:
    """One entry: `recipe`, `group/option`, `group: option`, `group: [a, b]`, any with `@package`."""
    key, options = entry, [None]
    if isinstance(entry, Mapping) and len(entry) == 1:
        key, option = next(iter(entry.items()))
        options = option if isinstance(option, list) else [option]
    if not isinstance(key, str) or not all(isinstance(o, (str, type(None))) for o in options):
        raise ConfigError(f"{name}: defaults: expected 'recipe' or 'group: option', got {entry!r}.")
    words = key.split()
    if words[-1].startswith("hydra/"):
        return []
    if "override" in words:
        raise ConfigError(f"{name}: defaults: '{key}': only 'override hydra/...' can be overridden here.")
    group, _, package = words[-1].partition("@")
    optional = "optional" in words
    if isinstance(entry, Mapping):
        package = (package or group).replace("/", ".")
        return [Include(f"{group}/{option}", package, optional) for option in options if option is not None]
    return [Include(group, (package or group.rpartition("/")[0]).replace("/", "."), optional)]


def _find_include(include: Include, parent: Path) -> Path | None:
    """Beside the file that names it, then among the shipped ones."""
    beside = _with_suffix(parent.parent / include.path)
    shipped = _with_suffix(SHIPPED / include.path)
    # A user's push_cube.yaml may build on the shipped push_cube.
    if beside is not None and shipped is not None and beside.resolve() == parent.resolve():
        return shipped
    found = beside or shipped
    if found is None and not include.optional:
        known = {p.stem for p in (*parent.parent.glob("*"), *SHIPPED.iterdir()) if p.suffix in SUFFIXES}
        raise ConfigError(
            f"{display_name(parent)}: defaults: no config '{include.path}' beside it or among the shipped ones."
            f"{nearest(include.path, known)}"
        )
    return found


def _with_suffix(path: Path) -> Path | None:
    if path.suffix in SUFFIXES:
        return path if path.is_file() else None
    candidates = (path.with_name(path.name + suffix) for suffix in SUFFIXES)
    return next((c for c in candidates if c.is_file()), None)


def _parse_yaml(text: str, name: str) -> Any:
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        # OmegaConf's loader, because it reads 1e-3 as a number and refuses a key that is given twice.
        return OmegaConf.to_container(OmegaConf.create(text or "{}"), resolve=False)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise ConfigError(f"{name}:{place} not valid YAML: {error.problem}.") from None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{name}: not valid YAML: {str(error).splitlines()[0]}.") from None


def _parse_json(text: str, name: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                raise ConfigError(f"{name}: the key '{key}' is given twice in one object.")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}: line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}.") from None


def _first_comment(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.lstrip("# ").strip() for line in lines if line.startswith("#")), "")


def _nearby(path: Path) -> str:
    """A suggestion among the config files of the same folder."""
    if not path.parent.is_dir():
        return ""
    names = [p.name for p in path.parent.iterdir() if p.suffix in SUFFIXES]
    hint = nearest(path.name, names)
    return hint if "Did you mean" in hint else ""


def apply_overrides(tree: dict[str, Any], overrides: Sequence[str], sources: Sources) -> dict[str, Any]:
    """`tree` with every override laid over it in turn; whether the keys are valid is for the schema to say."""
    for text in overrides:
        override = _parse(text)
        if override.is_delete():
            tree = _delete(tree, override.key_or_group, override.value(), text)
            sources.forget(override.key_or_group)
            continue
        if override.is_add() and _has(tree, override.key_or_group):
            raise ConfigError(f"{COMMAND_LINE}: '{text}': the key is there already; change it without the '+'.")
        tree = _set(tree, override.key_or_group, override.value(), sources)
    return tree


def _parse(text: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_overrides([text])[0]
    except HydraException as error:
        reason = " ".join(str(error).split("\nSee https")[0].split())
        raise ConfigError(
            f"{COMMAND_LINE}: '{text}' is not an override: {reason}. Write key=value, such as runtime.seed=2."
        ) from None
    if override.is_sweep_override():
        raise ConfigError(
            f"{COMMAND_LINE}: '{text}' is a sweep, and a run has one config: start one run for each value. "
            "A list is written [a,b], a text with a comma in it 'a,b' in quotes."
        )
    if override.package is not None or "/" in override.key_or_group:
        raise ConfigError(f"{COMMAND_LINE}: '{text}' chooses from a config group; use a defaults list in a file.")
    return override


def _set(tree: dict[str, Any], key: str, value: Any, sources: Sources) -> dict[str, Any]:
    change = translate(nest(key, value), COMMAND_LINE)
    sources.record(change, COMMAND_LINE)
    return merge(tree, change)


def _delete(tree: dict[str, Any], key: str, value: Any, text: str) -> dict[str, Any]:
    """A copy of `tree` without `key`; with a value given (`~a.b=1`), only where it is that value."""
    head, _, rest = key.partition(".")
    if head not in tree or (rest and not isinstance(tree[head], Mapping)):
        raise ConfigError(f"{COMMAND_LINE}: '{text}': there is no key '{head}' to remove.{nearest(head, tree)}")
    if rest:
        return {**tree, head: _delete(tree[head], rest, value, text)}
    if value is not None and tree[head] != value:
        raise ConfigError(f"{COMMAND_LINE}: '{text}': the value there is {tree[head]!r}.")
    return {name: item for name, item in tree.items() if name != head}


def _has(tree: Any, key: str) -> bool:
    for name in key.split("."):
        if not isinstance(tree, Mapping) or name not in tree:
            return False
        tree = tree[name]
    return True


def register_resolvers() -> None:
    """Makes known `${on_gpu:a,b}`, which is `a` where a GPU is used and `b` where the CPU is all there is, and
    `${on_task:name,a,b}`, which is `a` where `env.id` is that task, of whatever library, else `b`.
    """
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("on_gpu", _on_gpu, replace=True)
    OmegaConf.register_new_resolver("on_task", _on_task, replace=True)


def _on_gpu(gpu: Any, cpu: Any, *, _root_: Any) -> Any:
    """The first value if there is a GPU that `runtime.cuda` lets a run have, else the second."""
    from omegaconf import OmegaConf

    allowed = OmegaConf.select(_root_, "runtime.cuda", default=True)
    return gpu if allowed and has_gpu() else cpu


def _on_task(name: str, there: Any, elsewhere: Any, *, _root_: Any) -> Any:
    """The first value if the config's task is called so, else the second."""
    from omegaconf import OmegaConf

    return there if str(OmegaConf.select(_root_, "env.id", default="")).rpartition(":")[2] == name else elsewhere


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
